"""Softmax attention, with its KV cache as the state, and memories in place of tokens (ICLAA).

o_t = ( Σ_{s≤t} exp(c q_t·k_s) v_s + φ(√c q_t)ᵀ b_KV ) / ( Σ_{s≤t} exp(c q_t·k_s) + φ(√c q_t)ᵀ b_D )
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple, Self

from ..arrays import Array, Mask
from ..checks import (
    check_finite,
    check_integer,
    check_mask,
    check_scalar,
    check_sequence,
    check_shape,
    check_type,
    common_namespace,
    divide,
    leading_axes,
    visible_keys,
)
from ..errors import NotDefined, brief, choose
from ..systems.floats import CUT, append_rows, array_namespace, device, itemsize, keep_where, quiet, require_of
from .feature_maps import Kernel
from .linear_attention import check_arguments, common_heads, padded_zero_over_one, zero_padded
from .memory import ARRAYS, Memory, Points, check_memory, read_memories
from .past import Past
from .random_features import KINDS, RandomFeatures
from .rope import Rope

TILE = 2**22  # bytes


@dataclass(frozen=True, eq=False)
class KVCache(Past):
    """All keys (rotated, under RoPE) and values so far, and the position of the next token.

    k (..., M, d)    v (..., M, m)    keep : (..., 1, M) booleans, False: does not count
    memories : each stands for earlier tokens; see memory.py
    """

    k: Array
    v: Array
    keep: Any
    position: int
    memories: tuple[Memory, ...] = ()

    def __post_init__(self) -> None:
        check_integer("KVCache", "position", self.position)
        check_sequence("KVCache", "memories", self.memories)
        for memory in self.memories:
            check_type("KVCache", "memories", memory, Memory)

    @property
    def nbytes(self) -> int:
        own = sum(prod(x.shape) * itemsize(x) for x in (self.k, self.v))
        return own + sum(memory.nbytes for memory in self.memories)

    def map_arrays(self, f: Callable[[Array, int], Array]) -> KVCache:
        """Apply f to every array but `keep`, which broadcasts."""
        memories = tuple(memory.map_arrays(f) for memory in self.memories)
        return replace(self, k=f(self.k, 2), v=f(self.v, 2), memories=memories)

    def shifted(self, by: int, kernel: Kernel) -> KVCache:
        """k ↦ R_by k. The maps of the memories are rotated likewise."""
        rope = kernel.rope
        k = self.k if rope is None or not by else rope(self.k, [by] * self.k.shape[-2])
        memories = tuple(memory.shifted(by, rope) for memory in self.memories)
        return replace(self, k=k, position=self.position + by, memories=memories)

    def weighed(self, old: KVCache | None, strength: Any) -> KVCache:
        advice = "pass `by`, to make a memory that can count `strength` times"
        raise NotDefined(f"convert: tokens of a KV cache count once; {advice}")

    def check_heads(self, who: str, name: str, groups: int, d: int, m: int, normalise: bool, like: Array) -> None:
        """Refuse a cache that does not fit this number of groups, d, m, or the array `like`."""
        common_namespace(who, weights=like, **{f"{name}.k": self.k, f"{name}.v": self.v})
        check_shape(who, f"{name}.k", self.k, groups, "tokens", d)
        check_shape(who, f"{name}.v", self.v, groups, self.k.shape[-2], m, like="to match its k")
        for part, x in (("k", self.k), ("v", self.v)):
            check_finite(who, f"{name}.{part}", x)
        for memory in self.memories:
            check_memory(who, memory, d, m, groups, weights=like)

    def arrays(self) -> dict[str, Array]:
        memories = enumerate(self.memories)
        stored = {numbered(name, j): x for j, memory in memories for name, x in memory.arrays().items()}
        return {"cache.k": self.k, "cache.v": self.v} | stored

    def metadata(self) -> list[dict[str, Any]]:
        return [memory.metadata() for memory in self.memories]

    @classmethod
    def owns(cls, name: str) -> bool:
        pattern = r"cache\.(k|v)|b_(KV|D|scale|mix|points|omega)(\.[1-9]\d{0,3})?"
        return re.fullmatch(pattern, name) is not None

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], metadata: Any, position: int, kernel: Kernel, width: int) -> Self:
        for name in ("cache.k", "cache.v"):
            if name not in arrays:
                raise ValueError(f"`{name}` must be in the file for each layer, since other biases are")
        if not isinstance(metadata, list) or not all(isinstance(one, dict) for one in metadata):
            raise ValueError(f"`maps` must be a list of objects for each layer, got {brief(metadata)}")
        k, v, rest, memories = arrays["cache.k"], arrays["cache.v"], dict(arrays), []
        check_shape("metadata", "cache.k", k, "tokens", "width")
        for j, one in enumerate(metadata):
            own = {name: rest.pop(numbered(file_name, j), None) for name, (_, file_name) in ARRAYS.items()}
            S = own.pop("S")
            if S is None:
                raise ValueError(f"`{numbered('b_KV', j)}` must be in the file for each map, got none for {brief(one)}")
            check_shape("metadata", "b_KV", S, "features", "values")
            points, omega = (rest.pop(numbered(name, j), None) for name in ("b_points", "b_omega"))
            name = one.get("map")
            choose("metadata", "map", name, ("points", *KINDS))
            if (name == "points") != (points is not None):
                raise ValueError(f"`b_points` must be in the file exactly for a map 'points', got the map {name!r}")
            phi = RandomFeatures.from_metadata(one, omega, S, kernel, width) if points is None else Points(points)
            memories.append(Memory(phi, S, **own, about=str(one.get("about", ""))[:200]))
        unknown = rest.keys() - {"cache.k", "cache.v"}
        if unknown:
            raise ValueError(f"`{min(unknown)}` must have a map in the metadata `maps`, got none")
        return cls(k, v, token_indices(k)[None, :] >= 0, position, tuple(memories))


def numbered(name: str, j: int) -> str:
    """The name that an array of memory j has in a file. Names of the first have no number."""
    return f"{name}.{j}" if j else name


def token_indices(k: Array) -> Any:
    """0 … M−1, on the device of k."""
    return array_namespace(k).arange(k.shape[-2], device=device(k))


class Scores(NamedTuple):
    """The arguments of a formula; the M tokens of the cache stand first in k, v and shown.

    memory : (num, den, top) of all memories; both sums count exp(top) times. None: no memories
    """

    c: Any
    q: Array
    k: Array
    v: Array
    shown: Any
    M: int
    P: int
    memory: tuple[Array, Array, Array] | None


Formula = Callable[[Scores], tuple[Array, Array]]


@quiet()
def evaluate(
    formula: Formula,
    who: str,
    q: Array,
    k: Array,
    v: Array,
    scale: Any,
    mask: Mask,
    rope: Rope | None,
    cache: KVCache | None,
    padding: Any,
) -> tuple[Array, KVCache]:
    """Check the arguments, put the cache before the text, sum by the formula, and divide."""
    P, keep = check_arguments(who, q, k, v, mask, padding)
    require_of(q, "real", "softmax attention")
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_finite(who, name, x, keep)
    xp, (n, d) = array_namespace(q), q.shape[-2:]
    shown = token_indices(q)[None, :] >= 0 if padding is None else padding[..., None, :]
    start = KVCache(k[..., :0, :], v[..., :0, :], shown[..., :0], 0) if cache is None else cache
    check_cache(who, start, q, v)
    if rope is not None:
        check_type(who, "rope", rope, Rope)
        if rope.placement != "before":
            needed = "placement 'before' (there is no feature map)"
            raise NotDefined(f"{who}: `rope` must have {needed}, got {rope.placement!r}")
        at = range(start.position, start.position + n)
        q, k = rope(q, at), rope(k, at)
    k, v = zero_padded(keep, k), zero_padded(keep, v)
    axes = leading_axes(who, k=k, cache=start.k, v=v)
    leading_axes(who, q=q, k=k, v=v, cache=start.k)
    k, v = append_rows(start.k, k, axes), append_rows(start.v, v, axes)
    shown = concatenate(leading_axes(who, padding=shown, cache=start.keep), start.keep, shown, axis=-1)
    one = xp.ones((1, 1), dtype=q.dtype, device=device(q))
    c = 1 / xp.sqrt(max(d, 1) * one) if scale is None else check_scalar(who, "scale", scale, q=q)
    memory = read_memories(start.memories, q * xp.sqrt(c * one)) if start.memories else None
    num, den = formula(Scores(c, q, k, v, shown, k.shape[-2] - n, P, memory))
    if keep is not None:
        num, den = padded_zero_over_one(keep, num, den)
    after = KVCache(k, v, shown, start.position + n, start.memories)
    return divide(who, num, den, "Σ exp(c q·k)"), after


def check_cache(who: str, cache: KVCache, q: Array, v: Array) -> None:
    check_type(who, "cache", cache, KVCache)
    common_namespace(who, **{"q": q, "cache.k": cache.k, "cache.v": cache.v})
    check_shape(who, "cache.k", cache.k, "tokens", q.shape[-1], like="to match `q`")
    check_shape(who, "cache.v", cache.v, cache.k.shape[-2], v.shape[-1], like="to match `cache.k` and `v`")
    check_mask(who, "cache.keep", cache.keep, "cache.k", cache.k)
    check_shape(who, "cache.keep", cache.keep, 1, cache.k.shape[-2], like="to match `cache.k`")
    for name, x in (("cache.k", cache.k), ("cache.v", cache.v)):
        check_finite(who, name, x)
    for memory in cache.memories:
        check_memory(who, memory, q.shape[-1], v.shape[-1], q=q, v=v)


def concatenate(lead: tuple[int, ...], *pieces: Array, axis: int) -> Array:
    """The pieces side by side, broadcast to the same leading axes."""
    xp = array_namespace(pieces[0])
    return xp.concat([xp.broadcast_to(x, (*lead, *x.shape[-2:])) for x in pieces], axis=axis)


def sum_over_keys(s: Scores) -> tuple[Array, Array]:
    xp, q, k, v = array_namespace(s.q), s.q, s.k, s.v
    nums = [q[..., :0, :] @ xp.matrix_transpose(k) @ v]
    dens = [xp.sum(q[..., :0, :] @ xp.matrix_transpose(k), axis=-1, keepdims=True)]
    for t in range(q.shape[-2]):
        seen = slice(0, s.M + max(t + 1, s.P))
        sim = xp.exp(s.c * (q[..., t : t + 1, :] @ xp.matrix_transpose(k[..., seen, :])))
        sim = xp.where(s.shown[..., seen], sim, xp.zeros_like(sim))
        nums.append(sim @ v[..., seen, :])
        dens.append(xp.sum(sim, axis=-1, keepdims=True))
    num, den = xp.concat(nums, axis=-2), xp.concat(dens, axis=-2)
    if s.memory is None:
        return num, den
    b_KV, b_D, top = s.memory
    return num + xp.exp(top) * b_KV, den + xp.exp(top) * b_D


def softmax_attention(
    q: Array,
    k: Array,
    v: Array,
    /,
    *,
    scale: Any = None,
    mask: Mask = "causal",
    rope: Rope | None = None,
    cache: KVCache | None = None,
    padding: Any = None,
) -> tuple[Array, KVCache]:
    """Softmax attention by its definition: for each token, the sum over all that it sees.

        o_t = ( Σ_{s≤t} exp(c q_t·k_s) v_s + φ(√c q_t)ᵀ b_KV )
              / ( Σ_{s≤t} exp(c q_t·k_s) + φ(√c q_t)ᵀ b_D )

    q, k : (..., n, d)    v : (..., n, m)    ->  o : (..., n, m), KVCache after the last token

    scale : c, by default 1/√d          mask : "causal", "full", or P: a prefix of P tokens
    rope : a Rope before the kernel     cache : a KVCache to start from, with its memories
    padding : (..., n) booleans, False for tokens that do not count
    Needs    real
    Source   Vaswani et al. 2017. Nothing is subtracted in the exponent: large scores overflow; see
             softmax_attention_shifted.
    Cost     O(n² (d + m))
    """
    return evaluate(sum_over_keys, "softmax_attention", q, k, v, scale, mask, rope, cache, padding)


def shifted_scores(s: Scores) -> tuple[Array, Array]:
    xp, n = array_namespace(s.q), s.q.shape[-2]
    bytes_of_row = common_heads(s.q, s.k, s.shown, *(s.memory or ())) * s.k.shape[-2] * itemsize(s.q)
    rows = max(TILE // max(bytes_of_row, 1) // CUT, 1) * CUT
    if n <= rows:
        return shifted_rows(s, 0, n)
    edges = [*range(0, n - 1, rows), n]  # no row stands alone
    nums, dens = zip(*(shifted_rows(s, a, b) for a, b in pairwise(edges)), strict=True)
    return xp.concat(nums, axis=-2), xp.concat(dens, axis=-2)


def shifted_rows(s: Scores, a: int, b: int) -> tuple[Array, Array]:
    """The sums of the tokens a ≤ t < b of the text, over all keys."""
    xp, q, k, v = array_namespace(s.q), s.q[..., a:b, :], s.k, s.v
    seen = visible_keys(q, k.shape[-2], s.M + a, s.P - a) & s.shown
    scores = s.c * (q @ xp.matrix_transpose(k))
    if 0 in scores.shape:
        return scores @ v, xp.sum(scores, axis=-1, keepdims=True)
    # For a key that t does not see, take the score of its own key, which it does see.
    own = s.c * xp.sum(q * k[..., s.M + a : s.M + b, :], axis=-1, keepdims=True)
    top = xp.max(xp.where(seen, scores, own), axis=-1, keepdims=True)
    memory = None if s.memory is None else [x[..., a:b, :] for x in s.memory]
    top = top if memory is None else xp.maximum(top, memory[2])
    sim = keep_where(xp.exp(xp.where(seen, scores - top, xp.zeros_like(scores))), seen)
    num, den = sim @ v, xp.sum(sim, axis=-1, keepdims=True)
    if memory is None:
        return num, den
    b_KV, b_D, exponent = memory
    return num + xp.exp(exponent - top) * b_KV, den + xp.exp(exponent - top) * b_D


def softmax_attention_shifted(
    q: Array,
    k: Array,
    v: Array,
    /,
    *,
    scale: Any = None,
    mask: Mask = "causal",
    rope: Rope | None = None,
    cache: KVCache | None = None,
    padding: Any = None,
) -> tuple[Array, KVCache]:
    """Softmax attention with the largest visible score subtracted in the exponent: no overflow.

        A_ts = c q_t·k_s        a_t = the largest A_ts, s ≤ t, or exponent of a memory
        o_t = ( Σ_{s≤t} exp(A_ts − a_t) v_s + exp(−a_t) φᵀ b_KV )
              / ( Σ_{s≤t} exp(A_ts − a_t) + exp(−a_t) φᵀ b_D )

    A is made some rows at a time, as many as have TILE bytes of scores (but CUT or more).
    Needs    ordered, real
    Equals   softmax_attention, with the same arguments (theorem softmax_shifted_eq_sum)
    Cost     O(n² (d + m)), memory O(n)
    """
    return evaluate(shifted_scores, "softmax_attention_shifted", q, k, v, scale, mask, rope, cache, padding)
