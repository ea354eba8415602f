"""The command `refimpl`: verify the identities here and now, or ask the doctor what this machine has.

Exit status: 0 all hold, 1 some fail, 2 some were not decided (VACUOUS, NOT RUN), or nothing could run.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import __version__

if TYPE_CHECKING:
    from .systems import System
    from .verify.check import Result


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    options = parser().parse_args(argv)
    try:
        return options.run(options)
    except (ValueError, TypeError, ImportError, OSError) as error:
        print(f"refimpl: {error}", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="refimpl", description="Linearized attention in one source over many number systems.")
    top.add_argument("--version", action="version", version=f"refimpl {__version__}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")

    verify = commands.add_parser(
        "verify", help="check every identity in every number system",
        epilog="Exit status: 0 all hold, 1 some fail, 2 some were not decided (VACUOUS, NOT RUN), or nothing could run.",
    )  # fmt: skip
    verify.add_argument("names", nargs="*", metavar="NAME", help="identities to check (default: all; see --list)")
    verify.add_argument("--list", action="store_true", help="print the identities, their assumptions and sources, and stop")
    verify.add_argument("--system", action="append", metavar="S", help="a number system, e.g. Q, 'GF(10007)', float32; repeatable")
    depth = verify.add_mutually_exclusive_group()
    depth.add_argument("--quick", action="store_false", dest="full", help="ten shapes for each identity, in seconds (default)")
    depth.add_argument("--full", action="store_true", help="some forty shapes more, in minutes")
    verify.add_argument("--seed", type=int, default=0, metavar="N", help="another seed: other numbers, shapes and prime (default: 0)")
    verify.add_argument("--backend", metavar="LIB", help="check the floats of torch, jax, cupy or numpy instead")
    verify.add_argument("--device", metavar="DEV", help="device of the backend: cuda, cpu ...")
    verify.add_argument("--json", metavar="FILE", help="write the results to FILE")
    verify.set_defaults(run=run_verify, full=False)

    doctor = commands.add_parser("doctor", help="versions, libraries and devices found; what is missing and how to get it")
    doctor.add_argument("--json", metavar="FILE", help="write the findings to FILE")
    doctor.set_defaults(run=run_doctor)
    return top


def run_verify(options: argparse.Namespace) -> int:
    if options.backend in ("jax", "jax.numpy"):
        os.environ.setdefault("JAX_ENABLE_X64", "1")  # else JAX has no float64
    from .verify.identities import THEOREMS, verify

    if options.list:
        for t in THEOREMS.values():
            print(f"{t.name}\n    {t.statement}\n    Needs    {t.assumes}\n    Source   {t.source}\n    Checked  by {', '.join(t.ways)}")
        return 0
    target = json_target(options.json)
    began = time.perf_counter()
    results = verify(options.names, chosen_systems(options), full=options.full, seed=options.seed, progress=progress())
    seconds = time.perf_counter() - began
    print(table(results))
    print(summary(results, seconds, options.seed), flush=True)
    if target:
        about = {"seed": options.seed, "full": options.full, "versions": versions()}
        write_json(target, {**about, "results": [asdict(r) for r in results]})
    verdicts = {r.verdict for r in results}
    return 1 if "FAIL" in verdicts else 2 if verdicts & {"VACUOUS", "NOT RUN"} or verdicts <= {"N/A"} else 0


def chosen_systems(options: argparse.Namespace) -> list[System] | None:
    """The systems asked for; None for the default ones."""
    from .systems import Dependencies, Float, system
    from .systems.floats import LIBRARIES

    if options.device and not options.backend:
        raise ValueError("--device needs --backend: the library whose device it is")
    if options.backend and options.system:
        raise ValueError("--backend and --system exclude each other; --system 'torch float32 on cuda' names both")
    if options.backend:
        from .errors import choose

        choose("verify", "--backend", options.backend, [*LIBRARIES, "jax"])
        found: list[System] = []
        for dtype in ("float64", "float32", "float16", "bfloat16"):
            try:
                found.append(tried(functools.partial(Float, options.backend, dtype, options.device), options.backend, options.device))
            except (ValueError, TypeError):  # this library, or this device, lacks this dtype
                continue
        if not found:
            raise ValueError(f"{options.backend} has no floats on {options.device or 'its device'}")
        return found
    if options.system:
        makers = {"dependencies": Dependencies}
        return [tried(makers.get(name, functools.partial(system, name)), *name.partition(" on ")[::2]) for name in options.system]
    return None


def tried(make: Callable[[], System], name: str, device: str | None = None) -> System:
    """A system that has held a number once: a device that is not there is one error, not a failure of every identity."""
    try:
        system = make()
        system.convert([1])
    except (ImportError, ValueError, TypeError):
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise OSError(f"{name} cannot make an array on {device or 'its device'}: {reason}") from error
    return system


def progress() -> Callable[[str], None]:
    """A line on the terminal that says what is going on; nothing if nobody looks."""
    if not sys.stderr.isatty():
        return lambda line: None
    return lambda line: print(f"\r\x1b[K{line}", end="\r", file=sys.stderr, flush=True)


def table(results: Sequence[Result]) -> str:
    """One row for each identity and system; below them, once for each reason, what cannot be checked where."""
    rows = [("identity", "system", "verdict", "instances", "redrawn", "seconds", "evidence")]
    reasons: dict[str, list[Result]] = {}
    for r in results:
        if r.verdict == "N/A":
            reasons.setdefault(r.evidence, []).append(r)
            continue
        where = (f" at {r.worst}" if r.verdict in ("FAIL", "NOT RUN") else f"; worst: {r.worst}") if r.worst else ""
        rows.append((r.theorem, r.system, r.verdict, str(r.instances), str(r.redraws), f"{r.seconds:.2f}", r.evidence + where))
    widths = [*(max(len(row[i]) for row in rows) for i in range(6)), 0]
    align = [str.ljust] * 3 + [str.rjust] * 3 + [str.ljust]
    lines = ["  ".join(put(cell, width) for put, cell, width in zip(align, row, widths, strict=True)) for row in rows]
    for reason, which in reasons.items():
        names, systems = (", ".join(dict.fromkeys(x)) for x in ([r.theorem for r in which], [r.system for r in which]))
        lines.append(f"n/a: {names} in {systems}: {reason}")
    return "\n".join(line.rstrip() for line in lines)


def summary(results: Sequence[Result], seconds: float, seed: int) -> str:
    ran = [r for r in results if r.verdict != "N/A"]
    count = {v: sum(r.verdict == v for r in ran) for v in ("VACUOUS", "NOT RUN", "FAIL")}
    held = len(ran) - sum(count.values())
    rest = "".join(f", {n} {v.lower()}" for v, n in count.items() if n or v == "FAIL")
    total, again = sum(r.instances for r in ran), sum(r.redraws for r in ran)
    drawn = f"{total} instances, {again} redrawn for a zero denominator, seed {seed}"
    return f"{held} of {len(ran)} checks hold{rest}: {drawn}, {seconds:.1f} s"


def versions() -> dict[str, str | None]:
    from .doctor import CORE, OPTIONAL, version

    return {"refimpl": __version__, "python": sys.version.split()[0], **{p: version(p) for p in (*CORE, *OPTIONAL)}}


def run_doctor(options: argparse.Namespace) -> int:
    from .doctor import examine, report

    target = json_target(options.json)
    findings = examine()
    print(report(findings), flush=True)
    if target:
        write_json(target, findings)
    return 0 if findings["well"] else 2


def json_target(path: str | None) -> Path | None:
    """Where `--json` will write, behind any symbolic link; refused before the work, not after it."""
    if path is None:
        return None
    target = Path(os.path.realpath(path))
    no_file = path in ("", "-", "/dev/stdout", "/dev/stderr")
    problem = (
        "not a regular file" if no_file or (os.path.exists(path) and not os.path.isfile(path))
        else "no such folder" if not target.parent.is_dir()
        else "the folder is not writable" if not os.access(target.parent, os.W_OK | os.X_OK)
        else ""
    )  # fmt: skip
    if problem:
        raise OSError(f"--json: cannot write {path}: {problem}")
    return target


def write_json(target: Path, data: Any) -> None:
    """Write a file that is whole or not there: under another name first."""
    draft = target.with_name(f".refimpl-{os.getpid()}-{time.time_ns()}.tmp")
    try:
        with open(draft, "x", encoding="utf-8") as file:
            json.dump(data, file, indent=1, ensure_ascii=False, allow_nan=False)
        os.replace(draft, target)
    except OSError as error:
        raise OSError(f"--json: cannot write {target}: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)
