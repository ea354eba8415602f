"""Exact products of matrices of large integers, on float64 BLAS.

    x = Σ_i x_i 2^(bi),  |x_i| ≤ 2^(b−1)        x y = Σ_d 2^(bd) Σ_i x_i y_(d−i)

The inner sums have at most sK terms, for s digits and K the common length. Where sK 4^(b−1) ≤ 2⁵³,
float64 holds every partial sum, in whatever order BLAS adds: one exact `dgemm` for each diagonal d.
Cutting integers into digits and recombining them takes most of the time, so both work on bytes, for
all entries at once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..arrays import HostArray
from .modular import PIECE, keep_freed_memory

LARGEST = 2**53  # float64 has every integer up to here


class Integers(NamedTuple):
    """sign · m · 2^up for every entry. Kept factored: to make large integers first is slow."""

    m: HostArray  # integers of Python or of gmpy2
    bits: HostArray  # in m
    sign: Any = 1
    up: Any = 0

    def values(self) -> HostArray:
        return np.asarray(self.sign * self.m << self.up)


def integers(x: HostArray) -> Integers:
    return Integers(x, np.fromiter(map(int.bit_length, x.flat), np.int64, x.size).reshape(x.shape))


def matmul(x: Integers, y: Integers) -> HostArray:
    """x @ y in Python's integers, with any leading axes: by slices where that is faster."""
    (*_, rows, K), columns = x.m.shape, y.m.shape[-1]
    bits, p, q = plan(K, *(int((v.up + v.bits).max(initial=0)) for v in (x, y)))
    if not (x.m.size and y.m.size and slicing_pays(rows, K, columns, p * q)):
        return np.asarray(x.values() @ y.values())
    if max(x.m.size, y.m.size) >= PIECE:
        keep_freed_memory()
    left = np.stack(digits(x, bits, p), axis=-2).reshape(*x.m.shape[:-1], p * K)
    right = np.stack(digits(y, bits, q)[::-1], axis=-3).reshape(*y.m.shape[:-2], q * K, columns)
    diagonals = []
    for d in range(p + q - 1):  # the x_i of a diagonal are neighbours, and so are their y_(d−i)
        first, stop, ahead = max(0, d - q + 1), min(d, p - 1) + 1, q - 1 - d
        diagonals.append(left[..., first * K : stop * K] @ right[..., (first + ahead) * K : (stop + ahead) * K, :])
    return recombine(diagonals, bits)


def slicing_pays(m: int, K: int, n: int, products: int) -> bool:
    """Many terms mKn for each entry to cut or recombine, and few products of digits for each."""
    return m * K * n >= 9 * (m * K + K * n + m * n) and products < 2**15


def plan(K: int, wide: int, wider: int) -> tuple[int, int, int]:
    """The most bits that a digit may have, and the digits of integers of these widths."""
    for bits in range(27, 1, -1):
        p, q = wide // bits + 1, wider // bits + 1
        if K * min(p, q) * 4 ** (bits - 1) <= LARGEST:
            break
    return bits, p, q


def digits(x: Integers, bits: int, count: int) -> list[HostArray]:
    """The digits of every entry, least first, |digit| ≤ 2^(b−1); the top one takes the rest."""
    # Bytes of each number, and of the zeros before it.
    size, lead = (count * bits >> 3) + 8, (int(np.max(x.up)) >> 3) + 1
    raw = bytearray(lead).join([b"", *[v.to_bytes(size, "little", signed=True) for v in x.m.flat]])
    words = np.ndarray(len(raw) - 7, "<i8", raw, 0, (1,))  # one starts at every byte
    byte, bit = np.divmod(8 * lead - x.up + 8 * (lead + size) * np.arange(x.m.size).reshape(x.m.shape), 8)
    *lower, top = (words[byte + (bit + i * bits >> 3)] >> (bit + i * bits & 7) for i in range(count))
    found: list[HostArray] = []
    carry: Any = 0
    for digit in lower:
        digit = (digit & 2**bits - 1) + carry
        carry = digit + 2 ** (bits - 1) >> bits
        found.append((digit - (carry << bits)) * np.float64(x.sign))
    return [*found, (top + carry) * np.float64(x.sign)]  # only its sign is above the top one


def recombine(diagonals: list[HostArray], bits: int) -> HostArray:
    """Σ_d diagonals[d] 2^(bd), as Python integers."""
    count, end = diagonals[0].size, len(diagonals) * bits
    size = (end >> 3) + 8
    raw, carry = bytearray(count * size), np.zeros(count, np.int64)

    def words(bit: int) -> HostArray:
        return np.ndarray(count, "<i8", raw, bit >> 3, (size,))

    for i, sums in enumerate(diagonals):
        carry += sums.ravel().astype(np.int64)
        words(i * bits)[:] |= (carry & 2**bits - 1) << (i * bits & 7)
        carry >>= bits
    words(end)[:] |= carry << (end & 7)
    totals = [int.from_bytes(v, "little", signed=True) for v in np.frombuffer(raw, f"V{size}").tolist()]
    return np.fromiter(totals, object, count).reshape(diagonals[0].shape)
