"""The cases that theorems are checked on: shapes and options. The numbers come from a system."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any, Self

from ..attention.feature_maps import feature_map
from ..attention.random_features import KINDS as RANDOM_FEATURES
from ..errors import choose
from ..model.attention_layers import Config, Rotary
from ..model.rwkv import VERSIONS as RWKV
from ..model.transformer import ACTIVATIONS, NORMS

Needs = tuple[str, str]  # a capability of a system, and what asks for it


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
    chunk: int = 2

    def valid(self) -> bool:
        return (
            self.d > 0
            and self.chunk > 0
            and (isinstance(self.mask, str) or self.mask <= self.n)
            and (not self.rope or self.rope[2] <= self.d)
        )

    def needs(self, phi: bool) -> Iterator[Needs]:
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


LARGEST = 2**16  # the largest number that a case in a file may have
KINDS: dict[str, type[Shape]] = {kind.__name__: kind for kind in (Case, ModelCase, Lesson, FeatureCase, RecurrentCase)}


def case_from_json(data: Any) -> Shape:
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
