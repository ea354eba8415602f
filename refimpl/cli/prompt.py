"""The arguments MODEL, --tokenizer, --baked and --prompt: the inputs of a command."""

from __future__ import annotations

import argparse
import re
import shlex
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import Any, NamedTuple

import numpy as np

from ..budget import budget, spend
from ..errors import printable
from ..files.checkpoint import BiasesAlone, load
from ..files.disk import LARGEST_TEXT, opened, recording
from ..files.models import read_model
from ..files.tokenizers import ByteTokenizer, Tokenizer, check_vocabulary, read_tokenizer
from ..model.transformer import Model
from ..systems import Float, system_of

TEXT_BYTES = 60  # memory for each byte of a text and its token ids
MOST_AXES = 8  # of a prompt in a .npy file: batches, tokens and width


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    add, formats = parser.add_argument, "safetensors of refimpl, GPT-2 or Llama; .bin of llama2.c or rwkv.cpp"
    add("model", metavar="MODEL", help=f"{formats}; gpt-nano JSON")
    add("--tokenizer", metavar="FILE", help="GPT-2's vocabulary or merges, or llama2.c's tokenizer .bin")
    add("--dtype", default="float64", metavar="T", help="of weights in other formats: float64 (default), float32 ...")
    add_limit(parser)


def add_limit(parser: argparse.ArgumentParser) -> None:
    beyond = "the memory and work that a file may ask for beyond its own size, in units of about 1 GB and 2 s"
    parser.add_argument("--limit", type=float, default=1, metavar="N", help=f"{beyond} (default: 1)")


# The functions of Python with whose names errors begin
FUNCTIONS = re.compile(
    r"^(?:(?:read_\w+|load|encode|system|convert|generate|compare|transformer|fidelity|\w+_conversion|"
    r"[A-Z][a-z]\w*): )+"
)


@contextmanager
def naming_flags(place: str = "", /, **flags: str) -> Iterator[None]:
    """Errors inside this block name flags of the command line, not our functions and parameters.

    place : the flag, or MODEL, that all of the block is about
    """
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        text = re.sub(r"`(\w+)`", lambda name: flags.get(name[1], name[0]), str(error))
        text = re.sub(r"\b(\w+)='(\w+)'", lambda m: f"{flags[m[1]]} {m[2]}" if m[1] in flags else m[0], text)
        ours = FUNCTIONS.sub("", text)
        if ours.startswith(("--", "MODEL")):
            text = ours
        elif place:
            text = f"{place}: {ours}"
        if text == str(error):
            raise
        raise (OSError if isinstance(error, OSError) else ValueError)(text) from error


class Inputs(NamedTuple):
    """What a command reads; `files` are all of its files, which it must not overwrite."""

    model: Model
    tokenizer: Tokenizer | None
    prompt: Any
    files: frozenset[Path]
    held_out: Any = None  # the text of --held-out, if it is given


def read_inputs(options: argparse.Namespace) -> Inputs:
    """MODEL with the biases of --baked, its tokenizer, and --prompt as token ids or vectors."""
    flags = {"base": "MODEL", "limit": "--limit", "text": "the text"} | (
        {"library": "--backend"} if options.command == "convert" else {}
    )
    with naming_flags("--dtype", dtype="--dtype"):
        Float(options.backend, options.dtype)
    with recording() as files:
        with naming_flags("MODEL", **flags):
            model = read_weights(options)
        tokenizer = tokenizer_for(model, options.tokenizer, options.limit)
        if options.baked is not None:
            if model.biases is not None:
                raise ValueError("--baked: MODEL carries a prompt already; biases go onto the model without it")
            with naming_flags("--baked", **flags):
                model = load(options.baked, model, limit=options.limit)
        with naming_flags("--prompt", **flags), budget("--prompt", options.limit):
            prompt, held_out = read_prompt(options.prompt, model, tokenizer), getattr(options, "held_out", None)
            if held_out is not None:
                held_out = read_prompt(held_out, model, tokenizer, source="--held-out", begin=False)
    return Inputs(model, tokenizer, prompt, frozenset(files), held_out)


