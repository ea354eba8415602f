"""GF(p): integers modulo a prime p ≤ 2⁶¹−1, held as machine integers in [0, p).

A matrix product runs on the BLAS of float64, which is exact, in whatever order it adds, as long as no sum can exceed 2⁵³:

    plan            how many digits the factors are cut into, and how many terms one product may sum
    digits          x = Σᵢ dᵢ 2^(i·bits), every dᵢ balanced about 0
    products        Σ over i + j of dᵢ @ eⱼ, block by block in float64, added up in int64
    recombination   Horner's rule in 2^bits, with a remainder modulo p at each step
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from ..errors import NotDefined
from .array import Array, ArraySystem, Planes, elementwise

LARGEST = 2**61 - 1
FEW = 128  # products up to which Python's integers are faster than machine integers taken apart; in matrix products four times that
SINGLY = 16  # inverses up to which Python's integers are faster than three products for each
PIECE = 2**15  # entries that pass through several operations at a time, and stay in the cache
LONG = 2**13  # terms of a matrix product, so few that their blocks add up within int64; one with more is a sum of shorter ones
LAST = np.int64(2**52 - 1)
HALF = 31  # bits of the lower half of a factor

# To fault fresh memory in takes longer than the arithmetic on it. glibc gives arrays back to the system at once until it has seen
# one of nearly 32 MB freed; from then on it keeps 64 MB for the next (mallopt(3), M_MMAP_THRESHOLD). Elsewhere this does nothing.
np.empty(2**25 - 2**16, np.uint8)


class Plan(NamedTuple):
    """A matrix product by left × right digits of that many bits, at most `block` terms at a time.

    One digit is the balanced residue, none (0) the residue as it is stored. sizes : of the largest digits, left and right
    """

    left: int
    right: int
    bits: int
    sizes: tuple[int, int]
    block: int


@functools.cache
def plan(p: int, terms: int) -> Plan:
    """The cheapest plan for sums of that many terms."""
    ways = (cut(p, *digits) for digits in ((0, 0), (1, 0), (1, 1), (2, 1), (3, 1), (2, 2), (3, 3)))
    return min((way for way in ways if way.block), key=lambda way: cost(way, terms))


def cut(p: int, left: int, right: int) -> Plan:
    """The longest blocks that are exact: block · largest digit · largest digit ≤ 2⁵³, or < 2⁵¹ where `_floor` takes the remainder.

    s > 1 digits of ⌈(n+1)/s⌉ bits hold 0 ≤ x < p < 2ⁿ: the lower ones are in [−2^(bits−1), 2^(bits−1)), and the top one is what is
    left of x, with a carry of 1 at most: 0 ≤ top ≤ 2^(n − (s−1)·bits) ≤ 2^(bits−1).
    """
    bits = -(-(p.bit_length() + 1) // max(1, left))
    a, b = (2 ** (bits - 1) if digits > 1 else p // 2 if digits else p - 1 for digits in (left, right))
    return Plan(left, right, bits, (a, b), (2**53 if left > 1 else 2**51 - 1) // (a * b))


def cost(way: Plan, terms: int) -> int:
    """Time of a product of square matrices, where one term of one product is 1 (measured at 512³).

    Besides, a digit costs 8 to make, a block 32 to add to the total, and a step of Horner's rule 128.
    """
    s, t = max(1, way.left), max(1, way.right)
    return s * t * (terms + 32 * -(-terms // way.block)) + 8 * (way.left + way.right) + 128 * (s + t - 2)


def pieces(x: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """A fresh array by pieces that are changed in place, and room for as much again."""
    flat = x.ravel(order="K")
    room = np.empty(min(PIECE, flat.size), x.dtype)
    for i in range(0, flat.size, PIECE):
        piece = flat[i : i + PIECE]
        yield piece, room[: piece.size]


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

    # Elementwise. 0 ≤ entries < p, here and in what is returned.

    def add(self, x: Planes, y: Planes) -> Planes:
        return (self._once(x[0] + y[0]),)

    def neg(self, x: Planes) -> Planes:
        return (self._once(self.p - x[0]),)

    def mul(self, x: Planes, y: Planes) -> Planes:
        a, b = x[0], y[0]
        if self.p < 2**31:
            return (self._residue(a * b),)
        if np.broadcast(a, b).size <= FEW:
            return (a.astype(object) * b % self.p,)
        modes = [["readonly"], ["readonly"], ["writeonly", "allocate"]]
        with np.nditer([a, b, None], ["external_loop", "buffered"], modes, [np.int64] * 3, buffersize=PIECE) as parts:  # type: ignore[arg-type]
            for u, v, product in parts:
                product[...] = self._wide(u, v)
            return (parts.operands[2],)

    def div(self, x: Planes, y: Planes) -> Planes:
        self.refuse_zero(y)
        return self.mul(x, (self._inverse(y[0].ravel()).reshape(y[0].shape),))

    def sum(self, x: Array, *, axis: int, keepdims: bool = False) -> Array:
        if self.p < 2**31:
            return self.wrap((np.sum(x.planes[0], axis=axis, keepdims=keepdims) % self.p,))
        halves = x.planes[0] >> HALF, x.planes[0] & ((1 << HALF) - 1)
        high, low = (np.asarray(np.sum(half, axis=axis, keepdims=keepdims) % self.p) for half in halves)
        return self.wrap(self.add(self.mul((high,), (np.asarray(1 << HALF),)), (low,)))

    def masked(self, x: Array, keep: np.ndarray) -> Array:
        np.copyto(x.planes[0], 0, where=~keep)
        return x

    def _once(self, x: Any) -> Any:
        """x mod p for 0 ≤ x < 2p, in place: where x − p is negative it is, read without its sign, the larger of the two."""
        if x.size < PIECE:
            return x % self.p
        p = np.int64(self.p)
        for part, less in pieces(x):
            np.subtract(part, p, less)
            np.minimum(part.view(np.uint64), less.view(np.uint64), out=part.view(np.uint64))
        return x

    def _residue(self, x: Any) -> Any:
        """x mod p, in place. NumPy divides by a scalar faster than it takes remainders."""
        if x.size < PIECE:
            x %= self.p
            return x
        p = np.int64(self.p)
        for part, quotient in pieces(x):
            np.floor_divide(part, p, quotient)
            np.multiply(quotient, p, quotient)
            np.subtract(part, quotient, part)
        return x

    def _wide(self, a: Any, b: Any) -> Any:
        """a b mod p for p > 2³¹, by b = high 2³¹ + low: t = a high mod p, and then t 2³¹ + a low.

        The quotients by p are below 2³⁰ and 2³², so float64 finds each to within 1/2 + 2⁻¹⁸, and the remainders are less than
        0.51 p < 2⁶³ in size: right, although the products on both sides of the minus wrap around modulo 2⁶⁴.
        """
        high, low, part = b >> HALF, b & ((1 << HALF) - 1), a * (1 / self.p)
        t = a * high - np.rint(part * high).astype(np.int64) * self.p
        r = (t << HALF) + a * low - np.rint(t * (2.0**HALF / self.p) + part * low).astype(np.int64) * self.p
        return r + (self.p & (r >> 63))

    def _inverse(self, x: np.ndarray) -> np.ndarray:
        """All inverses from those of half as many products: 1/a = b · 1/ab, 1/b = a · 1/ab (Montgomery 1987)."""
        if x.size <= SINGLY:
            return elementwise(lambda a: pow(a, -1, self.p), x.astype(object)).astype(np.int64)
        half = (x.size + 1) // 2  # the middle one of an odd number is in both halves
        a, b, inverse = x[:half], x[-half:], np.empty_like(x)
        (product,) = self.mul((a,), (b,))
        both = (self._inverse(product),)
        inverse[:half], inverse[-half:] = self.mul(both, (b,))[0], self.mul(both, (a,))[0]
        return inverse

    # Matrix products.

    def matmul(self, x: Array, y: Any) -> Array:
        y = self.factor(x, y)
        a, b, terms = x.planes[0], y.planes[0], x.shape[-1]
        if self.p >= 2**31 and 0 < a.size * b.shape[-1] <= 4 * FEW:
            return self.wrap((np.matmul(a.astype(object), b.astype(object)) % self.p,))
        if terms > LONG:
            return x[..., :LONG] @ y[..., :LONG, :] + x[..., LONG:] @ y[..., LONG:, :]
        lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        products = np.empty((*lead, a.shape[-2], b.shape[-1]), np.int64)
        if a.shape[-2] * max(b.shape[-2:]) < PIECE:
            self._product(a, b, products)
        else:  # large matrices one by one, in the same memory
            a, b = np.broadcast_to(a, lead + a.shape[-2:]), np.broadcast_to(b, lead + b.shape[-2:])
            for i in np.ndindex(lead):
                self._product(a[i], b[i], products[i])
        return self.wrap((products,))

    def _product(self, a: np.ndarray, b: np.ndarray, total: np.ndarray) -> None:
        """Σᵢⱼ dᵢ @ eⱼ 2^((i+j)·bits), the highest power first, as planned at the top of this file."""
        terms = a.shape[-1]
        way = plan(self.p, terms)
        left, right = self._digits(a, way.left, way.bits), self._digits(b, way.right, way.bits)
        if len(left) == len(right) == 1 and terms <= way.block:
            self._floor(np.matmul(left[0], right[0], out=total.view(np.float64)))
            return
        product = np.empty(total.shape)
        total[...] = 0
        for power in reversed(range(len(left) + len(right) - 1)):
            for i in range(max(0, power - len(right) + 1), min(power, len(left) - 1) + 1):
                for k in range(0, terms, way.block):
                    block = slice(k, k + way.block)
                    np.matmul(left[i][..., block], right[power - i][..., block, :], out=product)
                    np.add(total, product, out=total, dtype=np.int64, casting="unsafe")
            if power:
                self._shift(total, way.bits)
        self._residue(total)

    def _digits(self, x: np.ndarray, count: int, bits: int) -> list[np.ndarray]:
        """The digits of x in float64, least first, in an order of memory that BLAS can read."""
        if x.strides[-1] > x.strides[-2]:
            return [d.mT for d in self._digits(x.mT, count, bits)]
        if count < 2:
            whole = x.astype(np.float64, order="C")
            for part, quotient in pieces(whole) if count else ():
                np.rint(np.multiply(part, 1 / self.p, out=quotient), out=quotient)  # 0 up to p/2, 1 above
                quotient *= self.p
                part -= quotient
            return [whole]
        half = 1 << (bits - 1)
        rest, digits = np.add(x, sum(half << (i * bits) for i in range(count - 1)), order="C"), []
        for _ in range(count - 1):
            digits.append(np.subtract(rest & (2 * half - 1), half, dtype=np.float64))
            rest >>= bits
        return [*digits, rest.astype(np.float64)]

    def _floor(self, x: np.ndarray) -> None:
        """x mod p for integers |x| < 2⁵¹ in float64, as int64 in their place.

        (x + ½)/p is no nearer than 1/2p to any integer, and computed to within 2⁵¹/p · 2⁻⁵²: its floor is right.
        """
        if x.size < PIECE:
            x.view(np.int64)[...] = x.astype(np.int64) % self.p
            return
        half, inverse, p, top = map(np.float64, (0.5, 1 / self.p, self.p, 2.0**52))  # NumPy takes longer over numbers of Python
        for part, quotient in pieces(x):
            np.add(part, half, quotient)
            np.multiply(quotient, inverse, quotient)
            np.floor(quotient, quotient)
            np.multiply(quotient, p, quotient)
            np.subtract(part, quotient, part)
            np.add(part, top, part)  # whose last 52 bits are the integer
            np.bitwise_and(part.view(np.int64), LAST, part.view(np.int64))

    def _shift(self, x: np.ndarray, bits: int) -> None:
        """x 2^bits modulo p, in place, to within p/2 and a little: the products wrap around modulo 2⁶⁴, their difference is small."""
        for part, _ in pieces(x):
            part[:] = (part << bits) - np.rint(part * (2.0**bits / self.p)).astype(np.int64) * self.p

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
