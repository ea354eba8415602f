"""What a kernel should return for a case, and the judgement on what it did return.

On whole numbers that no correct kernel rounds, the results must be equal. Elsewhere they may be off
by what RunningError derives for the formula, in the dtype in which the kernel adds, in any order of
sums, and by one rounding to the dtype of the result. Nobody chose a tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..arrays import HostArray
from ..systems import Float, RunningError
from ..systems.floats import quiet
from ..systems.formats import FORMATS, round_to
from ..verify.bounds import vacuous_rows
from .plan import Case
from .spec import Arrays, Spec
from .subject import Answer

PLAIN = Float("numpy", "float64")


class Expected(NamedTuple):
    """The results of a case, and how far a kernel may be from them: 0 where none rounds."""

    value: HostArray
    bound: HostArray


@dataclass(frozen=True)
class Judgement:
    """The verdict on one result of one case: EXACT, WITHIN BOUND, VACUOUS, EXCESS or WRONG.

    share : the largest error as a part of its bound
    words : what is wrong, if it is no number
    bad : the entries that are wrong
    """

    result: str
    verdict: str
    share: float = 0.0
    words: str = ""
    bad: HostArray | None = None


@quiet()
def expect(spec: Spec, case: Case, dtype: str, x: Arrays, exact: bool) -> dict[str, Expected]:
    """The results that a kernel returns, and their bounds; `exact` if no kernel rounds here."""
    names = spec.calls.made
    if exact:
        found = spec.compute(x, PLAIN)
        values = {name: round_to(found[name], spec.dtype_of(name, dtype)) for name in names}
        return {name: Expected(v, np.zeros(v.shape)) for name, v in values.items()}
    sums = spec.sums_in(dtype)
    true = spec.compute(x, RunningError("float64"))
    rounded = true if sums == "float64" else spec.compute(x, RunningError(sums))
    expected = {}
    for name in names:
        value, near = (np.asarray(p, dtype=np.float64) for p in true[name].planes)
        bits, low, _ = FORMATS[spec.dtype_of(name, dtype)]
        off = np.asarray(rounded[name].planes[1]) + near
        off = off + 2.0**-bits * (np.abs(value) + off) + 2.0 ** (low - bits)
        expected[name] = Expected(value, np.where(np.isnan(off), np.inf, off * (1 + 2.0**-40)))
    return expected


def judge(spec: Spec, dtype: str, expected: dict[str, Expected], answer: Answer, exact: bool) -> list[Judgement]:
    """The judgement on each result."""
    if not answer.asked:
        return []
    if answer.problem:
        return [Judgement("call", "WRONG", words=answer.problem)]
    found = []
    for name, want in expected.items():
        if (kind := answer.dtypes[name]) != (wanted := spec.dtype_of(name, dtype)):
            found.append(Judgement(name, "WRONG", words=f"{name} has dtype {kind} instead of {wanted}"))
        else:
            found.append(judge_result(name, answer.results[name], want, exact, wanted))
    return found


@quiet()
def judge_result(name: str, got: HostArray, want: Expected, exact: bool, dtype: str) -> Judgement:
    high = FORMATS[dtype][2]
    known = np.isfinite(want.bound) & (np.abs(want.value) + want.bound < 2.0 ** (high - 1))
    lost = known & ~np.isfinite(got)
    error = np.where(known & ~lost, np.abs(got - want.value), 0.0)
    bad = lost | (error > want.bound)
    if bad.any():
        words = "is not finite" if lost.any() else ""
        share = np.inf if lost.any() or exact else float(np.max(error / np.maximum(want.bound, 5e-324)))
        return Judgement(name, "WRONG" if exact or lost.any() else "EXCESS", share, words, bad)
    if not got.size or np.array_equal(got, round_to(want.value, dtype)):
        return Judgement(name, "EXACT" if got.size else "NOTHING")
    if vacuous_rows(np.abs(want.value), want.bound).all():
        return Judgement(name, "VACUOUS")
    return Judgement(name, "WITHIN BOUND", float(np.max(error / np.maximum(want.bound, 5e-324))))
