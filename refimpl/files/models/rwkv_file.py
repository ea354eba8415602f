"""The model files of rwkv.cpp (`.bin`), versions 100 and 101, of RWKV 4, 5.1, 5.2 and 7.

    6 × uint32    magic 0x67676d66, version, vocabulary, width, layers, data type; little-endian
    then tensors until the end of the file, each
    3 × uint32    number of axes (1 to 3), length of the name, data type (0: float32, 1: float16)
    uint32s       the lengths of the axes, the fastest first
    bytes         the name in UTF-8, then the numbers

The numbers are kept as they are in the file. Some differ from those that RWKV-LM publishes:
    4           decay holds −exp(w), the logarithm of the decay
    5.1, 5.2    decay holds exp(−exp(w)), the decay itself
    5.1         bonus holds exp(u)
    7           the low-rank matrices are transposed, and x_r … x_g are one tensor x_rwkvag
Every matrix of the file is (out, in); here it is (in, out). Vectors lose their axes of length 1.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from typing import IO, Any, NamedTuple

import numpy as np

from ...model.rwkv import Rwkv
from ...model.transformer import Model
from ...systems import System
from ..disk import PathLike, located, opened
from .reading import Format, Tensors

MAGIC = 0x67676D66
ON_DISK = (np.dtype("<f4"), np.dtype("<f2"))
DTYPES = ["FP32", "FP16", "Q4_0", "Q4_1", "Q4_1_O", "Q4_2", "Q4_3", "Q5_0", "Q5_1", "Q8_0", "Q8_1"]
DTYPES += ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K"]

# name in the file: name here
MODEL = {"emb.weight": "embedding", "head.weight": "unembedding", "ln_out.weight": "gain", "ln_out.bias": "offset"}
MODEL |= {"blocks.0.ln0.weight": "gain_0", "blocks.0.ln0.bias": "offset_0"}
EVERY = {"ln1.weight": "gain_1", "ln1.bias": "offset_1", "ln2.weight": "gain_2", "ln2.bias": "offset_2"}
EVERY |= {"att.receptance.weight": "W_R", "att.key.weight": "W_K", "att.value.weight": "W_V"}
EVERY |= {"att.output.weight": "W_O", "ffn.key.weight": "W_up", "ffn.value.weight": "W_down"}
GATED = {"att.time_mix_r": "mix_R", "att.time_mix_k": "mix_K", "att.time_mix_v": "mix_V", "att.time_decay": "decay"}
GATED |= {"ffn.time_mix_k": "mix_up", "ffn.time_mix_r": "mix_gate", "ffn.receptance.weight": "W_gate"}
NORMED = {"att.ln_x.weight": "gain_heads", "att.ln_x.bias": "offset_heads"}
LOW_RANK = {"att.x_rwkvag": "mix", "att.k_k": "removal", "att.k_a": "replacement", "att.r_k": "bonus"}
LOW_RANK |= {"att.w0": "decay", "att.w1": "W_decay_1", "att.w2": "W_decay_2", "att.g1": "W_G_1", "att.g2": "W_G_2"}
LOW_RANK |= {"att.a0": "rate", "att.a1": "W_rate_1", "att.a2": "W_rate_2", "ffn.x_k": "mix_up"}
LOW_RANK |= {"att.v0": "blend", "att.v1": "W_blend_1", "att.v2": "W_blend_2"}
LAYER = {
    "4": EVERY | GATED | {"att.time_first": "bonus"},
    "5.1": EVERY | GATED | NORMED | {"att.time_first": "bonus"},
    "5.2": EVERY | GATED | NORMED | {"att.time_faaaa": "bonus", "att.time_mix_g": "mix_G", "att.gate.weight": "W_G"},
    "7": EVERY | NORMED | LOW_RANK,
}
MIXES = ("mix_R", "mix_W", "mix_K", "mix_V", "mix_A", "mix_G")  # in the order of x_rwkvag
# A layer has at least 17 tensors, each with a head, one axis, a name and a float16.
LAYER_BYTES = 17 * (12 + 4 + 17 + 2)
OF_LAYER = re.compile(r"blocks\.(0|[1-9][0-9]{0,8})\.(.+)")


class Header(NamedTuple):
    vocabulary: int
    width: int
    layers: int


def read_rwkv(path: PathLike, *, system: System) -> Model:
    """The model in a file. Memory: a few times the size of the file.

    A file is refused if it is truncated or quantised, or if a tensor is repeated, missing, unknown,
    not finite, or of a shape that does not go with the others.
    """
    with opened("read_rwkv", path) as (file, size), located(f"read_rwkv: {path}"):
        header = read_header(file, size)
        arrays: dict[str, np.ndarray] = {}
        while (left := size - file.tell()) > 0:
            name, x = read_tensor(file, left, header.layers, arrays)
            arrays[name] = x
    tensors = Tensors("read_rwkv", path, arrays, system)
    config = read_config(tensors, header)
    return tensors.model(config, weights_by_our_names(tensors, config))


def take(what: str, file: IO[bytes], count: int, left: int) -> bytes:
    data = file.read(count) if count <= left else b""
    if len(data) < count:
        raise ValueError(f"{what} must have {count} bytes, got {min(left, count)} before the end of the file")
    return data


def read_header(file: IO[bytes], size: int) -> Header:
    magic, version, vocabulary, width, layers, dtype = struct.unpack("<6I", take("the header", file, 24, size))
    if magic != MAGIC:
        raise ValueError(f"the file must begin with the magic number {MAGIC:#x} of rwkv.cpp, got {magic:#x}")
    if version not in (100, 101):
        raise ValueError(f"the file version must be 100 or 101, got {version}")
    check_stored_dtype("the header", dtype)
    least = {"vocabulary": 2 * width, "width": 2, "layers": LAYER_BYTES}  # bytes for each, in float16
    header = Header(vocabulary, width, layers)
    for name, count in header._asdict().items():
        if count < 1 or count * max(least[name], 1) > size:
            raise ValueError(f"{name} in the header must be at least 1 and fit the file of {size} bytes, got {count}")
    return header


def check_stored_dtype(which: str, dtype: int) -> None:
    if dtype >= len(ON_DISK):
        name = DTYPES[dtype] if dtype < len(DTYPES) else "unknown"
        got = f"{dtype} ({name}), which is not read here"
        raise ValueError(f"{which} must have data type 0 (FP32) or 1 (FP16), got {got}")


def read_tensor(file: IO[bytes], left: int, layers: int, earlier: dict[str, np.ndarray]) -> tuple[str, np.ndarray]:
    """The name of the next tensor, and its numbers with the slowest axis first."""
    which = f"the tensor after {next(reversed(earlier))!r}" if earlier else "the first tensor"
    axes, length, dtype = struct.unpack("<3I", take(f"the head of {which}", file, 12, left))
    if not 1 <= axes <= 3:
        raise ValueError(f"{which} must have 1 to 3 axes, got {axes}")
    check_stored_dtype(which, dtype)
    lengths = struct.unpack(f"<{axes}I", take(f"the shape of {which}", file, 4 * axes, left - 12))
    left -= 12 + 4 * axes
    text = take(f"the name of {which}", file, length, left)
    try:
        name = text.decode()
    except UnicodeDecodeError:
        raise ValueError(f"the name of {which} must be UTF-8, got {text[:40]!r}") from None
    check_name(name, layers, earlier)
    needed = math.prod(lengths) * ON_DISK[dtype].itemsize
    data = take(f"tensor {name!r} of shape {lengths[::-1]}", file, needed, left - length)
    return name, np.frombuffer(data, ON_DISK[dtype]).reshape(lengths[::-1])


def check_name(name: str, layers: int, earlier: Mapping[str, Any]) -> None:
    of_layer = OF_LAYER.fullmatch(name)
    if of_layer and "time_maa" in name:
        raise ValueError(f"the model must be of RWKV 4, 5.1, 5.2 or 7, got tensor {name[:80]!r} of RWKV 6")
    known = of_layer and int(of_layer[1]) < layers and any(of_layer[2] in names for names in LAYER.values())
    if name not in MODEL and not known:
        raise ValueError(f"tensors must be those of RWKV with {layers} layers, got the name {name[:80]!r}")
    if name in earlier:
        raise ValueError(f"a tensor must be in the file once, got {name!r} twice")


def read_config(tensors: Tensors, header: Header) -> Rwkv:
    """The configuration, from the header and from the names and shapes of a few tensors."""
    for i in range(header.layers):  # before making the list of all parameters, which may be long
        tensors.shape(f"blocks.{i}.ln1.weight", 1)
    # rwkv.cpp recognises the versions by the same tensors.
    marks = {"7": "att.r_k", "5.2": "att.gate.weight", "5.1": "att.ln_x.weight"}
    version = next((version for version, mark in marks.items() if f"blocks.0.{mark}" in tensors), "4")
    heads, ranks = 1, []
    if version == "7":
        heads = tensors.shape("blocks.0.att.r_k", 2)[0]
        blend = [1] if header.layers == 1 else tensors.shape("blocks.1.att.v1", 2)
        decay, rate, gate = (tensors.shape(f"blocks.0.att.{name}", 2)[0] for name in ("w1", "a1", "g1"))
        ranks = [decay, rate, blend[0], gate]
    elif version != "4":
        heads = tensors.shape("blocks.0.att.time_decay", 3)[0]
    hidden = tensors.shape("blocks.0.ffn.key.weight", 2)[0]
    with located(tensors.about):
        return Rwkv(version, header.layers, header.width, heads, hidden, header.vocabulary, tuple(ranks))


def weights_by_our_names(tensors: Tensors, config: Rwkv) -> dict[str, np.ndarray]:
    """The tensors under our names, tokens as rows."""
    weights: dict[str, np.ndarray] = {}
    names = dict(MODEL)
    for i in range(config.layers):
        names |= {f"blocks.{i}.{theirs}": f"layers.{i}.{ours}" for theirs, ours in LAYER[config.version].items()}
    for theirs, ours in names.items():
        if theirs.endswith("x_rwkvag"):
            rows = tensors.take(theirs, len(MIXES), 1, config.width)
            weights |= {ours.removesuffix("mix") + mix: row[0, :] for mix, row in zip(MIXES, rows, strict=True)}
        elif ours in config.shapes:
            x = tensors.take(theirs, *shape_in_file(config, theirs, ours))
            is_matrix = ours.rpartition(".")[2].startswith(("W_", "unembedding"))
            weights[ours] = x.T if is_matrix else x.reshape(config.shapes[ours])
    return {name: weights[name] for name in config.shapes}


def shape_in_file(config: Rwkv, theirs: str, ours: str) -> tuple[int, ...]:
    """The shape that the file gives a tensor, slowest axis first."""
    shape, kind = config.shapes[ours], theirs.partition("att.")[2]
    if kind in ("time_decay", "time_first", "time_faaaa") and config.version != "4":
        return (*shape, *(1,) * (3 - len(shape)))
    if config.version == "7" and (kind in ("w0", "a0", "v0", "k_k", "k_a") or theirs.endswith("ffn.x_k")):
        return (1, 1, *shape)
    return shape if ours == "embedding" or len(shape) == 1 or kind == "r_k" else shape[::-1]


FORMATS = (Format("rwkv.cpp's .bin", lambda o: o.start.startswith(struct.pack("<I", MAGIC)), read_rwkv),)
