"""RWKV 4, 5.1, 5.2 and 7: a configuration, named arrays, pure functions.

    x = norm_0(E[text])        x ← x + time_mixing(norm_1 x)        x ← x + channel_mixing(norm_2 x)        logits = norm(x) W

Both mixings see each token and the one before it (the *token shift*); time mixing also a state, see recurrence.py. These are all that
the past is to a layer, so a prompt is a `Carried` for each layer, and a text read from there is read as if the prompt stood before it.

| here | published | |
|---|---|---|
| W_R, W_K, W_V, W_G, W_O | receptance, key, value, gate, output | of time mixing; (in, out), tokens are rows |
| mix_R … mix_G | time_mix_r … (4, 5), x_r … (7) | share of the token itself (4, 5); of the one before it (7) |
| decay | time_decay; w0 | 4: log of the decay, −exp(w); 5: the decay, exp(−exp(w)); 7: before sigmoid and exp |
| bonus | time_first, time_faaaa; r_k | 4: an exponent; 5: a factor (5.1: one for each head); 7: a factor, outside of the state |
| gain_heads, offset_heads | ln_x | norm of each head's output |
| W_decay_1, W_decay_2 | w1, w2 | 7: a decay for each token, of low rank |
| rate, W_rate_1, W_rate_2 | a0, a1, a2 | 7: how much of the old value at a key is replaced |
| blend, W_blend_1, W_blend_2 | v0, v1, v2 | 7: how much of the first layer's values comes in; not in the first layer |
| W_G_1, W_G_2 | g1, g2 | 7: the gate, of low rank |
| removal, replacement | k_k, k_a | 7: what a key removes, and what it writes |
| W_up, W_down, W_gate; mix_up, mix_gate | key, value, receptance; time_mix_k, x_k, time_mix_r | of channel mixing |
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..attention.feature_maps import relu2
from ..checks import (
    check_finite,
    check_integer,
    check_shape,
    check_type,
    common_namespace,
    leading_axes,
    require_finite,
)
from ..errors import NotFinite, choose
from ..systems.floats import array_namespace, constant, device
from .recurrence import NOTHING, Carried, recurrence, recurrence_sum, wkv4, wkv4_sum
from .transformer import norm, silu

VERSIONS = ("4", "5.1", "5.2", "7")
EPSILON = {"5.1": Fraction(1, 10**5), "5.2": Fraction(1, 10**5), "7": Fraction(64, 10**5)}  # of the norm of each head
DECAY = Fraction(606531, 10**6)  # e^(−1/2), as published code has it
SHORTEST = Fraction(1, 10**12)  # what RWKV-7 takes for the length of a key that is shorter

# form: of the matrix state, and of RWKV-4's quotient. A test that plants a bug replaces an entry.
FORMS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "recurrent": (recurrence, wkv4),
    "sum": (recurrence_sum, wkv4_sum),
}


@dataclass(frozen=True)
class Rwkv:
    """The shape of an RWKV model.

    version               "4", "5.1", "5.2" or "7"
    layers, width         how many, and how wide a token is
    heads                 of time mixing, each of width / heads; 1 in version 4, which has none
    hidden                width of channel mixing
    vocabulary            0: vectors in, vectors out
    ranks                 version 7: of decay, rate, blend and gate
    """

    version: str
    layers: int
    width: int
    heads: int = 1
    hidden: int = 1
    vocabulary: int = 0
    ranks: tuple[int, ...] = ()

    # What every configuration says of its layers, see Config.
    recurrent, softmax, past, phi, rope, table = True, False, Carried, None, None, 0

    def __post_init__(self) -> None:
        choose("Rwkv", "version", self.version, VERSIONS)
        for name, least in {"layers": 1, "width": 1, "heads": 1, "hidden": 1, "vocabulary": 0}.items():
            vars(self)[name] = check_integer("Rwkv", name, getattr(self, name), least=least)
        if self.width % self.heads:
            raise ValueError(f"Rwkv: `heads` must divide width = {self.width}, got {self.heads}")
        if self.version == "4" and self.heads != 1:
            raise ValueError(f"Rwkv: `heads` must be 1 in version 4, which has none, got {self.heads}")
        check_type("Rwkv", "ranks", self.ranks, tuple)
        if len(self.ranks) != (4 if self.version == "7" else 0):
            wanted = (
                "four numbers (decay, rate, blend, gate)" if self.version == "7" else f"() in version {self.version}"
            )
            raise ValueError(f"Rwkv: `ranks` must be {wanted}, got {self.ranks}")
        vars(self)["ranks"] = tuple(check_integer("Rwkv", "ranks", rank, least=1) for rank in self.ranks)

    @property
    def d(self) -> int:
        """The width of a head."""
        return self.width // self.heads

    @functools.cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The name and shape of every parameter."""
        c, one, square = self, (self.width,), (self.width, self.width)
        every: dict[str, tuple[int, ...]] = {"gain_1": one, "offset_1": one, "gain_2": one, "offset_2": one}
        every |= {"W_R": square, "W_K": square, "W_V": square, "W_O": square, "mix_R": one, "mix_K": one, "mix_V": one}
        every |= {"W_up": (c.width, c.hidden), "W_down": (c.hidden, c.width), "mix_up": one}
        every |= {"decay": {"5.1": (c.heads,), "5.2": (c.heads, c.d)}.get(c.version, one)}
        every |= {"bonus": {"5.1": (c.heads,), "4": one}.get(c.version, (c.heads, c.d))}
        if c.version != "4":
            every |= {"gain_heads": one, "offset_heads": one}
        if c.version != "7":
            every |= {"W_gate": square, "mix_gate": one}
        if c.version == "5.2":
            every |= {"W_G": square, "mix_G": one}
        later: dict[str, tuple[int, ...]] = {}  # not in the first layer
        if c.version == "7":
            ranks = zip(("decay", "rate", "blend", "G"), c.ranks, strict=True)
            low = {name: {f"W_{name}_1": (c.width, rank), f"W_{name}_2": (rank, c.width)} for name, rank in ranks}
            later |= low.pop("blend") | {"blend": one}
            every |= low["decay"] | low["rate"] | low["G"]
            every |= {"rate": one, "removal": one, "replacement": one, "mix_W": one, "mix_A": one, "mix_G": one}
        of_layers = {
            f"layers.{i}.{name}": s for i in range(c.layers) for name, s in (every | (later if i else {})).items()
        }
        norms = {"gain_0": one, "offset_0": one, "gain": one, "offset": one}
        return (
            of_layers
            | norms
            | ({"embedding": (c.vocabulary, c.width), "unembedding": (c.width, c.vocabulary)} if c.vocabulary else {})
        )

    @functools.cached_property
    def carried(self) -> dict[str, tuple[int, ...]]:
        """The name and shape of all that a layer carries."""
        one = (self.width,)
        state: dict[str, tuple[int, ...]] = dict.fromkeys(("num", "den", "exponent"), one)
        return {"time_shift": one, "channel_shift": one} | (
            state if self.version == "4" else {"S": (self.heads, self.d, self.d)}
        )


