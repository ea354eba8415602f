"""How an identity is checked: both sides run in a number system, and the system says what their agreement is worth.

| way | systems | an agreement says |
|---|---|---|
| equality | ℚ, any that is `exact` | equal at these instances, exactly |
| equality | GF(p) | all values at these shapes, but for a stated probability |
| enclosure | balls | the difference contains 0 and is at most 2ρ, at these instances |
| bound | mpmath, float64, float32 | no further apart than rounding allows, at these instances |
| probe | floats of any width | equal where no operation rounds |
| oracle | floats of any width | rounds no worse than twice the other side |
| structure | dependencies | all values at these shapes |
| witness | ℚ, GF(p), any that is `exact` | what is said to differ does differ |
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import NotDefined
from ..systems import MP, Array, Degrees, Dependencies, Float, Rounded, RunningError, System, fractions, require
from ..systems.array import host
from ..systems.balls import Balls
from ..systems.finite_field import FiniteField
from ..systems.floats import dtype_name
from ..systems.multiprecision import Multiprecision
from ..systems.rational import Rational
from ..systems.rounded import FORMATS
from .bounds import judge, judged, unit_roundoff
from .identity_testing import degree, survival
from .theorem import Case, Different, ModelCase, Numbers, Result, Sides, Theorem, content

__all__ = ["Case", "Different", "Draws", "ModelCase", "Numbers", "Result", "Sides", "Theorem", "check"]

ORACLE = 40  # digits
REDRAWS = 20
# Why a theorem is not checked in a system: the theorem's reason, else the system's.
ELSEWHERE: dict[tuple[str, ...], str] = {
    ("probe",): "{} speak of float formats",
    ("structure",): "{} is read off dependency sets",
    ("oracle",): "{} is about rounding, of which there is none or it is enclosed",
    ("witness",): "a witness is a matter of exact numbers",
}
OWN = {"probe": "at this precision exact_probes decide", "structure": "dependency sets say nothing of values"}


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
    undrawn: str = ""
    redraws: int = 0
    chance: Fraction | None = None  # with which a false identity would have passed
    degree: int | None = None
    left: float = 0.0  # squared errors of both sides against an oracle
    right: float = 0.0
    notes: str = ""
    inputs: Any = field(default_factory=hashlib.sha256)
    outputs: Any = field(default_factory=hashlib.sha256)

    def against_oracle(self) -> tuple[str, str]:
        """Both sides round; neither may round more than twice as much as the other that stands for what is possible."""
        self.error, self.bound = math.sqrt(self.left), 2 * math.sqrt(self.right)
        words = f"error {self.error:.1e} against {self.bound / 2:.1e}, both to {ORACLE} digits"
        return ("WITHIN BOUND" if self.error <= self.bound else "FAIL"), words


def way(theorem: Theorem, system: System) -> str | None:
    """How this theorem is checked in this system."""
    return next((w for w in ways(system) if w in theorem.ways), None)


def ways(system: System) -> tuple[str, ...]:
    if system.exact:
        return ("equality", "witness")
    if isinstance(system, Balls):
        return ("enclosure",)
    if isinstance(system, Dependencies):
        return ("structure",)
    if isinstance(system, Multiprecision):
        return ("bound",)
    if isinstance(system, Rounded):
        return ("probe", "oracle")
    if not isinstance(system, Float):
        raise NotDefined(f"verify: {system.name} has no way of deciding equality")
    if str(system.device).startswith("meta"):
        raise NotDefined(f"verify: {system.name} has shapes but no values; there is nothing to compare")
    if system.kind not in FORMATS:
        raise NotDefined(f"verify: no error bound is known for {system.name}; it must be float64, float32, float16 or bfloat16")
    return ("bound", "probe", "oracle") if unit_roundoff(system.kind) <= Fraction(1, 2**24) else ("probe", "oracle")


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


@functools.cache
def source() -> str:
    """The digest of the library's source: every seed contains it, so that nobody picks a lucky one."""
    sha = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        sha.update(path.name.encode() + path.read_bytes())
    return sha.hexdigest()


