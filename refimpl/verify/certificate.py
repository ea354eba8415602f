"""A certificate: the checks, their numbers and their results, so that anyone can repeat them.

Each seed is a digest of the source, the theorem, the system, the shape and the user's seed. The
certificate names them all, so a replay draws the same numbers. In exact systems it must give the
same results bit for bit; in floats too, if the versions of all packages are the same.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from typing import Any

from ..arrays import Array
from ..packages import CORE, OPTIONAL, __version__, version
from ..systems import Dependencies, Rounded, SystemArray, system
from ..systems.array import elementwise, host
from .cases import case_from_json
from .check import Draws, check, minimal, source
from .implementation import REFIMPL, Implementation
from .registry import THEOREMS
from .theorem import Numbers, Result

FORMAT = "refimpl certificate 1"
# The fields of a result that a replay must repeat
REPEATED = [f.name for f in fields(Result) if f.name not in ("theorem", "system", "seconds", "cases", "notes")]


def certificate(
    results: Sequence[Result], draws: Draws, *, full: bool, seconds: float, proofs: Sequence[Result] = ()
) -> dict[str, Any]:
    """All facts about a run, against which another run can be compared."""
    return {
        "format": FORMAT,
        "seed": draws.seed,
        "full": full,
        "source": draws.source or source(),
        "versions": versions(),
        "seconds": seconds,
        "primes": [int(name[3:-1]) for name in dict.fromkeys(r.system for r in results) if name.startswith("GF(")],
        "results": [entry(r) for r in results],
        "proofs": [{"theorem": r.theorem, "verdict": r.verdict, "evidence": r.evidence} for r in proofs],
    }


def entry(result: Result) -> dict[str, Any]:
    return asdict(replace(result, cases=())) | {
        "shapes": [str(c) for c in result.cases],
        "cases": [c.to_json() for c in result.cases],
    }


def versions() -> dict[str, str | None]:
    own = {"refimpl": __version__, "python": sys.version.split()[0], "machine": platform.machine()}
    return own | {p: version(p) for p in (*CORE, *OPTIONAL)}


def failure(result: Result, draws: Draws, impl: Implementation = REFIMPL) -> dict[str, Any]:
    """The certificate of one failing instance, as small as could be found, with its numbers."""
    theorem, numbers = THEOREMS[result.theorem], system(result.system)
    cases = [c for c in result.cases if str(c) == result.worst]
    if not cases:  # no single instance failed: the verdict is on all instances together
        return certificate([result], draws, full=False, seconds=result.seconds)
    case = minimal(theorem, numbers, cases[0], draws, impl)
    again = check(theorem, numbers, [case], draws, impl)
    seed, arrays = draws.seed_of(theorem, again.system, case, again.redraws), list[Array]()
    with suppress(Exception):  # the failure may be an exception that a side raises
        list(theorem.sides(case, Numbers(numbers, seed, keep=arrays), impl))
    return certificate([again], draws, full=False, seconds=again.seconds) | {"drawn": [*map(array_text, arrays)]}


def array_text(x: Array) -> list[Any]:
    """The numbers of an array, as text."""
    planes = x.planes if isinstance(x, SystemArray) else (host(x),)
    return [elementwise(str, p.astype(object)).tolist() for p in planes]


def replay(
    data: Any, progress: Callable[[str], None] = lambda line: None, impl: Implementation = REFIMPL
) -> tuple[list[Result], list[str]]:
    """Repeat the checks of a certificate; return the results and a line for each difference."""
    try:
        if data["format"] != FORMAT:
            raise ValueError(f"its format is {data['format']!r}")
        draws, same = Draws(int(data["seed"]), str(data["source"])), data["versions"] == versions()
        rows = [
            (old, THEOREMS[old["theorem"]], system(old["system"]), [*map(case_from_json, old["cases"])])
            for old in data["results"]
        ]
        if type(data["seed"]) is not int or not any(cases for *_, cases in rows):
            raise ValueError("there is nothing to repeat")
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError(
            f"verify: --replay needs a certificate that --json wrote ({FORMAT}): {type(error).__name__}: {error}"
        ) from error
    results = []
    differences = [] if draws.source == source() else ["the source has changed since"]
    for old, theorem, numbers, cases in rows:
        if not cases:
            if old.get("verdict") != "N/A":
                differences.append(
                    f"{theorem.name} in {old['system']}: no shape is given, yet the verdict is {old.get('verdict')!r}"
                )
            continue
        progress(f"{theorem.name} in {numbers.name}")
        new = check(theorem, numbers, cases, draws, impl)
        results.append(new)
        bitwise = same or numbers.exact or isinstance(numbers, Rounded | Dependencies)
        for name in REPEATED if bitwise else ("verdict", "instances"):
            now, then = getattr(new, name), old.get(name)
            if now != then:
                differences.append(f"{theorem.name} in {new.system}: {name} is {now!r}, in the certificate {then!r}")
    return results, differences
