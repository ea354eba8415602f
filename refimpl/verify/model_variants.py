"""The usual mistakes in reading somebody's weights, each as a change of our model.

A matrix that is square fits transposed, and no shape gives it away; so do swapped projections, the
other layout of RoPE, another ε. A change that makes our model agree with the other one names the
mistake, whichever side has made it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from math import isqrt
from typing import Any

from ..arrays import Array
from ..attention.feature_maps import FEATURE_MAPS
from ..model.attention_layers import ORDERS, Config, Rotary
from ..model.transformer import ACTIVATIONS
from ..systems import system_of
from ..systems.floats import array_namespace
from .model_stages import Change, Weights

ATTENTION, MLP, PROJECTIONS = ("W_Q", "W_K", "W_V", "W_O"), ("W_gate", "W_up", "W_down"), ("Q", "K", "V")
EPSILONS = [Fraction(1, 10**k) for k in (5, 6, 8, 12)] + [Fraction(0)]
# kinds of parameters that a change of the projections takes along
BIASES = (("Wb", ""), ("W", ", but not their biases"), ("b", ", of the biases alone"))
BASES = (10000, 500000, 1000000)


def changes(config: Config, kinds: set[str]) -> Iterator[Change]:
    """Every change that means something for steps of these kinds."""
    if "embedding" in kinds:
        yield from of_embedding(config)
    if "attention" in kinds:
        yield from transposed(config, ATTENTION)
        yield from of_projections(config)
        yield from of_attention(config)
    if "mlp" in kinds:
        yield from transposed(config, MLP)
        yield from of_mlp(config)
    if kinds >= {"attention", "mlp"}:
        yield from transposed(config, (*ATTENTION, *MLP), least=len(squares(config, (*ATTENTION, *MLP))))
    if kinds & {"attention", "mlp", "norm"}:
        yield from of_norm(config, kinds)
    if "logits" in kinds:
        yield from of_logits(config)


def squares(c: Config, names: Sequence[str]) -> list[str]:
    """Those of these matrices that fit transposed."""
    shapes = {name: c.shapes.get(f"layers.0.{name}", (0, 1)) for name in names}
    return [name for name, (rows, columns) in shapes.items() if rows == columns > 1]


def transposed(c: Config, names: Sequence[str], least: int = 1) -> Iterator[Change]:
    """Square matrices read the other way, in every combination of at least so many."""
    square = squares(c, names)
    for count in range(max(least, 1), len(square) + 1):
        for some in itertools.combinations(square, count):
            yield Change(f"{in_a_row(some)} transposed", layer=functools.partial(transpose, some))


def changing(**changes: Any) -> Callable[[Config], Config]:
    return lambda config: replace(config, **changes)


def in_a_row(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def transpose(names: Sequence[str], c: Config, w: Weights) -> Weights:
    return w | {name: array_namespace(w[name]).matrix_transpose(w[name]) for name in names}


def exchange(a: str, b: str, c: Config, w: Weights) -> Weights:
    """Two weights in each other's place; biases and offsets go with them."""
    return w | {x: w[y] for x, y in ((a, b), (b, a)) if x in w and y in w}


def exchanged(*pairs: tuple[str, str]) -> Callable[[Config, Weights], Weights]:
    def layer(c: Config, w: Weights) -> Weights:
        for a, b in pairs:
            w = exchange(a, b, c, w)
        return w

    return layer


def times_root(names: Sequence[str], factor: Fraction, c: Config, w: Weights) -> Weights:
    """Weights times the root of a factor; in an exact system it must be a square."""
    found = {name: w[name] * root(w[name], factor) for name in names if name in w}
    return w | found


def root(x: Array, factor: Fraction) -> Any:
    a, b = isqrt(factor.numerator), isqrt(factor.denominator)
    if (a * a, b * b) == (factor.numerator, factor.denominator):
        return Fraction(a, b)
    xp = array_namespace(x)
    return xp.sqrt(system_of(x).convert([factor]))


def left_out(names: Sequence[str], c: Config, w: Weights) -> Weights:
    return w | {name: w[name] - w[name] for name in names if name in w}


