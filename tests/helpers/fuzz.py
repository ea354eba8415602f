"""A fuzzer of every file that the package reads, and the measures of all fuzzers.

A case is a valid small file of some kind, damaged in some way that its number decides. It must be
read into a model that answers two tokens, or be refused by a sentence of ours that names the file:
no other exception, nothing that does not print, no more than 2 s of processor time and 1 GB.
"""

from __future__ import annotations

import base64
import copy
import functools
import json
import random
import resource
import struct
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

import refimpl as ri
from refimpl import GF, Compression, Config, Float, Rotary
from refimpl.cli.main import parser
from refimpl.cli.prompt import read_prompt
from refimpl.cli.verify import check_theorems
from refimpl.files import checkpoint
from refimpl.files.models import read_model
from refimpl.files.models.llama import HEADER, llama2c_shapes
from refimpl.files.models.rwkv_file import LAYER, MAGIC, MIXES, MODEL, shape_in_file
from refimpl.files.tokenizers import ByteTokenizer, read_tokenizer
from refimpl.files.tokenizers.byte_pairs import letters
from refimpl.prompt.compression import KINDS
from refimpl.verify.cases import Case, FeatureCase, Lesson, ModelCase, RecurrentCase
from refimpl.verify.certificate import certificate
from refimpl.verify.check import Draws, check
from refimpl.verify.registry import THEOREMS


def slowness() -> float:
    """The time of a million sums of integers here, over the usual 50 ms; at least 1."""
    times = []
    for _ in range(3):
        began, total = time.process_time(), 0
        for i in range(10**6):
            total += i
        times.append(time.process_time() - began)
    return max(1.0, min(times) / 0.05)


SECONDS, BYTES = 2.0 * slowness(), 10**9
PACKAGE = str(Path(ri.__file__).parent)
REFUSALS = (ValueError, TypeError, OSError, ArithmeticError)
F = Float()
Files = dict[str, bytes]  # the files of a folder; the first is the one that is read
Damage = Callable[[random.Random, Files], Files]


@dataclass(frozen=True)
class Kind:
    """A kind of file: a valid one, how it is read, and how it is damaged knowing its structure."""

    files: Files
    read: Callable[[Path], Any]
    damages: tuple[Damage, ...]


@dataclass
class Tally:
    """What became of the cases of one kind."""

    cases: int = 0
    loaded: int = 0
    refused: int = 0
    slowest: float = 0.0
    largest: int = 0  # bytes that a case needed beyond what the process had
    wrong: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.cases, self.loaded = self.cases + other.cases, self.loaded + other.loaded
        self.refused, self.wrong = self.refused + other.refused, self.wrong + other.wrong
        self.slowest, self.largest = max(self.slowest, other.slowest), max(self.largest, other.largest)


# Values that are too large, too small, of another type, or meant for a terminal
CODE = "\x1b[2J\x1b]0;x\x07"
NUMBERS = (0, 1, -1, 2, 3, 4, 5, 8, 33, 64, 255, 1000, 2**16, 2**20, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63, 2**64)
NUMBERS += (10**30, -(10**30))
WORDS = ("", "x", CODE, "\u202e", "é😀", "\ud800", "a" * 300, "0", "-1", "1/0", "1e999999", "9" * 5000, "[1", "null")
WORDS += ("softmax", "identity", "elu+1", "exp", "polynomial(16)", "dpfp(3)", "taylor2", "rms", "layer_rational")
WORDS += (
    "before",
    "after",
    "half",
    "interleaved",
    "pre",
    "post",
    "parallel",
    "F64",
    "F32",
    "F16",
    "BF16",
    "I64",
    "BOOL",
)
WORDS += ("float64", "float32", "float16", "bfloat16", "GF(7)", "GF(8)", "Q", "mpmath(30)", "mpmath(100000000)")
WORDS += ("balls(9)", "dependencies", "rounded(bfloat16)", "torch float32 on nowhere", "rwkv", "attention", *KINDS)
WORDS += ("causal", "full", "4", "5.1", "5.2", "7", "-1/8", "1/100000", "gpt2", "llama", "default", "layers.0.b_KV")
FLOATS = (0.5, -0.0, 1e308, -1e308, 1e-320, 1.0, 0.1)


