"""A transformer with linearized attention, softmax, or a recurrence: plain named arrays, a few sentences of configuration, pure functions.

    x_0 = E[text] (+ positions)        x_{i+1} = layer_i(x_i)        logits = norm(x_L) Eᵀ

Everything but attention is token-wise, so a theorem about one attention layer lifts to the model by induction over layers.
A model may carry *biases*: for each layer the State (b_KV, b_D, position) from which its attention starts, the KVCache where it
is softmax, or what a recurrence has Carried; see conversion.py.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isqrt, prod
from typing import Any

from ..attention.linear_attention import linear_attention_chunked
from ..attention.memory import check_memory
from ..attention.rope import Rope, angle_table, circle_point, power_table
from ..attention.softmax_attention import softmax_attention_shifted
from ..attention.state import KVCache, check_state
from ..checks import finite, instance, integer, namespace, shape, token_ids, whole
from ..errors import NotDefined, NotFinite, choose
from ..systems import SystemArray, System, seed_of, system_of
from ..systems.floats import array_namespace, device
from . import rwkv
from .config import Config
from .recurrence import Carried
from .rwkv import Rwkv
from .token_wise import mlp, norm

Form = Any  # a form of attention; of a recurrence, "recurrent" or "sum"
Past = Any  # State, KVCache or Carried: all that earlier text is to a layer


@dataclass(frozen=True, eq=False)
class Model:
    """A configuration, its weights by name, and the biases that carry a prompt: one State (or KVCache, or Carried) for each layer.

    prompts : the lengths of the prompts it carries, in the order of conversion
    """

    config: Any  # a Config, or an Rwkv
    weights: Mapping[str, Any]
    biases: tuple[Past, ...] | None = None
    prompts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        instance("Model", "config", self.config, Rwkv if isinstance(self.config, Rwkv) else Config)
        instance("Model", "weights", self.weights, Mapping)
        vars(self)["weights"] = dict(self.weights)  # whatever becomes of the caller's
        for name in self.weights:
            choose("Model", "weights", name, self.config.shapes)
        for name, wanted in self.config.shapes.items():
            if name not in self.weights:
                raise ValueError(f"Model: `weights` must have {name!r} of shape {wanted}, got no such name")
            xp = namespace(
                "Model", **{next(iter(self.weights)): next(iter(self.weights.values())), name: self.weights[name]}
            )
            if tuple(self.weights[name].shape) != wanted:
                raise ValueError(f"Model: `{name}` must have shape {wanted}, got {tuple(self.weights[name].shape)}")
            finite("Model", name, xp, self.weights[name], axes=("row", "column")[2 - len(wanted) :])
        self._check_biases()

    def carrying(self, biases: Sequence[Past], prompts: tuple[int, ...] | None = None) -> Model:
        """The same model with other biases; its weights, once found to be in order, are not looked at again."""
        model = copy.copy(self)
        vars(model).update(biases=tuple(biases), prompts=self.prompts if prompts is None else prompts)
        model._check_biases()
        return model

    def _check_biases(self) -> None:
        c, biases = self.config, self.biases
        for n in self.prompts:
            integer("Model", "prompts", n, least=0)
        if biases is None:
            return
        for i, b in enumerate(biases):
            instance("Model", f"biases[{i}]", b, c.past)
        if len(biases) != c.layers or len({b.position for b in biases}) > 1:
            raise ValueError(
                f"Model: `biases` must be {c.layers} states read from one position, got {[b.position for b in biases]}"
            )
        for i, b in enumerate(biases):
            like = {"W_V": self.weights[f"layers.{i}.W_V"]}
            if isinstance(b, Carried):
                rwkv.check_carried("Model", c, f"biases[{i}]", b, **like)
                continue
            if isinstance(b, KVCache):
                namespace("Model", **like, **{f"biases[{i}].k": b.k, f"biases[{i}].v": b.v})
                shape("Model", f"biases[{i}].k", b.k, c.kv_heads, "tokens", c.d)
                shape("Model", f"biases[{i}].v", b.v, c.kv_heads, b.k.shape[-2], c.m, like="to match its k")
                for name, x in (("k", b.k), ("v", b.v)):
                    finite("Model", f"biases[{i}].{name}", array_namespace(x), x)
                for memory in b.memories:
                    check_memory("Model", memory, c.d, c.m, c.kv_heads, **like)
                continue
            shape("Model", f"biases[{i}].S", b.S, c.kv_heads, "features", c.m)
            if c.normalise and b.z is None:
                raise ValueError(f"Model: `biases[{i}]` has b_KV but no b_D; a normalised layer needs both")
            check_state("Model", f"biases[{i}]", b, b.S.shape[-2], c.m, **like)

    def __repr__(self) -> str:
        return (
            f"Model({self.config}, {len(self.weights)} weights in {system_of(self.like).name}, prompts={self.prompts})"
        )

    def __call__(self, text: Any, **options: Any) -> Any:
        """Logits (or vectors) for a text; options as in `transformer`."""
        return transformer(self, text, **options)[0]

    @property
    def states(self) -> tuple[Past | None, ...]:
        """Where the attention of each layer starts; None: from no text."""
        return (None,) * self.config.layers if self.biases is None else self.biases

    @property
    def position(self) -> int:
        """Where the next token is read."""
        return self.biases[0].position if self.biases else 0

    @property
    def like(self) -> Any:
        """One of its arrays: they all are of one library, system and device."""
        return next(iter(self.weights.values()))

    @functools.cached_property
    def rope(self) -> Rope | None:
        rotary = self.config.rope
        if rotary is None:
            return None
        if rotary.base is None:
            table = power_table(self.weights["rope.c"], self.weights["rope.s"])
        else:
            table = angle_table(self.like, rotary.width, base=rotary.base)
        remembered = functools.lru_cache(maxsize=2)(table)  # every layer asks for the same positions, for q and for k
        return Rope(lambda positions: remembered(tuple(positions)), rotary.layout, rotary.placement)

    def of_layer(self, i: int) -> dict[str, Any]:
        """The weights of layer i, by their short names."""
        start = f"layers.{i}."
        return {name.removeprefix(start): self.weights[name] for name in self.config.shapes if name.startswith(start)}


def transformer(
    model: Model,
    text: Any,
    *,
    form: Form | None = None,
    mask: str | int = "causal",
    between: Callable[[int, Any], Any] = lambda i, x: x,
) -> tuple[Any, tuple[Past, ...]]:
    """The output for a text, and the state of each layer after it.

        x = embed(text);    x, state_i = layer_i(x) for each layer, starting from its bias;    unembed(x)

    text : token ids (..., n), or vectors (..., n, width)    ->  logits (..., n, vocabulary), or vectors
    form : the form of attention: the definition, or one that equals it; by default the fastest      mask : as in linear_attention
    between : (i, x) -> x, called on what layer i puts out: to watch it, or to put other activations in its place
    """
    x, states = through_layers(model, text, form=form, mask=mask, between=between)
    return unembed(model, x), states


def through_layers(
    model: Model, text: Any, *, form: Form | None, mask: str | int, between: Callable[[int, Any], Any] = lambda i, x: x
) -> tuple[Any, tuple[Past, ...]]:
    """What the last layer puts out, and the state of each layer after the text."""
    instance("transformer", "model", model, Model)
    x, states = embed(model, text), []
    if model.config.recurrent:
        if mask != "causal":
            raise NotDefined(
                f"transformer: a recurrence reads its text from left to right; `mask` must be 'causal', got {mask!r}"
            )
        return rwkv.through_layers(model, x, model.biases, form=form or "recurrent", between=between)
    form = form or (softmax_attention_shifted if model.config.softmax else linear_attention_chunked)
    kernel = "softmax" if model.config.softmax else "linear"
    if getattr(form, "kernel", kernel) != kernel:
        raise NotDefined(f"transformer: `form` must be of {kernel} attention, as the model is, got {form.__name__}")
    for i, state in enumerate(model.states):
        x, state = layer(model, i, x, state, form=form, mask=mask)
        x = between(i, x)
        states.append(state)
    return x, tuple(states)


def embed(model: Model, text: Any) -> Any:
    """Token ids as rows of the embedding, or vectors as they are; plus the rows of the position table, if there is one."""
    c, w, p = model.config, model.weights, model.position
    x = vectors(model, text)
    if c.recurrent:
        return rwkv.embed(model, x)
    if c.table:
        n = x.shape[-2]
        if p < 0 or p + n > c.table:
            got = f"{n} tokens read from position {p} on"
            raise ValueError(f"transformer: `text` must fit the table of {c.table} absolute positions, got {got}")
        x = x + w["positions"][p : p + n, :]
    return x


def vectors(model: Model, text: Any, who: str = "transformer", name: str = "text") -> Any:
    """The text as vectors (..., n, width)."""
    c, like = model.config, model.like
    ids = token_ids(who, name, text, c.vocabulary) if c.vocabulary else None
    if ids is None:
        xp = namespace(who, weights=like, **{name: text})
        shape(who, name, text, "tokens", c.width)
        finite(who, name, xp, text)
        return text
    xp = array_namespace(like)
    flat = ids.reshape(-1) if isinstance(like, SystemArray) else xp.asarray(ids.reshape(-1), device=device(like))
    rows = xp.take(model.weights["embedding"], flat, axis=0)
    return xp.reshape(rows, (*ids.shape, c.width))


def unembed(model: Model, x: Any) -> Any:
    """Logits norm(x) Eᵀ; without a vocabulary, norm(x)."""
    c, w = model.config, model.weights
    if c.recurrent:
        return rwkv.unembed(model, x)
    if c.order != "post":
        x = norm(x, w.get("gain", 1), w.get("offset", 0), kind=c.norm, epsilon=c.epsilon)
    if not c.vocabulary:
        return whole("transformer", "the output", x)
    head = array_namespace(x).matrix_transpose(w["embedding"]) if c.tied else w["unembedding"]
    return whole("transformer", "the output", x @ head)


def layer(model: Model, i: int, x: Any, state: Any, *, form: Form, mask: str | int) -> tuple[Any, Any]:
    """Layer i on x (..., n, width), its attention starting from a state.

    pre        x ← x + attend(norm_1 x)        x ← x + mlp(norm_2 x)
    post       x ← norm_1(x + attend x)        x ← norm_2(x + mlp x)
    parallel   x ← x + attend(norm_1 x) + mlp(norm_1 x)
    """
    c, w = model.config, model.of_layer(i)

    def norm_(j: int, y: Any) -> Any:
        return norm(y, w.get(f"gain_{j}", 1), w.get(f"offset_{j}", 0), kind=c.norm, epsilon=c.epsilon)

    def mlp_(y: Any) -> Any:
        options = {
            "gate": w.get("W_gate"),
            "b_up": w.get("b_up", 0),
            "b_down": w.get("b_down", 0),
            "activation": c.activation,
        }
        return mlp(y, w["W_up"], w["W_down"], **options) if c.hidden else 0

    try:
        y = x if c.order == "post" else norm_(1, x)
        o, after = attend(model, i, y, state, form=form, mask=mask)
        if c.order == "parallel":
            x = x + o + mlp_(y)
        elif c.order == "pre":
            x = x + o
            x = x + mlp_(norm_(2, x)) if c.hidden else x
        else:
            x = norm_(1, x + o)
            x = norm_(2, x + mlp_(x)) if c.hidden else x
        return whole("transformer", "its output", x), after
    except (ZeroDivisionError, NotFinite) as error:
        raise type(error)(f"layer {i}: {error}") from error


def attend(model: Model, i: int, x: Any, state: Any, *, form: Form, mask: str | int) -> tuple[Any, Any]:
    """Attention of all heads, [o_1 … o_H] W_O, and the state after it.

    Query heads that share keys and values stand on an axis of their own: q (..., groups, heads/groups, n, d), k (..., groups, 1, n, d).
    """
    c, w = model.config, model.of_layer(i)
    q = split(x @ w["W_Q"] + w.get("b_Q", 0), c.kv_heads, c.heads // c.kv_heads)
    k, v = (y[..., None, :, :] for y in keys_values(model, i, x))
    for name, y in (("q", q), ("k", k), ("v", v)):
        whole("transformer", name, y)
    shared = None if state is None else state.each(lambda y, axes: y[(..., None, *[slice(None)] * axes)])
    if c.softmax:
        o, after = form(q, k, v, rope=model.rope, cache=shared, mask=mask)
    else:
        o, after = form(q, k, v, phi=c.phi, normalise=c.normalise, rope=model.rope, state=shared, mask=mask)
    xp = array_namespace(o)
    o = xp.moveaxis(o, -2, -4)  # (..., n, groups, heads/groups, m)
    o = xp.reshape(o, (*o.shape[:-3], c.heads * c.m)) @ w["W_O"] + w.get("b_O", 0)
    return o, after.each(lambda y, axes: y[(..., 0, *[slice(None)] * axes)])


def keys_values(model: Model, i: int, x: Any) -> tuple[Any, Any]:
    """k (..., groups, n, d) and v (..., groups, n, m) of layer i, from what its attention is given."""
    w, groups = model.of_layer(i), model.config.kv_heads
    k, v = x @ w["W_K"] + w.get("b_K", 0), x @ w["W_V"] + w.get("b_V", 0)
    return split(k, groups), split(v, groups)


def split(x: Any, *heads: int) -> Any:
    """(..., n, heads·width) -> (..., heads, n, width)"""
    xp = array_namespace(x)
    x = xp.reshape(x, (*x.shape[:-1], *heads, x.shape[-1] // prod(heads)))
    return xp.moveaxis(x, -2 - len(heads), -2)


def random_model(system: System, config: Config, seed: int) -> Model:
    """A model with weights drawn from a number system, as `draw_model` makes them."""
    instance("random_model", "system", system, System)
    numbers = itertools.count()
    return draw_model(lambda *shape: system.random(shape, seed_of("model", seed, next(numbers))), config)


def draw_model(draw: Callable[..., Any], config: Config) -> Model:
    """A model with weights from draw(*shape): uniform if that is, since it is only scaled and, for gains, moved to 1.

    Matrices are scaled down where numbers have a size: not in GF(p).
    """
    weights = {}
    for name, (height, *rest) in config.shapes.items():
        x, kind = draw(height, *rest), name.rpartition(".")[2].partition("_")[0]
        size = {"ordered", "real"} & system_of(x).can
        weights[name] = 1 + x / 4 if kind == "gain" else x / isqrt(height) if kind == "W" and size else x
    if "rope.c" in weights:
        weights["rope.c"], weights["rope.s"] = circle_point(weights["rope.c"])
    return Model(config, weights)
