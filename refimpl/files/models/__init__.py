"""Checkpoints that others publish, read into the one transformer of this library.

A module of this package that has FORMATS is a reader: to add a format, add a module.
"""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
from pathlib import Path
from typing import Any

from ...budget import budget
from ...errors import brief, printable
from ...model.transformer import Model
from ...systems import Float
from ...systems.floats import dtype_library, read_dtype
from ..checkpoint import load
from ..disk import PathLike, check_path, opened, parse_json
from ..safetensors import LONGEST_HEADER, names_in_header, spend_tensors
from .reading import Format, Opening

# The first bytes of files that are refused: the name of their format, and what to do
REFUSED = {
    b"PK\3\4": "an archive of torch.save, whose pickle could run anything when read; "
    "convert it to safetensors where you trust it",
    b"GGUF": "a GGUF file; convert it to safetensors",
    b"24ka": "a llama2.c file of version 1 or 2; export it as version 0",
}


def read_model(
    path: PathLike, *, dtype: Any = "float64", library: str | None = None, device: Any = None, limit: float = 1
) -> Model:
    """The model in a file, whose content tells the format; or `model.safetensors` in a folder.

    dtype, library, device : of the weights, as in Float; float64 holds the numbers of all these
    files exactly. A file that `save` wrote has its own dtype. The library is NumPy, or that of a
    dtype such as torch.float32.
    limit : how many times the usual memory and work the file may ask for, beyond its own size
    """
    check_path("read_model", path)
    if read_dtype(dtype) is None:
        raise TypeError(f"read_model: `dtype` must be a dtype or a name such as 'float32', got {brief(dtype)}")
    library = dtype_library(dtype) if library is None else library
    path = Path(path) / "model.safetensors" if os.path.isdir(path) else Path(path)
    with budget("read_model", limit):
        opening = read_opening(path)
    for start, advice in REFUSED.items():
        if opening.start.startswith(start):
            raise ValueError(f"read_model: {path}: the file must be {names_of_formats()}, got {advice}")
    if opening.metadata.get("format", "").startswith("refimpl"):
        return load(path, library=library, device=device, limit=limit)
    for form in formats():
        if form.recognises(opening):
            system = Float(library, dtype, device)
            with budget("read_model", limit, opening.size):
                return form.read(path, system=system)
    if not opening.is_safetensors:
        got = f"{opening.start[:8]!r} at its beginning"
        raise ValueError(f"read_model: {path}: the file must be {names_of_formats()}, got {got}")
    found = sorted(names_in_header(path, limit=limit))[:3]  # if the file is damaged, this says how
    tensors = printable(", ".join(found)) or "none"
    raise ValueError(f"read_model: {path}: the file must be {names_of_formats()}, got tensors {tensors}")


def read_opening(path: Path) -> Opening:
    with opened("read_model", path) as (file, size):
        start = file.read(28)
        length = int.from_bytes(start[:8], "little")
        is_safetensors = start[8:9] == b"{" and length <= min(size - 8, LONGEST_HEADER)
        file.seek(8)
        header = file.read(length) if is_safetensors else b"{}"
    try:
        spend_tensors(header)
        entries = dict(parse_json("the header", header))
        metadata = {str(key): str(value) for key, value in dict(entries.pop("__metadata__", {})).items()}
    except (ValueError, TypeError):  # the reader says what is wrong
        entries, metadata = {}, {}
    return Opening(start, is_safetensors, entries.keys(), metadata, size)


@functools.cache
def formats() -> list[Format]:
    """Every format that a module of this package reads."""
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    return [form for module in modules for form in getattr(module, "FORMATS", ())]


def names_of_formats() -> str:
    return ", ".join(["refimpl's safetensors", *(form.name for form in formats()[:-1])]) + f" or {formats()[-1].name}"
