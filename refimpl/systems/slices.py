"""Exact products of matrices of large integers, on float64 BLAS.

    x = Σ_i x_i 2^(bi),  |x_i| ≤ 2^(b−1)        x y = Σ_d 2^(bd) Σ_i x_i y_(d−i)

The inner sums have at most sK terms, for s digits and K the common length. Where sK 4^(b−1) ≤ 2⁵³, all that is ever added up in
one is an integer that float64 holds, in whatever order BLAS adds: one exact `dgemm` for each diagonal d.
What costs is to take the integers apart and to put them together; so that goes by bytes, for all entries at once.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

LARGEST = 2**53  # up to here float64 has every integer


class Integers(NamedTuple):
    """sign · m · 2^up for every entry: as other systems hold their numbers, which would be dear to make whole before they are cut up."""

    m: np.ndarray  # integers of Python or of gmpy2
    bits: np.ndarray  # in m
    sign: Any = 1
    up: Any = 0

    def whole(self) -> np.ndarray:
        return self.sign * self.m << self.up


def integers(x: np.ndarray) -> Integers:
    return Integers(x, np.fromiter(map(int.bit_length, x.flat), np.int64, x.size).reshape(x.shape))


def matmul(x: Integers, y: Integers) -> np.ndarray:
    """x @ y in Python's integers, with any leading axes: by slices where that is sooner done."""
    (*_, rows, K), columns = x.m.shape, y.m.shape[-1]
    bits, p, q = plan(K, *(int((v.up + v.bits).max(initial=0)) for v in (x, y)))
    if not (x.m.size and y.m.size and pays(rows, K, columns, p * q)):
        return x.whole() @ y.whole()
    left = np.stack(digits(x, bits, p), axis=-2).reshape(*x.m.shape[:-1], p * K)
    right = np.stack(digits(y, bits, q)[::-1], axis=-3).reshape(*y.m.shape[:-2], q * K, columns)
    diagonals = []
    for d in range(p + q - 1):  # all x_i with a y_(d−i) stand together, and so do these, in the same order
        first, stop, ahead = max(0, d - q + 1), min(d, p - 1) + 1, q - 1 - d
        diagonals.append(left[..., first * K : stop * K] @ right[..., (first + ahead) * K : (stop + ahead) * K, :])
    return joined(diagonals, bits)


def terms(x: Any, y: Any) -> int:
    """How many products of two entries there are in x @ y, at least."""
    return min(math.prod(x.shape) * y.shape[-1], math.prod(y.shape) * x.shape[-2])


def pays(m: int, K: int, n: int, products: int) -> bool:
    """Are there many terms mKn for each entry that is taken apart or put together, and not too many products of digits for each?"""
    return m * K * n >= 9 * (m * K + K * n + m * n) and products < 2**15


def plan(K: int, wide: int, wider: int) -> tuple[int, int, int]:
    """The most bits that a digit may have, and how many digits integers of these widths then have."""
    for bits in range(27, 1, -1):
        p, q = wide // bits + 1, wider // bits + 1
        if K * min(p, q) * 4 ** (bits - 1) <= LARGEST:
            break
    return bits, p, q


def digits(x: Integers, bits: int, count: int) -> list[np.ndarray]:
    """The digits of every entry, least first, each from −2^(b−1) to 2^(b−1); but the top one takes what is left."""
    size, lead = (count * bits >> 3) + 8, (int(np.max(x.up)) >> 3) + 1  # bytes of each number, and zeros before it
    raw = bytearray(lead).join([b"", *[v.to_bytes(size, "little", signed=True) for v in x.m.flat]])
    words = np.ndarray(len(raw) - 7, "<i8", raw, 0, (1,))  # one starts at every byte
    byte, bit = np.divmod(8 * lead - x.up + 8 * (lead + size) * np.arange(x.m.size).reshape(x.m.shape), 8)
    *lower, top = (words[byte + (bit + i * bits >> 3)] >> (bit + i * bits & 7) for i in range(count))
    found, carry = [], 0
    for digit in lower:
        digit = (digit & 2**bits - 1) + carry
        carry = digit + 2 ** (bits - 1) >> bits
        found.append((digit - (carry << bits)) * np.float64(x.sign))
    return [*found, (top + carry) * np.float64(x.sign)]  # above the top one stands nothing but its sign


def joined(diagonals: list[np.ndarray], bits: int) -> np.ndarray:
    """Σ_d diagonals[d] 2^(bd), as Python integers."""
    count, end = diagonals[0].size, len(diagonals) * bits
    size = (end >> 3) + 8
    raw, carry = bytearray(count * size), np.zeros(count, np.int64)

    def words(bit: int) -> np.ndarray:
        return np.ndarray(count, "<i8", raw, bit >> 3, (size,))

    for i, sums in enumerate(diagonals):
        carry += sums.ravel().astype(np.int64)
        words(i * bits)[:] |= (carry & 2**bits - 1) << (i * bits & 7)
        carry >>= bits
    words(end)[:] |= carry << (end & 7)
    whole = [int.from_bytes(v, "little", signed=True) for v in np.frombuffer(raw, f"V{size}").tolist()]
    return np.fromiter(whole, object, count).reshape(diagonals[0].shape)
