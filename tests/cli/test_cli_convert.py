"""`refimpl convert`: every flag, exit status and message; and the check that it rests on, seen to
fail.
"""

import json
import math
import os
import re
import struct
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import refimpl as ri
from refimpl import GF, QQ, Config, Float, NotDefined, Rotary, convert, digest, load, random_model, save
from refimpl.cli import convert as cli_convert
from refimpl.cli.main import main
from refimpl.files.models import read_model
from refimpl.files.tokenizers import read_tokenizer
from refimpl.model.recurrence import Carried
from refimpl.model.rwkv import Rwkv
from refimpl.model.transformer import run_layers, token_vectors
from refimpl.prompt import conversion
from refimpl.prompt.compression import Compression
from refimpl.prompt.compression.best import Best
from refimpl.prompt.fidelity import fidelity, rounding
from refimpl.systems import SystemArray, floats
from refimpl.verify.conversion_check import ConversionCheck, LayerCheck, check_conversion, held_out, prompt_calls
from tests.helpers.assertions import peak_memory, says
from tests.helpers.real_weights import folder

SMALL = {"layers": 2, "width": 4, "heads": 2, "d": 2, "m": 3, "vocabulary": 7}
REAL = Config(**SMALL, groups=1, hidden=5, rope=Rotary(width=2))
RATIONAL = Config(
    **SMALL, phi="identity", norm="layer_rational", hidden=3, activation="quadratic", rope=Rotary(width=2, base=None)
)
TABLE = Config(**SMALL, table=9)
VECTORS = Config(layers=2, width=4, d=2, m=2)
PROMPT = [3, 1, 4, 1, 5]


def model(config=REAL, system=None):
    return random_model(system or Float(), config, seed=1)


@pytest.fixture
def room(tmp_path, monkeypatch):
    """A folder with a model in it, where the command runs."""
    monkeypatch.chdir(tmp_path)
    save("m", model())
    return tmp_path


def run(capsys, *argv):
    """(exit status, stdout, stderr)"""
    try:
        status = main(["convert", *argv])
    except SystemExit as stop:
        status = stop.code
    return status, *capsys.readouterr()


def biases(m):
    return [x.planes[0] if isinstance(x, SystemArray) else x for b in m.biases for x in (b.S, b.z)]


def same(a, b):
    return (a.position, a.prompts) == (b.position, b.prompts) and all(map(np.array_equal, biases(a), biases(b)))


def test_help(capsys):
    status, out, _ = run(capsys, "--help")
    flags = "--prompt --out --whole --baked --mask --strength --keep-positions --chunk --check --by "
    flags += "--features --budget --error --seed "
    flags += "--backend --device --json --tokenizer --dtype"
    assert status == 0 and all(flag in out for flag in flags.split()) and "Exit status" in out


def test_what_it_writes_and_says(room, capsys):
    status, out, err = run(capsys, "m", "--prompt", "3 1,4\n1, 5", "--out", "b")
    assert (status, err) == (0, "")
    first, position, second, last = out.splitlines()
    assert first == "converted 5 tokens into biases of 2 layers in numpy float64"
    assert position == "the input is read from position 0 on" and all(len(line) < 80 for line in out.splitlines())
    assert second.startswith("128 bytes of biases; a KV cache of 5 tokens has 400; ") and second.endswith(" s")
    assert last == "b is written"
    assert same(load("b", model()), convert(model(), PROMPT))
    with says(ValueError, "`base` must be the model to which these biases belong"):
        load("b")


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ([], {}),
        (["--mask", "full"], {"mask": "full"}),
        (["--keep-positions"], {"restart": False}),
        (["--chunk", "2"], {"chunk": 2}),
        (["--strength", "0.5"], {"strength": 0.5}),
        (["--strength", "3"], {"strength": 3}),
        (["--strength", "1/4"], {"strength": 0.25}),
        (["--strength", "5/2"], {"strength": 2.5}),
        (["--strength=-2"], {"strength": -2}),
    ],
)
def test_flags_that_say_how(flags, options, room, capsys):
    status, out, _ = run(capsys, "m", "--prompt", "3 1 4 1 5", "--out", "b", *flags, "--check")
    assert status == 0 and out.count("WITHIN BOUND  error/bound ≤ 0.0") == 2
    assert same(load("b", model()), convert(model(), PROMPT, **options))


def test_whole(room, capsys):
    assert run(capsys, "m", "--prompt", "3 1 4 1 5", "--out", "w", "--whole")[0] == 0
    assert same(load("w"), convert(model(), PROMPT)) and digest(load("w")) == digest(model())
    assert run(capsys, "w", "--prompt", "6", "--out", "w", "--whole", "--force")[0] == 0
    assert same(load("w"), convert(convert(model(), PROMPT), [6]))


def test_on_top_of_what_was_baked_before(room, capsys):
    assert run(capsys, "m", "--prompt", "3 1 4", "--out", "b")[0] == 0
    status, out, _ = run(capsys, "m", "--prompt", "1 5", "--baked", "b", "--out", "b", "--check", "--force")
    assert status == 0 and "converted 2 tokens" in out and "a KV cache of 5 tokens" in out
    assert same(load("b", model()), convert(convert(model(), [3, 1, 4]), [1, 5]))
    status, out, _ = run(capsys, "m", "--prompt", "1", "--baked", "m", "--out", "b")
    assert status == 2


@pytest.mark.parametrize("name", ["text", "ids.npy", "batch.npy"])
def test_prompts_from_files(name, room, capsys):
    prompt = np.array([PROMPT, PROMPT[::-1]]) if name == "batch.npy" else np.array(PROMPT, np.uint8)
    (room / "text").write_text("3 1\n4,1 ,5\n")
    if name != "text":
        np.save(name, prompt)
    assert run(capsys, "m", "--prompt", f"@{name}", "--out", "b", "--check")[0] == 0
    assert same(load("b", model()), convert(model(), prompt))


