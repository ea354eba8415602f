"""Files of arrays, in the safetensors format. Nothing that is read is ever run.

    8 bytes    N, the length of the header, little-endian
    N bytes    the header, a JSON object padded with spaces: {"__metadata__": {str: str},
               name: {"dtype": code, "shape": [...], "data_offsets": [begin, end]}}
    the rest   the arrays, little-endian, in C order, one after another without a gap

Source   huggingface.co/docs/safetensors. Differs: repeated and unknown keys, and booleans
         other than 0 and 1, are refused. Metadata are sorted: equal contents give equal files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import IO, Any, NamedTuple

import numpy as np

from ..budget import budget, spend
from ..checks import check_type
from ..errors import brief
from .disk import PathLike, check_path, is_shape, located, opened, parse_json, replacing, target_file

# code: dtype, in the order in which the official library lays arrays out
DTYPES = {"U64": "uint64", "I64": "int64", "F64": "float64", "F32": "float32", "U32": "uint32", "I32": "int32"}
DTYPES |= {"BF16": "bfloat16", "F16": "float16", "U16": "uint16", "I16": "int16", "I8": "int8", "U8": "uint8"}
DTYPES |= {"BOOL": "bool"}
CODES = {name: code for code, name in DTYPES.items()}
ON_DISK = {code: np.dtype("uint16" if code == "BF16" else name).newbyteorder("<") for code, name in DTYPES.items()}
ORDER = list(DTYPES)
LONGEST_HEADER = 100_000_000  # bytes, as in the official library
TENSOR_OPERATIONS = 15_000  # to read one tensor, however small: about 15 µs
FREE_TENSORS = 1000


class Contents(NamedTuple):
    """The arrays of a file, its metadata, and the code of each array's dtype in the file."""

    tensors: dict[str, np.ndarray]
    metadata: dict[str, str]
    dtypes: dict[str, str]


def write_safetensors(
    path: PathLike, tensors: dict[str, np.ndarray], metadata: dict[str, str], dtypes: dict[str, str] | None = None
) -> None:
    """Write NumPy arrays, and bfloat16 arrays of ml_dtypes; equal contents give equal files.

    dtypes : "BF16" for a name whose float32 array holds bfloat16 numbers, as `read_safetensors`
             gives it; other arrays are written in their own dtype
    """
    who = "write_safetensors"
    check_path(who, path)
    target = target_file(who, path)
    check_type(who, "tensors", tensors, dict)
    check_encodable(who, tensors, metadata)
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
            x = tensors[name].view(ON_DISK["BF16"]) if codes[name] == "BF16" else tensors[name]
            file.write(np.ascontiguousarray(x, ON_DISK[codes[name]]))


def narrow(who: str, name: str, x: Any) -> np.ndarray:
    """The upper 16 bits of float32 numbers whose lower 16 bits are zero."""
    if isinstance(x, np.ndarray) and x.dtype == np.float32:
        bits = np.ascontiguousarray(x).view(np.uint32)
        if not (bits & 0xFFFF).any():
            return (bits >> 16).astype(np.uint16).reshape(x.shape)
    raise TypeError(f"{about(who, name)} must hold bfloat16 numbers in float32, to be written as BF16")


def about(who: str, name: str) -> str:
    return f"{who}: tensor {name[:200]!r}"


def code_of(who: str, name: str, x: Any) -> str:
    if not isinstance(x, np.ndarray):
        raise TypeError(f"{about(who, name)} must be a NumPy array, got {type(x).__name__}")
    if x.dtype.name not in CODES:
        raise TypeError(f"{about(who, name)} must have one of the dtypes {', '.join(CODES)}, got {x.dtype}")
    return CODES[x.dtype.name]


def check_encodable(who: str, names: Iterable[Any], metadata: Any) -> None:
    """Names and metadata must be text that UTF-8 can hold."""
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for pair in metadata.items() for text in pair):
        raise ValueError(f"{who}: the metadata must map str to str, got {brief(metadata)}")
    for name in names:
        if not isinstance(name, str) or name == "__metadata__":
            raise ValueError(f"{who}: the name of a tensor must be a str other than '__metadata__', got {brief(name)}")
    for text in (*names, *metadata, *metadata.values()):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{who}: names and metadata must be Unicode text, got {brief(text)}") from error


def read_safetensors(path: PathLike, *, limit: float = 1) -> Contents:
    """Read arrays, in the order of the file; BF16, which NumPy lacks, as float32 arrays.

    limit : as in `budget`, for the memory that the header needs
    """
    who = f"read_safetensors: {path}"
    with opened("read_safetensors", path) as (file, size):
        metadata, entries = open_header(who, file, size, limit)
        tensors = {entry.name: read_array(who, file, entry) for entry in entries}
    return Contents(tensors, metadata, {entry.name: entry.code for entry in entries})


