"""`refimpl convert`: from a model and a prompt to a file of biases."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from ..attention.linear_attention import linear_attention, linear_attention_quadratic
from ..errors import choose
from ..files.checkpoint import digest, memory, save
from ..files.models import read_model
from ..files.safetensors import target_file
from ..model.transformer import Model
from ..packages import __version__
from ..prompt.compression import KINDS, Compression
from ..prompt.compression.best import Best
from ..prompt.conversion import convert
from ..prompt.fidelity import Fidelity, fidelity, rounding
from ..systems import system_of
from ..systems.floats import itemsize, quiet
from ..systems.formats import FORMATS
from ..verify.conversion_check import check_conversion, held_out
from .main import json_target, write_json
from .prompt import read_prompt, sources, tokenizer_for, with_baked

FAR = 10  # times the rounding error of the prompted model: on one text luck may make a few times as much


def run(options: argparse.Namespace, show: Callable[[str], None]) -> int:
    """Convert, check if asked to, and write what holds; the exit status."""
    out, target = target_file("--out", options.out), json_target(options.json)
    taken = sources(options)
    if target in taken:
        raise ValueError(f"--json: {options.json} must be a file of its own, not one that is read")
    if out == target or out in taken - {
        Path(os.path.realpath(path)) for path in (options.whole and options.model, options.baked) if path
    }:
        raise ValueError(f"--out: {options.out} must be a file of its own, neither MODEL nor that of --json")
    model = read_model(options.model, dtype=options.dtype, library=options.backend, device=options.device)
    tokenizer = tokenizer_for(model, options.tokenizer)
    model = with_baked(model, options.baked)
    system, layers = system_of(model.like), model.config.layers
    found: Any = None
    exact = None
    prompt = read_prompt(options.prompt, model, tokenizer)
    strength = read_strength(options.strength, system.exact)
    restart = not (options.keep_positions or model.config.table)  # absolute positions cannot begin anew
    how = {"mask": options.mask, "restart": restart, "strength": strength, "chunk": options.chunk}
    by = read_compression(options, model)
    measured = model.config.softmax or model.config.recurrent
    if options.check and measured and strength != 1:
        raise ValueError(
            f"--check: fidelity is to a prompt that counts once; --strength must be 1, got {options.strength}"
        )

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
                form = "sum" if model.config.recurrent else None
                found = fidelity(model, converted, prompt, text, form=form, mask=options.mask)
                if by is None and options.mask == "causal" and np.ndim(prompt) == 1:
                    exact = rounding(model, converted, prompt, text, form=form)
            elif options.check:
                definition = (
                    linear_attention if M <= 64 else linear_attention_quadratic
                )  # which sums over all positions too, and is faster
                found = check_conversion(model, converted, prompt, text, **how, definition=definition, progress=show)
    except ArithmeticError as error:  # a zero denominator or an overflow, in this model on this text
        raise ValueError(str(error)) from error
    show("")
    sizes = memory(converted)
    position = "" if model.config.recurrent else f": the input is read from position {converted.position} on"
    print(f"converted {M} token{'s' * (M != 1)} into biases of {layers} layers in {system.name}{position}")
    cache = f"; a KV cache of {sum(converted.prompts)} tokens has {sizes['kv_cache']:,}" if "kv_cache" in sizes else ""
    print(f"{sizes['biases']:,} bytes of biases{cache}; {seconds:.2f} s")
    chosen = [b.memories[-1].about for b in converted.biases or () if by and b.memories[-1].about]
    for i, about in enumerate(chosen):
        print(f"layer {i:3}  {about}")
    status = 0
    if isinstance(found, Fidelity):
        print(f"against the prompted model, on {text.shape[-1]} tokens of seed {options.seed}: {found}")
        status = 1 if found.worse_than_dropped else 0
        if exact:
            off = f"converted {exact[0]:.2g} off, prompted {exact[1]:.2g}"
            print(f"against wider floats: {off}; it is exact, so {FAR} times as much would not hold")
            status = 1 if exact[0] > FAR * max(exact[1], 2.0 ** -FORMATS[system.kind][0]) else status  # type: ignore[attr-defined]
    elif found:
        tokens = text.shape[-1 if model.config.vocabulary else -2]
        print(
            f"against the prompted model by {definition.__name__}, on {tokens} tokens of seed {options.seed}:\n{found}"
        )
        status = {"EXCESS": 1, "VACUOUS": 2}.get(found.verdict, 0)
    if status == 0:
        save(out, converted, biases_only=not options.whole)
    print(f"{options.out} is {'not written' if status else 'written'}", flush=True)
    if target:
        done = {
            "model": options.model,
            "digest": digest(model),
            "out": None if status else options.out,
            "whole": options.whole,
            "prompt": M,
            "prompts": converted.prompts,
            "position": converted.position,
            **how,
            "strength": options.strength,
            "by": by and str(by),
            "chosen": chosen,
            "dtype": system.name,
            "tokenizer": options.tokenizer,
            "bytes": sizes,
            "seconds": seconds,
            "seed": options.seed,
            "check": found and found.report(),
            "version": __version__,
        }
        write_json(target, done)
    return status


def read_strength(text: str, exact: bool) -> Any:
    """A number: an integer if it is one, a fraction where numbers are exact, else a float."""
    try:
        number = Fraction(text) if exact or "/" in text else float(text)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"--strength: must be a number such as 2, 0.5 or 1/3, got {text!r}") from None
    return int(number) if number % 1 == 0 else number if exact else float(number)


def read_compression(options: argparse.Namespace, model: Model) -> Best | Compression | None:
    """How a prompt becomes a memory, from --by, --features, --budget and --error."""
    if options.by is not None:
        choose("convert", "--by", options.by, (*KINDS, "best"))
    given = [name for name in ("features", "budget", "error") if getattr(options, name) is not None]
    allowed = (
        ["budget", "error"] if options.by == "best" else [] if options.by in (None, "cache", "taylor") else ["features"]
    )
    if set(given) - set(allowed) or (allowed and len(given) != 1):
        said = f"--by {options.by}" if options.by else "a KV cache, without --by,"
        wanted = {0: "no size", 1: "--features", 2: "either --budget or --error"}[len(allowed)]
        raise ValueError(f"convert: {said} takes {wanted}, got {' and '.join(f'--{name}' for name in given) or 'none'}")
    if options.by is None:
        return None
    if options.by == "best":
        c, size = model.config, itemsize(model.like)
        least = c.layers * (16 + size * c.kv_heads * (c.m + 2))  # one random feature in each head
        if options.budget is not None and options.budget < least:
            raise ValueError(
                f"--budget: must be at least {least} bytes, for one feature in each head, got {options.budget}"
            )
        return Best(
            budget=None if options.budget is None else options.budget // c.layers,
            error=options.error,
            seed=options.seed,
        )
    return Compression(options.by, options.features, options.seed)
