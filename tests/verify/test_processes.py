"""`verify` in several processes: the same results in the same order, and no death is a hang."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from refimpl import GF, QQ, Float
from refimpl.cli.main import main
from refimpl.verify import processes
from refimpl.verify.check import Draws
from refimpl.verify.processes import ONE_THREAD, verify_in_processes
from tests.helpers.assertions import says

NAMES = ["rope_layouts", "quadratic_eq_sum", "kv_cache"]
SYSTEMS = [QQ, GF(10007), Float("numpy", "float32")]


def timeless(results):
    """How the results are written, without the seconds."""
    return [repr(replace(r, seconds=0.0)) for r in results]


def run_python(*arguments):
    """What Python prints with one BLAS thread, as a worker has: bits of floats depend on it."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | ONE_THREAD).stdout


def in_this_order(names, systems, seed=0):
    """The results of `verify` in one process, written likewise."""
    labels = systems and [each.label for each in systems]
    code = (
        "import json, sys, dataclasses; from refimpl import system; from refimpl.verify import check, registry\n"
        "names, labels, seed = json.loads(sys.argv[1])\n"
        "found = registry.verify(names, labels and [*map(system, labels)], draws=check.Draws(seed))\n"
        "print(json.dumps([repr(dataclasses.replace(r, seconds=0.0)) for r in found]))"
    )
    return json.loads(run_python("-c", code, json.dumps([names, labels, seed])))


def test_the_same_results_in_the_same_order():
    told = []
    found = verify_in_processes(2, NAMES, SYSTEMS, draws=Draws(3), progress=told.append)
    assert timeless(found) == in_this_order(NAMES, SYSTEMS, 3)
    assert {r.verdict for r in found} == {"EXACT", "WITHIN BOUND", "N/A"}
    assert len(told) == 9 and any(line.endswith(" of 9 done: rope_layouts in ℚ") for line in told)
    names = ["quadratic_eq_sum"]
    assert timeless(verify_in_processes(2, names)) == in_this_order(names, None)  # in the default systems


def test_certificates_are_equal_but_for_seconds(tmp_path):
    """Whatever threads BLAS would take, it has one in each process, also in a single one."""
    found, many = [], os.environ | dict.fromkeys(ONE_THREAD, "2")
    for jobs in "12":
        asked = ["rope_layouts", "kv_cache", "--jobs", jobs, "--system", "Q", "--system", "float64"]
        command = [sys.executable, "-m", "refimpl", "verify", *asked, "--json", str(tmp_path / jobs)]
        subprocess.run(command, check=True, capture_output=True, env=many)
        data = json.loads((tmp_path / jobs).read_text()) | {"seconds": 0}
        found.append(data | {"results": [r | {"seconds": 0} for r in data["results"]]})
    assert found[0] == found[1]


def test_nothing_to_do():
    assert verify_in_processes(2, NAMES, []) == []


def test_arguments(capsys):
    with says(ValueError, "verify: `jobs` must be an integer ≥ 1, got 0"):
        verify_in_processes(0, NAMES, SYSTEMS)
    assert main(["verify", "--jobs", "0"]) == 2
    assert capsys.readouterr().err == "refimpl: verify: --jobs must be an integer ≥ 1, got 0\n"
    assert main(["verify", "--jobs", "2", "shifts"]) == 2
    assert "did you mean 'shift'?" in capsys.readouterr().err
    assert main(["verify", "--jobs", "2", "--replay", "c"]) == 2
    assert "--replay goes alone, or with --json" in capsys.readouterr().err


def planted(monkeypatch, code):
    """Workers in which this is done when they check `quadratic_eq_sum` in ℚ."""
    plant = (
        "def check(theorem, system, *rest, real=p.check):\n"
        f"    if (theorem.name, system.label) == ('quadratic_eq_sum', 'Q'): {code}\n"
        "    return real(theorem, system, *rest)\n"
        "p.check = check\n"
    )
    monkeypatch.setattr(
        processes, "WORKER", processes.WORKER.replace("p.work()", f"\nimport os, time\n{plant}p.work()")
    )


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("os.kill(os.getpid(), 9)", "its process ended by SIGKILL"),
        ("os._exit(3)", "its process ended by itself, with status 3"),
        ("1 / 0", "raised ZeroDivisionError: division by zero"),
    ],
)
def test_a_worker_that_dies_is_told_of_and_replaced(code, why, monkeypatch):
    planted(monkeypatch, code)
    found, expected = verify_in_processes(1, NAMES, SYSTEMS), in_this_order(NAMES, SYSTEMS)
    at = [(r.theorem, r.system) for r in found].index(("quadratic_eq_sum", "Q"))
    assert (found[at].verdict, found[at].evidence) == ("NOT RUN", why)
    del found[at], expected[at]
    assert timeless(found) == expected


def test_what_a_worker_prints_is_no_answer(monkeypatch):
    planted(monkeypatch, "print('{}')")
    assert timeless(verify_in_processes(2, NAMES, SYSTEMS)) == in_this_order(NAMES, SYSTEMS)


def test_workers_that_cannot_start(monkeypatch, capsys):
    for name, value in (("processes.WORKER", "raise SystemExit(1)"), ("sys.executable", "/no/such/python")):
        with monkeypatch.context() as m:
            m.setattr(f"refimpl.verify.{name}" if name[0] == "p" else name, value)
            found = verify_in_processes(2, NAMES, SYSTEMS)
            assert {(r.verdict, r.evidence) for r in found} == {("NOT RUN", "no process could be started for it")}
            assert main(["verify", *NAMES, "--jobs", "2"]) == 2  # not decided


def children(pid):
    """Those of all its threads."""
    return [int(word) for path in Path(f"/proc/{pid}/task").glob("*/children") for word in path.read_text().split()]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="the children of a process are known from /proc")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_with_its_workers(number, status):
    command = [sys.executable, "-m", "refimpl", "verify", "--full", "--jobs", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        began = time.monotonic()
        while len(workers := children(process.pid)) < 2 and time.monotonic() - began < 60:
            time.sleep(0.02)
        process.send_signal(number)
        assert process.wait(60) == status and len(workers) == 2
        assert process.stderr.read() == b"refimpl: " + {130: b"interrupted", 143: b"terminated"}[status] + b"\n"
    assert not any(map(alive, workers))


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="the children of a process are known from /proc")
@pytest.mark.parametrize("seconds", [0, 2])  # in the imports of the workers, and in their work
def test_workers_end_in_silence_when_the_first_process_is_killed(seconds):
    command = [sys.executable, "-m", "refimpl", "verify", "--full", "--jobs", "2"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        began = time.monotonic()
        while len(workers := children(process.pid)) < 2 and time.monotonic() - began < 60:
            time.sleep(0.02)
        time.sleep(seconds)
        process.kill()
        killed = time.monotonic()
        assert process.stderr.read() == b"" and len(workers) == 2  # it is the stderr of the workers, too
        while any(map(alive, workers)) and time.monotonic() - killed < 15:
            time.sleep(0.02)
    assert not any(map(alive, workers))
