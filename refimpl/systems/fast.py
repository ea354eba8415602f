"""What attention asks for many times over, where NumPy has a faster way than the plain expression that each docstring gives."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from .array import SystemArray, array_namespace, device

# To fault fresh memory in can take longer than the arithmetic on it. glibc keeps freed memory for the next array up to twice the
# size of the largest array it has seen freed, of those up to 32 MB (mallopt(3), M_MMAP_THRESHOLD). Elsewhere this does nothing.
np.empty(2**25 - 2**16, np.uint8)

quiet = functools.partial(
    np.errstate, all="ignore"
)  # NumPy's warnings, where what they warn of is looked for and located


def masked(x: Any, keep: Any) -> Any:
    """where(keep, x, 0), for an x that nobody else holds."""
    if isinstance(x, np.ndarray):
        np.copyto(x, 0, where=~keep)
        return x
    if isinstance(x, SystemArray):
        return x.system.masked(x, keep)
    xp = array_namespace(x)
    return xp.where(keep, x, xp.zeros_like(x))


def sums(x: Any, *, axis: int) -> Any:
    """sum(x, axis=axis, keepdims=True) over one of the last two axes: BLAS adds up short rows three times as fast."""
    if isinstance(x, np.ndarray) and x.dtype in (np.float32, np.float64):
        return x @ _ones(x.shape[-1], 1, x.dtype) if axis == -1 else _ones(1, x.shape[-2], x.dtype) @ x
    return array_namespace(x).sum(x, axis=axis, keepdims=True)


def surely_finite(x: Any) -> bool:
    """all(isfinite(x)), or False where that takes longer to say: one nan or inf makes a sum nan or inf, and few sums overflow."""
    if not isinstance(x, np.ndarray):
        return False
    if x.size < 4096 or x.dtype not in (np.float32, np.float64) or x.ndim < 2:
        return bool(np.isfinite(x).all())
    with quiet():
        return bool(np.isfinite(sums(x, axis=-2)).all())


@functools.lru_cache(maxsize=16)
def _ones(rows: int, columns: int, dtype: np.dtype) -> np.ndarray:
    return np.ones((rows, columns), dtype)


def itemsize(x: Any) -> int:
    """Bytes of one number; of a Python object, about."""
    if isinstance(x, SystemArray):
        return sum(64 if plane.dtype == object else plane.itemsize for plane in x.planes)
    return getattr(x.dtype, "itemsize", 8)


class Pieces:
    """concat(pieces, axis=-2), of a shape known beforehand and in the numbers of `like`: NumPy writes them into one array as they come."""

    def __init__(self, like: Any, shape: tuple[int, ...]) -> None:
        self.like, self.shape, self.n = like, shape, 0
        self.parts: list[Any] = []
        self.whole: Any = None

    def append(self, piece: Any) -> None:
        if not isinstance(piece, np.ndarray):
            self.parts.append(piece)
        elif piece.shape == self.shape:
            self.whole = piece
        elif piece.shape[-2]:
            self.whole = np.empty(self.shape, piece.dtype) if self.whole is None else self.whole
            self.whole[..., self.n : self.n + piece.shape[-2], :] = piece
            self.n += piece.shape[-2]

    def joined(self) -> Any:
        if self.whole is not None or len(self.parts) == 1:
            return self.parts[0] if self.whole is None else self.whole
        xp = array_namespace(self.like)
        empty = xp.zeros((*self.shape[:-2], 0, self.shape[-1]), dtype=self.like.dtype, device=device(self.like))
        return xp.concat([empty, *self.parts], axis=-2)
