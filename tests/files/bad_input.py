"""Bad input to models and biases on disk: every message, word for word."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import refimpl as ri
from refimpl import GF, QQ, Compression, Config, KVCache, NotDefined
from refimpl.files import checkpoint
from refimpl.files import safetensors as files
from refimpl.files.models.gpt2 import read_gpt2
from refimpl.files.models.llama import read_llama2c
from refimpl.files.tokenizers.tokenizer_files import read_llama_tokenizer
from tests.helpers.bad_input import (
    FEATURE_MAPS,
    F,
    Table,
    W,
    a,
    bias,
    cases,
    config,
    converted,
    k,
    keep,
    model,
    n,
    nan,
    put,
    q,
    remembering,
    soft,
    table_model,
    v,
)

MAPS = "favor++, hyperbolic, orthogonal, points, positive, simplex, taylor, trigonometric"


def loaded(
    which: ri.Model = converted,
    base: Any = None,
    *,
    tensors: Any = None,
    seal: bool = False,
    alone: bool = False,
    **words: Any,
) -> Any:
    """What `load` says to a file with other tensors or other metadata; None takes one out. "
    "seal: its biases get a new digest."""
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


def beside_a_list() -> Any:
    """GPT-2's tensors, beside a configuration that is none."""
    files.write_safetensors("model.safetensors", {"wte.weight": np.ones((2, 2), np.float32)}, {})
    Path("config.json").write_text("[]")
    return read_gpt2("model.safetensors", system=F)


