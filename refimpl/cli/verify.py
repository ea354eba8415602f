"""`refimpl verify`: check the theorems, here and now."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import re
import time
from collections.abc import Callable

from ..errors import choose
from ..files.disk import target_file
from ..systems import Float, System, system
from ..systems.floats import LIBRARIES
from ..verify import registry
from ..verify.certificate import certificate, failure, replay
from ..verify.check import Draws
from ..verify.formal import formal
from ..verify.report import described, summary, table
from ..verify.theorem import Result
from .output import json_target, progress, write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Exit status: 0 all hold, 1 some fail, 2 some were not decided (VACUOUS, NOT RUN), or nothing could run."
    )
    parser.set_defaults(full=False)
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="theorems to check (default: all; see --list)")
    add("--list", action="store_true", help="print the theorems, their assumptions and sources, and stop")
    add("--system", action="append", metavar="S", help="a number system, e.g. Q, 'GF(10007)', float32; repeatable")
    add_depth = parser.add_mutually_exclusive_group().add_argument
    quick = "a few shapes for each theorem, in seconds (default)"
    add_depth("--quick", action="store_false", dest="full", help=quick)
    full = "many more shapes, and a model of the shape of GPT-2 small, in minutes"
    add_depth("--full", action="store_true", help=full)
    add("--seed", type=int, default=0, metavar="N", help="another seed: other numbers, shapes and prime (default: 0)")
    add("--backend", metavar="LIB", help="check the floats of torch, jax, cupy or numpy instead")
    add("--device", metavar="DEV", help="device of the backend: cuda, cpu ...")
    add("--json", metavar="FILE", help="write a certificate to FILE: results, seeds, shapes, primes, digests, versions")
    add("--replay", metavar="FILE", help="check again what a certificate says, and whether the same comes out")


def run(options: argparse.Namespace) -> int:
    """Check theorems, print the table, write the certificates; return the exit status."""
    if options.backend in ("jax", "jax.numpy"):
        os.environ.setdefault("JAX_ENABLE_X64", "1")  # else JAX has no float64
    if options.list:
        print("\n".join(described(t) for t in registry.THEOREMS.values()))
        return 0
    target, began = json_target(options.json), time.perf_counter()
    results, draws, differences = check_theorems(options)
    seconds = time.perf_counter() - began
    proofs = formal(r.theorem for r in results)
    print(table(results, proofs))
    print(summary(results, seconds, draws.seed), flush=True)
    if options.replay:
        print(*(differences or ["all as in the certificate"]), sep="\n", flush=True)
    if target:
        write_json(target, certificate(results, draws, full=options.full, seconds=seconds, proofs=proofs))
    if not options.replay:
        write_failures(results, draws)
    verdicts = {r.verdict for r in results}
    if "FAIL" in verdicts or [d for d in differences if not d.startswith("the source")]:
        return 1
    return 2 if verdicts & {"VACUOUS", "NOT RUN"} or verdicts <= {"N/A"} else 0


def check_theorems(options: argparse.Namespace) -> tuple[list[Result], Draws, list[str]]:
    """The results, their draws, and each difference from the certificate that is replayed."""
    if not options.replay:
        draws, systems = Draws(options.seed), chosen_systems(options)
        results = registry.verify(options.names, systems, full=options.full, draws=draws, progress=progress())
        return results, draws, []
    if options.names or options.system or options.backend or options.full or options.seed:
        raise ValueError("--replay goes alone, or with --json: the certificate says what to check")
    try:
        with open(options.replay, encoding="utf-8") as file:
            data = json.load(file)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"--replay: {options.replay} must be a JSON file: {error}") from error
    results, differences = replay(data, progress())
    return results, Draws(data["seed"], data["source"]), differences


def write_failures(results: list[Result], draws: Draws) -> None:
    """Write a certificate of each failure, and print the command that replays it."""
    for result in (r for r in results if r.verdict == "FAIL"):
        name = re.sub(r"\W+", "-", f"{result.theorem} {result.system}").strip("-")
        path = target_file("verify", f"refimpl-failure-{name}.json")
        write_json(path, failure(result, draws))
        together = registry.THEOREMS[result.theorem].ways == ("oracle",)
        what = "all that failed together" if together else "a failing instance, as small as it gets"
        print(f"{what}: refimpl verify --replay {path.name}")


def chosen_systems(options: argparse.Namespace) -> list[System] | None:
    """The systems asked for; None for the default ones."""
    library, device = options.backend, options.device
    if device and not library:
        raise ValueError("--device needs --backend: the library whose device it is")
    if library and options.system:
        raise ValueError("--backend and --system exclude each other; --system 'torch float32 on cuda' names both")
    if options.system:
        return [try_system(functools.partial(system, name), *name.partition(" on ")[::2]) for name in options.system]
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


def try_system(make: Callable[[], System], name: str, device: str | None = None) -> System:
    """Make a system and one number in it: a missing device is then one error, not many."""
    try:
        system = make()
        system.convert([1])
    except (ImportError, ValueError, TypeError):
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise OSError(f"{name} cannot make an array on {device or 'its device'}: {reason}") from error
    return system
