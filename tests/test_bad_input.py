"""Bad input: every error of the core, word for word, and no `raise` without a case here."""

from __future__ import annotations

import ast
import json
import re
import traceback
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import array_api_strict as strict
import ml_dtypes
import numpy as np
import pytest
from test_random_features import WORDS

import refimpl as ri
from refimpl import (
    GF,
    MP,
    QQ,
    Best,
    Compression,
    Config,
    KVCache,
    NotDefined,
    NotFinite,
    Points,
    Rope,
    Rotary,
    State,
    ZeroDenominator,
    balls,
)
from refimpl.attention.memory import join, write
from refimpl.descent import dai, irie, ren_liu, von_oswald
from refimpl.descent.gradient import alignment, gradient, squared_error, step
from refimpl.descent.patch import rank_one_patch
from refimpl.descent.ren_liu import Attended
from refimpl.files import checkpoint
from refimpl.files import safetensors as files

F = ri.Float()


def a(*shape: int) -> np.ndarray:
    return F.random(shape, sum(shape))


def put(x: Any, at: Any, value: float) -> Any:
    x = x.copy()
    x[at] = value
    return x


def f32(*arrays: Any) -> list[Any]:
    return [x.astype(np.float32) for x in arrays]


def column(system: Any, *values: Any) -> Any:
    return system.convert([[x] for x in values])


def torch() -> Any:
    return pytest.importorskip("torch")


def table(width: int, like: Any = F) -> Any:
    return ri.angle_table(like, width)


class Integers(type(QQ)):  # type: ignore[misc]
    name, can = "ℤ", frozenset({"ring"})


la, chunked, soft = ri.linear_attention, ri.linear_attention_chunked, ri.softmax_attention
n, d, m = 5, 3, 2
q, k, v, S, z = a(n, d), a(n, d), a(n, m), a(d, m), a(d)
Q = tuple(QQ.random(s, 1) for s in ((n, d), (n, d), (n, m)))
keep = np.ones((1, n), dtype=bool)
before = Rope(table(2), placement="before")
half16 = [np.full((2, 1), 300, np.float16)] * 2
inf, nan = float("inf"), float("nan")
config = Config(layers=1, width=3, heads=2, groups=1, d=2, m=2, vocabulary=5)
model = ri.random_model(F, config, 1)
table_model = ri.random_model(F, replace(config, table=4), 1)
converted = ri.convert(model, [3, 1, 4])
bias = converted.biases[0]
W = dict(model.weights)
seen = Attended(k, v, k, v, z)
softmax_config = replace(config, phi="softmax", rope=Rotary(2, placement="before"))
softmax_model = ri.random_model(F, softmax_config, 1)
remembering = ri.convert(softmax_model, [3, 1, 4], by=Compression("positive", 4))
kept = ri.convert(softmax_model, [3, 1, 4]).biases[0]
points, directions = Points(a(4, d)), ri.random_features("positive", 4, d, seed=0, system=F)
recalled = write(directions, k, v)
taylor = ri.RandomFeatures("taylor", None)
unrolled = ri.random_model(F, ri.Rwkv("5.2", 1, 4, 2, 5, 7), 1)


def recalling(**changes: Any) -> Any:
    """Attention with a memory in which something is wrong."""
    return soft(q, k, v, cache=KVCache(k, v, keep, n, (replace(recalled, **changes),)))


def with_biases(*biases: State) -> ri.Model:
    return replace(model, biases=biases)


def in_Q(**options: Any) -> Any:
    return ri.random_model(QQ, replace(config, phi="identity", norm="none", **options), 1)([1])


def loud() -> Any:
    untied = replace(config, tied=False)
    weights = {name: w * 0 for name, w in ri.random_model(ri.Float("numpy", "float16"), untied, 1).weights.items()}
    for name, value in (
        ("offset", 300),
        ("unembedding", 300),
        ("embedding", 1),
        ("layers.0.W_K", 1),
        ("layers.0.W_Q", 1),
    ):
        weights[name] = weights[name] + np.float16(value)
    return ri.Model(untied, weights)([0])


def small16(*, width: int = 1, norm: str = "none", **values: float) -> Any:
    """A small model in float16, its weights 1 but for those given."""
    plain = ri.random_model(ri.Float("numpy", "float16"), Config(layers=1, width=width, phi="identity", norm=norm), 1)
    weights = {name: np.full_like(x, values.get(name.rpartition(".")[2], 1)) for name, x in plain.weights.items()}
    return ri.Model(plain.config, weights)


def summing() -> Any:
    """A model whose denominators are x_t Σ x_s."""
    plain = ri.random_model(QQ, Config(layers=1, width=1, phi="identity", norm="none"), 1)
    return ri.Model(plain.config, {name: QQ.ones(x.shape) for name, x in plain.weights.items()})


def overflowing() -> Any:
    """x + o beyond float16: x and v are large, nothing else is."""
    plain = ri.random_model(ri.Float("numpy", "float16"), Config(layers=1, width=1, norm="none"), 1)
    large = ri.Model(
        plain.config, {name: np.full_like(x, name.endswith(("W_V", "W_O"))) for name, x in plain.weights.items()}
    )
    return large(np.array([[60000]], np.float16))


def zero_keys() -> Any:
    """A model whose keys are all 0, and with φ = identity its denominators."""
    return ri.Model(replace(config, phi="identity"), W | {"layers.0.W_K": 0 * W["layers.0.W_K"]})([1, 2])


def loaded(
    which: ri.Model = converted,
    base: Any = None,
    *,
    tensors: Any = None,
    seal: bool = False,
    alone: bool = False,
    **words: Any,
) -> Any:
    """What `load` says to a file with other tensors or other metadata; None takes one out. seal: its biases get a new digest."""
    ri.save("m", which, biases_only=alone)
    old, said, _ = files.read_safetensors("m")
    tensors = {name: x for name, x in (old | (tensors or {})).items() if x is not None}
    said = {name: x for name, x in (said | words).items() if x is not None}
    if seal:
        about = {name: said[name] for name in ("position", "prompts", "digest", "maps") if name in said}
        said["biases"] = checkpoint.fingerprint(
            about, {name: x for name, x in tensors.items() if name not in which.config.shapes}
        )
    files.write_safetensors("m", tensors, said)
    return ri.load("m", base)


def mapped(*maps: Any, tensors: Any = None, which: ri.Model | None = None, **changes: Any) -> Any:
    """What `load` says to other words about a map, by someone who can compute digests."""
    ri.save("m", which or remembering)
    ((said,),) = json.loads(files.read_safetensors("m")[1]["maps"])
    said = {name: x for name, x in (said | changes).items() if x is not None}
    return loaded(which or remembering, tensors=tensors, seal=True, maps=json.dumps(maps[0] if maps else [[said]]))


def without_rope() -> ri.Model:
    base = ri.random_model(F, Config(1, 3, d=2, m=2, phi="softmax", vocabulary=5), 1)
    return ri.convert(base, [3, 1, 4], by=Compression("positive", 4))


def configured(**changes: Any) -> Any:
    return loaded(config=json.dumps(json.loads(checkpoint.config_text("save", config)) | changes, sort_keys=True))


@dataclass
class Case:
    run: Any
    error: type
    message: str


CASES: dict[str, Case] = {}


def refused(error: type, message: str, **cases: Any) -> None:
    CASES.update({name: Case(run, error, message) for name, run in cases.items()})


# fmt: off
# Shapes
refused(ValueError, "linear_attention: `q` must have shape (..., tokens, width), got (3,)",
        q_one_axis=lambda: la(a(d), k, v))
refused(ValueError, "linear_attention: `k` must have shape (..., 5, 3) to match `q`, got (5, 4)",
        k_wide=lambda: la(q, a(n, 4), v))
refused(ValueError, "linear_attention: `k` must have shape (..., 5, 3) to match `q`, got (4, 3)",
        k_short=lambda: la(q, a(4, d), v))
refused(ValueError, "linear_attention: `v` must have shape (..., 5, values) to match `q`, got (4, 2)",
        v_short=lambda: la(q, k, a(4, m)))
refused(ValueError, "softmax_attention: `k` must have shape (..., 5, 3) to match `q`, got (5, 4)",
        soft_k=lambda: soft(q, a(n, 4), v))
refused(ValueError, "linear_attention: `state.S` must have shape (..., 3, 2) (features, values), got (2, 3)",
        S_transposed=lambda: la(q, k, v, state=State(S.T, z)))
refused(ValueError, "linear_attention: `state.z` must have shape (..., 3) (features), got (4,)",
        z_long=lambda: la(q, k, v, state=State(S, a(4))))
refused(ValueError, "linear_attention: leading axes (3,) of `k` must broadcast with (2,) of `q`",
        k_heads=lambda: la(a(2, n, d), a(3, n, d), a(3, n, m)))
refused(ValueError, "linear_attention: leading axes (3,) of `v` must broadcast with (2,) of `k`",
        v_heads=lambda: la(a(2, n, d), a(2, n, d), a(3, n, m)))
refused(ValueError, "linear_attention: leading axes (4,) of `state.z` must broadcast with (2,) of `k`, `v`, `state.S`",
        z_heads=lambda: la(q, k, v, state=State(a(2, d, m), a(4, d))))
refused(ValueError, "linear_attention: leading axes (3,) of `state.S` must broadcast with (2,) of `q`, `k`, `v`",
        state_heads=lambda: la(a(2, n, d), k, v, state=State(a(3, d, m), a(3, d))))
refused(ValueError, "softmax_attention: leading axes (3,) of `k` must broadcast with (2,) of `q`",
        soft_heads=lambda: soft(a(2, n, d), a(3, n, d), a(3, n, m)))
refused(ValueError, "linear_attention: `padding` must have shape (..., 5) to match `k`, got (4,)",
        padding_short=lambda: la(q, k, v, padding=np.ones(4, bool)))
refused(ValueError, "linear_attention: leading axes (2,) of `padding` must broadcast with (3,) of `q`, `k`, `v`",
        padding_heads=lambda: la(a(3, n, d), a(3, n, d), a(3, n, m), padding=np.ones((2, n), bool)))
refused(ValueError, "features: `phi_k(k)` must have shape (..., 5, features) to match `k`, got (2, 3)",
        phi_drops_tokens=lambda: la(q, k, v, phi=lambda x: x[..., :2, :]))
refused(ValueError, "features: `phi_q(q)` must have shape (..., 5, 2) to match phi_k(k), got (5, 3)",
        phi_widths=lambda: la(q, k, v, phi=(ri.feature_maps.identity, lambda x: x[..., :2])))
refused(ValueError, "features: `k` must have shape (..., 5, width) to match `q`, got (4, 3)",
        features_k=lambda: ri.state.features(q, a(4, d)))
refused(ValueError, "join: `b.S` must have shape (..., 3, 2) (features, values), got (4, 2)",
        join_widths=lambda: ri.state.join(State(S, z), State(a(4, m), a(4))))
refused(ValueError, "absorb: `k` must have shape (..., tokens, width), got (3,)",
        absorb_k=lambda: ri.state.absorb(State(S, z), a(d), v))
refused(ValueError, "absorb: `v` must have shape (..., 5, values) to match `k`, got (4, 2)",
        absorb_v=lambda: ri.state.absorb(State(S, z), k, a(4, m)))
refused(ValueError, "absorb: `state.S` must have shape (..., 4, 2) (features, values), got (3, 2)",
        absorb_S=lambda: ri.state.absorb(State(S, z), a(n, 4), v))
refused(ValueError, "softmax_attention: `cache.k` must have shape (..., tokens, 3) to match `q`, got (5, 4)",
        cache_k=lambda: soft(q, k, v, cache=KVCache(a(n, 4), v, keep, n)))
refused(ValueError, "softmax_attention: `cache.v` must have shape (..., 5, 2) to match `cache.k` and `v`, got (4, 2)",
        cache_v=lambda: soft(q, k, v, cache=KVCache(k, a(4, m), keep, n)))
refused(ValueError, "softmax_attention: `cache.keep` must have shape (..., 1, 5) to match `cache.k`, got (1, 4)",
        cache_keep=lambda: soft(q, k, v, cache=KVCache(k, v, keep[:, 1:], n)))
refused(ValueError, "softmax_attention: `q` must have shape (..., tokens, width), got (3,)",
        soft_q=lambda: soft(a(d), k, v))
refused(ValueError, "softmax_attention: `v` must have shape (..., 5, values) to match `q`, got (4, 2)",
        soft_v=lambda: soft(q, k, a(4, m)))
refused(ValueError, "softmax_attention: leading axes (3,) of `cache` must broadcast with (2,) of `k`",
        cache_heads=lambda: soft(q, a(2, n, d), v, cache=KVCache(a(3, n, d), v, keep, n)))
refused(ValueError, "softmax_attention: leading axes (3,) of `cache` must broadcast with (2,) of `padding`",
        cache_keep_heads=lambda: soft(q, k, v, padding=np.ones((2, n), bool), cache=KVCache(k, v, np.ones((3, 1, n), bool), n)))
