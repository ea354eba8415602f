"""`refimpl crosscheck`: a kernel of somebody else, and what is wrong with it."""

from __future__ import annotations

import argparse
import re
from dataclasses import Field, asdict, fields
from pathlib import Path
from typing import Any

from ..budget import budget
from ..crosscheck.check import Report, attempt, crosscheck
from ..crosscheck.guess import guess
from ..crosscheck.mistakes import all_families
from ..crosscheck.plan import Case
from ..crosscheck.report import data_of, lines_of, program
from ..crosscheck.spec import Spec, conventions, in_words
from ..crosscheck.worker import SECONDS, Process
from ..errors import brief, choose
from ..files.disk import located, read_object, replacing, target_file
from .crosscheck_page import page_of_kernel
from .output import Outcome, json_target, noting, progress, write_json
from .prompt import add_limit
from .screen import FAILURES, look_of_stdout

STATUS = {"EXACT": 0, "WITHIN BOUND": 0, "WRONG": 1, "EXCESS": 1}
MOST_READINGS = 8
LARGEST = 10**6  # bytes of a file for --replay
EPILOG = """
A kernel that takes a state and returns it:

  refimpl crosscheck mykernel.py:linear_attn --call 'q, k, v, state=(S, z) -> o, (S, z)' \\
      --axes BTHD --phi elu+1 --eps 1e-6 --dtype float32,bfloat16 --library torch

Names on the left of -> are arrays that are given, names on the right those that come back, _ is
looked at by nobody; what else stands on the left is a constant. The kernel runs in a process of its
own.

Exit status: 0 right, 1 wrong or not accurate, 2 not decided or an error."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    add = parser.add_argument
    where = "the kernel: FILE.py:NAME or package.module:NAME. It is run"
    add("kernel", nargs="?", metavar="KERNEL", help=where)
    known = ", ".join(all_families())
    add("--family", default="linear_attention", metavar="F", help=f"what it computes: {known} (default: linear_attention)")
    add("--full", action="store_true", help="long texts too")
    add("--plan", action="store_true", help="print the cases, each with its reason, and stop")
    tried = "find out the conventions that are not stated, on tiny cases, and stop"
    add("--guess", action="store_true", help=tried)
    add("--seed", type=int, default=0, metavar="N", help="other numbers and other pairs of conditions (default: 0)")
    add("--seconds", type=float, default=SECONDS, metavar="S", help=f"that a call may take (default: {SECONDS:g})")
    add("--replay", metavar="FILE", help=f"ask the kernel again about a case that failed, in a file of {FAILURES}/")
    add("--json", metavar="FILE", help="write a report to FILE")
    add("--html", metavar="FILE", help="write a report with pictures to FILE")
    add_limit(parser)
    own = parser.add_argument_group("the conventions of the kernel")
    for name, (f, of) in options_of_families().items():
        choices = f"{', '.join(map(str, f.metadata['choices']))}; " if f.metadata["choices"] else ""
        only = "" if len(of) == len(all_families()) else f" [{', '.join(of)}]"
        default = "" if f.default in ("", None) else f" (default: {in_words(f.default)})"
        own.add_argument(f"--{name}", metavar="X", help=f"{f.metadata['words']}: {choices}".rstrip(": ;") + default + only)


def options_of_families() -> dict[str, tuple[Field[Any], list[str]]]:
    """Each convention as an option, and the families that have it."""
    found: dict[str, tuple[Field[Any], list[str]]] = {}
    for name, family in all_families().items():
        for f in conventions(family):
            found.setdefault(f.name.replace("_", "-"), (f, []))[1].append(name)
    return found


def run(options: argparse.Namespace) -> Outcome:
    """Check a kernel; print what was found and write what failed."""
    if options.replay:
        return replay(options)
    target, spec = json_target(options.json), spec_of(options)
    page = None if options.html is None else target_file("--html", options.html)
    if page and page == target:
        raise ValueError(f"--html: {options.html} must be another file than that of --json")
    if options.plan:
        return Outcome(0, "\n".join(f"{case}\n    {case.why}" for case in spec.plan(options.seed, options.full)))
    if not options.kernel:
        raise ValueError("KERNEL must be given, as FILE.py:NAME or package.module:NAME")
    process, problems = Process(options.kernel, seconds_of(options)), list[Exception]()
    if options.guess:
        return guessed(process, spec)
    try:
        report = crosscheck(process, spec, seed=options.seed, full=options.full, progress=progress())
    finally:
        process.close()
    progress()("")
    again = write_failures(report, problems)
    if target:
        with noting(problems):
            write_json(target, data_of(report))
    if page:
        with noting(problems), replacing("--html", page, "x") as file:
            file.write(page_of_kernel(report))
    look = look_of_stdout()
    lines = [look.plain(line) if "\x1b" not in line else line for line in lines_of(report, look.width, look.paint)]
    return Outcome(STATUS.get(report.verdict, 2), "\n".join([*lines, *again]), tuple(problems), painted=True)


def guessed(process: Process, spec: Spec) -> Outcome:
    """The readings that agree with a kernel: one, or those that tiny cases do not tell apart."""
    try:
        found = guess(process, spec, stated=spec.differences(), progress=progress())
    finally:
        process.close()
    progress()("")
    if not found:
        return Outcome(1, "No reading of the usual conventions agrees. State those that you know, or look for a mistake.")
    lines = [str(other) for other in found[:MOST_READINGS]]
    if len(found) == 1:
        return Outcome(0, lines[0])
    more = f", of which these have the fewest options" if len(found) > MOST_READINGS else ""
    return Outcome(2, "\n".join([f"Tiny cases do not tell apart {len(found)} readings{more}:", *lines]))


def seconds_of(options: argparse.Namespace) -> float:
    if not 0 < options.seconds < 10**6:
        raise ValueError(f"--seconds must be a number above 0, got {options.seconds:g}")
    return float(options.seconds)


def spec_of(options: argparse.Namespace) -> Spec:
    """The specification that the options state."""
    choose("crosscheck", "--family", options.family, all_families())
    family, given = all_families()[options.family], {}
    own = {f.name: f for f in conventions(family)}
    for name in options_of_families():
        key = name.replace("-", "_")
        if (text := getattr(options, key)) is not None:
            if key not in own:
                raise ValueError(f"--{name}: {options.family} has no such convention")
            given[key] = value_of(f"--{name}", own[key], text)
    return made(family, given)


def made(family: type[Spec], given: dict[str, Any]) -> Spec:
    """A specification; its errors name flags."""
    try:
        return family(**given)
    except (ValueError, TypeError) as error:
        text = re.sub(r"`(\w+)`", lambda m: f"--{m[1].replace('_', '-')}", str(error))
        raise ValueError(re.sub(r"^\w+: ", "", re.sub(r"^call\b", "--call", text))) from error


def value_of(flag: str, f: Field[Any], text: str) -> Any:
    """The value of a convention in a text."""
    kind = type(f.default)
    if kind is bool:
        choose("crosscheck", flag, text.lower(), ("yes", "no", "true", "false"))
        return text.lower() in ("yes", "true")
    try:
        return kind(text)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{flag} must be a number, got {brief(text)}") from error


# Failures


def write_failures(report: Report, problems: list[Exception]) -> list[str]:
    """Write the smallest case of each dtype, as data and as a program; how to see it again."""
    lines = []
    for finding in report.findings:
        if finding.smallest is None:
            continue
        name = re.sub(r"\W+", "-", f"{Path(report.name).name} {finding.dtype}").strip("-")
        spec = {"family": report.spec.family, "spec": report.spec.differences()}
        data = {"kernel": report.name, **spec, "dtype": finding.dtype, "case": asdict(finding.smallest)}
        with noting(problems):
            try:
                Path(FAILURES).mkdir(exist_ok=True)
            except OSError as error:
                raise ValueError(f"crosscheck: cannot write {FAILURES}/{name}.json: {error.strerror}") from error
            write_json(target_file("crosscheck", f"{FAILURES}/{name}.json"), data)
            with replacing("crosscheck", target_file("crosscheck", f"{FAILURES}/{name}.py"), "x") as file:
                file.write(program(report.name, report.spec, finding.smallest, finding.dtype))
            lines.append(f"again: refimpl crosscheck --replay {FAILURES}/{name}.json")
            lines.append(f"   or: python {FAILURES}/{name}.py, which has the numbers in it")
    return lines


def replay(options: argparse.Namespace) -> Outcome:
    """Ask a kernel again about the case in a file."""
    with budget("--replay", options.limit):
        data = read_object("--replay", options.replay, LARGEST)
    with located(f"--replay: {options.replay}"):
        place, spec, dtype, case = read_failure(data)
    process = Process(options.kernel or place, seconds_of(options))
    try:
        trial = attempt(process, spec, dtype, case)
    finally:
        process.close()
    lines = [f"{options.kernel or place}, {dtype}, {case}"]
    lines += [f"  {j.result}: {j.verdict} {j.words}".rstrip() for j in trial.judgements]
    return Outcome(1 if trial.wrong else 0, "\n".join(lines))


def read_failure(data: dict[str, Any]) -> tuple[str, Spec, str, Case]:
    kinds = {"kernel": str, "family": str, "spec": dict, "dtype": str, "case": dict}
    for name, kind in kinds.items():
        if not isinstance(data.get(name), kind):
            raise ValueError(f"`{name}` must be there, as {kind.__name__}, got {brief(data.get(name))}")
    choose("crosscheck", "family", data["family"], all_families())
    family = all_families()[data["family"]]
    own = {f.name: type(f.default) for f in conventions(family)}
    for name, x in data["spec"].items():
        choose("crosscheck", "convention", name, own)
        if not isinstance(x, own[name]):
            raise ValueError(f"`{name}` must be of type {own[name].__name__}, got {brief(x)}")
    spec = family(**data["spec"])
    choose("crosscheck", "dtype", data["dtype"], spec.dtypes)
    known = {f.name: f for f in fields(Case)}
    for name, x in data["case"].items():
        choose("crosscheck", "case", name, known)
        default = known[name].default
        if type(x) is not type(default) or (isinstance(x, int) and not 0 <= x <= 2**20):
            raise ValueError(f"`{name}` of the case must be like {default!r}, got {brief(x)}")
    case = Case(**data["case"])
    if case.size * (case.d + case.m + case.n) > 2**28 or (problem := spec.refuses(case)):
        raise ValueError(f"the case must be one of such a kernel: {problem if case.size < 2**20 else 'it is too large'}")
    return data["kernel"], spec, data["dtype"], case
