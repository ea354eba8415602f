"""Importance sampling of tokens or directions: sums are right on average. Our derivation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...arrays import Array
from ...systems import Float, floats, system_of
from ...systems.floats import array_namespace, device

TILE = 2**22  # bytes of scores that are made at once

# As in Memory, of one head: points or directions (r, d), S (r, m), z (r,), scale (r,) or (1,)
HeadMemory = tuple[Array, Array, Array | None, Array | None]


def sample_tokens(y: Array, v: Array, x: Array, r: int, rng: np.random.Generator) -> HeadMemory:
    """Draw tokens by the attention that they get: E Σ_i f(y_i) / (r p_i) = Σ_j f(y_j)."""
    p = mean_attention(x, y)
    sample = rng.choice(len(p), size=r, p=p / p.sum())
    xp, rows = array_namespace(y), row_indices(y, sample)
    return xp.take(y, rows, axis=0), xp.take(v, rows, axis=0), None, -xp.log(system_of(y).convert(r * p[sample]))


def sample_directions(y: Array, v: Array, x: Array, r: int, rng: np.random.Generator) -> HeadMemory:
    """Draw directions y_j + N(0, I), j at random, of density N(ω) (1/M) Σ_j exp(ω·y_j − |y_j|²/2).

        φ(x)_i = r^{-½} exp(ω_i·x − |x|²/2)        b_D,i = M r^{-½}, whatever the keys
        b_KV,i = b_D,i Σ_j softmax_j(ω_i·y_j − |y_j|²/2) v_j

    so that E φ(x)·b_D = Σ_j exp(x·y_j), and b_KV likewise.
    """
    xp, system, M = array_namespace(y), system_of(y), y.shape[-2]
    Y = floats(y)
    omega = system.convert(Y[rng.integers(M, size=r)] + rng.standard_normal((r, Y.shape[-1])))
    scores = omega @ xp.matrix_transpose(y) - half_norms(y)[None, :]
    w = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
    one = xp.ones_like(omega[:, 0])
    return omega, (w @ v) / xp.sum(w, axis=-1, keepdims=True), None, xp.log(M * one) - xp.log(r * one) / 2


def mean_attention(x: Array, y: Array) -> NDArray[np.float64]:
    """Half the mean attention that each key gets from the queries, and half of 1/M: never 0."""
    total = sum((np.sum(p, axis=0) for p in attention_tiles(floats(x), floats(y))), np.zeros(y.shape[-2]))
    return np.asarray(0.5 / y.shape[-2] + 0.5 * (total / x.shape[-2]))


def attention_tiles(X: NDArray[np.float64], Y: NDArray[np.float64]) -> Iterator[NDArray[np.float64]]:
    """What each query gives to each key, some queries at a time: all would need O(M²) memory."""
    for rows in row_tiles(len(X), Y.itemsize * len(Y)):
        yield softmax(X[rows] @ Y.T)


def row_tiles(n: int, bytes_of_row: int) -> Iterator[slice]:
    """n rows in slices of at most TILE bytes, but of one row or more."""
    rows = max(TILE // max(bytes_of_row, 1), 1)
    return (slice(i, min(i + rows, n)) for i in range(0, n, rows))


def softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    e = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
    return np.asarray(e / np.sum(e, axis=-1, keepdims=True))


def half_norms(y: Array) -> Array:
    """|y|²/2, (..., n)"""
    return array_namespace(y).sum(y * y, axis=-1) / 2


def row_indices(like: Array, rows: Sequence[int] | NDArray[np.int64]) -> Any:
    """These integers as an index into the rows of the array `like`."""
    host = np.asarray(rows, dtype=np.int64)
    return array_namespace(like).asarray(host, device=device(like)) if isinstance(system_of(like), Float) else host
