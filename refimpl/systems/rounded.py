"""A model of low precision: float64 numbers, rounded to a narrow format at named points.

    inputs        `convert` always rounds
    elementwise   + − × ÷ and functions round their result
    sums          a sum or matrix product is formed wide and rounded once
    partial       every partial sum is rounded (a narrow accumulator)

A wide state under narrow inputs is `Rounded("float32").convert(Rounded("bfloat16").convert(x))`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays import HostArray
from ..errors import choose
from .array import ArraySystem, Frequencies, Planes, SystemArray, elementwise, fractions, generator
from .floats import host_angles, read_dtype
from .formats import FORMATS, nearest, round_to

POINTS = ("elementwise", "sums")


class Rounded(ArraySystem):
    """A narrow format, e.g. "bfloat16": float64 numbers that are rounded to it at named points."""

    words = ("rounded",)
    ways = ("probe", "oracle")
    dtypes = (np.dtype(np.float64),)

    def __init__(self, format: Any, points: tuple[str, ...] = POINTS) -> None:
        format = (read_dtype(format) or ("", format))[1]
        choose("Rounded", "format", format, FORMATS)
        if not isinstance(points, tuple | list):
            raise TypeError(f"Rounded: `points` must be a tuple, got {type(points).__name__}")
        for point in points:
            choose("Rounded", "points", point, ("elementwise", "sums", "partial"))
        self.format, self.points = format, tuple(points)
        self.name, self.label = f"{format} rounded at {', '.join(('inputs', *points))}", f"rounded({format})"

    @classmethod
    def from_label(cls, word: str, argument: str) -> Rounded:
        return cls(argument or "bfloat16")

    def _at(self, point: str, x: Any) -> Any:
        return round_to(x, self.format) if point in self.points else x

    def lift(self, fractions: HostArray) -> Planes:
        return (elementwise(lambda x: nearest(x, self.format), fractions),)

    def fractions(self, x: SystemArray) -> HostArray:
        return fractions(x.planes[0], self.name)

    def add(self, x: Planes, y: Planes) -> Planes:
        return (self._at("elementwise", x[0] + y[0]),)

    def neg(self, x: Planes) -> Planes:
        return (-x[0],)

    def mul(self, x: Planes, y: Planes) -> Planes:
        return (self._at("elementwise", x[0] * y[0]),)

    def div(self, x: Planes, y: Planes) -> Planes:
        return (self._at("elementwise", x[0] / y[0]),)

    def less(self, x: Planes, y: Planes) -> HostArray:
        return np.asarray(x[0] < y[0])

    def maximum(self, x: SystemArray, y: SystemArray) -> SystemArray:
        return self.wrap((np.maximum(x.planes[0], y.planes[0]),))

    def isfinite(self, x: SystemArray) -> HostArray:
        return np.asarray(np.isfinite(x.planes[0]))

    def function(self, name: str, x: SystemArray) -> SystemArray:
        return self.wrap((self._at("elementwise", getattr(np, name)(x.planes[0])),))

    def sum(self, x: SystemArray, *, axis: int, keepdims: bool = False) -> SystemArray:
        if "partial" not in self.points:
            return self.wrap((self._at("sums", np.sum(x.planes[0], axis=axis, keepdims=keepdims)),))
        total = np.zeros(np.delete(x.shape, axis))
        for i in range(x.shape[axis]):
            total = round_to(total + np.take(x.planes[0], i, axis=axis), self.format)
        return self.wrap((np.expand_dims(total, axis) if keepdims else total,))

    def matmul(self, x: SystemArray, y: Any) -> SystemArray:
        a, b = x.planes[0], self.right_factor(x, y).planes[0]
        if "partial" not in self.points:
            return self.wrap((self._at("sums", a @ b),))
        return self.sum(self.wrap((a[..., :, :, None] * b[..., None, :, :],)), axis=-2)

    def random(self, shape: tuple[int, ...], seed: int) -> SystemArray:
        return self.convert(generator(f"{self.name}.random", shape, seed).uniform(-1, 1, shape))

    def angles(self, frequencies: Frequencies, positions: Any) -> tuple[SystemArray, SystemArray]:
        cos, sin = (self.wrap((round_to(t, self.format),)) for t in host_angles(frequencies, positions))
        return cos, sin
