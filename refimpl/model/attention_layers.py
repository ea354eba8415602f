"""The attention family: models whose layers are linearized or softmax attention and an MLP."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from math import prod
from numbers import Integral
from typing import Any, Self

from ..arrays import Array
from ..attention.feature_maps import FEATURE_MAPS, FeatureMap, Kernel, as_many, pair_of_maps
from ..attention.linear_attention import LINEAR, LONGEST_CHUNK, State, linear_attention_chunked
from ..attention.rope import LAYOUTS, PLACEMENTS, Rope, angle_table, power_table
from ..attention.softmax_attention import KVCache, softmax_attention, softmax_attention_shifted
from ..budget import number, spend
from ..checks import check_function, check_integer, check_type, require_finite
from ..errors import NotDefined, NotFinite, Underflow, brief, choose, find_name
from ..systems.floats import array_namespace, surely_finite
from .transformer import ACTIVATIONS, EPSILON, NORMS, AttentionCall, Family, Model, Pass, mlp, norm

ORDERS = ("pre", "post", "parallel")
SOFTMAX = (softmax_attention, softmax_attention_shifted)
MOST_DIGITS = 4300  # of an integer; Python reads no more


@dataclass(frozen=True)
class Rotary:
    """How many features of a model RoPE rotates, and how: see Rope.

    base : of the angles; None: rotations are powers of the weights `rope.c`, `rope.s`
    """

    width: int
    layout: str = "half"
    placement: str = "after"
    base: int | None = 10000

    def __post_init__(self) -> None:
        choose("Rotary", "layout", self.layout, LAYOUTS)
        choose("Rotary", "placement", self.placement, PLACEMENTS)
        if check_integer("Rotary", "width", self.width, least=0, most=2**16) % 2:
            raise ValueError(f"Rotary: `width` must be even, to pair features, got {self.width}")
        if self.base is not None:
            check_integer("Rotary", "base", self.base, least=1)


@dataclass(frozen=True)
class Config(Family):
    """The shape of a model, and the kinds of its parts.

    layers, width                 number of layers, and width of a token
    heads, groups                 heads of the queries, and of keys and values (None: as many)
    d, m                          width of a key and of a value in each head
    phi, normalise, rope          as in Kernel, but RoPE as a Rotary. Only a phi given by name can
                                  be saved; "softmax" is attention by exp(q·k/√d)
    order                         "pre": x + f(norm x), "post": norm(x + f x),
                                  "parallel": x + attention(norm x) + mlp(norm x)
    norm, epsilon                 "layer", "rms", their rational stand-ins, or "none"
    hidden, activation, gated     of the MLP; hidden 0: no MLP
    biased                        projections and MLP add a vector
    vocabulary, tied              0: vectors in, vectors out; else the head is Eᵀ, or its own matrix
    table                         rows of an absolute-position table; 0: none
    """

    layers: int
    width: int
    heads: int = 1
    groups: int | None = None
    d: int = 1
    m: int = 1
    phi: str | FeatureMap | tuple[str | FeatureMap, str | FeatureMap] = "elu+1"
    normalise: bool = True
    rope: Rotary | None = None
    order: str = "pre"
    norm: str = "layer"
    epsilon: Fraction = EPSILON
    hidden: int = 0
    activation: str = "gelu"
    gated: bool = False
    biased: bool = False
    vocabulary: int = 0
    tied: bool = True
    table: int = 0

    family = "attention"

    def __post_init__(self) -> None:
        least = {"layers": 1, "width": 1, "heads": 1, "d": 1, "m": 1, "hidden": 0, "vocabulary": 0, "table": 0}
        for name, value in least.items():
            check_integer("Config", name, getattr(self, name), least=value)
        if self.heads % check_integer("Config", "groups", self.kv_heads, least=1):
            raise ValueError(f"Config: `groups` must divide heads = {self.heads}, got {self.groups}")
        for name in ("normalise", "gated", "biased", "tied"):
            check_type("Config", name, getattr(self, name), bool)
        for name, known in (("order", ORDERS), ("norm", NORMS), ("activation", ACTIVATIONS)):
            choose("Config", name, getattr(self, name), known)
        if isinstance(self.phi, str):  # as it is saved, and compared
            object.__setattr__(self, "phi", find_name(self.phi, ("softmax", *FEATURE_MAPS)))
        if not self.softmax:
            pair_of_maps("Config", self.phi)
        elif not self.normalise or (self.rope and self.rope.placement != "before"):
            wanted = "normalise=True and RoPE before the kernel (or none)"
            got = f"normalise={self.normalise}, rope={self.rope}"
            raise ValueError(f"Config: `phi` 'softmax' must go with {wanted}, got {got}")
        if not isinstance(self.epsilon, Fraction) or self.epsilon < 0:
            raise ValueError(f"Config: `epsilon` must be a Fraction ≥ 0, got {brief(self.epsilon)}")
        if self.rope is not None:
            check_type("Config", "rope", self.rope, Rotary)

    @property
    def softmax(self) -> bool:
        return isinstance(self.phi, str) and self.phi == "softmax"

    @property
    def past(self) -> type[State] | type[KVCache]:
        return KVCache if self.softmax else State

    @property
    def kv_heads(self) -> int:
        return self.heads if self.groups is None else self.groups

    @functools.cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The name and shape of every parameter."""
        c, q, k, v = self, self.heads * self.d, self.kv_heads * self.d, self.kv_heads * self.m
        own: dict[str, tuple[int, ...]] = {"W_Q": (c.width, q), "W_K": (c.width, k), "W_V": (c.width, v)}
        own |= {"W_O": (c.heads * c.m, c.width)}
        if c.biased:
            own |= {"b_Q": (q,), "b_K": (k,), "b_V": (v,), "b_O": (c.width,)}
        if c.hidden:
            own |= {"W_up": (c.width, c.hidden), "W_down": (c.hidden, c.width)}
            own |= {"W_gate": (c.width, c.hidden)} if c.gated else {}
            own |= {"b_up": (c.hidden,), "b_down": (c.width,)} if c.biased else {}
        norms = [] if c.norm == "none" else ["gain"] if c.norm.startswith("rms") else ["gain", "offset"]
        count = 2 if c.hidden and c.order != "parallel" else 1
        own |= {f"{part}_{i + 1}": (c.width,) for i in range(count) for part in norms}
        every = {f"layers.{i}.{name}": s for i in range(c.layers) for name, s in own.items()}
        if c.order != "post":
            every |= dict.fromkeys(norms, (c.width,))
        if c.vocabulary:
            every |= {"embedding": (c.vocabulary, c.width)}
            every |= {} if c.tied else {"unembedding": (c.width, c.vocabulary)}
        if c.table:
            every["positions"] = (c.table, c.width)
        if c.rope is not None and c.rope.base is None:
            every |= {"rope.c": (c.rope.width // 2,), "rope.s": (c.rope.width // 2,)}
        return every

    def kernel(self, weights: Mapping[str, Array]) -> Kernel:
        phi = "identity" if self.softmax else self.phi
        if self.rope is None:
            return Kernel(phi, None, self.normalise)
        if self.rope.base is None:
            table = power_table(weights["rope.c"], weights["rope.s"])
        else:
            table = angle_table(next(iter(weights.values())), self.rope.width, base=self.rope.base)
        cached = functools.lru_cache(maxsize=2)(table)  # every layer asks for the same positions
        rope = Rope(lambda positions: cached(tuple(positions)), self.rope.layout, self.rope.placement)
        return Kernel(phi, rope, self.normalise)

    def layer(self, model: Model, i: int, x: Array, past: Any, run: Pass) -> tuple[Array, Any]:
        """Layer i on x (..., n, width), with attention from `past`; see Config for `order`."""
        w = model.layer_weights(i)
        try:
            y, after = self.attention_step(model, i, w, x, past, run)
            return require_finite("transformer", "its output", self.mlp_step(w, y, x)), after
        except (ZeroDivisionError, NotFinite, Underflow) as error:
            raise type(error)(f"layer {i}: {error}") from error

    def attention_step(
        self, model: Model, i: int, w: dict[str, Array], x: Array, past: Any, run: Pass
    ) -> tuple[Array, Any]:
        """x + attention(norm x), or norm(x + attention x), and the past after this text."""
        o, after = attend(self, model, i, w, x if self.order == "post" else self.norm_of(w, 1, x), past, run)
        return (self.norm_of(w, 1, x + o) if self.order == "post" else x + o), after

    def mlp_step(self, w: dict[str, Array], x: Array, before: Array) -> Array:
        """The MLP on x, the output of the attention step, added to x; `before` was its input."""
        if not self.hidden:
            return x
        y = x if self.order == "post" else self.norm_of(w, *((1, before) if self.order == "parallel" else (2, x)))
        b_up, b_down = w.get("b_up", 0), w.get("b_down", 0)
        x = x + mlp(y, w["W_up"], w["W_down"], w.get("W_gate"), b_up, b_down, activation=self.activation)
        return self.norm_of(w, 2, x) if self.order == "post" else x

    def norm_of(self, w: dict[str, Array], j: int, y: Array) -> Array:
        """The first or second norm of a layer."""
        return norm(y, w.get(f"gain_{j}", 1), w.get(f"offset_{j}", 0), kind=self.norm, epsilon=self.epsilon)

    def check_past(self, who: str, name: str, past: Any, like: Array) -> None:
        past.check_heads(who, name, self.kv_heads, self.d, self.m, self.normalise, like)

    def cache_bytes(self, tokens: int, itemsize: int) -> int:
        return itemsize * self.layers * self.kv_heads * tokens * (self.d + self.m)

    def to_json(self) -> dict[str, Any]:
        both = self.phi if isinstance(self.phi, tuple) else (self.phi, self.phi)
        if not all(isinstance(phi, str) for phi in both):
            raise NotDefined("φ must be given by name, as in Config(phi='elu+1'); a function cannot be written")
        phi = both[0] if both[0] == both[1] else both
        own = {
            name: x if isinstance(x, bool) else int(x) for name, x in asdict(self).items() if isinstance(x, Integral)
        }
        return asdict(replace(self, phi=phi)) | own | {"epsilon": str(self.epsilon)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        # Not Fraction(text), since Fraction("1e999999999") would never end.
        parts = data["epsilon"].split("/")
        if (length := max(map(len, parts))) > MOST_DIGITS:
            raise ValueError(f"`epsilon` must be integers of at most {MOST_DIGITS} digits, got {length}")
        epsilon = Fraction(*map(int, parts))
        rope = None if data["rope"] is None else Rotary(**data["rope"])
        phi = tuple(data["phi"]) if isinstance(data["phi"], list) else data["phi"]
        return cls(**data | {"epsilon": epsilon, "rope": rope, "phi": phi})

    def charge(self) -> None:
        """A few letters, such as polynomial(6), make many features: of states, and of a chunk."""
        if not self.softmax:
            r = max(getattr(phi, "count", as_many)(self.d) for phi in pair_of_maps("charge", self.phi))
            numbers = r * (self.layers * self.kv_heads * self.m + self.heads * LONGEST_CHUNK)
            spend(f"the {number(r)} features of a key", memory=8 * numbers if r > self.d else 0)


def attend(c: Config, model: Model, i: int, w: dict[str, Array], x: Array, past: Any, run: Pass) -> tuple[Array, Any]:
    """The attention of all heads, [o_1 … o_H] W_O, and the past after this text.

    Query heads that share keys and values stand on an axis of their own:
    q (..., groups, heads/groups, n, d), k (..., groups, 1, n, d).
    """
    groups = c.kv_heads
    q = split_heads(x @ w["W_Q"] + w.get("b_Q", 0), groups, c.heads // groups)
    k, v = (y[..., None, :, :] for y in keys_values(c, w, x))
    if not (surely_finite(q) and surely_finite(k) and surely_finite(v)):
        for name, y in (("q", q), ("k", k), ("v", v)):
            require_finite("transformer", name, y)
    shared = None if past is None else past.map_arrays(lambda y, axes: y[(..., None, *[slice(None)] * axes)])
    if run.on_attention:
        run.on_attention(i, AttentionCall(q, k, v, shared))
    if run.form is not None:
        check_function("transformer", "form", run.form)
    if run.form in (LINEAR if c.softmax else SOFTMAX):
        kind = "softmax" if c.softmax else "linear"
        raise NotDefined(f"transformer: `form` must be of {kind} attention, as the model is, got {run.form.__name__}")
    form = run.form or (softmax_attention_shifted if c.softmax else linear_attention_chunked)
    past = {"rope": model.kernel.rope, "cache": shared} if c.softmax else {"kernel": model.kernel, "state": shared}
    o, after = form(q, k, v, mask=run.mask, **past)
    xp = array_namespace(o)
    o = xp.moveaxis(o, -2, -4)  # (..., n, groups, heads/groups, m)
    o = xp.reshape(o, (*o.shape[:-3], c.heads * c.m)) @ w["W_O"] + w.get("b_O", 0)
    return o, after.map_arrays(lambda y, axes: y[(..., 0, *[slice(None)] * axes)])


def keys_values(c: Config, w: Mapping[str, Array], x: Array) -> tuple[Array, Array]:
    """k (..., groups, n, d) and v (..., groups, n, m) of x, the input of the attention."""
    k, v = x @ w["W_K"] + w.get("b_K", 0), x @ w["W_V"] + w.get("b_V", 0)
    return split_heads(k, c.kv_heads), split_heads(v, c.kv_heads)


def split_heads(x: Array, *heads: int) -> Array:
    """(..., n, heads·width) -> (..., heads, n, width)"""
    xp = array_namespace(x)
    x = xp.reshape(x, (*x.shape[:-1], *heads, x.shape[-1] // prod(heads)))
    return xp.moveaxis(x, -2 - len(heads), -2)
