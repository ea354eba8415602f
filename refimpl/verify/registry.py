"""Every theorem of the library, and the function that checks them.

A theorem belongs to the tuple `THEOREMS` of a module of verify/theorems. The modules are sorted by
their `ORDER`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..errors import choose
from ..systems import GF, MP, QQ, Dependencies, Float, Rounded, System, balls, is_prime, seed_of, system
from . import theorems
from .check import Draws, check
from .implementation import REFIMPL, Implementation
from .theorem import Result, Theorem
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


def verify(
    names: Sequence[str] = (),
    systems: Sequence[System] | None = None,
    *,
    full: bool = False,
    draws: Draws | None = None,
    progress: Callable[[str], None] = lambda line: None,
    implementation: Implementation = REFIMPL,
) -> list[Result]:
    """Check theorems (by default all) in number systems (by default those of `default_systems`)."""
    for name in names:
        choose("verify", "NAME", name, THEOREMS)
    draws, usual = draws or Draws(), systems is None
    systems = default_systems(draws.seed) if systems is None else systems
    for each in systems:
        each.ways  # noqa: B018  refuses, before the work begins, a system in which nothing can be decided
    results = []
    for theorem in [THEOREMS[name] for name in names or THEOREMS]:
        more = theorem.more(draws.seed) if full else ()
        for each in [system(theorem.only)] if usual and theorem.only else systems:
            way = way_of(theorem, each)
            sparse = not full and way is not None and way.sparse
            if theorem.cases or more or names:
                progress(f"{theorem.name} in {each.name}")
                cases = theorem.cases[::2] if sparse else (*theorem.cases, *more)
                results.append(check(theorem, each, cases, draws, implementation))
    return results