refused(ValueError, "absorb: `padding` must have shape (..., 5) to match `k`, got (4,)",
        absorb_padding=lambda: ri.state.absorb(State(S, z), k, v, padding=np.ones(4, bool)))
refused(ValueError, "absorb: leading axes (2,) of `state.S` must broadcast with (3,) of `k`, `v`",
        absorb_heads=lambda: ri.state.absorb(State(a(2, d, m), None), a(3, n, d), v))
refused(ValueError, "hedgehog: `W` must have shape (..., e, 3) to match `x`, got (4, 4)",
        hedgehog_W=lambda: ri.feature_maps.hedgehog(a(4, 4), a(4))(q))
refused(ValueError, "hedgehog: `b` must have shape (..., 4) to match `W`, got (5,)",
        hedgehog_b=lambda: ri.feature_maps.hedgehog(a(4, 3), a(5))(q))

# Kinds of numbers
refused(TypeError, "linear_attention: `q` must be real or complex floating, got int64; convert it explicitly",
        integers=lambda: la(q.astype(int), k, v))
refused(TypeError, "linear_attention: `k` must be real or complex floating, got bool; convert it explicitly",
        booleans=lambda: la(q, k > 0, v))
refused(TypeError, "linear_attention: `v` is an object array; make it exact with QQ.convert or another system's convert",
        objects=lambda: la(q, k, v.astype(object)))
refused(TypeError, "linear_attention: `q` is bfloat16, whose products NumPy forms in float32; use Rounded('bfloat16') or torch",
        bfloat16=lambda: la(*(x.astype(ml_dtypes.bfloat16) for x in (q, k, v))))
refused(TypeError, "linear_attention: `k` has dtype float32, `q` has float64; convert one of them explicitly",
        mixed_dtypes=lambda: la(q, *f32(k), v))
refused(TypeError, "linear_attention: `state.z` has dtype float32, `k` has float64; convert one of them explicitly",
        z_dtype=lambda: la(q, k, v, state=State(S, *f32(z))))
refused(TypeError, "features: `phi_k(k)` has dtype float32, `k` has float64; convert one of them explicitly",
        phi_casts=lambda: la(q, k, v, phi=lambda x: x.astype(np.float32)))
refused(TypeError, "rotate: `cos` has dtype float64, `x` has float32; convert one of them explicitly",
        rope_dtype=lambda: la(*f32(q, k, v), rope=Rope(table(2))))
refused(TypeError, "softmax_attention: `scale` has dtype float64, `q` has float32; convert one of them explicitly",
        scale_casts=lambda: soft(*f32(q, k, v), scale=np.float64(0.5)))
refused(TypeError, "scale: `strength` has dtype float64, `S` has float32; convert one of them explicitly",
        strength_casts=lambda: ri.state.scale(State(*f32(S, z)), np.float64(0.5)))
refused(TypeError, "softmax_attention: `v` has dtype float64, `q` has float32; convert one of them explicitly",
        soft_dtypes=lambda: soft(*f32(q, k), v))
refused(TypeError, "features: `k` has dtype float64, `q` has float32; convert one of them explicitly",
        features_dtypes=lambda: ri.state.features(*f32(q), k))
refused(TypeError, "absorb: `v` has dtype float64, `k` has float32; convert one of them explicitly",
        absorb_dtypes=lambda: ri.state.absorb(State(S, z), *f32(k), v))
refused(TypeError, "hedgehog: `W` has dtype float32, `x` has float64; convert one of them explicitly",
        hedgehog_dtypes=lambda: ri.feature_maps.hedgehog(*f32(a(4, d), a(4)))(q))
refused(TypeError, "power_table: `s` has dtype float64, `c` has float32; convert one of them explicitly",
        circle_dtypes=lambda: ri.power_table(*f32(a(1)), a(1)))
refused(TypeError, "linear_attention: `k` has library array_api_strict, `q` has numpy; convert one of them explicitly",
        libraries=lambda: la(q, strict.asarray(k), v))
refused(TypeError, "linear_attention: `k` has library torch, `q` has numpy; convert one of them explicitly",
        numpy_and_torch=lambda: la(q, torch().asarray(k), v))
refused(TypeError, "linear_attention: `state.S` has library array_api_strict, `k` has numpy; convert one of them explicitly",
        state_library=lambda: la(q, k, v, state=State(strict.asarray(S), z)))
refused(TypeError, "features: `phi_k(k)` has library array_api_strict, `k` has numpy; convert one of them explicitly",
        phi_library=lambda: la(q, k, v, phi=strict.asarray))
refused(TypeError, "linear_attention: `padding` has library array_api_strict, `k` needs numpy; convert it explicitly",
        padding_library=lambda: la(q, k, v, padding=strict.asarray(keep[0])),
        padding_library_in_Q=lambda: la(*Q, padding=strict.asarray(keep[0])))
refused(TypeError, "join: `b.S` has library array_api_strict, `a.S` has numpy; convert one of them explicitly",
        join_libraries=lambda: ri.state.join(State(S, z), State(strict.asarray(S), strict.asarray(z))))
refused(TypeError, "softmax_attention: `cache.v` has library array_api_strict, `q` has numpy; convert one of them explicitly",
        cache_library=lambda: soft(q, k, v, cache=KVCache(k, strict.asarray(v), keep, n)))
refused(TypeError, "linear_attention: `k` has device array_api_strict.Device('CPU_DEVICE'), `q` has array_api_strict.Device('device1'); "
        "convert one of them explicitly",
        devices=lambda: la(strict.ones((n, d), device=strict.Device("device1")), strict.ones((n, d)), strict.ones((n, m))))
refused(TypeError, "linear_attention: `k` has device cpu, `q` has meta; convert one of them explicitly",
        torch_meta=lambda: la(torch().ones(n, d, device="meta"), torch().ones(n, d), torch().ones(n, m)))
refused(TypeError, "linear_attention: `k` has number system GF(7), `q` has ℚ; convert one of them explicitly",
        Q_and_GF=lambda: la(Q[0], GF(7).random((n, d), 1), Q[2]))
refused(TypeError, "linear_attention: `v` has number system GF(11), `q` has GF(7); convert one of them explicitly",
        two_fields=lambda: la(GF(7).random((n, d), 1), GF(7).random((n, d), 1), GF(11).random((n, m), 1)))
refused(TypeError, "linear_attention: `k` has number system numpy, `q` has ℚ; convert one of them explicitly",
        Q_and_floats=lambda: la(Q[0], k, v))
refused(TypeError, "rotate: `cos` has number system GF(7), `x` has ℚ; convert one of them explicitly",
        rope_system=lambda: la(*Q, rope=Rope(ri.power_table(GF(7).convert([0]), GF(7).convert([1])))))
refused(TypeError, "0.5 is a float; ℚ takes Fraction(1, 2)",
        float_strength_in_Q=lambda: ri.state.scale(State(*Q[1:]), 0.5))
refused(NotDefined, "exp is not defined in GF(10007); softmax attention needs a real system",
        softmax_in_GF=lambda: soft(*[GF(10007).random((n, d), 1)] * 3))
refused(NotDefined, "division is not defined in ℤ; normalised linear attention needs a field system",
        normalised_in_Z=lambda: la(*[Integers().random((n, d), 1)] * 3))
refused(NotDefined, "exp is not defined in ℚ; elu+1 needs a real system",
        elu_in_Q=lambda: la(*Q, phi="elu+1"))
refused(NotDefined, "maximum is not defined in GF(10007); relu needs an ordered system",
        relu_in_GF=lambda: la(*[GF(10007).random((n, d), 1)] * 3, phi="relu"))
refused(NotDefined, "exp is not defined in ℚ; hedgehog needs a real system",
        hedgehog_in_Q=lambda: ri.feature_maps.hedgehog(*Q[:2])(Q[0]))

# What is not an array, a State, a Rope, a function
refused(TypeError, "linear_attention: `q` must be an array (NumPy, torch, JAX, or of a refimpl system), got list",
        lists=lambda: la(q.tolist(), k, v))
refused(TypeError, "linear_attention: `state.S` must be an array (NumPy, torch, JAX, or of a refimpl system), got list",
        list_in_state=lambda: la(q, k, v, state=State(S.tolist(), z)))
refused(TypeError, "features: `phi_k(k)` must be an array (NumPy, torch, JAX, or of a refimpl system), got list",
        phi_gives_list=lambda: la(q, k, v, phi=lambda x: x.tolist()))
refused(TypeError, "angle_table: `like` must be an array (NumPy, torch, JAX, or of a refimpl system), got str",
        like_name=lambda: ri.angle_table("float64", 2))
refused(TypeError, "linear_attention: `padding` must be a boolean array, got list",
        padding_list=lambda: la(q, k, v, padding=[True] * n))
refused(TypeError, "linear_attention: `padding` must be a boolean array, got int64",
        padding_integers=lambda: la(q, k, v, padding=np.ones(n, int)))
refused(TypeError, "linear_attention: `state` must be a State, got tuple",
        state_tuple=lambda: la(q, k, v, state=(S, z)))
refused(TypeError, "linear_attention: `state` must be a State, got ndarray",
        state_array=lambda: la(q, k, v, state=S))
refused(TypeError, "absorb: `state` must be a State, got tuple",
        absorb_tuple=lambda: ri.state.absorb((S, z), k, v))
refused(TypeError, "join: `a` must be a State, got ndarray",
        join_array=lambda: ri.state.join(S, State(S, z)))
refused(TypeError, "join: `b` must be a State, got tuple",
        join_tuple=lambda: ri.state.join(State(S, z), (S, z)))
refused(TypeError, "softmax_attention: `cache` must be a KVCache, got State",
        cache_state=lambda: soft(q, k, v, cache=State(S, z)))
refused(TypeError, "shift: `state` must be a State, got tuple",
        shift_tuple=lambda: ri.state.shift((S, z), 1))
refused(TypeError, "remove: `whole` must be a State, got tuple",
        remove_tuple=lambda: ri.state.remove((S, z), State(S, z)))
refused(TypeError, "scale: `state` must be a State, got ndarray",
        scale_array=lambda: ri.state.scale(S, 2))
refused(TypeError, "no_text: `like` must be an array (NumPy, torch, JAX, or of a refimpl system), got type",
        like_dtype=lambda: ri.state.no_text(np.float64, 3, 2))
refused(TypeError, "shift: `rope` must be a Rope, got function",
        shift_table=lambda: ri.state.shift(State(S, z), 1, rope=table(2)))
refused(TypeError, "softmax_attention: `rope` must be a Rope, got function",
        soft_table=lambda: soft(q, k, v, rope=table(2)))
refused(TypeError, "shift: `phi` must be a function, a name, or a pair (φ_q, φ_k) of them, got None",
        shift_phi=lambda: ri.state.shift(State(S, z), 1, rope=before))
refused(TypeError, "absorb: `phi` must be a function, a name, or a pair (φ_q, φ_k) of them, got 2",
        absorb_phi=lambda: ri.state.absorb(State(S, z), k, v, phi=2))
refused(TypeError, "features: `rope` must be a Rope, got function",
        rope_table=lambda: la(q, k, v, rope=table(2)))
refused(TypeError, "features: `phi` must be a function, a name, or a pair (φ_q, φ_k) of them, got None",
        features_phi=lambda: ri.state.features(q, k, phi=None))
refused(TypeError, "linear_attention: `phi` must be a function, a name, or a pair (φ_q, φ_k) of them, got None",
        phi_none=lambda: la(q, k, v, phi=None))
refused(TypeError, "linear_attention: `phi` must be a function, a name, or a pair (φ_q, φ_k) of them, got ('relu', 'relu', 'relu')",
        phi_three=lambda: la(q, k, v, phi=("relu",) * 3))
refused(TypeError, "softmax_attention: `scale` must be an integer, a float or an array, got '1/√d'",
        scale_word=lambda: soft(q, k, v, scale="1/√d"))
refused(TypeError, "softmax_attention: `scale` must be an integer, a float or an array, got Fraction(1, 2)",
        scale_fraction=lambda: soft(q, k, v, scale=Fraction(1, 2)))
refused(TypeError, "scale: `strength` must be an integer, a float or an array, got 1j",
        strength_complex=lambda: ri.state.scale(State(a(d, m), a(d)), 1j))
refused(TypeError, "scale: `strength` must be an integer, a Fraction or an array, got 1j",
        strength_complex_in_Q=lambda: ri.state.scale(State(*Q[1:]), 1j))
refused(ValueError, "scale: `strength` must be finite, got nan",
        strength_nan=lambda: ri.state.scale(State(a(d, m), a(d)), float("nan")))
refused(TypeError, "softmax_attention: `cache.keep` must be a boolean array, got NoneType",
        cache_keep_none=lambda: soft(q, k, v, cache=ri.KVCache(k, v, None, 5)))