def value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(8 if depth < 3 else 5)
    if kind < 2:
        return rng.choice(NUMBERS)
    if kind < 5:
        return rng.choice((*WORDS, *FLOATS, True, False, None))
    if kind < 7:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(WORDS): value(rng, depth + 1) for _ in range(rng.randrange(3))}


# Damage to bytes


def damage_bytes(rng: random.Random, data: bytes) -> bytes:
    """The bytes with some of them flipped, cut out, doubled, replaced or added."""
    x = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at, end = sorted((rng.randrange(len(x) + 1), rng.randrange(len(x) + 1)))
        if rng.random() < 0.5:
            end = min(len(x), at + rng.randrange(9))
        kind = rng.randrange(9)
        if kind == 0 and x:
            x[rng.randrange(len(x))] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del x[rng.randrange(len(x) + 1) :]
        elif kind == 2:
            del x[at:end]
        elif kind == 3:
            x[at:at] = x[at : min(end, at + 4096)]
        elif kind == 4:
            width = rng.choice((4, 8))
            number = (rng.choice(NUMBERS) % 256**width).to_bytes(width, "little")
            x[at : at + len(number)] = number
        elif kind == 5:
            number = struct.pack("<f", rng.choice((float("nan"), float("inf"), 3e38, -1e-45, 0.0)))
            at -= at % 4
            x[at : at + 4] = number
        elif kind == 6:
            x[at:end] = bytes(end - at)
        elif kind == 7:
            x[at:at] = rng.choice(WORDS).encode("utf-8", "replace")
        else:
            x += rng.randbytes(rng.randrange(1, 40))
    return bytes(x)


def damage_any_bytes(rng: random.Random, files: Files) -> Files:
    name = rng.choice([*files])
    return files | {name: damage_bytes(rng, files[name])}


# Damage to JSON


class Twice(dict[str, Any]):
    """An object that is written with its first key twice."""


def json_text(x: Any) -> str:
    if isinstance(x, dict):
        pairs = [f"{json.dumps(k)}:{json_text(v)}" for k, v in x.items()]
        return "{" + ",".join(pairs + pairs[:1] * isinstance(x, Twice)) + "}"
    return "[" + ",".join(map(json_text, x)) + "]" if isinstance(x, list) else json.dumps(x)


def places(x: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """(container, key) of every value in a tree."""
    for key, inner in x.items() if isinstance(x, dict) else enumerate(x) if isinstance(x, list) else ():
        found.append((x, key))
        places(inner, found)
    return found


def damage_tree(rng: random.Random, tree: Any) -> Any:
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice((1, 1, 2, 3))):
        known = places(tree, [])
        if not known or rng.random() < 0.02:
            tree = value(rng)
            continue
        container, key = rng.choice(known)
        kind = rng.randrange(8)
        if kind < 4:
            old = container[key]
            nearby = type(old) is int and rng.random() < 0.5
            container[key] = old + rng.choice((-1, 1)) if nearby else value(rng)
        elif kind == 4:
            del container[key]
        elif kind == 5 and isinstance(container, dict):
            container[rng.choice(WORDS)] = container.pop(key)
        elif kind == 6:
            other, name = rng.choice(known)
            container[key] = copy.deepcopy(other[name])
        elif isinstance(container, dict):
            container[rng.choice(WORDS)] = value(rng)
            if rng.random() < 0.3 and isinstance(tree, dict):
                tree = Twice(tree)
    return tree


def damage_json(rng: random.Random, files: Files, name: str = "") -> Files:
    name = name or next(iter(files))
    return files | {name: json_text(damage_tree(rng, json.loads(files[name]))).encode()}


# Damage to safetensors


