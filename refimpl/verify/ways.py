"""The ways of checking an identity: how two sides are compared, and what their agreement is worth.

>>> print(table())
equality   exact systems         equal at these instances; in GF(p), at all values with high chance
witness    exact systems         what is said to differ does differ
enclosure  balls                 the difference contains 0 and is at most 2ρ, at these instances
bound      mpmath, wide floats   no further apart than rounding allows, at these instances
probe      floats of any width   equal where no operation rounds
oracle     floats of any width   rounds no worse than twice the other side
sampled    float64               the mean of many draws is within 6 standard errors of the formula
structure  dependencies          all values at these shapes
"""

from __future__ import annotations

import hashlib
import math
import re
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from ..arrays import Array
from ..systems import MP, RunningError, System, SystemArray, fractions
from ..systems.array import host, plain
from ..systems.floats import dtype_name
from ..systems.multiprecision import Multiprecision
from .bounds import judge, judge_errors, vacuous_rows
from .implementation import Implementation
from .theorem import Different, Numbers, Theorem, record

ORACLE = 40  # digits of the true values
MANY = 20  # instances that are enough for a verdict
FAR = 6  # standard errors; a normal mean is as far off once in 5·10⁸ times
SURE = 4  # standard errors; a normal mean is as far off on one side once in 3·10⁴ times
SEEN = 0.05  # the relative error of a formula that a sample must be large enough to show
Pair = tuple[str, Any, Any]  # a name and two sides


@dataclass(frozen=True)
class Finding:
    """The result of comparing two sides.

    failure        a sentence on what is wrong; empty if nothing is
    ratio          the largest error as a multiple of its bound, or of the standard error
    error, bound   that error, and its bound
    compared       the number of entries compared; of an empty array there are none
    rows, vacuous  the number of rows with a bound, and of those whose bound is vacuous
    squares        Σ (x − truth)² of both sides, relative to the largest entry
    draws          the number of draws in the mean
    """

    name: str
    failure: str = ""
    ratio: float = 0.0
    error: float = 0.0
    bound: float = 0.0
    compared: int = 0
    rows: int = 0
    vacuous: int = 0
    squares: tuple[float, float] = (0.0, 0.0)
    draws: int = 0

    @property
    def kind(self) -> str:
        """The name without its numbers, which come from the case: "split at n: o"."""
        return re.sub(r"-?\d+", "n", self.name)


@dataclass(frozen=True)
class Instance:
    """One case with one draw of its numbers, and the findings on all its pairs of sides.

    failure    a failure of the instance itself, e.g. the exception that a side raised
    undrawn    the reason if there is no instance: every draw had a zero denominator
    chance     an upper bound on the probability that a false identity would have passed
    """

    case: str
    findings: tuple[Finding, ...] = ()
    failure: str = ""
    undrawn: str = ""
    redraws: int = 0
    chance: Fraction | None = None
    degree: int | None = None
    inputs: bytes = b""
    outputs: bytes = b""
    notes: str = ""

    @property
    def wrong(self) -> str:
        return next((f.failure for f in self.findings if f.failure), self.failure)

    def has(self, kind: str) -> bool:
        """Is there a pair of this kind?"""
        return any(f.kind == kind for f in self.findings)

    @property
    def counts(self) -> bool:
        """Was anything compared, with at least one bound that is not vacuous, if it has bounds?"""
        compared, rows, vacuous = totals(self.findings)
        return compared > 0 and (not rows or rows > vacuous)


def totals(findings: Iterable[Finding]) -> tuple[int, int, int]:
    """The entries compared, the rows with a bound, and the vacuous ones."""
    each = [(f.compared, f.rows, f.vacuous) for f in findings]
    compared, rows, vacuous = (sum(column) for column in zip((0, 0, 0), *each, strict=True))
    return compared, rows, vacuous


class Verdict(NamedTuple):
    """A verdict, its evidence in words, and where the agreement is weakest."""

    verdict: str
    evidence: str
    error: float = 0.0
    bound: float = 0.0
    worst: str = ""