def no_text(config: Rwkv, like: Any) -> Carried:
    """What a layer carries before the first token, in the numbers of the array `like`."""
    xp = common_namespace("no_text", like=like)
    parts = {name: xp.zeros(s, dtype=like.dtype, device=device(like)) for name, s in config.carried.items()}
    return Carried(parts | ({"exponent": parts["exponent"] + NOTHING} if "exponent" in parts else {}))


def embed(model: Any, x: Any) -> Any:
    """norm_0 of the rows of the embedding."""
    return norm(x, model.weights["gain_0"], model.weights["offset_0"])


def through_layers(
    model: Any,
    x: Any,
    states: Sequence[Carried] | None,
    *,
    form: str,
    between: Callable[[int, Any], Any] = lambda i, x: x,
) -> tuple[Any, tuple[Carried, ...]]:
    """What the last layer puts out, and what each layer carries after the text."""
    c = model.config
    states = (no_text(c, x),) * c.layers if states is None else states
    first, after = first_values(model, x, states[0]), []
    for i, state in enumerate(states):
        x, state = step(model, i, x, state, form=form, first=first)
        x = between(i, x)
        after.append(state)
    return x, tuple(after)


def check_carried(who: str, c: Rwkv, name: str, state: Carried, **like: Any) -> None:
    """Refuse what a layer of this shape, in numbers like these, does not carry."""
    if set(state.parts) != set(c.carried):
        raise ValueError(
            f"{who}: `{name}` must have the parts {', '.join(c.carried)}, got {', '.join(state.parts) or 'none'}"
        )
    for part, wanted in c.carried.items():
        xp = common_namespace(who, **like, **{f"{name}.{part}": state.parts[part]})
        check_shape(who, f"{name}.{part}", state.parts[part], *wanted)
        check_finite(
            who, f"{name}.{part}", state.parts[part], axes=("head", "key", "value") if part == "S" else ("column",)
        )


