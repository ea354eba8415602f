"""Small exact witnesses that ICLCA needs its assumptions, and that no less than its biases will do.

A witness of "≠" is one instance, in numbers that can be followed by hand; "=" marks what does hold.
Each function takes its decisive assumption as an argument: without it, the witness must fail.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from ...attention.linear_attention import UNNORMALISED, State
from ...errors import choose
from ...model.attention_layers import Config, Rotary, keys_values
from ...model.transformer import Model
from ...systems import QQ, Degrees
from ...systems.floats import array_namespace
from ..cases import Case
from ..implementation import REFIMPL, Implementation
from ..theorem import DERIVED, Different, Numbers, Sides, Theorem
from .identities import tokens as then


def adder(system: Any, layers: int, *, rope: bool = False, positions: Sequence[int] = ()) -> Model:
    """A model of one or two layers that add, on tokens (1, x, 0, 0):

        y_t = Σ_{s≤t} x_s        z_t = Σ_{s≤t} y_s²        ->  (1, x, y, z)

    Layer 1 gives y, with q = k = 1 and v = x; layer 2 gives z, with q = 1 and k = v = y. There are
    no denominators. A prompt becomes the biases Σ x and Σ y², which the output shows.
    RoPE rotates by 90° per position: token s counts cos((t−s)π/2) times.
    """
    d, rotary = (2, Rotary(width=2, base=None)) if rope else (1, None)
    config = Config(layers, 4, d=d, phi="identity", normalise=False, norm="none", rope=rotary, table=len(positions))

    def one(height: int, width: int, row: int, column: int = 0) -> Any:
        return system.convert([[int((i, j) == (row, column)) for j in range(width)] for i in range(height)])

    weights: dict[str, Any] = {}
    for i, (key, value) in enumerate([(0, 1), (2, 2)][:layers]):
        made = {"W_Q": one(4, d, 0), "W_K": one(4, d, key), "W_V": one(4, 1, value), "W_O": one(1, 4, 0, i + 2)}
        weights |= {f"layers.{i}.{name}": w for name, w in made.items()}
    if rope:
        weights |= {"rope.c": system.convert([0]), "rope.s": system.convert([1])}
    if positions:
        weights["positions"] = system.convert([[0, p, 0, 0] for p in positions])
    return Model(config, weights)


def text(system: Any, *xs: int) -> Any:
    return system.convert([[1, x, 0, 0] for x in xs])


def sums(model: Model, x: Any, **options: Any) -> Any:
    """y, or y and z, of the last token."""
    return model(x, **options)[-1, 2 : 2 + model.config.layers]


def biases(model: Model) -> Any:
    """b_KV of every layer; without RoPE, Σ x and Σ y²."""
    return array_namespace(model.like).stack([b.S[0, :, 0] for b in model.biases or ()], axis=0)


def needs_causality(case: Case, numbers: Numbers, impl: Implementation, *, mask: str = "full") -> Sides:
    """If prompt tokens see the input, a prompt may have no constant biases in two layers.

    The y of prompt tokens then depend on the input, and so does Σ y², the bias of layer 2.
    """
    one, two = (adder(numbers.system, layers) for layers in (1, 2))
    prompt, x, other = (text(numbers.system, *xs) for xs in ((1, 1), (1,), (2,)))
    whole = then(prompt, x)

    def needed(x: Any) -> Any:
        """Σ y² over the prompt; layer 2 reads the output of the model of one layer."""
        k, v = keys_values(cast(Config, two.config), two.layer_weights(1), one(then(prompt, x), mask=mask)[:2, :])
        return numbers.system.sum(k * v, axis=-2)

    def both(model: Model) -> tuple[Any, Any]:
        converted = impl.convert(model, prompt, mask=mask)
        return sums(converted, x, mask=mask), sums(model, whole, mask=mask)

    yield "y, one layer, full mask", *both(one)
    yield "y, z, two layers, causal", sums(impl.convert(two, prompt), x), sums(two, whole)
    yield "y, z, two layers, prefix mask", sums(impl.convert(two, prompt, mask="full"), x), sums(two, whole, mask=2)
    yield Different("y, z, two layers, full mask", *both(two))
    yield Different("the bias that layer 2 needs for inputs 1 and 2", needed(x), needed(other))


def needs_relative_positions(
    case: Case, numbers: Numbers, impl: Implementation, *, positions: Sequence[int] = (0, 1, 2)
) -> Sides:
    """If absolute positions begin at 0 again after a prompt, it may have no constant bias.

    Positions p are added to tokens: y = Σ (x + p). With positions from 0 again, every input token
    changes, and two of them change y by more than one of them does.
    """
    model = adder(numbers.system, 1, positions=positions)
    prompt, x = text(numbers.system, 5), text(numbers.system, 0, 0)
    on = impl.convert(model, prompt, restart=False)
    again = replace(on, biases=tuple(replace(b, position=0) for b in on.biases or ()))

    alone = [sums(model, x[:n, :]) for n in (1, 2)]
    prompted = [sums(model, then(prompt, x[:n, :])) for n in (1, 2)]
    yield "y, positions going on", sums(on, x), prompted[1]
    yield Different("y, positions from 0 again", sums(again, x), prompted[1])
    yield Different("the bias that inputs of 1 and 2 tokens need", prompted[0] - alone[0], prompted[1] - alone[1])


def additive(features: Any) -> Any:
    """Σ φ(k)"""
    return array_namespace(features).sum(features, axis=0)


def squared(features: Any) -> Any:
    """(Σ φ(k))²"""
    return additive(features) ** 2


def needs_separation(case: Case, numbers: Numbers, impl: Implementation, *, D: Callable[[Any], Any] = squared) -> Sides:
    """If the denominator is not a sum over tokens, a prompt may have no constant b_D.

    o = Σ φ(k) v / D, with v = φ(k). b_D must be D([A;B]) − D([B]), for every input B after A.
    """
    xp = numbers.system
    A, B, C = (xp.convert([x]) for x in (1, 1, 2))

    def needed(D: Callable[[Any], Any], B: Any) -> Any:
        return D(xp.concat([A, B], axis=0)) - D(B)

    def output(B: Any, b_D: Any) -> Any:
        return (additive(A * A) + additive(B * B)) / (D(B) + b_D)

    yield "D = Σ φ(k): b_D for inputs 1 and 2", needed(additive, B), needed(additive, C)
    yield Different("D = (Σ φ(k))²: b_D for inputs 1 and 2", needed(D, B), needed(D, C))
    outputs = (output(C, needed(D, X)) for X in (B, C))
    yield Different("o for input 2, with the b_D of 1 and with its own", *outputs)


def no_change_of_weights(
    case: Case, numbers: Numbers, impl: Implementation, *, prompt: Sequence[Sequence[int]] = ((1, 2),)
) -> Sides:
    """No new weights W_K and W_V act as a prompt does, even if W_Q changes too.

    At X = 0, W_1ᵀXᵀXW_2 = 0 for all W_1, W_2. But a prompt X' leaves W_KᵀX'ᵀX'W_V; here all three
    weights are 1. At X = 0 the state is not read, but outputs differ too: as a function of the
    input, o has degree 3 for all weights, o(2x) = 8 o(x), and a prompt adds a part of degree 1.
    """
    xp = numbers.system
    W_0, W_1, W_2 = (numbers.draw(2, 2) for _ in range(3))
    past, x = kv(xp.convert(prompt), xp.convert(prompt)), xp.convert([[1, 0]])

    def at_zero(W_1: Any, W_2: Any) -> Any:
        X = array_namespace(W_1).zeros((1, 2))
        return kv(X @ W_1, X @ W_2)

    def reweighted(x: Any) -> Any:
        return impl.linear_attention(x @ W_0, x @ W_1, x @ W_2, UNNORMALISED)[0]

    def prompted(x: Any) -> Any:
        return impl.linear_attention(x, x, x, UNNORMALISED, state=State(past, None))[0]

    entries = "entries of W_1ᵀXᵀXW_2 that are not 0 as polynomials in W_1, W_2"
    yield f"at X = 0, {entries}", not_zero(at_zero, (2, 2), (2, 2)), 0
    yield Different("at X = 0, W_1ᵀXᵀXW_2 and W_KᵀX'ᵀX'W_V", at_zero(W_1, W_2), past)
    yield "o(2x) and 8 o(x), weights drawn", reweighted(2 * x), 8 * reweighted(x)
    yield Different("o(2x) and 8 o(x), after a prompt", prompted(2 * x), 8 * prompted(x))


def kv(k: Any, v: Any) -> Any:
    """Σ k_s v_sᵀ"""
    return array_namespace(k).matrix_transpose(k) @ v


def not_zero(f: Callable[..., Any], *shapes: tuple[int, ...]) -> int:
    """The number of entries of f that are not the zero polynomial, whose degree is −∞."""
    degrees = Degrees()
    return int(np.sum(degrees.numerator(f(*map(degrees.variables, shapes))) > -math.inf))


def no_projection_biases(
    case: Case, numbers: Numbers, impl: Implementation, *, prompt: Sequence[Sequence[int]] = ((1, 0), (0, 1))
) -> Sides:
    """No b_K and b_V act as a prompt: n b_K b_Vᵀ has rank one and grows with n.

    With k = W_Kᵀx + b_K, v = W_Vᵀx + b_V, n tokens x = 0 leave A(n) = n b_K b_Vᵀ in the state.
    The state that is needed, B(n), is that of the prompt, for every n.
    A(n) = B(n) would imply B(2) = 2 B(1) and det B(1) = 0.
    """
    xp = numbers.system
    W_K, W_V, b_K, b_V = (numbers.draw(*shape) for shape in ((2, 2), (2, 2), (2,), (2,)))

    def A(n: int) -> Any:
        X = xp.zeros((n, 2))
        return kv(X @ W_K + b_K, X @ W_V + b_V)

    def B(n: int) -> Any:
        X = then(xp.convert(prompt), xp.zeros((n, 2)))
        return kv(X, X)

    def det(A: Any) -> Any:
        return A[0, 0] * A[1, 1] - A[0, 1] * A[1, 0]

    yield "A(2) and 2 A(1), biases drawn", A(2), 2 * A(1)
    yield "det A(1), biases drawn", det(A(1)), xp.convert(0)
    yield "B(2) and B(1)", B(2), B(1)
    yield Different("B(2) and 2 B(1)", B(2), 2 * B(1))
    yield Different("det B(1)", det(B(1)), xp.convert(0))


def joining_biases(case: Case, numbers: Numbers, impl: Implementation, *, rope: bool = True, layers: int = 2) -> Sides:
    """Biases b_1, b_2 join to R_{-M2} b_1 + b_2 in one layer; in two they do not determine b_12.

    b_1 is of P1, b_2 of P2 and b_12 of P1 P2, each converted on the model without biases.
    Alone, the y of P2 are (1, 1) and those of P3 are (−1, 1), with the same Σ y²; after P1 they are
    (3, 3) and (1, 3).
    """
    system = numbers.system
    P1, P2, P3 = (text(system, *xs) for xs in ((1, 1), (1, 0), (-1, 2)))
    model, rotating = adder(system, layers), adder(system, layers, rope=rope)

    b_1, b_2, b_3, b_12, b_13 = (biases(impl.convert(model, P)) for P in (P1, P2, P3, then(P1, P2), then(P1, P3)))
    yield "layer 1: b_1 + b_2", b_1[0] + b_2[0], b_12[0]
    yield "two layers: P2 and P3", b_2, b_3
    yield Different("two layers: P1 P2 and P1 P3", b_12, b_13)

    first, second, both = (impl.convert(rotating, P) for P in (P1, P2, then(P1, P2)))
    kernel, pairs = rotating.kernel, zip(first.biases, second.biases, strict=True)
    joined = [impl.shift(impl.join(a, b, kernel, origin=-2), -2, kernel) for a, b in pairs]
    b_1, b_2, b_12, b_R = map(biases, (first, second, both, replace(rotating, biases=tuple(joined))))
    yield "layer 1, RoPE: R_{-2} b_1 + b_2", b_R[0], b_12[0]
    yield Different("layer 1, RoPE: b_1 + b_2", b_1[0] + b_2[0], b_12[0])
    yield Different("layer 2, RoPE: R_{-2} b_1 + b_2", b_R[-1], b_12[-1])


def lifo_only(case: Case, numbers: Numbers, impl: Implementation, *, layers: int = 2) -> Sides:
    """In two layers the biases of P1 P2, and P1 itself, do not determine the biases of P2.

    P1 cannot be removed before P2 is, since P2 was read after P1.
    After P1, the y of P2 are (2, 3) and those of P3 are (−2, 3), with the same Σ y²; alone they are
    (1, 2) and (−3, 2).
    """
    system = numbers.system
    P1, P2, P3 = (text(system, *xs) for xs in ((1, 0), (1, 1), (-3, 5)))
    model = adder(system, layers)
    first = impl.convert(model, P1)
    both, b_1 = impl.convert(first, P2), biases(first)
    b_2, b_3, b_12, b_13 = (biases(impl.convert(past, P)) for past in (model, first) for P in (P2, P3))
    without = biases(impl.unconvert(both, P1))
    yield "P1 P2 less P2, and P1", biases(impl.unconvert(both, P2)), b_1
    yield "P1 P2 less P1, and P2, in layer 1", without[0], b_2[0]
    yield Different("P1 P2 less P1, and P2", without, b_2)
    yield Different("their biases subtracted, and P2", b_12 - b_1, b_2)
    yield "P1 P2 and P1 P3", b_12, b_13
    yield Different("P2 and P3", b_2, b_3)


CASES = (Case(1, 1, 1),)  # a witness brings its own numbers


witness = functools.partial(
    Theorem.of, ways=("witness",), needs=("field", "a witness"), phi=False, cases=CASES, beyond=7, group="witnesses"
)
LARGE = "characteristic 0 or > 7"
ADDER = f"layers that add, without denominators; {LARGE}"
PLACED = f"layers that add, without denominators; positions added to tokens; {LARGE}"
SINGLE = f"one layer, φ = identity, no denominators, no positions; {LARGE}"
CHEN = "Chen et al. 2024"
ASSUMPTION = f"{CHEN}, an assumption of Theorem 4.5"
ORDER = 4
THEOREMS = (
    witness(needs_causality, ADDER, ASSUMPTION, ours="the witness; that a prefix mask will do"),
    witness(needs_relative_positions, PLACED, ASSUMPTION, ours="the witness"),
    witness(needs_separation, f"the denominator (Σ φ(k))²; {LARGE}", ASSUMPTION, ours="the witness"),
    witness(no_change_of_weights, SINGLE, CHEN, ours="the witness; W_Q"),
    witness(no_projection_biases, SINGLE, DERIVED, ours="all of it"),
    witness(joining_biases, ADDER, DERIVED, ours="all of it"),
    witness(lifo_only, ADDER, DERIVED, ours="all of it"),
)


def show(*names: str) -> str:
    """The statements of the named witnesses (by default all), each with its numbers in ℚ."""
    for name in names:
        choose("show", "names", name, [w.name for w in THEOREMS])
    chosen = [w for w in THEOREMS if w.name in names or not names]
    return "\n".join(
        line
        for w in chosen
        for line in (f"{w.name}: {w.statement}", *map(equation, w.sides(CASES[0], Numbers(QQ, 0), REFIMPL)))
    )


def equation(pair: tuple[str, Any, Any]) -> str:
    """A line for two sides, with the sign that was found, whatever was claimed."""

    def entries(x: Any) -> str:
        if not isinstance(x, list):
            return str(x)
        return entries(x[0]) if len(x) == 1 else f"({', '.join(map(entries, x))})"

    name, left, right = pair[0], *(x if isinstance(x, int) else x.tolist() for x in pair[1:])
    return f"    {name}:  {entries(left)} {'=' if left == right else '≠'} {entries(right)}"