refused(TypeError, "softmax_attention: `cache.keep` must be a boolean array, got int64",
        cache_keep_int=lambda: soft(q, k, v, cache=ri.KVCache(k, v, np.ones((1, n), dtype=np.int64), 5)))

# NaN, inf, zero, overflow: which token, which head
refused(ValueError, "linear_attention: `q` must be finite, got nan or inf at token 3, column 1",
        nan_q=lambda: la(put(q, (3, 1), nan), k, v))
refused(ValueError, "linear_attention: `v` must be finite, got nan or inf at token 2, column 0",
        inf_v=lambda: la(q, k, put(v, (2, 0), -inf)))
refused(ValueError, "linear_attention: `k` must be finite, got nan or inf at token 4, column 0, head (1, 2)",
        nan_head=lambda: la(a(2, 3, n, d), put(a(2, 3, n, d), (1, 2, 4, 0), nan), a(2, 3, n, m)))
refused(ValueError, "linear_attention: `q` must be finite, got nan or inf at token 0, column 0",
        nan_beside_padding=lambda: la(put(q, ([0, 1], 0), nan), k, v, padding=np.array([1, 0, 1, 1, 1], bool)))
refused(ValueError, "linear_attention: `q` must be finite, got nan or inf at token 3, column 1",
        nan_before_phi=lambda: la(put(q, (3, 1), nan), k, v, phi="relu"))
refused(ValueError, "linear_attention: `state.S` must be finite, got nan or inf at feature 1, column 0",
        nan_S=lambda: la(q, k, v, state=State(put(S, (1, 0), nan), z)))
refused(ValueError, "linear_attention: `state.z` must be finite, got nan or inf at feature 2, head (1,)",
        nan_z=lambda: la(q, k, v, state=State(S, put(a(2, d), (1, 2), nan))))
refused(NotFinite, "linear_attention: phi_k(k) overflows numpy float64: nan or inf at token 0, column 0",
        phi_nan=lambda: la(q, k, v, phi=(ri.feature_maps.identity, lambda x: x * nan)))
refused(ValueError, "absorb: `k` must be finite, got nan or inf at token 1, column 1",
        absorb_nan=lambda: ri.state.absorb(State(S, z), put(k, (1, 1), nan), v))
refused(ValueError, "softmax_attention: `q` must be finite, got nan or inf at token 4, column 2",
        soft_nan=lambda: soft(put(q, (4, 2), nan), k, v))
refused(ValueError, "softmax_attention: `cache.k` must be finite, got nan or inf at token 0, column 0",
        cache_nan=lambda: soft(q, k, v, cache=KVCache(put(k, (0, 0), nan), v, keep, n)))
refused(ZeroDenominator, "linear_attention: the denominator φ(q)·z is zero at token 1 (no ε is added)",
        zero_in_Q=lambda: la(*(column(QQ, 1, x) for x in (1, -1, 1))),
        zero_in_GF=lambda: la(*(column(GF(5), 1, x) for x in (1, 4, 1))),
        zero_in_float64=lambda: la(*(column(F, 1, x) for x in (1, -1, 1))),
        zero_in_mpmath=lambda: la(*(column(MP(20), 1, x) for x in (1, -1, 1))),
        zero_in_a_ball=lambda: la(*(column(balls(20), 1, x) / 3 for x in (1, -1, 1))))
refused(ZeroDenominator, "linear_attention: the denominator φ(q)·z is zero at token 1, head (1, 2) (no ε is added)",
        zero_head=lambda: la(np.ones((2, 3, 2, 1)), np.where(np.arange(12).reshape(2, 3, 2, 1) == 11, -1.0, 1.0), np.ones((2, 3, 2, 1))))
refused(ZeroDenominator, "softmax_attention: the denominator Σ exp(c q·k) is zero at token 0 (no ε is added)",
        softmax_underflow=lambda: soft(column(F, -100), column(F, 100), column(F, 1), scale=1.0))
refused(NotFinite, "linear_attention: the output overflows numpy float16: nan or inf at token 1, column 0",
        overflow=lambda: la(*(np.array([[1], [300]], np.float16),) * 2, np.ones((2, 1), np.float16), normalise=False))
refused(NotFinite, "linear_attention: the denominator φ(q)·z overflows numpy float16: nan or inf at token 0, column 0",
        overflow_denominator=lambda: la(*half16, np.full((2, 1), 0.001, np.float16)))
refused(NotFinite, "linear_attention_quadratic: S overflows numpy float16: nan or inf at feature 0, column 0",
        overflow_S=lambda: ri.linear_attention_quadratic(half16[0] / np.float16(3000), half16[0], half16[0]))
refused(NotFinite, "softmax_attention: the output overflows numpy float64: nan or inf at token 0, column 0",
        softmax_overflow=lambda: soft(column(F, 100), column(F, 100), column(F, 1), scale=1.0))

# RoPE
refused(ValueError, "angle_table: `width` must be even, to pair features, got 3",
        odd_width=lambda: table(3))
refused(ValueError, "angle_table: `width` must be an integer ≥ 0, got -2",
        negative_width=lambda: table(-2))
refused(ValueError, "angle_table: `frequencies` must have 2 entries for width 4, got 1",
        frequency_missing=lambda: ri.angle_table(F, 4, frequencies=[1]))
refused(ValueError, "angle_table: `frequencies[0]` must be a finite number, got nan",
        frequency_nan=lambda: ri.angle_table(F, 2, frequencies=[nan]))
refused(ValueError, "angle_table: `base` must be a finite number, got inf",
        base_inf=lambda: ri.angle_table(F, 2, base=inf))
refused(ValueError, "angle_table: `base` must be a finite number, got '1e4'",
        base_word=lambda: ri.angle_table(F, 2, base="1e4"))
refused(ValueError, "angle_table: `base` must be positive, got 0",
        base_zero=lambda: ri.angle_table(F, 2, base=0))
refused(NotDefined, "cos is not defined in GF(7); use power_table, which needs only c² + s² = 1",
        angles_in_GF=lambda: table(2, GF(7))([1]))
refused(TypeError, "angle_table: `positions` must be a sequence of integers, got [0.5]",
        half_position=lambda: table(2)([0.5]))
refused(TypeError, "power_table: `positions` must be a sequence of integers, got 3",
        one_position=lambda: ri.power_table(a(1), a(1))(3))
refused(ValueError, "angle_table: `positions` must not exceed 2^53 in size, got -9007199254740993",
        far_position=lambda: table(2)([0, -(2**53) - 1]))
refused(ValueError, "angle_table: `positions` must not exceed 2^53 in size, got 9007199254740996",
        far_state=lambda: la(q, k, v, rope=Rope(table(2)), state=State(S, z, 2**53)))
refused(ValueError, "power_table: `c`, `s` must satisfy c² + s² = 1, pair 1 does not",
        off_circle=lambda: ri.power_table(QQ.convert([1, 1]), QQ.convert([0, 1])))
refused(ValueError, "power_table: `c` and `s` must have one shape (pairs,), got (2,) and (1,)",
        circle_shapes=lambda: ri.power_table(a(2), a(1)))
refused(ZeroDenominator, "circle_point: `t` must satisfy t² ≠ −1 in GF(5), entry (1,) does not",
        circle_parameter=lambda: ri.circle_point(GF(5).convert([1, 2])))
refused(ValueError, "rotate: `x` must have at least 4 features for 2 pairs, got shape (5, 3)",
        narrow=lambda: la(q, k, v, rope=Rope(table(4))))
refused(ValueError, "interleave: `x` must have at least 4 features for 2 pairs, got shape (5, 3)",
        narrow_interleave=lambda: ri.rope.interleave(q, pairs=2))
refused(ValueError, "deinterleave: `pairs` must be an integer ≥ 0, got -1",
        negative_pairs=lambda: ri.rope.deinterleave(q, pairs=-1))
refused(ValueError, "rotate: `x` must have shape (..., tokens, features), got (3,)",
        rotate_vector=lambda: ri.rotate(a(3), a(1, 1), a(1, 1)))
refused(ValueError, "rotate: `cos` must have shape (..., 5, pairs) to match `x`, got (4, 1)",
        rotate_cos=lambda: ri.rotate(q, a(4, 1), a(4, 1)))
refused(ValueError, "rotate: `sin` must have shape (..., 5, 1) to match `cos`, got (4, 1)",
        rotate_sin=lambda: ri.rotate(q, a(5, 1), a(4, 1)))
refused(ValueError, "rotate: leading axes (3,) of `cos` must broadcast with (2,) of `x`",
        rotate_heads=lambda: ri.rotate(a(2, n, d), a(3, n, 1), a(3, n, 1)))
refused(ValueError, "Rope: `positions` must have one entry per token, 5, got 2",
        rope_positions=lambda: Rope(table(2))(q, [0, 1]))
refused(ValueError, "Rope: `x` must have shape (..., tokens, features), got (3,)",
        rope_vector=lambda: Rope(table(2))(a(3), [0]))
refused(NotDefined, "softmax_attention: `rope` must have placement 'before' (there is no feature map), got 'after'",
        softmax_rope=lambda: soft(q, k, v, rope=Rope(table(2))))

# Names
refused(ValueError, "linear_attention: `mask` must be one of causal, full, got 'casual'; did you mean 'causal'?",
        mask_name=lambda: la(q, k, v, mask="casual"))
refused(ValueError, "Rope: `layout` must be one of half, interleaved, got 'halves'; did you mean 'half'?",
        layout=lambda: Rope(table(2), "halves"))
refused(ValueError, "rotate: `layout` must be one of half, interleaved, got 'interleave'; did you mean 'interleaved'?",
        rotate_layout=lambda: ri.rotate(q, a(n, 1), a(n, 1), layout="interleave"))
refused(ValueError, "Rope: `placement` must be one of after, before, got 'befor'; did you mean 'before'?",
        placement=lambda: Rope(table(2), placement="befor"))
refused(ValueError, "Rope: `placement` must be one of after, before, got None",
        placement_none=lambda: Rope(table(2), placement=None))
refused(ValueError, "feature_map: `name` must be one of dpfp(1), dpfp(2), elu+1, exp, identity, polynomial(1), polynomial(2), relu, relu2, "
        "taylor2, got 'rleu'; did you mean 'relu'?",
        map_name=lambda: la(q, k, v, phi="rleu"))

# Sizes
refused(ValueError, "linear_attention: `mask` must be 'causal', 'full' or a prefix length, an integer between 0 and 5, got -1",
        negative_prefix=lambda: la(q, k, v, mask=-1))
refused(ValueError, "linear_attention: `mask` must be 'causal', 'full' or a prefix length, an integer between 0 and 5, got 6",
        long_prefix=lambda: la(q, k, v, mask=6))
refused(ValueError, "linear_attention: `mask` must be 'causal', 'full' or a prefix length, an integer between 0 and 5, got True",
        true_prefix=lambda: la(q, k, v, mask=True))
refused(ValueError, "linear_attention: `mask` must be 'causal', 'full' or a prefix length, an integer between 0 and 5, "
        "got a value of type ndarray",
        mask_array=lambda: la(q, k, v, mask=np.ones((n, n), bool)))
refused(ValueError, "softmax_attention: `mask` must be 'causal', 'full' or a prefix length, an integer between 0 and 5, got 6",
        soft_prefix=lambda: soft(q, k, v, mask=6))
refused(ValueError, "linear_attention_chunked: `chunk` must be an integer ≥ 1, got 0",
        chunk_zero=lambda: chunked(q, k, v, chunk=0))
refused(ValueError, "linear_attention_chunked: `chunk` must be an integer ≥ 1, got 2.0",
        chunk_float=lambda: chunked(q, k, v, chunk=2.0))
refused(ValueError, "polynomial: `degree` must be an integer ≥ 0, got -1",
        degree=lambda: ri.feature_maps.polynomial(-1))
refused(ValueError, "dpfp: `nu` must be an integer ≥ 1, got 0",
        nu=lambda: ri.feature_maps.dpfp(0))
refused(ValueError, "no_text: `r` must be an integer ≥ 0, got -1",
        negative_features=lambda: ri.state.no_text(q, -1, 2))
refused(ValueError, "no_text: `lead` must be an integer ≥ 0, got -2",
        negative_heads=lambda: ri.state.no_text(q, 3, 2, lead=(-2,)))
refused(ValueError, "State: `position` must be an integer, got 1.5",
        position=lambda: State(S, z, 1.5))
refused(ValueError, "KVCache: `position` must be an integer, got '5'",
        cache_position=lambda: KVCache(k, v, keep, "5"))
refused(ValueError, "shift: `by` must be an integer, got 0.5",
        shift_half=lambda: ri.state.shift(State(S, z), 0.5))

# State
refused(ValueError, "linear_attention: `state` has S but no z; a normalised layer needs both (the denominator is φ(q)·z)",
        S_alone=lambda: la(q, k, v, state=State(S, None)))
