"""The page about your own model: its Python and its commands are run."""

import doctest
import re
import shlex
from pathlib import Path

import numpy as np

from refimpl.cli.main import main
from refimpl.files.safetensors import write_safetensors

PAGE = Path(__file__).parent.parent / "examples/site/own_model.md"
TEXT = PAGE.read_text()


def block(kind: str) -> str:
    return TEXT.split(f"```{kind}\n")[1].split("```")[0]


def test_the_python_of_the_page():
    flags = doctest.ELLIPSIS
    failed, run = doctest.testfile(str(PAGE), module_relative=False, optionflags=flags)
    assert failed == 0 and run >= 15


def test_the_commands_of_the_page(tmp_path, monkeypatch, capsys):
    """The page's own model, as a file that the command runs."""
    monkeypatch.chdir(tmp_path)
    first = TEXT.split("```python\n")[1].split("```")[0]
    source = "".join(line[4:] + "\n" for line in first.splitlines() if re.match(r">>> |\.\.\. ", line))
    Path("my_model.py").write_text(source)
    Path("map.toml").write_text(block("toml"))
    made: dict = {}
    exec(source, made)
    write_safetensors(Path("mine.safetensors"), {name: np.asarray(w) for name, w in made["weights"].items()}, {})
    said = ["AGREES: every stage, in float64, on 16 tokens", "biases.safetensors is written"]
    for line, last in zip(block("sh").splitlines(), said, strict=True):
        program, *argv = shlex.split(line)
        assert program == "refimpl"
        capsys.readouterr()
        status = main(argv)
        out, err = capsys.readouterr()
        assert (status, err) == (0, "") and last in out.splitlines()[-1], out
