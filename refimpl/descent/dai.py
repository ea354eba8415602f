"""In-context learning as implicit finetuning: attention without softmax and scale, as code; and how alike the two come out.

    F_ICL(q) = W_V [X'; X] (W_K [X'; X])ᵀ q = (W_ZSL + ΔW_ICL) q,    W_ZSL = W_V X (W_K X)ᵀ,    ΔW_ICL = Σ_i (W_V x'_i) (W_K x'_i)ᵀ
    F_FT(q)  = (W_V + ΔW_V) X Xᵀ (W_K + ΔW_K)ᵀ q

X' are the demonstrations, X the query's own text. Both add something to W_ZSL; that they add the same is measured, not claimed.

Source   Dai et al. 2023 (arXiv 2212.10559), as read in notes on it; the metrics after its code, and where `likeness` departs it says so
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..attention.linear_attention import linear_attention_chunked
from ..checks import check_finite_arrays, check_scalar, check_shape, check_type, common_namespace, divide
from ..model.transformer import Model
from ..systems.floats import array_namespace


def f_icl(q: Any, demonstrations: Any, X: Any, W_K: Any, W_V: Any) -> Any:
    """Attention of q (n, d) to demonstrations (N, width) and text X (T, width).   W_K (d, width), W_V (m, width)  ->  (n, m)"""
    xp = common_namespace("f_icl", q=q, demonstrations=demonstrations, X=X, W_K=W_K, W_V=W_V)
    return f_zsl(q, xp.concat([demonstrations, X], axis=-2), W_K, W_V)


def f_zsl(q: Any, X: Any, W_K: Any, W_V: Any) -> Any:
    """The same with no demonstrations: one score for each token, times its value."""
    T = check_finite_arrays("f_zsl", q=q, X=X, W_K=W_K, W_V=W_V).matrix_transpose
    for name, W in (("W_K", W_K), ("W_V", W_V)):
        check_shape("f_zsl", name, W, "rows", X.shape[-1], like="to match `X`")
    check_shape("f_zsl", "q", q, "queries", W_K.shape[-2], like="to match `W_K`")
    return (q @ T(X @ T(W_K))) @ (X @ T(W_V))


def delta_W(X: Any, W_K: Any, W_V: Any) -> Any:
    """Σ_i (W_V x_i) (W_K x_i)ᵀ, (m, d): ΔW_ICL of demonstrations, W_ZSL of the query's own text."""
    xp = check_finite_arrays("delta_W", X=X, W_K=W_K, W_V=W_V)
    k, v = X @ xp.matrix_transpose(W_K), X @ xp.matrix_transpose(W_V)
    return xp.sum(v[..., :, :, None] * k[..., :, None, :], axis=-3)


def f_ft(q: Any, X: Any, W_K: Any, W_V: Any, dW_K: Any, dW_V: Any) -> Any:
    """What finetuned keys and values make of it: (W_V + ΔW_V) X Xᵀ (W_K + ΔW_K)ᵀ q."""
    common_namespace("f_ft", W_K=W_K, dW_K=dW_K, W_V=W_V, dW_V=dW_V)
    check_shape("f_ft", "dW_K", dW_K, *W_K.shape, like="to match `W_K`", all_axes=True)
    check_shape("f_ft", "dW_V", dW_V, *W_V.shape, like="to match `W_V`", all_axes=True)
    return f_zsl(q, X, W_K + dW_K, W_V + dW_V)


def momentum_attention(o: Any, v: Any, eta: Any) -> Any:
    """MoAttn: o_t + Σ_{i<t} η^{t−i} v_i, an average of values over time, as momentum is of gradients.   o, v (..., n, m)"""
    xp = check_finite_arrays("momentum_attention", o=o, v=v)
    check_shape("momentum_attention", "v", v, *o.shape[-2:], like="to match `o`")
    check_scalar("momentum_attention", "eta", eta, o=o)
    rows, past = [o[..., :0, :]], 0 * v[..., :1, :]
    for t in range(o.shape[-2]):
        rows.append(o[..., t : t + 1, :] + past)
        past = eta * (past + v[..., t : t + 1, :])
    return xp.concat(rows, axis=-2)


# How alike are in-context learning and finetuning?


class Heads(NamedTuple):
    """Of one layer, what its attention reads and puts out: q (..., n, d), k, v and o (..., n, m), heads before tokens."""

    q: Any
    k: Any
    v: Any
    o: Any

    def scores(self, queries: slice, keys: slice) -> Any:
        """q_t·k_s of projected tokens: before RoPE, φ and any softmax."""
        return self.q[..., queries, :] @ array_namespace(self.k).matrix_transpose(self.k[..., keys, :])


def watched(model: Model, text: Any, **options: Any) -> list[Heads]:
    """Every layer's attention while the model reads a text; options as in `transformer`."""
    check_type("watched", "model", model, Model)
    found: list[Heads] = []

    def form(q: Any, k: Any, v: Any, /, **others: Any) -> Any:
        o, state = linear_attention_chunked(q, k, v, **others)
        found.append(Heads(q, k, v, o))
        return o, state

    model(text, form=form, **options)
    return found


