"""What a wrong kernel looks like: the mistakes that give its numbers, and where these are wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..arrays import HostArray
from ..systems.floats import quiet
from ..systems.formats import round_to
from .judge import PLAIN, Expected, Judgement, expect, judge_result
from .mistakes import readings
from .plan import Case
from .spec import Arrays, Spec
from .subject import Answer


@dataclass(frozen=True)
class Trial:
    """A case that a kernel was asked, what was expected, its answer, and the judgements on it."""

    case: Case
    dtype: str
    x: Arrays
    expected: dict[str, Expected]
    answer: Answer
    judgements: tuple[Judgement, ...]

    @property
    def wrong(self) -> list[Judgement]:
        return [j for j in self.judgements if j.verdict in ("WRONG", "EXCESS")]


@dataclass(frozen=True)
class Likeness:
    """A mistake whose numbers a kernel gives.

    equal : whether they are the same bits, and not only as near as rounding allows
    """

    words: str
    seen: str
    equal: bool


LONG = 300  # tokens, beyond which a trial is a matter of seconds


def look_alikes(spec: Spec, trials: Sequence[Trial]) -> list[Likeness]:
    """The mistakes that give a kernel's numbers in all trials, failed and passed ones.

    Long trials are left out if one mistake remains without them.
    """
    left = {Likeness(words, seen, True): other for words, seen, other in readings(spec)}
    told = False
    for trial in telling(trials):
        if not left or (told and len(left) == 1 and trial.case.n > LONG):
            break
        found = {likeness: agrees(other, trial) for likeness, other in left.items()}
        left = {replace(x, equal=x.equal and same): left[x] for x, same in found.items() if same is not None}
        told = told or bool(trial.wrong)
    return sorted(left, key=lambda x: not x.equal) if told else []


def telling(trials: Sequence[Trial], first: int = 3) -> list[Trial]:
    """The trials with numbers; first failed ones and long passed ones, which leave few mistakes."""
    with_numbers = [t for t in trials if t.answer.results and t.case.n]
    short = [t for t in with_numbers if t.case.n <= LONG]
    long = sorted((t for t in with_numbers if t.case.n > LONG), key=lambda t: not t.wrong)
    failed, passed = [t for t in short if t.wrong], [t for t in short if not t.wrong][::-1]
    if failed:
        return [*failed[:first], *passed, *failed[first:], *long]
    return [*passed[:first], *long, *passed[first:]]


@quiet()
def agrees(other: Spec, trial: Trial) -> bool | None:
    """Does another reading give the numbers of a trial? None if not, True if the same bits.

    Where a trial failed, the reading must be another than the right one by more than it may round,
    unless its own bounds say nothing there.
    """
    got, right = trial.answer.results, trial.expected
    try:
        plain = other.compute(trial.x, PLAIN)
        if any(plain[name].shape != x.shape for name, x in got.items()):
            return None
        formats = {name: other.dtype_of(name, trial.dtype) for name in got}
        if all(np.array_equal(round_to(plain[name], formats[name]), x, equal_nan=True) for name, x in got.items()):
            return True
        if all(np.array_equal(plain[name], want.value) for name, want in right.items()):
            return None if trial.wrong else False
        expected = expect(other, trial.case, trial.dtype, trial.x, exact=False)
    except (ValueError, TypeError, ArithmeticError, IndexError):  # a reading that this case does not allow
        return None
    explained = not trial.wrong
    for name, want in expected.items():
        verdict = judge_result(name, got[name], want, False, formats[name]).verdict
        if verdict in ("WRONG", "EXCESS") or np.isfinite(got[name][~np.isfinite(plain[name])]).any():
            return None
        apart = np.abs(want.value - right[name].value) > want.bound
        if not np.any(right[name].bound):  # where nothing rounds, it is enough to be nearer
            apart = np.abs(want.value - got[name]) < np.abs(right[name].value - got[name])
        lost = ~np.isfinite(got[name]) & ~np.isfinite(want.bound) & np.isfinite(right[name].bound)
        explained = explained or bool(np.any(apart | lost))
    bad = {j.result: j.bad for j in trial.wrong if j.bad is not None}
    silent = bad and not any(np.any(where & np.isfinite(expected[name].bound)) for name, where in bad.items())
    return False if explained or silent else None


def pattern(bad: HostArray) -> str:
    """Where the wrong entries are, in words."""
    if bad.ndim != 4:
        return ""
    parts = []
    tokens = np.flatnonzero(bad.any(axis=(0, 1, 3)))
    n = bad.shape[2]
    if len(tokens) == n - tokens[0]:
        parts.append(f"from token {tokens[0]} on" if tokens[0] else "at every token")
    else:
        parts.append(f"first at token {tokens[0]}, at {len(tokens)} of {n}")
    for axis, word in ((1, "head"), (0, "batch row")):
        others = tuple(a for a in range(4) if a != axis)
        where = np.flatnonzero(bad.any(axis=others))
        if bad.shape[axis] > 1:
            every = len(where) == bad.shape[axis]
            parts.append(f"every {word}" if every else f"only {word} {', '.join(map(str, where[:4]))}")
    return ", ".join(parts)


def shared(trials: Sequence[Trial]) -> str:
    """What the cases that fail have in common and no other case has, in words."""
    fail, fine = ([t.case for t in trials if bool(t.wrong) is w and t.case.n] for w in (True, False))
    if not fail or not fine:
        return ""
    least = min(case.n for case in fail)
    tests = {
        "only from a state": lambda c: c.start,
        "only with two heads or more": lambda c: c.heads > 1,
        "only with heads in groups": lambda c: c.heads != c.groups,
        "only with two batch rows or more": lambda c: c.batch > 1,
        "only where d and m differ": lambda c: c.d != c.m,
        "only where d is m": lambda c: c.d == c.m,
        "only strided arrays": lambda c: c.memory == "strided",
        "only read-only arrays": lambda c: c.memory == "read-only",
        "only odd lengths": lambda c: c.n % 2 == 1,
        "only an odd d": lambda c: c.d % 2 == 1,
        "only large numbers": lambda c: c.values == "large",
        "only tiny numbers": lambda c: c.values == "tiny",
        "only far on": lambda c: c.position > 0,
        f"only {least} tokens or more": lambda c: c.n >= least,
    }
    return next((words for words, f in tests.items() if all(map(f, fail)) and not any(map(f, fine))), "")
