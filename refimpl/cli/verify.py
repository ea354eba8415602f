"""`refimpl verify`: check the theorems, here and now."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ..budget import budget
from ..errors import choose
from ..files.disk import located, read_object, replacing, target_file
from ..systems import Float, System, system
from ..systems.floats import LIBRARIES
from ..verify import registry
from ..verify.certificate import LARGEST, OTHER_SOURCE, OTHER_VERSIONS, certificate, failure, replay
from ..verify.check import Draws
from ..verify.formal import formal
from ..verify.matrix import Matrix
from ..verify.processes import verify_in_processes
from ..verify.report import described, summary, table
from ..verify.theorem import Result
from .backend import add_backend_arguments, prepare_backend, try_system
from .output import Outcome, json_target, noting, progress, write_json
from .page import page_of
from .prompt import add_limit, naming_flags
from .screen import (
    FAILURES,
    Look,
    box,
    command_lines,
    detail,
    done_so_far,
    failures,
    legend,
    look_of_stdout,
    matrix_lines,
)
from .signals import Stopped

MOST_DIGITS = 100_000  # of a number; a theorem at 10^6 digits takes minutes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Exit status: 0 all hold, 1 some fail, 2 some were not decided (VACUOUS, NOT RUN), or nothing could run."
    )
    parser.set_defaults(full=False)
    add = parser.add_argument
    which = "theorems to check, by name or pattern, such as 'iclca*' (default: all; see --list)"
    add("names", nargs="*", metavar="NAME", help=which)
    add("--list", action="store_true", help="print the theorems, their assumptions and sources, and stop")
    add("--verbose", action="store_true", help="print a line for each theorem and system, with all evidence")
    add("--system", action="append", metavar="S", help="a number system, e.g. Q, 'GF(10007)', float32; repeatable")
    add_depth = parser.add_mutually_exclusive_group().add_argument
    quick = "a few shapes for each theorem, in seconds (default)"
    add_depth("--quick", action="store_false", dest="full", help=quick)
    full = "many more shapes, and a model of the shape of GPT-2 small, in minutes"
    add_depth("--full", action="store_true", help=full)
    add("--seed", type=int, default=0, metavar="N", help="another seed: other numbers, shapes and prime (default: 0)")
    add_backend_arguments(parser, None, "check the floats of torch, jax, cupy or numpy instead")
    add("--json", metavar="FILE", help="write a certificate to FILE: results, seeds, shapes, primes, digests, versions")
    add("--html", metavar="FILE", help="write a report to FILE: the matrix, details on click, the certificate")
    jobs = "check in N processes, each with one BLAS thread (default: one a core for all theorems, else this one)"
    add("--jobs", type=int, metavar="N", help=jobs)
    add("--replay", metavar="FILE", help="check again what a certificate says, and whether the same comes out")
    add_limit(parser)


def run(options: argparse.Namespace) -> Outcome:
    """Check theorems and write the certificates; the table says what was found."""
    prepare_backend(options.backend)
    if options.list:
        names = registry.chosen("verify", options.names) or registry.THEOREMS
        return Outcome(0, "\n".join(described(registry.THEOREMS[name]) for name in names))
    target, began, problems = json_target(options.json), time.perf_counter(), list[Exception]()
    page = None if options.html is None else target_file("--html", options.html)
    if page and page == target:
        raise ValueError(f"--html: {options.html} must be another file than that of --json")
    if target and options.replay and target == Path(os.path.realpath(options.replay)):
        raise ValueError(f"--json: {options.json} must be a file of its own, not one that is read")
    jobs = chosen_jobs(options)
    so_far = list[Result]()
    with telling(so_far):
        results, draws, differences = check_theorems(options, jobs, so_far.append)
    seconds, lines = time.perf_counter() - began, list[str]()
    proofs = formal(r.theorem for r in results)
    look = look_of_stdout()
    final = box(results, proofs, seconds, draws.seed, look)
    if target or page:
        facts = {"full": options.full, "seconds": seconds, "proofs": proofs, "in_processes": jobs is not None}
        data = certificate(results, draws, **facts)
    if target:
        with noting(problems):
            write_json(target, data)
    if page:
        with noting(problems), replacing("--html", page, "x") as file:
            plain = box(results, proofs, seconds, draws.seed, Look(10**6))[1:-1]
            file.write(page_of(results, proofs, plain, data))
    order = list(registry.THEOREMS)  # from simple to complex
    failed = sorted((r for r in results if r.verdict == "FAIL"), key=lambda r: order.index(r.theorem))
    with telling(results):
        for n, result in enumerate([] if options.replay else failed, 1):
            progress()(f"making failure {n} of {len(failed)} small: {result.theorem} in {result.system}")
            with noting(problems):
                lines.append(write_failure(result, draws))
    if options.replay:
        lines = differences if failing(differences) else [*differences, "all as in the certificate"]
    progress()("")
    status = exit_status(results, differences)
    if options.verbose:
        lines = [table(results, proofs), summary(results, seconds, draws.seed), *lines]
        return Outcome(status, "\n".join(lines), tuple(problems))
    if options.replay:  # the differences are what matters
        after = [part for line in lines for part in look.wrap(line, 0)]
        parts = [*body(results, proofs, look), final, after]
    elif len({r.theorem for r in results}) == 1:  # its detail tells of its failures
        parts = [*body(results, proofs, look), *(command_lines(line, look) for line in lines), final]
    else:
        parts = [*body(results, proofs, look), failures(failed, lines, look), final]
    return Outcome(status, "\n\n".join("\n".join(part) for part in parts if part), tuple(problems), painted=True)


@contextlib.contextmanager
def telling(done: list[Result]) -> Iterator[None]:
    """An interrupt inside this block says what was done so far."""
    try:
        yield
    except (Stopped, KeyboardInterrupt) as stop:
        if words := done_so_far(done):
            stop.add_note(words)
        raise


def body(results: list[Result], proofs: list[Result], look: Look) -> list[list[str]]:
    """The matrix and its legend; for one theorem its detail."""
    names = list(dict.fromkeys(r.theorem for r in results))
    if len(names) == 1:
        return [detail(names[0], [*proofs, *results], look)]
    matrix = Matrix.of(results, proofs)
    return [matrix_lines(matrix, look), legend(matrix, look)] if matrix.theorems else []


def failing(differences: list[str]) -> list[str]:
    """The differences from a certificate, without remarks."""
    return [d for d in differences if d not in (OTHER_SOURCE, OTHER_VERSIONS)]


def exit_status(results: list[Result], differences: list[str]) -> int:
    """1 if a check fails or a replay differs, 2 if some are not decided or none ran, else 0."""
    verdicts = {r.verdict for r in results}
    if "FAIL" in verdicts or failing(differences):
        return 1
    return 2 if verdicts & {"VACUOUS", "NOT RUN"} or verdicts <= {"N/A"} else 0


def check_theorems(
    options: argparse.Namespace, jobs: int | None, found: Callable[[Result], object]
) -> tuple[list[Result], Draws, list[str]]:
    """The results, their draws, and each difference from the certificate that is replayed."""
    if not options.replay:
        draws, systems = Draws(options.seed), chosen_systems(options)
        how = {"full": options.full, "draws": draws, "progress": progress(), "found": found}
        if jobs is None:
            return registry.verify(options.names, systems, **how), draws, []
        with naming_flags(jobs="--jobs"):
            return verify_in_processes(jobs, options.names, systems, **how), draws, []
    if options.names or options.system or options.backend or options.full or options.seed or options.jobs:
        raise ValueError("--replay goes alone, or with --json: the certificate says what to check")
    with naming_flags(limit="--limit"):
        with budget("verify", options.limit):
            data = read_object("--replay", options.replay, LARGEST)
        with located(f"--replay: {options.replay}"):
            results, differences = replay(data, progress(), limit=options.limit)
    return results, Draws(data["seed"], data["source"]), differences


def chosen_jobs(options: argparse.Namespace) -> int | None:
    """How many processes to start; None for few checks, which this one makes."""
    if options.jobs is not None:
        return int(options.jobs)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    few = options.names or options.system or options.backend or options.replay
    return None if few or cores == 1 else cores


def write_failure(result: Result, draws: Draws) -> str:
    """Write a certificate of a failure; return the command that replays it."""
    name = re.sub(r"\W+", "-", f"{result.theorem} {result.system}").strip("-")
    try:
        Path(FAILURES).mkdir(exist_ok=True)
    except OSError as error:
        raise ValueError(f"verify: cannot write {FAILURES}/{name}.json: {error.strerror}") from error
    path = target_file("verify", f"{FAILURES}/{name}.json")
    write_json(path, failure(result, draws))
    together = registry.THEOREMS[result.theorem].ways == ("oracle",)
    what = "all that failed together" if together else "a failing instance, as small as it gets"
    return f"{what}: refimpl verify --replay {FAILURES}/{path.name}"


def named_system(name: str) -> System:
    with naming_flags("--system", name="it", library="the library"):
        found = system(name)
    if (digits := getattr(found, "digits", 0)) > MOST_DIGITS:
        raise ValueError(f"--system: {name} must have at most {MOST_DIGITS} digits, got {digits}")
    return found


def chosen_systems(options: argparse.Namespace) -> list[System] | None:
    """The systems asked for; None for the default ones."""
    library, device = options.backend, options.device
    if device and not library:
        raise ValueError("--device needs --backend: the library whose device it is")
    if library and options.system:
        raise ValueError("--backend and --system exclude each other; --system 'torch float32 on cuda' names both")
    if options.system:
        return [
            try_system(functools.partial(named_system, name), *name.partition(" on ")[::2]) for name in options.system
        ]
    if not library:
        return None
    choose("verify", "--backend", library, [*LIBRARIES, "jax"])
    found = []
    for dtype in ("float64", "float32", "float16", "bfloat16"):
        # Some libraries and devices lack some dtypes.
        with contextlib.suppress(ValueError, TypeError):
            found.append(try_system(functools.partial(Float, library, dtype, device), library, device))
    if not found:
        raise ValueError(f"{library} has no floats on {device or 'its device'}")
    return found
