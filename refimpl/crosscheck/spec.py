"""What a kernel should compute, and how it is called.

A family of kernels is a subclass of `Spec`. Its fields are the conventions, its methods the steps
of the formula. So the formula is written once for all conventions, and a mistake is a subclass in
which one step is wrong (mistakes.py).
"""

from __future__ import annotations

import functools
import shlex
from abc import ABC, abstractmethod
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, TypeVar

import numpy as np

from ..errors import choose
from ..systems import System
from ..systems.formats import FORMATS
from .axes import Axes
from .call import Call
from .plan import Case, plan

DTYPES = ("float64", "float32", "float16", "bfloat16")
LIBRARIES = ("numpy", "torch", "jax", "cupy")
TOKENS = "BHTD"  # batch row, head, token, entry
NUMBERS = ("position", "heads", "groups")  # that may be given, too
Arrays = dict[str, Any]
S = TypeVar("S", bound="Spec")


def convention(default: Any, words: str, *choices: Any, others: tuple[Any, ...] = ()) -> Any:
    """A field of a specification.

    words : what it says
    choices : all values that it may have, if they are few
    others : if there are more, values that a kernel may have by mistake
    """
    return field(default=default, metadata={"words": words, "choices": choices, "others": others or choices})


def conventions(family: type[Spec] | Spec) -> list[Field[Any]]:
    return [f for f in fields(family) if f.metadata]


@dataclass(frozen=True, kw_only=True)
class Spec(ABC):
    """The conventions that kernels of all families have."""

    call: str = convention("q, k, v -> o", "how it is called and what it returns")
    axes: str = convention(TOKENS, "the order of the axes of q, k, v and o: BHTD, BTHD, BT(HD), TD")
    library: str = convention("numpy", "whose arrays it takes", *LIBRARIES)
    dtype: str = convention("float64", "the dtype of its arrays; of several, joined by commas, each is checked")
    sums: str = convention("", "the dtype in which it computes (default: the wider of float32 and its arrays')", others=DTYPES)
    least: int = convention(0, "the fewest tokens that it takes")
    heads: int = convention(0, "the only number of heads that it can (0: any)")
    groups: int = convention(0, "the only number of heads of k and v that it can (0: any)")
    device: str = convention("", "where its arrays are: cpu, cuda")

    family: ClassVar[str]
    small: ClassVar[tuple[str, ...]] = ()  # conventions that change little, as an ε
    given: ClassVar[tuple[str, ...]]  # the arrays that may be given
    made: ClassVar[tuple[str, ...]]  # the arrays that may come back

    def __post_init__(self) -> None:
        who = type(self).__name__
        for f in conventions(self):
            if choices := f.metadata["choices"]:
                choose(who, f.name, getattr(self, f.name), choices)
        for dtype in (*self.dtypes, *([self.sums] if self.sums else [])):
            choose(who, "dtype", dtype, DTYPES)
        for name in sorted((self.calls.given | self.calls.made) - {*NUMBERS}):
            self.axes_of(name)

    @property
    def dtypes(self) -> tuple[str, ...]:
        return tuple(str(self.dtype).split(","))

    def sums_in(self, dtype: str) -> str:
        """The dtype in which a kernel adds numbers of this dtype."""
        return self.sums or (dtype if FORMATS[dtype][0] >= 24 else "float32")

    @functools.cached_property
    def calls(self) -> Call:
        return Call.read(self.call, (*self.given, *NUMBERS), self.made)

    def axes_of(self, name: str) -> Axes:
        """The order of the axes of an array of the kernel."""
        return Axes.read(f"{type(self).__name__}: `axes`", self.axes, TOKENS)

    @abstractmethod
    def sizes_of(self, name: str, case: Case) -> dict[str, int]:
        """The length of each axis of an array, by its letter."""

    def sizes_made(self, name: str, case: Case, x: Arrays) -> dict[str, int]:
        """The same of a result, which a state may make longer."""
        return self.sizes_of(name, case)

    def dtype_of(self, name: str, dtype: str) -> str:
        """The dtype of an array, where most have this one; int64 if it holds whole numbers."""
        return dtype

    @abstractmethod
    def inputs(self, case: Case, dtype: str) -> Arrays:
        """The arrays for a case: float64, of numbers that the dtype has."""

    @abstractmethod
    def compute(self, x: Arrays, system: System) -> Arrays:
        """The formula, in a number system: the results from the inputs."""

    def is_exact(self, case: Case, dtype: str) -> bool:
        """Does no correct kernel round anything on the inputs of this case?"""
        return False

    @property
    def state(self) -> tuple[str, ...]:
        """The arrays that a state to start from consists of."""
        return ()

    @property
    def carries(self) -> bool:
        """Does the kernel take a state and return it?"""
        return bool(self.state) and self.calls.given >= {*self.state} <= self.calls.made

    @property
    def plainest(self) -> Case:
        """The plainest case that a kernel of these conventions can be asked about."""
        return Case(heads=self.heads or self.groups or 1, groups=self.groups or self.heads or 1)

    def plan(self, seed: int = 0, full: bool = False) -> list[Case]:
        """The cases in which such a kernel is tried."""
        return plan(self.refuses, self.plainest, seed=seed, full=full)

    def refuses(self, case: Case) -> str:
        """Why a kernel of these conventions cannot be asked about a case; "" if it can."""
        if case.start and (not self.state or not self.calls.given >= {*self.state}):
            return "it takes no state"
        if case.position and "position" not in self.calls.given:
            return "it takes no position"
        if case.n < self.least:
            return f"it takes {self.least} tokens or more"
        for name, only in (("heads", self.heads), ("groups", self.groups)):
            if only and getattr(case, name) != only:
                return f"it can {only} {name} only"
        for name in sorted((self.calls.given | self.calls.made) - {*NUMBERS}):
            sizes = self.sizes_of(name, case)
            if any(sizes[c] != 1 for c in self.axes_of(name).missing):
                return f"{name} has no axis for it"
        return ""

    def cut(self, x: Arrays, first: int, last: int) -> Arrays:
        """The inputs of a part of the text: of arrays with an axis of tokens, those tokens."""
        found = x | {"position": x.get("position", 0) + first}
        for name in self.given:
            axes = self.axes_of(name)
            if isinstance(x.get(name), np.ndarray) and "T" in set(axes.ours) - set(axes.missing):
                found[name] = np.take(x[name], range(first, last), axis=axes.ours.index("T"))
        return found

    def mistaken(self, other: type[S], **changes: Any) -> S:
        """These conventions, but for some changes, with the steps of another class."""
        return other(**{f.name: getattr(self, f.name) for f in fields(self)} | changes)

    def idle(self) -> set[str]:
        """The conventions that say nothing here, as the base of angles where there is no RoPE."""
        return set()

    def differences(self) -> dict[str, Any]:
        """The conventions that are not the default ones."""
        return {f.name: value for f in conventions(self) if (value := getattr(self, f.name)) != f.default}

    def __str__(self) -> str:
        """The options of the command line that say the same."""
        shown = (f"--{name.replace('_', '-')} {shlex.quote(in_words(x))}" for name, x in self.differences().items())
        return " ".join([f"--family {self.family}", *shown])


def in_words(x: Any) -> str:
    """The value of a convention, as the command line spells it."""
    return ("no", "yes")[x] if isinstance(x, bool) else f"{x:g}" if isinstance(x, float) else str(x)


def seeded(case: Case, *more: object) -> np.random.Generator:
    """A generator of random numbers for this case alone."""
    from ..systems.array import seed_of

    return np.random.default_rng(seed_of("crosscheck", case.key, *more))
