"""What the longer examples share: --full, --plot FILE.png, and a line of progress."""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from ..files.disk import target_file
from .output import progress

SECONDS = 0.1  # between two lines of progress
T = TypeVar("T")


def read_options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """--full and --plot. If no picture can be written, the process ends here, before the work."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--full", action="store_true", help="more of everything, in minutes")
    parser.add_argument("--plot", metavar="FILE.png", help="draw a picture, with matplotlib")
    options = parser.parse_args(argv)
    if options.plot is not None:
        if importlib.util.find_spec("matplotlib") is None:
            raise SystemExit("--plot needs matplotlib: pip install 'refimpl[plot]'")
        try:
            options.plot = target_file("--plot", options.plot)
        except OSError as error:
            raise SystemExit(str(error)) from None
    return options


def with_progress(things: Iterable[T], what: str) -> Iterator[T]:
    """These things, one after the other; a terminal shows how many of them are done.

    >>> list(with_progress("ab", "letter"))
    ['a', 'b']
    """
    show, every, shown = progress(), tuple(things), 0.0
    for i, thing in enumerate(every):
        if time.monotonic() - shown > SECONDS:
            show(f"{what} {i + 1} of {len(every)}")
            shown = time.monotonic()
        yield thing
    show("")
