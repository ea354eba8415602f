"""Results as a matrix: a row for each theorem, a column for each number system, a mark in a cell.

A mark says what was decided and what that speaks of; the number behind it says how strongly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .registry import THEOREMS
from .theorem import Result


class Mark(NamedTuple):
    """A mark: on a screen that has few characters too, its colour, and what it claims."""

    sign: str
    ascii: str
    colour: str
    claims: str


PROVED = Mark("∀", "A", "green", "all shapes, all values: Coq proved it on this machine")
PART = Mark("∀-", "A-", "green", "the same of a part of the theorem")
LATER = Mark("·", ".", "grey", "there is a proof, but Coq was not run on this machine")
LIKELY = Mark("=", "=", "green", "all values at these shapes: a false identity passes with probability ≤ 2^-{}")
EQUAL = Mark("=", "=", "green", "these numbers, exactly: both sides are ==")
DEPENDS = Mark("∀v", "Av", "green", "all values at these shapes, by sets of dependencies")
ENCLOSED = Mark("∈", "e", "green", "these numbers: no further apart than 10^-{}, in rigorous balls")
WITHIN = Mark("≤", "<", "green", "these numbers: the difference is {} of what rounding can explain")
MEASURED = Mark("~", "~", "green", "measured, not proved: see its detail")
FAIL = Mark("✗", "X", "red", "the two sides differ")
UNDECIDED = Mark("?", "?", "yellow", "not decided: no bound, or nothing to compare")

MARKS = (PROVED, PART, LATER, LIKELY, DEPENDS, EQUAL, ENCLOSED, WITHIN, MEASURED, UNDECIDED, FAIL)
BY_VERDICT = {
    "PROVED": PROVED,
    "IN PART": PART,
    "NOT CHECKED": LATER,
    "EXACT": EQUAL,
    "ENCLOSED": ENCLOSED,
    "WITHIN BOUND": WITHIN,
    "MEASURED": MEASURED,
    "FAIL": FAIL,
}


def mark_of(r: Result) -> Mark:
    if r.verdict == "EXACT" and r.probability:
        return LIKELY
    if r.verdict == "EXACT" and r.system == "dependencies":
        return DEPENDS
    return BY_VERDICT.get(r.verdict, UNDECIDED)


def strength(r: Result) -> str:
    """The number behind the mark; "" for none."""
    mark = mark_of(r)
    if mark is LIKELY and r.probability:
        return str(math.floor(-math.log2(r.probability)))
    if mark is ENCLOSED and r.bound:
        return str(math.floor(-math.log10(r.bound)))
    if mark is WITHIN and r.error is not None and r.bound:
        return share(r.error / r.bound)
    return ""


def share(x: float) -> str:
    """A number from 0 to 1 in two digits, rounded up: .02; 0 and 1 as they are."""
    hundredths = min(math.ceil(100 * x), 100)
    return {0: "0", 100: "1"}.get(hundredths, f".{hundredths:02}")


NAMES = {"Q": "ℚ", "dependencies": "dep", "rounded(float16)": "f16", "rounded(bfloat16)": "b16"}
FLOATS = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "b16"}


def short_names(labels: Iterable[str]) -> dict[str, str]:
    """A short name for each system, all different: ℚ, p₁, p₂ for primes, f64 for float64."""
    short, primes = dict[str, str](), 0
    for label in labels:
        if label.startswith("GF("):
            primes += 1
            name = "p" + str(primes).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))
        elif digits := re.fullmatch(r"(mpmath|balls)\((\d+)\)", label):
            name = f"{digits[2]}d" if digits[1] == "mpmath" else "ball"
        else:
            dtype = next((short for long, short in FLOATS.items() if label.endswith((long, f" {long}"))), "")
            name = NAMES.get(label) or dtype or label[:6]
        while name in short.values():
            name += "'"
        short[label] = name
    return short


def column_words(label: str) -> str:
    """What a column stands for."""
    if label.startswith("GF("):
        p = int(label[3:-1])
        power = f" = 2^{p.bit_length()} - {2 ** p.bit_length() - p}" if 2 ** p.bit_length() - p < 1000 else ""
        return f"integers modulo the prime {p}{power}"
    if digits := re.fullmatch(r"(mpmath|balls)\((\d+)\)", label):
        return f"mpmath at {digits[2]} digits" if digits[1] == "mpmath" else f"rigorous balls, {digits[2]} digits"
    if rounded := re.fullmatch(r"rounded\((\w+)\)", label):
        return f"{rounded[1]}, modelled by rounding"
    words = {"Q": "exact fractions", "Coq": "a proof", "dependencies": "which tokens an output depends on"}
    return words.get(label, label)


@dataclass(frozen=True)
class Matrix:
    """Results by theorem and system, without those that do not apply."""

    cells: dict[tuple[str, str], Result]
    theorems: tuple[str, ...]
    systems: tuple[str, ...]

    @classmethod
    def of(cls, results: Sequence[Result], proofs: Sequence[Result] = ()) -> Matrix:
        apply = [r for r in (*proofs, *results) if r.verdict != "N/A"]
        names = dict.fromkeys(r.theorem for r in apply)
        order = sorted(names, key=lambda name: list(THEOREMS).index(name) if name in THEOREMS else len(THEOREMS))
        labels = list(dict.fromkeys(r.system for r in apply))
        kinds = list(dict.fromkeys(label.partition("(")[0] for label in labels))
        labels.sort(key=lambda label: kinds.index(label.partition("(")[0]))  # all primes side by side
        return cls({(r.theorem, r.system): r for r in apply}, tuple(order), tuple(labels))

    def groups(self) -> dict[str, list[str]]:
        """The theorems under their headings, which come in one order, whatever was checked."""
        found: dict[str, list[str]] = {t.group: [] for t in THEOREMS.values()}
        for name in self.theorems:
            found.setdefault(THEOREMS[name].group if name in THEOREMS else "", []).append(name)
        return {group: names for group, names in found.items() if names}

    def marks(self) -> dict[Mark, Result]:
        """The marks that occur, each with the weakest of its results."""
        found: dict[Mark, list[Result]] = {}
        for r in self.cells.values():
            found.setdefault(mark_of(r), []).append(r)
        return {mark: weakest(mark, found[mark]) for mark in MARKS if mark in found}


def weakest(mark: Mark, results: list[Result]) -> Result:
    """The largest share of a bound, the fewest bits or digits."""
    key = {LIKELY: lambda r: r.probability or 0, ENCLOSED: lambda r: r.bound or 0}
    return max(results, key=key.get(mark, lambda r: (r.error or 0) / (r.bound or 1)))
