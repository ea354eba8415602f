"""The folder of real weights, which REFIMPL_MODELS names; they are no part of the project."""

import os
from pathlib import Path

import pytest


def folder(*names: str) -> Path:
    """The folder, if these files are in it; else the test says plainly that it did not run."""
    found = os.environ.get("REFIMPL_MODELS")
    if not found:
        pytest.skip("real weights were not looked at: REFIMPL_MODELS names no folder")
    missing = [name for name in names if not (Path(found) / name).is_file()]
    if missing:
        pytest.skip(f"real weights were not looked at: {found} has no {', '.join(missing)}")
    return Path(found)
