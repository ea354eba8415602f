"""Keys in clusters: a memory with one point for each, plain or tilted towards the queries that are expected.

    Σ_j exp(x·y_j) v_j  ≈  Σ_i exp(x·c_i) S_i        S_i = Σ_{j in i} v_j,  or tilted  S_i = Σ_{j in i} exp(x̄_i·(y_j − c_i)) v_j

x̄_i is the mean of the queries that look at cluster i, so that tilted sums are right to first order there. Which keys belong together is
a heuristic: for one query, taking key j for its centre is off by p_j(x) x·(y_j − c_i), to first order. So keys count by E p_j², in the
metric E[x xᵀ], as if the two were independent.

Source   Lloyd 1982; the tilt and its weights are ours
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...systems import floats, system_of
from ...systems.floats import array_namespace
from .sampling import softmax

ROUNDS = 20  # of Lloyd's algorithm, at most


def clusters(y: Any, v: Any, x: Any, r: int, rng: np.random.Generator) -> tuple[Any, Any, Any, Any]:
    """(points, S, z, scale): of each cluster its centre, the sum of its values, and their number."""
    Y, xp, system = floats(y), array_namespace(y), system_of(y)
    centres, nearest = lloyd(Y, np.ones(len(Y)), r, int(rng.integers(len(Y))))
    centres[np.bincount(nearest, minlength=r) == 0] = centres[
        nearest[0]
    ]  # else a point of no weight might have the largest exponent
    member = system.convert(members(nearest, r))
    return system.convert(centres), member @ v, xp.sum(member, axis=-1), None


def tilted(y: Any, v: Any, x: Any, r: int, rng: np.random.Generator) -> tuple[Any, Any, Any, Any]:
    """(points, S, z, scale): clusters of the keys that queries look at, means of their values as those queries see them, log-weights."""
    X, Y, system = floats(x), floats(y), system_of(y)
    p = softmax(X @ Y.T)
    weight, (values, vectors) = np.mean(p * p, axis=0), np.linalg.eigh(X.T @ X / len(X))
    _, nearest = lloyd(Y @ (vectors * np.sqrt(np.maximum(values, 0))), weight, r, int(np.argmax(weight)))
    member = members(filled(nearest, r), r)
    a = member * np.maximum(weight, np.finfo(float).tiny)
    centres = a @ Y / np.sum(a, axis=-1, keepdims=True)
    looks = p @ member.T  # (n, r): how much each query looks at each cluster
    looks = looks / np.maximum(np.sum(looks, axis=0), np.finfo(float).tiny)
    tilt = np.sum(member.T @ (looks.T @ X) * (Y - member.T @ centres), axis=-1)  # x̄_i·(y_j − c_i), (M,)
    scores = np.where(member > 0, tilt, -np.inf)
    top = np.max(scores, axis=-1, keepdims=True)
    w = np.exp(scores - top)
    z = np.sum(w, axis=-1, keepdims=True)
    return system.convert(centres), system.convert(w / z) @ v, None, system.convert((top + np.log(z))[:, 0])


def lloyd(Y: np.ndarray, weight: np.ndarray, r: int, first: int) -> tuple[np.ndarray, np.ndarray]:
    """Centres of r clusters that weigh their keys, and the nearest centre of each key; begun at keys far from each other."""
    chosen, far = [first], np.sum((Y - Y[first]) ** 2, axis=-1)
    for _ in range(r - 1):
        chosen.append(int(np.argmax(far * weight)))
        far = np.minimum(far, np.sum((Y - Y[chosen[-1]]) ** 2, axis=-1))
    centres, before = Y[chosen], None
    for _ in range(ROUNDS):
        a = members(assigned(Y, centres), r) * weight
        total = np.sum(a, axis=-1, keepdims=True)
        before, centres = centres, np.where(total > 0, a @ Y / np.where(total > 0, total, 1), centres)
        if np.array_equal(before, centres):
            break
    return centres, assigned(Y, centres)


def assigned(Y: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """The nearest centre of each key."""
    return np.argmin(np.sum(centres**2, axis=-1) - 2 * Y @ centres.T, axis=-1)


def members(nearest: np.ndarray, r: int) -> np.ndarray:
    """(r, M): 1 where key j belongs to cluster i."""
    return (nearest[None, :] == np.arange(r)[:, None]).astype(np.float64)


def filled(nearest: np.ndarray, r: int) -> np.ndarray:
    """The same with no cluster empty, of fewer than there are keys: it gets a key from the largest one."""
    nearest = nearest.copy()
    for i in np.flatnonzero(np.bincount(nearest, minlength=r) == 0):
        nearest[np.flatnonzero(nearest == np.argmax(np.bincount(nearest, minlength=r)))[0]] = i
    return nearest
