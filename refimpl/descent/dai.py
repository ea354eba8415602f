"""In-context learning as implicit finetuning, by attention without softmax: how alike are the two?

    F_ICL(q) = W_V [X'; X] (W_K [X'; X])ᵀ q = (W_ZSL + ΔW_ICL) q
    W_ZSL    = W_V X (W_K X)ᵀ        ΔW_ICL = Σ_i (W_V x'_i) (W_K x'_i)ᵀ
    F_FT(q)  = (W_V + ΔW_V) X Xᵀ (W_K + ΔW_K)ᵀ q

X' are the demonstrations, X is the query's own text. Demonstrations and finetuning both change
W_ZSL. How alike the two changes are is measured; no equality is claimed.

Source   Dai et al. 2023 (arXiv 2212.10559); the metrics follow its code, but see `likeness`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..arrays import Array
from ..attention.linear_attention import linear_attention_chunked
from ..checks import check_finite_arrays, check_scalar, check_shape, check_type, common_namespace, divide
from ..model.transformer import Model
from ..systems.floats import array_namespace
from .gradient import Number


def f_icl(q: Array, demonstrations: Array, X: Array, W_K: Array, W_V: Array) -> Array:
    """Attention of q (n, d) to demonstrations (N, width) and text X (T, width).

    W_K : (d, width)    W_V : (m, width)    ->  (n, m)
    """
    xp = common_namespace("f_icl", q=q, demonstrations=demonstrations, X=X, W_K=W_K, W_V=W_V)
    return f_zsl(q, xp.concat([demonstrations, X], axis=-2), W_K, W_V)


def f_zsl(q: Array, X: Array, W_K: Array, W_V: Array) -> Array:
    """Attention of q to text X alone: the sum of the values, each times its score."""
    T = check_finite_arrays("f_zsl", q=q, X=X, W_K=W_K, W_V=W_V).matrix_transpose
    for name, W in (("W_K", W_K), ("W_V", W_V)):
        check_shape("f_zsl", name, W, "rows", X.shape[-1], like="to match `X`")
    check_shape("f_zsl", "q", q, "queries", W_K.shape[-2], like="to match `W_K`")
    return (q @ T(X @ T(W_K))) @ (X @ T(W_V))


def delta_W(X: Array, W_K: Array, W_V: Array) -> Array:
    """Σ_i (W_V x_i) (W_K x_i)ᵀ, (m, d): ΔW_ICL of demonstrations, W_ZSL of the query's own text."""
    xp = check_finite_arrays("delta_W", X=X, W_K=W_K, W_V=W_V)
    k, v = X @ xp.matrix_transpose(W_K), X @ xp.matrix_transpose(W_V)
    return xp.sum(v[..., :, :, None] * k[..., :, None, :], axis=-3)


def f_ft(q: Array, X: Array, W_K: Array, W_V: Array, dW_K: Array, dW_V: Array) -> Array:
    """Attention with finetuned keys and values: (W_V + ΔW_V) X Xᵀ (W_K + ΔW_K)ᵀ q."""
    common_namespace("f_ft", W_K=W_K, dW_K=dW_K, W_V=W_V, dW_V=dW_V)
    check_shape("f_ft", "dW_K", dW_K, *W_K.shape, like="to match `W_K`", all_axes=True)
    check_shape("f_ft", "dW_V", dW_V, *W_V.shape, like="to match `W_V`", all_axes=True)
    return f_zsl(q, X, W_K + dW_K, W_V + dW_V)


def momentum_attention(o: Array, v: Array, eta: Number) -> Array:
    """MoAttn: o_t + Σ_{i<t} η^{t−i} v_i, o and v (..., n, m).

    It averages values over time, as momentum averages gradients.
    """
    xp = check_finite_arrays("momentum_attention", o=o, v=v)
    check_shape("momentum_attention", "v", v, *o.shape[-2:], like="to match `o`")
    check_scalar("momentum_attention", "eta", eta, o=o)
    outputs, past = [o[..., :0, :]], 0 * v[..., :1, :]
    for t in range(o.shape[-2]):
        outputs.append(o[..., t : t + 1, :] + past)
        past = eta * (past + v[..., t : t + 1, :])
    return xp.concat(outputs, axis=-2)


class Heads(NamedTuple):
    """Inputs and output of one layer's attention, heads before tokens.

    q, k : (..., n, d)    v, o : (..., n, m)
    """

    q: Array
    k: Array
    v: Array
    o: Array

    def scores(self, queries: slice, keys: slice) -> Array:
        """The scores q_t·k_s, before RoPE, φ and any softmax."""
        return self.q[..., queries, :] @ array_namespace(self.k).matrix_transpose(self.k[..., keys, :])


def record_heads(model: Model, text: Any, **options: Any) -> list[Heads]:
    """The attention of every layer while the model reads a text; options as in `transformer`."""
    check_type("record_heads", "model", model, Model)
    layers: list[Heads] = []

    def form(q: Array, k: Array, v: Array, /, *args: Any, **others: Any) -> Any:
        o, state = linear_attention_chunked(q, k, v, *args, **others)
        layers.append(Heads(q, k, v, o))
        return o, state

    model(text, form=form, **options)
    return layers


