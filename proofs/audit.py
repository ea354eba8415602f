"""Audit the proofs: they must assume nothing.  python audit.py BUILD MODULE ...

Run it after `make check`, which leaves coqchk.log in BUILD. There are three audits.

1. No source has a word that assumes something or switches off a check of the kernel.
2. `Print Assumptions` of every statement answers "Closed under the global context".
3. The independent checker has read every module, and found no axiom and no check switched off.

Then BUILD/audited.json lists the digests of the sources and, as Coq prints them, of the theorems;
`refimpl verify` reads it.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

from refimpl.verify.check import source
from refimpl.verify.formal import hex_digest, without_comments

ASSUMING = (
    r"Axioms?|Parameters?|Conjectures?|Admitted|admit|give_up|bypass_check|(?:Guard|Positivity|Universe)\s+Checking"
)
# In which a statement, or an assumption, could be overlooked; nothing here needs them
HIDING = r"Module|Include|Load|Property|(?<!Section )(?<!End )Context"
STATEMENT = (
    r"Theorem|Lemma|Corollary|Proposition|Fact|Remark|Example|Definition|Fixpoint|Canonical|Instance|Inductive|Record"
)
CLOSED = "Closed under the global context"
# Fields of modules that MathComp seals, into which coqchk does not look
SEALED = r"(?:mathcomp\.(?:ssreflect|fingroup|algebra)|Coq\.ssr)(?:\.\w+){3,}"


def main(build: Path, modules: list[str]) -> list[str]:
    """What is wrong."""
    found, names = [], []
    for module in modules:
        text = (build / f"{module}.v").read_text(encoding="utf-8")
        bare = without_comments(text)
        found += [f"{module}.v: {word}" for word in re.findall(rf"\b(?:{ASSUMING}|{HIDING})\b", bare)]
        found += [f"{module}.v: a comment within a string"] if re.search(r'"[^"\n]*(?:\(\*|\*\))[^"\n]*"', text) else []
        own = re.findall(rf"\b(?:{STATEMENT})\s+([\w']+)", bare)
        found += [
            f"{module}.v: {name} is there twice" for name in sorted({name for name in own if own.count(name) > 1})
        ]
        names += [f"icl.{module}.{name}" for name in own]
    return found + assumptions(build, modules, names) + checker((build / "coqchk.log").read_text(encoding="utf-8"))


def assumptions(build: Path, modules: list[str], names: list[str]) -> list[str]:
    lines = [f"From icl Require {' '.join(modules)}.", *(f"Print Assumptions {name}." for name in names)]
    done = coqc(build, "assumptions.v", lines)
    if done.returncode:
        return [done.stderr]
    closed = done.stdout.count(CLOSED)
    print(f"{closed} of {len(names)} definitions and statements in {len(modules)} modules", end=" ")
    print("are closed under the global context")
    if closed == len(names) > 0:
        return []
    return ["something is assumed:", *done.stdout.replace(CLOSED, "").split("\n")]


def coqc(build: Path, name: str, lines: list[str]) -> subprocess.CompletedProcess[str]:
    (build / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return subprocess.run(["coqc", "-Q", ".", "icl", name], cwd=build, capture_output=True, text=True)


def printed(build: Path, modules: list[str]) -> dict[str, str]:
    """The digest of every theorem as Coq prints it, in full and without notations."""
    found = {}
    names = [
        f"{module}.{name}"
        for module in modules
        for name in re.findall(
            r"\b(?:Theorem|Corollary)\s+([\w']+)", without_comments((build / f"{module}.v").read_text(encoding="utf-8"))
        )
    ]
    lines = [f"From icl Require {' '.join(modules)}.", "Set Printing All.", *(f"Check icl.{name}." for name in names)]
    done = coqc(build, "statements.v", lines)
    if done.returncode:
        sys.exit(f"audit: not in order\n{done.stderr}")
    # Each answer begins with the name, perhaps a part of it, at the beginning of a line.
    answers = re.split(r"\n(?=\S)", done.stdout.strip()) if names else []
    for name, answer in zip(names, answers, strict=True):
        who, _, statement = answer.partition(" : ")
        assert f".{name}".endswith(f".{who.strip()}"), (name, answer)
        found[name] = hex_digest(" ".join(statement.split()))[:16]
    return found


def checker(log: str) -> list[str]:
    """The assumptions that coqchk lists, but for the fields that MathComp seals."""
    off = ("type-in-type", "unsafe (co)fixpoints", "positivity is assumed")
    axioms = re.search(r"^\* Axioms:(.*?)^\*", log, re.M | re.S)
    listed = axioms[1].split() if axioms else ["coqchk: no list of axioms"]
    return [f"assumed: {x}" for x in listed if x != "<none>" and not re.fullmatch(SEALED, x)] + [
        f"coqchk: {what}" for what in off if f"{what}: <none>" not in log
    ]


if __name__ == "__main__":
    build, modules = Path(sys.argv[1]), sys.argv[2:]
    (build / "audited.json").unlink(missing_ok=True)
    if wrong := main(build, modules):
        sys.exit("\n".join(["audit: not in order", *filter(None, wrong)]))
    sources = {f"{module}.v": hex_digest((build / f"{module}.v").read_bytes()) for module in modules}
    seen = {"refimpl": source(), "sources": sources, "statements": printed(build, modules)}  # by refimpl: instances
    (build / "audited.json").write_text(json.dumps(seen, indent=1) + "\n", encoding="utf-8")