@pytest.mark.parametrize("system", [Float(), Float("numpy", "float32"), GF(10007)], ids=str)
def test_vectors_from_files(system, room, capsys):
    config = replace(VECTORS, phi="identity", norm="none") if system.exact else VECTORS
    prompt = system.random((3, 4), 0)
    save("v", model(config, system))
    np.save("x.npy", prompt.planes[0] if system.exact else prompt)
    assert run(capsys, "v", "--prompt", "@x.npy", "--out", "b", "--check")[0] == 0
    assert same(load("b", load("v")), convert(load("v"), prompt))


def test_exact_fields_are_checked_by_equality(room, capsys):
    save("g", model(RATIONAL, GF(2**61 - 1)))
    status, out, _ = run(capsys, "g", "--prompt", "3 1 4", "--out", "b", "--check", "--strength", "2/3")
    assert status == 0 and out.splitlines()[3:] == [
        "checked on 16 random tokens of seed 0,",
        "against the prompted model by linear_attention:",
        "layer   0  EXACT",
        "layer   1  EXACT",
        "end to end  equal",
        "b is written",
    ]


def test_a_bound_that_says_nothing_is_no_success(room, capsys):
    save("h", model(system=Float("numpy", "float16")))
    assert run(capsys, "h", "--prompt", "3 1 4", "--out", "c", "--check")[0] == 0
    status, out, _ = run(capsys, "h", "--prompt", "1 2 3 " * 300, "--out", "b", "--check", "--json", "j")
    assert status == 2 and "VACUOUS       32 of 32 rows vacuous" in out and out.endswith("b is not written\n")
    assert not os.path.exists("b") and json.loads((room / "j").read_text())["out"] is None


def test_torch_has_bfloat16(room, capsys):
    pytest.importorskip("torch")
    save("t", model(system=Float("torch", "bfloat16")))
    assert (
        run(capsys, "t", "--prompt", "3 1", "--out", "b")[2]
        == "refimpl: MODEL: t: NumPy has no bfloat16; pass --backend torch\n"
    )
    assert run(capsys, "t", "--prompt", "3 1", "--out", "b", "--backend", "torch", "--device", "cpu")[0] == 0
    save("v", model(VECTORS, Float("torch", "bfloat16")))
    np.save("x.npy", np.ones((2, 4), np.float32))
    assert run(capsys, "v", "--prompt", "@x.npy", "--out", "v.b", "--backend", "torch")[0] == 0


def test_jax_has_float64(room):
    pytest.importorskip("jax")
    save("j", model(Config(layers=1, width=2, norm="none", vocabulary=3)))
    command = [sys.executable, "-m", "refimpl", "convert", "j", "--prompt", "2 1", "--out", "b", "--backend", "jax"]
    shown = subprocess.run(command, capture_output=True, text=True)
    assert shown.returncode == 0 and "jax.numpy float64" in shown.stdout, shown.stderr


def test_seed(room, capsys):
    shown = [run(capsys, "m", "--prompt", "3 1 4", "--out", seed, "--check", "--seed", seed)[1] for seed in "01"]
    assert "on 16 tokens that the model wrote after the prompt, seed 1,\n" in shown[1]
    assert shown[0].split("seed")[1][2:] != shown[1].split("seed")[1][2:]


def test_the_text_of_the_check_is_what_the_model_writes(room, capsys, monkeypatch):
    """Of a softmax model that all but repeats its last id, the text is that id, not any other."""
    save("s", loud := replace(model(SOFTMAX), weights=model(SOFTMAX).weights | {"embedding": 9 * np.eye(7, 4)}))
    written = list(ri.generate(loud, PROMPT, 16, temperature=1, seed=ri.systems.seed_of("held out", 0)))
    seen = []
    monkeypatch.setattr(cli_convert, "fidelity", lambda *args, **how: seen.append([*args[3]]) or fidelity(*args, **how))
    assert run(capsys, "s", "--prompt", "3 1 4 1 5", "--out", "b", "--check")[0] == 0
    likely = [np.argmax(row) for row in loud([*PROMPT, *written])[len(PROMPT) - 1 : -1]]
    assert seen == [written] and sum(a == b for a, b in zip(likely, written, strict=True)) >= 8


def test_what_the_text_of_the_check_is():
    """Of a batch it follows the first prompt; where nothing can be drawn it is uniform."""
    words = "4 tokens that the model wrote after the prompt, seed 0"
    alone, said = held_out(model(), PROMPT, 4, 0)
    assert said == words and np.array_equal(held_out(model(), [PROMPT, PROMPT[::-1]], 4, 0)[0], alone)
    assert held_out(model(), np.array(PROMPT, np.uint8), 4, 1)[0].tolist() != alone.tolist()
    batched = convert(model(), [[1, 2], [2, 1]])
    field, none, vectors = (model(RATIONAL, GF(10007)), PROMPT), (model(), []), (model(), np.ones((2, 4)))
    for m, prompt in (field, (batched, PROMPT), none, vectors):
        text, said = held_out(m, prompt, 4, 0)
        assert said == "4 random tokens of seed 0" and text.shape == (4,) and 0 <= text.min() <= text.max() < 7
    with says(ValueError, "held_out: `prompt` must hold ids from 0 to 6, got 7 at token 1"):
        held_out(model(), [1, 7], 4, 0)


@pytest.mark.parametrize("source", ["2 6", "@text", "@ids.npy"])
def test_the_check_on_a_text_of_ones_own(source, room, capsys, monkeypatch):
    (room / "text").write_text("2 6")
    np.save("ids.npy", np.array([2, 6]))
    seen = []
    real = cli_convert.check_conversion
    monkeypatch.setattr(
        cli_convert, "check_conversion", lambda *args, **how: seen.append([*args[3]]) or real(*args, **how)
    )
    status, out, _ = run(capsys, "m", "--prompt", "3 1", "--out", "b", "--check", "--held-out", source)
    assert status == 0 and "checked on 2 tokens of --held-out,\n" in out and seen == [[2, 6]]


