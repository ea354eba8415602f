"""What a command is told as `--prompt` and `--tokenizer`: words, a file of words, or numbers."""

from __future__ import annotations

import argparse
import os
import tokenize
from pathlib import Path
from typing import Any

import numpy as np

from ..files.checkpoint import load
from ..files.tokenizers import ByteTokenizer, Tokenizer, check_vocabulary, read_tokenizer
from ..model.transformer import Model
from ..systems import Float, system_of


def tokenizer_for(model: Model, path: str | None) -> Tokenizer | None:
    """The tokenizer that is named; else bytes, if a recurrent model has 256 tokens; else none: token ids."""
    if path is None and (model.config.vocabulary != 256 or not model.config.recurrent):
        return None
    tokenizer = ByteTokenizer() if path is None else read_tokenizer(path)
    check_vocabulary(tokenizer, model)
    return tokenizer


def with_baked(model: Model, path: str | None) -> Model:
    """The model with the biases of a file, if one is named."""
    if path is None:
        return model
    if model.biases is not None:
        raise ValueError("--baked: MODEL carries a prompt already; biases go onto the model without it")
    return load(path, model)


def sources(options: argparse.Namespace) -> set[Path]:
    """The files that a command reads, which it must not write over."""
    prompt = options.prompt[1:] if options.prompt.startswith("@") else None
    named = (options.model, os.path.join(options.model, "model.safetensors"), options.tokenizer, prompt, options.baked)
    return {Path(os.path.realpath(path)) for path in named if path}


def read_prompt(words: str, model: Model, tokenizer: Tokenizer | None = None) -> Any:
    """Text, or without a tokenizer token ids; of @FILE, what is in the file: the same, or a .npy of ids or vectors.

    If the model carries a text already, this one goes on from it.
    """
    source, text, begin = "--prompt", words, model.biases is None
    if words.startswith("@"):
        source, path = f"--prompt {words}", Path(words[1:])
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
    if tokenizer is not None:
        ids = tokenizer.encode(text, begin=begin)
        ids = [tokenizer.start] if not ids and begin and tokenizer.start is not None else ids
        if not ids:
            carried = (
                "; the prompt that it carries keeps no logits: leave its last token for --prompt" if not begin else ""
            )
            raise ValueError(f"{source}: must have a token or more to go on from, got {text!r}{carried}")
        return ids
    if not model.config.vocabulary:
        raise ValueError(f"{source}: MODEL has no vocabulary; pass vectors, as @FILE of a .npy file")
    parts = text.replace(",", " ").split()
    wrong = [word for word in parts if not word.removeprefix("-").isdecimal() or len(word) > 20]
    if wrong or not parts:
        raise ValueError(
            f"{source}: must be token ids such as '3 1 4', or text with --tokenizer, got {(wrong or [''])[0][:40]!r}"
        )
    return [int(word) for word in parts]


def read_numbers(source: str, path: Path, model: Model) -> Any:
    """Token ids or vectors of a .npy file."""
    try:
        x = np.array(np.load(path, mmap_mode="r", allow_pickle=False))  # mapped: a lie about its size takes no memory
    except (
        ValueError,
        OverflowError,
        MemoryError,
        SyntaxError,
        tokenize.TokenError,
    ) as error:  # NumPy reads its header as Python
        raise ValueError(f"{source}: must be a .npy file of numbers: {error}") from error
    system = system_of(model.like)
    if x.dtype.kind in "iu":
        return x if model.config.vocabulary else system.convert(x)
    kind = {"bfloat16": "float32"}.get(system.kind, system.kind) if isinstance(system, Float) else "int64"
    if x.dtype.name != kind:
        raise ValueError(f"{source}: vectors for a model in {system.name} must be {kind}, got {x.dtype}")
    return system.place(x)  # type: ignore[attr-defined]
