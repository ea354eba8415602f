"""How an identity is checked: both sides run in a number system, and the system says what their agreement is worth.

| way | systems | an agreement says |
|---|---|---|
| equality | ℚ, any that is `exact` | equal at these instances, exactly |
| equality | GF(p) | all values at these shapes, but for a stated probability |
| enclosure | balls | the difference contains 0 and is at most 2ρ, at these instances |
| bound | mpmath, float64, float32 | no further apart than rounding allows, at these instances |
| probe | floats of any width | equal where no operation rounds |
| oracle | floats of any width | rounds no worse than twice the other side |
| sampled | float64 | the mean of independent draws is within 6 standard errors of the formula |
| structure | dependencies | all values at these shapes |
| witness | ℚ, GF(p), any that is `exact` | what is said to differ does differ |
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from ..errors import NotDefined
from ..systems import Degrees, System, require, seed_of
from ..systems.finite_field import FiniteField
from .compare import Tally, compare, verdict
from .identity_testing import degree, survival
from .theorem import Numbers, Result, Theorem

REDRAWS = 20
# Why a theorem is not checked in a system: the theorem's reason, else the system's.
ELSEWHERE: dict[tuple[str, ...], str] = {
    ("probe",): "{} speak of float formats",
    ("structure",): "{} is read off dependency sets",
    ("oracle",): "{} is about rounding, of which there is none or it is enclosed",
    ("witness",): "a witness is a matter of exact numbers",
    ("sampled",): "{} is about means over draws, taken in float64",
}
OWN = {
    "probe": "at this precision exact_probes decide",
    "structure": "dependency sets say nothing of values",
    "enclosure": "balls do not say which of two numbers is larger",
}


def way(theorem: Theorem, system: System) -> str | None:
    """How this theorem is checked in this system."""
    return next((w for w in system.ways if w in theorem.ways), None)


def lack(theorem: Theorem, case: Any, system: System) -> str:
    """What this system lacks for this case, in one sentence; nothing if it can run."""
    try:
        for capability, who in (theorem.needs, *case.needs(theorem.phi)):
            require(system, capability, who)
        if isinstance(system, FiniteField) and system.p <= theorem.beyond:
            raise NotDefined(f"{theorem.name} needs characteristic 0 or > {theorem.beyond}")
    except NotDefined as sentence:
        return str(sentence)
    return ""


@functools.cache
def source() -> str:
    """The digest of the library's source: every seed contains it, so that nobody picks a lucky one."""
    sha = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        sha.update(path.name.encode() + path.read_bytes())
    return sha.hexdigest()


@dataclass
class Draws:
    """Where the numbers come from: a seed, and the digest of the source that it is mixed with.

    known : degrees, where they depend on the shape alone
    """

    seed: int = 0
    source: str = ""
    known: dict[tuple[str, Any], tuple[int, int] | None] = field(default_factory=dict)

    def seed_of(self, theorem: Theorem, system: str, case: Any, attempt: int) -> int:
        return seed_of(self.source or source(), theorem.name, system, str(case), self.seed, attempt)

    def degrees(self, theorem: Theorem, case: Any, seed: int) -> tuple[int, int] | None:
        """(δ, Δ) of a theorem at a shape: run in Degrees, and nothing where that cannot run. The seed draws ids and positions."""
        if (theorem.name, case) in self.known:
            return self.known[theorem.name, case]
        numbers = Numbers(Degrees(), seed)
        found = _degrees(theorem, case, numbers)
        if not numbers.chose:  # else they are those of this draw alone
            self.known[theorem.name, case] = found
        return found


def _degrees(theorem: Theorem, case: Any, numbers: Numbers) -> tuple[int, int] | None:
    try:
        pairs = [(left, right) for _, left, right in theorem.sides(case, numbers) if not isinstance(left, int)]
        return max((degree(*pair) for pair in pairs), default=0), numbers.system.divided
    except NotDefined:
        return None
    except ZeroDivisionError as error:  # no draw is to blame
        raise ArithmeticError(f"a denominator is zero as a polynomial: {error}") from error


