"""Analysis: (value, running error bound). The float computation itself, carrying a bound on its distance from the truth.

The bound e holds not for this execution v alone but for every one v' of the same program, with sums in any order, on any library
that keeps to the standard model: fl(a∘b) = (a∘b)(1+δ), |δ| ≤ u, gradual underflow, exp, log, sqrt, cos, sin, tanh within 4 units in the
last place. So the truth V is within |v| + e, another execution within |v| + 2e, and these are the sizes that appear below.
γ_K = Ku/(1−Ku). An error of inf says that nothing is known: VACUOUS.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from ..errors import NotDefined, choose
from .array import ArraySystem, Planes, SystemArray, elementwise, fractions
from .floats import host_angles, wide_floats
from .formats import FORMATS, nearest, round_to

# Errors are float64 too. UP pays for the rounding of the few operations that form one; K terms summed cost another (1 + K 2⁻⁵⁰).
UP = 1 + 2.0**-40
LEAST = 2.0**-1074
LIBM = 8  # 4 units in the last place, in units of u


class RunningError(ArraySystem):
    def __init__(self, dtype: str = "float64") -> None:
        choose("RunningError", "dtype", dtype, ("float64", "float32", "float16", "bfloat16"))
        bits, low, high = FORMATS[dtype]
        # NumPy has no bfloat16. float64 keeps to its standard model, and more.
        self.format, self.dtypes = dtype, (np.dtype("float64" if dtype == "bfloat16" else dtype), np.float64)
        # A result that underflows is wrong by half the least number, a function by 4 of it; the terms of its error likewise.
        self.u, self.tiny, self.largest = 2.0**-bits, LIBM * 2.0 ** (low - bits), math.ldexp(1 - 2.0**-bits, high)
        self.name = f"{dtype} with running error"

    def gamma(self, k: int) -> float:
        return k * self.u / (1 - k * self.u) if k * self.u < 1 else math.inf

    def lift(self, fractions: np.ndarray) -> Planes:
        value = elementwise(lambda x: nearest(x, self.format), fractions)
        return value, elementwise(_distance, fractions, value)

    def convert(self, values: Any) -> SystemArray:
        """Numbers with the error of rounding them; those of another running error bring theirs along."""
        if (wide := wide_floats(values)) is not None:
            value = round_to(wide, self.format)
            return self.wrap(
                (value, np.where(np.isfinite(value), np.abs(wide - value), np.inf))
            )  # the difference is exact
        x = super().convert(values)
        if isinstance(values, SystemArray) and isinstance(values.system, RunningError) and values.system != self:
            return self.wrap((x.planes[0], (x.planes[1] + values.planes[1]) * UP))
        return x

    def fractions(self, x: SystemArray) -> np.ndarray:
        """The values, as if they had no error."""
        return fractions(x.planes[0], self.name)

    def value(self, x: SystemArray) -> np.ndarray:
        return x.planes[0]

    def error(self, x: SystemArray) -> np.ndarray:
        return x.planes[1]

    def _result(self, value: Any, spread: Any, roundings: int = 1, terms: int = 1) -> Planes:
        """A value rounded that many times, from so many terms that spread that much."""
        size = np.abs(np.asarray(value, dtype=np.float64))
        spread = spread * (1 + terms * 2.0**-50)
        error = (spread + self.gamma(roundings) * (size + 2 * spread) + terms * self.tiny) * UP
        return value, np.where((size <= self.largest) & ~np.isnan(error), error, np.inf)

    def add(self, x: Planes, y: Planes) -> Planes:
        return self._result(x[0] + y[0], x[1] + y[1])

    def neg(self, x: Planes) -> Planes:
        return -x[0], x[1]

    def mul(self, x: Planes, y: Planes) -> Planes:
        """|a'b' − AB| ≤ |A||b'−B| + |B||a'−A| + |a'−A||b'−B|"""
        A, B = _sizes(x, y)
        return self._result(x[0] * y[0], A * y[1] + B * x[1] + x[1] * y[1])

    def div(self, x: Planes, y: Planes) -> Planes:
        """|a'/b' − A/B| ≤ (|a'−A| + |A/B||b'−B|)/|b'|"""
        b = np.abs(y[0]).astype(np.float64)
        A, least_B, least_b = _sizes(x, y)[0], b - y[1], b - 2 * y[1]
        spread = np.where(least_b > 0, (x[1] + (A / least_B + LEAST) * y[1] + LEAST) / least_b, np.inf)
        return self._result(x[0] / y[0], spread)

    def eq(self, x: Planes, y: Planes) -> np.ndarray:
        """May the two be equal?"""
        a, b = (np.asarray(z[0], dtype=np.float64) for z in (x, y))
        return ~(np.abs(a - b) > (x[1] + y[1]) * UP)

    def less(self, x: Planes, y: Planes) -> np.ndarray:
        if np.any(self.eq(x, y) & (x[1] + y[1] > 0)):
            raise NotDefined(f"errors overlap, so this order is not decided in {self.name}; use maximum")
        return x[0] < y[0]

    def maximum(self, x: SystemArray, y: SystemArray) -> SystemArray:
        """|max(a',b') − max(A,B)| ≤ max(|a'−A|, |b'−B|); where every execution agrees on the larger, its error"""
        (a, e), (b, f) = x.planes, y.planes
        open_order = self.eq((a, 2 * e), (b, 2 * f))
        return self.wrap((np.maximum(a, b), np.where(open_order, np.maximum(e, f), np.where(a < b, f, e))))

    def singular(self, x: SystemArray) -> np.ndarray:
        return x.planes[0] == 0

    def isfinite(self, x: SystemArray) -> np.ndarray:
        return np.abs(x.planes[0]) <= self.largest

    def sum(self, x: SystemArray, *, axis: int, keepdims: bool = False) -> SystemArray:
        k = x.shape[axis]
        value, error = (np.sum(p, axis=axis, keepdims=keepdims) for p in x.planes)
        size = np.sum(np.abs(x.planes[0]) + 2 * x.planes[1], axis=axis, keepdims=keepdims, dtype=np.float64)
        return self.wrap(self._result(value, error + self.gamma(k) * size, terms=k + 1))

    def matmul(self, x: SystemArray, y: Any) -> SystemArray:
        y, k = self.right_factor(x, y), x.shape[-1]
        (A, B), e, f = _sizes(x.planes, y.planes), x.planes[1], y.planes[1]
        spread = A @ f + e @ B + e @ f + self.gamma(k + 1) * ((A + e) @ (B + f))
        return self.wrap(self._result(x.planes[0] @ y.planes[0], spread, terms=k + 1))

    def function(self, name: str, x: SystemArray) -> SystemArray:
        value, error = x.planes
        result = getattr(np, name)(value)
        if (
            name == "exp"
        ):  # |e^a' − e^A| ≤ e^A (e^|a'−A| − 1) and e^A ≤ e^a e^|a−A|, where e^a is the result but for its own error
            top = (np.abs(result.astype(np.float64)) / (1 - LIBM * self.u) + self.tiny) * np.exp(error)
            return self.wrap(self._result(result, top * np.expm1(error), LIBM))
        if name == "sqrt":  # |√a' − √A| = |a'−A|/(√a'+√A) ≤ √|a'−A|
            wide = value.astype(np.float64)
            slope = np.sqrt(np.maximum(wide - error, 0)) + np.sqrt(np.maximum(wide - 2 * error, 0))
            spread = np.where(
                wide < 2 * error, np.inf, np.fmin(error / slope, np.sqrt(error))
            )  # else some execution has no root
            return self.wrap(self._result(result, spread, LIBM))
        if name == "log":  # |log a' − log A| ≤ |a'−A|/min(a', A)
            least = value.astype(np.float64) - 2 * error
            return self.wrap(self._result(result, np.where(least > 0, error / least, np.inf), LIBM))
        return self.wrap(self._result(result, error, LIBM))  # cos, sin and tanh have slopes of at most 1

    def random(self, shape: tuple[int, ...], seed: int) -> SystemArray:
        """Uniform over [-1, 1), rounded, without error."""
        value = round_to(np.random.default_rng(seed).uniform(-1, 1, shape), self.format)
        return self.wrap((value, np.zeros(shape)))

    def angles(self, frequencies: Any, positions: Any) -> tuple[SystemArray, SystemArray]:
        cos, sin = (
            self.wrap((round_to(t, self.format), np.full(t.shape, 2.0**-51 + self.u)))
            for t in host_angles(frequencies, positions)
        )
        return cos, sin


def _sizes(x: Planes, y: Planes) -> tuple[np.ndarray, np.ndarray]:
    """|A|, |B| at most."""
    return np.abs(x[0]).astype(np.float64) + x[1], np.abs(y[0]).astype(np.float64) + y[1]


def _distance(x: Fraction, value: float) -> float:
    """|x − value|, rounded up."""
    if math.isinf(value):
        return math.inf
    distance = abs(x - Fraction(value))
    return math.nextafter(float(distance), math.inf) if distance else 0.0


def _quietly(method: Callable) -> Callable:
    """What overflows or has no answer shows as an error of inf, not as a warning."""

    @functools.wraps(method)
    def run(*args: Any, **options: Any) -> Any:
        with np.errstate(all="ignore"):
            return method(*args, **options)

    return run


for _name in ("lift", "add", "mul", "div", "eq", "maximum", "sum", "matmul", "function"):
    setattr(RunningError, _name, _quietly(getattr(RunningError, _name)))