def read_weights(options: argparse.Namespace) -> Model:
    where = {"library": options.backend, "device": options.device}
    meant = f"refimpl {options.command} MODEL --baked {shlex.quote(options.model)}"
    with refusing_biases(options.model, f"did you mean {meant}?"):
        return read_model(options.model, dtype=options.dtype, **where, limit=options.limit)


@contextmanager
def refusing_biases(path: str, advice: str) -> Iterator[None]:
    """Inside this block, a file of biases alone is refused as MODEL, with advice."""
    try:
        yield
    except ValueError as error:
        if isinstance(error.__cause__, BiasesAlone):
            problem = "holds biases that convert wrote, without the weights of their model"
            raise ValueError(f"MODEL: {path} {problem}; {advice}") from error
        raise


def tokenizer_for(model: Model, path: str | None, limit: float = 1) -> Tokenizer | None:
    """The tokenizer in a file; without a file, bytes for RWKV with 256 tokens, else None."""
    if path is None and (model.config.vocabulary != 256 or model.config.family != "rwkv"):
        return None
    with naming_flags("--tokenizer", tokenizer="--tokenizer", limit="--limit"):
        tokenizer = ByteTokenizer() if path is None else read_tokenizer(path, limit=limit)
        check_vocabulary(tokenizer, model)
    return tokenizer


def read_prompt(
    prompt: str, model: Model, tokenizer: Tokenizer | None = None, *, source: str = "--prompt", begin: bool = True
) -> Any:
    """The token ids or vectors of --prompt, or of another source.

    The prompt is text, or without a tokenizer token ids. @FILE is a file of either, or a .npy file
    of ids or vectors. It continues a text that the model carries already, or if it does not begin.
    """
    text, begin = prompt, begin and model.biases is None
    if prompt.startswith("@"):
        source, path = f"{source} {prompt}", Path(prompt[1:])
        with opened(source, path) as (file, size):
            if file.read(6) == b"\x93NUMPY":
                return read_numbers(source, path, model)
            file.seek(0)
            spend(f"{source}: a text of {size} bytes", memory=TEXT_BYTES * size)
            data = file.read(LARGEST_TEXT if size == 0 else size)  # files of /proc are longer than they say
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"{source}: must be text in UTF-8, or a .npy file: {error}") from error
    return read_ids(source, text, model) if tokenizer is None else encode(source, text, begin, tokenizer)


def encode(source: str, text: str, begin: bool, tokenizer: Tokenizer) -> list[int]:
    """The ids of a text; there must be one or more of them."""
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
        with warnings.catch_warnings(action="ignore"):  # of headers that Python 2 wrote
            x = np.load(path, mmap_mode="r", allow_pickle=False)  # mapped: a false size takes no memory
            x = np.array(x, x.dtype.newbyteorder("="))
    # NumPy reads the header as Python
    except (ValueError, TypeError, OverflowError, MemoryError, SyntaxError, RecursionError, TokenError) as error:
        raise ValueError(f"{source}: must be a .npy file of numbers: {printable(error)}") from error
    if x.ndim > MOST_AXES:
        raise ValueError(f"{source}: must be a .npy file of numbers with at most {MOST_AXES} axes, got {x.ndim}")
    system = system_of(model.like)
    if x.dtype.kind in "iu":
        return x if model.config.vocabulary else system.convert(x)
    kind = {"bfloat16": "float32"}.get(system.kind, system.kind) if isinstance(system, Float) else "int64"
    if x.dtype.name != kind:
        raise ValueError(f"{source}: vectors for a model in {system.name} must be {kind}, got {printable(x.dtype, 40)}")
    return system.place(x)  # type: ignore[attr-defined]
