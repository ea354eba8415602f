"""Analyses as number systems: rounding, running errors, degrees, dependencies, derivatives."""

from __future__ import annotations

import functools
import itertools
import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import refimpl as ri
from refimpl import GF, MP, QQ, Degrees, Dependencies, Dual, Float, NotDefined, Rounded, RunningError, floats
from refimpl.systems import fractions, round_to
from refimpl.systems.array import SystemArray, elementwise
from refimpl.systems.formats import FORMATS, nearest
from refimpl.verify.identity_testing import restrict
from tests.helpers.assertions import says
from tests.helpers.strategies import SEEDS

FORMS = [ri.linear_attention, ri.linear_attention_quadratic, ri.linear_attention_recurrent, ri.linear_attention_chunked]
P = 2**61 - 1

# Rounded


CASTS = {"float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@np.errstate(all="ignore")
def adversarial(format: str, seed: int) -> np.ndarray:
    """Numbers of the format, the ties between them, their neighbours in float64, subnormals, and
    the edge of overflow."""
    bits, low, high = FORMATS[format]
    rng = np.random.default_rng(seed)
    numbers = np.ldexp(
        rng.integers(2 ** (bits - 1), 2**bits, 60).astype(np.float64), rng.integers(low - 3, high + 1, 60) - bits
    )
    small = np.ldexp(rng.integers(0, 9, 20).astype(np.float64), low - bits - 1)
    edge = np.ldexp(np.array([1 - 2.0**-bits, 1 - 2.0 ** -(bits + 1), 1 - 2.0**-52]), high)
    points = np.concatenate([numbers, numbers * (1 + 2.0**-bits), small, edge])
    points = np.concatenate([points, np.nextafter(points, np.inf), np.nextafter(points, 0)])
    return np.concatenate([points, -points, rng.normal(size=50), [0.0, -0.0, np.inf, -np.inf, np.nan]])


@pytest.mark.parametrize("format", CASTS)
@given(seed=SEEDS)
def test_rounding_is_that_of_the_hardware(format, seed):
    x = adversarial(format, seed)
    with np.errstate(all="ignore"):
        if format == "bfloat16":  # ml_dtypes goes by way of float32, and so rounds twice
            x = x.astype(np.float32).astype(np.float64)
        want = x.astype(CASTS[format]).astype(np.float64)
    got = round_to(x, format)
    assert np.array_equal(got, want, equal_nan=True) and np.array_equal(np.signbit(got), np.signbit(want))
    finite = [a for a in adversarial(format, seed) if np.isfinite(a)]
    assert [nearest(Fraction(a), format) for a in finite] == round_to(finite, format).tolist()
    # One rounding, not two: a little off a tie of the format, where float64 sees only the tie.
    bits = FORMATS[format][0]
    tie, more = 1 + Fraction(1, 2**bits), Fraction(1, 10**40)
    assert [nearest(t, format) for t in (tie - more, tie, tie + more)] == [1, 1, 1 + 2.0 ** (1 - bits)]


def test_tfloat32_has_ten_bits_after_the_point():
    assert round_to([1 + 2**-10, 1 + 2**-11, 1e30], "tfloat32").tolist() == [1 + 2**-10, 1, round_to(1e30, "tfloat32")]


def test_the_ends_of_every_format():
    """The largest number, the least normal one and the spacing at 1; tfloat32 has the exponents of
    float32.
    """
    known = {name: ml_dtypes.finfo(kind) for name, kind in CASTS.items()}
    assert {*known, "tfloat32"} == {*FORMATS}
    for name, ends in known.items():
        bits, low, high = FORMATS[name]
        assert 2.0 ** (1 - bits) == ends.eps and 2.0 ** (low - 1) == ends.smallest_normal
        assert math.ldexp(1 - 2.0**-bits, high) == ends.max
    assert FORMATS["tfloat32"] == (1 + 10, *FORMATS["float32"][1:])


@pytest.mark.parametrize("format", ["float32", "float16"])
@given(seed=SEEDS)
def test_rounded_arithmetic_is_that_of_the_format(format, seed):
    """53 ≥ 2·24 + 2 bits: rounding a float64 result once more gives what one rounding gives."""
    numbers, dtype = Rounded(format), CASTS[format]
    with np.errstate(all="ignore"):
        a, b = (np.random.default_rng(i).permutation(adversarial(format, seed + i))[:150].astype(dtype) for i in (0, 1))
    keep = np.isfinite(a) & np.isfinite(b)
    a, b = a[keep], b[keep]
    x, y = (numbers.wrap((t,)) for t in (a, b))  # convert would make 0 of -0
    assert np.array_equal(numbers.convert(a).planes[0], a)
    with np.errstate(all="ignore"):
        for got, want in [
            (x + y, a + b),
            (x - y, a - b),
            (x * y, a * b),
            (x / y, a / b),
            (numbers.sqrt(numbers.abs(x)), np.sqrt(np.abs(a))),
        ]:
            assert np.array_equal(got.planes[0], want.astype(np.float64), equal_nan=True)
    assert (
        np.array_equal(numbers.maximum(x, y).planes[0], np.maximum(a, b))
        and np.array_equal(x < y, a < b)
        and numbers.isfinite(x).all()
    )
    assert np.array_equal(floats(x), a) and np.array_equal(x == y, a == b)


def test_named_points_of_rounding():
    ones, narrow = [1] * 4096, ("partial",)
    for points, want in (
        ((), 4096),
        (("sums",), 4096),
        (narrow, 256),
    ):  # a running sum of 4096 ones stops at 256 in bfloat16
        numbers = Rounded("bfloat16", points)
        x = numbers.convert(ones)
        assert floats(numbers.sum(x, axis=0)) == want and floats(x[None, :] @ x[:, None]) == want
        assert numbers.sum(x, axis=0, keepdims=True).shape == (1,)
    odd = [256, 1]  # 257 is not a bfloat16
    for points, total, sums in (
        (("elementwise",), 256, 257),
        (("sums",), 257, 256),
        ((), 257, 257),
        (("elementwise", "sums"), 256, 256),
    ):
        numbers = Rounded("bfloat16", points)
        x = numbers.convert(odd)
        assert (
            floats(x[0] + x[1]) == total
            and floats(numbers.sum(x, axis=0)) == sums
            and floats(x[None, :] @ numbers.ones((2, 1))) == sums
        )
    assert floats(Rounded("bfloat16", ()).convert([257, Fraction(1, 3)])).tolist() == [
        256,
        0.333984375,
    ]  # inputs always round
    third = Rounded("float16").convert([[1 / 3]])
    assert floats(Rounded("float16", ()).exp(Rounded("float16", ()).convert(third))) == np.exp(floats(third))
    assert floats(Rounded("float16").exp(third)) == np.float64(np.float16(np.exp(floats(third))))
    assert (Rounded("float16").ones((2, 0)) @ Rounded("float16").ones((0, 2)) == 0).all()
    cos, _ = Rounded("bfloat16").angles([(Fraction(10), Fraction(-1))], [10**6])
    assert floats(cos) == floats(
        Float("numpy", "float64").angles([(Fraction(10), Fraction(-1))], [10**6])[0].astype(ml_dtypes.bfloat16)
    )
    nan = Rounded("float16").wrap((np.array([np.nan, np.inf]),))
    assert np.isnan(Rounded("float16").maximum(Rounded("float16").convert([1, 1]), nan).planes[0][0])
    assert not Rounded("float16").isfinite(nan).any()
    with says(ValueError, "float16 rounded at inputs, elementwise, sums: cannot convert nan at index (0,)"):
        floats(nan)


def test_rounded_refusals():
    with says(
        ValueError,
        "Rounded: did you mean 'bfloat16'? "
        "`format` must be one of bfloat16, float16, float32, float64, tfloat32, got 'bfloat'",
    ):
        Rounded("bfloat")
    with says(
        ValueError, "Rounded: did you mean 'sums'? `points` must be one of elementwise, partial, sums, got 'sum'"
    ):
        Rounded("bfloat16", ("sum",))
    for points in ((), ("partial",)):
        with says(ValueError, "matmul: cannot multiply shapes (2, 1) and (3, 2)"):
            Rounded("float16", points).ones((2, 1)) @ Rounded("float16", points).ones((3, 2))


# Running errors

running = pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])

