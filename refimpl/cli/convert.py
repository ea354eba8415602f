"""`refimpl convert`: turn a model and a prompt into a file of biases."""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..attention.linear_attention import State, linear_attention, linear_attention_quadratic
from ..errors import brief, choose, find_name
from ..files.checkpoint import digest, save
from ..files.disk import target_file
from ..model.attention_layers import Config
from ..model.recurrence import Carried
from ..model.transformer import Model
from ..packages import __version__
from ..prompt.compression import KINDS, Compression
from ..prompt.compression.best import Best
from ..prompt.conversion import PIECE, convert
from ..prompt.fidelity import fidelity, rounding, sizes_in_bytes
from ..systems import system_of
from ..systems.floats import dtype_library, itemsize, quiet
from ..systems.formats import FORMATS
from ..verify.conversion_check import check_conversion
from ..verify.conversion_check import held_out as sample
from .backend import add_backend_arguments, check_backend, prepare_backend
from .output import Outcome, json_target, noting, progress, write_json
from .prompt import add_model_arguments, naming_flags, read_inputs

HELD_OUT = 16  # tokens on which --check compares
MOST_CHARACTERS, LARGEST_EXPONENT = 100, 400  # of a strength; floats have exponents to 308
FAR = 10  # times the error of the prompted model is too much; chance alone gives a few times
FLAGS = {name: f"--{name}" for name in ("prompt", "mask", "strength", "chunk", "by")} | {"model": "MODEL"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Exit status: 0 written (and the check, if any, holds), 1 the check fails, "
        "2 it could not run or says nothing (VACUOUS)."
    )
    add_model_arguments(parser)
    add = parser.add_argument
    prompt = "text, or without a tokenizer ids, '3 1 4'; @FILE: such text, or a .npy of ids or vectors"
    add("--prompt", required=True, metavar="TEXT", help=prompt)
    add("--out", required=True, metavar="FILE", help="where to write the biases; a new file, unless --force")
    add("--force", action="store_true", help="replace the file of --out, if there is one")
    add("--whole", action="store_true", help="write the whole model, not the biases alone")
    add("--baked", metavar="FILE", help="biases of MODEL, written earlier, on top of which to convert")
    add(
        "--mask",
        type=str.lower,
        choices=("causal", "full"),
        default="causal",
        help="full: prompt tokens see each other",
    )
    add("--strength", default="1", metavar="λ", help="how often the prompt counts: 2, 0.5, 1/3 (default: 1)")
    add("--keep-positions", action="store_true", help="read the input where the prompt ended, not where it began")
    add("--chunk", type=int, metavar="N", help=f"tokens read at a time (default: {PIECE}; with --mask full, all)")
    check = "compare with the prompted model on a held-out text, in O(M) memory and O(M²) time; write only if it holds"
    add("--check", action="store_true", help=check)
    text = f"the text of --check, as --prompt (default: {HELD_OUT} tokens that the model itself writes, by --seed)"
    add("--held-out", metavar="TEXT", help=text)
    kinds = "softmax: make a memory of this kind: tilted, clusters, positive, favor++ ... or best"
    add(
        "--by",
        type=partial(find_name, known=(*KINDS, "best")),
        metavar="KIND",
        help=f"{kinds} (default: the KV cache, exact)",
    )
    add("--features", type=int, metavar="R", help="how many features the memory has in each head")
    budget = "with --by best: how large the memory may be, in all layers: 50000, 50KB, 1.5MB, 2GiB"
    add("--budget", type=read_size, metavar="BYTES", help=budget)
    add("--error", type=float, metavar="E", help="with --by best: the relative error that attention may have")
    add("--seed", type=int, default=0, metavar="N", help="seed of the text of --check and of all draws (default: 0)")
    add_backend_arguments(parser, None, "library of the floats: torch, jax, cupy or numpy (default: that of --dtype)")
    add("--json", metavar="FILE", help="write a report to FILE")


class Request(NamedTuple):
    """The arguments of the command line, with their files read and checked."""

    options: argparse.Namespace
    out: Path
    json: Path | None
    model: Model
    prompt: Any
    how: dict[str, Any]  # mask, restart, strength, chunk: as in `convert`
    by: Best | Compression | None
    held_out: Any


class Check(NamedTuple):
    """The result of --check: the lines to print, the exit status, and a report for --json."""

    text: str = ""
    status: int = 0
    report: dict[str, Any] | None = None


def run(options: argparse.Namespace) -> Outcome:
    """Convert a prompt, check if asked to, write biases that hold."""
    options.backend = options.backend or dtype_library(options.dtype)
    prepare_backend(options.backend)
    request, show, problems = read_request(options), progress(), list[Exception]()
    with quiet():  # an overflow raises an error, so NumPy need not warn
        began = time.perf_counter()
        with naming_flags(**FLAGS, text="--prompt"):
            converted = convert_prompt(request, show)
        seconds = time.perf_counter() - began
        with naming_flags(**FLAGS, text="--held-out"):
            check = check_biases(request, converted, show) if options.check else Check()
    show("")
    written = False
    if check.status == 0:
        with noting(problems):
            save(request.out, converted, biases_only=not options.whole)
            written = True
    if request.json:
        with noting(problems):
            write_json(request.json, report(request, converted, seconds, check, written))
    lines = [*describe_conversion(request, converted, seconds), *([check.text] if check.text else [])]
    lines.append(f"{options.out} is {'written' if written else 'not written'}")
    return Outcome(check.status, "\n".join(lines), tuple(problems))


