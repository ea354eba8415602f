"""Which memory to make of a prompt, given how large it may be, or how far off: by measuring, or with a certificate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from ...attention.memory import Memory, Points
from ...attention.random_features import PAIRS
from ...checks import check_integer
from ...errors import brief, choose
from ...systems import floats
from ...systems.floats import itemsize
from . import KINDS, RANDOM, Compression


@dataclass(frozen=True)
class Best:
    """Of all compressions the one of least error within a budget, or the smallest within an error: Best(budget=2**16), Best(error=0.01).

    budget : bytes of a layer      error : relative, of the prompt's part of attention
    The error is measured on every second of the queries to expect, and the others are for the maps that ask for queries. It is the
    least of many, and so a little optimistic.
    within : certify instead that |o − ô| ≤ error · (largest − smallest value) for *all* queries |x| ≤ within, before rounding
    """

    budget: int | None = None
    error: float | None = None
    within: float | None = None
    seed: int = 0
    kinds: tuple[str, ...] = KINDS

    def __post_init__(self) -> None:
        if (self.budget is None) == (self.error is None):
            raise ValueError("Best: one of `budget` and `error` must be given, got both or none")
        if self.budget is not None:
            check_integer("Best", "budget", self.budget, least=1)
        for name in ("error", "within"):
            x = getattr(self, name)
            if x is not None and (isinstance(x, bool) or not isinstance(x, int | float) or not 0 <= x < math.inf):
                raise ValueError(f"Best: `{name}` must be a finite number ≥ 0, got {brief(x)}")
        for kind in self.kinds:
            choose("Best", "kinds", kind, KINDS)

    def __str__(self) -> str:
        return (
            f"best within {self.budget} bytes of a layer"
            if self.budget is not None
            else f"best within an error of {self.error}"
        )

    def __call__(self, y: Any, v: Any, x: Any, layer: int) -> Memory:
        judge = x[..., 1::2, :] if x.shape[-2] > 1 else x
        tried = []
        for how in self.candidates(y, v):
            memory = how(y, v, x[..., ::2, :], layer)
            off = (
                attention_error(memory, y, v, judge)
                if self.within is None
                else certificate(y, memory.phi.points, self.within)
            )
            tried.append(
                (
                    off,
                    memory.nbytes,
                    f"{how}: {'measured' if self.within is None else 'certified'} error {off:.2g}",
                    memory,
                )
            )
        good = [
            t
            for t in tried
            if (self.error is None or t[0] <= self.error) and (self.budget is None or t[1] <= self.budget)
        ]
        if not good and self.budget is not None:
            raise ValueError(f"Best: `budget` must hold a memory of one feature, got {self.budget} bytes")
        if not good:
            raise ValueError(
                f"Best: `kinds` must have one that comes within an error of {self.error}, as cache does, got none"
            )
        _, _, words, memory = min(good, key=lambda t: (t[0], t[1]) if self.budget is not None else (t[1], t[0]))
        return replace(memory, about=words)

    def candidates(self, y: Any, v: Any) -> Iterator[Compression]:
        """What to try: all kinds at the largest r that the budget holds; or, up to the size of the cache, at every power of 2."""
        M, d, m, lead = y.shape[-2], y.shape[-1], v.shape[-1], prod(np.broadcast_shapes(y.shape[:-2], v.shape[:-2]))
        number = max(lead, 1) * itemsize(y)  # bytes of one for each head
        limit = min(
            self.budget or math.inf, number * (M * (d + m) + 1) + 24
        )  # beyond it the cache is smaller, and exact
        for kind in (
            self.kinds if self.within is None else [kind for kind in self.kinds if kind in ("clusters", "cache")]
        ):
            # beside r features: a seed, a turn and A, and one scale for each head
            most = int(limit - 24 - number) // (number * (m + 1 + (0 if kind in RANDOM else d)))
            if kind == "cache" or (kind == "taylor" and 1 + d + d * d <= most):
                yield Compression(kind, seed=self.seed)
            if kind in ("cache", "taylor") or (kind == "simplex" and d == 1):
                continue
            most = most // 2 * 2 if kind in PAIRS else most
            powers = [2**i for i in range(1, 25) if 2**i <= most] if self.budget is None else [most]
            yield from (Compression(kind, r, self.seed) for r in powers if r >= 1)
            if kind == "positive" and self.budget is not None and m > 1 and 2 * most >= m and isinstance(v, np.ndarray):
                yield Compression(kind, 2 * most, self.seed, rank=(m + 1) // 2)


def attention_error(memory: Memory, y: Any, v: Any, x: Any) -> float:
    """‖o − ô‖ / ‖o‖ over queries x (..., heads, n, d), of attention to the prompt alone; inf where ô is not finite."""
    wide = memory.map_arrays(lambda a, axes: a[(..., None, *[slice(None)] * axes)])
    exact = Memory(Points(y[..., None, :, :]), v[..., None, :, :])
    (num, den, _), (top, bottom, _) = ([floats(part) for part in one.read(x)] for one in (wide, exact))
    with np.errstate(all="ignore"):
        off = np.linalg.norm(num / den - top / bottom) / np.linalg.norm(top / bottom)
    return float(off) if np.isfinite(off) else math.inf


def certificate(y: Any, centres: Any, within: float) -> float:
    """If each key stands at the nearest of these centres: a bound on |o − ô| / (largest − smallest value), for all |x| ≤ within.

        δ = max_j |y_j − its centre|        e^{−δ|x|} ≤ ŵ_j / w_j ≤ e^{δ|x|}        |o − ô| ≤ tanh(δ|x|/2) (max v − min v)

    since weights that are off by such factors move a mean by at most that share of the range; whatever the values, and whatever
    input is seen beside the prompt.   Source: our derivation
    """
    Y, P = floats(y), floats(centres)
    squares = [np.sum((Y - P[..., i : i + 1, :]) ** 2, axis=-1) for i in range(P.shape[-2])]
    return float(np.tanh(np.sqrt(np.max(np.min(squares, axis=0))) * within / 2))
