"""`refimpl generate`: every flag, exit status and message; the text alone, as it comes; and no file
half written.
"""

import os
import shutil
import signal
import struct
import subprocess
import sys
import time

import numpy as np
import pytest

from refimpl import GF, Config, Float, Model, Rotary, convert, generate, load, random_model, save
from refimpl.cli import generate as cli_generate
from refimpl.cli.main import main
from refimpl.files import safetensors as files
from refimpl.files.models import read_model
from refimpl.files.tokenizers import ByteTokenizer, read_tokenizer
from refimpl.model.rwkv import Rwkv
from tests.helpers.real_weights import folder

SMALL = {"layers": 2, "width": 6, "heads": 2, "d": 4, "m": 3, "hidden": 5, "tied": False}
IDS = Config(**SMALL, vocabulary=23, rope=Rotary(width=4))
SOFTMAX = Config(**SMALL, vocabulary=23, phi="softmax", biased=True)
WORDS = Config(**SMALL, vocabulary=264, phi="softmax")
BYTES = Rwkv("5.2", 2, 6, 2, 5, 256)
PIECES = [b" ", b" a", b"a", b"b", b" Once"]  # ids 259 … 263


def model(config=IDS):
    found = random_model(Float(), config, seed=2)
    return Model(config, {name: 2 * x if name.endswith(("W_V", "W_O")) else x for name, x in found.weights.items()})


def llama_file(pieces):
    tokens = [b"<unk>", b"<s>", b"</s>", *(b"<0x%02X>" % b for b in range(256)), *pieces]
    return struct.pack("<i", 9) + b"".join(
        struct.pack("<fi", float(i), len(token)) + token for i, token in enumerate(tokens)
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder of models."""
    made = tmp_path_factory.mktemp("made")
    for name, config in {"ids": IDS, "softmax": SOFTMAX, "words": WORDS, "bytes": BYTES}.items():
        save(made / name, model(config))
    (made / "tokenizer.bin").write_bytes(llama_file(PIECES))
    return made


@pytest.fixture
def room(made, tmp_path, monkeypatch):
    """A folder with models in it, where the command runs."""
    monkeypatch.chdir(shutil.copytree(made, tmp_path / "room"))
    return tmp_path / "room"


def run(capsys, *argv):
    """(exit status, stdout, stderr)"""
    try:
        status = main(["generate", *argv])
    except SystemExit as stop:
        status = stop.code
    return status, *capsys.readouterr()


def says(*ids, monkeypatch):
    """The model says this, whatever it is told."""
    monkeypatch.setattr(cli_generate, "generate_ids", lambda logits, model, tokens, **how: iter(ids[:tokens]))


def alone(*argv, **options):
    """In a process of its own."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "refimpl", "generate", *argv], capture_output=True, **options
    )


def joined(ids):
    return " ".join(map(str, ids)) + "\n"


# What it writes


def test_help(capsys):
    status, out, _ = run(capsys, "--help")
    flags = "MODEL --tokenizer --dtype --prompt --tokens --temperature --seed --baked --logits"
    assert (
        status == 0
        and all(flag in out for flag in flags.split())
        and "Only the text that follows goes to stdout" in out
    )


def test_ids_in_and_out(room, capsys):
    for name in ("ids", "softmax"):
        m = load(name)
        assert run(capsys, name, "--prompt", "3 1,4\n1", "--tokens", "12") == (
            0,
            joined(generate(m, [3, 1, 4, 1], 12)),
            "",
        )
    assert run(capsys, "ids", "--prompt", "3")[:2] == (0, joined(generate(load("ids"), [3], 100)))
    assert run(capsys, "ids", "--prompt", "3", "--tokens", "0") == (0, "", "")


def test_temperature_and_seed(room, capsys):
    few = ["ids", "--prompt", "3", "--tokens", "20"]
    drawn = [run(capsys, *few, "--temperature", "1.5", "--seed", seed)[1] for seed in "012"]
    assert (
        drawn == [joined(generate(load("ids"), [3], 20, temperature=1.5, seed=seed)) for seed in range(3)]
        and len(set(drawn)) == 3
    )
    assert run(capsys, *few, "--seed", "5")[1] == run(capsys, *few)[1]


