"""What a theorem is to `refimpl verify`: its statement, its source, and two sides that anyone can run in any number system."""

from __future__ import annotations

import functools
import hashlib
import numbers
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

from ..attention.feature_maps import feature_map
from ..attention.random_features import KINDS as RANDOM_FEATURES
from ..attention.rope import Rope, angle_table, circle_point, power_table
from ..errors import NotDefined, choose
from ..model.attention_layers import Config, Rotary
from ..model.rwkv import VERSIONS as RWKV
from ..model.transformer import ACTIVATIONS, NORMS, Model, draw_model
from ..systems import Degrees, Dependencies, Float, SystemArray
from ..systems.array import host
from ..systems.balls import Balls

Sides = Iterator[tuple[str, Any, Any]]
Needs = tuple[str, str]  # a capability, and what asks for it


class Different(NamedTuple):
    """Two sides of which a witness says that they differ, somewhere."""

    name: str
    left: Any
    right: Any


class Sampled(NamedTuple):
    """Independent draws (N,) of which a theorem gives the mean."""

    name: str
    draws: Any
    mean: Any


class Shape:
    """What all kinds of cases have in common: they print, shrink, and go into a file and back."""

    def __str__(self) -> str:
        given = [(f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default]  # type: ignore[arg-type]
        return " ".join(
            f"{k}={'/'.join(map(str, v)) if isinstance(v, tuple) else v}".replace(" ", "") for k, v in given
        )

    def smaller(self) -> Iterator[Any]:
        """Cases with one thing less: a number nearer to 0, or an option left out."""
        for f in fields(self):  # type: ignore[arg-type]
            value = getattr(self, f.name)
            options = [] if f.default in (value, MISSING) else [f.default]
            if type(value) is int:
                options = [
                    *sorted({0, 1, value // 2, value - 1} & set(range(value))),
                    *([None] if f.default is None else []),
                ]
            for option in options:
                case = replace(self, **{f.name: option})  # type: ignore[type-var]
                if case.valid():
                    yield case

    def valid(self) -> bool:
        return True

    def to_json(self) -> dict[str, Any]:
        return {"kind": type(self).__name__, **asdict(self)}  # type: ignore[call-overload]


@dataclass(frozen=True)
class Case(Shape):
    """The shape and options of one attention problem; numbers come from a system."""

    n: int
    d: int
    m: int
    heads: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())  # of queries, of keys and values
    mask: str | int = "causal"
    normalise: bool = True
    start: int | None = None  # position of a non-zero starting state
    rope: tuple[str, str, int] | None = None  # layout, placement, features turned
    phi: str = "identity"
    chunk: int = 2

    def valid(self) -> bool:
        return (
            self.d > 0
            and self.chunk > 0
            and (isinstance(self.mask, str) or self.mask <= self.n)
            and (not self.rope or self.rope[2] <= self.d)
        )

    def needs(self, phi: bool) -> Iterator[Needs]:
        """What it asks of a system; φ only where a theorem speaks of it."""
        if phi:
            yield getattr(feature_map(self.phi), "needs", "ring"), self.phi
        if self.rope:
            yield "field", "a random rotation"


@dataclass(frozen=True)
class ModelCase(Shape):
    """A model of this shape, a prompt of M tokens and an input of n."""

    M: int
    n: int
    layers: int = 1
    width: int = 2
    heads: int = 1
    groups: int | None = None
    d: int = 2
    m: int = 1
    phi: str = "identity"
    normalise: bool = True
    rope: tuple[str, str, int] | None = None  # layout, placement, features turned
    order: str = "pre"
    norm: str = "none"
    hidden: int = 0
    activation: str = "quadratic"
    gated: bool = False
    biased: bool = False
    vocabulary: int = 0
    tied: bool = True
    table: int = 0
    mask: str = "causal"  # of the prompt
    restart: bool = True
    start: int | None = None  # position of the biases that the model already carries
    batch: tuple[int, ...] = ()  # of prompts
    chunk: int = 2

    def valid(self) -> bool:
        turned, placement = (self.rope[2], self.rope[1]) if self.rope else (0, "")
        counts = (
            min(self.width, self.heads, self.d, self.m, self.chunk, self.groups or 1) > 0
            and self.heads % (self.groups or 1) == 0
        )
        relative = not self.table and (placement != "before" or self.phi in ("identity", "softmax"))
        return (
            counts
            and turned <= self.d
            and (relative or not self.restart)
            and (not self.table or self.table >= self.M + self.n)
        )

    def config(self, base: int | None) -> Config:
        """The configuration of the model, with RoPE by angles, or (base None) by points of the circle among the weights."""
        options = {f.name: getattr(self, f.name) for f in fields(Config) if f.name not in ("rope", "epsilon")}
        return Config(**options, rope=Rotary(self.rope[2], *self.rope[:2], base) if self.rope else None)

    def needs(self, phi: bool) -> Iterator[Needs]:
        yield "field", "a model"
        yield (
            ("real", "softmax attention")
            if self.phi == "softmax"
            else (getattr(feature_map(self.phi), "needs", "ring"), self.phi)
        )
        yield NORMS[self.norm], f"{self.norm} norm"
        if self.hidden:
            yield ACTIVATIONS[self.activation][1], self.activation


@dataclass(frozen=True)
class Lesson(Shape):
    """N examples with inputs of d numbers and outputs of m; T queries, or tokens of the query's own text; so many steps of descent."""

    N: int
    d: int
    m: int
    T: int = 1
    steps: int = 1

    def valid(self) -> bool:
        return min(self.N, self.d, self.m, self.T, self.steps) > 0

    def needs(self, phi: bool) -> Iterator[Needs]:
        return iter(())


@dataclass(frozen=True)
class FeatureCase(Shape):
    """A map to random features with r directions, on a prompt of M tokens and a text of n, of width d."""

    phi: str
    M: int
    n: int
    d: int
    r: int = 1
    rope: tuple[str, int] | None = None  # layout, features turned

    def valid(self) -> bool:
        return min(self.M, self.n) >= 0 and min(self.d, self.r) > 0 and (not self.rope or self.rope[1] <= self.d)

    def needs(self, phi: bool) -> Iterator[Needs]:
        choose("FeatureCase", "phi", self.phi, RANDOM_FEATURES)
        yield "real", f"a map to {self.phi} features"


@dataclass(frozen=True)
class RecurrentCase(Shape):
    """A recurrence with keys of width d and values of width m, or a model of RWKV, on a prompt of M tokens and a text of n.

    A model, if a version is given, has heads of width d, and m is the width of its channel mixing and of what is of low rank.
    """

    M: int
    n: int
    d: int
    m: int
    heads: tuple[int, ...] = ()
    start: bool = False  # from a state that is not zero
    bonus: bool = False  # read before the write
    turned: bool = False  # transitions with a part of rank one
    version: str = ""
    layers: int = 1
    vocabulary: int = 0

    def valid(self) -> bool:
        model = self.m > 0 and len(self.heads) == (self.version != "4")
        counts = min(self.M, self.n, self.m, self.vocabulary) >= 0 and min(self.d, self.layers, *self.heads) > 0
        return counts and (not self.version or model)

    def needs(self, phi: bool) -> Iterator[Needs]:
        if self.version:
            choose("RecurrentCase", "version", self.version, RWKV)
            yield "real", f"RWKV {self.version}"


LARGEST = 2**16  # of the numbers of a case in a file
AnyCase = Case | ModelCase | Lesson | FeatureCase | RecurrentCase
KINDS: dict[str, type[AnyCase]] = {
    kind.__name__: kind for kind in (Case, ModelCase, Lesson, FeatureCase, RecurrentCase)
}


def case_from_json(data: Any) -> AnyCase:
    """A case from a file, which may hold anything."""

    def tuples(x: Any) -> Any:
        if type(x) is int and abs(x) > LARGEST:
            raise ValueError(f"a case must have numbers up to {LARGEST}, got {x}")
        return tuple(map(tuples, x)) if isinstance(x, list) else x

    case = KINDS[data["kind"]](**{k: tuples(v) for k, v in data.items() if k != "kind"})
    for f in fields(case):
        value = getattr(case, f.name)
        if (f.type in ("int", "bool", "str") and type(value).__name__ != f.type) or not case.valid():
            raise ValueError(f"{f.name} of a case must be {f.type} and go with the rest, got {value!r}")
    list(case.needs(True))
    return case


@dataclass(frozen=True)
class Theorem:
    """An identity: what it says, under which assumptions, who said it, and the two sides of it.

    sides : (case, numbers) -> (name, left, right) for everything that must be equal; Different for what must not be
    fits : does it speak of this case?
    ways : the ways in which it can be checked, as in the table of check.py
    needs : what a system must be for it, and what asks for that; phi : does φ occur in it, and ask for more?
    cases : what it is checked on; more : what else under --full, drawn from a seed
    ours : what in it is our own reconstruction or extension
    certified : are its degrees computed, to say what an agreement modulo p is worth?
    only : the one system in which it is checked, if it is too large for others; beyond : a smaller prime than the next is too small
    """

    name: str
    statement: str
    assumes: str
    source: str
    sides: Callable[[Any, Numbers], Iterator[Any]]
    fits: Callable[[Any], bool] = lambda case: True
    ways: tuple[str, ...] = ("equality", "enclosure", "bound")
    needs: Needs = ("field", "normalised linear attention")
    phi: bool = True
    cases: tuple[Any, ...] = ()
    more: Callable[[int], tuple[Any, ...]] = lambda seed: ()
    ours: str = ""
    certified: bool = True
    only: str = ""
    beyond: int = 0


@dataclass
class Result:
    """A verdict (EXACT, ENCLOSED, WITHIN BOUND, VACUOUS, FAIL, NOT RUN or N/A) and what it rests on."""

    theorem: str
    system: str
    verdict: str
    evidence: str
    instances: int = 0
    redraws: int = 0
    probability: float | None = None  # with which a false identity would have passed, at each shape, at most
    degree: int | None = None
    error: float | None = None  # where it is largest relative to the bound
    bound: float | None = None
    seconds: float = 0.0
    worst: str = ""
    inputs: str = ""  # digest of all numbers drawn
    outputs: str = ""  # digest of all numbers compared
    cases: tuple[Any, ...] = ()
    notes: str = ""  # what else is worth knowing, and need not come out the same


class Numbers:
    """Uniform draws of one instance. `origin` draws them; `system` reads them, for an analysis of the same instance; `keep` keeps them."""

    def __init__(self, system: Any, seed: int, origin: Any = None, keep: list[Any] | None = None) -> None:
        self.system, self.origin, self.seed, self.drawn, self.keep = system, origin or system, seed, 0, keep
        self.digest = hashlib.sha256()
        self.notes, self.chose = "", False  # whether ids or positions were drawn, which a shape does not fix

    def draw(self, *shape: int) -> Any:
        self.drawn += 1
        if isinstance(self.system, Degrees):
            return self.system.variables(shape)
        try:
            x = self.origin.random(shape, self.seed + self.drawn)
        except NotDefined:  # every ring has the integers
            x = self.origin.convert(np.random.default_rng(self.seed + self.drawn).integers(-48, 49, shape))
        record(self.digest, x)
        if self.keep is not None:
            self.keep.append(x)
        return x if self.system is self.origin else self.system.convert(x)

    def integers(self, low: int, high: int, count: int) -> list[int]:
        self.drawn += 1
        rng = random.Random(self.seed + self.drawn)
        drawn = [rng.randint(low, high) for _ in range(count)]
        self.digest.update(repr(drawn).encode())
        self.chose = True
        return drawn

    @property
    def angles(self) -> bool:
        """RoPE by the usual angles, where cos and its error are known; else by powers of a random point of the circle."""
        return isinstance(self.origin, Float | Balls | Dependencies)

    def rope(self, layout: str, placement: str, width: int) -> Rope:
        if self.angles:
            return Rope(usual_angles(self.system, width), layout, placement)
        return Rope(power_table(*circle_point(self.draw(width // 2))), layout, placement)

    def model(self, case: ModelCase) -> Model:
        """A model with weights of the origin: an analysis reads them as they are, and not how they were made."""
        own = Numbers(self.origin, self.seed) if self.system is not self.origin else self
        own.drawn = self.drawn
        model = draw_model(own.draw, case.config(10000 if self.angles else None))
        self.drawn = own.drawn
        return (
            model
            if own is self
            else replace(model, weights={name: self.system.convert(w) for name, w in model.weights.items()})
        )


@functools.cache
def usual_angles(system: Any, width: int) -> Callable[[Iterable[int]], tuple[Any, Any]]:
    """angle_table with a memory: the same positions recur for q and k, at every split and in every case."""
    table = functools.cache(angle_table(system, width))
    return lambda at: table(tuple(at))


def record(digest: Any, *arrays: Any) -> None:
    """Take numbers into a digest, which is then the same for the same numbers."""
    for x in arrays:
        for p in () if isinstance(x, int) else x.planes if isinstance(x, SystemArray) else (host(x),):
            digest.update(" ".join(map(spelled, p.flat)).encode() if p.dtype == object else np.ascontiguousarray(p))
        digest.update(str(x if isinstance(x, int) else tuple(x.shape)).encode())


def spelled(x: Any) -> str:
    """A number: a fraction in base 16, where Python sets no limit to its length; one of mpmath by its parts."""
    if isinstance(x, numbers.Rational):
        return f"{x.numerator:x}/{x.denominator:x}"
    return str(getattr(x, "_mpf_", None) or x)
