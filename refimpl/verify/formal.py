"""What Coq has proved, for all shapes and values over any field, and whether it was run here.

PROVED rests on proofs/_build/audited.json, in which `make -C proofs audit` says what Coq accepted
on this machine: the digests of all sources, and of every statement as Coq prints it. Without Coq,
`status` sees that the sources are those audited and those that formal.toml names, that every
statement has a proof that ends with Qed, and that the audit saw it as formal.toml has it. A file
that was written by hand for unchanged sources is believed: what it claims then is that Coq accepts
these very sources, which anyone can run.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
# The digest of every source, and of every statement as Coq prints it; written by proofs/table.py
SOURCES: dict[str, str] = DATA["sources"]
PRINTED: dict[str, str] = {
    f"{module}.{name}": digest for module, rows in DATA["printed"].items() for name, digest in rows.items()
}
COMMAND = "make -C proofs audit"
HELD = ("PROVED", "IN PART")  # the verdicts on what Coq accepted


def homes() -> tuple[Path, ...]:
    """The folders that may hold the proofs: beside the package, or in the current folder."""
    return Path(__file__).parents[2] / "proofs", Path("proofs").absolute()


def hex_digest(text: str | bytes) -> str:
    return hashlib.sha256(text if isinstance(text, bytes) else text.encode()).hexdigest()


def status() -> str:
    """'' if the audit is up to date and saw every statement; else the reason why it is not so."""
    names = [name for names in PROVED.values() for name in names]
    for home in homes():
        try:
            audited = json.loads((home / "_build" / "audited.json").read_text(encoding="utf-8"))
            sources = {path.name: path.read_bytes() for path in home.glob("*.v")}
        except (OSError, ValueError):
            continue
        if isinstance(audited, dict) and {f"{name.partition('.')[0]}.v" for name in names} <= sources.keys():
            return refusal(audited, sources, names)
    return f"Coq was not run on this machine ({COMMAND})"


def refusal(audited: dict[str, Any], sources: dict[str, bytes], names: Sequence[str]) -> str:
    """'' if the audit is of these sources, and they prove these statements; else what is amiss."""
    digests = {name: hex_digest(text) for name, text in sources.items()}
    seen, printed = (found if isinstance(found := audited.get(x), dict) else {} for x in ("sources", "statements"))
    if seen != seen | digests or audited.get("refimpl") != source():
        return f"proofs or library changed since {COMMAND}"
    for name in digests:
        if SOURCES.get(name) != digests[name]:
            return f"proofs/{name} is not the one that formal.toml names"
    proved = {f"{file[:-2]}.{name}" for file, text in sources.items() for name in proved_names(text.decode())}
    for name in names:
        if name not in proved:
            return f"proofs: {name} has no proof that ends with Qed"
        if name not in PRINTED or printed.get(name) != PRINTED[name]:
            return f"{COMMAND} did not see {name} as formal.toml has it"
    return ""


def without_comments(text: str) -> str:
    """Coq's comments nest."""
    depth, kept = 0, []
    for part in re.split(r"(\(\*|\*\))", text):
        depth += (part == "(*") - (part == "*)")
        kept.append(part if depth == 0 and part != "*)" else " ")
    return "".join(kept)


def proved_names(text: str) -> set[str]:
    """The theorems of a Coq source that are followed by a proof that ends with Qed."""
    _, *parts = re.split(r"\b(?:Theorem|Corollary|Lemma)\s+([\w']+)", without_comments(text))
    proof = re.compile(r"\bProof\s*\.\s*\S.*?\bQed\s*\.", re.S)
    return {name for name, rest in zip(parts[::2], parts[1::2], strict=True) if proof.search(rest)}


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
