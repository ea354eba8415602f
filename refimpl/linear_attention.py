"""Linearized attention, in four forms that are one function.

    o_t = φ(q_t)ᵀ [Σ_{s≤t} φ(k_s) v_sᵀ + S] / ( φ(q_t)ᵀ [Σ_{s≤t} φ(k_s) + z] )

`linear_attention` is the definition; the quadratic, recurrent and chunked forms equal it in any field. Each is
only its formula, in these names; `forms.linear_form` puts checks, φ and RoPE around it:

    fq, fk (..., n, r)   features of the numerator: φ(q_t), φ(k_s), turned if RoPE stands after φ
    gq, gk (..., n, r)   features of the denominator, never turned after φ
    v      (..., n, m)   values          S (..., r, m), z (..., r)   the state to start from
    P      token t sees keys s < max(t+1, P): P = 0 is causal, P = n full, between them a prefix mask
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from .forms import linear_form
from .shapes import integer, visible


@linear_form
def linear_attention(xp, fq, fk, gq, gk, v, S, z, P):  # type: ignore[no-untyped-def]
    """Linearized attention by its definition: for each token, the sum over all that it sees.

        S_t = S + Σ_{s≤t} φ(k_s) v_sᵀ        z_t = z + Σ_{s≤t} φ(k_s)
        o_t = φ(q_t) S_t / φ(q_t)·z_t

    q, k : (..., n, d)    v : (..., n, m)    ->  o : (..., n, m), State after the last token
    Leading axes (batch, heads, groups) broadcast: q (8, 4, n, d) with k (8, 1, n, d) is grouped-query attention.

    phi : φ by name or as a function, or a pair (φ_q, φ_k)    mask : "causal", "full", or P: the first P tokens see each other
    normalise : divide by φ(q_t)·z_t                          rope : a Rope, placed after φ or before the kernel
    state : a State to start from                             padding : (..., n) booleans, False for tokens that do not count
    Tokens are read at state.position, state.position + 1, ..., padded ones included; a padded token's output is 0.
    Needs    ring; field where normalised
    Source   Katharopoulos et al. 2020. Differs: no ε.
    Cost     O(n² r m)
    """
    num, den = [fq[..., :0, :] @ S], [gq[..., :0, :] @ z[..., None]]
    for t in range(fq.shape[-2]):
        seen = slice(0, max(t + 1, P))
        S_t = S + xp.sum(fk[..., seen, :, None] * v[..., seen, None, :], axis=-3)
        z_t = z + xp.sum(gk[..., seen, :], axis=-2)
        num.append(fq[..., t : t + 1, :] @ S_t)
        den.append(gq[..., t : t + 1, :] @ z_t[..., None])
    S, z = S + xp.sum(fk[..., :, None] * v[..., None, :], axis=-3), z + xp.sum(gk, axis=-2)
    return xp.concat(num, axis=-2), xp.concat(den, axis=-2), S, z


@linear_form
def linear_attention_quadratic(xp, fq, fk, gq, gk, v, S, z, P):  # type: ignore[no-untyped-def]
    """Linearized attention by its masked matrix of scores.

        A_ts = [s ≤ t] φ(q_t)·φ(k_s)
        o = (A v + φ(q) S) / (A 1 + φ(q) z)

    Arguments as in linear_attention, which it equals (theorem quadratic_eq_sum).   Cost O(n² (r + m))
    """
    scores, masses = _scores(xp, fq, fk, P), _scores(xp, gq, gk, P)
    num = scores @ v + fq @ S
    den = xp.sum(masses, axis=-1, keepdims=True) + gq @ z[..., None]
    return num, den, S + xp.matrix_transpose(fk) @ v, z + xp.sum(gk, axis=-2)


def _scores(xp: Any, fq: Any, fk: Any, P: int) -> Any:
    """φ(q_t)·φ(k_s) where token t sees key s, else 0."""
    scores = fq @ xp.matrix_transpose(fk)
    return xp.where(visible(fq, fk.shape[-2], 0, P), scores, xp.zeros_like(scores))


@linear_form
def linear_attention_recurrent(xp, fq, fk, gq, gk, v, S, z, P):  # type: ignore[no-untyped-def]
    """Linearized attention as a recurrence, one token at a time.

        S_t = S_{t-1} + φ(k_t) v_tᵀ        z_t = z_{t-1} + φ(k_t)
        o_t = φ(q_t) S_t / φ(q_t)·z_t

    Under a prefix mask the first P tokens are all written before the first is read.
    Arguments as in linear_attention, which it equals (theorem recurrent_eq_sum).   Cost O(n r m)
    """
    num, den = [fq[..., :0, :] @ S], [gq[..., :0, :] @ z[..., None]]
    written = 0
    for t in range(fq.shape[-2]):
        while written < max(t + 1, P):
            S = S + fk[..., written, :, None] * v[..., written, None, :]
            z = z + gk[..., written, :]
            written += 1
        num.append(fq[..., t : t + 1, :] @ S)
        den.append(gq[..., t : t + 1, :] @ z[..., None])
    return xp.concat(num, axis=-2), xp.concat(den, axis=-2), S, z


@linear_form
def linear_attention_chunked(xp, fq, fk, gq, gk, v, S, z, P, *, chunk=64):  # type: ignore[no-untyped-def]
    """Linearized attention by chunks: quadratic within a chunk, recurrent between chunks.

        o = (A v + φ(q) S) / (A 1 + φ(q) z) in each chunk;  then  S ← S + φ(k)ᵀ v,  z ← z + Σ φ(k)

    The first P tokens of a prefix mask are one chunk, without a mask.
    Arguments as in linear_attention, which it equals (theorem chunked_eq_sum), and chunk ≥ 1.   Cost O(n (r m + chunk (r + m)))
    """
    integer("linear_attention_chunked", "chunk", chunk, least=1)
    num, den = [], []
    for a, b in pairwise([0, *range(P, fq.shape[-2], chunk), fq.shape[-2]]):
        Q, K, G, H, V = fq[..., a:b, :], fk[..., a:b, :], gq[..., a:b, :], gk[..., a:b, :], v[..., a:b, :]
        scores, masses = _scores(xp, Q, K, P - a), _scores(xp, G, H, P - a)
        num.append(scores @ V + Q @ S)
        den.append(xp.sum(masses, axis=-1, keepdims=True) + G @ z[..., None])
        S, z = S + xp.matrix_transpose(K) @ V, z + xp.sum(H, axis=-2)
    return xp.concat(num, axis=-2), xp.concat(den, axis=-2), S, z
