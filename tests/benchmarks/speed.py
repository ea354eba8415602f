"""How fast, and against whom: one table of ratios.

    python tests/benchmarks/speed.py [--quick] [--json FILE] [--only GROUP ...]

Five groups: the chunked form against matrix products, against our recurrent form and against other
people's code; GF(p) products against float64 ones and flint; products of many digits against
mpmath's own; a whole model verified exactly; generation at the shape of GPT-2 small against
transformers, in the same dtype. Contenders take turns within one run, NumPy's in one
process and torch's in another, with one BLAS thread unless it says two (the model has two); each
must first give the right numbers. Targets are ratios of minima (those of medians show what a busy
machine adds), stated for the full sizes. A peer is whatever of its name can be imported:
fast-transformers with its C++ kernel, flash-linear-attention, python-flint, transformers.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import statistics
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
from clock import Bench, serve
from contenders import EPSILON, LEAST, MAKERS, chunk_of, inputs, many_digits, plain, precision, residues

import refimpl as ri
from refimpl.verify.theorems import large

# and the target for the time of a product over dgemm's
PRIMES = {"2²¹−9": (2**21 - 9, 1.2), "2³¹−1": (2**31 - 1, 4.5), "2⁶¹−1": (2**61 - 1, 16)}
DIGITS = (30, 50, 100, 300)

SIZES = {
    "rounds": 7,
    "heads": 8,
    "width": 64,
    "short": 1024,
    "middle": 4096,
    "long": 16384,
    "gemm": 1024,
    "field": 512,
    "digits": 64,
    "large": 512,
    "layers": 12,
    "model_heads": 12,
    "model_width": 768,
    "prompt": 1024,
    "text": 64,
    "vocabulary": 50257,
    "past": 512,
    "tokens": 16,
}
QUICK = SIZES | {
    "rounds": 3,
    "short": 512,
    "middle": 1024,
    "long": 4096,
    "gemm": 512,
    "field": 256,
    "digits": 24,
    "large": 48,
    "layers": 2,
    "model_heads": 2,
    "model_width": 64,
    "prompt": 64,
    "text": 8,
    "vocabulary": 500,
    "past": 64,
    "tokens": 8,
}


def attention(bench, sizes):
    lengths, times = (sizes.short, sizes.middle, sizes.long), {}
    for dtype in ("float64", "float32"):
        for n in lengths:
            times[n] = attention_contest(bench, sizes, dtype, n)
        for n in lengths[1:]:
            attention_targets(bench, sizes, dtype, n, times[n])
        growth = {n: times[n]["chunked"] for n in lengths if "chunked" in times[n]}
        bench.ratio(
            f"{dtype}: time at {sizes.long} tokens / at {sizes.middle}", growth, sizes.long, sizes.middle, at_most=4.5
        )
        attention_memory(bench, sizes, dtype)


def attention_contest(bench, sizes, dtype, n):
    shape, want, limit = {"dtype": dtype, "heads": sizes.heads, "n": n, "width": sizes.width}, [], {}
    contenders = {
        "recurrent": ("numpy", 1, "recurrent", shape),
        "chunked": ("numpy", 1, "chunked", shape),
        "gemm": ("numpy", 1, "gemm", {"dtype": dtype, "size": sizes.gemm}),
        "its matrix products": ("numpy", 1, "its matrix products", shape),
        "bare loop, NumPy": ("numpy", 1, "bare loop", shape | {"library": "numpy"}),
        "bare loop, torch": ("torch", 1, "bare loop", shape | {"library": "torch"}),
        "fla naive chunk": ("torch", 1, "fla naive chunk", shape),
    }
    if dtype == "float32":  # its kernel knows no other
        contenders["fast-transformers"] = ("torch", 1, "fast-transformers", shape)

    def judge(name, got):
        """The error against float64, and the error allowed.

        Sums of n + width positive numbers have a bound in any order. In float32 it is so wide that
        float16 would pass, so nobody may be off by sixteen times the error of our recurrent form,
        which comes first.
        """
        want[:] = want or [ri.linear_attention_recurrent(*inputs(**shape).astype(np.float64))[0]]
        k = 4 * (n + sizes.width + 4) * float(np.finfo(dtype).eps) / 2
        off = np.max(np.abs(got / want[0] - 1)) if got.shape == want[0].shape else np.inf
        limit.setdefault(dtype, min(k / (1 - k), 16 * off if dtype == "float32" else np.inf))
        return off, limit[dtype] + EPSILON.get(name, 0) / (sizes.width * LEAST**2)

    times = bench.contest(
        f"{dtype}, n = {n}", contenders, judge, sizes.rounds, yardsticks=("gemm", "its matrix products")
    )
    twice = {f"chunked, {word}": ("numpy", i, "chunked", shape) for i, word in ((1, "one thread"), (2, "two threads"))}
    return times | bench.contest(f"{dtype}, n = {n}", twice, judge, sizes.rounds)


def attention_targets(bench, sizes, dtype, n, times):
    def faster(what, other, at_least=None, factor=1):
        bench.ratio(f"{dtype}, n = {n}: {what}", times, other, "chunked", factor=factor, at_least=at_least)

    float64, chunk = dtype == "float64", chunk_of(dtype, sizes.heads, sizes.width)
    share = (
        4 * sizes.heads * n * sizes.width * (chunk + sizes.width) / (2 * sizes.gemm**3)
    )  # flops of its products / of gemm
    faster(f"rate / of its matrix products alone, chunk {chunk}", "its matrix products", 0.8)
    faster("rate / of gemm", "gemm", (0.5 if float64 else 0.45) if n == sizes.middle else None, share)
    faster("speed / recurrent form", "recurrent", 8)
    faster("speed / same loop in torch", "bare loop, torch", 1 if float64 else 0.95)
    faster("speed / same loop in NumPy, without checks", "bare loop, NumPy")
    faster("speed / flash-linear-attention, naive chunks", "fla naive chunk", 4)
    if not float64:
        faster("speed / fast-transformers, C++", "fast-transformers", 1.3)
    bench.ratio(
        f"{dtype}, n = {n}: speed on two threads / on one", times, "chunked, one thread", "chunked, two threads"
    )


def attention_memory(bench, sizes, dtype):
    """NumPy's memory beyond inputs and output should not depend on the number of tokens.

    BLAS has buffers of its own, which do not count.
    """
    unit = sizes.heads * (chunk_of(dtype, sizes.heads, sizes.width) ** 2 + sizes.width**2) * np.dtype(dtype).itemsize
    for variant in ("plain", "elu+1, RoPE"):
        found = {}
        for n in (sizes.middle, sizes.long):
            what = f"{dtype}, n = {n}, {variant}: peak memory / heads (chunk² + r m)"
            found[n], why = bench.tell(
                what, 1, "peak", dtype=dtype, heads=sizes.heads, n=n, width=sizes.width, variant=variant
            )
            bench.figure(what, found[n] and found[n] / unit, note=why or f"{found[n]:,} bytes")
        if all(found.values()):
            more = found[sizes.long] / found[sizes.middle]
            bench.figure(
                f"{dtype}, {variant}: peak memory at {sizes.long} tokens / at {sizes.middle}", more, at_most=1.1
            )


def GF(bench, sizes):
    for threads in (1, 2):
        for name, (p, limit) in PRIMES.items():
            case, title = (
                {"p": p, "size": sizes.field},
                f"{sizes.field}³ modulo {name}, {threads} thread{'s' * (threads > 1)}",
            )
            a, b = residues(**case)
            want = a[:4].astype(object) @ b.astype(object) % p
            contenders = {
                "dgemm": ("numpy", threads, "gemm", {"dtype": "float64", "size": sizes.field}),
                "GF(p)": ("numpy", threads, "GF", case),
                "flint": ("numpy", threads, "flint", case),
            }

            def judge(_, got, p=p, want=want):
                """Wrong entries among four rows, which Python's integers know."""
                return np.count_nonzero(got[:4].astype(np.int64) % p != want), 0

            times = bench.contest(title, contenders, judge, 3 * sizes.rounds, yardsticks=("dgemm",))
            bench.ratio(f"{title}: time / dgemm's", times, "GF(p)", "dgemm", at_most=limit)
            bench.ratio(f"{title}: time / flint's", times, "GF(p)", "flint")


