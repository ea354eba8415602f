"""Exact products of matrices of large integers, on float64 BLAS, in one of two ways.

By slices, for x = Σ_i x_i 2^(bi) with digits |x_i| < 2^b:

    x y = Σ_d 2^(bd) Σ_i x_i y_(d−i)

The inner sums have at most sK terms, for s digits and K the common length: one `dgemm` for each
diagonal d, with s² products of digits in all. By remainders, modulo enough primes p:

    x mod p = Σ_i x_i (2^(bi) mod p)        x y = Σ_p (x y / N_p mod p) N_p − q Π p

with N_p the product of the other primes, and an integer q. All but the remainders is a `dgemm`, and
there is one product for each prime, about 2s: wide integers go this way. No sum exceeds 2⁵³, so
float64 holds it, in whatever order BLAS adds. Cutting integers into digits and recombining them
takes most of the time, so both work on bytes, for all entries at once.
"""

from __future__ import annotations

import functools
import math
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from ..arrays import HostArray
from .finite_field import is_prime
from .modular import PIECE, keep_freed_memory

LARGEST = 2**53  # float64 has every integer up to here
TOGETHER = 16  # primes at a time, so that their remainders need little memory


class Integers(NamedTuple):
    """sign · m · 2^up for every entry. Kept factored: to make large integers first is slow."""

    m: HostArray  # integers ≥ 0, all of Python or all of gmpy2
    bits: HostArray  # in m
    sign: Any
    up: Any = 0

    def values(self) -> HostArray:
        return np.asarray(self.sign * self.m << self.up)

    def width(self) -> int:
        return int((self.up + self.bits).max(initial=0))


def integers(x: HostArray) -> Integers:
    bits = np.fromiter(map(int.bit_length, x.flat), np.int64, x.size).reshape(x.shape)
    return Integers(abs(x), bits, 1 - 2 * np.asarray(x < 0, dtype=np.int64))


def matmul(x: Integers, y: Integers) -> HostArray:
    """x @ y in integers of their kind, with any leading axes: on BLAS where that is faster."""
    (*_, rows, K), columns = x.m.shape, y.m.shape[-1]
    _, p, q = plan(K, x.width(), y.width())
    if not (x.m.size and y.m.size and blas_pays(rows, K, columns, p * q)):
        return np.asarray(x.values() @ y.values())
    if max(p * x.m.size, q * y.m.size) >= PIECE:
        keep_freed_memory()
    return by_remainders(x, y) if remainders_pay(rows, K, columns, p, q) else by_slices(x, y)


def blas_pays(m: int, K: int, n: int, products: int) -> bool:
    """Many terms mKn for each entry to cut or recombine, and few products of digits for each."""
    return m * K * n >= 9 * (m * K + K * n + m * n) and products < 2**15


def remainders_pay(m: int, K: int, n: int, p: int, q: int) -> bool:
    """Is it the faster way? One term of a product counts 1, a remainder 60 (measured at 64³)."""
    remainders = m * K + K * n + m * n
    return (p + q) * (m * K * n + p * m * K + q * K * n + (p + q) * m * n + 60 * remainders) < p * q * m * K * n


