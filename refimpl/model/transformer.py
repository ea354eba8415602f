"""A transformer: plain named arrays, a few words of configuration, pure functions.

    x_0 = E[text] (+ positions)        x_{i+1} = layer_i(x_i)        logits = norm(x_L) Eᵀ

Everything but attention is token-wise, so a theorem about one attention layer lifts to the model by
induction over layers. A model may carry *biases*: for each layer the Past from which it starts. For
linearized attention that is the State (b_KV, b_D, position). See prompt/conversion.py.

A family of layers is one file of this package: attention_layers.py (linear and softmax attention),
rwkv.py. The roots and exponentials here need a real system. The rational stand-ins beside them,
tangent to them at their usual argument, let whole models run in ℚ and GF(p).
"""

from __future__ import annotations

import copy
import itertools
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import isqrt
from typing import Any, ClassVar, NamedTuple, Protocol, Self, cast

from ..arrays import Array, Mask
from ..attention.feature_maps import FeatureMap, Kernel, relu
from ..attention.past import Past
from ..attention.rope import circle_point
from ..checks import (
    check_finite,
    check_function,
    check_integer,
    check_kinds,
    check_sequence,
    check_shape,
    check_token_ids,
    check_type,
    common_namespace,
    require_finite,
)
from ..errors import choose
from ..systems import System, SystemArray, seed_of, system_of
from ..systems.floats import array_namespace, constant, device, quiet, require_of, surely_finite

# √(2/π), as published code has it: the nearest float64.
GELU = Fraction(7186705221432913, 2**53)
EPSILON = Fraction(1, 100000)
Bias = Array | int  # 0 where there is none
Between = Callable[[int, Array], Array]  # (i, x) -> x


class AttentionCall(NamedTuple):
    """q (..., groups, heads/groups, n, d); k, v (..., groups, 1, n, d or m); the past of a layer"""

    q: Array
    k: Array
    v: Array
    past: Any


@dataclass(frozen=True)
class Pass:
    """One pass of a text through the layers of a model.

    form : the form of attention, or of a recurrence; None: the fastest
    mask : as in linear_attention
    between : (i, x) -> x, called on the output of layer i: to watch it, or to replace it
    on_attention : (i, call) -> None, called before the attention of layer i
    shared : arrays that a layer of this pass leaves for later layers
    """

    form: Any = None
    mask: Mask = "causal"
    between: Between | None = None
    on_attention: Callable[[int, AttentionCall], None] | None = None
    shared: dict[str, Array] = field(default_factory=dict)


class Family(Protocol):
    """A kind of model: its configuration and its layer. Each is a frozen dataclass in its own file.

    family          its name in files
    d               width of a key
    norm, epsilon, order, tied, table    as in Config, for the steps before and after the layers
    shapes          name and shape of every parameter
    past            the kind of Past that a layer carries
    kernel          φ and RoPE of its attention
    layer           layer i on x (..., n, width), starting from its past; None: from no text
    check_past      refuse a past that does not fit such a layer, or the array `like`
    cache_bytes     bytes of a KV cache of so many tokens; None where attention has none
    definition      the form that is the definition, for checks; None: the fastest form
    to_json         with its `family`, from which `from_json` makes the same configuration
    charge          charge a file for what a few letters of its configuration may cost: see budget
    """

    family: ClassVar[str]
    layers: int
    width: int
    vocabulary: int
    norm: str
    epsilon: Fraction
    order: str
    tied: bool
    table: int

    definition: ClassVar[Any] = None

    @property
    @abstractmethod
    def d(self) -> int: ...
    @property
    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]: ...
    @property
    @abstractmethod
    def past(self) -> type[Any]: ...
    @abstractmethod
    def kernel(self, weights: Mapping[str, Array]) -> Kernel: ...
    @abstractmethod
    def layer(self, model: Model, i: int, x: Array, past: Any, run: Pass) -> tuple[Array, Any]: ...
    @abstractmethod
    def check_past(self, who: str, name: str, past: Any, like: Array) -> None: ...
    @abstractmethod
    def cache_bytes(self, tokens: int, itemsize: int) -> int | None: ...
    @abstractmethod
    def to_json(self) -> dict[str, Any]: ...
    @classmethod
    @abstractmethod
    def from_json(cls, data: dict[str, Any]) -> Self: ...
    def charge(self) -> None:
        """By default nothing: weights are paid for by the file that holds them."""
        return


