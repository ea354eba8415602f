"""The README says what is so, and CI holds what it says."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import refimpl
from refimpl import QQ
from refimpl.verify.registry import THEOREMS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


PAGES = {path.stem: path.read_text() for path in (ROOT / "examples/site").glob("*.md")}


@pytest.fixture(scope="module")
def front_page():
    """The script that writes the generated parts of the README."""
    path = ROOT / "examples/site/front_page.py"
    spec = importlib.util.spec_from_file_location("front_page", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def results(front_page):
    return json.loads(front_page.RESULTS.read_text())


def commands():
    return README.split("```")[1].removeprefix("sh\n").splitlines()


def test_opens_with_a_title_one_sentence_and_one_block_of_two_commands():
    title, _, sentence, _, fence = README.splitlines()[:5]
    assert (title, fence) == ("# refimpl", "```sh")
    assert sentence.strip("*").count(".") == 1 and sentence.endswith(".**")
    assert len(commands()) == 2 and len(README.split()) < 1200


def test_commands_make_their_own_environment_then_verify_and_test():
    first, second = commands()
    assert all(c.startswith("python3 -m venv .venv && .venv/bin/pip install") for c in (first, second))
    assert (
        first.endswith(".venv/bin/refimpl verify")
        and second.endswith(".venv/bin/python -m pytest -n auto")
        and ".[test]" in second
    )


def test_the_generated_parts_are_those_of_the_committed_results(front_page, results):
    assert front_page.with_blocks(README, results) == README
    other = results | {"lily": results["lily"] | {"texts": dict.fromkeys(results["lily"]["texts"], "x")}}
    assert front_page.with_blocks(README, other) != README


def test_a_fresh_run_tells_the_same_story(front_page, results):
    if not front_page.weights():
        pytest.skip("REFIMPL_MODELS names no folder with stories260K.bin and tok512.bin")
    fresh, kept = front_page.lily(), results["lily"]
    assert fresh["ids"]["baked in, not read"] == fresh["ids"]["read again"] != fresh["ids"]["no story"]
    # the last digits of the logits depend on BLAS; the README promises less than 10⁻¹⁴
    assert fresh.pop("logits") < 1e-14 and kept["logits"] < 1e-14 and "10⁻¹⁴" in README
    assert fresh == {name: x for name, x in kept.items() if name != "logits"}


def test_a_fresh_run_has_the_same_evidence(front_page, results):
    fresh = front_page.evidence()
    assert fresh == results["evidence"] and len(fresh) == 10
    assert not any(row["failed"] for row in fresh)


def test_the_picture_is_of_equal_outputs_and_up_to_date(front_page, results):
    *same, other = [stage[-1] for stage in front_page.stages()]
    assert len(same) == 4 and all(QQ.equal(o, same[0]) for o in same) and not QQ.equal(other, same[0])
    assert front_page.picture_digest() == results["picture"]
    assert front_page.PICTURE.stat().st_size < 150_000


@pytest.mark.parametrize("page", ["README", *PAGES])
def test_every_link_leads_to_a_file(page):
    text, folder = (README, ROOT) if page == "README" else (PAGES[page], ROOT / "examples/site")
    for link in re.findall(r"\]\(([^)#\s]+)", text):
        built = link.startswith("course/")  # by sphinx-gallery
        assert link.startswith("https://arxiv.org/abs/") or link in ELSEWHERE or built or (folder / link).exists(), link


ELSEWHERE = ("https://github.com/karpathy/llama2.c/blob/master/doc/stories260K.md",)


def test_papers_have_bibtex():
    entries = re.findall(r"eprint = \{([\d.]+)\}", (ROOT / "examples/site/papers.bib").read_text())
    assert sorted(entries) == sorted(re.findall(r"arxiv\.org/abs/([\d.]+)", README)) and len(entries) == 10


def test_counts_in_words_are_so():
    assert "eighteen scripts" in README and len(list((ROOT / "examples").glob("*.py"))) == 18
    assert "a hundred lines" in README and 90 <= len((ROOT / "refimpl/nano.py").read_text().splitlines()) <= 100


def test_every_place_on_the_map_exists():
    places = re.findall(r"`([\w/]+(?:\.py|\.toml|/))`", PAGES["layout"])
    assert len(places) >= 30
    for place in places:
        assert any((folder / place).exists() for folder in (ROOT, ROOT / "refimpl", ROOT / "refimpl/prompt")), place
    packages = {path.name for path in (ROOT / "refimpl").iterdir() if not path.name.startswith("__")}
    assert packages <= {place.rstrip("/") for place in places}


def test_every_system_is_public():
    systems = re.findall(r"^\| `(\w+)", PAGES["numbers"], flags=re.M)
    assert len(systems) == 10 and all(hasattr(refimpl, name) for name in systems)


def test_gpu_is_not_claimed():
    assert "never run on a GPU" in README and "never run on a GPU" in PAGES["gpu"]
    assert "refimpl verify --backend torch --device cuda" in PAGES["gpu"]


@pytest.mark.parametrize("page", ["README", *PAGES])
def test_no_theorem_is_named_that_does_not_exist(page):
    text = README if page == "README" else PAGES[page]
    listed = re.findall(r"(?:Theorems?: )((?:`\w+`(?:, )?)+)", text)
    names = [name for words in listed for name in re.findall(r"\w+", words)]
    names += re.findall(r"`(\w+_eq_sum|rope_\w+|iclca\w*|state_monoid)`", text)
    names += re.findall(r"refimpl verify ([a-z]\w+)", text)
    assert set(names) <= THEOREMS.keys() and (names or page not in ("README", "theory", "verdict"))


def test_ci_runs_the_commands_of_the_readme():
    script = (ROOT / ".ci/run").read_text()
    assert "README.md" in script and "torch==2.13.0" in script and "REFIMPL_NO_SKIP=1" in script
    assert "examples/site/build.py" in script


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
