"""The table of bugs planted in the source: every entry can be planted, and some are."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest

from refimpl.verify.registry import THEOREMS
from tests.helpers.source import ROOT
from tests.planted_bugs import Copy, find, main, read_bugs

BUGS = read_bugs()


def test_the_table():
    """Each is one small edit that compiles; its theorem and test exist; it says what is wrong."""
    assert len(BUGS) >= 150
    functions: dict[str, set[str]] = {}
    for bug in BUGS:
        source = (ROOT / bug.file).read_text()
        planted = bug.planted(source)
        assert planted != source and abs(len(planted) - len(source)) < 200, bug.name
        compile(planted, bug.file, "exec")
        assert not bug.theorem or bug.theorem in THEOREMS, bug.name
        assert bug.wrong.endswith(".") and bug.when, bug.name
        path, _, test = bug.test.partition("::")
        if path not in functions:
            nodes = ast.walk(ast.parse((ROOT.parent / path).read_text()))
            functions[path] = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        assert test.partition("[")[0] in functions[path], bug.name


def test_a_stale_entry_is_refused():
    with pytest.raises(ValueError, match=r"^x: `old` must be in refimpl/.* once, got it 0 times$"):
        replace(BUGS[0], name="x").planted("")


def test_bugs_are_looked_for_without_libraries_that_stand_in_for_us(tmp_path):
    """Where gmpy2 rounds, nobody sees a bug in our rounding."""
    found = "from importlib.util import find_spec; raise SystemExit(any(map(find_spec, ('gmpy2', 'flint'))))"
    assert Copy(tmp_path / "copy").run("-c", found) == 0


@pytest.mark.slow
def test_a_sample_is_found(capsys):
    assert main(["--sample", "4", "--seed", "1"]) == 0
    *lines, summary = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and "tests found 4 of 4 (100 %)" in summary


@pytest.mark.slow
def test_what_is_no_bug_is_missed(capsys):
    bug = next(bug for bug in BUGS if bug.theorem == "rope_layouts")
    (finding,) = find([replace(bug, new=bug.old + " ")])
    assert (finding.verify, finding.test) == (False, False) and "MISSED  MISSED" in capsys.readouterr().out
