"""Analysis: (degree of numerator, degree of denominator) of every entry, as a polynomial in the inputs.

Upper bounds, computed by running the source itself; they are what identity testing in GF(p) needs.
The zero polynomial has degree −∞. Denominators are taken to be unrelated, the worst case.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .array import Array, ArraySystem, Planes, elementwise


class Degrees(ArraySystem):
    name = "degrees"
    can = frozenset({"ring", "field"})
    dtypes = (object, object)

    def lift(self, fractions: np.ndarray) -> Planes:
        numerator = elementwise(lambda x: -math.inf if x == 0 else 0, fractions)
        return numerator, np.zeros_like(numerator)

    def variables(self, shape: tuple[int, ...], numerator: int = 1, denominator: int = 0) -> Array:
        """Inputs: each entry a variable of its own, or a rational function of the given degrees."""
        return self.wrap((np.full(shape, numerator, dtype=object), np.full(shape, denominator, dtype=object)))

    def add(self, x: Planes, y: Planes) -> Planes:
        """a/b + c/d = (ad + cb)/bd; a constant or zero side needs no common denominator."""
        return np.maximum(x[0] + y[1], y[0] + x[1]), x[1] + y[1]

    def neg(self, x: Planes) -> Planes:
        return x

    def mul(self, x: Planes, y: Planes) -> Planes:
        n = x[0] + y[0]
        return n, np.where(n == -math.inf, 0, x[1] + y[1])

    def div(self, x: Planes, y: Planes) -> Planes:
        """(a/b)/(c/d) = ad/bc"""
        self.refuse_zero(y)
        n = x[0] + y[1]
        return n, np.where(n == -math.inf, 0, x[1] + y[0])

    def worst(self, x: Array) -> tuple[Any, Any]:
        """The largest degrees of numerator and denominator."""
        return tuple(max(p.ravel().tolist(), default=0) for p in x.planes)  # type: ignore[return-value]
