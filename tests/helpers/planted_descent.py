"""Planted bugs in the dual forms: each a small edit of a function that verify/theorems/descent.py
checks, and the theorems that it turns red.

`python tests/helpers/planted_descent.py` prints which theorem rejects which bug.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any
from unittest import mock

import refimpl as ri
from refimpl.descent import dai, irie, patch, ren_liu, von_oswald
from refimpl.descent.gradient import squared_error
from refimpl.descent.ren_liu import QueryContext
from refimpl.model.transformer import Model
from refimpl.prompt.conversion import convert
from refimpl.verify.check import Draws, check
from refimpl.verify.implementation import REFIMPL, Implementation
from refimpl.verify.registry import THEOREMS
from refimpl.verify.theorems.descent import DESCENTS

# numbers that do not change with the source: whether a wrong sign shows depends on them
FIXED = Draws(1, "planted")


@dataclass(frozen=True)
class Bug:
    """place : a field of Implementation, or module.name for a function inside the library."""

    wrong: Any
    place: str
    catches: str
    rejected_by: tuple[str, ...]
    real: bool  # seen only where numbers have roots and exponentials


BUGS: dict[str, Bug] = {}


def bug(catches: str, *rejected_by: str, at: str, real: bool = False) -> Callable[[Callable], Callable]:
    def plant(wrong: Callable) -> Callable:
        BUGS[wrong.__name__] = Bug(wrong, at, catches, rejected_by, real)
        return wrong

    return plant


def xp_of(x: Any) -> Any:
    return ri.system_of(x).xp


def T(x: Any) -> Any:
    return xp_of(x).matrix_transpose(x)


# What a bug inside the library goes on using
DELTA_W, ONE_STEP, ONE_AT_A_TIME = dai.delta_W, ren_liu.one_step, ren_liu.one_at_a_time
SOFTMAX_SEEN, GRAM_FEATURES, AUGMENTED = ren_liu.softmax_context, ren_liu.gram_features, ren_liu.Variant.augment
PROPOSITION_1, SELF_ATTENTION = von_oswald.proposition_1, von_oswald.self_attention

MODELS = ("von_oswald_model", "gd_plus_plus", "token_map")
STEP = ("ren_liu", "ren_liu_mlp")


# Irie


@bug("the layer's own weights are forgotten", "dual_form", at="dual_form")
def dual_form_without_W_0(W_0, errors, inputs, x):
    return irie.dual_form(0 * W_0, errors, inputs, x)


@bug("the last step is not in the history", "dual_form", at="training_history")
def history_without_the_last_step(W_0, X, Y, eta, steps, loss):
    return irie.training_history(W_0, X, Y, eta, steps - 1, loss)


@bug("every error taken at the first weights", "dual_form", at="training_history")
def errors_of_the_first_step(W_0, X, Y, eta, steps, loss):
    errors, inputs = irie.training_history(W_0, X, Y, eta, 1, loss)
    return tuple(xp_of(a).concat([a] * steps, axis=0) for a in (errors, inputs))


@bug("the errors are the gradient, not minus it", "dual_form", at="training_history")
def history_ascends(W_0, X, Y, eta, steps, loss):
    return irie.training_history(W_0, X, Y, -eta, steps, loss)


@bug("1/(2N) for 1/N in one of two losses", "dual_form", "von_oswald", *MODELS, at="squared_error")
def no_two_in_the_squared_error(W, X, Y):
    return 2 * squared_error(W, X, Y)


@bug(
    "a difference to one side is no derivative of a square",
    "dual_form",
    "von_oswald",
    *MODELS,
    at="descent.gradient.gradient",
)
def one_sided_difference(loss, W, *data):
    xp, (m, r) = xp_of(W), W.shape
    E = xp.reshape(xp.eye(m * r, dtype=W.dtype), (m * r, m, r))
    return xp.reshape(loss(W + E, *data) - loss(W + 0 * E, *data), (m, r))


# von Oswald


@bug("the sign of η", "von_oswald", at="descent.von_oswald.proposition_1")
def ascent(W_0, eta, N):
    return PROPOSITION_1(W_0, -eta, N)


@bug("no mean over the examples", "von_oswald", at="descent.von_oswald.proposition_1")
def no_mean(W_0, eta, N):
    return PROPOSITION_1(W_0, eta, 1)


@bug("W_V without W_0", "von_oswald", at="descent.von_oswald.proposition_1")
def W_0_not_in_W_V(W_0, eta, N):
    return PROPOSITION_1(0 * W_0, eta, N)


@bug("keys that see the targets too", "von_oswald", at="descent.von_oswald.proposition_1")
def keys_of_all_of_a_token(W_0, eta, N):
    W_Q, _, W_V, P = PROPOSITION_1(W_0, eta, N)
    return W_Q + P * N / eta, P * N / eta, W_V, P


@bug("the query is a key too", "von_oswald", at="descent.von_oswald.self_attention")
def query_among_the_keys(tokens, context, *weights):
    keys = context if tokens is context else xp_of(tokens).concat([context, tokens], axis=0)
    return SELF_ATTENTION(tokens, keys, *weights)


@bug("the residual stream is lost", "von_oswald", at="descent.von_oswald.self_attention")
def no_residual(tokens, context, *weights):
    return SELF_ATTENTION(tokens, context, *weights) - tokens


@bug("a dampened layer forgets what it does not change", "von_oswald", at="von_oswald_steps")
def dampened_altogether(tokens, *args, dampening=1):
    return von_oswald.steps(tokens, *args, dampening=dampening) * dampening


@bug("dampening does nothing", "von_oswald", at="von_oswald_steps")
def not_dampened(*args, dampening=1):
    return von_oswald.steps(*args)


@bug("the first step only is dampened", "von_oswald", at="von_oswald_steps")
def dampened_once(tokens, context, W_0, eta, count, *, dampening=1):
    tokens, context = (von_oswald.steps(e, context, W_0, eta, 1, dampening=dampening) for e in (tokens, context))
    return von_oswald.steps(tokens, context, W_0, eta, count - 1)


@bug("a query enters with +W_0 x", "von_oswald", at="descent.von_oswald.queries")
def query_with_the_wrong_sign(X, W_0):
    return von_oswald.examples(X, X @ T(W_0))


@bug("a query that shows its key", *MODELS, at="descent.von_oswald.model_queries")
def query_with_a_key(X, W_0):
    return von_oswald.model_examples(X, -(X @ T(W_0)))


class Causal(Model):
    def __call__(self, text: Any, **options: Any) -> Any:
        return super().__call__(text, **options | {"mask": "causal"})


@bug("examples that see those before them only", "von_oswald_model", at="regression_model")
def causal_model(*args, **options):
    model = von_oswald.regression_model(*args, **options)
    return Causal(model.config, model.weights)


@bug("examples converted under a causal mask", "von_oswald_model", at="convert")
def causal_conversion(model, prompt, **options):
    return convert(model, prompt, **options | {"mask": "causal"})


@bug("the model has a layer less than there are steps", "von_oswald_model", at="regression_model")
def one_layer(W_0, eta, N, *, layers=1, **options):
    return von_oswald.regression_model(W_0, eta, N, layers=max(1, layers - 1), **options)


@bug("b_KV is not transposed", "von_oswald_model", at="weight_update")
def bias_not_transposed(b_KV, eta, N):
    return T(von_oswald.weight_update(b_KV, eta, N))


@bug("the sign of ΔW", "von_oswald_model", at="weight_update")
def change_with_the_wrong_sign(b_KV, eta, N):
    return -von_oswald.weight_update(b_KV, eta, N)


def with_heads(model: Model, edit: Callable[[int], int]) -> Model:
    """The outputs of head i times edit(i)."""
    W_O, m = model.weights["layers.0.W_O"], model.config.m
    rows = [edit(i) * W_O[i * m : (i + 1) * m, :] for i in range(model.config.heads)]
    return replace(model, weights=model.weights | {"layers.0.W_O": xp_of(W_O).concat(rows, axis=0)})


@bug("GD++ moves x, but not the key that is x too", "gd_plus_plus", at="regression_model")
def no_head_for_the_keys(*args, **options):
    return with_heads(von_oswald.regression_model(*args, **options), lambda i: int(i != 2))


@bug("GD++ stretches what it should shrink", "gd_plus_plus", at="regression_model")
def gamma_with_the_wrong_sign(*args, **options):
    return with_heads(von_oswald.regression_model(*args, **options), lambda i: 1 if i == 0 else -1)


@bug("GD++ with a mean where the paper has a sum", "gd_plus_plus", at="regression_model")
def gamma_over_N(W_0, eta, N, *, gamma=0, **options):
    return von_oswald.regression_model(W_0, eta, N, gamma=gamma / N, **options)


@bug("no map", "token_map", at="mapped_model")
def no_map(model, *args):
    return model


def mapping(model: Model, edit: Callable[[Any], Any]) -> Model:
    """The first layer's MLP puts out edit(W_down)."""
    return replace(model, weights=model.weights | {"layers.0.W_down": edit(model.weights["layers.0.W_down"])})


