"""How far a float result may lie from the exact one, and the verdict on a given result.

With u the unit roundoff, K = n + r + 2, γ_K = Ku/(1 − Ku), and A_num, A_den the sums of numerator
and denominator with absolute values everywhere, any form of linearized attention, in any order of
summation, gives ô with

    |ô − o| ≤ [γ_K (A_num + |o| A_den)/|den| + u|o|] / (1 − γ_K A_den/|den|)      normalised
    |ô − o| ≤ γ_K A_num                                                           unnormalised

The bound starts from the rounded features: errors of φ and RoPE are not in it (RunningError has
them too). Products must not underflow. The numerator takes at most K − 1 roundings, so γ_K leaves
one for the quotient. Without it A_num would need a factor 1 + u; proofs/bounds.v proves both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from ..arrays import Mask
from ..attention.feature_maps import Kernel, check_kernel, identity
from ..attention.linear_attention import IDENTITY, UNNORMALISED, State, linear_attention, linear_attention_quadratic
from ..attention.state import features, no_text
from ..checks import check_kinds, check_shape, check_type
from ..errors import brief
from ..systems import QQ, SystemArray, fractions
from ..systems.array import elementwise, host
from ..systems.floats import quiet, read_dtype
from ..systems.formats import FORMATS


def unit_roundoff(dtype: Any) -> Fraction:
    """u = 2^−p for p significant bits; of a dtype of any library, or its name."""
    _, name = read_dtype(dtype) or ("", "")
    if name not in FORMATS:
        raise ValueError(f"unit_roundoff: `dtype` must be one of {', '.join(FORMATS)}, got {brief(dtype)}")
    return Fraction(1, 2 ** FORMATS[name][0])


def exact_with_bound(
    q: Any,
    k: Any,
    v: Any,
    /,
    kernel: Kernel = IDENTITY,
    *,
    u: Fraction,
    mask: Mask = "causal",
    state: State | None = None,
) -> tuple[Any, np.ndarray]:
    """The exact output over ℚ, and how far a float result of precision u may be from it.

    The arguments are those of linear_attention, in floats, without padding.
    bound : (..., n, m) float64, rounded up; inf where there is no bound
    """
    who = "exact_with_bound"
    check_kernel(who, kernel)
    if state is not None:
        check_type(who, "state", state, State)
    if isinstance(u, bool) or not isinstance(u, Fraction | int | float) or not 0 <= u < 1:
        raise ValueError(f"{who}: `u` must be a Fraction, at least 0 and less than 1, got {brief(u)}")
    check_kinds(who, q=q, k=k, v=v)
    check_shape(who, "v", v, "tokens", "values")
    position, normalise = state.position if state else 0, kernel.normalise
    fq, fk, gq, gk = (QQ.convert(x) for x in features(q, k, kernel, position=position))
    if normalise and state is not None and state.z is None:
        raise ValueError("exact_with_bound: `state` has S but no z; a normalised layer needs both")
    v, r = QQ.convert(v), fk.shape[-1]
    start = (
        no_text(v, r, v.shape[-1])
        if state is None
        else State(QQ.convert(state.S), None if state.z is None else QQ.convert(state.z))
    )

    def sums(form: Any, f: Any, q: Any, k: Any, v: Any, S: Any) -> Any:
        return form(f(q), f(k), f(v), UNNORMALISED, mask=mask, state=State(f(S), None))[0]

    K = v.shape[-2] + r + 2
    g = K * u / (1 - K * u) if K * u < 1 else None
    num, A_num = (
        sums(linear_attention, identity, fq, fk, v, start.S),
        sums(linear_attention_quadratic, QQ.abs, fq, fk, v, start.S),
    )
    if not normalise:
        return num, _up(elementwise(lambda a: math.inf if g is None else g * a, A_num.planes[0]))
    assert start.z is not None
    ones, z = QQ.ones((*v.shape[:-1], 1)), start.z[..., None]
    den, A_den = (
        sums(linear_attention, identity, gq, gk, ones, z),
        sums(linear_attention_quadratic, QQ.abs, gq, gk, ones, z),
    )
    o = num / den

    def bound(o: Fraction, den: Fraction, A_num: Fraction, A_den: Fraction) -> Fraction | float:
        if g is None or g * A_den >= abs(den):
            return math.inf
        bounded: Fraction = (g * (A_num + abs(o) * A_den) / abs(den) + u * abs(o)) / (1 - g * A_den / abs(den))
        return bounded

    return o, _up(elementwise(bound, *(x.planes[0] for x in (o, den, A_num, A_den))))


def _up(bounds: np.ndarray) -> np.ndarray:
    return np.nextafter(bounds.astype(np.float64), np.where(bounds == 0, 0, math.inf))


def finite_fractions(x: Any) -> tuple[np.ndarray, np.ndarray]:
    """The entries as fractions, 0 for nan and inf, and a mask of where those are."""
    if isinstance(x, SystemArray):
        not_finite = ~x.system.isfinite(x)
        return fractions(x.system.where(not_finite, 0, x), "finite_fractions"), not_finite
    a = host(x)
    not_finite = np.zeros(a.shape, dtype=bool) if a.dtype == object else ~np.isfinite(a.astype(np.float64))
    return fractions(np.where(not_finite, np.zeros_like(a), a), "finite_fractions"), not_finite


def _ratio(error: Fraction | float, bound: float) -> float:
    if error == math.inf:
        return math.inf
    if error == 0 or bound == math.inf:
        return 0.0
    if isinstance(error, float):
        return error / bound
    try:
        return float(error / Fraction(bound)) if bound else math.inf
    except OverflowError:
        return math.inf


@dataclass(frozen=True)
class Judgement:
    """A verdict: EXACT, WITHIN BOUND, EXCESS or VACUOUS.

    worst, index   the worst error as a fraction of its bound, and its entry
    rows, vacuous  the number of rows, and of those whose bound is vacuous
    """

    verdict: str
    worst: float
    index: tuple[int, ...]
    vacuous: int
    rows: int


@quiet()
def judge(got: Any, exact: Any, bound: np.ndarray) -> Judgement:
    """Compare float output with exact output, row by row of (..., n, m).

    Entries that are nan or inf are beyond any bound. A bound as large as the largest entry of its
    row proves nothing: the row is vacuous and counts as not run.

    EXACT    every entry is equal        EXCESS   an error is beyond its bound
    VACUOUS  every row is vacuous, or there is nothing to compare

    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.uniform(0, 1, (3, 8, 4))
    >>> truth, bound = exact_with_bound(q, k, v, u=unit_roundoff("float64"))
    >>> judge(linear_attention_quadratic(q, k, v)[0], truth, bound).verdict
    'WITHIN BOUND'
    >>> judge(linear_attention_quadratic(q, k, v)[0] * (1 + 1e-12), truth, bound).verdict
    'EXCESS'
    """
    for name, x in (("got", got), ("exact", exact), ("bound", bound)):
        if not isinstance(getattr(x, "shape", None), tuple):
            raise TypeError(f"judge: `{name}` must be an array, got {type(x).__name__}")
    shapes = {name: tuple(x.shape) for name, x in (("got", got), ("exact", exact), ("bound", bound))}
    if len(set(shapes.values())) > 1:
        raise ValueError(
            "judge: all must have one shape, got " + ", ".join(f"`{name}` {s}" for name, s in shapes.items())
        )
    if getattr(bound, "dtype", None) != np.float64:
        raise TypeError("judge: `bound` must be a float64 array of NumPy, as exact_with_bound makes it")
    want = fractions(exact, "judge")
    found, not_finite = finite_fractions(got)
    return judge_errors(np.where(not_finite, math.inf, abs(found - want)), abs(want).astype(np.float64), bound)


def judge_errors(error: np.ndarray, size: np.ndarray, bound: np.ndarray) -> Judgement:
    """The verdict of `judge`, from the errors and the sizes of the exact output."""
    vacuous = vacuous_rows(size, bound)
    ratio = elementwise(_ratio, error, bound).astype(np.float64)
    index = tuple(int(i) for i in np.unravel_index(np.argmax(ratio), ratio.shape)) if ratio.size else ()
    worst = float(ratio[index]) if index else 0.0
    if not error.size:
        return Judgement("VACUOUS", 0.0, (), 0, 0)
    if worst > 1:
        verdict = "EXCESS"
    elif not np.any(error):
        verdict = "EXACT"
    else:
        verdict = "VACUOUS" if vacuous.all() else "WITHIN BOUND"
    return Judgement(verdict, worst, index, int(vacuous.sum()), vacuous.size)


def vacuous_rows(size: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Where the largest bound of a row is as large as its largest entry, and not 0."""
    entry, most = (np.max(x, axis=-1, initial=0) for x in (size, bound))
    return np.asarray((most >= entry) & (most > 0))
