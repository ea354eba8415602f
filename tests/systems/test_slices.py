"""Matrix products of large integers, mpmath, ℚ and arb: on BLAS or not, the same numbers; in
mpmath the exact sums, rounded once."""

from __future__ import annotations

import importlib.util
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.systems import MP, QQ, Dual, balls, floats, fractions, multiprecision, rational, slices
from refimpl.systems.array import ObjectSystem, SystemArray, elementwise
from refimpl.systems.multiprecision import align
from refimpl.systems.rational import Rational
from tests.helpers.assertions import contains

INTEGERS = (
    st.integers(0, 400)
    .flatmap(lambda k: st.sampled_from([0, 1, 2**k, 2**k - 1, 2**k + 1, 3**k]))
    .flatmap(lambda v: st.sampled_from([v, -v]))
)
LEADS = [((), ()), ((2,), (2,)), ((2, 1), (3,)), ((), (2,)), ((0,), (1,))]


def objects(values: Any, shape: tuple[int, ...]) -> np.ndarray:
    return np.fromiter(values, object, math.prod(shape)).reshape(shape)


@st.composite
def factors(draw: Any) -> tuple[np.ndarray, np.ndarray]:
    """Two arrays of integers with a matrix product; numbers enough to see entries mixed up, drawn
    from few.
    """
    m, K, n = (draw(st.sampled_from([1, 2, 3, 5, 8])) for _ in range(3))
    left, right = draw(st.sampled_from(LEADS))
    pool, rng = draw(st.lists(INTEGERS, min_size=1, max_size=6)), np.random.default_rng(draw(st.integers(0, 99)))
    shapes = (*left, m, K), (*right, K, n)
    # type: ignore[return-value]
    return tuple(objects([pool[i] for i in rng.integers(0, len(pool), math.prod(s))], s) for s in shapes)


KINDS = [int, *([importlib.import_module("gmpy2").mpz] if importlib.util.find_spec("gmpy2") else [])]
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
ways = pytest.mark.parametrize("way", [slices.by_slices, slices.by_remainders], ids=lambda way: way.__name__)


def factored(x: np.ndarray, kind: Any = int) -> slices.Integers:
    found = slices.integers(x)
    return found._replace(m=objects(map(kind, found.m.flat), x.shape))