@bug("queries are mapped, and examples are not", "token_map", at="mapped_model")
def map_of_queries_alone(*args):
    return mapping(von_oswald.mapped_model(*args), lambda W: xp_of(W).concat([0 * W[:2, :], W[2:, :]], axis=0))


@bug("m(x), but still −W_0 x", "token_map", at="mapped_model")
def map_without_W_0(model, W_0, *args):
    return von_oswald.mapped_model(model, 0 * W_0, *args)


@bug("each token looks at its own place", "pairing", at="pairing_model")
def pairs_with_itself(*args):
    model = von_oswald.pairing_model(*args)
    return replace(model, weights=model.weights | {"layers.0.W_Q": model.weights["layers.0.W_K"]})


# Dai


@bug("F_ICL without the query's own text", "implicit_finetuning", at="f_icl")
def icl_without_the_text(q, demonstrations, X, W_K, W_V):
    return dai.f_zsl(q, demonstrations, W_K, W_V)


@bug("F_ICL without the demonstrations", "implicit_finetuning", at="f_icl")
def icl_without_demonstrations(q, demonstrations, X, W_K, W_V):
    return dai.f_zsl(q, X, W_K, W_V)


@bug("finetuned values, but the old keys", "implicit_finetuning", at="f_ft")
def values_finetuned_alone(q, X, W_K, W_V, dW_K, dW_V):
    return dai.f_ft(q, X, W_K, W_V, 0 * dW_K, dW_V)


