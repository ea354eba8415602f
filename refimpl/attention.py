"""Softmax attention, with its KV cache as the state.

o_t = Σ_{s≤t} exp(c q_t·k_s) v_s / Σ_{s≤t} exp(c q_t·k_s)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from array_api_compat import device

from .errors import NotDefined
from .rope import Rope
from .shapes import check_padding, divide, finite, lead, namespace, prefix_length, shape, visible
from .systems import require, system_of


@dataclass(frozen=True, eq=False)
class KVCache:
    """All keys (turned, if there is RoPE) and values so far, which of them count, and where the next token is read."""

    k: Any
    v: Any
    keep: Any
    position: int


def form(body: Callable) -> Callable[..., tuple[Any, KVCache]]:
    """Gives the body of a form its public face, as in linear_attention."""
    who = body.__name__

    def attention(
        q: Any, k: Any, v: Any, /, *, scale: Any = None, mask: str | int = "causal",
        rope: Rope | None = None, cache: KVCache | None = None, padding: Any = None,
    ) -> tuple[Any, KVCache]:  # fmt: skip
        xp = namespace(who, q=q, k=k, v=v)
        require(system_of(q), "real", "softmax attention")
        shape(who, "q", q, None, None, like="(tokens, width)")
        n, d = q.shape[-2:]
        shape(who, "k", k, n, d, like="to match `q`")
        shape(who, "v", v, n, None, like="to match `q`")
        P, keep = prefix_length(who, mask, n), check_padding(who, padding, xp, k)
        for name, x in (("q", q), ("k", k), ("v", v)):
            finite(who, name, xp, x, keep)
        position = cache.position if cache else 0
        if rope is not None and rope.placement != "before":
            raise NotDefined(f"{who}: softmax attention has no feature map; its Rope must have placement 'before'")
        if rope is not None:
            q, k = (rope(x, range(position, position + n)) for x in (q, k))
        if keep is not None:
            k, v = (xp.where(keep, x, xp.zeros_like(x)) for x in (k, v))
        shown = xp.arange(n, device=device(q))[None, :] >= 0 if keep is None else padding[..., None, :]
        if cache is not None:
            namespace(who, q=q, cache=cache.k)
            shape(who, "cache.k", cache.k, None, d, like="to match `q`")
            shape(who, "cache.v", cache.v, cache.k.shape[-2], v.shape[-1], like="to match `cache.k` and `v`")
            axes = lead(who, k=k, cache=cache.k, v=v)
            k, v = (xp.concat([xp.broadcast_to(x, (*axes, *x.shape[-2:])) for x in pair], axis=-2) for pair in ((cache.k, k), (cache.v, v)))
            axes = lead(who, padding=shown, cache=cache.keep)
            shown = xp.concat([xp.broadcast_to(x, (*axes, *x.shape[-2:])) for x in (cache.keep, shown)], axis=-1)
        lead(who, q=q, k=k, v=v)
        c = scale if scale is not None else 1 / xp.sqrt(max(d, 1) * xp.ones((1, 1), dtype=q.dtype, device=device(q)))

        num, den = body(xp, c, q, k, v, shown, k.shape[-2] - n, P)
        if keep is not None:
            num, den = xp.where(keep, num, xp.zeros_like(num)), xp.where(keep, den, xp.ones_like(den))
        return divide(who, num, den), KVCache(k, v, shown, position + n)

    attention.__name__ = attention.__qualname__ = who
    attention.__doc__, attention.__module__ = body.__doc__, body.__module__
    return attention


@form
def softmax_attention(xp, c, q, k, v, shown, M, P):  # type: ignore[no-untyped-def]
    """Softmax attention by its definition: for each token, the sum over all that it sees.

        o_t = Σ_{s≤t} exp(c q_t·k_s) v_s / Σ_{s≤t} exp(c q_t·k_s)

    q, k : (..., n, d)    v : (..., n, m)    ->  o : (..., n, m), KVCache after the last token

    scale : c, by default 1/√d         mask : "causal", "full", or P: the first P tokens see each other
    rope : a Rope before the kernel    cache : a KVCache to start from    padding : (..., n) booleans, False for tokens that do not count
    Needs    real
    Source   Vaswani et al. 2017. Nothing is subtracted in the exponent: large scores overflow; see softmax_attention_shifted.
    Cost     O(n² (d + m))
    """
    num, den = [q[..., :0, :] @ xp.matrix_transpose(k) @ v], [xp.sum(q[..., :0, :] @ xp.matrix_transpose(k), axis=-1, keepdims=True)]
    for t in range(q.shape[-2]):
        seen = slice(0, M + max(t + 1, P))
        sim = xp.exp(c * (q[..., t : t + 1, :] @ xp.matrix_transpose(k[..., seen, :])))
        sim = xp.where(shown[..., seen], sim, xp.zeros_like(sim))
        num.append(sim @ v[..., seen, :])
        den.append(xp.sum(sim, axis=-1, keepdims=True))
    return xp.concat(num, axis=-2), xp.concat(den, axis=-2)


@form
def softmax_attention_shifted(xp, c, q, k, v, shown, M, P):  # type: ignore[no-untyped-def]
    """Softmax attention with the largest visible score subtracted in the exponent, so that nothing overflows.

        A_ts = c q_t·k_s        a_t = max_{s≤t} A_ts
        o_t = Σ_{s≤t} exp(A_ts − a_t) v_s / Σ_{s≤t} exp(A_ts − a_t)

    Arguments as in softmax_attention, which it equals (theorem shifted_eq_sum).   Needs ordered, real
    """
    seen = visible(q, k.shape[-2], M, P) & shown
    scores = c * (q @ xp.matrix_transpose(k))
    if 0 in scores.shape:
        return scores @ v, xp.sum(scores, axis=-1, keepdims=True)
    low = xp.min(scores, axis=-1, keepdims=True)
    top = xp.max(xp.where(seen, scores, low), axis=-1, keepdims=True)
    sim = xp.exp(xp.where(seen, scores - top, xp.zeros_like(scores)))
    sim = xp.where(seen, sim, xp.zeros_like(sim))
    return sim @ v, xp.sum(sim, axis=-1, keepdims=True)
