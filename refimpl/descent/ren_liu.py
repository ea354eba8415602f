"""Softmax attention as one gradient step on a dual model, and the attention variants that this view suggests.

Demonstrations X_D and the query's own text X_T are attended to with a kernel κ(k, q) = φ(k)·φ(q), softmax being κ = exp(k·q):

    o = Σ_i κ(k_i, q) v_i / D,        D = Σ_i κ(k_i, q) over all tokens

The dual model f(x) = W φ(x) starts at W_0 = (1/D) Σ_{i∈T} v_i φ(k_i)ᵀ and takes one step of rate η on

    L(W) = −1/(ηD) Σ_{i∈D} v_iᵀ W φ(k_i)

and then f(q) = o. η cancels. D is that of this query, so every query has a dual model of its own.

Source   Ren & Liu 2024 (arXiv 2310.13220), Theorem 3.1; the constants are our own reconstruction, and so is whatever says so below
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, log, sqrt
from typing import Any

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
from ..systems.floats import array_namespace, device, require_of
from .gradient import alignment, gradient


@dataclass(frozen=True)
class Attended:
    """What one query sees: features of keys, and values, of N demonstrations and T tokens of its own text; and its own features.

    K_D (N, r)    V_D (N, m)    K_T (T, r)    V_T (T, m)    q (r,)
    """

    K_D: Any
    V_D: Any
    K_T: Any
    V_T: Any
    q: Any

    def __post_init__(self) -> None:
        check_finite_arrays("Attended", **vars(self))
        check_shape("Attended", "q", self.q, "features", all_axes=True)
        for name, tokens in (("K_D", "N"), ("K_T", "T")):
            check_shape(
                "Attended", name, getattr(self, name), tokens, *self.q.shape, like="to match `q`", all_axes=True
            )
        for name, K in (("V_D", self.K_D), ("V_T", self.K_T)):
            check_shape(
                "Attended",
                name,
                getattr(self, name),
                K.shape[0],
                *self.V_D.shape[-1:],
                like="to match its keys",
                whole=True,
            )

    @property
    def D(self) -> Any:
        """The denominator of the dual model: κ(k, q) summed over all tokens, (1,)."""
        xp = array_namespace(self.q)
        return xp.sum(self.K_D @ self.q[:, None], axis=-2) + xp.sum(self.K_T @ self.q[:, None], axis=-2)


@dataclass(frozen=True)
class Variant:
    """What may be changed about attention, each a term of the loss L of which it is then one gradient step.

    decay : α        + (α/2η) |W|²                     o = [V_D, (1 − α) V_T] a                regularised, our reading
    penalty : α      + (α/2) |W|²                      o = [V_D, (1 − ηα) V_T] a               regularised, the other reading: η stays
    off_diagonal : α + α/(η κ(q,q)) v_qᵀ W φ(q)        o − α v_q, as W_V X [softmax(·) − αI]   regularised, as on the slides
    negatives, beta  each v_i less (β/k) Σ_{j∈N(i)} v_j, in the values alone                   negative samples; `unlike` chooses some
    values, keys     g_1(V_D), g_2(K_D) in place of V_D, K_D, also in D; K_D are features       augmented; see `residual`

    v_q is the value of the query's own token, the last of X_T. That the slides' form is a step on this loss is our own reconstruction,
    and how negatives are chosen the source does not say, as far as we know. That g_1, g_2 change demonstrations alone, and that g_2 comes
    after φ, is ours too: the slides write g_1(W_V X) and g_2(W_K X), the latter before φ.
    """

    decay: Any = 0
    penalty: Any = 0
    off_diagonal: Any = 0
    negatives: Sequence[Sequence[int]] | None = None
    beta: Any = 0
    values: Callable[[Any], Any] = lambda V: V
    keys: Callable[[Any], Any] = lambda K: K

    def augmented(self, seen: Attended) -> Attended:
        return replace(seen, V_D=self.values(seen.V_D), K_D=self.keys(seen.K_D))


NORMAL = Variant()


def attention(seen: Attended, variant: Variant = NORMAL, *, eta: Any = 1) -> Any:
    """o (m,), by its definition: scores, their sum, the weighted mean of values; or a variant of it.   eta is for `penalty` alone"""
    seen = changed("attention", seen, variant)
    xp = array_namespace(seen.q)
    V_D = seen.V_D if variant.negatives is None else apart(seen.V_D, variant.negatives, variant.beta)
    V_T = (1 - variant.decay - eta * variant.penalty) * seen.V_T
    scores = seen.q[None, :] @ xp.matrix_transpose(xp.concat([seen.K_D, seen.K_T], axis=0))
    o = divide(
        "attention", scores @ xp.concat([V_D, V_T], axis=0), xp.sum(scores, axis=-1, keepdims=True), "Σ κ(k, q)"
    )[0, :]
    return o if is_zero(variant.off_diagonal) else o - variant.off_diagonal * seen.V_T[-1, :]


def changed(who: str, seen: Attended, variant: Variant) -> Attended:
    """What the variant's maps make of what is seen, if all of the variant can be applied to it."""
    check_type(who, "seen", seen, Attended)
    if variant.negatives is not None:
        indices(who, variant.negatives, seen.V_D.shape[0])
    if not is_zero(variant.off_diagonal) and not seen.V_T.shape[0]:
        raise ValueError(f"{who}: `off_diagonal` needs the query's own token, the last of X_T, which is empty")
    return variant.augmented(seen)


