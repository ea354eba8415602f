"""Planted bugs: wrong kernels, each a small edit of a right one, and the checks that must reject
them.

A check takes a function with the arguments of `linear_attention` (or of `softmax_attention`) and
returns None, or in words what is wrong. `python tests/helpers/planted.py` prints which check
rejects which bug.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from math import isqrt
from typing import Any

import numpy as np
from array_api_compat import array_namespace

import refimpl as ri
from refimpl.attention import linear_attention as linear
from refimpl.attention import softmax_attention as softmax
from refimpl.checks import visible_keys
from refimpl.systems import SystemArray

Attention = Callable[..., Any]
HUGE = ri.GF(2**61 - 1)


@dataclass(frozen=True)
class Bug:
    kernel: Attention
    catches: str
    rejected_by: tuple[str, ...]
    right: Attention


BUGS: dict[str, Bug] = {}
CHECKS: dict[str, Callable[[Attention], str | None]] = {}


def bug(catches: str, *rejected_by: str, right: Attention = ri.linear_attention) -> Callable[[Attention], Attention]:
    def plant(kernel: Attention) -> Attention:
        BUGS[kernel.__name__] = Bug(kernel, catches, rejected_by, right)
        return kernel

    return plant


def check(f: Callable[[Attention], str | None]) -> Callable[[Attention], str | None]:
    def run(kernel: Attention) -> str | None:
        try:
            return f(kernel)
        except (
            ri.ZeroDenominator,
            ri.NotFinite,
        ) as error:  # only what a wrong sum can cause; a slip of ours must not count
            return str(error)

    CHECKS[f.__name__] = run
    return run


# Problems: q, k, v and options in the numbers of any field. d ≠ m ≠ n ≠ heads, unless it is the
# point that they agree.


def square_plus_one(x: Any) -> Any:
    return x * x + 1


def problems(system: Any) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """Each option on its own at least once, so that an edit which another option hides is seen
    somewhere.
    """

    def make(name: str, kernel=linear.IDENTITY, *, lead=(2,), lead_q=None, n=5, d=4, m=3, r=None, start=True, **mask):  # type: ignore[no-untyped-def]
        seed = sum(map(ord, name))
        shapes = [(*(lead_q or lead), n, d), (*lead, n, d), (*lead, n, m), (*lead, r or d, m), (*lead, r or d)]
        q, k, v, S, z = (system.random(shape, 10 * seed + i) for i, shape in enumerate(shapes))
        return name, (q, k, v), {"kernel": kernel, **mask} | ({"state": ri.State(S, z, 7)} if start else {})

    table = ri.power_table(*ri.circle_point(system.random((2,), 5)))
    yield make("plain", start=False)
    yield make("state")
    yield make("square", d=4, m=4)
    yield make("batch and heads", lead=(3, 2))
    yield make("grouped heads", lead=(2, 1), lead_q=(2, 3))
    yield make("feature map", ri.Kernel(square_plus_one))
    yield make("two feature maps", ri.Kernel(ri.feature_maps.taylor2_pair(2)), d=2, r=7)
    yield make("unnormalised", linear.UNNORMALISED)
    yield make("prefix", mask=3)
    yield make("full", mask="full")
    yield make("rope half", ri.Kernel(rope=ri.Rope(table)))
    yield make("rope interleaved", ri.Kernel(rope=ri.Rope(table, "interleaved")))
    yield make("rope before", ri.Kernel(rope=ri.Rope(table, placement="before")))
    yield make("rope prefix unnormalised", ri.Kernel(rope=ri.Rope(table), normalise=False), mask=2, start=False)


def differs(name: str, system: Any, got: tuple[Any, ri.State], want: tuple[Any, ri.State]) -> str | None:
    """Output, S, z and position must be equal, in shape and with ==."""
    (o, state), (o_, state_) = got, want
    for part, a, b in (("o", o, o_), ("S", state.S, state_.S), ("z", state.z, state_.z)):
        if (a is None) != (b is None):
            return f"{name}: {part} is missing"
        if a is not None and not system.equal(a, b):
            return (
                f"{name}: {part} has shape {a.shape} instead of {b.shape}"
                if a.shape != b.shape
                else f"{name}: {part} differs"
            )
    return (
        None if state.position == state_.position else f"{name}: position {state.position} instead of {state_.position}"
    )


@functools.cache
def solved(system: Any) -> list[tuple[str, tuple[Any, ...], dict[str, Any], tuple[Any, ri.State]]]:
    return [(name, x, options, ri.linear_attention(*x, **options)) for name, x, options in problems(system)]


def first_difference(system: Any, kernel: Attention) -> str | None:
    found = (differs(name, system, kernel(*x, **options), want) for name, x, options, want in solved(system))
    return next(filter(None, found), None)


@check
def exact_in_Q(kernel: Attention) -> str | None:
    """Output and state equal the definition, in ℚ."""
    return first_difference(ri.QQ, kernel)


@check
def exact_in_GF(kernel: Attention) -> str | None:
    """The same modulo 2⁶¹−1, at uniform points."""
    return first_difference(HUGE, kernel)


@check
def split_invariance(kernel: Attention) -> str | None:
    """Reading a text in two parts, the state carried over, is reading it at once: at every split,
    in GF(p).
    """
    for name, x, options in problems(HUGE):
        mask, n = options.get("mask", "causal"), x[0].shape[-2]
        if mask == "full":
            continue
        whole = kernel(*x, **options)
        for i in range(mask if isinstance(mask, int) else 0, n + 1):
            o, state = kernel(*(a[..., :i, :] for a in x), **options)
            rest, state = kernel(*(a[..., i:, :] for a in x), **options | {"state": state, "mask": "causal"})
            if reason := differs(f"{name}, split at {i}", HUGE, (HUGE.concat([o, rest], axis=-2), state), whole):
                return reason
    return None


@functools.cache
def exact_probes(dtype: str) -> list[tuple[str, ri.Probe]]:
    system = ri.Float("numpy", dtype)
    kinds = ({}, {"start": False}, {"mask": 10}, {"mask": "full"}, {"layout": "half"}, {"layout": "interleaved"})
    return [(str(options), ri.exact_probe(system, n=21, r=6, m=3, **options)) for options in kinds]


def probe(kernel: Attention, dtype: str) -> str | None:
    found = ((name, p.mismatch(*kernel(p.q, p.k, p.v, **p.options))) for name, p in exact_probes(dtype))
    return next((f"{name}: {reason}" for name, reason in found if reason), None)


@check
def probe_float64(kernel: Attention) -> str | None:
    """The exact probes give ==, in float64."""
    return probe(kernel, "float64")


@check
def probe_float16(kernel: Attention) -> str | None:
    """The same in float16."""
    return probe(kernel, "float16")


@functools.cache
def bounded(dtype: str) -> list[tuple[str, tuple[Any, ...], dict[str, Any], tuple[Any, Any]]]:
    system, u = ri.Float("numpy", dtype), ri.unit_roundoff(dtype)
    kernels = {
        "plain": linear.IDENTITY,
        "unnormalised": linear.UNNORMALISED,
        "rope": ri.Kernel(rope=ri.Rope(ri.angle_table(system, 4))),
    }
    # positive numbers: nothing cancels, so the bound is far from vacuous
    q, k, v, S, z = (abs(system.random(s, i)) for i, s in enumerate([(20, 4), (20, 4), (20, 3), (4, 3), (4,)]))
    kinds = {name: {"kernel": kernel, "state": ri.State(S, z, 1000)} for name, kernel in kernels.items()}
    return [(name, (q, k, v), options, ri.exact_with_bound(q, k, v, u=u, **options)) for name, options in kinds.items()]


def bound(kernel: Attention, dtype: str) -> str | None:
    for name, x, options, exact in bounded(dtype):
        o, _ = kernel(*x, **options)
        if o.dtype != x[0].dtype:
            return f"{name}: output is {o.dtype}"
        verdict = ri.judge(o, *exact)
        if verdict.verdict not in ("EXACT", "WITHIN BOUND"):
            return f"{name}: {verdict.verdict}, {verdict.worst:.3g} times the bound at {verdict.index}"
    return None


@check
def bound_float64(kernel: Attention) -> str | None:
    """The error stays within the derived bound, in float64."""
    return bound(kernel, "float64")


@check
def bound_float32(kernel: Attention) -> str | None:
    """The same in float32."""
    return bound(kernel, "float32")


@check
def dependencies(kernel: Attention) -> str | None:
    """o_t depends on q_t, on k_s and v_s for s < max(t+1, P), and on the state: on no more and no
    less.
    """
    system, n, d, m = ri.Dependencies(), 5, 4, 3
    q, k, v, past = (range(i * n, i * n + n) for i in range(4))
    S, z = system.tokens((d, m), [past[0]] * d), system.tokens((d, 1), [past[1]] * d)
    inputs = [system.tokens((n, width), labels) for width, labels in ((d, q), (d, k), (m, v))]
    for mask, P in (("causal", 0), (3, 3), ("full", n)):
        o, _ = kernel(*inputs, mask=mask, state=ri.State(S, z[..., 0], 0))
        for t, row in enumerate(system.sets(o)):
            seen = max(t + 1, P)
            if any(entry != {q[t], *past[:2], *k[:seen], *v[:seen]} for entry in row):
                return f"mask {mask}: token {t} depends on {sorted(row[0])}"
    return None


PADDING = np.array([[True, True, False, True, False], [True, False, True, True, True]])


@check
def padding_is_absence(kernel: Attention) -> str | None:
    """A padded token leaves no trace: the others come out as if it were not there, in GF(p)."""
    q, k, v, S, z = (HUGE.random(s, i) for i, s in enumerate([(2, 5, 4), (2, 5, 4), (2, 5, 3), (2, 4, 3), (2, 4)]))
    o, after = kernel(q, k, v, padding=PADDING, state=ri.State(S, z))
    for h, keep in enumerate(PADDING):
        o_, after_ = ri.linear_attention(*(x[h][keep] for x in (q, k, v)), state=ri.State(S[h], z[h]))
        if reason := differs(
            f"head {h}", HUGE, (o[h][keep], ri.State(after.S[h], after.z[h], 0)), (o_, replace(after_, position=0))
        ):
            return reason
    return None


@check
def padding_poison(kernel: Attention) -> str | None:
    """NaN in a padded token reaches neither output nor state."""
    q, k, v = (abs(ri.Float().random(s, i)) for i, s in enumerate([(2, 5, 4), (2, 5, 4), (2, 5, 3)]))
    clean = kernel(*(np.where(PADDING[..., None], x, 0) for x in (q, k, v)), padding=PADDING)
    poisoned = kernel(*(np.where(PADDING[..., None], x, np.nan) for x in (q, k, v)), padding=PADDING)
    return differs("poisoned", ri.Float(), poisoned, clean)


# The bugs. A right kernel in seven lines, of which most are small edits.


# type: ignore[no-untyped-def]
def scores_and_state(xp, fq, fk, gq, gk, v, S, z, P, *, sees=visible_keys):
    """num, den, S, z"""
    seen = sees(fq, fk.shape[-2], 0, P)
    A, B = (
        xp.where(seen, a @ xp.matrix_transpose(b), xp.zeros_like(a @ xp.matrix_transpose(b)))
        for a, b in ((fq, fk), (gq, gk))
    )
    num, den = A @ v + fq @ S, xp.sum(B, axis=-1, keepdims=True) + gq @ z[..., None]
    return num, den, S + xp.matrix_transpose(fk) @ v, z + xp.sum(gk, axis=-2)


def linear_form(sums: Callable[..., Any]) -> Attention:
    """Linearized attention whose sums over a whole text are these."""

    def attention(  # type: ignore[no-untyped-def]
        q, k, v, kernel=linear.IDENTITY, *, mask="causal", state=None, padding=None
    ) -> tuple[Any, ri.State]:
        def formula(text: linear.Text, S: Any, z: Any, P: int) -> linear.Steps:
            yield sums(array_namespace(S), *text[:], S, z, P)

        return linear.evaluate(formula, sums.__name__, q, k, v, kernel, mask, state, padding)

    attention.__name__ = sums.__name__
    return attention


@linear_form
def unedited(*args):  # type: ignore[no-untyped-def]
    return scores_and_state(*args)


def small(like: Any, digits: int) -> Any:
    return Fraction(1, 10**digits) if isinstance(like, SystemArray) else 10.0**-digits


@bug("reads before it writes: s < t", "exact_in_Q", "probe_float16", "dependencies")
@linear_form
def strict_mask(*args):  # type: ignore[no-untyped-def]
    return scores_and_state(*args, sees=lambda q, keys, before, P: visible_keys(q, keys, before - 1, P + 1 if P else 0))


@bug(
    "fast-transformers' ε in the denominator; passes allclose in float64",
    "exact_in_Q",
    "probe_float64",
    "bound_float64",
)
@linear_form
def epsilon_in_denominator(*args):  # type: ignore[no-untyped-def]
    num, den, S, z = scores_and_state(*args)
    return num, den + small(den, 6), S, z


@bug("Performer's ε added to every feature", "exact_in_Q", "bound_float64")
@linear_form
def epsilon_in_features(xp, fq, fk, gq, gk, *rest):  # type: ignore[no-untyped-def]
    return scores_and_state(xp, *(f + small(f, 4) for f in (fq, fk, gq, gk)), *rest)


@bug("the state brings S but its z is forgotten (fla#267)", "exact_in_Q", "probe_float16", "split_invariance")
@linear_form
def starting_z_ignored(xp, fq, fk, gq, gk, v, S, z, P):  # type: ignore[no-untyped-def]
    num, den, S, _ = scores_and_state(xp, fq, fk, gq, gk, v, S, xp.zeros_like(z), P)
    return num, den, S, z + xp.sum(gk, axis=-2)


@bug("z comes out as it went in", "exact_in_GF", "split_invariance")
@linear_form
def z_not_updated(xp, fq, fk, gq, gk, v, S, z, P):  # type: ignore[no-untyped-def]
    return *scores_and_state(xp, fq, fk, gq, gk, v, S, z, P)[:3], z


@bug("the state that comes out has no z at all", "exact_in_Q")
def z_not_returned(*args: Any, **options: Any) -> Any:
    o, state = ri.linear_attention(*args, **options)
    return o, replace(state, z=None)


@bug("the state leaves as V×K; with d ≠ m its shape shows it (fla#776)", "exact_in_Q", "probe_float64")
def state_transposed(*args: Any, **options: Any) -> Any:
    o, state = ri.linear_attention(*args, **options)
    return o, replace(state, S=array_namespace(o).matrix_transpose(state.S))


@bug("the same where d = m: only the values show it", "exact_in_GF", "split_invariance")
def square_state_transposed(*args: Any, **options: Any) -> Any:
    o, state = ri.linear_attention(*args, **options)
    square = state.S.shape[-1] == state.S.shape[-2]
    return o, replace(state, S=array_namespace(o).matrix_transpose(state.S)) if square else state


@bug("the normaliser is summed over heads (fla#268)", "exact_in_Q", "probe_float16")
@linear_form
def z_summed_over_heads(xp, fq, fk, gq, gk, v, S, z, P):  # type: ignore[no-untyped-def]
    num, den, S, z = scores_and_state(xp, fq, fk, gq, gk, v, S, z, P)
    return num, den, S, xp.broadcast_to(xp.sum(z, axis=-2, keepdims=True), z.shape) if z.ndim > 1 else z


@bug("one S for the whole batch", "exact_in_Q", "split_invariance")
@linear_form
def S_summed_over_batch(xp, fq, fk, gq, gk, v, S, z, P):  # type: ignore[no-untyped-def]
    num, den, S, z = scores_and_state(xp, fq, fk, gq, gk, v, S, z, P)
    return num, den, xp.broadcast_to(xp.sum(S, axis=0, keepdims=True), S.shape) if S.ndim > 3 else S, z


@bug("query heads meet the key heads of a tiling instead of a repetition", "exact_in_Q")
def groups_tiled(q: Any, k: Any, v: Any, **options: Any) -> Any:
    right, state = ri.linear_attention(q, k, v, **options)
    if q.ndim < 4 or k.shape[-3] == q.shape[-3]:
        return right, state
    xp, (groups, heads) = array_namespace(q), q.shape[:2]
    k, v, S, z = (
        xp.stack([xp.stack([x[(g * heads + h) % groups, 0] for h in range(heads)]) for g in range(groups)])
        for x in (k, v, options["state"].S, options["state"].z)
    )
    return ri.linear_attention(q, k, v, **options | {"state": replace(options["state"], S=S, z=z)})[0], state


def by_chunks(
    *args: Any, state: ri.State | None = None, mask: Any = "causal", chunk: int, carry: bool, **options: Any
) -> Any:
    """Causal attention chunk after chunk; what is not right is the caller's doing."""
    if mask != "causal" or "padding" in options:
        return ri.linear_attention(*args, state=state, mask=mask, **options)
    xp, n, outputs, end = array_namespace(args[0]), args[0].shape[-2], [], state
    for a in range(0, max(n, 1), chunk):
        o, end = ri.linear_attention(*(x[..., a : a + chunk, :] for x in args), state=state, **options)
        outputs.append(o)
        state = end if carry else ri.State(xp.zeros_like(end.S), xp.zeros_like(end.z), end.position)
    return xp.concat(outputs, axis=-2), end