def test_bytes_of_a_recurrent_model_need_no_tokenizer(room, capsys):
    want = ByteTokenizer().decode(generate(load("bytes"), list("né".encode()), 40))
    assert run(capsys, "bytes", "--prompt", "né", "--tokens", "40") == (0, want + "\n", "")


def test_a_file_of_words_and_a_file_of_ids(room, capsys):
    (room / "p").write_text("né\n")
    np.save("p.npy", np.array(list("né\n".encode()), np.uint8))
    want = run(capsys, "bytes", "--prompt", "né\n", "--tokens", "9")
    assert want[0] == 0 and run(capsys, "bytes", "--prompt", "@p", "--tokens", "9") == want
    assert run(capsys, "bytes", "--prompt", "@p.npy", "--tokens", "9") == want


def test_a_process_of_its_own_writes_the_text_and_nothing_else(room):
    shown = alone("bytes", "--prompt", "né", "--tokens", "30")
    want = ByteTokenizer().decode(generate(load("bytes"), list("né".encode()), 30))
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, (want + "\n").encode(), b"")
    shown = alone("none", "--prompt", "1")
    assert (shown.returncode, shown.stdout, shown.stderr) == (
        2,
        b"",
        b"refimpl: MODEL: cannot read none: no such file\n",
    )


def test_characters_wait_for_all_their_bytes(room, capsys, monkeypatch):
    says(*"né€😀".encode(), 0xE2, 0x82, monkeypatch=monkeypatch)
    pieces = []
    monkeypatch.setattr(cli_generate, "say", lambda text, end="\n": pieces.append(text))
    assert main(["generate", "bytes", "--prompt", "x"]) == 0
    assert pieces == ["n", "", "é", "", "", "€", "", "", "", "😀", "", "", "\ufffd", ""]


def test_a_character_may_begin_in_the_prompt(room, capsys, monkeypatch):
    np.save("half.npy", np.array([110, 0xC3]))
    says(0xA9, 33, monkeypatch=monkeypatch)
    assert run(capsys, "bytes", "--prompt", "@half.npy")[1] == "é!\n"


def test_a_text_that_ends(room, capsys, monkeypatch):
    words = ["words", "--tokenizer", "tokenizer.bin", "--prompt", "a"]
    says(260, 262, 1, 261, 261, monkeypatch=monkeypatch)
    assert run(capsys, *words) == (0, " ab\n", "")
    assert run(capsys, *words, "--tokens", "1") == (0, " a\n", "")
    says(1, 261, monkeypatch=monkeypatch)
    assert run(capsys, *words) == (0, "\n", "")
    says(1, 2, 3, monkeypatch=monkeypatch)
    assert run(capsys, "ids", "--prompt", "1")[1] == "1 2 3\n"  # an id without a tokenizer is an id


def test_the_beginning_of_a_text_has_no_space(room, capsys, monkeypatch):
    seen = []
    real = cli_generate.check_request
    monkeypatch.setattr(
        cli_generate,
        "check_request",
        lambda model, text, *rest, **how: seen.append(list(text)) or real(model, text, *rest, **how),
    )
    says(263, 260, monkeypatch=monkeypatch)
    assert run(capsys, "words", "--tokenizer", "tokenizer.bin")[:2] == (0, "Once a\n")
    assert run(capsys, "words", "--tokenizer", "tokenizer.bin", "--prompt", "b")[:2] == (0, " Once a\n")
    assert seen == [[1], [1, 259, 262]]


def test_a_text_that_goes_on_does_not_begin(room, capsys, monkeypatch):
    """Neither BOS nor a space: whether the prompt comes from --baked or is in MODEL."""
    save("baked", convert(load("words"), [1, 260]), biases_only=True)
    save("whole", convert(load("words"), [1, 260]))
    seen = []
    real = cli_generate.check_request
    monkeypatch.setattr(
        cli_generate,
        "check_request",
        lambda model, text, *rest, **how: seen.append(list(text)) or real(model, text, *rest, **how),
    )
    shown = [
        run(capsys, *source, "--tokenizer", "tokenizer.bin", "--prompt", "b")
        for source in (["words", "--baked", "baked"], ["whole"])
    ]
    assert shown[0] == shown[1] and shown[0][0] == 0 and seen == [[262], [262]]


