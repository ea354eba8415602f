"""What Coq has proved, for all shapes and values over any field: the names in proofs/, or why there is none."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from .theorem import Result

# theorem: statements of proofs/*.v, each "room.name"
PROVED: dict[str, tuple[str, ...]] = {}
FLOATS = "it is about rounding; proofs/bounds.v has the bounds that such checks rest on"
NOT_PROVED: dict[str, str] = {
    "exact_probes": FLOATS,
    "iclca_probes": FLOATS,
    "iclca_error": "it is a measurement",
}
COMMAND = "make -C proofs audit"


def homes() -> tuple[Path, ...]:
    """Where the proofs may be: beside the package, in a clone; or where the command is run."""
    return Path(__file__).parents[2] / "proofs", Path("proofs").absolute()


def status() -> str:
    """What the audit left behind: nothing if it found the proofs, as they are now, in order; else what is amiss, in words."""
    for home in homes():
        try:
            found = json.loads((home / "_build" / "audited.json").read_text(encoding="utf-8"))
            now = {name: hashlib.sha256((home / name).read_bytes()).hexdigest() for name in found if name != "instances.v"}
            rooms = {path.name for path in home.glob("*.v")}
        except (OSError, ValueError, AttributeError):
            continue
        return "" if rooms <= found.keys() and all(found[name] == now[name] for name in now) else f"proofs changed since {COMMAND}"
    return f"Coq was not run on this machine ({COMMAND})"


def formal(theorems: Iterable[str]) -> list[Result]:
    """A row for each theorem: PROVED where Coq accepted it here; NOT CHECKED where it did not run; N/A where there is no proof."""
    missing, rows = status(), []
    for name in dict.fromkeys(theorems):
        if name in PROVED:
            evidence = f"all shapes, all values: {', '.join(PROVED[name])}"
            rows.append(Result(name, "Coq", "NOT CHECKED" if missing else "PROVED", f"{evidence}; {missing}" if missing else evidence))
        else:
            rows.append(Result(name, "Coq", "N/A", NOT_PROVED.get(name, "no proof yet")))
    return rows
