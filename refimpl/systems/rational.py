"""ℚ: exact rationals. Whatever holds here, holds.

Two makers with one face: gmpy2's `mpq` when it is installed, Python's `Fraction` otherwise. The numbers are the same, and so is all
that is shown of them; only `planes` tells.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from ..errors import choose
from . import slices
from .array import ObjectSystem, SystemArray, as_fraction, elementwise

# Terms up to which a product of matrices is sooner done by the loop, and bits of a common denominator from which it is again.
SMALL, WIDE = {"fractions": 30, "gmpy2": 2000}, {"fractions": 2**13, "gmpy2": 2**9}


class Rational(ObjectSystem):
    name = "ℚ"
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
        """Numerator and denominator to a number. Chosen at the first of them: it takes a while to import gmpy2."""
        if self.maker == "gmpy2" or (self.maker is None and importlib.util.find_spec("gmpy2")):
            import gmpy2

            return gmpy2.mpq
        return Fraction

    def number(self, x: Fraction) -> Any:
        return x if self.make is Fraction else self.make(x.numerator, x.denominator)

    def fractions(self, x: SystemArray) -> np.ndarray:
        return elementwise(lambda v: v if type(v) is Fraction else as_fraction(v), x.planes[0])

    def matmul(self, x: SystemArray, y: Any) -> SystemArray:
        """Each row of x and each column of y over a common denominator: a product of integers, and one fraction to reduce for an entry."""
        y = self.right_factor(x, y)
        maker = self.make.__module__
        if slices.terms(x, y) <= SMALL[maker]:
            return super().matmul(x, y)
        (m, d), (n, e) = common(x.planes[0], -1), common(y.planes[0], -2)
        if max(map(int.bit_length, (*d.flat, *e.flat))) > WIDE[maker]:
            return super().matmul(x, y)
        return self.wrap((elementwise(self.make, slices.matmul(slices.integers(m), slices.integers(n)), d * e),))

    def random(self, shape: tuple[int, ...], seed: int) -> SystemArray:
        """Uniform over the 97 numbers a/8, |a| ≤ 48: a convenience, not a law of ℚ, which has no uniform one."""
        draws = np.random.default_rng(seed).integers(-48, 49, shape)
        return self.convert(draws) / 8


def common(x: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """(m, d), integers with x = m/d, and d the same along the axis."""
    denominators = elementwise(lambda v: int(v.denominator), x)
    d = np.lcm.reduce(denominators, axis=axis, keepdims=True)
    return elementwise(lambda v: int(v.numerator), x) * (d // denominators), d
