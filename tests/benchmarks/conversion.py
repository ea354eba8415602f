"""What conversion costs, and what it saves.

    python tests/benchmarks/conversion.py [--quick] [--json FILE]

Converting should cost one forward pass over the prompt (without the logits, which it does not
need), and reading an input from the biases should not depend on how long the prompt was. Beside it
stand the two other ways to answer a text after a prompt: reading the prompt again, and a KV cache
under softmax attention (random keys and values, all else the same model; ours copies the cache once
to append to it). Contenders take turns within one run; targets are ratios of medians (those of
minima show what a busy machine adds).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np
from clock import measure, seconds

import refimpl as ri
from refimpl.model.transformer import Pass, check_text, embed, run_layers

TARGET = 1.2
DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class Sizes:
    layers: int = 4
    width: int = 256
    heads: int = 4
    vocabulary: int = 1000
    short: int = 1024
    long: int = 16384
    text: int = 64


def draw(system, sizes):
    """A model with RoPE after φ = elu+1, and its two prompts and a text as token ids."""
    d = sizes.width // sizes.heads
    config = ri.Config(
        layers=sizes.layers,
        width=sizes.width,
        heads=sizes.heads,
        d=d,
        m=d,
        phi="elu+1",
        rope=ri.Rotary(width=d),
        hidden=4 * sizes.width,
        vocabulary=sizes.vocabulary,
    )
    ids = np.random.default_rng(0).integers(0, sizes.vocabulary, sizes.long + sizes.text)
    return ri.random_model(system, config, seed=0), {M: ids[:M] for M in (sizes.short, sizes.long)}, ids[sizes.long :]


def random_caches(system, config, M):
    """For each layer a KV cache of M tokens, in the shapes of the model."""
    keep = np.ones((1, M), dtype=bool)
    k, v = (lambda i, width=width: system.random((config.heads, 1, M, width), i) for width in (config.d, config.m))
    return [ri.KVCache(k(2 * i), v(2 * i + 1), keep, M) for i in range(config.layers)]


def by_softmax(caches, rope):
    """A form of attention for `transformer`: softmax, each layer from its own cache."""
    each, rope = itertools.cycle(caches), replace(rope, placement="before")

    def attention(q, k, v, kernel, *, state, mask):
        return ri.softmax_attention_shifted(q, k, v, rope=rope, cache=next(each))[0], state

    return attention


def forward_pass(model, prompt):
    """The layers alone, with no logits: what conversion cannot do without."""
    text = check_text(model, prompt, "forward_pass", "prompt")
    return run_layers(model, embed(model, text), Pass(ri.linear_attention_chunked))


def compare(dtype, sizes, rounds):
    """The table of one dtype, as rows and as targets."""
    system = ri.Float("numpy", dtype)
    model, prompts, text = draw(system, sizes)
    converted = {M: ri.convert(model, prompt) for M, prompt in prompts.items()}
    caches = {M: random_caches(system, model.config, M) for M in prompts}
    whole, alone = {}, {}
    for M, prompt in prompts.items():
        whole["forward pass over the prompt", M] = partial(seconds, forward_pass, model, prompt)
        whole["convert the prompt", M] = partial(seconds, ri.convert, model, prompt)
        whole["text, prompt read again", M] = partial(seconds, model, np.concat([prompt, text]))
        alone["text, from biases", M] = partial(seconds, converted[M], text)
        alone["text, from a KV cache", M] = partial(
            seconds, converted[M], text, form=by_softmax(caches[M], model.kernel.rope)
        )
    times = measure(whole, rounds) | measure(alone, 5 * rounds)
    size = {("text, from biases", M): sum(b.S.nbytes + b.z.nbytes for b in converted[M].biases) for M in prompts}
    size |= {("text, from a KV cache", M): sum(c.k.nbytes + c.v.nbytes for c in caches[M]) for M in prompts}
    rows = [
        {"dtype": dtype, "what": what, "M": M, "min": least, "median": middle, "bytes": size.get((what, M), 0)}
        for (what, M), (least, middle) in sorted(times.items(), key=lambda row: row[0][1])
    ]

    def target(what, over, under):
        of_minima, ratio = (a / b for a, b in zip(times[over], times[under], strict=True))
        return {
            "dtype": dtype,
            "what": what,
            "ratio": ratio,
            "of minima": of_minima,
            "at most": TARGET,
            "met": ratio <= TARGET,
        }

    targets = [
        target(f"convert / forward pass, M = {M}", ("convert the prompt", M), ("forward pass over the prompt", M))
        for M in prompts
    ]
    at = [("text, from biases", M) for M in (sizes.long, sizes.short)]
    return rows, [*targets, target(f"text from biases, M = {sizes.long} / M = {sizes.short}", *at)]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="float32 only, and fewer rounds")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    for name, value in asdict(Sizes()).items():
        parser.add_argument(f"--{name}", type=int, default=value, metavar="N")
    options = vars(parser.parse_args(argv))
    quick, file, sizes = options.pop("quick"), options.pop("json"), Sizes(**options)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, NumPy {np.__version__}"
    print(", ".join(f"{name} {value}" for name, value in options.items()), f"({machine})", sep="  ")
    found = {"machine": machine, "sizes": options, "rows": [], "targets": []}
    print(f"\n{'dtype':8} {'M':>6}  {'':28} {'min ms':>9} {'median ms':>9} {'kept, bytes':>12}")
    for dtype in DTYPES[: 1 if quick else None]:
        rows, targets = compare(dtype, sizes, 3 if quick else 5)
        found["rows"] += rows
        found["targets"] += targets
        for r in rows:
            print(f"{r['dtype']:8} {r['M']:6}  {r['what']:28} {1e3 * r['min']:9.1f}", end=" ")
            print(f"{1e3 * r['median']:9.1f} {r['bytes']:12,}")
    print()
    for t in found["targets"]:
        ratios = f"{t['ratio']:.2f} (of minima {t['of minima']:.2f})"
        print(f"{t['dtype']:8} {t['what']}: {ratios}, target ≤ {t['at most']}: {'met' if t['met'] else 'MISSED'}")
    if file:
        with open(file, "w", encoding="utf-8") as f:
            json.dump(found, f, indent=2)


if __name__ == "__main__":
    main()