@dataclass(frozen=True)
class Tally:
    """All instances of a check, in order; the check stops at the first that is wrong."""

    instances: tuple[Instance, ...]

    @property
    def findings(self) -> list[Finding]:
        return [f for i in self.instances for f in i.findings]

    @property
    def count(self) -> int:
        return sum(i.counts for i in self.instances)

    @property
    def tested(self) -> list[Instance]:
        """The instances that speak of other values too: modulo p, a false identity rarely passes.

        If the degree is of the size of p, nothing follows for other values.
        """
        return [i for i in self.instances if i.counts and i.chance is not None and i.chance <= Fraction(1, 2)]

    @property
    def least_certain(self) -> Instance | None:
        """The one of these with the largest chance that a false identity passes."""
        return max(self.tested, key=lambda i: i.chance or 0, default=None)

    @property
    def vacuous(self) -> str:
        """How many rows are vacuous, and how many pairs of one instance have no other rows."""
        _, rows, vacuous = totals(self.findings)
        pairs = sum(0 < f.rows == f.vacuous for f in self.findings)
        none = f", {pairs} of {len(self.findings)} pairs not run since all their rows are" if pairs else ""
        return f"; {vacuous} of {rows} rows vacuous{none}" if vacuous else ""

    def by_kind(self) -> dict[str, tuple[int, int, int]]:
        """For each kind of pair, in all instances together: what `totals` counts."""
        kinds: dict[str, list[Finding]] = {}
        for f in self.findings:
            kinds.setdefault(f.kind, []).append(f)
        return {kind: totals(found) for kind, found in kinds.items()}

    @property
    def undecided(self) -> str:
        """The kind of a pair whose rows are vacuous in every instance that has it; "" for none."""
        return next((kind for kind, (_, rows, vacuous) in self.by_kind().items() if 0 < rows == vacuous), "")

    @property
    def empty(self) -> str:
        """The kind of a pair of which no instance has an entry to compare; "" for none."""
        return next((kind for kind, (compared, _, _) in self.by_kind().items() if not compared), "")

    def largest(self, field: str) -> tuple[Finding, str]:
        """The finding with the largest value of a field, and its place, empty if the value is 0."""
        pairs = ((f, f"{f.name} at {i.case}") for i in self.instances for f in i.findings)
        finding, where = max(pairs, key=lambda pair: getattr(pair[0], field))
        return finding, where if getattr(finding, field) else ""

    def digest(self, field: str) -> str:
        return hashlib.sha256(b"".join(getattr(i, field) for i in self.instances)).hexdigest()[:16]


