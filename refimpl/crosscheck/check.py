"""The cross-check of a kernel: its plan, its trials, the verdicts, the likely mistake, a small case."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .diagnose import Likeness, Trial, chosen, look_alikes, pattern, shared
from .judge import Judgement, expect, judge
from .plan import Case
from .spec import Spec
from .subject import Function, Subject

ORDER = ("NOT RUN", "WRONG", "EXCESS", "VACUOUS", "WITHIN BOUND", "EXACT")  # the worst first


@dataclass(frozen=True)
class Facet:
    """The verdict on one result, over all cases.

    share : the largest part of a bound that was used
    where : where the smallest failure is, in words
    """

    result: str
    verdict: str
    share: float = 0.0
    where: str = ""
    cases: int = 0


@dataclass(frozen=True)
class Finding:
    """What was found in one dtype."""

    dtype: str
    facets: tuple[Facet, ...]
    likely: tuple[Likeness, ...]
    common: str
    smallest: Case | None
    others: dict[str, str]  # other properties: "" if they hold, or what is wrong
    trials: int
    died: bool  # whether all that failed are calls that returned nothing

    @property
    def verdict(self) -> str:
        found = [f.verdict for f in self.facets] + ["WRONG" for words in self.others.values() if words]
        return min(found, key=ORDER.index, default="NOT RUN")


@dataclass(frozen=True)
class Report:
    """The cross-check of a kernel."""

    name: str
    spec: Spec
    findings: tuple[Finding, ...]
    cases: tuple[Case, ...]
    seconds: float

    @property
    def verdict(self) -> str:
        return min((f.verdict for f in self.findings), key=ORDER.index, default="NOT RUN")

    def __str__(self) -> str:
        from .report import lines_of

        return "\n".join(lines_of(self))


def crosscheck(
    kernel: Callable[..., Any] | Subject,
    spec: Spec,
    *,
    seed: int = 0,
    full: bool = False,
    progress: Callable[[str], None] = lambda line: None,
) -> Report:
    """Is this kernel right, by its own conventions? If not, where, and what does it look like?"""
    began = time.perf_counter()
    subject: Subject = kernel if hasattr(kernel, "ask") else Function(kernel)  # type: ignore[arg-type]
    cases = spec.plan(seed, full)
    findings = tuple(check_dtype(subject, spec, dtype, cases, progress) for dtype in spec.dtypes)
    name = getattr(kernel, "place", "") or getattr(kernel, "__name__", "") or type(kernel).__name__
    return Report(name, spec, findings, tuple(cases), time.perf_counter() - began)


def check_dtype(
    subject: Subject, spec: Spec, dtype: str, cases: Sequence[Case], progress: Callable[[str], None]
) -> Finding:
    trials = []
    for i, case in enumerate(cases, 1):
        progress(f"{dtype}: case {i} of {len(cases)}: {case}")
        trials.append(attempt(subject, spec, dtype, case))
    failed = [t for t in trials if t.wrong]
    died = not any(t.answer.results for t in failed)
    likely = [] if died else look_alikes(spec, chosen(trials))
    smallest = reduced(subject, spec, failed[0], trials) if failed else None
    others = {
        "second call": repeated(subject, spec, trials),
        "inputs untouched": next((f"{t.answer.touched[0]} is changed" for t in trials if t.answer.touched), ""),
        "nothing else changed": next((f"it changes {t.answer.notes[0]}" for t in trials if t.answer.notes), ""),
    }
    if spec.carries and "o" in spec.calls.made and not failed:
        others["split anywhere"] = split(subject, spec, dtype)
    seen = {j.result for t in trials for j in t.judgements}
    names = [name for name in ("call", *spec.made) if name in seen]
    facets = tuple(facet(name, trials, bool(likely)) for name in names)
    return Finding(dtype, facets, tuple(likely), shared(trials), smallest, others, len(trials), died)


def attempt(subject: Subject, spec: Spec, dtype: str, case: Case) -> Trial:
    """Ask the kernel about a case, and judge its answer."""
    x, exact = spec.inputs(case, dtype), spec.is_exact(case, dtype)
    answer = subject.ask(spec, case, x, dtype)
    expected = expect(spec, case, dtype, x, exact)
    return Trial(case, dtype, x, exact, answer, tuple(judge(spec, dtype, expected, answer, exact)))


def facet(name: str, trials: Sequence[Trial], known: bool) -> Facet:
    """The worst judgement on a result; beyond a bound is WRONG if it is a mistake that is known."""
    judged = [(t, j) for t in trials for j in t.judgements if j.result == name and j.verdict != "NOTHING"]
    if not judged:
        return Facet(name, "NOT RUN")
    verdicts = {j.verdict for _, j in judged}
    bad = [(t, j) for t, j in judged if j.verdict in ("WRONG", "EXCESS")]
    if bad:
        trial, j = bad[0]
        where = j.words if j.bad is None else ", ".join(filter(None, (j.words, pattern(j.bad))))
        return Facet(name, "WRONG" if known or "WRONG" in verdicts else "EXCESS", j.share, where, len(judged))
    decided = verdicts - {"VACUOUS"}
    verdict = "VACUOUS" if not decided else "EXACT" if decided == {"EXACT"} else "WITHIN BOUND"
    return Facet(name, verdict, max(j.share for _, j in judged), "", len(judged))


def repeated(subject: Subject, spec: Spec, trials: Sequence[Trial]) -> str:
    """Does a case that was asked before, after many others, give the same bits?"""
    asked = [t for t in trials if t.answer.results and t.case.n]
    for trial in (asked[0], asked[len(asked) // 2]) if asked else ():
        again = subject.ask(spec, trial.case, trial.x, trial.dtype)
        for name, x in trial.answer.results.items():
            if not again.results or not np.array_equal(again.results[name], x, equal_nan=True):
                return f"{name} is another at {trial.case}"
    return ""


def split(subject: Subject, spec: Spec, dtype: str) -> str:
    """Is the output the same if the text is cut, and the second part begins from the state?"""
    for n in (9, 70):
        case = Case(n=n, batch=2, heads=2, groups=2, d=4, m=5, start=True)
        case = next(
            (
                c
                for c in (case, replace(case, batch=1), replace(case, batch=1, heads=1, groups=1))
                if not spec.refuses(c)
            ),
            case,
        )
        x, exact = spec.inputs(case, dtype), spec.is_exact(case, dtype)
        want = expect(spec, case, dtype, x, exact)["o"]
        for j in range(1, n) if n < 10 else (1, 16, 63, 64, 65, n - 1):
            parts, state = [], {name: x[name] for name in spec.state}
            for a, b in ((0, j), (j, n)):
                answer = subject.ask(spec, replace(case, n=b - a), spec.cut(x, a, b) | state, dtype)
                if not answer.results:
                    return f"{answer.problem or 'it died before'}, when T={n} is cut at token {j}"
                parts.append(answer.results["o"])
                state = {name: answer.results[name] for name in spec.state}
            error = np.abs(np.concatenate(parts, axis=2) - want.value)
            if not np.all(error <= want.bound):
                return f"o is another when T={n} is cut at token {j}"
    return ""


def reduced(subject: Subject, spec: Spec, trial: Trial, trials: Sequence[Trial]) -> Case:
    """A smaller case that fails in the same way: in the same result, or with the same words."""

    def signature(judgements: Sequence[Judgement]) -> tuple[str, ...]:
        return tuple(sorted({j.words if j.bad is None else j.result for j in judgements}))

    wanted, best = signature(trial.wrong), trial.case
    smaller: dict[str, tuple[object, ...]] = {
        "batch": (1, 2),
        "heads": (1, 2),
        "groups": (1, 2),
        "m": (1, 2),
        "d": (1, 2, 4),
        "start": (False,),
        "position": (0,),
        "memory": ("plain",),
        "values": ("whole",),
    }
    again = True
    while again:
        again = False
        tries = [{"n": best.n // 2}, {"n": best.n - 1}] if best.n else []
        tries += [{"heads": h, "groups": g} for h, g in ((1, 1), (2, 1), (2, 2)) if (h, g) < (best.heads, best.groups)]
        tries += [
            {name: x}
            for name, xs in smaller.items()
            for x in xs
            if name not in ("heads", "groups") and is_less(x, getattr(best, name))
        ]
        for change in tries:
            case = replace(best, why="", **change)
            if not spec.refuses(case) and signature(attempt(subject, spec, trial.dtype, case).wrong) == wanted:
                best, again = case, True
                break
    return best


def is_less(x: object, y: object) -> bool:
    return x != y if isinstance(x, str) else x < y  # type: ignore[operator]