def test_a_text_of_ones_own_does_not_begin_anew(room, capsys):
    models = folder("stories260K.bin", "tok512.bin")
    words = [str(models / "stories260K.bin"), "--tokenizer", str(models / "tok512.bin"), "--out", "b", "--check"]
    status, out, _ = run(capsys, *words, "--prompt", "Once upon a time", "--held-out", ", there was a girl")
    n = len(read_tokenizer(words[2]).encode(", there was a girl", begin=False))
    assert status == 0 and f"checked on {n} tokens of --held-out,\nagainst" in out


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *(("50000", 50000), ("50KB", 50000), ("50 kb", 50000), ("50K", 50000), ("50KiB", 51200), ("50ki", 51200)),
        *(("1.5MB", 1500000), ("2GiB", 2**31), ("1TB", 10**12), ("7B", 7), ("0.5KiB", 512)),
    ],
)
def test_sizes(text, size):
    assert cli_convert.read_size(text) == size


@pytest.mark.parametrize("text", ["", "KB", "1.5", "0.0001KB", "-1", "1e3", "50XB", "½", "١", "1/3", "9" * 40, "inf"])
def test_what_is_no_size(text, room, capsys):
    status, _, err = run(capsys, "m", "--prompt", "1", "--out", "b", "--by", "best", f"--budget={text}")
    said = "error: argument --budget: must be a whole number of bytes such as 50000, 50KB (50,000), 50KiB (51,200), "
    assert status == 2 and f"{said}1.5MB or 2GiB, got " in err


def test_a_file_is_replaced_only_by_force(room, capsys, monkeypatch):
    (room / "b").write_bytes(b"mine")
    argv = ["m", "--prompt", "3", "--out", "b"]
    with monkeypatch.context() as patch:
        patch.setattr(cli_convert, "convert", lambda *args, **options: pytest.fail("the work was begun"))
        said = "refimpl: --out: b must be a new file, and exists already; --force replaces it\n"
        assert run(capsys, *argv) == (2, "", said) and (room / "b").read_bytes() == b"mine"
    assert run(capsys, *argv, "--force")[0] == 0 and load("b", model()).prompts == (1,)


def test_json(room, capsys):
    flags = ["--mask", "full", "--strength", "1/3", "--check", "--seed", "5", "--json", "j"]
    assert run(capsys, "m", "--prompt", "3 1 4", "--out", "b", *flags)[0] == 0
    data = json.loads((room / "j").read_text())
    assert {
        name: data[name] for name in ("model", "out", "whole", "prompt", "prompts", "position", "mask", "restart")
    } == {
        "model": "m",
        "out": "b",
        "whole": False,
        "prompt": 3,
        "prompts": [3],
        "position": 0,
        "mask": "full",
        "restart": True,
    }
    assert (
        data["digest"] == digest(model())
        and data["strength"] == "1/3"
        and data["seed"] == 5
        and data["version"] == ri.__version__
    )
    assert data["bytes"] == {"biases": 128, "kv_cache": 240} and data["check"]["verdict"] == "WITHIN BOUND"
    assert [c["layer"] for c in data["check"]["layers"]] == [0, 1] and 0 < data["check"]["difference"] < 1e-13
    assert run(capsys, "m", "--prompt", "3", "--out", "b", "--force", "--json", "j")[0] == 0
    assert json.loads((room / "j").read_text())["check"] is None


def test_progress_only_on_a_terminal(room, capsys, monkeypatch):
    assert run(capsys, "m", "--prompt", "3", "--out", "a", "--check")[2] == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    err = run(capsys, "m", "--prompt", "3", "--out", "b", "--check")[2]
    assert (
        "the prompt, layer 1 of 2" in err
        and "layer 2 of 2: prompted against converted" in err
        and err.endswith("\r\x1b[K\r")
    )


def test_a_long_prompt_is_checked_by_the_quadratic_form(room, capsys, monkeypatch):
    seen = []
    monkeypatch.setattr(
        cli_convert, "check_conversion", lambda *args, definition, **options: seen.append(definition) or FINE
    )
    for n in (64, 65):
        assert run(capsys, "m", "--prompt", "1 " * n, "--out", f"{n}", "--check")[0] == 0
    assert seen == [ri.linear_attention, ri.linear_attention_quadratic]


FINE = ConversionCheck((LayerCheck(0, "EXACT", 0.0, "", 3, 0),), 0.0, 1.0)


# Other models than our own, other pasts than sums

SOFTMAX = Config(**SMALL, phi="softmax", biased=True, rope=Rotary(width=2, placement="before"))
BYTES = Rwkv("5.2", 2, 4, 2, 5, 256)


def test_absolute_positions_go_on_where_the_prompt_ended(room, capsys):
    """Whether one says so or not: they cannot begin anew."""
    for config in (TABLE, replace(SOFTMAX, rope=None, table=9)):
        save("p", model(config))
        for flags in ([], ["--keep-positions"]):
            status, out, _ = run(capsys, "p", "--prompt", "3 1 4", "--out", "b", "--check", "--force", *flags)
            assert status == 0 and "the input is read from position 3 on" in out
            found = load("b", load("p"))([1, 5])
            assert found == pytest.approx(model(config)([3, 1, 4, 1, 5])[3:], abs=1e-12)


@pytest.mark.parametrize("kind", ["cache", "state"])
def test_fidelity_is_measured_where_no_bound_is_derived(kind, room, capsys):
    save("s", model(SOFTMAX if kind == "cache" else BYTES))
    prompt = "3 1 4 1 5" if kind == "cache" else "\3\1\4\1\5"
    status, out, err = run(capsys, "s", "--prompt", prompt, "--out", "b", "--check", "--seed", "3", "--json", "j")
    assert (status, err) == (0, "") and re.fullmatch(
        r"converted 5 tokens into biases of 2 layers in numpy float64\n(the input is read from position 0 on\n)?"
        r"[\d,]+ bytes of biases(; a KV cache of 5 tokens has [\d,]+)?; \d\.\d\d s\n"
        r"checked on 16 tokens that the model wrote after the prompt, seed 3,\nagainst the prompted model:\n"
        r"relative logit error \d\.?\d*e-1[5-9], "
        r"next-token agreement 100.0%\n"
        r"with the prompt dropped 0\.\d+, \d+\.\d%\n"
        r"against wider floats: converted \d\.?\d*e-1\d off, prompted \d\.?\d*e-1\d\n"
        r"\(more than 10 times the prompted error would fail\)\n"
        r"b is written\n",
        out,
    )
    found = json.loads((room / "j").read_text())["check"]
    assert (
        found["verdict"] == "MEASURED"
        and 0 < found["error"] < 1e-14 < found["dropped_error"]
        and found["agreement"] == 1
    )
    m = load("s")
    assert load("b", m)([1, 2]) == pytest.approx(m([*PROMPT, 1, 2])[5:], abs=1e-12)