def check_family(who: str, config: object) -> None:
    if isinstance(config, type) or not callable(getattr(config, "layer", None)):
        raise TypeError(f"{who}: `config` must be a Config or another Family, got {type(config).__name__}")


@dataclass(eq=False)
class Model:
    """A configuration, weights by name, and biases that carry a prompt: a Past for each layer.

    prompts : the lengths of the prompts it carries, in the order of conversion
    """

    config: Family
    weights: Mapping[str, Array]
    biases: tuple[Any, ...] | None = None
    prompts: tuple[int, ...] = ()
    kernel: Kernel = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_family("Model", self.config)
        check_type("Model", "weights", self.weights, Mapping)
        self.weights = dict(self.weights)  # a defensive copy
        for name in self.weights:
            choose("Model", "weights", name, self.config.shapes)
        for name, wanted in self.config.shapes.items():
            if name not in self.weights:
                raise ValueError(f"Model: `weights` must have {name!r} of shape {wanted}, got no such name")
        check_kinds("Model", **self.weights)
        for name, wanted in self.config.shapes.items():
            x = self.weights[name]
            if tuple(x.shape) != wanted:
                raise ValueError(f"Model: `{name}` must have shape {wanted}, got {tuple(x.shape)}")
            if not surely_finite(x):
                check_finite("Model", name, x, axes=("row", "column")[2 - len(wanted) :])
        self.kernel = self.config.kernel(self.weights)
        self.check_biases()

    def with_biases(self, biases: Sequence[Past], prompts: tuple[int, ...] | None = None) -> Model:
        """The same model with other biases; its weights are not checked again."""
        model = self.carry(biases, self.prompts if prompts is None else prompts)
        model.check_biases()
        return model

    def carry(self, biases: Sequence[Past], prompts: tuple[int, ...]) -> Model:
        """The same model with biases that its own layers have made, which need no check."""
        model = copy.copy(self)
        model.biases, model.prompts = tuple(biases), prompts
        return model

    def check_biases(self) -> None:
        check_sequence("Model", "prompts", self.prompts)
        for n in self.prompts:
            check_integer("Model", "prompts", n, least=0)
        if self.biases is None:
            return
        check_sequence("Model", "biases", self.biases)
        for i, b in enumerate(self.biases):
            check_type("Model", f"biases[{i}]", b, self.config.past)
        positions = [b.position for b in self.biases]
        if len(positions) != self.config.layers or len(set(positions)) > 1:
            wanted = f"{self.config.layers} states read from one position"
            raise ValueError(f"Model: `biases` must be {wanted}, got {positions}")
        for i, b in enumerate(self.biases):
            self.config.check_past("Model", f"biases[{i}]", b, self.like)

    def __repr__(self) -> str:
        numbers = f"{len(self.weights)} weights in {system_of(self.like).name}"
        return f"Model({self.config}, {numbers}, prompts={self.prompts})"

    def __call__(self, text: Any, **options: Any) -> Array:
        """Logits (or vectors) for a text; options as in `transformer`."""
        return transformer(self, text, **options)[0]

    @property
    def position(self) -> int:
        """Where the next token is read."""
        return self.biases[0].position if self.biases else 0

    @property
    def like(self) -> Array:
        """One of its weights; all have the same library, system, dtype and device."""
        return next(iter(self.weights.values()))

    def layer_weights(self, i: int) -> dict[str, Array]:
        """The weights of layer i, by their short names."""
        start = f"layers.{i}."
        return {name.removeprefix(start): w for name, w in self.weights.items() if name.startswith(start)}


