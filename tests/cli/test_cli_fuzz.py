"""Arguments of every kind, thrown at the command line: it answers with a status of its own, in
lines of bounded length, and never with a traceback.

`python tests/fuzz.py --only 'command line'` runs many more.
"""

import contextlib
import io
import os
import sys
import tempfile
import traceback
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from refimpl import Config, Float, Rotary, convert, random_model, save
from refimpl.cli.main import main
from refimpl.model.rwkv import Rwkv
from tests.helpers.fuzz import Tally, tally_case

STATUSES = {0, 1, 2}
SMALL = {"layers": 1, "width": 4, "heads": 2, "d": 2, "m": 2, "vocabulary": 7}
MODELS = {
    "linear": Config(**SMALL, rope=Rotary(width=2)),
    "softmax": Config(**SMALL, phi="softmax", rope=Rotary(width=2, placement="before")),
    "bytes": Rwkv("5.2", 1, 4, 2, 5, 256),
    "vectors": Config(layers=1, width=4, d=2, m=2),
}
FILES = [
    *MODELS,
    "biases",
    "text",
    "ids.npy",
    "empty.npy",
    "vectors.npy",
    "batch.npy",
    "noise",
    "nothing",
    "certificate",
]
WORDS = [
    "",
    " ",
    "-",
    "--",
    "@",
    "@@",
    ".",
    "/",
    "/dev/null",
    "missing",
    "no/such",
    "new",
    "\0",
    "\x1b[2J",
    "\udcff",
    "é😀",
]
WORDS += ["x" * 5000, "../" * 40, "~", "$HOME", "a\nb", "\u202e", "%s", "{}", "'", "None", "true"]
NUMBERS = [
    "0",
    "1",
    "2",
    "3",
    "-1",
    "1.5",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "1e-400",
    "0x1",
    "١",
    "9" * 30,
    "9" * 5000,
    "1/3",
]
NUMBERS += ["1/0", "2**9", "1_0", "-0", "1e3"]
PROMPTS = ["3 1 4", "3", "7", "-1", "1,2", "hello", *(f"@{name}" for name in (*FILES, *WORDS[:12]))]
NAMES = ["shift", "rope_layouts", "softmax_padding", "shfit"]
SYSTEMS = [
    "Q",
    "float32",
    "GF(2)",
    "GF(10007)",
    "GF(8)",
    "GF()",
    "GF(9999999999999999999999)",
    "mpmath(5)",
    "numpy float16",
]
SYSTEMS += ["balls(0)", "dependencies", "numpy float32 on x", "nosuch float32", "rounded(x)", "degrees"]
KINDS = ["tilted", "clusters", "positive", "favor++", "taylor", "cache", "best", "tiltde"]

text = st.text(max_size=9) | st.sampled_from(WORDS)
path = st.sampled_from(FILES) | st.sampled_from(WORDS)
number = st.sampled_from(NUMBERS) | st.integers(-3, 40).map(str) | st.floats(width=16).map(str)


def among(*known):
    """One of these mostly, else anything: a case with one fault gets farther than one with five."""
    return st.integers(0, 15).flatmap(lambda n: st.sampled_from(known) if n else text)


small = among("0", "1", "2", "5", "-1")  # how often something is done
MODEL_FLAGS = {
    "--tokenizer": path,
    "--dtype": among("float64", "float32", "longdouble", "float16", "complex64", "int8"),
}
FLAGS = {
    "verify": {
        "--list": None,
        "--system": among(*SYSTEMS),
        "--quick": None,
        "--seed": number,
        "--json": path,
        "--backend": among("numpy", "nump"),
        "--device": among("cpu", "cuda"),
        "--replay": path,
        "--jobs": small,
    },
    "convert": {
        "--prompt": among(*PROMPTS),
        "--out": path,
        "--whole": None,
        "--baked": path,
        "--mask": among("full"),
        "--strength": number,
        "--keep-positions": None,
        "--chunk": number,
        "--check": None,
        "--held-out": among(*PROMPTS),
        "--force": None,
        "--by": among(*KINDS),
        "--features": small,
        "--budget": number,
        "--error": number,
        "--seed": number,
        "--json": path,
        "--backend": among("numpy", "nump"),
        "--device": among("cpu", "cuda"),
        **MODEL_FLAGS,
    },
    "generate": {
        "--prompt": among(*PROMPTS),
        "--tokens": small,
        "--temperature": number,
        "--seed": number,
        "--baked": path,
        "--logits": path,
        **MODEL_FLAGS,
    },
}