@pytest.mark.parametrize("kind", ["cache", "state"])
def test_an_exact_conversion_that_is_off_by_more_than_rounding_is_not_written(kind, room, capsys, monkeypatch):
    """A planted bug: values, or the state, a hundred-millionth too large. That is still far nearer
    than without the prompt.
    """

    def wrong(*args, **options):
        done = convert(*args, **options)
        if kind == "cache":
            return done.with_biases([replace(b, v=b.v * (1 + 1e-8)) for b in done.biases])
        biases = [Carried(b.parts | {"S": b.parts["S"] * (1 + 1e-8)}, b.position) for b in done.biases]
        return done.with_biases(biases)

    monkeypatch.setattr(cli_convert, "convert", wrong)
    save("s", model(SOFTMAX if kind == "cache" else BYTES))
    status, out, _ = run(
        capsys, "s", "--prompt", "3 1 4 1 5" if kind == "cache" else "\3\1\4\1\5", "--out", "b", "--check"
    )
    assert status == 1 and out.endswith("b is not written\n") and not (room / "b").exists()


def test_what_best_chose_is_said(room, capsys):
    save("s", model(SOFTMAX))
    status, out, _ = run(
        capsys, "s", "--prompt", "3 1 4 1 5", "--out", "b", "--by", "best", "--budget", "900", "--json", "j"
    )
    said = json.loads((room / "j").read_text())
    assert status == 0 and said["by"].startswith("best") and len(said["chosen"]) == 2
    assert all(f"layer {i:3}  {about}" in out and "measured error" in about for i, about in enumerate(said["chosen"]))


def test_no_file_that_is_read_is_written_over(room, capsys):
    run(capsys, "m", "--prompt", "3 1 4", "--out", "b")
    before = (room / "b").read_bytes()
    status, _, err = run(capsys, "m", "--prompt", "1", "--out", "c", "--baked", "b", "--json", "b")
    assert (
        status == 2
        and "--json: b must be a file of its own, not one that is read" in err
        and (room / "b").read_bytes() == before
    )
    assert (
        run(capsys, "m", "--prompt", "1", "--out", "b", "--force", "--baked", "b")[0] == 0
    )  # one on top of the other, in its place


def test_biases_go_onto_a_model_that_carries_none(room, capsys):
    run(capsys, "m", "--prompt", "3 1 4", "--out", "w", "--whole")
    run(capsys, "m", "--prompt", "3 1 4", "--out", "b")
    status, _, err = run(capsys, "w", "--prompt", "1", "--out", "c", "--baked", "b")
    assert status == 2 and "--baked: MODEL carries a prompt already; biases go onto the model without it" in err


def test_fidelity_of_a_batch_of_prompts(room, capsys):
    save("s", model(SOFTMAX))
    np.save("batch.npy", np.array([PROMPT, PROMPT[::-1]]))
    status, out, _ = run(capsys, "s", "--prompt", "@batch.npy", "--out", "b", "--check")
    assert status == 0 and "next-token agreement 100.0%" in out and load("b", model(SOFTMAX))([1, 2]).shape == (2, 2, 7)


def test_fidelity_is_between_models():
    m = model(SOFTMAX)
    with says(TypeError, "fidelity: `model` must be a Model, got str"):
        fidelity("m", m, [1], [2])
    with says(TypeError, "fidelity: `converted` must be a Model, got NoneType"):
        fidelity(m, None, [1], [2])
    with says(ValueError, "fidelity: `text` must hold ids from 0 to 6, got 7 at token 0"):
        fidelity(m, m, [1], [7])
    # nothing was converted: as if the prompt were dropped, and no worse
    found = fidelity(m, m, PROMPT, [2, 6])
    assert (found.error, found.agreement) == (
        found.dropped_error,
        found.dropped_agreement,
    ) and not found.worse_than_dropped
    assert replace(found, error=math.nan).worse_than_dropped


def test_memory_of_a_check_grows_no_faster_than_the_prompt():
    """Scores are made in tiles of rows, and logits for the input alone."""
    config = replace(SOFTMAX, vocabulary=1000, table=0, rope=None)
    m, text = random_model(Float(), config, 0), [1, 2, 3, 4]

    def peaks(M):
        prompt = np.random.default_rng(0).integers(0, 1000, M)
        converted = convert(m, prompt, restart=False)
        yield peak_memory(lambda: fidelity(m, converted, prompt, text))
        yield peak_memory(lambda: rounding(m, converted, prompt, text))

    for short, long in zip(peaks(700), peaks(1400), strict=True):
        assert long <= 2 * short

    linear = random_model(Float(), Config(1, 2, vocabulary=3000), 0)
    prompt, definition = np.random.default_rng(0).integers(0, 3000, 300), ri.linear_attention_quadratic
    converted = convert(linear, prompt)
    most = peak_memory(lambda: check_conversion(linear, converted, prompt, [1], definition=definition))
    assert most < 300 * 3000 * 8


def test_a_check_reads_the_prompt_in_the_pieces_of_convert(monkeypatch):
    """Else the activations of deeper layers would round differently, which no bound covers."""
    monkeypatch.setattr(conversion, "PIECE", 2)
    m, lengths = model(), []
    convert(m, PROMPT, between=lambda i, x: lengths.append(x.shape[-2]) or x)
    vectors = token_vectors(m, np.array(PROMPT))
    assert lengths == [2, 2, 2, 2, 1, 1]
    for mask, wanted in (("causal", [2, 2, 1]), ("full", [5])):
        calls = prompt_calls(m, vectors, None, ri.linear_attention_chunked, mask)
        assert [[call.q.shape[-2] for call in layer] for layer in calls] == [wanted] * m.config.layers


