"""The command `refimpl`: a parser, and one module for each command.

Exit status: 0 all is well, 1 a check fails, 2 a check is not decided or there was an error,
130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from ..packages import __version__

# command: its help. Its module has add_arguments(parser) and run(options) -> exit status.
COMMANDS = {
    "verify": "check every theorem in every number system",
    "convert": "turn a prompt into biases of a model: exactly, or for softmax into a memory",
    "generate": "text from a model: GPT-2, Llama, RWKV or one of ours",
    "doctor": "versions, libraries and devices found; what is missing and how to get it",
}


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    options = parser(*argv[:1]).parse_args(argv)
    try:
        return int(options.run(options))
    except BrokenPipeError:  # stdout was closed early, e.g. by head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except KeyboardInterrupt:
        return 130
    except (ValueError, TypeError, ArithmeticError, ImportError, OSError) as error:
        print(f"refimpl: {error}", file=sys.stderr)
        return 2
    except MemoryError as error:
        print(f"refimpl: out of memory: {error or 'a smaller problem may fit'}", file=sys.stderr)
        return 2


def parser(command: str = "") -> argparse.ArgumentParser:
    """The parser of all commands, with the arguments of one: only its module is imported."""
    description = (
        "Linearized attention, softmax attention and prompts as biases, in one source over many number systems."
    )
    top = argparse.ArgumentParser(prog="refimpl", description=description)
    top.add_argument("--version", action="version", version=f"refimpl {__version__}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, words in COMMANDS.items():
        parser = commands.add_parser(name, help=words)
        if name == command:
            module = importlib.import_module(f"{__package__}.{name}")
            module.add_arguments(parser)
            parser.set_defaults(run=module.run)
    return top