STEPS = {
    "add": lambda xp, x, y: x + y,
    "subtract": lambda xp, x, y: x - y,
    "cancel": lambda xp, x, y: (x + y) - y,
    "mul": lambda xp, x, y: x * y,
    "square": lambda xp, x, y: x * x,
    "div": lambda xp, x, y: x / y,
    "invert": lambda xp, x, y: y / x,
    "sum": lambda xp, x, y: x + xp.sum(x * y, axis=0, keepdims=True),
    "matmul": lambda xp, x, y: x @ y,
    "maximum": lambda xp, x, y: xp.maximum(x, y),
    "abs": lambda xp, x, y: xp.abs(x) * 3,
    "exp": lambda xp, x, y: xp.exp(xp.maximum(xp.minimum(x, 2 * xp.ones_like(x)), -900 * xp.ones_like(x))),
    "sqrt": lambda xp, x, y: xp.sqrt(xp.abs(x)),
    "cos": lambda xp, x, y: xp.cos(x),
    "sin": lambda xp, x, y: xp.sin(x) / 7,
}
TRUTH = MP(80)


def sound(x: SystemArray, truth: SystemArray) -> bool:
    """|value − truth| ≤ error, wherever the error is finite. The truth has 80 digits; 20 may be
    lost to cancellation."""
    value, error = (p.ravel() for p in x.planes)
    known = np.isfinite(error)
    assert np.isfinite(value[known]).all()
    exact = fractions(truth, "test").ravel()[known]
    slack = [abs(t) / 10**60 + Fraction(1, 10**400) for t in exact]
    return all(
        abs(Fraction(float(v)) - t) <= Fraction(e) + s
        for v, e, t, s in zip(value[known], error[known], exact, slack, strict=True)
    )


