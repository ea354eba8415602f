"""Every option of every command: a wrong value is refused in the words of the command line."""

import argparse
import re

import numpy as np
import pytest

from refimpl import Config, Float, Rotary, convert, random_model, save
from refimpl.cli import main

SMALL = {"layers": 2, "width": 4, "heads": 2, "d": 2, "m": 3, "vocabulary": 7}
CONVERT = ["convert", "m", "--prompt", "3 1", "--out", "b"]
SOFTMAX = ["convert", "s", "--prompt", "3 1", "--out", "b"]
GENERATE = ["generate", "m", "--prompt", "3"]
VERIFY = ["verify", "rope_layouts"]
COMPARE = ["compare", "m", "--forward", "f.py:f"]
# command and option: command lines in which its value is wrong
WRONG = {
    "verify names": [["verify", "rope_layout"]],
    "verify --seed": [[*VERIFY, "--seed", "x"]],
    "verify --backend": [[*VERIFY, "--backend", "touch"]],
    "verify --device": [[*VERIFY, "--device", "cuda"]],
    "verify --json": [[*VERIFY, "--json", "/no/such"]],
    "verify --html": [[*VERIFY, "--html", "/no/such"], [*VERIFY, "--html", "x", "--json", "x"]],
    "verify --jobs": [[*VERIFY, "--jobs", "0"], [*VERIFY, "--jobs", "x"]],
    "verify --replay": [["verify", "--replay", "none"], ["verify", "--replay", "m"]],
    "verify --system": [
        ["verify", "--system", x]
        for x in ("x", "GF7", "GF(8)", "Q(i)", "degrees", "bfloat16", "touch float32", "float32 (torch)")
    ],
    "verify --limit": [["verify", "--replay", "m", "--limit", "-1"]],
    "convert model": [["convert", name, "--prompt", "3", "--out", "b"] for name in ("none", "text", "c")],
    "convert --tokenizer": [[*CONVERT, "--tokenizer", name] for name in ("none", "m")],
    "convert --dtype": [[*CONVERT, "--dtype", name] for name in ("int8", "x")]
    + [[*CONVERT, "--backend", "numpy", "--dtype", "torch.float32"]],
    "convert --limit": [[*CONVERT, "--limit", n] for n in ("-1", "nan", "x", "0")],
    "convert --prompt": [["convert", "m", "--prompt", p, "--out", "b"] for p in ("9", "", "x", "@none", "@x.npy")]
    + [["convert", "p", "--prompt", "1 " * 10, "--out", "b"]],
    "convert --out": [["convert", "m", "--prompt", "3", "--out", name] for name in ("/no/such", "m", "c", "")],
    "convert --baked": [[*CONVERT, "--baked", name] for name in ("none", "m", "c", "text")],
    "convert --mask": [[*CONVERT, "--mask", "half"], [*CONVERT, "--mask", "full", "--chunk", "1"]],
    "convert --strength": [[*CONVERT, "--strength", x] for x in ("x", "nan", "1/0", "9" * 200)]
    + [[*SOFTMAX, "--strength", "2"]],
    "convert --chunk": [[*CONVERT, "--chunk", x] for x in ("0", "-1", "x")],
    "convert --held-out": [[*CONVERT, "--check", "--held-out", x] for x in ("", "9", "@none", "@x.npy")]
    + [[*CONVERT, "--held-out", "1"]],
    "convert --by": [[*SOFTMAX, "--by", "x"], [*SOFTMAX, "--by", "tilted"], [*CONVERT, "--by", "taylor"]],
    "convert --features": [[*SOFTMAX, "--by", "tilted", "--features", x] for x in ("0", "x", "9" * 9)]
    + [[*SOFTMAX, "--features", "3"]],
    "convert --budget": [[*SOFTMAX, "--by", "best", "--budget", x] for x in ("x", "1", "1.5")],
    "convert --error": [[*SOFTMAX, "--by", "best", "--error", x] for x in ("x", "-1", "nan")],
    "convert --seed": [[*SOFTMAX, "--by", "positive", "--features", "2", "--seed", x] for x in ("x", "-1")],
    "convert --backend": [[*CONVERT, "--backend", "touch"]],
    "convert --device": [[*CONVERT, "--device", "cuda"]],
    "convert --json": [[*CONVERT, "--json", name] for name in ("/no/such", "m")],
    "generate model": [["generate", name, "--prompt", "3"] for name in ("none", "text", "c")],
    "generate --tokenizer": [[*GENERATE, "--tokenizer", name] for name in ("none", "m")],
    "generate --dtype": [[*GENERATE, "--dtype", "int8"]],
    "generate --limit": [[*GENERATE, "--limit", n] for n in ("-1", "x", "0")],
    "generate --prompt": [["generate", "m", "--prompt", p] for p in ("9", "", "x", "@none", "@x.npy")]
    + [["generate", "p", "--prompt", "1 " * 10]],
    "generate --tokens": [[*GENERATE, "--tokens", n] for n in ("-1", "x")],
    "generate --temperature": [[*GENERATE, "--temperature", x] for x in ("-1", "nan", "x")],
    "generate --seed": [[*GENERATE, "--seed", x] for x in ("-1", "x")],
    "generate --baked": [[*GENERATE, "--baked", name] for name in ("none", "m", "c", "text")],
    "generate --logits": [[*GENERATE, "--logits", name] for name in ("/no/such", "m")],
    "show names": [["show", "rope_layout"]],
    "compare model": [["compare", name, *COMPARE[2:]] for name in ("none", "text", "c")],
    "compare --mapping": [[*COMPARE, "--mapping", name] for name in ("none", "text")],
    "compare --forward": [["compare", "m", "--forward", f] for f in ("none.py:f", "f.py", "f.py:g", "f.py:wrong")],
    "compare --tokens": [[*COMPARE, "--tokens", x] for x in ("9", "x", "")],
    "compare --dtype": [[*COMPARE, "--dtype", "int8"]],
    "compare --seed": [[*COMPARE, "--seed", x] for x in ("-1", "x")],
    "compare --limit": [[*COMPARE, "--limit", n] for n in ("-1", "x", "0")],
    "compare --out": [[*COMPARE, "--out", name] for name in ("/no/such", "m")],
    "compare --json": [[*COMPARE, "--json", name] for name in ("/no/such", "m")],
    "doctor --json": [["doctor", "--json", "/no/such"]],
    "completion shell": [["completion", "tcsh"]],
}
PYTHON = re.compile(
    r"`(?!digest|system|names|format)\w+`|\b(read_|load:|check_|Float:|Best:|Compression:|fidelity:|=')"
)


