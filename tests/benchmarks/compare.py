"""Did a change make the library slower? Two checkouts side by side, in one run.

    python tests/benchmarks/compare.py OLD NEW [--rounds N] [--processes N] [--only WORD ...]

OLD and NEW are folders that hold the package `refimpl`. Each has a worker process of its own, with
one BLAS thread, which measures CPU time. The two take turns, in an order that alternates, so that a
busy machine slows both; and fresh workers start several times over, since memory lies otherwise in
each. A ratio is old/new: above 1 the new one is faster. Trust the minima; the medians show what the
machine adds. A note says where the two do not give the same numbers, bit for bit.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
from clock import Worker, progress, serve

ENOUGH = 0.01  # seconds that one measurement should take: short runs are repeated


def attention(form, dtype, heads, n, width):
    import refimpl as ri

    q, k, v = 1 / 8 + np.random.default_rng(0).random((3, heads, n, width), dtype=dtype)
    return lambda: getattr(ri, form)(q, k, v)[0]


def product(system, *parameters, size):
    import refimpl.systems

    numbers = getattr(refimpl.systems, system)
    numbers = numbers(*parameters) if parameters else numbers
    a, b = (numbers.random((size, size), seed) for seed in (0, 1))
    return lambda: a @ b


def model(part):
    from refimpl import Config, Float, convert, random_model

    sizes = {"layers": 2, "width": 64, "heads": 4, "d": 16, "m": 16, "hidden": 128, "vocabulary": 64}
    base, text = random_model(Float(), Config(**sizes), seed=0), list(range(64))
    converted = convert(base, text)
    return {"forward": lambda: converted(text[:16]), "convert": lambda: convert(base, text)(text[:1])}[part]


CONTENDERS = {
    **{
        f"{form} attention, {dtype}, {n} tokens": partial(attention, f"linear_attention_{form}", dtype, 8, n, 64)
        for dtype in ("float64", "float32")
        for form, n in (("chunked", 2048), ("quadratic", 512), ("recurrent", 512))
    },
    "chunked attention, float64, 8 tokens": partial(attention, "linear_attention_chunked", "float64", 1, 8, 4),
    **{
        f"GF(2**{b} - {c}), 256 × 256": partial(product, "GF", 2**b - c, size=256)
        for b, c in ((21, 9), (31, 1), (61, 1))
    },
    **{f"MP({digits}), 32 × 32": partial(product, "MP", digits, size=32) for digits in (30, 50, 300)},
    "QQ, 16 × 16": partial(product, "QQ", size=16),
    "convert a prompt of 64 tokens": partial(model, "convert"),
    "converted model, 16 tokens": partial(model, "forward"),
}
IMPORT = "import refimpl"


def digest(name):
    """A contender that returns a digest of its result."""
    run = CONTENDERS[name]()

    def digested():
        result = run()
        return hashlib.sha256(
            result.tobytes() if hasattr(result, "tobytes") else repr(result.tolist()).encode()
        ).hexdigest()

    return digested


def clock(name, number):
    """A contender that returns the CPU time of one run, a mean over so many."""
    run = CONTENDERS[name]()

    def timed():
        began = time.process_time()
        for _ in range(number):
            run()
        return (time.process_time() - began) / number

    return timed


def environment(checkout):
    return os.environ | {"PYTHONPATH": str(checkout)}


def seconds_to_import(checkout):
    """The CPU time of the import in a fresh process, whose path does not begin here (-P)."""
    command = "import time; t = time.process_time(); import refimpl; refimpl.QQ; print(time.process_time() - t)"
    ran = subprocess.run(
        [sys.executable, "-P", "-c", command], env=environment(checkout), check=True, capture_output=True
    )
    return float(ran.stdout)


def answer(worker, *request):
    value, why = worker.ask(*request)
    if why:
        raise SystemExit(f"{request}: {why}")
    return value


def repetitions(worker, name):
    """How often to run a contender for one measurement."""
    answer(worker, "make", name, "clock", {"name": name, "number": 1})
    return max(1, round(ENOUGH / min(answer(worker, "tell", name) for _ in range(3))))


def compare(checkouts, names, rounds, processes):
    """{name: ([seconds of old], [seconds of new], equal results)}"""
    found, numbers = {name: ([], [], True) for name in names}, {}
    for process in range(processes):
        with ExitStack() as stack:
            workers = [Worker(1, environment(checkout)) for checkout in checkouts]
            for worker in workers:
                stack.callback(worker.close)
            runs = {}
            for name in names:
                if name == IMPORT:
                    runs[name] = [partial(seconds_to_import, checkout) for checkout in checkouts]
                    continue
                numbers[name] = numbers.get(name) or repetitions(workers[0], name)
                results = set()
                for worker in workers:
                    answer(worker, "make", name, "digest", {"name": name})
                    results.add(answer(worker, "tell", name))
                    answer(worker, "make", name, "clock", {"name": name, "number": numbers[name]})
                found[name] = (*found[name][:2], found[name][2] and len(results) == 1)
                runs[name] = [partial(answer, worker, "tell", name) for worker in workers]
            for i in range(rounds):
                for name, run in runs.items():
                    progress(f"process {process + 1} of {processes}, round {i + 1} of {rounds}: {name}")
                    for side in (0, 1) if i % 2 else (1, 0):
                        found[name][side].append(run[side]())
    progress("")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--rounds", type=int, default=20, help="in each process (20)")
    parser.add_argument("--processes", type=int, default=3, help="pairs of workers, one after the other (3)")
    parser.add_argument("--only", nargs="+", default=[""], help="contenders whose names contain one of these words")
    options = parser.parse_args()
    checkouts = [path.resolve() for path in (options.old, options.new)]
    for path in checkouts:
        if not (path / "refimpl" / "__init__.py").is_file():
            parser.error(f"{path} must be a folder that holds the package refimpl")
    names = [name for name in (*CONTENDERS, IMPORT) if any(word in name for word in options.only)]
    if not names or options.rounds < 1 or options.processes < 1:
        parser.error(
            f"--only must match a contender, --rounds and --processes be ≥ 1; there are {[*CONTENDERS, IMPORT]}"
        )
    worst = {"minima": (float("inf"), ""), "medians": (float("inf"), "")}
    print(f"{'':44} {'old, ms':>10} {'new, ms':>10} {'old/new':>9} {'of medians':>11}")
    for name, (old, new, equal) in compare(checkouts, names, options.rounds, options.processes).items():
        ratios = {"minima": min(old) / min(new), "medians": statistics.median(old) / statistics.median(new)}
        print(f"{name:44} {1e3 * min(old):10.3f} {1e3 * min(new):10.3f}", end=" ")
        print(f"{ratios['minima']:9.3f} {ratios['medians']:11.3f}{'' if equal else '   DIFFERENT NUMBERS'}")
        worst = {kind: min(worst[kind], (ratio, name)) for kind, ratio in ratios.items()}
    for kind, (ratio, name) in worst.items():
        print(f"worst ratio of {kind}: {ratio:.3f}, {name}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--worker"]:
        serve({"digest": digest, "clock": clock}, None)
    else:
        main()