def read_request(options: argparse.Namespace) -> Request:
    """Read all inputs; refuse, before the work, files and flags that do not go together."""
    out, target = target_file("--out", options.out), json_target(options.json)
    check_backend(options.backend, options.device)
    model, _, prompt, inputs, held_out = read_inputs(options)
    if 0 in np.shape(prompt):
        raise ValueError(f"--prompt: must have a token or more to convert, got shape {tuple(np.shape(prompt))}")
    if target in inputs:
        raise ValueError(f"--json: {options.json} must be a file of its own, not one that is read")
    replaced = {Path(os.path.realpath(path)) for path in (options.whole and options.model, options.baked) if path}
    if out == target or out in inputs - replaced:
        raise ValueError(f"--out: {options.out} must be a file of its own, neither one that is read nor that of --json")
    if not system_of(model.like).file_dtype:
        wanted = f"floats of at most 64 bits, to be written, got {system_of(model.like).name}"
        raise ValueError(f"--dtype: the numbers must be {wanted}")
    restart = not (options.keep_positions or model.config.table)  # absolute positions cannot begin again at 0
    strength = read_strength(options.strength, system_of(model.like).exact)
    how = {"mask": options.mask, "restart": restart, "strength": strength, "chunk": options.chunk}
    with naming_flags(r="--features", budget="--budget", error="--error", seed="--seed"):
        by = read_compression(options, model)
    if by is not None and strength == 0:  # no file holds a memory of nothing
        raise ValueError(f"--strength: must not be 0 with --by, which would remember nothing, got {options.strength}")
    if options.check and model.config.past is not State and strength != 1:
        once = "fidelity is to a prompt that counts once"
        raise ValueError(f"--check: {once}; --strength must be 1, got {options.strength}")
    if os.path.exists(out) and not options.force:
        raise ValueError(f"--out: {options.out} must be a new file, and exists already; --force replaces it")
    if held_out is not None:
        check_held_out(options, model, prompt, held_out)
    return Request(options, out, target, model, prompt, how, by, held_out)


def check_held_out(options: argparse.Namespace, model: Model, prompt: Any, text: Any) -> None:
    """Refuse a text without --check, one without tokens, and one beyond the table of positions."""
    if not options.check:
        raise ValueError("--held-out needs --check, which compares the models on it")
    axis, table = -1 if model.config.vocabulary else -2, model.config.table
    M, n = np.shape(prompt)[axis], np.shape(text)[axis]
    if not n:
        raise ValueError("--held-out: must have a token or more to compare, got none")
    if table and model.position + M + n > table:
        room = f"at most {table - model.position - M} tokens, for a table of {table} positions"
        raise ValueError(f"--held-out: must have {room}, got {n}")


def read_strength(text: str, exact: bool) -> int | float | Fraction:
    """The strength: an int if it is an integer, a Fraction in an exact system, else a float."""
    exponent = re.search(r"e([-+]?\d+)", text, re.IGNORECASE) if len(text) <= MOST_CHARACTERS else None
    if len(text) > MOST_CHARACTERS or (exponent and abs(int(exponent[1])) > LARGEST_EXPONENT):
        wanted = f"at most {MOST_CHARACTERS} characters and an exponent from {-LARGEST_EXPONENT} to {LARGEST_EXPONENT}"
        raise ValueError(f"--strength: must have {wanted}, got {brief(text)}")
    try:
        number = Fraction(text) if exact or "/" in text else float(text)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"--strength: must be a number such as 2, 0.5 or 1/3, got {text!r}") from None
    return int(number) if number % 1 == 0 else number if exact else float(number)


def read_size(text: str) -> int:
    """A number of bytes: an integer, or a number and a unit; KB is 1000 bytes, KiB 1024."""
    found = re.fullmatch(r"\s*(\d{1,30}(?:\.\d{1,30})?)\s*(?:([kmgt])(i?)b?|b?)\s*", text, re.IGNORECASE | re.ASCII)
    power = " kmgt".index((found[2] or " ").lower()) if found else 0
    size = Fraction(found[1]) * (1024 if found[3] else 1000) ** power if found else Fraction(1, 2)
    if size.denominator != 1:
        wanted = "a whole number of bytes such as 50000, 50KB (50,000), 50KiB (51,200), 1.5MB or 2GiB"
        raise argparse.ArgumentTypeError(f"must be {wanted}, got {brief(text)}")
    return int(size)


