"""The command line under faults: streams that are closed, full or narrow; signals and kills at any
moment; files that cannot be written; text in files that a terminal would obey.

Files are written first and completely, an exit status means what it says, and no traceback is
shown.
"""

import errno
import fcntl
import io
import itertools
import json
import os
import pty
import random
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

import refimpl as ri
from refimpl import Config, Float, Rotary, convert, load, random_model, save
from refimpl.cli import convert as cli_convert
from refimpl.cli import doctor
from refimpl.cli import generate as cli_generate
from refimpl.cli import main as cli_main
from refimpl.cli import signals as cli_signals
from refimpl.cli.main import main
from refimpl.cli.output import LONGEST, escape_controls, one_line, without_controls
from refimpl.files.disk import recording, replacing
from refimpl.files.models import read_model
from refimpl.files.safetensors import write_safetensors
from refimpl.files.tokenizers import read_tokenizer
from refimpl.model.rwkv import Rwkv
from refimpl.verify import registry
from refimpl.verify.implementation import REFIMPL
from tests.helpers.planted import use_implementation
from tests.helpers.real_weights import folder

SLOW = pytest.mark.slow
REFIMPL_COMMAND = [sys.executable, "-m", "refimpl"]
FEW = ["verify", "rope_layouts", "--system", "Q"]
SMALL = {"layers": 2, "width": 4, "heads": 2, "d": 2, "m": 3, "vocabulary": 7}
LINEAR = Config(**SMALL, hidden=5, rope=Rotary(width=2))
SOFTMAX = Config(**SMALL, phi="softmax", rope=Rotary(width=2, placement="before"))
BYTES = Rwkv("5.2", 1, 4, 2, 5, 256)
CONVERT = ["convert", "m", "--prompt", "3 1 4", "--out", "b", "--check", "--json", "j"]


@pytest.fixture
def room(tmp_path, monkeypatch):
    """A folder with models in it, where the command runs."""
    monkeypatch.chdir(tmp_path)
    for name, config in {"m": LINEAR, "s": SOFTMAX, "w": BYTES}.items():
        save(name, random_model(Float(), config, seed=1))
    return tmp_path


def run(capsys, *argv):
    """(exit status, stdout, stderr), in this process"""
    return main(argv), *capsys.readouterr()


def alone(*argv, env=None, **options):
    """In a process of its own."""
    env = os.environ | {"OMP_NUM_THREADS": "1"} | (env or {})
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.run([*REFIMPL_COMMAND, *argv], env=env, timeout=120, **streams)


def in_shell(line):
    """(exit status, stdout, stderr) of a line for sh, in which $R is the command."""
    done = subprocess.run(
        ["sh", "-c", line], env=os.environ | {"R": " ".join(REFIMPL_COMMAND)}, capture_output=True, text=True
    )
    return done.returncode, done.stdout, done.stderr


def drafts(where):
    return list(where.rglob(".refimpl-*"))


def wrong_forms(monkeypatch):
    """Plant a bug: a state that is not used."""

    def missing_state(q, k, v, *, state=None, **options):
        return ri.linear_attention_chunked(q, k, v, **options)

    use_implementation(monkeypatch, replace(REFIMPL, linear_attention_chunked=missing_state))
    return ["verify", "chunked_eq_sum", "--system", "Q"]


# Streams