class Likeness(NamedTuple):
    """Of one layer and its heads: SimAOU and SimAM of the last token, and Kendall's τ of its attention to the demonstrations."""

    sim_aou: Any
    sim_am: Any
    kendall: list[float]


def likeness(model: Model, tuned: Model, demonstrations: Any, text: Any) -> list[Likeness]:
    """How alike a model that is shown demonstrations and the same model finetuned on them are on a text, layer by layer.

    demonstrations : (M, width)    text : (n, width), vectors

    Ours: each head by itself, its output before W_O, scores q·k before RoPE and φ; for Kendall's τ those of the tuned model when it is
    shown the demonstrations; τ-a. In the code of Dai et al. SimAOU is of what the whole layer puts out, after W_O; for τ scores are
    summed over heads, the finetuned ones are products of the query vector with the query vectors of the training tokens, recorded
    while finetuning; and it is τ-b.
    """
    both = common_namespace("likeness", demonstrations=demonstrations, text=text).concat(
        [demonstrations, text], axis=-2
    )
    M, own, last, found = demonstrations.shape[-2], slice(demonstrations.shape[-2], None), slice(-1, None), []
    for zsl, icl, ft, shown in zip(
        *(watched(m, x) for m, x in ((model, text), (model, both), (tuned, text), (tuned, both))), strict=True
    ):
        aou = sim_aou(*(heads.o[..., last, :] for heads in (zsl, icl, ft)))[..., 0]
        am = sim_am(icl.scores(last, own), ft.scores(last, slice(None)))[..., 0]
        a, b = (heads.scores(last, slice(0, M))[..., 0, :] for heads in (icl, shown))
        flat = [array_namespace(x).reshape(x, (-1, M)).tolist() for x in (a, b)]
        found.append(Likeness(aou, am, [kendall_tau(x, y) for x, y in zip(*flat, strict=True)]))
    return found


def rec2ftp(zsl: Any, icl: Any, ft: Any) -> float:
    """Recall to finetuning's predictions: of what finetuning gets right and zero-shot does not, the share that ICL gets right too.

    zsl, icl, ft : which examples are predicted rightly, booleans
    """
    if not len(zsl) == len(icl) == len(ft):
        raise ValueError(
            f"rec2ftp: `zsl`, `icl` and `ft` must be of the same examples, got {len(zsl)}, {len(icl)} and {len(ft)}"
        )
    gained = [b for a, b, c in zip(zsl, icl, ft, strict=True) if c and not a]
    if not gained:
        raise ValueError("rec2ftp: `ft` must be right somewhere where `zsl` is wrong, else there is nothing to recall")
    return sum(map(bool, gained)) / len(gained)


def cosine(a: Any, b: Any) -> Any:
    """a·b / (|a| |b|) along the last axis.   Needs real"""
    xp = check_finite_arrays("cosine", a=a, b=b)
    check_shape("cosine", "b", b, *a.shape, like="to match `a`", all_axes=True)
    dot, lengths = xp.sum(rows(a * b), axis=-1, keepdims=True), length(rows(a)) * length(rows(b))
    return xp.reshape(divide("cosine", dot, lengths, "|a| |b|"), a.shape[:-1])


def sim_aou(h_zsl: Any, h_icl: Any, h_ft: Any) -> Any:
    """SimAOU: the cosine between the updates of the attention output, ICL − ZSL and FT − ZSL, each output first scaled to length 1."""
    zsl, icl, ft = map(unit, (h_zsl, h_icl, h_ft))
    return cosine(icl - zsl, ft - zsl)


def sim_am(scores_icl: Any, scores_ft: Any) -> Any:
    """SimAM: the cosine between attention scores, before any softmax, to the query's own text."""
    return cosine(scores_icl, scores_ft)


def unit(h: Any) -> Any:
    xp = check_finite_arrays("unit", h=h)
    return xp.reshape(divide("unit", rows(h), length(rows(h)), "|h|"), h.shape)


def rows(h: Any) -> Any:
    return h if h.ndim > 1 else h[None, :]


def length(h: Any) -> Any:
    xp = array_namespace(h)
    return xp.sqrt(xp.sum(h * h, axis=-1, keepdims=True))


def kendall_tau(a: Any, b: Any) -> float:
    """Kendall's τ between two orders of the same training tokens: (concordant − discordant) / pairs; ties count for neither (τ-a).

    >>> kendall_tau([1, 2, 3, 4], [1, 3, 2, 4])
    0.6666666666666666
    """
    n = len(a)
    if n != len(b) or n < 2:
        raise ValueError(f"kendall_tau: `a` and `b` must rank the same two or more tokens, got {n} and {len(b)}")
    if any(x != x for x in (*a, *b)):
        raise ValueError("kendall_tau: `a` and `b` must be numbers in some order, got nan")
    sign = lambda x, y: int(x > y) - int(x < y)  # noqa: E731
    agree = sum(sign(a[i], a[j]) * sign(b[i], b[j]) for i in range(n) for j in range(i))
    return 2 * agree / (n * (n - 1))
