"""A kernel in a process of its own: it crashes, hangs, prints, and eats memory there."""

import numpy as np
import pytest

from refimpl.crosscheck import LinearAttention, Process, crosscheck
from refimpl.crosscheck.check import attempt
from refimpl.crosscheck.plan import Case
from refimpl.crosscheck.subject import Function
from refimpl.crosscheck.worker import load_kernel
from tests.helpers.assertions import says

KERNELS = """
import os, sys, time
import numpy as np

def right(q, k, v):
    return np.tril(q @ k.swapaxes(-1, -2)) @ v

def hangs(q, k, v):
    if q.shape[2] > 16:
        time.sleep(1000)
    return right(q, k, v)

def crashes(q, k, v):
    if q.shape[2] > 16:
        os.abort()
    return right(q, k, v)

def leaves(q, k, v):
    os._exit(7)

def prints(q, k, v):
    print("to stdout")
    os.write(1, b"and to its file")
    print("to stderr", file=sys.stderr)
    return right(q, k, v)

def raises(q, k, v):
    raise KeyError("\\x1b[31m")

def eats(q, k, v):
    return np.ones(2**40)

def seeds(q, k, v):
    np.random.seed(1)
    return right(q, k, v)

def none(q, k, v):
    return None

def integers(q, k, v):
    return right(q, k, v).astype(int)

def turned(q, k, v):
    return right(q, k, v).swapaxes(1, 2)

def wide(q, k, v):
    return right(q, k, v).astype(np.float64)

def writes(q, k, v):
    o = right(q, k, v)
    if q.flags.writeable:
        q *= 2
    return o

state = {}
def remembers(q, k, v):
    state["n"] = state.get("n", 0) + 1
    return right(q, k, v) + state["n"]

number = 3
"""
SPEC = LinearAttention(normalise=False, dtype="float32")
CASE = Case(n=3, d=4, m=2)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(KERNELS)
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "ends.py").write_text("import os; os._exit(3)")
    return tmp_path


def asked(name, case=CASE, **options):
    process = Process(f"mine.py:{name}", **options)
    try:
        return attempt(process, SPEC, "float32", case), process
    finally:
        process.close()


def test_a_right_kernel_is_right_there_as_here(folder):
    trial, _ = asked("right")
    here = attempt(Function(load_kernel("mine.py:right")), SPEC, "float32", CASE)
    assert not trial.wrong and np.array_equal(trial.answer.results["o"], here.answer.results["o"])


@pytest.mark.parametrize(
    ("name", "words"),
    {
        "crashes": "it ended its process by SIGABRT",
        "leaves": "it ended its process with status 7",
        "raises": "it raised KeyError: '\\x1b[31m'",
        "eats": "it raised MemoryError",
        "none": "o must be an array, got NoneType",
        "integers": "o must hold floats, got int64",
        "turned": "o must have shape (1, 1, 17, 2), got (1, 17, 1, 2)",
        "wide": "o has dtype float64 instead of float32",
    }.items(),
)
def test_what_is_no_answer(name, words, folder):
    trial, _ = asked(name, Case(n=17, d=4, m=2))
    (judgement,) = trial.wrong
    assert judgement.verdict == "WRONG" and judgement.words.startswith(words), judgement.words


def test_a_kernel_that_hangs_is_ended(folder):
    trial, _ = asked("hangs", Case(n=17, d=4, m=2), seconds=0.5)
    assert [j.words for j in trial.wrong] == ["it did not return within 0.5 s"]


def test_after_three_deaths_only_smaller_cases_are_asked(folder):
    process = Process("mine.py:crashes")
    asked_of = [attempt(process, SPEC, "float32", Case(n=n, d=4, m=2)).answer for n in (20, 19, 18, 18, 30, 17, 16)]
    process.close()
    assert [answer.asked for answer in asked_of] == [True, True, True, False, False, True, True]
    assert asked_of[-1].results and not asked_of[-2].results


def test_a_report_on_a_kernel_that_crashes(folder):
    process = Process("mine.py:crashes")
    report = crosscheck(process, SPEC)
    process.close()
    assert report.verdict == "WRONG" and report.findings[0].smallest == Case(n=17, d=1, m=1)
    assert "output o     EXACT" in str(report) and "looks like" not in str(report)


def test_what_a_kernel_prints_is_no_answer(folder, capfd):
    trial, process = asked("prints")
    assert not trial.wrong and process.prints and capfd.readouterr() == ("", "")


def test_what_a_kernel_changes_is_told(folder):
    for name, words in (("writes", "q is changed"), ("seeds", "it changes the seed of NumPy")):
        report = crosscheck(load_kernel(f"mine.py:{name}"), SPEC)
        assert report.verdict == "WRONG" and words in str(report)


def test_a_kernel_that_remembers_is_found_by_its_second_call(folder):
    report = crosscheck(load_kernel("mine.py:remembers"), SPEC)
    assert report.findings[0].others["second call"].startswith("o is another at T=")


@pytest.mark.parametrize(
    ("place", "words"),
    {
        "mine.py": "KERNEL must be FILE.py:NAME or package.module:NAME, got 'mine.py'",
        "none.py:f": "KERNEL: none.py: no such file",
        "mine.py:f": "KERNEL: mine.py must have 'f'",
        "mine.py:number": "KERNEL: 'number' must be a function, got int",
        "no.such:f": "KERNEL: its module raised ModuleNotFoundError: No module named 'no'",
        "broken.py:f": "KERNEL: its module raised ZeroDivisionError: division by zero",
        "ends.py:f": "KERNEL: when its module was imported, it ended its process with status 3",
    }.items(),
)
def test_what_is_no_kernel(place, words, folder):
    process = Process(place)
    with says(ValueError, words):
        attempt(process, SPEC, "float32", CASE)
    process.close()


def test_functions_of_packages(folder):
    assert load_kernel("numpy:linalg.norm") is np.linalg.norm
