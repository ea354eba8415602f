"""Balls: rigorous enclosures of real numbers. Where x − y contains 0 with radius ρ, |x − y| ≤ 2ρ.

Two libraries make them: python-flint (`arb`) when it is installed, else mpmath (`iv`).
"""

from __future__ import annotations

import functools
import importlib.util
import math
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Any, TypeVar, cast

import numpy as np

from ..arrays import HostArray
from ..errors import NotDefined, choose
from .array import GLOBAL_STATE, ObjectSystem, Planes, SystemArray, check_digits, elementwise, integer_argument, once

Method = TypeVar("Method", bound=Callable[..., Any])


class Balls(ObjectSystem):
    """Interval arithmetic by mpmath.iv, in its own context."""

    words = ("balls",)
    ways = ("enclosure",)
    maker = "mpmath.iv"

    def __init__(self, digits: int) -> None:
        check_digits("Balls", digits)
        self.digits, self.label = digits, f"balls({digits})"
        self.name = f"balls({digits} digits, {self.maker})"
        self._start()

    @classmethod
    def from_label(cls, word: str, argument: str) -> Balls:
        return balls(integer_argument(word, argument, 30))

    def _start(self) -> None:
        import mpmath

        self.libmp, self.ctx = mpmath.libmp, mpmath.MPIntervalContext()
        self.ctx.dps = self.digits
        self.unit = 1 + self.ctx.mpf([-1, 1]) * self.ctx.mpf(2) ** (1 - self.ctx.prec)

    def number(self, x: Fraction) -> Any:
        return self.ctx.mpf(x.numerator) / self.ctx.mpf(x.denominator)

    def _ends(self, x: Any) -> tuple[Fraction, Fraction]:
        low, high = (Fraction(*map(int, self.libmp.to_rational(end))) for end in x._mpi_)
        return low, high

    def bounded(self, x: Any) -> bool:
        return not {self.libmp.finf, self.libmp.fnan, self.libmp.fninf} & set(x._mpi_)

    def hull(self, x: Any, y: Any) -> Any:
        """The least ball around two."""
        return self.ctx.mpf([min(x.a, y.a), max(x.b, y.b)])

    def _max(self, x: Any, y: Any) -> Any:
        return self.ctx.mpf([max(x.a, y.a), max(x.b, y.b)])

    def power(self, base: Fraction, exponent: Fraction, bits: int) -> Any:
        with GLOBAL_STATE:
            return self.ctx.power(self.number(base), self.number(exponent)) * self.unit

    def apply(self, name: str, x: Any) -> Any:
        # About once in 10⁴ times, mpmath's exp misses its enclosure by a last place, which `unit`
        # makes up for, for log too.
        if name == "tanh":  # mpmath.iv has none
            return 1 - 2 / (self.apply("exp", x + x) + 1)
        try:
            y = getattr(self.ctx, name)(x)
        except self.libmp.ComplexResult:
            return self.ctx.mpf(["-inf", "inf"])
        return y * self.unit if name in ("exp", "log") else y

    def isfinite(self, x: SystemArray) -> HostArray:
        return elementwise(self.bounded, x.planes[0]).astype(bool)

    def eq(self, x: Planes, y: Planes) -> HostArray:
        """May the two be equal? (The difference contains 0.)"""
        return elementwise(self._contains_zero, (x[0] - y[0])).astype(bool)

    def _contains_zero(self, x: Any) -> bool:
        low, high = self._ends(x) if self.bounded(x) else (0, 0)
        return low <= 0 <= high

    def less(self, x: Planes, y: Planes) -> HostArray:
        raise NotDefined(f"balls overlap, so their order is not decided in {self.name}; use maximum")

    def maximum(self, x: SystemArray, y: SystemArray) -> SystemArray:
        return self.wrap((elementwise(self._max, x.planes[0], y.planes[0]),))

    def div(self, x: Planes, y: Planes) -> Planes:
        """x / y; the whole real line where y contains zero."""
        return (x[0] / y[0],)

    def function(self, name: str, x: SystemArray) -> SystemArray:
        with GLOBAL_STATE:
            return self.wrap((elementwise(functools.partial(self.apply, name), x.planes[0]),))

    def ends(self, x: Any) -> tuple[Fraction, Fraction]:
        """A ball's two ends, exactly."""
        if not self.bounded(x):
            raise ValueError(f"an unbounded ball of {self.name} has no ends")
        return self._ends(x)

    def convert(self, values: Any) -> SystemArray:
        """The smallest balls around numbers, or around balls of another precision or library."""
        other = values.system if isinstance(values, SystemArray) else None
        if isinstance(other, Balls) and other != self:
            low, high = (self.lift(elementwise(lambda x, i=i: other.ends(x)[i], values.planes[0]))[0] for i in (0, 1))
            return self.wrap((elementwise(self.hull, low, high),))
        return super().convert(values)

    def fractions(self, x: SystemArray) -> HostArray:
        """The midpoints."""
        return elementwise(lambda a: sum(self.ends(a)) / 2, x.planes[0])

    def radius(self, x: SystemArray) -> float:
        """The largest radius, rounded up; infinite for an unbounded ball."""
        ends = map(self._ends, x.planes[0].flat)
        if not self.isfinite(x).all() or (largest := max((b - a for a, b in ends), default=0) / 2) > sys.float_info.max:
            return math.inf
        return math.nextafter(float(largest), math.inf) if largest else 0.0


