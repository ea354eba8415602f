"""`refimpl convert`: from a model and a prompt to a file of biases."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

from . import __version__
from .checkpoint import digest, load, memory, save
from .cli import json_target, write_json
from .cli_prompt import read_prompt, sources, tokenizer_for
from .compression import Compression
from .compression.best import Best
from .conversion import convert
from .fidelity import Fidelity, fidelity
from .files import target_file
from .linear_attention import linear_attention, linear_attention_quadratic
from .models import read_model
from .systems import system_of
from .systems.fast import quiet
from .verify.conversion_check import check_conversion, held_out


def run(options: argparse.Namespace, show: Callable[[str], None]) -> int:
    """Convert, check if asked to, and write what holds; the exit status."""
    out, target = target_file("--out", options.out), json_target(options.json)
    taken = sources(options)
    if target in taken:
        raise ValueError(f"--json: {options.json} must be a file of its own, not one that is read")
    if out == target or out in taken - ({Path(os.path.realpath(options.model))} if options.whole else set()):
        raise ValueError(f"--out: {options.out} must be a file of its own, neither MODEL nor that of --json")
    model = read_model(options.model, dtype=options.dtype, library=options.backend, device=options.device)
    tokenizer = tokenizer_for(model, options.tokenizer)
    model = load(options.baked, model) if options.baked else model
    system, layers = system_of(model.like), model.config.layers
    found: Any = None
    prompt = read_prompt(options.prompt, model, tokenizer)
    strength = read_strength(options.strength, system.exact)
    restart = not (options.keep_positions or model.config.table)  # absolute positions cannot begin anew
    how = {"mask": options.mask, "restart": restart, "strength": strength, "chunk": options.chunk}
    by = read_compression(options, layers)
    measured = model.config.softmax or model.config.recurrent
    if options.check and measured and strength != 1:
        raise ValueError(f"--check: fidelity is to a prompt that counts once; --strength must be 1, got {options.strength}")

    def between(i: int, x: Any) -> Any:
        show(f"the prompt, layer {i + 1} of {layers}")
        return x

    began = time.perf_counter()
    try:
        with quiet():  # what overflows is an error of its own
            converted = convert(model, prompt, **how, by=by, between=between)
            seconds, M = time.perf_counter() - began, converted.prompts[-1]
            if options.check:
                text = held_out(model, M, 16, options.seed)
            if options.check and measured:
                found = fidelity(model, converted, prompt, text, form="sum" if model.config.recurrent else None, mask=options.mask)
            elif options.check:
                definition = linear_attention if M <= 64 else linear_attention_quadratic  # which sums over all positions too, and is faster
                found = check_conversion(model, converted, prompt, text, **how, definition=definition, progress=show)
    except ArithmeticError as error:  # a zero denominator or an overflow, in this model on this text
        raise ValueError(str(error)) from error
    show("")
    sizes = memory(converted)
    print(f"converted {M} tokens into biases of {layers} layers in {system.name}: the input is read from position {converted.position} on")
    cache = f"; a KV cache of {sum(converted.prompts)} tokens has {sizes['kv_cache']:,}" if "kv_cache" in sizes else ""
    print(f"{sizes['biases']:,} bytes of biases{cache}; {seconds:.2f} s")
    status = 0
    if isinstance(found, Fidelity):
        print(f"against the prompted model, on {text.shape[-1]} tokens of seed {options.seed}: {found}")
        status = 1 if found.worse_than_dropped else 0
    elif found:
        tokens = text.shape[-1 if model.config.vocabulary else -2]
        print(f"against the prompted model by {definition.__name__}, on {tokens} tokens of seed {options.seed}:\n{found}")
        status = {"EXCESS": 1, "VACUOUS": 2}.get(found.verdict, 0)
    if status == 0:
        save(out, converted, biases_only=not options.whole)
    print(f"{options.out} is {'not written' if status else 'written'}", flush=True)
    if target:
        done = {
            "model": options.model, "digest": digest(model), "out": None if status else options.out, "whole": options.whole,
            "prompt": M, "prompts": converted.prompts, "position": converted.position, **how, "strength": options.strength,
            "bytes": sizes, "seconds": seconds, "seed": options.seed, "check": found and found.report(), "version": __version__,
        }  # fmt: skip
        write_json(target, done)
    return status


def read_strength(text: str, exact: bool) -> Any:
    """A number: an integer if it is one, a fraction where numbers are exact, else a float."""
    try:
        number = Fraction(text) if exact or "/" in text else float(text)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"--strength: must be a number such as 2, 0.5 or 1/3, got {text!r}") from None
    return int(number) if number % 1 == 0 else number if exact else float(number)


def read_compression(options: argparse.Namespace, layers: int) -> Best | Compression | None:
    """How a prompt becomes a memory, from --by, --features, --budget and --error."""
    given = [name for name in ("features", "budget", "error") if getattr(options, name) is not None]
    allowed = ["budget", "error"] if options.by == "best" else [] if options.by in (None, "cache", "taylor") else ["features"]
    if set(given) - set(allowed) or (allowed and len(given) != 1):
        said = f"--by {options.by}" if options.by else "a KV cache (no --by)"
        wanted = " or ".join(f"--{name}" for name in allowed) or "no size"
        raise ValueError(f"--by: {said} takes {wanted}, got {' '.join(f'--{name}' for name in given) or 'none'}")
    if options.by is None:
        return None
    if options.by == "best":
        return Best(budget=None if options.budget is None else options.budget // layers, error=options.error, seed=options.seed)
    return Compression(options.by, options.features, options.seed)
