"""The errors of the library, and the words for a name nobody knows."""

from __future__ import annotations

from collections.abc import Iterable


class NotDefined(TypeError):
    """A number system lacks what was asked of it."""


class ZeroDenominator(ZeroDivisionError):
    """φ(q_t)·z_t = 0 for some token."""


class NotFinite(ArithmeticError):
    """A float result overflowed."""


def choose(who: str, argument: str, value: object, known: Iterable[str]) -> None:
    """Refuse a name that is not known, and suggest the nearest one that is."""
    names = sorted(known)
    if value not in names:
        import difflib

        near = difflib.get_close_matches(str(value), names, n=1, cutoff=0)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{who}: `{argument}` must be one of {', '.join(names)}, got {value!r}{hint}")
