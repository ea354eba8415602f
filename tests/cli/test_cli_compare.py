"""`refimpl compare`: its flags, exit statuses and messages; files that are not what they say."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from refimpl import Config, Float, Model, load, random_model, save
from refimpl.cli.main import main
from refimpl.files.safetensors import write_safetensors

CONFIG = Config(layers=2, width=6, heads=2, d=3, m=3, hidden=6, phi="softmax", vocabulary=7)
MODEL = random_model(Float(), CONFIG, 0)
TOML = """
[config]
layers = 2
width = 6
heads = 2
d = 3
m = 3
hidden = 6
phi = "softmax"
vocabulary = 7
[weights]
tok = "embedding"
"end.g" = "gain"
"end.o" = "offset"
"""
NAMES = ("W_Q", "W_K", "W_V", "W_O", "W_up", "W_down")
VECTORS = ("gain_1", "gain_2", "offset_1", "offset_2")
PROGRAM = """
from refimpl import load, transformer
from refimpl.model.transformer import embed
from notes import PATH

def logits(tokens):
    return load(PATH)(tokens)

def states(tokens):
    model = load(PATH)
    found = [embed(model, tokens)]
    return transformer(model, tokens, between=lambda i, x: found.append(x) or x)[0], found

def rounded(tokens):
    return load(PATH)(tokens).astype("float16")

def broken(tokens):
    raise KeyError("\\x1b[31m" + str(len(tokens)))

number = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Somebody's folder: weights by their own names, a mapping, and a program."""
    monkeypatch.chdir(tmp_path)
    weights = {"tok": MODEL.weights["embedding"], "end.g": MODEL.weights["gain"], "end.o": MODEL.weights["offset"]}
    for i in range(2):
        own = MODEL.layer_weights(i)
        weights |= {f"b{i}.{name}": np.ascontiguousarray(own[name].T) for name in (*NAMES, *VECTORS)}
    write_safetensors(Path("mine.safetensors"), weights, {})
    lines = [f'"b{{}}.{name}" = "{name}{".T" * (name in NAMES)}"' for name in (*NAMES, *VECTORS)]
    Path("map.toml").write_text(TOML + "\n".join(lines))
    save("ours.safetensors", MODEL)
    Path("notes.py").write_text("PATH = 'ours.safetensors'")
    Path("program.py").write_text(PROGRAM)
    return tmp_path


def run(capsys, *argv: str) -> tuple[int, str, str]:
    status = main(["compare", *argv])
    return status, *capsys.readouterr()


MINE = ("mine.safetensors", "--mapping", "map.toml", "--forward", "program.py:states")


def test_one_that_agrees(folder, capsys):
    status, out, err = run(capsys, *MINE, "--out", "model.safetensors", "--json", "report.json")
    assert (status, err) == (0, "") and out.splitlines()[-1] == "AGREES: every stage, in float64, on 16 tokens"
    written: Model = load("model.safetensors")
    assert written.config == CONFIG and np.array_equal(written.weights["layers.1.W_V"], MODEL.weights["layers.1.W_V"])
    report = json.loads(Path("report.json").read_text())
    assert report["verdict"] == "AGREES" and report["first"] is None and report["forward"] == "program.py:states"
    assert [s["stage"] for s in report["stages"]] == ["embedding", "layer 0", "layer 1", "logits"]


def test_one_that_differs(folder, capsys):
    text = Path("map.toml").read_text()
    Path("map.toml").write_text(text.replace('"W_O.T"', '"W_O"'))
    status, out, err = run(capsys, *MINE, "--out", "model.safetensors", "--json", "report.json")
    assert (status, err) == (1, "") and not Path("model.safetensors").exists()
    assert out.splitlines()[-3].startswith("DIFFERS: first at layer 0, token ")
    assert out.splitlines()[-2:] == [
        "This stage agrees with: W_O transposed",
        "In the mapping, write 'W_O' for 'W_O.T', or the reverse.",
    ]
    assert max(map(len, out.splitlines())) <= 80
    assert json.loads(Path("report.json").read_text())["likely"] == ["W_O transposed"]


