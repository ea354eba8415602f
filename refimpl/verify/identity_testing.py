"""The probability with which a false identity survives uniform draws in GF(p).

`Degrees` bounds the degrees that this needs by running the source; `restrict` finds the true
degrees, on a random line.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import zip_longest

import numpy as np

from ..systems import GF, SystemArray

SPARE = 4  # a fraction must fit this many more points than determine it
Polynomial = list[int]  # coefficients modulo p, the constant first; the last is not zero


def degree(left: SystemArray, right: SystemArray) -> int:
    """δ, the largest degree, over all entries, of the polynomial that is zero if left = right.

        N₁/D₁ − N₂/D₂ = (N₁ L/D₁ − N₂ L/D₂) / L        L the least common multiple of D₁ and D₂

    L is a product of factors that were divided by, so it is not zero at a draw that was run. There
    the sides agree exactly if the numerator is zero. A false identity is false in some entry, and
    survives only if it survives in that entry: the maximum counts, not the sum.
    """
    degrees: tuple[int, int] = left.system.worst(left - right)  # of numerator and denominator
    return max(0, degrees[0])


def survival(delta: int, divided: int, p: int) -> Fraction:
    """The largest probability with which a false identity over GF(p) survives one uniform draw.

        Pr[agree | run] ≤ Pr[agree] / Pr[run] ≤ (δ/p) / (1 − Δ/p) = δ/(p − Δ)

    A polynomial of degree δ, not the zero polynomial, is zero at no more than δ/p of all points
    (Schwartz 1980, Zippel 1979). A draw at which a divisor is zero is not run, but drawn again; the
    degrees of all divisors add up to Δ. (If a divisor is the zero polynomial, no draw is ever run.)
    For p ≤ Δ the bound is 1.

    >>> survival(3, 2, 11), survival(3, 2, 5), survival(3, 7, 7)
    (Fraction(1, 3), Fraction(1, 1), Fraction(1, 1))
    """
    return min(Fraction(1), Fraction(delta, p - divided)) if p > divided else Fraction(1)


def restrict(
    f: Callable[..., SystemArray], shapes: Sequence[tuple[int, ...]], *, p: int = 2**61 - 1, seed: int = 0
) -> list[np.ndarray]:
    """The true degrees [of numerators, of denominators] of f(x, y, ...), x, y of these shapes.

    On the line x = a + s b, with a and b uniform in GF(p), an entry of f is a fraction N(s)/D(s).
    Its degrees are those of the entry, except with a probability of the order of degree/p. The
    entry is evaluated at s = 1, 2, ... until a fraction fits more points than determine it.
    """
    ends = [GF(p).random((2, *shape), seed + i) for i, shape in enumerate(shapes)]
    values: list[np.ndarray] = []
    for points in (8, 16, 32, 64, 128, 256):
        values += [f(*(x[0] + s * x[1] for x in ends)).planes[0] for s in range(len(values) + 1, points + 1)]
        found = [fraction(row, p) for row in np.stack(values, axis=-1).reshape(-1, points).tolist()]
        if all(len(N) + len(D) - 1 + SPARE <= points for N, D in found):
            degrees = np.array([[len(P) - 1 if P else -math.inf for P in row] for row in found], dtype=object)
            return [part.reshape(values[0].shape) for part in degrees.reshape(-1, 2).T]
    raise ValueError(f"restrict: {points} points do not determine the degrees of f")


def fraction(values: list[int], p: int) -> tuple[Polynomial, Polynomial]:
    """Cauchy interpolation: N, D of least total degree with N(s) = D(s) values[s−1], s = 1, 2, ...

    Let g be the polynomial through all values, and M = ∏(x − s). Euclid's algorithm gives
    remainders r ≡ t g modulo M. From row to row the degree of r falls and that of the cofactor t
    rises; N/D is one of the r/t.
    """
    g: Polynomial = []
    M: Polynomial = [1]
    for s, y in enumerate(values, 1):
        g = plus(g, (y - at(g, s, p)) * pow(at(M, s, p), -1, p), M, p)
        M = plus([0, *M], -s, M, p)
    rows: list[tuple[Polynomial, Polynomial]] = [(M, []), (g, [1])]
    while rows[-1][0]:
        (u, w), (r, t) = rows[-2:]
        while len(u) >= len(r):
            c, shift = -u[-1] * pow(r[-1], -1, p), [0] * (len(u) - len(r))
            u, w = plus(u, c, shift + r, p), plus(w, c, shift + t, p)
        rows.append((u, w))
    return min(rows[1:], key=lambda row: len(row[0]) + len(row[1]))


def at(a: Polynomial, s: int, p: int) -> int:
    """a(s)"""
    return functools.reduce(lambda total, c: (total * s + c) % p, reversed(a), 0)


def plus(a: Polynomial, c: int, b: Polynomial, p: int) -> Polynomial:
    """a + c b"""
    total = [(i + c * j) % p for i, j in zip_longest(a, b, fillvalue=0)]
    while total and not total[-1]:
        total.pop()
    return total
