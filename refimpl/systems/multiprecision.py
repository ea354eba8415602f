"""mpmath at a stated precision, in a context of its own: the user's `mpmath.mp` is never touched."""

from __future__ import annotations

from contextlib import AbstractContextManager
from fractions import Fraction
from operator import itemgetter
from typing import Any

import numpy as np

from . import slices
from .array import ObjectSystem, SystemArray, elementwise


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
        self._exact = mpmath.MPContext()  # in which sums of products do not round
        self._exact.prec = self.ctx.prec + 2**16

    def number(self, x: Fraction) -> Any:
        return self.ctx.make_mpf(self.libmp.from_rational(x.numerator, x.denominator, self.ctx.prec, "n"))

    def fractions(self, x: SystemArray) -> np.ndarray:
        return elementwise(lambda a: Fraction(*map(int, self.libmp.to_rational(a._mpf_))), x.planes[0])

    def as_floats(self, x: SystemArray) -> np.ndarray | None:
        near = x.planes[0].astype(np.float64)
        return near if np.isfinite(near).all() and np.all(x.planes[0] == near) else None

    def function(self, name: str, x: SystemArray) -> SystemArray:
        return self.wrap((elementwise(getattr(self.ctx, name), x.planes[0]),))

    def isfinite(self, x: SystemArray) -> np.ndarray:
        return elementwise(self.ctx.isfinite, x.planes[0]).astype(bool)

    def matmul(self, x: SystemArray, y: Any) -> SystemArray:
        """Σ_k x[..., k] y[k, ...]: the exact sum, rounded once, to nearest; but on the way it is held to 2¹⁶ bits at most.

        Each row of x and each column of y are integers times a power of two, so the product is one of integers; unless it is small,
        exponents lie far apart within a row or column, or there are numbers that have none: inf, nan, complex ones.
        """
        y = self.right_factor(x, y)
        a, b = x.planes[0], np.swapaxes(y.planes[0], -1, -2)
        left, right = (aligned(a), aligned(b)) if slices.terms(x, y) > SMALL else (None, None)
        if not left or not right:
            wide = self._exact.convert  # another context: that of this system may be in use in other threads
            total = super().matmul(*(self.wrap((elementwise(wide, v.planes[0]),)) for v in (x, y)))
            return self.wrap((elementwise(lambda v: +self.ctx.convert(v), total.planes[0]),))
        man = slices.matmul(left[0], slices.Integers(*(np.swapaxes(v, -1, -2) for v in right[0])))
        exp = np.broadcast_to(left[1] + np.swapaxes(right[1], -1, -2), man.shape)
        new, mpf, prec = object.__new__, self.ctx.mpf, self.ctx.prec
        made = [new(mpf) for _ in range(man.size)]  # as ctx.make_mpf does, without a call for each
        rounded = (
            self.libmp.from_man_exp if self.libmp.BACKEND == "gmpy" else self._rounded
        )  # the one in C is the faster, else ours is
        for v, m, e in zip(made, man.flat, exp.ravel().tolist(), strict=True):
            v._mpf_ = rounded(m, e, prec, "n")
        return self.wrap((np.fromiter(made, object, len(made)).reshape(man.shape),))

    def _rounded(self, m: int, e: int, prec: int, rounding: str) -> Any:
        """m 2^e as mpmath holds it; libmp.from_man_exp, without what it asks of its arguments."""
        return self.libmp.normalize(1 if m < 0 else 0, abs(m), e, m.bit_length(), prec, rounding)

    def random(self, shape: tuple[int, ...], seed: int) -> SystemArray:
        """Uniform over the multiples of 2⁻⁵² in [-1, 1)."""
        return self.convert(np.random.default_rng(seed).uniform(-1, 1, shape))

    def guard(self, bits: int) -> AbstractContextManager:
        return self.ctx.extraprec(bits + 8)

    def power(self, base: Any, exponent: Any) -> Any:
        return self.ctx.power(base, exponent)


SMALL = 100  # terms: up to here mpmath's own loop is sooner done
WIDE = 2**12  # bits: from here on, too


def aligned(x: np.ndarray) -> tuple[slices.Integers, np.ndarray] | None:
    """(m, e), integers and an exponent for each row, such that x = m 2^e; None if there are none below 2^WIDE."""
    try:
        parts = [v._mpf_ for v in x.flat]
        sign, exp, bits = (
            np.fromiter(map(itemgetter(i), parts), np.int32, len(parts)).astype(np.int64).reshape(x.shape)
            for i in (0, 2, 3)
        )
    except (AttributeError, OverflowError):  # a complex number, an exponent beyond 2³¹
        return None
    low = np.where(bits, exp, 2**31).min(axis=-1, keepdims=True)  # a zero has no exponent of its own
    up = np.where(bits, exp - low, 0)
    if bits.min() < 0 or (up + bits).max() > WIDE:
        return None  # inf and nan have bit counts below 0
    man = np.fromiter(map(itemgetter(1), parts), object, len(parts)).reshape(x.shape)
    return slices.Integers(man, bits, 1 - 2 * sign, up), low
