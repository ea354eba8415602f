"""Keys of the prompt as landmarks of the kernel: Nyström's approximation, by elimination.

Source   Williams and Seeger 2001 (Nyström); Harbrecht et al. 2012 (pivoted Cholesky). Their use in
         ICLAA is our extension
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...arrays import Array
from ...systems import floats, system_of
from ...systems.balls import Balls
from ...systems.floats import array_namespace, quiet
from ...systems.formats import FORMATS
from ...systems.multiprecision import Multiprecision
from .sampling import HeadMemory, half_norms, mean_attention, row_indices


def landmarks(y: Array, v: Array, candidates: NDArray[np.int64], weight: NDArray[np.float64], r: int) -> HeadMemory:
    """Nyström by elimination: up to r candidates become points, those of largest weighted residual.

        g(a, b) = exp(a·b − |a|²/2 − |b|²/2)      G ≈ L Lᵀ      L_P, a triangle: L at the points
        K_PP⁻¹ K_PY [V 1] = [V 1]_P + D_P⁻¹ W D_N [V 1]_N
        W = L_P⁻ᵀ L_Nᵀ,   D = diag exp(|y|²/2),   N: the keys that are not points

    Where two keys are far apart, W is small and so is its rounding; only then is it multiplied by
    D, which may be large. When the next residual is only rounding, the points so far explain every
    key: elimination ends, and further points weigh 0.
    """
    xp, h, M = array_namespace(y), half_norms(y), y.shape[-2]
    system = system_of(y)
    bits = FORMATS.get(getattr(system, "kind", ""), FORMATS["float64"])[0]
    least = 4 * M * (10.0**-system.digits if isinstance(system, Multiprecision | Balls) else 2.0**-bits)
    chosen: list[int] = []
    rest, L = np.ones(M), y[:, :0]
    for _ in range(min(r, len(candidates))):
        p = int(candidates[np.argmax((rest * weight)[candidates])])
        column = xp.exp(y @ y[p, :, None] - h[:, None] - h[p]) - L @ xp.matrix_transpose(L[p : p + 1, :])  # (M, 1)
        if chosen and floats(column)[p, 0] <= least:
            break
        column = column / xp.sqrt(column[p, 0])
        L, rest = xp.concat([L, column], axis=-1), np.maximum(rest - floats(column)[:, 0] ** 2, 0)
        rest[p] = 0
        chosen.append(p)
    n, V = len(chosen), xp.concat([v, xp.ones_like(v[:, :1])], axis=-1)
    P, N = (row_indices(y, at) for at in (chosen, sorted(set(range(M)) - set(chosen))))
    T, C = xp.take(L, P, axis=0), xp.matrix_transpose(xp.take(L, N, axis=0))
    W = C[:0, :]
    for i in reversed(range(n)):  # Tᵀ W = C, from the last row up
        W = xp.concat([(C[i : i + 1, :] - xp.matrix_transpose(T[i + 1 :, i : i + 1]) @ W) / T[i, i], W], axis=0)
    gap = xp.take(h, N, axis=0)[None, :] - xp.take(h, P, axis=0)[:, None]
    with quiet():  # if keys are too long for this, an error follows when the memory is read
        largest = np.max(np.log(np.abs(floats(W))) + floats(gap), initial=0.0, keepdims=True)[0]
        scale = system.convert(largest)  # (1,)
        half = xp.exp((gap - scale[0]) / 2)  # its square may overflow where W is small
        B = xp.exp(-scale) * xp.take(V, P, axis=0) + (half * W * half) @ xp.take(V, N, axis=0)
    points = xp.take(y, P, axis=0)
    points, B = (xp.concat([x, *[rest] * (r - n)], axis=0) for x, rest in ((points, points[:1, :]), (B, 0 * B[:1, :])))
    return points, B[:, :-1], B[:, -1], scale


def nystrom(y: Array, v: Array, x: Array, r: int, rng: np.random.Generator) -> HeadMemory:
    """Landmarks drawn at random from the keys."""
    return landmarks(y, v, rng.permutation(y.shape[-2])[:r], np.ones(y.shape[-2]), r)


def cholesky(y: Array, v: Array, x: Array, r: int, rng: np.random.Generator) -> HeadMemory:
    """Landmarks chosen greedily, weighted by the attention that the expected queries give them."""
    return landmarks(y, v, np.arange(y.shape[-2]), mean_attention(x, y), r)
