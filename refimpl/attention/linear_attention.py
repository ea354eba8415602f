"""Linearized attention: its definition, its state, and three faster forms of the same function.

    o_t = φ(q_t)ᵀ [Σ_{s≤t} φ(k_s) v_sᵀ + S] / ( φ(q_t)ᵀ [Σ_{s≤t} φ(k_s) + z] )

`linear_attention` is the definition; the quadratic, recurrent and chunked forms equal it in any
field. Each public function calls `evaluate` with its formula, which stands above it. A formula
yields (num, den, S, z) for consecutive pieces of the text. It uses these names:

    fq, fk (..., n, r)   features of the numerator: φ(q_t), φ(k_s), rotated under RoPE after φ
    gq, gk (..., n, r)   features of the denominator, not rotated by RoPE after φ
    v      (..., n, m)   values          S (..., r, m), z (..., r)   the state so far
    P      token t sees keys s < max(t+1, P): P = 0 is causal, P = n full, between them a prefix
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import zip_longest
from math import isqrt, prod
from typing import Any, Self

from ..arrays import Array, Mask
from ..checks import (
    check_finite,
    check_integer,
    check_kinds,
    check_padding,
    check_shape,
    check_type,
    divide,
    leading_axes,
    prefix_length,
    require_finite,
    visible_keys,
)
from ..errors import NotDefined, NotFinite, Underflow, ZeroDenominator
from ..systems.floats import Pieces, array_namespace, itemsize, keep_where, quiet, require_of, sums
from .feature_maps import FeatureMap, Kernel, check_kernel, identity
from .past import Past
from .underflow import Judge, any_below, check_columns, smallest_normal

IDENTITY, UNNORMALISED = Kernel(), Kernel(normalise=False)  # φ(x) = x, no RoPE
ROWS = 256  # enough to keep BLAS busy, yet 1000 keys and 12 heads stay below 32 MB
CACHE = 2**18  # bytes
LONGEST_CHUNK = 128


@dataclass(frozen=True, eq=False)
class State(Past):
    """The past as linearized attention needs it; also the biases that stand for a prompt.

        S = b_KV = Σ φ(k_s) v_sᵀ  (..., r, m)      z = b_D = Σ φ(k_s)  (..., r)

    position : where the next token is read. Under RoPE the same tokens, seen from another position,
    have another S.      z : may be None where attention is not normalised
    """

    S: Array
    z: Array | None
    position: int = 0

    def __post_init__(self) -> None:
        if type(self.position) is not int:
            check_integer("State", "position", self.position)

    @property
    def b_KV(self) -> Array:
        return self.S

    @property
    def b_D(self) -> Array | None:
        return self.z

    def map_arrays(self, f: Callable[[Array, int], Array]) -> State:
        return replace(self, S=f(self.S, 2), z=None if self.z is None else f(self.z, 1))

    def shifted(self, by: int, kernel: Kernel, read: bool = True, who: str = "shift") -> State:
        """S ↦ R_by S, z ↦ z; with RoPE before the kernel, where φ must be the identity, z ↦ R_by z.

        read : whether φ_q will read the shifted state; then φ_q must be the identity too
        """
        S, z, rope = self.S, self.z, kernel.rope
        if by and rope is not None:
            S = rope.turn_rows(S, by)
            if rope.placement == "before":
                check_identity(who, kernel.maps if read else kernel.maps[1:])
                z = None if z is None else rope.turn_rows(z[..., None], by)[..., 0]
        return State(S, z, self.position + by)

    def weighed(self, old: State | None, strength: Any) -> State:
        """b + λ (b' − b) = (1 − λ) b + λ b', at the new position."""
        S, z = strength * self.S, None if self.z is None else strength * self.z
        if old is not None:
            S = (1 - strength) * old.S + S
            z = None if z is None or old.z is None else (1 - strength) * old.z + z
        return State(S, z, self.position)

    def check_heads(self, who: str, name: str, groups: int, d: int, m: int, normalise: bool, like: Array) -> None:
        """Refuse a state that does not fit this number of groups, m values, or the array `like`."""
        check_shape(who, f"{name}.S", self.S, groups, "features", m)
        if normalise and self.z is None:
            raise ValueError(f"{who}: `{name}` has b_KV but no b_D; a normalised layer needs both")
        check_state(who, name, self, self.S.shape[-2], m, weights=like)
        if self.z is not None:
            check_shape(who, f"{name}.z", self.z, *self.S.shape[:-1], like="to match its S")

    def arrays(self) -> dict[str, Array]:
        return {"b_KV": self.S} | ({} if self.z is None else {"b_D": self.z})

    @classmethod
    def owns(cls, name: str) -> bool:
        return name in ("b_KV", "b_D")

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], metadata: Any, position: int, kernel: Kernel, width: int) -> Self:
        if "b_KV" not in arrays:
            raise ValueError("`b_KV` must be in the file for each layer, since other biases are")
        return cls(arrays["b_KV"], arrays.get("b_D"), position)


def check_identity(who: str, maps: tuple[FeatureMap, ...]) -> None:
    for phi in maps:
        if phi is not identity:
            only = f"only for φ = identity, not for {getattr(phi, '__name__', 'this feature map')}"
            raise NotDefined(f"{who}: RoPE before the kernel allows a shift {only}; let positions go on")


def check_state(
    who: str, name: str, state: State, r: int | str = "features", m: int | str = "values", **like: Array
) -> tuple[int, ...]:
    """The leading axes of a state and these arrays. Refuse a state that does not fit them.

    r, m : the number of its features and values; a word allows any
    """
    check_type(who, name, state, State)
    arrays = {f"{name}.S": state.S} | ({} if state.z is None else {f"{name}.z": state.z})
    check_kinds(who, **like, **arrays)
    note = "(features, values)" if isinstance(m, int) else ""
    check_shape(who, f"{name}.S", state.S, r, m, like=note)
    check_finite(who, f"{name}.S", state.S, axes=("feature", "column"))
    if state.z is not None:
        check_shape(who, f"{name}.z", state.z, state.S.shape[-2], like="(features)")
        check_finite(who, f"{name}.z", state.z, axes=("feature",))
        arrays[f"{name}.z"] = state.z[..., None]
    return leading_axes(who, **like, **arrays)


def finite_state(who: str, state: State) -> State:
    """Return a state if it is finite; else raise NotFinite, which says where it is not."""
    require_finite(who, "S", state.S, ("feature", "column"))
    if state.z is not None:
        require_finite(who, "z", state.z, ("feature",))
    return state


@dataclass(frozen=True, eq=False)
class Text:
    """The n tokens that a form reads: text[a:b] is (fq, fk, gq, gk, v) of the tokens a ≤ t < b.

    keep : (..., n, 1) booleans, False for padded tokens; None: no token is padded
    block : how many tokens a formula reads at a time
    """

    who: str
    q: Array
    k: Array
    v: Array
    keep: Any
    kernel: Kernel
    position: int
    n: int
    block: int

    def __getitem__(self, tokens: slice) -> tuple[Array, Array, Array, Array, Array]:
        a, b, _ = tokens.indices(self.n)
        return self.first if (a, b) == (0, min(self.block, self.n)) else self.features(a, b)

    @cached_property
    def first(self) -> tuple[Array, Array, Array, Array, Array]:
        """The features of the first block, which also show how many features there are."""
        return self.features(0, min(self.block, self.n))

    def features(self, a: int, b: int) -> tuple[Array, Array, Array, Array, Array]:
        q, k, v = (x[..., a:b, :] for x in (self.q, self.k, self.v))
        keep = None if self.keep is None else self.keep[..., a:b, :]
        # Inputs without φ are checked only if the result is not finite: a nan in them shows there.
        mapped = [name for name, phi in zip("qk", self.kernel.maps, strict=True) if phi is not identity]
        for name in mapped:
            check_finite(self.who, name, q if name == "q" else k, keep, start=a)
        fq, fk, gq, gk = self.kernel.features(q, k, self.position + a)
        for name in mapped:
            g = zero_padded(keep, gq if name == "q" else gk)
            require_finite(self.who, f"phi_{name}({name})", g, start=a)
        if keep is None:
            return fq, fk, gq, gk, v
        k = zero_padded(keep, fk)
        return fq, k, gq, k if gk is fk else zero_padded(keep, gk), zero_padded(keep, v)

    def check_inputs(self) -> None:
        for name, x in (("q", self.q), ("k", self.k), ("v", self.v)):
            check_finite(self.who, name, x, self.keep)


Steps = Iterator[tuple[Array, Array, Array, Array]]
Sums = Callable[[Text, Array, Array, int], Steps]


def zero_padded(keep: Any, x: Array) -> Array:
    """Replace padded tokens (even NaN) by zero.   keep : None if no token is padded"""
    return x if keep is None else array_namespace(x).where(keep, x, array_namespace(x).zeros_like(x))


def check_arguments(who: str, q: Array, k: Array, v: Array, mask: Mask, padding: Any) -> tuple[int, Any]:
    """Check q, k, v. Return the prefix length, and which tokens count: (..., n, 1) or None."""
    check_kinds(who, q=q, k=k, v=v)
    check_shape(who, "q", q, "tokens", "width")
    check_shape(who, "k", k, *q.shape[-2:], like="to match `q`")
    check_shape(who, "v", v, q.shape[-2], "values", like="to match `q`")
    keep = None if padding is None else check_padding(who, padding, q=q, k=k, v=v)
    return prefix_length(who, mask, q.shape[-2]), keep


def evaluate(
    formula: Sums,
    who: str,
    q: Array,
    k: Array,
    v: Array,
    kernel: Kernel,
    mask: Mask,
    state: State | None,
    padding: Any,
    chunk: int | None = 0,
) -> tuple[Array, State]:
    """Check the arguments, sum by the formula, divide, and say where a result is not finite.

    chunk : how many tokens the formula reads at a time; 0: all; None: `chunk_length` decides
    """
    P, keep = check_arguments(who, q, k, v, mask, padding)
    check_kernel(who, kernel)
    require_of(q, "field" if kernel.normalise else "ring", f"{'normalised ' * kernel.normalise}linear attention")
    if state is not None:
        check_type(who, "state", state, State)
    n = q.shape[-2]
    block = n if chunk == 0 else chunk or chunk_length(q, k, v, *[] if state is None else [state.S])
    text = Text(who, q, k, v, keep, kernel, 0 if state is None else state.position, n, block)
    try:
        with quiet():
            return sum_and_divide(formula, text, P, state)
    except (NotFinite, Underflow, ZeroDenominator) as error:
        failure = error
    text.check_inputs()  # an input that is not finite is the cause
    raise failure


def sum_and_divide(formula: Sums, text: Text, P: int, state: State | None) -> tuple[Array, State]:
    """The output, piece by piece, and the state after the last token."""
    who, normalise, xp = text.who, text.kernel.normalise, array_namespace(text.v)
    fq, fk, _, gk, v = (x[..., :0, :] for x in text.first)
    leading_axes(who, k=fk, v=v)
    S, z = xp.matrix_transpose(fk) @ v, xp.sum(gk, axis=-2)  # zeros of the right shape: sums over no tokens
    if state is not None:
        axes = check_state(who, "state", state, *S.shape[-2:], k=fk, v=v)
        if state.z is None and normalise:
            raise ValueError(f"{who}: `state` has S but no z; a normalised layer needs both (it divides by φ(q)·z)")
        S, z = xp.broadcast_to(state.S, (*axes, *S.shape[-2:])), z if state.z is None else state.z
    heads = leading_axes(who, q=fq, k=fk, v=v, **{"state.S": S})
    if 0 in (*heads, *S.shape[-2:]):  # the result would not show a nan
        text.check_inputs()
    z = xp.broadcast_to(z, S.shape[:-1])
    o, n, position = Pieces(v, (*heads, text.n, S.shape[-1])), 0, text.position + text.n
    normal, judge, start = smallest_normal(v.dtype), None, (S, z)
    for num, den, S, z in formula(text, S, z, P):  # noqa: B007, B020
        keep = None if text.keep is None else text.keep[..., n : n + num.shape[-2], :]
        if keep is not None:
            num, den = padded_zero_over_one(keep, num, den)
        if normal and any_below(normal, num, den):
            judge = judge or Judge(text, *start, P, chunks, chunk_length(text.q, text.k, text.v))
            judge.check(num, den, n, keep)
        o.append(divide(who, num, den, start=n) if normalise else require_finite(who, "the output", num, start=n))
        n += num.shape[-2]
    if normal and normalise:
        check_columns(who, start[0], S, lambda: (text[a:b][1::3] for a, b in spans(0, text.n, text.block or 1)))
    after = State(S, z if state is None or state.z is not None else None, position)
    return o.array(), finite_state(who, after)


def padded_zero_over_one(keep: Any, num: Array, den: Array) -> tuple[Array, Array]:
    """Give padded tokens the numerator 0 and the denominator 1, so that they output 0."""
    xp = array_namespace(num)
    return zero_padded(keep, num), xp.where(keep, den, xp.ones_like(den))


def sum_over_keys(text: Text, S: Array, z: Array, P: int) -> Steps:
    xp, (fq, fk, gq, gk, v) = array_namespace(S), text[:]
    num, den = [fq[..., :0, :] @ S], [gq[..., :0, :] @ z[..., None]]
    for t in range(text.n):
        seen = slice(0, max(t + 1, P))
        S_t = S + xp.sum(fk[..., seen, :, None] * v[..., seen, None, :], axis=-3)
        z_t = z + xp.sum(gk[..., seen, :], axis=-2)
        num.append(fq[..., t : t + 1, :] @ S_t)
        den.append(gq[..., t : t + 1, :] @ z_t[..., None])
    S, z = S + xp.sum(fk[..., :, None] * v[..., None, :], axis=-3), z + xp.sum(gk, axis=-2)
    yield xp.concat(num, axis=-2), xp.concat(den, axis=-2), S, z


def linear_attention(
    q: Array,
    k: Array,
    v: Array,
    /,
    kernel: Kernel = IDENTITY,
    *,
    mask: Mask = "causal",
    state: State | None = None,
    padding: Any = None,
) -> tuple[Array, State]:
    """Linearized attention by its definition: for each token, the sum over all that it sees.

        S_t = S + Σ_{s≤t} φ(k_s) v_sᵀ        z_t = z + Σ_{s≤t} φ(k_s)
        o_t = φ(q_t) S_t / φ(q_t)·z_t

    q, k : (..., n, d)    v : (..., n, m)    ->  o : (..., n, m), State after the last token
    Leading axes (batch, heads) broadcast: q (8, 4, n, d) with k (8, 1, n, d) are grouped queries.

    kernel : φ, RoPE, and whether to divide     mask : "causal", "full", or P: a prefix of P tokens
    state : a State to start from               padding : (..., n) booleans, False: does not count
    Tokens are read at state.position, state.position + 1, ..., padded ones included. A padded token
    outputs 0.
    Needs    ring; field where normalised
    Source   Katharopoulos et al. 2020. Differs: no ε.
    Cost     O(n² r m)
    """
    return evaluate(sum_over_keys, "linear_attention", q, k, v, kernel, mask, state, padding)


def masked_scores(text: Text, S: Array, z: Array, P: int) -> Steps:
    xp, (fq, fk, gq, gk, v) = array_namespace(S), text[:]
    after = S + xp.matrix_transpose(fk) @ v, z + sums(gk, axis=-2)[..., 0, :]
    for a, b in spans(0, text.n, ROWS):
        Q, G, last = fq[..., a:b, :], gq[..., a:b, :], max(b, P)
        seen = visible_keys(Q, last, a, P - a)
        scores = keep_where(Q @ xp.matrix_transpose(fk[..., :last, :]), seen)
        masses = scores if gq is fq and gk is fk else keep_where(G @ xp.matrix_transpose(gk[..., :last, :]), seen)
        yield scores @ v[..., :last, :] + Q @ S, sums(masses, axis=-1) + G @ z[..., None], *after


def linear_attention_quadratic(
    q: Array,
    k: Array,
    v: Array,
    /,
    kernel: Kernel = IDENTITY,
    *,
    mask: Mask = "causal",
    state: State | None = None,
    padding: Any = None,
) -> tuple[Array, State]:
    """Linearized attention by its masked matrix of scores.

        A_ts = [s ≤ t] φ(q_t)·φ(k_s)
        o = (A v + φ(q) S) / (A 1 + φ(q) z)

    A is made ROWS rows at a time, up to the last key that one of these rows sees.
    Equals   linear_attention, with the same arguments (theorem quadratic_eq_sum)
    Cost     O(n² (r + m)), memory O(ROWS n)
    """
    return evaluate(masked_scores, "linear_attention_quadratic", q, k, v, kernel, mask, state, padding)


def running_state(text: Text, S: Array, z: Array, P: int) -> Steps:
    xp, (fq, fk, gq, gk, v) = array_namespace(S), text[:]
    num, den = [fq[..., :0, :] @ S], [gq[..., :0, :] @ z[..., None]]
    written = 0
    for t in range(text.n):
        while written < max(t + 1, P):
            S = S + fk[..., written, :, None] * v[..., written, None, :]
            z = z + gk[..., written, :]
            written += 1
        num.append(fq[..., t : t + 1, :] @ S)
        den.append(gq[..., t : t + 1, :] @ z[..., None])
    yield xp.concat(num, axis=-2), xp.concat(den, axis=-2), S, z


def linear_attention_recurrent(
    q: Array,
    k: Array,
    v: Array,
    /,
    kernel: Kernel = IDENTITY,
    *,
    mask: Mask = "causal",
    state: State | None = None,
    padding: Any = None,
) -> tuple[Array, State]:
    """Linearized attention as a recurrence, one token at a time.

        S_t = S_{t-1} + φ(k_t) v_tᵀ        z_t = z_{t-1} + φ(k_t)
        o_t = φ(q_t) S_t / φ(q_t)·z_t

    Under a prefix mask the first P tokens are all written before the first is read.
    Equals linear_attention, with the same arguments (theorem recurrent_eq_sum).   Cost O(n r m)
    """
    return evaluate(running_state, "linear_attention_recurrent", q, k, v, kernel, mask, state, padding)


def chunks(text: Text, S: Array, z: Array, P: int) -> Steps:
    xp, chunk = array_namespace(S), text.block

    def write(K: Array, H: Array, V: Array) -> tuple[Array, Array]:
        return S + xp.matrix_transpose(K) @ V, z + sums(H, axis=-2)[..., 0, :]

    for a, b in spans(0, P, chunk):
        _, K, _, H, V = text[a:b]
        S, z = write(K, H, V)
    for a, b in spans(0, P, chunk):
        Q, _, G, _, _ = text[a:b]
        yield Q @ S, G @ z[..., None], S, z
    # There are at most two lengths: the last chunk may be shorter.
    seen = cache(lambda n: visible_keys(Q, n, 0, 0))
    for a, b in spans(P, text.n, chunk):
        Q, K, G, H, V = text[a:b]
        scores = keep_where(Q @ xp.matrix_transpose(K), seen(b - a))
        masses = scores if G is Q and H is K else keep_where(G @ xp.matrix_transpose(H), seen(b - a))
        num, den = scores @ V + Q @ S, sums(masses, axis=-1) + G @ z[..., None]
        S, z = write(K, H, V)
        yield num, den, S, z


def linear_attention_chunked(
    q: Array,
    k: Array,
    v: Array,
    /,
    kernel: Kernel = IDENTITY,
    *,
    mask: Mask = "causal",
    state: State | None = None,
    padding: Any = None,
    chunk: int | None = None,
) -> tuple[Array, State]:
    """Linearized attention by chunks: quadratic within a chunk, recurrent between chunks.

        o = (A v + φ(q) S) / (A 1 + φ(q) z) in each chunk;  then  S ← S + φ(k)ᵀ v,  z ← z + Σ φ(k)

    Under a prefix mask the first P tokens are all written before the first is read. Features are
    made chunk by chunk: with NumPy, only a chunk and the state exist besides q, k, v and o.
    chunk : tokens in a chunk, ≥ 1; the default depends on shape and dtype
    Equals   linear_attention, with the same arguments (theorem chunked_eq_sum)
    Cost     O(n (r m + chunk (r + m))), memory O(chunk (chunk + r) + r m) for each head
    """
    if chunk is not None:
        chunk = check_integer("linear_attention_chunked", "chunk", chunk, least=1)
    return evaluate(chunks, "linear_attention_chunked", q, k, v, kernel, mask, state, padding, chunk)


LINEAR = (linear_attention, linear_attention_quadratic, linear_attention_recurrent, linear_attention_chunked)


def chunk_length(q: Array, *others: Array) -> int:
    """The largest multiple of 16 whose scores, in all heads, fit CACHE bytes; at least 32.

    Longer chunks need fewer calls but more arithmetic. They are slow once they exceed the cache.
    """
    return min(max(isqrt(CACHE // (common_heads(q, *others) * itemsize(q))) // 16 * 16, 32), LONGEST_CHUNK)


def common_heads(*arrays: Array) -> int:
    """How many heads (of all texts) these arrays have when their leading axes are broadcast."""
    return prod(max(1, *axis) for axis in zip_longest(*(x.shape[-3::-1] for x in arrays), fillvalue=1))


def spans(start: int, end: int, length: int) -> Iterator[tuple[int, int]]:
    return ((a, min(a + length, end)) for a in range(start, end, length))