def check(theorem: Theorem, system: Any, cases: Iterable[Any], draws: Draws | None = None) -> Result:
    """Check one theorem in one system, on those cases that it speaks of."""
    began, draws = time.perf_counter(), draws or Draws()
    how = way(theorem, system)
    result = Result(theorem.name, system.label, "N/A", "")
    if theorem.only not in ("", result.system):
        result.evidence = f"{theorem.name} is too large for any system but {theorem.only}"
        return result
    if how is None:
        result.evidence = ELSEWHERE.get(theorem.ways, "").format(theorem.name) or OWN[system.ways[0]]
        return result
    fitting = [(case, lack(theorem, case, system)) for case in cases if theorem.fits(case)]
    if all(lacking for _, lacking in fitting):
        result.evidence = fitting[0][1] if fitting else "it speaks of none of these cases"
        return result
    result.cases = tuple(case for case, lacking in fitting if not lacking)
    tally = Tally()
    for case in result.cases:
        instance(how, theorem, case, system, draws, tally)
        if tally.failure or tally.undrawn:
            tally.worst = str(case)
            break
    result.instances = tally.compared
    result.redraws, result.seconds, result.worst = tally.redraws, time.perf_counter() - began, tally.worst
    result.probability, result.degree = (None if tally.chance is None else float(tally.chance)), tally.degree
    result.inputs, result.outputs = tally.inputs.hexdigest()[:16], tally.outputs.hexdigest()[:16]
    result.verdict, result.evidence = verdict(how, tally)
    result.error, result.bound = (x if math.isfinite(x) else None for x in (tally.error, tally.bound))
    result.notes = tally.notes
    return result


def instance(how: str, theorem: Theorem, case: Any, system: Any, draws: Draws, tally: Tally) -> None:
    """One case, drawn again as long as a denominator is zero."""
    for attempt in range(REDRAWS):
        seed = draws.seed_of(theorem, system.label, case, attempt)
        try:
            compare(how, theorem.sides, case, system, seed, tally)
            if how == "equality" and isinstance(system, FiniteField) and theorem.certified:
                weigh(draws.degrees(theorem, case, seed), attempt, case, system, tally)
        except Exception as error:
            if isinstance(error, ZeroDivisionError) and how in (
                "equality",
                "witness",
                "oracle",
            ):  # elsewhere chance does not explain it
                tally.redraws += 1
                continue
            tally.failure = (
                f"raised {type(error).__name__}: {error}"  # whatever a form raises on good input is its failure
            )
        return
    tally.undrawn = f"{REDRAWS} draws in a row had a zero denominator"


def weigh(known: tuple[int, int] | None, redraws: int, case: Any, system: FiniteField, tally: Tally) -> None:
    """What an agreement modulo p is worth at this shape; the least of all shapes counts.

    A zero denominator comes by chance with probability Δ/p at most: more of them than chance explains are a failure.
    """
    if known and redraws and Fraction(known[1], system.p) ** redraws < Fraction(1, 2**30):
        tally.failure = (
            tally.failure
            or f"a zero denominator in {redraws} draws: chance makes one with probability {known[1]}/p at most"
        )
    chance = survival(*known, system.p) if known else Fraction(1)
    if tally.chance is None or chance > tally.chance:
        tally.chance, tally.degree, tally.worst = chance, known and known[0], str(case)


def minimal(theorem: Theorem, system: Any, case: Any, draws: Draws, *, seconds: float = 20) -> Any:
    """The smallest case found on which the theorem still fails in the same place."""

    def failure(case: Any) -> str:
        tally = Tally()
        instance(str(way(theorem, system)), theorem, case, system, draws, tally)
        return re.split(r"[\[:]", tally.failure)[0]

    began, sign = time.perf_counter(), failure(case)
    shrinking = bool(sign)
    while shrinking:
        shrinking = False
        for smaller in case.smaller():
            if time.perf_counter() - began > seconds:
                return case
            if theorem.fits(smaller) and not lack(theorem, smaller, system) and failure(smaller) == sign:
                case, shrinking = smaller, True
                break
    return case
