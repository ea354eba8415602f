"""Analysis: (value, running error bound). The float computation itself, carrying a bound on its distance from the truth.

The standard model: fl(a∘b) = (a∘b)(1+δ), |δ| ≤ u, plus the least subnormal where a product underflows; sums and
products of matrices in any order, with γ_K = Ku/(1−Ku). exp, sqrt, cos, sin are assumed good to 4 units in the last place.
An error of inf says that nothing is known: VACUOUS.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .array import Array, ArraySystem, Planes, as_fraction, elementwise

UP = 1 + 2.0**-40  # pays for the rounding of the error terms themselves, which float64 forms from few operations
LIBM = 8  # 4 units in the last place, in units of u


class RunningError(ArraySystem):
    def __init__(self, dtype: str = "float64") -> None:
        if dtype not in ("float64", "float32", "float16"):
            raise ValueError(f"RunningError: dtype must be float64, float32 or float16, got {dtype!r}")
        info = np.finfo(dtype)
        self.dtypes = (np.dtype(dtype), np.float64)
        self.u, self.tiny = float(info.eps) / 2, float(info.smallest_subnormal)
        self.name = f"{dtype} with running error"

    def gamma(self, k: int) -> float:
        return k * self.u / (1 - k * self.u) if k * self.u < 1 else np.inf

    def lift(self, fractions: np.ndarray) -> Planes:
        value = fractions.astype(np.float64).astype(self.dtypes[0])
        error = elementwise(lambda x, y: float(abs(x - as_fraction(y))) * UP, fractions, value.astype(object))
        return value, error

    def fractions(self, x: Array) -> np.ndarray:
        return elementwise(as_fraction, x.planes[0].astype(object))

    def value(self, x: Array) -> np.ndarray:
        return x.planes[0]

    def error(self, x: Array) -> np.ndarray:
        return x.planes[1]

    def _result(self, value: Any, spread: Any, roundings: float = 1.0) -> Planes:
        """A value rounded that many times, from operands that spread that much."""
        size = np.abs(np.asarray(value, dtype=np.float64))
        with np.errstate(invalid="ignore"):
            error = (spread + roundings * self.u / (1 - roundings * self.u) * size + self.tiny) * UP
        return value, np.where(np.isfinite(size) & ~np.isnan(error), error, np.inf)

    def add(self, x: Planes, y: Planes) -> Planes:
        return self._result(x[0] + y[0], x[1] + y[1])

    def neg(self, x: Planes) -> Planes:
        return -x[0], x[1]

    def mul(self, x: Planes, y: Planes) -> Planes:
        a, b = _sizes(x, y)
        return self._result(x[0] * y[0], a * y[1] + b * x[1] + x[1] * y[1])

    def div(self, x: Planes, y: Planes) -> Planes:
        a, b = _sizes(x, y)
        with np.errstate(divide="ignore", invalid="ignore"):
            spread = np.where(b > y[1], (x[1] + a / b * y[1]) / (b - y[1]), np.inf)
            return self._result(x[0] / y[0], spread)

    def less(self, x: Planes, y: Planes) -> np.ndarray:
        return x[0] < y[0]

    def maximum(self, x: Array, y: Array) -> Array:
        """|max(a,b) − max(a',b')| ≤ max(|a−a'|, |b−b'|)"""
        return self.wrap((np.maximum(x.planes[0], y.planes[0]), np.maximum(x.planes[1], y.planes[1])))

    def singular(self, x: Array) -> np.ndarray:
        return x.planes[0] == 0

    def isfinite(self, x: Array) -> np.ndarray:
        return np.isfinite(x.planes[0])

    def sum(self, x: Array, *, axis: int, keepdims: bool = False) -> Array:
        value, error = (np.sum(p, axis=axis, keepdims=keepdims) for p in x.planes)
        size = np.sum(np.abs(x.planes[0]).astype(np.float64), axis=axis, keepdims=keepdims)
        return self.wrap(self._result(value, error + self.gamma(x.shape[axis]) * size))

    def matmul(self, x: Array, y: Any) -> Array:
        y, k = self.coerce("matmul", y), x.shape[-1]
        a, b = _sizes(x.planes, y.planes)
        spread = a @ y.planes[1] + x.planes[1] @ b + x.planes[1] @ y.planes[1] + self.gamma(k + 1) * (a @ b) + k * self.tiny
        return self.wrap(self._result(x.planes[0] @ y.planes[0], spread * (1 + k * 2.0**-50)))

    def function(self, name: str, x: Array) -> Array:
        value, error = x.planes
        with np.errstate(over="ignore", invalid="ignore"):
            result = getattr(np, name)(value)
            size = np.abs(result.astype(np.float64))
            spread = {"exp": lambda: size * (1 + LIBM * self.u) * np.expm1(error), "cos": lambda: error, "sin": lambda: error}
            if name == "sqrt":  # |√a − √b| = |a−b|/(√a+√b), and the true number may be as small as a − error
                low = np.maximum(value.astype(np.float64) - error, 0)
                return self.wrap(self._result(result, error / (size + np.sqrt(low)), LIBM))
            return self.wrap(self._result(result, spread[name](), LIBM))

    def random(self, shape: tuple[int, ...], seed: int) -> Array:
        """Uniform over [-1, 1), rounded, without error."""
        value = np.random.default_rng(seed).uniform(-1, 1, shape).astype(self.dtypes[0])
        return self.wrap((value, np.zeros(shape)))

    def angles(self, frequencies: Any, positions: Any) -> tuple[Array, Array]:
        from .floats import host_angles

        tables = (t.astype(self.dtypes[0]) for t in host_angles(frequencies, positions))
        cos, sin = (self.wrap((t, np.full(t.shape, 2.0**-51 + self.u))) for t in tables)
        return cos, sin


def _sizes(x: Planes, y: Planes) -> tuple[np.ndarray, np.ndarray]:
    return np.abs(x[0]).astype(np.float64), np.abs(y[0]).astype(np.float64)