def uncertain(numbers: RunningError, seed: int, low: int, high: int) -> tuple[SystemArray, SystemArray]:
    """3×3 numbers of sizes 2^low to 2^high with errors of many sizes, and true numbers anywhere
    within those.
    """
    rng, shape = np.random.default_rng(seed), (3, 3)
    value = (rng.uniform(-1, 1, shape) * 2.0 ** rng.integers(low, high, shape)).astype(numbers.dtypes[0])
    error = np.abs(value.astype(np.float64)) * 2.0 ** rng.integers(-60, 2, shape) * rng.integers(0, 2, shape)
    share = rng.integers(-4, 5, shape)
    true = elementwise(
        lambda v, e, s: Fraction(float(v)) + Fraction(float(e)) * int(s) / 4, value.astype(object), error, share
    )
    return numbers.wrap((value, error)), TRUTH.convert(true)


def follow(numbers: RunningError, steps: list[str], seed: int, low: int, high: int) -> None:
    (x, a), (y, b) = (uncertain(numbers, seed + i, low, high) for i in (0, 1))
    for step in steps:
        x = STEPS[step](numbers, x, y)
        try:
            a = STEPS[step](TRUTH, a, b)
        except ZeroDivisionError:
            assert np.isinf(x.planes[1]).any()
            return
        assert x.planes[0].dtype == numbers.dtypes[0] and x.planes[1].dtype == np.float64 and sound(x, a), step


@running
@given(
    steps=st.lists(st.sampled_from(sorted(STEPS)), min_size=2, max_size=6),
    seed=SEEDS,
    sizes=st.sampled_from([(-2, 3), (-30, 15), (-9, 9)]),
)
def test_running_errors_are_sound(dtype, steps, seed, sizes):
    follow(RunningError(dtype), steps, seed, *sizes)


@running
@pytest.mark.parametrize("step", sorted(STEPS))
def test_each_running_error_is_sound_and_says_something(dtype, step):
    numbers = RunningError(dtype)
    for seed in range(40):
        follow(numbers, [step], seed, -2, 3)
    # On exact numbers between 1 and 2, nothing passes 2 + 4·4 in size, and no step has more than 8
    # operations, of two times `ulps` u each.
    x, y = (
        numbers.wrap((np.abs(numbers.random((4, 4), i).planes[0]) + numbers.dtypes[0].type(1), np.zeros((4, 4))))
        for i in (1, 2)
    )
    assert np.all(
        numbers.error(STEPS[step](numbers, x, y))
        <= 18 * 8 * (2 * max(numbers.ulps.values()) * numbers.u + numbers.tiny)
    )


# What the analysis claims of one that ran on v with error e: the truth V is anywhere within e of
# v, and another execution, on x'
# anywhere within e of V, rounding by at most u (functions: LIBM u) in either direction at every
# operation, ends within the new error.
# With errors as large as the numbers, second-order terms count. The extremes are at the ends of the
# intervals.

WIDE = [
    (3, 1),
    (-4, Fraction(3, 2)),
    (8, Fraction(1, 4)),
    (3, 0),
    (0, 2),
]  # (v, e), all exact in float16, as v ± 2e are


def executions(v: Any, e: Any) -> list[tuple[Fraction, Fraction]]:
    """(truth, execution)"""
    return [(V, V + b * e) for V in (Fraction(v) + a * e for a in (-1, 0, 1)) for b in (-1, 0, 1)]


def uncertain_number(numbers: RunningError, *pairs: tuple[Any, Any]) -> SystemArray:
    return numbers.wrap(
        (np.array([v for v, _ in pairs], dtype=numbers.dtypes[0]), np.array([float(e) for _, e in pairs]))
    )


def covers(error: float, got: Fraction, truth: Fraction) -> bool:
    return error == math.inf or abs(got - truth) <= Fraction(error)


BINARY = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "maximum": None,
}


@running
@pytest.mark.parametrize("name", BINARY)
def test_running_error_holds_for_every_execution(dtype, name):
    numbers, finite = RunningError(dtype), 0
    f = BINARY[name] or max
    u = Fraction(numbers.u) if BINARY[name] else 0
    for x, y in itertools.product(WIDE, WIDE):
        a, b = uncertain_number(numbers, x), uncertain_number(numbers, y)
        error = numbers.error((BINARY[name] or numbers.maximum)(a, b)).item()
        finite += math.isfinite(error)
        if math.isinf(error):
            assert name == "divide" and abs(y[0]) <= 2 * y[1]  # an execution may divide by 0
            continue
        for (A, a1), (B, b1), d in itertools.product(executions(*x), executions(*y), (-u, u)):
            assert covers(error, f(a1, b1) * (1 + d), f(A, B)), (x, y, A, a1, B, b1)
    assert finite >= len(WIDE) * 3