@bug("finetuning to first order", "implicit_finetuning", at="f_ft")
def finetuned_to_first_order(q, X, W_K, W_V, dW_K, dW_V):
    return dai.f_ft(q, X, W_K, W_V, dW_K, dW_V) - dai.f_zsl(q, X, dW_K, dW_V)


@bug("the first token is not in ΔW", "implicit_finetuning", at="descent.dai.delta_W")
def delta_W_without_the_first_token(X, W_K, W_V):
    return DELTA_W(X[1:, :], W_K, W_V)


@bug("i ≤ t: the token's own value too", "momentum", at="momentum_attention")
def momentum_with_itself(o, v, eta):
    return dai.momentum_attention(o, v, eta) + v


@bug("η^{t−i−1}", "momentum", at="momentum_attention")
def momentum_one_power_less(o, v, eta):
    return o + (dai.momentum_attention(o, v, eta) - o) / eta


# Ren & Liu


class TextAlone(QueryContext):
    D = property(lambda seen: (seen.K_T @ seen.q[:, None]).system.sum(seen.K_T @ seen.q[:, None], axis=-2))


class OfAnotherQuery(QueryContext):
    D = property(lambda seen: replace_q(seen, seen.K_D[0, :]).D)


def replace_q(seen: QueryContext, q: Any) -> QueryContext:
    return QueryContext(seen.K_D, seen.V_D, seen.K_T, seen.V_T, q)


@bug("the dual model starts at 0", *STEP, at="descent.ren_liu.W_0")
def dual_model_from_zero(seen):
    return 0 * (T(seen.V_T) @ seen.K_T)


