"""Softmax attention, with every convention that kernels have for it."""

from __future__ import annotations

import functools
import itertools
import math
import re
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ...arrays import Array, HostArray
from ...errors import choose
from ...systems import RunningError, System
from ...systems.formats import round_to
from ..plan import Case
from ..running import loosened, value_of
from ..spec import DTYPES, Arrays, Spec, convention, conventions, seeded
from .rope import RotaryEmbedding, number

PASTS = (1, 3, 17, 65)  # tokens of a state to start from
TILE = 2**18  # scores that are computed at once
KINDS = 256  # of tokens, at most
FAR = 1000.0  # exp of minus that is 0 in every dtype


@dataclass(frozen=True, kw_only=True)
class SoftmaxAttention(Spec):
    """Softmax attention, over the tokens of a past and the new ones.

    o_t = Σ_s exp(c q_t·k_s) v_s / Σ_s exp(c q_t·k_s), over all s that t sees
    """

    mask: str = convention("causal", "whether a token sees none that come later, or all", "causal", "full")
    window: int = convention(0, "how many tokens a token sees on each side, itself included (0: all)", others=(0,))
    scale: str = convention("d", "the factor of the scores: a number, or 'd' for d^(-1/2)", others=("d", "1"))
    softcap: float = convention(0.0, "a, if the scores become a tanh(scores/a)", others=(0.0, 50.0, 30.0))
    sharing: str = convention(
        "none", "where k has fewer heads: head h takes h // repeats, or h mod groups", "none", "repeat", "cyclic"
    )
    keys: str = convention(
        "new", "whether k and v hold the new tokens alone, or those of the past before them", "new", "all"
    )
    rope: str = convention("none", "the layout of RoPE on q and k", "none", "half", "interleaved")
    rope_base: float = convention(10000.0, "the base of RoPE's angles", others=(10000.0, 500000.0, 1000.0))
    rope_width: int = convention(0, "how many entries RoPE turns (0: all)", others=(0, 2))
    angles: str = convention("", "the dtype of RoPE's angles (default: float32, or that in which it adds if wider)")
    cached: str = convention("rotated", "whether RoPE has turned the keys in K already", "rotated", "plain")
    weights: str = convention("", "the dtype to which exp(scores) is rounded, if narrower", others=("",))

    family: ClassVar[str] = "softmax"
    given: ClassVar[tuple[str, ...]] = ("q", "k", "v", "K", "V")
    made: ClassVar[tuple[str, ...]] = ("o", "K", "V")
    at_once: ClassVar[bool] = False  # whether a step needs the scores of all tokens together

    def __post_init__(self) -> None:
        super().__post_init__()
        who = type(self).__name__
        self.rotary  # noqa: B018  this refuses an unknown dtype of angles
        if self.weights:
            choose(who, "weights", self.weights, DTYPES)
        if self.scale != "d" and not re.fullmatch(r"\d*\.?\d+(e[-+]?\d+)?", str(self.scale)):
            raise ValueError(f"{who}: `scale` must be 'd' or a positive number, got {self.scale!r}")
        for name in ("window", "softcap"):
            if getattr(self, name) < 0:
                raise ValueError(f"{who}: `{name}` must be at least 0, got {getattr(self, name)}")
        if self.keys == "all" and self.calls.given & {"K", "V"}:
            raise ValueError(f"{who}: `keys` must be 'new' for a kernel that takes K and V, got 'all'")

    # How its arrays lie

    def sizes_of(self, name: str, case: Case) -> dict[str, int]:
        past = self.past_of(case) if name in "KV" or (name in "kv" and self.keys == "all") else 0
        new = 0 if name in "KV" else case.n
        heads = case.heads if name in "qo" else case.groups
        return {"B": case.batch, "H": heads, "T": past + new, "D": case.m if name in "voV" else case.d}

    def sizes_made(self, name: str, case: Case, x: Arrays) -> dict[str, int]:
        sizes = self.sizes_of(name, case)
        return sizes | ({"T": x["K"].shape[2] + case.n} if name in "KV" else {})

    def past_of(self, case: Case) -> int:
        """How many tokens came before."""
        return PASTS[case.n % 4] if case.start else 0

    @property
    def state(self) -> tuple[str, ...]:
        return ("K", "V") if self.keys == "new" else ()

    @property
    def rotary(self) -> RotaryEmbedding:
        layout = "half" if self.rope == "none" else self.rope
        return RotaryEmbedding(layout=layout, base=self.rope_base, width=self.rope_width, angles=self.angles)

    def plain(self) -> tuple[Any, ...]:
        same: dict[str, Any] = {}
        if self.rope == "none":
            same = {"rope_base": 10000.0, "rope_width": 0, "angles": "", "cached": "rotated"}
        return tuple(same.get(f.name, getattr(self, f.name)) for f in conventions(self))

    def refuses(self, case: Case) -> str:
        if self.sharing == "none" and case.groups != case.heads:
            return "k has as many heads as q"
        if self.rope != "none" and (
            why := self.rotary.refuses(replace(case, groups=case.heads, position=0, start=False))
        ):
            return why
        return super().refuses(replace(case, start=False) if self.keys == "all" else case)

    def cut(self, x: Arrays, first: int, last: int) -> Arrays:
        """The inputs of a part of the text. K and V are the state, which is not cut."""
        new = {name: a for name, a in x.items() if name not in self.state}
        return x | super().cut(new, first, last)

    # The formula, in steps. A mistake is a subclass with one of them wrong.

    def compute(self, x: Arrays, system: System) -> Arrays:
        q, k, v, K, V = (system.convert(x[name]) for name in ("q", "k", "v", "K", "V"))
        concat, n = system.xp.concat, q.shape[-2]
        M = K.shape[-2] + k.shape[-2] - n
        first = self.first_position(int(x["position"]), M)
        new = self.turn_k(k, first + n - k.shape[-2], x["dtype"], system)
        past = K if self.cached == "rotated" else self.turn_k(K, first - M, x["dtype"], system)
        kept = new if self.cached == "rotated" else k
        heads = self.head_of_keys(q.shape[1], k.shape[1])
        keys = system.xp.take(concat([self.past_keys(past, system), new], axis=-2), heads, axis=1)
        values = system.xp.take(concat([self.past_keys(V, system), v], axis=-2), heads, axis=1)
        q = self.turn_q(q, first, x["dtype"], system)
        o = self.attend(q, keys, values, M, system)
        return {"o": o, "K": concat([K, kept], axis=-2), "V": concat([V, v], axis=-2)}

    def first_position(self, position: int, M: int) -> int:
        """The position of the first new token, after M of the past."""
        return position

    def past_keys(self, past: Array, system: System) -> Array:
        """The keys or values of the past."""
        return past

    def turn_q(self, x: Array, first: int, dtype: str, system: System) -> Any:
        return self.turn(x, first, dtype, system)

    def turn_k(self, x: Array, first: int, dtype: str, system: System) -> Any:
        return self.turn(x, first, dtype, system)

    def turn(self, x: Array, first: int, dtype: str, system: System) -> Any:
        """R_p x, which a kernel may round to the dtype of its arrays."""
        if self.rope == "none":
            return x
        turned = self.rotary.rotate(x, first + np.arange(x.shape[-2])[None, None], system)
        return spread(turned, dtype)

    def head_of_keys(self, heads: int, groups: int) -> HostArray:
        """The head of k and v that each head of q takes."""
        each = np.arange(heads)
        return each % max(groups, 1) if self.sharing == "cyclic" else each // max(heads // max(groups, 1), 1)

    def attend(self, q: Array, keys: Array, values: Array, M: int, system: System) -> Any:
        """o, some rows at a time."""
        (B, H, n), N = q.shape[:3], keys.shape[-2]
        rows = max(n if self.at_once else TILE // max(B * H * N, 1), 1)
        parts = []
        for a in range(0, max(n, 1), rows):
            t, s = M + np.arange(a, min(a + rows, n))[:, None], np.arange(N)[None]
            scores = self.cap(self.score(q[..., a : a + rows, :], keys, values.shape[-1], system), system)
            parts.append(self.read(self.weigh(scores, self.sees(t, s, M, N), system), values, system))
        return system.xp.concat(parts, axis=-2)

    def score(self, q: Array, k: Array, m: int, system: System) -> Any:
        """c q_t·k_s. The last factor is a rounding more, of kernels that take powers of 2."""
        c = system.xp.sqrt(number(system, self.factor(q.shape[-1], m, q.shape[1]) ** 2))
        return (q * c) @ system.xp.matrix_transpose(k) * number(system, 1)

    def factor(self, d: int, m: int, heads: int) -> float:
        """c"""
        return d**-0.5 if self.scale == "d" else float(self.scale)

    def cap(self, scores: Array, system: System) -> Any:
        if not self.softcap:
            return scores
        a = number(system, self.softcap)
        return system.xp.tanh(scores / a) * a

    def sees(self, t: HostArray, s: HostArray, M: int, N: int) -> HostArray:
        """Does token t of N see token s? Both count the M tokens of the past."""
        width = self.window or N + 1
        return (t - s < width) & (s - t < (width if self.mask == "full" else 1))

    def weigh(self, scores: Array, seen: HostArray, system: System) -> Array:
        """exp(scores), times a factor for each token that makes the largest 1."""
        return self.round_weights(hide(system.xp.exp(scores - top_of(scores, seen, system)), seen, system))

    def round_weights(self, w: Array) -> Array:
        return spread(w, self.weights) if self.weights else w

    def read(self, w: Array, v: Array, system: System) -> Array:
        """The mean of v, with these weights."""
        return (w @ v) / system.xp.sum(w, axis=-1, keepdims=True)

    # What it is tried on

    def is_exact(self, case: Case, dtype: str) -> bool:
        """Each token reads one other: all weights are 1 and 0."""
        return self.is_whole(case) and self.targets(case)[2]

    def is_whole(self, case: Case) -> bool:
        """Can scores be 0 and far below?"""
        easy = self.rope == "none" and not self.softcap and not (self.window and self.mask == "full")
        return case.values == "whole" and easy and self.factor(case.d, case.m, case.heads) >= FAR / 2**14

    def inputs(self, case: Case, dtype: str) -> Arrays:
        """Tokens that read one other, or those of its kind; or any numbers; or large scores."""
        rng, M, n = seeded(case), self.past_of(case), case.n
        B, H, G, d = case.batch, case.heads, case.groups, case.d
        shapes = (B, H, n, d), (B, G, M + n, d), (B, G, M + n, case.m)
        q, k, v = ((2 * rng.integers(-64, 64, shape) + 1) / 64 for shape in shapes)
        if self.is_whole(case):
            q, k = self.whole_numbers(case)
        elif case.values == "large":
            k = rng.choice([-8.0, 8.0], k.shape) * rng.integers(8, 17, k.shape)
            own = -np.sign(k[:, self.head_of_keys(H, G), M:])  # each second one scores low with itself
            signs = np.where(np.arange(n)[:, None] % 2 == 0, own, rng.choice([-1.0, 1.0], own.shape))
            q = signs * 8 * rng.integers(8, 17, q.shape)
        elif case.values == "fine":
            q, k, v = (rng.normal(size=a.shape) for a in (q, k, v))
        elif case.values == "tiny":
            q, k, v = (a * 2.0**-10 for a in (q, k, v))
        past = M if self.keys == "new" else 0
        arrays = {"q": q, "k": k[:, :, past:], "v": v[:, :, past:], "K": k[:, :, :past], "V": v[:, :, :past]}
        return {name: round_to(a, dtype) for name, a in arrays.items()} | {
            "position": case.position + M,
            "dtype": dtype,
        }

    def whole_numbers(self, case: Case) -> tuple[HostArray, HostArray]:
        """q and k with scores of 0 for tokens of the same kind, and far below for all others."""
        kinds, wanted, _ = self.targets(case)
        far = 2.0 ** math.ceil(math.log2(FAR / self.factor(case.d, case.m, case.heads)))
        rows = kinds_of(case.d)
        return far * (rows[wanted] - 1), rows[kinds]

    def targets(self, case: Case) -> tuple[HostArray, HostArray, bool]:
        """Kinds of tokens (B, G, M + n), the kind that each reads, and whether it reads one alone.

        Such a token is one that has others of its kind which are hidden, if there is any.
        """
        rng, M, n = seeded(case, "kinds"), self.past_of(case), case.n
        N, most = M + n, len(kinds_of(case.d))
        count = min(most, 1 + N // 2)
        kinds = rng.integers(min(1, count - 1), count, (case.batch, case.groups, N))
        kinds[..., :: self.window or max(N, 1)] = 0
        heads = self.head_of_keys(case.heads, case.groups)
        t, s = M + np.arange(n)[:, None], np.arange(N)[None]
        if 2 * most < N:
            low, high = (np.arange(M, N) * 0, np.arange(M, N)) if self.mask == "causal" else (0, N - 1)
            low = np.maximum(low, np.arange(M, N) - (self.window or N) + 1)
            pick = low + rng.integers(0, 2**30, (case.batch, case.heads, n)) % (high - low + 1)
            return kinds, np.take_along_axis(kinds[:, heads], pick, axis=-1), False
        seen = SoftmaxAttention.sees(self, t, s, M, N)
        alike = (kinds[..., :, None] == kinds[..., None, :]).astype(float)
        visible, hidden = ((side @ alike)[:, heads] for side in (seen, ~seen))
        rank = rng.random((case.batch, case.heads, n, N)) + 2 * (hidden > 0)
        rank = np.where(seen & (visible == 1), rank, -1)
        pick = np.argmax(rank, axis=-1) if N else np.zeros(rank.shape[:-1], dtype=int)
        alone = bool(np.all(rank.max(axis=-1, initial=-1) >= 0))
        return kinds, np.take_along_axis(kinds[:, heads], pick, axis=-1), alone


@functools.cache
def kinds_of(d: int) -> HostArray:
    """(kinds, d): rows of 0 and 1, of which none covers another."""
    chosen = itertools.islice(itertools.combinations(range(d), max(d // 2, 1)), KINDS)
    return np.array([np.isin(np.arange(d), each) for each in chosen]) * 1.0


def top_of(scores: Array, seen: HostArray, system: System) -> Array:
    """The largest score that each token sees. Its error cancels, since it is a factor of all."""
    top = np.max(np.where(seen, value_of(scores), -np.inf), axis=-1, keepdims=True, initial=-np.inf)
    return system.convert(np.where(np.isfinite(top), top, 0.0))


def hide(w: Array, seen: HostArray, system: System) -> Array:
    """The weights of what is seen, and 0."""
    return system.xp.where(np.broadcast_to(seen, w.shape), w, system.xp.zeros_like(w))


def spread(x: Any, dtype: str) -> Any:
    """x, which a kernel may round to this dtype."""
    if not isinstance(x.dtype, RunningError):
        return x
    narrow, (value, error) = RunningError(dtype), x.planes
    return loosened(x, narrow.u * (np.abs(value).astype(np.float64) + error) + narrow.tiny)
