"""The errors of the library, and the message for an unknown name."""

from __future__ import annotations

from collections.abc import Collection, Iterable


class NotDefined(TypeError):
    """A number system, a layer or a file format does not have the operation asked for."""


class ZeroDenominator(ZeroDivisionError):
    """A denominator is zero, such as φ(q_t)·z_t for some token."""


class NotFinite(ArithmeticError):
    """A float result is nan or inf."""


class Underflow(ArithmeticError):
    """A float result has no right digit, since products became too small for their dtype."""


def choose(who: str, argument: str, value: object, known: Iterable[str]) -> None:
    """Refuse a name that is not among `known`, and suggest the most similar one that is."""
    known = known if isinstance(known, Collection) else tuple(known)
    if not isinstance(value, str) or value not in known:  # sorted only now, since there may be many
        import difflib

        names = sorted(known)
        near = difflib.get_close_matches(value, names, n=1, cutoff=0.5) if isinstance(value, str) else []
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{who}: `{argument}` must be one of {', '.join(names)}, got {brief(value)}{hint}")


def brief(value: object) -> str:
    """A value as text for a message; only its type, if the text has more than 40 characters."""
    if not isinstance(value, str | bytes | list | tuple | dict) or len(value) <= 40:
        try:
            if len(text := repr(value)) <= 40:
                return text
        except (RecursionError, ValueError):  # nested too deeply, or an integer of thousands of digits
            pass
    return f"a value of type {type(value).__name__}"


def printable(text: object, most: int = 200) -> str:
    r"""A text that may come from a file, as part of a message: what does not print is escaped.

    >>> print(printable("red: \x1b[31m"))
    red: \x1b[31m
    """
    start = str(text)[: most + 1]
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in start)
    return shown if len(shown) <= most else f"{shown[:most]}…"
