"""What a wrong kernel looks like: the mistakes that give its numbers, and where these are wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..arrays import HostArray
from ..systems.floats import quiet
from .judge import Judgement, expect, judge
from .mistakes import readings
from .plan import Case
from .spec import Arrays, Spec
from .subject import Answer


@dataclass(frozen=True)
class Trial:
    """A case that a kernel was asked, its answer, and the judgements on it."""

    case: Case
    dtype: str
    x: Arrays
    exact: bool
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


def look_alikes(spec: Spec, trials: Sequence[Trial]) -> list[Likeness]:
    """The mistakes that give a kernel's numbers in all of these trials, failed and passed ones."""
    found = []
    for words, seen, other in readings(spec):
        equal: list[bool] = []
        for trial in trials:
            alike = agrees(other, trial)
            if alike is None:
                break
            equal.append(alike)
        else:
            found.append(Likeness(words, seen, all(equal)))
    return sorted(found, key=lambda x: not x.equal)


@quiet()
def agrees(other: Spec, trial: Trial) -> bool | None:
    """Does another reading give the numbers of a trial? None if not, True if the same bits."""
    if not trial.answer.results:
        return None
    try:
        expected = expect(other, trial.case, trial.dtype, trial.x, exact=False)
    except (ValueError, TypeError, ArithmeticError, IndexError):  # a reading that this case does not allow
        return None
    if any(want.value.shape != trial.answer.results[name].shape for name, want in expected.items()):
        return None
    judged = judge(other, trial.dtype, expected, trial.answer, exact=False)
    if any(j.verdict in ("WRONG", "EXCESS") for j in judged):
        return None
    return all(j.verdict in ("EXACT", "NOTHING") for j in judged)


def chosen(trials: Sequence[Trial], failed: int = 4, passed: int = 3) -> list[Trial]:
    """A few trials that tell most: the smallest that fail, others that fail, and passed ones."""
    wrong = [t for t in trials if t.wrong and t.answer.results and t.case.n <= 600]
    right = [t for t in trials if not t.wrong and t.answer.results and t.case.n <= 200]
    return [*spread(wrong, failed), *spread(right[::-1], passed)]


def spread(trials: Sequence[Trial], count: int) -> list[Trial]:
    places = np.unique(np.linspace(0, len(trials) - 1, count).astype(int)) if trials else []
    return [trials[i] for i in places]


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
