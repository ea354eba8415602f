"""`refimpl doctor`: list libraries and devices. A broken library is a finding, not an error."""

from __future__ import annotations

import argparse
import importlib
import platform
from collections.abc import Callable
from typing import Any

from ..packages import CORE, OPTIONAL, __version__, version
from .output import Outcome, json_target, noting, write_json


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


def examine() -> dict[str, Any]:
    """The version, devices and `problem` of every library."""
    libraries = [examine_library(name) for name in (*CORE, *OPTIONAL)]
    well = all(entry["problem"] is None for entry in libraries if entry["library"] in CORE)
    here = {"refimpl": __version__, "python": platform.python_version(), "platform": platform.platform()}
    return {**here, "libraries": libraries, "well": well}


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


def describe_findings(findings: dict[str, Any]) -> str:
    lines = [f"refimpl {findings['refimpl']}, Python {findings['python']}, {findings['platform']}"]
    for e in findings["libraries"]:
        devices = f"devices: {', '.join(e['devices'])}" if e["devices"] else ""
        lines.append(f"{e['library']:18}{e['version'] or '-':14}{e['purpose']:38}{e['problem'] or devices}".rstrip())
    problem = "Something that is needed is missing or broken; see above."
    return "\n".join([*lines, "All that is needed is here." if findings["well"] else problem])