@dataclass(frozen=True)
class Way:
    """A way of checking.

    systems   the systems in which it is used
    says      the meaning of an agreement
    evidence  the evidence of a result in which nothing is measured
    redraws   are the numbers drawn again after a zero denominator?
    sparse    does a quick run take every second case? Twice as many shapes say little more where
              numbers are rounded.
    """

    name: str
    systems: str
    says: str
    evidence: str = ""
    redraws: bool = False
    sparse: bool = False

    def run(self, theorem: Theorem, case: Any, system: Any, seed: int, impl: Implementation) -> Instance:
        """Draw the numbers of one instance, run both sides and compare them."""
        numbers, outputs = Numbers(system, seed), hashlib.sha256()
        pairs = list(theorem.sides(case, numbers, impl))
        analysis = self.analysis(system)
        again = pairs if analysis is None else list(theorem.sides(case, Numbers(analysis, seed, system), impl))
        findings = []
        for pair, same in zip(pairs, again, strict=True):
            record(outputs, *pair[1:])
            findings.append(self.compare(system, pair, same))
        inputs, failure = numbers.digest.digest(), "" if pairs else "nothing was compared"
        return Instance(
            str(case), tuple(findings), failure, inputs=inputs, outputs=outputs.digest(), notes=numbers.notes
        )

    def analysis(self, system: Any) -> System | None:
        """A system in which the same instance runs again, to tell how large errors may be."""
        return None

    def compare(self, system: Any, pair: Pair, same: Pair) -> Finding:
        """Compare the two sides of a pair; `same` is the pair in the analysis."""
        name, left, right = pair
        if isinstance(left, int):
            return Finding(name, "" if left == right else f"{name} is {left} instead of {right}", compared=1)
        if tuple(left.shape) != tuple(right.shape):
            return Finding(name, f"{name} has shape {tuple(left.shape)} instead of {tuple(right.shape)}")
        count = math.prod(left.shape)
        return replace(self.compare_arrays(system, pair, same), compared=count) if count else Finding(name)

    @abstractmethod
    def compare_arrays(self, system: Any, pair: Pair, same: Pair) -> Finding:
        """Compare two arrays of one shape that are not empty."""

    def verdict(self, tally: Tally) -> Verdict:
        """The verdict on all instances, and the evidence for it."""
        last = tally.instances[-1]
        if last.wrong or last.undrawn:
            return Verdict("FAIL" if last.wrong else "NOT RUN", last.wrong or last.undrawn, worst=last.case)
        if not totals(tally.findings)[0]:
            return Verdict("NOT RUN", "nothing was compared: every array is empty", worst=last.case)
        if not tally.count:
            return Verdict("VACUOUS", "the bound is as large as the output in every row")
        if kind := tally.undecided:
            return Verdict("NOT RUN", f"{kind}: the bound is as large as the output in every row of it")
        if len(tally.instances) > 1 and (kind := tally.empty):  # one alone may be of no tokens
            return Verdict("NOT RUN", f"{kind}: nothing was compared, since every array of it is empty")
        return self.agreement(tally)

    @abstractmethod
    def agreement(self, tally: Tally) -> Verdict:
        """The verdict if no instance is wrong and some instance counts."""


class Equality(Way):
    def compare_arrays(self, system: Any, pair: Pair, same: Pair) -> Finding:
        name, left, right = pair
        return Finding(name, first_difference(name, left, right, np.asarray(system.unequal(left, right), dtype=bool)))

    def agreement(self, tally: Tally) -> Verdict:
        least, some = tally.least_certain, len(tally.tested) < tally.count
        if least is None or least.chance is None:
            return Verdict("EXACT", self.evidence)
        shapes = f"{len(tally.tested)} of {tally.count} shapes" if some else "these shapes"
        evidence = f"all values at {shapes}, {likelihood(least.chance)}"
        return Verdict("EXACT", f"{evidence}; {HERE} of the others" if some else evidence, worst=least.case)


class Witness(Equality):
    def compare_arrays(self, system: Any, pair: Pair, same: Pair) -> Finding:
        if not isinstance(pair, Different):
            return super().compare_arrays(system, pair, same)
        equal = system.equal(pair.left, pair.right)
        return Finding(pair.name, f"{pair.name}: both sides are equal, so it shows nothing" if equal else "")


class Enclosure(Way):
    def compare_arrays(self, system: Any, pair: Pair, same: Pair) -> Finding:
        name, left, right = pair
        xp, last = system.xp, right.shape[-1] if right.shape else 1
        difference, middles = xp.reshape(left - right, (-1, last)), xp.reshape(right, (-1, last))
        widths = np.array([2 * system.radius(difference[i]) for i in range(difference.shape[0])])
        # An unbounded ball has no middle, and its row is vacuous.
        known = xp.where(system.isfinite(middles), middles, 0)
        vacuous = vacuous_rows(np.abs(system.fractions(known).astype(np.float64)), widths[:, None])
        failure, bound = first_difference(name, left, right, left != right), max(widths[~vacuous], default=0.0)
        return Finding(name, failure, bound=float(bound), rows=len(widths), vacuous=int(vacuous.sum()))

    def agreement(self, tally: Tally) -> Verdict:
        finding, where = tally.largest("bound")
        evidence = f"|difference| ≤ 2ρ = {finding.bound:.1e}{tally.vacuous}"
        return Verdict("ENCLOSED", evidence, bound=finding.bound, worst=where)


