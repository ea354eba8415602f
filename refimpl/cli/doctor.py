"""What this machine has for refimpl, and what it lacks. A broken library is a finding, not a crash."""

from __future__ import annotations

import importlib
import platform
from collections.abc import Callable
from typing import Any

from ..packages import CORE, OPTIONAL, __version__, version


def torch_devices() -> list[str]:
    import torch

    names = (
        [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())]
        if torch.cuda.is_available()
        else []
    )
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
    """Every library: its version, its devices if it has any, and in `problem` what is wrong with it."""
    findings = []
    for name in (*CORE, *OPTIONAL):
        entry: dict[str, Any] = {"library": name, "version": version(name), "devices": None, "problem": None}
        extra, purpose = OPTIONAL.get(name, ("", "needed"))
        entry["purpose"] = purpose
        if entry["version"] is None:
            entry["problem"] = f"missing; pip install 'refimpl[{extra}]'" if extra else f"missing; pip install {name}"
        else:
            try:
                importlib.import_module({"python-flint": "flint"}.get(name, name.replace("-", "_")))
                if name in DEVICES:
                    entry["devices"] = DEVICES[name]()
                    entry["problem"] = None if entry["devices"] else "installed, but no GPU"
            except Exception as error:
                entry["problem"] = (
                    f"broken; import says {type(error).__name__}: {error}; pip install --force-reinstall {name}"
                )
        findings.append(entry)
    well = all(e["problem"] is None for e in findings if e["library"] in CORE)
    here = {"refimpl": __version__, "python": platform.python_version(), "platform": platform.platform()}
    return {**here, "libraries": findings, "well": well}


def report(findings: dict[str, Any]) -> str:
    lines = [f"refimpl {findings['refimpl']}, Python {findings['python']}, {findings['platform']}"]
    for e in findings["libraries"]:
        devices = f"devices: {', '.join(e['devices'])}" if e["devices"] else ""
        lines.append(f"{e['library']:18}{e['version'] or '-':14}{e['purpose']:38}{e['problem'] or devices}".rstrip())
    lines.append(
        "All that is needed is here."
        if findings["well"]
        else "Something that is needed is missing or broken; see above."
    )
    return "\n".join(lines)