def test_baked(room, capsys):
    for name in ("ids", "softmax", "bytes"):
        m = load(name)
        save("baked", convert(m, [3, 1, 4]), biases_only=True)
        prompts = ("\x03\x01\x04\x01", "\x01") if name == "bytes" else ("3 1 4 1", "1")
        prompted = run(capsys, name, "--prompt", prompts[0], "--tokens", "30")
        assert run(capsys, name, "--baked", "baked", "--prompt", prompts[1], "--tokens", "30") == prompted
        assert run(capsys, name, "--prompt", prompts[1], "--tokens", "30") != prompted


def test_dtype(room, capsys):
    name = "gpt-nano-sort-model.json"
    path = str(folder(name) / name)
    sorted_ = ["--prompt", "2 0 1 1 0 2", "--tokens", "6", "--logits"]
    for dtype in ("float32", "float64"):
        assert run(capsys, path, *sorted_, dtype, "--dtype", dtype)[:2] == (0, "0 0 1 1 2 2\n")
    narrow, wide = np.load("float32"), np.load("float64")
    assert 0 < np.abs(narrow - wide).max() < 1e-4
    status, _, err = run(capsys, path, *sorted_, "x", "--dtype", "float65")
    assert status == 2 and "float65" in err and err.count("\n") == 1


def test_gpt_nano_sorts():
    name = "gpt-nano-sort-model.json"
    m = read_model(folder(name) / name)
    for text in np.random.default_rng(0).integers(0, 3, (25, 6)):
        assert list(generate(m, text, 6)) == sorted(text)


def test_stories_begin_once_upon_a_time(capsys):
    models = folder("stories260K.bin", "tok512.bin")
    argv = [str(models / "stories260K.bin"), "--tokenizer", str(models / "tok512.bin"), "--tokens"]
    status, out, err = run(capsys, *argv, "20")
    assert (status, err) == (0, "") and out.startswith("Once upon a time, there was a little girl named Lily. She ")
    m, tokenizer = read_model(argv[0]), read_tokenizer(argv[2])
    whole = tokenizer.encode("One day, Tom") + list(generate(m, tokenizer.encode("One day, Tom"), 20))
    assert "One day, Tom" + run(capsys, *argv, "20", "--prompt", "One day, Tom")[1] == tokenizer.decode(whole) + "\n"


# As it comes


def test_each_word_is_written_before_the_next_is_sought(room, capsys, monkeypatch):
    seen = []

    def slowly(logits, model, tokens, **how):
        for i in range(3):
            seen.append(capsys.readouterr().out)
            yield 65 + i

    monkeypatch.setattr(cli_generate, "generate_ids", slowly)
    assert main(["generate", "bytes", "--prompt", "x"]) == 0
    assert [*seen, capsys.readouterr().out] == ["", "A", "B", "C\n"]


@pytest.mark.parametrize("stop", ["pipe", "interrupt"])
def test_a_text_without_end_arrives_and_can_be_stopped_quietly(stop, room):
    """Ten million tokens would take an hour: what is read here was written long before the end."""
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "refimpl",
        "generate",
        "ids",
        "--prompt",
        "1",
        "--tokens",
        "10000000",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        began = time.monotonic()
        start = process.stdout.read(40)
        assert (
            process.poll() is None
            and joined(generate(load("ids"), [1], 40)).encode().startswith(start)
            and len(start) == 40
        )
        if stop == "pipe":
            process.stdout.close()
        else:
            process.send_signal(signal.SIGINT)
        assert process.wait(30) == (2 if stop == "pipe" else 130)
        said = {"pipe": b"", "interrupt": b"refimpl: interrupted\n"}[stop]
        assert process.stderr.read() == said and time.monotonic() - began < 30


# The logits


