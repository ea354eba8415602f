"""The signals that end a command: its drafts are removed, and the status is 128 + the number."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

SIGNALS = {"SIGINT": "interrupted", "SIGTERM": "terminated", "SIGHUP": "the terminal was closed"}
SOON = 1  # seconds after a signal in which others add nothing to it
AGAIN = 0.02  # seconds after which an exception that was dropped is raised again


def interrupted(number: int, frame: Any) -> NoReturn:
    """The handler of SIGINT while there is no work to end, as in the first imports."""
    with suppress(OSError):
        os.write(2, b"refimpl: interrupted\n")
    os._exit(128 + number)


class Stopped(BaseException):
    """A signal, by its number; no KeyboardInterrupt, after which Python may kill itself.

    Some libraries drop an exception that they did not expect. It tells so when it is deleted.
    """

    def __init__(self, number: int, dropped: Callable[[int], object] = lambda number: None) -> None:
        super().__init__(number)
        self.number, self.dropped = number, dropped

    def __del__(self) -> None:
        self.dropped(self.number)


class Ending:
    """What signals do in the block `ending_signals`: raise Stopped, until it has arrived."""

    def __init__(self) -> None:
        self.last, self.arrived = -math.inf, False
        self.main = threading.main_thread().ident
        known = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
        defaults = (signal.SIG_DFL, signal.default_int_handler, interrupted)  # what is ignored stays ignored
        here = threading.current_thread() is threading.main_thread()
        self.signals = [s for s in known if signal.getsignal(s) in defaults] if here else []

    def stop(self, number: int, frame: Any) -> None:
        before, self.last = self.last, time.monotonic()
        if self.last - before > SOON:
            raise Stopped(number, self.dropped)

    def dropped(self, number: int) -> None:
        """Send a signal again whose exception did not arrive."""
        if not self.arrived:
            threading.Timer(AGAIN, self.send, [number]).start()

    def send(self, number: int) -> None:
        if not self.arrived:
            self.last = -math.inf
            if hasattr(signal, "pthread_kill") and self.main:
                signal.pthread_kill(self.main, number)  # which wakes the thread, too
            else:  # on Windows
                signal.raise_signal(number)

    def arrive(self) -> None:
        """From now on signals do nothing."""
        self.arrived = True
        for each in self.signals:
            signal.signal(each, signal.SIG_IGN)


@contextmanager
def ending_signals() -> Iterator[Ending]:
    """In this block the signals that end a command raise Stopped.

    One that follows another soon does not disturb what the other has begun; one that follows later
    does.
    """
    ending, say = Ending(), sys.unraisablehook
    before = {s: signal.signal(s, ending.stop) for s in ending.signals}
    sys.unraisablehook = lambda what: None if isinstance(what.exc_value, Stopped) else say(what)
    try:
        yield ending
    finally:
        ending.arrived = True
        sys.unraisablehook = say
        for s, handler in before.items():
            signal.signal(s, handler)


@contextmanager
def held_signals() -> Iterator[None]:
    """In this block signals wait: a library that is being imported can be left half made."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [getattr(signal, name) for name in SIGNALS])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