@running
@pytest.mark.parametrize("name", ["exp", "log", "sqrt", "cos", "sin", "tanh"])
def test_running_error_of_functions_holds_for_every_execution(dtype, name):
    """The truth has 80 digits; its own rounding is far below the 2^-40 that every error is rounded
    up by.
    """
    numbers, u = RunningError(dtype), 2 * RunningError(dtype).ulps[name] * Fraction(RunningError(dtype).u)

    def f(x: Fraction) -> Fraction:
        return fractions(getattr(TRUTH, name)(TRUTH.convert([x])), "test").item()

    for v, e in [(abs(v), e) for v, e in [*WIDE, (2, 1)]]:
        if name in ("sqrt", "log") and v < 2 * e:  # an execution may find no answer
            continue
        error = numbers.error(getattr(numbers, name)(uncertain_number(numbers, (v, e)))).item()
        if name == "log" and v == 2 * e:
            assert error == math.inf
            continue
        assert math.isfinite(error)
        for (A, a1), d in itertools.product(executions(v, e), (-u, u)):
            assert covers(error, f(a1) * (1 + d), f(A)), (v, e, A, a1)


def sums(terms: list[Fraction], u: Fraction) -> set[Fraction]:
    """Sums of the terms, one after the other from either end and in two halves, with every
    rounding up or every rounding down."""

    def halves(terms: list[Fraction], d: Fraction) -> Fraction:
        if len(terms) == 1:
            return terms[0]
        i = len(terms) // 2
        return (halves(terms[:i], d) + halves(terms[i:], d)) * (1 + d)

    def running_sum(terms: list[Fraction], d: Fraction) -> Fraction:
        return functools.reduce(lambda s, t: (s + t) * (1 + d), terms)

    return {s for d in (-u, u) for s in (running_sum(terms, d), running_sum(terms[::-1], d), halves(terms, d))}


@running
@given(
    pairs=st.lists(st.tuples(st.integers(-4, 4), st.integers(0, 4)), min_size=1, max_size=6), corner=st.integers(0, 8)
)
@example(pairs=[(0, 4), *[(0, 0)] * 5], corner=8)
@example(pairs=[(4, 4)] * 6, corner=8)
def test_running_error_of_sums_holds_for_every_execution_in_any_order(dtype, pairs, corner):
    numbers, weights = RunningError(dtype), [(3, 1), (1, 0), (-2, 1), (0, 2), (4, 0), (1, 1)][: len(pairs)]
    u, x, y = Fraction(numbers.u), uncertain_number(numbers, *pairs), uncertain_number(numbers, *weights)
    corners = [executions(v, e)[corner] for v, e in pairs]
    error = numbers.error(numbers.sum(x, axis=0)).item()
    for got in sums([a1 for _, a1 in corners], u):
        assert covers(error, got, sum(A for A, _ in corners))
    error = numbers.error(x[None, :] @ y[:, None]).item()
    for other in range(9):
        factors = [executions(w, f)[other] for w, f in weights]
        for d in (-u, u):
            products = [a1 * b1 * (1 + d) for (_, a1), (_, b1) in zip(corners, factors, strict=True)]
            for got in sums(products, u):
                assert covers(error, got, sum(A * B for (A, _), (B, _) in zip(corners, factors, strict=True)))


@running
def test_running_errors_know_what_they_do_not_know(dtype):
    numbers = RunningError(dtype)
    huge = numbers.convert([numbers.largest])
    around = numbers.convert([Fraction(1, 3)]) * 3 - 1
    for nothing in (
        huge + huge,
        huge * huge,
        numbers.exp(huge),
        1 / numbers.convert([0]),
        1 / around,
        huge - huge * 2,
        numbers.convert([10**400]),
    ):
        assert np.isinf(numbers.error(nothing)).all()
    assert numbers.error(huge * 0)[0] <= 2 * numbers.tiny
    assert (
        np.isinf(numbers.error((huge + huge) * 0)).all()
        and np.isinf(numbers.error((huge + huge)[None] @ numbers.zeros((1, 1)))).all()
    )
    assert not numbers.isfinite(huge + huge).any() and numbers.isfinite(huge).all()
    many = math.ceil(1 / numbers.u)
    assert numbers.gamma(many) == math.inf and (
        dtype != "float16" or np.isinf(numbers.error(numbers.sum(numbers.ones(many), axis=0)))
    )
    assert floats(numbers.convert([0.5])) == 0.5 and numbers.error(numbers.convert([0.5, 1024])).tolist() == [0, 0]


def test_running_error_of_bfloat16_bounds_numbers_rounded_to_it():
    """ml_dtypes rounds each result to bfloat16, this analysis none of them: both are executions of
    one model.
    """
    numbers = RunningError("bfloat16")
    assert numbers.u == float(ri.unit_roundoff("bfloat16")) and numbers.largest == float(
        ml_dtypes.finfo("bfloat16").max
    )
    least, normal = (float(getattr(ml_dtypes.finfo("bfloat16"), f"smallest_{x}")) for x in ("subnormal", "normal"))
    assert numbers.tiny == normal + 2 * least
    x, y = (numbers.random((50,), seed) for seed in (1, 2))
    a, b = (p.planes[0].astype(ml_dtypes.bfloat16) for p in (x, y))
    assert np.array_equal(a.astype(np.float64), x.planes[0])
    got, bounded = (a * b + a) / (b * b + b.dtype.type(1)), (x * y + x) / (y * y + 1)
    off = np.abs(got.astype(np.float64) - numbers.value(bounded))
    assert (
        np.all(off <= 2 * numbers.error(bounded)) and np.any(off > numbers.u / 8) and np.all(numbers.error(bounded) < 1)
    )