class Likeness(NamedTuple):
    """How alike the heads of one layer are: SimAOU and SimAM of the last token, and Kendall's τ of
    its attention to the demonstrations."""

    sim_aou: Array
    sim_am: Array
    kendall: list[float]


def likeness(model: Model, tuned: Model, demonstrations: Array, text: Array) -> list[Likeness]:
    """How alike, by layer, are a model that reads demonstrations and one finetuned on them?

    demonstrations : (M, width)    text : (n, width), vectors

    Ours: each head is compared by itself, by its output before W_O and its scores q·k before RoPE
    and φ; Kendall's τ is τ-a, and the tuned model reads the demonstrations for it. The code of Dai
    et al. takes SimAOU of the output of the layer, after W_O, and τ-b of scores summed over heads.
    Its finetuned scores are products of the query vector with the query vectors of the training
    tokens, recorded while finetuning.
    """
    both = common_namespace("likeness", demonstrations=demonstrations, text=text).concat(
        [demonstrations, text], axis=-2
    )
    M, last, layers = demonstrations.shape[-2], slice(-1, None), []
    runs = (record_heads(m, x) for m, x in ((model, text), (model, both), (tuned, text), (tuned, both)))
    for zsl, icl, ft, ft_icl in zip(*runs, strict=True):
        aou = sim_aou(*(heads.o[..., last, :] for heads in (zsl, icl, ft)))[..., 0]
        am = sim_am(icl.scores(last, slice(M, None)), ft.scores(last, slice(None)))[..., 0]
        to_demonstrations = (heads.scores(last, slice(0, M))[..., 0, :] for heads in (icl, ft_icl))
        flat: list[Any] = [array_namespace(x).reshape(x, (-1, M)) for x in to_demonstrations]
        orders = zip(*(x.tolist() for x in flat), strict=True)
        layers.append(Likeness(aou, am, [kendall_tau(a, b) for a, b in orders]))
    return layers


def rec2ftp(zsl: Sequence[bool], icl: Sequence[bool], ft: Sequence[bool]) -> float:
    """Recall to finetuning's predictions: of the examples that finetuning gets right and zero-shot
    does not, the share that ICL gets right too.

    zsl, icl, ft : for each example, whether its prediction is right
    """
    if not len(zsl) == len(icl) == len(ft):
        raise ValueError(
            f"rec2ftp: `zsl`, `icl` and `ft` must be of the same examples, got {len(zsl)}, {len(icl)} and {len(ft)}"
        )
    gained = [b for a, b, c in zip(zsl, icl, ft, strict=True) if c and not a]
    if not gained:
        raise ValueError("rec2ftp: `ft` must be right somewhere where `zsl` is wrong, else there is nothing to recall")
    return sum(map(bool, gained)) / len(gained)


def cosine(a: Array, b: Array) -> Array:
    """a·b / (|a| |b|) along the last axis.   Needs real"""
    xp = check_finite_arrays("cosine", a=a, b=b)
    check_shape("cosine", "b", b, *a.shape, like="to match `a`", all_axes=True)
    dot, lengths = xp.sum(rows(a * b), axis=-1, keepdims=True), length(rows(a)) * length(rows(b))
    return xp.reshape(divide("cosine", dot, lengths, "|a| |b|"), a.shape[:-1])


def sim_aou(h_zsl: Array, h_icl: Array, h_ft: Array) -> Array:
    """SimAOU: the cosine between the updates of the attention output, ICL − ZSL and FT − ZSL.

    Each output is first scaled to length 1.
    """
    zsl, icl, ft = map(unit, (h_zsl, h_icl, h_ft))
    return cosine(icl - zsl, ft - zsl)


def sim_am(scores_icl: Array, scores_ft: Array) -> Array:
    """SimAM: the cosine between attention scores, before any softmax, to the query's own text."""
    return cosine(scores_icl, scores_ft)


def unit(h: Array) -> Array:
    """h / |h| along the last axis."""
    xp = check_finite_arrays("unit", h=h)
    return xp.reshape(divide("unit", rows(h), length(rows(h)), "|h|"), h.shape)


def rows(h: Array) -> Array:
    """A vector as a matrix of one row."""
    return h if h.ndim > 1 else h[None, :]


def length(h: Array) -> Array:
    """|h| of each row, (..., 1)."""
    xp = array_namespace(h)
    return xp.sqrt(xp.sum(h * h, axis=-1, keepdims=True))


def kendall_tau(a: Sequence[Any], b: Sequence[Any]) -> float:
    """Kendall's τ-a between two orders of the same tokens: (concordant − discordant) / pairs.

    Ties count for neither.

    >>> kendall_tau([1, 2, 3, 4], [1, 3, 2, 4])
    0.6666666666666666
    """
    n = len(a)
    if n != len(b) or n < 2:
        raise ValueError(f"kendall_tau: `a` and `b` must rank the same two or more tokens, got {n} and {len(b)}")
    if any(x != x for x in (*a, *b)):
        raise ValueError("kendall_tau: `a` and `b` must be numbers in some order, got nan")

    def order(x: Sequence[Any], i: int, j: int) -> int:
        return int(x[i] > x[j]) - int(x[i] < x[j])

    return 2 * sum(order(a, i, j) * order(b, i, j) for i in range(n) for j in range(i)) / (n * (n - 1))
