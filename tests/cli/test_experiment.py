"""The experiments among the examples: what is wrong is said before the work; progress is shown."""

import importlib.util
import runpy
import sys
from pathlib import Path

import pytest

from refimpl.cli import experiment, output
from refimpl.cli.experiment import read_options, with_progress

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
EXPERIMENTS = [path for path in sorted(EXAMPLES.glob("*.py")) if "read_options" in path.read_text()]


def without(monkeypatch, name):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda found, *rest: None if found == name else real(found, *rest))


def test_the_experiments():
    assert [path.name[:2] for path in EXPERIMENTS] == ["10", "11", "12", "15"]
    assert all("in with_progress(" in path.read_text() for path in EXPERIMENTS)
    others = set(EXAMPLES.glob("*.py")) - set(EXPERIMENTS)
    assert not any("--plot" in path.read_text() for path in others)


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_without_matplotlib_no_work_is_begun(path, monkeypatch, tmp_path, capsys):
    without(monkeypatch, "matplotlib")
    monkeypatch.setattr(sys, "argv", [str(path), "--plot", str(tmp_path / "x.png")])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(path))
    assert stop.value.code == "--plot needs matplotlib: pip install 'refimpl[plot]'"
    assert capsys.readouterr() == ("", "") and not list(tmp_path.iterdir())


def test_a_picture_that_cannot_be_written(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    with pytest.raises(SystemExit, match=r"^--plot: cannot write /no/such/x.png: no such folder$"):
        read_options(["--plot", "/no/such/x.png"])


def test_options(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    options = read_options(["--full", "--plot", str(tmp_path / "x.png")])
    assert options.full and options.plot == tmp_path / "x.png"
    assert vars(read_options([])) == {"full": False, "plot": None}


def test_progress_on_a_terminal_only(monkeypatch, capsys):
    assert list(with_progress(range(3), "step")) == [0, 1, 2] and capsys.readouterr() == ("", "")
    monkeypatch.setattr(experiment, "SECONDS", 0)
    monkeypatch.setattr(output.sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert list(with_progress("ab", "step")) == ["a", "b"]
    assert capsys.readouterr() == ("", "\r\x1b[Kstep 1 of 2\r\r\x1b[Kstep 2 of 2\r\r\x1b[K\r")
