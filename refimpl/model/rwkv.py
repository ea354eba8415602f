"""RWKV 4, 5.1, 5.2 and 7: a family of models, its configuration and its layer.

    x = norm_0(E[text])    x ← x + time_mixing(norm_1 x)    x ← x + channel_mixing(norm_2 x)
    logits = norm(x) W

Both mixings see each token and the one before it (the *token shift*). Time mixing also sees a
state, see recurrence.py. A layer needs nothing else of the past. So a prompt becomes a `Carried`
for each layer, and text read from it is read as if it followed the prompt (theorem rwkv_state).

| here | published | |
|---|---|---|
| W_R, W_K, W_V, W_G, W_O | receptance, key, value, gate, output | time mixing; tokens are rows |
| mix_R … mix_G | time_mix_r …; x_r … | share of the token (4, 5), of the one before (7) |
| decay | time_decay; w0 | 4: its logarithm, −exp(w); 5: exp(−exp(w)); 7: before σ and exp |
| bonus | time_first, time_faaaa; r_k | an exponent (4); a factor (5), outside the state (7) |
| gain_heads, offset_heads | ln_x | norm of each head's output |
| W_decay_1, W_decay_2 | w1, w2 | 7: a decay for each token, of low rank |
| rate, W_rate_1, W_rate_2 | a0, a1, a2 | 7: how much of the old value at a key is replaced |
| blend, W_blend_1, W_blend_2 | v0, v1, v2 | 7, later layers: share of the first layer's values |
| W_G_1, W_G_2 | g1, g2 | 7: the gate, of low rank |
| removal, replacement | k_k, k_a | 7: factors of a key where it removes, where it writes |
| W_up, W_down, W_gate | key, value, receptance | channel mixing |
| mix_up, mix_gate | time_mix_k, x_k; time_mix_r | channel mixing |
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

from ..arrays import Array
from ..attention.feature_maps import Kernel, relu2
from ..checks import check_finite, check_integer, check_kinds, check_shape, check_type, leading_axes, require_finite
from ..errors import NotDefined, NotFinite, Underflow, choose
from ..systems.floats import array_namespace, constant, device
from .attention_layers import split_heads
from .recurrence import FORMS, NOTHING, Carried, RecurrentForm
from .transformer import EPSILON, Family, Model, Pass, norm, silu

VERSIONS = ("4", "5.1", "5.2", "7")
# ε in the norm of each head
HEAD_EPSILON = {"5.1": Fraction(1, 10**5), "5.2": Fraction(1, 10**5), "7": Fraction(64, 10**5)}
DECAY = Fraction(606531, 10**6)  # e^(−1/2), as published code has it
SHORTEST = Fraction(1, 10**12)  # RWKV-7 divides shorter keys by this length
LEAST = {"layers": 1, "width": 1, "heads": 1, "hidden": 1, "vocabulary": 0}

Weights = Mapping[str, Array]  # of a layer, by their short names
Mixed = tuple[Array, dict[str, Array]]  # the output of time mixing, and its parts of the next Carried


@dataclass(frozen=True)
class Rwkv(Family):
    """The shape of an RWKV model.

    version          "4", "5.1", "5.2" or "7"
    layers, width    number of layers, and width of a token
    heads            of time mixing, each of width / heads; 1 in version 4, which has none
    hidden           width of channel mixing
    vocabulary       0: vectors in, vectors out
    ranks            version 7: the ranks of decay, rate, blend and gate
    """

    version: str
    layers: int
    width: int
    heads: int = 1
    hidden: int = 1
    vocabulary: int = 0
    ranks: tuple[int, ...] = ()

    family = "rwkv"
    definition = "sum"
    past = Carried
    norm, epsilon, order, tied, table = "layer", EPSILON, "pre", False, 0  # as in Config

    def __post_init__(self) -> None:
        choose("Rwkv", "version", self.version, VERSIONS)
        for name, least in LEAST.items():
            check_integer("Rwkv", name, getattr(self, name), least=least)
        if self.width % self.heads:
            raise ValueError(f"Rwkv: `heads` must divide width = {self.width}, got {self.heads}")
        if self.version == "4" and self.heads != 1:
            raise ValueError(f"Rwkv: `heads` must be 1 in version 4, which has none, got {self.heads}")
        check_type("Rwkv", "ranks", self.ranks, tuple)
        for rank in self.ranks:
            check_integer("Rwkv", "ranks", rank, least=1)
        if len(self.ranks) != (4 if self.version == "7" else 0):
            four = "four numbers (decay, rate, blend, gate)"
            wanted = four if self.version == "7" else f"() in version {self.version}"
            raise ValueError(f"Rwkv: `ranks` must be {wanted}, got {self.ranks}")

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
        layers = [every, *[every | later] * (c.layers - 1)]
        shapes = {f"layers.{i}.{name}": s for i, layer in enumerate(layers) for name, s in layer.items()}
        shapes |= {"gain_0": one, "offset_0": one, "gain": one, "offset": one}
        embeddings = {"embedding": (c.vocabulary, c.width), "unembedding": (c.width, c.vocabulary)}
        return shapes | embeddings if c.vocabulary else shapes

    @functools.cached_property
    def carried(self) -> dict[str, tuple[int, ...]]:
        """The name and shape of every array that a layer carries."""
        one = (self.width,)
        shifts: dict[str, tuple[int, ...]] = {"time_shift": one, "channel_shift": one}
        if self.version == "4":
            return shifts | {"num": one, "den": one, "exponent": one}
        return shifts | {"S": (self.heads, self.d, self.d)}

    def no_text(self, like: Array) -> Carried:
        """The past of a layer before the first token, in the numbers of the array `like`."""
        xp = array_namespace(like)
        parts = {name: xp.zeros(s, dtype=like.dtype, device=device(like)) for name, s in self.carried.items()}
        return Carried(parts | ({"exponent": parts["exponent"] + NOTHING} if "exponent" in parts else {}))

    def check_past(self, who: str, name: str, past: Carried, like: Array) -> None:
        if set(past.parts) != set(self.carried):
            wanted, got = ", ".join(self.carried), ", ".join(past.parts) or "none"
            raise ValueError(f"{who}: `{name}` must have the parts {wanted}, got {got}")
        for part, shape in self.carried.items():
            x, full_name = past.parts[part], f"{name}.{part}"
            check_kinds(who, W_V=like, **{full_name: x})
            check_shape(who, full_name, x, *shape)
            check_finite(who, full_name, x, axes=("head", "key", "value") if part == "S" else ("column",))

    def kernel(self, weights: Weights) -> Kernel:
        return Kernel()  # no positions

    def cache_bytes(self, tokens: int, itemsize: int) -> None:
        return None

    def layer(self, model: Model, i: int, x: Array, past: Carried | None, run: Pass) -> tuple[Array, Carried]:
        """Layer i on x (..., n, width), n ≥ 0, after `past`: the output and the next past.

            x ← x + time_mixing(norm_1 x)        x ← x + channel_mixing(norm_2 x)

        past : None before the first token
        run.form : "recurrent" (None), "sum", or another RecurrentForm
        run.shared : in version 7 the first layer leaves its values there
        """
        if run.mask != "causal":
            why = "a recurrence reads its text from left to right"
            raise NotDefined(f"transformer: {why}; `mask` must be 'causal', got {run.mask!r}")
        form = "recurrent" if run.form is None else run.form
        if not isinstance(form, RecurrentForm):
            choose("rwkv", "form", form, FORMS)
            form = FORMS[form]
        past = self.no_text(x) if past is None else past
        w, parts = model.layer_weights(i), past.parts
        try:
            y, before, time_shift = shift_tokens(norm(x, w["gain_1"], w["offset_1"]), parts["time_shift"])
            if self.version == "4":
                o, state = time_mixing_4(w, y, before, parts, form)
            elif self.version == "7":
                o, state = time_mixing_7(self, w, y, before, parts, form, run.shared)
            else:
                o, state = time_mixing_5(self, w, y, before, parts, form)
            x = x + o
            y, before, channel_shift = shift_tokens(norm(x, w["gain_2"], w["offset_2"]), parts["channel_shift"])
            x = require_finite("rwkv", "its output", x + channel_mixing(self, w, y, before))
        except (ZeroDivisionError, NotFinite, Underflow) as error:
            raise type(error)(f"layer {i}: {error}") from error
        shifts = {"time_shift": time_shift, "channel_shift": channel_shift}
        return x, Carried(state | shifts, past.position + x.shape[-2])

    def to_json(self) -> dict[str, Any]:
        sizes = {name: int(getattr(self, name)) for name in LEAST}
        return {"family": self.family, "version": self.version, **sizes, "ranks": [int(rank) for rank in self.ranks]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        own = {name: value for name, value in data.items() if name != "family"}
        return cls(**own | {"ranks": tuple(data["ranks"])})


def shift_tokens(x: Array, last: Array) -> tuple[Array, Array, Array]:
    """The tokens, the token before each of them (`last` before the first), and the last of all.

    x : (..., n, width)    last : (..., width)    ->  (..., n, width), (..., n, width), (..., width)
    """
    xp = array_namespace(x)
    axes = leading_axes("rwkv", text=x, states=last[..., None, :])
    both = xp.concat([xp.broadcast_to(y, (*axes, *y.shape[-2:])) for y in (last[..., None, :], x)], axis=-2)
    return both[..., 1:, :], both[..., :-1, :], both[..., -1, :]


def mix_tokens(w: Weights, name: str, x: Array, before: Array) -> Array:
    """μ x_t + (1 − μ) x_{t−1}. For version 7, callers swap x and before."""
    return before + (x - before) * w[f"mix_{name}"]


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(−x)) = (1 + tanh(x/2)) / 2, which does not overflow.   Needs real."""
    return (1 + array_namespace(x).tanh(x / 2)) / 2


