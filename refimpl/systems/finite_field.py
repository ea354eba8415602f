"""GF(p): integers modulo a prime p ≤ 2⁶¹−1, held as machine integers in [0, p)."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from ..errors import NotDefined
from .array import Array, ArraySystem, Planes, elementwise

LARGEST = 2**61 - 1
FEW = 128  # products up to which Python's integers are faster than machine integers taken apart
HALF = 31  # a factor below 2³¹ keeps the quotient of mul_small below 2³¹: float64 finds it to within one


class FiniteField(ArraySystem):
    can = frozenset({"ring", "field"})
    exact = True
    dtypes = (np.int64,)

    def __init__(self, p: int) -> None:
        if not isinstance(p, int) or not 2 <= p <= LARGEST or not is_prime(p):
            raise ValueError(f"GF: p must be a prime with 2 ≤ p ≤ 2^61-1, got {p!r}")
        self.p = p
        self.name = f"GF({p})"

    def lift(self, fractions: np.ndarray) -> Planes:
        return (elementwise(self._image, fractions),)

    def _image(self, x: Fraction) -> int:
        if x.denominator % self.p == 0:
            raise ZeroDivisionError(f"{x} has no image in {self.name}: its denominator is 0 there")
        return x.numerator * pow(x.denominator, -1, self.p) % self.p

    def add(self, x: Planes, y: Planes) -> Planes:
        return ((x[0] + y[0]) % self.p,)

    def neg(self, x: Planes) -> Planes:
        return (-x[0] % self.p,)

    def mul(self, x: Planes, y: Planes) -> Planes:
        a, b = x[0], y[0]
        if self.p < 2**31:
            return (a * b % self.p,)
        if np.broadcast(a, b).size <= FEW:
            return (a.astype(object) * b % self.p,)
        high = self._mul_small(self._mul_small(a, b >> HALF), np.int64(1 << HALF))
        return ((high + self._mul_small(a, b & ((1 << HALF) - 1))) % self.p,)

    def _mul_small(self, a: Any, b: Any) -> Any:
        """a b mod p for b ≤ 2³¹. The two products wrap around modulo 2⁶⁴; their difference is small, hence right."""
        quotient = (a.astype(np.float64) * b / self.p).astype(np.int64)
        with np.errstate(over="ignore"):
            return (a * b - quotient * np.int64(self.p)) % self.p

    def div(self, x: Planes, y: Planes) -> Planes:
        self.refuse_zero(y)
        inverse = elementwise(lambda a: pow(a, -1, self.p), y[0].astype(object)).astype(np.int64)
        return self.mul(x, (inverse,))

    def sum(self, x: Array, *, axis: int, keepdims: bool = False) -> Array:
        if self.p < 2**31:
            return self.wrap((np.sum(x.planes[0], axis=axis, keepdims=keepdims) % self.p,))
        high, low = (np.asarray(np.sum(h, axis=axis, keepdims=keepdims)) for h in (x.planes[0] >> HALF, x.planes[0] & ((1 << HALF) - 1)))
        return self.wrap(((self._mul_small(high % self.p, np.int64(1 << HALF)) + low % self.p) % self.p,))

    def matmul(self, x: Array, y: Any) -> Array:
        """Digit by digit in float64: each digit product stays below 2⁵³, so BLAS is exact, in any order."""
        y = self.factor(x, y)
        if 0 < x.planes[0].size * y.shape[-1] <= FEW and self.p >= 2**31:
            return self.wrap((np.matmul(x.planes[0].astype(object), y.planes[0].astype(object)) % self.p,))
        bits = (53 - max(1, x.shape[-1]).bit_length()) // 2
        shifts = range(0, self.p.bit_length(), bits)
        if len(shifts) == 1:
            return self.wrap(((x.planes[0].astype(np.float64) @ y.planes[0].astype(np.float64)).astype(np.int64) % self.p,))
        a, b = ([((z.planes[0] >> s) & ((1 << bits) - 1)).astype(np.float64) for s in shifts] for z in (x, y))
        total = np.int64(0)
        for i in reversed(range(2 * len(shifts) - 1)):  # Horner over the digits, highest first
            total = self._mul_small(np.asarray(total), np.int64(1 << bits))
            for j in range(max(0, i - len(shifts) + 1), min(i, len(shifts) - 1) + 1):
                total = (total + (a[j] @ b[i - j]).astype(np.int64)) % self.p
        return self.wrap((total,))

    def fractions(self, x: Array) -> np.ndarray:
        raise NotDefined(f"a number of {self.name} stands for many rationals; compare inside {self.name} instead")

    def random(self, shape: tuple[int, ...], seed: int) -> Array:
        """Uniform over the p elements."""
        return self.wrap((np.random.default_rng(seed).integers(0, self.p, shape),))

    def sqrt(self, x: Array) -> Array:
        """The smaller of the two square roots, where they exist."""
        return self.wrap((elementwise(self._root, x.planes[0].astype(object)),))

    def _root(self, a: int) -> int:
        """Cipolla: (t + √(t²−a))^((p+1)/2) in GF(p²), for a t that makes t²−a a non-residue."""
        p = self.p
        if a == 0 or p == 2:
            return a
        if pow(a, (p - 1) // 2, p) != 1:
            raise NotDefined(f"{a} has no square root in {self.name}")
        t = next(t for t in range(p) if pow(t * t - a, (p - 1) // 2, p) == p - 1)
        root, power, e = (1, 0), (t, 1), (p + 1) // 2
        while e:
            if e & 1:
                root = self._times(root, power, t * t - a)
            power, e = self._times(power, power, t * t - a), e >> 1
        return min(root[0], p - root[0])

    def _times(self, x: tuple[int, int], y: tuple[int, int], w: int) -> tuple[int, int]:
        return (x[0] * y[0] + x[1] * y[1] * w) % self.p, (x[0] * y[1] + x[1] * y[0]) % self.p


def is_prime(p: int) -> bool:
    """Miller-Rabin with bases that decide every p below 3.3e24 (Sorenson and Webster 2015)."""
    bases = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)
    if p < 2 or any(p % b == 0 for b in bases):
        return p in bases
    twos = ((p - 1) & -(p - 1)).bit_length() - 1
    odd = (p - 1) >> twos
    return all(pow(b, odd, p) == 1 or any(pow(b, odd << i, p) == p - 1 for i in range(twos)) for b in bases)
