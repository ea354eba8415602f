"""The command `refimpl`, which is also `python -m refimpl`."""

import signal
import sys

from .cli.signals import SIGNALS, interrupted


def start() -> int:
    """Run the command, and return its exit status.

    Signals that follow the one that ended it do nothing.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupted)
    from .cli.main import main

    if (status := main()) > 128:
        for name in SIGNALS:
            if hasattr(signal, name):  # Windows lacks some
                signal.signal(getattr(signal, name), signal.SIG_IGN)
    return status


if __name__ == "__main__":
    sys.exit(start())