def W_0(seen: Attended) -> Any:
    """(1/D) Σ_{i∈T} v_i φ(k_i)ᵀ, (m, r): the dual model before it has seen a demonstration."""
    T = common_namespace("W_0", q=seen.q).matrix_transpose
    return divide("W_0", T(seen.V_T) @ seen.K_T, seen.D[None, :], "Σ κ(k, q)")


def dual_loss(W: Any, V: Any, K: Any, D: Any, eta: Any) -> Any:
    """L(W) = −1/(ηD) Σ_i v_iᵀ W φ(k_i)"""
    return -alignment(W, V, K) / (eta * D[0])


def variant_loss(variant: Variant) -> Callable[..., Any]:
    """L with the terms of a variant, written out: (W, V, K, D, η, q, v_q, decay, penalty, off_diagonal, β) -> a number for each W."""

    def loss(
        W: Any,
        V: Any,
        K: Any,
        D: Any,
        eta: Any,
        q: Any,
        v_q: Any,
        decay: Any,
        penalty: Any,
        off_diagonal: Any,
        beta: Any,
    ) -> Any:
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


def one_step(seen: Attended, eta: Any, variant: Variant = NORMAL) -> Any:
    """f(q) after one step of rate η from W_0 on the loss, (m,).   Equals attention(seen, variant) (theorems ren_liu, ren_liu_variants)"""
    seen = changed("one_step", seen, variant)
    eta = rate("one_step", eta, seen)
    if not is_zero(variant.off_diagonal):
        nonzero("one_step", "κ(q, q)", array_namespace(seen.q).sum(seen.q * seen.q, axis=-1))
    options = (
        number("one_step", name, getattr(variant, name), seen.q)
        for name in ("decay", "penalty", "off_diagonal", "beta")
    )
    W = W_0(seen)
    W = W - eta * gradient(
        variant_loss(variant), W, seen.V_D, seen.K_D, seen.D, eta, seen.q, seen.V_T[-1:, :], *options
    )
    return (W @ seen.q[:, None])[:, 0]


def one_at_a_time(seen: Attended, eta: Any) -> Any:
    """The same in N steps, a demonstration in each."""
    eta = rate("one_at_a_time", eta, seen)
    W = W_0(seen)
    for i in range(seen.K_D.shape[0]):
        W = W - eta * gradient(dual_loss, W, seen.V_D[i : i + 1, :], seen.K_D[i : i + 1, :], seen.D, eta)
    return (W @ seen.q[:, None])[:, 0]


def number(who: str, name: str, x: Any, like: Any) -> Any:
    """x as an array of shape (), which can stand among the data of a loss."""
    check_scalar(who, name, x, like=like)
    return (
        x
        if hasattr(x, "ndim")
        else x * common_namespace(who, like=like).ones((), dtype=like.dtype, device=device(like))
    )


def rate(who: str, eta: Any, seen: Attended) -> Any:
    return nonzero(who, "η", number(who, "eta", eta, seen.q))


def nonzero(who: str, formula: str, x: Any) -> Any:
    if is_zero(x):
        raise ZeroDenominator(f"{who}: the denominator {formula} is zero (no ε is added)")
    return x


def through_relu(seen: Attended, W_1: Any, W_2: Any) -> Attended:
    """The dual model of attention with an MLP behind it, W_2 relu(W_1 o): values A v with A = W_2 Σ W_1, and so weights A W.

    Σ says which hidden units are on for this query's o. Then attention(through_relu(seen, …)) = W_2 relu(W_1 attention(seen)).
    W_1 : (h, m)    W_2 : (m', h).   Needs ordered
    """
    xp = common_namespace("through_relu", q=seen.q, W_1=W_1, W_2=W_2)
    check_shape("through_relu", "W_1", W_1, "hidden", seen.V_D.shape[-1], like="to match the values")
    check_shape("through_relu", "W_2", W_2, "outputs", W_1.shape[0], like="to match `W_1`")
    require_of(seen.q, "ordered", "relu")
    inner = (W_1 @ attention(seen)[:, None])[:, 0]
    on = xp.where(inner > xp.zeros_like(inner), xp.ones_like(inner), xp.zeros_like(inner))
    A = xp.matrix_transpose(W_2 @ (on[:, None] * W_1))
    return replace(seen, V_D=seen.V_D @ A, V_T=seen.V_T @ A)


