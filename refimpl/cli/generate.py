"""`refimpl generate`: text from a model, read from a file and told what came before."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np

from ..files.models import read_model
from ..files.safetensors import replacing, target_file
from ..files.tokenizers import Tokenizer
from ..model.generation import check_arguments, read_tokens, sample_tokens
from ..systems.floats import quiet
from .prompt import read_prompt, sources, tokenizer_for, with_baked


def run(options: argparse.Namespace) -> int:
    """Write the text that follows, and only it, to stdout, as it comes; the exit status."""
    target = None if options.logits is None else target_file("--logits", options.logits)
    if target in sources(options):
        raise ValueError(f"--logits: {options.logits} must be a file of its own, not one that is read")
    model = read_model(options.model, dtype=options.dtype)
    tokenizer = tokenizer_for(model, options.tokenizer)
    model = with_baked(model, options.baked)
    text = read_prompt(options.prompt, model, tokenizer)
    how = {"tokens": options.tokens, "temperature": options.temperature, "seed": options.seed}
    text = check_arguments(model, text, **how)
    try:
        with quiet():  # what overflows is an error of its own
            logits, model = read_tokens(model, text)
            if target:
                with replacing("--logits", target) as file:
                    np.save(file, logits, allow_pickle=False)
            for piece in pieces(text, sample_tokens(logits, model, **how), tokenizer):
                print(piece, end="", flush=True)
    except ArithmeticError as error:  # a zero denominator or an overflow, in this model on this text
        raise ValueError(str(error)) from error
    if options.tokens:
        print(flush=True)
    return 0


def pieces(text: Any, ids: Iterator[int], tokenizer: Tokenizer | None) -> Iterator[str]:
    """What follows the text, as it is written: words, or without a tokenizer ids. How the first begins may depend on what it follows."""
    if tokenizer is None:
        return (f" {i}" if n else f"{i}" for n, i in enumerate(ids))
    found = tokenizer.decode_stream(chain([int(text[-1])], until(ids, tokenizer.start)))
    next(found)
    return found


def until(ids: Iterator[int], end: int | None) -> Iterator[int]:
    """Up to the token with which a text begins, since there another one would."""
    for i in ids:
        if i == end:
            return
        yield i