refused(ValueError, "join: `b` must have z exactly if the other state has it, got z in `b` only",
        join_z=lambda: ri.state.join(State(S, None), State(S, z)))
refused(ValueError, "remove: `b` must have z exactly if the other state has it, got z in the other only",
        remove_z=lambda: ri.state.remove(State(S, z), State(S, None)))
refused(NotDefined, "shift: under RoPE before the kernel only states of identity turn, not of elu_plus_one; keep running positions",
        shift_elu=lambda: ri.state.shift(State(S, z), 1, rope=before, phi=ri.feature_maps.elu_plus_one),
        shift_elu_name=lambda: ri.state.shift(State(S, z), 1, rope=before, phi="elu+1"),
        shift_elu_query=lambda: ri.state.shift(State(S, z), 1, rope=before, phi=("elu+1", "identity")))
refused(NotDefined, "join: under RoPE before the kernel only states of identity turn, not of polynomial(2); keep running positions",
        join_polynomial=lambda: ri.state.join(State(S, z, 4), State(S, z), rope=before, phi=(ri.feature_maps.identity, ri.feature_maps.polynomial(2))))
refused(NotDefined, "remove: under RoPE before the kernel only states of identity turn, not of relu; keep running positions",
        remove_relu=lambda: ri.state.remove(State(S, z, 4), State(S, z, 1), rope=before, phi="relu"))
refused(ValueError, "remove: `origin` must be an integer, got 0.5",
        remove_origin=lambda: ri.state.remove(State(S, z), State(S, z), origin=0.5))
refused(ValueError, "join: `origin` must be an integer, got 'start'",
        join_origin=lambda: ri.state.join(State(S, z), State(S, z), origin="start"))
refused(ValueError, "angle_table: `frequencies` must be below 2^64 in size, got 1e+60",
        frequency_huge=lambda: ri.angle_table(q, 2, frequencies=[1e60])([1]))

# Feature maps by name
refused(ValueError, "feature_map: `name` must be one of dpfp(1), dpfp(2), elu+1, exp, identity, polynomial(1), polynomial(2), relu, relu2, "
        "taylor2, got 'polynomial(x)'; did you mean 'polynomial(2)'?",
        map_number=lambda: ri.feature_map("polynomial(x)"))
refused(ValueError, "feature_map: `name` must be one of dpfp(1), dpfp(2), elu+1, exp, identity, polynomial(1), polynomial(2), relu, relu2, "
        "taylor2, got None",
        map_none=lambda: ri.feature_map(None))
refused(ValueError, "dpfp: `nu` must be an integer ≥ 1, got 0",
        map_dpfp=lambda: ri.feature_map("dpfp(0)"))

# Configurations
refused(ValueError, "Rotary: `layout` must be one of half, interleaved, got 'halves'; did you mean 'half'?",
        rotary_layout=lambda: Rotary(2, "halves"))
refused(ValueError, "Rotary: `placement` must be one of after, before, got 'befor'; did you mean 'before'?",
        rotary_placement=lambda: Rotary(2, placement="befor"))
refused(ValueError, "Rotary: `width` must be an integer between 0 and 65536, got -2",
        rotary_width=lambda: Rotary(width=-2))
refused(ValueError, "Rotary: `width` must be even, to pair features, got 3",
        rotary_odd=lambda: Rotary(width=3))
refused(ValueError, "Rotary: `base` must be an integer ≥ 1, got 10000.0",
        rotary_base=lambda: Rotary(2, base=1e4))
refused(ValueError, "Config: `layers` must be an integer ≥ 1, got 0",
        no_layers=lambda: Config(0, 3))
refused(ValueError, "Config: `width` must be an integer ≥ 1, got 3.0",
        config_width=lambda: Config(1, 3.0))
refused(ValueError, "Config: `groups` must be an integer ≥ 1, got 0",
        no_groups=lambda: Config(1, 3, groups=0))
refused(ValueError, "Config: `groups` must divide heads = 4, got 3",
        groups=lambda: Config(1, 3, heads=4, groups=3))
refused(ValueError, "Config: `order` must be one of parallel, post, pre, got 'prenorm'; did you mean 'pre'?",
        order=lambda: Config(1, 3, order="prenorm"))
refused(ValueError, "Config: `norm` must be one of layer, layer_rational, none, rms, rms_rational, got 'rsm'; did you mean 'rms'?",
        norm=lambda: Config(1, 3, norm="rsm"))
refused(ValueError, "Config: `activation` must be one of gelu, quadratic, relu, silu, got 'swish'; did you mean 'silu'?",
        activation=lambda: Config(1, 3, activation="swish"))
refused(TypeError, "Config: `phi` must be a function, a name, or a pair (φ_q, φ_k) of them, got None",
        config_phi=lambda: Config(1, 3, phi=None))
refused(ValueError, "Config: `epsilon` must be a Fraction ≥ 0, got 1e-05",
        epsilon_float=lambda: Config(1, 3, epsilon=1e-5))
refused(ValueError, "Config: `epsilon` must be a Fraction ≥ 0, got Fraction(-1, 2)",
        epsilon_negative=lambda: Config(1, 3, epsilon=Fraction(-1, 2)))
refused(TypeError, "Config: `rope` must be a Rotary, got Rope",
        config_rope=lambda: Config(1, 3, rope=before))

# Models
refused(TypeError, "Model: `config` must be a Config, got dict",
        model_config=lambda: ri.Model({}, W))
refused(ValueError, "Model: `weights` must be one of embedding, gain, layers.0.W_K, layers.0.W_O, layers.0.W_Q, layers.0.W_V, "
        "layers.0.gain_1, layers.0.offset_1, offset, got 'W_Q'; did you mean 'layers.0.W_Q'?",
        model_name=lambda: ri.Model(config, W | {"W_Q": 0}))
refused(ValueError, "Model: `weights` must have 'layers.0.W_Q' of shape (3, 4), got no such name",
        model_without=lambda: ri.Model(config, {name: x for name, x in W.items() if name != "layers.0.W_Q"}))
refused(TypeError, "Model: `gain` has dtype float32, `layers.0.W_Q` has float64; convert one of them explicitly",
        model_dtypes=lambda: ri.Model(config, W | {"gain": W["gain"].astype(np.float32)}))
refused(ValueError, "Model: `layers.0.W_K` must have shape (3, 2), got (2, 3)",
        model_shape=lambda: ri.Model(config, W | {"layers.0.W_K": W["layers.0.W_K"].T}))
refused(ValueError, "Model: `layers.0.W_K` must be finite, got nan or inf at row 2, column 1",
        model_nan=lambda: ri.Model(config, W | {"layers.0.W_K": put(W["layers.0.W_K"], (2, 1), nan)}))
refused(ValueError, "Model: `offset` must be finite, got nan or inf at column 1",
        model_inf=lambda: ri.Model(config, W | {"offset": put(W["offset"], 1, inf)}))
refused(ValueError, "Model: `biases` must be 1 states read from one position, got [0, 0]",
        biases_many=lambda: with_biases(bias, bias))
refused(ValueError, "Model: `biases` must be 2 states read from one position, got [0, 1]",
        biases_positions=lambda: replace(ri.random_model(F, replace(config, layers=2), 1), biases=(bias, replace(bias, position=1))))
refused(TypeError, "Model: `biases[0]` must be a State, got int",
        model_no_state=lambda: ri.Model(converted.config, converted.weights, (1,)))
refused(ValueError, "Model: `prompts` must be an integer ≥ 0, got 1.5",
        model_prompts=lambda: ri.Model(converted.config, converted.weights, converted.biases, (1.5,)))
refused(ValueError, "Model: `biases[0].S` must have shape (..., 1, features, 2), got (2, 2)",
        biases_shape=lambda: with_biases(State(bias.S[0], bias.z)))
refused(ValueError, "Model: `biases[0]` has b_KV but no b_D; a normalised layer needs both",
        biases_half=lambda: with_biases(State(bias.S, None)))
refused(ValueError, "Model: `biases[0].z` must have shape (..., 2) (features), got (1, 3)",
        biases_z=lambda: with_biases(State(bias.S, a(1, 3))))
refused(ValueError, "Model: `biases[0].S` must be finite, got nan or inf at feature 1, column 0, head (0,)",
        biases_nan=lambda: with_biases(State(put(bias.S, (0, 1, 0), nan), bias.z)))
refused(TypeError, "transformer: `model` must be a Model, got Config",
        transformer_config=lambda: ri.transformer(config, [1]))
refused(TypeError, "transformer: `text` must be token ids (..., tokens) or an array of vectors, got [0.5]",
        half_a_token=lambda: model([0.5]))
refused(TypeError, "transformer: `text` must be token ids (..., tokens) or an array of vectors, got 'hello'",
        text_words=lambda: model("hello"))
refused(ValueError, "transformer: `text` must have shape (..., tokens), got ()",
        one_token=lambda: model(3))
refused(ValueError, "transformer: `text` must hold ids from 0 to 4, got 5 at token 2",
        unknown_token=lambda: model([1, 4, 5]))
refused(ValueError, "transformer: `text` must hold ids from 0 to 4, got -1 at token 1, head (1,)",
        negative_token=lambda: model(np.array([[1, 2], [3, -1]])))
refused(TypeError, "transformer: `text` has dtype float32, `weights` has float64; convert one of them explicitly",
        text_dtype=lambda: model(np.ones((2, 3), np.float32)))
refused(ValueError, "transformer: `text` must have shape (..., tokens, 3), got (2, 4)",
        text_width=lambda: model(a(2, 4)))
refused(ValueError, "transformer: `text` must be finite, got nan or inf at token 1, column 2",
        text_nan=lambda: model(put(a(2, 3), (1, 2), nan)))
refused(ValueError, "transformer: `text` must fit the table of 4 absolute positions, got 5 tokens read from position 0 on",
        table_short=lambda: table_model([0] * 5))
refused(ValueError, "transformer: `text` must fit the table of 4 absolute positions, got 2 tokens read from position 3 on",
        table_end=lambda: ri.convert(table_model, [1, 2, 3], restart=False)([0, 0]))
refused(ZeroDenominator, "layer 0: linear_attention_chunked: the denominator φ(q)·z is zero at token 0, head (0, 0) (no ε is added)",
        layer_zero=zero_keys)
refused(NotFinite, "layer 0: transformer: q overflows numpy float16: nan or inf at token 0, column 0, head (0, 0)",
        layer_q=lambda: small16(W_Q=60000)(np.array([[2]], np.float16)))
refused(NotFinite, "layer 0: rms norm: mean(y²) + ε overflows numpy float16: nan or inf at token 0, column 0",
        norm_overflow=lambda: small16(norm="rms")(np.array([[300]], np.float16)))
refused(NotFinite, "transformer: the output overflows numpy float16: nan or inf at token 0, column 1",
        vectors_overflow=lambda: small16(width=2, norm="rms", gain=60000)(np.array([[2, -6]], np.float16)))
refused(ZeroDenominator, "layer 0: linear_attention_chunked: the denominator φ(q)·z is zero at token 1, head (0, 0) (no ε is added); "
        "counted from token 2 of the prompt",
        convert_piece_zero=lambda: ri.convert(summing(), QQ.convert([[1], [2], [3], [-6], [2]]), chunk=2))
refused(ValueError, "convert: `strength` must be one number, of shape (), got shape (2,)",
        strength_array=lambda: ri.convert(model, [[3, 1], [1, 2]], strength=np.ones(2)))
refused(ValueError, "unconvert: `mask` must be one of causal, full, got 'foo'; did you mean 'full'?",
        unconvert_mask=lambda: ri.unconvert(converted, [3, 1, 4], mask="foo"))
refused(TypeError, "random_model: `system` must be a System, got str",
        random_system=lambda: ri.random_model("float64", config, 1))
refused(TypeError, "Model: `weights` must be a Mapping, got NoneType",
        model_weights=lambda: ri.Model(config, None))
refused(NotFinite, "layer 0: transformer: its output overflows numpy float16: nan or inf at token 0, column 0",
        layer_overflow=overflowing)
refused(NotFinite, "transformer: the output overflows numpy float16: nan or inf at token 0, column 0",
        logits_overflow=loud)
refused(NotDefined, "exp is not defined in ℚ; layer norm needs a real system",
        norm_in_Q=lambda: ri.random_model(QQ, replace(config, phi="identity"), 1)([1]))
refused(NotDefined, "exp is not defined in ℚ; gelu needs a real system",
        gelu_in_Q=lambda: in_Q(hidden=2))

# Conversion
refused(TypeError, "convert: `model` must be a Model, got State",
        convert_state=lambda: ri.convert(bias, [1]))
refused(ValueError, "convert: `mask` must be one of causal, full, got 2",
        convert_mask=lambda: ri.convert(model, [1], mask=2))
refused(TypeError, "convert: `strength` must be an integer, a float or an array, got '2'",
        convert_strength=lambda: ri.convert(model, [1], strength="2"))
refused(ValueError, "convert: `chunk` must be an integer ≥ 1, got 0",
        convert_chunk=lambda: ri.convert(model, [1], chunk=0))
