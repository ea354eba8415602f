"""Arithmetic modulo p on machine integers in [0, p), and matrix products on the BLAS of float64.

BLAS is exact, in whatever order it adds, as long as no sum exceeds 2⁵³:

    plan            how many digits the factors are cut into, and how many terms one product may sum
    digits          x = Σᵢ dᵢ 2^(i·bits), every dᵢ balanced about 0
    product         Σ over i + j of dᵢ @ eⱼ, block by block in float64, added up in int64;
                    then Horner's rule in 2^bits, with a remainder modulo p at each step
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..arrays import HostArray

PIECE = 2**15  # entries that pass through several operations at a time, and stay in the cache
LONG = 2**13  # terms of one matrix product, whose blocks then add up to at most about 2⁶²
LAST = np.int64(2**52 - 1)
HALF = 31  # bits of the lower half of a factor


class Plan(NamedTuple):
    """A matrix product by left × right digits of that many bits, at most `block` terms at a time.

    One digit is the balanced residue; 0 digits mean the residue as it is stored.
    """

    left: int
    right: int
    bits: int
    sizes: tuple[int, int]  # of the largest digits, left and right
    block: int


WAYS = ((0, 0), (1, 0), (1, 1), (2, 1), (3, 1), (2, 2), (3, 3))


@functools.lru_cache(maxsize=4096)
def plan(p: int, terms: int) -> Plan:
    """The cheapest plan for sums of that many terms."""
    ways = (cut(p, *digits) for digits in WAYS)
    return min((way for way in ways if way.block), key=lambda way: cost(way, terms))


def cut(p: int, left: int, right: int) -> Plan:
    """The plan with the longest blocks that are exact.

    block · largest digit · largest digit ≤ 2⁵³, or < 2⁵¹ where `floor` takes the remainder.
    s > 1 digits of ⌈(n+1)/s⌉ bits hold 0 ≤ x < p < 2ⁿ: the lower ones are in
    [−2^(bits−1), 2^(bits−1)). The top one is the rest of x, with a carry of 1 at most:
    0 ≤ top ≤ 2^(n − (s−1)·bits) ≤ 2^(bits−1).
    """
    bits = -(-(p.bit_length() + 1) // max(1, left))
    a, b = (2 ** (bits - 1) if digits > 1 else p // 2 if digits else p - 1 for digits in (left, right))
    return Plan(left, right, bits, (a, b), (2**53 if left > 1 else 2**51 - 1) // (a * b))


def cost(way: Plan, terms: int) -> int:
    """Time of a product of square matrices, where one term of one product is 1 (measured at 512³).

    A digit costs 8 to make, a block 32 to add to the total, and a step of Horner's rule 128.
    """
    s, t = max(1, way.left), max(1, way.right)
    return s * t * (terms + 32 * -(-terms // way.block)) + 8 * (way.left + way.right) + 128 * (s + t - 2)


@functools.cache
def keep_freed_memory() -> None:
    """Let glibc keep the memory of large arrays: page faults can take longer than the arithmetic.

    It keeps freed memory up to twice the size of the largest array it has seen freed, of those up
    to 32 MB (mallopt(3), M_MMAP_THRESHOLD), so one such array is made and freed.
    """
    np.empty(2**25 - 2**16, np.uint8)


def matmul(a: HostArray, b: HostArray, p: int) -> HostArray:
    """a @ b mod p, with any leading axes."""
    if a.shape[-1] > LONG:
        blocks = (slice(k, k + LONG) for k in range(0, a.shape[-1], LONG))
        parts = (matmul(a[..., k], b[..., k, :], p) for k in blocks)
        return functools.reduce(lambda x, y: subtract_once(x + y, p), parts)
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    products = np.empty((*lead, a.shape[-2], b.shape[-1]), np.int64)
    if a.shape[-2] * max(b.shape[-2:]) < PIECE:
        product(a, b, p, products)
    else:  # one by one, so that intermediate arrays stay small
        keep_freed_memory()
        a, b = np.broadcast_to(a, lead + a.shape[-2:]), np.broadcast_to(b, lead + b.shape[-2:])
        for i in np.ndindex(lead):
            product(a[i], b[i], p, products[i])
    return products


def product(a: HostArray, b: HostArray, p: int, total: HostArray) -> None:
    """Σᵢⱼ dᵢ @ eⱼ 2^((i+j)·bits), the highest power first, as planned at the top of this file."""
    terms = a.shape[-1]
    way = plan(p, terms)
    left, right = digits(a, way.left, way.bits, p), digits(b, way.right, way.bits, p)
    if len(left) == len(right) == 1 and terms <= way.block:
        floor(np.matmul(left[0], right[0], out=total.view(np.float64)), p)
        return
    part = np.empty(total.shape)
    total[...] = 0
    for power in reversed(range(len(left) + len(right) - 1)):
        for i in range(max(0, power - len(right) + 1), min(power, len(left) - 1) + 1):
            for k in range(0, terms, way.block):
                block = slice(k, k + way.block)
                np.matmul(left[i][..., block], right[power - i][..., block, :], out=part)
                np.add(total, part, out=total, dtype=np.int64, casting="unsafe")
        # Times 2^bits modulo p, to within p/2 and a little. The two products wrap around modulo
        # 2⁶⁴, but their difference is small, so it is right.
        for piece, _ in pieces(total) if power else ():
            piece[:] = (piece << way.bits) - np.rint(piece * (2.0**way.bits / p)).astype(np.int64) * p
    residue(total, p)


def digits(x: HostArray, count: int, bits: int, p: int) -> list[HostArray]:
    """The digits of x in float64, least first, in a memory order that BLAS can read."""
    if x.strides[-1] > x.strides[-2]:
        return [d.mT for d in digits(x.mT, count, bits, p)]
    if count < 2:
        single = x.astype(np.float64, order="C")
        for part, quotient in pieces(single) if count else ():
            np.rint(np.multiply(part, 1 / p, out=quotient), out=quotient)  # 0 up to p/2, 1 above
            quotient *= p
            part -= quotient
        return [single]
    half = 1 << (bits - 1)
    rest, found = np.add(x, sum(half << (i * bits) for i in range(count - 1)), order="C"), []
    for _ in range(count - 1):
        found.append(np.subtract(rest & (2 * half - 1), half, dtype=np.float64))
        rest >>= bits
    return [*found, rest.astype(np.float64)]


def floor(x: HostArray, p: int) -> None:
    """x mod p for integers |x| < 2⁵¹ in float64, as int64 in their place.

    (x + ½)/p is at least 1/2p from any integer and right to within 2⁵¹/p · 2⁻⁵²: so is its floor.
    """
    if x.size < PIECE:
        x.view(np.int64)[...] = x.astype(np.int64) % p
        return
    half, inverse, step, top = map(np.float64, (0.5, 1 / p, p, 2.0**52))  # Python's are slower
    for part, quotient in pieces(x):
        np.add(part, half, quotient)
        np.multiply(quotient, inverse, quotient)
        np.floor(quotient, quotient)
        np.multiply(quotient, step, quotient)
        np.subtract(part, quotient, part)
        np.add(part, top, part)  # its last 52 bits are the integer
        np.bitwise_and(part.view(np.int64), LAST, part.view(np.int64))


def subtract_once(x: HostArray, p: int) -> HostArray:
    """x mod p for 0 ≤ x < 2p, in place: a negative x − p, read as unsigned, is larger than x."""
    if x.size < PIECE:
        return x % p
    step = np.int64(p)
    for part, less in pieces(x):
        np.subtract(part, step, less)
        np.minimum(part.view(np.uint64), less.view(np.uint64), out=part.view(np.uint64))
    return x


def residue(x: HostArray, p: int) -> HostArray:
    """x mod p, in place. NumPy divides by a scalar faster than it takes remainders."""
    if x.size < PIECE:
        x %= p
        return x
    step = np.int64(p)
    for part, quotient in pieces(x):
        np.floor_divide(part, step, quotient)
        np.multiply(quotient, step, quotient)
        np.subtract(part, quotient, part)
    return x


def multiply(a: HostArray, b: HostArray, p: int) -> HostArray:
    """a b mod p, entry by entry; for p > 2³¹, b = high 2³¹ + low, t = a high mod p, t 2³¹ + a low.

    The quotients by p are below 2³⁰ and 2³², so float64 finds each to within 1/2 + 2⁻¹⁸. The
    remainders are less than 0.51 p < 2⁶³ in size, so they are right, although the products on both
    sides of the minus wrap around modulo 2⁶⁴.
    """
    if p < 2**31:
        return residue(a * b, p)
    modes = [["readonly"], ["readonly"], ["writeonly", "allocate"]]
    flags: Any = ["external_loop", "buffered"]
    with np.nditer([a, b, None], flags, modes, [np.int64] * 3, buffersize=PIECE) as parts:  # type: ignore[arg-type]
        for u, v, r in parts:
            high, low, part = v >> HALF, v & ((1 << HALF) - 1), u * (1 / p)
            t = u * high - np.rint(part * high).astype(np.int64) * p
            r[...] = (t << HALF) + u * low - np.rint(t * (2.0**HALF / p) + part * low).astype(np.int64) * p
            r += p & (r >> 63)
        return parts.operands[2]


def pieces(x: HostArray) -> Iterator[tuple[HostArray, HostArray]]:
    """The pieces of a new array, to change in place, each with a scratch array of its size."""
    flat = x.ravel(order="K")
    scratch = np.empty(min(PIECE, flat.size), x.dtype)
    for i in range(0, flat.size, PIECE):
        piece = flat[i : i + PIECE]
        yield piece, scratch[: piece.size]
