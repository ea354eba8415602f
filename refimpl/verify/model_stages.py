"""The stages of a model, and the part of it between two of them, in any number system.

    embedding    layer 0 attention    layer 0    layer 1 attention    …    norm    logits

"layer 0 attention" is the sum after attention, "layer 0" the output of the layer, "norm" that of
the last norm. A part starts from the numbers of one stage, so its error is its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..arrays import Array
from ..attention.rope import Rope
from ..model.attention_layers import Config
from ..model.transformer import Model, Pass, check_text, embed, final_norm, logits
from ..systems import RunningError, System
from ..systems.floats import quiet

LAYER = "layers."
Weights = dict[str, Array]


def stage_names(layers: int) -> list[str]:
    """All stages in order; the number of a stage is its place here."""
    of_layers = [name for i in range(layers) for name in (f"layer {i} attention", f"layer {i}")]
    return ["embedding", *of_layers, "norm", "logits"]


@dataclass(frozen=True)
class Change:
    """Another reading of a model: another configuration, other weights, another mask."""

    words: str
    config: Callable[[Config], Config] = lambda c: c
    layer: Callable[[Config, Weights], Weights] = lambda c, w: w  # of one layer, by short names
    ends: Callable[[Config, Weights], Weights] = lambda c, w: w  # before and after the layers
    mask: Any = "causal"
    skip_norm: bool = False  # no norm after the last layer


AS_IT_IS = Change("as it is")


@dataclass(frozen=True)
class Part:
    """What a model computes between two stages; `first` and `last` count those of stage_names.

    first : the stage of the input; −1: the text itself
    config, weights : of the layers in between, and of the ends if they are needed
    """

    config: Config
    weights: Weights
    first: int
    last: int
    offset: int  # of the first layer here
    layers: int  # of the whole model

    @property
    def steps(self) -> range:
        return range(self.first + 1, self.last + 1)

    @property
    def kinds(self) -> set[str]:
        """The kinds of steps: embedding, attention, mlp, norm, logits."""
        end = 2 * self.layers
        names = {0: "embedding", end + 1: "norm", end + 2: "logits"}
        return {names.get(k, "attention" if k % 2 else "mlp") for k in self.steps}

    @property
    def own_layers(self) -> range:
        """The layers of the whole model of which something is computed here."""
        touched = [(k - 1) // 2 for k in self.steps if 0 < k <= 2 * self.layers]
        return range(touched[0], touched[-1] + 1) if touched else range(0)


def part_between(config: Config, weights: Weights, first: int, last: int) -> Part:
    """The part of a model after stage `first` up to stage `last`, with the weights it needs."""
    whole = Part(config, weights, first, last, 0, config.layers)
    own = whole.own_layers or range(1)
    smaller = replace(config, layers=len(own))
    if not whole.kinds & {"embedding", "logits"}:
        smaller = replace(smaller, vocabulary=0, table=0)
    names = {f"{LAYER}{i}.": f"{LAYER}{i - own[0]}." for i in own}
    kept = {}
    for name, w in weights.items():
        start = name[: name.index(".", len(LAYER)) + 1] if name.startswith(LAYER) else ""
        ours = names[start] + name[len(start) :] if start in names else name
        if (not start or start in names) and ours in smaller.shapes:
            kept[ours] = w
    return Part(smaller, kept, first, last, own[0], config.layers)


@quiet()
def run_part(part: Part, x: Any, system: System, change: Change = AS_IT_IS, only: int | None = None) -> Array:
    """The output of a part for its input x, in a number system.

    x    : token ids, or numbers that the system converts
    only : the one layer of the whole model whose weights change; None: all layers
    """
    model = changed_model(part, system, change, only)
    c, end = model.config, 2 * part.layers
    assert isinstance(c, Config)
    x = x if part.first < 0 and c.vocabulary else system.convert(x)
    before = x
    for k in part.steps:
        i = (k - 1) // 2 - part.offset
        if k == 0:
            x = embed(model, check_text(model, x, "compare", "tokens"))
        elif k <= end and k % 2:
            before = x
            x, _ = c.attention_step(model, i, model.layer_weights(i), x, None, Pass(mask=change.mask))
        elif k <= end:
            x = c.mlp_step(model.layer_weights(i), x, before)
        elif k == end + 1:
            x = x if change.skip_norm else final_norm(model, x)
        else:
            x = logits(model, x)
    output: Array = x
    return output


def changed_model(part: Part, system: System, change: Change, only: int | None) -> Model:
    """The model of a part, read in another way.

    Weights change after they are converted, so that the roundings of a change are in the bound.
    """
    old, config = part.config, change.config(part.config)
    converted = {name: system.convert(w) for name, w in part.weights.items()}
    weights = change.ends(old, {name: w for name, w in converted.items() if not name.startswith(LAYER)})
    for i in range(old.layers):
        start = f"{LAYER}{i}."
        own = {name.removeprefix(start): w for name, w in converted.items() if name.startswith(start)}
        own = change.layer(old, own) if only in (None, part.offset + i) else own
        weights |= {start + name: w for name, w in own.items()}
    needed = {name: fitting(weights, name, shape, system) for name, shape in config.shapes.items()}
    model = Model(config, needed)
    if isinstance(system, RunningError) and config.rope and config.rope.base is not None:
        rope = model.kernel.rope
        assert rope is not None
        model.kernel = replace(model.kernel, rope=replace(rope, table=rounded_angles(rope, system)))
    return model


def fitting(weights: Weights, name: str, shape: tuple[int, ...], system: System) -> Array:
    """A weight; where another configuration needs one more, a gain of ones or a vector of zeros."""
    return weights[name] if name in weights else system.convert(np.full(shape, int("gain" in name)))


def rounded_angles(rope: Rope, system: RunningError) -> Callable[[Any], tuple[Array, Array]]:
    """Rotations whose angles p θ were computed in the dtype, as most programs do.

    θ ≤ 1 is within a few units in the last place, and p θ is rounded once more: cos and sin are off
    by (p + 2) · 4u, as in files/models/llama.py.
    """

    def table(positions: Any) -> tuple[Array, Array]:
        more = 4 * system.u * (2 + np.abs(np.asarray(positions, dtype=np.float64))[:, None])
        cos, sin = (system.wrap((x.planes[0], x.planes[1] + more)) for x in rope.table(positions))  # type: ignore[attr-defined]
        return cos, sin

    return table