def test_worse_than_without_the_prompt_exits_1_and_writes_nothing(room, capsys, monkeypatch):
    def wrong(m, prompt, **options):
        good = convert(m, prompt, **options)
        return replace(good, biases=tuple(replace(b, v=-9 * b.v) for b in good.biases))

    save("s", model(SOFTMAX))
    monkeypatch.setattr(cli_convert, "convert", wrong)
    status, out, _ = run(capsys, "s", "--prompt", "3 1 4", "--out", "b", "--check", "--json", "j")
    assert (
        status == 1
        and ": worse than without the prompt\n" in out
        and out.endswith("b is not written\n")
        and not os.path.exists("b")
    )
    assert json.loads((room / "j").read_text())["check"]["verdict"] == "WORSE"


def test_memories(room, capsys):
    save("s", model(SOFTMAX))
    prompt = ["--prompt", "3 1 4 1 5 2 6 5 3 5", "--out", "b", "--force"]
    for flags, maker in (
        (["--by", "clusters", "--features", "3"], Compression("clusters", 3)),
        (["--by", "positive", "--features", "4", "--seed", "5"], Compression("positive", 4, 5)),
        (["--by", "taylor"], Compression("taylor")),
        (["--by", "Best", "--budget", "2KB"], Best(budget=1000)),
        (["--by", "best", "--budget", "600"], Best(budget=300)),  # the cache has more bytes
        (["--by", "best", "--error", "0.1", "--strength", "2"], Best(error=0.1)),
    ):
        assert run(capsys, "s", *prompt, *flags)[0] == 0
        strength = 2 if "--strength" in flags else 1
        want = convert(model(SOFTMAX), [3, 1, 4, 1, 5, 2, 6, 5, 3, 5], by=maker, strength=strength)
        assert np.array_equal(load("b", model(SOFTMAX))([1, 2]), want([1, 2]))


def test_a_text_and_its_tokenizer(room, capsys):
    models = folder("stories260K.bin", "tok512.bin")
    name, words = str(models / "stories260K.bin"), ["--tokenizer", str(models / "tok512.bin"), "--prompt"]
    assert run(capsys, name, *words, "Once upon a time", "--out", "b", "--dtype", "float32")[0] == 0
    m, tokenizer = read_model(name, dtype="float32"), read_tokenizer(words[1])
    first, second = tokenizer.encode("Once upon a time"), tokenizer.encode(", there", begin=False)

    def same_tokens(a, b):  # bit for bit; what is read from them may round as arrays lie in memory
        return all(
            np.array_equal(s.k, t.k) and np.array_equal(s.v, t.v) for s, t in zip(a.biases, b.biases, strict=True)
        )

    baked = load("b", m)
    assert same_tokens(baked, convert(m, first)) and len(first) == 5
    assert (
        run(capsys, name, *words, ", there", "--baked", "b", "--out", "b", "--force", "--dtype", "float32")[0] == 0
    )  # which does not begin anew
    assert same_tokens(load("b", m), convert(baked, second)) and second[0] != 1
    assert run(capsys, name, *words, "Once", "--baked", "b", "--out", "c")[2].endswith(
        "another model, or changed\n"
    )  # float64


# What is refused


