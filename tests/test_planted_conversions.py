"""Verify can fail: every planted bug in the conversion path turns the right rows red, in exact numbers and in floats."""

from __future__ import annotations

import pytest
from planted_conversions import BUGS, rejects

import refimpl as ri
from refimpl.verify import iclca
from refimpl.verify.iclca import CONVERSIONS
from refimpl.verify.registry import verify

PAIRS = [(name, theorem) for name, bug in BUGS.items() for theorem in bug.rejected_by]


@pytest.mark.parametrize(("name", "theorem"), PAIRS, ids=[f"{name}-{theorem}" for name, theorem in PAIRS])
@pytest.mark.parametrize("system", [ri.GF(2**61 - 1), ri.Float()], ids=["GF", "float64"])
def test_a_planted_bug_turns_the_row_red(name, theorem, system):
    assert rejects(theorem, name, system), BUGS[name].catches


@pytest.mark.parametrize("system", [ri.Float("numpy", "float32"), ri.Rounded("bfloat16")], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["forgotten_b_D", "unshifted", "rotated_b_D", "wrong_head", "restart_off_by_one", "last_token_lost"])
def test_probes_see_it_in_low_precision(name, system):
    assert rejects("iclca_probes", name, system)


def test_rounding_too_much_is_seen_against_the_oracle():
    assert rejects("iclca_error", "rounded_to_float32", ri.Float())


@pytest.mark.parametrize("system", [ri.QQ, ri.GF(2**61 - 1), ri.Float()], ids=["Q", "GF", "float64"])
def test_joining_without_a_shift_turns_the_row_red(system, monkeypatch):
    monkeypatch.setattr(iclca, "join", lambda a, b, **options: ri.State(a.S + b.S, a.z + b.z, -options["origin"]))
    (result,) = verify(["iclca_join"], [system])
    assert result.verdict == "FAIL" and " instead of " in result.evidence


def test_without_a_bug_all_rows_are_green():
    names = sorted({theorem for _, theorem in PAIRS})
    assert {r.verdict for r in verify(names, [ri.GF(2**61 - 1), ri.Float()])} == {"EXACT", "WITHIN BOUND"}


def test_there_are_enough_and_each_says_what_it_catches():
    assert len(BUGS) >= 12 and all(bug.catches and bug.rejected_by for bug in BUGS.values())
    decided = {t.name for t in CONVERSIONS if "equality" in t.ways} - {"iclca_join"}
    assert {theorem for _, theorem in PAIRS} == decided