VALUE_ERRORS: Table = {
    "read_gpt2: config.json: the JSON must be an object, got []": beside_a_list,
    # NaN, inf, zero, overflow: which token, which head
    "softmax_attention: `cache.k` must be finite, got nan or inf at token 0, column 0": lambda: soft(
        q, k, v, cache=KVCache(put(k, (0, 0), nan), v, keep, n)
    ),
    # Feature maps by name
    (f"feature_map: `name` must be one of {FEATURE_MAPS}, got None"): lambda: ri.feature_map(None),
    # Models on disk
    "save: `model` must carry biases to save them alone, got none": lambda: ri.save("m", model, biases_only=True),
    "load: m: `format` must be 'refimpl 1', as `save` writes it, got 'pt'": lambda: loaded(format="pt"),
    "load: m: the metadata must have `digest`, of 1 to 999999 characters, got None": lambda: loaded(digest=None),
    (
        "load: m: `config` must be one that `save` writes: ValueError: Config: `layers` must be an integer ≥ 1, got '1'"
    ): lambda: configured(layers="1"),
    (
        'load: m: `config` must be one that `save` writes: ValueError: it must read \'1/100000", "gated": \' '
        'at character 60, got \'2/200000", "gated": \''
    ): lambda: configured(epsilon="2/200000"),
    (
        "load: m: `config` must be one that `save` writes: TypeError: Config: `normalise` must be a bool, got int"
    ): lambda: configured(normalise=1),
    "load: m: `config` must have at most as many layers as there are tensors, 11, got 1000000000": lambda: configured(
        layers=10**9
    ),
    "load: m: `x` must be a weight of its configuration or a bias": lambda: loaded(tensors={"x": np.ones(1)}),
    "load: m: `base` must be the model to which these biases belong, since the file has no weights, got None": lambda: (
        loaded(alone=True)
    ),
    "load: m: the file must hold biases alone, since `base` is given, got a whole model": lambda: loaded(base=model),
    (
        f"load: m: `digest` must be that of the weights, {ri.digest(model)[:12]}…, got 000000000000…: "
        "another model, or changed"
    ): lambda: loaded(digest="0" * 64),
    "load: m: `biases` must be the digest of biases, position and prompts: one of these was changed": lambda: loaded(
        position="1"
    ),
    "load: m: `position` must be JSON, got 'x'": lambda: loaded(position="x", seal=True),
    "load: m: metadata: `position` must be an integer between 0 and 4, got 5": lambda: loaded(
        table_model, position="5", seal=True
    ),
    "load: m: metadata: `prompts` must be a list, got int": lambda: loaded(prompts="3", seal=True),
    "load: m: metadata: `prompts[0]` must be an integer between 0 and 9007199254740992, got 2.5": lambda: loaded(
        prompts="[2.5]", seal=True
    ),
    "load: m: Model: `biases[0].z` must have shape (..., 1, 2) to match its S, got (2, 2)": lambda: loaded(
        tensors={"layers.0.b_D": np.ones((2, 2))}, seal=True
    ),
    "load: m: Model: `memory.S` must have all leading axes that its other arrays have, (0,), got (1,)": lambda: mapped(
        seed=None, tensors={"layers.0.b_omega": np.ones((0, 4, 2))}
    ),
    "load: m: layer 0: `b_KV` must be in the file for each layer, since other biases are": lambda: loaded(
        tensors={"layers.0.b_KV": None}, seal=True
    ),
    "load: m: `layers.0.b_D` must be F64, for float64, got F32": lambda: loaded(
        tensors={"layers.0.b_D": np.ones((1, 2), np.float32)}, seal=True
    ),
    "load: m: `gain` must hold integers from 0 to p − 1, for GF(7), got 7 to 7": lambda: loaded(
        ri.random_model(GF(7), config, 1), tensors={"gain": np.full(3, 7)}
    ),
    "load: m: `system` must be one of float64, float32, float16, bfloat16 or GF(p), got 'float8'": lambda: loaded(
        system="float8"
    ),
    # Memories in files
    "load: m: `maps` must be a list with one entry for each of 1 layers, got []": lambda: mapped([]),
    "load: m: layer 0: `maps` must be a list of objects for each layer, got 5": lambda: mapped([5]),
    "load: m: layer 0: `maps` must be a list of objects for each layer, got ['positive']": lambda: mapped(
        [["positive"]]
    ),
    "load: m: layer 0: `b_KV` must have a map in the metadata `maps`, got none": lambda: mapped([[]]),
    "load: m: layer 0: `b_KV.1` must be in the file for each map, got none for {'map': 'points'}": lambda: mapped(
        [[{"map": "taylor", "A": "0"}, {"map": "points"}]]
    ),
    f"load: m: layer 0: metadata: `map` must be one of {MAPS}, got None": lambda: mapped([[{}]]),
    "load: m: layer 0: `b_points` must be in the file exactly for a map 'points', got the map 'points'": lambda: mapped(
        map="points"
    ),
    "load: m: layer 0: `b_points` must be in the file exactly for a map 'points', got the map 'positive'": lambda: (
        mapped(tensors={"layers.0.b_points": a(1, 4, 2)})
    ),
    "load: m: layer 0: `A` must be a fraction such as '-1/8', got '1e400'": lambda: mapped(A="1e400"),
    "load: m: layer 0: `A` must be a fraction such as '-1/8', got '-1/0'": lambda: mapped(A="-1/0"),
    "load: m: layer 0: RandomFeatures: `A` must be 0 but for favor++, got Fraction(-1, 8)": lambda: mapped(A="-1/8"),
    "load: m: layer 0: RandomFeatures: `omega` must be an array (directions, width) for positive, got None": lambda: (
        mapped(seed=None)
    ),
    "load: m: layer 0: `b_omega` must not be there for directions drawn from a seed, got both": lambda: mapped(
        tensors={"layers.0.b_omega": a(4, 2)}
    ),
    "load: m: layer 0: metadata: `seed` must be an integer between 0 and 18446744073709551615, got -1": lambda: mapped(
        seed=-1
    ),
    "load: m: layer 0: metadata: `seed` must be an integer between 0 and 18446744073709551615, got 0.5": lambda: mapped(
        seed=0.5
    ),
    (
        "load: m: layer 0: metadata: `turn` must be an integer between -9007199254740992 and 9007199254740992, got None"
    ): lambda: mapped(turn=None),
    (
        "load: m: layer 0: metadata: `turn` must be an integer between -9007199254740992 and "
        f"9007199254740992, got {10**30}"
    ): lambda: mapped(turn=10**30),
    (
        "load: m: layer 0: `omega` must be the digest of the directions of seed 1, got another: "
        "drawn by another library, or changed"
    ): {"map_other_seed": lambda: mapped(seed=1), "map_other_digest": lambda: mapped(seed=1, omega="0" * 64)},
    (
        "load: m: layer 0: random_features: `r` must be even for hyperbolic, which makes two "
        "features of each direction, got 3"
    ): lambda: mapped(map="hyperbolic", tensors={"layers.0.b_KV": a(1, 3, 2), "layers.0.b_scale": a(1, 3)}),
    "load: m: layer 0: metadata: `b_KV` must have shape (..., features, values), got (3,)": lambda: mapped(
        tensors={"layers.0.b_KV": a(3)}
    ),
    "load: m: Model: `memory.scale` must be finite, got nan or inf at row 0, column 1": lambda: mapped(
        tensors={"layers.0.b_scale": np.array([[0, nan, 0, 0]])}
    ),
    "load: m: layer 0: metadata: `cache.k` must have shape (..., tokens, width), got (3,)": lambda: mapped(
        tensors={"layers.0.cache.k": a(3)}
    ),
    "load: m: Model: `biases[0].k` must be finite, got nan or inf at token 0, column 0, head (0,)": lambda: mapped(
        tensors={"layers.0.cache.k": np.full((1, 1, 2), nan), "layers.0.cache.v": a(1, 1, 2)}
    ),
    (
        "load: m: layer 0: `b_KV` must have axes no longer than there are numbers in its layer, "
        "got shape (1, 30000000, 0)"
    ): lambda: mapped(tensors={"layers.0.b_KV": np.zeros((1, 3 * 10**7, 0))}),
    (
        "load: m: layer 0: `cache.k` must have axes no longer than there are numbers in its layer, "
        "got shape (1000000000, 1, 0, 2)"
    ): lambda: mapped(tensors={"layers.0.cache.k": np.zeros((10**9, 1, 0, 2))}),
    "load: m: layer 0: `turn` must be 0 in a model without RoPE, got 3": lambda: mapped(turn=3, which=without_rope()),
}


