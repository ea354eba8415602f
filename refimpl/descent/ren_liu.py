"""Softmax attention as one gradient step on a dual model, and variants that this suggests.

A query attends to demonstrations X_D and to its own text X_T with a kernel κ(k, q) = φ(k)·φ(q); for
softmax κ = exp(k·q):

    o = Σ_i κ(k_i, q) v_i / D,        D = Σ_i κ(k_i, q) over all tokens

The dual model f(x) = W φ(x) starts at W_0 = (1/D) Σ_{i∈X_T} v_i φ(k_i)ᵀ. One step of rate η on

    L(W) = −1/(ηD) Σ_{i∈X_D} v_iᵀ W φ(k_i)

makes f(q) = o. η cancels. D depends on the query, so every query has a dual model of its own.

Source   Ren & Liu 2024 (arXiv 2310.13220), Theorem 3.1; the constants are our reconstruction
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf, log, sqrt
from typing import Any

from ..arrays import Array
from ..checks import (
    check_finite_arrays,
    check_integer,
    check_scalar,
    check_shape,
    check_type,
    common_namespace,
    divide,
    is_true,
    is_zero,
)
from ..errors import ZeroDenominator, brief
from ..systems import require, system_of
from ..systems.floats import array_namespace, device
from .gradient import Number, alignment, gradient

Map = Callable[[Array], Array]


@dataclass(frozen=True)
class QueryContext:
    """One query and the tokens that it attends to: N demonstrations and T tokens of its own text.

    Keys and query are given by their features φ(k), φ(q), values as they are:

    K_D (N, r)    V_D (N, m)    K_T (T, r)    V_T (T, m)    q (r,)
    """

    K_D: Array
    V_D: Array
    K_T: Array
    V_T: Array
    q: Array

    def __post_init__(self) -> None:
        who, m = "QueryContext", self.V_D.shape[-1:]
        check_finite_arrays(who, K_D=self.K_D, V_D=self.V_D, K_T=self.K_T, V_T=self.V_T, q=self.q)
        check_shape(who, "q", self.q, "features", all_axes=True)
        for name, K, tokens in (("K_D", self.K_D, "N"), ("K_T", self.K_T, "T")):
            check_shape(who, name, K, tokens, *self.q.shape, like="to match `q`", all_axes=True)
        for name, V, K in (("V_D", self.V_D, self.K_D), ("V_T", self.V_T, self.K_T)):
            check_shape(who, name, V, K.shape[0], *m, like="to match its keys", all_axes=True)

    @property
    def D(self) -> Array:
        """The denominator of the dual model: κ(k, q) summed over all tokens, (1,)."""
        xp = array_namespace(self.q)
        return xp.sum(self.K_D @ self.q[:, None], axis=-2) + xp.sum(self.K_T @ self.q[:, None], axis=-2)


@dataclass(frozen=True)
class Variant:
    """Changes of attention, each of which is a term of the loss L of the gradient step.

    decay : α          + (α/2η) |W|²                o = [V_D, (1 − α) V_T] a
    penalty : α        + (α/2) |W|²                 o = [V_D, (1 − ηα) V_T] a: here η stays
    off_diagonal : α   + α/(η κ(q,q)) v_qᵀ W φ(q)   o − α v_q, W_V X [softmax(·) − αI] on the slides
    negatives, beta    each v_i less (β/k) Σ_{j∈N(i)} v_j, in the values alone; see `least_similar`
    values, keys       g_1(V_D), g_2(K_D) in place of V_D, K_D, also in D; see `residual`

    v_q is the value of the query's own token, the last of X_T. The first three are called
    regularised, the others negative samples and augmented. `decay` and `penalty` are two readings
    of one slide.

    Ours: the loss of which `off_diagonal` is a step; the choice of negatives, which the source does
    not give as far as we know; that g_1 and g_2 change the demonstrations alone; and that g_2 comes
    after φ. The slides write g_1(W_V X) and g_2(W_K X), the latter before φ.
    """

    decay: Number = 0
    penalty: Number = 0
    off_diagonal: Number = 0
    negatives: Sequence[Sequence[int]] | None = None
    beta: Number = 0
    values: Map = lambda V: V
    keys: Map = lambda K: K

    def augment(self, context: QueryContext) -> QueryContext:
        return replace(context, V_D=self.values(context.V_D), K_D=self.keys(context.K_D))


NORMAL = Variant()


def attention(context: QueryContext, variant: Variant = NORMAL, *, eta: Number = 1) -> Array:
    """o (m,), the mean of the values weighted by their scores, or a variant of it.

    eta : the rate η, which only `penalty` needs
    """
    context = apply_maps("attention", context, variant)
    xp = array_namespace(context.q)
    V_D = context.V_D
    if variant.negatives is not None:
        V_D = subtract_negatives(V_D, variant.negatives, variant.beta)
    V_T = (1 - variant.decay - eta * variant.penalty) * context.V_T
    scores = context.q[None, :] @ xp.matrix_transpose(xp.concat([context.K_D, context.K_T], axis=0))
    values, total = scores @ xp.concat([V_D, V_T], axis=0), xp.sum(scores, axis=-1, keepdims=True)
    o = divide("attention", values, total, "Σ κ(k, q)")[0, :]
    return o if is_zero(variant.off_diagonal) else o - variant.off_diagonal * context.V_T[-1, :]


def apply_maps(who: str, context: QueryContext, variant: Variant) -> QueryContext:
    """The context with the variant's maps applied, if all of the variant can be applied to it."""
    check_type(who, "context", context, QueryContext)
    if variant.negatives is not None:
        check_negatives(who, variant.negatives, context.V_D.shape[0])
    if not is_zero(variant.off_diagonal) and not context.V_T.shape[0]:
        raise ValueError(f"{who}: `off_diagonal` needs the query's own token, the last of X_T, which is empty")
    return variant.augment(context)


