"""Every theorem of the library, and the command that checks them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import choose
from ..systems import GF, MP, QQ, Dependencies, Float, Rounded, System, balls, is_prime, seed_of, system
from .check import Draws, check, way
from .theorem import Result, Theorem
from .theorems.descent import DESCENT_WITNESSES, DESCENTS
from .theorems.features import FEATURES
from .theorems.iclaa import APPROXIMATIONS
from .theorems.iclca import CONVERSIONS
from .theorems.identities import IDENTITIES
from .theorems.large import GPT2_SMALL
from .theorems.recurrences import RECURRENCES
from .theorems.witnesses import WITNESSES

ALL = (
    *IDENTITIES,
    *CONVERSIONS,
    GPT2_SMALL,
    *WITNESSES,
    *FEATURES,
    *APPROXIMATIONS,
    *RECURRENCES,
    *DESCENTS,
    *DESCENT_WITNESSES,
)
THEOREMS: dict[str, Theorem] = {t.name: t for t in ALL}


def default_systems(seed: int) -> list[System]:
    """ℚ, two primes (the second from the seed), mpmath, balls, floats, low precision, dependency sets."""
    p = seed_of("prime", seed) % 2**60 + 2**60
    while not is_prime(p):
        p -= 1
    return [
        QQ,
        GF(2**61 - 1),
        GF(p),
        MP(50),
        balls(30),
        Float(),
        Float("numpy", "float32"),
        Rounded("float16"),
        Rounded("bfloat16"),
        Dependencies(),
    ]


def verify(
    names: Sequence[str] = (),
    systems: Sequence[System] | None = None,
    *,
    full: bool = False,
    draws: Draws | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> list[Result]:
    """Check theorems (by default all) in number systems (by default those of `default_systems`)."""
    for name in names:
        choose("verify", "NAME", name, THEOREMS)
    draws, usual = draws or Draws(), systems is None
    systems = default_systems(draws.seed) if systems is None else systems
    tuple(each.ways for each in systems)  # a system that cannot be judged raises here, before the work
    results = []
    for theorem in [THEOREMS[name] for name in names or THEOREMS]:
        more = theorem.more(draws.seed) if full else ()
        for each in [system(theorem.only)] if usual and theorem.only else systems:
            # To rounded numbers twice as many shapes say little more; they are for the systems that decide.
            rounds = not full and way(theorem, each) in ("bound", "enclosure")
            if theorem.cases or more or names:
                progress(f"{theorem.name} in {each.name}")
                results.append(check(theorem, each, theorem.cases[::2] if rounds else (*theorem.cases, *more), draws))
    return results