@bug("each chunk starts from nothing", "exact_in_Q", "probe_float16", "dependencies")
def state_dropped_between_chunks(*args: Any, **options: Any) -> Any:
    return by_chunks(*args, chunk=2, carry=False, **options)


@bug("n that is no multiple of the chunk: the last tokens are zeros", "exact_in_Q", "probe_float64", "dependencies")
def last_chunk_dropped(*args: Any, **options: Any) -> Any:
    o, state = by_chunks(*args, chunk=4, carry=True, **options)
    xp, n = array_namespace(o), o.shape[-2]
    return xp.concat([o[..., : n - n % 4, :], xp.zeros_like(o[..., n - n % 4 :, :])], axis=-2), state


@bug("no mask inside a chunk: a token sees the end of its chunk", "exact_in_Q", "dependencies", "split_invariance")
@linear_form
def chunk_without_mask(*args):  # type: ignore[no-untyped-def]
    return scores_and_state(*args, sees=lambda q, keys, before, P: visible_keys(q, keys, before, max(P, 2)))


@bug("the prefix is masked causally", "exact_in_Q", "probe_float16", "dependencies")
def prefix_causal(*args: Any, mask: Any = "causal", **options: Any) -> Any:
    return ri.linear_attention(*args, mask="causal" if isinstance(mask, int) else mask, **options)


