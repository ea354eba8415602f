"""Analysis: which inputs can an entry depend on? Shows causality by structure, not by example.

An entry is a set of labels, held as the bits of an integer. A structural zero depends on nothing,
nor does its product with anything. A function depends on the inputs that its argument depends on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..arrays import HostArray
from ..errors import NotDefined
from .array import ArraySystem, Planes, SystemArray, elementwise


class Dependencies(ArraySystem):
    """Sets of labels in place of numbers: the inputs on which an entry can depend."""

    name = "dependencies"
    ways = ("structure",)
    dtypes = (np.dtype(object), np.dtype(bool))  # the set, and whether the entry is other than a structural zero

    def lift(self, fractions: HostArray) -> Planes:
        return np.zeros(fractions.shape, dtype=object), elementwise(lambda x: x != 0, fractions)

    def tokens(self, shape: tuple[int, ...], labels: Sequence[int] | None = None) -> SystemArray:
        """Inputs (..., n, d) in which every entry of token t carries the label t (or labels[t])."""
        bits = [1 << t for t in (labels if labels is not None else range(shape[-2]))]
        sets = np.broadcast_to(np.array(bits, dtype=object)[:, None], shape)
        return self.wrap((sets, np.ones(shape, dtype=bool)))

    def sets(self, x: SystemArray) -> HostArray:
        """The entries as Python sets (an object array)."""
        return elementwise(lambda b: {i for i in range(b.bit_length()) if b >> i & 1}, x.planes[0])

    def add(self, x: Planes, y: Planes) -> Planes:
        return x[0] | y[0], x[1] | y[1]

    def neg(self, x: Planes) -> Planes:
        return x

    def mul(self, x: Planes, y: Planes) -> Planes:
        nonzero = x[1] & y[1]
        return np.where(nonzero, np.asarray(x[0] | y[0], dtype=object), 0), nonzero

    def div(self, x: Planes, y: Planes) -> Planes:
        return self.mul(x, (y[0], np.ones_like(y[1])))

    def eq(self, x: Planes, y: Planes) -> HostArray:
        raise NotDefined("values are not known in dependencies; what depends on a comparison would go unseen")

    def unequal(self, x: SystemArray, y: SystemArray) -> HostArray:
        return ~super().eq(x.planes, y.planes)

    def maximum(self, x: SystemArray, y: SystemArray) -> SystemArray:
        return x + y

    def function(self, name: str, x: SystemArray) -> SystemArray:
        return self.wrap((x.planes[0], np.ones(x.shape, dtype=bool)))

    def singular(self, x: SystemArray) -> HostArray:
        return ~x.planes[1]

    def angles(self, frequencies: Any, positions: Any) -> tuple[SystemArray, SystemArray]:
        shape = (*np.asarray(positions).shape, len(frequencies))
        return self.ones(shape), self.ones(shape)