def pack(header: Any, data: bytes) -> bytes:
    text = json_text(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def unpack(data: bytes) -> tuple[Any, bytes]:
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def damage_header(rng: random.Random, files: Files) -> Files:
    name = next(iter(files))
    header, data = unpack(files[name])
    return files | {name: pack(damage_tree(rng, header), data)}


def random_header(rng: random.Random, files: Files) -> Files:
    """A header of random fields, which may be a right one."""
    codes = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "BOOL": 1, "U8": 1}
    header, end = {}, 0
    for _ in range(rng.randrange(5)):
        code, shape = rng.choice([*codes]), [rng.randrange(4) for _ in range(rng.choice((0, 1, 2, 2, 3, 33)))]
        size = codes[code] * int(np.prod(shape, dtype=object))
        begin, end = end, min(end + size, 4096)
        entry = {"dtype": code, "shape": shape, "data_offsets": [begin, end]}
        header[rng.choice((*WORDS, "wte.weight", "model.embed_tokens.weight", "layers.0.W_Q"))] = entry
    if rng.random() < 0.5:
        header["__metadata__"] = {"format": "refimpl 1", rng.choice(WORDS): rng.choice(WORDS)}
    return files | {next(iter(files)): pack(header, rng.randbytes(end))}


def damage_contents(rng: random.Random, files: Files) -> Files:
    """Other tensors and other metadata in a right frame; our own files get new digests, mostly."""
    name = next(iter(files))
    header, data = unpack(files[name])
    words = header.pop("__metadata__", {})
    arrays = {}
    for key, entry in header.items():
        begin, end = entry["data_offsets"]
        dtype = {"BF16": "<u2", "BOOL": "?"}.get(
            entry["dtype"],
            f"<{entry['dtype'][0].lower()}{int(entry['dtype'][1:] or 8) // 8}"
            if entry["dtype"][1:].isdigit()
            else "u1",
        )
        arrays[key] = (entry["dtype"], np.frombuffer(data[begin:end], dtype).reshape(entry["shape"]))
    for _ in range(rng.choice((1, 1, 2))):
        if words and rng.random() < 0.5:
            key = rng.choice([*words])
            try:
                words[key] = json_text(damage_tree(rng, json.loads(words[key])))
                if key == "config" and rng.random() < 0.8:
                    words[key] = json.dumps(json.loads(words[key]), sort_keys=True)
            except ValueError:
                words[key] = rng.choice(WORDS)
            if rng.random() < 0.1:
                del words[key]
        elif arrays:
            key = rng.choice([*arrays])
            arrays |= {key: (arrays[key][0], damage_array(rng, arrays[key][1]))}
            if rng.random() < 0.2:
                arrays[rng.choice([*arrays, *WORDS])] = arrays.pop(key)
    if "biases" in words and rng.random() < 0.9:
        words = reseal(words, {key: x for key, (_, x) in arrays.items()})
    header, data = ({"__metadata__": words} if words else {}), b""
    for key, (code, x) in arrays.items():
        code = rng.choice(("F32", "F64", "I64")) if x.dtype.itemsize == 8 and rng.random() < 0.01 else code
        header[key] = {"dtype": code, "shape": [*x.shape], "data_offsets": [len(data), len(data) + x.nbytes]}
        data += x.tobytes()
    return files | {name: pack(header, data)}


def damage_array(rng: random.Random, x: np.ndarray) -> np.ndarray:
    kind = rng.randrange(7) if x.ndim < 9 else 4
    if kind == 0 and x.size and x.dtype.kind == "f":
        x = x.copy()
        x.flat[rng.randrange(x.size)] = rng.choice((np.nan, np.inf, 1e30, -1e30, 0, 1e-40, 1e4))
    elif kind == 1 and x.ndim:
        axis = rng.randrange(x.ndim)
        x = np.delete(x, 0, axis) if x.shape[axis] and rng.random() < 0.7 else np.repeat(x, 2, axis)
    elif kind == 2:
        x = x[(None,) * rng.choice((1, 2, 31))] if x.ndim < 3 else x.reshape(-1)
    elif kind == 3:
        x = np.zeros(tuple(rng.choice((0, 1, 2, 1000)) for _ in range(rng.randrange(4))), x.dtype)
        x = x if x.nbytes < 10**5 else x.reshape(-1)[:9]
    elif kind == 4:
        x = x * 0
    elif kind == 5:
        x = np.swapaxes(x, 0, -1) if x.ndim else x
    else:
        x = x.astype(rng.choice((np.float32, np.float16, np.int64)))
    return np.ascontiguousarray(x)