def multiprecision(bench, sizes):
    for digits in DIGITS:
        for scaled in (True, False):
            title = f"{digits} digits, {sizes.digits}³{', badly scaled' * scaled}"
            case = {"digits": digits, "size": sizes.digits, "scaled": scaled}
            times, errors = digits_contest(bench, title, ["mpf", "MP", "flint"], min(sizes.rounds, 7), **case)
            bench.ratio(f"{title}: speed / objects of mpf", times, "mpf", "MP", at_least=None if scaled else 60)
            bench.ratio(f"{title}: speed / by flint's integers", times, "flint", "MP")
            if errors.keys() >= {"MP", "mpf"}:
                worst = " against ".join(f"{float(max(errors[name].ravel())):.1e}" for name in ("MP", "mpf"))
                worse, note = (
                    np.count_nonzero(errors["MP"] > errors["mpf"]),
                    f"of {errors['MP'].size}; largest relative error {worst}",
                )
                bench.figure(f"{title}: entries further off than mpf's", worse, at_most=0, note=note)
        title = f"{digits} digits, {sizes.large}³"
        times, _ = digits_contest(bench, title, ["MP", "flint"], 1, digits=digits, size=sizes.large, scaled=False)
        bench.ratio(f"{title}: speed / by flint's integers", times, "flint", "MP")
        bench.ratio(f"{title}: seconds", times | {"one": (1, 1)}, "MP", "one", at_most=60)


