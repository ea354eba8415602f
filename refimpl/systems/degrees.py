"""Analysis: every entry is a rational function of the inputs, of which only degrees are known.

    N / f₁^m₁ f₂^m₂ ⋯        degree of N, and factors f, each the numerator of some divisor

A factor is identified by the entry whose numerator it is, so all quotients by one entry share a
denominator. Degrees are upper bounds, computed by running the source itself; identity testing in
GF(p) needs them. The zero polynomial has degree −∞.
"""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np

from ..arrays import HostArray
from ..errors import NotDefined
from .array import ObjectSystem, Planes, SystemArray, elementwise


class Quotient:
    """N/D, up to a constant: the degree of N, and the factors of D with their multiplicities.

    For such factors, A + B is the product AB, A | B the least common multiple, and A − B is A
    divided by its greatest common divisor with B.
    """

    __slots__ = ("factors", "numerator")

    def __init__(self, numerator: int, factors: Counter[Quotient]) -> None:
        self.numerator, self.factors = numerator, factors

    @property
    def denominator(self) -> int:
        return degree(self.factors)

    def __str__(self) -> str:
        return f"{self.numerator}; {self.denominator}"

    def __neg__(self) -> Quotient:
        return self

    def __add__(self, other: Quotient) -> Quotient:
        """a/A + b/B = (a L/A + b L/B) / L, with L the least common multiple of A and B"""
        if self is ZERO or other is ZERO:
            return other if self is ZERO else self
        A, B = self.factors, other.factors
        L = A | B
        return Quotient(max(self.numerator + degree(L - A), other.numerator + degree(L - B)), L)

    def __mul__(self, other: Quotient) -> Quotient:
        """(a/A)(b/B) = ab/AB"""
        if self is ZERO or other is ZERO:
            return ZERO
        if self is CONSTANT or other is CONSTANT:
            return other if self is CONSTANT else self
        return Quotient(self.numerator + other.numerator, self.factors + other.factors)

    def __truediv__(self, other: Quotient) -> Quotient:
        """(a/A)/(b/B) = a (B/g) / (A/g) b, with g the greatest common divisor of A and B"""
        if self is ZERO or other is CONSTANT:
            return self
        A, B = self.factors, other.factors
        return Quotient(self.numerator + degree(B - A), (A - B) + Counter([other] if other.numerator else []))


def degree(factors: Counter[Quotient]) -> int:
    return sum(f.numerator * times for f, times in factors.items())


ZERO = Quotient(-math.inf, Counter())  # type: ignore[arg-type]
CONSTANT = Quotient(0, Counter())


class Degrees(ObjectSystem):
    """Degrees of numerator and denominator in place of numbers.

    Each instance remembers its divisors; a new analysis needs a new instance.
    """

    can = frozenset({"ring", "field"})

    def __init__(self) -> None:
        self.name = "degrees"  # not of the class: `--system` cannot use it
        self.divisors: set[Quotient] = set()

    @property
    def divided(self) -> int:
        """Δ, the degree of the product of all divisors: where it is not zero, no division fails."""
        return sum(f.numerator for f in self.divisors)

    def number(self, x: Fraction) -> Quotient:
        return CONSTANT if x else ZERO

    def variables(self, shape: tuple[int, ...], numerator: int = 1, denominator: int = 0) -> SystemArray:
        """Inputs: each entry a variable of its own, or a rational function of the given degrees."""
        entries = [Quotient(numerator, Counter()) for _ in range(math.prod(shape))]
        x = self.wrap((np.array(entries, dtype=object).reshape(shape),))
        return x / self.variables(shape, denominator) if denominator else x

    def div(self, x: Planes, y: Planes) -> Planes:
        planes = super().div(x, y)
        self.divisors.update(y[0].flat)
        return planes

    def eq(self, x: Planes, y: Planes) -> HostArray:
        raise NotDefined("values are not known in degrees; what depends on a comparison would go unseen")

    def singular(self, x: SystemArray) -> HostArray:
        return elementwise(lambda e: e is ZERO, x.planes[0]).astype(bool)

    def numerator(self, x: SystemArray) -> HostArray:
        return elementwise(lambda e: e.numerator, x.planes[0])

    def denominator(self, x: SystemArray) -> HostArray:
        return elementwise(lambda e: e.denominator, x.planes[0])

    def worst(self, x: SystemArray) -> tuple[Any, Any]:
        """The largest degrees of numerator and denominator."""
        return max(self.numerator(x).flat, default=0), max(self.denominator(x).flat, default=0)
