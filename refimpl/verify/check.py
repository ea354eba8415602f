"""How an identity is checked: both sides run in a number system, and the system says what their agreement is worth.

| way | systems | an agreement says |
|---|---|---|
| equality | ℚ, GF(p), any that is `exact` | equal at these instances, exactly |
| enclosure | balls | the difference contains 0 and is at most 2ρ, at these instances |
| bound | mpmath, float64, float32 | no further apart than rounding allows, at these instances |
| probe | floats of any width | equal where no operation rounds |
| structure | dependencies | all values at these shapes |
"""

from __future__ import annotations

import functools
import hashlib
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from ..errors import NotDefined
from ..feature_maps import FEATURE_MAPS
from ..rope import Rope, angle_table, circle_point, power_table
from ..systems import Array, Dependencies, Float, Rounded, RunningError, System, fractions, require
from ..systems.balls import Balls
from ..systems.floats import dtype_name
from ..systems.multiprecision import Multiprecision
from ..systems.rational import Rational
from ..systems.rounded import FORMATS
from .bounds import judge, unit_roundoff

REDRAWS = 20
# Why a theorem is not checked in a system: the theorem's reason, else the system's.
ELSEWHERE: dict[tuple[str, ...], str] = {
    ("probe",): "exact_probes speak of float formats",
    ("structure",): "causality is read off dependency sets",
}
OWN: dict[tuple[str, ...], str] = {
    ("probe",): "at this precision exact_probes decide",
    ("structure",): "dependency sets say nothing of values",
}

Sides = Iterator[tuple[str, Any, Any]]


@dataclass(frozen=True)
class Case:
    """The shape and options of one instance; numbers come from a system."""

    n: int
    d: int
    m: int
    heads: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())  # of queries, of keys and values
    mask: str | int = "causal"
    normalise: bool = True
    start: int | None = None  # position of a non-zero starting state
    rope: tuple[str, str, int] | None = None  # layout, placement, features turned
    phi: str = "identity"
    chunk: int = 2

    def __str__(self) -> str:
        default = Case(0, 0, 0)
        given = {k: v for k, v in asdict(self).items() if k in "ndm" or v != getattr(default, k)}
        return " ".join(f"{k}={'/'.join(map(str, v)) if isinstance(v, tuple) else v}".replace(" ", "") for k, v in given.items())


@dataclass(frozen=True)
class Theorem:
    """An identity: what it says, under which assumptions, who said it, and the two sides of it.

    sides : (case, numbers) -> (name, left, right) for everything that must be equal
    fits : does it speak of this case?
    ways : the ways in which it can be checked, as in the table above
    needs : what a system must be for it, and what asks for that; phi : does φ occur in it, and ask for more?
    also : cases of its own, beyond those that all theorems share
    """

    name: str
    statement: str
    assumes: str
    source: str
    sides: Callable[[Case, Numbers], Sides]
    fits: Callable[[Case], bool] = lambda case: True
    ways: tuple[str, ...] = ("equality", "enclosure", "bound")
    needs: tuple[str, str] = ("field", "normalised linear attention")
    phi: bool = True
    also: tuple[Case, ...] = ()


@dataclass
class Result:
    """A verdict (EXACT, ENCLOSED, WITHIN BOUND, VACUOUS, FAIL, NOT RUN or N/A) and what it rests on."""

    theorem: str
    system: str
    verdict: str
    evidence: str
    instances: int = 0
    redraws: int = 0
    error: float | None = None  # where it is largest relative to the bound
    bound: float | None = None
    seconds: float = 0.0
    worst: str = ""