def time_mixing_4(w: Weights, x: Array, before: Array, past: Weights, form: RecurrentForm) -> Mixed:
    """(σ(r) · wkv4(k, v)) W_O"""
    r, k, v = (mix_tokens(w, name, x, before) @ w[f"W_{name}"] for name in "RKV")
    state = past["num"], past["den"], past["exponent"]
    o, (num, den, exponent) = form.quotient(w["decay"], w["bonus"], k, v, state=state)
    return (sigmoid(r) * o) @ w["W_O"], {"num": num, "den": den, "exponent": exponent}


def time_mixing_5(c: Rwkv, w: Weights, x: Array, before: Array, past: Weights, form: RecurrentForm) -> Mixed:
    """(norm(o) · silu(g)) W_O, in each head o_t = r_tᵀ (S_{t−1} + Diag(u) k_t v_tᵀ); 5.1: no g."""
    xp = array_namespace(x)
    r, k, v = (split_heads(mix_tokens(w, name, x, before) @ w[f"W_{name}"], c.heads) for name in "RKV")
    decay, bonus = (xp.broadcast_to(xp.reshape(w[name], (c.heads, -1)), (c.heads, c.d)) for name in ("decay", "bonus"))
    o, S = form.matrix(r, xp.broadcast_to(decay[:, None, :], k.shape), k, v, S=past["S"], u=bonus)
    o = norm_heads(c, w, o)
    if c.version == "5.2":
        o = o * silu(mix_tokens(w, "G", x, before) @ w["W_G"])
    return o @ w["W_O"], {"S": S}