def unembed(model: Any, x: Any) -> Any:
    """Logits norm(x) W; without a vocabulary, norm(x)."""
    c, w = model.config, model.weights
    x = norm(x, w["gain"], w["offset"])
    return require_finite("rwkv", "the output", x @ w["unembedding"] if c.vocabulary else x)


def step(model: Any, i: int, x: Any, state: Carried, *, form: str, first: Any = None) -> tuple[Any, Carried]:
    """Layer i on x (..., n, width), n ≥ 0 tokens, from what it carries: what it puts out, and what it carries then.

        x ← x + time_mixing(norm_1 x)        x ← x + channel_mixing(norm_2 x)

    first : version 7, from the second layer on: `first_values` of the same tokens
    """
    choose("rwkv", "form", form, FORMS)
    c, w = model.config, model.of_layer(i)
    if c.version == "7" and i and first is None:
        raise ValueError(f"rwkv: `first` must be the values of the first layer, for layer {i} of version 7, got None")
    matrix, quotient = FORMS[form]
    try:
        y, before, time_shift = shifted(norm(x, w["gain_1"], w["offset_1"]), state.parts["time_shift"])
        if c.version == "4":
            o, parts = time_mixing_4(w, y, before, state.parts, quotient)
        elif c.version == "7":
            o, parts = time_mixing_7(c, w, y, before, state.parts, matrix, first if i else None)
        else:
            o, parts = time_mixing_5(c, w, y, before, state.parts, matrix)
        x = x + o
        y, before, channel_shift = shifted(norm(x, w["gain_2"], w["offset_2"]), state.parts["channel_shift"])
        x = require_finite("rwkv", "its output", x + channel_mixing(c, w, y, before))
    except (ZeroDivisionError, NotFinite) as error:
        raise type(error)(f"layer {i}: {error}") from error
    parts |= {"time_shift": time_shift, "channel_shift": channel_shift}
    return x, Carried(parts, state.position + x.shape[-2])


def shifted(x: Any, last: Any) -> tuple[Any, Any, Any]:
    """x_0 … x_{n−1}; before each of them the token before it, of which the first comes from the text before; and the last, for the next."""
    xp = array_namespace(x)
    axes = leading_axes("rwkv", text=x, states=last[..., None, :])
    both = xp.concat([xp.broadcast_to(y, (*axes, *y.shape[-2:])) for y in (last[..., None, :], x)], axis=-2)
    return both[..., 1:, :], both[..., :-1, :], both[..., -1, :]


def mixed(w: Mapping[str, Any], name: str, x: Any, before: Any) -> Any:
    """μ x_t + (1 − μ) x_{t−1}, versions 4 and 5."""
    return before + (x - before) * w[f"mix_{name}"]