def reseal(words: dict[str, str], arrays: dict[str, np.ndarray]) -> dict[str, str]:
    """The metadata with digests of what is there now, as someone could write them."""
    weights = {key: x for key, x in arrays.items() if not any(part in key for part in (".b_", ".cache.", ".state."))}
    weights |= {
        key: x for key, x in arrays.items() if key.rpartition(".")[2] in ("b_Q", "b_K", "b_V", "b_O", "b_up", "b_down")
    }
    biases = {key: x for key, x in arrays.items() if key not in weights}
    if weights:
        about = {"config": words.get("config", ""), "system": words.get("system", "")}
        words = words | {"digest": checkpoint.fingerprint(about, weights)}
    covered = {key: words[key] for key in ("position", "prompts", "digest", "maps") if key in words}
    return words | {"biases": checkpoint.fingerprint(covered, biases)}


# Valid files of every kind


def random_arrays(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.uniform(-1, 1, shape).astype("<f4") for name, shape in shapes.items()}


def safetensors(arrays: dict[str, np.ndarray]) -> bytes:
    header, data = {}, b""
    for name, x in arrays.items():
        header[name] = {"dtype": "F32", "shape": [*x.shape], "data_offsets": [len(data), len(data) + x.nbytes]}
        data += x.tobytes()
    return pack(header, data)


def gpt2_shapes(w: int = 4, hidden: int = 6, out_first: bool = False) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (5, w), "wpe.weight": (7, w)}
    for part in ("ln_1", "ln_2"):
        shapes |= {f"h.0.{part}.weight": (w,), f"h.0.{part}.bias": (w,)}
    linear = {"attn.c_attn": (w, 3 * w), "attn.c_proj": (w, w), "mlp.c_fc": (w, hidden), "mlp.c_proj": (hidden, w)}
    for part, shape in linear.items():
        shapes |= {f"h.0.{part}.weight": shape[::-1] if out_first else shape, f"h.0.{part}.bias": shape[1:]}
    return shapes | {"ln_f.weight": (w,), "ln_f.bias": (w,)}


def llama_shapes() -> dict[str, tuple[int, ...]]:
    h, shapes = (
        "model.layers.0.",
        {"model.embed_tokens.weight": (5, 4), "model.norm.weight": (4,), "lm_head.weight": (5, 4)},
    )
    own: dict[str, tuple[int, ...]] = {"q": (4, 4), "k": (2, 4), "v": (2, 4), "o": (4, 4)}
    shapes |= {f"{h}self_attn.{name}_proj.weight": shape for name, shape in own.items()}
    shapes |= {f"{h}mlp.gate_proj.weight": (6, 4), f"{h}mlp.up_proj.weight": (6, 4), f"{h}mlp.down_proj.weight": (4, 6)}
    return shapes | {f"{h}input_layernorm.weight": (4,), f"{h}post_attention_layernorm.weight": (4,)}


def llama2c() -> bytes:
    header = dict(zip(HEADER, (4, 6, 1, 2, 1, 5, 3), strict=True))
    arrays = random_arrays(llama2c_shapes(header))
    arrays["cos"], arrays["sin"] = (x.astype("<f4") for x in ri.angle_table(F, 2)(range(3)))
    return struct.pack("<7i", *header.values()) + b"".join(x.tobytes() for x in arrays.values())


