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

# Lines that no test of this process can reach, and why
PHI, DIGEST = "the φ of a model was checked when it was made", "`digest` has refused such a model before"
RATIONAL = "these numbers are rationals of a system of ours, or floats that were found to be finite"
LIMIT = "the limit was checked when the file was opened"
UNREACHED = {
    "cli/prompt.py: budget('--prompt', options.limit)": LIMIT,
    "files/checkpoint.py: budget('load', limit, sum((x.nbytes for x in contents.tensors.values())))": LIMIT,
    "files/models/__init__.py: budget('read_model', limit, opening.size)": LIMIT,
    "files/checkpoint.py: config_text('load', config)": PHI,
    "files/checkpoint.py: config_text('save', model.config)": DIGEST,
    "files/checkpoint.py: arrays_on_disk('save', model.weights)": DIGEST,
    "systems/running_error.py: fractions(x.planes[0], self.name)": RATIONAL,
    "verify/bounds.py: fractions(exact, 'judge')": RATIONAL,
    "verify/bounds.py: fractions(np.where(not_finite, np.zeros_like(a), a), 'finite_fractions')": RATIONAL,
    "verify/bounds.py: fractions(x.system.where(not_finite, 0, x), 'finite_fractions')": RATIONAL,
    "verify/ways.py: fractions(left, name)": RATIONAL,
    "verify/ways.py: fractions(right, name)": RATIONAL,
    "verify/ways.py: fractions(x, 'verify')": RATIONAL,
    "verify/ways.py: fractions(x, name)": RATIONAL,
}


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
    assert spoken >= {"check_integer('polynomial', 'degree', degree, least=0)"} and 1 < len(spoken) < 5


@pytest.mark.whole_session
def test_every_raise_and_every_check_has_refused_something() -> None:
    """Runs last, and only if all tests are run: conftest.py sees to both."""
    silent = [(f"{r.path.relative_to(ROOT)}: {r.code}", r.lines[0]) for r in raises.silent()]
    untested = [f"line {line} of {code}" for code, line in silent if code not in UNREACHED]
    assert not untested, "\n".join(untested)
    assert set(UNREACHED) == {code for code, _ in silent}


def test_what_no_test_can_reach_is_still_in_the_source() -> None:
    assert set(UNREACHED) <= {f"{r.path.relative_to(ROOT)}: {r.code}" for r in refusals()}