def names_in_header(path: PathLike, *, limit: float = 1) -> list[str]:
    """The names of the tensors of a file, whose header is checked; no array is read."""
    with opened("read_safetensors", path) as (file, size):
        return [entry.name for entry in open_header(f"read_safetensors: {path}", file, size, limit)[1]]


class Entry(NamedTuple):
    """One tensor of a header, after all checks."""

    begin: int
    end: int
    name: str
    code: str
    shape: list[int]


def open_header(who: str, file: IO[bytes], size: int, limit: float) -> tuple[dict[str, str], list[Entry]]:
    with budget("read_safetensors", limit):
        return parse_header(who, *header_text(who, file, size))


def spend_tensors(header: bytes) -> None:
    """Spend the work for the tensors of a header before it is parsed: each has a brace."""
    spend("the header: its tensors", operations=TENSOR_OPERATIONS * max(0, header.count(b"{") - FREE_TENSORS))


def header_text(who: str, file: IO[bytes], size: int) -> tuple[bytes, int]:
    """The text of a header, and how many bytes follow it."""
    if size < 8:
        raise ValueError(f"{who}: the file must have at least 8 bytes, got {size}")
    length = int.from_bytes(file.read(8), "little")
    if length > (most := min(size - 8, LONGEST_HEADER)):
        raise ValueError(f"{who}: the header must have at most {most} bytes, got a length of {length}")
    return file.read(length), size - 8 - length


def parse_header(who: str, text: bytes, size: int) -> tuple[dict[str, str], list[Entry]]:
    """The metadata of a header, and entries that fill all `size` bytes without gap or overlap."""
    if not text.startswith(b"{"):
        raise ValueError(f"{who}: the header must begin with {{, got {text[:1]!r}")
    with located(who):
        spend_tensors(text)
        header = parse_json("the header", text)
    metadata = header.pop("__metadata__", {})
    check_encodable(who, header, metadata)
    entries = sorted(check_entry(about(who, name), name, info, size) for name, info in header.items())
    end = 0
    for entry in entries:
        if entry.begin != end:
            wanted = f"must begin where the one before it ends, at {end}"
            raise ValueError(f"{about(who, entry.name)} {wanted}, got {list(entry[:2])}")
        end = entry.end
    if end != size:
        raise ValueError(f"{who}: the tensors must fill all {size} bytes of data, got {end}")
    return metadata, entries


def check_entry(who: str, name: str, info: Any, size: int) -> Entry:
    if not isinstance(info, dict) or set(info) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{who} must have dtype, shape, data_offsets and nothing else, got {brief(info)}")
    code, shape, offsets = info["dtype"], info["shape"], info["data_offsets"]
    if not isinstance(code, str) or code not in DTYPES:
        raise ValueError(f"{who} must have one of the dtypes {', '.join(DTYPES)}, got {brief(code)}")
    if not is_shape(shape) or len(shape) > 32 or math.prod(n for n in shape if n) >= 2**60:  # more than NumPy takes
        wanted = "a shape of at most 32 integers ≥ 0 with a product below 2^60"
        raise ValueError(f"{who} must have {wanted}, got {brief(shape)}")
    if not is_shape(offsets) or len(offsets) != 2:
        raise ValueError(f"{who} must have two integers ≥ 0 as offsets, got {brief(offsets)}")
    if not (begin := offsets[0]) <= (end := offsets[1]) <= size:
        raise ValueError(f"{who} must have offsets within the data (0 … {size}), got {brief(offsets)}")
    if end - begin != (needed := math.prod(shape) * ON_DISK[code].itemsize):
        raise ValueError(f"{who} must have {needed} bytes for {code} of shape {shape}, got {end - begin}")
    return Entry(begin, end, name, code, shape)


def read_array(who: str, file: IO[bytes], entry: Entry) -> np.ndarray:
    """The next array of the file, in memory of its own."""
    dtype, count = ON_DISK[entry.code], math.prod(entry.shape)
    x = np.fromfile(file, dtype, count) if count else np.empty(0, dtype)  # fromfile is slow to find nothing
    if entry.code == "BOOL" and x.view(np.uint8).max(initial=0) > 1:
        raise ValueError(f"{about(who, entry.name)} must hold booleans as 0 and 1, got {x.view(np.uint8).max()}")
    if entry.code == "BF16":
        x = (x.astype("<u4") << 16).view("<f4")
    return x.reshape(entry.shape)
