"""The README says what is so, and CI holds what it says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import refimpl
from refimpl.verify.registry import THEOREMS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def commands():
    return README.split("```sh\n")[1].split("```")[0].splitlines()


def test_opens_with_one_sentence_then_one_block_of_two_commands():
    opening, blank, fence = README.splitlines()[:3]
    assert opening.endswith(".") and ". " not in opening and not opening.startswith("#")
    assert (blank, fence) == ("", "```sh")
    assert len(commands()) == 2


def test_commands_make_their_own_environment_then_verify_and_test():
    first, second = commands()
    assert all(c.startswith("python3 -m venv .venv && .venv/bin/pip install") for c in (first, second))
    assert (
        first.endswith(".venv/bin/refimpl verify")
        and second.endswith(".venv/bin/python -m pytest -n auto")
        and ".[test]" in second
    )


def section(title):
    return README.split(f"## {title}\n")[1].split("\n## ")[0]


def test_the_page_of_theory_prints_what_the_readme_shows():
    run = subprocess.run([sys.executable, "-m", "refimpl.nano"], cwd=ROOT, capture_output=True, text=True, check=True)
    shown = "".join(f"    {line}\n" for line in ["$ python -m refimpl.nano", *run.stdout.splitlines()])
    assert shown in README and "nano" in THEOREMS and "`refimpl verify nano`" in README


def test_every_place_on_the_map_exists():
    places = re.findall(r"`([\w/]+(?:\.py|\.toml|/))`", section("The layout of the package"))
    assert len(places) >= 30
    for place in places:
        assert any((folder / place).exists() for folder in (ROOT, ROOT / "refimpl", ROOT / "refimpl/prompt")), place
    packages = {path.name for path in (ROOT / "refimpl").iterdir() if not path.name.startswith("__")}
    assert packages <= {place.rstrip("/") for place in places}


def test_every_system_is_public():
    systems = re.findall(r"^\| `(\w+)", section("The numbers"), flags=re.M)
    assert len(systems) == 10 and all(hasattr(refimpl, name) for name in systems)


def test_gpu_is_not_claimed():
    assert "never run on a GPU" in README and "refimpl verify --backend torch --device cuda" in README


def test_no_theorem_is_named_that_does_not_exist():
    for name in re.findall(r"`(\w+_eq_sum|rope_\w+|iclca\w*|state_monoid)`", README):
        assert name in THEOREMS


def test_ci_runs_the_commands_of_the_readme():
    script = (ROOT / ".ci/run").read_text()
    assert "README.md" in script and "torch==2.13.0" in script and "REFIMPL_NO_SKIP=1" in script


@pytest.mark.parametrize("where", ["in a test", "at import"])
def test_with_no_skip_a_skip_is_a_failure(where, tmp_path):
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    bodies = {"in a test": 'def test(): pytest.skip("why")', "at import": 'pytest.importorskip("no_such_library")'}
    (tmp_path / "test_it.py").write_text(f"import pytest\n{bodies[where]}\n")

    def status(**env):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
        run = subprocess.run(
            command,
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **env},
            capture_output=True,
            text=True,
        )
        return run.returncode, run.stdout

    assert status()[0] in (0, 5)  # 5: nothing was collected
    code, out = status(REFIMPL_NO_SKIP="1")
    assert code in (1, 2) and "REFIMPL_NO_SKIP" in out and ("why" in out or "no_such_library" in out)