class Bound(Way):
    def analysis(self, system: Any) -> System:
        return RunningError("float64" if isinstance(system, Multiprecision) else dtype_name(system.dtype))

    def compare_arrays(self, system: Any, pair: Pair, same: Pair) -> Finding:
        # The bound grows at least in proportion to u (except for a root of an inexact number near
        # 0, which no theorem takes). So at the precision of mpmath, 2^(53−prec) times the bound for
        # float64 is a bound.
        finer = 2.0 ** (53 - system.ctx.prec) if isinstance(system, Multiprecision) else 1.0
        name, left, right = pair
        bound = (same[1].planes[1] + same[2].planes[1]) * finer
        error = np.abs(nearly(left - right) if isinstance(right, SystemArray) else nearly(left) - nearly(right))
        if np.all(error * (1 + 2.0**-50) <= bound):  # then the exact error is within the bound too
            found = judge_errors(error, np.abs(nearly(right)), bound)
        else:
            left, right = fractions(left, name), fractions(right, name)
            found, error = judge(left, right, bound), abs(left - right).astype(np.float64)
        failure = first_difference(name, left, right, error > bound) if found.verdict == "EXCESS" else ""
        worst = (float(error[found.index]), float(bound[found.index])) if found.worst else (0.0, 0.0)
        return Finding(name, failure, found.worst, *worst, rows=found.rows, vacuous=found.vacuous)

    def agreement(self, tally: Tally) -> Verdict:
        finding, where = tally.largest("ratio")
        if not finding.ratio:
            return Verdict("EXACT", f"no rounding error at these instances{tally.vacuous}")
        evidence = f"error/bound ≤ {finding.ratio:.2g}{tally.vacuous}"
        return Verdict("WITHIN BOUND", evidence, finding.error, finding.bound, where)


class Probe(Equality):
    def compare_arrays(self, system: Any, pair: Pair, same: Pair) -> Finding:
        name, left, right = pair
        return Finding(name, first_difference(name, left, right, fractions(left, name) != fractions(right, name)))


class Oracle(Way):
    """The left side may round at most twice as badly as the right.

    With fewer than MANY instances the errors are measured, without a verdict.
    """

    def analysis(self, system: Any) -> System:
        return MP(ORACLE)

    def compare_arrays(self, system: Any, pair: Pair, same: Pair) -> Finding:
        name, left, right = pair
        truth = same[2].system.fractions(same[2])
        return Finding(name, squares=(relative_squared_error(left, truth), relative_squared_error(right, truth)))

    def agreement(self, tally: Tally) -> Verdict:
        left, right = (math.sqrt(sum(f.squares[i] for f in tally.findings)) for i in (0, 1))
        enough = tally.count >= MANY
        instances = f"{tally.count} instances" + ("" if enough else ", too few to judge")
        evidence = f"error {left:.1e} against {right:.1e} by {ORACLE} digits, in {instances}"
        return Verdict("FAIL" if enough and left > 2 * right else "MEASURED", evidence, left, 2 * right)


class Sampling(Way):
    """By the central limit theorem, the mean of many draws is near the formula if it is true.

    A formula that is wrong by FAR + SURE standard errors fails, but for once in 3·10⁴ times. If
    that is more than SEEN of its value, there are too few draws.
    """

    def compare(self, system: Any, pair: Pair, same: Pair) -> Finding:
        name, draws, mean = pair
        x, m = host(draws), float(host(mean))
        error = float(np.std(x, ddof=1)) / math.sqrt(len(x))
        # Draws that are all equal, or not finite, fail.
        far = abs(float(np.mean(x)) - m) / error if error > 0 else math.nan
        words = f"{name}: the mean of {len(x)} draws is {np.mean(x):.4g}, {far:.1f} standard errors from {m:.4g}"
        near = far <= FAR
        return Finding(name, "" if near else words, far if near else FAR, error / abs(m), compared=1, draws=len(x))

    compare_arrays = compare  # draws and their mean have different shapes

    def agreement(self, tally: Tally) -> Verdict:
        (furthest, where), error = tally.largest("ratio"), tally.largest("error")[0].error
        within = f"within {furthest.ratio:.1f} standard errors, of {error:.2%} at most"
        power = f"{FAR} would be FAIL, so that a formula wrong by {(FAR + SURE) * error:.1%} is seen"
        evidence = f"means of {furthest.draws} draws each {within}; {power}"
        return Verdict("MEASURED" if (FAR + SURE) * error <= SEEN else "VACUOUS", evidence, error, worst=where)