def nano() -> bytes:
    config = {"n_head": 2, "n_layer": 1, "n_embd": 4, "vocab_size": 5, "block_size": 7}
    arrays = random_arrays(gpt2_shapes(out_first=True) | {"lm_head.weight": (5, 4)})
    entries = {
        name: {"shape": [*x.shape], "dtype": "torch.float32", "data": base64.b64encode(x.tobytes()).decode()}
        for name, x in arrays.items()
    }
    return json.dumps(
        {"config": config} | {f"transformer.{k}" if k != "lm_head.weight" else k: v for k, v in entries.items()}
    ).encode()


def rwkv(version: str) -> bytes:
    config = ri.Rwkv(version, 2, 4, 1 if version == "4" else 2, 3, 5, (1, 1, 1, 1) if version == "7" else ())
    data = struct.pack("<6I", MAGIC, 101, 5, 4, 2, 0)
    names = dict(MODEL)
    for i in range(2):
        names |= {f"blocks.{i}.{theirs}": f"layers.{i}.{ours}" for theirs, ours in LAYER[version].items()}
    rng = np.random.default_rng(0)
    for theirs, ours in names.items():
        if theirs.endswith("x_rwkvag"):
            shape: tuple[int, ...] = (len(MIXES), 1, config.width)
        elif ours in config.shapes:
            shape = shape_in_file(config, theirs, ours)
        else:
            continue
        x = rng.uniform(-1, 0, shape).astype("<f4")
        data += struct.pack(f"<3I{x.ndim}I", x.ndim, len(theirs), 0, *shape[::-1]) + theirs.encode() + x.tobytes()
    return data


def gpt2_tokenizer() -> Files:
    tokens = [*letters().values(), "th", "the", "<|endoftext|>"]
    ids = json.dumps({token: i for i, token in enumerate(tokens)}).encode()
    return {"encoder.json": ids, "vocab.bpe": b"#version: 0.2\nt h\nth e\n"}


def llama_tokenizer() -> bytes:
    tokens = [b"<unk>", b"<s>", b"</s>", *(b"<0x%02X>" % i for i in range(256)), b" ", b"a", b"b", b"ab"]
    return struct.pack("<i", 6) + b"".join(struct.pack("<fi", -i, len(t)) + t for i, t in enumerate(tokens))


def npy(x: np.ndarray) -> bytes:
    header = str({"descr": x.dtype.str, "fortran_order": False, "shape": x.shape}).encode() + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + x.tobytes()


DESCRIPTIONS = (
    "'<i8'",
    "'<f8'",
    "'>f8'",
    "'|O'",
    "'<U1'",
    "'|V8'",
    "[('\x1b[2J', '<f8')]",
    "'<c16'",
    "'<M8[s]'",
    "'|b1'",
    "1",
)
SHAPES = (
    "()",
    "(2,)",
    "(2, 2)",
    "(-1,)",
    "(10**9,)",
    "(1000000000000000,)",
    "(0,)",
    "(1,) * 9",
    "(" * 90,
    "(2",
    "(2.5,)",
)
SHAPES += ("(" + "1, " * 33 + ")", "(" + "1, " * 70 + ")", "(True,)", "{}", "'x'", "(9223372036854775807, 9)")


def damage_npy(rng: random.Random, files: Files) -> Files:
    name, version = next(iter(files)), rng.choice(((1, 0), (2, 0), (3, 0), (4, 0), (1, 0)))
    order = rng.choice(("True", "False", "1", "None"))
    header = f"{{'descr': {rng.choice(DESCRIPTIONS)}, 'fortran_order': {order}, 'shape': {rng.choice(SHAPES)}}}"
    header = rng.choice(
        (header, header, header + ",", header[:-1], "(" * rng.choice((50, 9000)), header.replace("descr", CODE))
    )
    text = header.encode("utf-8" if version == (3, 0) else "latin-1", "replace") + b"\n"
    length = struct.pack("<H" if version == (1, 0) else "<I", rng.choice((len(text), len(text), 0, 65535)))
    return files | {name: b"\x93NUMPY" + bytes(version) + length + text + rng.randbytes(rng.choice((16, 32, 0)))}