def at_own_precision(method: Method) -> Method:
    """The method, run at the precision of its system: python-flint has one for all threads."""

    @functools.wraps(method)
    def run(self: ArbBalls, *args: Any, **options: Any) -> Any:
        with GLOBAL_STATE, self.flint.ctx.workdps(self.digits):
            return method(self, *args, **options)

    return cast(Method, run)


class ArbBalls(Balls):
    """The same by python-flint's arb."""

    maker = "flint.arb"

    lift = at_own_precision(Balls.lift)
    add, mul, div = map(at_own_precision, (Balls.add, Balls.mul, Balls.div))
    neg = at_own_precision(Balls.neg)
    eq = at_own_precision(Balls.eq)
    sum = at_own_precision(Balls.sum)
    maximum = at_own_precision(Balls.maximum)
    function = at_own_precision(Balls.function)
    convert = at_own_precision(Balls.convert)
    angles = at_own_precision(Balls.angles)

    def _start(self) -> None:
        import flint

        self.flint = flint

    def number(self, x: Fraction) -> Any:
        return self.flint.arb(self.flint.fmpq(x.numerator, x.denominator))

    def _ends(self, x: Any) -> tuple[Fraction, Fraction]:
        mid, rad = (int(m) * Fraction(2) ** int(e) for m, e in (x.mid().man_exp(), x.rad().man_exp()))
        return mid - rad, mid + rad

    def bounded(self, x: Any) -> bool:
        return bool(x.is_finite())

    def _max(self, x: Any, y: Any) -> Any:
        return x.max(y)

    def power(self, base: Fraction, exponent: Fraction, bits: int) -> Any:
        return self.number(base) ** self.number(exponent)

    def hull(self, x: Any, y: Any) -> Any:
        return x.union(y)

    def apply(self, name: str, x: Any) -> Any:
        return getattr(x, name)()

    @at_own_precision
    def matmul(self, x: SystemArray, y: Any) -> SystemArray:
        """By arb_mat, whose enclosures are mostly smaller than those of sums term by term."""
        y = self.right_factor(x, y)
        lead = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        left, right = (self._matrices(np.broadcast_to(v.planes[0], (*lead, *v.shape[-2:]))) for v in (x, y))
        entries = [e for a, b in zip(left, right, strict=True) for e in (a * b).entries()]
        return self.wrap((np.fromiter(entries, object, len(entries)).reshape(*lead, x.shape[-2], y.shape[-1]),))

    def _matrices(self, x: HostArray) -> list[Any]:
        *lead, rows, columns = x.shape
        return [self.flint.arb_mat(rows, columns, x[i].ravel().tolist()) for i in np.ndindex(*lead)]


@once
def balls(digits: int, maker: str | None = None) -> Balls:
    """Balls by `arb` (python-flint) when installed, else by `mpmath.iv`; or by the given maker."""
    installed = importlib.util.find_spec("flint")
    maker = ("arb" if installed else "iv") if maker is None else maker
    choose("balls", "maker", maker, ("arb", "iv"))
    if maker == "arb" and not installed:
        raise ImportError("python-flint is not installed: pip install 'refimpl[fast]'")
    return ArbBalls(digits) if maker == "arb" else Balls(digits)
