"""Softmax attention, with its KV cache as the state, and memories in place of tokens that are no longer in it (ICLAA).

o_t = ( Σ_{s≤t} exp(c q_t·k_s) v_s + φ(√c q_t)ᵀ b_KV ) / ( Σ_{s≤t} exp(c q_t·k_s) + φ(√c q_t)ᵀ b_D )
"""

from __future__ import annotations

from ..checks import visible
from .forms import softmax_form


@softmax_form
def softmax_attention(xp, c, q, k, v, shown, M, P, past):  # type: ignore[no-untyped-def]
    """Softmax attention by its definition: for each token, the sum over all that it sees, and what memories say of the rest.

        o_t = ( Σ_{s≤t} exp(c q_t·k_s) v_s + φ(√c q_t)ᵀ b_KV ) / ( Σ_{s≤t} exp(c q_t·k_s) + φ(√c q_t)ᵀ b_D )

    q, k : (..., n, d)    v : (..., n, m)    ->  o : (..., n, m), KVCache after the last token

    scale : c, by default 1/√d         mask : "causal", "full", or P: the first P tokens see each other
    rope : a Rope before the kernel    cache : a KVCache to start from    padding : (..., n) booleans, False for tokens that do not count
    Needs    real
    Source   Vaswani et al. 2017. Nothing is subtracted in the exponent: large scores overflow; see softmax_attention_shifted.
    Cost     O(n² (d + m))
    """
    num, den = (
        [q[..., :0, :] @ xp.matrix_transpose(k) @ v],
        [xp.sum(q[..., :0, :] @ xp.matrix_transpose(k), axis=-1, keepdims=True)],
    )
    for t in range(q.shape[-2]):
        seen = slice(0, M + max(t + 1, P))
        sim = xp.exp(c * (q[..., t : t + 1, :] @ xp.matrix_transpose(k[..., seen, :])))
        sim = xp.where(shown[..., seen], sim, xp.zeros_like(sim))
        num.append(sim @ v[..., seen, :])
        den.append(xp.sum(sim, axis=-1, keepdims=True))
    num, den = xp.concat(num, axis=-2), xp.concat(den, axis=-2)
    return (num, den) if past is None else (num + xp.exp(past[2]) * past[0], den + xp.exp(past[2]) * past[1])


@softmax_form
def softmax_attention_shifted(xp, c, q, k, v, shown, M, P, past):  # type: ignore[no-untyped-def]
    """Softmax attention with the largest visible score subtracted in the exponent, so that nothing overflows.

        A_ts = c q_t·k_s        a_t = max_{s≤t} A_ts, and the largest exponent in which memories are read
        o_t = ( Σ_{s≤t} exp(A_ts − a_t) v_s + exp(−a_t) φᵀ b_KV ) / ( Σ_{s≤t} exp(A_ts − a_t) + exp(−a_t) φᵀ b_D )

    Arguments as in softmax_attention, which it equals (theorem softmax_shifted_eq_sum).   Needs ordered, real
    """
    seen = visible(q, k.shape[-2], M, P) & shown
    scores = c * (q @ xp.matrix_transpose(k))
    own = c * xp.sum(
        q * k[..., M:, :], axis=-1, keepdims=True
    )  # stands in for what t does not see: it always sees itself
    if 0 in scores.shape:
        return scores @ v, xp.sum(scores, axis=-1, keepdims=True)
    top = xp.max(xp.where(seen, scores, own), axis=-1, keepdims=True)
    top = top if past is None else xp.maximum(top, past[2])
    sim = xp.exp(xp.where(seen, scores - top, xp.zeros_like(scores)))
    sim = xp.where(seen, sim, xp.zeros_like(sim))
    num, den = sim @ v, xp.sum(sim, axis=-1, keepdims=True)
    return (
        (num, den) if past is None else (num + xp.exp(past[2] - top) * past[0], den + xp.exp(past[2] - top) * past[1])
    )