def damage_sizes(rng: random.Random, files: Files) -> Files:
    """Another number in one of the first fields of 4 bytes."""
    name = next(iter(files))
    data, at = bytearray(files[name]), 4 * rng.randrange(12)
    data[at : at + 4] = struct.pack("<I", rng.choice(NUMBERS) % 2**32)
    return files | {name: bytes(data)}


SYSTEMS = ("Q", "GF(10007)", "float64", "float32", "mpmath(20)", "balls(9)", "rounded(bfloat16)", "dependencies")
CASES = (
    (Case, {"n": 2, "d": 2, "m": 1}),
    (ModelCase, {"M": 1, "n": 1}),
    (Lesson, {"N": 2, "d": 2, "m": 1}),
    (FeatureCase, {"phi": "positive", "M": 1, "n": 1, "d": 2}),
    (RecurrentCase, {"M": 1, "n": 1, "d": 2, "m": 1}),
)


def random_certificate(rng: random.Random, files: Files) -> Files:
    """A certificate of random rows; numbers are small, mostly."""
    name = next(iter(files))
    data, rows = json.loads(files[name]), []
    for _ in range(rng.choice((1, 1, 2))):
        kind, sizes = rng.choice(CASES)
        case = {"kind": kind.__name__, **sizes}
        for key in rng.sample([*sizes], rng.randrange(3) % (len(sizes) + 1)):
            case[key] = rng.choice((0, 1, 2, 3, 5, 9, 40, 300, 65536, rng.choice(NUMBERS)))
        if rng.random() < 0.5:
            options = copy.deepcopy(kind(**sizes).to_json())
            key = rng.choice([*options])
            case[key] = rng.choice((value(rng), value(rng), [2, 2], [[2], [1]], ["half", "after", 2], "polynomial(3)"))
        fitting = [t.name for t in THEOREMS.values() if any(type(c) is kind for c in t.cases)]
        row = {"theorem": rng.choice(fitting), "system": rng.choice(SYSTEMS), "cases": [case], "verdict": "EXACT"}
        rows.append(row)
    return files | {name: json.dumps(data | {"results": rows}).encode()}


# How files are read, and what must hold then


def run(model: ri.Model) -> None:
    """Two tokens go through a model that was read; all of it must be finite."""
    assert all(np.isfinite(x).all() for x in model.weights.values() if isinstance(x, np.ndarray))
    c = model.config
    text: Any = [0, c.vocabulary - 1] if c.vocabulary else ri.system_of(model.like).convert(np.ones((2, c.width)))
    try:
        model(text)
    except REFUSALS as error:
        if not raised_by_us(error):
            raise AssertionError(f"the model cannot run: {type(error).__name__}: {error}") from error


def raised_by_us(error: BaseException) -> bool:
    return traceback.extract_tb(error.__traceback__)[-1].filename.startswith(PACKAGE)


def read_and_run(path: Path) -> None:
    run(read_model(path))


@functools.cache
def base_models() -> dict[str, ri.Model]:
    rope = Rotary(2, placement="before")
    found = {
        "linear": ri.random_model(F, Config(2, 3, 2, 1, 2, 2, rope=Rotary(2), hidden=2, biased=True, vocabulary=5), 1),
        "softmax": ri.random_model(F, Config(2, 3, 2, 1, 2, 2, "softmax", rope=rope, norm="rms", vocabulary=5), 1),
        "vectors": ri.random_model(Float("numpy", "float32"), Config(1, 2, phi="identity", norm="none"), 1),
        "field": ri.random_model(
            GF(10007), Config(1, 2, d=2, phi="polynomial(2)", norm="rms_rational", rope=Rotary(2, base=None)), 1
        ),
        "table": ri.random_model(F, Config(1, 2, phi="softmax", vocabulary=3, table=6, order="post", tied=False), 1),
    }
    for version in ("4", "5.2", "7"):
        ranks = (1, 1, 1, 1) if version == "7" else ()
        found[f"rwkv {version}"] = ri.random_model(
            F, ri.Rwkv(version, 2, 4, 1 if version == "4" else 2, 3, 5, ranks), 1
        )
    return found


