"""ℚ: exact rationals. Whatever holds here, holds."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from .array import Array, ObjectSystem


class Rational(ObjectSystem):
    name = "ℚ"
    can = frozenset({"ring", "field", "ordered"})
    exact = True

    def number(self, x: Fraction) -> Fraction:
        return x

    def fractions(self, x: Array) -> np.ndarray:
        return x.planes[0]

    def random(self, shape: tuple[int, ...], seed: int) -> Array:
        """Uniform over the 97 numbers a/8, |a| ≤ 48: a convenience, not a law of ℚ, which has no uniform one."""
        draws = np.random.default_rng(seed).integers(-48, 49, shape)
        return self.convert(draws) / 8