def read_compression(options: argparse.Namespace, model: Model) -> Best | Compression | None:
    """The compression that --by, --features, --budget and --error ask for."""
    if options.by is not None:
        choose("convert", "--by", options.by, (*KINDS, "best"))
    sizes = {"best": ["budget", "error"], None: [], "cache": [], "taylor": []}.get(options.by, ["features"])
    given = [name for name in ("features", "budget", "error") if getattr(options, name) is not None]
    if set(given) - set(sizes) or (sizes and len(given) != 1):
        kind = f"--by {options.by}" if options.by else "a KV cache, without --by,"
        wanted = {0: "no size", 1: "--features", 2: "either --budget or --error"}[len(sizes)]
        raise ValueError(f"convert: {kind} takes {wanted}, got {' and '.join(f'--{name}' for name in given) or 'none'}")
    if options.by is None:
        return None
    if options.by != "best":
        return Compression(options.by, options.features, options.seed)
    c, budget = model.config, options.budget
    if budget is not None and isinstance(c, Config):  # else `convert` refuses
        least = c.layers * (16 + itemsize(model.like) * c.kv_heads * (c.m + 2))  # one random feature in each head
        if budget < least:
            raise ValueError(f"--budget: must be at least {least} bytes, for one feature in each head, got {budget}")
    return Best(budget=None if budget is None else budget // c.layers, error=options.error, seed=options.seed)


def convert_prompt(request: Request, show: Callable[[str], None]) -> Model:
    def show_layer(i: int, x: Any) -> Any:
        show(f"the prompt, layer {i + 1} of {request.model.config.layers}")
        return x

    return convert(request.model, request.prompt, **request.how, by=request.by, between=show_layer)


def check_biases(request: Request, converted: Model, show: Callable[[str], None]) -> Check:
    """Compare the converted model with the prompted one, on held-out input."""
    model, prompt, seed, M = request.model, request.prompt, request.options.seed, converted.prompts[-1]
    if (text := request.held_out) is None:
        show("the held-out text")
        text, words = sample(model, prompt, HELD_OUT, seed)
    else:
        words = f"{np.shape(text)[-1 if model.config.vocabulary else -2]} tokens of --held-out"
    if model.config.past is not State:  # no error bound is known, so only logits are compared
        return measure(request, converted, text, f"checked on {words},")
    # the quadratic form also sums over all positions, and is faster
    definition = linear_attention if M <= 64 else linear_attention_quadratic
    found = check_conversion(model, converted, prompt, text, **request.how, definition=definition, progress=show)
    status = {"EXCESS": 1, "VACUOUS": 2}.get(found.verdict, 0)
    against = f"checked on {words},\nagainst the prompted model by {definition.__name__}:"
    return Check(f"{against}\n{found}", status, found.report())


def measure(request: Request, converted: Model, text: Any, words: str) -> Check:
    """Compare logits with the prompted model and, for an exact conversion, with wider floats."""
    model, prompt, mask = request.model, request.prompt, request.how["mask"]
    form = model.config.definition
    found = fidelity(model, converted, prompt, text, form=form, mask=mask)
    lines, holds = [words, "against the prompted model:", *str(found).split("; ")], not found.worse_than_dropped
    exact = request.by is None and mask == "causal" and np.ndim(prompt) == 1
    if exact and (errors := rounding(model, converted, prompt, text, form=form)):
        lines.append(f"against wider floats: converted {errors[0]:.2g} off, prompted {errors[1]:.2g}")
        lines.append(f"(more than {FAR} times the prompted error would fail)")
        unit = 2.0 ** -FORMATS[system_of(model.like).kind][0]  # type: ignore[attr-defined]
        holds = holds and errors[0] <= FAR * max(errors[1], unit)
    return Check("\n".join(lines), 0 if holds else 1, found.report())


def chosen_memories(request: Request, converted: Model) -> list[str]:
    """For each layer, a description of its memory."""
    return [b.memories[-1].about for b in converted.biases or () if request.by and b.memories[-1].about]


def describe_conversion(request: Request, converted: Model, seconds: float) -> list[str]:
    c, M, sizes = request.model.config, converted.prompts[-1], sizes_in_bytes(converted)
    position = [] if c.past is Carried else [f"the input is read from position {converted.position} on"]
    system = system_of(request.model.like).name
    cache = f"; a KV cache of {sum(converted.prompts)} tokens has {sizes['kv_cache']:,}" if "kv_cache" in sizes else ""
    return [
        f"converted {M} token{'s' * (M != 1)} into biases of {c.layers} layers in {system}",
        *position,
        f"{sizes['biases']:,} bytes of biases{cache}; {seconds:.2f} s",
        *(f"layer {i:3}  {about}" for i, about in enumerate(chosen_memories(request, converted))),
    ]


def report(request: Request, converted: Model, seconds: float, check: Check, written: bool) -> dict[str, Any]:
    options, prompts, out = request.options, converted.prompts, request.options.out if written else None
    done = {"model": options.model, "digest": digest(request.model), "out": out, "whole": options.whole}
    done |= {"prompt": prompts[-1], "prompts": prompts, "position": converted.position, **request.how}
    done |= {"strength": options.strength, "by": request.by and str(request.by)}
    done |= {"chosen": chosen_memories(request, converted), "dtype": system_of(request.model.like).name}
    done |= {"tokenizer": options.tokenizer, "bytes": sizes_in_bytes(converted), "seconds": seconds}
    return done | {"seed": options.seed, "check": check.report, "version": __version__}
