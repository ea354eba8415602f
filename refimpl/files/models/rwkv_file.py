"""Reads the model files of rwkv.cpp (`.bin`), versions 100 and 101, of RWKV 4, 5.1, 5.2 and 7. Nothing read is ever run.

    6 × uint32    magic 0x67676d66, file version, vocabulary, width, layers, data type; little-endian
    then tensors until the end of the file, each
    3 × uint32    number of axes (1 to 3), length of the name, data type (0: float32, 1: float16; others are quantised)
    uint32s       the lengths of the axes, the fastest first
    bytes         the name in UTF-8, then the numbers

The numbers are kept as the file has them, which is not in all respects as RWKV-LM publishes them:
    4           decay holds −exp(w), the logarithm of the decay
    5.1, 5.2    decay holds exp(−exp(w)), the decay itself
    5.1         bonus holds exp(u)
    7           the low-rank matrices are transposed, and x_r … x_g are one tensor x_rwkvag
Every matrix of the file is (out, in); here, where tokens are rows, it is (in, out). Vectors lose their axes of length 1.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Mapping
from typing import IO, Any, NamedTuple

import numpy as np

from ...checks import check_type
from ...model.rwkv import Rwkv
from ...systems import System
from ...systems.array import first
from .reading import size_of

MAGIC = 0x67676D66
STORED = (np.dtype("<f4"), np.dtype("<f2"))
DTYPES = (
    "FP32",
    "FP16",
    "Q4_0",
    "Q4_1",
    "Q4_1_O",
    "Q4_2",
    "Q4_3",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q8_1",
    "Q2_K",
    "Q3_K",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "Q8_K",
)

# name in the file: name here
WHOLE = {
    "emb.weight": "embedding",
    "head.weight": "unembedding",
    "ln_out.weight": "gain",
    "ln_out.bias": "offset",
    "blocks.0.ln0.weight": "gain_0",
    "blocks.0.ln0.bias": "offset_0",
}
EVERY = {
    "ln1.weight": "gain_1",
    "ln1.bias": "offset_1",
    "ln2.weight": "gain_2",
    "ln2.bias": "offset_2",
    "att.receptance.weight": "W_R",
    "att.key.weight": "W_K",
    "att.value.weight": "W_V",
    "att.output.weight": "W_O",
    "ffn.key.weight": "W_up",
    "ffn.value.weight": "W_down",
}
GATED = {
    "att.time_mix_r": "mix_R",
    "att.time_mix_k": "mix_K",
    "att.time_mix_v": "mix_V",
    "att.time_decay": "decay",
    "ffn.time_mix_k": "mix_up",
    "ffn.time_mix_r": "mix_gate",
    "ffn.receptance.weight": "W_gate",
}
NORMED = {"att.ln_x.weight": "gain_heads", "att.ln_x.bias": "offset_heads"}
LOW_RANK = {
    "att.x_rwkvag": "mix",
    "att.w0": "decay",
    "att.w1": "W_decay_1",
    "att.w2": "W_decay_2",
    "att.a0": "rate",
    "att.a1": "W_rate_1",
    "att.a2": "W_rate_2",
    "att.v0": "blend",
    "att.v1": "W_blend_1",
    "att.v2": "W_blend_2",
    "att.g1": "W_G_1",
    "att.g2": "W_G_2",
    "att.k_k": "removal",
    "att.k_a": "replacement",
    "att.r_k": "bonus",
    "ffn.x_k": "mix_up",
}
LAYER = {
    "4": EVERY | GATED | {"att.time_first": "bonus"},
    "5.1": EVERY | GATED | NORMED | {"att.time_first": "bonus"},
    "5.2": EVERY | GATED | NORMED | {"att.time_faaaa": "bonus", "att.time_mix_g": "mix_G", "att.gate.weight": "W_G"},
    "7": EVERY | NORMED | LOW_RANK,
}
MIXES = ("mix_R", "mix_W", "mix_K", "mix_V", "mix_A", "mix_G")  # in the order of x_rwkvag
LAYER_BYTES = 17 * (
    12 + 4 + 17 + 2
)  # at the least: that many tensors, each with its head, shape and name, and one number
OF_LAYER = re.compile(r"blocks\.(0|[1-9][0-9]{0,8})\.(.+)")


class Header(NamedTuple):
    vocabulary: int
    width: int
    layers: int


def read_rwkv(path: str | os.PathLike[str], *, system: System) -> tuple[Rwkv, dict[str, Any]]:
    """The configuration and the weights of a file, in the numbers of a system. Memory: a few times the size of the file.

    Refused: what is truncated, left over, quantised, repeated, missing, unknown, not finite or of another shape than the rest asks for.
    """
    check_type("read_rwkv", "system", system, System)
    size, who = size_of("read_rwkv", path), f"read_rwkv: {path}"
    with open(path, "rb") as file:
        header = read_header(who, file, size)
        found: dict[str, np.ndarray] = {}
        while (left := size - file.tell()) > 0:
            name, x = read_tensor(who, file, left, header.layers, found)
            found[name] = x
    version = version_of(found)
    config = config_of(who, version, header, found)
    return config, {name: system.convert(x) for name, x in named(who, config, found).items()}


def take(who: str, what: str, file: IO[bytes], count: int, left: int) -> bytes:
    """The next bytes, if there are so many."""
    data = file.read(count) if count <= left else b""
    if len(data) < count:
        raise ValueError(f"{who}: {what} must have {count} bytes, got {min(left, count)} before the end of the file")
    return data


def read_header(who: str, file: IO[bytes], size: int) -> Header:
    magic, version, vocabulary, width, layers, dtype = struct.unpack("<6I", take(who, "the header", file, 24, size))
    if magic != MAGIC:
        raise ValueError(f"{who}: the file must begin with the magic number {MAGIC:#x} of rwkv.cpp, got {magic:#x}")
    if version not in (100, 101):
        raise ValueError(f"{who}: the file version must be 100 or 101, got {version}")
    check_dtype(f"{who}: the header", dtype)
    for what, count, least in (
        ("vocabulary", vocabulary, 2 * width),
        ("width", width, 2),
        ("layers", layers, LAYER_BYTES),
    ):
        if count < 1 or count * max(least, 1) > size:  # so many bytes at the least, in float16
            raise ValueError(
                f"{who}: {what} in the header must be at least 1 and fit the file of {size} bytes, got {count}"
            )
    return Header(vocabulary, width, layers)


def check_dtype(who: str, dtype: int) -> None:
    if dtype >= len(STORED):
        name = DTYPES[dtype] if dtype < len(DTYPES) else "unknown"
        raise ValueError(
            f"{who} must have data type 0 (FP32) or 1 (FP16), got {dtype} ({name}), which is not read here"
        )


def read_tensor(
    who: str, file: IO[bytes], left: int, layers: int, found: dict[str, np.ndarray]
) -> tuple[str, np.ndarray]:
    """The next tensor: its name, and its numbers with the slowest axis first."""
    after = f"the tensor after {next(reversed(found))!r}" if found else "the first tensor"
    axes, length, dtype = struct.unpack("<3I", take(who, f"the head of {after}", file, 12, left))
    if not 1 <= axes <= 3:
        raise ValueError(f"{who}: {after} must have 1 to 3 axes, got {axes}")
    check_dtype(f"{who}: {after}", dtype)
    lengths = struct.unpack(f"<{axes}I", take(who, f"the shape of {after}", file, 4 * axes, left - 12))
    left -= 12 + 4 * axes
    text = take(who, f"the name of {after}", file, length, left)
    try:
        name = text.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{who}: the name of {after} must be UTF-8, got {text[:40]!r}") from None
    check_name(who, name, layers, found)
    needed = math.prod(lengths) * STORED[dtype].itemsize
    data = take(who, f"tensor {name!r} of shape {lengths[::-1]}", file, needed, left - length)
    x = np.frombuffer(data, STORED[dtype]).reshape(lengths[::-1])
    if not np.isfinite(x).all():
        raise ValueError(f"{who}: tensor {name!r} must be finite, got nan or inf at index {first(~np.isfinite(x))}")
    return name, x


def check_name(who: str, name: str, layers: int, found: Mapping[str, Any]) -> None:
    of_layer = OF_LAYER.fullmatch(name)
    if of_layer and "time_maa" in name:
        raise ValueError(f"{who}: the model must be of RWKV 4, 5.1, 5.2 or 7, got tensor {name[:80]!r} of RWKV 6")
    known = of_layer and int(of_layer[1]) < layers and any(of_layer[2] in names for names in LAYER.values())
    if name not in WHOLE and not known:
        raise ValueError(f"{who}: tensors must be those of RWKV with {layers} layers, got the name {name[:80]!r}")
    if name in found:
        raise ValueError(f"{who}: each tensor must stand there once, got {name!r} twice")


def version_of(found: Mapping[str, Any]) -> str:
    """As rwkv.cpp tells them apart: by the tensors that only one of them has."""
    marks = {"7": "att.r_k", "5.2": "att.gate.weight", "5.1": "att.ln_x.weight"}
    return next((version for version, mark in marks.items() if f"blocks.0.{mark}" in found), "4")


def config_of(who: str, version: str, header: Header, found: Mapping[str, np.ndarray]) -> Rwkv:
    """What the header says, and the rest from the shapes of a few tensors."""

    def rows(name: str) -> int:
        if name not in found:
            raise ValueError(f"{who}: RWKV {version} must have tensor {name!r}, got no such name")
        if not found[name].size:
            raise ValueError(f"{who}: tensor {name!r} must not be empty, got shape {found[name].shape}")
        return found[name].shape[0]

    for i in range(header.layers):  # before a list of all parameters is made, which may be long
        rows(f"blocks.{i}.ln1.weight")
    heads = {"4": None, "7": "att.r_k"}.get(version, "att.time_decay")
    low = ("w1", "a1", "v1", "g1") if version == "7" else ()
    ranks = (
        1 if name == "v1" and header.layers == 1 else rows(f"blocks.{int(name == 'v1')}.att.{name}") for name in low
    )
    try:
        return Rwkv(
            version,
            header.layers,
            header.width,
            rows(f"blocks.0.{heads}") if heads else 1,
            rows("blocks.0.ffn.key.weight"),
            header.vocabulary,
            tuple(ranks),
        )
    except ValueError as error:
        raise error if str(error).startswith(who) else ValueError(f"{who}: the tensors must agree: {error}") from None


def named(who: str, config: Rwkv, found: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors under our names, tokens as rows."""
    layer = LAYER[config.version]
    ours = WHOLE | {
        f"blocks.{i}.{theirs}": f"layers.{i}.{name}" for i in range(config.layers) for theirs, name in layer.items()
    }
    ours = {theirs: name for theirs, name in ours.items() if name in config.shapes or theirs.endswith("x_rwkvag")}
    for theirs in found:
        if theirs not in ours:
            raise ValueError(f"{who}: tensor {theirs!r} must not be there in RWKV {config.version}, got it")
    weights: dict[str, np.ndarray] = {}
    for theirs, name in ours.items():
        if theirs not in found:
            raise ValueError(f"{who}: RWKV {config.version} must have tensor {theirs!r}, got no such name")
        x, wanted = found[theirs], stored_shape(config, theirs, name)
        if x.shape != wanted:
            raise ValueError(f"{who}: tensor {theirs!r} must have shape {wanted}, got {x.shape}")
        if theirs.endswith("x_rwkvag"):
            weights |= {name.removesuffix("mix") + mix: row[0, :] for mix, row in zip(MIXES, x, strict=True)}
        else:
            matrix = name.rpartition(".")[2].startswith(("W_", "unembedding"))
            weights[name] = x.T if matrix else x.reshape(config.shapes[name])
    return {name: weights[name] for name in config.shapes}


def stored_shape(c: Rwkv, theirs: str, name: str) -> tuple[int, ...]:
    """The shape that the file gives a tensor, slowest axis first."""
    if theirs.endswith("x_rwkvag"):
        return (len(MIXES), 1, c.width)
    ours, kind = c.shapes[name], theirs.partition("att.")[2]
    if kind in ("time_decay", "time_first", "time_faaaa") and c.version != "4":
        return (*ours, *(1,) * (3 - len(ours)))
    if c.version == "7" and (kind in ("w0", "a0", "v0", "k_k", "k_a") or theirs.endswith("ffn.x_k")):
        return (1, 1, *ours)
    return ours if name == "embedding" or len(ours) == 1 or kind == "r_k" else ours[::-1]
