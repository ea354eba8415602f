"""The errors of the library, and the message for an unknown name."""

from __future__ import annotations

from collections.abc import Iterable


class NotDefined(TypeError):
    """A number system lacks what was asked of it."""


class ZeroDenominator(ZeroDivisionError):
    """φ(q_t)·z_t = 0 for some token."""


class NotFinite(ArithmeticError):
    """A float result overflowed."""


def choose(who: str, argument: str, value: object, known: Iterable[str]) -> None:
    """Refuse a name that is not known, and suggest a similar one that is."""
    names = sorted(known)
    if not isinstance(value, str) or value not in names:
        import difflib

        near = difflib.get_close_matches(value, names, n=1, cutoff=0.5) if isinstance(value, str) else []
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{who}: `{argument}` must be one of {', '.join(names)}, got {brief(value)}{hint}")


def brief(value: object) -> str:
    """A value in a message; its type, if the value is long."""
    text = repr(value)
    return text if len(text) <= 40 else f"a value of type {type(value).__name__}"
