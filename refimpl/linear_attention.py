"""Linearized attention, in four forms that are one function.

    o_t = φ(q_t)ᵀ [Σ_{s≤t} φ(k_s) v_sᵀ + S] / ( φ(q_t)ᵀ [Σ_{s≤t} φ(k_s) + z] )

`linear_attention` is the definition; the quadratic, recurrent and chunked forms equal it in any field. They share one
face, made by `form`, which checks arguments and applies φ and RoPE; each body is only its formula, in these names:

    fq, fk (..., n, r)   features of the numerator: φ(q_t), φ(k_s), turned if RoPE stands after φ
    gq, gk (..., n, r)   features of the denominator, never turned after φ
    v      (..., n, m)   values          S (..., r, m), z (..., r)   the state to start from
    P      token t sees keys s < max(t+1, P): P = 0 is causal, P = n full, between them a prefix mask
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import state as states
from .feature_maps import feature_map, identity
from .rope import Rope
from .shapes import check_padding, divide, finite, lead, namespace, prefix_length, shape, visible, whole
from .state import State
from .systems import require, system_of

Attention = Callable[..., tuple[Any, State]]


def features(q: Any, k: Any, /, *, phi: Any = identity, rope: Rope | None = None, position: int = 0) -> tuple[Any, Any, Any, Any]:
    """(fq, fk, gq, gk): the features of numerator and denominator, for tokens read from `position` on."""
    phi_q, phi_k = (feature_map(f) if isinstance(f, str) else f for f in (phi if isinstance(phi, tuple) else (phi, phi)))
    at = range(position, position + q.shape[-2])
    if rope is not None and rope.placement == "before":
        q, k = rope(q, at), rope(k, at)
    gq, gk = phi_q(q), phi_k(k)
    if rope is not None and rope.placement == "after":
        return rope(gq, at), rope(gk, at), gq, gk
    return gq, gk, gq, gk


def form(body: Callable) -> Attention:
    """Gives the body of a form its public face."""
    who = body.__name__

    def attention(
        q: Any, k: Any, v: Any, /, *, phi: Any = identity, mask: str | int = "causal", normalise: bool = True,
        rope: Rope | None = None, state: State | None = None, padding: Any = None, **own: Any,
    ) -> tuple[Any, State]:  # fmt: skip
        xp = namespace(who, q=q, k=k, v=v)
        require(system_of(q), "field" if normalise else "ring", f"{'normalised ' * normalise}linear attention")
        shape(who, "q", q, None, None, like="(tokens, width)")
        n, d = q.shape[-2:]
        shape(who, "k", k, n, d, like="to match `q`")
        shape(who, "v", v, n, None, like="to match `q`")
        P, keep = prefix_length(who, mask, n), check_padding(who, padding, xp, k)
        for name, x in (("q", q), ("k", k), ("v", v)):
            finite(who, name, xp, x, keep)

        fq, fk, gq, gk = features(q, k, phi=phi, rope=rope, position=state.position if state else 0)
        shape(who, "phi_q(q)", fq, n, fk.shape[-1], like="to match phi_k(k)")
        if keep is not None:
            fk, gk, v = (xp.where(keep, x, xp.zeros_like(x)) for x in (fk, gk, v))
        start = state or states.no_text(v, fk.shape[-1], v.shape[-1])
        states.check(who, start, v, fk.shape[-1], v.shape[-1])
        if start.z is None and normalise:
            raise ValueError(f"{who}: `state` has S but no z; a normalised layer needs both (the denominator is φ(q)·z)")
        axes = lead(who, k=fk, v=v, S=start.S)
        lead(who, q=fq, state=start.S, k=fk)
        blank = states.no_text(v, *start.S.shape[-2:], lead=axes)
        S = xp.broadcast_to(start.S, blank.S.shape)
        z = blank.z if start.z is None else xp.broadcast_to(start.z, blank.z.shape)

        num, den, S, z = body(xp, fq, fk, gq, gk, v, S, z, P, **own)
        if keep is not None:  # a padded token attends to nothing of use: its output is 0
            num, den = xp.where(keep, num, xp.zeros_like(num)), xp.where(keep, den, xp.ones_like(den))
        o = divide(who, num, den) if normalise else whole(who, num)
        return o, State(S, None if start.z is None else z, start.position + n)

    attention.__name__ = attention.__qualname__ = who
    attention.__doc__, attention.__module__ = body.__doc__, body.__module__
    return attention


@form
def linear_attention(xp, fq, fk, gq, gk, v, S, z, P):  # type: ignore[no-untyped-def]
    """Linearized attention by its definition: for each token, the sum over all that it sees.

        S_t = S + Σ_{s≤t} φ(k_s) v_sᵀ        z_t = z + Σ_{s≤t} φ(k_s)
        o_t = φ(q_t) S_t / φ(q_t)·z_t

    q, k : (..., n, d)    v : (..., n, m)    ->  o : (..., n, m), State after the last token
    Leading axes (batch, heads, groups) broadcast: q (8, 4, n, d) with k (8, 1, n, d) is grouped-query attention.

    phi : φ by name or as a function, or a pair (φ_q, φ_k)    mask : "causal", "full", or P: the first P tokens see each other
    normalise : divide by φ(q_t)·z_t                          rope : a Rope, placed after φ or before the kernel
    state : a State to start from                             padding : (..., n) booleans, False for tokens that do not count
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


