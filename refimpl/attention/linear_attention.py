"""Linearized attention, in four forms that are one function.

    o_t = φ(q_t)ᵀ [Σ_{s≤t} φ(k_s) v_sᵀ + S] / ( φ(q_t)ᵀ [Σ_{s≤t} φ(k_s) + z] )

`linear_attention` is the definition; the quadratic, recurrent and chunked forms equal it in any field. Each is
only its formula, in these names; `forms.linear_form` and, for those that read the text in pieces, `forms.streaming_form` put
checks, φ and RoPE around it:

    fq, fk (..., n, r)   features of the numerator: φ(q_t), φ(k_s), turned if RoPE stands after φ
    gq, gk (..., n, r)   features of the denominator, never turned after φ
    v      (..., n, m)   values          S (..., r, m), z (..., r)   the state to start from
    P      token t sees keys s < max(t+1, P): P = 0 is causal, P = n full, between them a prefix mask
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import zip_longest
from math import isqrt, prod
from typing import Any

from ..checks import integer, visible
from ..systems.floats import itemsize, keep_where, sums
from .forms import linear_form, streaming_form


@linear_form
def linear_attention(xp, fq, fk, gq, gk, v, S, z, P):  # type: ignore[no-untyped-def]
    """Linearized attention by its definition: for each token, the sum over all that it sees.

        S_t = S + Σ_{s≤t} φ(k_s) v_sᵀ        z_t = z + Σ_{s≤t} φ(k_s)
        o_t = φ(q_t) S_t / φ(q_t)·z_t

    q, k : (..., n, d)    v : (..., n, m)    ->  o : (..., n, m), State after the last token
    Leading axes (batch, heads, groups) broadcast: q (8, 4, n, d) with k (8, 1, n, d) is grouped-query attention.

    phi : φ by name, or as a function of each token by itself, or a pair (φ_q, φ_k)
    mask : "causal", "full", or P: the first P tokens see each other
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


@functools.partial(streaming_form, known=None)
def linear_attention_quadratic(xp, text, S, z, P):  # type: ignore[no-untyped-def]
    """Linearized attention by its masked matrix of scores.

        A_ts = [s ≤ t] φ(q_t)·φ(k_s)
        o = (A v + φ(q) S) / (A 1 + φ(q) z)

    Rows of A are made ROWS at a time, up to the last key that one of them sees.
    Arguments as in linear_attention, which it equals (theorem quadratic_eq_sum).   Cost O(n² (r + m)), memory O(ROWS n)
    """
    fq, fk, gq, gk, v = text[:]
    after = S + xp.matrix_transpose(fk) @ v, z + sums(gk, axis=-2)[..., 0, :]
    for a, b in _spans(0, len(text), ROWS):
        Q, G, last = fq[..., a:b, :], gq[..., a:b, :], max(b, P)
        seen = visible(Q, last, a, P - a)
        scores = keep_where(Q @ xp.matrix_transpose(fk[..., :last, :]), seen)
        masses = scores if gq is fq and gk is fk else keep_where(G @ xp.matrix_transpose(gk[..., :last, :]), seen)
        yield scores @ v[..., :last, :] + Q @ S, sums(masses, axis=-1) + G @ z[..., None], *after


ROWS = 256  # so many that BLAS is busy, so few that a thousand keys and a dozen heads stay below 32 MB


def _spans(start: int, end: int, length: int) -> Iterator[tuple[int, int]]:
    return ((a, min(a + length, end)) for a in range(start, end, length))


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


@streaming_form
def linear_attention_chunked(xp, text, S, z, P, *, chunk=None):  # type: ignore[no-untyped-def]
    """Linearized attention by chunks: quadratic within a chunk, recurrent between chunks.

        o = (A v + φ(q) S) / (A 1 + φ(q) z) in each chunk;  then  S ← S + φ(k)ᵀ v,  z ← z + Σ φ(k)

    Under a prefix mask the first P tokens are all written, chunk by chunk, before the first is read.
    Features too are made chunk by chunk: with NumPy, there is never more than a chunk and the state beside inputs and output.
    Arguments as in linear_attention, which it equals (theorem chunked_eq_sum); chunk ≥ 1, by default chosen by shape and dtype.
    Cost     O(n (r m + chunk (r + m))), memory O(chunk (chunk + r) + r m) for each head
    """
    chunk = chunk_length(text.q, S) if chunk is None else integer("linear_attention_chunked", "chunk", chunk, least=1)

    def written(K, H, V):  # type: ignore[no-untyped-def]
        return S + xp.matrix_transpose(K) @ V, z + sums(H, axis=-2)[..., 0, :]

    for a, b in _spans(0, P, chunk):
        _, K, _, H, V = text[a:b]
        S, z = written(K, H, V)
    for a, b in _spans(0, P, chunk):
        Q, _, G, _, _ = text[a:b]
        yield Q @ S, G @ z[..., None], S, z
    seen = functools.cache(
        lambda n: visible(text.q[..., :n, :], n, 0, 0)
    )  # of two lengths: the last chunk may be shorter
    for a, b in _spans(P, len(text), chunk):
        Q, K, G, H, V = text[a:b]
        scores = keep_where(Q @ xp.matrix_transpose(K), seen(b - a))
        masses = scores if G is Q and H is K else keep_where(G @ xp.matrix_transpose(H), seen(b - a))
        num, den = scores @ V + Q @ S, sums(masses, axis=-1) + G @ z[..., None]
        S, z = written(K, H, V)
        yield num, den, S, z


def chunk_length(q: Any, S: Any) -> int:
    """The most tokens, in sixteens from 32 to 128, whose scores take up no more than CACHE bytes for all heads together.

    Longer chunks are fewer calls, but more arithmetic, and slow once they leave the cache.
    """
    heads = prod(max(1, i, j) for i, j in zip_longest(q.shape[-3::-1], S.shape[-3::-1], fillvalue=1))
    return min(max(isqrt(CACHE // (heads * itemsize(q))) // 16 * 16, 32), 128)


CACHE = 2**18