def test_logits_are_those_after_the_prompt(room, capsys):
    m = load("ids")
    assert run(capsys, "ids", "--prompt", "3 1 4", "--tokens", "0", "--logits", "l.npy") == (0, "", "")
    found = np.load("l.npy", allow_pickle=False)
    assert found.dtype == np.float64 and found.shape == (23,) and np.array_equal(found, m([3, 1, 4])[-1])
    assert run(capsys, "ids", "--prompt", "3 1 4", "--tokens", "5", "--logits", "l")[1] == joined(
        generate(m, [3, 1, 4], 5)
    )
    # the name is the one that was given
    assert (room / "l").read_bytes() == (room / "l.npy").read_bytes()
    save("b", convert(m, [3, 1]), biases_only=True)
    assert run(capsys, "ids", "--prompt", "4", "--tokens", "0", "--logits", "b.npy", "--baked", "b")[0] == 0
    assert np.abs(np.load("b.npy") - found).max() < 1e-14


def test_the_prompt_is_read_once(room, capsys, monkeypatch):
    seen = []
    real = cli_generate.read_tokens
    monkeypatch.setattr(cli_generate, "read_tokens", lambda model, ids: seen.append(len(ids)) or real(model, ids))
    assert run(capsys, "ids", "--prompt", "3 1 4", "--tokens", "5", "--logits", "l")[0] == 0 and seen == [3]


def test_logits_are_whole_or_not_there(room, capsys, monkeypatch):
    (room / "l").write_text("old")
    before = sorted(os.listdir())

    def half(file, x, **options):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", half)
    status, out, err = run(capsys, "ids", "--prompt", "3", "--logits", "l")
    assert (status, out, err) == (2, "", f"refimpl: --logits: cannot write {room / 'l'}: No space left on device\n")
    assert (room / "l").read_text() == "old" and sorted(os.listdir()) == before


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("no/such/l.npy", "cannot write no/such/l.npy: no such folder"),
        (".", "cannot write .: not a regular file"),
        ("/dev/null", "cannot write /dev/null: not a regular file"),
        ("-", "cannot write -: not a regular file"),
        ("", "cannot write : not a regular file"),
        ("words", "words must be a file of its own, not one that is read"),
        ("link", "link must be a file of its own, not one that is read"),
        ("baked", "baked must be a file of its own, not one that is read"),
        ("p", "p must be a file of its own, not one that is read"),
        ("tokenizer.bin", "tokenizer.bin must be a file of its own, not one that is read"),
    ],
)
def test_logits_that_cannot_be_written_are_refused_before_the_work(path, problem, room, capsys, monkeypatch):
    (room / "link").symlink_to("words")
    (room / "p").write_text("a b")
    save("baked", convert(load("words"), [262]), biases_only=True)
    monkeypatch.setattr(cli_generate, "read_tokens", lambda *args, **options: pytest.fail("the work was begun"))
    argv = ["words", "--baked", "baked", "--prompt", "@p", "--tokenizer", "tokenizer.bin", "--logits", path]
    assert run(capsys, *argv) == (2, "", f"refimpl: --logits: {problem}\n")


def test_logits_in_a_folder_that_is_not_writable(room, capsys, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *args: False)
    assert (
        run(capsys, "ids", "--prompt", "3", "--logits", "l")[2]
        == "refimpl: --logits: cannot write l: the folder is not writable\n"
    )


def test_what_is_wrong_with_the_rest_is_said_before_logits_are_written(room, capsys):
    for flags in (["--temperature", "-1"], ["--tokens", "-1"], ["--seed", "-1"]):
        assert run(capsys, "ids", "--prompt", "3", "--logits", "l", *flags)[0] == 2 and not os.path.exists("l")


# What is refused


