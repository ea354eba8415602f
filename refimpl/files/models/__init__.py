"""Real checkpoints, read into the one transformer of this library."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...model.transformer import Model

FOREIGN = {
    b"PK\3\4": "an archive of torch.save, whose pickle could run anything when read; convert it to safetensors where you trust it",
    b"GGUF": "a GGUF file; convert it to safetensors",
    b"24ka": "a llama2.c file of version 1 or 2; export it as version 0",
}
KNOWN = "safetensors of refimpl, GPT-2 or Llama, llama2.c's .bin of version 0, llm-viz's JSON, or rwkv.cpp's .bin"


def read_model(
    path: str | os.PathLike[str], *, dtype: str = "float64", library: str = "numpy", device: Any = None
) -> Model:
    """The model in a file, whichever it is: its content tells. A folder stands for the `model.safetensors` in it.

    dtype, library, device : of the weights, as in Float; float64 holds the numbers of such files exactly. A file that `save` wrote says
    its dtype itself.
    """
    from ...systems import Float
    from .reading import size_of

    path = Path(path) / "model.safetensors" if os.path.isdir(path) else Path(path)
    size = size_of("read_model", path)
    kind = kind_of(path, size)
    if kind == "refimpl":
        from ..checkpoint import load

        return load(path, library=library, device=device)
    system = Float(library, dtype, device)
    if kind == "rwkv":
        from ...model.transformer import Model
        from .rwkv_file import read_rwkv

        return Model(*read_rwkv(path, system=system))
    from .gpt2 import read_gpt2, read_nano
    from .llama import read_llama, read_llama2c

    return {"gpt2": read_gpt2, "nano": read_nano, "llama": read_llama, "llama2c": read_llama2c}[kind](
        path, system=system
    )


def kind_of(path: Path, size: int) -> str:
    """What a file is; no more is read of it than its beginning."""
    with open(path, "rb") as file:
        start = file.read(28)
        length = int.from_bytes(start[:8], "little")
        safetensors = start[8:9] == b"{" and length <= min(size - 8, 100_000_000)
        file.seek(8)
        header = file.read(length) if safetensors else b""
    if start[:4] == (0x67676D66).to_bytes(4, "little"):
        return "rwkv"
    for magic, words in FOREIGN.items():
        if start.startswith(magic):
            raise ValueError(f"read_model: {path}: the file must be {KNOWN}, got {words}")
    if safetensors:
        return kind_of_safetensors(path, header)
    if start.lstrip()[:1] == b"{":
        return "nano"
    from .llama import header_of

    try:
        header_of("read_model", path, start)
    except ValueError as error:
        raise ValueError(f"read_model: {path}: the file must be {KNOWN}, got {start[:8]!r} at its beginning") from error
    return "llama2c"


def kind_of_safetensors(path: Path, header: bytes) -> str:
    """By the metadata of our own, or by the name of an embedding."""
    try:
        entries = dict(json.loads(header))
        words = dict(entries.get("__metadata__", {}))
    except (ValueError, TypeError, RecursionError):
        entries, words = {}, {}
    if str(words.get("format", "")).startswith("refimpl"):
        return "refimpl"
    for kind, names in {
        "gpt2": ("wte.weight", "transformer.wte.weight"),
        "llama": ("model.embed_tokens.weight",),
    }.items():
        if any(name in entries for name in names):
            return kind
    from ..safetensors import read_safetensors

    read_safetensors(path)  # if it is damaged, this says how
    some = ", ".join(sorted(entries)[:3])[:200]
    raise ValueError(f"read_model: {path}: the tensors must be those of refimpl, GPT-2 or Llama, got {some or 'none'}")
