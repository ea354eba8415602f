"""The two sides of one instance compared, in the way that a number system allows; and the verdict on all of them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from ..systems import MP, RunningError, SystemArray, fractions
from ..systems.array import host, plain
from ..systems.balls import Balls
from ..systems.floats import dtype_name
from ..systems.multiprecision import Multiprecision
from .bounds import judge, judged
from .theorem import Different, Numbers, Sampled, record

ORACLE = 40  # digits
MANY = 20  # instances over which luck evens out
FAR = 6  # standard errors: for a normal mean, luck goes so far once in 5·10⁸


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
    compared: int = 0  # instances of which something is known
    chance: Fraction | None = None  # with which a false identity would have passed
    degree: int | None = None
    draws: int = 0  # of which means were taken
    left: float = 0.0  # squared errors of both sides against an oracle
    right: float = 0.0
    notes: str = ""
    inputs: Any = field(default_factory=hashlib.sha256)
    outputs: Any = field(default_factory=hashlib.sha256)

    def against_oracle(self) -> tuple[str, str]:
        """The left side may round at most twice as badly as the right. Few instances can mislead: there it is measured, not judged."""
        self.error, self.bound = math.sqrt(self.left), 2 * math.sqrt(self.right)
        judged = f"{self.compared} instances" + ("" if self.compared >= MANY else ", too few to judge")
        words = f"error {self.error:.1e} against {self.bound / 2:.1e} by {ORACLE} digits, in {judged}"
        return ("FAIL" if self.compared >= MANY and self.error > self.bound else "MEASURED"), words


def verdict(how: str, tally: Tally) -> tuple[str, str]:
    """The verdict, and in words what it rests on."""
    if tally.failure:
        return "FAIL", tally.failure
    if tally.undrawn:
        return "NOT RUN", tally.undrawn
    if tally.rows and not tally.compared:
        return "VACUOUS", "the bound is as large as the output in every row"
    unsaid = f"; {tally.vacuous} of {tally.rows} rows vacuous" if tally.vacuous else ""
    if how == "oracle":
        return tally.against_oracle()
    if how == "sampled":
        within = f"within {tally.ratio:.1f} standard errors, of {tally.error:.1%} at most"
        return "MEASURED", f"means of {tally.draws} draws each {within}; {FAR} would be FAIL"
    if how == "enclosure":
        return "ENCLOSED", f"|difference| ≤ 2ρ = {tally.bound:.1e}{unsaid}"
    if how == "bound" and tally.ratio:
        return "WITHIN BOUND", f"error/bound ≤ {tally.ratio:.2g}{unsaid}"
    if how == "equality" and tally.chance is not None and tally.chance <= Fraction(1, 2):
        return "EXACT", "all values at these shapes, " + likelihood(tally.chance)
    words = {
        "equality": "equal at these instances",
        "probe": "equal at these probes",
        "structure": "all values at these shapes",
        "witness": "shown by a witness",
    }
    return "EXACT", words.get(how, "no rounding error at these instances")


def likelihood(chance: Fraction) -> str:
    if chance == 0:
        return "without doubt"
    return f"false with probability ≤ 2^-{(chance.denominator // chance.numerator).bit_length() - 1}"


def compare(
    how: str, sides: Callable[[Any, Numbers], Iterator[Any]], case: Any, system: Any, seed: int, tally: Tally
) -> None:
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
    if not pairs:
        tally.failure = "nothing was compared"
    rows, vacuous = tally.rows, tally.vacuous
    for pair, about in zip(pairs, errors, strict=True):
        name, left, right = pair
        where = f"{name} at {case}"
        record(tally.outputs, left, right)
        if isinstance(pair, Sampled):
            sampled(*pair, where, tally)
        elif isinstance(left, int):
            tally.failure = tally.failure or ("" if left == right else f"{name} is {left} instead of {right}")
        elif tuple(left.shape) != tuple(right.shape):
            tally.failure = tally.failure or f"{name} has shape {tuple(left.shape)} instead of {tuple(right.shape)}"
        elif isinstance(pair, Different):
            if system.equal(left, right):
                tally.failure = tally.failure or f"{name}: both sides are equal, so it shows nothing"
        elif how == "bound":
            within_bound(name, left, right, (about[0].planes[1] + about[1].planes[1]) * about[2], where, tally)
        elif how == "oracle":
            truth = about[2].system.fractions(about[2])
            tally.left, tally.right = (
                total + squares(x, truth) for total, x in ((tally.left, left), (tally.right, right))
            )
        elif how == "enclosure":
            enclosed(name, left, right, system, where, tally)
        else:
            unequal = fractions(left, name) != fractions(right, name) if how == "probe" else system.unequal(left, right)
            differ(name, left, right, np.asarray(unequal, dtype=bool), tally)
    tally.compared += (
        rows == tally.rows or tally.rows - rows > tally.vacuous - vacuous
    )  # a case whose every bound is vacuous was not run


def sampled(name: str, draws: Any, mean: Any, where: str, tally: Tally) -> None:
    """Is the mean of independent draws as far from the formula as luck may take it? By the central limit theorem."""
    x, m = host(draws), float(host(mean))
    error = float(np.std(x, ddof=1)) / math.sqrt(len(x))
    off = (
        abs(float(np.mean(x)) - m) / error if error > 0 else math.nan
    )  # draws that are all the same, or no numbers, show nothing
    tally.draws, tally.error = len(x), max(tally.error, error / abs(m))
    if off > tally.ratio:
        tally.ratio, tally.worst = off, where
    if not off <= FAR:
        tally.failure = (
            tally.failure
            or f"{name}: the mean of {len(x)} draws is {np.mean(x):.4g}, {off:.1f} standard errors from {m:.4g}"
        )


def squares(x: Any, truth: np.ndarray) -> float:
    """Σ (x − truth)², relative to the largest entry."""
    error, size = (np.asarray(y.astype(np.float64)) for y in (fractions(x, "verify") - truth, truth))
    return float(np.sum((error / max(np.max(np.abs(size), initial=0), 1e-300)) ** 2))


def differ(name: str, left: Any, right: Any, bad: np.ndarray, tally: Tally) -> None:
    """Note the first entry of two that differ."""
    if bad.any() and not tally.failure:
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        a, b = (
            ", ".join(short(p[at]) for p in x.planes) if isinstance(x, SystemArray) else float(fractions(x, name)[at])
            for x in (left, right)
        )
        tally.failure = f"{name}{list(at)} is {a} instead of {b}"


def short(x: Any) -> str:
    """A number; of a fraction with many digits, about how much it is."""
    x = plain(x)
    if isinstance(x, Fraction) and x.denominator.bit_length() > 100:
        return f"about {x.numerator / x.denominator:.6g}"
    return str(x)


def within_bound(name: str, left: Any, right: Any, bound: np.ndarray, where: str, tally: Tally) -> None:
    error = np.abs(nearly(left - right) if isinstance(right, SystemArray) else nearly(left) - nearly(right))
    if np.all(error * (1 + 2.0**-50) <= bound):  # then it is so for certain, though `error` is rounded
        found = judged(error, np.abs(nearly(right)), bound)
    else:
        left, right = fractions(left, name), fractions(right, name)
        found, error = judge(left, right, bound), abs(left - right).astype(np.float64)
    tally.rows, tally.vacuous = tally.rows + found.rows, tally.vacuous + found.vacuous
    if found.verdict == "EXCESS":
        differ(name, left, right, error > bound, tally)
    if found.worst > tally.ratio:
        tally.ratio, tally.error, tally.bound, tally.worst = (
            found.worst,
            float(error[found.index]),
            float(bound[found.index]),
            where,
        )


def nearly(x: Any) -> np.ndarray:
    """In float64, right to a unit in the last place."""
    return np.asarray((x.planes[0] if isinstance(x, SystemArray) else host(x)).astype(np.float64))


def enclosed(name: str, left: Any, right: Any, system: Balls, where: str, tally: Tally) -> None:
    differ(name, left, right, left != right, tally)
    width = 2 * system.radius(left - right)
    size = max((abs(float(x)) for x in system.fractions(right).ravel()), default=math.inf)
    tally.rows, tally.vacuous = tally.rows + 1, tally.vacuous + (width >= size > 0)
    if width > tally.bound:
        tally.bound, tally.worst = width, where
