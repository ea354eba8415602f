"""The arguments MODEL, --tokenizer, --baked and --prompt: the inputs of a command."""

from __future__ import annotations

import argparse
import os
import re
import tokenize
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..files.checkpoint import load
from ..files.models import read_model
from ..files.tokenizers import ByteTokenizer, Tokenizer, check_vocabulary, read_tokenizer
from ..model.transformer import Model
from ..systems import Float, system_of


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    add, formats = parser.add_argument, "safetensors of refimpl, GPT-2 or Llama; .bin of llama2.c or rwkv.cpp"
    add("model", metavar="MODEL", help=f"{formats}; gpt-nano JSON")
    add("--tokenizer", metavar="FILE", help="GPT-2's vocabulary or merges, or llama2.c's tokenizer .bin")
    add("--dtype", default="float64", metavar="T", help="of weights in other formats: float64 (default), float32 ...")


@contextmanager
def naming_flags(**flags: str) -> Iterator[None]:
    """Errors inside this block name the flags of the command line, not our parameters."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise ValueError(re.sub(r"`(\w+)`", lambda name: flags.get(name[1], name[0]), str(error))) from error


def input_files(options: argparse.Namespace) -> set[Path]:
    """The files that a command reads, which it must not overwrite."""
    prompt = options.prompt[1:] if options.prompt.startswith("@") else None
    folder = os.path.join(options.model, "model.safetensors")
    paths = (options.model, folder, options.tokenizer, prompt, options.baked)
    return {Path(os.path.realpath(path)) for path in paths if path}


def read_inputs(options: argparse.Namespace) -> tuple[Model, Tokenizer | None, Any]:
    """MODEL with the biases of --baked, its tokenizer, and --prompt as token ids or vectors."""
    with naming_flags(base="MODEL"):
        model = read_model(options.model, dtype=options.dtype, library=options.backend, device=options.device)
        tokenizer = tokenizer_for(model, options.tokenizer)
        if options.baked is not None:
            if model.biases is not None:
                raise ValueError("--baked: MODEL carries a prompt already; biases go onto the model without it")
            model = load(options.baked, model)
    return model, tokenizer, read_prompt(options.prompt, model, tokenizer)


def tokenizer_for(model: Model, path: str | None) -> Tokenizer | None:
    """The tokenizer in a file; without a file, bytes for RWKV with 256 tokens, else None."""
    if path is None and (model.config.vocabulary != 256 or model.config.family != "rwkv"):
        return None
    tokenizer = ByteTokenizer() if path is None else read_tokenizer(path)
    with naming_flags(tokenizer="--tokenizer"):
        check_vocabulary(tokenizer, model)
    return tokenizer


def read_prompt(prompt: str, model: Model, tokenizer: Tokenizer | None = None) -> Any:
    """The token ids or vectors of --prompt.

    The prompt is text, or without a tokenizer token ids. @FILE is a file of either, or a .npy file
    of ids or vectors. If the model carries a text already, this one continues it.
    """
    source, text = "--prompt", prompt
    if prompt.startswith("@"):
        source, path = f"--prompt {prompt}", Path(prompt[1:])
        try:
            data = path.read_bytes()
        except OSError as error:
            raise OSError(f"{source}: cannot read {path}: {(error.strerror or str(error)).lower()}") from error
        if data.startswith(b"\x93NUMPY"):
            return read_numbers(source, path, model)
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"{source}: must be text in UTF-8, or a .npy file: {error}") from error
    return read_ids(source, text, model) if tokenizer is None else encode(source, text, model, tokenizer)


def encode(source: str, text: str, model: Model, tokenizer: Tokenizer) -> list[int]:
    """The ids of a text; there must be one or more of them."""
    begin = model.biases is None
    ids = tokenizer.encode(text, begin=begin)
    if not ids and begin and tokenizer.start is not None:
        return [tokenizer.start]
    if not ids:
        advice = "" if begin else "; convert the prompt without its last token, and pass that token as --prompt"
        raise ValueError(f"{source}: must have a token or more to go on from, got {text!r}{advice}")
    return ids


def read_ids(source: str, text: str, model: Model) -> list[int]:
    if not model.config.vocabulary:
        raise ValueError(f"{source}: MODEL has no vocabulary; pass vectors, as @FILE of a .npy file")
    words = text.replace(",", " ").split()
    wrong = [word for word in words if not word.removeprefix("-").isdecimal() or len(word) > 20]
    if wrong or not words:
        got = (wrong or [""])[0][:40]
        raise ValueError(f"{source}: must be token ids such as '3 1 4', or text with --tokenizer, got {got!r}")
    return [int(word) for word in words]


def read_numbers(source: str, path: Path, model: Model) -> Any:
    try:
        x = np.array(np.load(path, mmap_mode="r", allow_pickle=False))  # mapped: a false size takes no memory
    # NumPy reads the header as Python
    except (ValueError, OverflowError, MemoryError, SyntaxError, tokenize.TokenError) as error:
        raise ValueError(f"{source}: must be a .npy file of numbers: {error}") from error
    system = system_of(model.like)
    if x.dtype.kind in "iu":
        return x if model.config.vocabulary else system.convert(x)
    kind = {"bfloat16": "float32"}.get(system.kind, system.kind) if isinstance(system, Float) else "int64"
    if x.dtype.name != kind:
        raise ValueError(f"{source}: vectors for a model in {system.name} must be {kind}, got {x.dtype}")
    return system.place(x)  # type: ignore[attr-defined]