refused(ValueError, "convert: `prompt` must hold ids from 0 to 4, got 7 at token 0",
        convert_id=lambda: ri.convert(model, [7]))
refused(ValueError, "convert: `prompt` must have shape (..., tokens, 3), got (2, 4)",
        convert_width=lambda: ri.convert(model, a(2, 4)))
refused(NotDefined, "convert: a prompt can be read in pieces only under mask 'causal', got 'full'",
        convert_full_pieces=lambda: ri.convert(model, [1], mask="full", chunk=1),
        convert_full_stream=lambda: ri.convert(model, iter([[1]]), mask="full"))
refused(NotDefined, "convert: absolute positions cannot start again at 0 after a prompt; pass restart=False to let them go on",
        convert_table=lambda: ri.convert(table_model, [1]))
refused(TypeError, "unconvert: `model` must be a Model, got NoneType",
        unconvert_none=lambda: ri.unconvert(None, [1]))
refused(TypeError, "unconvert: `strength` must be an integer, a float or an array, got None",
        unconvert_strength=lambda: ri.unconvert(converted, [3, 1, 4], strength=None))
refused(ValueError, "unconvert: `prompt` must hold ids from 0 to 4, got 9 at token 0",
        unconvert_id=lambda: ri.unconvert(converted, [9]))
refused(ValueError, "unconvert: `prompt` must be the last one converted, of 3 tokens, got 2 tokens",
        unconvert_short=lambda: ri.unconvert(converted, [3, 1]))
refused(ValueError, "unconvert: `prompt` must be the last one converted, but there is none, got 1 tokens",
        unconvert_nothing=lambda: ri.unconvert(model, [3]))

# Models on disk
refused(TypeError, "save: `model` must be a Model, got State",
        save_state=lambda: ri.save("m", bias))
refused(ValueError, "save: `model` must carry biases to save them alone, got none",
        save_no_biases=lambda: ri.save("m", model, biases_only=True))
refused(NotDefined, "digest: numbers of ℚ cannot be written; floats of at most 64 bits and GF(p) can",
        save_Q=lambda: ri.save("m", ri.random_model(QQ, replace(config, phi="identity"), 1)))
refused(NotDefined, "digest: φ must be given by name, as in Config(phi='elu+1'); a function cannot be written",
        save_phi=lambda: ri.save("m", ri.Model(replace(config, phi=ri.feature_maps.relu), W)))
refused(TypeError, "digest: `model` must be a Model, got dict",
        digest_weights=lambda: ri.digest(W))
refused(TypeError, "load: `base` must be a Model, got str",
        load_base=lambda: ri.load("m", "numpy"))
refused(ValueError, "load: m: `format` must be 'refimpl 1', as `save` writes it, got 'pt'",
        load_format=lambda: loaded(format="pt"))
refused(ValueError, "load: m: the metadata must have `digest`, of 1 to 999999 characters, got None",
        load_word=lambda: loaded(digest=None))
refused(ValueError, "load: m: `config` must be one that `save` writes: ValueError: Config: `layers` must be an integer ≥ 1, got '1'",
        load_layers=lambda: configured(layers="1"))
refused(ValueError, "load: m: `config` must be one that `save` writes: ValueError: "
        "it must read '1/100000\", \"gated\": ' at character 60, got '2/200000\", \"gated\": '",
        load_other_words=lambda: configured(epsilon="2/200000"))
refused(ValueError, "load: m: `config` must be one that `save` writes: TypeError: Config: `normalise` must be a bool, got int",
        load_boolean=lambda: configured(normalise=1))
refused(ValueError, "load: m: `config` must have at most as many layers as there are tensors, 11, got 1000000000",
        load_many_layers=lambda: configured(layers=10**9))
refused(ValueError, "load: m: `x` must be a weight of its configuration or a bias",
        load_foreign=lambda: loaded(tensors={"x": np.ones(1)}))
refused(ValueError, "load: m: `base` must be the model to which these biases belong, since the file has no weights, got None",
        load_alone=lambda: loaded(alone=True))
refused(ValueError, "load: m: the file must hold biases alone, since `base` is given, got a whole model",
        load_whole=lambda: loaded(base=model))
refused(ValueError, f"load: m: `digest` must be that of the weights, {ri.digest(model)[:12]}…, got 000000000000…: "
        "another model, or changed",
        load_digest=lambda: loaded(digest="0" * 64))
refused(ValueError, "load: m: `biases` must be the digest of biases, position and prompts: one of these was changed",
        load_biases=lambda: loaded(position="1"))
refused(ValueError, "load: m: `position` must be JSON, got 'x'",
        load_position_word=lambda: loaded(position="x", seal=True))
refused(ValueError, "load: m: metadata: `position` must be an integer between 0 and 4, got 5",
        load_position=lambda: loaded(table_model, position="5", seal=True))
refused(ValueError, "load: m: metadata: `prompts` must be a list, got int",
        load_prompts=lambda: loaded(prompts="3", seal=True))
refused(ValueError, "load: m: metadata: `prompts[0]` must be an integer between 0 and 9007199254740992, got 2.5",
        load_prompt=lambda: loaded(prompts="[2.5]", seal=True))
refused(ValueError, "load: m: layer 0: `b_KV` must be in the file for each layer, since other biases are, got no such name",
        load_half=lambda: loaded(tensors={"layers.0.b_KV": None}, seal=True))
refused(ValueError, "load: m: `layers.0.b_D` must be F64, for float64, got F32",
        load_dtype=lambda: loaded(tensors={"layers.0.b_D": np.ones((1, 2), np.float32)}, seal=True))
refused(ValueError, "load: m: `gain` must hold integers from 0 to p − 1, for GF(7), got 7 to 7",
        load_field=lambda: loaded(ri.random_model(GF(7), config, 1), tensors={"gain": np.full(3, 7)}))
refused(ValueError, "load: m: `system` must be one of float64, float32, float16, bfloat16 or GF(p), got 'float8'",
        load_system=lambda: loaded(system="float8"))
refused(NotDefined, "load: m: NumPy has no bfloat16; pass library='torch'",
        load_bfloat16=lambda: loaded(system="bfloat16"))

# Memories
refused(TypeError, "write: `v` has dtype float32, `y` has float64; convert one of them explicitly",
        write_casts=lambda: write(directions, k, *f32(v)))
refused(ValueError, "write: `v` must have shape (..., 5, values) to match `y`, got (4, 2)",
        write_short=lambda: write(directions, k, a(4, m)))
refused(ValueError, "write: leading axes (3,) of `v` must broadcast with (2,) of `y`",
        write_heads=lambda: write(directions, a(2, n, d), a(3, n, m)))
refused(ValueError, "write: `y` must have a token or more, since nothing has no scale, got none",
        write_nothing=lambda: write(directions, k[:0], v[:0]))
refused(NotDefined, "join: memories can be joined only if they were written through one map, in full rank; keep both",
        join_rank=lambda: join(recalled, replace(recalled, mix=a(m, m + 1))),
        join_maps=lambda: join(recalled, write(ri.random_features("positive", 4, d, seed=1, system=F), k, v)))
refused(TypeError, "join: `b` has dtype float32, `a` has float64; convert one of them explicitly",
        join_casts=lambda: join(recalled, replace(recalled, S=recalled.S.astype(np.float32))))
refused(TypeError, "Points: `points` has dtype float64, `x` has float32; convert one of them explicitly",
        points_cast=lambda: points.log(*f32(q)))
refused(ValueError, "Points: `x` must have shape (..., tokens, 3) to match `points`, got (5, 2)",
        points_wide=lambda: points.log(v))
refused(TypeError, "linear_attention_carried: `k` has dtype float32, `q` has float64; convert one of them explicitly",
        carried_casts=lambda: ri.linear_attention_carried(q, *f32(k), v, phi=directions))
refused(ValueError, "linear_attention_carried: `k` must have shape (..., 5, 3) to match `q`, got (4, 3)",
        carried_k=lambda: ri.linear_attention_carried(q, a(4, d), v, phi=directions))
refused(ValueError, "linear_attention_carried: `v` must have shape (..., 5, values) to match `q`, got (4, 2)",
        carried_v=lambda: ri.linear_attention_carried(q, k, a(4, m), phi=directions))
refused(ZeroDenominator, "linear_attention_carried: the denominator φ(q)·z is zero at token 1 (no ε is added)",
        carried_zero=lambda: ri.linear_attention_carried(
            np.zeros((2, 1)), np.pi * np.array([[0.0], [1.0]]), a(2, m), phi=taylor,
            memory=replace(write(taylor, np.zeros((1, 1)), a(1, m)), z=np.array([-2.0, 0.0, 0.0]))))
refused(TypeError, "softmax_attention: `memory.S` has dtype float32, `q` has float64; convert one of them explicitly",
        memory_casts=lambda: recalling(S=f32(recalled.S)[0]))
refused(ValueError, "softmax_attention: `memory.S` must have shape (..., features, 2), got (4, 3)",
        memory_S=lambda: recalling(S=a(4, 3)))
refused(ValueError, "softmax_attention: `memory.mix` must have shape (..., 2, 3) to match `memory.S`, got (2, 2)",
        memory_mix=lambda: recalling(mix=a(2, 2)))
refused(ValueError, "softmax_attention: `memory.z` must have shape (..., 4) to match `memory.S`, got (3,)",
        memory_z=lambda: recalling(z=a(3)))
refused(ValueError, "softmax_attention: `memory.scale` must have shape (..., 4) to match `memory.S`, got (3,)",
        memory_scale=lambda: recalling(scale=a(3)))
refused(TypeError, "KVCache: `memories` must be a Memory, got State",
        cache_memories=lambda: KVCache(k, v, keep, n, (State(S, z),)))
KINDS = "cache, cholesky, clusters, directions, favor++, hyperbolic, nystrom, orthogonal, positive, simplex, taylor, tilted, tokens, "
KINDS += "trigonometric"
refused(ValueError, f"Compression: `kind` must be one of {KINDS}, got 'nyström'; did you mean 'nystrom'?",
        compression_kind=lambda: Compression("nyström", 2))
refused(ValueError, "Compression: `r` must be None for 'cache', which sets it, got 2",
        compression_cache=lambda: Compression("cache", 2))
refused(ValueError, "Compression: `r` must be an integer between 1 and 1048576, got None",
        compression_r=lambda: Compression("tokens"))
refused(ValueError, "truncated: `rank` must be an integer between 1 and 3, got 4",
        compression_rank_high=lambda: Compression("clusters", 4, rank=4)(k, v, q[None], 0))
refused(ValueError, "Compression: `seed` must be an integer ≥ 0, got -1",
        compression_seed=lambda: Compression("tokens", 2, seed=-1))
refused(ValueError, "Compression: `rank` must be an integer ≥ 1, got 0",
        compression_rank=lambda: Compression("tokens", 2, rank=0))
refused(NotDefined, "truncated: singular values are made by NumPy, got mpmath(30 digits)",
        truncated_in_MP=lambda: Compression("cache", rank=1)(*(MP(30).convert(x) for x in (k, v, q[None])), 0))
refused(ValueError, "random_features: `r` must be even for hyperbolic, which makes two features of each direction, got 3",
        compression_odd=lambda: Compression("hyperbolic", 3)(k, v, q[None], 0))
refused(ValueError, "Best: one of `budget` and `error` must be given, got both or none",
        best_neither=lambda: Best(), best_both=lambda: Best(budget=10, error=0.1))
refused(ValueError, "Best: `budget` must be an integer ≥ 1, got 0.5",
        best_budget=lambda: Best(budget=0.5))
refused(ValueError, "Best: `error` must be a finite number ≥ 0, got nan",
        best_error=lambda: Best(error=nan))
refused(ValueError, "Best: `within` must be a finite number ≥ 0, got True",
        best_within=lambda: Best(error=0.1, within=True))
refused(ValueError, f"Best: `kinds` must be one of {KINDS}, got 'cash'; did you mean 'cache'?",
        best_kinds=lambda: Best(error=0.1, kinds=("cash",)))
refused(ValueError, "Best: `budget` must hold a memory of one feature, got 40 bytes",
        best_small=lambda: Best(budget=40)(k, v, q[None], 0))
refused(ValueError, "Best: `kinds` must have one that comes within an error of 0, as cache does, got none",
        best_none=lambda: Best(error=0, kinds=("positive",))(k, v, q[None], 0))

# Models with a softmax, and without sums
refused(ValueError, "Config: `phi` 'softmax' must go with normalise=True and RoPE before the kernel, got another",
        softmax_unnormalised=lambda: Config(1, 2, phi="softmax", normalise=False),
        softmax_rope_after=lambda: Config(1, 2, d=2, phi="softmax", rope=Rotary(2)))
refused(NotDefined, "transformer: `form` must be of softmax attention, as the model is, got linear_attention",
        softmax_form=lambda: softmax_model([1], form=la))
