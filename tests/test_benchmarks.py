"""The benchmark of speed runs, says what is not installed, and refuses other numbers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
FOLDER = Path(__file__).parent / "benchmarks"
SIZES = {
    "rounds": 1,
    "heads": 2,
    "width": 4,
    "short": 64,
    "middle": 128,
    "long": 192,
    "gemm": 16,
    "field": 8,
    "digits": 6,
    "large": 8,
    "layers": 2,
    "model_heads": 2,
    "model_width": 8,
    "prompt": 6,
    "text": 3,
    "vocabulary": 11,
    "past": 6,
    "tokens": 3,
}
PEERS = {
    "bare loop, torch": "torch",
    "fla naive chunk": "fla",
    "fast-transformers": "fast_transformers",
    "flint": "flint",
    "transformers": "transformers",
}


def run(folder, *options, script=FOLDER / "speed.py"):
    """What it printed, and its JSON, with `folder` first on Python's path."""
    file = folder / "found.json"
    sizes = [part for name, value in SIZES.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-W", "error", str(script), "--json", str(file), *sizes, *options]
    ended = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    return ended.stdout, json.loads(file.read_text())


def hide(folder, *names):
    for name in names:
        (folder / f"{name}.py").write_text("raise ImportError\n")


def test_the_benchmark_runs(tmp_path):
    printed, found = run(tmp_path)
    assert found["sizes"] == SIZES
    assert {figure["group"] for figure in found["figures"]} == {
        "attention",
        "GF",
        "multiprecision",
        "model",
        "generation",
    }
    for row in found["rows"]:
        installed = row["what"] not in PEERS or find_spec(PEERS[row["what"]])
        assert row["why not"] == ("" if installed else "not installed"), row
        assert not installed or 0 < row["min"] <= row["median"], row
        assert row.get("off", 0) <= row.get("allowed", 0), row
    judged = {row["what"] for row in found["rows"] if "off" in row}
    assert judged >= {
        "chunked",
        "recurrent",
        "bare loop, NumPy",
        "chunked, two threads",
        "GF(p)",
        "MP",
        "mpf",
        "generation",
    }
    for figure in found["figures"]:
        value, target = figure["of minima"], figure["target"].split()
        assert figure["what"] in printed
        assert value is not None or figure["note"] == "not installed", figure
        if target and value is not None:
            assert figure["met"] == (value >= float(target[1]) if target[0] == "≥" else value <= float(target[1])), (
                figure
            )
    assert all("EXACT" in figure["note"] for figure in found["figures"] if figure["group"] == "model")


def test_a_ratio_is_that_of_its_times(tmp_path):
    _, found = run(tmp_path, "--only", "GF")
    assert {row["group"] for row in found["rows"]} == {"GF"}
    (figure,) = (f for f in found["figures"] if f["what"] == "8³ modulo 2³¹−1, 1 thread: time / dgemm's")
    time = {row["what"]: row for row in found["rows"] if row["case"] == "8³ modulo 2³¹−1, 1 thread"}
    for ratio, of in (("of minima", "min"), ("of medians", "median")):
        assert figure[ratio] == pytest.approx(time["GF(p)"][of] / time["dgemm"][of])


def test_what_is_not_installed_is_said(tmp_path):
    hide(tmp_path, "torch", "flint")
    printed, found = run(tmp_path, "--only", "attention", "GF")
    assert "same loop in torch" in printed
    for row in found["rows"]:
        assert row["why not"] == ("not installed" if row["what"] in PEERS else ""), row
    figures = [f for f in found["figures"] if "in torch" in f["what"] or "flint" in f["what"]]
    assert len(figures) == 10 and all(
        (f["of minima"], f["met"], f["note"]) == (None, None, "not installed") for f in figures
    )


PLANTED = """
import sys
sys.path.insert(0, {folder!r})
import speed

def slightly_wrong(make):
    def planted(**options):
        run = make(**options)
        return lambda: run() + speed.ri.system_of(run()).convert({error})
    return planted

speed.MAKERS[{name!r}] = slightly_wrong(speed.MAKERS[{name!r}])
speed.main()
"""


@pytest.mark.parametrize(
    ("group", "maker", "name", "error"),
    [
        ("attention", "chunked", "chunked", "2**-9"),
        ("GF", "GF", "GF(p)", "1"),
        ("multiprecision", "MP", "MP", "speed.Fraction(1, 2**80)"),
    ],
)
def test_who_computes_something_else_is_refused(group, maker, name, error, tmp_path):
    hide(tmp_path, "torch")
    script = tmp_path / "planted.py"
    script.write_text(PLANTED.format(folder=str(FOLDER), name=maker, error=error))
    printed, found = run(tmp_path, "--only", group, script=script)
    judged = [row for row in found["rows"] if "off" in row]
    wrong = [row for row in judged if row["what"].startswith(name)]
    assert wrong and (
        len(wrong) < len(judged) or (group == "GF" and not find_spec("flint"))
    )  # who else could be judged?
    assert all(row["why not"].startswith("REFUSED: off by ") and row["min"] is None for row in wrong)
    assert not any("REFUSED" in row["why not"] for row in judged if row not in wrong)
    assert "REFUSED" in printed
    ratios = [f for f in found["figures"] if f["target"] and "memory" not in f["what"] and "seconds" not in f["what"]]
    assert all(f["met"] is None for f in ratios if "further off" not in f["what"])


def test_two_checkouts_are_compared(tmp_path):
    """The new one is a copy that wastes time when imported, and adds 1 to the chunked form."""
    here = FOLDER.parent.parent
    shutil.copytree(here / "refimpl", tmp_path / "refimpl", ignore=shutil.ignore_patterns("__pycache__"))
    with open(tmp_path / "refimpl" / "public.py", "a") as file:
        file.write("""
import time
began, chunked = time.process_time(), linear_attention_chunked
while time.process_time() < began + 2:
    pass
def linear_attention_chunked(*args, **options):
    o, state = chunked(*args, **options)
    return o + 1, state
""")
    options = ["--rounds", "1", "--processes", "1", "--only", "8 tokens", "QQ", "import"]
    command = [sys.executable, str(FOLDER / "compare.py"), str(here), str(tmp_path), *options]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = {line[:44].strip(): line[44:].split() for line in printed.splitlines()}
    assert float(rows["import refimpl"][2]) < 0.8 and len(rows["QQ, 16 × 16"]) == 4
    assert rows["chunked attention, float64, 8 tokens"][4:] == ["DIFFERENT", "NUMBERS"]
    assert "worst ratio of minima: 0." in printed


def test_a_checkout_must_hold_the_package(tmp_path):
    command = [sys.executable, str(FOLDER / "compare.py"), str(tmp_path), str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 2 and "must be a folder that holds the package refimpl" in ended.stderr
