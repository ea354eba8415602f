"""Linear attention, with every convention that kernels have for it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from ...arrays import Array, HostArray
from ...attention.feature_maps import FEATURE_MAPS, feature_map
from ...attention.rope import Rope, Table
from ...systems import RunningError, System
from ...systems.array import ArraySystem, Frequencies
from ...systems.floats import array_namespace, device
from ...systems.formats import FORMATS, round_to
from ..axes import Axes
from ..plan import Case
from ..running import loosened
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
    sharing: str = convention(
        "none", "where k has fewer heads: head h takes h // repeats, or h mod groups", "none", "repeat", "cyclic"
    )
    state_axes: str = convention("BHKV", "the order of the axes of S", others=("BHKV", "BHVK"))
    z_axes: str = convention("BHK", "the order of the axes of z")
    state_dtype: str = convention("", "the dtype of S and z (default: that in which it adds)")

    family: ClassVar[str] = "linear_attention"
    small: ClassVar[tuple[str, ...]] = ("eps", "eps_place")
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

    def idle(self) -> set[str]:
        found = {"rope_base", "rope_width", "rope_place"} if self.rope == "none" else set()
        found |= {"eps", "eps_place"} if not self.normalise else {"eps_place"} if not self.eps else set()
        alike = self.scale == "1" or (self.scale_place == "q" and self.phi in ("identity", "relu"))
        return found | ({"scale_place"} if alike else set()) | ({"scale"} if self.scale_is_idle() else set())

    def scale_is_idle(self) -> bool:
        """A factor of numerator and denominator is none."""
        linear = self.scale_place == "scores" or self.phi in ("identity", "relu", "relu2")
        return self.normalise and linear and not self.eps

    @property
    def carries(self) -> bool:
        """With RoPE, the rest of a text needs its position, too."""
        return super().carries and (self.rope == "none" or "position" in self.calls.given)

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
        n, d, position = q.shape[-2], q.shape[-1], int(x.get("position", 0))
        if self.scale_place == "q":
            q = q * number(system, self.factor(d))
        fq, fk, gq, gk = self.features(q, k, position, system)
        v, z = self.values(v, position, system), z[..., None]
        one = system.convert(np.ones((*v.shape[:-1], 1)))  # z is an S whose values are 1
        heads = self.head_of_keys(q.shape[1], k.shape[1])
        num = self.read(fq, *choose_heads(system, heads, fk, v, S), self.seen(n), self.seen_of_state(n), system)
        if self.scale_place == "scores":
            num = num * number(system, self.factor(d))
        out: Arrays = {"o": num}
        if self.normalise:
            den = self.read_z(
                gq, *choose_heads(system, heads, gk, one, z), self.seen_by_z(n), self.seen_of_z(n), system
            )
            if self.scale_place == "scores":
                den = den * number(system, self.factor_of_den(d))
            out["o"] = self.divided(num, den, system)
        out["S"] = self.write(fk, v, S, self.kept(n), self.kept_of_state(n), system)
        out["z"] = self.write_z(gk, one, z, self.kept_by_z(n), self.kept_of_z(n), system)[..., 0]
        return out

    def factor(self, d: int) -> Fraction | float:
        """The factor of the scores."""
        return d**-0.5 if self.scale == "d" else float(self.scale)

    def factor_of_den(self, d: int) -> Fraction | float:
        return self.factor(d)

    def values(self, v: Array, position: int, system: System) -> Array:
        """What is added up: v."""
        return v

    def features(self, q: Array, k: Array, position: int, system: System) -> tuple[Array, Array, Array, Array]:
        """Of q and of k in the numerator, and of q and of k in the denominator."""
        if self.rope_place == "before":
            q, k = self.rotated_q(q, position, system), self.rotated_k(k, position, system)
        gq, gk = self.features_q(q), self.features_k(k)
        if self.rope_place == "before":
            return gq, gk, gq, gk
        return self.rotated_q(gq, position, system), self.rotated_k(gk, position, system), gq, gk

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
        if self.rope == "none" or not positions:
            return x
        return Rope(self.table(self.rope_width or x.shape[-1], system), self.rope)(x, positions)

    def frequencies(self, width: int) -> Frequencies:
        """θ_i = base^(−2i/width), as bases and exponents."""
        return [(Fraction(self.rope_base), Fraction(-2 * i, width)) for i in range(width // 2)]

    def table(self, width: int, system: System) -> Table:
        """Positions -> cos pθ_i and sin pθ_i, and how far off a kernel is that rounds its angles."""
        theta = self.frequencies(width)
        if not isinstance(system, RunningError):
            return lambda positions: system.angles(theta, positions)
        rounds = RunningError(system.format if FORMATS[system.format][0] >= 24 else "float32")
        log = rounds.function("log", number(rounds, self.rope_base))
        powers = rounds.function("exp", rounds.convert(np.array([float(e) for _, e in theta])) * log)

        def table(positions: Any) -> tuple[Array, Array]:
            angle = rounds.convert(np.asarray(positions, dtype=np.float64)[:, None]) * powers
            cos, sin = system.angles(theta, positions)
            off = [rounds.function(name, angle).planes[1] for name in ("cos", "sin")]
            return loosened(cos, off[0]), loosened(sin, off[1])

        return table

    def head_of_keys(self, heads: int, groups: int) -> HostArray:
        """The head of k and v that each head of q takes."""
        each = np.arange(heads)
        return each % max(groups, 1) if self.sharing == "cyclic" else each // max(heads // max(groups, 1), 1)

    def read(
        self, f: Array, K: Array, V: Array, S: Array, seen: HostArray, of_state: HostArray, system: System
    ) -> Array:
        """f_t · (Σ_s seen[t, s] K_s V_sᵀ + of_state[t] S)"""
        xp = system.xp
        scores = weighed(system, f @ xp.matrix_transpose(K), seen)
        # one sum, since a kernel may begin it with the state
        o = xp.concat([scores, weighed(system, f, of_state[:, None])], axis=-1) @ xp.concat([V, S], axis=-2)
        if not isinstance(system, RunningError):
            return o
        f, K, V, S = (abs(a.planes[0]).astype(float) + a.planes[1] for a in (f, K, V, S))
        size = (f @ K.swapaxes(-1, -2) * abs(seen)) @ V + (f @ S) * abs(of_state)[:, None]
        # or it may multiply keys and values first, and add those
        return system.wrap((o.planes[0], o.planes[1] + system.gamma(sum(K.shape[-2:]) + 2) * size))

    def read_z(self, *steps: Any) -> Array:
        """The same in the denominator."""
        return self.read(*steps)

    def write(self, K: Array, V: Array, S: Array, kept: HostArray, of_state: float, system: System) -> Array:
        """Σ_s kept[s] K_s V_sᵀ + of_state S"""
        xp, kept_keys = system.xp, weighed(system, K, kept[:, None])
        of_itself = system.convert(
            np.broadcast_to(of_state * np.eye(S.shape[-2]), (*S.shape[:2], *[S.shape[-2]] * 2)).copy()
        )
        return xp.concat([xp.matrix_transpose(kept_keys), of_itself], axis=-1) @ xp.concat([V, S], axis=-2)

    def write_z(self, *steps: Any) -> Array:
        return self.write(*steps)

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
        """Whole numbers as in `whole_numbers`, multiples of 1/8, made large or tiny, or fine numbers."""
        if case.values == "whole" and self.phi in EXACT_MAPS and case.d >= 4:
            return self.whole_numbers(case)
        rng, low = seeded(case), 1 if self.phi in ("identity", "relu", "relu2") else -16
        B, H, G, n, d, m = case.batch, case.heads, case.groups, case.n, case.d, case.m
        size = {"large": 8.0, "tiny": 2.0**-10}.get(case.values, 1.0)
        q, k = (rng.integers(low, 17, (B, h, n, d)) / 8 * size for h in (H, G))
        v = rng.integers(-16, 17, (B, G, n, m)) / 8 * size
        if case.values == "tiny" and self.phi in ("elu+1", "exp"):  # exp(−8): features are tiny, too
            q, k = q - 8, k - 4
        r = self.features_of(d)
        S, z = rng.integers(-8, 9, (B, G, r, m)) / 8, rng.integers(1, 9, (B, G, r)) / 8
        state = {"S": S * case.start, "z": z * case.start}
        arrays = {"q": q, "k": k, "v": v} | state
        if case.values == "fine":  # with all the digits of the dtype
            arrays = {name: a * rng.uniform(0.75, 1.0, a.shape) for name, a in arrays.items()}
        return {name: round_to(a, dtype) for name, a in arrays.items()} | {"position": case.position}

    def whole_numbers(self, case: Case) -> Arrays:
        """Keys are one-hot, values ±1, partial sums small, denominators powers of two.

        Feature 0 is written as 1 and feature 1 as 16 by the first token, whose value is 0, or by
        the state. So a query of a in feature 0 and b in feature 1 adds a + 16 b to its denominator,
        up to a power of two, or to minus one if features may be negative. Every other token writes one of the other features, and is read by all
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
            if self.phi == "identity" and (not self.eps or self.eps_place == "add"):
                top = top * rng.choice([-1.0, 1.0], top.shape)
            rest = top - mass
            step = 2.0 ** max(int(abs(rest).max()).bit_length() - 12, 0)  # b stays a number of bfloat16
            q[:, :, t, 1] = np.floor(rest / (16 * step)) * step
            q[:, :, t, 0] = rest - 16 * q[:, :, t, 1]
        zero, less = EXACT_MAPS[self.phi]
        s = float(self.factor(r)) if self.scale_place == "q" else 1.0
        q, k = (np.where(f == 0, zero, f + less) for f in (q, k))
        return {"q": q / s, "k": k, "v": v, "S": S, "z": z, "position": case.position}


