"""Check a theorem in a number system: draw numbers, run both sides, and compare them.

The ways are those of ways.py. An agreement in GF(p) shows that both sides are equal for all values
of a shape, except with a probability that follows from the degrees of both sides.
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from ..errors import NotDefined
from ..systems import Degrees, System, require, seed_of
from ..systems.finite_field import FiniteField
from ..systems.floats import quiet
from .cases import Shape
from .identity_testing import degree, survival
from .implementation import REFIMPL, Implementation
from .theorem import Numbers, Result, Theorem
from .ways import Instance, Tally, Way, reason_against, totals, way_of

REDRAWS = 20


@functools.cache
def source() -> str:
    """The digest of the library's source. It is part of every seed, so no seed stays lucky."""
    sha = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        sha.update(path.name.encode() + path.read_bytes())
    return sha.hexdigest()


@dataclass
class Draws:
    """The origin of all numbers: a seed, and the digest of the source that goes into it.

    cache : degrees, where they depend on the shape alone
    """

    seed: int = 0
    source: str = ""
    cache: dict[tuple[str, Shape, Implementation], tuple[int, int] | None] = field(default_factory=dict)

    def seed_of(self, theorem: Theorem, system: str, case: Shape, attempt: int) -> int:
        return seed_of(self.source or source(), theorem.name, system, str(case), self.seed, attempt)

    def degrees(self, theorem: Theorem, case: Shape, seed: int, impl: Implementation) -> tuple[int, int] | None:
        """(δ, Δ) of a theorem at a shape, from a run in Degrees; None if it cannot run there.

        None also at shapes that people use, where it would take minutes.

        Ids and positions are drawn from the seed.
        """
        if any(case in group for group in theorem.usual):
            return None
        key = theorem.name, case, impl
        if key in self.cache:
            return self.cache[key]
        numbers = Numbers(Degrees(), seed)
        found = _degrees(theorem, case, numbers, impl)
        if not numbers.chose:  # otherwise they are the degrees of this draw alone
            self.cache[key] = found
        return found


def _degrees(theorem: Theorem, case: Shape, numbers: Numbers, impl: Implementation) -> tuple[int, int] | None:
    try:
        pairs = [(left, right) for _, left, right in theorem.sides(case, numbers, impl) if not isinstance(left, int)]
        return max((degree(*pair) for pair in pairs), default=0), numbers.system.divided
    except NotDefined:
        return None
    except ZeroDivisionError as error:  # at every draw
        raise ArithmeticError(f"a denominator is zero as a polynomial: {error}") from error


@quiet()
def check(
    theorem: Theorem, system: Any, cases: Iterable[Any], draws: Draws | None = None, impl: Implementation = REFIMPL
) -> Result:
    """Check one theorem in one system, on those of the cases that it speaks of.

    NumPy's own errors are off: both sides may underflow where the comparison finds them equal, and
    what is not finite is found by it.
    """
    began, draws = time.perf_counter(), draws or Draws()
    way, not_checked = way_of(theorem, system), functools.partial(Result, theorem.name, system.label, "N/A")
    if theorem.only not in ("", system.label):
        return not_checked(f"{theorem.name} is too large for any system but {theorem.only}")
    if way is None:
        return not_checked(reason_against(theorem, system))
    fitting = [(case, missing_capability(theorem, case, system)) for case in cases if theorem.fits(case)]
    able = tuple(case for case, missing in fitting if not missing)
    if not able:
        return not_checked(fitting[0][1] if fitting else "it speaks of none of these cases")
    tally = run_instances(way, theorem, able, system, draws, impl)
    (verdict, evidence, *sizes, worst), least = way.verdict(tally), tally.least_certain
    chance, delta = (least.chance, least.degree) if least else (None, None)
    redraws, probability = sum(i.redraws for i in tally.instances), None if chance is None else float(chance)
    error, bound = (x if math.isfinite(x) else None for x in sizes)
    _, rows, vacuous = totals(tally.findings)
    counts = (tally.count, redraws, probability, delta, error, bound, rows, vacuous, time.perf_counter() - began)
    digests = (tally.digest("inputs"), tally.digest("outputs"))
    return Result(
        theorem.name, system.label, verdict, evidence, *counts, worst, *digests, able, tally.instances[-1].notes
    )


