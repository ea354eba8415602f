"""Exact products of matrices of large integers, on float64 BLAS.

    x = Σ_i x_i 2^(bi),  |x_i| ≤ 2^(b−1)        x y = Σ_d 2^(bd) Σ_i x_i y_(d−i)

The inner sums have at most sK terms, for s digits and K the common length. Where sK 4^(b−1) ≤ 2⁵³, all that is ever added up in
one is an integer that float64 holds, in whatever order BLAS adds: one exact `dgemm` for each diagonal d.
What costs is to take the integers apart and to put them together; so that goes by bytes, for all entries at once.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

LARGEST = 2**53  # up to here float64 has every integer


def matmul(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x @ y for object arrays of Python's integers, with any leading axes: by slices where that is sooner done."""
    K, (bits, p, q) = y.shape[-2], plan(y.shape[-2], width(x), width(y))
    if not (x.size and y.size and pays(x.shape[-2], K, y.shape[-1], p * q)):
        return x @ y
    left = np.stack(digits(x, bits, p), axis=-2).reshape(*x.shape[:-1], p * K)
    right = np.stack(digits(y, bits, q)[::-1], axis=-3).reshape(*y.shape[:-2], q * K, y.shape[-1])
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


def width(x: np.ndarray) -> int:
    """The least w with |x| < 2^w."""
    return max(map(int.bit_length, x.flat), default=0)


def plan(K: int, wide: int, wider: int) -> tuple[int, int, int]:
    """The most bits that a digit may have, and how many digits integers of these widths then have."""
    for bits in range(27, 1, -1):
        p, q = wide // bits + 1, wider // bits + 1
        if K * min(p, q) * 4 ** (bits - 1) <= LARGEST:
            break
    return bits, p, q


def words(raw: bytearray, shape: tuple[int, ...], size: int, bit: int) -> np.ndarray:
    """Of each entry's `size` bytes, the eight with that bit in the first."""
    return np.ndarray(shape, "<i8", raw, bit >> 3, [size * math.prod(shape[i + 1 :]) for i in range(len(shape))])


def digits(x: np.ndarray, bits: int, count: int) -> list[np.ndarray]:
    """The digits of every entry, least first, each from −2^(b−1) to 2^(b−1); but the top one takes what is left."""
    size = (count * bits >> 3) + 8
    raw = bytearray().join([v.to_bytes(size, "little", signed=True) for v in x.flat])
    *lower, top = (words(raw, x.shape, size, i * bits) >> (i * bits & 7) for i in range(count))
    found, carry = [], 0
    for digit in lower:
        digit = (digit & 2**bits - 1) + carry
        carry = digit + 2 ** (bits - 1) >> bits
        found.append((digit - (carry << bits)).astype(np.float64))
    return [*found, (top + carry).astype(np.float64)]  # above the top one stands nothing but its sign


def joined(diagonals: list[np.ndarray], bits: int) -> np.ndarray:
    """Σ_d diagonals[d] 2^(bd), as Python integers."""
    shape, end = diagonals[0].shape, len(diagonals) * bits
    size = (end >> 3) + 8
    raw, carry = bytearray(math.prod(shape) * size), np.zeros(shape, np.int64)
    for i, sums in enumerate(diagonals):
        carry += sums.astype(np.int64)
        words(raw, shape, size, i * bits)[...] |= (carry & 2**bits - 1) << (i * bits & 7)
        carry >>= bits
    words(raw, shape, size, end)[...] |= carry << (end & 7)
    whole = [int.from_bytes(v, "little", signed=True) for v in np.frombuffer(raw, f"V{size}").tolist()]
    return np.fromiter(whole, object, len(whole)).reshape(shape)
