"""Where each way of checking changes its verdict: on both sides of every limit."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import refimpl as ri
from refimpl.verify.cases import Case
from refimpl.verify.check import Draws, minimal, with_chance
from refimpl.verify.implementation import REFIMPL
from refimpl.verify.registry import THEOREMS
from refimpl.verify.theorems.large import P
from refimpl.verify.ways import (
    WAYS,
    Finding,
    Instance,
    Tally,
    Verdict,
    first_difference,
    likelihood,
    relative_squared_error,
    short,
)


def tally(*findings):
    return Tally(tuple(Instance(f"case {i}", (f,)) for i, f in enumerate(findings)))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("far", "fails"), [(0.0, False), (5.999, False), (6.001, True), (60.0, True)])
def test_a_mean_may_be_six_standard_errors_off(sign, far, fails):
    """8 draws of 3 and 8 of 5: mean 4, variance 16/15, standard error 1/√15."""
    draws, error = np.array([3.0, 5.0] * 8), 1 / math.sqrt(15)
    found = WAYS["sampled"].compare(ri.Float(), ("x", draws, np.array(4 + sign * far * error)), ())
    assert bool(found.failure) == fails and found.draws == 16 and found.compared == 1
    assert found.ratio == (6 if fails else pytest.approx(far, abs=1e-9))
    assert found.error == pytest.approx(error / abs(4 + sign * far * error))
    if fails:
        assert found.failure.startswith(f"x: the mean of 16 draws is 4, {far:.1f} standard errors from ")


def test_equal_draws_and_draws_that_are_not_finite_fail():
    for draws in ([1.0, 1.0, 1.0], [1.0, math.nan], [1.0, math.inf]):
        with np.errstate(all="ignore"):
            assert WAYS["sampled"].compare(ri.Float(), ("x", np.array(draws), np.array(1.0)), ()).failure


def test_ten_standard_errors_must_be_at_most_five_percent():
    for error, verdict in ((0.005, "MEASURED"), (0.00501, "VACUOUS"), (1.0, "VACUOUS")):
        found = WAYS["sampled"].agreement(tally(Finding("x", error=error / 2), Finding("y", error=error, draws=9)))
        assert (found.verdict, found.error) == (verdict, error)
    assert "a formula wrong by 1000.0% is seen" in found.evidence and "6 would be FAIL" in found.evidence


@pytest.mark.parametrize(("count", "left", "verdict"), [(20, 4, "MEASURED"), (20, 5, "FAIL"), (19, 5, "MEASURED")])
def test_twice_the_error_of_the_other_side_is_allowed(count, left, verdict):
    """The squares of both sides are added up; their roots are compared."""
    found = WAYS["oracle"].agreement(tally(*[Finding("x", compared=1, squares=(left, 1.0))] * count))
    assert found.verdict == verdict
    assert (found.error, found.bound) == (math.sqrt(count * left), 2 * math.sqrt(count))


def test_squared_errors_are_relative_to_the_largest_entry():
    truth = np.array([Fraction(1), Fraction(-4)], dtype=object)
    assert relative_squared_error(np.array([2.0, -6.0]), truth) == (1 + 4) / 16


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_an_enclosure_is_twice_the_radius(shape):
    system = ri.balls(30, "iv")
    x = system.ones(shape) / 3
    found = WAYS["enclosure"].compare(system, ("x", x, x), ())
    rows = shape[0] if len(shape) == 2 else 1
    assert (found.failure, found.rows, found.vacuous, found.compared) == ("", rows, 0, math.prod(shape))
    assert found.bound == 2 * system.radius(x - x) > 0


@pytest.mark.parametrize("rows", [1, 65, 1000])
def test_one_wrong_row_of_many_fails(rows):
    for way, system in (("equality", ri.GF(7)), ("enclosure", ri.balls(30)), ("probe", ri.Float())):
        one, two = (system.convert([[1, 1]] * (rows - 1) + [[1, x]]) for x in (1, 2))
        found = [WAYS[way].compare(system, ("x", one, x), ()) for x in (one, two)]
        assert not found[0].failure and found[1].failure.startswith(f"x[{rows - 1}, 1] is ")


def test_the_least_certain_instance_has_the_largest_chance():
    """Of those that compared something, and whose chance is at most ½."""
    chances = (Fraction(1, 5), Fraction(0), None, Fraction(1, 2), Fraction(0), Fraction(51, 100))
    tally = Tally(tuple(Instance(str(c), (Finding("o", compared=1),), chance=c) for c in chances))
    assert tally.least_certain is not None and tally.least_certain.case == "1/2"
    assert [i.case for i in tally.tested] == ["1/5", "0", "1/2", "0"]
    assert Tally((Instance("x", chance=Fraction(0)),)).least_certain is None


def test_a_probability_in_words():
    assert likelihood(Fraction(0)) == "without doubt"
    words = {Fraction(1, 8): 3, Fraction(1, 7): 2, Fraction(1, 9): 3, Fraction(2, 17): 3, Fraction(3, 2**61): 59}
    for chance, bits in words.items():
        assert likelihood(chance) == f"false with probability ≤ 2^-{bits}"


def test_long_fractions_are_shown_approximately():
    assert [short(Fraction(1, d)) for d in (3, 2**100 - 1)] == ["1/3", f"1/{2**100 - 1}"]
    assert short(Fraction(1, 2**100)) == f"about {2.0**-100:.6g}"


@pytest.mark.parametrize(("redraws", "p", "fails"), [(0, 2**61, False), (1, 2**30, False), (1, 2**30 + 1, True)])
def test_zero_denominators_may_be_chance_down_to_a_probability_of_one_in_2_to_the_30(redraws, p, fails):
    found = with_chance(Instance("x", redraws=redraws), (3, 1), p)
    assert bool(found.failure) == fails and found.degree == 3 and found.chance == Fraction(3, p - 1)
    assert not with_chance(Instance("x", redraws=2), (3, 2), 2**16).failure
    assert with_chance(Instance("x", redraws=2), (3, 2), 2**16 + 1).failure


def test_the_bound_of_mpmath_is_that_of_float64_at_its_own_precision():
    """An error of 2u in float64 is 2^(54 − prec) u for each side, together two units of 1."""
    system, running = ri.MP(30), ri.RunningError()
    same = running.wrap((np.array([1.0]), np.array([2.0**-52])))
    bound = 2 * 2.0**-52 * 2.0 ** (53 - system.ctx.prec)
    for ratio, fails in ((1, False), (Fraction(3, 2), True)):
        left = system.convert([1]) + system.convert([ratio * Fraction(bound)])
        found = WAYS["bound"].compare_arrays(system, ("x", left, system.convert([1])), ("x", same, same))
        assert bool(found.failure) == fails and found.bound == (bound if not fails else found.bound)


def test_a_difference_is_told_with_both_entries():
    for system, entries in ((ri.QQ, ("1/2", "1/3")), (ri.GF(7), ("4", "5")), (ri.Float(), ("0.5", "0.333"))):
        left, right = (system.convert([[1, Fraction(1, b)]]) for b in (2, 3))
        words = first_difference("o", left, right, np.array([[False, True]]))
        assert words.startswith(f"o[0, 1] is {entries[0]} instead of {entries[1]}")
        assert first_difference("o", left, left, np.array([[False, False]])) == ""


def test_a_verdict_without_numbers_has_none():
    assert Verdict("EXACT", "equal")[2:] == (0.0, 0.0, "")


def test_the_smallest_case_that_fails_is_looked_for():
    """The planted mistake shows from three tokens on."""

    def wrong(*args, **options):
        o, after = ri.linear_attention_chunked(*args, **options)
        return (o + 1 if o.shape[-2] > 2 else o), after

    theorem, draws, impl = THEOREMS["chunked_eq_sum"], Draws(0), replace(REFIMPL, linear_attention_chunked=wrong)
    case = Case(9, 4, 3, ((2,), (2,)), start=3, rope=("half", "after", 4))
    found = minimal(theorem, ri.QQ, case, draws, impl)
    assert (found.n, found.d, found.m, found.heads, found.rope, found.start) == (3, 1, 1, ((), ()), None, None)
    assert minimal(theorem, ri.QQ, case, draws, impl, seconds=0) == case
    assert minimal(theorem, ri.QQ, case, draws) == case


def test_a_large_case_that_fails_becomes_small_at_once(monkeypatch):
    """Shorter, it fails at other splits. Degrees, which may take minutes, are not needed."""

    def wrong(*args, **options):
        o, after = ri.linear_attention_recurrent(*args, **options)
        return (o + 1 if o.shape[-2] > 2 else o), after

    monkeypatch.setattr(Draws, "degrees", lambda *args: pytest.fail("degrees were computed"))
    theorem, impl = THEOREMS["split_invariance"], replace(REFIMPL, linear_attention_recurrent=wrong)
    for group in theorem.usual[:2]:  # the third has exp
        found = minimal(theorem, ri.GF(P), group[0], Draws(0), impl)
        assert (found.n, found.d, found.m, found.rope, found.start) == (3, 1, 1, None, None)
