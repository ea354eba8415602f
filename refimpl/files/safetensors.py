"""Files of arrays, in the safetensors format: the only room that reads or writes them. Nothing read is ever run.

    8 bytes    N, the length of the header, little-endian
    N bytes    the header: a JSON object, padded with spaces,
               {"__metadata__": {word: words}, name: {"dtype": code, "shape": [...], "data_offsets": [begin, end]}}
    the rest   the arrays, little-endian, in C order, one after another without a gap

Source   huggingface.co/docs/safetensors. Differs: what the official library lets pass is refused here (keys that repeat or
         are not known, booleans other than 0 and 1), and metadata are sorted, so that equal contents give equal files.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from ..checks import check_type
from ..errors import brief

# code: dtype, in the order in which the official library lays arrays out
DTYPES = {
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
    "F32": "float32",
    "U32": "uint32",
    "I32": "int32",
    "BF16": "bfloat16",
    "F16": "float16",
    "U16": "uint16",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
CODES = {name: code for code, name in DTYPES.items()}
STORED = {code: np.dtype("uint16" if code == "BF16" else name).newbyteorder("<") for code, name in DTYPES.items()}
ORDER = list(DTYPES)
LONGEST_HEADER = 100_000_000  # bytes, as in the official library


class Contents(NamedTuple):
    """What a file holds: arrays, words about them, and the code of the dtype that each array has in the file."""

    tensors: dict[str, np.ndarray]
    metadata: dict[str, str]
    dtypes: dict[str, str]


def target_file(who: str, path: str | os.PathLike[str]) -> Path:
    """Where a file will be written, behind any symbolic link; refused before the work, not after it."""
    target = Path(os.path.realpath(path))
    no_file = os.fspath(path) in ("", "-", "/dev/stdout", "/dev/stderr")
    problem = (
        "not a regular file"
        if no_file or (os.path.exists(path) and not os.path.isfile(path))
        else "no such folder"
        if not target.parent.is_dir()
        else "the folder is not writable"
        if not os.access(target.parent, os.W_OK | os.X_OK)
        else ""
    )
    if problem:
        raise OSError(f"{who}: cannot write {path}: {problem}")
    return target


@contextmanager
def replacing(who: str, target: Path, mode: str = "xb") -> Iterator[IO[Any]]:
    """A new file that takes the target's place when its block ends well: whole or not there, under another name first."""
    draft = target.with_name(f".refimpl-{os.getpid()}-{time.time_ns()}.tmp")
    try:
        with open(draft, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
        os.replace(draft, target)
    except OSError as error:
        raise OSError(f"{who}: cannot write {target}: {error.strerror or error}") from error
    finally:
        draft.unlink(missing_ok=True)


def write_safetensors(
    path: str | os.PathLike[str],
    tensors: dict[str, np.ndarray],
    metadata: dict[str, str],
    dtypes: dict[str, str] | None = None,
) -> None:
    """Write NumPy arrays, and bfloat16 arrays of ml_dtypes; equal contents give equal files.

    dtypes : "BF16" for a name whose float32 array holds bfloat16 numbers, as `read_safetensors` gives it; other arrays speak for themselves
    """
    who = "write_safetensors"
    target = target_file(who, path)
    check_type(who, "tensors", tensors, dict)
    check_words(who, tensors, metadata)
    narrowed = {name for name, code in (dtypes or {}).items() if code == "BF16"}
    tensors = {name: narrow(who, name, x) if name in narrowed else x for name, x in tensors.items()}
    codes = {name: "BF16" if name in narrowed else code_of(who, name, x) for name, x in tensors.items()}
    names = sorted(tensors, key=lambda name: (ORDER.index(codes[name]), name))
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    end = 0
    for name in names:
        begin, end = end, end + tensors[name].nbytes
        header[name] = {"dtype": codes[name], "shape": tensors[name].shape, "data_offsets": [begin, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > LONGEST_HEADER:
        raise ValueError(f"{who}: the header must have at most {LONGEST_HEADER} bytes, got {len(text)}")
    with replacing(who, target) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            x = tensors[name].view(STORED["BF16"]) if codes[name] == "BF16" else tensors[name]
            file.write(np.ascontiguousarray(x, STORED[codes[name]]))


def narrow(who: str, name: str, x: Any) -> np.ndarray:
    """The upper halves of float32 numbers whose lower halves are empty."""
    if (
        not isinstance(x, np.ndarray)
        or x.dtype != np.float32
        or (np.ascontiguousarray(x).view(np.uint32) & 0xFFFF).any()
    ):
        raise TypeError(f"{about(who, name)} must hold bfloat16 numbers in float32, to be written as BF16")
    return (np.ascontiguousarray(x).view(np.uint32) >> 16).astype(np.uint16).reshape(x.shape)


def about(who: str, name: str) -> str:
    return f"{who}: tensor {name[:200]!r}"


def code_of(who: str, name: str, x: Any) -> str:
    if not isinstance(x, np.ndarray):
        raise TypeError(f"{about(who, name)} must be a NumPy array, got {type(x).__name__}")
    if x.dtype.name not in CODES:
        raise TypeError(f"{about(who, name)} must have one of the dtypes {', '.join(CODES)}, got {x.dtype}")
    return CODES[x.dtype.name]


def check_words(who: str, names: Iterable[Any], metadata: Any) -> None:
    """Names and metadata must be text that UTF-8 can hold."""
    if not isinstance(metadata, dict) or not all(isinstance(word, str) for pair in metadata.items() for word in pair):
        raise ValueError(f"{who}: the metadata must map str to str, got {brief(metadata)}")
    for name in names:
        if not isinstance(name, str) or name == "__metadata__":
            raise ValueError(f"{who}: the name of a tensor must be a str other than '__metadata__', got {brief(name)}")
    for word in (*names, *metadata, *metadata.values()):
        try:
            word.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{who}: names and metadata must be Unicode text, got {brief(word)}") from error


def read_safetensors(path: str | os.PathLike[str]) -> Contents:
    """Read arrays, in the order of the file; BF16, which NumPy lacks, as float32 arrays of the same values."""
    if not os.path.isfile(path):
        problem = "not a regular file" if os.path.exists(path) else "no such file"
        raise OSError(f"read_safetensors: cannot read {path}: {problem}")
    who = f"read_safetensors: {path}"
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size - 8
        if size < 0:
            raise ValueError(f"{who}: the file must have at least 8 bytes, got {size + 8}")
        length = int.from_bytes(file.read(8), "little")
        if length > min(size, LONGEST_HEADER):
            raise ValueError(
                f"{who}: the header must have at most {min(size, LONGEST_HEADER)} bytes, got a length of {length}"
            )
        try:
            metadata, entries = parse(who, file.read(length), size - length)
        except RecursionError:
            raise ValueError(f"{who}: the header must be nested three deep at most, got far more") from None
        tensors = {e.name: values(who, file, e) for e in entries}
    return Contents(tensors, metadata, {e.name: e.code for e in entries})


class Entry(NamedTuple):
    """One tensor of a header, found to be in order."""

    begin: int
    end: int
    name: str
    code: str
    shape: list[int]


def parse(who: str, text: bytes, size: int) -> tuple[dict[str, str], list[Entry]]:
    """The metadata of a header, and entries that fill `size` bytes of data without gap or overlap."""
    if not text.startswith(b"{"):
        raise ValueError(f"{who}: the header must begin with {{, got {text[:1]!r}")
    try:
        header = json.loads(text.decode(), object_pairs_hook=distinct, parse_constant=refuse)
    except ValueError as error:
        raise ValueError(f"{who}: the header must be JSON in UTF-8: {error}") from error
    metadata = header.pop("__metadata__", {})
    check_words(who, header, metadata)
    entries = sorted(check_entry(about(who, name), name, info, size) for name, info in header.items())
    end = 0
    for e in entries:
        if e.begin != end:
            raise ValueError(
                f"{about(who, e.name)} must begin where the one before it ends, at {end}, got {[e.begin, e.end]}"
            )
        end = e.end
    if end != size:
        raise ValueError(f"{who}: the tensors must fill all {size} bytes of data, got {end}")
    return metadata, entries


def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    counts = Counter(key for key, _ in pairs)
    if len(counts) < len(pairs):
        raise ValueError(f"the key {brief(counts.most_common(1)[0][0])} stands there twice")
    return dict(pairs)


def refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number of JSON")


def check_entry(who: str, name: str, info: Any, size: int) -> Entry:
    if not isinstance(info, dict) or set(info) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{who} must have dtype, shape, data_offsets and nothing else, got {brief(info)}")
    code, shape, offsets = info["dtype"], info["shape"], info["data_offsets"]
    if not isinstance(code, str) or code not in DTYPES:
        raise ValueError(f"{who} must have one of the dtypes {', '.join(DTYPES)}, got {brief(code)}")
    if not naturals(shape) or len(shape) > 64 or math.prod(n for n in shape if n) >= 2**60:  # more than NumPy takes
        raise ValueError(
            f"{who} must have a shape of at most 64 integers ≥ 0 with a product below 2^60, got {brief(shape)}"
        )
    if not naturals(offsets) or len(offsets) != 2:
        raise ValueError(f"{who} must have two integers ≥ 0 as offsets, got {brief(offsets)}")
    begin, end = offsets
    if not begin <= end <= size:
        raise ValueError(f"{who} must have offsets within the data (0 … {size}), got {brief(offsets)}")
    needed = math.prod(shape) * STORED[code].itemsize
    if end - begin != needed:
        raise ValueError(f"{who} must have {needed} bytes for {code} of shape {shape}, got {end - begin}")
    return Entry(begin, end, name, code, shape)


def naturals(x: Any) -> bool:
    return isinstance(x, list) and all(type(n) is int and n >= 0 for n in x)


def values(who: str, file: IO[bytes], entry: Entry) -> np.ndarray:
    """The next array of the file, in memory of its own."""
    x = np.fromfile(file, STORED[entry.code], math.prod(entry.shape))
    if entry.code == "BOOL" and x.view(np.uint8).max(initial=0) > 1:
        raise ValueError(f"{about(who, entry.name)} must hold booleans as 0 and 1, got {x.view(np.uint8).max()}")
    if entry.code == "BF16":
        x = (x.astype("<u4") << 16).view("<f4")
    return x.reshape(entry.shape)