def saved(folder: Path, model: ri.Model, biases_only: bool = False) -> bytes:
    ri.save(folder / "m", model, biases_only=biases_only)
    return (folder / "m").read_bytes()


def kinds(folder: Path) -> dict[str, Kind]:
    """Every kind of file. `folder` is for those that the package itself writes."""
    anything = (damage_any_bytes,)
    tensors = (*anything, damage_header, random_header, damage_contents, damage_contents)
    found, base = {}, base_models()

    def add(name: str, files: Files | bytes, read: Callable[[Path], Any], *damages: Damage) -> None:
        found[name] = Kind(files if isinstance(files, dict) else {"m": files}, read, damages)

    def onto(model: ri.Model) -> Callable[[Path], Any]:
        return lambda path: run(ri.load(path, model))

    for name, model in base.items():
        add(f"model: {name}", saved(folder, model), read_and_run, *tensors)
    pasts = {
        "state": "linear",
        "cache": "softmax",
        "carried 4": "rwkv 4",
        "carried 5.2": "rwkv 5.2",
        "carried 7": "rwkv 7",
    }
    for name, of in pasts.items():
        converted = ri.convert(base[of], [3, 1, 4])
        add(f"whole: {name}", saved(folder, converted), read_and_run, *tensors)
        add(f"biases: {name}", saved(folder, converted, True), onto(base[of]), *tensors)
    add(
        "biases: field",
        saved(folder, ri.convert(base["field"], GF(10007).random((3, 2), 0)), True),
        onto(base["field"]),
        *tensors,
    )
    for kind in KINDS:
        if kind != "cache":
            by = Compression(kind, None if kind == "taylor" else 2)
            converted = ri.convert(base["softmax"], [3, 1, 4], by=by, restart=kind != "taylor")
            add(f"memory: {kind}", saved(folder, converted, True), onto(base["softmax"]), *tensors)

    def beside(rng: random.Random, files: Files) -> Files:
        return damage_json(rng, files, "config.json")

    gpt2 = json.dumps(
        {"model_type": "gpt2", "n_head": 2, "n_layer": 1, "n_embd": 4, "layer_norm_epsilon": 1e-5}
    ).encode()
    add(
        "gpt2",
        {"model.safetensors": safetensors(random_arrays(gpt2_shapes())), "config.json": gpt2},
        read_and_run,
        *tensors,
        beside,
    )
    llama = {
        "model_type": "llama",
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6,
    }
    llama |= {"hidden_size": 4, "rope_scaling": None}
    files = {"model.safetensors": safetensors(random_arrays(llama_shapes())), "config.json": json.dumps(llama).encode()}
    add("llama", files, read_and_run, *tensors, beside)
    add("llama2.c", llama2c(), read_and_run, *anything, damage_sizes)
    add("gpt-nano", nano(), read_and_run, *anything, damage_json, damage_json)
    for version in ("4", "5.1", "5.2", "7"):
        add(f"rwkv {version}", rwkv(version), read_and_run, *anything, damage_sizes)

    def tokenize(path: Path) -> None:
        tokenizer = read_tokenizer(path)
        ids = tokenizer.encode("the\nab é")
        assert tokenizer.decode(ids) == "the\nab é" or tokenizer.vocabulary < 256

    add("gpt2 tokenizer", gpt2_tokenizer(), tokenize, *anything, damage_json)
    add("llama2.c tokenizer", llama_tokenizer(), tokenize, *anything, damage_sizes)
    add("prompt: ids", npy(np.array([1, 2])), lambda p: prompt(p, base["linear"]), *anything, damage_npy, damage_npy)
    vectors = npy(np.ones((2, 2), np.float32))
    add("prompt: vectors", vectors, lambda p: prompt(p, base["vectors"]), *anything, damage_npy, damage_npy)
    add("prompt: text of ids", b"3, 1 4\n2", lambda p: prompt(p, base["linear"]), *anything)
    add(
        "prompt: text",
        "the é 😀\n".encode(),
        lambda p: read_prompt(f"@{p}", base["linear"], ByteTokenizer()),
        *anything,
    )
    draws = Draws(1, "0" * 64)
    theorem = THEOREMS["quadratic_eq_sum"]
    rows = [check(theorem, numbers, theorem.cases, draws) for numbers in (ri.QQ, F)]
    small = json.dumps(certificate(rows, draws, full=False, seconds=0.0)).encode()
    add("certificate", small, replayed, *anything, damage_json, random_certificate, random_certificate)
    return found


