"""Long sums and matrix products in every system, against sums of Python's integers and fractions.

The numbers fill the digits of their system, but no partial sum needs more digits than there are: so
every order of adding is exact, and a bit that is lost anywhere shows.
"""

from __future__ import annotations

import importlib.util
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from refimpl import GF, MP, Degrees, Dependencies, Dual, Float, Rounded, RunningError, balls
from refimpl.systems import fractions
from refimpl.systems.array import host
from refimpl.systems.floats import sums
from refimpl.systems.formats import FORMATS
from refimpl.systems.rational import Rational
from tests.helpers.strategies import FLINT

ROWS = [65, 257, 1000]
COLUMNS = 3
MAKERS = ["fractions", *(["gmpy2"] if importlib.util.find_spec("gmpy2") else [])]
PRIMES = [2, 10007, 2**21 - 9, 2**31 - 1, 2**31 + 11, 2**61 - 1]
PEERS = [name for name in ("torch", "jax") if importlib.util.find_spec(name)]

long = pytest.mark.parametrize("rows", ROWS)


def integers(rows: int, columns: int, bits: int, seed: int, most: int | None = None) -> np.ndarray:
    """Integers of so many bits and either sign; at most so many in a column are not 0."""
    draw = np.random.default_rng(seed)
    values = np.array(
        [[int.from_bytes(draw.bytes(bits // 8 + 1)) >> 8 - bits % 8 for _ in range(columns)] for _ in range(rows)],
        object,
    )
    values *= draw.choice([-1, 1], (rows, columns)).astype(object)
    values[most if most is not None else rows :] = 0
    return draw.permuted(values, axis=0) if most else values


def exact_factors(rows: int, bits: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(rows, columns) twice: sums of products of both have at most that many bits."""
    room = bits - rows.bit_length()
    if room > 2:
        return integers(rows, COLUMNS, room // 2, seed), integers(rows, COLUMNS, room - room // 2, seed + 1)
    few = 2**bits - 1
    return integers(rows, COLUMNS, 1, seed, few), integers(rows, COLUMNS, 1, seed + 1, few)


def exact_terms(rows: int, bits: int) -> np.ndarray:
    room = bits - rows.bit_length()
    return integers(rows, COLUMNS, room, 2) if room > 0 else integers(rows, COLUMNS, 1, 2, 2**bits - 1)


def check(numbers: Any, rows: int, bits: int, value: Any = lambda x: fractions(x, "test")) -> None:
    x, y = exact_factors(rows, bits)
    a, b, c = (numbers.convert(v) for v in (x, y, exact_terms(rows, bits)))
    exact = exact_terms(rows, bits)
    xp = numbers.xp
    for got, want in (
        (xp.sum(c, axis=0), exact.sum(axis=0)),
        (xp.sum(c, axis=0, keepdims=True), exact.sum(axis=0, keepdims=True)),
        (xp.sum(xp.matrix_transpose(c), axis=-1), exact.sum(axis=0)),
        (sums(c, axis=-2), exact.sum(axis=0, keepdims=True)),
        (sums(xp.matrix_transpose(c), axis=-1), exact.sum(axis=0)[:, None]),
        (xp.matrix_transpose(a) @ b, x.T @ y),
        (xp.matrix_transpose(a)[:1, :] @ b[:, :1], x.T[:1] @ y[:, :1]),
        (xp.stack([xp.matrix_transpose(a)] * 2, axis=0) @ b, np.stack([x.T] * 2) @ y),
    ):
        assert tuple(got.shape) == want.shape and (value(got) == want).all()


@long
@pytest.mark.parametrize("maker", MAKERS)
def test_rationals(maker: str, rows: int) -> None:
    numbers = Rational(maker)
    check(numbers, rows, 200)
    x, y = (integers(rows, COLUMNS, 90, seed) for seed in (3, 4))
    below = np.array([Fraction(1, 1 + i % 97) for i in range(rows)], object)[:, None]
    a, b = numbers.convert(x * below), numbers.convert(y * below)
    assert (numbers.matrix_transpose(a) @ b == numbers.convert((x * below).T @ (y * below))).all()
    assert (numbers.sum(a, axis=0) == numbers.convert((x * below).sum(axis=0))).all()


@long
@pytest.mark.parametrize("p", PRIMES)
@pytest.mark.parametrize("dual", [False, True])
def test_residues(p: int, rows: int, dual: bool) -> None:
    """At random, and all of them p − 1, the largest."""
    field = GF(p)
    draw = np.random.default_rng(0)
    for x, y in (draw.integers(0, p, (2, rows, COLUMNS)), np.full((2, rows, COLUMNS), p - 1)):
        a, b = field.wrap((x,)), field.wrap((y,))
        X, Y = x.astype(object), y.astype(object)
        if not dual:
            assert np.array_equal(field.sum(a, axis=0).planes[0], X.sum(axis=0) % p)
            assert np.array_equal((field.matrix_transpose(a) @ b).planes[0], X.T @ Y % p)
            continue
        numbers = Dual(field)
        c = numbers.join(a, b)  # (x + yε)ᵀ(x + yε) = xᵀx + (xᵀy + yᵀx)ε
        assert np.array_equal(np.stack(numbers.sum(c, axis=0).planes), np.stack([X.sum(axis=0) % p, Y.sum(axis=0) % p]))
        found = (numbers.matrix_transpose(c) @ c).planes
        assert np.array_equal(np.stack(found), np.stack([X.T @ X % p, (X.T @ Y + Y.T @ X) % p]))


@long
@pytest.mark.parametrize("digits", [15, 50, 100])
def test_mpmath(digits: int, rows: int) -> None:
    check(MP(digits), rows, MP(digits).ctx.prec)


@long
@pytest.mark.parametrize("maker", ["iv", *["arb"] * FLINT])
def test_balls(maker: str, rows: int) -> None:
    numbers = balls(30, maker)

    def value(x: Any) -> np.ndarray:
        assert numbers.radius(x) == 0
        return fractions(x, "test")

    check(numbers, rows, 100, value)


@long
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_floats(dtype: str, rows: int) -> None:
    check(Float("numpy", dtype), rows, FORMATS[dtype][0], lambda x: host(x).astype(np.float64).astype(object))


@pytest.mark.slow
@long
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("library", PEERS)
def test_floats_of_other_libraries(library: str, dtype: str, rows: int) -> None:
    check(Float(library, dtype), rows, FORMATS[dtype][0], lambda x: host(x).astype(np.float64).astype(object))


@long
@pytest.mark.parametrize("points", [("elementwise", "sums"), ("sums",), ("partial",), ()], ids=str)
@pytest.mark.parametrize("format", FORMATS)
def test_rounded(format: str, points: tuple[str, ...], rows: int) -> None:
    check(Rounded(format, points), rows, FORMATS[format][0])


@long
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_running_errors(dtype: str, rows: int) -> None:
    numbers = RunningError(dtype)
    check(numbers, rows, FORMATS[dtype][0])
    x = numbers.random((rows, COLUMNS), 0)
    exact = fractions(x, "test")
    for got, want in ((numbers.sum(x, axis=0), exact.sum(axis=0)), (numbers.matrix_transpose(x) @ x, exact.T @ exact)):
        off = abs(fractions(got, "test") - want)
        assert all(e <= bound for e, bound in zip(off.flat, got.planes[1].flat, strict=True))
        assert dtype == "bfloat16" or got.planes[1].max() < 1  # in bfloat16 so long a sum may be anything


@long
def test_what_an_entry_depends_on(rows: int) -> None:
    numbers = Dependencies()
    x = numbers.tokens((rows, COLUMNS))
    every = set(range(rows))
    assert all(found == every for found in numbers.sets(numbers.sum(x, axis=0)).flat)
    assert all(found == every for found in numbers.sets(numbers.matrix_transpose(x) @ x).flat)


@long
def test_degrees(rows: int) -> None:
    """Σ 1/x_i over so many variables: all of them are in its denominator."""
    numbers = Degrees()
    x = numbers.variables((rows, 1))
    total = numbers.sum(1 / x, axis=0)
    assert numbers.worst(total) == (rows - 1, rows) and numbers.divided == rows
    assert numbers.worst(numbers.matrix_transpose(x) @ x) == (2, 0)
