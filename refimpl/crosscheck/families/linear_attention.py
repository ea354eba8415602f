"""Linear attention, with every convention that kernels have for it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from ...arrays import Array, HostArray
from ...attention.feature_maps import FEATURE_MAPS, feature_map
from ...attention.rope import Rope, angle_table
from ...systems import System
from ...systems.formats import FORMATS, round_to
from ..axes import Axes
from ..plan import Case
from ..spec import Arrays, Spec, convention, seeded

EXACT_MAPS = {  # φ: what it makes 0, and what it takes from an integer f ≥ 1 to make f
    "identity": (0.0, 0.0),
    "relu": (-1.0, 0.0),
    "elu+1": (-800.0, -1.0),
}


@dataclass(frozen=True, kw_only=True)
class LinearAttention(Spec):
    """Causal linear attention.

    S_t = S_{t-1} + R_t φ(k_t) v_tᵀ        z_t = z_{t-1} + φ(k_t)
    o_t = φ(q_t)ᵀ R_tᵀ S_t / (φ(q_t)·z_t + ε)
    """

    phi: str = convention("identity", "the feature map", others=("identity", "elu+1", "relu", "relu2", "exp", "silu"))
    normalise: bool = convention(True, "whether it divides by φ(q)·z", others=(True, False))
    eps: float = convention(0.0, "the ε in the denominator", others=(0.0, 1e-6, 1e-12, 1e-10, 1e-8, 1e-5, 1e-4, 1e-3))
    eps_place: str = convention("add", "den + ε, or max(den, ε)", "add", "max")
    scale: str = convention("1", "the factor of q: a number, or 'd' for d^(-1/2)", others=("1", "d"))
    scale_place: str = convention("q", "whether it scales q before φ, or the scores", "q", "scores")
    reads: str = convention("after", "whether o_t is read after or before token t is written", "after", "before")
    rope: str = convention("none", "the layout of RoPE", "none", "half", "interleaved")
    rope_base: float = convention(10000.0, "the base of RoPE's angles", others=(10000.0, 500000.0, 1000.0))
    rope_width: int = convention(0, "how many entries RoPE rotates (0: all)", others=(0, 2))
    rope_place: str = convention("after", "whether RoPE comes after φ or before it", "after", "before")
    sharing: str = convention("none", "where k has fewer heads: head h takes h // repeats, or h mod groups", "none", "repeat", "cyclic")
    state_axes: str = convention("BHKV", "the order of the axes of S", others=("BHKV", "BHVK"))
    z_axes: str = convention("BHK", "the order of the axes of z")
    state_dtype: str = convention("", "the dtype of S and z (default: that in which it adds)")

    family: ClassVar[str] = "linear_attention"
    given: ClassVar[tuple[str, ...]] = ("q", "k", "v", "S", "z")
    made: ClassVar[tuple[str, ...]] = ("o", "S", "z")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.phi_function  # noqa: B018  this refuses an unknown name

    # How its arrays lie

    def axes_of(self, name: str) -> Axes:
        words = {"S": ("state_axes", "BHKV"), "z": ("z_axes", "BHK")}
        convention_name, ours = words.get(name, ("axes", "BHTD"))
        return Axes.read(f"LinearAttention: `{convention_name}`", getattr(self, convention_name), ours)

    def sizes_of(self, name: str, case: Case) -> dict[str, int]:
        heads = case.heads if name in "qo" else case.groups
        r = self.features_of(case.d)
        if name in ("S", "z"):
            return {"B": case.batch, "H": heads, "K": r, "V": case.m}
        return {"B": case.batch, "H": heads, "T": case.n, "D": case.m if name in "vo" else case.d}

    def dtype_of(self, name: str, dtype: str) -> str:
        return (self.state_dtype or self.sums_in(dtype)) if name in ("S", "z") else dtype

    def features_of(self, d: int) -> int:
        return int(getattr(self.phi_function, "count", lambda d: d)(d))

    @property
    def phi_function(self) -> Any:
        return MORE_MAPS[self.phi] if self.phi in MORE_MAPS else feature_map(self.phi)

    @property
    def state(self) -> tuple[str, ...]:
        return ("S", "z") if self.normalise else ("S",)

    def refuses(self, case: Case) -> str:
        if self.sharing == "none" and case.groups != case.heads:
            return "k has as many heads as q"
        if self.reads == "before" and self.normalise and not case.start and not self.eps:
            return "the first token reads nothing, and 0/0 is no number"
        if self.rope != "none" and case.d % 2 and not self.rope_width:
            return "RoPE needs an even width"
        return super().refuses(case)

    # The formula, in steps. A mistake is a subclass with one of them wrong.

    def compute(self, x: Arrays, system: System) -> Arrays:
        q, k, v, S, z = (system.convert(x[name]) for name in ("q", "k", "v", "S", "z"))
        n, position, xp = q.shape[-2], int(x.get("position", 0)), system.xp
        S, z = self.first_state(S), self.first_state(z)
        s = self.factor(x["q"].shape[-1])
        q = q * number(system, s) if self.scale_place == "q" else q
        if self.rope_place == "before":
            q, k = self.rotated_q(q, position, system), self.rotated_k(k, position, system)
        gq, gk = self.features_q(q), self.features_k(k)
        fq, fk = gq, gk
        if self.rope_place == "after":
            fq, fk = self.rotated_q(gq, position, system), self.rotated_k(gk, position, system)
        heads = self.head_of_keys(q.shape[1], k.shape[1])
        transpose = xp.matrix_transpose
        K, Z, V = (xp.take(a, heads, axis=1) for a in (fk, gk, v))
        scores = weighed(system, fq @ transpose(K), self.seen(n))
        num = scores @ V + weighed(system, fq @ xp.take(S, heads, axis=1), self.seen_of_state(n)[:, None])
        out: Arrays = {}
        if self.scale_place == "scores":
            num = num * number(system, s)
        if self.normalise:
            den = xp.sum(weighed(system, gq @ transpose(Z), self.seen_by_z(n)), axis=-1, keepdims=True)
            of_state = gq @ xp.take(z, heads, axis=1)[..., None]
            den = den + weighed(system, of_state, self.seen_of_z(n)[:, None])
            if self.scale_place == "scores":
                den = den * number(system, s)
            out["o"] = self.divided(num, den, system)
        else:
            out["o"] = num
        kept = weighed(system, fk, self.kept(n)[:, None])
        out["S"] = weighed(system, S, np.asarray(self.kept_of_state(n))) + transpose(kept) @ v
        kept_z = weighed(system, gk, self.kept_by_z(n)[:, None])
        out["z"] = weighed(system, z, np.asarray(self.kept_of_z(n))) + xp.sum(kept_z, axis=-2)
        return out

    def first_state(self, S: Array) -> Array:
        """The state to start from."""
        return S

    def factor(self, d: int) -> Fraction | float:
        """The factor of the scores."""
        return d**-0.5 if self.scale == "d" else float(self.scale)

    def features_q(self, q: Array) -> Array:
        return self.phi_function(q)

    def features_k(self, k: Array) -> Array:
        return self.phi_function(k)

    def positions(self, n: int, first: int) -> list[int]:
        return list(range(first, first + n))

    def rotated_q(self, x: Array, first: int, system: System) -> Array:
        return self.rotated(x, self.positions(x.shape[-2], first), system)

    def rotated_k(self, x: Array, first: int, system: System) -> Array:
        return self.rotated(x, self.positions(x.shape[-2], first), system)

    def rotated(self, x: Array, positions: list[int], system: System) -> Array:
        """R_p x"""
        width = self.rope_width or x.shape[-1]
        if self.rope == "none" or not positions:
            return x
        base = Fraction(self.rope_base)
        return Rope(angle_table(system, width, base=base), self.rope)(x, positions)

    def head_of_keys(self, heads: int, groups: int) -> HostArray:
        """The head of k and v that each head of q takes."""
        each = np.arange(heads)
        return each % max(groups, 1) if self.sharing == "cyclic" else each // max(heads // max(groups, 1), 1)

    def seen(self, n: int) -> HostArray:
        """(n, n): how often the numerator of token t counts token s."""
        return np.tri(n, k=0 if self.reads == "after" else -1)

    def seen_by_z(self, n: int) -> HostArray:
        """The same of the denominator."""
        return self.seen(n)

    def seen_of_state(self, n: int) -> HostArray:
        """(n,): how often the numerator of token t counts the first S."""
        return np.ones(n)

    def seen_of_z(self, n: int) -> HostArray:
        """The same of the denominator and the first z."""
        return self.seen_of_state(n)

    def kept(self, n: int) -> HostArray:
        """(n,): how often the last S counts token s."""
        return np.ones(n)

    def kept_by_z(self, n: int) -> HostArray:
        return self.kept(n)

    def kept_of_state(self, n: int) -> float:
        """How often the last S counts the first."""
        return 1.0

    def kept_of_z(self, n: int) -> float:
        return self.kept_of_state(n)

    def divided(self, num: Array, den: Array, system: System) -> Array:
        """num / (den + ε)"""
        if not self.eps:
            return num / den
        eps = system.convert(np.full(den.shape, self.eps))
        return num / (den + eps if self.eps_place == "add" else system.xp.maximum(den, eps))

    # What it is tried on

    def is_exact(self, case: Case, dtype: str) -> bool:
        """Whole numbers in which every sum and quotient is exact, if the conventions allow it."""
        power = math.frexp(float(self.factor(case.d)))[0] == 0.5
        easy = self.phi in EXACT_MAPS and self.rope == "none" and power and not (self.eps and self.normalise)
        wide = FORMATS[self.sums_in(dtype)][0] >= 24 or case.n < 60
        return case.values == "whole" and easy and wide and case.d >= 4

    def inputs(self, case: Case, dtype: str) -> Arrays:
        """Whole numbers as in `whole_numbers`, or multiples of 1/8, made large or tiny."""
        if case.values == "whole" and self.phi in EXACT_MAPS and case.d >= 4:
            return self.whole_numbers(case)
        rng, low = seeded(case), 1 if self.phi in ("identity", "relu", "relu2") else -16
        B, H, G, n, d, m = case.batch, case.heads, case.groups, case.n, case.d, case.m
        size = {"large": 8.0, "tiny": 2.0**-10}.get(case.values, 1.0)
        q, k = (rng.integers(low, 17, (B, h, n, d)) / 8 * size for h in (H, G))
        v = rng.integers(-16, 17, (B, G, n, m)) / 8 * size
        r = self.features_of(d)
        S, z = rng.integers(-8, 9, (B, G, r, m)) / 8, rng.integers(1, 9, (B, G, r)) / 8
        state = {"S": S * case.start, "z": z * case.start}
        arrays = {"q": q, "k": k, "v": v} | state
        return {name: round_to(a, dtype) for name, a in arrays.items()} | {"position": case.position}

    def whole_numbers(self, case: Case) -> Arrays:
        """Keys are one-hot, values ±1, partial sums small, denominators powers of two.

        Feature 0 is written as 1 and feature 1 as 16 by the first token, whose value is 0, or by
        the state. So a query of a in feature 0 and b in feature 1 adds a + 16 b to its denominator,
        up to a power of two. Every other token writes one of the other features, and is read by all
        later queries of that feature.
        """
        rng = seeded(case)
        B, H, G, n, r, m = case.batch, case.heads, case.groups, case.n, case.d, case.m
        k, v, q = np.zeros((B, G, n, r)), np.zeros((B, G, n, m)), np.zeros((B, H, n, r))
        S, z = np.zeros((B, G, r, m)), np.zeros((B, G, r))
        if case.start:
            S[:, :, 2:], z[:, :, 2:] = rng.integers(-1, 2, (B, G, r - 2, m)), rng.integers(0, 2, (B, G, r - 2))
            z[:, :, :2] = 1, 16
        elif n:
            k[:, :, 0, :2] = 1, 16
        first = 0 if case.start else 1
        written = 2 + (np.arange(n) + rng.integers(r - 2)) % (r - 2)
        run = S.copy()
        for t in range(first, n):
            j = written[t]
            k[:, :, t, j] = 1
            sign = rng.choice([-1.0, 1.0], (B, G, m))
            sign = np.where(np.abs(run[:, :, j] + sign) > 24, -sign, sign)  # sums stay small
            v[:, :, t] = sign
            run[:, :, j] += sign
        counts = z[:, :, None] + np.cumsum(k, axis=2) - (k if self.reads == "before" else 0)
        heads = self.head_of_keys(H, G)
        for t in range(n):
            others = 2 + rng.integers(r - 2, size=(B, H))
            q[np.arange(B)[:, None], np.arange(H), t, others] = 1
            q[:, :, t, written[t]] = 1
            mass = (q[:, :, t] * counts[:, heads, t]).sum(-1)
            top = 2.0 ** np.ceil(np.log2(mass + 1))
            rest = top - mass
            step = 2.0 ** max(int(top.max()).bit_length() - 13, 0)  # b stays a number of bfloat16
            q[:, :, t, 1] = np.floor(rest / (16 * step)) * step
            q[:, :, t, 0] = rest - 16 * q[:, :, t, 1]
        zero, less = EXACT_MAPS[self.phi]
        s = float(self.factor(r)) if self.scale_place == "q" else 1.0
        q, k = (np.where(f == 0, zero, f + less) for f in (q, k))
        return {"q": q / s, "k": k, "v": v, "S": S, "z": z, "position": case.position}


def silu(x: Array) -> Array:
    """φ(x) = x / (1 + exp(−x))"""
    from ...systems.floats import array_namespace

    return x / (1 + array_namespace(x).exp(-x))


MORE_MAPS = {"silu": silu}


def number(system: System, x: Fraction | float) -> Array:
    return system.convert(np.asarray(float(x)))


def weighed(system: System, x: Array, weights: HostArray) -> Array:
    """x times weights that are whole numbers, mostly 0 and 1, without a rounding for those."""
    xp, shape = system.xp, np.broadcast_shapes(x.shape, weights.shape)
    x, w = xp.broadcast_to(x, shape), np.broadcast_to(weights, shape)
    if np.all((w == 0) | (w == 1)):
        return xp.where(w == 1, x, xp.zeros_like(x))
    return x * system.convert(np.ascontiguousarray(w))