def prompt(path: Path, model: ri.Model) -> None:
    text = read_prompt(f"@{path}", model)
    try:
        model(text)
    except REFUSALS as error:  # of a model, which does not know where the text came from
        if not raised_by_us(error):
            raise AssertionError(f"the prompt cannot be read: {type(error).__name__}: {error}") from error


def replayed(path: Path) -> None:
    check_theorems(parser("verify").parse_args(["verify", "--replay", str(path)]), 1, lambda result: None)


# Running


def damaged(kind: Kind, name: str, number: int, seed: int) -> Files:
    """The files of one case. Number 0 is the valid file."""
    if number == 0:
        return kind.files
    rng = random.Random(f"{seed} {name} {number}")
    return rng.choice(kind.damages)(rng, kind.files)


def problem_of(kind: Kind, path: Path) -> tuple[bool, str]:
    """Was the file read? And what is wrong about the way it was read or refused, if anything?"""
    try:
        with warnings.catch_warnings(action="ignore"), np.errstate(all="ignore"):
            kind.read(path)
        return True, ""
    except REFUSALS as error:
        said = str(error)
        if not raised_by_us(error) and not isinstance(error.__cause__, REFUSALS):
            return False, "raised by others: " + "".join(traceback.format_exception(error)[-6:])
        if str(path.parent) not in said:
            return False, f"the file is not named: {said}"
        if not said.isprintable() or len(said) > 700:
            return False, f"not printable, or too long: {said!r}"
        return False, ""
    except Exception as error:
        return False, "".join(traceback.format_exception(error)[-8:])


def measure(job: Callable[[], Any]) -> tuple[Any, float, int]:
    """What a job returns, its seconds of processor time, and the bytes it needed at its peak.

    Linux forgets the earlier peak of a process on request. Elsewhere only a new peak is seen.
    """
    if RESET.exists():
        RESET.write_text("5")
    before, began = peak_bytes(), time.process_time()
    result = job()
    return result, time.process_time() - began, peak_bytes() - before


RESET = Path("/proc/self/clear_refs")


def peak_bytes() -> int:
    if RESET.exists():
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def tally_case(job: Callable[[], tuple[bool, str]], label: str, seconds: float = SECONDS) -> Tally:
    """The tally of one case. The job says whether its input was taken, and what was wrong."""
    (loaded, wrong), taken, grown = measure(job)
    if not wrong and taken > seconds:
        wrong = f"it took {taken:.1f} s"
    if not wrong and grown > BYTES:
        wrong = f"it took {grown:.1e} bytes"
    return Tally(1, int(loaded), int(not loaded), taken, grown, [f"{label}: {wrong}"] if wrong else [])


def run_case(kind: Kind, name: str, number: int, seed: int, folder: Path, seconds: float = SECONDS) -> Tally:
    files = damaged(kind, name, number, seed)
    for file, data in files.items():
        (folder / file).write_bytes(data)

    def job() -> tuple[bool, str]:
        loaded, wrong = problem_of(kind, folder / next(iter(files)))
        return loaded, wrong or ("a valid file is refused" if number == 0 and not loaded else "")

    return tally_case(job, f"{name}, case {number} of seed {seed}", seconds)


def fraction_of_cases(name: str) -> Fraction:
    """How often a kind is chosen: what runs theorems is slow."""
    return Fraction(1, 4) if name == "certificate" else Fraction(1)