@pytest.mark.parametrize("encoding", ["cp1252", *(pytest.param(e, marks=SLOW) for e in ("ascii", "latin-1", "C"))])
def test_a_terminal_that_lacks_our_marks_costs_no_file(encoding, room):
    env = {"PYTHONIOENCODING": encoding, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    if encoding == "C":
        del env["PYTHONIOENCODING"]
    shown = alone("verify", "quadratic_eq_sum", "--system", "Q", "--system", "float32", "--json", "c", env=env)
    assert (shown.returncode, shown.stderr) == (0, b"") and b"error/bound <= 0." in shown.stdout
    assert len(json.loads((room / "c").read_bytes())["results"]) == 2
    shown = alone(*CONVERT, env=env)
    assert (shown.returncode, shown.stderr) == (0, b"") and b"WITHIN BOUND  error/bound <= 0." in shown.stdout
    assert load("b", load("m")).prompts == (3,) and json.loads((room / "j").read_bytes())["out"] == "b"


def test_help_in_ascii():
    shown = alone("convert", "--help", env={"PYTHONIOENCODING": "ascii"})
    assert (shown.returncode, shown.stderr) == (0, b"") and b"--strength lambda" in shown.stdout


def test_a_full_disk_behind_stdout_is_said_and_costs_no_file(room):
    for argv in (["--version"], [*FEW, "--json", "c"], CONVERT, ["generate", "m", "--prompt", "1"]):
        with open("/dev/full", "w") as full:
            shown = alone(*argv, stdout=full)
        said = b"refimpl: cannot write to stdout: No space left on device\n"
        assert (shown.returncode, shown.stderr) == (2, said), argv
    assert json.loads((room / "c").read_bytes())["results"] and json.loads((room / "j").read_bytes())["out"] == "b"
    assert load("b", load("m")).prompts == (3,)


def test_a_reader_that_leaves_costs_no_file(room):
    """The status is that of the work."""
    for argv in ([*FEW, "--json", "c"], CONVERT):
        reader, writer = os.pipe()
        os.close(reader)
        shown = alone(*argv, stdout=writer)
        os.close(writer)
        assert (shown.returncode, shown.stderr) == (0, b""), argv
    assert json.loads((room / "c").read_bytes())["results"] and load("b", load("m")).prompts == (3,)
    reader, writer = os.pipe()
    os.close(reader)
    shown = alone("generate", "m", "--prompt", "1", stdout=writer)
    os.close(writer)
    assert (shown.returncode, shown.stderr) == (2, b"")  # its work is the text


CLOSED = [" ".join(which) for n in range(4) for which in itertools.combinations(("<&-", ">&-", "2>&-"), n)]


@pytest.mark.parametrize("closed", [pytest.param(c, id=c or "none", marks=SLOW if c != "2>&-" else ()) for c in CLOSED])
def test_closed_streams(closed, room):
    assert in_shell(f"$R {' '.join(FEW)} --json c {closed}")[0] == 0
    assert json.loads((room / "c").read_bytes())["results"]  # no line of the table went into a file
    status, out, err = in_shell(f"$R verify --system nosuch {closed}")
    assert status == 2 and out == "" and ("must be one of" in err) == ("2>&-" not in closed)
    if closed:
        assert in_shell(f"$R convert m --prompt '3 1' --out b --check {closed}")[0] == 0
        assert load("b", load("m")).prompts == (2,)


def test_generate_needs_stdout_for_its_text(room):
    status, _, err = in_shell("$R generate m --prompt 1 >&-")
    assert status == 2 and "generate: stdout must be open for the text, got a closed one" in err
    assert in_shell("$R generate m --prompt 1 --tokens 0 --logits l >&-") == (0, "", "")
    assert np.load("l").shape == (7,)


def test_errors_that_cannot_be_printed(room):
    with open("/dev/full", "w") as full:
        assert alone(*FEW, stdout=full, stderr=full).returncode == 2
    assert in_shell("$R verify --nosuch 2>&-") == (2, "", "")


class Broken(io.StringIO):
    """A stream that can take nothing, for a reason of its own."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def write(self, text):
        if text:
            raise self.error


def test_stdout_that_breaks_in_this_process(room, capsys, monkeypatch):
    """As above, where the raises of the package are counted."""
    text = ["generate", "m", "--prompt", "1"]
    for error, statuses in ((BrokenPipeError(), (0, 2)), (OSError(errno.ENOSPC, "full"), (2, 2)), (OSError(), (2, 2))):
        monkeypatch.setattr(sys, "stdout", Broken(error))
        assert (main(FEW), main(text)) == statuses
        said = (
            "" if isinstance(error, BrokenPipeError) else f"refimpl: cannot write to stdout: {error.strerror or ''}\n"
        )
        assert capsys.readouterr().err == 2 * said
    monkeypatch.setattr(sys, "stdout", None)
    assert (main(FEW), main(text)) == (0, 2)
    assert "generate: stdout must be open for the text" in capsys.readouterr().err


def test_stderr_that_breaks_in_this_process(room, capsys, monkeypatch):
    for stream in (None, Broken(OSError(errno.ENOSPC, "full"))):
        monkeypatch.setattr(sys, "stderr", stream)
        assert (main(["verify", "--system", "nosuch"]), main(["verify", "--nosuch"])) == (2, 2)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert main(FEW) == 0  # progress has nowhere to go, and the work goes on


def test_our_way_with_marks_is_for_writing_only():
    assert "λ ≤ ℚ é😀".encode("ascii", "refimpl") == b"lambda <= Q \\xe9\\U0001f600"
    assert "λ é".encode("latin-1", "refimpl") == b"lambda \xe9"
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode("ascii", "refimpl")


# The exit status


def test_what_is_unexpected_exits_2_and_tells_where_on_request(room, capsys, monkeypatch):
    def breaks(*args, **options):
        raise LookupError("\x1b[31mno such\nkey")

    monkeypatch.setattr(cli_convert, "convert", breaks)
    argv = ["convert", "m", "--prompt", "3", "--out", "b"]
    line = "refimpl: unexpected LookupError: \\x1b[31mno such\\nkey; REFIMPL_TRACEBACK=1 shows where\n"
    assert run(capsys, *argv) == (2, "", line)
    monkeypatch.setenv("REFIMPL_TRACEBACK", "1")
    status, out, err = run(capsys, *argv)
    assert (status, out) == (2, "") and err.endswith(line) and "Traceback" in err and "in breaks" in err
    assert "\x1b" not in err


def test_errors_that_are_expected_have_tracebacks_too(room, capsys, monkeypatch):
    argv = ["convert", "none", "--prompt", "3", "--out", "b"]
    line = "refimpl: MODEL: cannot read none: no such file\n"
    assert run(capsys, *argv) == (2, "", line)
    monkeypatch.setenv("REFIMPL_TRACEBACK", "1")
    err = run(capsys, *argv)[2]
    assert err.startswith("Traceback") and "in opened" in err and err.endswith(line)


def test_out_of_memory(room, capsys, monkeypatch):
    def breaks(*args, **options):
        raise MemoryError

    monkeypatch.setattr(cli_convert, "convert", breaks)
    said = run(capsys, "convert", "m", "--prompt", "3", "--out", "b")
    assert said == (2, "", "refimpl: out of memory: a smaller problem may fit\n")


def test_a_failure_counts_though_its_file_cannot_be_written(room, capsys, monkeypatch):
    argv = wrong_forms(monkeypatch)
    monkeypatch.chdir("/proc")  # where even root can make no file
    status, out, err = run(capsys, *argv)
    assert status == 1 and "0 of 1 checks hold, 1 FAIL" in out
    assert err.startswith("refimpl: ") and "cannot write " in err and err.count("\n") == 1
    status, out, err = run(capsys, *argv, "--json", str(room / ("x" * 300)))
    assert status == 1 and "1 FAIL" in out and err.count("refimpl: ") == err.count("\n") == 2


def test_biases_that_cannot_be_written_are_told_after_the_check(room, capsys):
    argv = ["convert", "m", "--prompt", "3 1", "--check", "--out", "x" * 300, "--json", "j"]
    status, out, err = run(capsys, *argv)
    assert status == 2 and "WITHIN BOUND" in out and out.endswith("xxx is not written\n")
    assert "File name too long" in err and json.loads((room / "j").read_text())["out"] is None
    status, out, err = run(capsys, *argv[:-3], "b", "--json", "y" * 300)
    assert status == 2 and out.endswith("b is written\n") and "--json: cannot write" in err
    assert load("b", load("m")).prompts == (2,)


def test_findings_that_cannot_be_written_are_still_told(room, capsys, monkeypatch):
    monkeypatch.setattr(doctor, "OPTIONAL", {})
    status, out, err = run(capsys, "doctor", "--json", "x" * 300)
    assert status == 2 and "All that is needed is here." in out and "File name too long" in err


def test_an_empty_prompt_is_refused(room, capsys):
    for shape in ((0,), (2, 0)):
        np.save("empty.npy", np.zeros(shape, int))
        for by in ([], ["--by", "tilted", "--features", "4"], ["--by", "best", "--error", "0.1"]):
            status, out, err = run(capsys, "convert", "s", "--prompt", "@empty.npy", "--out", "b", *by)
            assert (status, out) == (2, "") and not (room / "b").exists()
            assert err == f"refimpl: --prompt: must have a token or more to convert, got shape {shape}\n"


def gpt2(path):
    """A tiny GPT-2, whose numbers go into the dtype that is asked for."""
    shapes = {"wte.weight": (5, 64), "wpe.weight": (6, 64), "ln_f.weight": (64,), "ln_f.bias": (64,)}
    layer = {"ln_1": (64,), "ln_2": (64,), "attn.c_attn": (64, 192), "attn.c_proj": (64, 64)}
    layer |= {"mlp.c_fc": (64, 8), "mlp.c_proj": (8, 64)}
    for name, shape in layer.items():
        shapes |= {f"h.0.{name}.weight": shape, f"h.0.{name}.bias": shape[-1:]}
    write_safetensors(path, {name: np.ones(shape, np.float32) for name, shape in shapes.items()}, {})


@pytest.mark.parametrize("dtype", ["longdouble", "complex64"])
def test_numbers_that_no_file_holds_are_refused_before_the_work(dtype, room, capsys, monkeypatch):
    gpt2("gpt2.safetensors")
    assert run(capsys, "convert", "gpt2.safetensors", "--prompt", "3", "--out", "b")[0] == 0
    monkeypatch.setattr(cli_convert, "convert", lambda *args, **options: pytest.fail("the work was begun"))
    for check in ([], ["--check"]):
        argv = ["convert", "gpt2.safetensors", "--prompt", "3", "--out", "b", "--dtype", dtype, *check]
        status, out, err = run(capsys, *argv)
        assert (status, out) == (2, "") and err.startswith("refimpl: --dtype: the numbers must be floats of at most")


def test_a_dtype_that_is_none(room, capsys):
    status, _, err = run(capsys, "generate", "m", "--prompt", "3", "--dtype", "int8")
    assert (status, err) == (2, "refimpl: --dtype: numpy has no floating dtype 'int8'\n")


@pytest.mark.parametrize(
    ("library", "device", "message"),
    [
        ("torch", "nosuch", "--device: torch cannot make an array on nosuch: "),
        ("torch", "meta", "--device: torch on meta has shapes but no values to convert"),
        ("torch", "cuda:99", "--device: torch cannot make an array on cuda:99: "),
        ("jax", "nosuch", "--device: jax cannot make an array on nosuch: "),
        ("numpy", "cuda", "--device must be 'cpu' or None for NumPy, got 'cuda'"),
        ("touch", "cpu", "convert: did you mean 'torch'? --backend must be one of"),
    ],
)
def test_devices_that_are_not_there(library, device, message, room, capsys):
    if library in ("torch", "jax"):
        pytest.importorskip(library)
    argv = ["convert", "m", "--prompt", "3", "--out", "b", "--backend", library, "--device", device]
    status, out, err = run(capsys, *argv)
    assert (status, out) == (2, "") and err.startswith(f"refimpl: {message}") and err.count("\n") == 1


def test_a_memory_for_rwkv_is_refused(room, capsys):
    for by in (["best", "--error", "0.1"], ["best", "--budget", "999"], ["tilted", "--features", "3"]):
        status, _, err = run(capsys, "convert", "w", "--prompt", "abc", "--out", "b", "--by", *by)
        assert status == 2 and "--by makes a memory for softmax attention" in err


# Signals and kills


def started(*argv):
    """A process that has done some of its work: it writes each file again and again."""
    code = (
        "import sys; import refimpl.cli.convert as c; from refimpl.cli.main import main\n"
        "real = c.save\n"
        "def save(*args, **options):\n"
        "    print('ready', flush=True)\n"
        "    while True: real(*args, **options)\n"
        "c.save = save\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    return subprocess.Popen([sys.executable, "-c", code, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        ("SIGINT", 130, "refimpl: interrupted\n"),
        ("SIGTERM", 143, "refimpl: terminated\n"),
        ("SIGHUP", 129, "refimpl: the terminal was closed\n"),
        ("SIGKILL", -9, ""),
    ],
)
def test_stopped_at_any_moment(name, status, said, room):
    """The file is the old or the new one, whole; and only SIGKILL leaves a draft behind."""
    save("b", convert(load("m"), [3]), biases_only=True)
    rng = random.Random(name)
    for _ in range(1 if os.environ.get("HYPOTHESIS_PROFILE", "default") == "default" else 12):
        with started("convert", "m", "--prompt", "3 1 4", "--out", "b", "--force") as process:
            process.stdout.readline()
            time.sleep(rng.uniform(0, 0.05))
            process.send_signal(getattr(signal, name))
            try:
                assert process.wait(60) == status
            finally:
                process.kill()  # if it has not ended: leaving this block would wait for ever
            assert process.stderr.read().decode() == said
        assert load("b", load("m")).prompts in ((1,), (3,))
        assert name == "SIGKILL" or not drafts(room)


@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_stopped_in_this_process(name, status, room, capsys, monkeypatch):
    before = signal.getsignal(getattr(signal, name))
    monkeypatch.setattr(cli_convert, "convert", lambda *args, **options: os.kill(os.getpid(), getattr(signal, name)))
    assert main(["convert", "m", "--prompt", "3", "--out", "b"]) == status
    assert signal.getsignal(getattr(signal, name)) == before
    monkeypatch.setattr(registry, "check", lambda *args: os.kill(os.getpid(), getattr(signal, name)))
    assert main(FEW) == status
    monkeypatch.undo()
    found = []
    thread = threading.Thread(target=lambda: found.append(main(FEW)))  # which may not set signals
    thread.start()
    thread.join()
    assert found == [0]


def test_interrupted_before_the_command_begins(room):
    """In the first imports, in those of a command, and in its work."""
    code = (
        "import os, signal, sys, threading, time\n"
        "def send():\n"
        "    time.sleep(float(sys.argv.pop(1)))\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "from refimpl.cli.signals import interrupted\n"
        "signal.signal(signal.SIGINT, interrupted)\n"
        "threading.Thread(target=send, daemon=True).start()\n"
        "from refimpl.__main__ import start\n"
        "sys.exit(start())"
    )
    for seconds in (0, 0.01, 0.05, 0.2, 0.5):
        command = [sys.executable, "-c", code, str(seconds), "verify", "--full", "*"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        said = r"refimpl: interrupted( after \d+ checks?; none failed)?\n"
        assert (done.returncode, done.stdout) == (130, "") and re.fullmatch(said, done.stderr), done.stderr


@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_signals_in_a_row_are_one(name, status, room, capsys, monkeypatch):
    number = getattr(signal, name)
    before, went = signal.getsignal(number), []

    def stopped(*args, **options):
        try:
            os.kill(os.getpid(), number)
        finally:
            os.kill(os.getpid(), number)
            went.append("on")

    monkeypatch.setattr(cli_convert, "convert", stopped)
    monkeypatch.setattr(cli_main, "complain", lambda words: os.kill(os.getpid(), number))
    assert main(["convert", "m", "--prompt", "3", "--out", "b"]) == status
    assert went == ["on"] and signal.getsignal(number) == before


class Finalized:
    """Its finalizer is interrupted, where Python drops what is raised."""

    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)


def dropping(*args, **options):
    """Work in which an interrupt is dropped, as some libraries do."""
    with suppress(BaseException):
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("drop", [dropping, Finalized])
@pytest.mark.parametrize("system", ["POSIX", "Windows"])
def test_an_interrupt_that_is_dropped_comes_again(drop, system, room, capsys, monkeypatch):
    def convert(*args, **options):
        drop()
        end = time.monotonic() + 30
        while time.monotonic() < end:
            pass
        pytest.fail("it is lost")

    if system == "Windows":
        monkeypatch.delattr(signal, "pthread_kill")
    monkeypatch.setattr(cli_convert, "convert", convert)
    assert run(capsys, "convert", "m", "--prompt", "3", "--out", "b") == (130, "", "refimpl: interrupted\n")


def test_other_errors_of_finalizers_are_told(monkeypatch):
    class Wrong:
        def __del__(self):
            raise ValueError("it is told")

    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: told.append(str(what.exc_value)))
    with cli_signals.ending_signals():
        Wrong()
    assert told == ["it is told"]


def test_signals_wait_for_an_import_to_end(monkeypatch):
    with pytest.raises(cli_signals.Stopped), cli_signals.ending_signals():
        with cli_signals.held_signals():
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)  # of pytest, other threads hold none
            waited = True
        pytest.fail("it is lost")
    assert waited
    monkeypatch.delattr(signal, "pthread_sigmask")
    with cli_signals.held_signals():  # as on Windows
        pass


def test_a_signal_that_is_ignored_stays_ignored(room):
    """As under nohup."""
    line = "trap '' HUP; $R convert m --prompt '3 1' --out b & p=$!; kill -HUP $p; wait $p"
    assert in_shell(line)[0] == 0


def test_a_file_that_grows_too_large(room):
    (room / "b").write_bytes(b"old")
    status, _, err = in_shell("ulimit -f 1; PYTHONDONTWRITEBYTECODE=1 $R convert m --prompt 3 --out b --whole --force")
    assert status == 2 and "cannot write" in err and err.endswith("File too large\n") and err.count("\n") == 1
    assert (room / "b").read_bytes() == b"old" and not drafts(room)


def test_concurrent_writers_leave_one_whole_file(room):
    whole = {}
    for i in range(8):
        whole[i] = bytes([i]) * 10**5

    def write(i):
        for _ in range(20):
            with replacing("--out", room / "b") as file:
                file.write(whole[i][:50])
                file.write(whole[i][50:])

    threads = [threading.Thread(target=write, args=(i,)) for i in whole]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert not (room / "b").exists() or (room / "b").read_bytes() in whole.values()
    assert (room / "b").read_bytes() in whole.values() and not drafts(room)


def test_a_draft_is_nobody_elses(room, monkeypatch):
    """Not even if two are made in the same nanosecond."""
    monkeypatch.setattr("time.time_ns", lambda: 0)
    with replacing("--out", room / "x") as x, replacing("--out", room / "y") as y:
        x.write(b"whole")
        y.write(b"too")
    assert (room / "x").read_bytes() == b"whole" and (room / "y").read_bytes() == b"too" and not drafts(room)


# Files


def test_a_file_keeps_its_permissions(room, capsys):
    for mode, umask in ((0o600, 0o022), (0o640, 0o077), (0o666, 0o022)):
        (room / "b").touch()
        (room / "b").chmod(mode)
        (room / "new").unlink(missing_ok=True)
        before = os.umask(umask)
        try:
            assert run(capsys, "convert", "m", "--prompt", "3", "--out", "b", "--force", "--json", "new")[0] == 0
        finally:
            os.umask(before)
        assert (room / "b").stat().st_mode & 0o777 == mode
        assert (room / "new").stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_file_keeps_its_owner_and_group_where_that_is_allowed(room, monkeypatch):
    asked = []
    monkeypatch.setattr(os, "chown", lambda path, *owner: asked.append((path.name[:9], *owner)))
    (room / "x").touch()
    with replacing("--out", room / "x") as x, replacing("--out", room / "new"):
        x.write(b"new")
    who = os.stat(room / "x")
    assert asked == [(".refimpl-", -1, who.st_gid), (".refimpl-", who.st_uid, -1)]

    def refuse(*args):
        raise PermissionError

    monkeypatch.setattr(os, "chown", refuse)
    with replacing("--out", room / "x") as x:
        x.write(b"newer")
    assert (room / "x").read_bytes() == b"newer" and not drafts(room)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change an owner")
def test_root_does_not_take_the_files_of_others(room, capsys):
    (room / "b").touch()
    os.chown(room / "b", 1234, 2345)
    assert run(capsys, "convert", "m", "--prompt", "3", "--out", "b", "--force")[0] == 0
    assert ((room / "b").stat().st_uid, (room / "b").stat().st_gid) == (1234, 2345)


def test_a_link_that_leads_to_itself_is_refused(room, capsys):
    links = {"loop": "loop", "here": "there", "there": "here"}
    for name, target in links.items():
        (room / name).symlink_to(target)
    for name in links:
        said = f"refimpl: --out: cannot write {name}: a symbolic link that leads to itself\n"
        assert run(capsys, "convert", "m", "--prompt", "3", "--out", name) == (2, "", said)
        assert (room / name).is_symlink()


def test_a_draft_is_no_more_open_than_its_file(room):
    (room / "x").touch(0o600)
    (room / "x").chmod(0o600)
    with replacing("--out", room / "x"):
        assert [path.stat().st_mode & 0o777 for path in drafts(room)] == [0o600]


def llama(where):
    """A tiny Llama, its config.json beside it."""
    where.mkdir()
    h, one = "model.layers.0.", np.ones((4, 4), np.float32) / 4
    projections = [f"self_attn.{x}_proj" for x in "qkvo"] + [f"mlp.{x}_proj" for x in ("gate", "up", "down")]
    tensors = {f"{h}{name}.weight": one for name in projections}
    tensors |= {f"{h}{name}_layernorm.weight": np.ones(4, np.float32) for name in ("input", "post_attention")}
    tensors |= {"model.norm.weight": np.ones(4, np.float32), "model.embed_tokens.weight": np.eye(4, dtype=np.float32)}
    write_safetensors(where / "model.safetensors", tensors, {})
    (where / "config.json").write_text('{"num_attention_heads": 2, "tie_word_embeddings": true}')


def test_no_file_that_is_read_is_written_over(room, capsys):
    llama(room / "llama")
    (room / "link").symlink_to("llama/config.json")
    (room / "p").write_text("3 1")
    before = {path: path.read_bytes() for path in room.rglob("*") if path.is_file()}
    for name in ("llama", "llama/model.safetensors"):
        for out in ("llama/config.json", "llama/model.safetensors", "link", "p"):
            status, _, err = run(capsys, "convert", name, "--prompt", "@p", "--out", out)
            assert status == 2 and f"--out: {out} must be a file of its own" in err
            status, _, err = run(capsys, "convert", name, "--prompt", "@p", "--out", "b", "--json", out)
            assert status == 2 and f"--json: {out} must be a file of its own" in err
            status, _, err = run(capsys, "generate", name, "--prompt", "@p", "--logits", out)
            assert status == 2 and f"--logits: {out} must be a file of its own" in err
    assert {path: path.read_bytes() for path in room.rglob("*") if path.is_file()} == before
    assert run(capsys, "convert", "llama", "--prompt", "@p", "--out", "llama/b")[0] == 0


def test_both_files_of_a_tokenizer_are_read():
    models = folder("gpt2-encoder.json", "gpt2-vocab.bpe")
    for name in ("gpt2-encoder.json", "gpt2-vocab.bpe"):
        with recording() as files:
            read_tokenizer(models / name)
        assert {path.name for path in files} == {"gpt2-encoder.json", "gpt2-vocab.bpe"}


def test_what_is_recorded_is_what_is_opened(room):
    """By Python's own account of the files that it opens."""
    llama(room / "llama")
    opened = []
    watching = True
    sys.addaudithook(lambda event, args: opened.append(args[0]) if watching and event == "open" else None)
    for name in ("llama", "m"):
        opened.clear()
        with recording() as files:
            read_model(name)
        paths = {os.path.realpath(path) for path in opened if isinstance(path, str | os.PathLike)}
        assert {path for path in paths if path.startswith(str(room))} == {str(path) for path in files} != set()
    watching = False
    with recording() as files:
        pass
    read_model("m")
    assert not files


def test_a_replay_is_not_written_over(room, capsys):
    assert run(capsys, *FEW, "--json", "c")[0] == 0
    before = (room / "c").read_bytes()
    status, _, err = run(capsys, "verify", "--replay", "c", "--json", "./c")
    assert status == 2 and "--json: ./c must be a file of its own" in err and (room / "c").read_bytes() == before


def test_paths_that_are_no_text(room, capsys):
    name = os.fsdecode(b"\xff\x1b[2J")
    assert run(capsys, "convert", "m", "--prompt", "3", "--out", name, "--json", "j")[1].endswith(
        "\\udcff\\x1b[2J is written\n"
    )
    assert json.loads((room / "j").read_text())["out"] == name and load(name, load("m")).prompts == (1,)
    status, _, err = run(capsys, "convert", name + "x", "--prompt", "3", "--out", "b")
    assert (status, err) == (2, "refimpl: MODEL: cannot read \\udcff\\x1b[2Jx: no such file\n")


# Text that a terminal would obey


def test_escape_controls():
    assert escape_controls("a\nb ℚ ≤ \x1b[31m\x9b\r\t\u202e\udcff") == "a\nb ℚ ≤ \\x1b[31m\\x9b\\r\\t\\u202e\\udcff"
    assert without_controls("a\n\tb\r\x1b[2J\x9b😀\u200d") == "a\n\tb\\r\\x1b[2J\\x9b😀\u200d"
    assert one_line("a\nb") == "a\\nb" and one_line("x" * LONGEST) == "x" * LONGEST
    long = one_line(f"begin{'x' * 10**6}end")
    assert len(long) <= LONGEST and long.startswith("beginx") and " … " in long and long.endswith("xend")


def test_names_of_tensors_are_escaped(room, capsys):
    write_safetensors("x", {"\x1b[2J" + "y" * 5000: np.ones(2)}, {})
    status, _, err = run(capsys, "generate", "x", "--prompt", "3")
    assert status == 2 and "\\x1b[2Jyyy" in err and "\x1b" not in err and len(err) < LONGEST + 20


def test_arguments_are_escaped_and_shortened(room, capsys):
    status, _, err = run(capsys, "verify", "--nosuch\x1b[2J" + "y" * 5000)
    assert status == 2 and "\\x1b[2Jyyy" in err and "\x1b" not in err and len(err) < 2500
    status, _, err = run(capsys, "verify", "--seed", "9" * 5000)
    assert status == 2 and err.count("9" * 200) == 2 and len(err) < 2500


def test_certificates_are_escaped(room, capsys):
    assert run(capsys, *FEW, "--json", "c")[0] == 0
    data = json.loads((room / "c").read_text())
    data["results"][0]["evidence"] = "\x1b]0;title\x07"
    (room / "c").write_text(json.dumps(data))
    status, out, _ = run(capsys, "verify", "--replay", "c")
    assert status == 1 and "\\x1b]0;title\\x07" in out and "\x1b" not in out


def on_a_terminal(*argv, columns=80, term="xterm", streams=(1, 2)):
    """(exit status, all that a terminal with these columns is sent)"""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    given = {"stdout" if s == 1 else "stderr": theirs for s in streams}
    others = {name: subprocess.DEVNULL for name in ("stdout", "stderr") if name not in given}
    env = os.environ | {"TERM": term, "OMP_NUM_THREADS": "1"}
    env.pop("COLUMNS", None)
    process = subprocess.Popen([*REFIMPL_COMMAND, *argv], stdin=subprocess.DEVNULL, env=env, **given, **others)
    os.close(theirs)
    shown = b""
    try:
        while select.select([ours], [], [], 120)[0]:
            if not (piece := os.read(ours, 4096)):
                break
            shown += piece
    except OSError as error:  # the other end is closed
        assert error.errno == errno.EIO
    os.close(ours)
    return process.wait(120), shown.decode().replace("\r\n", "\n")


def test_progress_on_a_terminal(room):
    status, shown = on_a_terminal("convert", "m", "--prompt", "3 1", "--check", "--out", "b", columns=30)
    assert status == 0 and "\r\x1b[Kthe prompt, layer 1 of 2" in shown
    steps = re.findall(r"\r\x1b\[K([^\r\n]*)\r", shown)
    assert steps[-1] == "" and max(map(len, steps)) == 29  # none is longer than the terminal is wide
    assert shown.split("\x1b[K\r")[-1].startswith("converted 2 tokens")


def test_no_escape_codes_where_none_are_understood(room):
    for term, streams in (("dumb", (1, 2)), ("xterm", (1,))):
        status, shown = on_a_terminal(*CONVERT, "--force", term=term, streams=streams)
        assert status == 0 and "converted 3 tokens" in shown and "\x1b" not in shown and "\r" not in shown


def test_an_error_takes_the_place_of_progress(room):
    save("h", random_model(Float("numpy", "float16"), replace(LINEAR, norm="none"), seed=1))
    model = load("h")
    loud = {name: x * np.float16(300 if name.startswith("layers.1") else 1) for name, x in model.weights.items()}
    save("h", replace(model, weights=loud))
    status, shown = on_a_terminal("convert", "h", "--prompt", "3 1", "--out", "b")
    assert status == 2 and "layer 1 of 2\r\r\x1b[K\rrefimpl: layer 1: " in shown


def test_what_a_model_writes_is_escaped_on_a_terminal_only(room, monkeypatch, capsys):
    text = "a\x1b[2J\x07\tb\r\nc"
    monkeypatch.setattr(cli_generate, "generate_ids", lambda logits, model, tokens, **how: iter(text.encode()))
    assert run(capsys, "generate", "w", "--prompt", "x") == (0, text + "\n", "")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run(capsys, "generate", "w", "--prompt", "x") == (0, "a\\x1b[2J\\x07\tb\\r\nc\n", "")
