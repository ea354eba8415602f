"""The command `refimpl`."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any, NoReturn


def interrupted(number: int, frame: Any) -> NoReturn:
    """The handler of SIGINT while there is no work to end, as in the first imports."""
    with suppress(OSError):
        os.write(2, b"refimpl: interrupted\n")
    os._exit(128 + number)
