"""Dual numbers a + b ε, ε² = 0, over any system: exact derivatives, also in ℚ and GF(p)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays import HostArray
from ..errors import brief
from .array import ArraySystem, Frequencies, Planes, SystemArray


class Dual(ArraySystem):
    """Dual numbers a + bε, ε² = 0, over a base system: b is an exact derivative."""

    def __init__(self, base: ArraySystem) -> None:
        if not isinstance(base, ArraySystem):
            raise TypeError(
                f"Dual: base must be a system with arrays of its own (ℚ, GF(p), mpmath ...), got {brief(base)}"
            )
        self.base = base
        self.name = f"dual numbers over {base.name}"
        self.can, self.exact = base.can, base.exact
        self.dtypes = base.dtypes * 2

    def join(self, value: SystemArray, tangent: SystemArray) -> SystemArray:
        """value + tangent ε; a variable has tangent 1, a constant 0."""
        shape = np.broadcast_shapes(value.shape, tangent.shape)
        return self.wrap(self.base.broadcast_to(value, shape).planes + self.base.broadcast_to(tangent, shape).planes)

    def value(self, x: SystemArray) -> SystemArray:
        return self.base.wrap(x.planes[: len(self.base.dtypes)])

    def tangent(self, x: SystemArray) -> SystemArray:
        return self.base.wrap(x.planes[len(self.base.dtypes) :])

    def _split(self, *operands: Planes) -> list[SystemArray]:
        return [part(self.wrap(x)) for x in operands for part in (self.value, self.tangent)]

    def lift(self, fractions: HostArray) -> Planes:
        value = self.base.wrap(self.base.lift(fractions))
        return value.planes + self.base.zeros(value.shape).planes

    def add(self, x: Planes, y: Planes) -> Planes:
        a, da, b, db = self._split(x, y)
        return (a + b).planes + (da + db).planes

    def neg(self, x: Planes) -> Planes:
        a, da = self._split(x)
        return (-a).planes + (-da).planes

    def mul(self, x: Planes, y: Planes) -> Planes:
        a, da, b, db = self._split(x, y)
        return (a * b).planes + (a * db + da * b).planes

    def div(self, x: Planes, y: Planes) -> Planes:
        a, da, b, db = self._split(x, y)
        return (a / b).planes + ((da - a / b * db) / b).planes

    def eq(self, x: Planes, y: Planes) -> HostArray:
        a, da, b, db = self._split(x, y)
        return np.asarray((a == b) & (da == db))

    def less(self, x: Planes, y: Planes) -> HostArray:
        a, _, b, _ = self._split(x, y)
        return np.asarray(a < b)

    def minimum(self, x: SystemArray, y: SystemArray) -> SystemArray:
        """At a tie, maximum keeps x and minimum y: max(x, 0) + exp(min(x, 0)) has slope 1 at 0."""
        return self.where(x < y, x, y)

    def singular(self, x: SystemArray) -> HostArray:
        return self.base.singular(self.value(x))

    def isfinite(self, x: SystemArray) -> HostArray:
        return self.base.isfinite(self.value(x)) & self.base.isfinite(self.tangent(x))

    def matmul(self, x: SystemArray, y: Any) -> SystemArray:
        a, da, b, db = self._split(x.planes, self.coerce("matmul", y).planes)
        return self.join(a @ b, a @ db + da @ b)

    def function(self, name: str, x: SystemArray) -> SystemArray:
        """Chain rule."""
        a, da = self._split(x.planes)
        f = getattr(self.base, name)(a)
        slope: dict[str, Callable[[], SystemArray]] = {
            "exp": lambda: f,
            "log": lambda: 1 / a,
            "sqrt": lambda: 1 / (f + f),
            "cos": lambda: -self.base.sin(a),
            "sin": lambda: self.base.cos(a),
            "tanh": lambda: 1 - f * f,
        }
        return self.join(f, slope[name]() * da)

    def random(self, shape: tuple[int, ...], seed: int) -> SystemArray:
        """Uniform values with uniform tangents."""
        both = self.base.convert(self.base.random((2, *shape), seed))
        return self.join(both[0], both[1])

    def angles(self, frequencies: Frequencies, positions: Any) -> tuple[SystemArray, SystemArray]:
        cos, sin = (self.base.convert(x) for x in self.base.angles(frequencies, positions))
        return self.join(cos, self.base.zeros(cos.shape)), self.join(sin, self.base.zeros(sin.shape))