refused(NotDefined, "transformer: `form` must be of linear attention, as the model is, got softmax_attention",
        linear_form=lambda: model([1], form=soft))
refused(NotDefined, "transformer: a recurrence reads its text from left to right; `mask` must be 'causal', got 'full'",
        recurrent_mask=lambda: unrolled([1], mask="full"))
refused(TypeError, "Model: `biases[0].v` has dtype float32, `W_V` has float64; convert one of them explicitly",
        model_cache_casts=lambda: replace(softmax_model, biases=(replace(kept, v=f32(kept.v)[0]),)))
refused(ValueError, "Model: `biases[0].k` must have shape (..., 1, tokens, 2), got (3, 2)",
        model_cache_k=lambda: replace(softmax_model, biases=(replace(kept, k=kept.k[0]),)))
refused(ValueError, "Model: `biases[0].v` must have shape (..., 1, 3, 2) to match its k, got (1, 2, 2)",
        model_cache_v=lambda: replace(softmax_model, biases=(replace(kept, v=kept.v[:, 1:]),)))
refused(NotDefined, "convert: the state of a recurrence is not a sum of its tokens; `strength` must be 1",
        convert_recurrent_strength=lambda: ri.convert(unrolled, [1], strength=2))
refused(NotDefined, "convert: `by` makes a memory for softmax attention; this model converts exactly without it",
        convert_linear_by=lambda: ri.convert(model, [1], by=Compression("cache")))
refused(NotDefined, "convert: tokens of a KV cache count once; pass `by`, to make a memory that can count `strength` times",
        convert_cache_strength=lambda: ri.convert(softmax_model, [1], strength=2))
refused(NotDefined, "unconvert: only out of the sums of linearized attention can a prompt be taken; keep the model without it",
        unconvert_cache=lambda: ri.unconvert(remembering, [3, 1, 4]))
refused(NotDefined, "RandomFeatures.rotated: taylor features have no directions to turn; keep running positions",
        convert_taylor_twice=lambda: ri.convert(ri.convert(softmax_model, [1], by=Compression("taylor")), [2], by=Compression("taylor")))

# Memories in files
refused(ValueError, "load: m: `maps` must be a list with one entry for each of 1 layers, got []",
        maps_short=lambda: mapped([]))
refused(ValueError, "load: m: layer 0: `maps` must be a list of objects for each layer, got 5",
        maps_number=lambda: mapped([5]))
refused(ValueError, "load: m: layer 0: `maps` must be a list of objects for each layer, got ['positive']",
        maps_words=lambda: mapped([["positive"]]))
refused(ValueError, "load: m: layer 0: `b_KV` must have a map in the metadata `maps`, got none",
        maps_none=lambda: mapped([[]]))
refused(ValueError, "load: m: layer 0: `b_KV.1` must be in the file for each map, got none for {'map': 'points'}",
        maps_many=lambda: mapped([[{"map": "taylor", "A": "0"}, {"map": "points"}]]))
MAPS = "favor++, hyperbolic, orthogonal, points, positive, simplex, taylor, trigonometric"
refused(ValueError, f"load: m: layer 0: metadata: `map` must be one of {MAPS}, got 'None'; did you mean 'points'?",
        map_none=lambda: mapped([[{}]]))
refused(ValueError, "load: m: layer 0: `b_points` must be in the file exactly for a map 'points', got the map 'points'",
        map_points=lambda: mapped(map="points"))
refused(ValueError, "load: m: layer 0: `b_points` must be in the file exactly for a map 'points', got the map 'positive'",
        map_not_points=lambda: mapped(tensors={"layers.0.b_points": a(1, 4, 2)}))
refused(ValueError, "load: m: layer 0: `A` must be a fraction such as '-1/8', got '1e400'",
        map_A=lambda: mapped(A="1e400"))
refused(ValueError, "load: m: layer 0: `A` must be a fraction such as '-1/8', got '-1/0'",
        map_A_by_zero=lambda: mapped(A="-1/0"))
refused(ValueError, "load: m: layer 0: RandomFeatures: `A` must be 0 but for favor++, got Fraction(-1, 8)",
        map_A_of_none=lambda: mapped(A="-1/8"))
refused(ValueError, "load: m: layer 0: RandomFeatures: `omega` must be an array (directions, width) for positive, got None",
        map_no_omega=lambda: mapped(seed=None))
refused(ValueError, "load: m: layer 0: `b_omega` must not be in the file for directions drawn from a seed, got both",
        map_both=lambda: mapped(tensors={"layers.0.b_omega": a(4, 2)}))
refused(ValueError, "load: m: layer 0: metadata: `seed` must be an integer between 0 and 18446744073709551615, got -1",
        map_seed=lambda: mapped(seed=-1))
refused(ValueError, "load: m: layer 0: metadata: `seed` must be an integer between 0 and 18446744073709551615, got 0.5",
        map_seed_half=lambda: mapped(seed=0.5))
refused(ValueError, "load: m: layer 0: metadata: `turn` must be an integer between -9007199254740992 and 9007199254740992, got None",
        map_turn=lambda: mapped(turn=None))
refused(ValueError, f"load: m: layer 0: metadata: `turn` must be an integer between -9007199254740992 and 9007199254740992, got {10**30}",
        map_turn_far=lambda: mapped(turn=10**30))
refused(ValueError, "load: m: layer 0: `omega` must be the digest of the directions of seed 1, got another: "
        "drawn by another library, or changed",
        map_other_seed=lambda: mapped(seed=1), map_other_digest=lambda: mapped(seed=1, omega="0" * 64))
refused(ValueError, "load: m: layer 0: random_features: `r` must be even for hyperbolic, which makes two features of each direction, got 3",
        map_odd=lambda: mapped(map="hyperbolic", tensors={"layers.0.b_KV": a(1, 3, 2), "layers.0.b_scale": a(1, 3)}))

refused(ValueError, "load: m: layer 0: metadata: `b_KV` must have shape (..., features, values), got (3,)",
        memory_flat=lambda: mapped(tensors={"layers.0.b_KV": a(3)}))
refused(ValueError, "load: m: Model: `memory.scale` must be finite, got nan or inf at row 0, column 1",
        memory_nan=lambda: mapped(tensors={"layers.0.b_scale": np.array([[0, nan, 0, 0]])}))
refused(ValueError, "load: m: layer 0: metadata: `cache.k` must have shape (..., tokens, width), got (3,)",
        cache_flat=lambda: mapped(tensors={"layers.0.cache.k": a(3)}))
refused(ValueError, "load: m: Model: `biases[0].k` must be finite, got nan or inf at token 0, column 0, head (0,)",
        cache_nan=lambda: mapped(tensors={"layers.0.cache.k": np.full((1, 1, 2), nan), "layers.0.cache.v": a(1, 1, 2)}))
refused(ValueError, "load: m: layer 0: `b_KV` must have axes no longer than there are numbers in its layer, got shape (1, 30000000, 0)",
        memory_of_nothing=lambda: mapped(tensors={"layers.0.b_KV": np.zeros((1, 3 * 10**7, 0))}))
refused(ValueError, "load: m: layer 0: `cache.k` must have axes no longer than there are numbers in its layer, "
        "got shape (1000000000, 1, 0, 2)",
        cache_of_nothing=lambda: mapped(tensors={"layers.0.cache.k": np.zeros((10**9, 1, 0, 2))}))
refused(ValueError, "softmax_attention: `memory.S` must have the 4 features of its map, got 3",
        memory_features=lambda: recalling(S=a(3, m), scale=a(3)))
refused(ValueError, "softmax_attention: leading axes (3,) of `memory.scale` must broadcast with (2,) of `memory.S`",
        memory_lead=lambda: recalling(S=a(2, 4, m), scale=a(3, 4)))
refused(ValueError, "load: m: layer 0: `turn` must be 0 in a model without RoPE, got 3",
        map_turn_alone=lambda: mapped(turn=3, which=without_rope()))
refused(ValueError, "softmax_attention: `cache.k` must be finite, got nan or inf at token 2, column 0",
        cache_k_nan=lambda: soft(q, k, v, cache=KVCache(put(k, (2, 0), nan), v, keep, n)))

# Text, and how near
refused(TypeError, "generate: `model` must be a Model, got dict",
        generate_weights=lambda: ri.generate(W, [1], 1))
refused(ValueError, "generate: `tokens` must be an integer ≥ 0, got -1",
        generate_tokens=lambda: ri.generate(model, [1], -1))
refused(ValueError, "generate: `seed` must be an integer ≥ 0, got None",
        generate_seed=lambda: ri.generate(model, [1], 1, seed=None))
refused(ValueError, "generate: `temperature` must be a finite number ≥ 0, got nan",
        generate_temperature=lambda: ri.generate(model, [1], 1, temperature=nan))
refused(ValueError, "generate: `temperature` must be a finite number ≥ 0, got True",
        generate_true=lambda: ri.generate(model, [1], 1, temperature=True))
refused(ValueError, "generate: `model` must have a vocabulary, got one from vectors to vectors",
        generate_vectors=lambda: ri.generate(ri.random_model(F, Config(1, 2), 1), [1], 1))
refused(ValueError, "generate: `text` must hold ids from 0 to 4, got 5 at token 0",
        generate_id=lambda: ri.generate(model, [5], 1))
refused(ValueError, "generate: `text` must be one text of token ids, one or more, got none",
        generate_nothing=lambda: ri.generate(model, [], 1))
refused(ValueError, "generate: `text` must be one text of token ids, one or more, got a batch of shape (2, 1)",
        generate_batch=lambda: ri.generate(model, [[1], [2]], 1))
refused(ValueError, "generate: `text` must be one text of token ids, one or more, got vectors",
        generate_from_vectors=lambda: ri.generate(model, a(2, 3), 1))
refused(ValueError, "generate: `model` must carry one prompt, got a batch of shape (2,)",
        generate_prompts=lambda: ri.generate(ri.convert(model, [[1], [2]]), [1], 1))
refused(ValueError, "generate: `tokens` must be at most 3 after this text, for a table of 4 positions, got 4",
        generate_far=lambda: ri.generate(table_model, [1, 2], 4))
refused(NotDefined, "maximum is not defined in GF(7); generate needs an ordered system",
        generate_in_GF=lambda: ri.generate(ri.random_model(GF(7), replace(config, phi="identity", norm="none"), 1), [1], 1))
refused(TypeError, "fidelity: `converted` must be a Model, got tuple",
        fidelity_biases=lambda: ri.fidelity(model, converted.biases, [1], [2]))
refused(ValueError, "fidelity: `text` must hold ids from 0 to 4, got 9 at token 0",
        fidelity_id=lambda: ri.fidelity(model, converted, [1], [9]))
refused(ValueError, "fidelity: `model` must have a vocabulary, and `prompt` and `text` be token ids of it, got vectors",
        fidelity_vectors=lambda: ri.fidelity(model, converted, [1], a(2, 3)))

# In-context learning as descent
for argument, run in {
    "gradient: `W`": lambda: gradient(squared_error, [[1]]),
    "gradient: `data[1]`": lambda: gradient(squared_error, q, k, [[1]]),
    "squared_error: `Y`": lambda: squared_error(q, k, [[1]]),
    "alignment: `values`": lambda: alignment(q, [[1]], k),
    "trained: `errors`": lambda: irie.trained(S, [[1]], v),
    "dual_form: `x`": lambda: irie.dual_form(S, q, v, [[1]]),
    "dual_form: `inputs`": lambda: irie.dual_form(S, q, [[1]], v),
    "training_history: `Y`": lambda: irie.training_history(S, v, [[1]], 1, 1, irie.half_squares),
    "half_squares: `Y`": lambda: irie.half_squares(v, [[1]]),
    "examples: `Y`": lambda: von_oswald.examples(v, [[1]]),
    "queries: `W_0`": lambda: von_oswald.queries(v, [[1]]),
    "self_attention: `P`": lambda: von_oswald.self_attention(q, k, *[a(d, d)] * 3, [[1]]),
    "proposition_1: `W_0`": lambda: von_oswald.proposition_1([[1]], 1, 1),
    "regression_model: `W_0`": lambda: von_oswald.regression_model([[1]], 1, 1),
    "shown: `Y`": lambda: von_oswald.shown(v, [[1]]),
    "asked: `W_0`": lambda: von_oswald.asked(v, [[1]]),
    "weight_update: `b_KV`": lambda: von_oswald.weight_update([[1]], 1, 1),
    "mapped_model: `W_1`": lambda: von_oswald.mapped_model(von_oswald.regression_model(S, 1, 1), S, [[1]], S),
    "pairing_model: `like`": lambda: von_oswald.pairing_model([[1]], 1, 1, 1),
    "f_icl: `demonstrations`": lambda: dai.f_icl(q, [[1]], q, a(d, d), a(m, d)),
    "f_zsl: `W_V`": lambda: dai.f_zsl(q, q, a(d, d), [[1]]),
    "delta_W: `W_V`": lambda: dai.delta_W(q, a(d, d), [[1]]),
    "f_ft: `dW_V`": lambda: dai.f_ft(q, q, a(d, d), a(m, d), a(d, d), [[1]]),
    "momentum_attention: `v`": lambda: dai.momentum_attention(v, [[1]], 1),
    "likeness: `text`": lambda: dai.likeness(model, model, q, [[1]]),
    "cosine: `b`": lambda: dai.cosine(z, [1]),
    "unit: `h`": lambda: dai.unit([1]),
    "Attended: `V_T`": lambda: Attended(k, v, k, [[1]], z),
    "W_0: `q`": lambda: ren_liu.W_0(SimpleNamespace(q=[1])),
    "variant_loss: `W`": lambda: ren_liu.variant_loss(ren_liu.NORMAL)([[1]], *[1] * 10),
    "through_relu: `W_2`": lambda: ren_liu.through_relu(seen, S, [[1]]),
    "residual: `W_2`": lambda: ren_liu.residual(S, [[1]], 1, ri.feature_maps.relu),
    "apart: `V`": lambda: ren_liu.apart([[1]], [[0]], 1),
    "unlike: `K`": lambda: ren_liu.unlike([[1]], 1),
    "gram_features: `G`": lambda: ren_liu.gram_features([[1]]),
    "softmax_seen: `q`": lambda: ren_liu.softmax_seen(q, q, [1], a(d, d), a(d, d), a(m, d)),
    "rank_one_patch: `delta`": lambda: rank_one_patch(S, a(m), [1]),
}.items():
    refused(TypeError, f"{argument} must be an array (NumPy, torch, JAX, or of a refimpl system), got list", **{argument: run})