@bug("the prefix is one token too short", "exact_in_Q", "probe_float16", "dependencies")
def prefix_off_by_one(*args: Any, mask: Any = "causal", **options: Any) -> Any:
    return ri.linear_attention(*args, mask=max(mask - 1, 0) if isinstance(mask, int) else mask, **options)


# Features: φ and RoPE done wrongly, the sums done right.


def with_features(wrong: Callable[[ri.Kernel, Any, Any, int], tuple[Any, Any, Any, Any]]) -> Attention:
    """The definition, with features that `wrong` makes of (kernel, q, k, position)."""

    class Wrong(ri.Kernel):
        def features(self, q: Any, k: Any, position: int) -> tuple[Any, Any, Any, Any]:
            return wrong(ri.Kernel(self.phi, self.rope, self.normalise), q, k, position)

    def attention(q: Any, k: Any, v: Any, kernel: ri.Kernel = linear.IDENTITY, **options: Any) -> Any:
        return ri.linear_attention(q, k, v, Wrong(kernel.phi, kernel.rope, kernel.normalise), **options)

    attention.__name__ = wrong.__name__
    return attention


@bug("φ is applied to q alone", "exact_in_Q")
@with_features
def phi_not_on_keys(kernel: ri.Kernel, q: Any, k: Any, position: int) -> Any:
    phi_q, phi_k = kernel.maps
    phi_k = ri.feature_maps.identity if square_plus_one in kernel.maps else phi_k
    return replace(kernel, phi=(phi_q, phi_k)).features(q, k, position)


