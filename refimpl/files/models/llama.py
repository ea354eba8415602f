"""Llama: llama2.c's files, and safetensors with the names of Hugging Face.

    x_0 = E[text]        x ← x + attn(rms x)        x ← x + mlp(rms x)
    logits = rms(x) Eᵀ, or by a separate head

attn: softmax(R_t q · R_s k / √d) v    mlp: (silu(x W_gate) · x W_up) W_down
Source   Touvron et al. 2023; llama2.c, version 0 (interleaved RoPE of base 10000, ε = 10⁻⁵).
"""

from __future__ import annotations

import struct
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ...attention.rope import angle_table
from ...errors import brief
from ...model.attention_layers import Config, Rotary
from ...model.transformer import Model
from ...systems import Float, System
from ..disk import PathLike, check_path, located, opened, read_object
from ..safetensors import read_safetensors
from .mapping import take_weights
from .reading import Format, Opening, Settings, Tensors

HEADER = ("dim", "hidden", "layers", "heads", "kv_heads", "vocabulary", "context")
LLAMA: dict[str, Any] = {"phi": "softmax", "norm": "rms", "activation": "silu", "gated": True}  # of a Config
LARGEST = 2**24  # the largest number that a header may have
MATRICES = {"W_Q": "wq", "W_K": "wk", "W_V": "wv", "W_O": "wo", "W_gate": "w1", "W_up": "w3", "W_down": "w2"}
ROPE = {"rope_theta", "rope_type", "type", "partial_rotary_factor"}
# the names of Hugging Face, as in mapping.py
MAPPING = {"model.embed_tokens.weight": "embedding", "model.norm.weight": "gain"}
MAPPING |= {f"model.layers.{{}}.self_attn.{letter.lower()}_proj.weight": f"W_{letter}.T" for letter in "QKVO"}
MAPPING |= {f"model.layers.{{}}.mlp.{name}_proj.weight": f"W_{name}.T" for name in ("gate", "up", "down")}
MAPPING |= {"model.layers.{}.input_layernorm.weight": "gain_1"}
MAPPING |= {"model.layers.{}.post_attention_layernorm.weight": "gain_2"}
HEAD = {"lm_head.weight": "unembedding.T"}


def read_llama2c(path: PathLike, *, system: System) -> Model:
    """The model in a llama2.c file of version 0.

    The file has the 7 int32 of HEADER, then the float32 of llama2c_shapes. A vocabulary < 0 means
    that there is a separate head. Matrices are (out, in), those of all layers together.
    """
    who = "read_llama2c"
    with opened(who, path) as (file, size):
        header = parse_sizes(who, path, file.read(4 * len(HEADER)))
        shapes = llama2c_shapes(header)
        if size != (wanted := 4 * (len(HEADER) + sum(prod(s) for s in shapes.values()))):
            raise ValueError(f"{who}: {path}: the file must have {wanted} bytes for {header}, got {size}")
        arrays = {name: np.fromfile(file, "<f4", prod(shape)).reshape(shape) for name, shape in shapes.items()}
    tensors = Tensors(who, path, arrays, system)
    d = header["dim"] // header["heads"]
    check_rotations(tensors, tensors.take("cos", *shapes["cos"]), tensors.take("sin", *shapes["sin"]), d)
    x = {name: tensors.take(name, *shape) for name, shape in shapes.items() if name in tensors}
    weights = {"embedding": x["embedding"], "gain": x["final"]}
    for i in range(header["layers"]):
        weights |= {f"layers.{i}.{name}": x[short][i].T for name, short in MATRICES.items()}
        weights |= {f"layers.{i}.gain_1": x["norm_1"][i], f"layers.{i}.gain_2": x["norm_2"][i]}
    if "head" in x:
        weights["unembedding"] = x["head"].T
    rope, tied = Rotary(d, layout="interleaved", placement="before", base=10000), "head" not in x
    dim, hidden, layers, heads, groups, vocabulary, _ = header.values()
    more: dict[str, Any] = {"epsilon": Fraction(1, 100000), "hidden": hidden, "vocabulary": abs(vocabulary)}
    with located(tensors.about):
        config = Config(layers, dim, heads, groups, d, d, **LLAMA, **more, rope=rope, tied=tied)
    return tensors.model(config, weights)


def parse_sizes(who: str, path: PathLike, start: bytes) -> dict[str, int]:
    """The seven numbers at the start of a file, if they can be those of a model."""
    if len(start) < 4 * len(HEADER):
        raise ValueError(f"{who}: {path}: the file must begin with {len(HEADER)} int32, got {len(start)} bytes")
    header = dict(zip(HEADER, struct.unpack("<7i", start), strict=True))
    for name, n in header.items():
        if not 1 <= (abs(n) if name == "vocabulary" else n) <= LARGEST:
            raise ValueError(f"{who}: {path}: `{name}` must be from 1 to {LARGEST}, got {n}")
    dim, heads, groups = header["dim"], header["heads"], header["kv_heads"]
    if dim % (2 * heads) or heads % groups:
        sizes = f"{groups} kv_heads, {heads} heads and width {dim}"
        wanted = "kv_heads must divide heads, and heads the width, in even parts for RoPE"
        raise ValueError(f"{who}: {path}: {wanted}, got {sizes}")
    return header