def W_0(context: QueryContext) -> Array:
    """(1/D) Σ_{i∈X_T} v_i φ(k_i)ᵀ, (m, r): the dual model before any demonstration."""
    T = common_namespace("W_0", q=context.q).matrix_transpose
    return divide("W_0", T(context.V_T) @ context.K_T, context.D[None, :], "Σ κ(k, q)")


def dual_loss(W: Array, V: Array, K: Array, D: Array, eta: Number) -> Array:
    """L(W) = −1/(ηD) Σ_i v_iᵀ W φ(k_i)"""
    return -alignment(W, V, K) / (eta * D[0])


def variant_loss(variant: Variant) -> Callable[..., Array]:
    """L with the terms of a variant, written out.

    (W, V, K, D, η, q, v_q, decay, penalty, off_diagonal, β) -> one number for each W
    """

    def loss(W: Array, V: Array, K: Array, D: Array, eta: Array, q: Array, v_q: Array, *terms: Array) -> Array:
        decay, penalty, off_diagonal, beta = terms
        xp = common_namespace("variant_loss", W=W)
        total = dual_loss(W, V, K, D, eta)
        for i, chosen in enumerate(() if variant.negatives is None else variant.negatives):
            for j in chosen:
                total = total - beta / len(chosen) * dual_loss(W, V[j : j + 1, :], K[i : i + 1, :], D, eta)
        total = total + (decay / eta + penalty) / 2 * xp.sum(xp.sum(W * W, axis=-1), axis=-1)
        if is_zero(variant.off_diagonal):
            return total
        return total + off_diagonal / (eta * xp.sum(q * q, axis=-1)) * alignment(W, v_q, q[None, :])

    return loss


def one_step(context: QueryContext, eta: Number, variant: Variant = NORMAL) -> Array:
    """f(q) after one step of rate η from W_0 on the loss, (m,).

    Equals   attention(context, variant) (theorems ren_liu, ren_liu_variants)
    """
    context = apply_maps("one_step", context, variant)
    eta, q = rate("one_step", eta, context), context.q
    if not is_zero(variant.off_diagonal):
        require_nonzero("one_step", "κ(q, q)", array_namespace(q).sum(q * q, axis=-1))
    names = ("decay", "penalty", "off_diagonal", "beta")
    terms = (scalar_array("one_step", name, getattr(variant, name), q) for name in names)
    W, v_q = W_0(context), context.V_T[-1:, :]
    W = W - eta * gradient(variant_loss(variant), W, context.V_D, context.K_D, context.D, eta, q, v_q, *terms)
    return (W @ q[:, None])[:, 0]