@bug("φ_q and φ_k change places", "exact_in_Q")
@with_features
def phi_swapped(kernel: ri.Kernel, q: Any, k: Any, position: int) -> Any:
    return replace(kernel, phi=kernel.maps[::-1]).features(q, k, position)


@bug("a 1/√d from softmax attention slips in; it cancels where attention is normalised", "exact_in_Q", "bound_float64")
@with_features
def scale_slipped_in(kernel: ri.Kernel, q: Any, k: Any, position: int) -> Any:
    return kernel.features(q / isqrt(q.shape[-1]), k, position)


def edit_rope(kernel: ri.Kernel, **fields: Callable[[ri.Rope], Any]) -> ri.Kernel:
    """The kernel with these fields of its RoPE changed, if it has one."""
    rope = kernel.rope
    return replace(kernel, rope=rope and replace(rope, **{name: f(rope) for name, f in fields.items()}))


def rotations(rope: ri.Rope, shift: int = 0, sign: int = 1) -> Callable[[Any], tuple[Any, Any]]:
    return lambda positions: rope.table([sign * (p + shift) for p in positions])


def key_side(right: ri.Kernel, wrong: ri.Kernel, q: Any, k: Any, position: int) -> Any:
    """Features of q by the right kernel, of k by the wrong one."""
    fq, _, gq, _ = right.features(q, k, position)
    _, fk, _, gk = wrong.features(q, k, position)
    return fq, fk, gq, gk


