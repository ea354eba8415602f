"""mpmath at a stated precision, in its own context: the user's `mpmath.mp` is never changed."""

from __future__ import annotations

import functools
from fractions import Fraction
from itertools import repeat
from operator import itemgetter
from typing import Any

import numpy as np

from ..arrays import HostArray
from . import slices
from .array import GLOBAL_STATE, ObjectSystem, SystemArray, check_digits, elementwise, integer_argument, once


class Multiprecision(ObjectSystem):
    """mpmath's numbers, with a stated number of decimal digits."""

    words = ("mpmath",)
    ways = ("bound",)

    def __init__(self, digits: int) -> None:
        check_digits("MP", digits)
        import mpmath

        self.digits, self.name, self.label = digits, f"mpmath({digits} digits)", f"mpmath({digits})"
        self.libmp, self.ctx = mpmath.libmp, context(mpmath.libmp.dps_to_prec(digits))
        self._exact = context(self.ctx.prec + 2**16)  # its sums of products do not round

    @classmethod
    def from_label(cls, word: str, argument: str) -> Multiprecision:
        return MP(integer_argument(word, argument, 50))

    def number(self, x: Fraction) -> Any:
        return self._nearest(x, self.ctx)

    def _nearest(self, x: Fraction, ctx: Any) -> Any:
        return ctx.make_mpf(self.libmp.from_rational(x.numerator, x.denominator, ctx.prec, "n"))

    def fractions(self, x: SystemArray) -> HostArray:
        return elementwise(lambda a: Fraction(*map(int, self.libmp.to_rational(a._mpf_))), x.planes[0])

    def as_floats(self, x: SystemArray) -> HostArray | None:
        near = x.planes[0].astype(np.float64)
        return near if np.isfinite(near).all() and np.all(x.planes[0] == near) else None

    def function(self, name: str, x: SystemArray) -> SystemArray:
        with GLOBAL_STATE:
            return self.wrap((elementwise(getattr(self.ctx, name), x.planes[0]),))

    def isfinite(self, x: SystemArray) -> HostArray:
        return elementwise(self.ctx.isfinite, x.planes[0]).astype(bool)

    def matmul(self, x: SystemArray, y: Any) -> SystemArray:
        """Σ_k x[..., k] y[k, ...]: the exact sum (of at most 2¹⁶ bits), rounded once, to nearest.

        Each row of x and each column of y are integers times a power of two, so this is a product
        of integers. mpmath's own loop is taken where the product is small, where exponents lie far
        apart within a row or column, and for numbers without exponent: inf, nan, complex ones.
        """
        y = self.right_factor(x, y)
        a, b = x.planes[0], np.swapaxes(y.planes[0], -1, -2)
        terms = min(a.size * b.shape[-2], b.size * a.shape[-2])  # products of two entries, at least
        left, right = (align(a), align(b)) if terms > SMALL else (None, None)
        if not left or not right:
            wide = self._exact.convert
            total = super().matmul(*(self.wrap((elementwise(wide, v.planes[0]),)) for v in (x, y)))
            return self.wrap((elementwise(lambda v: +self.ctx.convert(v), total.planes[0]),))
        man = slices.matmul(left[0], slices.Integers(*(np.swapaxes(v, -1, -2) for v in right[0])))
        exp = np.broadcast_to(left[1] + np.swapaxes(right[1], -1, -2), man.shape)
        entries = list(map(object.__new__, repeat(self.ctx.mpf, man.size)))  # ctx.make_mpf without its calls
        # With gmpy2, libmp's function is written in C and faster than ours.
        round_off = self.libmp.from_man_exp if self.libmp.BACKEND == "gmpy" else self._round
        rounded = map(round_off, man.ravel().tolist(), exp.ravel().tolist(), repeat(self.ctx.prec), repeat("n"))
        for v, parts in zip(entries, rounded, strict=True):
            v._mpf_ = parts
        return self.wrap((np.fromiter(entries, object, len(entries)).reshape(man.shape),))

    def _round(self, m: int, e: int, prec: int, rounding: str) -> Any:
        """m 2^e as mpmath holds it: libmp.from_man_exp without its checks of arguments."""
        return self.libmp.normalize(1 if m < 0 else 0, abs(m), e, m.bit_length(), prec, rounding)

    def power(self, base: Fraction, exponent: Fraction, bits: int) -> Any:
        wide = context(self.ctx.prec + bits + 8)
        with GLOBAL_STATE:
            return wide.power(self._nearest(base, wide), self._nearest(exponent, wide))


@functools.cache
def context(prec: int) -> Any:
    """mpmath with so many bits. Nobody may change it: other threads use it too."""
    import mpmath

    ctx = mpmath.MPContext()
    ctx.prec = prec
    return ctx


MP = once(Multiprecision)
SMALL = 100  # terms up to which mpmath's own loop is faster
WIDE = 2**12  # bits from which it is faster, too


def align(x: HostArray) -> tuple[slices.Integers, HostArray] | None:
    """(m, e) with x = m 2^e: integers below 2^WIDE, an exponent a row; None if impossible."""
    try:
        parts = [v._mpf_ for v in x.flat]
        flat = (np.fromiter(map(itemgetter(i), parts), np.int32, len(parts)) for i in (0, 2, 3))
        sign, exp, bits = (values.astype(np.int64).reshape(x.shape) for values in flat)
    except (AttributeError, OverflowError):  # a complex number, an exponent beyond 2³¹
        return None
    low = np.where(bits, exp, 2**31).min(axis=-1, keepdims=True)  # a zero has no exponent
    up = np.where(bits, exp - low, 0)
    if bits.min() < 0 or (up + bits).max() > WIDE:
        return None  # inf and nan have bit counts below 0
    man = np.fromiter(map(itemgetter(1), parts), object, len(parts)).reshape(x.shape)
    return slices.Integers(man, bits, 1 - 2 * sign, up), low