@st.composite
def command_lines(draw):
    """A command, what it takes, and flags with values that may or may not go with them."""
    command = draw(st.sampled_from(["verify", "convert", "convert", "generate", "generate"]))
    argv = [command]
    if command == "verify":
        # a name in any case: all theorems, as '--' would have it, take seconds
        argv += [draw(st.sampled_from(NAMES)), *draw(st.lists(among(*NAMES), max_size=1))]
    else:
        argv += [draw(among(*[*MODELS] * 6, *FILES)), "--prompt", draw(among(*["3 1 4", "@ids.npy"] * 9, *PROMPTS))]
    if command == "convert":
        argv += ["--out", draw(among("out", "out", "biases"))]
    if command == "generate":
        argv += ["--tokens", draw(small)]
    for flag in draw(st.lists(st.sampled_from(sorted(FLAGS[command])), max_size=3)):
        value = FLAGS[command][flag]
        argv += [flag] if value is None else draw(st.sampled_from([[flag, v := draw(value)], [f"{flag}={v}"]]))
    if draw(st.integers(0, 19)) == 0:
        argv.insert(draw(st.integers(0, len(argv))), draw(text))
    return argv if len(argv) > 1 else [*argv, "shift"]


def fill(folder):
    """The files that the arguments name; fresh for every case, since a case may replace them."""
    models = {name: random_model(Float(), config, seed=1) for name, config in MODELS.items()}
    for name, model in models.items():
        save(folder / name, model)
    save(folder / "biases", convert(models["softmax"], [3, 1]), biases_only=True)
    arrays = {"ids": np.array([3, 1, 4]), "empty": np.zeros(0, int), "vectors": np.ones((3, 4))}
    for name, x in (arrays | {"batch": np.array([[3, 1], [1, 3]])}).items():
        np.save(folder / f"{name}.npy", x)
    for name, data in {"text": b"3 1 4", "noise": bytes(range(256)), "nothing": b"", "certificate": b"{}"}.items():
        (folder / name).write_bytes(data)


def judge(argv):
    """The status of a command line; it fails if the answer is one that must not be."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(argv)
        out.flush(), err.flush()
    said, told = out.buffer.getvalue().decode(), err.buffer.getvalue().decode()
    assert status in STATUSES, (status, argv)
    assert "Traceback" not in told and "unexpected" not in told, (argv, told)
    assert all(len(line) < 700 for line in told.splitlines()) and "\x1b" not in told, (argv, told)
    assert status != 2 or told or said, argv  # a reason is given
    if argv[0] != "generate":
        assert "\x1b" not in said, argv
    assert not [name for name in os.listdir() if name.startswith(".refimpl-")], argv
    return status


class Room:
    """A folder with the files of `fill`, in which a case runs, and which it leaves as it was."""

    def __enter__(self):
        self.before, self.temporary = os.getcwd(), tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name)
        fill(self.folder)
        self.kept = {path.name: path.read_bytes() for path in self.folder.iterdir()}
        os.chdir(self.folder)
        return self

    def restore(self):
        for path in self.folder.iterdir():
            if path.name not in self.kept:
                path.unlink()
        for name, data in self.kept.items():
            if (self.folder / name).read_bytes() != data:
                (self.folder / name).write_bytes(data)

    def __exit__(self, *error):
        os.chdir(self.before)
        self.temporary.cleanup()


def fuzz(examples, answer=judge, number=0, **options):
    """Let this many command lines be answered; another number draws others."""
    with Room() as room:

        @seed(number)
        @settings(max_examples=examples, **options)
        @given(command_lines())
        def case(argv):
            answer(argv)
            room.restore()

        case()


def tally(examples, number):
    """What became of this many command lines."""
    total = Tally()

    def problem_of(argv):
        try:
            return judge(argv) < 2, ""
        except Exception as error:
            return False, "".join(traceback.format_exception(error)[-8:])

    def answer(argv):
        total.add(tally_case(lambda: problem_of(argv), f"command line {argv}"))

    checks = [HealthCheck.too_slow]
    fuzz(examples, answer, number, deadline=None, database=None, derandomize=False, suppress_health_check=checks)
    return total


def test_no_command_line_ends_in_a_traceback():
    fuzz(8 * settings().max_examples)


def test_the_fuzzer_sees_what_is_wrong(monkeypatch):
    found = tally(5, 1)
    assert (found.cases, found.wrong) == (5, []) and found.loaded + found.refused == 5 and found.slowest > 0
    for wrong in (lambda argv: 3, lambda argv: print("unexpected", file=sys.stderr) or 2, lambda argv: {}[0]):
        monkeypatch.setattr("tests.cli.test_cli_fuzz.main", wrong)
        assert len(tally(5, 1).wrong) == 5
        with pytest.raises((AssertionError, KeyError)):
            judge(["verify"])
