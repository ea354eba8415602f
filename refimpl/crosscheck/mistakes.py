"""Mistakes that kernels make: each is a family with one step wrong.

A mistake is found by its class, which `mistake` registers: what it is called, where the field met
it, the numbers that it comes with, such as the length of a chunk, and the conventions that it
needs. A convention that is another than the specification says is a mistake, too, without a class.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from . import catalogue, families
from .spec import Spec, conventions, in_words

C = TypeVar("C", bound=type[Spec])


@dataclass(frozen=True)
class Mistake:
    """A family with one step wrong.

    words : what it is called; {} stands for its number
    seen : where the field met it
    needs : whether kernels of a specification can make it
    """

    name: str
    words: str
    seen: str
    steps: type[Spec]
    number: Any = None
    needs: Callable[[Any], bool] = lambda spec: True

    @property
    def said(self) -> str:
        return self.words.format(self.number)

    def of(self, spec: Spec) -> Spec:
        return spec.mistaken(self.steps)


MISTAKES: dict[type[Spec], list[Mistake]] = {}


def mistake(
    words: str, seen: str = "", numbers: tuple[Any, ...] = (), needs: Callable[[Any], bool] = lambda spec: True
) -> Callable[[C], C]:
    """Register a class as a mistake of its family; with numbers, one for each, as `number`."""

    def register(steps: C) -> C:
        family = next(base for base in steps.__mro__[1:] if "family" in vars(base))
        known = MISTAKES.setdefault(family, [])
        for number in numbers or (None,):
            made = steps if number is None else type(steps.__name__, (steps,), {"number": number})
            known.append(Mistake(steps.__name__, words, seen, made, number, needs))
        return steps

    return register


@cache
def all_families() -> dict[str, type[Spec]]:
    """Every family by its name, with its mistakes: the modules of `families` are read once."""
    modules = [
        importlib.import_module(f"{package.__name__}.{found.name}")
        for package in (families, catalogue)
        for found in pkgutil.iter_modules(package.__path__)
    ]
    found = {x.family: x for module in modules for x in vars(module).values() if is_family(x)}
    return dict(sorted(found.items()))


def is_family(x: Any) -> bool:
    return isinstance(x, type) and issubclass(x, Spec) and "family" in vars(x)


def changed_convention(name: str, value: Any, stated: Any) -> str:
    """A convention that is another than the one that was stated, in words."""
    return f"--{name.replace('_', '-')} {in_words(value)}, where {in_words(stated) or 'nothing'} was stated"


def readings(spec: Spec) -> Iterator[tuple[str, str, Spec]]:
    """Every other reading of a kernel: what it is called, where it was met, and its steps."""
    for f in conventions(spec):
        for value in f.metadata["others"]:
            if value != getattr(spec, f.name) and f.name not in ("library", "dtype", "sums", "call"):
                try:
                    other = spec.mistaken(type(spec), **{f.name: value})
                except (ValueError, TypeError):
                    continue
                yield changed_convention(f.name, value, getattr(spec, f.name)), "", other
    all_families()
    for each in filter(lambda m: m.needs(spec), MISTAKES.get(type(spec), [])):
        yield each.said, each.seen, each.of(spec)