def options():
    """Every option with a value, and every positional argument, by command."""
    for command in main.COMMANDS:
        groups = [a for a in main.parser(command)._actions if isinstance(a, argparse._SubParsersAction)]
        for action in groups[0].choices[command]._actions:
            if action.nargs != 0:
                yield f"{command} {(action.option_strings or [action.dest])[-1]}"


def test_every_option_has_a_wrong_value():
    assert set(options()) == set(WRONG)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("options")
    configs = {"m": Config(**SMALL, rope=Rotary(2)), "s": Config(**SMALL, phi="softmax"), "p": Config(**SMALL, table=9)}
    models = {name: random_model(Float(), config, 1) for name, config in configs.items()}
    for name, model in models.items():
        save(found / name, model)
    save(found / "c", convert(models["s"], [1, 2]), biases_only=True)
    (found / "text").write_text("3 1")
    (found / "f.py").write_text("from refimpl import load\nf = load('m')\nwrong = len")
    np.save(found / "x.npy", np.ones((2, 3)))
    return found


@pytest.mark.parametrize("option", WRONG)
def test_a_wrong_value_is_refused_in_the_words_of_the_command_line(option, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    name = option.split()[1]
    for argv in WRONG[option]:
        try:
            status = main.main(argv)
        except SystemExit as stop:
            status = stop.code
        out, err = capsys.readouterr()
        said = err.splitlines()[-1]
        assert (status, out) == (2, "") and said.startswith(("refimpl: ", f"refimpl {argv[0]}: error: ")), (argv, err)
        assert not PYTHON.search(said), (argv, said)
        assert {"names": "NAME", "model": "MODEL"}.get(name, name) in said, (argv, said)