def digits_contest(bench, title, names, rounds, **case):
    """Times, and the relative errors of the entries of a corner."""
    (a, b), u, corner, errors = many_digits(**case), Fraction(1, 2 ** precision(case["digits"]).prec), np.s_[:8, :8], {}
    exact, size = a[:8] @ b[:, :8], abs(a[:8]) @ abs(b[:, :8])

    def judge(name, got):
        """K products and their sum: off by K + 1 roundings of Σ |a| |b| at most."""
        off = abs(np.frompyfunc(Fraction, 1, 1)(got[corner]) - exact)
        errors[name] = off / abs(exact)
        return max((off / size).ravel()), (case["size"] + 1) * u

    contenders = {name: ("numpy", 1, {"flint": "flint integers"}.get(name, name), case) for name in names}
    return bench.contest(title, contenders, judge, rounds), errors


def model(bench, sizes):
    shape = {
        "layers": sizes.layers,
        "heads": sizes.model_heads,
        "width": sizes.model_width,
        "prompt": sizes.prompt,
        "text": sizes.text,
    }
    title = f"{sizes.layers} × {sizes.model_heads} heads × {sizes.model_width}, {sizes.prompt} + {sizes.text} tokens"
    for p, limit, rounds in ((ri.system(large.GPT2_SMALL.only).p, 15, min(sizes.rounds, 3)), (2**61 - 1, None, 1)):
        what = f"{title} modulo {p}: seconds"
        runs = [bench.tell(what, 2, "model", p=p, **shape) for _ in range(rounds)]
        took = [found["seconds"] for found, why in runs if not why]
        note = runs[-1][1] or "{verdict}, {redraws} redraws{notes}".format(**runs[-1][0])
        bench.figure(what, *((min(took), statistics.median(took)) if took else (None,)), at_most=limit, note=note)


def generation(bench, sizes):
    """Tokens read one by one behind a past, as text is generated, by a model of GPT-2's kind."""
    shape = {"layers": sizes.layers, "heads": sizes.model_heads, "width": sizes.model_width}
    shape |= {"vocabulary": sizes.vocabulary, "past": sizes.past, "tokens": sizes.tokens}
    for dtype in ("float32", "float64"):
        for threads in (1, 2):
            title, want = f"{dtype}, {sizes.tokens} tokens after {sizes.past}", []

            def judge(_, got, dtype=dtype, want=want):
                """The difference from our logits; half of the digits must agree."""
                want[:] = want or [got]
                return np.max(np.abs(got - want[0])) / np.max(np.abs(want[0])), np.finfo(dtype).eps ** 0.5

            contenders = {
                "generation": ("numpy", threads, "generation", shape | {"dtype": dtype}),
                "transformers": ("torch", threads, "transformers", shape | {"dtype": dtype}),
            }
            times = bench.contest(title, contenders, judge, sizes.rounds)
            what = f"{title}, {threads} thread{'s' * (threads > 1)}: speed / transformers"
            bench.ratio(what, times, "transformers", "generation", at_least=0.8)


GROUPS = {"attention": attention, "GF": GF, "multiprecision": multiprecision, "model": model, "generation": generation}


def versions():
    for name in (
        "numpy",
        "mpmath",
        "gmpy2",
        "python-flint",
        "torch",
        "transformers",
        "flash-linear-attention",
        "pytorch-fast-transformers",
    ):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            yield name, importlib.metadata.version(name)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="smaller sizes and fewer rounds")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    parser.add_argument(
        "--only", nargs="+", choices=GROUPS, default=list(GROUPS), metavar="GROUP", help=", ".join(GROUPS)
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    for name in SIZES:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N")
    options = vars(parser.parse_args())
    if options["worker"]:
        serve(MAKERS, plain)
        return
    sizes = (QUICK if options["quick"] else SIZES) | {
        name: options[name] for name in SIZES if options[name] is not None
    }
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {', '.join(map(' '.join, versions()))}"
    print(", ".join(f"{name} {value}" for name, value in sizes.items()), machine, "", sep="\n")
    with Bench() as bench:
        for group in options["only"]:
            bench.group = group
            GROUPS[group](bench, SimpleNamespace(**sizes))
    bench.print_figures("" if sizes == SIZES else "(targets are for the full sizes)")
    if options["json"]:
        with open(options["json"], "w", encoding="utf-8") as f:
            json.dump({"machine": machine, "sizes": sizes, "rows": bench.rows, "figures": bench.figures}, f, indent=2)


if __name__ == "__main__":
    main()