def npy(shape, data=b""):
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode() + data


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["m", "--prompt", "3 x 4"], "--prompt: must be token ids such as '3 1 4', or text with --tokenizer, got 'x'"),
        (
            ["m", "--prompt", "3 1.5"],
            "--prompt: must be token ids such as '3 1 4', or text with --tokenizer, got '1.5'",
        ),
        (["m", "--prompt", " , "], "--prompt: must be token ids such as '3 1 4', or text with --tokenizer, got ''"),
        (
            ["m", "--prompt", "9" * 5000],
            f"--prompt: must be token ids such as '3 1 4', or text with --tokenizer, got '{'9' * 40}'",
        ),
        (["m", "--prompt", "3 7"], "--prompt must hold ids from 0 to 6, got 7 at token 1"),
        (["m", "--prompt", "-1"], "--prompt must hold ids from 0 to 6, got -1 at token 0"),
        (["m", "--prompt", "@none"], "--prompt @none: cannot read none: no such file"),
        (["m", "--prompt", "@."], "--prompt @.: cannot read .: not a regular file"),
        (["m", "--prompt", "@zip"], "--prompt @zip: must be token ids such as '3 1 4', or text with --tokenizer, got "),
        (
            ["m", "--prompt", "@empty"],
            "--prompt @empty: must be token ids such as '3 1 4', or text with --tokenizer, got ''",
        ),
        (["m", "--prompt", "@pickle"], "--prompt @pickle: must be a .npy file of numbers: "),
        (["m", "--prompt", "@cut"], "--prompt @cut: must be a .npy file of numbers: "),
        (["m", "--prompt", "@huge"], "--prompt @huge: must be a .npy file of numbers: "),
        (
            ["m", "--prompt", "@narrow"],
            "--prompt @narrow: vectors for a model in numpy float64 must be float64, got float32",
        ),
        (["m", "--prompt", "@words"], "--prompt @words: vectors for a model in numpy float64 must be float64, got <U1"),
        (["m", "--prompt", "@wide"], "--prompt must have shape (..., tokens, 4), got (3, 5)"),
        (["g", "--prompt", "@wide"], "--prompt @wide: vectors for a model in GF(10007) must be int64, got float64"),
        (["v", "--prompt", "1 2"], "--prompt: MODEL has no vocabulary; pass vectors, as @FILE of a .npy file"),
        (
            ["p", "--prompt", "1 " * 10, "--keep-positions"],
            "must fit the table of 9 absolute positions, got 10 tokens read from position 0 on",
        ),
        (
            ["p", "--prompt", "1 " * 9, "--keep-positions", "--check"],
            "the table of 9 absolute positions must have room for `tokens`",
        ),
        (["m", "--prompt", "1", "--strength", "x"], "--strength: must be a number such as 2, 0.5 or 1/3, got 'x'"),
        (["m", "--prompt", "1", "--strength", "1/0"], "--strength: must be a number such as 2, 0.5 or 1/3, got '1/0'"),
        *(
            (
                [name, "--prompt", "1", "--strength", strength],
                "--strength: must have at most 100 characters and an exponent from -400 to 400, got ",
            )
            for name in "gm"
            for strength in ("1e9999999", "1E-401", "1/" + "9" * 5000)
        ),
        (["m", "--prompt", "1", "--strength", "nan"], "--strength must be finite, got nan"),
        (["m", "--prompt", "1", "--chunk", "0"], "--chunk must be an integer ≥ 1, got 0"),
        (
            ["m", "--prompt", "1", "--chunk", "1", "--mask", "full"],
            "--chunk reads a prompt in pieces, and --mask must be 'causal' for that, got 'full'",
        ),
        (["z", "--prompt", "1"], "layer 0: linear_attention_chunked: the denominator φ(q)·z is zero at token 0"),
        (["none", "--prompt", "1"], "MODEL: cannot read none: no such file"),
        ([".", "--prompt", "1"], "MODEL: cannot read model.safetensors: no such file"),
        (["short", "--prompt", "1"], "MODEL: short: "),
        (["foreign", "--prompt", "1"], "rwkv.cpp's .bin, got tensors x"),
        (
            ["alone", "--prompt", "1"],
            "MODEL: alone holds biases that convert wrote, without the weights of their model; "
            "did you mean refimpl convert MODEL --baked alone?",
        ),
        (["m", "--prompt", "1", "--baked", "other"], "another model, or changed"),
        (
            ["m", "--prompt", "1", "--baked", "m"],
            "the file must hold biases alone, since MODEL is given, got a whole model",
        ),
        (["m", "--prompt", "1", "--backend", "touch"], "did you mean 'torch'?"),
        (
            ["m", "--prompt", "1", "--by", "clusters", "--features", "2"],
            "--by makes a memory for softmax attention; this model",
        ),
        (["s", "--prompt", "1", "--features", "2"], "convert: a KV cache, without --by, takes no size, got --features"),
        (["s", "--prompt", "1", "--by", "taylor", "--budget", "2"], "refimpl: --by taylor takes no size, got --budget"),
        (["s", "--prompt", "1", "--by", "clusters"], "refimpl: --by clusters takes --features, got none"),
        (
            ["s", "--prompt", "1", "--by", "clusters", "--error", "1"],
            "refimpl: --by clusters takes --features, got --error",
        ),
        (["s", "--prompt", "1", "--by", "best"], "refimpl: --by best takes either --budget or --error, got none"),
        (
            ["s", "--prompt", "1", "--by", "best", "--budget", "9", "--error", "1"],
            "takes either --budget or --error, got --budget and --error",
        ),
        (["s", "--prompt", "1", "--by", "best", "--error", "nan"], "--error must be a finite number ≥ 0, got nan"),
        (["s", "--prompt", "1", "--by", "best", "--budget", "4"], "bytes, for one feature in each head, got 4"),
        (["s", "--prompt", "1", "--by", "cluster", "--features", "2"], "did you mean 'clusters'?"),
        (["s", "--prompt", "1", "--by", "clusters", "--features", "0"], "--features must be an integer"),
        (
            ["s", "--prompt", "1", "--by", "taylor", "--strength", "0.0"],
            "--strength: must not be 0 with --by, which would remember nothing, got 0.0",
        ),
        (["s", "--prompt", "1", "--strength", "2"], "convert: tokens of a KV cache count once; pass --by"),
        (
            ["s", "--prompt", "1", "--by", "clusters", "--features", "2", "--strength", "2", "--check"],
            "--check: fidelity is to a prompt that counts once; --strength must be 1, got 2",
        ),
        (
            ["sv", "--prompt", "@right", "--check"],
            "MODEL must have a vocabulary, and --prompt and --held-out be token ids of it",
        ),
        (
            ["r", "--prompt", "x", "--strength", "2"],
            "the state of a recurrence is not a sum of its tokens; --strength must be 1",
        ),
        (
            ["r", "--prompt", "x", "--mask", "full"],
            "a recurrence reads its text from left to right; --mask must be 'causal', got 'full'",
        ),
        (["r", "--prompt", ""], "--prompt: must have a token or more to go on from, got ''"),
        (["m", "--prompt", "1", "--tokenizer", "none"], "cannot read none: no such file"),
        (["over", "--prompt", "1"], "layer 0: transformer: its output overflows numpy float64: nan or inf at token 0"),
        (
            ["m", "--prompt", "@text", "--out", "text"],
            "--out: text must be a file of its own, neither one that is read nor that of --json",
        ),
        (
            ["m", "--prompt", "1", "--out", "other"],
            "--out: other must be a new file, and exists already; --force replaces it",
        ),
        (["m", "--prompt", "1", "--held-out", "2"], "--held-out needs --check, which compares the models on it"),
        (
            ["p", "--prompt", "1 2 3", "--check", "--held-out", "1 " * 7],
            "--held-out: must have at most 6 tokens, for a table of 9 positions, got 7",
        ),
        (
            ["m", "--prompt", "1", "--check", "--held-out", "7"],
            "--held-out must hold ids from 0 to 6, got 7 at token 0",
        ),
        (["m", "--prompt", "1", "--check", "--held-out", "@none"], "--held-out @none: cannot read none: no such file"),
        (
            ["m", "--prompt", "1", "--check", "--held-out", "@hollow"],
            "--held-out: must have a token or more to compare, got none",
        ),
        (
            ["m", "--prompt", "1", "--out", "text", "--force", "--check", "--held-out", "@text"],
            "--out: text must be a file of its own, neither one that is read nor that of --json",
        ),
        (["m", "--prompt", "1", "--json", "m"], "--json: m must be a file of its own, not one that is read"),
        (
            ["m", "--prompt", "1", "--out", "m"],
            "--out: m must be a file of its own, neither one that is read nor that of --json",
        ),
        (
            ["m", "--prompt", "1", "--json", "b"],
            "--out: b must be a file of its own, neither one that is read nor that of --json",
        ),
        (["m", "--prompt", "1", "--out", "no/such/b"], "--out: cannot write no/such/b: no such folder"),
        (["m", "--prompt", "1", "--out", "."], "--out: cannot write .: not a regular file"),
        (["m", "--prompt", "1", "--json", "/dev/null"], "--json: cannot write /dev/null: not a regular file"),
    ],
)
def test_could_not_run(argv, message, room, capsys):
    save("p", model(TABLE))
    save("g", model(RATIONAL, GF(10007)))
    save("v", model(VECTORS))
    zero = model(replace(REAL, phi="identity"))
    save("z", replace(zero, weights={name: x * 0 if "W_K" in name else x for name, x in zero.weights.items()}))
    save("s", model(SOFTMAX))
    save("sv", model(replace(SOFTMAX, vocabulary=0)))
    save("r", model(BYTES))
    save(
        "over",
        replace(
            model(),
            weights={name: 1e200 * x if "_up" in name or "_down" in name else x for name, x in model().weights.items()},
        ),
    )
    (room / "text").write_text("3 1")
    save("alone", convert(model(), PROMPT), biases_only=True)
    save("other", convert(random_model(Float(), REAL, 2), PROMPT), biases_only=True)
    (room / "short").write_bytes((room / "m").read_bytes()[:-1])
    ri.files.safetensors.write_safetensors("foreign", {"x": np.ones(2)}, {"format": "pt"})
    (room / "zip").write_bytes(b"PK\3\4\0\0")
    (room / "empty").write_bytes(b"")
    (room / "huge").write_bytes(npy((10**15,)))
    (room / "cut").write_bytes(npy((3,), bytes(16)))
    contents = {
        "pickle": np.array([None]),
        "narrow": np.ones((3, 4), np.float32),
        "words": np.array(["a"]),
        "wide": np.ones((3, 5)),
        "right": np.ones((3, 4)),
        "hollow": np.zeros(0, int),
    }
    for name, x in contents.items():
        with open(name, "wb") as file:
            np.save(file, x)
    before = {path: path.read_bytes() for path in room.iterdir()}
    status, out, err = run(capsys, *argv, *([] if "--out" in argv else ["--out", "b"]))
    assert (status, out) == (2, "") and err.startswith("refimpl: ") and message in err and err.count("\n") == 1
    assert {path: path.read_bytes() for path in room.iterdir()} == before


