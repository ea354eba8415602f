"""The errors of the library, and how an unknown name is understood."""

from __future__ import annotations

import re
import unicodedata
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
    """Refuse a name that is not among `known`; the message begins with the one that is meant."""
    known = known if isinstance(known, Collection) else tuple(known)
    if not isinstance(value, str) or value not in known:  # sorted only now, since there may be many
        names = sorted(known)
        near = similar(value, names) if isinstance(value, str) else ""
        hint = f"did you mean {near!r}? " if near else ""
        named = argument if argument.startswith("--") or argument.isupper() else f"`{argument}`"
        listed = ", ".join(names)
        if len(listed) > 300:
            listed = f"{', '.join(names[:4])}, … ({len(names)} in all)"
        raise ValueError(f"{who}: {hint}{named} must be one of {listed}, got {brief(value)}")


def find_name(value: str, known: Iterable[str]) -> str:
    """The one known name that equals value when both are folded; if there is none, value."""
    names = tuple(known)
    alike = [] if value in names else [name for name in names if fold(name) == fold(value)]
    return alike[0] if len(alike) == 1 else value


def fold(name: str) -> str:
    """A name without what people spell in other ways: case, accents, punctuation, plus and one.

    >>> fold("ELU_plus_one") == fold("elu+1")
    True
    """
    plain = unicodedata.normalize("NFKD", name[:100]).casefold().replace("plus", "+").replace("one", "1")
    return re.sub(r"[^a-z0-9+]", "", plain)


def similar(value: str, names: list[str]) -> str:
    """The name that a wrong one means, or "": alike when folded, a longer one, or a similar one."""
    import difflib

    wanted, folded = fold(value), {fold(name): name for name in reversed(names)}
    begin = [name for name in names if len(wanted) > 1 and fold(name).startswith(wanted)]
    if wanted in folded or len(begin) == 1:
        return folded.get(wanted) or begin[0]
    # Of words that begin alike, fewer letters need to agree.
    near = difflib.get_close_matches(wanted, [f for f in folded if f[:1] == wanted[:1]], n=1, cutoff=0.6)
    near = near or difflib.get_close_matches(wanted, folded, n=1, cutoff=0.75)
    return folded[near[0]] if near else ""


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
