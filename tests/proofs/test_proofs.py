"""Proofs, table, registry and library speak of the same theorems; the audit would see an
assumption.

With Coq installed and REFIMPL_COQ=1, the audit is also run on proofs that assume something, which
takes seconds.
"""

from __future__ import annotations

import configparser
import importlib
import json
import pkgutil
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from refimpl.verify import formal
from refimpl.verify.certificate import certificate
from refimpl.verify.check import Draws
from refimpl.verify.registry import THEOREMS
from refimpl.verify.report import table
from tests.helpers.coq import PROOFS, with_coq

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(PROOFS))
audit, proofs_table = importlib.import_module("audit"), importlib.import_module("table")
FILES = re.search(r"^FILES := ((?:.*\\\n)*.*)", (PROOFS / "Makefile").read_text(), re.M)[1].replace("\\\n", " ").split()  # type: ignore[index]
WRITTEN = [file for file in FILES if not file.startswith("instances")]


def statements(kinds: str) -> set[str]:
    found = set()
    for file in WRITTEN:
        text = audit.without_comments((PROOFS / f"{file}.v").read_text(encoding="utf-8"))
        found |= {f"{file}.{name}" for name in re.findall(rf"^\s*(?:{kinds})\s+([\w']+)", text, re.M)}
    return found


def test_every_file_is_built() -> None:
    assert {path.stem for path in PROOFS.glob("*.v")} == set(WRITTEN) and len(WRITTEN) >= 10


def test_the_table_has_every_theorem_once_and_nothing_else() -> None:
    names = [name for statement in formal.STATEMENTS for name in statement.coq]
    assert len(names) == len(set(names))
    assert set(names) == statements("Theorem|Corollary")


def test_the_readme_has_the_table_that_the_data_gives() -> None:
    text = proofs_table.README.read_text(encoding="utf-8")
    assert f"{proofs_table.BEGIN}{formal.table()}{proofs_table.END}" in text
    assert proofs_table.with_table(text) == text  # python proofs/table.py writes it
    changed = text.replace("| Strengths multiply. |", "| Strengths add. |")
    assert changed != text == proofs_table.with_table(changed)


def test_the_data_is_part_of_the_package() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert config["options.package_data"]["refimpl.verify"] == "formal.toml"


def test_every_theorem_of_the_registry_is_proved_or_says_why_not() -> None:
    assert set(formal.PROVED) | set(formal.NOT_PROVED) == set(THEOREMS) and set(formal.IN_PART) <= set(formal.PROVED)
    assert not set(formal.PROVED) & set(formal.NOT_PROVED) and all(formal.NOT_PROVED.values())
    assert all(
        THEOREMS[name].ways in (("probe",), ("oracle",)) or THEOREMS[name].needs[0] == "real"
        for name in formal.NOT_PROVED.keys() - {"nano"}
        if THEOREMS[name].group not in ("formulas", "verify")  # programs compared with their definitions; itself
    )


def test_functions_and_tests_of_the_table_exist() -> None:
    for statement in formal.STATEMENTS:
        assert statement.words.endswith(".") and statement.coq, statement
        for name in statement.python:
            found = pkgutil.resolve_name(f"refimpl.{name}")
            assert callable(found) and f"{found.__module__}.{found.__qualname__}" == f"refimpl.{name}"
        assert all((ROOT / "tests" / file).is_file() for file in statement.tests), statement


def test_the_digests_are_of_these_sources_and_of_every_statement() -> None:
    """After a change of the proofs: make -C proofs audit && python proofs/table.py"""
    assert {path.name: formal.hex_digest(path.read_bytes()) for path in PROOFS.glob("*.v")} == formal.SOURCES
    names = {name for statement in formal.STATEMENTS for name in statement.coq}
    assert formal.PRINTED.keys() == names and all(re.fullmatch("[0-9a-f]{16}", x) for x in formal.PRINTED.values())
    text = proofs_table.DATA.read_text(encoding="utf-8")
    assert proofs_table.with_digests(text, formal.PRINTED) == text
    proved = {f"{file}.{name}" for file in WRITTEN for name in formal.proved_names((PROOFS / f"{file}.v").read_text())}
    assert names <= proved