class Numbers:
    """Uniform draws of one instance. `origin` draws them; `system` reads them, for an analysis of the same instance."""

    def __init__(self, system: Any, seed: int, origin: Any = None) -> None:
        self.system, self.origin, self.seed, self.drawn = system, origin or system, seed, 0

    def draw(self, *shape: int) -> Any:
        self.drawn += 1
        try:
            x = self.origin.random(shape, self.seed + self.drawn)
        except NotDefined:  # every ring has the integers
            x = self.origin.convert(np.random.default_rng(self.seed + self.drawn).integers(-48, 49, shape))
        return x if self.system is self.origin else self.system.convert(x)

    def integers(self, low: int, high: int, count: int) -> list[int]:
        self.drawn += 1
        rng = random.Random(self.seed + self.drawn)
        return [rng.randint(low, high) for _ in range(count)]

    def rope(self, layout: str, placement: str, width: int) -> Rope:
        """The usual angles where cos and its error are known; else powers of a random point of the circle."""
        if isinstance(self.origin, Float | Balls | Dependencies):
            return Rope(usual_angles(self.system, width), layout, placement)
        return Rope(power_table(*circle_point(self.draw(width // 2))), layout, placement)


@functools.cache
def usual_angles(system: Any, width: int) -> Callable[[Iterable[int]], tuple[Any, Any]]:
    """angle_table with a memory: the same positions recur for q and k, at every split and in every case."""
    table = functools.cache(angle_table(system, width))
    return lambda at: table(tuple(at))


@dataclass
class Tally:
    """What one way of comparing has found so far."""

    error: float = 0.0
    bound: float = 0.0
    ratio: float = 0.0
    rows: int = 0
    vacuous: int = 0
    worst: str = ""
    failure: str = ""


def way(theorem: Theorem, system: System) -> str | None:
    """How this theorem is checked in this system."""
    return next((w for w in ways(system) if w in theorem.ways), None)


def ways(system: System) -> tuple[str, ...]:
    if system.exact:
        return ("equality",)
    if isinstance(system, Balls):
        return ("enclosure",)
    if isinstance(system, Dependencies):
        return ("structure",)
    if isinstance(system, Multiprecision):
        return ("bound",)
    if isinstance(system, Rounded):
        return ("probe",)
    if not isinstance(system, Float):
        raise NotDefined(f"verify: {system.name} has no way of deciding equality")
    if str(system.device).startswith("meta"):
        raise NotDefined(f"verify: {system.name} has shapes but no values; there is nothing to compare")
    if system.kind not in FORMATS:
        raise NotDefined(f"verify: no error bound is known for {system.name}; it must be float64, float32, float16 or bfloat16")
    return ("bound", "probe") if unit_roundoff(system.kind) <= Fraction(1, 2**24) else ("probe",)


def lack(theorem: Theorem, case: Case, system: System) -> str:
    """What this system lacks for this case, in one sentence; nothing if it can run."""
    wanted = [theorem.needs]
    if theorem.phi:
        wanted.append((getattr(FEATURE_MAPS.get(case.phi), "needs", "ring"), case.phi))
    if case.rope:
        wanted.append(("field", "a random rotation"))
    try:
        for capability, who in wanted:
            require(system, capability, who)
    except NotDefined as sentence:
        return str(sentence)
    return ""


def label(system: System) -> str:
    """The system as `--system` spells it."""
    if isinstance(system, Rational):
        return "Q"
    if isinstance(system, Multiprecision):
        return f"mpmath({system.digits})"
    if isinstance(system, Balls):
        return f"balls({system.digits})"
    if isinstance(system, Rounded):
        return f"rounded({system.format})"
    return system.name.removeprefix("numpy ")


def digest(*parts: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big")


def check(theorem: Theorem, system: Any, cases: Iterable[Case], *, seed: int = 0) -> Result:
    """Check one theorem in one system, on those cases that it speaks of."""
    began = time.perf_counter()
    how, tally, instances, redraws = way(theorem, system), Tally(), 0, 0
    result = Result(theorem.name, label(system), "N/A", "")
    if how is None:
        result.evidence = ELSEWHERE.get(theorem.ways) or OWN[ways(system)]
        return result
    fitting = [(case, lack(theorem, case, system)) for case in cases if theorem.fits(case)]
    if all(lacking for _, lacking in fitting):
        result.evidence = fitting[0][1] if fitting else "it speaks of none of these cases"
        return result
    for case in (case for case, lacking in fitting if not lacking):
        for attempt in range(REDRAWS):
            try:
                compare(how, theorem.sides, case, system, digest(theorem.name, result.system, str(case), seed, attempt), tally)
                instances += 1
                break
            except ZeroDivisionError:
                redraws += 1
            except Exception as error:  # whatever a form raises on good input is its failure
                tally.failure = f"raised {type(error).__name__}: {error}"
                break
        else:
            result.verdict, result.evidence, result.worst = "NOT RUN", f"{REDRAWS} draws in a row had a zero denominator", str(case)
            return result
        if tally.failure:
            tally.worst = str(case)
            break
    result.instances, result.redraws, result.seconds, result.worst = instances, redraws, time.perf_counter() - began, tally.worst
    result.error, result.bound = (x if math.isfinite(x) else None for x in (tally.error, tally.bound))
    result.verdict, result.evidence = verdict(how, tally)
    return result


def verdict(how: str, tally: Tally) -> tuple[str, str]:
    """The verdict, and in words what it rests on."""
    if tally.failure:
        return "FAIL", tally.failure
    if tally.rows and tally.vacuous == tally.rows:
        return "VACUOUS", "the bound is as large as the output in every row"
    unsaid = f"; {tally.vacuous} of {tally.rows} rows vacuous" if tally.vacuous else ""
    if how == "enclosure":
        return "ENCLOSED", f"|difference| ≤ 2ρ = {tally.bound:.1e}{unsaid}"
    if how == "bound" and tally.ratio:
        return "WITHIN BOUND", f"error/bound ≤ {tally.ratio:.2g}{unsaid}"
    words = {"equality": "equal at these instances", "probe": "equal at these probes", "structure": "all values at these shapes"}
    return "EXACT", words.get(how, "no rounding error at these instances")


def compare(how: str, sides: Callable[[Case, Numbers], Sides], case: Case, system: Any, seed: int, tally: Tally) -> None:
    """Run both sides on one instance and add what is found to the tally."""
    pairs = list(sides(case, Numbers(system, seed)))
    errors: Iterable[Any] = pairs
    if how == "bound":
        mp = isinstance(system, Multiprecision)
        analysis = RunningError("float64" if mp else dtype_name(system.dtype))
        # Each step of the bound grows at least in proportion to u (a root of an inexact number near 0 would not; no theorem takes one):
        # at the precision of mpmath, 2^(53−prec) times it is still a bound.
        finer = 2.0 ** (53 - system.ctx.prec) if mp else 1.0
        errors = [(x, y, finer) for _, x, y in sides(case, Numbers(analysis, seed, system))]
    for (name, left, right), about in zip(pairs, errors, strict=True):
        where = f"{name} at {case}"
        if isinstance(left, int):
            tally.failure = tally.failure or ("" if left == right else f"{name} is {left} instead of {right}")
        elif tuple(left.shape) != tuple(right.shape):
            tally.failure = tally.failure or f"{name} has shape {tuple(left.shape)} instead of {tuple(right.shape)}"
        elif how == "bound":
            within_bound(name, left, right, (about[0].planes[1] + about[1].planes[1]) * about[2], where, tally)
        elif how == "enclosure":
            enclosed(name, left, right, system, where, tally)
        else:
            unequal = fractions(left, name) != fractions(right, name) if how == "probe" else system.unequal(left, right)
            differ(name, left, right, np.asarray(unequal, dtype=bool), tally)


def differ(name: str, left: Any, right: Any, bad: np.ndarray, tally: Tally) -> None:
    """Note the first entry of two that differ."""
    if bad.any() and not tally.failure:
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        a, b = (", ".join(str(p[at]) for p in x.planes) if isinstance(x, Array) else float(fractions(x, name)[at]) for x in (left, right))
        tally.failure = f"{name}{list(at)} is {a} instead of {b}"


def within_bound(name: str, left: Any, right: Any, bound: np.ndarray, where: str, tally: Tally) -> None:
    left, right = fractions(left, name), fractions(right, name)
    found, error = judge(left, right, bound), abs(left - right).astype(np.float64)
    tally.rows, tally.vacuous = tally.rows + found.rows, tally.vacuous + found.vacuous
    if found.verdict == "EXCESS":
        differ(name, left, right, error > bound, tally)
    if found.worst > tally.ratio:
        tally.ratio, tally.error, tally.bound, tally.worst = found.worst, float(error[found.index]), float(bound[found.index]), where


def enclosed(name: str, left: Any, right: Any, system: Balls, where: str, tally: Tally) -> None:
    differ(name, left, right, left != right, tally)
    width = 2 * system.radius(left - right)
    size = max((abs(float(x)) for x in system.fractions(right).ravel()), default=math.inf)
    tally.rows, tally.vacuous = tally.rows + 1, tally.vacuous + (width >= size > 0)
    if width > tally.bound:
        tally.bound, tally.worst = width, where
