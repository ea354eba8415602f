"""A memory with one point for each cluster of keys, plain or tilted towards the expected queries.

    Σ_j exp(x·y_j) v_j  ≈  Σ_i exp(x·c_i) S_i
    S_i = Σ_{j in i} v_j,    or tilted    S_i = Σ_{j in i} exp(x̄_i·(y_j − c_i)) v_j

x̄_i is the mean of the queries that look at cluster i, so that tilted sums are right to first order
there. Which keys belong together is a heuristic. To first order, replacing key j by its centre
changes the output for a query x by p_j(x) x·(y_j − c_i). So keys count by E p_j², in the metric
E[x xᵀ], as if the two were independent.

Source   Lloyd 1982; the tilt and its weights are ours
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...arrays import Array
from ...systems import floats, system_of
from ...systems.floats import array_namespace
from .sampling import HeadMemory, attention_tiles

ROUNDS = 20  # of Lloyd's algorithm, at most
Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


def plain_clusters(y: Array, v: Array, x: Array, r: int, rng: np.random.Generator) -> HeadMemory:
    """For each cluster of keys: its centre, the sum of its values, and their number."""
    Y, xp, system = floats(y), array_namespace(y), system_of(y)
    centres, nearest = lloyd(Y, np.ones(len(Y)), r, int(rng.integers(len(Y))))
    # An empty cluster moves to another centre: its own point might have the largest exponent.
    centres[np.bincount(nearest, minlength=r) == 0] = centres[nearest[0]]
    member = system.convert(membership(nearest, r))
    return system.convert(centres), member @ v, xp.sum(member, axis=-1), None


def tilted_clusters(y: Array, v: Array, x: Array, r: int, rng: np.random.Generator) -> HeadMemory:
    """For each cluster of keys: its centre, the mean value that queries see, and a log-weight."""
    X, Y, system = floats(x), floats(y), system_of(y)
    weight = sum((np.sum(p * p, axis=0) for p in attention_tiles(X, Y)), np.zeros(len(Y))) / len(X)
    values, vectors = np.linalg.eigh(X.T @ X / len(X))
    _, nearest = lloyd(Y @ (vectors * np.sqrt(np.maximum(values, 0))), weight, r, int(np.argmax(weight)))
    member = membership(fill_empty_clusters(nearest, r), r)
    a = member * np.maximum(weight, np.finfo(float).tiny)
    centres = a @ Y / np.sum(a, axis=-1, keepdims=True)
    # (n, r): how much each query looks at each cluster
    looks = np.concatenate([p @ member.T for p in attention_tiles(X, Y)])
    looks = looks / np.maximum(np.sum(looks, axis=0), np.finfo(float).tiny)
    tilt = np.sum(member.T @ (looks.T @ X) * (Y - member.T @ centres), axis=-1)  # x̄_i·(y_j − c_i), (M,)
    scores = np.where(member > 0, tilt, -np.inf)
    top = np.max(scores, axis=-1, keepdims=True)
    w = np.exp(scores - top)
    z = np.sum(w, axis=-1, keepdims=True)
    return system.convert(centres), system.convert(w / z) @ v, None, system.convert((top + np.log(z))[:, 0])


def lloyd(Y: Floats, weight: Floats, r: int, first: int) -> tuple[Floats, Indices]:
    """Centres of r clusters of weighted keys, and the nearest centre of each key.

    It starts at the key `first` and at keys far from those chosen before.
    """
    chosen, far = [first], np.sum((Y - Y[first]) ** 2, axis=-1)
    for _ in range(r - 1):
        chosen.append(int(np.argmax(far * weight)))
        far = np.minimum(far, np.sum((Y - Y[chosen[-1]]) ** 2, axis=-1))
    centres = Y[chosen]
    for _ in range(ROUNDS):
        a = membership(nearest_centres(Y, centres), r) * weight
        total = np.sum(a, axis=-1, keepdims=True)
        before, centres = centres, np.where(total > 0, a @ Y / np.where(total > 0, total, 1), centres)
        if np.array_equal(before, centres):
            break
    return centres, nearest_centres(Y, centres)


def nearest_centres(Y: Floats, centres: Floats) -> Indices:
    return np.asarray(np.argmin(np.sum(centres**2, axis=-1) - 2 * Y @ centres.T, axis=-1))


def membership(nearest: Indices, r: int) -> Floats:
    """(r, M): 1 where key j belongs to cluster i, else 0."""
    return np.asarray(nearest[None, :] == np.arange(r)[:, None], np.float64)


def fill_empty_clusters(nearest: Indices, r: int) -> Indices:
    """Move a key of the largest cluster into each empty one. There must be at least r keys."""
    nearest = nearest.copy()
    for i in np.flatnonzero(np.bincount(nearest, minlength=r) == 0):
        nearest[np.flatnonzero(nearest == np.argmax(np.bincount(nearest, minlength=r)))[0]] = i
    return nearest