def test_running_errors_where_results_vanish():
    numbers = RunningError()
    # e^-800 is 0 in float64, but the true exponent may be -700.
    assert numbers.error(numbers.exp(numbers.wrap((np.array([-800.0]), np.array([100.0])))))[0] >= math.exp(-700)
    assert (
        numbers.error(numbers.sqrt(numbers.convert([0])))[0] < 1e-300
        and numbers.error(numbers.sqrt(numbers.wrap(([0.0], [1e-4]))))[0] >= 1e-2
    )
    least = numbers.wrap(([2.0**-1074], [0.0]))
    half = least / 2
    # off by 2^-1075, which has no float64
    assert floats(half) == 0 and numbers.error(half)[0] >= 2.0**-1074
    assert numbers.error(numbers.convert([Fraction(1, 2**1076)]))[0] > 0


def test_running_error_of_a_long_sum():
    numbers, n = RunningError(), 30_000
    error = np.random.default_rng(0).uniform(0.05, 0.1, (n, 1))
    x = numbers.wrap((np.zeros((n, 1)), error))
    exact = sum(map(Fraction, error.ravel().tolist()))
    assert Fraction(numbers.error(numbers.sum(x, axis=0))[0]) >= exact
    assert Fraction(numbers.error(numbers.ones((1, n)) @ x)[0, 0]) >= exact
    assert floats(numbers.sum(numbers.ones((n,)), axis=0, keepdims=True)).tolist() == [n]
    for dtype in (
        "float32",
        "float64",
    ):  # the ones that meet the first term in one accumulator are lost, whatever the order
        numbers = RunningError(dtype)
        x, k = numbers.convert([[round(1 / numbers.u), *[1] * 4095]]), round(1 / numbers.u) + 4095
        for got in (
            numbers.sum(x, axis=-1),
            x @ numbers.ones((4096, 1)),
            x @ numbers.matrix_transpose(numbers.ones((1, 4096))),
        ):
            assert 2 < abs(floats(got).item() - k) <= numbers.error(got).item()


@running
def test_running_error_of_angles(dtype):
    numbers, frequencies, positions = (
        RunningError(dtype),
        [(Fraction(10000), Fraction(-i, 8)) for i in range(8)],
        [0, -1, 10**6, 2**40],
    )
    for got, truth in zip(numbers.angles(frequencies, positions), TRUTH.angles(frequencies, positions), strict=True):
        assert sound(got, truth) and np.all(numbers.error(got) <= 8 * numbers.u)


@running
@pytest.mark.parametrize("form", FORMS)
def test_running_error_of_attention_is_sound_and_not_vacuous(dtype, form):
    numbers, (n, d) = (
        RunningError(dtype),
        (3 if dtype == "bfloat16" else 6, 4),
    )  # a long text is beyond what 8 bits can tell
    arrays = [numbers.random((n, d), seed) for seed in (1, 2, 3)]
    rope = [ri.Rope(ri.angle_table(s, d), "half", "after") for s in (numbers, TRUTH)]
    o, _ = form(*arrays, ri.Kernel("elu+1", rope=rope[0]))
    truth, _ = ri.linear_attention(*(TRUTH.convert(x) for x in arrays), ri.Kernel("elu+1", rope=rope[1]))
    assert sound(o, truth)
    # else VACUOUS
    assert np.all(numbers.error(o).max(axis=-1) < np.abs(floats(truth)).max(axis=-1))


def test_running_errors_compare_with_care():
    numbers = RunningError("float32")
    third = numbers.convert([Fraction(1, 3)])
    assert (
        (third * 3 == 1).all()
        and (third != Fraction(1, 2)).all()
        and (third < 1).all()
        and (numbers.ones(1) > third).all()
    )
    with says(NotDefined, "errors overlap, so this order is not decided in float32 with running error; use maximum"):
        assert third * 3 < 1
    assert not (numbers.ones(1) < 1).any()  # without error, decided
    assert (
        numbers.error(numbers.maximum(third, numbers.ones(1)))[0]
        == 0
        < numbers.error(numbers.maximum(third * 3, numbers.ones(1)))[0]
    )
    nothing = numbers.convert([10**400]) - numbers.convert([10**400])
    assert np.isinf(numbers.error(numbers.maximum(third, nothing))[0]) and (nothing == third).all()
    narrow = RunningError("float16").convert(third)
    assert (
        RunningError("float16").error(narrow)[0]
        >= abs(np.float64(narrow.planes[0][0]) - floats(third)[0]) + numbers.error(third)[0]
    )
    with says(ValueError, "? `dtype` must be one of bfloat16, float16, float32, float64, got 'float8'"):
        RunningError("float8")
    with says(ValueError, "matmul: cannot multiply shapes (1,) and (1,)"):
        third @ third