def one_at_a_time(context: QueryContext, eta: Number) -> Array:
    """f(q) after N steps, on one demonstration each."""
    eta = rate("one_at_a_time", eta, context)
    W = W_0(context)
    for i in range(context.K_D.shape[0]):
        W = W - eta * gradient(dual_loss, W, context.V_D[i : i + 1, :], context.K_D[i : i + 1, :], context.D, eta)
    return (W @ context.q[:, None])[:, 0]


def scalar_array(who: str, name: str, x: Number, like: Array) -> Array:
    """x as an array of shape (), which can be passed to a loss among its data."""
    check_scalar(who, name, x, like=like)
    if not isinstance(x, int | float | Fraction):
        return x
    return x * common_namespace(who, like=like).ones((), dtype=like.dtype, device=device(like))


def rate(who: str, eta: Number, context: QueryContext) -> Array:
    """η as a scalar array of the context's system; 0 is refused."""
    return require_nonzero(who, "η", scalar_array(who, "eta", eta, context.q))


def require_nonzero(who: str, formula: str, x: Array) -> Array:
    """x, or ZeroDenominator with the formula of the denominator that it is."""
    if is_zero(x):
        raise ZeroDenominator(f"{who}: the denominator {formula} is zero (no ε is added)")
    return x


def through_relu(context: QueryContext, W_1: Array, W_2: Array) -> QueryContext:
    """The context of attention with an MLP behind it, W_2 relu(W_1 o).

    Its values are A v with A = W_2 Σ W_1, where Σ selects the hidden units that are on for o. Then

        attention(through_relu(context, …)) = W_2 relu(W_1 attention(context))

    and the dual model has weights A W.   W_1 : (h, m)    W_2 : (m', h).   Needs ordered
    """
    xp = common_namespace("through_relu", q=context.q, W_1=W_1, W_2=W_2)
    check_shape("through_relu", "W_1", W_1, "hidden", context.V_D.shape[-1], like="to match the values")
    check_shape("through_relu", "W_2", W_2, "outputs", W_1.shape[0], like="to match `W_1`")
    require(system_of(context.q), "ordered", "relu")
    inner = (W_1 @ attention(context)[:, None])[:, 0]
    on = xp.where(inner > xp.zeros_like(inner), xp.ones_like(inner), xp.zeros_like(inner))
    A = xp.matrix_transpose(W_2 @ (on[:, None] * W_1))
    return replace(context, V_D=context.V_D @ A, V_T=context.V_T @ A)


def residual(W_1: Array, W_2: Array, c: Number, activation: Map) -> Map:
    """g(x) = x + c W_2 σ(W_1 x), a map for values or keys."""
    T = common_namespace("residual", W_1=W_1, W_2=W_2).matrix_transpose
    return lambda x: x + c * (activation(x @ T(W_1)) @ T(W_2))


def subtract_negatives(V: Array, negatives: Sequence[Sequence[int]], beta: Number) -> Array:
    """v_i − (β/k) Σ_{j∈N(i)} v_j, where N(i) are the k negatives of demonstration i."""
    xp = common_namespace("subtract_negatives", V=V)
    check_scalar("subtract_negatives", "beta", beta, V=V)
    rows = []
    for i, chosen in enumerate(check_negatives("subtract_negatives", negatives, V.shape[0])):
        others = [V[j, :] for j in chosen]
        rows.append(V[i, :] - beta * sum(others[1:], others[0]) / len(chosen))
    return xp.stack(rows, axis=0) if rows else V


def check_negatives(who: str, negatives: Sequence[Sequence[int]], N: int) -> list[list[int]]:
    """The negatives as integers: one or more for each of N demonstrations."""
    if len(negatives) != N or any(not len(chosen) for chosen in negatives):
        raise ValueError(
            f"{who}: `negatives` must name one or more for each of {N} demonstrations, got {brief(negatives)}"
        )
    return [[check_integer(who, "negatives", j, least=0, most=N - 1) for j in chosen] for chosen in negatives]


