"""Tests that did not run are counted by reason, at the end of the README's command."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.skips import explain, summary

ROOT = Path(__file__).parent.parent
TESTS = """
import pytest

@pytest.mark.parametrize("i", range(3))
def test_weights(i):
    pytest.skip("real weights were not looked at: REFIMPL_MODELS names no folder")

def test_library():
    pytest.importorskip("cupy.no_such")

@pytest.mark.slow
def test_slow():
    assert False

def test_other():
    pytest.skip("it rains")

def test_fine():
    pass
"""


@pytest.mark.parametrize("processes", [[], ["-n", "2"]], ids=["one process", "xdist"])
def test_the_summary_of_a_session(processes, tmp_path):
    if processes:
        pytest.importorskip("xdist")
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *processes, "test_it.py"]
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
    _, lines = run.stdout.split(" tests that did not run ")
    assert [line.split(None, 1) for line in lines.splitlines()[1:5]] == [
        ["3", "need real weights    REFIMPL_MODELS=FOLDER names a folder that has them"],
        ["1", "are slow             HYPOTHESIS_PROFILE=ci runs them"],
        ["1", "need cupy            pip install '.[cupy]'"],
        ["1", "skipped: it rains"],
    ]


def test_no_line_where_nothing_was_skipped():
    assert summary([]) == []


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Skipped: could not import 'torch': No module named 'torch'", ("need torch", "pip install '.[torch]'")),
        ("Skipped: could not import 'jax.numpy': x", ("need jax", "pip install '.[jax]'")),
        ("Skipped: could not import 'nosuch': x", ("need nosuch", "pip install nosuch")),
        ("python-flint is not installed", ("need flint", "pip install '.[fast]'")),
        ("needs Coq (apt install coq) and REFIMPL_COQ=1", ("need Coq", "REFIMPL_COQ=1, after apt install coq")),
    ],
)
def test_what_lets_a_test_run(reason, words):
    what, remedy = explain(reason)
    assert what == words[0] and remedy.startswith(words[1])
