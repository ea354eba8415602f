"""The real number systems: mpmath, balls and floats, against exact rationals and against mpmath at
a higher precision.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl import MP, QQ, Float, floats, system, system_of
from refimpl.systems import balls, fractions
from refimpl.systems.floats import host_angles
from tests.helpers.assertions import contains, informative, says
from tests.helpers.strategies import FLINT, MAKERS, SEEDS

# mpmath


def untouched(numbers):
    x = numbers.random((2, 2), 0)
    numbers.sqrt(numbers.exp(x) @ numbers.cos(x) + 5) / numbers.maximum(x, -x)
    assert numbers.equal(x, x) and numbers.convert(x) is x
    numbers.angles([(Fraction(10), Fraction(-1, 3))], [10**6])
    with pytest.raises(TypeError):
        numbers.exp(x + 0.5)


def test_the_users_own_precision_is_never_touched():
    mpmath.mp.prec, mpmath.iv.prec = 71, 72
    try:
        for numbers in (MP(40), balls(40, "iv")):
            untouched(numbers)
        assert (mpmath.mp.prec, mpmath.iv.prec) == (71, 72)
    finally:
        mpmath.mp.prec, mpmath.iv.prec = 53, 53


def test_the_users_own_flint_precision_is_never_touched():
    flint = pytest.importorskip("flint")
    flint.ctx.prec = 73
    try:
        untouched(balls(40, "arb"))
        assert flint.ctx.prec == 73
    finally:
        flint.ctx.prec = 53


@pytest.mark.parametrize("digits", [5, 15, 60])
@pytest.mark.parametrize("name", ["exp", "cos", "sin", "sqrt"])
def test_mpmath_functions_are_right_to_the_last_digit(digits, name):
    numbers, high = MP(digits), MP(2 * digits + 20)
    x = numbers.abs(numbers.random((50,), 7)) * 9
    got, want = fractions(getattr(numbers, name)(x), "test"), fractions(getattr(high, name)(high.convert(x)), "test")
    # Correct but for the last place: mpmath promises no correct rounding, so a whole unit, at most
    # 2·2^-prec of the value.
    assert all(abs(g - w) <= abs(w) * Fraction(2, 2**numbers.ctx.prec) for g, w in zip(got, want, strict=True))
    assert numbers.ctx.dps == digits


@given(n=st.integers(-(10**30), 10**30), d=st.integers(1, 10**30), digits=st.integers(1, 40))
def test_mpmath_rounds_what_it_converts_once(n, d, digits):
    x, y = Fraction(n, d), Fraction(fractions(MP(digits).convert(Fraction(n, d)), "test").item())
    assert abs(x - y) <= abs(y) / 2 ** MP(digits).ctx.prec


@pytest.mark.parametrize("position", [0, 1, -7, 10**6, 2**40, -(2**53)])
def test_mpmath_angles_are_right_at_any_position(position):
    low, high = (
        MP(digits).angles([(Fraction(10000), Fraction(-1, 3)), (Fraction(1), Fraction(1))], [position])
        for digits in (15, 60)
    )
    # The angle is good to 2^-8 of the last place, cos and sin add one unit: 2·2^-prec of numbers up
    # to 1.
    for a, b in zip(low, high, strict=True):
        assert np.all(abs(fractions(a, "test") - fractions(b, "test")) <= Fraction(2, 2 ** MP(15).ctx.prec))


@pytest.mark.parametrize("digits", [0, -3, 2.5, "9"])
def test_digits(digits):
    with says(ValueError, f"MP: digits must be a positive integer up to 10^9, got {digits!r}"):
        MP(digits)
    with says(ValueError, f"Balls: digits must be a positive integer up to 10^9, got {digits!r}"):
        balls(digits)


# Balls

# Here the ends of mpmath.iv's own exp lie on the wrong side of the truth, by a last place.
HARD_EXP = {2: [6.84375], 15: [1.263214111328125, 5.691680908203125, 3.4964599609375, 5.251930236816406]}

makers = pytest.mark.parametrize("maker", MAKERS)


@makers
@given(digits=st.integers(2, 40), seed=SEEDS)
def test_balls_contain_what_they_compute(maker, digits, seed):
    numbers, high = balls(digits, maker), MP(2 * digits + 20)
    x, y = QQ.random((3, 2), seed), QQ.random((3, 2), seed + 1)
    y = QQ.where(y == 0, 1, y)
    a, b = numbers.convert(x / 7), numbers.convert(y / 7)
    for got, want in [
        (a, x / 7),
        (a + b, (x + y) / 7),
        (a - b, (x - y) / 7),
        (a * b, x * y / 49),
        (a / b, x / y),
        (1 / b, 7 / y),
        (a @ b[:2], x @ y[:2] / 49),
        (numbers.maximum(a, b), QQ.maximum(x, y) / 7),
        (numbers.abs(a), QQ.abs(x) / 7),
    ]:
        assert contains(numbers, got, want)
        # Sizes stay below 98, one division by at least 1/56 turns on them; at most 4 roundings, of
        # 2 units of 10^-digits each.
        assert numbers.radius(got) <= 56 * 98 * 8 * 10.0**-digits
    # of multiples of 1/8, which every precision holds exactly
    for name in ("exp", "cos", "sin", "sqrt"):
        z = QQ.abs(x) if name == "sqrt" else x
        assert contains(numbers, getattr(numbers, name)(numbers.convert(z)), getattr(high, name)(high.convert(z)))


@makers
def test_balls_contain_even_where_the_last_place_is_hard(maker):
    for digits, hard in HARD_EXP.items():
        numbers = balls(digits, maker)
        assert contains(numbers, numbers.exp(numbers.convert(hard)), MP(80).exp(MP(80).convert(hard)))
    missed = [x for digits, hard in HARD_EXP.items() for x in hard if not _iv_holds(digits, x)]
    assert missed, "mpmath.iv.exp became rigorous: Balls.unit can go"


def _iv_holds(digits: int, x: float) -> bool:
    numbers = balls(digits, "iv")
    low, high = numbers.ends(numbers.ctx.exp(numbers.ctx.mpf(x)))
    return low <= fractions(MP(80).exp(MP(80).convert(x)), "test").item() <= high


@makers
@given(seed=SEEDS)
def test_functions_of_wide_balls_contain_all_their_values(maker, seed):
    numbers, wide = balls(20, maker), balls(3, "iv")
    inside = np.sort(np.random.default_rng(seed).uniform(-9, 9, (3,)))
    ball = numbers.convert(wide.wrap((np.array([wide.ctx.mpf([inside[0], inside[2]])], dtype=object),)))
    points = MP(40).convert(np.linspace(inside[0], inside[2], 9))
    for name in ("exp", "cos", "sin"):
        low, high = numbers.ends(getattr(numbers, name)(ball).planes[0][0])
        assert all(low <= v <= high for v in fractions(getattr(MP(40), name)(points), "test"))
    low, high = numbers.ends(numbers.maximum(ball, numbers.convert([inside[1]])).planes[0][0])
    assert inside[0] < low <= inside[1] and high >= inside[2]


@makers
def test_angles_in_balls(maker):
    frequencies, positions = [(Fraction(10000), Fraction(-1, 3)), (Fraction(1), Fraction(1))], [0, -3, 10**6]
    for got, want in zip(
        balls(20, maker).angles(frequencies, positions), MP(60).angles(frequencies, positions), strict=True
    ):
        # θ ≤ 1 is good to a few units of 10^-20, the million multiplies them.
        assert contains(balls(20, maker), got, want) and balls(20, maker).radius(got) < 1e6 * 8e-20


@makers
def test_balls_around_zero(maker):
    numbers = balls(20, maker)
    third = numbers.convert([Fraction(1, 3)])
    around = third * 3 - 1
    assert around == 0 and 0 < numbers.radius(around) < 1e-19 and numbers.radius(numbers.convert([0.5, 7])) == 0
    assert (third == Fraction(1, 3)).all() and (third != Fraction(1, 3) + Fraction(1, 10**15)).all()
    everything = 1 / around
    assert not numbers.isfinite(everything).any() and numbers.radius(everything) == math.inf
    # nothing is excluded: only the radius tells
    assert (everything == 5).all() and numbers.equal(everything, third)
    assert not numbers.isfinite(numbers.sqrt(around)).any()
    assert numbers.radius(numbers.exp(around * 10**26)) == math.inf  # beyond float64
    assert not numbers.isfinite(numbers.maximum(everything, third)).any()
    for attempt in (lambda: floats(everything), lambda: balls(9, maker).convert(everything)):
        with says(ValueError, f"an unbounded ball of {numbers.name} has no ends"):
            attempt()


@makers
@pytest.mark.parametrize("other", MAKERS)
def test_balls_convert_to_balls_around_them(maker, other):
    wide, fine = balls(6, maker), balls(25, other)
    x = wide.exp(wide.convert([1, 2]))
    for target in (fine, balls(3, other)):
        outer = target.convert(x)
        for inside, around in zip(map(wide.ends, x.planes[0]), map(target.ends, outer.planes[0]), strict=True):
            assert around[0] <= inside[0] < inside[1] <= around[1]
    assert contains(wide, x, MP(60).exp(MP(60).convert([1, 2]))) and informative(wide, x)
    assert all(a <= Fraction(f) <= b for f, (a, b) in zip(floats(x).tolist(), map(wide.ends, x.planes[0]), strict=True))


def test_balls_without_flint(monkeypatch):
    balls.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert balls(33).maker == "mpmath.iv"
    with says(ImportError, "python-flint is not installed: pip install 'refimpl[fast]'"):
        balls(33, "arb")
    monkeypatch.undo()
    balls.cache_clear()
    assert balls(33).maker == ("flint.arb" if FLINT else "mpmath.iv")
    with says(ValueError, "balls: did you mean 'arb'? `maker` must be one of arb, iv, got 'arbs'"):
        balls(33, "arbs")


# Floats


@pytest.mark.parametrize("library", ["numpy", "array_api_strict", "torch", "jax"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_float_handles(library, dtype):
    pytest.importorskip(library)
    if (library, dtype) == ("jax", "float64"):
        with says(ValueError, "Float: jax.numpy makes float32 of 'float64' here; for JAX, set jax_enable_x64 first"):
            Float(library, dtype)
        return
    if (
        dtype in ("float16", "bfloat16")
        and library in ("numpy", "array_api_strict")
        and (library, dtype) != ("numpy", "float16")
    ):
        with says(ValueError, f"Float: {library} has no floating dtype '{dtype}'"):
            Float(library, dtype)
        return
    numbers = Float(library, dtype)
    tie = (
        1 + Fraction(np.finfo(np.float64).eps) / 2
        if dtype == "float64"
        else 1 + Fraction(1, 2 ** {"float32": 24, "float16": 11, "bfloat16": 8}[dtype])
    )
    x = numbers.convert([[tie, tie + Fraction(1, 10**40), Fraction(1, 3)]])
    assert system_of(x) == numbers and Float.of(x) == numbers and x.shape == (1, 3) and numbers.kind == dtype
    got = [Fraction(v) for v in floats(x)[0]]
    # a tie goes to even; a little more, even 10^-40 more, goes up
    assert got[0] == 1 and got[1] == 2 * tie - 1
    # within half of the spacing between 1/4 and 1/2
    assert abs(got[2] - Fraction(1, 3)) <= abs(tie - 1) / 4
    assert numbers.equal(x, x) and not numbers.equal(x, x + x) and not numbers.equal(x, x[0, ...])
    a, b = numbers.random((5,), 1), numbers.random((5,), 1)
    assert numbers.equal(a, b) and not numbers.equal(a, numbers.random((5,), 2))


def test_floats_of_every_width():
    third = np.longdouble(1) / 3
    assert Float("numpy", "longdouble").convert([third])[0] == third != np.longdouble(1 / 3)
    assert Float("numpy", "longdouble").convert([Fraction(1, 3), 10**400]).tolist() == [third, math.inf]
    assert Float("numpy", "complex64").convert([0.5]).dtype == np.complex64
    assert Float("numpy", "float16").convert([10**6, -70000, 2**-26]).tolist() == [math.inf, -math.inf, 0]
    assert Float("numpy", "float64").convert([10**400]).tolist() == [math.inf]


def test_devices():
    strict = Float("array_api_strict", "float32", "no_float64")
    assert str(strict.convert([0.5]).device) in strict.name and Float.of(strict.convert([0.5])) == strict
    torch = pytest.importorskip("torch")
    meta = Float("torch", "bfloat16", "meta")
    assert (
        meta.name == "torch bfloat16 on meta"
        and meta.convert([1, 2]).device == torch.device("meta")
        and system("torch bfloat16 meta") == meta
    )
    jax = pytest.importorskip("jax")
    assert Float("jax", "float32", "cpu").convert([1]).device == jax.devices("cpu")[0]


def test_float_refusals(monkeypatch):
    for dtype in ("float65", "int32", "sum", "bool"):
        with says(ValueError, f"Float: numpy has no floating dtype '{dtype}'"):
            Float("numpy", dtype)
    with says(ValueError, "numpy float64.convert: cannot convert nan at index (0,)"):
        Float().convert([math.nan])
    real = importlib.import_module
    for library, extra in (("torch", "torch"), ("jax", "jax"), ("cupy", "cupy"), ("array_api_strict", "test")):
        monkeypatch.setattr(importlib, "import_module", lambda name, *rest: real("a_module_that_is_not_there"))
        with says(ImportError, f"is not installed: pip install 'refimpl[{extra}]'"):
            Float(library)


ANGLES = [(Fraction(10000), Fraction(-2 * i, 64)) for i in range(0, 32, 5)] + [
    (Fraction(7, 2), Fraction(1)),
    (Fraction(2) ** 60, Fraction(1)),
]


def test_float_angles():
    positions = [0, 1, -1, 7, 1000, 10**6, 999_983, 2**40, -(2**40), 2**53, -(2**53) + 1]
    exact = [fractions(t, "test") for t in MP(60).angles(ANGLES, positions)]
    # 2^-51: derived in host_angles. Rounding to float32 adds half of its spacing below 1, 2^-25.
    for tables, bound in (
        (host_angles(ANGLES, positions), Fraction(1, 2**51)),
        (Float("numpy", "float32").angles(ANGLES, positions), Fraction(1, 2**25) + Fraction(1, 2**51)),
    ):
        for table, want in zip(tables, exact, strict=True):
            assert table.shape == want.shape and np.all(abs(fractions(table, "test") - want) <= bound)
    assert host_angles(ANGLES, [])[0].shape == (0, len(ANGLES)) and host_angles([], [1, 2])[0].shape == (2, 0)


@pytest.mark.parametrize("dtype", ["complex128", "complex64"])
def test_complex_floats_convert(dtype):
    numbers = Float("numpy", dtype)
    x = numbers.convert([[1, 2j], [0.5 - 1j, -3]])
    assert x.dtype == np.dtype(dtype) and x.tolist() == [[1, 2j], [0.5 - 1j, -3]]
    assert numbers.convert(QQ.convert([1, 2])).tolist() == [1, 2]


def test_tanh_in_balls_of_mpmath_holds_the_true_value():
    """mpmath's intervals have no tanh of their own."""
    numbers = balls(30, "iv")
    (found,) = numbers.xp.tanh(numbers.convert([Fraction(1, 2)])).planes[0]
    with mpmath.workdps(60):
        true = mpmath.tanh(mpmath.mpf(1) / 2)
        assert mpmath.mpf(found.a) <= true <= mpmath.mpf(found.b) and found.delta < 1e-25