def llama2c_shapes(header: dict[str, int]) -> dict[str, tuple[int, ...]]:
    """The names and shapes of the arrays behind the header, in the order of the file."""
    dim, hidden, L, heads, groups, vocabulary, context = header.values()
    d = dim // heads
    shapes: dict[str, tuple[int, ...]] = {"embedding": (abs(vocabulary), dim), "norm_1": (L, dim), "wq": (L, dim, dim)}
    shapes |= {"wk": (L, groups * d, dim), "wv": (L, groups * d, dim), "wo": (L, dim, dim), "norm_2": (L, dim)}
    shapes |= {"w1": (L, hidden, dim), "w2": (L, dim, hidden), "w3": (L, hidden, dim), "final": (dim,)}
    shapes |= {"cos": (context, d // 2), "sin": (context, d // 2)}
    return shapes | ({"head": (-vocabulary, dim)} if vocabulary < 0 else {})


def check_rotations(tensors: Tensors, cos: np.ndarray, sin: np.ndarray, width: int) -> None:
    """The tables in the file, which llama2.c itself skips, must be those of base 10000.

    They were made in float32: θ_i is within a few ulp, and the angle pθ is rounded once more. So
    cos and sin at position p may be off by (p + 2) · 2⁻²².
    """
    allowed = (2 + np.arange(len(cos))[:, None]) * 2.0**-22
    ours = angle_table(Float(), width)(range(len(cos)))
    for name, table, wanted in zip(("cos", "sin"), (cos, sin), ours, strict=True):
        if not (np.abs(table - wanted) <= allowed).all():
            raise ValueError(f"{tensors.about}: the table of {name} must be that of RoPE with base 10000, got another")


def read_llama(path: PathLike, *, system: System) -> Model:
    """The model in Llama's safetensors, as the `config.json` beside the file says.

    Matrices are (out, in); RoPE's layout is half.
    """
    who = "read_llama"
    check_path(who, path)
    beside = Path(path).with_name("config.json")
    tensors = Tensors(who, path, read_safetensors(path).tensors, system)
    settings = Settings(who, beside, read_object(who, beside))
    for key, known in (("model_type", "llama"), ("hidden_act", "silu"), ("attention_bias", False), ("mlp_bias", False)):
        settings.check_one_of(key, known)
    for name in [name for name in tensors.arrays if name.endswith(".rotary_emb.inv_freq")]:
        del tensors.arrays[name]
    vocabulary, width = tensors.shape("model.embed_tokens.weight", 2)
    layers = tensors.count_layers("model.layers.{}.input_layernorm.weight")
    hidden = tensors.shape("model.layers.0.mlp.gate_proj.weight", 2)[0]
    sizes = {"num_hidden_layers": layers, "hidden_size": width, "vocab_size": vocabulary, "intermediate_size": hidden}
    for key, found in sizes.items():
        settings.check_integer(key, found)
    heads = settings.integer("num_attention_heads")
    groups, d = settings.integer("num_key_value_heads", heads), settings.integer("head_dim", max(width // heads, 1))
    tied = settings.boolean("tie_word_embeddings", False)
    if tied and "lm_head.weight" in tensors:
        tensors.remove_tied("lm_head.weight", "model.embed_tokens.weight", beside)
    epsilon, rope = settings.fraction("rms_norm_eps", "1e-6"), read_rope(settings, d)
    more: dict[str, Any] = {"epsilon": epsilon, "hidden": hidden, "vocabulary": vocabulary}
    with located(tensors.about):
        config = Config(layers, width, heads, groups, d, d, **LLAMA, **more, rope=rope, tied=tied)
    return tensors.model(config, take_weights(tensors, config, MAPPING if tied else MAPPING | HEAD))


def read_rope(settings: Settings, width: int) -> Rotary:
    """RoPE as `rope_theta` says, or the newer `rope_parameters`: {"rope_theta": ...}."""
    inner = settings
    for key in ("rope_scaling", "rope_parameters"):
        values = settings.get(key, {})
        if not isinstance(values, dict) or not values.keys() <= ROPE:
            keys = ", ".join(sorted(ROPE))
            raise ValueError(f"{settings.about}: `{key}` must have no keys but {keys}, got {brief(values)}")
        inner = Settings(settings.who, f"{settings.path}: `{key}`", settings.values | values)
        inner.check_one_of("rope_type", "default")
        inner.check_one_of("type", "default")
        inner.check_one_of("partial_rotary_factor", 1.0, 1)
    base = inner.fraction("rope_theta", "10000")
    if base.denominator != 1 or base < 1:
        wanted = "`rope_theta` must be a whole number ≥ 1: nothing else is implemented"
        raise ValueError(f"{inner.about}: {wanted}, got {float(base)}")
    if width % 2:
        raise ValueError(f"{settings.about}: `head_dim` must be even for RoPE, got {width}")
    return Rotary(width, layout="half", placement="before", base=int(base))


def is_llama2c(opening: Opening) -> bool:
    """Can the seven integers of a header be those of a model? There is no magic number."""
    try:
        return not opening.is_safetensors and bool(parse_sizes("read_llama2c", "", opening.start))
    except ValueError:
        return False


FORMATS = (
    Format("Llama's safetensors", lambda o: "model.embed_tokens.weight" in o.tensors, read_llama),
    Format("llama2.c's .bin of version 0", is_llama2c, read_llama2c),
)