@bug("half where the model has interleaved, and the reverse (transformers#25199)", "exact_in_Q", "probe_float16")
@with_features
def rope_layout_wrong(kernel: ri.Kernel, q: Any, k: Any, position: int) -> Any:
    other = {"half": "interleaved", "interleaved": "half"}
    return edit_rope(kernel, layout=lambda rope: other[rope.layout]).features(q, k, position)


@bug("base 500000 instead of 10000: nothing shows at position 0", "bound_float64", "bound_float32")
@with_features
def rope_base_wrong(kernel: ri.Kernel, q: Any, k: Any, position: int) -> Any:
    def table(rope: ri.Rope) -> Any:
        return ri.angle_table(q, 2 * rope.table([0])[0].shape[-1], base=500000)

    return (kernel if isinstance(q, SystemArray) else edit_rope(kernel, table=table)).features(q, k, position)


@bug("keys are turned one position too far", "exact_in_Q", "probe_float16", "bound_float32")
@with_features
def rope_off_by_one(kernel: ri.Kernel, q: Any, k: Any, position: int) -> Any:
    return key_side(kernel, edit_rope(kernel, table=lambda rope: rotations(rope, shift=1)), q, k, position)


@bug("keys turn backwards: the score depends on t + s", "exact_in_Q", "probe_float16", "bound_float64")
@with_features
def rope_sign_flipped(kernel: ri.Kernel, q: Any, k: Any, position: int) -> Any:
    return key_side(kernel, edit_rope(kernel, table=lambda rope: rotations(rope, sign=-1)), q, k, position)


