"""Bad input: every error word for word, and no line of the package that may refuse something
without a test.

The tables stand beside the tests of each package, in `bad_input*.py`.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import numpy as np
import pytest

from refimpl import NotDefined, NotFinite, ZeroDenominator
from refimpl.attention.feature_maps import polynomial
from tests.helpers import raises
from tests.helpers.bad_input import Case
from tests.helpers.source import ROOT, checkers, checking_methods, refusals

TABLES = {
    f"{path.parent.name}.{path.stem}": importlib.import_module(f"tests.{path.parent.name}.{path.stem}").CASES
    for path in sorted(Path(__file__).parent.glob("*/bad_input*.py"))
    if path.parent.name != "helpers"
}
CASES = [pytest.param(case, id=f"{table}: {name}") for table, cases in TABLES.items() for name, case in cases.items()]


@pytest.mark.parametrize("case", CASES)
def test_bad_input(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some cases save a file
    with np.errstate(all="ignore"), pytest.raises(case.error) as caught:
        case.run()
    assert str(caught.value) == case.message
    assert type(caught.value) is case.error


def test_every_message_names_function_and_argument() -> None:
    others = (NotDefined, ZeroDenominator, NotFinite, OSError)  # these name the system, the token or the file instead
    for cases in TABLES.values():
        for case in cases.values():
            assert issubclass(case.error, others) or re.match(
                r"[\w.() ]+: .*(`[\w.()\[\]]+`|the JSON)|.* is a float", case.message
            ), case.message


def test_the_source_says_what_may_refuse() -> None:
    assert {"refimpl.checks.check_shape", "refimpl.checks.leading_axes", "refimpl.errors.choose"} <= checkers()
    assert {"refimpl.systems.array.require", "refimpl.systems.floats.require_of"} <= checkers()
    assert checking_methods() == {"check_heads", "check_past"}
    assert len(checkers()) > 40 and len(refusals()) > 600 and sum(r.code.startswith("raise") for r in refusals()) > 250


def test_a_raise_is_noted_with_the_calls_that_led_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raises, "seen", set())
    assert len(raises.silent()) == len(refusals())
    with pytest.raises(ValueError):
        polynomial(-1)
    spoken = {r.code for r in refusals()} - {r.code for r in raises.silent()}
    assert spoken >= {"check_integer('polynomial', 'degree', degree, least=0, most=64)"} and 1 < len(spoken) < 5


def test_what_was_not_refused_in_a_session_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of a session with every test and every library, by conftest.py."""
    everything = {(str(r.path), line) for r in refusals() for line in r.lines}
    monkeypatch.setattr(raises, "seen", everything)
    assert raises.untested() == [f"{code}: no test reaches it, and yet one did" for code in sorted(raises.UNREACHED)]
    one = next(r for r in refusals() if r.code.startswith("check_integer('polynomial'"))
    monkeypatch.setattr(raises, "seen", everything - {(str(one.path), line) for line in one.lines})
    assert f"line {one.lines[0]} of attention/feature_maps.py: {one.code}: no test" in raises.untested()


def test_what_no_test_can_reach_is_still_in_the_source() -> None:
    assert set(raises.UNREACHED) <= {f"{r.path.relative_to(ROOT)}: {r.code}" for r in refusals()}