@pytest.mark.parametrize(
    "argv", [[], ["m"], ["m", "--prompt", "1"], ["m", "--prompt", "1", "--out", "b", "--mask", "half"]]
)
def test_a_command_line_that_means_nothing(argv, room, capsys):
    status, _, err = run(capsys, *argv)
    assert status == 2 and "usage: refimpl" in err


def test_a_folder_that_is_not_writable(room, capsys, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *args: False)
    monkeypatch.setattr(
        cli_convert, "convert", lambda *args, **options: pytest.fail("the work was done before the target was checked")
    )
    assert run(capsys, "m", "--prompt", "1", "--out", "b")[0::2] == (
        2,
        "refimpl: --out: cannot write b: the folder is not writable\n",
    )


# The check, seen to fail


@pytest.mark.parametrize("size", [["--budget", "4"], ["--error", "0.1"]], ids=["budget", "error"])
def test_a_recurrent_model_takes_no_memory(size, room, capsys):
    save("r", model(BYTES))
    status, _, err = run(capsys, "r", "--prompt", "ab", "--out", "b", "--by", "best", *size)
    assert status == 2 and "--by makes a memory for softmax attention; this model converts exactly" in err


def nudged(x, times):
    return x + 1 if isinstance(x, SystemArray) else x * (1 + times * 2.0**-52)


def damaged(good, layer, part, times=1e6):
    """The same model with one bias changed."""
    b = good.biases[layer]
    b = replace(b, **{part: nudged(getattr(b, part), times)})
    return replace(good, biases=(*good.biases[:layer], b, *good.biases[layer + 1 :]))


@pytest.mark.parametrize("part", ["S", "z"])
@pytest.mark.parametrize("name", ["m", "g"])
def test_a_damaged_conversion_exits_1_and_writes_nothing(part, name, room, capsys, monkeypatch):
    save("g", model(RATIONAL, GF(10007)))
    monkeypatch.setattr(cli_convert, "convert", lambda *args, **options: damaged(convert(*args, **options), 1, part))
    status, out, _ = run(capsys, name, "--prompt", "3 1 4", "--out", "b", "--check", "--json", "j")
    assert status == 1 and out.endswith("b is not written\n") and not os.path.exists("b")
    layers = json.loads((room / "j").read_text())["check"]["layers"]
    assert [c["verdict"] == "EXCESS" for c in layers] == [False, True]
    assert layers[1]["what"].startswith({"S": "b_KV [", "z": "b_D ["}[part]) and f"at {layers[1]['what']}" in out
    assert run(capsys, name, "--prompt", "3 1 4", "--out", "b")[0] == 0


SYSTEMS = {"Q": QQ, "GF": GF(10007), "float64": Float(), "float32": Float("numpy", "float32")}


def checked(system, config=None, prompt=PROMPT, text=(2, 6, 0), converted=None, **options):
    m = model(config or (RATIONAL if system.exact else REAL), system)
    return check_conversion(m, converted or convert(m, prompt, **options), prompt, list(text), **options)


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("options", [{}, {"mask": "full"}, {"chunk": 2}, {"strength": 3}, {"restart": False}], ids=str)
def test_a_right_conversion_holds(name, options):
    system = SYSTEMS[name]
    config = replace(RATIONAL, layers=1, hidden=0) if name == "Q" else None
    found = checked(system, config, **options)
    assert found.verdict == ("EXACT" if system.exact else "WITHIN BOUND")
    assert found.difference == 0 if system.exact else 0 <= found.difference < 1e-4 * found.size
    assert all(c.worst < 0.5 and c.rows == 6 and not c.vacuous for c in found.layers)


@pytest.mark.parametrize(
    ("prompt", "text"), [([[1, 2], [3, 4]], [5, 6]), ([1, 2], [[5, 6], [0, 1]]), ([], [1, 2])], ids=str
)
@pytest.mark.parametrize("name", ["GF", "float64"])
def test_batches_and_no_prompt(prompt, text, name):
    prompt, text = np.array(prompt, int), np.array(text, int)
    found = checked(SYSTEMS[name], prompt=prompt, text=text)
    assert found.verdict == ("EXACT" if name == "GF" else "WITHIN BOUND")


