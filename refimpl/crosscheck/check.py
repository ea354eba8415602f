"""The cross-check of a kernel: its trials, the verdicts, the likely mistake, a small case."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .diagnose import Trial, look_alikes, pattern, shared
from .judge import Judgement, expect, judge, judge_result
from .plan import Case
from .report import Facet, Finding, Report
from .spec import Spec
from .subject import Function, Subject

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
    subject: Subject = kernel if hasattr(kernel, "ask") else Function(kernel)  
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
    likely = [] if died else look_alikes(spec, trials)
    smallest = reduced(subject, spec, failed[0]) if failed else None
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
    first = failed[0] if failed else None
    return Finding(dtype, facets, tuple(likely), shared(trials), smallest, others, len(trials), first, died)


def attempt(subject: Subject, spec: Spec, dtype: str, case: Case) -> Trial:
    """Ask the kernel about a case, and judge its answer."""
    x, exact = spec.inputs(case, dtype), spec.is_exact(case, dtype)
    answer = subject.ask(spec, case, x, dtype)
    expected = expect(spec, case, dtype, x, exact)
    return Trial(case, dtype, x, expected, answer, tuple(judge(spec, dtype, expected, answer, exact)))


def facet(name: str, trials: Sequence[Trial], known: bool) -> Facet:
    """The worst judgement on a result; beyond a bound is WRONG if it is a mistake that is known."""
    judged = [(t, j) for t in trials for j in t.judgements if j.result == name and j.verdict != "NOTHING"]
    if not judged:
        return Facet(name, "NOT RUN")
    verdicts = {j.verdict for _, j in judged}
    bad = [(t, j) for t, j in judged if j.verdict in ("WRONG", "EXCESS")]
    if bad:
        _, j = bad[0]
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
            judged = judge_result("o", np.concatenate(parts, axis=2), want, False, spec.dtype_of("o", dtype))
            if judged.bad is not None:
                return f"o is another when T={n} is cut at token {j}"
    return ""


def reduced(subject: Subject, spec: Spec, trial: Trial) -> Case:
    """A simpler case that fails in the same way: in the same results, or with the same words."""

    def signature(judgements: Sequence[Judgement]) -> set[str]:
        return {j.words if j.bad is None else j.result for j in judgements}

    def fails(case: Case, wanted: set[str]) -> bool:
        return not spec.refuses(case) and signature(attempt(subject, spec, trial.dtype, case).wrong) == wanted

    subject.forgive()
    wanted, best = signature(trial.wrong), trial.case
    while smaller := next((c for c in simpler(best) if fails(c, wanted)), None):
        best = smaller
    return best


def simpler(case: Case) -> Iterator[Case]:
    """Cases that are simpler in one way."""
    changes: list[dict[str, Any]] = [{"n": case.n // 2}, {"n": case.n - 1}] if case.n else []
    pairs = [{"heads": h, "groups": g} for h, g in ((1, 1), (2, 1), (2, 2)) if (h, g) < (case.heads, case.groups)]
    changes += [*pairs, *({"batch": b} for b in (1, 2) if b < case.batch)]
    changes += [{name: x} for name in ("m", "d") for x in (1, 2, 4) if x < getattr(case, name)]
    plain = {"start": False, "position": 0, "memory": "plain", "values": "whole"}
    changes += [{name: x} for name, x in plain.items() if getattr(case, name) != x]
    yield from (replace(case, why="", **change) for change in changes)