@dataclass
class Draws:
    """Where the numbers come from: a seed, and the digest of the source that it is mixed with. Degrees are computed once."""

    seed: int = 0
    source: str = ""
    known: dict[tuple[str, Any], tuple[int, int] | None] = field(default_factory=dict)

    def seed_of(self, theorem: Theorem, system: str, case: Any, attempt: int) -> int:
        return digest(self.source or source(), theorem.name, system, str(case), self.seed, attempt)

    def degrees(self, theorem: Theorem, case: Any) -> tuple[int, int] | None:
        """(δ, Δ) of a theorem at a shape: run in Degrees, and nothing where that cannot run."""
        if (theorem.name, case) not in self.known:
            self.known[theorem.name, case] = _degrees(theorem, case)
        return self.known[theorem.name, case]


def _degrees(theorem: Theorem, case: Any) -> tuple[int, int] | None:
    system = Degrees()
    try:
        pairs = [(left, right) for _, left, right in theorem.sides(case, Numbers(system, 0)) if not isinstance(left, int)]
        return max((degree(*pair) for pair in pairs), default=0), system.divided
    except NotDefined:
        return None


def check(theorem: Theorem, system: Any, cases: Iterable[Any], draws: Draws | None = None) -> Result:
    """Check one theorem in one system, on those cases that it speaks of."""
    began, draws = time.perf_counter(), draws or Draws()
    how = way(theorem, system)
    result = Result(theorem.name, label(system), "N/A", "")
    if theorem.only not in ("", result.system):
        result.evidence = f"{theorem.name} is too large for any system but {theorem.only}"
        return result
    if how is None:
        result.evidence = ELSEWHERE.get(theorem.ways, "").format(theorem.name) or OWN[ways(system)[0]]
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
        result.instances += 1
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
        try:
            compare(how, theorem.sides, case, system, draws.seed_of(theorem, label(system), case, attempt), tally)
        except Exception as error:
            if isinstance(error, ZeroDivisionError) and how != "probe":
                tally.redraws += 1
                continue
            tally.failure = f"raised {type(error).__name__}: {error}"  # whatever a form raises on good input is its failure
        if how == "equality" and isinstance(system, FiniteField) and theorem.certified and not tally.failure:
            weigh(draws.degrees(theorem, case), case, system, tally)
        return
    tally.undrawn = f"{REDRAWS} draws in a row had a zero denominator"


def weigh(known: tuple[int, int] | None, case: Any, system: FiniteField, tally: Tally) -> None:
    """What an agreement modulo p is worth at this shape; the least of all shapes counts."""
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


def verdict(how: str, tally: Tally) -> tuple[str, str]:
    """The verdict, and in words what it rests on."""
    if tally.failure:
        return "FAIL", tally.failure
    if tally.undrawn:
        return "NOT RUN", tally.undrawn
    if tally.rows and tally.vacuous == tally.rows:
        return "VACUOUS", "the bound is as large as the output in every row"
    unsaid = f"; {tally.vacuous} of {tally.rows} rows vacuous" if tally.vacuous else ""
    if how == "oracle":
        return tally.against_oracle()
    if how == "enclosure":
        return "ENCLOSED", f"|difference| ≤ 2ρ = {tally.bound:.1e}{unsaid}"
    if how == "bound" and tally.ratio:
        return "WITHIN BOUND", f"error/bound ≤ {tally.ratio:.2g}{unsaid}"
    if how == "equality" and tally.chance is not None and tally.chance < 1:
        return "EXACT", "all values at these shapes, " + likelihood(tally.chance)
    words = {
        "equality": "equal at these instances", "probe": "equal at these probes", "structure": "all values at these shapes",
        "witness": "shown by a witness",
    }  # fmt: skip
    return "EXACT", words.get(how, "no rounding error at these instances")


def likelihood(chance: Fraction) -> str:
    if chance == 0:
        return "without doubt"
    return f"false with probability ≤ 2^-{(chance.denominator // chance.numerator).bit_length() - 1}"


