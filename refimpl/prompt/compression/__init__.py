"""From the keys and values of a prompt to a memory of fixed size: random features, and maps that use the known keys.

| kind | read through | what is kept of the prompt |
|---|---|---|
| "positive", "hyperbolic", "trigonometric", "favor++", "orthogonal", "simplex", "taylor" | random features | Σ φ(y_j) v_jᵀ, Σ φ(y_j) |
| "nystrom" | r keys, drawn | K_PP⁻¹ K_PY [V 1]: exact at r = M |
| "cholesky" | r keys, each time the one that the others explain least | the same |
| "clusters" | r centres of the keys | the sum and the number of the values around each |
| "tilted" | r centres of the keys that queries look at | means of their values, as those queries see them, and log-weights |
| "tokens" | r keys, drawn by how much attention they get | their values, counted 1/(r p_j) times |
| "directions" | positive features, directions drawn around the keys | Σ φ(y_j) v_jᵀ over the density of the draw |
| "cache" | all M keys | all M values: exact |

Equal memory counts every number needed to read (`Memory.nbytes`): the first row keeps r (m + 1), the others r (d + m + 1).
landmarks.py, clusters.py and sampling.py make them; best.py chooses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...attention.memory import Memory, Points, sums_and_scale, write
from ...attention.random_features import KINDS as RANDOM
from ...attention.random_features import RandomFeatures, random_features
from ...checks import check_integer
from ...errors import NotDefined, choose
from ...systems import floats, seed_of, system_of
from ...systems.floats import array_namespace
from .clusters import clusters, tilted
from .landmarks import cholesky, nystrom
from .sampling import directions, tokens

BY_KEYS = {
    "nystrom": nystrom,
    "cholesky": cholesky,
    "clusters": clusters,
    "tilted": tilted,
    "tokens": tokens,
    "directions": directions,
}
KINDS = (*RANDOM, *BY_KEYS, "cache")


@dataclass(frozen=True)
class Compression:
    """How a prompt becomes a memory: compression(y, v, x, layer) -> Memory.

    y : (..., M, d), the keys √c k, turned to where they are seen from    v : (..., M, m)
    x : (..., heads, n, d), queries to expect, likewise, of all heads that share these keys
    r : how many features (cache: all; taylor: 1 + d + d²)    rank : keep only so many columns of [b_KV b_D] (r × (m+1)), by SVD
    """

    kind: str
    r: int | None = None
    seed: int = 0
    rank: int | None = None

    def __post_init__(self) -> None:
        choose("Compression", "kind", self.kind, KINDS)
        if self.kind in ("cache", "taylor"):
            if self.r is not None:
                raise ValueError(f"Compression: `r` must be None for {self.kind!r}, which sets it, got {self.r}")
        else:
            check_integer("Compression", "r", self.r, least=1, most=2**20)
        check_integer("Compression", "seed", self.seed, least=0)
        if self.rank is not None:
            check_integer("Compression", "rank", self.rank, least=1)

    def __str__(self) -> str:
        return self.kind + (f"({self.r})" if self.r else "") + (f" rank {self.rank}" if self.rank else "")

    def __call__(self, y: Any, v: Any, x: Any, layer: int) -> Memory:
        M, seed = y.shape[-2], seed_of("compression", self.seed, layer)
        if self.kind in RANDOM:
            a = {"a": expected(x, y)} if self.kind == "favor++" else {}
            phi = random_features(self.kind, self.r, y.shape[-1], seed=seed, system=system_of(y), **a)
            memory = write(phi, y, v)
        elif self.kind == "cache" or (self.kind != "directions" and (self.r or 0) >= M):
            memory = Memory(Points(y), v)  # K_PP⁻¹ K_PY = 1, and every cluster is one key
        else:
            memory = heads(BY_KEYS[self.kind], y, v, x, self.r or M, seed)
        return memory if self.rank is None else truncated(memory, self.rank)


def expected(x: Any, y: Any) -> float:
    """The mean of |x + y|² over queries and keys: fixed in advance, by the prompt alone (of a batch, by its prompts together)."""
    x, y = (floats(t).reshape(-1, t.shape[-1]) for t in (x, y))
    return max(0.0, float(np.mean((x * x).sum(-1)) + np.mean((y * y).sum(-1)) + 2 * x.mean(0) @ y.mean(0)))


def heads(make: Callable[..., tuple[Any, ...]], y: Any, v: Any, x: Any, r: int, seed: int) -> Memory:
    """make(y, v, x, r, rng) -> (points, S, z, scale) for each head by itself, stacked; r is the same in all of them.

    What is drawn belongs to the head, the last of the leading axes: a prompt becomes the same memory alone and in a batch.
    """
    xp, lead = array_namespace(y), np.broadcast_shapes(y.shape[:-2], v.shape[:-2])
    y, v, x = (xp.broadcast_to(t, (*lead, *t.shape[-own:])) for t, own in ((y, 2), (v, 2), (x, 3)))
    made = []
    for at in np.ndindex(*lead):
        keys, values, queries = (t[(*at, ...)] for t in (y, v, x))
        made.append(
            make(keys, values, xp.reshape(queries, (-1, x.shape[-1])), r, np.random.default_rng([seed, *at[-1:]]))
        )
    stacked = [None if part[0] is None else xp.stack(part, axis=0) for part in zip(*made, strict=True)]
    points, S, z, scale = (None if x is None else xp.reshape(x, (*lead, *x.shape[1:])) for x in stacked)
    phi = RandomFeatures("positive", points) if make is directions else Points(points)
    return Memory(phi, S, z, scale)


def truncated(memory: Memory, rank: int) -> Memory:
    """The best memory of that rank: [b_KV b_D] by its largest singular values (Eckart and Young 1936).

    |φ(x)ᵀ (B − B_ρ)| ≤ |φ(x)| σ_{ρ+1} for every query.   Needs NumPy floats
    """
    check_integer("truncated", "rank", rank, least=1, most=min(memory.S.shape[-2], memory.S.shape[-1] + 1))
    if not isinstance(memory.S, np.ndarray):
        raise NotDefined(f"truncated: singular values are made by NumPy, got {system_of(memory.S).name}")
    S, z, scale = sums_and_scale(memory)
    top = np.max(scale, axis=-1, keepdims=True)
    B = np.exp(scale - top)[..., None] * np.concatenate([S, z[..., None]], axis=-1)
    U, sigma, V = np.linalg.svd(B, full_matrices=False)
    return replace(memory, S=U[..., :rank] * sigma[..., None, :rank], z=None, scale=top, mix=V[..., :rank, :])
