"""Threads: every system computes, in several at once, what it computes in one, bit for bit.

The interpreter switches threads as often as it can here. What the libraries keep for the whole
process (precisions, constants, filters of warnings) is afterwards as it was.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import mpmath
import pytest

from refimpl import GF, MP, QQ, Config, Float, Rotary, Rounded, RunningError, angle_table, balls, convert, random_model
from refimpl.systems import System, SystemArray
from refimpl.systems.array import GLOBAL_STATE
from refimpl.systems.floats import _turns
from tests.helpers.strategies import FLINT

THREADS = 8


@pytest.fixture(autouse=True)
def often() -> Iterator[None]:
    """Switch threads after a microsecond, not after 5 milliseconds."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def together(jobs: list[Callable[[], Any]], times: int = 1) -> list[list[Any]]:
    """What each job returns, so many times, in a thread of its own; all of them begin at once."""
    start, results = threading.Barrier(len(jobs)), [[] for _ in jobs]

    def run(job: Callable[[], Any], found: list[Any]) -> None:
        start.wait()
        for _ in range(times):
            try:
                found.append(job())
            except Exception as error:  # a thread would only print it
                found.append(error)

    threads = [threading.Thread(target=run, args=pair) for pair in zip(jobs, results, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def bits(*arrays: Any) -> list[Any]:
    """Every bit of these arrays."""
    planes = [p for x in arrays for p in (x.planes if isinstance(x, SystemArray) else (x,))]
    return [[exactly(v) for v in p.flat] if p.dtype == object else p.tobytes() for p in planes]


def exactly(x: Any) -> Any:
    if hasattr(x, "is_finite"):  # a ball of flint
        return [tuple(map(int, end.man_exp())) for end in (x.mid(), x.rad())] if x.is_finite() else "unbounded"
    return getattr(x, "_mpi_", getattr(x, "_mpf_", x))


def same_as_alone(jobs: list[Callable[[], Any]], times: int) -> None:
    alone = [job() for job in jobs]
    for job, found in enumerate(together(jobs, times)):
        wrong = sum(result != alone[job] for result in found)
        assert not wrong, f"{wrong} of {times} results of job {job} differ"


def test_angles_at_many_digits() -> None:
    numbers = MP(40)
    prec = numbers.ctx.prec
    table, x = angle_table(numbers, 4), numbers.random((3, 3), 0)
    jobs = [lambda: bits(*table([10**12, 3])), lambda: bits(x / 3, numbers.exp(x) @ x)]
    same_as_alone(jobs * (THREADS // 2), 300)
    assert numbers.ctx.prec == prec


def forget_constants() -> None:
    """mpmath keeps each constant at the highest precision it was asked for. Now at none."""
    for constant in vars(mpmath.libmp.libelefun).values():
        if inspect.isfunction(constant) and "memo_prec" in constant.__code__.co_varnames:
            memo = inspect.getclosurevars(constant).nonlocals["f"]
            memo.memo_prec, memo.memo_val = -1, None


def switch_among_constants(frame: Any, event: str, argument: Any) -> Any:
    """A trace function that lets another thread run after every line in which a constant is kept.

    The interpreter may do so itself, with a debugger, or where there is no global lock.
    """
    if "memo_prec" in frame.f_code.co_varnames:
        time.sleep(1e-6)
        return switch_among_constants
    return None


ONE_AT_A_TIME = threading.Lock()  # Python 3.11 refuses a trace function while another is installed


def traced(job: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> Any:
        with ONE_AT_A_TIME:
            sys.settrace(switch_among_constants)
        return job()

    return run


@pytest.mark.parametrize("make", [MP, lambda digits: balls(digits, "iv")], ids=["mpmath", "mpmath.iv"])
def test_constants_at_many_precisions(make: Callable[[int], Any]) -> None:
    """Two threads at different precisions ask for π and log 2 while the other computes them."""
    systems = [make(20 + 40 * i) for i in range(THREADS)]

    def job(numbers: Any) -> Callable[[], Any]:
        x = numbers.convert([7, 12])
        return lambda: bits(numbers.cos(x), numbers.exp(x), numbers.log(x), *angle_table(numbers, 2)([5]))

    jobs = [job(numbers) for numbers in systems]
    alone = [job() for job in jobs]
    for _ in range(10):
        forget_constants()
        assert [found for (found,) in together([traced(job) for job in jobs])] == alone


def test_frequencies_of_floats() -> None:
    """They come from mpmath too, at a precision of their own."""

    def exp(digits: int) -> Callable[[], Any]:
        return lambda: bits(MP(digits).exp(MP(digits).convert([9])))

    jobs = [lambda: bits(*angle_table(Float(), 4)([10**9 + 1])), exp(150), exp(300), exp(600)]
    alone = [job() for job in jobs]
    for _ in range(10):
        _turns.cache_clear()
        forget_constants()
        assert [found for (found,) in together([traced(job) for job in jobs * 2])] == alone * 2


@pytest.mark.skipif(not FLINT, reason="python-flint is not installed")
def test_balls_of_several_precisions() -> None:
    import flint

    def job(digits: int) -> Callable[[], Any]:
        numbers = balls(digits, "arb")
        x, y = numbers.random((3, 3), 0) / 3, numbers.convert(balls(25, "arb").random((3, 3), 1) / 7)
        return lambda: bits(x @ y, x - y, numbers.exp(x), numbers.sum(y, axis=0), *angle_table(numbers, 2)([9]))

    before = flint.ctx.dps, flint.ctx.prec
    same_as_alone([job(digits) for digits in (20, 30, 40, 50) * (THREADS // 4)], 50)
    assert (flint.ctx.dps, flint.ctx.prec) == before


@pytest.mark.skipif(not FLINT, reason="python-flint is not installed")
def test_balls_are_printed_as_if_alone() -> None:
    """How many digits python-flint prints depends on its precision."""
    numbers, others = balls(20, "arb"), balls(90, "arb")
    x, y = numbers.random((4,), 0) / 3, others.random((4, 4), 1)
    same_as_alone([lambda: repr(x), lambda: bits(others.exp(y))] * (THREADS // 2), 300)


@pytest.mark.skipif(not FLINT, reason="python-flint is not installed")
def test_an_error_among_balls_leaves_the_precision() -> None:
    import flint

    def fail() -> str:
        try:
            balls(60, "arb").zeros((2, 2)) @ balls(60, "arb").zeros((3, 2))
        except ValueError as error:
            return str(error)
        return "no error"

    numbers, before = balls(20, "arb"), flint.ctx.prec
    same_as_alone([fail, lambda: bits(numbers.exp(numbers.ones((2,))))] * (THREADS // 2), 200)
    assert flint.ctx.prec == before


def systems() -> list[System]:
    return [
        MP(40),
        QQ,
        GF(2**61 - 1),
        GF(2**21 - 9),
        Float(),
        Float("numpy", "float32"),
        Rounded("bfloat16"),
        RunningError("float32"),
        *(balls(digits, maker) for maker in ("iv", *["arb"] * FLINT) for digits in (20, 35)),
    ]


@pytest.mark.parametrize("real", [False, True])
def test_conversions_in_many_systems(real: bool) -> None:
    """Models of every system converted side by side."""
    rope = Rotary(width=2, base=10000 if real else None)
    config = Config(layers=2, width=3, heads=2, d=2, m=1, phi="elu+1" if real else "identity", norm="none", rope=rope)

    def job(numbers: System) -> Callable[[], Any]:
        model = random_model(numbers, config, seed=0)
        x = numbers.random((5, 3), 1)
        return lambda: bits(*(b for biases in convert(model, x).biases for b in (biases.b_KV, biases.b_D)))

    same_as_alone([job(numbers) for numbers in systems() if not real or "real" in numbers.can], 12)


@pytest.mark.parametrize("phi", ["softmax", "elu+1"])
def test_one_model_continued_in_many_threads(phi: str) -> None:
    """They share its weights, its tables of angles, and the arrays of a cache with room left."""
    rope = Rotary(width=4, placement="before" if phi == "softmax" else "after")
    model = random_model(Float(), Config(2, 8, 2, d=4, m=4, phi=phi, rope=rope, vocabulary=11), seed=0)
    prompted = convert(model, [3, 1, 4, 1, 5], restart=False)

    def job(i: int) -> Callable[[], Any]:
        def run() -> Any:
            longer = convert(convert(prompted, [i, 2], restart=False), [i + 1], restart=False)
            return bits(longer([7, i]), *(x for past in longer.biases for x in past.arrays().values()))

        return run

    same_as_alone([job(i) for i in range(THREADS)], 12)


def test_large_products() -> None:
    """Of sizes at which pieces and digits have arrays of their own."""

    def job(numbers: Any, n: int) -> Callable[[], Any]:
        x, y = numbers.random((n, n), 0), numbers.random((n, n), 1)
        return lambda: bits(x @ y, x * y)

    large = [(GF(2**21 - 9), 200), (GF(2**31 - 1), 200), (GF(2**61 - 1), 200), (MP(50), 24), (MP(300), 16), (QQ, 24)]
    same_as_alone([job(*pair) for pair in large], 3)


def test_one_system_made_in_many_threads() -> None:
    """Whichever of them is kept, their numbers go together."""
    for _ in range(20):
        MP.cache_clear()
        made = [found for (found,) in together([lambda: MP(40)] * THREADS)]
        x, y = made[0].random((3, 3), 0), made[-1].random((3, 3), 1)
        assert made[0] == made[-1] and bits(x @ y + x, x / y) == bits(MP(40).convert(x) @ y + x, x / MP(40).convert(y))


def test_filters_of_warnings() -> None:
    before = list(warnings.filters)
    found = together([lambda: repr(Float("numpy", "float32"))] * THREADS, 1000)
    assert warnings.filters == before and {name for names in found for name in names} == {"numpy float32"}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_fork_waits_until_the_precision_is_restored() -> None:
    """Else the child would wait for ever for a thread that it does not have."""
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with GLOBAL_STATE:
            entered.set()
            leave.wait()

    holder, timer = threading.Thread(target=hold), threading.Timer(0.1, leave.set)
    holder.start()
    entered.wait()
    timer.start()
    with warnings.catch_warnings(action="ignore"):  # newer Pythons warn of forks among threads
        child = os.fork()
    if not child:  # not to return into the tests
        os._exit(0 if GLOBAL_STATE.acquire(timeout=20) else 1)
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with GLOBAL_STATE:
        assert leave.is_set()
