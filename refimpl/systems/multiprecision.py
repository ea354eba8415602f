"""mpmath at a stated precision, in a context of its own: the user's `mpmath.mp` is never touched."""

from __future__ import annotations

from contextlib import AbstractContextManager
from fractions import Fraction
from typing import Any

import numpy as np

from .array import Array, ObjectSystem, elementwise


class Multiprecision(ObjectSystem):
    def __init__(self, digits: int) -> None:
        if not isinstance(digits, int) or digits < 1:
            raise ValueError(f"MP: digits must be a positive integer, got {digits!r}")
        import mpmath

        self.digits = digits
        self.ctx = mpmath.MPContext()
        self.ctx.dps = digits
        self.name = f"mpmath({digits} digits)"
        self.libmp = mpmath.libmp

    def number(self, x: Fraction) -> Any:
        return self.ctx.make_mpf(self.libmp.from_rational(x.numerator, x.denominator, self.ctx.prec, "n"))

    def fractions(self, x: Array) -> np.ndarray:
        return elementwise(lambda a: Fraction(*map(int, self.libmp.to_rational(a._mpf_))), x.planes[0])

    def as_floats(self, x: Array) -> np.ndarray | None:
        near = x.planes[0].astype(np.float64)
        return near if np.isfinite(near).all() and np.all(x.planes[0] == near) else None

    def function(self, name: str, x: Array) -> Array:
        return self.wrap((elementwise(getattr(self.ctx, name), x.planes[0]),))

    def isfinite(self, x: Array) -> np.ndarray:
        return elementwise(self.ctx.isfinite, x.planes[0]).astype(bool)

    def random(self, shape: tuple[int, ...], seed: int) -> Array:
        """Uniform over the multiples of 2⁻⁵² in [-1, 1)."""
        return self.convert(np.random.default_rng(seed).uniform(-1, 1, shape))

    def guard(self, bits: int) -> AbstractContextManager:
        return self.ctx.extraprec(bits + 8)

    def power(self, base: Any, exponent: Any) -> Any:
        return self.ctx.power(base, exponent)
