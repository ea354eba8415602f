"""Recurrences whose state is a matrix, with every convention that kernels have for them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ...arrays import Array, HostArray
from ...errors import brief, choose
from ...systems import Float, RunningError, System
from ...systems.floats import quiet
from ...systems.formats import FORMATS, round_to
from ..axes import Axes
from ..plan import Case
from ..spec import DTYPES, Arrays, Spec, convention, seeded

OURS = {"g": "BHTKV", "beta": "BHTV", "u": "HK", "S": "BHKV"}
OF_DECAY = {"none": "", "head": "", "key": "K", "value": "V"}
NEVER = 4096.0  # e^(−4096) is 0 in every format
PLAIN = Float("numpy", "float64")
Pair = tuple[HostArray, HostArray]  # numbers, and how far each may be off


class Token(NamedTuple):
    """The arrays of token t of n: of k, b and u columns, of v, a and β rows."""

    t: int
    n: int
    k: HostArray
    v: HostArray
    w: HostArray
    beta: HostArray
    a: HostArray
    b: HostArray
    u: HostArray


@dataclass(frozen=True, kw_only=True)
class Recurrence(Spec):
    """A state that decays, that a token may erase in part, and that it writes.

    D_t = w_t S_{t-1}, where w_t comes from g_t
    add    S_t = D_t + β_t k_t v_tᵀ
    delta  S_t = D_t + β_t k_t (v_t − D_tᵀ k_t)ᵀ
    rank   S_t = D_t + b_t a_tᵀ D_t + β_t k_t v_tᵀ
    o_t = q_tᵀ S_t, or q_tᵀ D_t, or q_tᵀ S_{t-1}; with a bonus, q_tᵀ Diag(u) k_t v_tᵀ more

    If `erases` is "before", it is k_t or a_t times S_{t-1} instead of D_t. Without k or q, these
    are one entry, 1.
    """

    decay: str = convention(
        "none", "what has a decay of its own: a head, an entry of k, one of v", *OF_DECAY, others=("none",)
    )
    gate: str = convention(
        "log",
        "the decay is e^g, g, e^(−e^g), e^(−g), e^(βg), or without g 1 − 2^(−5−head)",
        *("log", "factor", "-exp", "-log", "dt", "retnet"),
    )
    gate_axes: str = convention("", "the order of the axes of g (default: those of q that the decay has)")
    gate_dtype: str = convention("", "the dtype of g (default: that of q)")
    least_decay: float = convention(0.0, "the least decay of a token that it is made for, as a factor")
    write: str = convention("add", "whether a token adds, corrects, or changes S by b aᵀ", "add", "delta", "rank")
    erases: str = convention("after", "whether it erases after or before the decay", "after", "before")
    beta: str = convention("none", "whether β is the factor of all that is written, or of v", "none", "write", "v")
    beta_axes: str = convention("", "the order of the axes of β (default: those of q without D)")
    reads: str = convention(
        "after", "whether o_t is read after the write, between decay and write, or before", "after", "between", "before"
    )
    bonus: bool = convention(False, "whether o_t counts token t once more, times u", others=(True, False))
    scale: str = convention("1", "the factor of q: a number, or 'd' for d^(-1/2)", others=("1", "d"))
    l2norm: str = convention(
        "none", "the norm that divides q and k: √(Σ+ε), √Σ+ε, or max(√Σ, ε)", "none", "inside", "outside", "max"
    )
    l2norm_eps: float = convention(1e-6, "the ε of that norm", others=(1e-6, 1e-5, 1e-8, 1e-12))
    sharing: str = convention(
        "none", "where heads are in groups: head h takes h // repeats, or h mod groups", "none", "repeat", "cyclic"
    )
    groups_of: str = convention("kv", "which arrays then have fewer heads: k and v, or q and k", "kv", "qk")
    state_axes: str = convention("BHKV", "the order of the axes of S")
    state_dtype: str = convention("", "the dtype of S (default: that in which it adds)")

    family: ClassVar[str] = "recurrence"
    given: ClassVar[tuple[str, ...]] = ("q", "k", "v", "g", "beta", "u", "a", "b", "S")
    made: ClassVar[tuple[str, ...]] = ("o", "S")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, dtype in (("gate_dtype", self.gate_dtype), ("state_dtype", self.state_dtype)):
            choose("Recurrence", name, dtype, ("", *DTYPES))
        needed = {
            "g": self.decay != "none" and self.gate != "retnet",
            "beta": self.beta != "none" or (self.decay != "none" and self.gate == "dt"),
            "u": self.bonus,
            "a": self.write == "rank",
            "b": self.write == "rank",
        }
        if missing := [name for name, is_needed in needed.items() if is_needed and name not in self.calls.given]:
            raise ValueError(f"Recurrence: `call` must give {' and '.join(missing)}, got {brief(self.call)}")

    # How its arrays lie

    def axes_of(self, name: str) -> Axes:
        if name not in OURS:
            return super().axes_of(name)
        word, letter = {"g": (self.gate_axes, OF_DECAY[self.decay]), "beta": (self.beta_axes, "")}.get(name, ("", ""))
        word = {"S": self.state_axes, "u": "HK"}.get(name, word or self.axes.replace("D", letter).replace("()", ""))
        option = {"S": "state_axes", "g": "gate_axes", "beta": "beta_axes"}.get(name, "axes")
        return Axes.read(f"Recurrence: `{option}`", word, OURS[name])

    def sizes_of(self, name: str, case: Case) -> dict[str, int]:
        few, keys = case.groups, case.d if {"q", "k"} & self.calls.given else 1
        heads = few if name in ("q", "k") else case.heads
        if self.groups_of == "kv":
            heads = case.heads if name in ("q", "o") else few
        sizes = {"B": case.batch, "H": heads, "T": case.n, "K": keys, "V": case.m}
        sizes["D"] = case.m if name in ("v", "o") else keys
        axes = self.axes_of(name)
        return {c: 1 if c in axes.missing and name in ("g", "beta") else sizes[c] for c in axes.ours}

    def dtype_of(self, name: str, dtype: str) -> str:
        if name == "S":
            return self.state_dtype or self.sums_in(dtype)
        return self.gate_dtype or dtype if name == "g" else dtype

    @property
    def state(self) -> tuple[str, ...]:
        return ("S",)

    def refuses(self, case: Case) -> str:
        if self.sharing == "none" and case.groups != case.heads:
            return "its heads have no groups"
        return super().refuses(case)

    # The formula, in steps. A mistake is a subclass with one of them wrong.

    def compute(self, x: Arrays, system: System) -> Arrays:
        q, k, w = (pair(f(x, system)) for f in (self.queries, self.keys, self.decays))
        heads = self.head_of_few(max(q[0].shape[1], x["S"].shape[1]), k[0].shape[1])
        if self.groups_of == "qk":
            q, k, heads = take_heads(q, heads), take_heads(k, heads), np.arange(len(heads))
        y, S = self.tokens(x, k[0], w[0]), self.first_state(x["S"])
        bound = Bound(self, y, S, k, w, system) if isinstance(system, RunningError) else None
        read, states = [], [S]
        for token in self.each(y):
            before = self.entering(S, token)
            decayed = self.decayed(before, token)
            made = self.written(before, decayed, token)
            S = self.stored(made)
            read.append({"after": S, "between": decayed, "before": before}[self.reads])
            states.append(S)
            if bound:
                bound.add(token.t, made, S)
        R = np.stack(read or [S], axis=2)[:, heads, : y.n]
        k, v, last = take_heads(k, heads), x["v"][:, heads], self.last_state(states)
        u = x["u"][heads, None] if self.bonus else 0.0 * k[0]
        o = (q[0][..., None, :] @ R)[..., 0, :] + np.sum(q[0] * u * k[0], axis=-1, keepdims=True) * v
        if not bound:
            return {"o": o, "S": last}
        off = bound.of_output(q, k, v, u, heads), np.broadcast_to(bound.of_state(), last.shape)
        return {"o": bound.system.wrap((o, off[0])), "S": bound.system.wrap((last, off[1]))}

    def head_of_few(self, heads: int, groups: int) -> HostArray:
        """The group of each head."""
        each = np.arange(heads)
        return each % max(groups, 1) if self.sharing == "cyclic" else each // max(heads // max(groups, 1), 1)

    def queries(self, x: Arrays, system: System) -> Array:
        return self.normalised_q(system.convert(x["q"]), system) * number(system, self.factor(x["q"].shape[-1]))

    def keys(self, x: Arrays, system: System) -> Array:
        return self.normalised_k(system.convert(x["k"]), system)

    def factor(self, d: int) -> float:
        """The factor of q."""
        return float(d**-0.5 if self.scale == "d" else self.scale)

    def normalised_q(self, x: Array, system: System) -> Array:
        return self.normalised(x, system)

    def normalised_k(self, x: Array, system: System) -> Array:
        return self.normalised(x, system)

    def normalised(self, x: Array, system: System) -> Array:
        """x / √(Σ x² + ε)"""
        if self.l2norm == "none":
            return x
        xp, eps = system.xp, number(system, self.l2norm_eps)
        squares = xp.sum(x * x, axis=-1, keepdims=True)
        if self.l2norm == "inside":
            return x / xp.sqrt(squares + eps)
        norm = xp.sqrt(squares)
        return x / (norm + eps if self.l2norm == "outside" else xp.maximum(norm, xp.broadcast_to(eps, norm.shape)))

    def decays(self, x: Arrays, system: System) -> Array:
        """w, (batch, heads, tokens, keys, values): 1 long where all decays are the same."""
        if self.decay == "none":
            return system.convert(np.ones((1, 1, 1, 1, 1)))
        if self.gate == "retnet":
            g = 1 - 2.0 ** (-5 - np.arange(x["S"].shape[1]))[None, :, None, None, None]
        else:
            g = self.gates(x["g"])
        return self.decay_of(system.convert(g), x, system)

    def gates(self, g: HostArray) -> HostArray:
        return g

    def decay_of(self, g: Array, x: Arrays, system: System) -> Array:
        xp = system.xp
        if self.gate in ("factor", "retnet"):
            return g
        if self.gate == "dt":
            return xp.exp(g * system.convert(x["beta"][..., None, :]))
        return xp.exp(-xp.exp(g) if self.gate == "-exp" else -g if self.gate == "-log" else g)

    def rates(self, x: Arrays) -> HostArray:
        """β as it is written"""
        return x["beta"] if self.beta != "none" else np.ones((1, 1, 1, 1))

    def tokens(self, x: Arrays, k: HostArray, w: HostArray) -> Token:
        """The arrays of all tokens."""
        n = x["v"].shape[2]
        a, b = (x["a"], x["b"]) if self.write == "rank" else (k, k)
        beta = self.rates(x)[..., None, :]
        u = (x["u"] if self.bonus else np.zeros((1, 1)))[None, :, None, :, None]
        w, beta, u = (np.broadcast_to(y, (*y.shape[:2], n, *y.shape[3:])) for y in (w, beta, u))
        return Token(0, n, k[..., None], x["v"][..., None, :], w, beta, a[..., None, :], b[..., None], u)

    def each(self, y: Token) -> Iterator[Token]:
        for t in range(y.n):
            yield Token(t, y.n, *(part[:, :, t] for part in y[2:]))

    def first_state(self, S: HostArray) -> HostArray:
        """The state to start from."""
        return S

    def entering(self, S: HostArray, y: Token) -> HostArray:
        """The state that token t finds."""
        return S

    def decayed(self, S: HostArray, y: Token) -> HostArray:
        return np.asarray(y.w * S)

    def written(self, S: HostArray, D: HostArray, y: Token) -> HostArray:
        """The state after token t, from the state before it and the decayed one."""
        R = D if self.erases == "after" else S
        if self.write == "delta":
            return np.asarray(D + y.k * self.correction(R, y))
        return np.asarray((D + y.b * (y.a @ R) if self.write == "rank" else D) + self.addition(y))

    def correction(self, R: HostArray, y: Token) -> HostArray:
        """β (v − Rᵀ k), or β v − Rᵀ k"""
        known = y.k.swapaxes(-1, -2) @ R
        return np.asarray(y.beta * y.v - known if self.beta == "v" else y.beta * (y.v - known))

    def addition(self, y: Token) -> HostArray:
        return np.asarray(y.k * (y.beta * y.v))

    def stored(self, S: HostArray) -> HostArray:
        """The state as it is kept for the next token."""
        return S

    def last_state(self, states: Sequence[HostArray]) -> HostArray:
        """The state that is returned, of all, the first one included."""
        return states[-1]

    # What it is tried on

    def is_exact(self, case: Case, dtype: str) -> bool:
        """Whole numbers, halves, and decays 0 and 1, which nothing rounds."""
        changing = "T" not in self.axes_of("g").missing and not self.least_decay
        fine = self.decay == "none" or self.gate == "dt" or changing
        power = math.frexp(self.factor(case.d))[0] == 0.5
        wide = FORMATS[self.sums_in(dtype)][0] >= 24
        return case.values == "whole" and fine and self.gate != "retnet" and power and wide and self.l2norm == "none"

    def inputs(self, case: Case, dtype: str) -> Arrays:
        x = self.plain_numbers(case) if case.values != "whole" else self.whole_numbers(case, self.is_exact(case, dtype))
        return {name: round_to(a, self.dtype_of(name, dtype)) for name, a in x.items()}

    def shape_of(self, name: str, case: Case) -> tuple[int, ...]:
        return tuple(self.sizes_of(name, case).values())

    def plain_numbers(self, case: Case) -> Arrays:
        """Multiples of 1/8, or fine numbers; where tokens erase, keys and a of a length below 1."""
        rng, shape = seeded(case), {name: self.shape_of(name, case) for name in (*self.given, "o")}
        size = {"large": 8.0, "tiny": 2.0**-10}.get(case.values, 1.0)
        x = {name: rng.integers(-16, 17, shape[name]) / 8 for name in ("q", "k", "v", "a", "b")}
        erased = 2 * math.sqrt(shape["k"][-1])
        short = 1.0 if self.write == "add" or self.l2norm != "none" else 1 / erased
        size_k = min(size, 1.0) if short < 1 else size
        x |= {"q": x["q"] * size, "k": x["k"] * size_k * short, "v": x["v"] * size}
        x["a"] = -x["a"] / erased
        x["b"] = -x["a"] * rng.integers(4, 9, shape["b"]) / 8
        x["u"] = rng.integers(-8, 9, shape["u"]) / 8
        x["S"] = rng.integers(-8, 9, shape["S"]) / 8 * size * case.start
        x["beta"] = rng.integers(1, 9, shape["beta"]) / 8
        steps, high = {"large": (8, 8), "tiny": (1000, 4)}.get(case.values, (16, 5))
        w = 1 - rng.integers(0, high, shape["g"]) / steps
        if case.values == "fine":
            x = {name: a * rng.uniform(0.75, 1.0, a.shape) for name, a in x.items()}
            w = w * rng.uniform(0.9, 1.0, w.shape)
        return self.given_of(x, w)

    def whole_numbers(self, case: Case, exact: bool) -> Arrays:
        """Keys are one-hot and states small: multiples of 1/8 below 8, if decays are 0 and 1.

        Each token is drawn again until the state that it leaves is such a one; else it writes 0.
        """
        rng, shape = seeded(case), {name: self.shape_of(name, case) for name in self.given}
        x: Arrays = {"q": rng.integers(-1, 2, shape["q"]) * 1.0, "u": rng.integers(-2, 3, shape["u"]) * 1.0}
        x["S"] = rng.integers(-4, 5, shape["S"]) * float(case.start)
        B, H, n, d = (*shape["S"][:2], case.n, shape["k"][-1])
        x["k"] = np.eye(d)[rng.integers(0, d, shape["k"][:-1])]
        if exact:
            often = 2.0 ** -(3 + np.arange(shape["g"][1]) % 3)[None, :, None, None, None]
            w = 1.0 * (rng.random(shape["g"]) >= (0.5 if "T" in self.axes_of("g").missing else often))
        else:
            w = np.maximum(rng.choice([1, 1, 1, 0.5, 0.25], shape["g"]), self.least_decay)
        unit = 2.0 if self.write == "add" and self.beta != "none" else 1.0
        top, draws = 2 if self.write == "add" else 5, list[Arrays]()
        for _ in range(3):
            i = rng.integers(0, d, (B, H, n))
            j = np.where(rng.random((B, H, n)) < 0.75, i, rng.integers(0, d, (B, H, n)))
            beta = rng.choice([0.0, 0.5, 0.5, 1.0, 1.0], shape["beta"])
            v = rng.integers(1 - top, top, shape["v"]) * unit
            b = np.eye(d)[j] * rng.choice([0.5, 1.0, 1.0], (B, H, n, 1))
            draws.append({"beta": beta, "v": v, "a": -np.eye(d)[i], "b": b})
        draws.append({name: np.zeros_like(a) for name, a in draws[0].items()})
        return self.settled(self.given_of(x, w), draws, 8.0 if exact else 0.0)

    @quiet()
    def settled(self, x: Arrays, draws: list[Arrays], grid: float) -> Arrays:
        """The first of the draws for each token that leaves a state below 8, and on a grid."""
        k = pair(self.keys(x, PLAIN))[0]
        if self.groups_of == "qk":
            k = k[:, self.head_of_few(x["S"].shape[1], k.shape[1])]
        tries = [list(self.each(self.tokens(x | draw, k, pair(self.decays(x | draw, PLAIN))[0]))) for draw in draws]
        found, S = {name: a.copy() for name, a in draws[-1].items()}, x["S"]
        for t in range(len(tries[0])):
            after, waits = S, np.ones(S.shape[:2], dtype=bool)
            for draw, tokens in zip(draws, tries, strict=True):
                made = self.written(S, self.decayed(S, tokens[t]), tokens[t])
                fine = np.all((np.abs(made) <= 8) & (np.rint(made * grid) == made * grid), axis=(-1, -2))
                taken = waits & (fine | (draw is draws[-1]))
                after = np.where(taken[..., None, None], made, after)
                for name, a in found.items():
                    a[:, :, t] = np.where(taken[..., None], draw[name][:, :, t], a[:, :, t])
                waits &= ~taken
                if not waits.any():
                    break
            S = after
        return x | found

    def given_of(self, x: Arrays, w: HostArray) -> Arrays:
        """The arrays, with a g that makes the decays w; k and q are 1 if they are not given."""
        w = np.maximum(w, self.least_decay)
        with np.errstate(divide="ignore"):
            L = np.maximum(np.log(w), -NEVER)
            x["g"] = {"factor": w, "-log": -L, "-exp": np.maximum(np.log(-L), -NEVER)}.get(self.gate, L)
        for name in {"q", "k"} - self.calls.given:
            x[name] = np.ones_like(x[name])
        return x


class Bound:
    """How far the state of any kernel may be from S.

    S_t = A_t S_{t-1} + C_t. Errors are of each entry if A_t only multiplies entries; if tokens
    erase, of each column, in the Euclidean norm, and grow by `growth` = ‖A_t‖₂ at most. The sums of
    a kernel, in any order, are bounded by ‖A_t‖ ‖S‖ + ‖C_t‖, the `size`; each token adds what
    rounding makes of these. A kernel that erases may solve for all tokens at once, in sums of n
    terms; others add d terms. A decay over many tokens may be e to the difference of two sums of
    logarithms: the `slip`.
    """

    def __init__(self, spec: Recurrence, y: Token, S: HostArray, k: Pair, w: Pair, system: RunningError) -> None:
        self.spec, self.system, n, d = spec, system, y.n, y.k.shape[-2]
        self.gamma, self.tiny = system.gamma(n + d + 8), system.tiny * (n + d + 8)
        gamma = system.gamma(d + 8) if spec.write == "add" else self.gamma
        top, off_w, slip = self.most(np.abs(y.w)), np.zeros((1, 1, n, 1, 1)), np.zeros((1, 1, n, 1, 1))
        if not np.isin(y.w, (0, 1)).all():
            logs = np.log(np.abs(y.w), where=y.w != 0, out=np.zeros(y.w.shape))
            slip = np.expm1(2 * system.gamma(n + 16) * self.most(np.cumsum(np.abs(logs), axis=2)))
            off_w = self.most(w[1]) + system.gamma(16) * top
        k_size, k_off, v_size, rate = self.length(y.k), self.length(k[1][..., None]), np.abs(y.v), np.abs(y.beta)
        growth, erased, turned, most = top, 0.0 * rate, 0.0 * rate, np.maximum(top, 1)
        if spec.write == "delta":
            part = rate if spec.beta == "write" else np.ones_like(rate)
            erased, turned = part * k_size**2, 2 * part * k_size * k_off
            growth = top * np.maximum(1, np.abs(1 - erased))
            if spec.erases == "before":
                growth = np.maximum(top, erased - np.min(y.w, axis=-2, keepdims=True))
        if spec.write == "rank":
            erased, growth = self.length(y.a.swapaxes(-1, -2)) * self.length(y.b), rank_growth(y, spec.erases)
        drift = off_w * (1 + erased) + (turned + slip * erased) * most + gamma * (top + erased * most)
        written = rate * k_size * v_size
        own = rate * k_off * v_size + gamma * written + self.tiny * (1 + rate * k_size)
        self.growth, self.drift, self.own, self.written, slip = (
            np.moveaxis(np.broadcast_to(z, own.shape), 2, 0) for z in (growth, drift, own, written, slip)
        )
        self.slip, self.size = [np.zeros(slip.shape[1:]), *slip], [self.length(S)]
        self.error = [np.zeros_like(self.size[0])]

    def length(self, x: HostArray) -> HostArray:
        """The size of entries, or of columns."""
        return np.abs(x) if self.spec.write == "add" else norm(x, axis=-2)

    def most(self, x: HostArray) -> HostArray:
        return x if self.spec.write == "add" else np.max(x, axis=-2, keepdims=True)

    def add(self, t: int, made: HostArray, stored: HostArray) -> None:
        error = self.growth[t] * self.error[-1] + self.drift[t] * (self.size[-1] + self.error[-1]) + self.own[t]
        if stored is not made:
            error = self.length(np.maximum(*(np.abs(self.spec.stored(made + e) - stored) for e in (error, -error))))
        self.error.append(error)
        self.size.append(np.maximum(self.growth[t] * self.size[-1] + self.written[t], self.length(stored)))

    def of_state(self) -> HostArray:
        return np.asarray(self.error[-1] + (self.gamma + self.slip[-1]) * self.size[-1] + self.tiny)

    def of_output(self, q: Pair, k: Pair, v: HostArray, u: HostArray, heads: HostArray) -> HostArray:
        """How far o may be: rows of q, times a state with this error; and the bonus."""
        at = slice(0, -1) if self.spec.reads == "before" else slice(1, None)
        error, size, slip = (np.moveaxis(np.array(z), 0, 2)[:, heads, at] for z in (self.error, self.size, self.slip))
        q_size, q_off = (self.length(z[..., None]).swapaxes(-1, -2) for z in q)
        found = (q_size + q_off) @ (error + self.tiny) + q_off @ size + q_size @ ((self.gamma + slip) * size)
        bonus = ((self.gamma * norm(q[0]) + norm(q[1])) * norm(u * k[0]) + norm(q[0]) * norm(u * k[1])) * np.abs(v)
        return np.asarray(found[..., 0, :] + self.tiny + bonus)


def rank_growth(y: Token, erases: str) -> HostArray:
    """‖Diag(w) + b aᵀ‖₂, or ‖(I + b aᵀ) Diag(w)‖₂, for each column of S."""
    d = y.k.shape[-2]
    w = np.moveaxis(np.broadcast_to(y.w, (*y.w.shape[:3], d, y.w.shape[-1])), -1, -2)[..., None, :]
    change = (y.b @ y.a)[..., None, :, :]
    found = np.linalg.norm(w * np.eye(d) + change * (w if erases == "after" else 1), 2, axis=(-2, -1))
    return np.asarray(found)[..., None, :]


def norm(x: HostArray, axis: int = -1) -> HostArray:
    return np.asarray(np.sqrt(np.sum(x * x, axis=axis, keepdims=True)))


def pair(x: Array) -> Pair:
    """The numbers of an array, as float64, and their errors, if it has any."""
    value, *error = getattr(x, "planes", (x,))
    value = np.asarray(value, dtype=np.float64)
    return value, np.asarray(error[0]) if error else np.zeros_like(value)


def take_heads(x: Pair, heads: HostArray) -> Pair:
    return x[0][:, heads], x[1][:, heads]


def number(system: System, x: float) -> Array:
    return system.convert(np.asarray(x))


# Kernels of the field


def from_fla(arrays: str, **conventions: Any) -> Recurrence:
    """A kernel that is called as those of flash-linear-attention."""
    call = f"{arrays}, initial_state=S, output_final_state=True -> o, S"
    return Recurrence(**{"call": call, "axes": "BTHD", "library": "torch", "dtype": "float32"} | conventions)


def from_onnx(arrays: str, **conventions: Any) -> Recurrence:
    """ONNX's LinearAttention, opset 27, with one of its update rules."""
    return Recurrence(
        call=f"{arrays} -> o, S", axes="BT(HD)", dtype="float32", scale="d", sharing="repeat", **conventions
    )