EXACT, FLOATS, HERE, SHAPES = (
    "exact systems",
    "floats of any width",
    "equal at these instances",
    "all values at these shapes",
)
ALL = (
    Equality("equality", EXACT, f"{HERE}; in GF(p), at all values with high chance", HERE, redraws=True),
    Witness("witness", EXACT, "what is said to differ does differ", "shown by a witness", redraws=True),
    Enclosure("enclosure", "balls", "the difference contains 0 and is at most 2ρ, at these instances", sparse=True),
    Bound("bound", "mpmath, wide floats", "no further apart than rounding allows, at these instances", sparse=True),
    Probe("probe", FLOATS, "equal where no operation rounds", "equal at these probes"),
    Oracle("oracle", FLOATS, "rounds no worse than twice the other side", redraws=True),
    Sampling("sampled", "float64", f"the mean of many draws is within {FAR} standard errors of the formula"),
    Equality("structure", "dependencies", SHAPES, SHAPES),
)
WAYS: dict[str, Way] = {way.name: way for way in ALL}
# The reason why a theorem that has only this way is not checked in other systems
THEOREM_ELSEWHERE = {
    "witness": "a witness is a matter of exact numbers",
    "probe": "{} speak of float formats",
    "oracle": "{} is about rounding, of which there is none or it is enclosed",
    "sampled": "{} is about means over draws, taken in float64",
    "structure": "{} is read off dependency sets",
}
# The reason why a system that has this way does not check other theorems
OTHER_THEOREMS = {
    "enclosure": "balls do not say which of two numbers is larger",
    "probe": "at this precision exact_probes decide",
    "structure": "dependency sets say nothing of values",
}


def table() -> str:
    """One line for each way: its name, its systems, and the meaning of an agreement."""
    return "\n".join(f"{way.name:10} {way.systems:21} {way.says}" for way in ALL)


def way_of(theorem: Theorem, system: System) -> Way | None:
    """The way in which this theorem is checked in this system."""
    return next((WAYS[name] for name in system.ways if name in theorem.ways), None)


def reason_against(theorem: Theorem, system: System) -> str:
    """The reason why this theorem cannot be checked in this system."""
    alone = THEOREM_ELSEWHERE.get(theorem.ways[0], "") if len(theorem.ways) == 1 else ""
    return alone.format(theorem.name) or OTHER_THEOREMS.get(system.ways[0], "")


def likelihood(chance: Fraction) -> str:
    if chance == 0:
        return "without doubt"
    return f"false with probability ≤ 2^-{(chance.denominator // chance.numerator).bit_length() - 1}"


def relative_squared_error(x: Array, truth: np.ndarray) -> float:
    """Σ (x − truth)², relative to the largest entry."""
    error, size = (np.asarray(y.astype(np.float64)) for y in (fractions(x, "verify") - truth, truth))
    return float(np.sum((error / max(np.max(np.abs(size), initial=0), 1e-300)) ** 2))


def first_difference(name: str, left: Any, right: Any, bad: np.ndarray) -> str:
    """A sentence on the first entry at which two sides differ; empty if there is none."""
    if not bad.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(bad)[0])

    def entry(x: Any) -> Any:
        return (
            ", ".join(short(p[at]) for p in x.planes) if isinstance(x, SystemArray) else float(fractions(x, name)[at])
        )

    return f"{name}{list(at)} is {entry(left)} instead of {entry(right)}"


def short(x: Any) -> str:
    """A number as text; a fraction with a denominator of over 100 bits only approximately."""
    x = plain(x)
    if isinstance(x, Fraction) and x.denominator.bit_length() > 100:
        return f"about {x.numerator / x.denominator:.6g}"
    return str(x)


def nearly(x: Any) -> np.ndarray:
    """The numbers in float64, correct to a unit in the last place."""
    return np.asarray((x.planes[0] if isinstance(x, SystemArray) else host(x)).astype(np.float64))
