"""Every theorem of the library, and the function that checks them.

A theorem belongs to the tuple `THEOREMS` of a module of verify/theorems. The modules are sorted by
their `ORDER`. Its small cases are checked in every system, and shapes that people use in systems
that are fast: one of each group, by the seed, in the first system that can; with --full all in all.
"""

from __future__ import annotations

import fnmatch
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from ..errors import choose, find_name
from ..systems import GF, MP, QQ, Dependencies, Float, Rounded, System, balls, is_prime, seed_of, system
from ..systems.finite_field import FiniteField
from . import theorems
from .cases import Shape
from .check import Draws, able_cases, check, missing_capability
from .implementation import REFIMPL, Implementation
from .theorem import Result, Theorem
from .theorems.large import P
from .ways import way_of

MODULES = [
    importlib.import_module(f"{theorems.__name__}.{found.name}") for found in pkgutil.iter_modules(theorems.__path__)
]


def theorems_by_name(modules: Iterable[Any]) -> dict[str, Theorem]:
    """The theorems of all modules, in their order. No two have one name."""
    found = [t for module in sorted(modules, key=lambda m: getattr(m, "ORDER", 100)) for t in module.THEOREMS]
    named = {t.name: t for t in found}
    if twice := sorted({t.name for t in found if named[t.name] is not t}):
        raise ValueError(f"verify: every theorem must have a name of its own, got {', '.join(twice)} twice")
    return named


THEOREMS = theorems_by_name(MODULES)


def default_systems(seed: int) -> list[System]:
    """ℚ, two primes (one from the seed), mpmath, balls, floats of all widths, dependency sets."""
    p = seed_of("prime", seed) % 2**60 + 2**60
    while not is_prime(p):
        p -= 1
    floats = [Float(), Float("numpy", "float32"), Rounded("float16"), Rounded("bfloat16")]
    return [QQ, GF(2**61 - 1), GF(p), MP(50), balls(30), *floats, Dependencies()]


def chosen(who: str, names: Sequence[str]) -> list[str]:
    """The theorems that are named, each once: in any case, or by a pattern such as iclca*."""
    found: list[str] = []
    for name in names:
        matches = fnmatch.filter(THEOREMS, name.casefold()) if isinstance(name, str) and set("*?[") & set(name) else []
        name = find_name(name, THEOREMS) if isinstance(name, str) else name
        if not matches:
            choose(who, "NAME", name, THEOREMS)
        found += matches or [name]
    return list(dict.fromkeys(found))


class Task(NamedTuple):
    """One theorem, to be checked in one system on these cases."""

    theorem: Theorem
    system: System
    cases: tuple[Shape, ...]

    @property
    def applies(self) -> bool:
        """Can a case be checked? If none can, the result is N/A, which is no check."""
        return bool(able_cases(*self)[0])


def tasks(names: Sequence[str], systems: Sequence[System] | None, *, full: bool, seed: int) -> list[Task]:
    """What `verify` checks, in the order of its results.

    By default, shapes that people use are also checked modulo P, where products are fast.
    """
    given = systems is not None
    systems = default_systems(seed) if systems is None else systems
    for each in systems:
        each.ways  # noqa: B018  refuses, before the work begins, a system in which nothing can be decided
    found = []
    for theorem in [THEOREMS[name] for name in chosen("verify", names) or THEOREMS]:
        more = theorem.more(seed) if full else ()
        rows: list[tuple[System, list[Shape]]] = []
        for each in [system(theorem.only)] if theorem.only and not given else systems:
            way = way_of(theorem, each)
            sparse = not full and way is not None and way.sparse
            if theorem.cases or more or names:
                rows.append((each, list(theorem.cases[::2] if sparse else (*theorem.cases, *more))))
        extra: list[tuple[System, list[Shape]]] = [] if given else [(GF(P), [])]
        for case in usual_cases(theorem, seed, full):
            can = [cases for each, cases in (*extra, *rows) if fast(each) and able(theorem, case, each)]
            for cases in can if full else can[:1]:
                cases.append(case)
        found += [Task(theorem, each, tuple(cases)) for each, cases in (*rows, *(row for row in extra if row[1]))]
    return found


def fast(each: System) -> bool:
    """Can this system check shapes that people use within milliseconds?"""
    return isinstance(each, Float | Rounded | Dependencies) or (isinstance(each, FiniteField) and each.p < 2**31)


def usual_cases(theorem: Theorem, seed: int, full: bool) -> list[Shape]:
    """The shapes that people use: all, or one of each group, so that other seeds take others."""
    turn, groups = seed_of("usual", theorem.name) + seed, [[*filter(theorem.fits, group)] for group in theorem.usual]
    return [case for group in groups if group for case in (group if full else [group[turn % len(group)]])]


def able(theorem: Theorem, case: Shape, each: System) -> bool:
    return way_of(theorem, each) is not None and not missing_capability(theorem, case, each)


def verify(
    names: Sequence[str] = (),
    systems: Sequence[System] | None = None,
    *,
    full: bool = False,
    draws: Draws | None = None,
    progress: Callable[[str], None] = lambda line: None,
    found: Callable[[Result], object] = lambda result: None,
    implementation: Implementation = REFIMPL,
) -> list[Result]:
    """Check theorems (by default all) in number systems (by default those of `default_systems`).

    progress   told of each check before it is made; what does not apply is no check
    found      told of each result at once
    """
    draws, results = draws or Draws(), []
    todo = tasks(names, systems, full=full, seed=draws.seed)
    count, n = sum(task.applies for task in todo), 0
    for task in todo:
        if task.applies:
            n += 1
            progress(f"{n} of {count}: {task.theorem.name} in {task.system.name}")
        results.append(check(*task, draws, implementation))
        found(results[-1])
    return results