def of_embedding(c: Config) -> Iterator[Change]:
    if c.table:
        yield Change("no table of positions", ends=functools.partial(left_out, ("positions",)))
    if c.vocabulary:
        for factor, words in ((Fraction(c.width), "times"), (Fraction(1, c.width), "divided by")):
            ends = functools.partial(times_root, ("embedding",), factor)
            yield Change(f"embedding {words} the root of the width", ends=ends)
    if c.vocabulary == c.width:
        yield Change("embedding transposed", ends=functools.partial(transpose, ("embedding",)))


def of_projections(c: Config) -> Iterator[Change]:
    shape = {x: c.shapes[f"layers.0.W_{x}"] for x in PROJECTIONS}
    for a, b in itertools.combinations(PROJECTIONS, 2):
        if shape[a] == shape[b]:
            for kinds, which in BIASES if c.biased else BIASES[:1]:
                pairs = [(f"{kind}_{a}", f"{kind}_{b}") for kind in kinds]
                yield Change(f"W_{a} and W_{b} swapped{which}", layer=exchanged(*pairs))
    if shape["Q"] == shape["K"] == shape["V"]:
        for order, (kinds, which) in itertools.product(("KVQ", "VQK"), BIASES if c.biased else BIASES[:1]):
            words = f"fused weights in the order {', '.join(order)}{which}"
            yield Change(words, layer=functools.partial(reorder, order, kinds))
    if c.kv_heads > 1:
        for kinds, which in BIASES if c.biased else BIASES[:1]:
            for by_head, words in ((True, "head by head"), (False, "one after another, not head by head")):
                layer = functools.partial(fuse_again, by_head, kinds)
                yield Change(f"fused weights {words}{which}", layer=layer)
    if 1 < c.kv_heads < c.heads:
        yield Change("head h reads keys h mod groups, not h // (heads/groups)", layer=spread_groups)


def reorder(order: str, kinds: str, c: Config, w: Weights) -> Weights:
    """What was taken as q, k, v holds these projections instead."""
    old = dict(zip(order, PROJECTIONS, strict=True))
    return w | {f"{kind}_{x}": w[f"{kind}_{y}"] for x, y in old.items() for kind in kinds if f"{kind}_{x}" in w}