@form
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


@form
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


@form
def linear_attention_chunked(xp, fq, fk, gq, gk, v, S, z, P, *, chunk=64):  # type: ignore[no-untyped-def]
    """Linearized attention by chunks: quadratic within a chunk, recurrent between chunks.

        o = (A v + φ(q) S) / (A 1 + φ(q) z) in each chunk;  then  S ← S + φ(k)ᵀ v,  z ← z + Σ φ(k)

    The first P tokens of a prefix mask are one chunk, without a mask.
    Arguments as in linear_attention, which it equals (theorem chunked_eq_sum), and chunk ≥ 1.   Cost O(n (r m + chunk (r + m)))
    """
    if not isinstance(chunk, int) or chunk < 1:
        raise ValueError(f"linear_attention_chunked: `chunk` must be an integer ≥ 1, got {chunk!r}")
    num, den = [fq[..., :0, :] @ S], [gq[..., :0, :] @ z[..., None]]
    starts = [*([0] if P else []), *range(P, fq.shape[-2], chunk)]
    for a, b in zip(starts, [*starts[1:], fq.shape[-2]], strict=True):
        Q, K, G, H, V = fq[..., a:b, :], fk[..., a:b, :], gq[..., a:b, :], gk[..., a:b, :], v[..., a:b, :]
        scores, masses = _scores(xp, Q, K, P - a), _scores(xp, G, H, P - a)
        num.append(scores @ V + Q @ S)
        den.append(xp.sum(masses, axis=-1, keepdims=True) + G @ z[..., None])
        S, z = S + xp.matrix_transpose(K) @ V, z + xp.sum(H, axis=-2)
    return xp.concat(num, axis=-2), xp.concat(den, axis=-2), S, z


def absorb(state: State, k: Any, v: Any, /, *, phi: Any = identity, rope: Rope | None = None, padding: Any = None) -> State:
    """The state after reading more text, with no query: what linear_attention returns beside its output.

        S' = S + Σ_s φ(k_s) v_sᵀ      z' = z + Σ_s φ(k_s)      position' = position + n

    phi : φ, or the pair (φ_q, φ_k), of which φ_k is used.   Needs ring
    """
    xp = namespace("absorb", k=k, v=v)
    shape("absorb", "k", k, None, None, like="(tokens, width)")
    shape("absorb", "v", v, k.shape[-2], None, like="to match `k`")
    keep = check_padding("absorb", padding, xp, k)
    phi_k = phi[1] if isinstance(phi, tuple) else phi
    _, fk, _, gk = features(k, k, phi=phi_k, rope=rope, position=state.position)
    if keep is not None:
        fk, gk, v = (xp.where(keep, x, xp.zeros_like(x)) for x in (fk, gk, v))
    states.check("absorb", state, v, fk.shape[-1], v.shape[-1])
    z = None if state.z is None else state.z + xp.sum(gk, axis=-2)
    return State(state.S + xp.matrix_transpose(fk) @ v, z, state.position + k.shape[-2])