@quiet()
def transformer(
    model: Model,
    text: Any,
    *,
    form: Any = None,
    mask: Mask = "causal",
    between: Between | None = None,
    on_attention: Callable[[int, AttentionCall], None] | None = None,
) -> tuple[Array, tuple[Any, ...]]:
    """The output for a text, and the past of each layer after it.

        x = embed(text);    x, past_i = layer_i(x, bias_i) for each layer;    unembed(x)

    text : token ids (..., n) or vectors (..., n, width)  ->  logits (..., n, vocabulary) or vectors
    form : the definition of attention, or a form that equals it; None: the fastest
    mask : as in linear_attention        between, on_attention : as in Pass
    """
    check_type("transformer", "model", model, Model)
    x = embed(model, check_text(model, text, "transformer", "text"))
    x, pasts = run_layers(model, x, Pass(form, mask, between, on_attention))
    return unembed(model, x), pasts


def check_text(model: Model, text: Any, who: str, name: str) -> Any:
    """Token ids (..., n) on the host, or vectors (..., n, width), as they are."""
    c = model.config
    ids = check_token_ids(who, name, text, c.vocabulary) if c.vocabulary else None
    if ids is not None:
        return ids
    check_kinds(who, weights=model.like, **{name: text})
    check_shape(who, name, text, "tokens", c.width)
    check_finite(who, name, text)
    return text


def token_vectors(model: Model, text: Any) -> Array:
    """Rows of the embedding for token ids; vectors as they are."""
    xp, like = array_namespace(model.like), model.like
    if text.dtype != int:
        return cast(Array, text)
    flat = text.reshape(-1) if isinstance(like, SystemArray) else xp.asarray(text.reshape(-1), device=device(like))
    return xp.reshape(xp.take(model.weights["embedding"], flat, axis=0), (*text.shape, model.config.width))


def embed(model: Model, text: Any) -> Array:
    """The vectors of the tokens, with the first norm and the table of positions if any."""
    c, w, x = model.config, model.weights, token_vectors(model, text)
    if "gain_0" in w:
        x = norm(x, w["gain_0"], w["offset_0"], kind=c.norm, epsilon=c.epsilon)
    if not c.table:
        return x
    p, n = model.position, x.shape[-2]
    if p < 0 or p + n > c.table:
        got = f"{n} tokens read from position {p} on"
        raise ValueError(f"transformer: `text` must fit the table of {c.table} absolute positions, got {got}")
    return x + w["positions"][p : p + n, :]


def run_layers(model: Model, x: Array, run: Pass) -> tuple[Array, tuple[Any, ...]]:
    """The output of the last layer, and the past of each layer after the text."""
    pasts = []
    for i, past in enumerate(model.biases or (None,) * model.config.layers):
        x, past = model.config.layer(model, i, x, past, run)
        x = run.between(i, x) if run.between else x
        pasts.append(past)
    return x, tuple(pasts)


def unembed(model: Model, x: Array) -> Array:
    """Logits norm(x) Eᵀ; without a vocabulary, norm(x)."""
    return logits(model, final_norm(model, x))


def final_norm(model: Model, x: Array) -> Array:
    """norm(x) after the last layer; in the order "post" x itself, which is normalised already."""
    c, w = model.config, model.weights
    if c.order == "post":
        return x
    return norm(x, w.get("gain", 1), w.get("offset", 0), kind=c.norm, epsilon=c.epsilon)


def logits(model: Model, x: Array) -> Array:
    """x Eᵀ for the normalised output x of the last layer; without a vocabulary, x itself."""
    c, w = model.config, model.weights
    if c.vocabulary:
        x = x @ (array_namespace(x).matrix_transpose(w["embedding"]) if c.tied else w["unembedding"])
    return require_finite("transformer", "the output", x)


NORMS = {"none": "ring", "layer": "real", "rms": "real", "layer_rational": "field", "rms_rational": "field"}


