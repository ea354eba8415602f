"""From the keys and values of a prompt to a memory of fixed size: random features, and maps that use the known keys.

| kind | read through | what is kept of the prompt |
|---|---|---|
| "positive", "hyperbolic", "trigonometric", "favor++", "orthogonal", "simplex", "taylor" | random features | Σ φ(y_j) v_jᵀ, Σ φ(y_j) |
| "nystrom" | r keys, drawn | K_PP⁻¹ K_PY [V 1]: exact at r = M |
| "cholesky" | r keys, each time the one that the others explain least | the same |
| "clusters" | r centres of the keys | the sum and the number of the values around each |
| "tokens" | r keys, drawn by how much attention they get | their values, counted 1/(r p_j) times |
| "directions" | positive features, directions drawn around the keys | Σ φ(y_j) v_jᵀ over the density of the draw |
| "cache" | all M keys | all M values: exact |

Equal memory counts every number needed to read (`Memory.nbytes`): the first row keeps r (m + 1), the others r (d + m + 1).

Source   Williams and Seeger 2001 (Nyström); Harbrecht et al. 2012 (pivoted Cholesky); that they serve ICLAA is our extension
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .errors import NotDefined, choose
from .memory import Memory, Points, parts, write
from .random_features import KINDS as RANDOM
from .random_features import RandomFeatures, random_features
from .shapes import integer
from .systems import Float, floats, seed_of, system_of
from .systems.array import array_namespace, device
from .systems.balls import Balls
from .systems.multiprecision import Multiprecision
from .systems.rounded import FORMATS

KINDS = (*RANDOM, "nystrom", "cholesky", "clusters", "tokens", "directions", "cache")


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
            integer("Compression", "r", self.r, least=1, most=2**24)
        integer("Compression", "seed", self.seed, least=0)
        if self.rank is not None:
            integer("Compression", "rank", self.rank, least=1)

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
    """The mean of |x + y|² over queries and keys: fixed in advance, by the prompt alone."""
    x, y = (floats(t).reshape(-1, t.shape[-1]) for t in (x, y))
    return float(np.mean((x * x).sum(-1)) + np.mean((y * y).sum(-1)) + 2 * x.mean(0) @ y.mean(0))


def heads(make: Callable[..., tuple[Any, ...]], y: Any, v: Any, x: Any, r: int, seed: int) -> Memory:
    """make(y, v, x, r, rng) -> (points, S, z, scale) for each head by itself, stacked; r is the same in all of them."""
    xp, lead = array_namespace(y), np.broadcast_shapes(y.shape[:-2], v.shape[:-2])
    y, v, x = (xp.broadcast_to(t, (*lead, *t.shape[-own:])) for t, own in ((y, 2), (v, 2), (x, 3)))
    made = []
    for at in np.ndindex(*lead):
        keys, values, queries = (t[(*at, ...)] for t in (y, v, x))
        made.append(make(keys, values, xp.reshape(queries, (-1, x.shape[-1])), r, np.random.default_rng([seed, *at])))
    stacked = [None if part[0] is None else xp.stack(part, axis=0) for part in zip(*made, strict=True)]
    points, S, z, scale = (None if x is None else xp.reshape(x, (*lead, *x.shape[1:])) for x in stacked)
    phi = RandomFeatures("positive", points) if make is directions else Points(points)
    return Memory(phi, S, z, scale)


def half_squares(y: Any) -> Any:
    """|y|²/2, (..., n)"""
    return array_namespace(y).sum(y * y, axis=-1) / 2


def landmarks(y: Any, v: Any, candidates: np.ndarray, weight: np.ndarray, r: int) -> tuple[Any, Any, Any, Any]:
    """Nyström by elimination: at most r of the candidates become points, each time the one with the largest weighted residual.

        g(a, b) = exp(a·b − |a|²/2 − |b|²/2)        G ≈ L Lᵀ        L_P = the rows of L at the points, a triangle
        K_PP⁻¹ K_PY [V 1] = [V 1]_P + D_P⁻¹ W D_N [V 1]_N,   W = L_P⁻ᵀ L_Nᵀ,   D = diag exp(|y|²/2),   N: the keys that are no points

    Where two keys are far apart, W is small and so is its rounding: D, which may be large, multiplies it only then.
    A residual that is rounding alone ends it: the points so far explain every key, and further ones weigh 0.
    """
    xp, h, M = array_namespace(y), half_squares(y), y.shape[-2]
    system = system_of(y)
    bits = FORMATS.get(getattr(system, "kind", ""), FORMATS["float64"])[0]
    least = 4 * M * (10.0**-system.digits if isinstance(system, Multiprecision | Balls) else 2.0**-bits)
    rest, chosen, L = np.ones(M), [], y[:, :0]
    for _ in range(min(r, len(candidates))):
        p = int(candidates[np.argmax((rest * weight)[candidates])])
        column = xp.exp(y @ y[p, :, None] - h[:, None] - h[p]) - L @ xp.matrix_transpose(L[p : p + 1, :])  # (M, 1)
        if floats(column)[p, 0] <= least:
            break
        column = column / xp.sqrt(column[p, 0])
        L, rest = xp.concat([L, column], axis=-1), np.maximum(rest - floats(column)[:, 0] ** 2, 0)
        rest[p] = 0
        chosen.append(p)
    n, V = len(chosen), xp.concat([v, xp.ones_like(v[:, :1])], axis=-1)
    P, N = (indices(y, at) for at in (chosen, sorted(set(range(M)) - set(chosen))))
    T, C = xp.take(L, P, axis=0), xp.matrix_transpose(xp.take(L, N, axis=0))
    W = C[:0, :]
    for i in reversed(range(n)):  # Tᵀ W = C, from the last row up
        W = xp.concat([(C[i : i + 1, :] - xp.matrix_transpose(T[i + 1 :, i : i + 1]) @ W) / T[i, i], W], axis=0)
    gap = xp.take(h, N, axis=0)[None, :] - xp.take(h, P, axis=0)[:, None]
    with np.errstate(divide="ignore"):
        scale = system.convert(np.max(np.log(np.abs(floats(W))) + floats(gap), initial=0.0, keepdims=True)[0])  # (1,), of the largest
    half = xp.exp((gap - scale[0]) / 2)  # its square may overflow where W is small
    B = xp.exp(-scale) * xp.take(V, P, axis=0) + (half * W * half) @ xp.take(V, N, axis=0)
    points = xp.take(y, P, axis=0)
    points, B = (xp.concat([x, *[rest] * (r - n)], axis=0) for x, rest in ((points, points[:1, :]), (B, 0 * B[:1, :])))
    return points, B[:, :-1], B[:, -1], scale


def indices(like: Any, at: Any) -> Any:
    """Where rows of such an array are to be taken."""
    at = np.asarray(at, dtype=np.int64)
    return array_namespace(like).asarray(at, device=device(like)) if isinstance(system_of(like), Float) else at


def nystrom(y: Any, v: Any, x: Any, r: int, rng: np.random.Generator) -> tuple[Any, Any, Any, Any]:
    return landmarks(y, v, rng.permutation(y.shape[-2])[:r], np.ones(y.shape[-2]), r)


def cholesky(y: Any, v: Any, x: Any, r: int, rng: np.random.Generator) -> tuple[Any, Any, Any, Any]:
    """Greedy: a key weighs by the attention that it gets from the expected queries."""
    return landmarks(y, v, np.arange(y.shape[-2]), attention(x, y), r)


def attention(x: Any, y: Any) -> np.ndarray:
    """How much attention each key gets from the queries, on average; half of it uniform, so that none counts for nothing."""
    scores, M = floats(x) @ floats(y).T, y.shape[-2]
    a = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return 0.5 / M + 0.5 * np.mean(a / a.sum(axis=-1, keepdims=True), axis=0)


def clusters(y: Any, v: Any, x: Any, r: int, rng: np.random.Generator) -> tuple[Any, Any, Any, Any]:
    """Lloyd's algorithm from spread-out keys; of a cluster, its centre, the sum of its values, and their number."""
    Y, first = floats(y), [int(rng.integers(y.shape[-2]))]
    far = ((Y - Y[first[0]]) ** 2).sum(-1)
    for _ in range(r - 1):
        first.append(int(np.argmax(far)))
        far = np.minimum(far, ((Y - Y[first[-1]]) ** 2).sum(-1))
    centres = Y[first]
    for _ in range(20):
        nearest = assigned(Y, centres)
        counts = np.bincount(nearest, minlength=r)
        sums = np.zeros_like(centres)
        np.add.at(sums, nearest, Y)
        centres, before = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], centres), centres
        if np.array_equal(before, centres):
            break
    system, xp, nearest = system_of(y), array_namespace(y), assigned(Y, centres)
    centres[np.bincount(nearest, minlength=r) == 0] = centres[nearest[0]]  # else a point of no weight might have the largest exponent
    member = system.convert((nearest[None, :] == np.arange(r)[:, None]).astype(np.float64))  # (r, M)
    return system.convert(centres), member @ v, xp.sum(member, axis=-1), None


def assigned(Y: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """The nearest centre of each key."""
    return np.argmin((centres**2).sum(-1) - 2 * Y @ centres.T, axis=-1)


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


BY_KEYS = {"nystrom": nystrom, "cholesky": cholesky, "clusters": clusters, "tokens": tokens, "directions": directions}


def truncated(memory: Memory, rank: int) -> Memory:
    """The best memory of that rank: [b_KV b_D] by its largest singular values (Eckart and Young 1936).

    |φ(x)ᵀ (B − B_ρ)| ≤ |φ(x)| σ_{ρ+1} for every query.   Needs NumPy floats
    """
    if not isinstance(memory.S, np.ndarray):
        raise NotDefined(f"truncated: singular values are made by NumPy, got {system_of(memory.S).name}")
    S, z, scale = parts(memory)
    top = np.max(scale, axis=-1, keepdims=True)
    B = np.exp(scale - top)[..., None] * np.concatenate([S, z[..., None]], axis=-1)
    U, sigma, V = np.linalg.svd(B, full_matrices=False)
    return replace(memory, S=U[..., :rank] * sigma[..., None, :rank], z=None, scale=top, mix=V[..., :rank, :])