for argument, run in {
    "squared_error: `X` must hold one or more examples, for there to be a mean, got none": lambda: squared_error(S.T, k[:0, :], v[:0, :]),
    "gradient: `W` must have shape (outputs, inputs), got (3,)": lambda: gradient(squared_error, z),
    "gradient: `W` must have shape (outputs, inputs), got (1, 5, 3)": lambda: gradient(squared_error, q[None, :, :]),
    "gradient: `W` must be of NumPy, torch, JAX or a number system, which have derivatives, got one of array_api_strict":
        lambda: gradient(squared_error, *(strict.asarray(x) for x in (S.T, k, v))),
    "squared_error: `X` must have shape (..., examples, 3) to match `W`, got (5, 2)": lambda: squared_error(q, v, v),
    "squared_error: `Y` must have shape (..., 5, 5) to match `X` and `W`, got (5, 2)": lambda: gradient(squared_error, q, k, v),
    "alignment: `keys` must have shape (..., examples, 3) to match `W`, got (5, 2)": lambda: alignment(q, v, v),
    "alignment: `values` must have shape (..., 5, 5) to match `keys` and `W`, got (5, 2)": lambda: alignment(q, v, k),
    "trained: `W_0` must have shape (outputs, inputs), got (3,)": lambda: irie.trained(z, v, v),
    "dual_form: `inputs` must have shape (examples, 2) to match `W_0`, got (5, 3)": lambda: irie.dual_form(S, q, k, v),
    "trained: `errors` must have shape (5, 3) to match `inputs` and `W_0`, got (5, 2)": lambda: irie.trained(S, v, v),
    "dual_form: `x` must have shape (queries, 2) to match `W_0`, got (5, 3)": lambda: irie.dual_form(S, q, v, k),
    "self_attention: `context` must have shape (..., tokens, 3) to match `tokens`, got (5, 2)":
        lambda: von_oswald.self_attention(q, v, *[a(d, d)] * 4),
    "self_attention: `W_V` must have shape (..., 3, 3) to match `tokens`, got (3, 2)":
        lambda: von_oswald.self_attention(q, k, a(d, d), a(d, d), S, a(d, d)),
    "proposition_1: `W_0` must have shape (outputs, inputs), got (3,)": lambda: von_oswald.steps(q, k, z, 1, 1),
    "regression_model: `W_0` must have shape (outputs, inputs), got (3,)": lambda: von_oswald.regression_model(z, 1, 1),
    "f_zsl: `W_V` must have shape (..., rows, 3) to match `X`, got (3, 2)": lambda: dai.f_zsl(q, k, a(d, d), S),
    "f_zsl: `q` must have shape (..., queries, 2) to match `W_K`, got (5, 3)": lambda: dai.f_icl(q, k, k, a(m, d), a(m, d)),
    "momentum_attention: `v` must have shape (..., 5, 3) to match `o`, got (5, 2)": lambda: dai.momentum_attention(q, v, 1),
    "Attended: `K_T` must have shape (T, 3) to match `q`, got (5, 2)": lambda: Attended(k, v, v, v, z),
    "Attended: `V_T` must have shape (5, 2) to match its keys, got (5, 3)": lambda: Attended(k, v, k, q, z),
    "through_relu: `W_1` must have shape (..., hidden, 2) to match the values, got (2, 3)": lambda: ren_liu.through_relu(seen, S.T, S),
    "through_relu: `W_2` must have shape (..., outputs, 3) to match `W_1`, got (3, 2)": lambda: ren_liu.through_relu(seen, S, S),
    "gram_features: `G` must have shape (2, tokens), got (3, 2)": lambda: ren_liu.gram_features(S),
    "rank_one_patch: `W` must have shape (hidden, width), got (3,)": lambda: rank_one_patch(z, z, z),
    "rank_one_patch: `delta` must have shape (..., 2) to match `W`, got (3,)": lambda: rank_one_patch(S, a(m), z),
    "trained: `W_0` must have shape (outputs, inputs), got (2, 3, 2)": lambda: irie.trained(a(2, d, m), q, v),
    "trained: `inputs` must have shape (examples, 2) to match `W_0`, got (4, 5, 2)": lambda: irie.trained(S, q, a(4, n, m)),
    "training_history: `Y` must have shape (5, 3) to match `X` and `W_0`, got (1, 3)":
        lambda: irie.training_history(S, v, q[:1, :], 1, 1, irie.half_squares),
    "half_squares: `y` must have shape (..., 1, 3) to match `Y`, got (5, 3)": lambda: irie.half_squares(q, q[:1, :]),
    "half_squares: `N` must be an integer ≥ 1, got 0": lambda: irie.half_squares(q[:0, :], q[:0, :]),
    "proposition_1: `W_0` must have shape (outputs, inputs), got (2, 3, 2)": lambda: von_oswald.proposition_1(a(2, d, m), 1, 1),
    "regression_model: `W_0` must have shape (outputs, inputs), got (2, 3, 2)": lambda: von_oswald.regression_model(a(2, d, m), 1, 1),
    "mapped_model: `W_1` must have shape (hidden, 2) to match `W_0`, got (4, 3)":
        lambda: von_oswald.mapped_model(von_oswald.regression_model(S, 1, 1), S, a(4, 3), a(2, 4)),
    "mapped_model: `W_2` must have shape (2, 4) to match `W_1`, got (4, 2)":
        lambda: von_oswald.mapped_model(von_oswald.regression_model(S, 1, 1), S, a(4, 2), a(4, 2)),
    "f_ft: `dW_K` must have shape (3, 3) to match `W_K`, got (1, 3)":
        lambda: dai.f_ft(q, q, a(d, d), a(m, d), a(1, d), a(m, d)),
    "f_ft: `dW_V` must have shape (2, 3) to match `W_V`, got (3,)":
        lambda: dai.f_ft(q, q, a(d, d), a(m, d), a(d, d), a(d)),
    "cosine: `b` must have shape (4,) to match `a`, got (1,)": lambda: dai.cosine(a(4), a(1)),
    "rec2ftp: `zsl`, `icl` and `ft` must be of the same examples, got 2, 3 and 2": lambda: dai.rec2ftp([True] * 2, [True] * 3, [True] * 2),
    "kendall_tau: `a` and `b` must be numbers in some order, got nan": lambda: dai.kendall_tau([1, nan, 2], [1, 2, 3]),
    "Attended: `q` must have shape (features,), got (5, 3)": lambda: Attended(k, v, k, v, q),
    "Attended: `K_D` must have shape (N, 3) to match `q`, got (2, 5, 3)": lambda: Attended(a(2, n, d), v, k, v, z),
    "gram_features: `G` must have shape (2, tokens), got (2, 2, 2)": lambda: ren_liu.gram_features(np.ones((2, 2, 2))),
    "rank_one_patch: `W` must have shape (hidden, width), got (2, 3, 2)": lambda: rank_one_patch(a(2, d, m), a(m), a(m)),
    "attention: `off_diagonal` needs the query's own token, the last of X_T, which is empty":
        lambda: ren_liu.attention(replace(seen, K_T=k[:0, :], V_T=v[:0, :]), ren_liu.Variant(off_diagonal=1)),
    "one_step: `off_diagonal` needs the query's own token, the last of X_T, which is empty":
        lambda: ren_liu.one_step(replace(seen, K_T=k[:0, :], V_T=v[:0, :]), 1, ren_liu.Variant(off_diagonal=1)),
    "one_step: `negatives` must name one or more for each of 5 demonstrations, got [[1]]":
        lambda: ren_liu.one_step(seen, 1, ren_liu.Variant(negatives=[[1]], beta=1)),
    "attention: `negatives` must be an integer between 0 and 4, got 5":
        lambda: ren_liu.attention(seen, ren_liu.Variant(negatives=[[5]] * 5, beta=1)),
    "gap_bound: `w` must be finite and ≥ 0, got -1": lambda: ren_liu.gap_bound(-1, 1, [1], 1, 0.5),
    "gap_bound: `rho` must be finite and ≥ 0, got nan": lambda: ren_liu.gap_bound(1, nan, [1], 1, 0.5),
    "gap_bound: `largest` must be finite and ≥ 0, got inf": lambda: ren_liu.gap_bound(1, 1, [1], inf, 0.5),
    "gap_bound: `scores` must be one or more numbers from 0 to `largest` = 1, got [-3, 1]":
        lambda: ren_liu.gap_bound(1, 1, [-3, 1], 1, 0.5),
    "gap_bound: `scores` must be one or more numbers from 0 to `largest` = 1, got [1, nan]":
        lambda: ren_liu.gap_bound(1, 1, [1, nan], 1, 0.5),
    "training_history: `steps` must be an integer ≥ 0, got -1": lambda: irie.training_history(S, v, q, 1, -1, irie.half_squares),
    "steps: `count` must be an integer ≥ 0, got 0.5": lambda: von_oswald.steps(q, k, S.T[:, :2], 1, 0.5),
    "proposition_1: `N` must be an integer ≥ 1, got 0": lambda: von_oswald.steps(q, k[:0, :], S.T[:, :2], 1, 1),
    "predictions: `m` must be an integer between 0 and 3, got 4": lambda: von_oswald.predictions(q, 4),
    "regression_model: `N` must be an integer ≥ 1, got 0": lambda: von_oswald.regression_model(S, 1, 0),
    "regression_model: `layers` must be an integer ≥ 1, got 0": lambda: von_oswald.regression_model(S, 1, 1, layers=0),
    "weight_update: `N` must be an integer ≥ 1, got True": lambda: von_oswald.weight_update(S, 1, True),
    "pairing_model: `m` must be an integer ≥ 1, got 0": lambda: von_oswald.pairing_model(q, 1, 0, 1),
    "apart: `negatives` must be an integer between 0 and 4, got 5": lambda: ren_liu.apart(v, [[5]] * 5, 1),
    "apart: `negatives` must name one or more for each of 2 demonstrations, got [[1]]": lambda: ren_liu.apart(S[:2, :], [[1]], 1),
    "apart: `negatives` must name one or more for each of 2 demonstrations, got [[1], []]": lambda: ren_liu.apart(S[:2, :], [[1], []], 1),
    "unlike: `k` must be an integer between 1 and 4, got 5": lambda: ren_liu.unlike(k, 5),
    "gap_bound: `delta` must lie between 0 and 1, got 1": lambda: ren_liu.gap_bound(1, 1, [1], 1, 1),
    "gap_bound: `delta` must lie between 0 and 1, got nan": lambda: ren_liu.gap_bound(1, 1, [1], 1, nan),
    "gap_bound: `scores` must be one or more numbers from 0 to `largest` = 1, got [1, 2]": lambda: ren_liu.gap_bound(1, 1, [1, 2], 1, 0.5),
    "gap_bound: `scores` must be one or more numbers from 0 to `largest` = 1, got []": lambda: ren_liu.gap_bound(1, 1, [], 1, 0.5),
    "gram_features: `G` must be positive definite, it is not at token 1": lambda: ren_liu.gram_features(np.ones((2, 2))),
    "rec2ftp: `ft` must be right somewhere where `zsl` is wrong, else there is nothing to recall":
        lambda: dai.rec2ftp([True, False], [True, True], [True, False]),
    "kendall_tau: `a` and `b` must rank the same two or more tokens, got 2 and 3": lambda: dai.kendall_tau([1, 2], [1, 2, 3]),
    "kendall_tau: `a` and `b` must rank the same two or more tokens, got 1 and 1": lambda: dai.kendall_tau([1], [2]),
}.items():
    refused(ValueError, argument, **{argument: run})
