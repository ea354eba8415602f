"""The command `refimpl`: a parser, and one module for each command.

Exit status: 0 all is well, 1 a check fails, 2 a check is not decided or there was an error, 130
interrupted, 143 terminated. A check that fails is 1 whatever else went wrong. If stdout is closed
early, as by head, the status is that of the work; if it cannot be written otherwise, it is 2.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from ..errors import find_name, similar
from ..packages import __version__
from .output import TRACEBACK, Outcome, complain, escape_controls, one_line, say, standard_streams
from .signals import SIGNALS, Stopped, ending_signals, held_signals

# command: its help. Its module has add_arguments(parser) and run(options) -> Outcome.
COMMANDS = {
    "verify": "check every theorem in every number system",
    "show": "a theorem: its statement, assumptions, source, evidence and code",
    "convert": "turn a prompt into biases of a model: exactly, or for softmax into a memory",
    "compare": "your own model against ours, stage by stage: the first layer that differs, and why",
    "generate": "text from a model: GPT-2, Llama, RWKV or one of ours",
    "doctor": "what is here for each door, what is missing or slow, and how to get it",
    "completion": "a script that completes commands, options and names in a shell",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, print what it has to say, and return the exit status."""
    with standard_streams(), ending_signals() as ending:
        try:
            status, text, problems, painted = run(sys.argv[1:] if argv is None else argv)
            lost = print_text(text if painted else escape_controls(text))
            for problem in (*problems, *lost):
                complain(problem)
            return status if status == 1 or not (problems or lost) else 2
        except (Stopped, KeyboardInterrupt) as stop:
            ending.arrive()
            number = stop.args[0] if stop.args else signal.SIGINT
            complain(" ".join([SIGNALS[signal.Signals(number).name], *getattr(stop, "__notes__", ())]))
            return 128 + int(number)


def run(argv: Sequence[str]) -> Outcome:
    """The outcome of a command; of one that could not run, its error."""
    try:
        if not argv:  # who types the name alone asks what there is: no error
            return Outcome(0, parser().format_help().rstrip())
        argv = [find_name(argv[0], COMMANDS), *argv[1:]]
        options = parser(argv[0]).parse_args(argv)
        outcome: Outcome = options.run(options)
        return outcome
    except SystemExit as stop:  # by argparse, which has printed its text
        return Outcome(int(stop.code or 0))
    except BrokenPipeError:  # stdout was closed, e.g. by head, before the work was done
        return Outcome(2)
    except (ValueError, TypeError, ArithmeticError, ImportError, OSError) as error:
        return Outcome(2, problems=(error,))
    except Exception as error:
        words = f"unexpected {type(error).__name__}: {one_line(str(error))}; {TRACEBACK}=1 shows where"
        if isinstance(error, MemoryError):
            words = f"out of memory: {str(error) or 'a smaller problem may fit'}"
        problem = RuntimeError(words)
        problem.__cause__ = error
        return Outcome(2, problems=(problem,))


def print_text(text: str) -> list[Exception]:
    """Print the text of an outcome, and return what kept it from being written."""
    try:
        say(text, end="\n" if text else "")  # without text too: argparse does not flush
    except BrokenPipeError:  # e.g. by head, which has seen enough
        return []
    except OSError as error:
        return [error]
    return []


class Parser(argparse.ArgumentParser):
    """A parser whose errors are of bounded length and hold no control characters."""

    def error(self, message: str) -> NoReturn:
        if sys.stderr is None:  # argparse would take stdout
            raise SystemExit(2)
        super().error(one_line(message))


def parser(command: str = "") -> argparse.ArgumentParser:
    """The parser of all commands, with the arguments of one: only its module is imported."""
    description = (
        "Linearized attention, softmax attention and prompts as biases, in one source over many number systems."
    )
    status = (
        "Exit status: 0 all is well, 1 a check fails, 2 not decided or an error, 130 interrupted, 143 terminated. "
        f"{TRACEBACK}=1 in the environment shows where an error was raised."
    )
    top = Parser(prog="refimpl", description=description, epilog=status)
    top.add_argument("--version", action="version", version=f"refimpl {__version__}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, words in COMMANDS.items():
        parser = commands.add_parser(name, help=words)
        if name == command:
            with held_signals():
                module = importlib.import_module(f"{__package__}.{name}")
            module.add_arguments(parser)
            parser.set_defaults(run=module.run, command=name)
    if command not in COMMANDS and not command.startswith("-") and (near := similar(command, sorted(COMMANDS))):
        top.error(f"did you mean {near!r}? COMMAND must be one of {', '.join(COMMANDS)}, got {command!r}")
    return top