def test_digests_are_written_only_of_what_coq_has_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that says what an audit saw is not believed."""
    shutil.copy(PROOFS / "rope.v", tmp_path)
    (tmp_path / "_build").mkdir()
    (tmp_path / "_build" / "audited.json").write_text(json.dumps({"statements": formal.PRINTED}), encoding="utf-8")
    monkeypatch.setattr(proofs_table, "HERE", tmp_path)
    monkeypatch.setattr(proofs_table, "README", tmp_path / "README.md")
    monkeypatch.setattr(proofs_table, "DATA", tmp_path / "formal.toml")
    with pytest.raises(SystemExit, match=r"^table: rope\.v is not what was built; run make -C proofs audit first$"):
        proofs_table.main()
    assert {path.name for path in tmp_path.iterdir()} == {"rope.v", "_build"}


ONE = "Lemma one : 1 = 1. Proof. reflexivity. Qed.\n"


def audited(home: Path, proof: str = ONE, **changed: Any) -> Path:
    """Proofs of one file, as an audit leaves them."""
    (home / "_build").mkdir(parents=True)
    (home / "proof.v").write_text(proof)
    found = {
        "refimpl": formal.source(),
        "sources": {"proof.v": formal.hex_digest(proof), "instances.v": "any"},
        "statements": {"proof.one": "0123"},
    }
    (home / "_build" / "audited.json").write_text(changed.get("text") or json.dumps(found | changed))
    return home


def test_status_knows_whether_coq_was_run_on_these_proofs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def status(*homes: Path) -> str:
        monkeypatch.setattr(formal, "homes", lambda: homes)
        return formal.status()

    monkeypatch.setattr(formal, "PROVED", {"iclca": ("proof.one",)})
    monkeypatch.setattr(formal, "SOURCES", {"proof.v": formal.hex_digest(ONE)})
    monkeypatch.setattr(formal, "PRINTED", {"proof.one": "0123"})
    good, bad, torn = (
        audited(tmp_path / "a"),
        audited(tmp_path / "b", sources={"proof.v": "0"}),
        audited(tmp_path / "c", text="["),
    )
    changed, never = (
        "proofs or library changed since make -C proofs audit",
        "Coq was not run on this machine (make -C proofs audit)",
    )
    assert status(good) == status(torn, good) == ""
    assert status(bad) == status(audited(tmp_path / "d", refimpl="0")) == changed
    assert status(tmp_path) == status(torn) == status(audited(tmp_path / "e", text="5")) == never
    (good / "other.v").write_text("")
    assert status(good) == changed
    (good / "proof.v").unlink()
    assert status(good) == never
    (empty := tmp_path / "f" / "_build").mkdir(parents=True)
    (empty / "audited.json").write_text("{}")
    assert status(tmp_path / "f") == never


EMPTY = "Lemma one : 1 = 1. Proof. Admitted.\n"
FORGED = {
    "the format of before": ({"proof.v": formal.hex_digest(ONE)}, ONE, ONE, "proofs or library changed since"),
    "no statements": ({"statements": {}}, ONE, ONE, "audit did not see proof.one as formal.toml has it"),
    "not a table": ({"statements": 5}, ONE, ONE, "audit did not see proof.one as formal.toml has it"),
    "another statement": ({"statements": {"proof.one": "4567"}}, ONE, ONE, "audit did not see proof.one as"),
    "empty file": ({}, "", ONE, "proofs/proof.v is not the one that formal.toml names"),
    "empty proof": ({}, EMPTY, ONE, "proofs/proof.v is not the one that formal.toml names"),
    "empty proof, and its digest": ({}, EMPTY, EMPTY, "proofs: proof.one has no proof that ends with Qed"),
    "empty file, and its digest": ({}, "", "", "proofs: proof.one has no proof that ends with Qed"),
    "in a comment": ({}, f"(* {ONE} *)", f"(* {ONE} *)", "proofs: proof.one has no proof that ends with Qed"),
    "the next one's Qed": ({}, *["Lemma one : 1 = 1.\n" + ONE.replace("one", "two")] * 2, "no proof that ends with"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_audit_proves_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed, proof, named, words = FORGED[name]
    home = audited(tmp_path / "a", proof, **changed)
    if name == "the format of before":
        (home / "_build" / "audited.json").write_text(json.dumps(changed | {"refimpl": formal.source()}))
    monkeypatch.setattr(formal, "homes", lambda: (home,))
    monkeypatch.setattr(formal, "PROVED", {"iclca": ("proof.one",)})
    monkeypatch.setattr(formal, "SOURCES", {"proof.v": formal.hex_digest(named)})
    monkeypatch.setattr(formal, "PRINTED", {"proof.one": "0123"})
    assert words in formal.status()
    (row,) = formal.formal(["iclca"])
    assert row.verdict == "NOT CHECKED" and words in row.evidence


def test_the_certificate_has_the_statements_that_were_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formal, "status", lambda: "")
    rows = certificate([], Draws(), full=False, seconds=0.0, proofs=formal.formal(["shift", "pairing", "nano"]))[
        "proofs"
    ]
    assert [row["verdict"] for row in rows] == ["PROVED", "IN PART", "N/A"] and rows[2]["statements"] == {}
    assert rows[0]["statements"] == {name: formal.PRINTED[name] for name in formal.PROVED["shift"]} != {}
    monkeypatch.setattr(formal, "status", lambda: "no Coq")
    rows = certificate([], Draws(), full=False, seconds=0.0, proofs=formal.formal(["shift"]))["proofs"]
    assert rows[0]["statements"] == {}


def test_rows_of_the_table_say_what_coq_says(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["iclca", "exact_probes"]
    monkeypatch.setattr(formal, "status", lambda: "")
    proved, none = formal.formal(names)
    assert (proved.verdict, proved.system, none.verdict) == (
        "PROVED",
        "Coq",
        "N/A",
    ) and "conversion_exact" in proved.evidence
    assert (
        formal.formal(["pairing"])[0].verdict == "IN PART"
        and "in part (for all x first" in formal.formal(["pairing"])[0].evidence
    )
    lines = table(
        [replace(proved, system="Q", verdict="EXACT"), replace(none, system="Q")], [proved, none]
    ).splitlines()
    assert [line.split()[:3] for line in lines[1:3]] == [["iclca", "Coq", "PROVED"], ["iclca", "Q", "EXACT"]]
    assert "n/a: exact_probes in Coq, Q: it is about rounding" in lines[3]
    monkeypatch.setattr(formal, "status", lambda: "no Coq")
    assert formal.formal(names)[0].verdict == "NOT CHECKED" and formal.formal(names)[0].evidence.endswith("; no Coq")


# The audit sees what is assumed

GOOD = "(* Axiom (* nested *) Admitted. *)\nLemma one : 1 = 1. Proof. reflexivity. Qed.\n"
PLANTED = {
    "axiom": ("Axiom two : 1 = 2.\nLemma three : 1 = 2. Proof. exact two. Qed.", "proof.v: Axiom"),
    "variable outside a section": (
        "Variable two : 1 = 2.\nLemma three : 1 = 2. Proof. exact two. Qed.",
        "assumed: icl.proof.two",
    ),
    "admitted lemma": ("Lemma two : 1 = 2. Proof. Admitted.", "proof.v: Admitted"),
    "guard check off": (
        "Unset Guard Checking.\nFixpoint loop (n : nat) : False := loop n.\n"
        "Lemma two : 1 = 2. Proof. destruct (loop 0). Qed.",
        "proof.v: Guard Checking",
    ),
    "positivity check off": (
        "Unset Positivity Checking.\nInductive T := C : (T -> nat) -> T.",
        "proof.v: Positivity Checking",
    ),
    "property": (
        "Require Import Classical.\nProperty two (P : Prop) : P \\/ ~ P. Proof. exact (classic P). Qed.",
        "Property",
    ),
    "hidden in a module": (
        "Require Import Classical.\n"
        "Module Hidden. Theorem two (P : Prop) : P \\/ ~ P. Proof. exact (classic P). Qed. End Hidden.\n"
        "Theorem two : 2 = 2. Proof. reflexivity. Qed.",
        "two is there twice",
    ),
    "not first on its line": (
        "Require Import Classical. Theorem two (P : Prop) : P \\/ ~ P. Proof. exact (classic P). Qed.",
        "assumed: Coq.Logic.Classical_Prop.classic",
    ),
    "after a string that looks like a comment": (
        'Require Import String Classical.\nDefinition s := "(*"%string.\n'
        "Theorem two (P : Prop) : P \\/ ~ P. Proof. exact (classic P). Qed.",
        "a comment within a string",
    ),
    "axiom of a library": (
        "Require Import Coq.Logic.Classical.\nLemma two (P : Prop) : P \\/ ~ P. Proof. exact (classic P). Qed.",
        "something is assumed",
    ),
}


def build(home: Path, text: str) -> subprocess.CompletedProcess[str]:
    """The project's own Makefile and audit, on one file."""
    shutil.copy(PROOFS / "audit.py", home)
    make = re.sub(r"^FILES := (?:.*\\\n)*.*", "FILES := proof", (PROOFS / "Makefile").read_text(), flags=re.M)
    (home / "Makefile").write_text(make)
    (home / "proof.v").write_text(text)
    return subprocess.run(
        ["make", "-C", str(home), "audit", f"PYTHON={sys.executable}"], capture_output=True, text=True, check=False
    )