@bug("both turn backwards: the output is right, but the state is another's", "exact_in_Q", "probe_float16")
@with_features
def rope_all_backwards(kernel: ri.Kernel, q: Any, k: Any, position: int) -> Any:
    return edit_rope(kernel, table=lambda rope: rotations(rope, sign=-1)).features(q, k, position)


@bug("RoPE after φ turns the denominator too", "exact_in_Q", "bound_float64")
@with_features
def rope_in_denominator(kernel: ri.Kernel, q: Any, k: Any, position: int) -> Any:
    fq, fk, _, _ = kernel.features(q, k, position)
    return fq, fk, fq, fk


@bug("positions restart at 0 although the state says otherwise", "exact_in_Q", "probe_float16", "split_invariance")
@with_features
def position_restarted(kernel: ri.Kernel, q: Any, k: Any, position: int) -> Any:
    return kernel.features(q, k, 0)


@bug("the state does not move on", "exact_in_Q", "split_invariance")
def position_not_advanced(q: Any, *args: Any, **options: Any) -> Any:
    o, state = ri.linear_attention(q, *args, **options)
    return o, replace(state, position=state.position - q.shape[-2])


# Precision: right sums in the wrong numbers.


def floats_only(dtype: str) -> Callable[[Any], Any]:
    return lambda x: x if isinstance(x, SystemArray) else x.astype(dtype)


@bug("float64 comes in, float32 is computed, float64 goes out", "bound_float64")
@linear_form
def hidden_float32(xp, *args):  # type: ignore[no-untyped-def]
    *arrays, P = args
    narrow, wide = floats_only("float32"), floats_only(str(getattr(arrays[0], "dtype", "")))
    return tuple(wide(x) for x in scores_and_state(xp, *map(narrow, arrays), P))


