"""The conventions of a kernel, found out by trying it on a few tiny cases.

Every combination of values that the conventions usually have is a candidate. A sieve in float64
drops those that are far off on one case; those that are left must agree on all cases within the
derived bound. If several do, the cases do not tell them apart, and all are named.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ..systems.floats import quiet
from .check import attempt
from .diagnose import Trial
from .judge import PLAIN, expect, judge
from .plan import Case
from .spec import Spec, conventions
from .subject import Subject

SIEVE = 0.05  # of the size of the results: a first look, by which nothing is decided
FIXED = ("call", "library", "dtype", "sums", "state_dtype", "sharing")  # to be said by the user
TINY = (
    Case(n=3, d=4, m=3, values="plain"),
    Case(n=4, heads=2, groups=2, d=6, m=2, values="plain", seed=1),
    Case(n=5, d=4, m=4, values="tiny", seed=2),
    Case(n=6, batch=2, d=4, m=3, values="plain", start=True, seed=3),
    Case(n=3, d=4, m=3, values="plain", start=True, position=40, seed=4),
)


def guess(
    subject: Subject,
    spec: Spec,
    *,
    stated: Collection[str] = (),
    progress: Callable[[str], None] = lambda line: None,
) -> list[Spec]:
    """The readings of a kernel that agree with it, those with the fewest changes of `spec` first.

    stated : conventions that are as in spec, and not to be found out
    """
    for laid in layouts(spec, frozenset(stated)):
        trials = [attempt(subject, laid, laid.dtypes[0], case) for case in TINY if not laid.refuses(case)]
        trials = [trial for trial in trials if trial.answer.results]
        found: list[Spec] = []
        known = frozenset(stated)
        for i, other in enumerate(candidates(laid, known.union(laid.small)) if trials else ()):
            if i % 100 == 0:
                progress(f"reading {i}, of which {len(found)} agree")
            if all(near(other, t) for t in trials):
                found += [each for each in exactly(other, known) if all(fits(each, t) for t in trials)]
        if found:
            return sorted(found, key=lambda other: changes(spec, other))
    return []


def changes(spec: Spec, other: Spec) -> int:
    return sum(getattr(spec, f.name) != getattr(other, f.name) for f in conventions(spec))


def layouts(spec: Spec, stated: frozenset[str]) -> Iterator[Spec]:
    """The orders of the axes that a kernel may mean, the one of spec first."""
    yield spec
    names = [f.name for f in conventions(spec) if f.name.endswith("axes") and f.name not in stated]
    values = {"axes": ("BHTD", "BTHD", "TD", "HTD", "THD", "BTD", "BT(HD)")}
    for chosen in itertools.product(*(values.get(name, (getattr(spec, name), *other_axes(name))) for name in names)):
        try:
            yield replace(spec, **dict(zip(names, chosen, strict=True)))
        except ValueError:
            continue


def other_axes(name: str) -> tuple[str, ...]:
    return {"state_axes": ("BHKV", "BHVK"), "z_axes": ("BHK", "B1HK")}.get(name, ())


def exactly(spec: Spec, stated: frozenset[str]) -> Iterator[Spec]:
    """A reading with every value of the conventions that change little."""
    others = {f.name for f in conventions(spec)} - {*spec.small}
    return candidates(spec, stated | others)


def candidates(spec: Spec, stated: frozenset[str]) -> Iterator[Spec]:
    """Every combination of usual values; of those that say the same, the one like spec."""
    fixed = {*FIXED, *stated}
    free = [f for f in conventions(spec) if f.metadata["others"] and f.name not in fixed and "axes" not in f.name]
    for values in itertools.product(*(dict.fromkeys((getattr(spec, f.name), *f.metadata["others"])) for f in free)):
        try:
            other = replace(spec, **dict(zip((f.name for f in free), values, strict=True)))
        except (ValueError, TypeError):
            continue
        if all(getattr(other, name) == getattr(spec, name) for name in other.idle()):
            yield other


@quiet()
def fits(other: Spec, trial: Trial) -> bool:
    """Are the kernel's numbers within the bounds of a reading?"""
    try:
        expected = expect(other, trial.case, trial.dtype, trial.x, exact=False)
    except (ValueError, TypeError, ArithmeticError, IndexError):
        return False
    judged = judge(other, trial.dtype, expected, trial.answer, exact=False)
    return not any(j.verdict in ("WRONG", "EXCESS") for j in judged)


@quiet()
def near(other: Spec, trial: Trial) -> bool:
    """Is a reading near the kernel's numbers, by a rough look?"""
    try:
        found = other.compute(trial.x, PLAIN)
    except (ValueError, TypeError, ArithmeticError, IndexError):
        return False
    for name, got in trial.answer.results.items():
        want = np.asarray(found[name], dtype=np.float64)
        if want.shape != got.shape:
            return False
        known = np.isfinite(want)
        if trial.case.values != "tiny" and np.any(np.abs(got - want)[known] > SIEVE * np.max(np.abs(want[known]), initial=1e-30)):
            return False
    return True