DELTA = {"write": "delta", "beta": "write", "scale": "d"}
RWKV = {"decay": "key", "reads": "before", "bonus": True}
FIELD = {
    "retnet": from_fla("q, k, v", decay="head", gate="retnet", scale="d"),
    "simple_gla": from_fla("q, k, v, g", decay="head", scale="d"),
    "lightning": Recurrence(
        call="q, k, v, g -> o", library="torch", dtype="float32", decay="head", gate="-log", gate_axes="H"
    ),
    "gla": from_fla("q, k, v, g", decay="key", scale="d"),
    "hgrn": from_fla("v, g", axes="BTD", decay="value", state_axes="BV"),
    "mamba2": from_fla(
        "",
        call="v, beta, g, k, q, chunk_size=64, initial_states=S, return_final_states=True -> o, S",
        decay="head",
        gate="dt",
        gate_axes="H",
        beta="write",
        sharing="repeat",
        groups_of="qk",
        state_axes="BHVK",
    ),
    "rwkv5": from_fla("q, k, v, g, u", gate="-exp", gate_axes="HK", **RWKV),
    "rwkv6": from_fla("q, k, v, g, u, scale=1.0", **RWKV),
    "rwkv7": from_fla("q, g, k, v, a, b, scale=1.0", decay="key", write="rank", erases="before"),
    "delta_net": from_fla("q, k, v, beta", **DELTA),
    "gated_delta_net": from_fla("q, k, v, g, beta", decay="head", sharing="repeat", groups_of="qk", **DELTA),
    "qwen3_next": from_fla(
        "q, k, v, g, beta, use_qk_l2norm_in_kernel=True",
        decay="head",
        sharing="repeat",
        groups_of="qk",
        l2norm="inside",
        **DELTA,
    ),
    "kda": from_fla("q, k, v, g, beta", decay="key", **DELTA),
    "onnx_linear": from_onnx("q, k, v, S"),
    "onnx_gated": from_onnx("q, k, v, S, g", decay="head"),
    "onnx_delta": from_onnx("q, k, v, S, beta", write="delta", beta="write"),
    "onnx_gated_delta": from_onnx("q, k, v, S, g, beta", decay="head", write="delta", beta="write"),
}
