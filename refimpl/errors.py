"""The errors of the library, and the message for an unknown name."""

from __future__ import annotations

from collections.abc import Iterable


class NotDefined(TypeError):
    """A number system, a layer or a file format does not have the operation asked for."""


class ZeroDenominator(ZeroDivisionError):
    """A denominator is zero, such as φ(q_t)·z_t for some token."""


class NotFinite(ArithmeticError):
    """A float result is nan or inf."""


def choose(who: str, argument: str, value: object, known: Iterable[str]) -> None:
    """Refuse a name that is not among `known`, and suggest the most similar one that is."""
    names = sorted(known)
    if not isinstance(value, str) or value not in names:
        import difflib

        near = difflib.get_close_matches(value, names, n=1, cutoff=0.5) if isinstance(value, str) else []
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{who}: `{argument}` must be one of {', '.join(names)}, got {brief(value)}{hint}")


def brief(value: object) -> str:
    """A value as text for a message; only its type, if the text has more than 40 characters."""
    text = repr(value)
    return text if len(text) <= 40 else f"a value of type {type(value).__name__}"
