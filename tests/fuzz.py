"""Fuzz every file format, certificates and the command line.

    python tests/fuzz.py --cases 100000 [--jobs 2] [--seed 0] [--only NAME]

A case is wrong if it ends in an exception that is not ours, or takes more than 1 GB or 2 s, which
are longer on a slow machine; then the exit status is 1. Case K of a kind of file is repeated by
--only NAME --case K.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.cli import test_cli_fuzz
from tests.helpers import fuzz

MEMORY = Path("/dev/shm")  # files in memory, where there is such a place
COMMANDS = "command line"


def work(task: tuple[int, int, int, int, str]) -> dict[str, fuzz.Tally]:
    """Every `jobs`-th case from `part` on, of each kind."""
    part, jobs, cases, seed, only = task
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as room:
        folder = Path(room)
        found = {name: kind for name, kind in fuzz.kinds(folder).items() if only in name}
        shares = {name: fuzz.fraction_of_cases(name) for name in found}
        if only in COMMANDS:
            shares[COMMANDS] = 5 * fuzz.fraction_of_cases(COMMANDS)
        tallies = {name: fuzz.Tally() for name in found}
        for name, kind in found.items():
            count = -int(-cases * shares[name] // sum(shares.values()))
            (folder / "case").mkdir(exist_ok=True)
            for number in range(part, count, jobs):
                tallies[name].add(fuzz.run_case(kind, name, number, seed, folder / "case"))
            for file in kind.files:
                (folder / "case" / file).unlink()
    if COMMANDS in shares:
        count = -int(-cases * shares[COMMANDS] // sum(shares.values()))
        tallies[COMMANDS] = test_cli_fuzz.tally(-(-count // jobs), seed * jobs + part)
    return tallies


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="kinds whose name has this")
    parser.add_argument("--case", type=int, help="one case alone")
    options = parser.parse_args()
    if options.case is not None:
        with tempfile.TemporaryDirectory() as room:
            kind = fuzz.kinds(Path(room))[options.only]
            print(fuzz.damaged(kind, options.only, options.case, options.seed))
            print(fuzz.run_case(kind, options.only, options.case, options.seed, Path(room)))
        return 0
    began, total = time.perf_counter(), dict[str, fuzz.Tally]()
    tasks = [(part, options.jobs, options.cases, options.seed, options.only) for part in range(options.jobs)]
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for tallies in pool.imap_unordered(work, tasks):
            for name, tally in tallies.items():
                total.setdefault(name, fuzz.Tally()).add(tally)
    everything = fuzz.Tally()
    for tally in total.values():
        everything.add(tally)
    print(f"{'kind':26}{'cases':>8}{'read':>8}{'refused':>9}{'wrong':>7}{'slowest':>10}{'largest':>10}")
    for name, t in (*total.items(), ("all", everything)):
        size = f"{t.largest / 1e6:.0f} MB"
        print(f"{name:26}{t.cases:8}{t.loaded:8}{t.refused:9}{len(t.wrong):7}{t.slowest:8.2f} s{size:>10}")
    print(*everything.wrong[:20], sep="\n")
    print(f"{len(everything.wrong)} of {everything.cases} cases are wrong, {time.perf_counter() - began:.0f} s")
    return 1 if everything.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
