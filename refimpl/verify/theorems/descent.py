"""In-context learning as gradient descent, each claim with its two sides.

One side is attention. The other is gradient descent, whose gradients come from the loss
(descent/gradient.py), never from the claimed formula.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from fractions import Fraction
from typing import Any

from ...arrays import Array
from ...attention.feature_maps import polynomial, relu
from ...attention.linear_attention import UNNORMALISED
from ...descent import dai, irie, ren_liu, von_oswald
from ...descent.gradient import Loss, step
from ...model.attention_layers import Config
from ...model.transformer import Model
from ...systems.floats import array_namespace, device
from ..cases import Case, Lesson
from ..implementation import Implementation
from ..theorem import DERIVED, Different, Numbers, Sides, Theorem
from .identities import tokens
from .witnesses import LARGE, witness


def descend(loss: Loss, W: Array, eta: Array | Fraction, X: Array, Y: Array, steps: int = 1) -> Array:
    """The weights after some steps of gradient descent."""
    for _ in range(steps):
        W = step(loss, W, eta, X, Y)
    return W


def T(x: Array) -> Any:
    return array_namespace(x).matrix_transpose(x)


def regression(case: Lesson, numbers: Numbers) -> tuple[Array, Array, Array, Array, Array]:
    """W_0, η, the examples X, Y, and inputs to predict for."""
    W_0, eta = numbers.draw(case.m, case.d), numbers.draw()
    return W_0, eta, numbers.draw(case.N, case.d), numbers.draw(case.N, case.m), numbers.draw(case.T, case.d)


def dual_form(case: Lesson, numbers: Numbers, impl: Implementation) -> Sides:
    """A trained linear layer is its first weights plus linear attention to its training history."""
    W_0, eta, X, Y, x = regression(case, numbers)
    yield "given errors", impl.dual_form(W_0, Y, X, x), x @ T(irie.trained_weights(W_0, Y, X))
    history = impl.training_history(W_0, X, Y, eta, case.steps, irie.half_squares)
    W = descend(impl.squared_error, W_0, eta, X, Y, case.steps)
    yield "gradient descent", impl.dual_form(W_0, *history, x), x @ T(W)
    history = impl.training_history(W_0, X, Y, eta, case.steps, fourth_powers)
    W = descend(lambda W, X, Y: fourth_powers(X @ T(W), Y), W_0, eta, X, Y, case.steps)
    yield "on another loss", impl.dual_form(W_0, *history, x), x @ T(W)


def fourth_powers(y: Array, Y: Array) -> Any:
    """Σ (y − Y)⁴ / 4"""
    xp, squares = array_namespace(y), (y - Y) * (y - Y)
    return xp.sum(xp.sum(squares * squares, axis=-1), axis=-1) / 4


def von_oswald_steps(case: Lesson, numbers: Numbers, impl: Implementation) -> Sides:
    """Self-attention layers with the weights of Proposition 1 are steps of gradient descent."""
    dampening, (W_0, eta, X, Y, x) = numbers.draw(), regression(case, numbers)
    asked, shown = von_oswald.queries(x, W_0), von_oswald.examples(X, Y)
    W = descend(impl.squared_error, W_0, eta, X, Y, case.steps)
    after = impl.von_oswald_steps(asked, shown, W_0, eta, case.steps)
    yield "predictions", von_oswald.predictions(after, case.m), x @ T(W)
    after = impl.von_oswald_steps(shown, shown, W_0, eta, case.steps)
    yield "examples", after, von_oswald.examples(X, Y - X @ T(W - W_0))
    after = impl.von_oswald_steps(asked, shown, W_0, eta, case.steps, dampening=dampening)
    W = descend(impl.squared_error, W_0, dampening * eta, X, Y, case.steps)
    yield "dampened", von_oswald.predictions(after, case.m), x @ T(W)


def model_and_tokens(case: Lesson, numbers: Numbers, impl: Implementation, layers: int, **options: Array) -> Any:
    """A regression, the model that descends on it, and the tokens of its examples and queries."""
    W_0, eta, X, Y, x = regression(case, numbers)
    model = impl.regression_model(W_0, eta, case.N, layers=layers, **options)
    return W_0, eta, X, Y, x, model, von_oswald.model_examples(X, Y), von_oswald.model_queries(x, W_0)


def von_oswald_model(case: Lesson, numbers: Numbers, impl: Implementation) -> Sides:
    """A model descends on examples in its prompt; converted, they are steps ΔW = −(η/N) b_KVᵀ."""
    W_0, eta, X, Y, x, model, shown, asked = model_and_tokens(case, numbers, impl, layers=case.steps)
    want = x @ T(descend(impl.squared_error, W_0, eta, X, Y, case.steps))
    prompted = model(tokens(shown, asked), mask=case.N, form=impl.linear_attention)[case.N :, :]
    converted = impl.convert(model, shown, mask="full", form=impl.linear_attention_recurrent)
    yield "prompted with the examples", von_oswald.predictions(prompted, case.m), want
    yield "examples converted to biases", von_oswald.predictions(converted(asked), case.m), want
    W = W_0
    for j, bias in enumerate(converted.biases or ()):
        before, W = W, step(impl.squared_error, W, eta, X, Y)
        update = impl.weight_update(bias.S[0, :, :], eta, case.N)
        yield f"the bias of layer {j + 1} as a change of weights", update, W - before


def gd_plus_plus(case: Lesson, numbers: Numbers, impl: Implementation) -> Sides:
    """With heads that move the inputs too, x ← (I − γ Σ x_i x_iᵀ) x, a layer is a step of GD++."""
    gamma = numbers.draw()
    W_0, eta, X, Y, x, model, shown, asked = model_and_tokens(case, numbers, impl, layers=1, gamma=gamma)
    both, inputs = tokens(shown, asked), tokens(X, x)
    out, d = model(both, mask=case.N, form=impl.linear_attention), case.d
    change = step(impl.squared_error, W_0, eta, X, Y) - W_0
    yield "inputs", out[:, d : 2 * d], inputs - gamma * inputs @ (T(X) @ X)
    yield "targets", out[:, 2 * d :], both[:, 2 * d :] - inputs @ T(change)
    A, moved = T(X) @ X, out[: case.N, :d]
    yield "spectrum: XᵀX becomes A (I − γA)²", T(moved) @ moved, A - 2 * gamma * A @ A + gamma * gamma * A @ A @ A
    yield "a query is no key", x + out[case.N :, :d], x  # added to x, since no bound is below 0


def token_map(case: Lesson, numbers: Numbers, impl: Implementation) -> Sides:
    """A token-wise map m in front of the layer makes it descend on m(x).

    Here m(x) = x + W_2 σ(W_1 x), an MLP.
    """
    W_0, eta, X, Y, x, model, shown, asked = model_and_tokens(case, numbers, impl, layers=case.steps)
    W_1, W_2 = numbers.draw(2, case.d), numbers.draw(case.d, 2)
    model = impl.mapped_model(model, W_0, W_1, W_2)
    out = model(tokens(shown, asked), mask=case.N, form=impl.linear_attention)[case.N :, :]
    hidden = [y @ T(W_1) for y in (X, x)]
    X, x = (y + (h * (2 + h) / 4) @ T(W_2) for y, h in zip((X, x), hidden, strict=True))
    want = x @ T(descend(impl.squared_error, W_0, eta, X, Y, case.steps))
    yield "predictions", von_oswald.predictions(out, case.m), want


def pairing(case: Lesson, numbers: Numbers, impl: Implementation) -> Sides:
    """One layer of attention builds the tokens (x_j, y_j) from separate ones."""
    _, _, X, Y, _ = regression(case, numbers)
    xp, N = array_namespace(X), case.N
    model = impl.pairing_model(X, case.d, case.m, N)
    wide = [xp.concat([X, 0 * Y], axis=-1), xp.concat([0 * X, Y], axis=-1)]
    separate = xp.reshape(xp.stack(wide, axis=1), (2 * N, case.d + case.m))
    places = xp.zeros((2 * N, 2 * N), dtype=X.dtype, device=device(X))
    out = model(xp.concat([separate, places], axis=-1), form=impl.linear_attention)[:, : case.d + case.m]
    yield "tokens (x_j, y_j)", out[1::2, :], von_oswald.examples(X, Y)


def implicit_finetuning(case: Lesson, numbers: Numbers, impl: Implementation) -> Sides:
    """Without softmax, F_ICL(q) = (W_ZSL + ΔW_ICL) q and F_FT(q) = (W_ZSL + ΔW_FT) q."""
    width = case.d + 1
    q, demonstrations, X = numbers.draw(2, case.d), numbers.draw(case.N, width), numbers.draw(case.T, width)
    W_K, W_V = numbers.draw(case.d, width), numbers.draw(case.m, width)
    W_ZSL, change = dai.delta_W(X, W_K, W_V), dai.delta_W(demonstrations, W_K, W_V)
    yield "F_ICL", impl.f_icl(q, demonstrations, X, W_K, W_V), q @ T(W_ZSL + change)
    dW_K, dW_V, A = numbers.draw(case.d, width), numbers.draw(case.m, width), T(X) @ X
    change = dW_V @ A @ T(W_K) + W_V @ A @ T(dW_K) + dW_V @ A @ T(dW_K)
    yield "F_FT", impl.f_ft(q, X, W_K, W_V, dW_K, dW_V), q @ T(W_ZSL + change)


def momentum(case: Lesson, numbers: Numbers, impl: Implementation) -> Sides:
    """Momentum attention, as a running sum, is o_t + Σ_{i<t} η^{t−i} v_i."""
    o, v, eta = numbers.draw(case.N, case.m), numbers.draw(case.N, case.m), numbers.draw()
    xp, rows = array_namespace(o), []
    for t in range(case.N):
        row, power = o[t, :], eta
        for i in reversed(range(t)):
            row, power = row + power * v[i, :], power * eta
        rows.append(row)
    yield "o_t + Σ_{i<t} η^{t−i} v_i", impl.momentum_attention(o, v, eta), xp.stack(rows, axis=0)


def draw_attended(case: Lesson, numbers: Numbers) -> tuple[Array, ren_liu.QueryContext]:
    """η, and the context of a query, with the explicit features of the kernel (1 + x·y)²."""
    eta, draw, phi = numbers.draw(), numbers.draw, polynomial(2)
    K_D, V_D, K_T, V_T = draw(case.N, case.d), draw(case.N, case.m), draw(case.T, case.d), draw(case.T, case.m)
    return eta, ren_liu.QueryContext(phi(K_D), V_D, phi(K_T), V_T, phi(draw(1, case.d))[0, :])


def ren_liu_step(case: Lesson, numbers: Numbers, impl: Implementation) -> Sides:
    """Kernel attention is the prediction of W φ(x) after one step, or one per demonstration."""
    eta, seen = draw_attended(case, numbers)
    yield "one step", ren_liu.one_step(seen, eta), impl.ren_liu_attention(seen)
    yield "a step for each demonstration", ren_liu.one_at_a_time(seen, eta), impl.ren_liu_attention(seen)


def ren_liu_softmax(case: Lesson, numbers: Numbers, impl: Implementation) -> Sides:
    """Softmax attention is the prediction of a dual model with features from its Gram matrix.

    The right side is softmax attention itself; the query is that of the last token of X_T.
    """
    width, draw = case.d + 1, numbers.draw
    X_D, X_T, W_Q, W_K, W_V = (draw(height, width) for height in (case.N, case.T, case.d, case.d, case.m))
    X = tokens(X_D, X_T)
    o, _ = impl.softmax_attention(X @ T(W_Q), X @ T(W_K), X @ T(W_V), scale=1)
    seen = ren_liu.softmax_context(X_D, X_T, X_T[-1, :], W_Q, W_K, W_V)
    yield "one step", ren_liu.one_step(seen, draw()), o[-1, :]


def ren_liu_variants(case: Lesson, numbers: Numbers, impl: Implementation) -> Sides:
    """Regularised, augmented and negative-sample attention are one step each, on other losses.

    For the augmented variants, attention is given the augmented keys and values themselves.
    """
    (eta, seen), draw, Variant = draw_attended(case, numbers), numbers.draw, ren_liu.Variant
    one, three = ([[(i + j) % case.N for j in range(1, k + 1)] for i in range(case.N)] for k in (1, 3))
    variants = {
        "decay": Variant(decay=draw()),
        "penalty": Variant(penalty=draw()),
        "off the diagonal": Variant(off_diagonal=draw()),
        "one negative": Variant(negatives=one, beta=draw()),
        "all at once": Variant(draw(), draw(), draw(), three, draw()),
    }
    for name, variant in variants.items():
        yield name, ren_liu.one_step(seen, eta, variant), impl.ren_liu_attention(seen, variant, eta=eta)
    W_1, W_2, c = draw(2, case.m), draw(case.m, 2), draw()
    values, keys = ren_liu.residual(W_1, W_2, c, lambda y: y * y), lambda K: K + K * K
    hidden = seen.V_D @ T(W_1)
    by_hand = replace(seen, V_D=seen.V_D + c * (hidden * hidden) @ T(W_2), K_D=seen.K_D + seen.K_D * seen.K_D)
    for name, variant in (("augmented", Variant()), ("augmented, all at once", variants["all at once"])):
        augmented = ren_liu.one_step(seen, eta, replace(variant, values=values, keys=keys))
        yield name, augmented, impl.ren_liu_attention(by_hand, variant, eta=eta)


def ren_liu_mlp(case: Lesson, numbers: Numbers, impl: Implementation) -> Sides:
    """Attention and a relu MLP are one step of the dual model A W, where A is the MLP at o."""
    eta, seen = draw_attended(case, numbers)
    W_1, W_2 = numbers.draw(2, case.m), numbers.draw(2, 4)
    W_1 = array_namespace(W_1).concat([W_1, -W_1], axis=0)  # so that some units are on
    behind = relu(impl.ren_liu_attention(seen)[None, :] @ T(W_1)) @ T(W_2)
    yield "one step", ren_liu.one_step(impl.through_relu(seen, W_1, W_2), eta), behind[0, :]


def context_as_patch(case: Lesson, numbers: Numbers, impl: Implementation) -> Sides:
    """For one token, a context acts as a change of W of rank one: W (a + δ) = (W + ΔW) a.

    Attention gives a for each of T tokens alone, and a + δ if N tokens come before them.
    """
    W, (q, k, v) = numbers.draw(case.m, case.d), (numbers.draw(case.N + case.T, case.d) for _ in range(3))
    a, _ = impl.linear_attention(*(x[case.N :, :] for x in (q, k, v)), UNNORMALISED)
    after = impl.linear_attention(q, k, v, UNNORMALISED)[0][case.N :, :]
    change = impl.rank_one_patch(W, a, after - a)
    yield "W (a + δ)", ((W + change) @ a[..., None])[..., 0], after @ T(W)


# Claims that do not hold


def query_among_keys(case: Case, numbers: Numbers, impl: Implementation, *, W_0: int = 1, steps: int = 2) -> Sides:
    """A query among the keys is in general harmless only for W_0 = 0 and one step.

    It adds P (W_V e)(W_K e)·(W_Q e), which is 0 while its y = −W_0 x is 0.
    """
    xp = numbers.system
    X, Y, x, eta = xp.convert([[1], [2]]), xp.convert([[1], [0]]), xp.convert([[1]]), Fraction(1, 4)

    def both(W_0: Array, steps: int) -> tuple[Any, Any]:
        """The predictions of the layers and of gradient descent."""
        e = tokens(von_oswald.examples(X, Y), von_oswald.queries(x, W_0))
        for _ in range(steps):
            e = von_oswald.self_attention(e, e, *von_oswald.proposition_1(W_0, eta, 2))
        return von_oswald.predictions(e[2:, :], 1), x @ T(descend(impl.squared_error, W_0, eta, X, Y, steps))

    none, some = xp.convert([[0]]), xp.convert([[W_0]])
    yield "W_0 = 0, one step", *both(none, 1)
    yield Different("W_0 = 0, two steps", *both(none, steps))
    yield Different("W_0 = 1, one step", *both(some, 1))


def causal_layers(case: Case, numbers: Numbers, impl: Implementation, *, mask: str = "causal") -> Sides:
    """Under a causal mask two layers are not two steps of gradient descent.

    An example does not see the examples after it, so its target moves by another step.
    """
    xp, eta = numbers.system, Fraction(1, 2)
    X, Y, x, W_0 = xp.convert([[1], [2]]), xp.convert([[1], [1]]), xp.convert([[1]]), xp.convert([[0]])
    text = tokens(von_oswald.model_examples(X, Y), von_oswald.model_queries(x, W_0))
    for layers in (1, 2):
        model = von_oswald.regression_model(W_0, eta, 2, layers=layers)
        want = x @ T(descend(impl.squared_error, W_0, eta, X, Y, layers))
        got = {m: von_oswald.predictions(model(text, mask=m)[2:, :], 1) for m in (mask, 2)}
        yield f"{layers} layers, the examples see each other", got[2], want
        causal = (f"{layers} layers, causal", got[mask], want)
        yield Different(*causal) if layers == 2 else causal


def patch_is_for_one_token(case: Case, numbers: Numbers, impl: Implementation, *, other: int = 2) -> Sides:
    """A rank-one patch may be wrong for another token; biases serve every token.

    With all weights 1 a token x becomes x + x³, and after a token 1 it becomes 2x + x³. So
    ΔW = 1/(1 + x²), another for each x.
    """
    xp, config = numbers.system, Config(1, 1, phi="identity", normalise=False, norm="none")
    model, W = Model(config, {name: xp.ones(shape) for name, shape in config.shapes.items()}), xp.ones((1, 1))
    context, first, second = (xp.convert([[x]]) for x in (1, 1, other))

    def after(token: Array) -> Any:
        return model(tokens(context, token))[1:, :]

    change = impl.rank_one_patch(W, model(first)[0, :], (after(first) - model(first))[0, :])
    converted = impl.convert(model, context)
    yield "the patch, for its token", model(first) @ T(W + change), after(first) @ T(W)
    yield Different("the patch, for another", model(second) @ T(W + change), after(second) @ T(W))
    yield "the biases, for one token", converted(first), after(first)
    yield "the biases, for another", converted(second), after(second)


LESSONS = (Lesson(3, 2, 1, T=2, steps=2), Lesson(1, 1, 1))
WIDE = (Lesson(2, 1, 3, steps=2), Lesson(3, 2, 2, T=2))
ATTENDED = (Lesson(3, 1, 2, T=2), Lesson(1, 1, 1))
FOUR = (Lesson(4, 1, 1, T=2),)
PATCHED = (Lesson(1, 3, 2, T=2), Lesson(1, 1, 2))
MOVED = (Lesson(3, 2, 3, T=2), Lesson(2, 1, 1))
# Shapes that people use. A step is differentiated once for each of the m d weights.
USUAL = (
    (Lesson(66, 13, 2, T=5), Lesson(65, 5, 3, T=2), Lesson(130, 3, 2, T=66)),
    (Lesson(5, 65, 1, T=2), Lesson(3, 66, 1)),
)
FEATURED = ((Lesson(66, 3, 2, T=3), Lesson(129, 2, 1, T=2), Lesson(65, 4, 1, T=66)),)  # (d + 1)² features
SPACED = ((Lesson(10, 12, 2, T=5), Lesson(3, 9, 5, T=6)),)


def more_lessons(seed: int) -> tuple[Lesson, ...]:
    return (Lesson(5, 3, 2, T=3, steps=3), Lesson(4, 2, 3, T=1, steps=2), Lesson(7, 1, 1, T=2, steps=3))


theorem = functools.partial(
    Theorem.of,
    cases=LESSONS,
    more=more_lessons,
    usual=USUAL,
    needs=("field", "a mean over examples"),
    phi=False,
    group="descent",
)
attention = functools.partial(theorem, needs=("ring", "attention"))
# Keys of only a few numbers are too alike for floats.
LONG, LONGER = (Lesson(2, 3, 2), Lesson(3, 4, 1, T=2)), (Lesson(4, 6, 2, T=2), Lesson(2, 5, 2, T=3))
softmax = functools.partial(
    theorem, needs=("real", "softmax attention"), cases=LONG, usual=SPACED, more=lambda seed: LONGER
)
mlp = functools.partial(
    theorem, needs=("ordered", "relu"), cases=(Lesson(4, 1, 2, T=2),), usual=FEATURED, ways=("equality", "bound")
)
IRIE = "Irie et al. 2022, after Aizerman et al. 1964"
HISTORY = "error signals given, or those of any number of steps on a loss"
OSWALD, REN = "von Oswald et al. 2023, {}, in our reading".format, "Ren & Liu 2024, {}".format
ONE = OSWALD("Proposition 1")
SEEN, NOT_0 = "the examples see each other", "N ≠ 0, 2 ≠ 0"
OSWALD_OURS = "all but the weights: the hidden key, the conversion, the reading of b_KV"
DAI = "Dai et al. 2023"
VARIANTS = REN("its variants, as on its slides")
KERNEL = "κ(k, q) = φ(k)·φ(q); D ≠ 0, η ≠ 0"
GRAM = "the Gram matrix of keys and query is positive definite; η ≠ 0"
READINGS = "the losses; both readings of the regulariser besides the slides'"
AUGMENTED = "that demonstrations alone are augmented, and after φ"
UNTRAINED = '"Learning without training", arXiv 2507.16003'
DESCENTS = (
    theorem(dual_form, HISTORY, IRIE, cases=(*LESSONS, Lesson(2, 1, 1, steps=3))),
    theorem(
        von_oswald_steps,
        f"keys are the examples, which see each other; {NOT_0}",
        ONE,
        name="von_oswald",
        ours="any W_0 over several layers",
        cases=WIDE,
    ),
    theorem(von_oswald_model, f"{SEEN} (a prefix mask); a query hides its key; {NOT_0}", ONE, ours=OSWALD_OURS),
    theorem(gd_plus_plus, f"{SEEN}; {NOT_0}", OSWALD("GD++"), ours="W_0 ≠ 0; the two heads", cases=MOVED),
    theorem(token_map, NOT_0, OSWALD("Proposition 2"), ours="the map, an MLP"),
    attention(pairing, "one-hot positions", OSWALD("Proposition 3"), ours="the construction"),
    attention(implicit_finetuning, "no softmax, no scale", DAI),
    theorem(momentum, "none", DAI, needs=("ring", "a recurrence")),
    theorem(
        ren_liu_step,
        KERNEL,
        REN("Theorem 3.1"),
        name="ren_liu",
        ours="the constants W_0 and D",
        cases=ATTENDED,
        usual=FEATURED,
    ),
    softmax(ren_liu_softmax, GRAM, REN("Theorem 3.1"), ours="the constants; the features"),
    theorem(
        ren_liu_variants,
        "D ≠ 0, η ≠ 0, κ(q, q) ≠ 0",
        VARIANTS,
        ours=f"{READINGS}; {AUGMENTED}",
        cases=FOUR,
        usual=FEATURED,
    ),
    mlp(ren_liu_mlp, "D ≠ 0, η ≠ 0", REN("its extension to a feed-forward layer"), ours="the construction"),
    theorem(context_as_patch, "|a|² ≠ 0", UNTRAINED, name="rank_one_patch", cases=PATCHED),
)
WITNESSES = (
    witness(query_among_keys, LARGE, ONE, ours="the witness"),
    witness(causal_layers, LARGE, DERIVED, ours="all of it"),
    witness(patch_is_for_one_token, LARGE, DERIVED, ours="all of it"),
)
ORDER = 8
THEOREMS = (*DESCENTS, *WITNESSES)