def least_similar(K: Array, k: int) -> list[list[int]]:
    """For each demonstration the k others with the least similar keys, by κ.   Needs ordered"""
    T = check_finite_arrays("least_similar", K=K).matrix_transpose
    check_integer("least_similar", "k", k, least=1, most=max(K.shape[0] - 1, 1))
    require(system_of(K), "ordered", "choosing negatives")
    scores: Any = K @ T(K)
    return [
        sorted((j for j in range(len(row)) if j != i), key=row.__getitem__)[:k] for i, row in enumerate(scores.tolist())
    ]


def gap_bound(w: float, rho: float, scores: Sequence[float], largest: float, delta: float) -> float:
    """A bound on L(f) − L̂(f), for L = −E[vᵀ W φ(k)] and its mean L̂ over N examples.

        2 w ρ √Tr(K) / N + 6 w ρ κ √(log(2/δ) / 2N)

    With probability 1 − δ no f(x) = W φ(x) with |W|_F ≤ w exceeds it, if every possible example has
    |v| ≤ ρ and κ(k, k) ≤ κ² = largest. proofs/README.md derives it, for this norm. The slides state
    O(w ρ d_o √Tr(K) / N + √(log(1/δ) / N)), without the norm; here no d_o is needed.

    scores : κ(k_i, k_i) of the N examples, the diagonal of K
    """
    if not 0 < delta < 1:
        raise ValueError(f"gap_bound: `delta` must lie between 0 and 1, got {delta}")
    for name, x in (("w", w), ("rho", rho), ("largest", largest)):
        if not 0 <= x < inf:
            raise ValueError(f"gap_bound: `{name}` must be finite and ≥ 0, got {x}")
    if not len(scores) or not all(0 <= score <= largest for score in scores):
        raise ValueError(
            f"gap_bound: `scores` must be one or more numbers from 0 to `largest` = {largest}, got {brief(scores)}"
        )
    N = len(scores)
    return w * rho * (2 * sqrt(sum(scores)) / N + 6 * sqrt(largest) * sqrt(log(2 / delta) / (2 * N)))


def gram_features(G: Array) -> Array:
    """Features (n, n) with φ_i·φ_j = G_ij, for a positive definite G: G = C Cᵀ by Cholesky.

    The features of softmax have infinite width, but n tokens need only n features: G_ij =
    exp(x_i·x_j) over the keys and the query. So the dual model of softmax attention is exact and of
    finite width. Only the lower triangle of G is read.   Needs real
    """
    xp = check_finite_arrays("gram_features", G=G)
    check_shape("gram_features", "G", G, *G.shape[-1:], "tokens", all_axes=True)
    require(system_of(G), "real", "a Cholesky factor")
    n = G.shape[-1]
    rows: list[list[Array]] = []
    for i in range(n):
        row: list[Array] = []
        for j in range(i + 1):
            rest = G[i, j]
            for a, b in zip(row, rows[j] if j < i else row, strict=False):
                rest = rest - a * b
            if j < i:
                row.append(rest / rows[j][j])
        pivot: Any = xp.maximum(rest, 0 * rest)
        if is_true(pivot == 0):
            raise ValueError(f"gram_features: `G` must be positive definite, it is not at token {i}")
        rows.append([*row, xp.sqrt(rest)])
    return xp.stack([xp.stack([*row, *[0 * G[0, 0]] * (n - len(row))], axis=0) for row in rows], axis=0) if n else G


def softmax_context(X_D: Array, X_T: Array, q: Array, W_Q: Array, W_K: Array, W_V: Array) -> QueryContext:
    """The context of a token q (width,) under softmax attention, with features by its Gram matrix.

    X_D : (N, width)    X_T : (T, width)    W_Q, W_K : (d, width)    W_V : (m, width)
    κ = exp(k·q); W_Q must include any scale 1/√d. Two equal keys, or a key equal to the query, are
    refused, since their Gram matrix is not positive definite.
    """
    xp = common_namespace("softmax_context", X_D=X_D, X_T=X_T, q=q, W_Q=W_Q, W_K=W_K, W_V=W_V)
    T, N = xp.matrix_transpose, X_D.shape[0]
    X = xp.concat([X_D, X_T], axis=0)
    tokens = xp.concat([X @ T(W_K), q[None, :] @ T(W_Q)], axis=0)
    F, V = gram_features(xp.exp(tokens @ T(tokens))), X @ T(W_V)
    return QueryContext(F[:N, :], V[:N, :], F[N:-1, :], V[N:, :], F[-1, :])
