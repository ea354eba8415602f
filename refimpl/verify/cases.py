"""The cases that theorems are checked on: shapes and options. The numbers come from a system."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import MISSING, asdict, dataclass, fields, replace
from math import prod
from types import UnionType
from typing import Any, NamedTuple, Self, get_args, get_origin, get_type_hints

from ..attention.feature_maps import feature_map
from ..attention.random_features import KINDS as RANDOM_FEATURES
from ..attention.rope import LAYOUTS, PLACEMENTS
from ..checks import broadcast_axes
from ..errors import brief, choose
from ..model.attention_layers import Config, Rotary
from ..model.rwkv import VERSIONS as RWKV
from ..model.transformer import ACTIVATIONS, NORMS

Needs = tuple[str, str]  # a capability of a system, and what asks for it


class Work(NamedTuple):
    """An estimate, from above, of what any theorem does with a case.

    calls      operations on whole arrays
    numbers    numbers in memory at one time
    products   products and sums of two numbers
    growth     how many times longer than the numbers drawn the fractions of ℚ become
    """

    calls: int
    numbers: int
    products: int
    growth: int


@dataclass(frozen=True)
class Shape:
    """The methods of all kinds of cases: they print, shrink, and convert to JSON."""

    def __str__(self) -> str:
        given = [(f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default]
        return " ".join(
            f"{k}={'/'.join(map(str, v)) if isinstance(v, tuple) else v}".replace(" ", "") for k, v in given
        )

    def smaller(self) -> Iterator[Self]:
        """Cases with one field simpler: a number nearer to 0, or an option at its default."""
        for f in fields(self):
            value = getattr(self, f.name)
            options = [] if f.default in (value, MISSING) else [f.default]
            if type(value) is int:
                options = [
                    *sorted({0, 1, value // 2, value - 1} & set(range(value))),
                    *([None] if f.default is None else []),
                ]
            for option in options:
                case = replace(self, **{f.name: option})
                if case.valid():
                    yield case

    @abstractmethod
    def valid(self) -> bool:
        """Do the sizes and options go together?"""

    @abstractmethod
    def needs(self, phi: bool) -> Iterator[Needs]:
        """The capabilities that the case needs of a system; those of φ only if `phi`."""

    @abstractmethod
    def work(self) -> Work:
        """What a check of this case costs at most."""

    def check(self) -> None:
        """Refuse options that no theorem understands."""

    def to_json(self) -> dict[str, Any]:
        return {"kind": type(self).__name__, **asdict(self)}


@dataclass(frozen=True)
class Case(Shape):
    """The shape and options of one attention problem."""

    n: int
    d: int
    m: int
    heads: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())  # of queries, of keys and values
    mask: str | int = "causal"
    normalise: bool = True
    start: int | None = None  # position of a non-zero starting state
    rope: tuple[str, str, int] | None = None  # layout, placement, number of rotated features
    phi: str = "identity"
    chunk: int | None = 2  # None: the default of the library
    millions: int = 0  # of positions before the starting state

    @property
    def position(self) -> int:
        """The position of the first token."""
        return (self.start or 0) + 10**6 * self.millions

    def valid(self) -> bool:
        return (
            self.d > 0
            and (self.chunk is None or self.chunk > 0)
            and (isinstance(self.mask, str) or self.mask <= self.n)
            and (not self.rope or self.rope[2] <= self.d)
        )

    def needs(self, phi: bool) -> Iterator[Needs]:
        if phi:
            yield getattr(feature_map(self.phi), "needs", "ring"), self.phi
        if self.rope:
            yield "field", "a random rotation"

    def check(self) -> None:
        broadcast_axes("Case", self.heads[0], ["q"], self.heads[1], "k")
        check_mask_and_rope("Case", "causal" if type(self.mask) is int else self.mask, self.rope)

    def work(self) -> Work:
        r, heads = feature_width(self.phi, self.d), prod(max(1, n) for axes in self.heads for n in axes)
        turns = abs(self.start or 0) + self.n if self.rope else 0
        work = attention_work(heads, self.n, self.d + r, self.m)
        return work._replace(growth=degree(self.phi) * (work.growth + 2 * turns))


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
    rope: tuple[str, str, int] | None = None  # layout, placement, number of rotated features
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
    chunk: int | None = 2  # of streamed prompts; None: forms of attention are the library's defaults, too
    millions: int = 0  # of positions before the biases that the model already carries

    @property
    def position(self) -> int:
        """The position of the first token."""
        return (self.start or 0) + 10**6 * self.millions

    def valid(self) -> bool:
        turned, placement = (self.rope[2], self.rope[1]) if self.rope else (0, "")
        counts = (
            min(self.width, self.heads, self.d, self.m, 1 if self.chunk is None else self.chunk, self.groups or 1) > 0
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
        """The configuration; RoPE is by angles, or by points of the circle if base is None."""
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

    def check(self) -> None:
        check_mask_and_rope("ModelCase", self.mask, self.rope)
        self.config(None)  # it refuses other options

    def work(self) -> Work:
        r, texts, n = feature_width(self.phi, self.d), prod(self.batch), self.M + self.n
        turns = abs(self.start or 0) + n if self.rope else 0
        one = attention_work(self.heads * texts, n, self.d + r, self.m)
        inner = self.width * self.heads * (2 * self.d + 2 * self.m) + 3 * self.width * self.hidden
        weights = self.layers * inner + (2 * self.vocabulary + self.table) * self.width
        tokens = texts * (n + 1) * (self.width + self.hidden + self.vocabulary)
        calls, numbers = self.layers * one.calls, self.layers * one.numbers + 20 * (weights + tokens)
        products = self.layers * one.products + 20 * texts * (n + 1) * weights
        growth = degree(self.phi) * (one.growth + 2 * turns)
        return Work(calls, numbers, products, growth * power(3 * degree(self.phi) * one.growth, self.layers - 1))


@dataclass(frozen=True)
class Lesson(Shape):
    """N examples with inputs of d numbers and outputs of m, and some steps of descent.

    T : the number of queries, or of tokens of the query's own text
    """

    N: int
    d: int
    m: int
    T: int = 1
    steps: int = 1

    def valid(self) -> bool:
        return min(self.N, self.d, self.m, self.T, self.steps) > 0

    def needs(self, phi: bool) -> Iterator[Needs]:
        return iter(())

    def work(self) -> Work:
        size = self.N + self.T + self.d + self.m  # one-hot positions are as wide as there are tokens
        calls, products = 1000 + 100 * (self.steps + 1) * size**2, 10 * (self.steps + 1) * size**4
        return Work(calls, 20 * size**3, products, power(size, self.steps))


@dataclass(frozen=True)
class FeatureCase(Shape):
    """A random feature map with r directions; a prompt of M tokens and a text of n, of width d."""

    phi: str
    M: int
    n: int
    d: int
    r: int = 1
    rope: tuple[str, int] | None = None  # layout, number of rotated features

    def valid(self) -> bool:
        return min(self.M, self.n) >= 0 and min(self.d, self.r) > 0 and (not self.rope or self.rope[1] <= self.d)

    def needs(self, phi: bool) -> Iterator[Needs]:
        choose("FeatureCase", "phi", self.phi, RANDOM_FEATURES)
        yield "real", f"a map to {self.phi} features"

    def check(self) -> None:
        check_mask_and_rope("FeatureCase", "causal", self.rope and (self.rope[0], "before", self.rope[1]))

    def work(self) -> Work:
        r = (self.d + 1) ** 2 if self.phi == "taylor" else 2 * self.r
        one = attention_work(1, self.M + self.n, self.d + r, self.d)
        drawn = r * self.d
        return one._replace(numbers=one.numbers + 20 * drawn, products=one.products + 20 * drawn * self.d)


@dataclass(frozen=True)
class RecurrentCase(Shape):
    """A recurrence, or RWKV if a version is given, on a prompt of M tokens and a text of n.

    d    the width of keys, or of the heads of a model
    m    the width of values, or of the channel mixing and the low-rank parts of a model
    """

    M: int
    n: int
    d: int
    m: int
    heads: tuple[int, ...] = ()
    start: bool = False  # start from a non-zero state
    bonus: bool = False  # read the state before the write
    turned: bool = False  # transitions have a part of rank one
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

    def work(self) -> Work:
        heads, n = prod(self.heads), self.M + self.n
        width = heads * self.d
        one = attention_work(heads, n + self.d, self.d, max(self.d, self.m))
        weights = width * (8 * width + 8 * self.m + 2 * self.vocabulary)
        numbers = one.numbers + 20 * (weights + n * (width + self.m + self.vocabulary))
        return Work(
            self.layers * one.calls, self.layers * numbers, self.layers * (one.products + 20 * n * weights), n + 1
        )


def attention_work(heads: int, n: int, r: int, m: int) -> Work:
    """Attention of n tokens in all its forms, cut at every token."""
    heads, n, r, m = heads + 1, n + 2, r + 1, m + 1
    products = 2 * heads * (n**3 * (r + m) + n**2 * r * m)
    return Work(1000 + 50 * n**2, 4 * heads * (n**2 + n * (r + m) + r * m), products, n)


def feature_width(phi: str, d: int) -> int:
    """The number of features of a vector of width d, or more."""
    return int((d + 1) ** max(2, degree(phi)) if "(" in phi or "taylor" in phi else d)


def degree(phi: str) -> int:
    """The number in the name of φ; 2 without one."""
    return int(phi.partition("(")[2].removesuffix(")") or 2) if phi != "softmax" else 2


def power(base: int, exponent: int) -> int:
    """base**exponent, or a large number that is less."""
    return int(base ** min(exponent, 8))


def check_mask_and_rope(who: str, mask: str | int, rope: tuple[str, str, int] | None) -> None:
    choose(who, "mask", mask, ("causal", "full"))
    if rope:
        choose(who, "rope", rope[0], LAYOUTS)
        choose(who, "rope", rope[1], PLACEMENTS)
        if rope[2] % 2:
            raise ValueError(f"{who}: `rope` must turn an even number of features, got {rope[2]}")


LARGEST = 2**53  # the largest number that a case in a file may have; every system has such positions
LONGEST = 32  # entries of a tuple in such a case
KINDS: dict[str, type[Shape]] = {kind.__name__: kind for kind in (Case, ModelCase, Lesson, FeatureCase, RecurrentCase)}


def case_from_json(data: Any) -> Shape:
    """A case from a file, which may hold anything."""
    if not isinstance(data, dict):
        raise ValueError(f"a case must be an object, got {brief(data)}")
    choose("a case", "kind", kind := str(data.get("kind")), KINDS)
    cls = KINDS[kind]
    known = {f.name for f in fields(cls)}
    required = {f.name for f in fields(cls) if f.default is MISSING}
    given = data.keys() - {"kind"}
    if not required <= given <= known:
        wrong = sorted((required - given) | (given - known))[0]
        raise ValueError(f"a {kind} must have all of its fields and no others, got {brief(wrong)} missing or unknown")
    values = {name: as_tuples(data[name]) for name in given}
    for name, value in values.items():
        if not conforms(value, hints(kind)[name]) or (name != "start" and negative(value)):
            limits = f"numbers from {'-2^53' if name == 'start' else '0'} to 2^53, tuples of at most {LONGEST}"
            raise ValueError(f"{name} of a case must be {hint_text(cls, name)}; {limits}; got {brief(data[name])}")
    case = cls(**values)
    if not case.valid():
        raise ValueError(f"the fields of a case must go together, got {brief(str(case))}")
    case.check()
    list(case.needs(True))
    return case


@functools.cache
def hints(kind: str) -> dict[str, Any]:
    return get_type_hints(KINDS[kind])


def hint_text(cls: type[Shape], name: str) -> str:
    return next(str(f.type) for f in fields(cls) if f.name == name)


def as_tuples(x: Any) -> Any:
    """Lists as tuples; no case is nested more than three deep."""
    return tuple(map(as_tuples, x)) if isinstance(x, list) and len(x) <= LONGEST else x


def conforms(x: Any, hint: Any) -> bool:
    """Is x of this type, down to the entries of tuples, and no number too large?"""
    args = get_args(hint)
    if get_origin(hint) is UnionType:
        return any(conforms(x, arg) for arg in args)
    if get_origin(hint) is tuple and isinstance(x, tuple):
        each = args[:1] * len(x) if args[-1] is Ellipsis else args
        return len(x) == len(each) and all(map(conforms, x, each))
    return type(x) is hint and not (hint is int and abs(x) > LARGEST)


def negative(x: Any) -> bool:
    return any(map(negative, x)) if isinstance(x, tuple) else type(x) is int and x < 0
