"""Output of all commands: a JSON file, and a line of progress on the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..files.disk import replacing, target_file


def json_target(path: str | None) -> Path | None:
    """The file that `--json` names, refused before the work if it cannot be written."""
    return None if path is None else target_file("--json", path)


def write_json(target: Path, data: Any) -> None:
    """Write a JSON file completely or not at all."""
    with replacing("--json", target, "x") as file:
        json.dump(data, file, indent=1, ensure_ascii=False, allow_nan=False)


def progress() -> Callable[[str], None]:
    """A function that shows a line in place of the one before it, if stderr is a terminal."""
    if not sys.stderr.isatty():
        return lambda line: None
    return lambda line: print(f"\r\x1b[K{line}", end="\r", file=sys.stderr, flush=True)
