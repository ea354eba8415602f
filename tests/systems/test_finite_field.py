"""GF(p) is exact for every p: each plan of a matrix product at its worst, elementwise arithmetic at
its edges, inversion of many.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.systems import GF, is_prime, modular
from refimpl.systems.finite_field import FEW, FiniteField
from refimpl.systems.modular import LONG, PIECE, WAYS, cost, cut, plan
from tests.helpers.assertions import says

TERMS = 512  # for which plans are looked at


def prime(near):
    """The largest prime up to there."""
    return next(p for p in range(near, 1, -1) if is_prime(p))


def digits(p):
    return plan(p, TERMS)[:2]


def boundaries():
    """The primes on both sides of every p at which the number of digits changes."""
    for n in range(2, 61):
        low, high = prime(2**n), prime(2 ** (n + 1) - 1)
        while digits(low) != digits(high):
            middle = prime((low + high) // 2)
            if middle == low:  # no prime is left in between
                middle = next(q for q in range(low + 1, high + 1) if is_prime(q))
                if middle == high or digits(middle) == digits(high):
                    yield from (low, middle)
                    break
            low, high = (middle, high) if digits(middle) == digits(low) else (low, middle)


EDGES = sorted(set(boundaries()))
SIZES = (20, 21, 23, 24, 26, 32, 40, 44, 45, 52, 60)
PRIMES = sorted({2, 3, 5, 10007, 2**20 - 3, 2**31 - 1, 2**31 + 11, 2**61 - 1, *(prime(2**n) for n in SIZES), *EDGES})
every_prime = pytest.mark.parametrize("p", PRIMES)


def product(p, x, y):
    """By Python's integers."""
    return (
        np.matmul(x.astype(object), y.astype(object)) % p
        if x.shape[-1]
        else np.zeros((*x.shape[:-1], y.shape[-1]), int)
    )


def right(p, x, y):
    return np.array_equal((GF(p).wrap((x,)) @ GF(p).wrap((y,))).planes[0], product(p, x, y))


