"""What `refimpl verify` shows: the matrix, its legend, what failed, and a box with what matters."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from ..verify.formal import COMMAND
from ..verify.matrix import ENCLOSED, LIKELY, WITHIN, Mark, Matrix, column_words, mark_of, short_names, strength
from ..verify.registry import THEOREMS
from ..verify.theorem import Result
from .output import escape_controls, write_marks

COLOURS = {"green": "32", "red": "31;1", "yellow": "33", "grey": "90", "bold": "1"}
NARROWEST = 80
FAILURES = "refimpl-failures"  # the folder of failing instances


class Look(NamedTuple):
    """How to draw: the width in columns, whether in colour, and whether in ASCII only."""

    width: int = NARROWEST
    colour: bool = False
    ascii: bool = False

    def paint(self, text: str, colour: str) -> str:
        return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m" if self.colour and colour and text.strip() else text

    def plain(self, text: str) -> str:
        """The text without control characters, in characters that the terminal has."""
        text = escape_controls(text)
        if not self.ascii:
            return text
        return "".join(c if c.isascii() else write_marks(UnicodeEncodeError("ascii", c, 0, 1, ""))[0] for c in text)

    def sign(self, mark: Mark) -> str:
        return mark.ascii if self.ascii else mark.sign

    def wrap(self, text: str, indent: int, first: str = "") -> list[str]:
        """Lines of text below `first`, which is as wide as the indent or less."""
        lines = textwrap.wrap(self.plain(text), max(self.width - indent, 20), break_on_hyphens=False) or [""]
        heads = [first.ljust(indent), *[" " * indent] * (len(lines) - 1)]
        return [(head + line).rstrip() for head, line in zip(heads, lines, strict=True)]


def look_of_stdout() -> Look:
    """A terminal of at least 80 columns, colours where a terminal has them and nobody minds."""
    out = sys.stdout
    width = max(shutil.get_terminal_size((NARROWEST, 24)).columns, NARROWEST)
    terminal = out is not None and out.isatty() and os.environ.get("TERM") != "dumb"
    try:
        "∀∈≤✗·₁ℚ─".encode(getattr(out, "encoding", None) or "utf-8")
        few = False
    except (UnicodeError, LookupError):
        few = True
    return Look(width, terminal and not os.environ.get("NO_COLOR"), few)


def matrix_lines(matrix: Matrix, look: Look) -> list[str]:
    """One line for each theorem, cut to the width. Columns that do not fit follow below."""
    short = short_names(matrix.systems)
    columns = []
    for label in matrix.systems:
        texts = {
            name: look.sign(mark_of(r)) + strength(r)
            for name in matrix.theorems
            if (r := matrix.cells.get((name, label)))
        }
        columns.append((label, look.plain(short[label]), texts))
    widths = [max(len(head), *map(len, texts.values())) for _, head, texts in columns]
    left = min(max((len(name) for name in matrix.theorems), default=0), look.width - 30)
    left = max(left, 12) + 2
    lines: list[str] = []
    while columns:
        count, used = 0, left
        while count < len(columns) and (used := used + widths[count] + 1) <= look.width:
            count += 1
        count = max(count, 1)
        shown = list(zip(columns[:count], widths[:count], strict=True))
        lines += block(matrix, shown, left, look)
        columns, widths = columns[count:], widths[count:]
    return lines


def block(matrix: Matrix, shown: list[tuple[tuple[str, str, dict[str, str]], int]], left: int, look: Look) -> list[str]:
    head = "".join(f" {name:<{width}}" for (_, name, _), width in shown)
    lines = [look.paint(" " * left + head.rstrip(), "bold")]
    for group, names in matrix.groups().items():
        rows = [name for name in names if any(name in texts for (_, _, texts), _ in shown)]
        if rows:
            lines.append(look.paint(look.plain(group or "others"), "bold"))
        for name in rows:
            label = look.plain(name)
            last = max(i for i, ((_, _, texts), _) in enumerate(shown) if name in texts)
            cells = "".join(
                " " + look.paint(f"{texts.get(name, ''):<{width * (i < last)}}", colour_of(matrix, name, system))
                for i, ((system, _, texts), width) in enumerate(shown[: last + 1])
            )
            cut = label if len(label) <= left - 2 else label[: left - 3] + ("~" if look.ascii else "…")
            lines.append(f"  {cut:<{left - 2}}{cells}")
    return lines


def colour_of(matrix: Matrix, name: str, system: str) -> str:
    found = matrix.cells.get((name, system))
    return mark_of(found).colour if found else ""


def legend(matrix: Matrix, look: Look) -> list[str]:
    """What each mark that occurs speaks of, and what each column stands for."""
    lines = []
    for mark, weakest in matrix.marks().items():
        number = strength(weakest)
        example = look.sign(mark) + number
        claims = mark.claims.format(number or "…")
        if mark in (LIKELY, ENCLOSED, WITHIN):
            claims += " (the weakest shown)"
        lines += look.wrap(claims, 8, "  " + look.paint(example, mark.colour) + " " * (6 - len(example)))
    short = short_names(matrix.systems)
    told = "; ".join(f"{short[label]} {column_words(label)}" for label in matrix.systems)
    return [*lines, *look.wrap(told + ".", 2, "  ")]


def detail(name: str, results: Sequence[Result], look: Look) -> list[str]:
    """One theorem: its statement, and what was found in each system, in words."""
    theorem = THEOREMS[name]
    lines = [look.paint(look.plain(f"{name}  ({theorem.group})"), "bold"), *look.wrap(theorem.statement, 2, "  ")]
    why: dict[str, list[str]] = {}
    for r in results:
        if r.verdict == "N/A":
            why.setdefault(r.evidence, []).append(r.system)
            continue
        at = f" at {r.worst}" if r.verdict in ("FAIL", "NOT RUN") else f"; worst: {r.worst}"
        words = f"{r.evidence}{at if r.worst else ''}{r.notes}"
        lines.append("")
        head = f"{r.system}: {r.verdict}"
        lines.append("  " + look.paint(look.plain(head), mark_of(r).colour))
        lines += look.wrap(words, 4)
    if why:
        lines += ["", *look.wrap("not checked, since it does not apply:", 2, "  ")]
    for reason, systems in why.items():
        lines += look.wrap(f"{', '.join(systems)}: {reason}", 4)
    return lines


def failures(failed: Sequence[Result], commands: Sequence[str], look: Look) -> list[str]:
    """What failed, the simplest theorem first, whose failure may explain the others."""
    if not failed:
        return []
    first, others = failed[0], list(dict.fromkeys(r.theorem for r in failed))[1:]
    lines = [look.paint(look.plain(f"{first.theorem} FAILS in {first.system}"), "red")]
    lines += look.wrap(THEOREMS[first.theorem].statement, 2, "  ")
    lines += look.wrap(f"{first.evidence}{f' at {first.worst}' if first.worst else ''}{first.notes}", 2, "  ")
    lines += ["  " + line for command in commands[:1] for line in command_lines(command, look)]
    if others:
        some = ", ".join(others[:8]) + (", …" if len(others) > 8 else "")
        lines += look.wrap(f"{some} fail too, perhaps for the same reason; all are in {FAILURES}/.", 2, "  ")
    return lines


def command_lines(command: str, look: Look) -> list[str]:
    """What a command is for, and below it the command, which no line break may divide."""
    words, _, again = command.rpartition(": ")
    return [f"{look.plain(words)}:", f"  {look.plain(again)}"]


def box(results: Sequence[Result], proofs: Sequence[Result], seconds: float, seed: int, look: Look) -> list[str]:
    """What matters, at the end."""
    ran = [r for r in results if r.verdict != "N/A"]
    count = Counter(r.verdict for r in ran)
    failed, open_ = count["FAIL"], count["VACUOUS"] + count["NOT RUN"]
    theorems = len(dict.fromkeys(r.theorem for r in ran))
    held = len(ran) - failed - open_
    lines = [f"{theorems} theorem{'s' * (theorems != 1)}, {held} of {len(ran)} checks hold"]
    lines[0] += f", {failed} FAIL" if failed else ", 0 fail"
    lines[0] += f", {open_} not decided" if open_ else ""
    parts = [proofs_in_words(proofs), iclca_in_words([*proofs, *results])]
    instances, rows, vacuous = (sum(getattr(r, x) for r in ran) for x in ("instances", "rows", "vacuous"))
    none = f", {vacuous} of {rows} rows vacuous" if vacuous else ""
    parts.append(f"{instances} instances{none}, seed {seed}, {seconds:.1f} s")
    if theorems > 1:
        parts.append("more: refimpl verify iclca, refimpl show iclca, refimpl verify --verbose or --html FILE")
    rule = look.plain("─" * look.width)
    colour = "red" if failed else "yellow" if open_ or not ran else "green"
    body = [line for part in parts if part for line in look.wrap(part, 0)]
    return [rule, look.paint(look.plain(lines[0]), colour), *body, rule]


def proofs_in_words(proofs: Sequence[Result]) -> str:
    count = Counter(r.verdict for r in proofs)
    if missing := count["NOT CHECKED"]:
        reason = next(r.evidence for r in proofs if r.verdict == "NOT CHECKED").rpartition("; ")[2]
        run = "" if COMMAND in reason else f"; {COMMAND} runs them"
        return f"{missing} proof{'s' * (missing != 1)} NOT CHECKED: {reason}{run}"
    if count["PROVED"] or count["IN PART"]:
        part = f", {count['IN PART']} in part" if count["IN PART"] else ""
        proved = f"{count['PROVED']} theorem{'s' * (count['PROVED'] != 1)} proved by Coq on this machine"
        return f"{proved}, for all shapes and all values{part}"
    return ""


def iclca_in_words(results: Sequence[Result]) -> str:
    """The strongest evidence for the theorem that the library is about."""
    found = [r for r in results if r.theorem == "iclca"]
    by = {r.verdict: r for r in found}
    start = "A prompt becomes biases, exactly (iclca): "
    if not found or {"FAIL", "NOT RUN", "VACUOUS"} & by.keys():
        return ""
    likely = [r for r in found if mark_of(r) is LIKELY and (r.probability or 1) < 2**-20]
    if "PROVED" in by:
        return start + "proved, for all shapes and all values over any field"
    if likely:
        best = max(likely, key=lambda r: -(r.probability or 1))
        return f"{start}at these shapes for all values, but for a probability of 2^-{strength(best)}"
    return start + (by["EXACT"].evidence if "EXACT" in by else next(iter(by.values())).evidence)


def done_so_far(done: Sequence[Result]) -> str:
    """What was found before an interrupt; "" if nothing."""
    ran = [r for r in done if r.verdict != "N/A"]
    failed = [f"{r.theorem} in {r.system}" for r in ran if r.verdict == "FAIL"]
    if not ran:
        return ""
    some = ", ".join(failed[:5]) + (", …" if len(failed) > 5 else "")
    checks = f"{len(ran)} check{'s' * (len(ran) != 1)}"
    return f"after {checks}; {len(failed) or 'none'} failed" + (f": {some}" if failed else "")
