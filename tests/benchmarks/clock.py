"""How the benchmarks measure: contenders take turns, each library in its own process."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial

import numpy as np

THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def seconds(run, *arguments, **options):
    began = time.perf_counter()
    run(*arguments, **options)
    return time.perf_counter() - began


def measure(contenders, rounds):
    """{name: (min, median) in seconds}, by contenders that take turns; each returns its seconds.

    The first round does not count.
    """
    took = {name: [] for name in contenders}
    for i in range(1 + rounds):
        for name, run in contenders.items():
            progress(f"{name}: round {i} of {rounds}")
            took[name].append(run())
    progress("")
    return {name: (min(each[1:]), statistics.median(each[1:])) for name, each in took.items()}


def progress(text):
    """One line that overwrites itself, for whoever sits before a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


class Worker:
    """The same script as a server on stdin and stdout, with its own libraries and environment."""

    def __init__(self, threads, environment=os.environ):
        command = [sys.executable, *(f"-W{option}" for option in sys.warnoptions), sys.argv[0], "--worker"]
        environment = environment | dict.fromkeys(THREADS, str(threads))
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def ask(self, verb, *request):
        """The answer, or why there is none, in words."""
        print(json.dumps([verb, *request]), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a worker ended on {verb} {request}")
        return json.loads(line)

    def time(self, key):
        took, why = self.ask("time", key)
        if why:
            raise SystemExit(f"{key} ran once and not again: {why}")
        return took

    def close(self):
        self.process.communicate()


def serve(makers, plain):
    """Answer requests until stdin ends: [value, ""] or [null, why not].

    make, key, maker, options : prepare a contender, makers[maker](**options) -> run
    save, key, file : run it and save the result, as `plain` numbers
    time, key : run it and answer its seconds    tell, key : run it and answer its result
    forget : drop all contenders
    """
    made, out = {}, sys.stdout

    def make(key, maker, options):
        made[key] = makers[maker](**options)

    verbs = {
        "make": make,
        "save": lambda key, file: np.save(file, plain(made[key]()), allow_pickle=False),
        "time": lambda key: seconds(made[key]),
        "tell": lambda key: made[key](),
        "forget": made.clear,
    }
    with contextlib.redirect_stdout(sys.stderr):
        for line in sys.stdin:
            verb, *request = json.loads(line)
            try:
                answer = [verbs[verb](*request), ""]
            except ImportError:
                answer = [None, "not installed"]
            except Exception as error:
                answer = [None, f"{type(error).__name__}: {error}"]
            print(json.dumps(answer), file=out, flush=True)


class Bench:
    """The measurements: rows of times, and figures, mostly ratios of times, many with a target."""

    def __init__(self):
        self.group, self.rows, self.figures, self.workers = "", [], [], {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for worker in self.workers.values():
            worker.close()

    def worker(self, library, threads):
        if (library, threads) not in self.workers:
            self.workers[library, threads] = Worker(threads)
        return self.workers[library, threads]

    def tell(self, name, threads, maker, **options):
        """What a contender gives, where that is what counts and not its time; and why not."""
        progress(name)
        worker = self.worker("numpy", threads)
        value, why = worker.ask("make", name, maker, options)
        if not why:
            value, why = worker.ask("tell", name)
        worker.ask("forget")
        progress("")
        return value, why

    def contest(self, title, contenders, judge, rounds, yardsticks=()):
        """{name: (min, median)} of contenders that are installed and pass `judge`; all become rows.

        contenders : {name: (library, threads, maker, options)}; a process for each library and
                     number of threads
        judge(name, result) -> its error, and the error allowed; not called for yardsticks, which
                     compute something else
        """
        fit = {}
        rows = {
            name: {"group": self.group, "case": title, "what": name, "threads": c[1], "why not": ""}
            for name, c in contenders.items()
        }
        for name, (library, threads, maker, options) in contenders.items():
            progress(f"{title}: {name}")
            worker, row = self.worker(library, threads), rows[name]
            _, row["why not"] = worker.ask("make", name, maker, options)
            if not row["why not"] and name not in yardsticks:
                self.admit(worker, row, judge)
            if not row["why not"]:
                fit[name] = partial(worker.time, name)
        times = measure(fit, rounds)
        if not self.rows:
            print(f"{'':37} {'':20} {'threads':>7} {'min ms':>11} {'median ms':>11}")
        for name, row in rows.items():
            row["min"], row["median"] = times.get(name, (None, None))
            figures = f"{1e3 * row['min']:11.2f} {1e3 * row['median']:11.2f}" if name in times else row["why not"]
            print(f"{title:37} {name:20} {row['threads']:7} {figures}", flush=True)
        self.rows += rows.values()
        for worker in self.workers.values():
            worker.ask("forget")
        return times

    def admit(self, worker, row, judge):
        """Run a contender once and have its result judged."""
        with tempfile.TemporaryDirectory() as folder:
            file = f"{folder}/result.npy"
            _, row["why not"] = worker.ask("save", row["what"], file)
            if not row["why not"]:
                row["off"], row["allowed"] = map(float, judge(row["what"], np.load(file)))
                if not row["off"] <= row["allowed"]:
                    row["why not"] = f"REFUSED: off by {row['off']:.1e}, allowed {row['allowed']:.1e}"

    def figure(self, what, of_minima, of_medians=None, *, at_least=None, at_most=None, note=""):
        """A figure and its target; None where there is none, and the note says why."""
        met = None
        if of_minima is not None and (at_least, at_most) != (None, None):
            met = bool(of_minima >= at_least if at_most is None else of_minima <= at_most)
        both = [None if x is None else float(x) for x in (of_minima, of_minima if of_medians is None else of_medians)]
        target = f"≥ {at_least:g}" if at_least is not None else f"≤ {at_most:g}" if at_most is not None else ""
        found = {
            "group": self.group,
            "what": what,
            "of minima": both[0],
            "of medians": both[1],
            "target": target,
            "met": met,
            "note": note,
        }
        self.figures.append(found)

    def ratio(self, what, times, over, under, *, factor=1, **target):
        """The figure times[over] / times[under], times a factor; one of them may be absent."""
        if over in times and under in times:
            return self.figure(
                what, *(factor * a / b for a, b in zip(times[over], times[under], strict=True)), **target
            )
        why = next(
            (row["why not"] for row in reversed(self.rows) if row["what"] in (over, under) and row["why not"]),
            "not measured",
        )
        return self.figure(what, None, note=why, **target)

    def print_figures(self, title):
        print(f"\n{title:75} {'of minima':>10} {'of medians':>10} {'target':>7}")
        for f in self.figures:
            both = (f"{'' if f[x] is None else format(f[x], '.3g'):>10}" for x in ("of minima", "of medians"))
            verdict = {True: "met", False: "MISSED", None: ""}[f["met"]]
            print(" ".join((f"{f['what']:75}", *both, f"{f['target']:>7} {verdict:6} {f['note']}")).rstrip())