def silu(x: Array) -> Array:
    """φ(x) = x / (1 + exp(−x))"""
    return x / (1 + array_namespace(x).exp(-x))


def elu_and_one(x: Array) -> Array:
    """φ(x) = elu(x) + 1, as it says: less accurate than max(x, 0) + exp(min(x, 0)) where that is small."""
    xp = array_namespace(x)
    zero = xp.zeros_like(x)
    return xp.maximum(x, zero) + ((xp.exp(xp.minimum(x, zero)) - 1) + 1)


MORE_MAPS = {"silu": silu, "elu+1": elu_and_one}


def number(system: System, x: Fraction | float) -> Array:
    return system.convert(np.asarray(float(x)))


def choose_heads(system: System, heads: HostArray, *arrays: Array) -> list[Array]:
    """Of each array (batch, head, ...), these heads."""
    index = heads if isinstance(system, ArraySystem) else system.xp.asarray(heads, device=device(arrays[0]))
    return [system.xp.take(a, index, axis=1) for a in arrays]


def weighed(system: System, x: Array, weights: HostArray) -> Array:
    """x times weights that are whole numbers, mostly 0 and 1, without a rounding for those."""
    xp, shape = system.xp, np.broadcast_shapes(x.shape, weights.shape)
    x, w = xp.broadcast_to(x, shape), np.broadcast_to(weights, shape)
    if np.all((weights == 0) | (weights == 1)):
        kept = w == 1
        kept = kept if isinstance(system, ArraySystem) else xp.asarray(kept, device=device(x))
        return xp.where(kept, x, xp.zeros_like(x))
    return x * system.convert(np.ascontiguousarray(w))
