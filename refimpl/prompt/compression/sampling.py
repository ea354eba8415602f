"""A few tokens, or a few directions, drawn so that their sums are right on average: importance sampling. Our derivation."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...systems import Float, floats, system_of
from ...systems.floats import array_namespace, device


def tokens(y: Any, v: Any, x: Any, r: int, rng: np.random.Generator) -> tuple[Any, Any, Any, Any]:
    """Importance sampling of tokens: an unbiased sum, E Σ_i f(y_i) / (r p_i) = Σ_j f(y_j)."""
    p = attention(x, y)
    drawn = rng.choice(len(p), size=r, p=p / p.sum())
    xp, some = array_namespace(y), indices(y, drawn)
    return xp.take(y, some, axis=0), xp.take(v, some, axis=0), None, -xp.log(system_of(y).convert(r * p[drawn]))


def directions(y: Any, v: Any, x: Any, r: int, rng: np.random.Generator) -> tuple[Any, Any, Any, Any]:
    """Importance sampling of directions: ω = y_j + N(0, I) for a key j at random, of density (1/M) Σ_j exp(ω·y_j − |y_j|²/2) N(ω).

        φ(x)_i = r^{-½} exp(ω_i·x − |x|²/2)        b_D,i = M r^{-½}, whatever the keys
        b_KV,i = b_D,i Σ_j softmax_j(ω_i·y_j − |y_j|²/2) v_j

    so that E φ(x)·b_D = Σ_j exp(x·y_j), and b_KV likewise.
    """
    xp, system, M = array_namespace(y), system_of(y), y.shape[-2]
    Y = floats(y)
    omega = system.convert(Y[rng.integers(M, size=r)] + rng.standard_normal((r, Y.shape[-1])))
    scores = omega @ xp.matrix_transpose(y) - half_squares(y)[None, :]
    w = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
    one = xp.ones_like(omega[:, 0])
    return omega, (w @ v) / xp.sum(w, axis=-1, keepdims=True), None, xp.log(M * one) - xp.log(r * one) / 2


def attention(x: Any, y: Any) -> np.ndarray:
    """How much attention each key gets from the queries, on average; half of it uniform, so that none counts for nothing."""
    return 0.5 / y.shape[-2] + 0.5 * np.mean(softmax(floats(x) @ floats(y).T), axis=0)


def softmax(scores: np.ndarray) -> np.ndarray:
    e = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def half_squares(y: Any) -> Any:
    """|y|²/2, (..., n)"""
    return array_namespace(y).sum(y * y, axis=-1) / 2


def indices(like: Any, at: Any) -> Any:
    """Where rows of such an array are to be taken."""
    at = np.asarray(at, dtype=np.int64)
    return array_namespace(like).asarray(at, device=device(like)) if isinstance(system_of(like), Float) else at
