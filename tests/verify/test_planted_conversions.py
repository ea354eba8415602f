"""Verify can fail: every planted bug in the conversion path turns the right rows red, in exact
numbers and in floats.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

import refimpl as ri
from refimpl.verify.check import Draws, check
from refimpl.verify.implementation import REFIMPL
from refimpl.verify.registry import THEOREMS, verify
from refimpl.verify.theorem import Numbers
from refimpl.verify.theorems import iclca
from tests.helpers.planted_conversions import BUGS, rejects

PAIRS = [(name, theorem) for name, bug in BUGS.items() for theorem in bug.rejected_by]


@pytest.mark.parametrize(("name", "theorem"), PAIRS, ids=[f"{name}-{theorem}" for name, theorem in PAIRS])
@pytest.mark.parametrize("system", [ri.GF(2**61 - 1), ri.Float()], ids=["GF", "float64"])
def test_a_planted_bug_turns_the_row_red(name, theorem, system):
    assert rejects(theorem, name, system), BUGS[name].catches


@pytest.mark.parametrize("system", [ri.Float("numpy", "float32"), ri.Rounded("bfloat16")], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    "name", ["forgotten_b_D", "unshifted", "rotated_b_D", "wrong_head", "restart_off_by_one", "last_token_lost"]
)
def test_probes_see_it_in_low_precision(name, system):
    assert rejects("iclca_probes", name, system)


@pytest.mark.slow
def test_rounding_too_much_is_seen_against_the_oracle():
    assert rejects(
        "iclca_error", "rounded_to_float32", ri.Float(), full=True
    )  # a quick run has too few instances to judge


@pytest.mark.parametrize("system", [ri.QQ, ri.GF(2**61 - 1), ri.Float()], ids=["Q", "GF", "float64"])
def test_joining_without_a_shift_turns_the_row_red(system):
    wrong = replace(REFIMPL, join=lambda a, b, kernel, *, origin: ri.State(a.S + b.S, a.z + b.z, -origin))
    (result,) = verify(["iclca_join"], [system], implementation=wrong)
    assert result.verdict == "FAIL" and " instead of " in result.evidence


@pytest.mark.parametrize("system", [ri.GF(2**61 - 1), ri.Float()], ids=["GF", "float64"])
def test_zero_denominators_are_no_place_to_hide(system):
    """A conversion that gives up on three models of four.

    Chance does not explain so many redraws.
    """
    calls = iter(range(10**6))

    def gives_up(model, prompt, **options):
        if next(calls) % 4:
            raise ri.ZeroDenominator("the denominator is zero")
        return ri.convert(model, prompt, **options)

    assert verify(["iclca"], [system], implementation=replace(REFIMPL, convert=gives_up))[0].verdict == "FAIL"


def test_the_prompted_side_is_the_definition_over_all_positions():
    seen = []

    def recording(q, k, v, kernel, **options):
        seen.append(q.shape[-2])
        return ri.linear_attention(q, k, v, kernel, **options)

    watched = replace(REFIMPL, linear_attention=recording)
    assert verify(["iclca"], [ri.QQ], implementation=watched)[0].verdict == "EXACT"
    cases = [case for case in iclca.MODELS if iclca.causal(case) and case not in (iclca.GPT, iclca.LLAMA)]
    assert seen[: sum(c.layers for c in cases)] == [c.M + c.n for c in cases for _ in range(c.layers)]


def test_each_layer_is_given_new_activations():
    """Were they not new, the second layer would see what the first put out, and the degrees would
    be those of both.
    """
    (layers,), (end,) = (
        verify([name], [ri.GF(2**61 - 1)], draws=Draws(0, "fixed")) for name in ("iclca_layers", "iclca")
    )
    case = iclca.TURNED
    again = [
        check(t, ri.GF(2**61 - 1), [case], Draws(0, "fixed")).degree
        for t in (THEOREMS["iclca_layers"], THEOREMS["iclca"])
    ]
    assert again[0] < again[1] / 2 and layers.verdict == end.verdict == "EXACT"


def test_a_text_is_split_everywhere():
    names = [name for name, *_ in iclca.composition(iclca.TURNED, Numbers(ri.GF(2**61 - 1), 1), REFIMPL)]
    assert {f"split at {t}: layer {i} S" for t in range(4) for i in range(2)} <= set(
        names
    ) and "streamed: layer 0 S" in names


def test_without_a_bug_all_rows_are_green():
    names = sorted({theorem for _, theorem in PAIRS})
    assert {r.verdict for r in verify(names, [ri.GF(2**61 - 1), ri.Float()])} == {"EXACT", "WITHIN BOUND"}


def test_there_are_enough_and_each_says_what_it_catches():
    assert len(BUGS) >= 12 and all(bug.catches and bug.rejected_by for bug in BUGS.values())
    decided = {t.name for t in iclca.THEOREMS if "equality" in t.ways} - {"iclca_join"}
    assert {theorem for _, theorem in PAIRS} == decided