@bug("a float32 state is kept in float16 between tokens", "bound_float32", "bound_float64")
@linear_form
def float16_accumulate(xp, fq, fk, gq, gk, v, S, z, P):  # type: ignore[no-untyped-def]
    if P or not fq.shape[-2]:
        return scores_and_state(xp, fq, fk, gq, gk, v, S, z, P)
    narrow, wide, sums = floats_only("float16"), floats_only(str(v.dtype)), []
    for t in range(fq.shape[-2]):
        *now, S, z = scores_and_state(xp, *(x[..., t : t + 1, :] for x in (fq, fk, gq, gk, v)), S, z, P)
        S, z = wide(narrow(S)), wide(narrow(z))
        sums.append(now)
    num, den = (xp.concat(part, axis=-2) for part in zip(*sums, strict=True))
    return num, den, S, z


# Padding.


@bug("padding is taken and not used", "padding_is_absence")
def padding_ignored(*args: Any, padding: Any = None, **options: Any) -> Any:
    return ri.linear_attention(*args, **options)


@bug("padded values count for nothing, padded keys still fill the denominator", "padding_is_absence")
def padding_in_denominator(q: Any, k: Any, v: Any, *, padding: Any = None, **options: Any) -> Any:
    xp = array_namespace(v)
    return ri.linear_attention(
        q, k, v if padding is None else xp.where(padding[..., None], v, xp.zeros_like(v)), **options
    )


@bug("padding multiplies by 0, and 0 · NaN is NaN (fla#892)", "padding_poison")
def padding_leaks_nan(q: Any, k: Any, v: Any, *, padding: Any = None, **options: Any) -> Any:
    if padding is None or isinstance(q, SystemArray):
        return ri.linear_attention(q, k, v, padding=padding, **options)
    k, v = k * padding[..., None], v * padding[..., None]
    z = np.cumsum(k, axis=-2)
    o = np.tril(q @ np.swapaxes(k, -1, -2)) @ v / np.where(padding, np.sum(q * z, axis=-1), 1)[..., None]
    return o, ri.State(np.swapaxes(k, -1, -2) @ v, z[..., -1, :], q.shape[-2])


# Softmax attention.


def softmax_problems(system: Any) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    q, k, v = (system.random(s, i) for i, s in enumerate([(2, 5, 4), (2, 5, 4), (2, 5, 3)]))
    yield "plain", (q, k, v), {}
    yield "prefix", (q, k, v), {"mask": 3}
    yield "rope", (q, k, v), {"rope": ri.Rope(ri.angle_table(system, 4), placement="before")}


def balls_differ(name: str, got: tuple[Any, ri.KVCache], want: tuple[Any, ri.KVCache]) -> str | None:
    """Two enclosures of one number meet. The radius says how small an error would be seen."""
    system = ri.balls(30)
    for part, a, b in (("o", got[0], want[0]), ("k", got[1].k, want[1].k), ("v", got[1].v, want[1].v)):
        assert system.radius(b) < np.max(np.abs(ri.floats(b)))  # else VACUOUS
        if a.shape != b.shape or not (a == b).all():
            return f"{name}: {part} differs"
    return None


@check
def softmax_in_balls(kernel: Attention) -> str | None:
    """Softmax attention and its cache meet the definition, in balls of 30 digits."""
    found = (
        balls_differ(name, kernel(*x, **o), ri.softmax_attention(*x, **o))
        for name, x, o in softmax_problems(ri.balls(30))
    )
    return next(filter(None, found), None)


@check
def softmax_split(kernel: Attention) -> str | None:
    """Reading with a cache at every split is reading at once, in balls."""
    for name, x, options in softmax_problems(ri.balls(30)):
        whole = kernel(*x, **options)
        for i in range(options.get("mask", 0), 6):
            o, cache = kernel(*(a[..., :i, :] for a in x), **options)
            rest, cache = kernel(*(a[..., i:, :] for a in x), **options | {"cache": cache, "mask": "causal"})
            if reason := balls_differ(f"{name}, split at {i}", (ri.balls(30).concat([o, rest], axis=-2), cache), whole):
                return reason
    return None