def residual(W_1: Any, W_2: Any, c: Any, activation: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """g(x) = x + c W_2 σ(W_1 x), a map for values or keys."""
    T = common_namespace("residual", W_1=W_1, W_2=W_2).matrix_transpose
    return lambda x: x + c * (activation(x @ T(W_1)) @ T(W_2))


def apart(V: Any, negatives: Sequence[Sequence[int]], beta: Any) -> Any:
    """v_i − (β/k) Σ_{j∈N(i)} v_j, for each i the k negatives N(i)."""
    xp = common_namespace("apart", V=V)
    check_scalar("apart", "beta", beta, V=V)
    rows = []
    for i, chosen in enumerate(indices("apart", negatives, V.shape[0])):
        each = [V[j, :] for j in chosen]
        rows.append(V[i, :] - beta * sum(each[1:], each[0]) / len(chosen))
    return xp.stack(rows, axis=0) if rows else V


def indices(who: str, negatives: Sequence[Sequence[int]], N: int) -> list[list[int]]:
    """One or more negatives for each of N demonstrations."""
    if len(negatives) != N or any(not len(chosen) for chosen in negatives):
        raise ValueError(
            f"{who}: `negatives` must name one or more for each of {N} demonstrations, got {brief(negatives)}"
        )
    return [[check_integer(who, "negatives", j, least=0, most=N - 1) for j in chosen] for chosen in negatives]


def unlike(K: Any, k: int) -> list[list[int]]:
    """For each demonstration the k others whose keys it is least like, by κ.   Needs ordered"""
    T = check_finite_arrays("unlike", K=K).matrix_transpose
    check_integer("unlike", "k", k, least=1, most=max(K.shape[0] - 1, 1))
    require_of(K, "ordered", "choosing negatives")
    scores = (K @ T(K)).tolist()
    return [sorted((j for j in range(len(row)) if j != i), key=row.__getitem__)[:k] for i, row in enumerate(scores)]


def gap_bound(w: float, rho: float, scores: Sequence[float], largest: float, delta: float) -> float:
    """With probability 1 − δ no f(x) = W φ(x) with |W|_F ≤ w has L(f) − L̂(f) above this, for L = −E[vᵀ W φ(k)] and N examples.

        2 w ρ √Tr(K) / N + 6 w ρ κ √(log(2/δ) / 2N)        |v| ≤ ρ and κ(k, k) ≤ κ² = largest, for all that may come

    scores : κ(k_i, k_i) of the examples that came, N of them: the diagonal of K
    Derived in proofs/README.md, for this norm. The slides state O(w ρ d_o √Tr(K) / N + √(log(1/δ) / N)) and do not say for which: here
    no d_o is needed.
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


# Softmax has features of infinite width; on the tokens at hand, as many as there are tokens will do


def gram_features(G: Any) -> Any:
    """Features (n, n) with φ_i·φ_j = G_ij, for a positive definite Gram matrix: G = C Cᵀ by Cholesky.   Needs real

    So the dual model of softmax attention is exact and of finite width: G_ij = exp(x_i·x_j) over the keys and the query.
    G is taken to be symmetric: its lower triangle is read.
    """
    xp = check_finite_arrays("gram_features", G=G)
    check_shape("gram_features", "G", G, *G.shape[-1:], "tokens", all_axes=True)
    require_of(G, "real", "a Cholesky factor")
    n = G.shape[-1]
    rows: list[list[Any]] = []
    for i in range(n):
        row: list[Any] = []
        for j in range(i + 1):
            rest = G[i, j]
            for a, b in zip(row, rows[j] if j < i else row, strict=False):
                rest = rest - a * b
            if i == j and is_true(xp.maximum(rest, 0 * rest) == 0):
                raise ValueError(f"gram_features: `G` must be positive definite, it is not at token {i}")
            row.append(xp.sqrt(rest) if i == j else rest / rows[j][j])
        rows.append(row)
    zero = 0 * G[0, 0] if n else None
    return xp.stack([xp.stack([*row, *[zero] * (n - len(row))], axis=0) for row in rows], axis=0) if n else G


def softmax_seen(X_D: Any, X_T: Any, q: Any, W_Q: Any, W_K: Any, W_V: Any) -> Attended:
    """What softmax attention of a token q (width,) sees in tokens X_D (N, width), X_T (T, width), through its Gram matrix.

    W_Q, W_K : (d, width)    W_V : (m, width).   κ = exp(k·q); a scale 1/√d belongs to W_Q.
    Two tokens with the same key, or a key that is the query, have no positive definite Gram matrix, and are refused.
    """
    xp = common_namespace("softmax_seen", X_D=X_D, X_T=X_T, q=q, W_Q=W_Q, W_K=W_K, W_V=W_V)
    T, N = xp.matrix_transpose, X_D.shape[0]
    X = xp.concat([X_D, X_T], axis=0)
    tokens = xp.concat([X @ T(W_K), q[None, :] @ T(W_Q)], axis=0)
    F, V = gram_features(xp.exp(tokens @ T(tokens))), X @ T(W_V)
    return Attended(F[:N, :], V[:N, :], F[N:-1, :], V[N:, :], F[-1, :])
