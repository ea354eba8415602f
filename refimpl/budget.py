"""What a file may ask for beyond what its own bytes pay for: memory, and work.

A few bytes can ask for much: a seed and two sizes for a large matrix, a line of a certificate for a
long computation, a bracket of JSON for an object. Each such request is estimated and spent *before*
it is granted. What grows in proportion to the file itself is free.

    with budget("load: model.safetensors", limit=1, paid=640_000):
        spend("directions drawn from a seed", memory=16 * r * d, operations=10 * r * d)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from fractions import Fraction
from typing import Any

from .errors import brief

MEMORY = 10**9  # bytes that a file may ask for at `limit` 1
OPERATIONS = 2 * 10**9  # operations of floats in arrays, which take about a nanosecond each
FREE_MEMORY, FREE_OPERATIONS = 4, 10  # for each byte of the file


class Budget:
    """The memory and the operations that are left of what one file may ask for."""

    def __init__(self, limit: float = 1, paid: int = 0) -> None:
        self.limit, self.paid = limit, paid
        self.spent = {"memory": 0, "operations": 0}

    def spend(self, what: str, memory: int, operations: int) -> None:
        units = {"memory": (MEMORY, FREE_MEMORY, "bytes of memory"), "operations": (OPERATIONS, FREE_OPERATIONS, "")}
        for kind, amount in (("memory", memory), ("operations", operations)):
            usual, free, words = units[kind]
            self.spent[kind] += amount
            allowed = int(Fraction(self.limit) * usual) + free * self.paid
            if self.spent[kind] > allowed:
                enough = -(-(self.spent[kind] - free * self.paid) // usual)
                advice = f"if you trust the file, raise `limit` to {number(enough)}"
                got = f"about {number(self.spent[kind])} in all"
                raise ValueError(f"{what} must need at most {number(allowed)} {words or kind}, got {got}; {advice}")


_current: ContextVar[Budget | None] = ContextVar("budget", default=None)


@contextmanager
def budget(who: str, limit: Any, paid: int = 0) -> Iterator[None]:
    """The budget of one file, for all that is spent inside this block.

    limit : how many times the usual memory and work the file may ask for, ≥ 0
    paid : the size of the file in bytes, which pays for some memory and work
    """
    token = _current.set(Budget(check_limit(who, limit), paid))
    try:
        yield
    finally:
        _current.reset(token)


def check_limit(who: str, limit: Any) -> float:
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 <= limit < float("inf"):
        raise ValueError(f"{who}: `limit` must be a finite number ≥ 0, got {brief(limit)}")
    return limit


def spend(what: str, *, memory: int = 0, operations: int = 0) -> None:
    """Refuse a request that is more than what is left; outside `budget`, more than the usual."""
    (_current.get() or Budget()).spend(what, memory, operations)


def number(n: int) -> str:
    """An integer as text: in full up to seven digits, then as a power of ten."""
    digits = len(str(n)) if n < 10**30 else 31
    return f"{n}" if digits <= 7 else f"{n / 10 ** (digits - 1):.2g}e{digits - 1}" if n < 10**30 else "over 1e30"
