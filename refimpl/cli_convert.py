"""`refimpl convert`: from a saved model and a prompt to a file of biases."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from . import __version__
from .checkpoint import digest, load, memory, save
from .cli import json_target, write_json
from .conversion import convert
from .files import target_file
from .linear_attention import linear_attention, linear_attention_quadratic
from .systems import Float, system_of
from .transformer import Model
from .verify.conversion_check import check_conversion, held_out


def run(options: argparse.Namespace, show: Callable[[str], None]) -> int:
    """Convert, check if asked to, and write what holds; the exit status."""
    out, target = target_file("--out", options.out), json_target(options.json)
    if out == target or (out == Path(os.path.realpath(options.model)) and not options.whole):
        raise ValueError(f"--out: {options.out} must be a file of its own, neither MODEL nor that of --json")
    model = load(options.model, library=options.backend, device=options.device)
    model = load(options.baked, model) if options.baked else model
    system, layers, found = system_of(model.like), model.config.layers, None
    prompt, strength = read_prompt(options.prompt, model), read_strength(options.strength, system.exact)
    how = {"mask": options.mask, "restart": not options.keep_positions, "strength": strength, "chunk": options.chunk}

    def between(i: int, x: Any) -> Any:
        show(f"the prompt, layer {i + 1} of {layers}")
        return x

    began = time.perf_counter()
    try:
        converted = convert(model, prompt, **how, between=between)
        seconds, M = time.perf_counter() - began, converted.prompts[-1]
        if options.check:
            text = held_out(model, M, 16, options.seed)
            definition = linear_attention if M <= 64 else linear_attention_quadratic  # which sums over all positions too, and is faster
            found = check_conversion(model, converted, prompt, text, **how, definition=definition, progress=show)
    except ArithmeticError as error:  # a zero denominator or an overflow, in this model on this text
        raise ValueError(str(error)) from error
    show("")
    sizes = memory(converted)
    print(f"converted {M} tokens into biases of {layers} layers in {system.name}: the input is read from position {converted.position} on")
    print(f"{sizes['biases']:,} bytes of biases; a KV cache of {sum(converted.prompts)} tokens has {sizes['kv_cache']:,}; {seconds:.2f} s")
    status = 0
    if found:
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


def read_prompt(words: str, model: Model) -> Any:
    """Token ids from words, or from a text file; ids or vectors from a .npy file."""
    source, text = "--prompt", words
    if words.startswith("@"):
        source, path = f"--prompt {words}", Path(words[1:])
        data = path.read_bytes()
        if data.startswith(b"\x93NUMPY"):
            try:
                x = np.array(np.load(path, mmap_mode="r", allow_pickle=False))  # mapped: a lie about its size takes no memory
            except ValueError as error:
                raise ValueError(f"{source}: must be a .npy file of numbers: {error}") from error
            system = system_of(model.like)
            if x.dtype.kind in "iu":
                return x if model.config.vocabulary else system.convert(x)
            kind = {"bfloat16": "float32"}.get(system.kind, system.kind) if isinstance(system, Float) else "int64"
            if x.dtype.name != kind:
                raise ValueError(f"{source}: vectors for a model in {system.name} must be {kind}, got {x.dtype}")
            return system.place(x)  # type: ignore[attr-defined]
        text = data.decode(errors="replace")
    ids = text.replace(",", " ").split()
    wrong = [word for word in ids if not word.removeprefix("-").isdecimal() or len(word) > 20]
    if wrong or not ids:
        raise ValueError(f"{source}: must be token ids such as '3 1 4', got {(wrong or [''])[0][:40]!r}")
    if not model.config.vocabulary:
        raise ValueError(f"{source}: MODEL has no vocabulary; pass vectors, as @FILE of a .npy file")
    return [int(word) for word in ids]


def read_strength(text: str, exact: bool) -> Any:
    """A number: an integer if it is one, a fraction where numbers are exact, else a float."""
    try:
        number = Fraction(text) if exact or "/" in text else float(text)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"--strength: must be a number such as 2, 0.5 or 1/3, got {text!r}") from None
    return int(number) if number % 1 == 0 else number if exact else float(number)