def test_one_that_is_undecided(folder, capsys):
    argv = ("ours.safetensors", "--forward", "program.py:rounded")
    status, out, err = run(capsys, *argv)
    assert (status, err) == (2, "") and "UNDECIDED" in out


def test_a_known_format_needs_no_mapping_and_a_text_may_be_given(folder, capsys):
    argv = ("ours.safetensors", "--forward", "program.py:logits", "--tokens", "3")
    status, out, _ = run(capsys, *argv)
    assert status == 0 and "This text does not tell from the model as it is:" in out
    status, out, _ = run(capsys, *argv, "--quick")
    assert status == 0 and "does not tell" not in out
    assert run(capsys, *argv[:3], "--seed", "5", "--quick")[0] == 0


WRONG = {
    "--forward: must be FILE.py:NAME with a file that exists, got 'program.py'": (*MINE[:4], "program.py"),
    "--forward: must be FILE.py:NAME with a file that exists, got 'none.py:f'": (*MINE[:4], "none.py:f"),
    "--forward: program.py must have a function 'number', got 3": (*MINE[:4], "program.py:number"),
    "--forward: program.py must have a function 'absent', got None": (*MINE[:4], "program.py:absent"),
    "--forward: program.py:broken raised KeyError: '\\x1b[31m16'": (*MINE[:4], "program.py:broken"),
    "--forward: wrong.py raised SyntaxError: ": (*MINE[:4], "wrong.py:f"),
    "--tokens must hold ids from 0 to 6, got 9 at token 0": (*MINE, "--tokens", "9"),
    "--tokens: must be token ids such as '3 1 4'": (*MINE, "--tokens", "a b"),
    "--dtype must be one of bfloat16": (*MINE, "--dtype", "int8"),
    "--mapping: --limit must be": (*MINE, "--limit", "-1"),
    "--out: cannot write /": (*MINE, "--out", "/"),
    "must be a file of its own, not one that is read or written": (*MINE, "--json", "mine.safetensors"),
    "--out: ": (*MINE, "--out", "mine.safetensors"),
    "--mapping: cannot read none.toml: no such file": (MINE[0], "--mapping", "none.toml", *MINE[3:]),
    "mine.safetensors: the file must be refimpl's safetensors": (MINE[0], *MINE[3:]),
}


@pytest.mark.parametrize("words", WRONG)
def test_what_is_refused(words, folder, capsys):
    Path("wrong.py").write_text("def f(:")
    status, out, err = run(capsys, *WRONG[words])
    assert status == 2 and out == "" and words in err and err.count("\n") == 1 and "\x1b" not in err


MANY = b"{" + b'"a":{},' * (3 * 10**6) + b"}"
HOSTILE = {
    "the header must have at most": struct.pack("<Q", 2**62) + b"{}",
    "the header must be JSON": struct.pack("<Q", 9) + b"{" * 9,
    "must have 4 bytes for F32": struct.pack("<Q", 60)
    + b'{"tok":{"dtype":"F32","shape":[1],"data_offsets":[0,0]}}'.ljust(60),
    "the header: its": struct.pack("<Q", len(MANY)) + MANY,
}


@pytest.mark.parametrize("words", HOSTILE)
def test_a_hostile_file_is_refused_within_its_budget(words, folder, capsys):
    Path("mine.safetensors").write_bytes(HOSTILE[words])
    status, out, err = run(capsys, *MINE)
    assert status == 2 and out == "" and words in err, err


def test_a_hostile_mapping_is_refused(folder, capsys):
    text = Path("map.toml").read_text()
    for change, words in {
        "layers = 2": ("layers = 1000000000", "no more layers than there are tensors"),
        'd = 3\nm = 3\nhidden = 6\nphi = "softmax"': ('d = 1000000\nphi = "polynomial(2)"', "--limit"),
        "width = 6": ("width = 1000000000000", "must have shape"),
    }.items():
        wrong, said = words
        Path("map.toml").write_text(text.replace(change, wrong))
        status, out, err = run(capsys, *MINE)
        assert status == 2 and out == "" and said in err, err