def mixed_7(w: Mapping[str, Any], name: str, x: Any, before: Any) -> Any:
    """(1 − μ) x_t + μ x_{t−1}, version 7."""
    return x + (before - x) * w[f"mix_{name}"]


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(−x)) = (1 + tanh(x/2)) / 2, which does not overflow.   Needs real."""
    return (1 + array_namespace(x).tanh(x / 2)) / 2


def time_mixing_4(
    w: Mapping[str, Any], x: Any, before: Any, past: Mapping[str, Any], form: Callable[..., Any]
) -> tuple[Any, dict[str, Any]]:
    """(σ(r) · wkv4(k, v)) W_O"""
    r, k, v = (mixed(w, name, x, before) @ w[f"W_{name}"] for name in "RKV")
    o, state = form(w["decay"], w["bonus"], k, v, state=tuple(past[name] for name in ("num", "den", "exponent")))
    return (sigmoid(r) * o) @ w["W_O"], dict(zip(("num", "den", "exponent"), state, strict=True))


def time_mixing_5(
    c: Rwkv, w: Mapping[str, Any], x: Any, before: Any, past: Mapping[str, Any], form: Callable[..., Any]
) -> tuple[Any, dict[str, Any]]:
    """(norm(o) · silu(g)) W_O, with o_t = r_tᵀ (S_{t−1} + Diag(u) k_t v_tᵀ) in each head; 5.1 has no g."""
    xp = array_namespace(x)
    r, k, v = (split(mixed(w, name, x, before) @ w[f"W_{name}"], c.heads) for name in "RKV")
    decay, bonus = (xp.broadcast_to(xp.reshape(w[name], (c.heads, -1)), (c.heads, c.d)) for name in ("decay", "bonus"))
    o, S = form(r, xp.broadcast_to(decay[:, None, :], k.shape), k, v, S=past["S"], u=bonus)
    o = head_norm(c, w, o)
    if c.version == "5.2":
        o = o * silu(mixed(w, "G", x, before) @ w["W_G"])
    return o @ w["W_O"], {"S": S}


def time_mixing_7(
    c: Rwkv, w: Mapping[str, Any], x: Any, before: Any, past: Mapping[str, Any], form: Callable[..., Any], first: Any
) -> tuple[Any, dict[str, Any]]:
    """(norm(o) + (r·(bonus k)) v) · g W_O, with o_t = r_tᵀ S_t, S_t = (Diag(w_t) − (κ_t a_t) κ_tᵀ) S_{t−1} + k_t v_tᵀ in each head.

    w = exp(−0.606531 σ(decay + tanh(x W_decay_1) W_decay_2))        a = σ(rate + x W_rate_1 W_rate_2)        g = σ(x W_G_1) W_G_2
    κ = k removal / |k removal|        k ← k (1 + (a − 1) replacement)        v ← v + (v_first − v) σ(blend + x W_blend_1 W_blend_2)
    """
    xp = array_namespace(x)
    x_r, x_w, x_k, x_v, x_a, x_g = (mixed_7(w, name, x, before) for name in "RWKVAG")
    r, k, v = x_r @ w["W_R"], x_k @ w["W_K"], x_v @ w["W_V"]
    decay = xp.exp(-constant(x, DECAY) * sigmoid(w["decay"] + xp.tanh(x_w @ w["W_decay_1"]) @ w["W_decay_2"]))
    rate = sigmoid(w["rate"] + x_a @ w["W_rate_1"] @ w["W_rate_2"])
    gate = sigmoid(x_g @ w["W_G_1"]) @ w["W_G_2"]
    if first is not None:
        v = v + (first - v) * sigmoid(w["blend"] + x_v @ w["W_blend_1"] @ w["W_blend_2"])
    kappa = unit(split(k * w["removal"], c.heads))
    r, k, v, decay, a = (split(y, c.heads) for y in (r, k * (1 + (rate - 1) * w["replacement"]), v, decay, rate))
    o, S = form(r, decay, k, v, S=past["S"], a=-kappa, b=kappa * a)
    direct = xp.sum(r * k * w["bonus"][:, None, :], axis=-1, keepdims=True) * v
    return ((head_norm(c, w, o) + joined(direct)) * gate) @ w["W_O"], {"S": S}


def first_values(model: Any, x: Any, state: Carried) -> Any:
    """Version 7: the values of the first layer, which the others blend in; else None."""
    if model.config.version != "7":
        return None
    w = model.of_layer(0)
    y, before, _ = shifted(norm(x, w["gain_1"], w["offset_1"]), state.parts["time_shift"])
    return mixed_7(w, "V", y, before) @ w["W_V"]


def channel_mixing(c: Rwkv, w: Mapping[str, Any], x: Any, before: Any) -> Any:
    """σ(x W_gate) · relu(x W_up)² W_down; version 7 has no gate."""
    mix = mixed_7 if c.version == "7" else mixed
    o = relu2(mix(w, "up", x, before) @ w["W_up"]) @ w["W_down"]
    return o if c.version == "7" else sigmoid(mix(w, "gate", x, before) @ w["W_gate"]) * o


def split(x: Any, heads: int) -> Any:
    """(..., n, heads·d) -> (..., heads, n, d)"""
    xp = array_namespace(x)
    return xp.moveaxis(xp.reshape(x, (*x.shape[:-1], heads, x.shape[-1] // heads)), -2, -3)


def joined(x: Any) -> Any:
    """(..., heads, n, d) -> (..., n, heads·d)"""
    xp = array_namespace(x)
    x = xp.moveaxis(x, -3, -2)
    return xp.reshape(x, (*x.shape[:-2], x.shape[-2] * x.shape[-1]))


def head_norm(c: Rwkv, w: Mapping[str, Any], o: Any) -> Any:
    """Each head's output normalised, then heads side by side."""
    return joined(norm(o, epsilon=EPSILON[c.version])) * w["gain_heads"] + w["offset_heads"]


def unit(x: Any) -> Any:
    """x / max(|x|, 10⁻¹²), as the model has it: a key of length 0 stays 0."""
    xp = array_namespace(x)
    length = xp.sqrt(xp.sum(x * x, axis=-1, keepdims=True))
    return x / xp.maximum(length, constant(x, SHORTEST) * xp.ones_like(length))
