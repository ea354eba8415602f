"""`refimpl show`: a theorem, what it needs, where it comes from, its evidence, and its code."""

from __future__ import annotations

import argparse
import inspect
import textwrap
from pathlib import Path

from ..verify import registry
from ..verify.formal import COMMAND, IN_PART, NOT_PROVED, PROVED, STATEMENTS
from ..verify.papers import links
from ..verify.theorem import Theorem
from ..verify.ways import WAYS
from .output import Outcome
from .screen import Look, look_of_stdout

ROOT = Path(__file__).parents[2]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="+", metavar="NAME", help="theorems, by name or pattern, such as 'iclca*'")


def run(options: argparse.Namespace) -> Outcome:
    """Print each theorem that is named."""
    look = look_of_stdout()
    parts = [shown(registry.THEOREMS[name], look) for name in registry.chosen("show", options.names)]
    return Outcome(0, "\n\n".join("\n".join(part) for part in parts), painted=True)


def shown(t: Theorem, look: Look) -> list[str]:
    code = inspect.unwrap(t.sides)
    rows = [
        ("needs", t.assumes),
        ("source", "; ".join([t.source, *links(t.source)])),
        ("ours", t.ours),
        ("checked", "; ".join(f"in {WAYS[way].systems}: {WAYS[way].says}" for way in t.ways)),
        ("code of", ", ".join(functions(t.name))),
        ("proof", proof(t.name)),
        ("try", f"refimpl verify {t.name}"),
    ]
    lines = [look.paint(look.plain(f"{t.name}  ({t.group})"), "bold"), "", *look.wrap(t.statement, 2, "  "), ""]
    for head, words in rows:
        if words:
            lines += look.wrap(words, 11, f"  {head}")
    try:
        source, line = inspect.getsourcelines(code)
        place = Path(inspect.getfile(code)).relative_to(ROOT).as_posix()
    except (OSError, TypeError, ValueError):  # a zip file, a function of no file
        return lines
    body = textwrap.dedent("".join(source)).rstrip().splitlines()
    lines += [*look.wrap(f"{place}, line {line}: how it is checked", 11, "  check"), ""]
    return lines + [f"    {look.plain(x)}".rstrip() for x in body]


def functions(name: str) -> list[str]:
    """The functions of which the theorem speaks, as its Coq statements list them."""
    found = [place for statement in STATEMENTS if name in statement.verify for place in statement.python]
    return [f"refimpl.{place}" for place in dict.fromkeys(found)]


def proof(name: str) -> str:
    if name not in PROVED:
        return f"none: {NOT_PROVED.get(name, 'no proof yet')}"
    part = f", in part: {IN_PART[name]}" if name in IN_PART else ""
    return f"in Coq{part}: {', '.join(PROVED[name])}; {COMMAND} runs it"