def worst(p, k):
    """Rows (kinds, k) that add up without cancelling, largest as residues, as balanced residues and
    as digits.

    The last six are a little less here and there: sums of multiples of a power of 2 would be exact
    beyond 2⁵³ too.
    """
    way, less = plan(p, k), np.random.default_rng(k).integers(0, 4, (6, k))
    half, places = 1 << (way.bits - 1), range(0, way.bits * (way.left - 1), way.bits)
    top = p - 1 >> len(places) * way.bits << len(places) * way.bits
    low, high = (sum(d << i for i in places) for d in (half - 1, -half))
    rows = [np.full(k, e % p) for e in (p - 1, p // 2, p // 2 + 1, top + low, top + high, low, high)]
    return np.stack([*rows, *(np.array([[p - 1], [p // 2], [p // 2 + 4], *[[top + low]] * 3]) - less) % p])


# Plans


def test_plans_of_all_kinds_are_in_use():
    assert {digits(p) for p in PRIMES} == {(0, 0), (1, 0), (1, 1), (2, 1), (3, 1), (2, 2), (3, 3)}
    assert (
        digits(2097143) == (0, 0) and digits(2**31 - 1) == (2, 1) and digits(2**61 - 1) == (3, 3) and len(EDGES) >= 10
    )


@every_prime
def test_no_sum_exceeds_what_is_exact(p):
    for terms in (1, 2, 31, 100, TERMS, 3072, LONG):
        way = plan(p, terms)
        a, b = way.sizes
        assert min(terms, way.block) * a * b <= 2**53 and way.block >= 1
        left, right = max(1, way.left), max(1, way.right)
        if left == right == 1 and terms <= way.block:
            assert terms * a * b < 2**51  # as floor needs it
        else:
            # all of one power is added up in int64, after a remainder of little more than p/2; its
            # quotient by p is found to within 1
            total = 0.6 * p + min(left, right) * -(-terms // way.block) * min(terms, way.block) * a * b
            assert total < 2**63 and (left + right == 2 or total / p * 2**way.bits < 2**50)


@every_prime
def test_digits_are_as_small_as_the_plan_says(p):
    powers = [2**i for i in range(61)]
    x = np.array(
        [[v % p for v in (p // 2, p // 2 + 1, p - 2, *powers, *(q - 1 for q in powers), *(p - q for q in powers))]]
    )
    for counts in WAYS:
        way = cut(p, *counts)
        for count, size in zip(counts, way.sizes, strict=True):
            if size > 2**53:
                continue
            parts = modular.digits(x, count, way.bits, p)
            assert len(parts) == max(1, count) and all(np.abs(d).max() <= size for d in parts)
            whole = sum(d.astype(object).astype(int).astype(object) << (i * way.bits) for i, d in enumerate(parts))
            assert (whole % p == x).all()


@every_prime
def test_worst_case(p):
    block = plan(p, TERMS).block
    for k in sorted(
        {1, 2, TERMS, 1500, *(k for m in (1, 2, 3) for k in (m * block - 1, m * block, m * block + 1) if 0 < k <= 1600)}
    ):
        rows = worst(p, k)
        assert right(p, rows, rows.T), k
        mixed = np.random.default_rng(k).permuted(rows, axis=0)  # of both signs
        assert right(p, mixed[:4], rows.T) and right(p, mixed[:4], mixed[4:].T), k


def test_sums_that_int64_cannot_hold(monkeypatch):
    """That is why a sum of more than LONG terms is a sum of shorter ones."""
    p, k = prime(2**49), 4 * LONG
    rows = worst(p, k)[-6:]
    assert right(p, rows[:1], rows[1:2].T)
    monkeypatch.setattr(modular, "LONG", k)
    assert not all(right(p, rows[i : i + 1], rows[j : j + 1].T) for i in range(6) for j in range(6))


def test_millions_of_terms():
    ones = GF(10007).ones((1, 2**23))
    assert (ones @ GF(10007).matrix_transpose(ones)).tolist() == [[2**23 % 10007]]


@pytest.mark.parametrize("p", [2, 3, 10007, 2097143, 94906249, 2**31 - 1])
def test_remainders_next_to_multiples(p):
    """As large as floor may be given them, and enough of them for the way without `%`."""
    near = np.linspace(-(2**51) + 2 * p, 2**51 - 2 * p, PIECE).astype(np.int64) // p * p
    x = np.concatenate([near + step for step in (-1, 0, 1)])
    found = x.astype(np.float64)
    modular.floor(found, p)
    assert (found.view(np.int64) == x % p).all()


@pytest.mark.parametrize("p", [2, 2**20 - 3, 2097143, prime(2**24), 2**31 - 1, prime(2**45), 2**61 - 1])
def test_long_sums(p):
    for k in (LONG - 1, LONG, LONG + 1, 2 * LONG + 3):
        x, y = (np.full(shape, p - 1) for shape in ((2, k), (k, 1)))
        x[1] = p // 2
        assert (GF(p).wrap((x,)) @ GF(p).wrap((y,))).tolist() == [[k % p], [-(p // 2) * k % p]]


@pytest.mark.parametrize("p", [p for p in PRIMES if plan(p, TERMS).block < 2**14])
def test_a_block_too_long_is_wrong(p, monkeypatch):
    """The bound is needed: with blocks of sixteen times as many terms the worst case comes out
    wrong, at every kind of plan.
    """
    way = plan(p, TERMS)
    k = 16 * way.block
    monkeypatch.setattr(modular, "LONG", k)
    monkeypatch.setattr(modular, "plan", lambda p, terms: way)
    rows = worst(p, k)[-6:]
    assert right(p, rows, rows[1:5].T)
    monkeypatch.setattr(modular, "plan", lambda p, terms: way._replace(block=k))
    assert not right(p, rows, rows[1:5].T)


def test_plans_of_all_kinds_can_be_too_long():
    assert {digits(p) for p in PRIMES if plan(p, TERMS).block < 2**14} == {digits(p) for p in PRIMES}


def test_the_cheapest_plan_is_taken():
    for p, terms in itertools.product(PRIMES, (1, 64, 512, 4000)):
        ways = [cut(p, *counts) for counts in WAYS]
        assert cost(plan(p, terms), terms) == min(cost(way, terms) for way in ways if way.block)


# Shapes and memory

sides = st.integers(0, 5)
some_prime = st.sampled_from(
    [2, 10007, 2097143, prime(2**24), prime(2**26), 2**31 - 1, prime(2**35), prime(2**44), 2**61 - 1]
)


@st.composite
def layouts(draw, shape, p, seed):
    """An array of that shape whose memory is in any order: transposed, with gaps, backwards, or
    broadcast.
    """
    kind = draw(st.sampled_from(["plain", "transposed", "gaps", "backwards", "moved", "broadcast"]))
    random = np.random.default_rng(seed)
    if kind == "transposed":
        return np.swapaxes(random.integers(0, p, (*shape[:-2], shape[-1], shape[-2])), -1, -2)
    if kind == "gaps":
        return random.integers(0, p, (*shape[:-1], 2 * shape[-1]))[..., ::2]
    if kind == "moved":
        return np.moveaxis(random.integers(0, p, (*shape[-2:], *shape[:-2])), (0, 1), (-2, -1))
    if kind == "broadcast":
        return np.broadcast_to(random.integers(0, p, (shape[-2], 1)), shape)
    x = random.integers(0, p, shape)
    return x[..., ::-1, ::-1] if kind == "backwards" else x


leads = st.sampled_from([((), ()), ((2,), ()), ((), (3,)), ((2, 1), (3,)), ((0,), ())])


@given(p=some_prime, M=sides, K=st.integers(0, 40), N=sides, leads=leads, data=st.data())
def test_shapes_and_layouts(p, M, K, N, leads, data):
    x, y = data.draw(layouts((*leads[0], M, K), p, 1)), data.draw(layouts((*leads[1], K, N), p, 2))
    got = (GF(p).wrap((x,)) @ GF(p).wrap((y,))).planes[0]
    lead = np.broadcast_shapes(*leads)
    want = np.zeros((*lead, M, N), object)
    for i, j in itertools.product(range(M), range(N)):
        terms = x[..., i, :].astype(object) * y[..., :, j].astype(object)
        want[..., i, j] = terms.sum(axis=-1) if terms.size else 0
    assert got.shape == want.shape and got.dtype == np.int64 and np.array_equal(got, want % p)


@pytest.mark.parametrize("p", [2097143, prime(2**23), 2**31 - 1, 2**61 - 1])
@pytest.mark.parametrize("lead", [((), ()), ((3,), ()), ((), (3,)), ((2, 1), (1, 3))])
def test_large_matrices_one_by_one(p, lead):
    """Those that are taken out of a batch are right: x (y c) = (x y) c for a random c, but for one
    in p (Freivalds).
    """
    x, y = (
        np.random.default_rng(1).integers(0, p, (*lead[0], 190, 180)),
        np.random.default_rng(2).integers(0, p, (*lead[1], 180, 185)),
    )
    assert x.shape[-2] * y.shape[-1] > PIECE
    got = GF(p).wrap((x,)) @ GF(p).wrap((y,))
    column = np.random.default_rng(3).integers(0, p, (185, 1))
    assert np.array_equal(product(p, got.planes[0], column), product(p, x, product(p, y, column)))
    assert got.planes[0].min() >= 0 and got.planes[0].max() < p


# Elementwise


@every_prime
@pytest.mark.parametrize("size", [1, 100, PIECE + 3])
def test_arithmetic_at_the_edges(p, size):
    values = [
        v % p for v in (0, 1, 2, p // 2, p // 2 + 1, p - 2, p - 1, 2**31 - 1, 2**31, 2**31 + 1, p - 2**31, p // 3 * 2)
    ]
    pairs = np.array(list(itertools.product(values, values)))
    x, y = np.resize(pairs[:, 0], size), np.resize(pairs[:, 1], size)
    a, b = GF(p).wrap((x,)), GF(p).wrap((y,))
    X, Y = x.astype(object), y.astype(object)
    for got, want in (
        (a + b, X + Y),
        (a - b, X - Y),
        (-a, -X),
        (a * b, X * Y),
        (a * b[:1], X * Y[:1]),
        (a + b[:1], X + Y[:1]),
    ):
        assert got.planes[0].dtype == np.int64 and np.array_equal(got.planes[0], want % p)
    top = GF(p).broadcast_to(GF(p).convert(-1), (size, 2))
    assert GF(p).sum(top, axis=0).tolist() == [-size % p] * 2 and GF(p).sum(a, axis=0).tolist() == sum(X.tolist()) % p


@pytest.mark.parametrize("p", [2097143, 2**61 - 1])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_large_operands_in_any_order_of_memory(p, order):
    shape = (21, 47, 53)
    x = np.random.default_rng(1).integers(0, p, shape)
    y = np.random.default_rng(2).integers(0, p, [shape[i] for i in order]).transpose(np.argsort(order))
    kept, row = (x.copy(), y.copy()), np.broadcast_to(y[:, :1], shape)
    a, b, c = (GF(p).wrap((z,)) for z in (x, y, row))
    X, Y, Z = (z.astype(object) for z in (x, y, row))
    for got, want in (
        (a + b, X + Y),
        (-b, -Y),
        (b * b, Y * Y),
        (a * b, X * Y),
        (c * c, Z * Z),
        (c + c, Z + Z),
        (b * c, Y * Z),
    ):
        assert np.array_equal(got.planes[0], want % p)
    # only what is fresh is changed in place
    assert np.array_equal(x, kept[0]) and np.array_equal(y, kept[1])


@pytest.mark.parametrize("p", [61, 10007, 2**31 - 1, 2**31 + 11, 2**61 - 1])
@pytest.mark.parametrize("few", [True, False])
def test_python_multiplies_few_large_numbers_and_no_others(p, few, monkeypatch):
    """Below 2³¹, products fit in int64. Above, a few are faster by Python's integers."""
    taken = []
    for f in (modular.multiply, modular.matmul):
        monkeypatch.setattr(modular, f.__name__, lambda *a, f=f: taken.append(f.__name__) or f(*a))
    size, terms = (FEW, 4 * FEW) if few else (FEW + 1, 4 * FEW + 1)
    a, x = GF(p).wrap((np.full(size, p - 1),)), np.full((1, terms), p - 2)
    assert set((a * a).tolist()) == {(p - 1) ** 2 % p}
    assert right(p, x, x.T)
    assert taken == ([] if few and p > 2**31 else ["multiply", "matmul"])


@pytest.mark.parametrize("p", [2**31 - 1, 2**31 + 11])
def test_sums_in_halves_from_31_bits_on(p, monkeypatch):
    """Sums of smaller numbers fit in int64, those of larger ones are of their halves."""
    taken = []
    monkeypatch.setattr(FiniteField, "add", lambda *a, f=FiniteField.add: taken.append(1) or f(*a))
    x = np.full((1000, 2), p - 1)
    assert GF(p).sum(GF(p).wrap((x,)), axis=0).tolist() == [1000 * (p - 1) % p] * 2
    assert bool(taken) == (p > 2**31)


@pytest.mark.parametrize("p", [2**31 - 1, 2**61 - 1])
@pytest.mark.parametrize("size", [PIECE - 1, PIECE, PIECE + 1])
def test_pieces_on_both_sides_of_their_length(p, size):
    x = np.arange(size) * 7919 + p - size
    x %= p
    a, X = GF(p).wrap((x,)), x.astype(object)
    for got, want in ((a + a, 2 * X), (a * a, X * X), (-a, -X)):
        assert np.array_equal(got.planes[0], want % p)


# Inversion


@every_prime
def test_inverses_of_one_and_many(p):
    for n in (1, 2, 3, 15, 16, 17, 18, 33, 64, 65, 127, 300, 1001):
        x = GF(p).wrap((np.random.default_rng(n).integers(1, p, n),))
        assert ((1 / x) * x == 1).all() and ((x / x) == 1).all()
    edge = GF(p).wrap((np.resize(np.array([1, p - 1, p // 2 or 1, max(1, p // 2 + 1) % p or 1]), (7, 9)),))
    assert ((1 / edge) * edge == 1).all() and (1 / edge).shape == (7, 9)


@pytest.mark.parametrize("p", [2, 10007, 2097143, 2**31 - 1, 2**61 - 1])
def test_many_more_inverses(p):
    x = GF(p).wrap((np.random.default_rng(1).integers(1, p, (3, 40001)),))
    assert ((1 / x) * x == 1).all()
    assert ((x[:, :1] / x) * x == x[:, :1]).all()


@pytest.mark.parametrize("shape, at", [((1,), (0,)), ((5, 7), (3, 2)), ((40, 50), (0, 0)), ((40, 50), (39, 49))])
def test_zero_is_refused_where_it_is(shape, at):
    for p in (2, 10007, 2**61 - 1):
        x = np.ones(shape, np.int64)
        x[at] = 0
        with says(ZeroDivisionError, f"division by zero in GF({p}) at index {at}"):
            GF(p).ones(shape) / GF(p).wrap((x,))


def test_no_entries():
    for p in (7, 2**61 - 1):
        x = GF(p).ones((0, 3))
        assert [(x + x).shape, (-x).shape, (x * x).shape, (x / x).shape] == [(0, 3)] * 4
        assert GF(p).sum(x, axis=0).tolist() == [0, 0, 0] and (GF(p).matrix_transpose(x) @ x).tolist() == [[0] * 3] * 3


def test_thirteen_bases_decide_what_is_prime():
    """The least number that no twelve, or no thirteen, first primes tell from a prime."""
    twelve, thirteen = 399165290221 * 798330580441, 1287836182261 * 2575672364521
    assert not is_prime(twelve) and is_prime(thirteen)


def test_the_largest_field():
    assert GF(2**61 - 1).p == 2**61 - 1
    with says(ValueError, f"GF: p must be a prime with 2 ≤ p ≤ 2^61-1, got {2**61 + 15}"):
        FiniteField(2**61 + 15)
