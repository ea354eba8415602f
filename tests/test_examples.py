"""Every example runs in a process of its own, without a warning, and prints something."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
SLOW = ("05", "08", "10", "11", "12", "15")  # seconds each; CI runs every example anyway


def test_there_are_examples():
    assert [path.name[:2] for path in EXAMPLES] == [f"{i:02}" for i in range(18)]


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.name[:2] in SLOW else []) for path in EXAMPLES],
)
def test_example(path, tmp_path):
    run = subprocess.run([sys.executable, "-W", "error", str(path)], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_short_and_in_cells(path):
    text = path.read_text()
    experiment = "--full" in text
    assert len(text.splitlines()) < (130 if experiment else 60) and text.count("# %%") >= 3