def fuse_again(by_head: bool, kinds: str, c: Config, w: Weights) -> Weights:
    """W_Q, W_K, W_V put together as they were read, and taken apart in the other way."""
    groups, found = c.kv_heads, dict(w)
    for kind in kinds:
        names = [f"{kind}_{x}" for x in PROJECTIONS if f"{kind}_{x}" in w]
        if not names:
            continue
        xp = array_namespace(w[names[0]])
        sizes = [w[name].shape[-1] for name in names]
        lead = w[names[0]].shape[:-1]
        if by_head:
            both = xp.reshape(xp.concat([w[name] for name in names], axis=-1), (*lead, groups, sum(sizes) // groups))
            cuts = [0, *itertools.accumulate(size // groups for size in sizes)]
        else:
            pieces = [xp.reshape(w[name], (*lead, groups, w[name].shape[-1] // groups)) for name in names]
            both = xp.reshape(xp.concat(pieces, axis=-1), (*lead, sum(sizes)))
            cuts = [0, *itertools.accumulate(sizes)]
        for name, a, b in zip(names, cuts, cuts[1:], strict=False):
            found[name] = xp.reshape(both[..., a:b], w[name].shape)
    return found


def spread_groups(c: Config, w: Weights) -> Weights:
    """Heads of the queries in the order in which each group gets every so manyth."""
    order = [h + g for g in range(c.kv_heads) for h in range(0, c.heads, c.kv_heads)]
    columns = [h * c.d + j for h in order for j in range(c.d)]
    rows = [h * c.m + j for h in order for j in range(c.m)]
    xp = array_namespace(w["W_Q"])
    found = {"W_Q": xp.concat([w["W_Q"][:, j : j + 1] for j in columns], axis=-1)}
    found["W_O"] = xp.concat([w["W_O"][j : j + 1, :] for j in rows], axis=-2)
    if "b_Q" in w:
        found["b_Q"] = xp.concat([w["b_Q"][j : j + 1] for j in columns], axis=-1)
    return w | found


def of_attention(c: Config) -> Iterator[Change]:
    yield from of_rope(c)
    for factor, words in ((Fraction(c.d), "missing" if c.softmax else "too much"), (Fraction(1, c.d), "once more")):
        if c.d > 1:
            yield Change(
                f"a scale 1/√d of the scores {words}", layer=functools.partial(times_root, ("W_Q", "b_Q"), factor)
            )
    yield Change("no causal mask", mask="full")
    if not c.softmax:
        other = not c.normalise
        yield Change(f"normalise={other}", config=changing(normalise=other))
    if isinstance(c.phi, str):
        for phi in ("softmax", *FEATURE_MAPS):
            if phi != c.phi and (c.normalise or phi != "softmax"):
                yield Change(f"phi={phi!r}", config=functools.partial(with_phi, phi))
    if c.biased:
        for names in (("b_Q", "b_K", "b_V"), ("b_O",)):
            yield Change(f"no {in_a_row(names)}", layer=functools.partial(left_out, names))


def with_phi(phi: str, c: Config) -> Config:
    rope = replace(c.rope, placement="before") if c.rope and phi == "softmax" else c.rope
    return replace(c, phi=phi, rope=rope)


def of_rope(c: Config) -> Iterator[Change]:
    def with_rope(words: str, rope: Rotary | None) -> Change:
        return Change(words, config=changing(rope=rope))

    if c.rope is None:
        if c.d % 2 == 0:
            for layout in ("half", "interleaved"):
                yield with_rope(f"RoPE, layout {layout!r}", Rotary(c.d, layout, "before"))
        return
    other = "half" if c.rope.layout == "interleaved" else "interleaved"
    yield with_rope("no RoPE", None)
    yield with_rope(f"RoPE's layout {other!r}", replace(c.rope, layout=other))
    if not c.softmax:
        other = "before" if c.rope.placement == "after" else "after"
        yield with_rope(f"RoPE's placement {other!r}", replace(c.rope, placement=other))
    for base in BASES:
        if c.rope.base not in (base, None):
            yield with_rope(f"RoPE's base {base}", replace(c.rope, base=base))


def of_norm(c: Config, kinds: set[str]) -> Iterator[Change]:
    layers = kinds & {"attention", "mlp"}
    if "norm" in kinds and c.order != "post" and c.norm != "none":
        yield Change("no norm after the last layer", skip_norm=True)
    if not layers and c.order == "post":
        return
    if layers:
        for order in ORDERS:
            # a part of a layer does not tell "parallel" from "pre"
            if order != c.order and ("parallel" not in (order, c.order) or (len(layers) == 2 and c.hidden)):
                yield Change(f"order {order!r}", config=changing(order=order))
        if "layers.0.gain_2" in c.shapes:
            yield Change("the two norms swapped", layer=exchanged(("gain_1", "gain_2"), ("offset_1", "offset_2")))
    rational = "_rational" if c.norm.endswith("_rational") else ""
    for kind in (f"layer{rational}", f"rms{rational}", "none"):
        if kind != c.norm:
            words = "no norm" if kind == "none" else f"norm {kind!r}"
            yield Change(words, config=changing(norm=kind))
    for epsilon in EPSILONS:
        if c.norm != "none" and epsilon != c.epsilon:
            words = f"epsilon {float(epsilon):g} in the norm"
            yield Change(words, config=changing(epsilon=epsilon))


def of_mlp(c: Config) -> Iterator[Change]:
    if not c.hidden:
        return
    if c.gated:
        yield Change("W_gate and W_up swapped", layer=exchanged(("W_gate", "W_up")))
    for activation in ACTIVATIONS:
        if activation != c.activation:
            words = f"activation {activation!r}"
            yield Change(words, config=changing(activation=activation))
    if c.biased:
        for name in ("b_up", "b_down"):
            yield Change(f"no {name}", layer=functools.partial(left_out, (name,)))


def of_logits(c: Config) -> Iterator[Change]:
    if c.vocabulary and not c.tied:
        yield Change("a head tied to the embedding", config=changing(tied=True))
    name = "embedding" if c.tied else "unembedding"
    if c.vocabulary == c.width:
        yield Change(f"{name} transposed before the logits", ends=functools.partial(transpose, (name,)))