def compare(how: str, sides: Callable[[Any, Numbers], Iterator[Any]], case: Any, system: Any, seed: int, tally: Tally) -> None:
    """Run both sides on one instance and add what is found to the tally."""
    numbers = Numbers(system, seed)
    pairs = list(sides(case, numbers))
    errors: Iterable[Any] = pairs
    if how == "bound":
        mp = isinstance(system, Multiprecision)
        analysis = RunningError("float64" if mp else dtype_name(system.dtype))
        # Each step of the bound grows at least in proportion to u (but for a root of an inexact number near 0, which no theorem takes):
        # at the precision of mpmath, 2^(53−prec) times it is still a bound.
        finer = 2.0 ** (53 - system.ctx.prec) if mp else 1.0
        errors = [(x, y, finer) for _, x, y in sides(case, Numbers(analysis, seed, system))]
    if how == "oracle":
        errors = list(sides(case, Numbers(MP(ORACLE), seed, system)))
    tally.inputs.update(numbers.digest.digest())
    tally.notes = numbers.notes
    for pair, about in zip(pairs, errors, strict=True):
        name, left, right = pair
        where = f"{name} at {case}"
        tally.outputs.update(content(right))
        if isinstance(pair, Different):
            if system.equal(left, right):
                tally.failure = tally.failure or f"{name}: both sides are equal, so it shows nothing"
        elif isinstance(left, int):
            tally.failure = tally.failure or ("" if left == right else f"{name} is {left} instead of {right}")
        elif tuple(left.shape) != tuple(right.shape):
            tally.failure = tally.failure or f"{name} has shape {tuple(left.shape)} instead of {tuple(right.shape)}"
        elif how == "bound":
            within_bound(name, left, right, (about[0].planes[1] + about[1].planes[1]) * about[2], where, tally)
        elif how == "oracle":
            truth = about[2].system.fractions(about[2])
            tally.left, tally.right = (total + squares(x, truth) for total, x in ((tally.left, left), (tally.right, right)))
        elif how == "enclosure":
            enclosed(name, left, right, system, where, tally)
        else:
            unequal = fractions(left, name) != fractions(right, name) if how == "probe" else system.unequal(left, right)
            differ(name, left, right, np.asarray(unequal, dtype=bool), tally)


def squares(x: Any, truth: np.ndarray) -> float:
    """Σ (x − truth)², relative to the largest entry."""
    error, size = (np.asarray(y.astype(np.float64)) for y in (fractions(x, "verify") - truth, truth))
    return float(np.sum((error / max(np.max(np.abs(size), initial=0), 1e-300)) ** 2))


def differ(name: str, left: Any, right: Any, bad: np.ndarray, tally: Tally) -> None:
    """Note the first entry of two that differ."""
    if bad.any() and not tally.failure:
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        a, b = (", ".join(short(p[at]) for p in x.planes) if isinstance(x, Array) else float(fractions(x, name)[at]) for x in (left, right))
        tally.failure = f"{name}{list(at)} is {a} instead of {b}"


def short(x: Any) -> str:
    """A number; of a fraction with many digits, about how much it is."""
    if isinstance(x, Fraction) and x.denominator.bit_length() > 100:
        return f"about {x.numerator / x.denominator:.6g}"
    return str(x)


def within_bound(name: str, left: Any, right: Any, bound: np.ndarray, where: str, tally: Tally) -> None:
    error = np.abs(nearly(left - right) if isinstance(right, Array) else nearly(left) - nearly(right))
    if np.all(error * (1 + 2.0**-50) <= bound):  # then it is so for certain, though `error` is rounded
        found = judged(error, np.abs(nearly(right)), bound)
    else:
        left, right = fractions(left, name), fractions(right, name)
        found, error = judge(left, right, bound), abs(left - right).astype(np.float64)
    tally.rows, tally.vacuous = tally.rows + found.rows, tally.vacuous + found.vacuous
    if found.verdict == "EXCESS":
        differ(name, left, right, error > bound, tally)
    if found.worst > tally.ratio:
        tally.ratio, tally.error, tally.bound, tally.worst = found.worst, float(error[found.index]), float(bound[found.index]), where


def nearly(x: Any) -> np.ndarray:
    """In float64, right to a unit in the last place."""
    return np.asarray((x.planes[0] if isinstance(x, Array) else host(x)).astype(np.float64))


def enclosed(name: str, left: Any, right: Any, system: Balls, where: str, tally: Tally) -> None:
    differ(name, left, right, left != right, tally)
    width = 2 * system.radius(left - right)
    size = max((abs(float(x)) for x in system.fractions(right).ravel()), default=math.inf)
    tally.rows, tally.vacuous = tally.rows + 1, tally.vacuous + (width >= size > 0)
    if width > tally.bound:
        tally.bound, tally.worst = width, where
