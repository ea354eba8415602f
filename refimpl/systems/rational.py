"""ℚ: exact rationals. An identity that holds here holds.

Two libraries make the numbers: gmpy2 (`mpq`) when it is installed, Python (`Fraction`) otherwise.
Values and printed forms are the same; only `planes` shows which it was.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from fractions import Fraction
from typing import Any, cast

import numpy as np

from ..arrays import HostArray
from ..errors import choose
from . import slices
from .array import ObjectSystem, SystemArray, as_fraction, elementwise, generator, refuse_argument

# The plain loop of a matrix product is faster up to so many terms, and from so many bits on.
SMALL, WIDE = {"fractions": 30, "gmpy2": 2000}, {"fractions": 2**13, "gmpy2": 2**9}


class Rational(ObjectSystem):
    """ℚ: exact fractions. Floats are refused."""

    name = "ℚ"
    label = "Q"
    words = ("Q",)
    can = frozenset({"ring", "field", "ordered"})
    exact = True

    def __init__(self, maker: str | None = None) -> None:
        if maker is not None:
            choose("Rational", "maker", maker, ("gmpy2", "fractions"))
        if maker == "gmpy2" and not importlib.util.find_spec("gmpy2"):
            raise ImportError("gmpy2 is not installed: pip install 'refimpl[fast]'")
        self.maker = maker

    @functools.cached_property
    def make(self) -> Callable[[Any, Any], Any]:
        """Makes a number of numerator and denominator. To import gmpy2 takes a while: it waits."""
        if self.maker == "gmpy2" or (self.maker is None and importlib.util.find_spec("gmpy2")):
            import gmpy2

            return cast(Callable[[Any, Any], Any], gmpy2.mpq)
        return Fraction

    @classmethod
    def from_label(cls, word: str, argument: str) -> Rational:
        refuse_argument(word, argument)
        return QQ

    def number(self, x: Fraction) -> Any:
        return x if self.make is Fraction else self.make(x.numerator, x.denominator)

    def fractions(self, x: SystemArray) -> HostArray:
        return elementwise(lambda v: v if type(v) is Fraction else as_fraction(v), x.planes[0])

    @functools.cached_property
    def small_product(self) -> int:  # type: ignore[override]
        return SMALL[self.make.__module__]

    def large_product(self, x: SystemArray, y: SystemArray) -> SystemArray | None:
        """By integers: rows of x, columns of y over common denominators; one reduction an entry."""
        (m, d), (n, e) = over_common_denominator(x.planes[0], -1), over_common_denominator(y.planes[0], -2)
        if max(map(int.bit_length, (*d.flat, *e.flat))) > WIDE[self.make.__module__]:
            return None
        return self.wrap((elementwise(self.make, slices.matmul(slices.integers(m), slices.integers(n)), d * e),))

    def random(self, shape: tuple[int, ...], seed: int) -> SystemArray:
        """Uniform over the 97 numbers a/8, |a| ≤ 48: our choice, for ℚ has no uniform law."""
        draws = generator(f"{self.name}.random", shape, seed).integers(-48, 49, shape)
        return self.convert(draws) / 8


QQ = Rational()


def over_common_denominator(x: HostArray, axis: int) -> tuple[HostArray, HostArray]:
    """(m, d): integers with x = m/d, and d the same along the axis."""
    denominators = elementwise(lambda v: int(v.denominator), x)
    d = np.lcm.reduce(denominators, axis=axis, keepdims=True)
    return elementwise(lambda v: int(v.numerator), x) * (d // denominators), d
