"""The best memory of a prompt within a size or within an error, measured or certified."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import cast

import numpy as np
from numpy.typing import NDArray

from ...arrays import Array
from ...attention.memory import Memory, Points
from ...attention.random_features import KINDS as RANDOM_KINDS
from ...attention.random_features import PAIRS
from ...checks import check_integer, check_sequence
from ...errors import brief, choose
from ...systems import floats
from ...systems.floats import itemsize
from . import KINDS, Compression
from .sampling import row_tiles


@dataclass(frozen=True)
class Best:
    """Choose the compression of least error within a budget, or the smallest within an error.

        Best(budget=2**16)        Best(error=0.01)        Best(error=0.01, within=5)

    budget : bytes of a layer      error : relative, of the prompt's part of attention
    within : instead of measuring, certify |o − ô| ≤ error · (largest − smallest value), before
             rounding, for *all* queries |x| ≤ within
    The error is measured on every second expected query; maps that need queries get the others.
    With a budget it is the least of many errors, and so a little optimistic.
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
        check_integer("Best", "seed", self.seed, least=0)
        check_sequence("Best", "kinds", self.kinds)
        for kind in self.kinds:
            choose("Best", "kinds", kind, KINDS)

    def __str__(self) -> str:
        limit = f"{self.budget} bytes of a layer" if self.budget is not None else f"an error of {self.error}"
        return f"best within {limit}"

    def __call__(self, y: Array, v: Array, x: Array, layer: int) -> Memory:
        held_out = x[..., 1::2, :] if x.shape[-2] > 1 else x
        fitting: list[tuple[tuple[float, float], Memory]] = []  # (error, size) or (size, error), and the memory
        for compression in self.candidates(y, v):
            memory = compression(y, v, x[..., ::2, :], layer)
            if self.within is None:
                how, error = "measured", attention_error(memory, y, v, held_out)
            else:
                how, error = "certified", certificate(y, cast(Points, memory.phi).points, self.within)
            memory = replace(memory, about=f"{compression}: {how} error {error:.2g}")
            if self.budget is not None and memory.nbytes <= self.budget:
                fitting.append(((error, memory.nbytes), memory))
            elif self.error is not None and error <= self.error:
                fitting.append(((memory.nbytes, error), memory))
        if fitting:
            return min(fitting, key=lambda one: one[0])[1]
        if self.budget is not None:
            raise ValueError(f"Best: `budget` must hold a memory of one feature, got {self.budget} bytes")
        wanted = f"one that comes within an error of {self.error}, as cache does"
        raise ValueError(f"Best: `kinds` must have {wanted}, got none")

    def candidates(self, y: Array, v: Array) -> Iterator[Compression]:
        """All kinds, at the largest r that fits the budget, or at powers of 2 up to the cache."""
        M, d, m, lead = y.shape[-2], y.shape[-1], v.shape[-1], prod(np.broadcast_shapes(y.shape[:-2], v.shape[:-2]))
        number = max(lead, 1) * itemsize(y)  # bytes of one number for each head
        limit = min(self.budget or math.inf, number * (M * (d + m) + 1) + 24)  # beyond, the cache is smaller, and exact
        certifiable = KINDS if self.within is None else ("clusters", "cache")
        for kind in [kind for kind in self.kinds if kind in certifiable]:
            # beside r features: a seed, a turn and A, and one scale for each head
            most = int(limit - 24 - number) // (number * (m + 1 + (0 if kind in RANDOM_KINDS else d)))
            if kind == "cache" or (kind == "taylor" and 1 + d + d * d <= most):
                yield Compression(kind, seed=self.seed)
            if kind in ("cache", "taylor") or (kind == "simplex" and d == 1):
                continue
            most = most // 2 * 2 if kind in PAIRS else most
            powers = [2**i for i in range(1, 25) if 2**i <= most] if self.budget is None else [most]
            yield from (Compression(kind, r, self.seed) for r in powers if r >= 1)
            if kind == "positive" and self.budget is not None and m > 1 and 2 * most >= m and isinstance(v, np.ndarray):
                yield Compression(kind, 2 * most, self.seed, rank=(m + 1) // 2)


def attention_error(memory: Memory, y: Array, v: Array, x: Array) -> float:
    """‖o − ô‖ / ‖o‖ of attention to the prompt, x (..., heads, n, d); inf if ô is not finite."""
    wide = memory.map_arrays(lambda a, axes: a[(..., None, *[slice(None)] * axes)])
    exact = Memory(Points(y[..., None, :, :]), v[..., None, :, :])
    bytes_of_row = itemsize(y) * prod(x.shape[:-2]) * y.shape[-2]

    def outputs(one: Memory) -> NDArray[np.float64]:
        read = (one.read(x[..., rows, :]) for rows in row_tiles(x.shape[-2], bytes_of_row))
        return np.concatenate([floats(num) / floats(den) for num, den, _ in read], axis=-2)

    with np.errstate(all="ignore"):
        got, o = outputs(wide), outputs(exact)
        off = np.linalg.norm(got - o) / np.linalg.norm(o)
    return float(off) if np.isfinite(off) else math.inf


def certificate(y: Array, centres: Array, within: float) -> float:
    """A bound on |o − ô| / (largest − smallest value), |x| ≤ within, if keys move to centres.

        δ = max_j |y_j − its centre|        e^{−δ|x|} ≤ ŵ_j / w_j ≤ e^{δ|x|}
        |o − ô| ≤ tanh(δ|x|/2) (max v − min v)

    Weights that are off by such factors move a mean by at most that share of the range, whatever
    the values are, and whatever input is seen beside the prompt.   Source: our derivation
    """
    Y, P = floats(y), floats(centres)
    squares = [np.sum((Y - P[..., i : i + 1, :]) ** 2, axis=-1) for i in range(P.shape[-2])]
    return float(np.tanh(np.sqrt(np.max(np.min(squares, axis=0))) * within / 2))