@pytest.mark.parametrize("name", ["GF", "float64"])
def test_where_nothing_is_compared_nothing_is_decided(name):
    found = checked(SYSTEMS[name], text=np.array([], int))
    assert found.verdict == "VACUOUS" and "layer   0  VACUOUS       no rows to compare" in str(found)


@pytest.mark.parametrize("name", ["GF", "float64", "float32"])
@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("part", ["S", "z"])
def test_a_damaged_bias_is_named_by_its_layer(name, layer, part):
    m = model(RATIONAL if name == "GF" else REAL, SYSTEMS[name])
    bad = damaged(convert(m, PROMPT), layer, part, 1e6 if name == "float64" else 1e14)
    found = check_conversion(m, bad, PROMPT, [2, 6, 0])
    assert [c.verdict == "EXCESS" for c in found.layers] == [i == layer for i in (0, 1)] and found.verdict == "EXCESS"


def bug_no_turn(monkeypatch):
    """The biases stay where the prompt was read."""
    monkeypatch.setattr(ri.State, "shifted", lambda self, by, kernel: replace(self, position=self.position + by))


def bug_mask(monkeypatch):
    """The prompt is read as if its tokens saw each other."""
    monkeypatch.setattr(conversion, "run_layers", lambda model, x, run: run_layers(model, x, replace(run, mask="full")))


def bug_last_token(monkeypatch):
    """The last token of the prompt is forgotten."""

    def forgetful(model, x, run):
        out, states = run_layers(model, x, run)
        _, before = run_layers(model, x[..., :-1, :], run)
        return out, tuple(replace(b, position=s.position) for b, s in zip(before, states, strict=True))

    monkeypatch.setattr(conversion, "run_layers", forgetful)


def bug_old_biases(monkeypatch):
    """What the model carried before is lost from the first layer on."""

    def fresh(model, x, run):
        return run_layers(replace(model, biases=None), x, run)

    monkeypatch.setattr(conversion, "run_layers", fresh)


def bug_skipped_mlp(monkeypatch):
    """The prompt passes by the MLP of every layer."""

    def skipping(model, x, run):
        weights = {name: x * 0 if "W_down" in name else x for name, x in model.weights.items()}
        return run_layers(replace(model, weights=weights), x, run)

    monkeypatch.setattr(conversion, "run_layers", skipping)


@pytest.mark.parametrize("bug", [bug_no_turn, bug_mask, bug_last_token, bug_old_biases, bug_skipped_mlp])
@pytest.mark.parametrize("name", ["GF", "float64", "float32"])
def test_a_planted_bug_in_the_conversion_itself_is_found(bug, name, monkeypatch):
    m = convert(model(RATIONAL if name == "GF" else REAL, SYSTEMS[name]), [6, 2])
    bug(monkeypatch)
    converted = convert(m, PROMPT)
    monkeypatch.undo()  # the check shifts states too
    found = check_conversion(m, converted, PROMPT, [2, 6, 0])
    assert found.verdict == "EXCESS" and found.difference > 1e-3


def test_the_model_may_carry_a_prompt_already():
    for system in (GF(10007), Float()):
        m = convert(model(RATIONAL if system.exact else REAL, system), [6, 6, 2])
        found = check_conversion(m, convert(m, PROMPT), PROMPT, [2, 6, 0])
        assert found.verdict == ("EXACT" if system.exact else "WITHIN BOUND")
        assert check_conversion(m, convert(replace(m, biases=None), PROMPT), PROMPT, [2, 6, 0]).verdict == "EXCESS"


def test_absolute_positions():
    m = model(TABLE)
    text, _ = held_out(m, PROMPT, 16, 0)
    assert text.shape == (4,) and checked(Float(), TABLE, text=text, restart=False).verdict == "WITHIN BOUND"
    vectors, words = held_out(model(VECTORS), np.ones((5, 4)), 6, 0)
    assert vectors.shape == (6, 4) and words == "6 random vectors of seed 0"


def test_end_to_end_is_the_definition_over_prompt_and_input():
    m, text = model(), [2, 6, 0]
    converted = damaged(convert(m, PROMPT), 1, "S", 1e13)
    wanted = ri.transformer(m, PROMPT + text, form=ri.linear_attention)[0][len(PROMPT) :, :]
    found = check_conversion(m, converted, PROMPT, text)
    assert found.difference == pytest.approx(abs(converted(text) - wanted).max()) and found.size == pytest.approx(
        abs(floats(wanted)).max()
    )
    assert str(found).splitlines()[-1].startswith("end to end  0.00")


def test_torch():
    pytest.importorskip("torch")
    assert checked(Float("torch", "float32")).verdict == "WITHIN BOUND"


def test_what_cannot_be_checked(monkeypatch):
    m = model()
    with says(TypeError, "check_conversion: `converted` must be a Model, got NoneType"):
        check_conversion(m, None, PROMPT, [1])
    for other in (m, model(TABLE)):
        with says(
            ValueError,
            "check_conversion: `converted` must be `model` with biases, got another configuration or no biases",
        ):
            check_conversion(m, other, PROMPT, [1])
    with says(
        ValueError,
        "`converted.biases[0]` must have b_KV, b_D and position as in ((1, 1, 2, 3), True, 0), "
        "got ((1, 1, 2, 3), True, 5)",
    ):
        check_conversion(m, convert(m, PROMPT, restart=False), PROMPT, [1])
    other = replace(m, weights={**m.weights, "gain": m.weights["gain"] * 2})
    with says(ValueError, "check_conversion: `converted` must have the weights of `model`, got another gain"):
        check_conversion(m, convert(other, PROMPT), PROMPT, [1])
    with says(NotDefined, "check_conversion: no error bound is known for numpy float128"):
        checked(Float("numpy", "longdouble"))
    with says(NotDefined, "check_conversion: no error bound is known for mpmath"):
        checked(ri.MP(20))