def run_instances(
    way: Way, theorem: Theorem, cases: Sequence[Shape], system: Any, draws: Draws, impl: Implementation
) -> Tally:
    """All cases, up to the first that is wrong, which comes last.

    Ill-conditioned numbers may leave a pair of sides without a bound that says anything, as a zero
    denominator leaves it without a value. Then all instances that have this pair are drawn again.
    """
    done: dict[int, Instance] = {}
    again = list(range(len(cases)))
    for attempt in range(REDRAWS):
        for n in again:
            done[n] = run_instance(way, theorem, cases[n], system, draws, impl, attempt)
            if done[n].wrong or done[n].undrawn:
                return Tally((*(i for other, i in done.items() if other != n), done[n]))
        kind = Tally(tuple(done.values())).undecided
        again = [n for n, i in done.items() if i.has(kind)]
        if not again:
            break
    return Tally(tuple(done.values()))


def missing_capability(theorem: Theorem, case: Shape, system: System) -> str:
    """A sentence on what the case needs and the system lacks; empty if the case can run."""
    try:
        for capability, who in (theorem.needs, *case.needs(theorem.phi)):
            require(system, capability, who)
        if isinstance(system, FiniteField) and system.p <= theorem.beyond:
            raise NotDefined(f"{theorem.name} needs characteristic 0 or > {theorem.beyond}")
    except NotDefined as error:
        return str(error)
    return ""


def run_instance(
    way: Way, theorem: Theorem, case: Shape, system: Any, draws: Draws, impl: Implementation, first: int = 0
) -> Instance:
    """One case, drawn again as long as a denominator is zero; `first` is the number of its draw."""
    for attempt in range(first, REDRAWS):
        seed = draws.seed_of(theorem, system.label, case, attempt)
        try:
            found = replace(way.run(theorem, case, system, seed, impl), redraws=attempt)
            certain = found.wrong or not theorem.certified  # a failure has no chance of being none
            if way.name == "equality" and isinstance(system, FiniteField) and not certain:
                found = with_chance(found, draws.degrees(theorem, case, seed, impl), system.p)
            return found
        except Exception as error:
            if way.redraws and isinstance(error, ZeroDivisionError):
                continue
            # Any exception on valid input is a failure of the implementation.
            return Instance(str(case), failure=f"raised {type(error).__name__}: {error}", redraws=attempt)
    return Instance(str(case), undrawn=f"{REDRAWS} draws in a row had a zero denominator", redraws=REDRAWS)


def with_chance(found: Instance, degrees: tuple[int, int] | None, p: int) -> Instance:
    """The instance with the probability that a false identity would have passed modulo p.

    A draw has a zero denominator with probability Δ/p at most. If that makes as many redraws too
    improbable, the instance fails.
    """
    if degrees is None:
        return replace(found, chance=Fraction(1))
    if found.redraws and Fraction(degrees[1], p) ** found.redraws < Fraction(1, 2**30):
        words = f"a zero denominator in {found.redraws} draws: chance makes one with probability {degrees[1]}/p at most"
        found = replace(found, failure=words)
    return replace(found, chance=survival(*degrees, p), degree=degrees[0])


def minimal(
    theorem: Theorem, system: Any, case: Any, draws: Draws, impl: Implementation = REFIMPL, *, seconds: float = 20
) -> Any:
    """The smallest case found on which the theorem still fails in the same place."""
    theorem = replace(theorem, certified=False)  # degrees at large shapes take minutes, and find no failure
    way = way_of(theorem, system)
    assert way is not None

    def place(case: Shape) -> str:
        wrong = run_instance(way, theorem, case, system, draws, impl).wrong
        return re.sub(r"\d+", "", re.split(r"[\[:]", wrong)[0])  # "split at 9" is a place of longer texts only

    began, first = time.perf_counter(), place(case)
    shrinking = bool(first)
    while shrinking:
        shrinking = False
        for smaller in case.smaller():
            if time.perf_counter() - began > seconds:
                return case
            if theorem.fits(smaller) and not missing_capability(theorem, smaller, system) and place(smaller) == first:
                case, shrinking = smaller, True
                break
    return case