@bug("D without the demonstrations", *STEP, at="descent.ren_liu.one_step")
def D_without_demonstrations(seen, *args):
    return ONE_STEP(TextAlone(**vars(seen)), *args)


@bug("D of another query", *STEP, at="descent.ren_liu.one_step")
def D_of_another_query(seen, *args):
    return ONE_STEP(OfAnotherQuery(**vars(seen)), *args)


@bug("η that does not cancel", *STEP, at="descent.ren_liu.dual_loss")
def loss_without_eta(W, V, K, D, eta):
    return -ren_liu.alignment(W, V, K) / D[0]


@bug("the loss rewards what it should not", *STEP, at="descent.ren_liu.dual_loss")
def loss_with_the_wrong_sign(W, V, K, D, eta):
    return ren_liu.alignment(W, V, K) / (eta * D[0])


@bug("each demonstration from the start again", "ren_liu", at="descent.ren_liu.one_at_a_time")
def only_the_last_demonstration(seen, eta):
    return ONE_AT_A_TIME(replace(seen, V_D=xp_of(seen.q).concat([0 * seen.V_D[:-1, :], seen.V_D[-1:, :]], axis=0)), eta)


@bug("attention that does not divide", *STEP, at="ren_liu_attention")
def unnormalised(seen, variant=ren_liu.NORMAL, **options):
    return ren_liu.attention(seen, variant, **options) * seen.D


@bug("the penalty (α/2)|W|² where (α/2η)|W|² is meant", "ren_liu_variants", at="ren_liu_attention")
def decay_read_as_penalty(seen, variant, **options):
    return ren_liu.attention(seen, replace(variant, decay=0, penalty=variant.penalty + variant.decay), **options)


@bug("the penalty (α/2η)|W|² where (α/2)|W|² is meant", "ren_liu_variants", at="ren_liu_attention")
def penalty_read_as_decay(seen, variant, **options):
    return ren_liu.attention(seen, replace(variant, decay=variant.decay + variant.penalty, penalty=0), **options)


@bug("the regulariser also shrinks the demonstrations", "ren_liu_variants", at="ren_liu_attention")
def decay_of_everything(seen, variant, **options):
    return (1 - variant.decay) * ren_liu.attention(seen, replace(variant, decay=0), **options)


@bug("the value subtracted is that of the first token of the text", "ren_liu_variants", at="ren_liu_attention")
def off_diagonal_of_the_first_token(seen, variant, **options):
    wrong = variant.off_diagonal * (seen.V_T[-1, :] - seen.V_T[0, :])
    return ren_liu.attention(seen, variant, **options) + wrong


@bug("negatives in the keys", "ren_liu_variants", at="ren_liu_attention")
def negatives_in_the_keys(seen, variant, **options):
    if variant.negatives is not None:
        seen = replace(seen, K_D=ren_liu.subtract_negatives(seen.K_D, variant.negatives, variant.beta))
    return ren_liu.attention(seen, replace(variant, negatives=None), **options)


@bug("β of each negative, not of their mean", "ren_liu_variants", at="ren_liu_attention")
def beta_not_over_k(seen, variant, **options):
    k = len(variant.negatives[0]) if variant.negatives else 1
    return ren_liu.attention(seen, replace(variant, beta=k * variant.beta), **options)


@bug("augmented keys, but the old denominator", "ren_liu_variants", at="descent.ren_liu.Variant.augment")
def old_denominator(variant, seen):
    return type("Old", (QueryContext,), {"D": property(lambda new: seen.D)})(**vars(AUGMENTED(variant, seen)))


@bug("nothing is augmented", "ren_liu_variants", at="descent.ren_liu.Variant.augment")
def not_augmented(variant, seen):
    return seen


@bug("the text's keys are augmented too", "ren_liu_variants", at="descent.ren_liu.Variant.augment")
def text_augmented(variant, seen):
    return replace(AUGMENTED(variant, seen), K_T=variant.keys(seen.K_T))


@bug("a residual map that adds nothing", "ren_liu_variants", at="descent.ren_liu.residual")
def residual_of_nothing(W_1, W_2, c, activation):
    return lambda x: x


