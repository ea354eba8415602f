"""A memory of fixed size from the keys and values of a prompt: by random features, or by its keys.

| kind | read through | kept of the prompt |
|---|---|---|
| "positive", "favor++", ... (random_features.py) | random features | Σ φ(y_j) v_jᵀ, Σ φ(y_j) |
| "nystrom" | r keys, drawn | K_PP⁻¹ K_PY [V 1]: exact at r = M |
| "cholesky" | r keys, each time the one that those before explain least | the same |
| "clusters" | r centres of the keys | the sum and the number of the values around each |
| "tilted" | r centres of the keys that queries look at | means of values as seen; log-weights |
| "tokens" | r keys, drawn by how much attention they get | their values, counted 1/(r p_j) times |
| "directions" | positive features, directions drawn around keys | Σ φ(y_j) v_jᵀ / density |
| "cache" | all M keys | all M values: exact |

Sizes count every number needed to read (`Memory.nbytes`): the first row keeps r (m + 1), the last
M (d + m), the others r (d + m + 1). Each kind has its module here; best.py chooses a kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...arrays import Array
from ...attention.memory import Memory, Points, sums_and_scale, write
from ...attention.random_features import KINDS as RANDOM_KINDS
from ...attention.random_features import RandomFeatures, random_features
from ...checks import check_integer
from ...errors import NotDefined, choose
from ...systems import floats, seed_of, system_of
from ...systems.floats import array_namespace
from .clusters import plain_clusters, tilted_clusters
from .landmarks import cholesky, nystrom
from .sampling import HeadMemory, sample_directions, sample_tokens

Compress = Callable[[Array, Array, Array, int, np.random.Generator], HeadMemory]  # y, v, x, r, rng of one head
# Tests that plant a bug replace an entry.
BY_KEYS: dict[str, Compress] = {"nystrom": nystrom, "cholesky": cholesky, "clusters": plain_clusters}
BY_KEYS |= {"tilted": tilted_clusters, "tokens": sample_tokens, "directions": sample_directions}
KINDS = (*RANDOM_KINDS, *BY_KEYS, "cache")


@dataclass(frozen=True)
class Compression:
    """How a prompt becomes a memory: compression(y, v, x, layer) -> Memory.

    y : (..., M, d), the keys √c k, rotated as the input sees them    v : (..., M, m)
    x : (..., heads, n, d), expected queries √c q of all heads that share these keys
    r : how many features; None for cache (M) and taylor (1 + d + d²)
    rank : keep [b_KV b_D], r × (m+1), only to this rank, by SVD
    """

    kind: str
    r: int | None = None
    seed: int = 0
    rank: int | None = None

    def __post_init__(self) -> None:
        choose("Compression", "kind", self.kind, KINDS)
        if self.kind not in ("cache", "taylor"):
            check_integer("Compression", "r", self.r, least=1, most=2**20)
        elif self.r is not None:
            raise ValueError(f"Compression: `r` must be None for {self.kind!r}, which sets it, got {self.r}")
        check_integer("Compression", "seed", self.seed, least=0)
        if self.rank is not None:
            check_integer("Compression", "rank", self.rank, least=1)

    def __str__(self) -> str:
        return self.kind + (f"({self.r})" if self.r else "") + (f" rank {self.rank}" if self.rank else "")

    def __call__(self, y: Array, v: Array, x: Array, layer: int) -> Memory:
        M, seed = y.shape[-2], seed_of("compression", self.seed, layer)
        if self.kind in RANDOM_KINDS:
            a = expected_statistic(x, y) if self.kind == "favor++" else None
            memory = write(random_features(self.kind, self.r, y.shape[-1], seed=seed, system=system_of(y), a=a), y, v)
        elif self.kind == "cache" or (self.kind != "directions" and (self.r or 0) >= M):
            memory = Memory(Points(y), v)  # K_PP⁻¹ K_PY = 1, and every cluster is one key
        else:
            points, S, z, scale = compress_heads(self.kind, y, v, x, self.r or M, seed)
            phi = RandomFeatures("positive", points) if self.kind == "directions" else Points(points)
            memory = Memory(phi, S, z, scale)
        return memory if self.rank is None else truncate_rank(memory, self.rank)


def expected_statistic(x: Array, y: Array) -> float:
    """The mean of |x + y|² over queries and keys of the prompt (of all prompts in a batch)."""
    X, Y = (floats(t).reshape(-1, t.shape[-1]) for t in (x, y))
    return max(0.0, float(np.mean((X * X).sum(-1)) + np.mean((Y * Y).sum(-1)) + 2 * X.mean(0) @ Y.mean(0)))


def compress_heads(kind: str, y: Array, v: Array, x: Array, r: int, seed: int) -> HeadMemory:
    """The memories of all heads, each made by itself, stacked; all have the same r.

    Draws depend on the head, the last of the leading axes, and not on the batch: a prompt becomes
    the same memory alone and in a batch.
    """
    xp, lead = array_namespace(y), np.broadcast_shapes(y.shape[:-2], v.shape[:-2])
    y, v, x = (xp.broadcast_to(t, (*lead, *t.shape[-own:])) for t, own in ((y, 2), (v, 2), (x, 3)))
    x = xp.reshape(x, (*lead, -1, x.shape[-1]))  # the queries of all heads that share keys
    memories = []
    for at in np.ndindex(*lead):
        Y, V, X = (t[(*at, ...)] for t in (y, v, x))
        memories.append(BY_KEYS[kind](Y, V, X, r, np.random.default_rng([seed, *at[-1:]])))

    def stack(arrays: Sequence[Any]) -> Any:
        return None if arrays[0] is None else xp.reshape(xp.stack(arrays, axis=0), (*lead, *arrays[0].shape))

    points, S, z, scale = map(stack, zip(*memories, strict=True))
    return points, S, z, scale


def truncate_rank(memory: Memory, rank: int) -> Memory:
    """The best memory of that rank: [b_KV b_D] by its largest singular values.   Needs NumPy floats

    |φ(x)ᵀ (B − B_ρ)| ≤ |φ(x)| σ_{ρ+1} for every query.   Source   Eckart and Young 1936
    """
    check_integer("truncate_rank", "rank", rank, least=1, most=min(memory.S.shape[-2], memory.S.shape[-1] + 1))
    if not isinstance(memory.S, np.ndarray):
        raise NotDefined(f"truncate_rank: singular values are made by NumPy, got {system_of(memory.S).name}")
    S, z, scale = map(np.asarray, sums_and_scale(memory))
    top = np.max(scale, axis=-1, keepdims=True)
    B = np.exp(scale - top)[..., None] * np.concatenate([S, z[..., None]], axis=-1)
    U, sigma, V = np.linalg.svd(B, full_matrices=False)
    return replace(memory, S=U[..., :rank] * sigma[..., None, :rank], z=None, scale=top, mix=V[..., :rank, :])
