"""The command line: every flag, exit status and message; and what `import refimpl` costs."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import refimpl as ri
from refimpl import packages
from refimpl.cli import doctor
from refimpl.cli.main import main
from refimpl.verify import formal, registry
from refimpl.verify.implementation import REFIMPL
from refimpl.verify.registry import THEOREMS
from refimpl.verify.theorem import Result
from tests.helpers.planted import use_implementation

FEW = ["rope_layouts", "--system", "Q"]


def run(capsys, *argv):
    """(exit status, stdout, stderr)"""
    try:
        status = main(argv)
    except SystemExit as stop:
        status = stop.code
    return status, *capsys.readouterr()


def computed(out):
    """The lines of a table that are not about proofs."""
    return [line for line in out.splitlines() if " Coq " not in line]


def test_help(capsys):
    status, out, _ = run(capsys, "--help")
    assert status == 0 and all(command in out for command in ("verify", "convert", "generate", "doctor", "completion"))
    status, out, _ = run(capsys, "verify", "--help")
    flags = ("--system", "--quick", "--full", "--seed", "--backend", "--device", "--json", "--replay", "--list")
    assert status == 0 and all(flag in out for flag in flags)


def test_the_name_alone_asks_for_help(capsys):
    assert run(capsys) == run(capsys, "--help") and run(capsys)[0] == 0


def test_a_command_in_any_case_and_one_that_is_mistyped(capsys):
    assert run(capsys, "Verify", *FEW)[0] == 0
    status, out, err = run(capsys, "verfy")
    said = "refimpl: error: did you mean 'verify'? COMMAND must be one of verify, show, convert, "
    assert (status, out) == (2, "") and said in err
    assert "did you mean" not in run(capsys, "xyzzy")[2]


def test_names_are_taken_in_any_case(capsys, tmp_path):
    systems = [word for name in ("q", "gf(10007)", "FP32") for word in ("--system", name)]
    argv = ["verify", "ROPE-Layouts", "rope_layouts", *systems, "--json", str(tmp_path / "c")]
    assert run(capsys, *argv)[0::2] == (0, "")
    found = [(r["theorem"], r["system"]) for r in json.loads((tmp_path / "c").read_text())["results"]]
    assert found == [("rope_layouts", name) for name in ("Q", "GF(10007)", "float32")]
    assert run(capsys, "verify", "exact_probes", "--backend", "NumPy")[0] == 0


def test_version(capsys):
    assert run(capsys, "--version")[:2] == (0, f"refimpl {ri.__version__}\n")


def test_as_a_module():
    shown = subprocess.run([sys.executable, "-m", "refimpl", "--version"], capture_output=True, text=True)
    assert (shown.returncode, shown.stdout) == (0, f"refimpl {ri.__version__}\n")


@pytest.mark.parametrize(
    "argv", [["xyzzy"], ["verfy"], ["verify", "--quick", "--full"], ["verify", "--seed", "x"], ["doctor", "--full"]]
)
def test_a_command_line_that_means_nothing(argv, capsys):
    status, _, err = run(capsys, *argv)
    assert status == 2 and "usage: refimpl" in err


def test_verify_prints_one_table_and_a_summary(capsys):
    argv = ["verify", "quadratic_eq_sum", "kv_cache", "--system", "Q", "--system", "float32", "--verbose"]
    status, out, err = run(capsys, *argv)
    head, *rows, reason, summary = out.splitlines()
    assert (status, err) == (0, "")
    assert head.split() == ["theorem", "system", "verdict", "instances", "redrawn", "seconds", "evidence"]
    assert [row.split()[0] for row in rows] == ["quadratic_eq_sum"] * 3 + ["kv_cache"] * 2
    assert [row.split()[1] for row in rows] == ["Coq", "Q", "float32", "Coq", "float32"]
    assert [row.split()[2] for row in rows[1:3]] == ["EXACT", "WITHIN"]
    assert "linear_attention.quadratic_eq_sum" in rows[0]
    assert "error/bound ≤ 0." in rows[2] and "; worst: " in rows[2] and "n=" in rows[2]
    assert reason == "n/a: kv_cache in Q: exp is not defined in ℚ; softmax attention needs a real system"
    redrawn = r"\d+ redrawn for a zero denominator or a vacuous bound"  # by chance, and the seeds contain the source
    assert re.match(
        rf"3 of 3 checks hold, 0 fail: \d+ instances, (\d+ of \d+ rows vacuous, )?{redrawn}, seed 0, ", summary
    )


def test_gf_says_what_it_is_worth(capsys):
    _, out, _ = run(
        capsys,
        "verify",
        "quadratic_eq_sum",
        "--system",
        "GF(10007)",
        "--system",
        "GF(2305843009213693951)",
        "--verbose",
    )
    small, large = (row for row in computed(out) if row.startswith("quadratic_eq_sum"))
    assert re.search(
        r"all values at \d+ of \d+ shapes, false with probability ≤ 2\^-6; equal at these instances of the others",
        small,
    )
    assert "all values at these shapes, false with probability ≤ 2^-54; worst: n=" in large


def test_verify_list(capsys):
    status, out, _ = run(capsys, "verify", "--list")
    assert status == 0
    for theorem in THEOREMS.values():
        assert all(
            words in out for words in (theorem.name, theorem.statement, theorem.assumes, theorem.source, theorem.ours)
        )


def test_seed_draws_other_numbers(capsys):
    shown = [
        run(capsys, "verify", "quadratic_eq_sum", "--system", "float64", "--seed", seed)[1].split("error/bound")[1]
        for seed in "012"
    ]
    assert len(set(shown)) == 3


def test_quick_is_the_default_and_full_is_more(capsys):
    counts = [
        computed(run(capsys, "verify", *FEW, "--verbose", *flags)[1])[1].split()[3]
        for flags in ([], ["--quick"], ["--full"])
    ]
    assert counts[0] == counts[1] == "5" and int(counts[2]) > 15


def test_a_planted_bug_exits_1_and_names_the_shape(capsys, monkeypatch, tmp_path):
    def missing_state(q, k, v, *, state=None, **options):
        return ri.linear_attention_chunked(q, k, v, **options)

    use_implementation(monkeypatch, replace(REFIMPL, linear_attention_chunked=missing_state))
    monkeypatch.chdir(tmp_path)
    status, out, _ = run(capsys, "verify", "chunked_eq_sum", "--system", "Q", "--system", "float64", "--verbose")
    assert status == 1 and "0 of 2 checks hold, 2 fail" in out
    for row in computed(out)[1:3]:
        assert "FAIL" in row and " instead of " in row and "at n=" in row and "start=" in row


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["quadratic_eq_sums"], "verify: did you mean 'quadratic_eq_sum'? NAME must be"),
        (["--system", "flota64"], "did you mean 'float64'?"),
        (["--system", "GF(8)"], "p must be a prime"),
        (["--system", f"GF({'9' * 5000})"], "must have an integer of at most 20 digits in its brackets"),
        (["--system", "mpmath(1000000)"], "--system: mpmath(1000000) must have at most 100000 digits, got 1000000"),
        (["--system", "degrees(3)"], "--system: it must be one of"),
        (["--backend", "touch"], "did you mean 'torch'?"),
        (["--device", "cuda"], "--device needs --backend"),
        (["--backend", "numpy", "--system", "Q"], "--backend and --system exclude each other"),
        (["--replay", "/no/such/file.json"], "no such file"),
        (
            [*FEW, "--json", "/no/such/folder/file.json"],
            "--json: cannot write /no/such/folder/file.json: no such folder",
        ),
        ([*FEW, "--json", "/"], "--json: cannot write /: not a regular file"),
        ([*FEW, "--json", "/dev/null"], "--json: cannot write /dev/null: not a regular file"),
        ([*FEW, "--json", "/dev/stdout"], "--json: cannot write /dev/stdout: not a regular file"),
        ([*FEW, "--json", "-"], "--json: cannot write -: not a regular file"),
        ([*FEW, "--json", ""], "--json: cannot write : not a regular file"),
        (["--system", "numpy longdouble"], "verify: no error bound is known for numpy "),
        (["--system", "numpy complex64"], "verify: no error bound is known for numpy complex64"),
        (["--system", "numpy float32 on cuda"], "cuda"),
    ],
)
def test_could_not_run(argv, message, capsys):
    status, out, err = run(capsys, "verify", *argv)
    assert (status, out) == (2, "") and err.startswith("refimpl: ") and message in err and err.count("\n") == 1


def test_nothing_to_check_is_not_a_success(capsys):
    assert run(capsys, "verify", "kv_cache", "--system", "Q")[0] == 2
    status, out, _ = run(capsys, "verify", "quadratic_eq_sum", "--system", "GF(2)")
    assert status == 2 and "NOT RUN" in out and "1 not decided" in out


@pytest.mark.parametrize(
    ("verdicts", "status"),
    [("EXACT ENCLOSED N/A", 0), ("EXACT VACUOUS", 2), ("EXACT NOT_RUN", 2), ("VACUOUS FAIL", 1), ("N/A", 2)],
)
def test_exit_status(verdicts, status, capsys, monkeypatch, tmp_path):
    results = [Result("shift", "Q", verdict.replace("_", " "), "why") for verdict in verdicts.split()]
    monkeypatch.setattr(registry, "verify", lambda *args, **options: results)
    monkeypatch.chdir(tmp_path)
    assert run(capsys, "verify", "*")[0] == status


def test_a_form_that_gives_up_is_a_failure(capsys, monkeypatch, tmp_path):
    def gives_up(q, k, v, **options):
        raise ri.NotDefined("division is not defined in ℚ")

    use_implementation(monkeypatch, replace(REFIMPL, linear_attention_recurrent=gives_up))
    monkeypatch.chdir(tmp_path)
    status, out, _ = run(capsys, "verify", "recurrent_eq_sum", "--system", "Q")
    assert status == 1 and "raised NotDefined: division is not defined in ℚ at n=0" in out


def test_a_missing_library_says_how_to_install_it(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    status, _, err = run(capsys, "verify", "--backend", "cupy")
    assert (status, err) == (2, "refimpl: cupy is not installed: pip install 'refimpl[cupy]'\n")


def test_backend_numpy(capsys):
    status, out, _ = run(capsys, "verify", "exact_probes", "shift", "--backend", "numpy", "--verbose")
    assert status == 0
    assert [row.split()[1] for row in computed(out)[1:6]] == ["float64", "float32", "float16", "float64", "float32"]


def test_errors_of_numpy_that_are_raised_fail_no_theorem(capsys):
    names = ["quadratic_eq_sum", "kv_cache"]
    with np.errstate(all="raise"):
        status, out, err = run(capsys, "verify", *names, "--system", "float32", "--system", "float64")
    assert (status, err) == (0, "") and " 0 fail" in out


def test_backend_torch(capsys):
    pytest.importorskip("torch")
    status, out, _ = run(capsys, "verify", "exact_probes", "--backend", "torch", "--device", "cpu", "--verbose")
    assert status == 0 and all(f"torch {dtype} " in out for dtype in ("float64", "float32", "float16", "bfloat16"))


def test_backend_on_a_device_that_is_not_there(capsys):
    torch = pytest.importorskip("torch")
    device = "cuda:99" if torch.cuda.is_available() else "cuda"
    for name, argv in (
        ("torch", ["--backend", "torch", "--device", device]),
        ("torch float32", ["--system", f"torch float32 on {device}"]),
    ):
        status, out, err = run(capsys, "verify", *argv)
        assert (
            (status, out) == (2, "")
            and err.startswith(f"refimpl: {name} cannot make an array on {device}: ")
            and err.count("\n") == 1
        )


@pytest.mark.parametrize("argv", [["--backend", "torch", "--device", "meta"], ["--system", "torch float32 on meta"]])
def test_meta_tensors_have_no_values(argv, capsys):
    pytest.importorskip("torch")
    status, _, err = run(capsys, "verify", *argv)
    assert status == 2 and "on meta has shapes but no values; there is nothing to compare" in err


def test_backend_without_floats_on_a_device(capsys):
    status, out, err = run(capsys, "verify", "--backend", "numpy", "--device", "nowhere")
    assert (status, out, err) == (2, "", "refimpl: numpy has no floats on nowhere\n")


def test_backend_jax_has_float64():
    pytest.importorskip("jax")
    command = [sys.executable, "-m", "refimpl", "verify", "rope_layouts", "--backend", "jax"]
    shown = subprocess.run(command, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert "jax.numpy float64" in shown.stdout


def test_progress_only_on_a_terminal(capsys, monkeypatch):
    assert run(capsys, "verify", *FEW)[2] == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert "rope_layouts in ℚ" in run(capsys, "verify", *FEW)[2]


def test_verify_json(capsys, tmp_path):
    path = tmp_path / "out.json"
    assert run(capsys, "verify", "quadratic_eq_sum", "causality", "--seed", "3", "--json", str(path))[0] == 0
    data = json.loads(path.read_text())
    assert data["seed"] == 3 and data["full"] is False and data["versions"]["refimpl"] == ri.__version__
    assert data["versions"]["numpy"] and data["versions"]["python"]
    fields = {"theorem", "system", "verdict", "evidence", "instances", "redraws", "error", "bound", "seconds"}
    assert len(data["results"]) == 21 and all(fields <= set(r) for r in data["results"])
    found = {(r["theorem"], r["system"]): r for r in data["results"]}
    assert found["quadratic_eq_sum", "Q"]["verdict"] == "EXACT" and found["quadratic_eq_sum", "Q"]["error"] == 0
    assert 0 < found["quadratic_eq_sum", "float64"]["error"] <= found["quadratic_eq_sum", "float64"]["bound"]
    assert 0 < found["quadratic_eq_sum", "balls(30)"]["bound"] < 1e-20
    assert list(tmp_path.iterdir()) == [path]


def test_json_is_whole_or_not_there(capsys, tmp_path, monkeypatch):
    path = tmp_path / "out.json"
    path.write_text("old")
    monkeypatch.setattr(json, "dump", lambda *a, **k: (_ for _ in ()).throw(ValueError("half way")))
    status, out, _ = run(capsys, "verify", *FEW, "--json", str(path))
    assert status == 2 and "1 of 1 checks hold" in out
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("command", [["verify", *FEW], ["doctor"]], ids=["verify", "doctor"])
def test_json_through_a_link_with_usual_permissions(command, capsys, tmp_path, only):
    (tmp_path / "there").mkdir()
    link, path = tmp_path / "link.json", tmp_path / "there" / "out.json"
    link.symlink_to(path)
    old = os.umask(0o027)
    try:
        for _ in range(2):  # a link to nothing, then to a file
            assert run(capsys, *command, "--json", str(link))[0] == 0
    finally:
        os.umask(old)
    assert link.is_symlink() and json.loads(path.read_text()) and path.stat().st_mode & 0o777 == 0o640
    assert sorted(tmp_path.rglob("*")) == [link, path.parent, path]


def test_json_says_so_when_it_cannot_be_written(capsys, tmp_path, monkeypatch):
    path = tmp_path / ("x" * 300)
    status, out, err = run(capsys, "verify", *FEW, "--json", str(path))
    assert (status, err) == (
        2,
        f"refimpl: --json: cannot write {path}: File name too long\n",
    ) and "1 of 1 checks hold" in out
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(os, "access", lambda *args: False)
    status, out, err = run(capsys, "verify", *FEW, "--json", str(path))
    assert (status, out, err) == (2, "", f"refimpl: --json: cannot write {path}: the folder is not writable\n")


def screen_fits(out):
    """80 columns, 24 rows."""
    lines = out.splitlines()
    return len(lines) <= 24 and all(len(line) <= 80 for line in lines)


def test_doctor(capsys, tmp_path):
    path = tmp_path / "out.json"
    status, out, _ = run(capsys, "doctor", "--json", str(path))
    assert status == 0 and out.endswith("All that is needed is here.\n") and screen_fits(out)
    assert all(f" {name} " in out for name in (*doctor.CORE, *doctor.OPTIONAL, *doctor.TOOLS))
    data = json.loads(path.read_text())
    assert data["well"] and {e["library"] for e in data["libraries"]} == {*doctor.CORE, *doctor.OPTIONAL}
    assert {e["tool"] for e in data["tools"]} == set(doctor.TOOLS)
    uses = [name for door in data["doors"].values() for name in door["uses"]]
    assert sorted(uses) == sorted([*doctor.OPTIONAL, *doctor.TOOLS])  # each is asked for at one door


def test_doctor_where_all_is_missing(capsys, monkeypatch, tmp_path):
    """Each door says what it lacks, and how to get it, on one screen."""
    monkeypatch.setattr(doctor, "version", lambda name: "1.0" if name in doctor.CORE else None)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    monkeypatch.setattr(doctor, "__file__", str(tmp_path / "a/b/c/doctor.py"))
    monkeypatch.setattr(formal, "homes", lambda: ())
    monkeypatch.delenv("REFIMPL_MODELS", raising=False)
    monkeypatch.chdir(tmp_path)
    status, out, _ = run(capsys, "doctor")
    assert status == 0 and screen_fits(out)
    doors = dict(zip(doctor.DOORS, re.split(r"^(?:verify|check|learn|run)\b.*\n", out, flags=re.M)[1:], strict=True))
    for name, (extra, purpose) in doctor.OPTIONAL.items():
        (where,) = [found for found, (_, uses) in doctor.DOORS.items() if name in uses]
        line = f"  {name:17}missing   for {purpose}: pip install 'refimpl[{extra}]'\n"
        assert line in re.sub(r"\n {29}", " ", doors[where])
    verify, _, learn, _ = (re.sub(r"\s+", " ", text) for text in doors.values())
    assert (
        "Coq missing for proofs (PROVED): apt install coq libcoq-mathcomp-algebra make; make -C proofs audit" in verify
    )
    assert "examples missing for a course: they are in the repository, not in the package" in learn
    assert "real weights missing for experiments: set REFIMPL_MODELS=FOLDER" in learn


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("", "Coq 9.9 proofs (PROVED)"),
        ("Coq was not run on this machine (make -C proofs audit)", "Coq 9.9 proofs NOT CHECKED: Coq was not run on"),
    ],
)
def test_doctor_on_coq(missing, words, only, capsys, monkeypatch, tmp_path):
    (tmp_path / "coqc").write_text("#!/bin/sh\necho 9.9 5.1\n")
    (tmp_path / "coqc").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(formal, "status", lambda: missing)
    assert words in re.sub(r"\s+", " ", run(capsys, "doctor")[1])


def test_doctor_where_the_proofs_cannot_be_asked_about(only, capsys, monkeypatch):
    monkeypatch.setattr(formal, "status", lambda: {}["x"])
    assert doctor.examine_coq()["problem"] and run(capsys, "doctor")[0] == 0


def finding(name):
    return next(e for e in doctor.examine()["libraries"] if e["library"] == name)


@pytest.fixture
def only(monkeypatch):
    """Look at these libraries only: importing torch takes a second."""

    known = doctor.OPTIONAL

    def choose(*names):
        monkeypatch.setattr(doctor, "OPTIONAL", {n: known[n] for n in names})

    choose()
    return choose


def test_doctor_on_a_missing_library(only, monkeypatch, capsys):
    only("cupy")
    monkeypatch.setattr(doctor, "version", lambda name: None if name == "cupy" else "1.0")
    assert finding("cupy")["problem"] == "missing; pip install 'refimpl[cupy]'"
    assert run(capsys, "doctor")[0] == 0


def test_doctor_on_a_missing_library_that_is_needed(only, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "version", lambda name: None if name == "scipy" else "1.0")
    status, out, _ = run(capsys, "doctor")
    assert status == 2 and "scipy            missing   needed: pip install scipy\n" in out
    assert out.endswith("see above.\n") and screen_fits(out)


def test_doctor_on_a_broken_library(only, monkeypatch, tmp_path, capsys):
    only("matplotlib")
    (tmp_path / "matplotlib.py").write_text("raise OSError('libfoo.so: cannot open')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "matplotlib", raising=False)
    monkeypatch.setattr(doctor, "version", lambda name: "1.0")
    assert "broken; import says OSError: libfoo.so: cannot open" in finding("matplotlib")["problem"]
    status, out, _ = run(capsys, "doctor")
    said = "broken; import says OSError: libfoo.so: cannot open; pip install --force-reinstall matplotlib"
    assert status == 0 and said in re.sub(r"\s+", " ", out) and screen_fits(out)
    (tmp_path / "matplotlib.py").write_text(f"raise OSError('{'x' * 300}')")
    out = run(capsys, "doctor")[1]
    assert "pip install --force-reinstall matplotlib" in re.sub(r"\s+", " ", out) and screen_fits(out)


def test_doctor_on_damaged_metadata(monkeypatch):
    def damaged(name):
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    monkeypatch.setattr(packages.metadata, "version", damaged)
    assert doctor.version("numpy") == "unreadable (UnicodeDecodeError)"


def test_doctor_on_cupy_without_a_gpu(only, monkeypatch, tmp_path):
    only("cupy")
    (tmp_path / "cupy.py").write_text(
        "class cuda:\n class runtime:\n  class CUDARuntimeError(RuntimeError): pass\n"
        "  @classmethod\n  def getDeviceCount(cls): raise cls.CUDARuntimeError('no device')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.setattr(doctor, "version", lambda name: "14.0")
    assert finding("cupy")["problem"] == "installed, but no GPU"
    sys.modules.pop("cupy", None)


def test_import_brings_in_nothing_beyond_numpy():
    code = (
        "import sys, time, numpy; t = time.perf_counter()\n"
        "import refimpl, refimpl.cli.main; ms = 1000 * (time.perf_counter() - t)\n"
        "libraries = ('scipy', 'mpmath', 'torch', 'jax', 'cupy', 'flint', 'gmpy2', 'matplotlib')\n"
        "heavy = [m for m in libraries if m in sys.modules]\n"
        "print(f'{ms:.0f} ms beyond numpy; heavy: {heavy}')"
    )
    shown = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    print(shown.stdout)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.endswith("heavy: []\n")


def test_a_command_imports_its_own_module_only():
    code = (
        "import sys; from refimpl.cli.main import parser; parser('doctor')\n"
        "print(sorted(m for m in sys.modules if m.startswith(('refimpl.cli.', 'refimpl.verify'))))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "['refimpl.cli.doctor', 'refimpl.cli.main', 'refimpl.cli.output', 'refimpl.cli.signals']\n"