@bug("no κ(q, q) in the loss of the slides' form", "ren_liu_variants", at="descent.ren_liu.one_step")
def off_diagonal_without_its_kernel(seen, eta, variant=ren_liu.NORMAL):
    q = seen.q
    return ONE_STEP(seen, eta, replace(variant, off_diagonal=variant.off_diagonal * xp_of(q).sum(q * q, axis=-1)))


@bug("the units that another query switches on", "ren_liu_mlp", at="through_relu")
def relu_of_another_query(seen, W_1, W_2):
    """Of a query that has one feature, the first that switches on others."""
    xp, right = xp_of(seen.q), ren_liu.through_relu(seen, W_1, W_2)
    others = (
        ren_liu.through_relu(replace_q(seen, xp.eye(seen.q.shape[0])[i, :]), W_1, W_2) for i in range(seen.q.shape[0])
    )
    return replace_q(next(other for other in others if not xp.equal(other.V_D, right.V_D)), seen.q)


@bug("relu left out", "ren_liu_mlp", at="through_relu")
def all_units_on(seen, W_1, W_2):
    A = T(W_2 @ W_1)
    return replace(seen, V_D=seen.V_D @ A, V_T=seen.V_T @ A)


@bug("a scale nobody asked for", "ren_liu_softmax", at="descent.ren_liu.softmax_context", real=True)
def scaled_scores(X_D, X_T, q, W_Q, W_K, W_V):
    return SOFTMAX_SEEN(X_D, X_T, q, W_Q / 2, W_K, W_V)


@bug("the query's features made of its key", "ren_liu_softmax", at="descent.ren_liu.softmax_context", real=True)
def query_by_W_K(X_D, X_T, q, W_Q, W_K, W_V):
    return SOFTMAX_SEEN(X_D, X_T, q, W_K + W_Q, W_K, W_V)


@bug("the kernel 1 + exp(x·y)", "ren_liu_softmax", at="descent.ren_liu.gram_features", real=True)
def features_of_another_kernel(G):
    return GRAM_FEATURES(1 + G)


# A patch


@bug("no |a|²", "rank_one_patch", at="rank_one_patch")
def patch_without_a_length(W, a, delta):
    return patch.rank_one_patch(W, a, delta) * xp_of(a).sum(a * a, axis=-1)[..., None, None]


@bug("|a| in place of |a|²", "rank_one_patch", at="rank_one_patch", real=True)
def patch_by_length(W, a, delta):
    return patch.rank_one_patch(W, a, delta) * xp_of(a).sqrt(xp_of(a).sum(a * a, axis=-1))[..., None, None]


@bug("the patch of the first token for all", "rank_one_patch", at="rank_one_patch")
def patch_of_the_first_token(W, a, delta):
    return patch.rank_one_patch(W, a[:1, :], delta[:1, :]) + 0 * patch.rank_one_patch(W, a, delta)


FIELDS = {field.name for field in fields(Implementation)}


@contextmanager
def planted(name: str) -> Iterator[Implementation]:
    """The implementation with the bug; a bug inside the library is there as long as the context
    lasts.
    """
    wrong, place = BUGS[name].wrong, BUGS[name].place
    if place in FIELDS:
        yield replace(REFIMPL, **{place: wrong})
        return
    with mock.patch(f"refimpl.{place}", wrong):
        yield REFIMPL


def rejects(theorem: str, name: str) -> bool:
    """Does this theorem fail with the bug planted, because of what comes out? A slip in the bug
    itself must not count.
    """
    system = ri.MP(30) if BUGS[name].real else ri.QQ
    with planted(name) as impl:
        result = check(THEOREMS[theorem], system, THEOREMS[theorem].cases, FIXED, impl)
    return result.verdict == "FAIL" and not result.evidence.startswith("raised")


def table() -> str:
    names = [t.name for t in DESCENTS]
    return "\n".join(f"{name:34} {' '.join(t for t in names if rejects(t, name))}" for name in BUGS)


if __name__ == "__main__":
    print(table())
