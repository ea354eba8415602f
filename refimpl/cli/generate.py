"""`refimpl generate`: write the text that follows a prompt."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import chain, takewhile
from typing import Any

import numpy as np

from ..files.disk import replacing, target_file
from ..files.tokenizers import Tokenizer
from ..model.generation import check_request, generate_ids, read_tokens
from ..systems.floats import dtype_library, quiet
from .backend import prepare_backend
from .output import Outcome, say, without_controls
from .prompt import add_model_arguments, naming_flags, read_inputs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Only the text that follows goes to stdout, as it comes: to a terminal with control characters other than "
        "newline and tab as escapes, to a file or a pipe as it is. A model without a tokenizer reads and writes "
        "token ids. Exit status: 0 all is written, 2 not."
    )
    parser.set_defaults(device=None)
    add_model_arguments(parser)
    add = parser.add_argument
    add("--prompt", default="", metavar="TEXT", help="text to continue (default: the beginning of a text)")
    add("--tokens", type=int, default=100, metavar="N", help="how many to write; fewer if the text ends (default: 100)")
    add("--temperature", type=float, default=0.0, metavar="T", help="0: always the likeliest token (default)")
    add("--seed", type=int, default=0, metavar="N", help="seed of the draws at a temperature > 0 (default: 0)")
    add("--baked", metavar="FILE", help="biases of MODEL, written by convert: a prompt that need not be read again")
    add("--logits", metavar="FILE.npy", help="write the logits of the first token after the prompt")


def run(options: argparse.Namespace) -> Outcome:
    """Write the text that follows, and nothing else, to stdout."""
    target = None if options.logits is None else target_file("--logits", options.logits)
    if sys.stdout is None and options.tokens:
        raise OSError("generate: stdout must be open for the text, got a closed one; --tokens 0 writes --logits alone")
    options.backend = dtype_library(options.dtype)
    prepare_backend(options.backend)
    model, tokenizer, text, inputs, _ = read_inputs(options)
    if target in inputs:
        raise ValueError(f"--logits: {options.logits} must be a file of its own, not one that is read")
    how = {"tokens": options.tokens, "temperature": options.temperature, "seed": options.seed}
    flags = {"text": "--prompt", "model": "MODEL"} | {name: f"--{name}" for name in how}
    with naming_flags(**flags):
        text = check_request(model, text, **how)
    show = without_controls if sys.stdout is not None and sys.stdout.isatty() else str
    with quiet(), naming_flags(**flags):  # an overflow raises an error, so NumPy need not warn
        logits, model = read_tokens(model, text)
        if target:
            with replacing("--logits", target) as file:
                np.save(file, logits, allow_pickle=False)
        for piece in decode(text, generate_ids(logits, model, **how), tokenizer):
            say(show(piece), end="")
    if options.tokens:
        say("")
    return Outcome(0)


def decode(text: Any, ids: Iterator[int], tokenizer: Tokenizer | None) -> Iterator[str]:
    """The text of the ids that follow `text`, up to a token that begins another text.

    Without a tokenizer the ids themselves are written.
    """
    if tokenizer is None:
        return (f" {i}" if n else f"{i}" for n, i in enumerate(ids))
    # The text of a token may depend on the token before it.
    pieces = tokenizer.decode_stream(chain([int(text[-1])], takewhile(lambda i: i != tokenizer.start, ids)))
    next(pieces)
    return pieces
