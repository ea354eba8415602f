"""How a kernel is called, as a line of text: `q, k, v, initial_state=(S, z), train=False -> o, (S, z)`.

A name on the left is an array that is given, a name on the right one that comes back, and _ one
that nobody looks at. Everything else on the left is a constant of Python.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

from ..errors import brief, choose


class Name(NamedTuple):
    """An array, by its name."""

    name: str


class Call(NamedTuple):
    """Arguments by place, arguments by name, and what is returned; tuples stand inside these."""

    places: tuple[Any, ...]
    names: dict[str, Any]
    returned: Any

    @classmethod
    def read(cls, text: str, given: Collection[str], made: Collection[str]) -> Call:
        """The call in a line of text; `given` and `made` are the names that it may have."""
        left, arrow, right = text.partition("->") if isinstance(text, str) else ("", "", "")
        try:
            call, back = (ast.parse(part.strip(), mode="eval").body for part in (f"f({left})", right))
            if not arrow or not isinstance(call, ast.Call) or any(w.arg is None for w in call.keywords):
                raise SyntaxError
            places = tuple(read_node(node, given) for node in call.args)
            names = {str(w.arg): read_node(w.value, given) for w in call.keywords}
            return cls(places, names, read_node(back, {*made, "_"}))
        except (SyntaxError, RecursionError, MemoryError):
            wanted = "a call such as 'q, k, v, initial_state=(S, z) -> o, (S, z)'"
            raise ValueError(f"call must be {wanted}, got {brief(text)}") from None

    @property
    def given(self) -> set[str]:
        return {name for part in (self.places, *self.names.values()) for name in leaves(part)}

    @property
    def made(self) -> set[str]:
        return set(leaves(self.returned)) - {"_"}

    def make(self, function: Callable[..., Any], arrays: dict[str, Any]) -> dict[str, Any]:
        """Call the function; the results by name."""
        names = {name: fill(part, arrays) for name, part in self.names.items()}
        return dict(taken(self.returned, function(*fill(self.places, arrays), **names)))


def read_node(node: ast.AST, known: Collection[str]) -> Any:
    if isinstance(node, ast.Name):
        choose("call", "name", node.id, known)
        return Name(node.id)
    if isinstance(node, ast.Tuple | ast.List):
        return tuple(read_node(part, known) for part in node.elts)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError) as error:
        raise SyntaxError from error


def leaves(part: Any) -> Iterator[str]:
    """The names in a part of a call."""
    if isinstance(part, Name):
        yield part.name
    elif isinstance(part, tuple):
        for each in part:
            yield from leaves(each)


def fill(part: Any, arrays: dict[str, Any]) -> Any:
    """The part with an array for each name."""
    if isinstance(part, Name):
        return arrays[part.name]
    return tuple(fill(each, arrays) for each in part) if isinstance(part, tuple) else part


def taken(part: Any, value: Any) -> Iterator[tuple[str, Any]]:
    """Each name in a part, with what came back in its place."""
    if isinstance(part, Name):
        if part.name != "_":
            yield part.name, value
    elif not isinstance(value, tuple | list) or len(value) != len(part):
        got = f"{len(value)} of them" if isinstance(value, tuple | list) else type(value).__name__
        raise ReturnedOther(f"it must return {len(part)} values, got {got}")
    else:
        for each, x in zip(part, value, strict=True):
            yield from taken(each, x)


class ReturnedOther(TypeError):
    """A kernel returned something else than its specification says."""
