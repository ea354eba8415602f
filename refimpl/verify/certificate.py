"""A certificate: the checks, their numbers and their results, so that anyone can repeat them.

Each seed is a digest of the source, the theorem, the system, the shape and the user's seed. The
certificate names them all, so a replay draws the same numbers. In exact systems it must give the
same results bit for bit; in floats too, if the versions of all packages are the same, and so is
the number of BLAS threads, on which the order of sums depends.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from typing import Any, NamedTuple

from ..arrays import Array
from ..budget import budget, spend
from ..errors import brief, choose, printable
from ..packages import CORE, OPTIONAL, __version__, version
from ..systems import QQ, Dependencies, Rounded, System, SystemArray, system
from ..systems.array import elementwise, host
from .cases import FeatureCase, Shape, case_from_json
from .check import Draws, check, minimal, source
from .formal import HELD, IN_PART, PRINTED, PROVED
from .implementation import REFIMPL, Implementation
from .processes import ONE_THREAD
from .registry import THEOREMS, fast, usual_cases
from .theorem import Numbers, Result, Theorem
from .theorems.features import MAPS

FORMAT = "refimpl certificate 2"
THREADS = "BLAS threads"  # as the environment asks for them
# Remarks of a replay, which are no failures
OTHER_SOURCE = "the source has changed since"
OTHER_VERSIONS = "other versions or BLAS threads made it: results in floats are compared by their verdicts only"
MANY_DIGITS, MANY_SYSTEMS = 1000, 16  # beyond these, even the cases of `verify` are paid for
LARGEST = 2**26  # bytes of a certificate
# The fields of a result that a replay must repeat
REPEATED = [f.name for f in fields(Result) if f.name not in ("theorem", "system", "seconds", "cases", "notes")]


def certificate(
    results: Sequence[Result],
    draws: Draws,
    *,
    full: bool,
    seconds: float,
    proofs: Sequence[Result] = (),
    in_processes: bool = False,
) -> dict[str, Any]:
    """All facts about a run, against which another run can be compared."""
    return {
        "format": FORMAT,
        "seed": draws.seed,
        "full": full,
        "source": draws.source or source(),
        "versions": versions() | ({THREADS: "1"} if in_processes else {}),
        "seconds": seconds,
        "primes": [int(name[3:-1]) for name in dict.fromkeys(r.system for r in results) if name.startswith("GF(")],
        "results": [entry(r) for r in results],
        "proofs": [
            {"theorem": r.theorem, "verdict": r.verdict, "evidence": r.evidence, "statements": statements(r)}
            for r in proofs
        ],
    }


def statements(proof: Result) -> dict[str, str]:
    """The statements that Coq accepted here, each with the digest of what Coq prints for it."""
    names = PROVED[proof.theorem] if proof.verdict in HELD else ()
    return {name: PRINTED[name] for name in names}


def entry(result: Result) -> dict[str, Any]:
    return asdict(replace(result, cases=())) | {
        "shapes": [str(c) for c in result.cases],
        "cases": [c.to_json() for c in result.cases],
    }


def versions() -> dict[str, str | None]:
    own = {"refimpl": __version__, "python": sys.version.split()[0], "machine": platform.machine()}
    threads = next((os.environ[name] for name in ONE_THREAD if os.environ.get(name)), "default")
    return own | {THREADS: threads} | {p: version(p) for p in (*CORE, *OPTIONAL)}


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


class Row(NamedTuple):
    """One check that a certificate asks for, and its result there."""

    old: dict[str, Any]
    theorem: Theorem
    system: System
    cases: list[Shape]


def replay(
    data: Any, progress: Callable[[str], None] = lambda line: None, impl: Implementation = REFIMPL, *, limit: float = 1
) -> tuple[list[Result], list[str]]:
    """Repeat the checks of a certificate; return the results and a line for each difference.

    limit : how many times the usual memory and work the certificate may ask for; what `verify`
            itself would check with this seed is free
    """
    try:
        draws, rows = read_certificate(data)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, ImportError, RecursionError) as error:
        problem = f"{type(error).__name__}: {printable(error)}"
        raise ValueError(f"replay: `data` must be a certificate that --json wrote ({FORMAT}): {problem}") from error
    with budget("replay", limit):
        spend_on_rows(rows, draws.seed)
    results, same = list[Result](), data["versions"] == versions()
    differences = [] if draws.source == source() else [OTHER_SOURCE]
    differences += [] if same or all(row.system.exact for row in rows) else [OTHER_VERSIONS]
    differences += proofs_that_differ(data.get("proofs", []))
    for old, theorem, numbers, cases in rows:
        if not cases:
            if old.get("verdict") != "N/A":
                given = f"no shape is given, yet the verdict is {brief(old.get('verdict'))}"
                differences.append(f"{theorem.name} in {numbers.label}: {given}")
            continue
        progress(f"{theorem.name} in {numbers.name}")
        new = check(theorem, numbers, cases, draws, impl)
        results.append(new)
        bitwise = same or numbers.exact or isinstance(numbers, Rounded | Dependencies)
        for name in REPEATED if bitwise else ("verdict", "instances"):
            now, then = getattr(new, name), old.get(name)
            if now != then:
                other = f"{name} is {now!r}, in the certificate {printable(repr(then))}"
                differences.append(f"{theorem.name} in {new.system}: {other}")
    return results, differences


def read_certificate(data: Any) -> tuple[Draws, list[Row]]:
    """The draws and the rows of a certificate, from a file that may hold anything."""
    if data["format"] != FORMAT:
        raise ValueError(f"its format is {brief(data['format'])}")
    seed, digest, _ = data["seed"], data["source"], data["versions"]
    if type(seed) is not int or type(digest) is not str:
        raise ValueError(f"its seed and source must be an integer and a text, got {brief(seed)} and {brief(digest)}")
    rows = [read_row(old) for old in as_list(data["results"])]
    if not any(row.cases for row in rows):
        raise ValueError("there is nothing to repeat")
    for old in as_list(data.get("proofs", [])):
        if not all(isinstance(old[name], str) for name in ("theorem", "verdict")):
            raise ValueError(f"a proof must name its theorem and verdict, got {brief(old)}")
        dict(old["statements"])
    return Draws(seed, digest), rows


def proofs_that_differ(proofs: Any) -> list[str]:
    """A line for each proof in a certificate that is not of the statements in formal.toml."""
    lines = []
    for old in proofs:
        name, verdict = old["theorem"], old["verdict"]
        stated = dict(old["statements"]) if verdict in HELD else {}
        known = {each: PRINTED[each] for each in PROVED.get(name, ())} if verdict in HELD else {}
        possible = ("IN PART" if name in IN_PART else "PROVED", "NOT CHECKED") if name in PROVED else ("N/A",)
        if stated != known or verdict not in possible:
            given = f"{printable(verdict)} by {printable(stated)}"
            lines.append(f"{printable(name)} in Coq: {given} in the certificate, which formal.toml does not have")
    return lines


def read_row(old: Any) -> Row:
    choose("a result", "theorem", old["theorem"], THEOREMS)
    theorem, numbers = THEOREMS[old["theorem"]], system_in_file(old["system"])
    cases = [case_from_json(case) for case in as_list(old["cases"])]
    kinds = {type(case) for case in theorem.cases or theorem.more(0)}
    for case in cases:
        if type(case) not in kinds:
            raise ValueError(f"{theorem.name} speaks of no {type(case).__name__}")
    return Row(old, theorem, numbers, cases)


def as_list(x: Any) -> list[Any]:
    if not isinstance(x, list):
        raise ValueError(f"results and cases must be lists, got {brief(x)}")
    return x


def system_in_file(label: Any) -> System:
    """The system of a label, with one number made in it: a missing device is an error here."""
    if not isinstance(label, str) or len(label) > 80:
        raise ValueError(f"the system must be a text of at most 80 characters, got {brief(label)}")
    if re.search(r"\d{20}", label):
        raise ValueError(f"the system must have numbers of at most 19 digits, got {brief(label)}")
    try:
        found = system(label)
        found.convert([1])
        found.ways  # noqa: B018  refuses a system in which nothing can be decided
    except (RuntimeError, AssertionError) as error:  # of torch and JAX, for a device that is not here
        raise ValueError(f"no arrays of {brief(label)} can be made here: {printable(error)}") from error
    return found


def spend_on_rows(rows: Sequence[Row], seed: int) -> None:
    """Charge a certificate for its checks, but not for those that `verify` makes with this seed."""
    labels = dict.fromkeys(row.system.label for row in rows if digits(row.system) <= MANY_DIGITS)
    usual, free = [*labels][:MANY_SYSTEMS], dict[tuple[str, str], Counter[Shape]]()
    own = functools.cache(lambda name: (*THEOREMS[name].cases, *THEOREMS[name].more(seed)))
    long = functools.cache(lambda name: usual_cases(THEOREMS[name], seed, full=True))
    for _, theorem, numbers, cases in rows:
        key = theorem.name, numbers.label
        if key not in free:
            known = (*own(theorem.name), *(long(theorem.name) if fast(numbers) else ()))
            free[key] = Counter(known if numbers.label in usual else ())
        for case in cases:
            free[key][case] -= 1
            if free[key][case] < 0:
                memory, operations = estimate(theorem, numbers, case)
                what = f"replay: {theorem.name} in {numbers.label} at {printable(case)}"
                spend(what, memory=memory, operations=operations)


def digits(numbers: System) -> int:
    """The decimal digits to which a system computes; 0 if nobody chose them."""
    return int(getattr(numbers, "digits", 0))


def estimate(theorem: Theorem, numbers: System, case: Shape) -> tuple[int, int]:
    """The bytes and the operations that a check needs, estimated from above."""
    calls, count, products, growth = case.work()
    size, time = 100, 300  # bytes and nanoseconds for a number: of floats and residues, with their analyses
    if digits(numbers):
        size, time = 200 + digits(numbers), 3000 * (1 + digits(numbers) // 30) ** 2
    elif numbers is QQ:
        size, time = 200 + 20 * growth, 2000 + 5 * growth**2
    elif isinstance(numbers, Dependencies):
        size, time = 100 + count // 8, 300 + count // 8
    drawn, width = 0, 0
    if "sampled" in theorem.ways and isinstance(case, FeatureCase):
        drawn, width = MAPS * case.r * (case.d + 2), case.d
    return size * count + 40 * drawn, 20_000 * calls + time * products + 20 * drawn * width
