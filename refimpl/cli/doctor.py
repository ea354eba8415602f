"""`refimpl doctor`: what is here for each door to refimpl, and what is missing or slow.

A broken library is a finding, not an error.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import shutil
import subprocess
import textwrap
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..packages import CORE, OPTIONAL, __version__, version
from .output import Outcome, json_target, noting, one_line, write_json

WIDTH = 80  # columns of a line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", metavar="FILE", help="write the findings to FILE")


def run(options: argparse.Namespace) -> Outcome:
    """Look at every library; the status is 2 if a needed one is missing or broken, else 0."""
    target, findings, problems = json_target(options.json), examine(), list[Exception]()
    if target:
        with noting(problems):
            write_json(target, findings)
    return Outcome(0 if findings["well"] else 2, describe_findings(findings), tuple(problems))


def torch_devices() -> list[str]:
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(count)]
    return ["cpu", *names, *(["mps"] if torch.backends.mps.is_available() else [])]


def jax_devices() -> list[str]:
    import jax

    return [str(d) for d in jax.devices()]


def cupy_devices() -> list[str]:
    import cupy

    try:
        return [f"cuda:{i}" for i in range(cupy.cuda.runtime.getDeviceCount())]
    except cupy.cuda.runtime.CUDARuntimeError:
        return []


DEVICES: dict[str, Callable[[], list[str]]] = {"torch": torch_devices, "jax": jax_devices, "cupy": cupy_devices}


# door: its command, and what it can use
DOORS = {
    "verify a theorem": ("refimpl verify", ("gmpy2", "python-flint", "Coq")),
    "check my kernel": ("refimpl verify exact_probes --backend LIB", ("torch", "jax", "cupy", "ml-dtypes")),
    "learn": ("python examples/NAME.py", ("examples", "matplotlib", "real weights")),
    "run the tests": ("python -m pytest -n auto", ("array-api-strict",)),
}
TOOLS = ("Coq", "examples", "real weights")  # what is no library of Python
INDENT = 29  # columns of the name and the version


def examine() -> dict[str, Any]:
    """The version, devices and `problem` of every library and tool, and which door uses it."""
    libraries = [examine_library(name) for name in (*CORE, *OPTIONAL)]
    tools = [examine_coq(), examine_examples(), examine_weights()]
    well = all(entry["problem"] is None for entry in libraries if entry["library"] in CORE)
    here = {"refimpl": __version__, "python": platform.python_version(), "platform": platform.platform()}
    doors = {door: {"command": command, "uses": list(uses)} for door, (command, uses) in DOORS.items()}
    return {**here, "cores": os.cpu_count(), "libraries": libraries, "tools": tools, "doors": doors, "well": well}


def examine_library(name: str) -> dict[str, Any]:
    extra, purpose = OPTIONAL.get(name, ("", "needed"))
    found, devices, problem = version(name), None, None
    if found is None:
        problem = f"missing; pip install 'refimpl[{extra}]'" if extra else f"missing; pip install {name}"
    else:
        try:
            importlib.import_module({"python-flint": "flint"}.get(name, name.replace("-", "_")))
            if name in DEVICES:
                devices = DEVICES[name]()
                problem = None if devices else "installed, but no GPU"
        except Exception as error:
            problem = f"broken; import says {type(error).__name__}: {error}; pip install --force-reinstall {name}"
    return {"library": name, "version": found, "devices": devices, "problem": problem, "purpose": purpose}


def examine_coq() -> dict[str, Any]:
    """Whether Coq is here, and whether it has checked the proofs."""
    found: str | None = None
    problem: str | None = "missing; apt install coq libcoq-mathcomp-algebra make; make -C proofs audit"
    if path := shutil.which("coqc"):
        found, problem = "unknown", None
        with suppress(OSError, subprocess.SubprocessError):
            shown = subprocess.run([path, "--print-version"], capture_output=True, text=True, timeout=20)
            found = (shown.stdout.split() or [found])[0]
    try:
        from ..verify.formal import status

        missing = status()
    except Exception as error:  # a needed library is missing or broken, as is said elsewhere
        missing = f"unknown: {type(error).__name__}"
    if not missing:
        problem = None
    elif found:
        problem = f"proofs NOT CHECKED: {missing}"
    return {"tool": "Coq", "version": found, "problem": problem, "purpose": "proofs (PROVED)"}


def examine_examples() -> dict[str, Any]:
    folders = (Path(__file__).parents[2] / "examples", Path("examples").absolute())
    found = next((n for folder in folders if (n := len([*folder.glob("[0-9]*.py")]))), 0)
    problem = None if found else "missing; they are in the repository, not in the package"
    return {"tool": "examples", "version": f"{found}" if found else None, "problem": problem, "purpose": "a course"}


def examine_weights() -> dict[str, Any]:
    folder = os.environ.get("REFIMPL_MODELS")
    found = folder if folder and Path(folder).is_dir() else None
    origin = "from github.com/karpathy/llama2.c, tests of rwkv.cpp"
    problem = None if found else f"missing; set REFIMPL_MODELS=FOLDER ({origin})"
    return {"tool": "real weights", "version": "found" if found else None, "problem": problem, "purpose": "experiments"}


def describe_findings(findings: dict[str, Any]) -> str:
    """What was found, for each door, in lines of at most 80 columns."""
    named = {e["library"]: e for e in findings["libraries"]} | {e["tool"]: e for e in findings["tools"]}
    system, cores = findings["platform"].split("-")[0], findings["cores"]
    lines = [f"refimpl {findings['refimpl']}, Python {findings['python']}, {system}, {cores} cores"[:WIDTH]]
    core = [named[name] for name in CORE]
    lines.append("needed: " + ", ".join(f"{e['library']} {e['version']}" for e in core if not e["problem"]))
    lines += [line for e in core if e["problem"] for line in describe_finding(e)]
    for door, (command, uses) in DOORS.items():
        lines.append(f"{door}: {command}")
        lines += [line for name in uses if name in named for line in describe_finding(named[name])]
    problem = "Something that is needed is missing or broken; see above."
    return "\n".join([*lines, "All that is needed is here." if findings["well"] else problem])


def describe_finding(entry: dict[str, Any]) -> list[str]:
    """One line; more, if it is long."""
    name, found, problem = entry.get("library") or entry["tool"], entry["version"], entry["problem"]
    words = ", ".join(entry.get("devices") or [entry["purpose"]])
    if problem and found is None:  # the first word of the problem is the version
        found, _, problem = problem.partition("; ")
        words = f"{'' if entry['purpose'] == 'needed' else 'for '}{entry['purpose']}: {problem}"
    elif problem:
        # Of a broken library the remedy must be seen: what Python says may be cut.
        first, _, remedy = problem.rpartition("; ")
        words = f"{first[: 2 * (WIDTH - INDENT) - len(remedy) - 6]}; {remedy}" if first else problem
    head = f"  {name:17}{(found or '-').partition('+')[0][:9]:10}"
    how: dict[str, Any] = {"initial_indent": head, "subsequent_indent": " " * INDENT, "break_on_hyphens": False}
    return textwrap.wrap(one_line(words), WIDTH, **how)
