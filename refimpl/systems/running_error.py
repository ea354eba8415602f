"""Analysis: floats with a bound on their distance from the true value.

The bound e holds for this execution v and for every other one v' of the same program, with sums in
any order, on any library that keeps to the standard model: fl(a∘b) = (a∘b)(1+δ), |δ| ≤ u, where
what is below the least normal number may become 0; functions within ULPS units in the last place.
So the true value V is at most |v| + e in size, and that of another execution at most |v| + 2e; the
bounds below use both. γ_K = Ku/(1−Ku). An error of inf means that nothing is known: VACUOUS.

No library promises any ULPS, so they were measured: `python tests/ulps.py` compares 10⁵ arguments
of each function with mpmath, in float64, float32, float16 and bfloat16, in long and short arrays.
The largest errors, on NumPy 2.4, torch 2.13 and JAX 0.10 with AVX-512:

    exp 3.25 (JAX, float32)    log  2.92 (NumPy, float32)    sqrt    0.75 (torch, float32)
                               tanh 6.50 (JAX, float64)      cos sin 1.41 (NumPy, float32)

ULPS are twice that, rounded up; tests/systems/test_ulps.py holds what is installed to them. float16
and bfloat16 are computed in float32 and rounded, so that no error is beyond 0.501: NARROW. XLA, on
which JAX runs, flushes numbers below the least normal one to 0, arguments too; NumPy and torch do
not. The numbers of float16 are all normal in float32.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from ..arrays import HostArray
from ..errors import NotDefined, choose
from .array import ArraySystem, Frequencies, Planes, SystemArray, elementwise, fractions, generator
from .floats import host_angles, quiet, read_dtype, wide_floats
from .formats import FORMATS, nearest, round_to

# Errors are float64 too. UP covers the rounding of the few operations that form one; a sum of K
# terms needs another (1 + K 2⁻⁵⁰).
UP = 1 + 2.0**-40
LEAST = 2.0**-1074
ULPS = {"exp": 7, "log": 6, "sqrt": 2, "tanh": 13, "cos": 3, "sin": 3}  # units in the last place
NARROW = dict.fromkeys(ULPS, 1)  # of float16 and bfloat16


class RunningError(ArraySystem):
    """Floats that carry a bound on their distance from the truth.

    Overflow and undefined results show as an error of inf; NumPy's warnings are silenced.
    """

    def __init__(self, dtype: Any = "float64") -> None:
        dtype = (read_dtype(dtype) or ("", dtype))[1]
        choose("RunningError", "dtype", dtype, ("float64", "float32", "float16", "bfloat16"))
        bits, low, high = FORMATS[dtype]
        # NumPy has no bfloat16. float64 keeps to the standard model of bfloat16 too.
        self.format, self.dtypes = dtype, (np.dtype("float64" if dtype == "bfloat16" else dtype), np.dtype("float64"))
        # A result that underflows is wrong by half the least number, a function by ULPS of that
        # number; the terms of its error likewise. One that is flushed is wrong by less than the
        # least normal number.
        self.flushed = 0.0 if dtype == "float16" else 2.0 ** (low - 1)
        self.ulps = ULPS if bits >= 24 else NARROW
        self.tiny = self.flushed + 2 * max(self.ulps.values()) * 2.0 ** (low - bits)
        self.u, self.largest = 2.0**-bits, math.ldexp(1 - 2.0**-bits, high)
        self.name = f"{dtype} with running error"

    def gamma(self, k: int) -> float:
        return k * self.u / (1 - k * self.u) if k * self.u < 1 else math.inf

    @quiet()
    def lift(self, fractions: HostArray) -> Planes:
        value = elementwise(lambda x: nearest(x, self.format), fractions)
        return value, self._read(value, elementwise(_distance, fractions, value))

    def _read(self, value: HostArray, error: HostArray) -> HostArray:
        """The error of an argument: one that is below normal may be read as 0."""
        size = np.abs(np.asarray(value, dtype=np.float64))
        return np.where((size < self.flushed) & (size > 0), error + size, error)

    @quiet()
    def convert(self, values: Any) -> SystemArray:
        """Numbers with the error of rounding them, on top of a running error that they bring."""
        if (wide := wide_floats(values)) is not None:
            value = round_to(wide, self.format)
            # The difference is exact.
            return self.wrap((value, self._read(value, np.where(np.isfinite(value), np.abs(wide - value), np.inf))))
        x = super().convert(values)
        if isinstance(values, SystemArray) and isinstance(values.system, RunningError) and values.system != self:
            return self.wrap((x.planes[0], (x.planes[1] + values.planes[1]) * UP))
        return x

    def fractions(self, x: SystemArray) -> HostArray:
        """The values, as if they had no error."""
        return fractions(x.planes[0], self.name)

    def value(self, x: SystemArray) -> HostArray:
        return x.planes[0]

    def error(self, x: SystemArray) -> HostArray:
        return x.planes[1]

    def _result(self, value: Any, spread: Any, roundings: int = 1, terms: int = 1) -> Planes:
        """A value after so many roundings, and its error, given that of its terms."""
        size = np.abs(np.asarray(value, dtype=np.float64))
        spread = spread * (1 + terms * 2.0**-50)
        error = (spread + self.gamma(roundings) * (size + 2 * spread) + terms * self.tiny) * UP
        return value, np.where((size <= self.largest) & ~np.isnan(error), error, np.inf)

    @quiet()
    def add(self, x: Planes, y: Planes) -> Planes:
        return self._result(x[0] + y[0], x[1] + y[1])

    def neg(self, x: Planes) -> Planes:
        return -x[0], x[1]

    @quiet()
    def mul(self, x: Planes, y: Planes) -> Planes:
        """|a'b' − AB| ≤ |A||b'−B| + |B||a'−A| + |a'−A||b'−B|"""
        A, B = _sizes(x, y)
        return self._result(x[0] * y[0], A * y[1] + B * x[1] + x[1] * y[1])

    @quiet()
    def div(self, x: Planes, y: Planes) -> Planes:
        """|a'/b' − A/B| ≤ (|a'−A| + |A/B||b'−B|)/|b'|"""
        b = np.abs(y[0]).astype(np.float64)
        A, least_B, least_b = _sizes(x, y)[0], b - y[1], b - 2 * y[1]
        spread = np.where(least_b > 0, (x[1] + (A / least_B + LEAST) * y[1] + LEAST) / least_b, np.inf)
        return self._result(x[0] / y[0], spread)

    @quiet()
    def eq(self, x: Planes, y: Planes) -> HostArray:
        """May the two be equal?"""
        a, b = (np.asarray(z[0], dtype=np.float64) for z in (x, y))
        return ~(np.abs(a - b) > (x[1] + y[1]) * UP)

    def less(self, x: Planes, y: Planes) -> HostArray:
        if np.any(self.eq(x, y) & (x[1] + y[1] > 0)):
            raise NotDefined(f"errors overlap, so this order is not decided in {self.name}; use maximum")
        return np.asarray(x[0] < y[0])

    @quiet()
    def maximum(self, x: SystemArray, y: SystemArray) -> SystemArray:
        """|max(a',b') − max(A,B)| ≤ max(|a'−A|, |b'−B|); the larger one's, if order is certain"""
        (a, e), (b, f) = x.planes, y.planes
        open_order = self.eq((a, 2 * e), (b, 2 * f))
        return self.wrap((np.maximum(a, b), np.where(open_order, np.maximum(e, f), np.where(a < b, f, e))))

    def singular(self, x: SystemArray) -> HostArray:
        return np.asarray(x.planes[0] == 0)

    def isfinite(self, x: SystemArray) -> HostArray:
        return np.asarray(np.abs(x.planes[0]) <= self.largest)

    @quiet()
    def sum(self, x: SystemArray, *, axis: int, keepdims: bool = False) -> SystemArray:
        k = x.shape[axis]
        value, error = (np.sum(p, axis=axis, keepdims=keepdims) for p in x.planes)
        size = np.sum(np.abs(x.planes[0]) + 2 * x.planes[1], axis=axis, keepdims=keepdims, dtype=np.float64)
        return self.wrap(self._result(value, error + self.gamma(k) * size, terms=k + 1))

    @quiet()
    def matmul(self, x: SystemArray, y: Any) -> SystemArray:
        y, k = self.right_factor(x, y), x.shape[-1]
        (A, B), e, f = _sizes(x.planes, y.planes), x.planes[1], y.planes[1]
        spread = A @ f + e @ B + e @ f + self.gamma(k + 1) * ((A + e) @ (B + f))
        return self.wrap(self._result(x.planes[0] @ y.planes[0], spread, terms=k + 1))

    @quiet()
    def function(self, name: str, x: SystemArray) -> SystemArray:
        wide, error = x.planes[0].astype(np.float64), x.planes[1]
        result, spread, least = getattr(np, name)(x.planes[0]), error, wide - 2 * error  # cos, sin, tanh: slope ≤ 1
        roundings = 2 * self.ulps[name]  # a unit in the last place is at most 2u
        if name == "exp":
            # |e^a' − e^A| ≤ e^A (e^|a'−A| − 1) and e^A ≤ e^a e^|a−A|; e^a is near the result
            top = (np.abs(result.astype(np.float64)) / (1 - roundings * self.u) + self.tiny) * np.exp(error)
            spread = top * np.expm1(error)
        elif name == "sqrt":  # |√a' − √A| = |a'−A|/(√a'+√A) ≤ √|a'−A|
            slope = np.sqrt(np.maximum(wide - error, 0)) + np.sqrt(np.maximum(least, 0))
            # Where a' < 0 is possible, some execution has no root.
            spread = np.where(wide < 2 * error, np.inf, np.fmin(error / slope, np.sqrt(error)))
        elif name == "log":  # |log a' − log A| ≤ |a'−A|/min(a', A)
            spread = np.where(least > 0, error / least, np.inf)
        return self.wrap(self._result(result, spread, roundings))

    def random(self, shape: tuple[int, ...], seed: int) -> SystemArray:
        """Uniform over [-1, 1), rounded, without error."""
        value = round_to(generator(f"{self.name}.random", shape, seed).uniform(-1, 1, shape), self.format)
        return self.wrap((value, np.zeros(shape)))

    def angles(self, frequencies: Frequencies, positions: Any) -> tuple[SystemArray, SystemArray]:
        both, error = host_angles(frequencies, positions), 2.0**-51 + self.u
        cos, sin = (self.wrap((round_to(t, self.format), np.full(t.shape, error))) for t in both)
        return cos, sin


def _sizes(x: Planes, y: Planes) -> tuple[HostArray, HostArray]:
    """|A|, |B| at most."""
    return np.abs(x[0]).astype(np.float64) + x[1], np.abs(y[0]).astype(np.float64) + y[1]


def _distance(x: Fraction, value: float) -> float:
    """|x − value|, rounded up."""
    if math.isinf(value):
        return math.inf
    if value.as_integer_ratio() == (x.numerator, x.denominator):
        return 0.0
    distance = abs(x - Fraction(value))
    return math.nextafter(float(distance), math.inf)