VALUE_ERRORS |= {
    "read_model: `limit` must be a finite number ≥ 0, got -1": lambda: ri.read_model("m", limit=-1),
    "read_tokenizer: `limit` must be a finite number ≥ 0, got nan": lambda: ri.read_tokenizer("m", limit=float("nan")),
}

TYPE_ERRORS: Table = {
    # Models on disk
    "save: `model` must be a Model, got State": lambda: ri.save("m", bias),
    "digest: `model` must be a Model, got dict": lambda: ri.digest(W),
    "load: `base` must be a Model, got str": lambda: ri.load("m", "numpy"),
}


NOT_DEFINED: Table = {
    # Models on disk
    "digest: numbers of ℚ cannot be written; floats of at most 64 bits and GF(p) can": lambda: ri.save(
        "m", ri.random_model(QQ, replace(config, phi="identity"), 1)
    ),
    "digest: φ must be given by name, as in Config(phi='elu+1'); a function cannot be written": lambda: ri.save(
        "m", ri.Model(replace(config, phi=ri.feature_maps.relu), W)
    ),
    "load: m: NumPy has no bfloat16; pass library='torch'": lambda: loaded(system="bfloat16"),
}


OS_ERRORS: Table = {
    "read_llama2c: cannot read m: no such file": lambda: read_llama2c("m", system=F),
    "read_llama2c: cannot read .: not a regular file": lambda: read_llama2c(".", system=F),
    "read_tokenizer: cannot read m: no such file": lambda: read_llama_tokenizer("m"),
}

CASES = cases({ValueError: VALUE_ERRORS, TypeError: TYPE_ERRORS, NotDefined: NOT_DEFINED, OSError: OS_ERRORS})
