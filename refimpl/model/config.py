"""What a model is, in a few words and numbers; and from these the name and shape of each of its parameters."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..attention.feature_maps import pair
from ..attention.rope import LAYOUTS, PLACEMENTS
from ..attention.state import KVCache, State
from ..checks import instance, integer
from ..errors import brief, choose
from .token_wise import ACTIVATIONS, NORMS

ORDERS = ("pre", "post", "parallel")


@dataclass(frozen=True)
class Rotary:
    """How many features of a model RoPE turns, and how: see Rope.

    base None : by powers of the circle points `rope.c`, `rope.s` among its weights
    """

    width: int
    layout: str = "half"
    placement: str = "after"
    base: int | None = 10000

    def __post_init__(self) -> None:
        choose("Rotary", "layout", self.layout, LAYOUTS)
        choose("Rotary", "placement", self.placement, PLACEMENTS)
        if integer("Rotary", "width", self.width, least=0, most=2**16) % 2:
            raise ValueError(f"Rotary: `width` must be even, to pair features, got {self.width}")
        if self.base is not None:
            integer("Rotary", "base", self.base, least=1)


@dataclass(frozen=True)
class Config:
    """The shape of a model and what its parts are.

    layers, width                 how many, and how wide a token is
    heads, groups                 heads of the queries, and of keys and values (grouped-query attention if fewer)
    d, m                          width of a key and of a value in each head
    phi, normalise, rope          as in linear_attention; phi by name if the model is to be saved; "softmax": attention by exp(q·k/√d)
    order                         "pre": x + f(norm x), "post": norm(x + f x), "parallel": x + attention(norm x) + mlp(norm x)
    norm, epsilon                 "layer", "rms", their rational stand-ins, or "none"
    hidden, activation, gated     of the MLP; hidden 0: no MLP
    biased                        projections and MLP add a vector
    vocabulary, tied              0: vectors in, vectors out; else the head is Eᵀ, or a matrix of its own
    table                         rows of an absolute-position table; 0: none
    """

    layers: int
    width: int
    heads: int = 1
    groups: int | None = None
    d: int = 1
    m: int = 1
    phi: Any = "elu+1"
    normalise: bool = True
    rope: Rotary | None = None
    order: str = "pre"
    norm: str = "layer"
    epsilon: Fraction = Fraction(1, 100000)
    hidden: int = 0
    activation: str = "gelu"
    gated: bool = False
    biased: bool = False
    vocabulary: int = 0
    tied: bool = True
    table: int = 0

    def __post_init__(self) -> None:
        for name, least in {
            "layers": 1,
            "width": 1,
            "heads": 1,
            "d": 1,
            "m": 1,
            "hidden": 0,
            "vocabulary": 0,
            "table": 0,
        }.items():
            vars(self)[name] = integer("Config", name, getattr(self, name), least=least)
        if self.heads % integer("Config", "groups", self.kv_heads, least=1):
            raise ValueError(f"Config: `groups` must divide heads = {self.heads}, got {self.groups}")
        for name in ("normalise", "gated", "biased", "tied"):
            instance("Config", name, getattr(self, name), bool)
        for name, known in (("order", ORDERS), ("norm", NORMS), ("activation", ACTIVATIONS)):
            choose("Config", name, getattr(self, name), known)
        if not self.softmax:
            pair("Config", self.phi)
        elif not self.normalise or (self.rope and self.rope.placement != "before"):
            raise ValueError(
                "Config: `phi` 'softmax' must go with normalise=True and RoPE before the kernel, got another"
            )
        if not isinstance(self.epsilon, Fraction) or self.epsilon < 0:
            raise ValueError(f"Config: `epsilon` must be a Fraction ≥ 0, got {brief(self.epsilon)}")
        if self.rope is not None:
            instance("Config", "rope", self.rope, Rotary)

    @property
    def softmax(self) -> bool:
        return isinstance(self.phi, str) and self.phi == "softmax"

    recurrent = False  # see recurrent/rwkv.py

    @property
    def past(self) -> type:
        """What earlier text is to a layer."""
        return KVCache if self.softmax else State

    @property
    def kv_heads(self) -> int:
        return self.heads if self.groups is None else self.groups

    @functools.cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The name and shape of every parameter."""
        c, q, k, v = self, self.heads * self.d, self.kv_heads * self.d, self.kv_heads * self.m
        every: dict[str, tuple[int, ...]] = {
            "W_Q": (c.width, q),
            "W_K": (c.width, k),
            "W_V": (c.width, v),
            "W_O": (c.heads * c.m, c.width),
        }
        if c.biased:
            every |= {"b_Q": (q,), "b_K": (k,), "b_V": (v,), "b_O": (c.width,)}
        if c.hidden:
            every |= {"W_up": (c.width, c.hidden), "W_down": (c.hidden, c.width)}
            every |= {"W_gate": (c.width, c.hidden)} if c.gated else {}
            every |= {"b_up": (c.hidden,), "b_down": (c.width,)} if c.biased else {}
        norms = [] if c.norm == "none" else ["gain"] if c.norm.startswith("rms") else ["gain", "offset"]
        every |= {
            f"{part}_{i}": (c.width,)
            for i in ((1, 2) if c.hidden and c.order != "parallel" else (1,))
            for part in norms
        }
        all_of_it = {f"layers.{i}.{name}": s for i in range(c.layers) for name, s in every.items()}
        if c.order != "post":
            all_of_it |= dict.fromkeys(norms, (c.width,))
        if c.vocabulary:
            all_of_it |= {"embedding": (c.vocabulary, c.width)} | (
                {} if c.tied else {"unembedding": (c.width, c.vocabulary)}
            )
        if c.table:
            all_of_it["positions"] = (c.table, c.width)
        if c.rope is not None and c.rope.base is None:
            all_of_it |= {"rope.c": (c.rope.width // 2,), "rope.s": (c.rope.width // 2,)}
        return all_of_it