@pytest.fixture(scope="module")
def bad(made, tmp_path_factory):
    """A folder in which nearly everything is wrong."""
    room = shutil.copytree(made, tmp_path_factory.mktemp("bad") / "room")
    save(room / "baked", convert(load(room / "bytes"), [3, 1, 4]), biases_only=True)
    save(room / "batched", convert(load(room / "ids"), [[3, 1], [4, 1]]), biases_only=True)
    save(room / "table", model(Config(**SMALL, vocabulary=23, phi="softmax", table=9)))
    save(room / "vectors.model", random_model(Float(), Config(layers=1, width=4), 0))
    save(
        room / "field", random_model(GF(10007), Config(layers=1, width=2, norm="none", phi="identity", vocabulary=3), 0)
    )
    m = model()
    save(
        room / "overflow",
        Model(IDS, {name: 1e200 * x if "W_up" in name or "W_down" in name else x for name, x in m.weights.items()}),
    )
    zero = Config(**SMALL, vocabulary=23, phi="identity")
    save(room / "zero", Model(zero, {name: 0 * x if "W_K" in name else x for name, x in model(zero).weights.items()}))
    files.write_safetensors(room / "foreign", {"x": np.ones(2)}, {"format": "pt"})
    contents = {
        "empty": b"",
        "latin": b"\xe9",
        "short": (room / "ids").read_bytes()[:-1],
        "noise": bytes(range(100, 256)),
        "pickle": b"PK\3\4" + bytes(99),
        "deep": b'{"a":' * 10**5,
        "lies.bin": struct.pack("<7i", *[2**31 - 1] * 7),
        "rwkv.bin": struct.pack("<6I", 0x67676D66, 101, *[2**32 - 1] * 3, 0),
        "cut.bin": llama_file(PIECES)[:-1],
    }
    for name, data in contents.items():
        (room / name).write_bytes(data)
    for name, x in {"batch": np.ones((2, 2), int), "vectors": np.ones((2, 4))}.items():
        with open(room / name, "wb") as file:
            np.save(file, x)
    return room


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["ids"], "--prompt: must be token ids such as '3 1 4', or text with --tokenizer, got ''"),
        (
            ["ids", "--prompt", "Once"],
            "--prompt: must be token ids such as '3 1 4', or text with --tokenizer, got 'Once'",
        ),
        (["ids", "--prompt", "23"], "--prompt must hold ids from 0 to 22, got 23 at token 0"),
        (["bytes"], "--prompt: must have a token or more to go on from, got ''"),
        (["bytes", "--baked", "baked"], "--prompt: must have a token or more to go on from, got ''"),
        (["bytes", "--prompt", "@empty"], "--prompt @empty: must have a token or more to go on from, got ''"),
        (
            ["bytes", "--prompt", "@latin"],
            "--prompt @latin: must be text in UTF-8, or a .npy file: 'utf-8' codec can't decode byte 0xe9 in",
        ),
        (["bytes", "--prompt", "@none"], "--prompt @none: cannot read none: no such file"),
        (["bytes", "--prompt", "\udce9"], "--prompt: the text must be Unicode text, got half of a surrogate pair at 0"),
        (
            ["ids", "--prompt", "@batch"],
            "--prompt must be one text of token ids, one or more, got a batch of shape (2, 2)",
        ),
        (["ids", "--prompt", "@vectors"], "--prompt must be one text of token ids, one or more, got vectors"),
        (["vectors.model", "--prompt", "@vectors"], "MODEL must have a vocabulary, got one from vectors to vectors"),
        (["field", "--prompt", "1"], "maximum is not defined in GF(10007); generate needs an ordered system"),
        (["ids", "--prompt", "1", "--tokens", "-1"], "--tokens must be an integer ≥ 0, got -1"),
        (["ids", "--prompt", "1", "--seed", "-1"], "--seed must be an integer ≥ 0, got -1"),
        (["ids", "--prompt", "1", "--temperature", "-1"], "--temperature must be a finite number ≥ 0, got -1.0"),
        (["ids", "--prompt", "1", "--temperature", "nan"], "--temperature must be a finite number ≥ 0, got nan"),
        (["ids", "--prompt", "1", "--temperature", "inf"], "--temperature must be a finite number ≥ 0, got inf"),
        (
            ["table", "--prompt", "1 2"],
            "--tokens must be at most 8 after this text, for a table of 9 positions, got 100",
        ),
        (
            ["table", "--prompt", "1 " * 10],
            "refimpl: --prompt must fit the table of 9 absolute positions, got 10 tokens read from position 0 on",
        ),
        (["ids", "--prompt", "1", "--tokenizer", "none"], "cannot read none: no such file"),
        (
            ["ids", "--prompt", "1", "--tokenizer", "tokenizer.bin"],
            "--tokenizer must have the 23 ids of the model, got 264",
        ),
        (
            ["bytes", "--prompt", "1", "--tokenizer", "tokenizer.bin"],
            "--tokenizer must have the 256 ids of the model, got 264",
        ),
        (
            ["words", "--prompt", "1", "--tokenizer", "cut.bin"],
            "--tokenizer: cut.bin: token 263 must have a length from 1 on",
        ),
        (["words", "--prompt", "1", "--tokenizer", "ids"], "--tokenizer: ids: token 0 must"),
        (["ids", "--prompt", "1", "--baked", "none"], "--baked: cannot read none: no such file"),
        (
            ["ids", "--prompt", "1", "--baked", "ids"],
            "the file must hold biases alone, since MODEL is given, got a whole model",
        ),
        (["ids", "--prompt", "1", "--baked", "baked"], "--baked: baked: "),
        (["softmax", "--prompt", "1", "--baked", "baked"], "--baked: baked: "),
        (["ids", "--prompt", "1", "--baked", "batched"], "MODEL must carry one prompt, got a batch of shape (2,)"),
        (
            ["baked", "--prompt", "1"],
            "MODEL: baked holds biases that convert wrote, without the weights of their model; "
            "did you mean refimpl generate MODEL --baked baked?",
        ),
        (["none", "--prompt", "1"], "MODEL: cannot read none: no such file"),
        ([".", "--prompt", "1"], "MODEL: cannot read model.safetensors: no such file"),
        (["empty", "--prompt", "1"], "MODEL: empty: the file must be refimpl's safetensors, "),
        (["short", "--prompt", "1"], "MODEL: short: "),
        (["noise", "--prompt", "1"], "MODEL: noise: the file must be refimpl's safetensors, "),
        (["pickle", "--prompt", "1"], "an archive of torch.save, whose pickle could run anything when read"),
        (["deep", "--prompt", "1"], "deep"),
        (["lies.bin", "--prompt", "1"], "lies.bin"),
        (["rwkv.bin", "--prompt", "1"], "rwkv.bin: "),
        (["foreign", "--prompt", "1"], "rwkv.cpp's .bin, got tensors x"),
        (
            ["overflow", "--prompt", "1"],
            "layer 0: transformer: its output overflows numpy float64: nan or inf at token 0",
        ),
        (["zero", "--prompt", "1"], "layer 0: linear_attention_chunked: the denominator φ(q)·z is zero at token 0"),
    ],
)
def test_could_not_run(argv, message, bad, monkeypatch, capsys, recwarn):
    monkeypatch.chdir(bad)
    before = {path: path.read_bytes() for path in bad.iterdir()}
    status, out, err = run(capsys, *argv)
    assert (
        (status, out) == (2, "")
        and err.startswith("refimpl: ")
        and message in err
        and err.count("\n") == 1
        and len(err) < 600
    ), err
    assert {path: path.read_bytes() for path in bad.iterdir()} == before and not recwarn.list


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["ids", "--tokens", "x"],
        ["ids", "--tokens", "1.5"],
        ["ids", "--seed", "x"],
        ["ids", "--temperature", "warm"],
        ["ids", "--out", "x"],
    ],
)
def test_a_command_line_that_means_nothing(argv, room, capsys):
    status, out, err = run(capsys, *argv)
    assert status == 2 and out == "" and "usage: refimpl" in err


def test_what_overflows_later_is_said_after_what_was_written(room, capsys, monkeypatch):
    def breaks(logits, model, tokens, **how):
        yield 65
        raise ZeroDivisionError("layer 1: the denominator is zero")

    monkeypatch.setattr(cli_generate, "generate_ids", breaks)
    assert run(capsys, "bytes", "--prompt", "x") == (2, "A", "refimpl: layer 1: the denominator is zero\n")