bad, worse = put(S, (1, 0), nan), put(k, (1, 0), inf)
for argument, run in {
    "trained: `W_0`": lambda: irie.trained(bad, q, v),
    "dual_form: `x`": lambda: irie.dual_form(S.T, v, q, worse),
    "dual_form: `inputs`": lambda: irie.dual_form(S.T, v, worse, q),
    "training_history: `X`": lambda: irie.training_history(S.T, worse, v, 1, 1, irie.half_squares),
    "self_attention: `context`": lambda: von_oswald.self_attention(q, worse, *[a(d, d)] * 4),
    "self_attention: `tokens`": lambda: von_oswald.steps(worse, k, S.T[:1, :], 1, 1),
    "proposition_1: `W_0`": lambda: von_oswald.proposition_1(bad, 1, 1),
    "regression_model: `W_0`": lambda: von_oswald.regression_model(bad, 1, 1),
    "mapped_model: `W_2`": lambda: von_oswald.mapped_model(von_oswald.regression_model(S.T, 1, 1), S.T, a(m, d), bad),
    "weight_update: `b_KV`": lambda: von_oswald.weight_update(bad, 1, 1),
    "f_zsl: `X`": lambda: dai.f_zsl(q, worse, a(d, d), a(m, d)),
    "delta_W: `X`": lambda: dai.delta_W(worse, a(d, d), a(m, d)),
    "momentum_attention: `v`": lambda: dai.momentum_attention(k, worse, 1),
    "cosine: `b`": lambda: dai.cosine(k, worse),
    "unit: `h`": lambda: dai.unit(worse),
    "Attended: `K_T`": lambda: Attended(k, v, worse, v, z),
    "unlike: `K`": lambda: ren_liu.unlike(worse, 1),
    "gram_features: `G`": lambda: ren_liu.gram_features(put(np.eye(2), (1, 0), nan)),
    "rank_one_patch: `W`": lambda: rank_one_patch(bad, a(m), a(m)),
}.items():
    refused(ValueError, f"{argument} must be finite, got nan or inf at row 1, column 0", **{f"{argument} of nan": run})
refused(ValueError, "Attended: `q` must be finite, got nan or inf at column 2",
        Attended_nan=lambda: Attended(k, v, k, v, put(z, 2, nan)))
for argument, run in {
    "step: `eta`": lambda: step(squared_error, q, "1", k, v),
    "training_history: `eta`": lambda: irie.training_history(S, v, q, "1", 1, irie.half_squares),
    "steps: `dampening`": lambda: von_oswald.steps(q, k, S.T[:1, :2], 1, 1, dampening="1"),
    "proposition_1: `eta`": lambda: von_oswald.proposition_1(S, "1", 1),
    "regression_model: `gamma`": lambda: von_oswald.regression_model(S, 1, 1, gamma="1"),
    "weight_update: `eta`": lambda: von_oswald.weight_update(S, "1", 1),
    "momentum_attention: `eta`": lambda: dai.momentum_attention(v, v, "1"),
    "apart: `beta`": lambda: ren_liu.apart(v, [[0]] * 5, "1"),
    "one_step: `penalty`": lambda: ren_liu.one_step(seen, 1, ren_liu.Variant(penalty="1")),
    "one_at_a_time: `eta`": lambda: ren_liu.one_at_a_time(seen, "1"),
}.items():
    refused(TypeError, f"{argument} must be an integer, a float or an array, got '1'", **{argument: run})
refused(TypeError, "0.5 is a float; ℚ takes Fraction(1, 2)",
        one_step_float=lambda: ren_liu.one_step(Attended(Q[1], Q[2], Q[1], Q[2], Q[0][0, :]), 0.5))
refused(TypeError, "f_ft: `dW_K` has dtype float32, `W_K` has float64; convert one of them explicitly",
        f_ft_casts=lambda: dai.f_ft(q, k, a(d, d), a(m, d), *f32(a(d, d)), a(m, d)))
refused(TypeError, "watched: `model` must be a Model, got dict",
        watched_weights=lambda: dai.watched(W, [1]))
refused(TypeError, "attention: `seen` must be a Attended, got tuple",
        attention_tuple=lambda: ren_liu.attention((k, v, k, v, z)))
refused(ZeroDenominator, "cosine: the denominator |a| |b| is zero at token 0 (no ε is added)",
        cosine_zero=lambda: dai.cosine(z, 0 * z))
refused(ZeroDenominator, "unit: the denominator |h| is zero at token 1 (no ε is added)",
        unit_zero=lambda: dai.unit(put(a(2, d), 1, 0)))
refused(ZeroDenominator, "attention: the denominator Σ κ(k, q) is zero at token 0 (no ε is added)",
        attention_zero=lambda: ren_liu.attention(replace(seen, q=0 * z)))
refused(ZeroDenominator, "W_0: the denominator Σ κ(k, q) is zero at token 0 (no ε is added)",
        W_0_zero=lambda: ren_liu.one_step(replace(seen, q=0 * z), 1))
refused(ZeroDenominator, "one_step: the denominator η is zero (no ε is added)",
        one_step_zero=lambda: ren_liu.one_step(seen, 0.0))
refused(ZeroDenominator, "one_at_a_time: the denominator η is zero (no ε is added)",
        one_at_a_time_zero=lambda: ren_liu.one_at_a_time(seen, 0))
refused(ZeroDenominator, "one_step: the denominator κ(q, q) is zero (no ε is added)",
        one_step_no_query=lambda: ren_liu.one_step(replace(seen, q=0 * z), 1, ren_liu.Variant(off_diagonal=1)))
refused(ZeroDenominator, "rank_one_patch: the denominator |a|² is zero at token 0 (no ε is added)",
        patch_zero=lambda: rank_one_patch(S, 0 * a(m), a(m)))
refused(NotDefined, "maximum is not defined in GF(7); relu needs an ordered system",
        through_relu_in_GF=lambda: ren_liu.through_relu(Attended(*[GF(7).ones((1, 1))] * 4, GF(7).ones((1,))), *[GF(7).ones((1, 1))] * 2))
refused(NotDefined, "maximum is not defined in GF(7); choosing negatives needs an ordered system",
        unlike_in_GF=lambda: ren_liu.unlike(GF(7).ones((2, 1)), 1))
refused(NotDefined, "exp is not defined in ℚ; a Cholesky factor needs a real system",
        gram_features_in_Q=lambda: ren_liu.gram_features(QQ.ones((1, 1))))
refused(NotDefined, "sqrt is not defined in ℚ; it needs a real system",
        cosine_in_Q=lambda: dai.cosine(*Q[:2]))
# fmt: on


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """What a case saves is gone afterwards."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", CASES)
def test_bad_input(name):
    case = CASES[name]
    with np.errstate(all="ignore"), pytest.raises(case.error) as caught:
        case.run()
    assert str(caught.value) == case.message
    assert type(caught.value) is case.error


def test_every_message_names_function_and_argument():
    about_systems = (NotDefined, ZeroDenominator, NotFinite)  # these name the number system or the token instead
    for name, case in CASES.items():
        assert issubclass(case.error, about_systems) or re.match(
            r"[\w.]+: .*`[\w.()\[\]]+`|.* is a float", case.message
        ), name


ROOMS = ("errors", "shapes", "feature_maps", "rope", "state", "forms", "linear_attention", "attention")
ROOMS += ("token_wise", "config", "transformer", "conversion", "checkpoint", "pasts")
ROOMS += (
    "memory",
    "compression/__init__",
    "compression/best",
    "random_features",
    "feature_error",
    "generation",
    "fidelity",
)
ROOMS += tuple(f"descent/{room}" for room in ("gradient", "irie", "von_oswald", "dai", "ren_liu", "patch"))
CHECKERS = {
    "choose",
    "require",
    "namespace",
    "check_dtype",
    "instance",
    "integer",
    "scalar",
    "shape",
    "lead",
    "prefix_length",
}
CHECKERS |= {
    "check_padding",
    "finite",
    "finite_arrays",
    "divide",
    "whole",
    "check",
    "enough",
    "rational",
    "integers",
    "pair",
    "feature_map",
    "token_ids",
    "check_state",
}


def may_refuse(node: ast.AST) -> bool:
    """A `raise`, or a call of what raises."""
    name = getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""
    return isinstance(node, ast.Raise) or (name in CHECKERS and ast.unparse(node.func) != "rng.integers")


def test_every_raise_and_every_check_has_a_case():
    """Every line of the core that may refuse its input, against the tracebacks of the cases."""
    sources = {room: Path(ri.__file__).parent / f"{room}.py" for room in ROOMS}
    nodes = [
        (room, node)
        for room, path in sources.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if may_refuse(node)
    ]
    seen = set()
    for case in (*CASES.values(), *(Case(*words) for words in WORDS)):
        with np.errstate(all="ignore"):
            try:
                case.run()
            except pytest.skip.Exception:
                continue
            except Exception as error:
                causes = [error, error.__cause__, getattr(error.__cause__, "__cause__", None)]
                seen |= {
                    (frame.f_code.co_filename, line)
                    for e in causes
                    if e
                    for frame, line in traceback.walk_tb(e.__traceback__)
                }
    assert len(nodes) > 80
    silent = [
        f"{room}.py:{node.lineno}: {ast.unparse(node)}"
        for room, node in nodes
        if not {(str(sources[room]), line) for line in range(node.lineno, node.end_lineno + 1)} & seen
    ]
    assert not silent, "\n".join(silent)


def test_unknown_systems_are_named_with_the_nearest_known_one():
    with pytest.raises(ValueError, match=r"^system: `name` must be one of GF, Q, .*, got 'GFF'; did you mean 'GF'\?$"):
        ri.system("GFF(7)")


def test_shift_is_allowed_for_identity():
    for phi in (ri.feature_maps.identity, "identity"):
        moved = ri.state.shift(State(S, z), 3, rope=before, phi=phi)
        assert moved.position == 3
        assert moved.z[-1] == z[-1]
        assert not np.array_equal(moved.z, z)


def test_numbers_of_any_integer_kind_are_lengths_and_positions():
    want = la(q, k, v, mask=2, state=State(S, z, 3))
    got = la(q, k, v, mask=np.int64(2), state=State(S, z, np.int32(3)))
    assert np.array_equal(got[0], want[0])
    assert ri.state.scale(State(*Q[1:]), Fraction(1, 2)).S.shape == (n, d)


def frozen(x: Any) -> Any:
    x.setflags(write=False)
    return x


READ_ONLY = {
    **{f.__name__: f for f in (la, ri.linear_attention_quadratic, ri.linear_attention_recurrent)},
    "linear_attention_chunked": lambda *args, **options: chunked(*args, chunk=2, **options),
}


@pytest.mark.parametrize("form", READ_ONLY)
@pytest.mark.parametrize("placement", ri.rope.PLACEMENTS)
def test_no_form_writes_into_its_inputs(form, placement):
    arrays = [frozen(x.copy()) for x in (q, k, v, S, z, keep[0])]
    rope = Rope(table(2), placement=placement)
    options = {"rope": rope, "padding": arrays[5], "mask": 2, "phi": "elu+1", "state": State(arrays[3], arrays[4], 3)}
    READ_ONLY[form](*arrays[:3], **options)
    for x, copy in zip(arrays, (q, k, v, S, z, keep[0]), strict=True):
        assert np.array_equal(x, copy)


def test_nothing_else_writes_into_its_inputs():
    arrays = [frozen(x.copy()) for x in (q, k, v, S, z)]
    x, state, after = arrays[0], State(arrays[3], arrays[4], 3), Rope(table(2))
    for form in (soft, ri.softmax_attention_shifted):
        _, cache = form(*arrays[:3], rope=before)
        for part in (cache.k, cache.v):
            frozen(part)
        form(*arrays[:3], rope=before, cache=cache)
    ri.state.absorb(state, *arrays[1:3], rope=after)
    ri.state.remove(ri.state.join(state, state, rope=after), state, rope=after)
    ri.state.shift(ri.state.scale(state, 2), -3, rope=before, phi=ri.feature_maps.identity)
    for phi in (
        *ri.FEATURE_MAPS.values(),
        ri.feature_maps.polynomial(2),
        ri.feature_maps.dpfp(2),
        ri.feature_maps.hedgehog(frozen(a(4, 3)), frozen(a(4))),
    ):
        phi(x)
    for layout in ri.rope.LAYOUTS:
        ri.rotate(x, *table(2)(range(n)), layout=layout)
    ri.rope.deinterleave(ri.rope.interleave(x, pairs=1), pairs=1)
    for x, copy in zip(arrays, (q, k, v, S, z), strict=True):
        assert np.array_equal(x, copy)
