"""Bad input to in-context learning as gradient descent: every message, word for word."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import array_api_strict as strict
import numpy as np

import refimpl as ri
from refimpl import GF, QQ, NotDefined, ZeroDenominator
from refimpl.descent import dai, irie, ren_liu, von_oswald
from refimpl.descent.gradient import alignment, gradient, squared_error, step
from refimpl.descent.patch import rank_one_patch
from refimpl.descent.ren_liu import QueryContext
from tests.helpers.bad_input import Q, S, Table, W, a, cases, d, f32, inf, k, m, model, n, nan, put, q, v, z

seen = QueryContext(k, v, k, v, z)
bad, worse = put(S, (1, 0), nan), put(k, (1, 0), inf)


VALUE_ERRORS: Table = {
    # In-context learning as descent
    "QueryContext: `q` must be finite, got nan or inf at column 2": lambda: QueryContext(k, v, k, v, put(z, 2, nan)),
    "squared_error: `X` must hold one or more examples, for there to be a mean, got none": lambda: squared_error(
        S.T, k[:0, :], v[:0, :]
    ),
    "gradient: `W` must have shape (outputs, inputs), got (3,)": lambda: gradient(squared_error, z),
    "gradient: `W` must have shape (outputs, inputs), got (1, 5, 3)": lambda: gradient(squared_error, q[None, :, :]),
    "gradient: `W` must be of NumPy, torch, JAX or a number system of ours, got one of array_api_strict": lambda: (
        gradient(squared_error, *(strict.asarray(x) for x in (S.T, k, v)))
    ),
    "squared_error: `X` must have shape (..., examples, 3) to match `W`, got (5, 2)": lambda: squared_error(q, v, v),
    "squared_error: `Y` must have shape (..., 5, 5) to match `X` and `W`, got (5, 2)": lambda: gradient(
        squared_error, q, k, v
    ),
    "alignment: `keys` must have shape (..., examples, 3) to match `W`, got (5, 2)": lambda: alignment(q, v, v),
    "alignment: `values` must have shape (..., 5, 5) to match `keys` and `W`, got (5, 2)": lambda: alignment(q, v, k),
    "trained_weights: `W_0` must have shape (outputs, inputs), got (3,)": lambda: irie.trained_weights(z, v, v),
    "dual_form: `inputs` must have shape (examples, 2) to match `W_0`, got (5, 3)": lambda: irie.dual_form(S, q, k, v),
    "trained_weights: `errors` must have shape (5, 3) to match `inputs` and `W_0`, got (5, 2)": lambda: (
        irie.trained_weights(S, v, v)
    ),
    "dual_form: `x` must have shape (queries, 2) to match `W_0`, got (5, 3)": lambda: irie.dual_form(S, q, v, k),
    "self_attention: `context` must have shape (..., tokens, 3) to match `tokens`, got (5, 2)": lambda: (
        von_oswald.self_attention(q, v, *[a(d, d)] * 4)
    ),
    "self_attention: `W_V` must have shape (..., 3, 3) to match `tokens`, got (3, 2)": lambda: (
        von_oswald.self_attention(q, k, a(d, d), a(d, d), S, a(d, d))
    ),
    "proposition_1: `W_0` must have shape (outputs, inputs), got (3,)": lambda: von_oswald.steps(q, k, z, 1, 1),
    "regression_model: `W_0` must have shape (outputs, inputs), got (3,)": lambda: von_oswald.regression_model(z, 1, 1),
    "f_zsl: `W_V` must have shape (..., rows, 3) to match `X`, got (3, 2)": lambda: dai.f_zsl(q, k, a(d, d), S),
    "f_zsl: `q` must have shape (..., queries, 2) to match `W_K`, got (5, 3)": lambda: dai.f_icl(
        q, k, k, a(m, d), a(m, d)
    ),
    "momentum_attention: `v` must have shape (..., 5, 3) to match `o`, got (5, 2)": lambda: dai.momentum_attention(
        q, v, 1
    ),
    "QueryContext: `K_T` must have shape (T, 3) to match `q`, got (5, 2)": lambda: QueryContext(k, v, v, v, z),
    "QueryContext: `V_T` must have shape (5, 2) to match its keys, got (5, 3)": lambda: QueryContext(k, v, k, q, z),
    "through_relu: `W_1` must have shape (..., hidden, 2) to match the values, got (2, 3)": lambda: (
        ren_liu.through_relu(seen, S.T, S)
    ),
    "through_relu: `W_2` must have shape (..., outputs, 3) to match `W_1`, got (3, 2)": lambda: ren_liu.through_relu(
        seen, S, S
    ),
    "gram_features: `G` must have shape (2, tokens), got (3, 2)": lambda: ren_liu.gram_features(S),
    "rank_one_patch: `W` must have shape (hidden, width), got (3,)": lambda: rank_one_patch(z, z, z),
    "rank_one_patch: `delta` must have shape (..., 2) to match `W`, got (3,)": lambda: rank_one_patch(S, a(m), z),
    "trained_weights: `W_0` must have shape (outputs, inputs), got (2, 3, 2)": lambda: irie.trained_weights(
        a(2, d, m), q, v
    ),
    "trained_weights: `inputs` must have shape (examples, 2) to match `W_0`, got (4, 5, 2)": lambda: (
        irie.trained_weights(S, q, a(4, n, m))
    ),
    "training_history: `Y` must have shape (5, 3) to match `X` and `W_0`, got (1, 3)": lambda: irie.training_history(
        S, v, q[:1, :], 1, 1, irie.half_squares
    ),
    "half_squares: `y` must have shape (..., 1, 3) to match `Y`, got (5, 3)": lambda: irie.half_squares(q, q[:1, :]),
    "half_squares: `N` must be an integer ≥ 1, got 0": lambda: irie.half_squares(q[:0, :], q[:0, :]),
    "proposition_1: `W_0` must have shape (outputs, inputs), got (2, 3, 2)": lambda: von_oswald.proposition_1(
        a(2, d, m), 1, 1
    ),
    "regression_model: `W_0` must have shape (outputs, inputs), got (2, 3, 2)": lambda: von_oswald.regression_model(
        a(2, d, m), 1, 1
    ),
    "mapped_model: `W_1` must have shape (hidden, 2) to match `W_0`, got (4, 3)": lambda: von_oswald.mapped_model(
        von_oswald.regression_model(S, 1, 1), S, a(4, 3), a(2, 4)
    ),
    "mapped_model: `W_2` must have shape (2, 4) to match `W_1`, got (4, 2)": lambda: von_oswald.mapped_model(
        von_oswald.regression_model(S, 1, 1), S, a(4, 2), a(4, 2)
    ),
    "f_ft: `dW_K` must have shape (3, 3) to match `W_K`, got (1, 3)": lambda: dai.f_ft(
        q, q, a(d, d), a(m, d), a(1, d), a(m, d)
    ),
    "f_ft: `dW_V` must have shape (2, 3) to match `W_V`, got (3,)": lambda: dai.f_ft(
        q, q, a(d, d), a(m, d), a(d, d), a(d)
    ),
    "cosine: `b` must have shape (4,) to match `a`, got (1,)": lambda: dai.cosine(a(4), a(1)),
    "rec2ftp: `zsl`, `icl` and `ft` must be of the same examples, got 2, 3 and 2": lambda: dai.rec2ftp(
        [True] * 2, [True] * 3, [True] * 2
    ),
    "kendall_tau: `a` and `b` must be numbers in some order, got nan": lambda: dai.kendall_tau([1, nan, 2], [1, 2, 3]),
    "QueryContext: `q` must have shape (features,), got (5, 3)": lambda: QueryContext(k, v, k, v, q),
    "QueryContext: `K_D` must have shape (N, 3) to match `q`, got (2, 5, 3)": lambda: QueryContext(
        a(2, n, d), v, k, v, z
    ),
    "gram_features: `G` must have shape (2, tokens), got (2, 2, 2)": lambda: ren_liu.gram_features(np.ones((2, 2, 2))),
    "rank_one_patch: `W` must have shape (hidden, width), got (2, 3, 2)": lambda: rank_one_patch(
        a(2, d, m), a(m), a(m)
    ),
    "attention: `off_diagonal` needs the query's own token, the last of X_T, which is empty": lambda: ren_liu.attention(
        replace(seen, K_T=k[:0, :], V_T=v[:0, :]), ren_liu.Variant(off_diagonal=1)
    ),
    "one_step: `off_diagonal` needs the query's own token, the last of X_T, which is empty": lambda: ren_liu.one_step(
        replace(seen, K_T=k[:0, :], V_T=v[:0, :]), 1, ren_liu.Variant(off_diagonal=1)
    ),
    "one_step: `negatives` must name one or more for each of 5 demonstrations, got [[1]]": lambda: ren_liu.one_step(
        seen, 1, ren_liu.Variant(negatives=[[1]], beta=1)
    ),
    "attention: `negatives` must be an integer between 0 and 4, got 5": lambda: ren_liu.attention(
        seen, ren_liu.Variant(negatives=[[5]] * 5, beta=1)
    ),
    "gap_bound: `w` must be finite and ≥ 0, got -1": lambda: ren_liu.gap_bound(-1, 1, [1], 1, 0.5),
    "gap_bound: `rho` must be finite and ≥ 0, got nan": lambda: ren_liu.gap_bound(1, nan, [1], 1, 0.5),
    "gap_bound: `largest` must be finite and ≥ 0, got inf": lambda: ren_liu.gap_bound(1, 1, [1], inf, 0.5),
    "gap_bound: `scores` must be one or more numbers from 0 to `largest` = 1, got [-3, 1]": lambda: ren_liu.gap_bound(
        1, 1, [-3, 1], 1, 0.5
    ),
    "gap_bound: `scores` must be one or more numbers from 0 to `largest` = 1, got [1, nan]": lambda: ren_liu.gap_bound(
        1, 1, [1, nan], 1, 0.5
    ),
    "training_history: `steps` must be an integer ≥ 0, got -1": lambda: irie.training_history(
        S, v, q, 1, -1, irie.half_squares
    ),
    "steps: `count` must be an integer ≥ 0, got 0.5": lambda: von_oswald.steps(q, k, S.T[:, :2], 1, 0.5),
    "proposition_1: `N` must be an integer ≥ 1, got 0": lambda: von_oswald.steps(q, k[:0, :], S.T[:, :2], 1, 1),
    "predictions: `m` must be an integer between 0 and 3, got 4": lambda: von_oswald.predictions(q, 4),
    "regression_model: `N` must be an integer ≥ 1, got 0": lambda: von_oswald.regression_model(S, 1, 0),
    "regression_model: `layers` must be an integer ≥ 1, got 0": lambda: von_oswald.regression_model(S, 1, 1, layers=0),
    "weight_update: `N` must be an integer ≥ 1, got True": lambda: von_oswald.weight_update(S, 1, True),
    "pairing_model: `m` must be an integer ≥ 1, got 0": lambda: von_oswald.pairing_model(q, 1, 0, 1),
    "subtract_negatives: `negatives` must be an integer between 0 and 4, got 5": lambda: ren_liu.subtract_negatives(
        v, [[5]] * 5, 1
    ),
    "subtract_negatives: `negatives` must name one or more for each of 2 demonstrations, got [[1]]": lambda: (
        ren_liu.subtract_negatives(S[:2, :], [[1]], 1)
    ),
    "subtract_negatives: `negatives` must name one or more for each of 2 demonstrations, got [[1], []]": lambda: (
        ren_liu.subtract_negatives(S[:2, :], [[1], []], 1)
    ),
    "least_similar: `k` must be an integer between 1 and 4, got 5": lambda: ren_liu.least_similar(k, 5),
    "gap_bound: `delta` must lie between 0 and 1, got 1": lambda: ren_liu.gap_bound(1, 1, [1], 1, 1),
    "gap_bound: `delta` must lie between 0 and 1, got nan": lambda: ren_liu.gap_bound(1, 1, [1], 1, nan),
    "gap_bound: `scores` must be one or more numbers from 0 to `largest` = 1, got [1, 2]": lambda: ren_liu.gap_bound(
        1, 1, [1, 2], 1, 0.5
    ),
    "gap_bound: `scores` must be one or more numbers from 0 to `largest` = 1, got []": lambda: ren_liu.gap_bound(
        1, 1, [], 1, 0.5
    ),
    "gram_features: `G` must be positive definite, it is not at token 1": lambda: ren_liu.gram_features(
        np.ones((2, 2))
    ),
    "rec2ftp: `ft` must be right somewhere where `zsl` is wrong, else there is nothing to recall": lambda: dai.rec2ftp(
        [True, False], [True, True], [True, False]
    ),
    "kendall_tau: `a` and `b` must rank the same two or more tokens, got 2 and 3": lambda: dai.kendall_tau(
        [1, 2], [1, 2, 3]
    ),
    "kendall_tau: `a` and `b` must rank the same two or more tokens, got 1 and 1": lambda: dai.kendall_tau([1], [2]),
}
VALUE_ERRORS |= {
    f"{argument} must be finite, got nan or inf at row 1, column 0": run
    for argument, run in {
        "trained_weights: `W_0`": lambda: irie.trained_weights(bad, q, v),
        "dual_form: `x`": lambda: irie.dual_form(S.T, v, q, worse),
        "dual_form: `inputs`": lambda: irie.dual_form(S.T, v, worse, q),
        "training_history: `X`": lambda: irie.training_history(S.T, worse, v, 1, 1, irie.half_squares),
        "self_attention: `context`": lambda: von_oswald.self_attention(q, worse, *[a(d, d)] * 4),
        "self_attention: `tokens`": lambda: von_oswald.steps(worse, k, S.T[:1, :], 1, 1),
        "proposition_1: `W_0`": lambda: von_oswald.proposition_1(bad, 1, 1),
        "regression_model: `W_0`": lambda: von_oswald.regression_model(bad, 1, 1),
        "mapped_model: `W_2`": lambda: von_oswald.mapped_model(
            von_oswald.regression_model(S.T, 1, 1), S.T, a(m, d), bad
        ),
        "weight_update: `b_KV`": lambda: von_oswald.weight_update(bad, 1, 1),
        "f_zsl: `X`": lambda: dai.f_zsl(q, worse, a(d, d), a(m, d)),
        "delta_W: `X`": lambda: dai.delta_W(worse, a(d, d), a(m, d)),
        "momentum_attention: `v`": lambda: dai.momentum_attention(k, worse, 1),
        "cosine: `b`": lambda: dai.cosine(k, worse),
        "unit: `h`": lambda: dai.unit(worse),
        "QueryContext: `K_T`": lambda: QueryContext(k, v, worse, v, z),
        "least_similar: `K`": lambda: ren_liu.least_similar(worse, 1),
        "gram_features: `G`": lambda: ren_liu.gram_features(put(np.eye(2), (1, 0), nan)),
        "rank_one_patch: `W`": lambda: rank_one_patch(bad, a(m), a(m)),
    }.items()
}


TYPE_ERRORS: Table = {
    # In-context learning as descent
    "0.5 is a float; ℚ takes Fraction(1, 2)": lambda: ren_liu.one_step(
        QueryContext(Q[1], Q[2], Q[1], Q[2], Q[0][0, :]), 0.5
    ),
    "f_ft: `dW_K` has dtype float32, `W_K` has float64; convert one of them explicitly": lambda: dai.f_ft(
        q, k, a(d, d), a(m, d), *f32(a(d, d)), a(m, d)
    ),
    "record_heads: `model` must be a Model, got dict": lambda: dai.record_heads(W, [1]),
    "attention: `context` must be a QueryContext, got tuple": lambda: ren_liu.attention((k, v, k, v, z)),
}
TYPE_ERRORS |= {
    f"{argument} must be an array (NumPy, torch, JAX, or of a refimpl system), got list": run
    for argument, run in {
        "gradient: `W`": lambda: gradient(squared_error, [[1]]),
        "gradient: `data[1]`": lambda: gradient(squared_error, q, k, [[1]]),
        "squared_error: `Y`": lambda: squared_error(q, k, [[1]]),
        "alignment: `values`": lambda: alignment(q, [[1]], k),
        "trained_weights: `errors`": lambda: irie.trained_weights(S, [[1]], v),
        "dual_form: `x`": lambda: irie.dual_form(S, q, v, [[1]]),
        "dual_form: `inputs`": lambda: irie.dual_form(S, q, [[1]], v),
        "training_history: `Y`": lambda: irie.training_history(S, v, [[1]], 1, 1, irie.half_squares),
        "half_squares: `Y`": lambda: irie.half_squares(v, [[1]]),
        "examples: `Y`": lambda: von_oswald.examples(v, [[1]]),
        "queries: `W_0`": lambda: von_oswald.queries(v, [[1]]),
        "self_attention: `P`": lambda: von_oswald.self_attention(q, k, *[a(d, d)] * 3, [[1]]),
        "proposition_1: `W_0`": lambda: von_oswald.proposition_1([[1]], 1, 1),
        "regression_model: `W_0`": lambda: von_oswald.regression_model([[1]], 1, 1),
        "model_examples: `Y`": lambda: von_oswald.model_examples(v, [[1]]),
        "model_queries: `W_0`": lambda: von_oswald.model_queries(v, [[1]]),
        "weight_update: `b_KV`": lambda: von_oswald.weight_update([[1]], 1, 1),
        "mapped_model: `W_1`": lambda: von_oswald.mapped_model(von_oswald.regression_model(S, 1, 1), S, [[1]], S),
        "pairing_model: `like`": lambda: von_oswald.pairing_model([[1]], 1, 1, 1),
        "f_icl: `demonstrations`": lambda: dai.f_icl(q, [[1]], q, a(d, d), a(m, d)),
        "f_zsl: `W_V`": lambda: dai.f_zsl(q, q, a(d, d), [[1]]),
        "delta_W: `W_V`": lambda: dai.delta_W(q, a(d, d), [[1]]),
        "f_ft: `dW_V`": lambda: dai.f_ft(q, q, a(d, d), a(m, d), a(d, d), [[1]]),
        "momentum_attention: `v`": lambda: dai.momentum_attention(v, [[1]], 1),
        "likeness: `text`": lambda: dai.likeness(model, model, q, [[1]]),
        "cosine: `b`": lambda: dai.cosine(z, [1]),
        "unit: `h`": lambda: dai.unit([1]),
        "QueryContext: `V_T`": lambda: QueryContext(k, v, k, [[1]], z),
        "W_0: `q`": lambda: ren_liu.W_0(SimpleNamespace(q=[1])),
        "variant_loss: `W`": lambda: ren_liu.variant_loss(ren_liu.NORMAL)([[1]], *[1] * 10),
        "through_relu: `W_2`": lambda: ren_liu.through_relu(seen, S, [[1]]),
        "residual: `W_2`": lambda: ren_liu.residual(S, [[1]], 1, ri.feature_maps.relu),
        "subtract_negatives: `V`": lambda: ren_liu.subtract_negatives([[1]], [[0]], 1),
        "least_similar: `K`": lambda: ren_liu.least_similar([[1]], 1),
        "gram_features: `G`": lambda: ren_liu.gram_features([[1]]),
        "softmax_context: `q`": lambda: ren_liu.softmax_context(q, q, [1], a(d, d), a(d, d), a(m, d)),
        "rank_one_patch: `delta`": lambda: rank_one_patch(S, a(m), [1]),
    }.items()
}
TYPE_ERRORS |= {
    f"{argument} must be an integer, a float or an array, got '1'": run
    for argument, run in {
        "step: `eta`": lambda: step(squared_error, q, "1", k, v),
        "training_history: `eta`": lambda: irie.training_history(S, v, q, "1", 1, irie.half_squares),
        "steps: `dampening`": lambda: von_oswald.steps(q, k, S.T[:1, :2], 1, 1, dampening="1"),
        "proposition_1: `eta`": lambda: von_oswald.proposition_1(S, "1", 1),
        "regression_model: `gamma`": lambda: von_oswald.regression_model(S, 1, 1, gamma="1"),
        "weight_update: `eta`": lambda: von_oswald.weight_update(S, "1", 1),
        "momentum_attention: `eta`": lambda: dai.momentum_attention(v, v, "1"),
        "subtract_negatives: `beta`": lambda: ren_liu.subtract_negatives(v, [[0]] * 5, "1"),
        "one_step: `penalty`": lambda: ren_liu.one_step(seen, 1, ren_liu.Variant(penalty="1")),
        "one_at_a_time: `eta`": lambda: ren_liu.one_at_a_time(seen, "1"),
    }.items()
}


NOT_DEFINED: Table = {
    # In-context learning as descent
    "maximum is not defined in GF(7); relu needs an ordered system": lambda: ren_liu.through_relu(
        QueryContext(*[GF(7).ones((1, 1))] * 4, GF(7).ones((1,))), *[GF(7).ones((1, 1))] * 2
    ),
    "maximum is not defined in GF(7); choosing negatives needs an ordered system": lambda: ren_liu.least_similar(
        GF(7).ones((2, 1)), 1
    ),
    "exp is not defined in ℚ; a Cholesky factor needs a real system": lambda: ren_liu.gram_features(QQ.ones((1, 1))),
    "sqrt is not defined in ℚ; it needs a real system": lambda: dai.cosine(*Q[:2]),
}


ZERO_DENOMINATORS: Table = {
    # In-context learning as descent
    "cosine: the denominator |a| |b| is zero at token 0 (no ε is added)": lambda: dai.cosine(z, 0 * z),
    "unit: the denominator |h| is zero at token 1 (no ε is added)": lambda: dai.unit(put(a(2, d), 1, 0)),
    "attention: the denominator Σ κ(k, q) is zero at token 0 (no ε is added)": lambda: ren_liu.attention(
        replace(seen, q=0 * z)
    ),
    "W_0: the denominator Σ κ(k, q) is zero at token 0 (no ε is added)": lambda: ren_liu.one_step(
        replace(seen, q=0 * z), 1
    ),
    "one_step: the denominator η is zero (no ε is added)": lambda: ren_liu.one_step(seen, 0.0),
    "one_at_a_time: the denominator η is zero (no ε is added)": lambda: ren_liu.one_at_a_time(seen, 0),
    "one_step: the denominator κ(q, q) is zero (no ε is added)": lambda: ren_liu.one_step(
        replace(seen, q=0 * z), 1, ren_liu.Variant(off_diagonal=1)
    ),
    "rank_one_patch: the denominator |a|² is zero at token 0 (no ε is added)": lambda: rank_one_patch(
        S, 0 * a(m), a(m)
    ),
}


CASES = cases(
    {ValueError: VALUE_ERRORS, TypeError: TYPE_ERRORS, NotDefined: NOT_DEFINED, ZeroDenominator: ZERO_DENOMINATORS}
)
