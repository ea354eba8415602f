"""GF(p): machine integers in [0, p), modulo a prime p ≤ 2⁶¹−1. modular.py multiplies them."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from ..arrays import HostArray
from ..errors import NotDefined, brief
from . import modular
from .array import ArraySystem, Planes, SystemArray, elementwise, generator, integer_argument, once

LARGEST = 2**61 - 1
FEW = 128  # large products up to which Python's integers are faster; in a matrix product, 4 times that
SINGLY = 16  # inverses up to which they are faster than three products each


class FiniteField(ArraySystem):
    """The integers modulo a prime p ≤ 2⁶¹−1: exact, a field, not ordered."""

    words = ("GF",)
    file_dtype = "I64"
    can = frozenset({"ring", "field"})
    exact = True
    dtypes = (np.dtype(np.int64),)

    def __init__(self, p: int) -> None:
        if not isinstance(p, int) or isinstance(p, bool) or not 2 <= p <= LARGEST or not is_prime(p):
            raise ValueError(f"GF: p must be a prime with 2 ≤ p ≤ 2^61-1, got {brief(p)}")
        self.p = p
        self.name = f"GF({p})"

    @classmethod
    def from_label(cls, word: str, argument: str) -> FiniteField:
        return GF(integer_argument(word, argument, LARGEST))

    def to_file(self, x: SystemArray) -> HostArray:
        return x.planes[0]

    def from_file(self, name: str, x: HostArray) -> SystemArray:
        if x.min(initial=0) < 0 or x.max(initial=0) >= self.p:
            got = f"{x.min()} to {x.max()}"
            raise ValueError(f"`{name}` must hold integers from 0 to p − 1, for {self.name}, got {got}")
        return self.wrap((x,))

    def lift(self, fractions: HostArray) -> Planes:
        return (elementwise(self._image, fractions),)

    def _image(self, x: Fraction) -> int:
        if x.denominator % self.p == 0:
            raise ZeroDivisionError(f"{x} has no image in {self.name}: its denominator is 0 there")
        return x.numerator * pow(x.denominator, -1, self.p) % self.p

    def add(self, x: Planes, y: Planes) -> Planes:
        return (modular.subtract_once(x[0] + y[0], self.p),)

    def neg(self, x: Planes) -> Planes:
        return (modular.subtract_once(self.p - x[0], self.p),)

    def mul(self, x: Planes, y: Planes) -> Planes:
        a, b = x[0], y[0]
        if self.p >= 2**31 and np.broadcast(a, b).size <= FEW:
            return (np.asarray(a.astype(object) * b % self.p, dtype=np.int64),)
        return (modular.multiply(a, b, self.p),)

    def div(self, x: Planes, y: Planes) -> Planes:
        self.refuse_zero(y)
        return self.mul(x, (self._inverse(y[0].ravel()).reshape(y[0].shape),))

    def sum(self, x: SystemArray, *, axis: int, keepdims: bool = False) -> SystemArray:
        if self.p < 2**31:
            return self.wrap((np.sum(x.planes[0], axis=axis, keepdims=keepdims) % self.p,))
        halves = x.planes[0] >> modular.HALF, x.planes[0] & ((1 << modular.HALF) - 1)
        high, low = (np.asarray(np.sum(half, axis=axis, keepdims=keepdims) % self.p) for half in halves)
        return self.wrap(self.add(self.mul((high,), (np.asarray(1 << modular.HALF),)), (low,)))

    def _inverse(self, x: HostArray) -> HostArray:
        """Inverses by those of half as many products: 1/a = b/ab, 1/b = a/ab (Montgomery 1987)."""
        if x.size <= SINGLY:
            return np.array([pow(a, -1, self.p) for a in x.tolist()], dtype=np.int64)
        half = (x.size + 1) // 2  # the middle one of an odd number is in both halves
        a, b, inverse = x[:half], x[-half:], np.empty_like(x)
        (product,) = self.mul((a,), (b,))
        both = (self._inverse(product),)
        inverse[:half], inverse[-half:] = self.mul(both, (b,))[0], self.mul(both, (a,))[0]
        return inverse

    def matmul(self, x: SystemArray, y: Any) -> SystemArray:
        y = self.right_factor(x, y)
        a, b = x.planes[0], y.planes[0]
        if self.p >= 2**31 and 0 < max(a.size * b.shape[-1], b.size * a.shape[-2]) <= 4 * FEW:
            return self.wrap((np.matmul(a.astype(object), b.astype(object)) % self.p,))
        return self.wrap((modular.matmul(a, b, self.p),))

    def keep_where(self, x: SystemArray, keep: HostArray) -> SystemArray:
        np.copyto(x.planes[0], 0, where=~keep)
        return x

    def fractions(self, x: SystemArray) -> HostArray:
        raise NotDefined(f"a number of {self.name} stands for many rationals; compare inside {self.name} instead")

    def random(self, shape: tuple[int, ...], seed: int) -> SystemArray:
        """Uniform over the p elements."""
        return self.wrap((generator(f"{self.name}.random", shape, seed).integers(0, self.p, shape),))

    def sqrt(self, x: SystemArray) -> SystemArray:
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
                root = self._multiply_pairs(root, power, t * t - a)
            power, e = self._multiply_pairs(power, power, t * t - a), e >> 1
        return min(root[0], p - root[0])

    def _multiply_pairs(self, x: tuple[int, int], y: tuple[int, int], w: int) -> tuple[int, int]:
        return (x[0] * y[0] + x[1] * y[1] * w) % self.p, (x[0] * y[1] + x[1] * y[0]) % self.p


GF = once(FiniteField)


def is_prime(p: int) -> bool:
    """Miller-Rabin with bases that decide every p below 3.3e24 (Sorenson and Webster 2015)."""
    bases = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)
    if p < 2 or any(p % b == 0 for b in bases):
        return p in bases
    twos = ((p - 1) & -(p - 1)).bit_length() - 1
    odd = (p - 1) >> twos
    return all(pow(b, odd, p) == 1 or any(pow(b, odd << i, p) == p - 1 for i in range(twos)) for b in bases)
