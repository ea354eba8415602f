"""The conventions of a kernel, found out by trying it on a few tiny cases.

Every combination of values that the conventions usually have is a candidate. A sieve in float64
drops those that are far off on one case; those that are left must agree on all cases within the
derived bound. If several do, the cases do not tell them apart, and all are named.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ..systems.floats import quiet
from .check import attempt
from .diagnose import Trial, agrees
from .judge import PLAIN
from .plan import Case
from .spec import Spec, conventions
from .subject import Subject

SIEVE = 0.03  # of the size of the results: no dtype rounds that much, and nothing is decided by it
FIXED = ("call", "library", "dtype", "sums", "state_dtype")  # to be said by the user
TINY = (
    Case(n=1, heads=1, groups=1, d=4, m=3, values="plain"),
    Case(n=3, heads=2, groups=2, d=4, m=3, values="plain"),
    Case(n=4, heads=4, groups=2, d=6, m=2, values="plain", seed=1),
    Case(n=5, heads=1, groups=1, d=4, m=4, values="tiny", seed=2),
    Case(n=6, batch=2, heads=1, groups=1, d=4, m=3, values="plain", start=True, seed=3),
    Case(n=3, heads=1, groups=1, d=4, m=3, values="plain", start=True, position=40, seed=4),
)


def guess(
    subject: Subject, spec: Spec, *, stated: frozenset[str] = frozenset(), progress: Callable[[str], None] = lambda line: None
) -> list[Spec]:
    """The readings of a kernel that agree with it, the fewest changes of `spec` first.

    stated : conventions that are as in spec, and not to be found out
    """
    best: list[Spec] = []
    for laid in lying(spec, stated):
        trials = [t for case in TINY if not laid.refuses(case) if (t := attempt(subject, laid, laid.dtypes[0], case)).answer.results]
        if not trials:
            continue
        found = []
        for i, other in enumerate(candidates(laid, stated)):
            if i % 500 == 0:
                progress(f"reading {i}, of which {len(found)} agree")
            if all(near(other, t) for t in trials) and all(agrees(other, t) is not None for t in trials):
                found.append(other)
        best = found if found and (not best or len(trials) > 0) else best
        if found:
            break
    return sorted(best, key=lambda other: changes(spec, other))


def changes(spec: Spec, other: Spec) -> int:
    return sum(getattr(spec, f.name) != getattr(other, f.name) for f in conventions(spec))


def lying(spec: Spec, stated: frozenset[str]) -> Iterator[Spec]:
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


def candidates(spec: Spec, stated: frozenset[str]) -> Iterator[Spec]:
    """Every combination of usual values; one that says the same as another is left out."""
    free = [f for f in conventions(spec) if f.metadata["others"] and f.name not in {*FIXED, *stated} and "axes" not in f.name]
    seen: set[Any] = set()
    for values in itertools.product(*(dict.fromkeys((getattr(spec, f.name), *f.metadata["others"])) for f in free)):
        try:
            other = replace(spec, **dict(zip((f.name for f in free), values, strict=True)))
        except (ValueError, TypeError):
            continue
        if (key := other.plain()) not in seen:
            seen.add(key)
            yield other


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
        if np.any(np.abs(got - want)[known] > SIEVE * np.max(np.abs(want[known]), initial=1e-30)):
            return False
    return True