# Degrees


EXPRESSIONS = {
    "x + y": (lambda x, y: x + y, (1, 0), True),
    "xy + x": (lambda x, y: x * y + x, (2, 0), True),
    "x/y": (lambda x, y: x / y, (1, 1), True),
    "x/y + y/x": (lambda x, y: x / y + y / x, (2, 2), True),
    "(x/y)/(y/(x+1))": (lambda x, y: (x / y) / (y / (x + 1)), (2, 2), True),
    "1/x + 3": (lambda x, y: 1 / x + 3, (1, 1), True),
    "x/y + 1/y": (lambda x, y: x / y + 1 / y, (1, 1), True),  # a common denominator
    "x/y + x/yy": (lambda x, y: x / y + x / y / y, (2, 2), True),
    "(x/y)/(1/y)": (lambda x, y: (x / y) / (1 / y), (1, 0), True),
    "x/2y + 1/(−y)": (lambda x, y: x / (2 * y) + 1 / -y, (1, 1), True),  # up to a constant
    "x/y + 1/(y+0x)": (lambda x, y: x / y + 1 / (y + 0 * x), (1, 1), True),
    # that two entries are equal is not seen
    "x/yy + y/yy": (lambda x, y: x / (y * y) + y / (y * y), (3, 4), False),
    "xy − yx": (lambda x, y: x * y - y * x, (2, 0), False),
    "0x": (lambda x, y: 0 * x + y * 0, (-math.inf, 0), False),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_degrees_bound_what_a_random_line_shows(name):
    expression, claimed, attained = EXPRESSIONS[name]
    numbers = Degrees()
    assert numbers.worst(expression(numbers.variables((2,)), numbers.variables((2,)))) == claimed
    found = tuple(part.max() for part in restrict(expression, [(2,), (2,)]))
    assert found == claimed if attained else found[0] <= claimed[0] and found[1] <= claimed[1]


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_degrees_of_linear_attention(form, normalise):
    numbers = Degrees()
    shapes = ((3, 2), (3, 2), (3, 1))
    o, state = form(*(numbers.variables(s) for s in shapes), ri.Kernel(normalise=normalise))
    assert (
        numbers.worst(o) == ((3, 2) if normalise else (3, 0))
        and numbers.worst(state.S) == (2, 0)
        and numbers.worst(state.z) == (1, 0)
    )
    assert tuple(
        part.max() for part in restrict(lambda *x: form(*x, ri.Kernel(normalise=normalise))[0], shapes)
    ) == numbers.worst(o)


def test_degrees_of_constants_and_zeros():
    numbers = Degrees()
    zero, one, x = numbers.convert([0]), numbers.convert([1]), numbers.variables((1,), 3, 2)
    assert numbers.worst(zero) == (-math.inf, 0) and numbers.worst(one * Fraction(5, 2)) == (0, 0)
    assert (
        numbers.worst(x) == (3, 2) and numbers.worst(-x + zero) == (3, 2) and numbers.worst(zero / x) == (-math.inf, 0)
    )
    assert numbers.worst(numbers.zeros((0,))) == (0, 0) and numbers.worst(
        numbers.sum(numbers.variables((4, 2)), axis=0)
    ) == (1, 0)
    assert numbers.singular(zero).all() and not numbers.singular(x).any()
    with says(ZeroDivisionError, "division by zero in degrees at index (0,)"):
        x / zero
    with says(NotDefined, "exp is not defined in degrees; it needs a real system"):
        numbers.exp(x)
    with says(NotDefined, "values are not known in degrees; what depends on a comparison would go unseen"):
        assert x == zero


def test_what_was_divided_by_is_counted_once():
    numbers, other = Degrees(), Degrees()
    x, y = numbers.variables((2, 3)), numbers.variables((2, 1), 4)
    assert numbers.divided == 0
    o = x / y + y / (-y) + x / 2 + 0 / y
    assert numbers.divided == 4 + 4 and numbers.worst(o) == (5, 4)
    assert numbers.worst(1 / (1 / y)) == (4, 0) and numbers.divided == 4 + 4
    assert numbers.worst(o / (x + 1)) == (5, 5) and numbers.divided == 4 + 4 + 6
    assert other == numbers and other.divided == 0
    assert other.worst(1 / other.variables((5,), 2, 3)) == (3, 2) and other.divided == 5 * (3 + 2)


# Dependencies


def seen(numbers: Dependencies, o: SystemArray) -> list[set[int]]:
    """Per token, the inputs that any of its outputs depends on."""
    rows = numbers.sets(o)
    assert all((rows[t] == rows[t, 0]).all() for t in range(len(rows)))
    return rows[:, 0].tolist()


@pytest.mark.parametrize("phi", ["identity", "elu+1", "relu", "taylor2"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mask", ["causal", "full", 0, 2, 3, 5])
def test_attention_depends_on_exactly_what_it_may_see(form, mask, phi):
    numbers, n = Dependencies(), 5
    q, k, v = (numbers.tokens((n, d), labels) for d, labels in ((3, range(n)), (3, None), (2, None)))
    rope = ri.Rope(ri.angle_table(numbers, 2))
    reach = n if mask == "full" else 0 if mask == "causal" else mask
    for normalise, turn in ((True, None), (False, rope)):
        o, state = form(q, k, v, ri.Kernel(phi, rope=turn, normalise=normalise), mask=mask)
        assert seen(numbers, o) == [set(range(max(t + 1, reach))) for t in range(n)]
        assert set.union(*numbers.sets(state.S).ravel()) == set(range(n))


def test_a_leak_from_the_future_is_seen():
    numbers = Dependencies()
    q, k, v = (numbers.tokens((4, 2)) for _ in range(3))

    def leaky(x):
        return numbers.exp(x - numbers.max(x, axis=-2, keepdims=True))

    o, _ = ri.linear_attention(q, k, v, ri.Kernel((ri.feature_maps.identity, leaky)))
    assert seen(numbers, o) == [{0, 1, 2, 3}] * 4


def test_dependencies_by_hand():
    numbers = Dependencies()
    # bits beyond a machine integer
    a, b, c = (numbers.tokens((1, 1), [label])[0, 0] for label in (0, 63, 64))
    for got, want in [
        (a + b, {0, 63}),
        (a * c, {0, 64}),
        (b * c, {63, 64}),
        (a - a, {0}),
        (-b, {63}),
        (a * 0, set()),
        (a * 0 + b, {63}),
        (0 / a, set()),
        (a / b, {0, 63}),
        (1 / c, {64}),
        (numbers.maximum(a, b), {0, 63}),
        (numbers.minimum(a, c), {0, 64}),
        (numbers.exp(a), {0}),
        (numbers.exp(a * 0) * b, {63}),
        (numbers.where(np.array(True), a, b), {0}),
        (a * 5, {0}),
        (numbers.convert(3), set()),
    ]:
        assert numbers.sets(got).item() == want
    assert numbers.singular(a * 0).all() and not numbers.singular(a).any()
    x = numbers.tokens((3, 2))
    assert numbers.sets(numbers.max(x, axis=0)).tolist() == [{0, 1, 2}] * 2
    assert numbers.sets(numbers.matrix_transpose(x) @ (x * 0)).tolist() == [[set(), set()]] * 2
    with says(NotDefined, "order is not defined in dependencies"):
        assert a < b
    with says(NotDefined, "uniform draws have no meaning in dependencies"):
        numbers.random((1,), 0)


# Dual numbers


@pytest.mark.parametrize("base", [QQ, GF(10007), GF(P)], ids=repr)
@given(seed=SEEDS)
def test_derivatives_of_rational_functions_are_exact(base, seed):
    numbers = Dual(base)
    a, b = base.random((2, 3), seed), base.random((3, 2), seed + 1)
    a = base.where(base.singular(a * a + 1) | base.singular(a), 2, a)
    x, y = numbers.join(a, base.ones((2, 3))), numbers.join(b, base.zeros((3, 2)))
    for got, slope in [
        (x * x * x - 5 * x + 1, 3 * a * a - 5),
        (1 / x, -1 / (a * a)),
        ((x - 1) / (x * x + 1), (1 + 2 * a - a * a) / ((a * a + 1) * (a * a + 1))),
        (-x, -base.ones((2, 3))),
        (2 - x / 3, base.zeros((2, 3)) - Fraction(1, 3)),
        (numbers.sum(x * x, axis=0), base.sum(2 * a, axis=0)),
        (x @ y, base.ones((2, 3)) @ b),
    ]:
        assert base.equal(numbers.tangent(got), slope)
    assert (
        base.equal(numbers.value(x @ y), a @ b)
        and numbers.equal(x, x)
        and (x != x + numbers.join(base.zeros(()), base.ones(()))).all()
    )
    assert numbers.isfinite(x).all() and np.array_equal(numbers.singular(x), base.singular(a))
    assert not base.equal(numbers.tangent(numbers.random((9,), seed)), base.zeros((9,)))
    assert np.array_equal(numbers.convert([0, 2]) == numbers.join(base.convert([0, 2]), base.zeros(2)), [True, True])


@pytest.mark.parametrize("name", ["exp", "sqrt", "cos", "sin"])
def test_chain_rule(name):
    base = MP(30)
    numbers, a = Dual(base), base.abs(base.random((5,), 3)) + 1
    f = getattr(numbers, name)(numbers.join(a, 2 * a) * 3)  # f(3a), a' = 2a: the slope is 6a f'(3a)
    for x, got in zip(a.tolist(), numbers.tangent(f).tolist(), strict=True):
        with base.ctx.extradps(40):
            want = 6 * x * base.ctx.diff(getattr(base.ctx, name), 3 * x)
        assert (
            abs(got - want) <= abs(want) * 4 * base.ctx.mpf(2) ** (2 - base.ctx.prec) + abs(3 * x) * 12 * base.ctx.eps
        )  # few roundings
    cos, sin = numbers.angles([(Fraction(10), Fraction(-1))], [3])
    assert numbers.tangent(cos).tolist() == [[0]] and numbers.value(sin) == base.sin(base.convert([[3]]) / 10)
    assert numbers.maximum(numbers.join(a, a), numbers.zeros(5)).shape == (5,) and (numbers.join(a, -a) > 0).all()


@pytest.mark.parametrize("form", FORMS)
def test_gradients_of_attention_are_exact(form):
    numbers, n, d = Dual(QQ), 4, 2
    q, k, v = (QQ.random((n, d), seed) for seed in (1, 2, 3))
    still = [numbers.join(x, QQ.convert(0)) for x in (q, k, v)]
    s, e = 1, QQ.convert(np.eye(n * d, dtype=int)[2].reshape(n, d))  # the entry (1, 0)
    o, _ = form(still[0], still[1], numbers.join(v, e))
    scores = QQ.where(np.tri(n, dtype=bool), q @ QQ.matrix_transpose(k), 0)
    weights = scores / QQ.sum(scores, axis=-1, keepdims=True)
    assert numbers.tangent(o)[:, 0].tolist() == weights[:, s].tolist() and (numbers.tangent(o)[:, 1] == 0).all()
    # Unnormalised, the output is linear in q: its difference quotient is its derivative, at any
    # distance.
    o, _ = form(numbers.join(q, e), still[1], still[2], ri.Kernel(normalise=False))
    quotient = (form(q + 5 * e, k, v, ri.Kernel(normalise=False))[0] - form(q, k, v, ri.Kernel(normalise=False))[0]) / 5
    assert QQ.equal(numbers.tangent(o), quotient) and (quotient[s] != 0).any()


def test_dual_refusals():
    with says(
        TypeError, "Dual: base must be a system with arrays of its own (ℚ, GF(p), mpmath ...), got numpy float64"
    ):
        Dual(Float())
    with says(NotDefined, "exp is not defined in GF(10007); it needs a real system"):
        Dual(GF(10007)).exp(Dual(GF(10007)).ones(1))
    with says(ZeroDivisionError, "division by zero in ℚ at index (0,)"):
        1 / Dual(QQ).join(QQ.zeros(1), QQ.ones(1))
    root = Dual(GF(P)).sqrt(Dual(GF(P)).join(GF(P).convert([9]), GF(P).ones(1)))
    assert Dual(GF(P)).value(root).tolist() == [3] and Dual(GF(P)).tangent(root) == Fraction(1, 6)


def test_the_error_of_a_maximum_is_that_of_the_larger_one_where_order_is_certain():
    """Order is certain if twice the errors do not reach across: 4.5 > 2 (0.2 + 2)."""
    running = RunningError()

    def largest(e: float, f: float) -> float:
        x, y = (running.wrap((np.array([a]), np.array([error]))) for a, error in ((10.0, e), (5.5, f)))
        assert [running.error(running.maximum(*pair)) for pair in ((x, y), (y, x))] == [
            running.error(running.maximum(x, y))
        ] * 2
        return float(running.error(running.maximum(x, y))[0])

    assert (largest(0.2, 2.0), largest(0.3, 2.0), largest(2.0, 0.2), largest(0.0, 2.3)) == (0.2, 2.0, 2.0, 2.3)


def test_the_error_of_a_quotient_covers_the_underflow_of_its_parts():
    running, least = RunningError(), 2.0**-1074
    x, y = (running.wrap((np.array([a]), np.array([e]))) for a, e in ((least, 0.0), (8.0, 3.0)))
    spread = (3 * least + least) / 2  # A/B is lost, and |A/B||b'−B| may be three times the least number
    assert running.error(x / y)[0] >= spread + least


def test_a_degree_is_written_with_its_denominator():
    assert repr(Degrees().convert([0, 2])) == "degrees([-inf; 0, 0; 0])"


def test_a_running_error_is_no_larger_than_said():
    """(1 ± ¼) − (1 ± ¼), rounded once: ½ + γ₁ (|0| + 2 · ½), and next to nothing more."""
    numbers = RunningError("float16")
    x = numbers.wrap((np.array([1.0], np.float16), np.array([0.25])))
    error, least = float(numbers.error(x - x)[0]), 0.5 + numbers.gamma(1)
    assert least <= error <= least + numbers.u / 100


def test_a_quotient_of_dual_numbers_by_hand():
    """(6 + 5ε) / (3 + ε) = 2 + (5 − 2)/3 ε"""
    numbers = Dual(QQ)
    x, y = (numbers.join(QQ.convert([a]), QQ.convert([da])) for a, da in ((6, 5), (3, 1)))
    assert numbers.value(x / y).tolist() == [2] and numbers.tangent(x / y).tolist() == [1]