def plan(K: int, wide: int, wider: int) -> tuple[int, int, int]:
    """The most bits that a digit may have, and the digits of integers of these widths."""
    for bits in range(26, 1, -1):
        p, q = -(-wide // bits) or 1, -(-wider // bits) or 1
        if K * min(p, q) * (2**bits - 1) ** 2 <= LARGEST:
            break
    return bits, p, q


def by_slices(x: Integers, y: Integers) -> HostArray:
    K, bits, p, q = x.m.shape[-1], *plan(x.m.shape[-1], x.width(), y.width())
    left, right = np.empty((*x.m.shape[:-1], p, K)), np.empty((*y.m.shape[:-2], q, K, y.m.shape[-1]))
    digits(x, bits, np.moveaxis(left, -2, 0))
    digits(y, bits, np.moveaxis(right, -3, 0)[::-1])
    left, right = left.reshape(*x.m.shape[:-1], p * K), right.reshape(*y.m.shape[:-2], q * K, y.m.shape[-1])
    diagonals = []
    for d in range(p + q - 1):  # the x_i of a diagonal are neighbours, and so are their y_(d−i)
        first, stop, ahead = max(0, d - q + 1), min(d, p - 1) + 1, q - 1 - d
        diagonals.append(left[..., first * K : stop * K] @ right[..., (first + ahead) * K : (stop + ahead) * K, :])
    return recombine(diagonals, bits, type(x.m.flat[0]))


class Basis(NamedTuple):
    """Primes with a product above four times any result, and what else depends on sizes alone."""

    primes: HostArray
    bits: int  # of a digit of a factor
    left: HostArray  # 2^(bits i) / N_p mod p, a row for each prime
    right: HostArray  # 2^(bits i) mod p
    limb: int  # bits of a digit of an N_p
    back: HostArray  # the digits of every N_p and of −Π p, each in a column


@functools.lru_cache(maxsize=32)
def basis(K: int, wide: int, wider: int) -> Basis:
    """For K terms of integers of these widths. Every sum is at most 2⁵².

    So K (p/2)² ≤ 2⁵². The rest of 2⁵³ is for remainders above p/2, by 2 at most: a quotient in
    float64 may be rounded to the wrong side.
    """
    largest, product = math.isqrt(2 * LARGEST // K), 1
    found: list[int] = []
    for p in filter(is_prime, range(largest, 1, -1)):
        found.append(p)
        product *= p
        if product > 4 * K << wide + wider:
            break
    primes, half, others = np.array(found), largest // 2 + 1, [product // p for p in found]
    bits = max(b for b in range(1, 27) if (-(-max(wide, wider) // b) * half) << b <= LARGEST // 2)
    limb = max(b for b in range(1, 27) if (len(primes) + 1) * half << b <= LARGEST // 2)

    def powers(start: list[int], width: int) -> HostArray:
        columns = [np.array(start)]
        for _ in range(1, -(-width // bits)):
            columns.append((columns[-1] << bits) % primes)
        return remainders(np.stack(columns, axis=1).astype(np.float64), primes)

    back = np.empty((-(-product.bit_length() // limb), len(primes) + 1))
    digits(integers(np.array([*others, -product], dtype=object)), limb, back)
    inverses = [pow(other, -1, p) for other, p in zip(others, found, strict=True)]
    return Basis(primes, bits, powers(inverses, wide), powers([1] * len(primes), wider), limb, back)


def by_remainders(x: Integers, y: Integers) -> HostArray:
    wide, wider = (-(-v.width() // 32) * 32 or 32 for v in (x, y))  # few kinds of bases
    primes, bits, left, right, limb, back = basis(2 ** (x.m.shape[-1] - 1).bit_length(), wide, wider)
    lead = np.broadcast_shapes(x.m.shape[:-2], y.m.shape[:-2])
    shape = (*lead, x.m.shape[-2], y.m.shape[-1])
    factors = []
    for v, weights in ((x, left), (y, right)):
        cut = np.empty((weights.shape[1], *v.m.shape))
        digits(v, bits, cut)
        factors.append((weights, cut.reshape(len(cut), -1), (-1, *(1,) * (len(shape) - v.m.ndim), *v.m.shape)))
    found = np.zeros((len(primes) + 1, math.prod(shape)))
    for i in range(0, len(primes), TOGETHER):
        some = slice(i, min(i + TOGETHER, len(primes)))
        a, b = (remainders(weights[some] @ cut, primes[some]).reshape(to) for weights, cut, to in factors)
        found[some] = remainders((a @ b).reshape(len(a), -1), primes[some])
        found[-1] += (1 / primes[some]) @ found[some]
    np.rint(found[-1], out=found[-1])  # q: at most a quarter away from an integer
    return recombine(list(back @ found), limb, type(x.m.flat[0])).reshape(shape)


def remainders(x: HostArray, primes: HostArray) -> HostArray:
    """Each row of integers |x| ≤ 2⁵² modulo its prime, in place; balanced about 0."""
    p, step = primes[:, None].astype(np.float64), -(-PIECE // len(primes))
    for i in range(0, x.shape[1], step):
        part = x[:, i : i + step]
        quotient = part * (1 / p)
        np.rint(quotient, quotient)
        quotient *= p
        part -= quotient
    return x


def digits(x: Integers, bits: int, out: HostArray) -> None:
    """The digits of every entry, least first, with its sign."""
    gap = (len(out) * bits >> 3) + 16  # bytes of 0 between numbers, more than are read beside one
    if isinstance(x.m.flat[0], int):
        header, size = 0, np.broadcast_to((int(x.bits.max()) >> 3) + 1, x.m.size)
        numbers = [v.to_bytes(size[0], "little") for v in x.m.flat]
    else:  # of gmpy2, whose own format has two bytes before the number
        header, size = 2, (x.bits.ravel() + 7 >> 3) + 2
        numbers = list(map(import_module("gmpy2").to_binary, x.m.flat))
    raw = bytearray(gap).join([b"", *numbers, b""])
    start = np.cumsum(size + gap) - size + header
    for i in range(header):
        np.frombuffer(raw, np.uint8)[start - 1 - i] = 0
    begin, words = 8 * start.reshape(x.m.shape) - x.up, np.ndarray(len(raw) - 7, "<i8", raw, 0, (1,))
    sign, mask = np.asarray(x.sign, np.float64), 2**bits - 1
    for i in range(0, len(out), 2):  # a word starts at every byte, and holds two digits
        at = begin + i * bits
        both = words[at >> 3] >> (at & 7)
        np.multiply(both & mask, sign, out=out[i])
        if i + 1 < len(out):
            np.multiply(both >> bits & mask, sign, out=out[i + 1])


def recombine(sums: list[HostArray], bits: int, kind: type) -> HostArray:
    """Σ_d sums[d] 2^(bd), as integers of that kind."""
    count, end = sums[0].size, len(sums) * bits
    size = 8 * (end >> 6) + 16  # bytes of a number, after a word for what gmpy2 has before it
    raw, carry = np.zeros((count, 1 + size // 8), "<i8"), np.zeros(count, np.int64)

    def words(bit: int) -> HostArray:
        return np.ndarray(count, "<i8", raw, 8 + (bit >> 3), (8 + size,))

    for i, terms in enumerate(sums):
        carry += terms.ravel().astype(np.int64)
        words(i * bits)[:] |= (carry & 2**bits - 1) << (i * bits & 7)
        carry >>= bits
    words(end)[:] |= carry << (end & 7)
    sign = carry >> 63
    raw.view(np.uint8)[:, 16 + (end >> 3) :] = sign[:, None] & 255
    totals: list[Any]
    if kind is int:
        written = np.ndarray(count, f"V{size}", raw, 8, (8 + size,)).tolist()
        totals = [int.from_bytes(v, "little", signed=True) for v in written]
    else:  # as gmpy2 writes them: 1, a byte for the sign, and the size
        raw[:, 1:] ^= sign[:, None]
        for j in range(1, raw.shape[1]):  # plus 1, which hardly ever carries
            raw[:, j] -= sign
            sign = np.where(raw[:, j] == 0, sign, 0)
            if not sign.any():
                break
        raw[:, 0] = (1 << 48) + (1 - (carry >> 63) << 56)
        totals = list(
            map(import_module("gmpy2").from_binary, np.ndarray(count, f"V{size + 2}", raw, 6, (8 + size,)).tolist())
        )
    return np.fromiter(totals, object, count).reshape(sums[0].shape)
