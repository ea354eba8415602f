"""`python tests/seeds.py --seeds 100` runs quick `verify` with many seeds and counts false alarms.

Every theorem is true, so a check that does not hold (FAIL, VACUOUS, NOT RUN) is an alarm and a
defect of `verify`. Each is printed with its seed, and the exit status is 1 if there is one.
"""

from __future__ import annotations

import argparse
import time

from refimpl.systems import system
from refimpl.verify.check import Draws
from refimpl.verify.registry import verify

HOLDS = {"EXACT", "ENCLOSED", "WITHIN BOUND", "MEASURED", "N/A"}


def alarms(names: list[str], labels: list[str] | None, seeds: range) -> int:
    """Print every check that does not hold; return their number."""
    count, checks, began = 0, 0, time.perf_counter()
    systems = [system(label) for label in labels] if labels else None
    for seed in seeds:
        for r in verify(names, systems, draws=Draws(seed)):
            checks += r.verdict != "N/A"
            if r.verdict not in HOLDS:
                count += 1
                print(f"seed {seed}: {r.theorem} in {r.system}: {r.verdict}: {r.evidence} at {r.worst}", flush=True)
    seconds = time.perf_counter() - began
    print(f"{count} false alarms in {checks} checks, {len(seeds)} seeds from {seeds.start}, {seconds:.0f} s")
    return count


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="theorems (default: all)")
    parser.add_argument("--seeds", type=int, default=100, metavar="N", help="the number of seeds (default: 100)")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the first seed (default: 0)")
    parser.add_argument("--system", action="append", metavar="S", help="a number system; repeatable")
    options = parser.parse_args()
    found = alarms(options.names, options.system, range(options.first, options.first + options.seeds))
    raise SystemExit(bool(found))
