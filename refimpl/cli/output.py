"""What all commands print and write: text, errors and progress on a terminal, and JSON files.

A stream may be closed, full, narrow in its alphabet, or no terminal at all. Nothing of this may
cost a file that was asked for, or change what an exit status means.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import sys
import traceback
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from ..files.disk import replacing, target_file

LONGEST = 500  # characters of an error
TRACEBACK = "REFIMPL_TRACEBACK"  # the variable that asks for tracebacks
# How our marks are written where the encoding of a stream lacks them; all else becomes an escape
MARKS = {"ℚ": "Q", "≤": "<=", "≥": ">=", "≠": "!=", "≈": "~", "→": "->", "←": "<-", "−": "-", "–": "-", "…": "..."}
MARKS |= {"·": "*", "×": "x", "√": "sqrt ", "²": "^2", "³": "^3", "¹": "^1", "⁻": "^-", "ᵀ": "^T", "∞": "inf"}
MARKS |= {"λ": "lambda", "φ": "phi", "ω": "omega", "η": "eta", "Σ": "sum ", "Δ": "Delta", "δ": "delta", "κ": "kappa"}
MARKS |= {"γ": "gamma", "ε": "eps", "θ": "theta", "ρ": "rho", "π": "pi", "±": "+-", "‖": "||"}
MARKS |= {"σ": "sigma", "─": "-"} | {chr(0x2080 + digit): str(digit) for digit in range(10)}


class Outcome(NamedTuple):
    """What a command has done: its files are written already, its text is still to be printed.

    status    the exit status of the work itself
    problems  files that could not be written: to be told after the text
    painted   is the text free of what a terminal might obey, but for colours of ours?
    """

    status: int
    text: str = ""
    problems: tuple[Exception, ...] = ()
    painted: bool = False


def json_target(path: str | None) -> Path | None:
    """The file that `--json` names, refused before the work if it cannot be written."""
    return None if path is None else target_file("--json", path)


def write_json(target: Path, data: Any) -> None:
    """Write a JSON file completely or not at all."""
    with replacing("--json", target, "x") as file:
        json.dump(data, file, indent=1, ensure_ascii=False, allow_nan=False)


@contextmanager
def noting(problems: list[Exception]) -> Iterator[None]:
    """A file that cannot be written is noted: what was found out is still told, and counts."""
    try:
        yield
    except (OSError, ValueError) as error:
        problems.append(error)


# Streams


def write_marks(error: UnicodeError) -> tuple[str, int]:
    """Handles a text that an encoding lacks: our marks in ASCII, all else as escapes."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(MARKS.get(c) or c.encode("ascii", "backslashreplace").decode() for c in text), error.end


codecs.register_error("refimpl", write_marks)


@contextmanager
def standard_streams() -> Iterator[None]:
    """In this block stdout and stderr take every character, and no file takes the number of one.

    A stream that was closed before we began stays silent. What cannot be flushed at the end is
    dropped, so that the interpreter has nothing to fail on when it exits.
    """
    for number in range(3):  # in this order: a file that is opened takes the lowest free number
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    streams = [s for s in (sys.stdout, sys.stderr) if hasattr(s, "reconfigure")]
    before = [s.errors for s in streams]
    for stream in streams:
        stream.reconfigure(errors="refimpl")
    try:
        yield
    finally:
        for stream, errors in zip(streams, before, strict=True):
            try:
                stream.reconfigure(errors=errors)  # which flushes
            except OSError:
                drop(stream)


def drop(stream: TextIO | None) -> None:
    """What a stream still holds, and what is written to it later, goes nowhere."""
    if stream is not None:
        with suppress(OSError, ValueError):  # a stream of a test has no number
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
            stream.flush()


def say(text: str, end: str = "\n") -> None:
    """Print text now; nothing, if stdout was closed before we began."""
    if sys.stdout is not None:
        try:
            sys.stdout.write(text + end)
            sys.stdout.flush()
        except BrokenPipeError:
            drop(sys.stdout)
            raise
        except OSError as error:
            drop(sys.stdout)
            raise OSError(f"cannot write to stdout: {error.strerror or error}") from error


def complain(error: object) -> None:
    """Print an error as one line; before it the traceback, if REFIMPL_TRACEBACK asks for it."""
    if sys.stderr is None:
        return
    try:
        if _shown:
            progress()("")
        if os.environ.get(TRACEBACK) and isinstance(error, BaseException):
            sys.stderr.write(escape_controls("".join(traceback.format_exception(error))))
        sys.stderr.write(f"refimpl: {one_line(str(error))}\n")
        sys.stderr.flush()
    except OSError:
        drop(sys.stderr)


_shown = False  # is there a line of progress on the terminal?


def progress() -> Callable[[str], None]:
    """A function that shows a line in place of the one before it, if stderr is a terminal."""
    if sys.stderr is None or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        return lambda line: None

    def show(line: str) -> None:
        global _shown
        _shown = bool(line)
        line = one_line(line)[: terminal_width(sys.stderr) - 1]  # of a longer one, a part would stay
        try:
            print(f"\r\x1b[K{line}", end="\r", file=sys.stderr, flush=True)
        except OSError:  # the terminal is gone: no reason to stop the work
            drop(sys.stderr)

    return show


def terminal_width(stream: TextIO) -> int:
    """The width of a terminal; 80 if it does not say."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


# Text that came from files, and may hold anything


def escape_controls(text: str) -> str:
    """Text in lines. All that a terminal might obey or hide becomes an escape, as in repr."""
    return re.sub(r"[^\n -~]", lambda c: c[0] if c[0].isprintable() else repr(c[0])[1:-1], text)


def without_controls(text: str) -> str:
    """Text as a model wrote it, but no control character other than newline and tab."""
    return "".join(repr(c)[1:-1] if unicodedata.category(c) == "Cc" and c not in "\n\t" else c for c in text)


def one_line(text: str) -> str:
    """Text as one line of at most LONGEST characters: the middle of a longer one is left out."""
    line = escape_controls(text).replace("\n", "\\n")
    half = (LONGEST - 3) // 2
    return line if len(line) <= LONGEST else f"{line[:half]} … {line[-half:]}"
