"""The plan: the cases in which a kernel is tried, each with a reason.

Mistakes show under conditions: beyond a chunk, with a second head, with a state to start from. The
cases cover every pair of conditions, and no two sizes of a case are equal unless that is the point.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

LENGTHS = {
    0: "no token",
    1: "one token",
    2: "two tokens",
    3: "an odd number",
    7: "less than any chunk",
    15: "a chunk of 16 less one",
    17: "a chunk of 16 and one more",
    33: "a chunk of 32 and one more",
    63: "a chunk of 64 less one",
    64: "a chunk of 64",
    65: "a chunk of 64 and one more",
    129: "two chunks of 64 and one more",
}
LONG = {
    257: "two chunks of 128 and one more",
    512: "a chunk of 512",
    513: "a chunk of 512 and one more",
    1025: "more than 1024 tokens",
}
LONGEST = {4097: "a long text"}


@dataclass(frozen=True)
class Case:
    """The sizes of a case, and what its numbers are.

    batch, heads, groups : rows, heads of q, and heads of k and v
    n, d, m : tokens, and entries of a key and of a value
    start : begin from a state that is not zero
    position : of the first token
    values : "whole" numbers, of which exact ones are made where that can be; "plain" ones of few
             digits, "fine" ones with all digits of the dtype, "large", "tiny"
    memory : how the arrays lie: "plain", "strided", "reversed", "read-only"
    """

    n: int = 5
    batch: int = 1
    heads: int = 1
    groups: int = 1
    d: int = 6
    m: int = 3
    start: bool = False
    position: int = 0
    values: str = "whole"
    memory: str = "plain"
    seed: int = 0
    why: str = field(default="", compare=False)

    @property
    def key(self) -> tuple[object, ...]:
        """What its numbers depend on."""
        return (self.n, self.batch, self.heads, self.groups, self.d, self.m, self.start, self.values, self.seed)

    @property
    def size(self) -> int:
        return self.n * self.heads * self.batch

    def __str__(self) -> str:
        sizes = f"T={self.n} B={self.batch} H={self.heads}"
        sizes += f" groups={self.groups}" if self.groups != self.heads else ""
        sizes += f" d={self.d} m={self.m}"
        sizes += " from a state" if self.start else ""
        sizes += f" position={self.position}" if self.position else ""
        sizes += f" {self.values}" if self.values not in ("whole", "plain") else ""
        return sizes + (f" {self.memory}" if self.memory != "plain" else "")


# factor: its levels, each with a change of a case; the first is the usual one
Levels = dict[str, dict[str, object]]
FACTORS: dict[str, Levels] = {
    "length": {why: {"n": n} for n, why in LENGTHS.items()},
    "heads": {
        "two heads": {"heads": 2, "groups": 2},
        "one head": {"heads": 1, "groups": 1},
        "heads in groups": {"heads": 6, "groups": 2},
        "five heads": {"heads": 5, "groups": 5},
    },
    "rows": {"one row": {"batch": 1}, "three rows": {"batch": 3}},
    "widths": {
        "d > m": {"d": 4, "m": 3},
        "d < m": {"d": 4, "m": 5},
        "d = m": {"d": 4, "m": 4},
        "d of 16": {"d": 16, "m": 7},
        "an odd d": {"d": 5, "m": 2},
    },
    "start": {"from nothing": {"start": False}, "from a state": {"start": True}},
    "position": {"from position 0": {"position": 0}, "far on": {"position": 8100}},
    "values": {
        "whole numbers": {"values": "whole"},
        "plain numbers": {"values": "plain"},
        "fine numbers": {"values": "fine"},
        "tiny numbers": {"values": "tiny"},
        "large numbers": {"values": "large"},
    },
    "memory": {
        "plain arrays": {"memory": "plain"},
        "strided arrays": {"memory": "strided"},
        "read-only arrays": {"memory": "read-only"},
    },
}


def plan(refuses: Callable[[Case], str], base: Case, *, seed: int = 0, full: bool = False) -> list[Case]:
    """The cases of a kernel, from short to long.

    refuses : why a case cannot be asked of it, or ""
    base : the plainest case that can
    full : long texts, too
    """
    can: dict[str, Levels] = {}
    for name, levels in FACTORS.items():
        possible = {why: change for why, change in levels.items() if not refuses(changed(base, change))}
        can[name] = possible or {"as it must be": {}}
    found = [case for case in covering(can, base, seed) if not refuses(case)]
    usual = {name: next(iter(levels)) for name, levels in can.items() if name != "length"}
    for n, why in (LONG | (LONGEST if full else {})).items():
        for row in long_rows(can, usual):
            found.append(
                made(can, base, row, seed, n=n, why=", ".join([why, *(x for x in row.values() if x not in usual.values())]))
            )
    return sorted((case for case in found if not refuses(case)), key=lambda case: case.size)


def long_rows(can: dict[str, Levels], usual: dict[str, str]) -> Iterator[dict[str, str]]:
    """What a long text is tried with: as usual, from a state with three rows, and on plain numbers."""
    yield usual
    for levels in (("from a state",), ("plain numbers", "one head")):
        row = {name: next((x for x in levels if x in can[name]), level) for name, level in usual.items()}
        if row != usual:
            yield row


def covering(can: dict[str, Levels], base: Case, seed: int) -> list[Case]:
    """Cases in which any two levels of two factors meet: a covering array, made greedily."""
    names = list(can)
    both = list(itertools.combinations(names, 2))
    pending = {((a, x), (b, y)) for a, b in both for x in can[a] for y in can[b]}
    place = {(name, level): (i, j) for i, name in enumerate(names) for j, level in enumerate(can[name])}
    found = []
    while pending:
        row = dict(min(pending, key=lambda pair: [place[each] for each in pair]))
        for name in names:
            if name not in row:
                gain = {
                    x: sum(in_order(name, x, other, row[other], place) in pending for other in row) for x in can[name]
                }
                ties = [x for x in can[name] if gain[x] == max(gain.values())]
                row[name] = ties[(len(found) + seed) % len(ties)]
        pending -= {((a, row[a]), (b, row[b])) for a, b in both}
        why = ", ".join(row[name] for name in names if name == "length" or row[name] != next(iter(can[name])))
        found.append(made(can, base, row, seed, why=why))
    return found


def in_order(
    a: str, x: str, b: str, y: str, place: dict[tuple[str, str], tuple[int, int]]
) -> tuple[tuple[str, str], tuple[str, str]]:
    return ((a, x), (b, y)) if place[a, x] < place[b, y] else ((b, y), (a, x))


def made(can: dict[str, Levels], base: Case, row: dict[str, str], seed: int, **more: object) -> Case:
    changes = {key: value for name, level in row.items() for key, value in can[name][level].items()}
    return changed(base, {"seed": seed} | changes | more)


def changed(case: Case, change: dict[str, Any]) -> Case:
    return replace(case, **change)