def time_mixing_7(
    c: Rwkv, w: Weights, x: Array, before: Array, past: Weights, form: RecurrentForm, shared: dict[str, Array]
) -> Mixed:
    """(norm(o) + (r·(bonus k)) v) · g W_O, where in each head

    o_t = r_tᵀ S_t        S_t = (Diag(w_t) − (κ_t a_t) κ_tᵀ) S_{t−1} + k_t v_tᵀ
    w = exp(−0.606531 σ(decay + tanh(x W_decay_1) W_decay_2))
    a = σ(rate + x W_rate_1 W_rate_2)        g = σ(x W_G_1) W_G_2
    κ = k removal / |k removal|        k ← k (1 + (a − 1) replacement)
    v ← v + (v_first − v) σ(blend + x W_blend_1 W_blend_2), but in the first layer v = v_first
    """
    xp = array_namespace(x)
    x_r, x_w, x_k, x_v, x_a, x_g = (mix_tokens(w, name, before, x) for name in "RWKVAG")
    r, k, v = x_r @ w["W_R"], x_k @ w["W_K"], x_v @ w["W_V"]
    decay = xp.exp(-constant(x, DECAY) * sigmoid(w["decay"] + xp.tanh(x_w @ w["W_decay_1"]) @ w["W_decay_2"]))
    rate = sigmoid(w["rate"] + x_a @ w["W_rate_1"] @ w["W_rate_2"])
    gate = sigmoid(x_g @ w["W_G_1"]) @ w["W_G_2"]
    if "blend" not in w:
        shared["first_values"] = v
    elif "first_values" not in shared:
        raise ValueError("rwkv: `shared` must hold `first_values`, which the first layer of version 7 leaves there")
    else:
        v = v + (shared["first_values"] - v) * sigmoid(w["blend"] + x_v @ w["W_blend_1"] @ w["W_blend_2"])
    kappa = unit_vectors(split_heads(k * w["removal"], c.heads))
    k = k * (1 + (rate - 1) * w["replacement"])
    r, k, v, decay, a = (split_heads(y, c.heads) for y in (r, k, v, decay, rate))
    o, S = form.matrix(r, decay, k, v, S=past["S"], a=-kappa, b=kappa * a)
    direct = xp.sum(r * k * w["bonus"][:, None, :], axis=-1, keepdims=True) * v
    return ((norm_heads(c, w, o) + concatenate_heads(direct)) * gate) @ w["W_O"], {"S": S}


def channel_mixing(c: Rwkv, w: Weights, x: Array, before: Array) -> Array:
    """σ(x W_gate) · relu(x W_up)² W_down; version 7 has no gate."""
    mixed = mix_tokens(w, "up", before, x) if c.version == "7" else mix_tokens(w, "up", x, before)
    o = relu2(mixed @ w["W_up"]) @ w["W_down"]
    return o if c.version == "7" else sigmoid(mix_tokens(w, "gate", x, before) @ w["W_gate"]) * o


def concatenate_heads(x: Array) -> Array:
    """(..., heads, n, d) -> (..., n, heads·d)"""
    xp = array_namespace(x)
    x = xp.moveaxis(x, -3, -2)
    return xp.reshape(x, (*x.shape[:-2], x.shape[-2] * x.shape[-1]))


def norm_heads(c: Rwkv, w: Weights, o: Array) -> Array:
    """The normalised outputs of all heads, side by side, with gain and offset."""
    return concatenate_heads(norm(o, epsilon=HEAD_EPSILON[c.version])) * w["gain_heads"] + w["offset_heads"]


def unit_vectors(x: Array) -> Array:
    """x / max(|x|, 10⁻¹²), as the model has it: a key of length 0 stays 0."""
    xp = array_namespace(x)
    length = xp.sqrt(xp.sum(x * x, axis=-1, keepdims=True))
    return x / xp.maximum(length, constant(x, SHORTEST) * xp.ones_like(length))