def norm(
    x: Array, gain: Array | int = 1, offset: Bias = 0, *, kind: str = "layer", epsilon: Fraction = EPSILON
) -> Array:
    """Normalise each token, (..., n, width).

        layer   y = x − mean(x)     rms   y = x       then    y / √(mean(y²) + ε) · gain + offset
        layer_rational, rms_rational: 2/(1 + u), tangent to 1/√u at u = 1, replaces it
        none: x itself

    Needs    field; real for the roots
    Source   Ba et al. 2016, Zhang and Sennrich 2019; the stand-ins are ours
    """
    if kind == "none":
        return x
    xp, width = array_namespace(x), x.shape[-1]
    y = x - xp.sum(x, axis=-1, keepdims=True) / width if kind.startswith("layer") else x
    u = xp.sum(y * y, axis=-1, keepdims=True) / width + constant(x, epsilon)
    require_finite(f"{kind} norm", "mean(y²) + ε", u)
    if kind.endswith("rational"):
        return y * (2 / (1 + u)) * gain + offset
    require_of(x, "real", f"{kind} norm")
    return y / xp.sqrt(u) * gain + offset


def gelu(x: Array) -> Array:
    """x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³))). Needs real; Source Hendrycks and Gimpel 2016"""
    inner = constant(x, GELU) * (x + constant(x, Fraction(44715, 10**6)) * x * x * x)
    return x / 2 * (1 + array_namespace(x).tanh(inner))


def silu(x: Array) -> Array:
    """x / (1 + exp(−x)) = x/2 · (1 + tanh(x/2)), which does not overflow.   Needs real"""
    return x / 2 * (1 + array_namespace(x).tanh(x / 2))


def quadratic(x: Array) -> Array:
    """x/2 + x²/4 = x (2 + x) / 4: silu to second order, its stand-in in ℚ. Needs field; 2 ≠ 0"""
    return x * (2 + x) / 4


ACTIVATIONS: dict[str, tuple[FeatureMap, str]] = {"gelu": (gelu, "real"), "silu": (silu, "real")}
ACTIVATIONS |= {"relu": (relu, "ordered"), "quadratic": (quadratic, "field")}


def mlp(
    x: Array, up: Array, down: Array, gate: Array | None = None, b_up: Bias = 0, b_down: Bias = 0, *, activation: str
) -> Array:
    """σ(x W_up + b_up) W_down + b_down; gated, σ(x W_gate) · (x W_up + b_up) stands before W_down.

    Source   Shazeer 2020 (gated)
    """
    sigma, needed = ACTIVATIONS[activation]
    require_of(x, needed, activation)
    hidden = x @ up + b_up
    hidden = sigma(hidden) if gate is None else sigma(x @ gate) * hidden
    return hidden @ down + b_down


def random_model(system: System, config: Family, seed: int) -> Model:
    """A model with weights drawn from a number system, as `draw_model` makes them."""
    check_type("random_model", "system", system, System)
    check_integer("random_model", "seed", seed)
    numbers = itertools.count()
    return draw_model(lambda *shape: system.random(shape, seed_of("model", seed, next(numbers))), config)


def draw_model(draw: Callable[..., Array], config: Family) -> Model:
    """A model with weights from draw(*shape).

    All but rope.c and rope.s are affine images of the draws, so uniform draws stay uniform, as
    Schwartz–Zippel needs. Matrices are scaled down, except in GF(p), where numbers have no size.
    """
    check_family("draw_model", config)
    check_function("draw_model", "draw", draw)
    weights = {}
    for name, (height, *rest) in config.shapes.items():
        x, kind = draw(height, *rest), name.rpartition(".")[2].partition("_")[0]
        common_namespace("draw_model", **{"draw(...)": x})
        has_size = {"ordered", "real"} & system_of(x).can
        weights[name] = 1 + x / 4 if kind == "gain" else x / isqrt(height) if kind == "W" and has_size else x
    if "rope.c" in weights:
        weights["rope.c"], weights["rope.s"] = circle_point(weights["rope.c"])
    return Model(config, weights)
