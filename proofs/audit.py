"""See that the proofs assume nothing:  python audit.py BUILD FILE ...

It runs after `make check`, which leaves coqchk.log in BUILD.

1. No word in a source that assumes a thing or switches a check of the kernel off.
2. `Print Assumptions` of every statement says "Closed under the global context".
3. The independent checker, which has read every file, found no axiom of ours and no check switched off.

Then BUILD/audited.json says which sources were found in order; `refimpl verify` reads it.
"""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

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


def main(build: Path, files: list[str]) -> list[str]:
    """What is wrong."""
    found, names = [], []
    for file in files:
        text = (build / f"{file}.v").read_text(encoding="utf-8")
        bare = without_comments(text)
        found += [f"{file}.v: {word}" for word in re.findall(rf"\b(?:{ASSUMING}|{HIDING})\b", bare)]
        found += [f"{file}.v: a comment within a string"] if re.search(r'"[^"\n]*(?:\(\*|\*\))[^"\n]*"', text) else []
        own = re.findall(rf"\b(?:{STATEMENT})\s+([\w']+)", bare)
        found += [f"{file}.v: {name} is there twice" for name in sorted({name for name in own if own.count(name) > 1})]
        names += [f"icl.{file}.{name}" for name in own]
    return found + assumptions(build, files, names) + checker((build / "coqchk.log").read_text(encoding="utf-8"))


def without_comments(text: str) -> str:
    """Coq's comments nest."""
    depth, kept = 0, []
    for part in re.split(r"(\(\*|\*\))", text):
        depth += (part == "(*") - (part == "*)")
        kept.append(part if depth == 0 and part != "*)" else " ")
    return "".join(kept)


def assumptions(build: Path, files: list[str], names: list[str]) -> list[str]:
    lines = [f"From icl Require {' '.join(files)}.", *(f"Print Assumptions {name}." for name in names)]
    (build / "assumptions.v").write_text("\n".join(lines) + "\n", encoding="utf-8")
    done = subprocess.run(["coqc", "-Q", ".", "icl", "assumptions.v"], cwd=build, capture_output=True, text=True)
    if done.returncode:
        return [done.stderr]
    closed = f"{done.stdout.count(CLOSED)} of {len(names)} definitions and statements in {len(files)} files"
    print(f"{closed} are closed under the global context")
    return (
        []
        if done.stdout.count(CLOSED) == len(names) > 0
        else ["something is assumed:", *done.stdout.replace(CLOSED, "").split("\n")]
    )


def checker(log: str) -> list[str]:
    """Of all that coqchk says is assumed, what is neither ours to assume nor a field that MathComp seals."""
    off = ("type-in-type", "unsafe (co)fixpoints", "positivity is assumed")
    axioms = re.search(r"^\* Axioms:(.*?)^\*", log, re.M | re.S)
    listed = axioms[1].split() if axioms else ["coqchk: no list of axioms"]
    return [f"assumed: {x}" for x in listed if x != "<none>" and not re.fullmatch(SEALED, x)] + [
        f"coqchk: {what}" for what in off if f"{what}: <none>" not in log
    ]


if __name__ == "__main__":
    build, files = Path(sys.argv[1]), sys.argv[2:]
    (build / "audited.json").unlink(missing_ok=True)
    if wrong := main(build, files):
        sys.exit("\n".join(["audit: not in order", *filter(None, wrong)]))
    from refimpl.verify.check import source  # what the instances were computed by

    digests = {f"{file}.v": hashlib.sha256((build / f"{file}.v").read_bytes()).hexdigest() for file in files} | {
        "refimpl": source()
    }
    (build / "audited.json").write_text(json.dumps(digests, indent=1) + "\n", encoding="utf-8")