def test_audit_accepts_what_is_proved(tmp_path: Path) -> None:
    with_coq()
    done = build(tmp_path, GOOD + "Theorem two (n : nat) : n = n. Proof. reflexivity. Qed.\n")
    assert done.returncode == 0 and "2 of 2 definitions and statements" in done.stdout, done.stdout + done.stderr
    found = json.loads((tmp_path / "_build" / "audited.json").read_text())
    assert found.keys() == {"refimpl", "sources", "statements"} and found["sources"].keys() == {"proof.v"}
    assert found["statements"] == {"proof.two": formal.hex_digest("forall n : nat, @eq nat n n")[:16]}


@pytest.mark.parametrize("name", PLANTED)
def test_audit_rejects_what_is_assumed(name: str, tmp_path: Path) -> None:
    with_coq()
    text, message = PLANTED[name]
    done = build(tmp_path, GOOD + text + "\n")
    assert done.returncode != 0 and message in done.stderr, done.stdout + done.stderr
    assert not (tmp_path / "_build" / "audited.json").exists()


@pytest.mark.parametrize("log", ["", "  icl.proof.two\n* Constants/Inductives relying on type-in-type: <none>"])
def test_audit_reads_the_checkers_log(log: str) -> None:
    assert audit.checker(log)


def test_words_that_assume_are_seen_outside_comments_only() -> None:
    seen: Any = re.findall(
        rf"\b(?:{audit.ASSUMING})\b",
        audit.without_comments("(* Axiom *) Parameter x : nat. (* (* admit *) *) Admitted."),
    )
    assert seen == ["Parameter", "Admitted"]