@check
def softmax_dependencies(kernel: Attention) -> str | None:
    """Output t depends on q_t and on the keys and values up to t, structurally."""
    system = ri.Dependencies()
    o, _ = kernel(*(system.tokens((5, width)) for width in (4, 4, 3)))
    wrong = [t for t, row in enumerate(system.sets(o)) if any(entry != set(range(t + 1)) for entry in row)]
    return f"token {wrong[0]} depends on {system.sets(o)[wrong[0]][0]}" if wrong else None


def softmax_form(formula: softmax.Formula) -> Attention:
    """Softmax attention by this formula."""

    def attention(  # type: ignore[no-untyped-def]
        q, k, v, *, scale=None, mask="causal", rope=None, cache=None, padding=None
    ) -> tuple[Any, ri.KVCache]:
        return softmax.evaluate(formula, formula.__name__, q, k, v, scale, mask, rope, cache, padding)

    attention.__name__ = formula.__name__
    return attention


def scores_and_mask(s: softmax.Scores) -> tuple[Any, Any]:
    scores = s.c * (s.q @ array_namespace(s.q).matrix_transpose(s.k))
    return scores, visible_keys(s.q, s.k.shape[-2], s.M, s.P) & s.shown


@bug(
    "weights are masked after softmax and do not sum to 1",
    "softmax_in_balls",
    "softmax_dependencies",
    right=ri.softmax_attention,
)
@softmax_form
def softmax_mask_late(s: softmax.Scores) -> Any:
    xp, (scores, seen) = array_namespace(s.q), scores_and_mask(s)
    sim = xp.exp(scores)
    return xp.where(seen, sim, xp.zeros_like(sim)) @ s.v, xp.sum(sim, axis=-1, keepdims=True)


@bug(
    "the largest score of the future is subtracted, then ε added",
    "softmax_in_balls",
    "softmax_split",
    right=ri.softmax_attention,
)
@softmax_form
def softmax_epsilon_after_max(s: softmax.Scores) -> Any:
    xp, (scores, seen) = array_namespace(s.q), scores_and_mask(s)
    sim = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True)) if 0 not in scores.shape else scores
    sim = xp.where(seen, sim, xp.zeros_like(sim))
    return sim @ s.v, xp.sum(sim, axis=-1, keepdims=True) + small(sim, 6)


@bug("new keys are put before the cached ones", "softmax_split", right=ri.softmax_attention)
def cache_reversed(q: Any, k: Any, v: Any, *, cache: Any = None, **options: Any) -> Any:
    o, after = ri.softmax_attention(q, k, v, cache=cache, **options)
    M, xp = after.k.shape[-2] - k.shape[-2], array_namespace(q)
    k, v = (xp.concat([x[..., M:, :], x[..., :M, :]], axis=-2) for x in (after.k, after.v))
    return o, replace(after, k=k, v=v)


@bug("scores are divided by d instead of √d", "softmax_in_balls", right=ri.softmax_attention)
def softmax_scale_wrong(q: Any, *args: Any, **options: Any) -> Any:
    return ri.softmax_attention(q, *args, scale=Fraction(1, 4) if isinstance(q, SystemArray) else 0.25, **options)


def use_implementation(monkeypatch: Any, impl: Any) -> None:
    """Let `refimpl verify`, until the test ends, check this implementation and not the library."""
    from refimpl.cli import verify as command
    from refimpl.verify import registry

    monkeypatch.setattr(registry, "verify", functools.partial(registry.verify, implementation=impl))
    for name in ("failure", "replay"):
        monkeypatch.setattr(command, name, functools.partial(getattr(command, name), impl=impl))


def table() -> str:
    """Every bug against every check: × rejected, · accepted, ! does not run."""

    def mark(kernel: Attention, name: str) -> str:
        try:
            return "·" if CHECKS[name](kernel) is None else "×"
        except Exception:
            return "!"

    width = max(map(len, BUGS))
    kernels = [(name, b.kernel, b.right) for name, b in BUGS.items()]
    rows = [f"{i + 1:>{width}} {name}" for i, name in enumerate(CHECKS)]
    for name, kernel, right in kernels:
        ours = [("softmax" in c) == (right is ri.softmax_attention) for c in CHECKS]
        rows.append(
            f"{name:>{width}} "
            + "".join(mark(kernel, c) if mine else " " for c, mine in zip(CHECKS, ours, strict=True))
        )
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