@pytest.fixture(params=[False, True], ids=["slices", "remainders"])
def always(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """BLAS and common denominators whether or not they pay."""
    monkeypatch.setattr(slices, "blas_pays", lambda *sizes: True)
    monkeypatch.setattr(slices, "remainders_pay", lambda *sizes: request.param)
    monkeypatch.setattr(multiprecision, "SMALL", 0)
    monkeypatch.setattr(rational, "SMALL", dict.fromkeys(rational.SMALL, 0))


@pytest.mark.usefixtures("always")
@kinds
@given(factors())
def test_product_of_integers(kind: Any, pair: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = pair
    got, want = slices.matmul(factored(x, kind), factored(y, kind)), np.matmul(x, y)
    assert got.shape == want.shape and got.tolist() == want.tolist()
    assert all(isinstance(v, type(kind(0))) for v in got.flat)


@pytest.mark.usefixtures("always")
@kinds
@pytest.mark.parametrize("shapes", [((0, 3), (3, 2)), ((2, 3), (3, 0)), ((2, 0, 3), (3, 2)), ((2, 0), (0, 3))], ids=str)
def test_product_of_no_integers(kind: Any, shapes: Any) -> None:
    x, y = (objects([1] * math.prod(s), s) for s in shapes)
    assert slices.matmul(factored(x, kind), factored(y, kind)).shape == np.matmul(x, y).shape


@ways
@kinds
@pytest.mark.parametrize("K", [1, 2, 30, 64, 65, 1000])
@pytest.mark.parametrize("width", [1, 22, 44, 60, 170, 1000])
def test_largest_integers(way: Any, kind: Any, K: int, width: int) -> None:
    """All digits as large as they can be, of either sign, so that nothing cancels; powers of two,
    which have one digit; and small numbers beside them."""
    top = 2**width - 1
    values = [top, -top, top, 2 ** (width - 1), -(2 ** (width - 1)), 1, -1, 0, top - 1]
    x = objects([v for v in values for _ in range(K)], (len(values), K))
    y = np.swapaxes(x, 0, 1)
    assert (way(factored(x, kind), factored(y, kind)) == K * x[:, :1] * y[:1]).all()
    one = objects([1] * K, (K, 1))
    assert (way(factored(x, kind), factored(one, kind)) == K * x[:, :1]).all()
    assert (way(factored(np.swapaxes(one, 0, 1), kind), factored(y, kind)) == K * y[:1]).all()


@pytest.mark.parametrize("K", [1, 30, 64, 1000])
@pytest.mark.parametrize("width", [1, 60, 170, 1000])
def test_no_sum_of_digits_exceeds_what_is_exact(K: int, width: int) -> None:
    bits, p, q = slices.plan(K, width, width)
    assert p == q and (p - 1) * bits < width <= p * bits
    assert K * p * (2**bits - 1) ** 2 <= 2**53 < K * (p + 1) * 4 ** (bits + 1) or bits == 26
    out = np.empty((p, 1, 2))
    slices.digits(factored(objects([2**width - 1, 1 - 2**width], (1, 2))), bits, out)
    assert abs(out).max() <= 2**bits - 1 and (out[:, 0, 0] == -out[:, 0, 1]).all()
    assert sum(int(d) << bits * i for i, d in enumerate(out[:, 0, 0])) == 2**width - 1


@pytest.mark.parametrize("K", [1, 64, 2**17])
@pytest.mark.parametrize("widths", [(32, 32), (64, 1024), (4096, 4096)], ids=str)
def test_no_sum_of_remainders_exceeds_what_is_exact(K: int, widths: tuple[int, int]) -> None:
    found = slices.basis(K, *widths)
    primes = [int(p) for p in found.primes]
    assert math.prod(primes) > 4 * K * 2 ** sum(widths) and len(set(primes)) == len(primes)
    half = max(primes) // 2 + 1
    assert K * (max(primes) / 2) ** 2 <= 2**52 and K * half * (half + 2) < 2**53
    for weights in (found.left, found.right):
        assert abs(weights).max() <= half and abs(weights).sum(axis=1).max() * (2**found.bits - 1) <= 2**52
    assert abs(found.back).max() < 2**found.limb and abs(found.back).sum(axis=1).max() * half <= 2**52


@pytest.mark.parametrize("p", [3, 2**17 - 1, 2**24 - 3])
def test_remainders_next_to_multiples(p: int) -> None:
    near = [
        sign * (k * p + d) for sign in (1, -1) for k in (0, 1, 2**20, 2**52 // p - 1) for d in (0, 1, p // 2, p - 1)
    ]
    got = slices.remainders(np.array([near, near], np.float64), np.array([p, p]))
    for v, r in zip(near, got[1], strict=True):
        assert (v - int(r)) % p == 0 and abs(r) <= p / 2 + 2
    assert (got[0] == got[1]).all()


@ways
@pytest.mark.parametrize("K", [30, 64, 1000])
def test_wider_digits_would_be_wrong(way: Any, K: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "LARGEST", 2**59)
    slices.basis.cache_clear()
    top = 2**170 - 3
    x, y = objects([top] * K * 12, (12, K)), objects([-top] * K * 12, (K, 12))
    assert (way(factored(x), factored(y)) != -K * top * top).any()
    slices.basis.cache_clear()


def test_the_way_that_pays() -> None:
    """Few digits by slices, many by remainders; a column is not worth cutting."""
    assert not slices.remainders_pay(64, 64, 64, 5, 5) and slices.remainders_pay(64, 64, 64, 50, 50)
    assert slices.blas_pays(64, 64, 64, 64) and not slices.blas_pays(64, 64, 1, 64)
    assert not slices.blas_pays(64, 64, 64, 2**15)


# mpmath: the exact sum, rounded once


def rounded(x: Fraction, prec: int) -> Fraction:
    """The nearest number of `prec` bits; of two, the even one. By its definition."""
    if not x:
        return x
    e = abs(x.numerator).bit_length() - x.denominator.bit_length()
    unit = Fraction(2) ** ((e if abs(x) >= Fraction(2) ** e else e - 1) + 1 - prec)
    return round(x / unit) * unit


def exact(x: SystemArray, y: SystemArray) -> np.ndarray:
    return np.matmul(fractions(x, "test"), fractions(y, "test"))


def once(x: SystemArray, y: SystemArray) -> bool:
    """Is every entry the exact sum, rounded once?"""
    want = elementwise(lambda v: rounded(v, x.system.ctx.prec), exact(x, y))
    return fractions(x @ y, "test").tolist() == want.tolist()


def spread(digits: int, shape: tuple[int, int], axis: Any, seed: int) -> SystemArray:
    """Numbers times 10^±200: each its own power, or each row, or each column."""
    rng, numbers = np.random.default_rng(seed), MP(digits)
    size = tuple(1 if i == axis else n for i, n in enumerate(shape))
    scale = elementwise(lambda e: Fraction(10) ** int(e), rng.integers(-200, 201, size).astype(object))
    return numbers.random(shape, seed) / 3 * numbers.convert(scale)


@pytest.mark.parametrize("digits", [15, 30, 50, 100, 300])
@pytest.mark.parametrize("axis", [0, 1, None])
def test_rounded_once_however_scaled(digits: int, axis: int | None) -> None:
    assert once(spread(digits, (9, 7), axis, 1), spread(digits, (7, 8), None if axis is None else 1 - axis, 2))


@pytest.mark.parametrize("digits", [15, 50, 200])
def test_rounded_once_on_blas(digits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(slices, "recombine", lambda *a, f=slices.recombine: taken.append(1) or f(*a))
    numbers = MP(digits)
    assert once(numbers.random((30, 33), 1) / 3, numbers.random((2, 33, 31), 2) / 7) and taken


@pytest.mark.parametrize(
    "shapes",
    [((3, 2), (2, 2)), ((40, 1), (1, 40)), ((2, 1, 5, 4), (3, 4, 6)), ((2, 0), (0, 3)), ((0, 3), (3, 4))],
    ids=str,
)
@pytest.mark.parametrize("small", [0, 100])
def test_rounded_once_in_every_shape(shapes: Any, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprecision, "SMALL", small)
    numbers = MP(20)
    x, y = (numbers.random(s, i) / 3 for i, s in enumerate(shapes))
    assert (x @ y).shape == np.matmul(np.zeros(shapes[0]), np.zeros(shapes[1])).shape
    assert not all(x.shape) or once(x, y)


ROUNDINGS = [
    pytest.param([1, 2**60, -(2**60)], [Fraction(1, 2**90), 1, 1], id="what is left when the large cancel"),
    pytest.param([2**200, 3, -(2**200)], [1, 0, 1], id="nothing is left"),
    pytest.param([2**55, 1, 0], [1, 1, 1], id="a tie, to even"),
    pytest.param([2**55, 3, 0], [1, 1, 1], id="a tie, up to even"),
    pytest.param([2**55, 1, Fraction(1, 2**5000)], [1, 1, 1], id="hardly above a tie"),
    pytest.param([2**55, 1, Fraction(-1, 2**5000)], [1, 1, 1], id="hardly below a tie"),
    pytest.param([2**55, 1, 0], [2**20000, 2**20000, 1], id="far from 1"),
    pytest.param([0, 0, 0], [1, 2, 3], id="zeros"),
]


@pytest.mark.parametrize(("x", "y"), ROUNDINGS)
@pytest.mark.parametrize("small", [0, 100])
@pytest.mark.parametrize("wide", [2**12, 2**16])
def test_rounded_once_where_it_is_hard(
    x: list[Any], y: list[Any], small: int, wide: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiprecision, "SMALL", small)
    monkeypatch.setattr(multiprecision, "WIDE", wide)
    numbers = MP(15)
    assert numbers.ctx.prec == 53
    column = numbers.matrix_transpose(numbers.convert([y]))
    assert once(numbers.convert([x]), column) and once(-numbers.convert([x]), column)


def test_a_sum_rounded_at_every_step_is_not_rounded_once() -> None:
    numbers = MP(15)
    x, y = numbers.convert([[1, 2**60, -(2**60)]]), numbers.convert([[1], [1], [1]])
    assert (x @ y).tolist() == [[1]] and ObjectSystem.matmul(numbers, x, y).tolist() == [[0]]


@pytest.mark.parametrize("small", [0, 100])
def test_what_is_no_number_goes_through(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprecision, "SMALL", small)
    numbers = MP(30)
    ctx, one = numbers.ctx, numbers.ones((2, 2))
    for odd in (ctx.inf, -ctx.inf, ctx.nan, ctx.mpc(1, 2), ctx.mpf(2) ** (2**70), ctx.exp(-(10**12))):
        x = numbers.wrap((objects([odd, ctx.one, ctx.one, ctx.zero], (2, 2)),))
        for a, b in ((x, one), (one, x)):
            got, want = a @ b, ObjectSystem.matmul(numbers, a, b)
            assert [str(v) for v in got.planes[0].flat] == [str(v) for v in want.planes[0].flat]


# ℚ

MAKERS = ["fractions", *(["gmpy2"] if importlib.util.find_spec("gmpy2") else [])]


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("maker", MAKERS)
@given(factors(), st.lists(INTEGERS.filter(bool), min_size=1, max_size=3))
def test_products_in_q(maker: str, above: Any, below: list[int]) -> None:
    numbers = Rational(maker)
    x, y = (objects([Fraction(v, below[i % len(below)]) for i, v in enumerate(a.flat)], a.shape) for a in above)
    got = numbers.convert(x) @ numbers.convert(y)
    assert got.tolist() == np.matmul(x, y).tolist() and all(type(v) is Fraction for v in fractions(got, "test").flat)


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("most", [-1, 2**20])
def test_denominators_in_q(maker: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rational, "WIDE", dict.fromkeys(rational.WIDE, most))
    numbers = Rational(maker)
    x = elementwise(lambda i: Fraction(int(i) - 100, int(i) % 37 + 1), np.arange(14 * 15).reshape(14, 15))
    assert (numbers.convert(x) @ numbers.convert(x.T)).tolist() == (x @ x.T).tolist()


@pytest.mark.parametrize("maker", MAKERS)
def test_q_is_the_same_by_every_maker(maker: str) -> None:
    numbers, plain = Rational(maker), Rational("fractions")
    assert numbers == plain == QQ and hash(numbers) == hash(plain) and repr(numbers) == "ℚ"
    a, b = ([s.random((3, 4), i) / 7 for i in (1, 2)] for s in (numbers, plain))
    for f in (
        lambda s, x, y: x + y,
        lambda s, x, y: x - y,
        lambda s, x, y: x * y,
        lambda s, x, y: x / (y * y + 1),
        lambda s, x, y: -x,
        lambda s, x, y: 1 / (x * x + Fraction(1, 3)),
        lambda s, x, y: x**3,
        lambda s, x, y: x @ s.matrix_transpose(y),
        lambda s, x, y: s.sum(x, axis=0),
        lambda s, x, y: s.max(x, axis=1),
        lambda s, x, y: s.abs(x),
        lambda s, x, y: s.minimum(x, y),
        lambda s, x, y: s.where(x < y, x, 0),
        lambda s, x, y: s.zeros((2,)),
        lambda s, x, y: x[0, 0],
    ):
        got, want = f(numbers, *a), f(plain, *b)
        assert repr(got) == repr(want) and repr(got.tolist()) == repr(want.tolist()) and got.shape == want.shape
        assert (
            fractions(got, "test").tolist() == want.planes[0].tolist() and floats(got).tolist() == floats(want).tolist()
        )
        assert numbers.equal(got, want) and plain.equal(want, got)
    assert np.array_equal(a[0] < a[1], b[0] < b[1]) and np.array_equal(a[0] == a[1], b[0] == b[1])
    assert repr(Dual(numbers).join(*a).tolist()) == repr(Dual(plain).join(*b).tolist())
    with pytest.raises(ZeroDivisionError, match=r"division by zero in ℚ at index \(0,\)"):
        numbers.ones((1,)) / numbers.zeros((1,))
    with pytest.raises(TypeError, match=r"0.5 is a float; ℚ takes Fraction\(1, 2\)"):
        numbers.ones((1,)) * 0.5


def test_q_without_gmpy2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert {type(v) for v in Rational().random((3,), 0).planes[0]} == {Fraction}
    with pytest.raises(
        ValueError, match=r"Rational: did you mean 'gmpy2'\? `maker` must be one of fractions, gmpy2, got 'gmpy'"
    ):
        Rational("gmpy")


def test_q_with_gmpy2() -> None:
    gmpy2 = pytest.importorskip("gmpy2")
    assert all(isinstance(v, type(gmpy2.mpq())) for v in Rational().random((3,), 0).planes[0])


# Balls


@pytest.mark.parametrize("lead", LEADS, ids=str)
@pytest.mark.parametrize("digits", [15, 60])
def test_products_of_arb(lead: Any, digits: int) -> None:
    pytest.importorskip("flint")
    numbers = balls(digits, "arb")
    x, y = numbers.random((*lead[0], 5, 7), 1) / 3, numbers.random((*lead[1], 7, 4), 2) / 7
    got = x @ y
    third, seventh = (
        QQ.convert(floats(numbers.random(s, i))) / d for s, i, d in (((*lead[0], 5, 7), 1, 3), ((*lead[1], 7, 4), 2, 7))
    )
    want = third @ seventh
    assert (
        got.shape == want.shape
        and contains(numbers, got, want)
        and (not got.planes[0].size or numbers.radius(got) < 10.0 ** (2 - digits))
    )
    loop = ObjectSystem.matmul(numbers, x, y)
    assert not got.planes[0].size or numbers.radius(got) <= numbers.radius(loop)


def test_wide_tops_in_q_and_mpmath() -> None:
    """As they come: 2⁴⁷ − 1 fills its digits in sums of forty."""
    for numbers in (Rational(maker) for maker in MAKERS):
        assert (numbers.convert(np.full((40, 40), 2**47 - 1)) @ numbers.ones((40, 40)) == 40 * (2**47 - 1)).all()
    x = np.full((40, 40), 1 - 2.0**-53)
    x[:, 0] = 2.0**-71
    want = float(39 * Fraction(1 - 2.0**-53) + Fraction(1, 2**71))
    assert {float(v) for v in (MP(15).convert(x) @ MP(15).ones((40, 40))).planes[0].flat} == {want}


def test_a_product_does_not_touch_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even for a moment: other threads use it too."""
    numbers, seen, loop = MP(30), [], ObjectSystem.matmul
    monkeypatch.setattr(ObjectSystem, "matmul", lambda self, x, y: seen.append(numbers.ctx.prec) or loop(self, x, y))
    before = numbers.ctx.prec
    numbers.ones((2, 2)) @ numbers.ones((2, 2))
    assert seen == [before] and numbers.ctx.prec == before


def test_sums_over_many_orders_of_magnitude() -> None:
    """Up to 2¹⁶ bits nothing is lost; beyond that, what is small beside the sum so far."""
    for bits, want in ((2**13, 1), (2**16 - 100, 1), (2**17, 0)):
        x = MP(15).convert([[1, 2**bits, -(2**bits)]])
        assert float((x @ MP(15).ones((3, 1))).planes[0][0, 0]) == want


@given(m=st.integers(-(2**200), 2**200), e=st.integers(-500, 500))
def test_rounding_without_gmpy2(m: int, e: int) -> None:
    numbers = MP(30)
    assert numbers._round(m, e, 103, "n") == numbers.libmp.from_man_exp(m, e, 103, "n")


def test_zeros_do_not_widen_a_row() -> None:
    x = MP(15).convert([[Fraction(3, 2**5000), 0, Fraction(5, 2**5001)], [0, 0, 0], [3 * 2**5000, 0, 5 * 2**5001]])
    man, low = align(x.planes[0])
    assert man.values().tolist() == [[6, 0, 5], [0, 0, 0], [3, 0, 10]] and low[::2].tolist() == [[-5001], [5000]]
    assert [float(v) for v in (x[1:2] @ MP(15).ones((3, 40))).planes[0].flat] == [0] * 40


def test_a_maker_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"gmpy2 is not installed: pip install 'refimpl\[fast\]'"):
        Rational("gmpy2")
