"""What Coq has proved, for all shapes and values over any field, and whether it was run here."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .check import source
from .theorem import Result


@dataclass(frozen=True)
class Statement:
    """A statement of proofs/*.v.

    words   the statement itself
    coq     its names, each file.name
    python  the functions of refimpl that it is about
    tests   the files of tests/ that test them
    verify  the theorems of `refimpl verify` that it proves
    """

    words: str
    coq: list[str]
    python: list[str]
    tests: list[str]
    verify: list[str]


DATA = tomllib.loads(Path(__file__).with_name("formal.toml").read_text(encoding="utf-8"))
STATEMENTS = [
    Statement(row["words"], *(row.get(name, []) for name in ("coq", "python", "tests", "verify")))
    for row in DATA["statements"]
]
# For each theorem: its statements in Coq; the part that they leave out; why there are none
PROVED: dict[str, tuple[str, ...]] = {
    theorem: tuple(name for s in STATEMENTS if theorem in s.verify for name in s.coq)
    for theorem in dict.fromkeys(theorem for s in STATEMENTS for theorem in s.verify)
}
IN_PART: dict[str, str] = DATA["in_part"]
NOT_PROVED: dict[str, str] = DATA["not_proved"]
COMMAND = "make -C proofs audit"


def homes() -> tuple[Path, ...]:
    """The folders that may hold the proofs: beside the package, or in the current folder."""
    return Path(__file__).parents[2] / "proofs", Path("proofs").absolute()


def status() -> str:
    """'' if the audit is up to date; else the reason why it is not."""
    needed = {f"{name.partition('.')[0]}.v" for names in PROVED.values() for name in names}
    for home in homes():
        try:
            audited = json.loads((home / "_build" / "audited.json").read_text(encoding="utf-8"))
            digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in home.glob("*.v")}
        except (OSError, ValueError):
            continue
        if isinstance(audited, dict) and needed <= digests.keys():
            same = audited == audited | digests and audited.get("refimpl") == source()
            return "" if same else f"proofs or library changed since {COMMAND}"
    return f"Coq was not run on this machine ({COMMAND})"


def formal(theorems: Iterable[str]) -> list[Result]:
    """A row for each theorem.

    PROVED or IN PART where Coq accepted it here; NOT CHECKED where Coq did not run; N/A where there
    is no proof
    """
    missing, rows = status(), []
    for name in dict.fromkeys(theorems):
        if name not in PROVED:
            rows.append(Result(name, "Coq", "N/A", NOT_PROVED.get(name, "no proof yet")))
            continue
        part = f" in part ({IN_PART[name]})" if name in IN_PART else ""
        evidence = f"all shapes, all values{part}: {', '.join(PROVED[name])}"
        verdict = "NOT CHECKED" if missing else "IN PART" if part else "PROVED"
        rows.append(Result(name, "Coq", verdict, f"{evidence}; {missing}" if missing else evidence))
    return rows


def table() -> str:
    """The table of proofs/README.md: one line for each statement."""

    def code(names: list[str]) -> str:
        return ", ".join(f"`{name}`" for name in names) or "—"

    lines = ["| theorem | Coq | Python | test | `refimpl verify` |", "|---|---|---|---|---|"]
    for s in STATEMENTS:
        cells = [s.words.replace("|", "\\|"), *map(code, (s.coq, s.python, s.tests, s.verify))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
