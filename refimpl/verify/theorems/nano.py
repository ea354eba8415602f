"""The library equals nano.py, the theory on one page.

Both sides are given the same weights, the same φ and the same activation. RoPE rotates by points of
the circle in every system, as in nano.py; where numbers are rounded, the errors of those points are
part of the bound.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, cast

from ...attention.feature_maps import feature_map
from ...attention.linear_attention import State
from ...attention.state import no_text
from ...model.attention_layers import Config
from ...model.transformer import ACTIVATIONS, Model, draw_model
from ..cases import ModelCase
from ..implementation import Implementation
from ..theorem import Numbers, Sides, Theorem
from .iclca import CHEN, TURN, draw_state

# In a quick run, systems that round see every second of these.
CASES = (
    ModelCase(2, 1, heads=2, m=2, phi="elu+1", rope=TURN, hidden=2, activation="gelu", start=0),
    ModelCase(2, 2, layers=2, width=3, heads=2, d=3, rope=TURN, hidden=2),
    ModelCase(1, 2, width=3, d=3, phi="polynomial(2)", rope=TURN, hidden=3, start=0),
    ModelCase(2, 1, layers=2, width=3, heads=2, d=3, rope=TURN, hidden=2, start=0),
    ModelCase(3, 1, d=4, rope=("half", "after", 4), hidden=1, start=0),
    ModelCase(2, 2, layers=2, phi="elu+1", rope=TURN, hidden=2),
)
# Shapes that people use; nano.py rotates by p steps for position p.
USUAL = (
    (
        ModelCase(20, 14, width=65, heads=8, d=9, m=8, rope=("half", "after", 8), hidden=67, start=0, chunk=None),
        ModelCase(17, 16, width=66, heads=6, d=66, rope=("half", "after", 66), hidden=65, chunk=None),
    ),
)


def more_cases(seed: int) -> tuple[ModelCase, ...]:
    sizes = ((1, 1, 1), (4, 3, 1), (2, 5, 2))
    return tuple(
        ModelCase(M, n, layers, 3, 2, d=3, m=2, phi=phi, rope=TURN, hidden=2, start=start)
        for M, n, layers in sizes
        for phi in ("identity", "elu+1")
        for start in (None, 0)
    )


def nano(case: ModelCase, numbers: Numbers, impl: Implementation) -> Sides:
    """The library equals nano.py: attention, transformer, and the biases that a prompt becomes."""
    model = draw_model(numbers.draw, case.config(None))
    if case.start is not None:
        model = replace(model, biases=tuple(draw_state(case, numbers) for _ in range(case.layers)))
    x, phi, M = numbers.draw(case.M + case.n, case.width), feature_map(case.phi), case.M
    layers, rope, biases = arguments(model, phi(numbers.draw(1, case.d)).shape[-1])
    theory: tuple[Any, ...] = layers, case.heads, phi, rope, ACTIVATIONS[case.activation][0]

    yield "transformer", impl.transformer(model, x)[0], impl.nano_transformer(x, *theory, biases)
    converted, shorter = impl.convert(model, x[:M, :]), impl.nano_convert(x[:M, :], *theory, biases)
    for i, (bias, (b_KV, b_D)) in enumerate(zip(converted.biases, shorter, strict=True)):
        yield f"b_KV of layer {i}", bias.S, b_KV
        yield f"b_D of layer {i}", bias.z, b_D
    yield "converted", impl.transformer(converted, x[M:, :])[0], impl.nano_transformer(x[M:, :], *theory, shorter)

    q, k, v = (numbers.draw(case.heads, case.n, width) for width in (case.d, case.d, case.m))
    o, _ = impl.linear_attention(q, k, v, replace(model.kernel, phi=phi), state=State(*biases[0], 0))
    yield "attention", o, impl.nano_attention(q, k, v, phi, rope, *biases[0])


def arguments(model: Model, r: int) -> tuple[list[Any], tuple[Any, Any], list[tuple[Any, Any]]]:
    """The weights, rotation and biases of a model with r features, as nano.py takes them."""
    c = cast(Config, model.config)
    states = model.biases or [no_text(model.like, r, c.m, lead=(c.heads,))] * c.layers
    biases = [(state.S, state.z) for state in states]
    return [model.layer_weights(i) for i in range(c.layers)], (model.weights["rope.c"], model.weights["rope.s"]), biases


def speaks_of(case: Any) -> bool:
    return isinstance(case, ModelCase) and min(case.M, case.n) > 0


ASSUMES = "no norms; positions from 0; RoPE after φ, in half layout; denominators ≠ 0"
theorem = functools.partial(
    Theorem.of, needs=("field", "a model"), cases=CASES, more=more_cases, usual=USUAL, group="attention"
)
ORDER = 0
THEOREMS = (theorem(nano, ASSUMES, CHEN, speaks_of),)
