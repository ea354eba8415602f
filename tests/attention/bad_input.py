"""Bad input to feature maps, RoPE, the forms of attention, states and memories: every message, word
for word.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import array_api_strict as strict
import ml_dtypes
import numpy as np

import refimpl as ri
from refimpl import GF, MP, QQ, KVCache, NotDefined, NotFinite, Rope, State, ZeroDenominator, balls
from refimpl.attention.memory import join, write
from tests.helpers.bad_input import (
    FEATURE_MAPS,
    F,
    Q,
    S,
    Table,
    a,
    before,
    cases,
    column,
    d,
    directions,
    f32,
    inf,
    k,
    keep,
    la,
    m,
    model,
    n,
    nan,
    points,
    put,
    q,
    recalled,
    soft,
    table,
    torch,
    v,
    z,
)

chunked = ri.linear_attention_chunked
half16 = [np.full((2, 1), 300, np.float16)] * 2
taylor = ri.RandomFeatures("taylor", None)


class Integers(type(QQ)):  # type: ignore[misc]
    name, can = "ℤ", frozenset({"ring"})


def masked(who: str, name: str) -> str:
    advice = "fill it with .filled(...), and name tokens that do not count by `padding=`"
    return f"{who}: `{name}` must be a plain array, got a masked one, whose mask has no effect; {advice}"


def recalling(**changes: Any) -> Any:
    """Attention with a memory in which something is wrong."""
    return soft(q, k, v, cache=KVCache(k, v, keep, n, (replace(recalled, **changes),)))


VALUE_ERRORS: Table = {
    "rotate: `x` must have at least 4 features for 2 pairs, got shape (5, 3)": lambda: ri.rotate(
        a(5, 3), a(5, 2), a(5, 2)
    ),
    "Rope: `sin` must have shape (..., 5, 1) to match `cos`, got (5, 2)": lambda: la(
        q, k, v, ri.Kernel(rope=Rope(lambda at: (a(len(at), 1), a(len(at), 2))))
    ),
    "softmax_attention_shifted: `k` must have shape (..., 5, 3) to match `q`, got (4, 3)": lambda: (
        ri.softmax_attention_shifted(q, a(4, 3), v)
    ),
    # Shapes
    "linear_attention: `q` must have shape (..., tokens, width), got (3,)": lambda: la(a(d), k, v),
    "linear_attention: `k` must have shape (..., 5, 3) to match `q`, got (5, 4)": lambda: la(q, a(n, 4), v),
    "linear_attention: `k` must have shape (..., 5, 3) to match `q`, got (4, 3)": lambda: la(q, a(4, d), v),
    "linear_attention: `v` must have shape (..., 5, values) to match `q`, got (4, 2)": lambda: la(q, k, a(4, m)),
    "softmax_attention: `k` must have shape (..., 5, 3) to match `q`, got (5, 4)": lambda: soft(q, a(n, 4), v),
    "linear_attention: `state.S` must have shape (..., 3, 2) (features, values), got (2, 3)": lambda: la(
        q, k, v, state=State(S.T, z)
    ),
    "linear_attention: `state.z` must have shape (..., 3) (features), got (4,)": lambda: la(
        q, k, v, state=State(S, a(4))
    ),
    "linear_attention: leading axes (3,) of `k` must broadcast with (2,) of `q`": lambda: la(
        a(2, n, d), a(3, n, d), a(3, n, m)
    ),
    "linear_attention: leading axes (3,) of `v` must broadcast with (2,) of `k`": lambda: la(
        a(2, n, d), a(2, n, d), a(3, n, m)
    ),
    "linear_attention: leading axes (4,) of `state.z` must broadcast with (2,) of `k`, `v`, `state.S`": lambda: la(
        q, k, v, state=State(a(2, d, m), a(4, d))
    ),
    "linear_attention: leading axes (3,) of `state.S` must broadcast with (2,) of `q`, `k`, `v`": lambda: la(
        a(2, n, d), k, v, state=State(a(3, d, m), a(3, d))
    ),
    "softmax_attention: leading axes (3,) of `k` must broadcast with (2,) of `q`": lambda: soft(
        a(2, n, d), a(3, n, d), a(3, n, m)
    ),
    "linear_attention: `padding` must have shape (..., 5) to match `k`, got (4,)": lambda: la(
        q, k, v, padding=np.ones(4, bool)
    ),
    "linear_attention: leading axes (2,) of `padding` must broadcast with (3,) of `q`, `k`, `v`": lambda: la(
        a(3, n, d), a(3, n, d), a(3, n, m), padding=np.ones((2, n), bool)
    ),
    "features: `phi_k(k)` must have shape (..., 5, features) to match `k`, got (2, 3)": lambda: la(
        q, k, v, ri.Kernel(lambda x: x[..., :2, :])
    ),
    "features: `phi_q(q)` must have shape (..., 5, 2) to match phi_k(k), got (5, 3)": lambda: la(
        q, k, v, ri.Kernel((ri.feature_maps.identity, lambda x: x[..., :2]))
    ),
    "features: `k` must have shape (..., 5, width) to match `q`, got (4, 3)": lambda: ri.state.features(q, a(4, d)),
    "join: `b.S` must have shape (..., 3, 2) (features, values), got (4, 2)": lambda: ri.state.join(
        State(S, z), State(a(4, m), a(4))
    ),
    "shift: `state.S` must have shape (..., features, values), got (3,)": lambda: ri.state.shift(State(z, z), 1),
    "scale: `state.z` must have shape (..., 3) (features), got (4,)": lambda: ri.state.scale(State(S, a(4)), 2),
    "join: `a.S` must be finite, got nan or inf at feature 1, column 0": lambda: ri.state.join(
        State(put(S, (1, 0), nan), z), State(S, z)
    ),
    "remove: leading axes (3,) of `both.z` must broadcast with (2,) of `both.S`": lambda: ri.state.remove(
        State(a(2, d, m), a(3, d)), State(S, z)
    ),
    "relu: `x` must have shape (..., features), got ()": lambda: ri.feature_maps.relu(np.array(1.0)),
    "absorb: `k` must have shape (..., tokens, width), got (3,)": lambda: ri.state.absorb(State(S, z), a(d), v),
    "absorb: `v` must have shape (..., 5, values) to match `k`, got (4, 2)": lambda: ri.state.absorb(
        State(S, z), k, a(4, m)
    ),
    "absorb: `state.S` must have shape (..., 4, 2) (features, values), got (3, 2)": lambda: ri.state.absorb(
        State(S, z), a(n, 4), v
    ),
    "softmax_attention: `cache.k` must have shape (..., tokens, 3) to match `q`, got (5, 4)": lambda: soft(
        q, k, v, cache=KVCache(a(n, 4), v, keep, n)
    ),
    "softmax_attention: `cache.v` must have shape (..., 5, 2) to match `cache.k` and `v`, got (4, 2)": lambda: soft(
        q, k, v, cache=KVCache(k, a(4, m), keep, n)
    ),
    "softmax_attention: `cache.keep` must have shape (..., 1, 5) to match `cache.k`, got (1, 4)": lambda: soft(
        q, k, v, cache=KVCache(k, v, keep[:, 1:], n)
    ),
    "softmax_attention: `q` must have shape (..., tokens, width), got (3,)": lambda: soft(a(d), k, v),
    "softmax_attention: `v` must have shape (..., 5, values) to match `q`, got (4, 2)": lambda: soft(q, k, a(4, m)),
    "softmax_attention: leading axes (3,) of `cache` must broadcast with (2,) of `k`": lambda: soft(
        q, a(2, n, d), v, cache=KVCache(a(3, n, d), v, keep, n)
    ),
    "softmax_attention: leading axes (3,) of `cache` must broadcast with (2,) of `padding`": lambda: soft(
        q, k, v, padding=np.ones((2, n), bool), cache=KVCache(k, v, np.ones((3, 1, n), bool), n)
    ),
    "absorb: `padding` must have shape (..., 5) to match `k`, got (4,)": lambda: ri.state.absorb(
        State(S, z), k, v, padding=np.ones(4, bool)
    ),
    "absorb: leading axes (2,) of `state.S` must broadcast with (3,) of `k`, `v`": lambda: ri.state.absorb(
        State(a(2, d, m), None), a(3, n, d), v
    ),
    "hedgehog: `W` must have shape (..., e, 3) to match `x`, got (4, 4)": lambda: ri.feature_maps.hedgehog(
        a(4, 4), a(4)
    )(q),
    "hedgehog: `b` must have shape (..., 4) to match `W`, got (5,)": lambda: ri.feature_maps.hedgehog(a(4, 3), a(5))(q),
    # What is not an array, a State, a Rope, a function
    "scale: `strength` must be finite, got nan": lambda: ri.state.scale(State(a(d, m), a(d)), float("nan")),
    # NaN, inf, zero, overflow: which token, which head
    "linear_attention: `q` must be finite, got nan or inf at token 3, column 1": {
        "nan_q": lambda: la(put(q, (3, 1), nan), k, v),
        "nan_before_phi": lambda: la(put(q, (3, 1), nan), k, v, ri.Kernel("relu")),
    },
    "linear_attention: `v` must be finite, got nan or inf at token 2, column 0": lambda: la(q, k, put(v, (2, 0), -inf)),
    "linear_attention: `k` must be finite, got nan or inf at token 4, column 0, head (1, 2)": lambda: la(
        a(2, 3, n, d), put(a(2, 3, n, d), (1, 2, 4, 0), nan), a(2, 3, n, m)
    ),
    "linear_attention: `q` must be finite, got nan or inf at token 0, column 0": lambda: la(
        put(q, ([0, 1], 0), nan), k, v, padding=np.array([1, 0, 1, 1, 1], bool)
    ),
    "linear_attention: `state.S` must be finite, got nan or inf at feature 1, column 0": lambda: la(
        q, k, v, state=State(put(S, (1, 0), nan), z)
    ),
    "linear_attention: `state.z` must be finite, got nan or inf at feature 2, head (1,)": lambda: la(
        q, k, v, state=State(S, put(a(2, d), (1, 2), nan))
    ),
    "absorb: `k` must be finite, got nan or inf at token 1, column 1": lambda: ri.state.absorb(
        State(S, z), put(k, (1, 1), nan), v
    ),
    "softmax_attention: `q` must be finite, got nan or inf at token 4, column 2": lambda: soft(
        put(q, (4, 2), nan), k, v
    ),
    # RoPE
    "angle_table: `width` must be even, to pair features, got 3": lambda: table(3),
    "angle_table: `width` must be an integer ≥ 0, got -2": lambda: table(-2),
    "angle_table: `frequencies` must have 2 entries for width 4, got 1": lambda: ri.angle_table(F, 4, frequencies=[1]),
    "angle_table: `frequencies[0]` must be a finite number, got nan": lambda: ri.angle_table(F, 2, frequencies=[nan]),
    "angle_table: `base` must be a finite number, got inf": lambda: ri.angle_table(F, 2, base=inf),
    "angle_table: `base` must be a finite number, got '1e4'": lambda: ri.angle_table(F, 2, base="1e4"),
    "angle_table: `base` must be positive, got 0": lambda: ri.angle_table(F, 2, base=0),
    "angle_table: `positions` must not exceed 2^53 in size, got -9007199254740993": lambda: table(2)([0, -(2**53) - 1]),
    "angle_table: `positions` must not exceed 2^53 in size, got 9007199254740996": lambda: la(
        q, k, v, ri.Kernel(rope=Rope(table(2))), state=State(S, z, 2**53)
    ),
    "power_table: `c`, `s` must satisfy c² + s² = 1, pair 1 does not": lambda: ri.power_table(
        QQ.convert([1, 1]), QQ.convert([0, 1])
    ),
    "power_table: `c` must have shape (pairs,), got ()": lambda: ri.power_table(a(), a()),
    "power_table: `s` must have shape (2,) to match `c`, got (1,)": lambda: ri.power_table(a(2), a(1)),
    "Rope: `x` must have at least 4 features for 2 pairs, got shape (5, 3)": lambda: la(
        q, k, v, ri.Kernel(rope=Rope(table(4)))
    ),
    "interleave: `x` must have at least 4 features for 2 pairs, got shape (5, 3)": lambda: ri.rope.interleave(
        q, pairs=2
    ),
    "deinterleave: `pairs` must be an integer ≥ 0, got -1": lambda: ri.rope.deinterleave(q, pairs=-1),
    "rotate: `x` must have shape (..., tokens, features), got (3,)": lambda: ri.rotate(a(3), a(1, 1), a(1, 1)),
    "rotate: `cos` must have shape (..., 5, pairs) to match `x`, got (4, 1)": lambda: ri.rotate(q, a(4, 1), a(4, 1)),
    "rotate: `sin` must have shape (..., 5, 1) to match `cos`, got (4, 1)": lambda: ri.rotate(q, a(5, 1), a(4, 1)),
    "rotate: leading axes (3,) of `cos` must broadcast with (2,) of `x`": lambda: ri.rotate(
        a(2, n, d), a(3, n, 1), a(3, n, 1)
    ),
    "Rope: `positions` must have one entry per token, 5, got 2": lambda: Rope(table(2))(q, [0, 1]),
    "Rope: `x` must have shape (..., tokens, features), got (3,)": lambda: Rope(table(2))(a(3), [0]),
    # Names
    "linear_attention: did you mean 'causal'? `mask` must be one of causal, full, got 'casual'": lambda: la(
        q, k, v, mask="casual"
    ),
    "Rope: did you mean 'half'? `layout` must be one of half, interleaved, got 'halves'": lambda: Rope(
        table(2), "halves"
    ),
    "rotate: did you mean 'interleaved'? `layout` must be one of half, interleaved, got 'interleave'": lambda: (
        ri.rotate(q, a(n, 1), a(n, 1), layout="interleave")
    ),
    "Rope: did you mean 'before'? `placement` must be one of after, before, got 'befor'": lambda: Rope(
        table(2), placement="befor"
    ),
    "Rope: `placement` must be one of after, before, got None": lambda: Rope(table(2), placement=None),
    (f"feature_map: did you mean 'relu'? `name` must be one of {FEATURE_MAPS}, got 'rleu'"): lambda: la(
        q, k, v, ri.Kernel("rleu")
    ),
    # Sizes
    (
        "linear_attention: `mask` must be 'causal', 'full' or a prefix length, an integer between 0 and 5, got -1"
    ): lambda: la(q, k, v, mask=-1),
    "linear_attention: `mask` must be 'causal', 'full' or a prefix length, an integer between 0 and 5, got 6": lambda: (
        la(q, k, v, mask=6)
    ),
    (
        "linear_attention: `mask` must be 'causal', 'full' or a prefix length, an integer between 0 and 5, got True"
    ): lambda: la(q, k, v, mask=True),
    (
        "linear_attention: `mask` must be 'causal', 'full' or a prefix length, an integer between 0 and 5, "
        "got a value of type ndarray"
    ): lambda: la(q, k, v, mask=np.ones((n, n), bool)),
    (
        "softmax_attention: `mask` must be 'causal', 'full' or a prefix length, an integer between 0 and 5, got 6"
    ): lambda: soft(q, k, v, mask=6),
    "linear_attention_chunked: `chunk` must be an integer ≥ 1, got 0": lambda: chunked(q, k, v, chunk=0),
    "linear_attention_chunked: `chunk` must be an integer ≥ 1, got 2.0": lambda: chunked(q, k, v, chunk=2.0),
    "polynomial: `degree` must be an integer between 0 and 64, got -1": lambda: ri.feature_maps.polynomial(-1),
    "polynomial(16): `x` must have at most 2^32 features in all, got 2.1e10": lambda: la(
        q, k, v, ri.Kernel("polynomial(16)")
    ),
    "dpfp: `nu` must be an integer ≥ 1, got 0": {
        "nu": lambda: ri.feature_maps.dpfp(0),
        "map_dpfp": lambda: ri.feature_map("dpfp(0)"),
    },
    "no_text: `r` must be an integer between 0 and 281474976710656, got -1": lambda: ri.state.no_text(q, -1, 2),
    "no_text: `lead` must be an integer between 0 and 281474976710656, got -2": lambda: ri.state.no_text(
        q, 3, 2, lead=(-2,)
    ),
    "State: `position` must be an integer, got 1.5": lambda: State(S, z, 1.5),
    "KVCache: `position` must be an integer, got '5'": lambda: KVCache(k, v, keep, "5"),
    "shift: `by` must be an integer, got 0.5": lambda: ri.state.shift(State(S, z), 0.5),
    # State
    "linear_attention: `state` has S but no z; a normalised layer needs both (it divides by φ(q)·z)": lambda: la(
        q, k, v, state=State(S, None)
    ),
    "join: `b` must have z exactly if the other state has it, got z in `b` only": lambda: ri.state.join(
        State(S, None), State(S, z)
    ),
    "remove: `b` must have z exactly if the other state has it, got z in the other only": lambda: ri.state.remove(
        State(S, z), State(S, None)
    ),
    "remove: `origin` must be an integer, got 0.5": lambda: ri.state.remove(State(S, z), State(S, z), origin=0.5),
    "join: `origin` must be an integer, got 'start'": lambda: ri.state.join(State(S, z), State(S, z), origin="start"),
    "angle_table: `frequencies` must be below 2^64 in size, got 1e+60": lambda: ri.angle_table(
        q, 2, frequencies=[1e60]
    )([1]),
    # Feature maps by name
    (f"feature_map: did you mean 'polynomial(2)'? `name` must be one of {FEATURE_MAPS}, got 'polynomial(x)'"): lambda: (
        ri.feature_map("polynomial(x)")
    ),
    # Memories
    "write: `v` must have shape (..., 5, values) to match `y`, got (4, 2)": lambda: write(directions, k, a(4, m)),
    "write: `y` must have shape (..., tokens, width), got (3,)": lambda: write(directions, k[0], a(4, m)),
    "write: leading axes (3,) of `v` must broadcast with (2,) of `y`": lambda: write(
        directions, a(2, n, d), a(3, n, m)
    ),
    "write: `y` must have at least one token (a memory of no tokens has no scale), got none": lambda: write(
        directions, k[:0], v[:0]
    ),
    "Points: `x` must have shape (..., tokens, 3) to match `points`, got (5, 2)": lambda: points.log(v),
    "linear_attention_carried: `k` must have shape (..., 5, 3) to match `q`, got (4, 3)": lambda: (
        ri.linear_attention_carried(q, a(4, d), v, phi=directions)
    ),
    "linear_attention_carried: `v` must have shape (..., 5, values) to match `q`, got (4, 2)": lambda: (
        ri.linear_attention_carried(q, k, a(4, m), phi=directions)
    ),
    "softmax_attention: `memory.S` must have shape (..., features, 2), got (4, 3)": lambda: recalling(S=a(4, 3)),
    "softmax_attention: `memory.mix` must have shape (..., 2, 3) to match `memory.S`, got (2, 2)": lambda: recalling(
        mix=a(2, 2)
    ),
    "softmax_attention: `memory.z` must have shape (..., 4) to match `memory.S`, got (3,)": lambda: recalling(z=a(3)),
    "softmax_attention: `memory.scale` must have shape (..., 4) to match `memory.S`, got (3,)": lambda: recalling(
        scale=a(3)
    ),
    # Memories in files
    "softmax_attention: `memory.S` must have the 4 features of its map, got 3": lambda: recalling(
        S=a(3, m), scale=a(3)
    ),
    "softmax_attention: leading axes (3,) of `memory.scale` must broadcast with (2,) of `memory.S`": lambda: recalling(
        S=a(2, 4, m), scale=a(3, 4)
    ),
    "softmax_attention: `cache.k` must be finite, got nan or inf at token 2, column 0": lambda: soft(
        q, k, v, cache=KVCache(put(k, (2, 0), nan), v, keep, n)
    ),
}


TYPE_ERRORS: Table = {
    "rotate: `x` must be an array (NumPy, torch, JAX, or of a refimpl system), got list": lambda: ri.rotate(
        [[1.0]], a(1, 0), a(1, 0)
    ),
    "interleave: `x` must be an array (NumPy, torch, JAX, or of a refimpl system), got list": lambda: (
        ri.rope.interleave([[1.0]], pairs=0)
    ),
    "deinterleave: `x` must be an array (NumPy, torch, JAX, or of a refimpl system), got list": lambda: (
        ri.rope.deinterleave([[1.0]], pairs=0)
    ),
    # Kinds of numbers
    "linear_attention: `q` must be real or complex floating, got int64; convert it explicitly": lambda: la(
        q.astype(int), k, v
    ),
    "linear_attention: `k` must be real or complex floating, got bool; convert it explicitly": lambda: la(q, k > 0, v),
    "linear_attention: `v` is an object array; make it exact with QQ.convert or another system's convert": lambda: la(
        q, k, v.astype(object)
    ),
    (
        "linear_attention: `q` is bfloat16, whose products NumPy forms in float32; use Rounded('bfloat16') or torch"
    ): lambda: la(*(x.astype(ml_dtypes.bfloat16) for x in (q, k, v))),
    "linear_attention: `k` has dtype float32, `q` has float64; convert one of them explicitly": lambda: la(
        q, *f32(k), v
    ),
    "linear_attention: `state.z` has dtype float32, `k` has float64; convert one of them explicitly": lambda: la(
        q, k, v, state=State(S, *f32(z))
    ),
    "features: `phi_k(k)` has dtype float32, `k` has float64; convert one of them explicitly": lambda: la(
        q, k, v, ri.Kernel(lambda x: x.astype(np.float32))
    ),
    "Rope: `cos` has dtype float64, `x` has float32; convert one of them explicitly": lambda: la(
        *f32(q, k, v), ri.Kernel(rope=Rope(table(2)))
    ),
    "softmax_attention: `scale` has dtype float64, `q` has float32; convert one of them explicitly": lambda: soft(
        *f32(q, k, v), scale=np.float64(0.5)
    ),
    "scale: `strength` has dtype float64, `S` has float32; convert one of them explicitly": lambda: ri.state.scale(
        State(*f32(S, z)), np.float64(0.5)
    ),
    "softmax_attention: `v` has dtype float64, `q` has float32; convert one of them explicitly": lambda: soft(
        *f32(q, k), v
    ),
    "features: `k` has dtype float64, `q` has float32; convert one of them explicitly": lambda: ri.state.features(
        *f32(q), k
    ),
    "absorb: `v` has dtype float64, `k` has float32; convert one of them explicitly": lambda: ri.state.absorb(
        State(S, z), *f32(k), v
    ),
    "hedgehog: `W` has dtype float32, `x` has float64; convert one of them explicitly": lambda: (
        ri.feature_maps.hedgehog(*f32(a(4, d), a(4)))(q)
    ),
    "power_table: `s` has dtype float64, `c` has float32; convert one of them explicitly": lambda: ri.power_table(
        *f32(a(1)), a(1)
    ),
    "linear_attention: `k` has library array_api_strict, `q` has numpy; convert one of them explicitly": lambda: la(
        q, strict.asarray(k), v
    ),
    "linear_attention: `k` has library torch, `q` has numpy; convert one of them explicitly": lambda: la(
        q, torch().asarray(k), v
    ),
    "linear_attention: `state.S` has library array_api_strict, `k` has numpy; convert one of them explicitly": lambda: (
        la(q, k, v, state=State(strict.asarray(S), z))
    ),
    "features: `phi_k(k)` has library array_api_strict, `k` has numpy; convert one of them explicitly": lambda: la(
        q, k, v, ri.Kernel(strict.asarray)
    ),
    "linear_attention: `padding` has library array_api_strict, `k` needs numpy; convert it explicitly": {
        "padding_library": lambda: la(q, k, v, padding=strict.asarray(keep[0])),
        "padding_library_in_Q": lambda: la(*Q, padding=strict.asarray(keep[0])),
    },
    "join: `b.S` has library array_api_strict, `a.S` has numpy; convert one of them explicitly": lambda: ri.state.join(
        State(S, z), State(strict.asarray(S), strict.asarray(z))
    ),
    (
        "softmax_attention: `cache.v` has library array_api_strict, `q` has numpy; convert one of them explicitly"
    ): lambda: soft(q, k, v, cache=KVCache(k, strict.asarray(v), keep, n)),
    (
        "linear_attention: `k` has device array_api_strict.Device('CPU_DEVICE'), `q` has "
        "array_api_strict.Device('device1'); "
        "convert one of them explicitly"
    ): lambda: la(strict.ones((n, d), device=strict.Device("device1")), strict.ones((n, d)), strict.ones((n, m))),
    "linear_attention: `k` has device cpu, `q` has meta; convert one of them explicitly": lambda: la(
        torch().ones(n, d, device="meta"), torch().ones(n, d), torch().ones(n, m)
    ),
    "linear_attention: `k` has number system GF(7), `q` has ℚ; convert one of them explicitly": lambda: la(
        Q[0], GF(7).random((n, d), 1), Q[2]
    ),
    "linear_attention: `v` has number system GF(11), `q` has GF(7); convert one of them explicitly": lambda: la(
        GF(7).random((n, d), 1), GF(7).random((n, d), 1), GF(11).random((n, m), 1)
    ),
    "linear_attention: `k` has number system numpy, `q` has ℚ; convert one of them explicitly": lambda: la(Q[0], k, v),
    "Rope: `cos` has number system GF(7), `x` has ℚ; convert one of them explicitly": lambda: la(
        *Q, ri.Kernel(rope=Rope(ri.power_table(GF(7).convert([0]), GF(7).convert([1]))))
    ),
    "0.5 is a float; ℚ takes Fraction(1, 2)": lambda: ri.state.scale(State(Q[1], None), 0.5),
    # What is not an array, a State, a Rope, a function
    "linear_attention: `q` must be an array (NumPy, torch, JAX, or of a refimpl system), got list": lambda: la(
        q.tolist(), k, v
    ),
    "linear_attention: `state.S` must be an array (NumPy, torch, JAX, or of a refimpl system), got list": lambda: la(
        q, k, v, state=State(S.tolist(), z)
    ),
    "features: `phi_k(k)` must be an array (NumPy, torch, JAX, or of a refimpl system), got list": lambda: la(
        q, k, v, ri.Kernel(lambda x: x.tolist())
    ),
    "angle_table: `like` must be an array (NumPy, torch, JAX, or of a refimpl system), got str": lambda: ri.angle_table(
        "float64", 2
    ),
    "linear_attention: `padding` must be a boolean array, got list": lambda: la(q, k, v, padding=[True] * n),
    "linear_attention: `padding` must be a boolean array, got int64": lambda: la(q, k, v, padding=np.ones(n, int)),
    "linear_attention: `state` must be a State, got tuple": lambda: la(q, k, v, state=(S, z)),
    "linear_attention: `state` must be a State, got ndarray": lambda: la(q, k, v, state=S),
    "join: `a.z` must be an array (NumPy, torch, JAX, or of a refimpl system), got int": lambda: ri.state.join(
        State(S, 7), State(S, z)
    ),
    "scale: `state.S` must be an array (NumPy, torch, JAX, or of a refimpl system), got list": lambda: ri.state.scale(
        State([[1.0]], None), 2
    ),
    "relu2: `x` must be real or complex floating, got int8; convert it explicitly": lambda: ri.feature_maps.relu2(
        np.array([[20]], np.int8)
    ),
    "polynomial(2): `x` must be real or complex floating, got int64; convert it explicitly": lambda: (
        ri.feature_maps.polynomial(2)(q.astype(int))
    ),
    "taylor2_pair: `scale` must be a number or an array of shape (), got '2'": lambda: ri.feature_maps.taylor2_pair(
        "2"
    )[0](q),
    masked("linear_attention", "k"): lambda: la(q, np.ma.masked_greater(k, 0), v),
    masked("linear_attention", "padding"): lambda: la(q, k, v, padding=np.ma.masked_array(keep[0], keep[0])),
    masked("transformer", "text"): lambda: model(np.ma.masked_equal([3, 1, 4], 1)),
    masked("ℚ.convert", "values"): lambda: QQ.convert(np.ma.masked_equal([3, 1, 4], 1)),
    masked("numpy float64.convert", "values"): lambda: F.convert(np.ma.masked_equal([3.0, 1.0], 1.0)),
    masked("floats", "x"): lambda: ri.floats(np.ma.masked_equal([3.0, 1.0], 1.0)),
    "absorb: `state` must be a State, got tuple": lambda: ri.state.absorb((S, z), k, v),
    "join: `a` must be a State, got ndarray": lambda: ri.state.join(S, State(S, z)),
    "join: `b` must be a State, got tuple": lambda: ri.state.join(State(S, z), (S, z)),
    "softmax_attention: `cache` must be a KVCache, got State": lambda: soft(q, k, v, cache=State(S, z)),
    "shift: `state` must be a State, got tuple": lambda: ri.state.shift((S, z), 1),
    "remove: `both` must be a State, got tuple": lambda: ri.state.remove((S, z), State(S, z)),
    "scale: `state` must be a State, got ndarray": lambda: ri.state.scale(S, 2),
    "no_text: `like` must be an array (NumPy, torch, JAX, or of a refimpl system), got type": lambda: ri.state.no_text(
        np.float64, 3, 2
    ),
    "Kernel: `rope` must be a Rope, got function": lambda: ri.Kernel(rope=table(2)),
    "Kernel: `normalise` must be a bool, got int": lambda: ri.Kernel(normalise=1),
    "linear_attention: `kernel` must be a Kernel, such as Kernel('elu+1'), got str": lambda: la(q, k, v, "relu"),
    "features: `kernel` must be a Kernel, such as Kernel('elu+1'), got Rope": lambda: ri.state.features(q, k, before),
    "absorb: `kernel` must be a Kernel, such as Kernel('elu+1'), got function": lambda: ri.state.absorb(
        State(S, z), k, v, ri.feature_maps.identity
    ),
    "shift: `kernel` must be a Kernel, such as Kernel('elu+1'), got Rope": lambda: ri.state.shift(
        State(S, z), 1, before
    ),
    "join: `kernel` must be a Kernel, such as Kernel('elu+1'), got Rope": lambda: ri.state.join(
        State(S, z), State(S, z), before
    ),
    "remove: `kernel` must be a Kernel, such as Kernel('elu+1'), got NoneType": lambda: ri.state.remove(
        State(S, z), State(S, z), None
    ),
    "softmax_attention: `rope` must be a Rope, got function": lambda: soft(q, k, v, rope=table(2)),
    "Kernel: `phi` must be a function, a name, or a pair (φ_q, φ_k) of them, got 2": lambda: ri.Kernel(2),
    "Kernel: `phi` must be a function, a name, or a pair (φ_q, φ_k) of them, got None": {
        "no_phi": lambda: ri.Kernel(None),
        "no_phi_under_rope": lambda: ri.Kernel(None, before),
    },
    "Kernel: `phi` must be a function, a name, or a pair (φ_q, φ_k) of them, got ('relu', 'relu', 'relu')": lambda: (
        ri.Kernel(("relu",) * 3)
    ),
    "softmax_attention: `scale` must be an integer, a float or an array, got '1/√d'": lambda: soft(
        q, k, v, scale="1/√d"
    ),
    "softmax_attention: `scale` must be an integer, a float or an array, got Fraction(1, 2)": lambda: soft(
        q, k, v, scale=Fraction(1, 2)
    ),
    "scale: `strength` must be an integer, a float or an array, got 1j": lambda: ri.state.scale(
        State(a(d, m), a(d)), 1j
    ),
    "scale: `strength` must be an integer, a Fraction or an array, got 1j": lambda: ri.state.scale(
        State(Q[1], None), 1j
    ),
    "softmax_attention: `cache.keep` must be a boolean array, got NoneType": lambda: soft(
        q, k, v, cache=ri.KVCache(k, v, None, 5)
    ),
    "softmax_attention: `cache.keep` must be a boolean array, got int64": lambda: soft(
        q, k, v, cache=ri.KVCache(k, v, np.ones((1, n), dtype=np.int64), 5)
    ),
    # RoPE
    "angle_table: `positions` must be a sequence of integers, got [0.5]": lambda: table(2)([0.5]),
    "power_table: `positions` must be a sequence of integers, got 3": lambda: ri.power_table(a(1), a(1))(3),
    # Memories
    "write: `phi` must be a map such as `random_features` makes, got str": lambda: write("positive", k, v),
    "write: `v` has dtype float32, `y` has float64; convert one of them explicitly": lambda: write(
        directions, k, *f32(v)
    ),
    "join: `b` has dtype float32, `a` has float64; convert one of them explicitly": lambda: join(
        recalled, replace(recalled, S=recalled.S.astype(np.float32))
    ),
    "Points: `points` has dtype float64, `x` has float32; convert one of them explicitly": lambda: points.log(*f32(q)),
    "linear_attention_carried: `k` has dtype float32, `q` has float64; convert one of them explicitly": lambda: (
        ri.linear_attention_carried(q, *f32(k), v, phi=directions)
    ),
    "softmax_attention: `memory.S` has dtype float32, `q` has float64; convert one of them explicitly": lambda: (
        recalling(S=f32(recalled.S)[0])
    ),
    "KVCache: `memories` must be a Memory, got State": lambda: KVCache(k, v, keep, n, (State(S, z),)),
}


NOT_DEFINED: Table = {
    # Kinds of numbers
    "exp is not defined in GF(10007); softmax attention needs a real system": lambda: soft(
        *[GF(10007).random((n, d), 1)] * 3
    ),
    "division is not defined in ℤ; normalised linear attention needs a field system": lambda: la(
        *[Integers().random((n, d), 1)] * 3
    ),
    "exp is not defined in ℚ; elu+1 needs a real system": lambda: la(*Q, ri.Kernel("elu+1")),
    "maximum is not defined in GF(10007); relu needs an ordered system": lambda: la(
        *[GF(10007).random((n, d), 1)] * 3, ri.Kernel("relu")
    ),
    "exp is not defined in ℚ; hedgehog needs a real system": lambda: ri.feature_maps.hedgehog(Q[0], Q[0][:, 0])(Q[0]),
    # RoPE
    "cos is not defined in GF(7); use power_table, which needs only c² + s² = 1": lambda: table(2, GF(7))([1]),
    "softmax_attention: `rope` must have placement 'before' (there is no feature map), got 'after'": lambda: soft(
        q, k, v, rope=Rope(table(2))
    ),
    # State
    "shift: RoPE before the kernel allows a shift only for φ = identity, not for elu_plus_one; let positions go on": {
        "shift_elu": lambda: ri.state.shift(State(S, z), 1, ri.Kernel(ri.feature_maps.elu_plus_one, rope=before)),
        "shift_elu_name": lambda: ri.state.shift(State(S, z), 1, ri.Kernel("elu+1", rope=before)),
        "shift_elu_query": lambda: ri.state.shift(State(S, z), 1, ri.Kernel(("elu+1", "identity"), rope=before)),
    },
    (
        "join: RoPE before the kernel allows a shift only for φ = identity, not for polynomial(2); let positions go on"
    ): lambda: ri.state.join(
        State(S, z, 4), State(S, z), ri.Kernel((ri.feature_maps.identity, ri.feature_maps.polynomial(2)), rope=before)
    ),
    "remove: RoPE before the kernel allows a shift only for φ = identity, not for relu; let positions go on": lambda: (
        ri.state.remove(State(S, z, 4), State(S, z, 1), ri.Kernel("relu", rope=before))
    ),
    # Memories
    "join: memories can be joined only if they were written through one map, in full rank; keep both": {
        "join_rank": lambda: join(recalled, replace(recalled, mix=a(m, m + 1))),
        "join_maps": lambda: join(recalled, write(ri.random_features("positive", 4, d, seed=1, system=F), k, v)),
    },
}


ZERO_DENOMINATORS: Table = {
    # NaN, inf, zero, overflow: which token, which head
    "linear_attention: the denominator φ(q)·z is zero at token 1 (no ε is added)": {
        "zero_in_Q": lambda: la(*(column(QQ, 1, x) for x in (1, -1, 1))),
        "zero_in_GF": lambda: la(*(column(GF(5), 1, x) for x in (1, 4, 1))),
        "zero_in_float64": lambda: la(*(column(F, 1, x) for x in (1, -1, 1))),
        "zero_in_mpmath": lambda: la(*(column(MP(20), 1, x) for x in (1, -1, 1))),
        "zero_in_a_ball": lambda: la(*(column(balls(20), 1, x) / 3 for x in (1, -1, 1))),
    },
    "linear_attention: the denominator φ(q)·z is zero at token 1, head (1, 2) (no ε is added)": lambda: la(
        np.ones((2, 3, 2, 1)), np.where(np.arange(12).reshape(2, 3, 2, 1) == 11, -1.0, 1.0), np.ones((2, 3, 2, 1))
    ),
    "softmax_attention: the denominator Σ exp(c q·k) is zero at token 0 (no ε is added)": lambda: soft(
        column(F, -100), column(F, 100), column(F, 1), scale=1.0
    ),
    # RoPE
    "circle_point: `t` must satisfy t² ≠ −1 in GF(5), entry (1,) does not": lambda: ri.circle_point(
        GF(5).convert([1, 2])
    ),
    # Memories
    "linear_attention_carried: the denominator φ(q)·z is zero at token 1 (no ε is added)": lambda: (
        ri.linear_attention_carried(
            np.zeros((2, 1)),
            np.pi * np.array([[0.0], [1.0]]),
            a(2, m),
            phi=taylor,
            memory=replace(write(taylor, np.zeros((1, 1)), a(1, m)), z=np.array([-2.0, 0.0, 0.0])),
        )
    ),
}


large = State(np.full((d, m), 1e308), np.full(d, 1e308))
NOT_FINITE: Table = {
    # The algebra of states
    "absorb: S overflows numpy float64: nan or inf at feature 0, column 0": lambda: ri.state.absorb(
        large, np.full((n, d), 1e308), np.ones((n, m))
    ),
    "absorb: z overflows numpy float64: nan or inf at feature 0": lambda: ri.state.absorb(
        large, np.full((n, d), 1e308), np.zeros((n, m))
    ),
    "join: S overflows numpy float64: nan or inf at feature 0, column 0": lambda: ri.state.join(large, large),
    "remove: S overflows numpy float64: nan or inf at feature 0, column 0": lambda: ri.state.remove(
        large, State(-large.S, large.z)
    ),
    "scale: S overflows numpy float64: nan or inf at feature 0, column 0": lambda: ri.state.scale(large, 10),
    "shift: S overflows numpy float64: nan or inf at feature 1, column 0": lambda: ri.state.shift(
        State(1.7 * large.S, z), 1, ri.Kernel(rope=Rope(table(2)))
    ),
    "linear_attention: z overflows numpy float32: nan or inf at feature 0": lambda: la(
        np.zeros((2, 1), np.float32),
        np.full((2, 1), 3e38, np.float32),
        np.zeros((2, 1), np.float32),
        ri.Kernel(normalise=False),
    ),
    # NaN, inf, zero, overflow: which token, which head
    "linear_attention: phi_k(k) overflows numpy float64: nan or inf at token 0, column 0": lambda: la(
        q, k, v, ri.Kernel((ri.feature_maps.identity, lambda x: x * nan))
    ),
    "linear_attention: the output overflows numpy float16: nan or inf at token 1, column 0": lambda: la(
        *(np.array([[1], [300]], np.float16),) * 2, np.ones((2, 1), np.float16), ri.Kernel(normalise=False)
    ),
    "linear_attention: the denominator φ(q)·z overflows numpy float16: nan or inf at token 0, column 0": lambda: la(
        *half16, np.full((2, 1), 0.001, np.float16)
    ),
    "linear_attention_quadratic: S overflows numpy float16: nan or inf at feature 0, column 0": lambda: (
        ri.linear_attention_quadratic(half16[0] / np.float16(3000), half16[0], half16[0])
    ),
    "softmax_attention: the output overflows numpy float64: nan or inf at token 0, column 0": lambda: soft(
        column(F, 100), column(F, 100), column(F, 1), scale=1.0
    ),
}


CASES = cases(
    {
        ValueError: VALUE_ERRORS,
        TypeError: TYPE_ERRORS,
        NotDefined: NOT_DEFINED,
        ZeroDenominator: ZERO_DENOMINATORS,
        NotFinite: NOT_FINITE,
    }
)
