"""A theorem: its statement, its source, and two sides that run in any number system.

`Numbers` draws the numbers of one instance; a check of a theorem in a system gives a `Result`.
"""

from __future__ import annotations

import functools
import hashlib
import numbers
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ..arrays import Array
from ..attention.rope import Rope, angle_table, circle_point, power_table
from ..errors import NotDefined
from ..model.transformer import Model, draw_model
from ..systems import Degrees, Dependencies, Float, SystemArray
from ..systems.array import host
from ..systems.balls import Balls
from .cases import ModelCase, Needs, Shape

Sides = Iterator[tuple[str, Any, Any]]
DERIVED = "our derivation"  # a source


class Different(NamedTuple):
    """Two sides that must differ in some entry, as a witness claims."""

    name: str
    left: Any
    right: Any


class Sampled(NamedTuple):
    """Independent draws (N,), and the mean that a theorem gives for them."""

    name: str
    draws: Any
    mean: Any


@dataclass(frozen=True)
class Theorem:
    """An identity: its statement, its assumptions, its source, and its two sides.

    sides      (case, numbers, implementation) -> (name, left, right) for everything that must be
               equal; Different for everything that must not be
    fits       does the theorem speak of this case?
    ways       the names of the ways in which it can be checked, as in ways.py
    needs      the capability that a system must have, and what asks for it
    phi        does φ occur in the theorem, so that the system needs what φ needs?
    cases      the cases on which it is checked
    more       the further cases of --full, drawn from a seed
    usual      shapes that people use, in groups: a quick run takes one of each group, by the seed.
               They are too large for degrees, so an agreement says nothing of other values
    ours       the part of it that is our own reconstruction or extension
    certified  are its degrees computed, to say what an agreement modulo p is worth?
    only       the one system in which it is checked, if it is too large for the others
    beyond     the theorem is not checked in GF(p) for p ≤ beyond
    group      the heading under which it is printed
    """

    name: str
    statement: str
    assumes: str
    source: str
    sides: Callable[..., Iterator[Any]]
    fits: Callable[[Any], bool] = lambda case: True
    ways: tuple[str, ...] = ("equality", "enclosure", "bound")
    needs: Needs = ("field", "normalised linear attention")
    phi: bool = True
    cases: tuple[Shape, ...] = ()
    more: Callable[[int], tuple[Shape, ...]] = lambda seed: ()
    usual: tuple[tuple[Shape, ...], ...] = ()
    ours: str = ""
    certified: bool = True
    only: str = ""
    beyond: int = 0
    group: str = ""

    @classmethod
    def of(cls, sides: Any, assumes: str, source: str, fits: Any = lambda case: True, **options: Any) -> Theorem:
        """The theorem with the name of `sides`, whose docstring begins with the statement."""
        statement = " ".join((sides.__doc__ or "").partition("\n\n")[0].split())
        words = {"name": sides.__name__, "statement": statement, "assumes": assumes, "source": source}
        return cls(sides=sides, fits=fits, **words | options)


@dataclass(frozen=True)
class Result:
    """A verdict and its evidence.

    verdict          EXACT, ENCLOSED, WITHIN BOUND, MEASURED, VACUOUS, FAIL, NOT RUN or N/A
    probability      the largest, over all shapes of which it is at most ½, with which a false
                     identity would have passed
    error, bound     the error that is largest relative to its bound, and that bound
    rows, vacuous    the rows with a bound, and those whose bound is as large as the output
    inputs, outputs  digests of all numbers drawn, and of all numbers compared
    notes            remarks that a replay need not repeat
    """

    theorem: str
    system: str
    verdict: str
    evidence: str
    instances: int = 0
    redraws: int = 0
    probability: float | None = None
    degree: int | None = None
    error: float | None = None
    bound: float | None = None
    rows: int = 0
    vacuous: int = 0
    seconds: float = 0.0
    worst: str = ""
    inputs: str = ""
    outputs: str = ""
    cases: tuple[Shape, ...] = ()
    notes: str = ""


class Numbers:
    """Uniform draws of one instance, from a seed.

    system   the system whose numbers the sides are given
    origin   the system that draws them, if it is another: an analysis needs the same instance
    keep     a list to which every array drawn is appended
    chose    were ids or positions drawn, which the shape of a case does not fix?
    """

    def __init__(self, system: Any, seed: int, origin: Any = None, keep: list[Array] | None = None) -> None:
        self.system, self.origin, self.seed, self.keep = system, origin or system, seed, keep
        self.count, self.chose, self.notes = 0, False, ""
        self.digest = hashlib.sha256()

    def draw(self, *shape: int) -> Any:
        self.count += 1
        if isinstance(self.system, Degrees):
            return self.system.variables(shape)
        try:
            x = self.origin.random(shape, self.seed + self.count)
        except NotDefined:  # every ring has the integers
            x = self.origin.convert(np.random.default_rng(self.seed + self.count).integers(-48, 49, shape))
        record(self.digest, x)
        if self.keep is not None:
            self.keep.append(x)
        return x if self.system is self.origin else self.system.convert(x)

    def integers(self, low: int, high: int, count: int) -> list[int]:
        self.count += 1
        rng = random.Random(self.seed + self.count)
        chosen = [rng.randint(low, high) for _ in range(count)]
        self.digest.update(repr(chosen).encode())
        self.chose = True
        return chosen

    @property
    def angles(self) -> bool:
        """Does RoPE rotate by the usual angles? Only where cos and its error are known.

        Elsewhere it rotates by powers of a random point of the circle.
        """
        return isinstance(self.origin, Float | Balls | Dependencies)

    def rope(self, layout: str, placement: str, width: int) -> Rope:
        if self.angles:
            return Rope(usual_angles(self.system, width), layout, placement)
        return Rope(power_table(*circle_point(self.draw(width // 2))), layout, placement)

    def model(self, case: ModelCase) -> Model:
        """A model with weights from the origin: an analysis does not include how they are made."""
        own = Numbers(self.origin, self.seed) if self.system is not self.origin else self
        own.count = self.count
        model = draw_model(own.draw, case.config(10000 if self.angles else None))
        self.count = own.count
        if own is self:
            return model
        return replace(model, weights={name: self.system.convert(w) for name, w in model.weights.items()})


@functools.cache
def usual_angles(system: Any, width: int) -> Callable[[Iterable[int]], tuple[Array, Array]]:
    """`angle_table` with a cache: the same positions recur at every split and in every case."""
    table = functools.cache(angle_table(system, width))
    return lambda at: table(tuple(at))


def record(digest: Any, *arrays: Any) -> None:
    """Add arrays to a digest: equal numbers in equal shapes give equal digests."""
    for x in arrays:
        for p in () if isinstance(x, int) else x.planes if isinstance(x, SystemArray) else (host(x),):
            digest.update(" ".join(map(number_text, p.flat)).encode() if p.dtype == object else np.ascontiguousarray(p))
        digest.update(str(x if isinstance(x, int) else tuple(x.shape)).encode())


def number_text(x: Any) -> str:
    """A number as text: a fraction in base 16, which may have any length; an mpf by its parts."""
    if isinstance(x, numbers.Rational):
        return f"{x.numerator:x}/{x.denominator:x}"
    return str(getattr(x, "_mpf_", None) or x)
