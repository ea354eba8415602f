"""The proofs, and how one file of them is built."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

PROOFS = Path(__file__).parents[2] / "proofs"
# each stands on rooms of the lines above it
ROOMS = (("linear_attention",), ("conversion", "rope", "feature_maps", "rationals"), ("computable",))


def with_coq() -> None:
    if not os.environ.get("REFIMPL_COQ") or not shutil.which("coqc"):
        pytest.skip("needs Coq (apt install coq libcoq-mathcomp-algebra) and REFIMPL_COQ=1")


def coqc(folder, room):
    """None, or what Coq says is wrong: the number of a line, and a message."""
    options = ["-Q", ".", "icl", "-w", "-notation-overridden,-ambiguous-paths"]
    done = subprocess.run(["coqc", *options, f"{room}.v"], cwd=folder, capture_output=True, text=True)
    if done.returncode == 0:
        return None
    place = re.search(r"line (\d+), characters [\d-]+:\n(Error:.*)", done.stderr, re.S)
    assert place, done.stderr
    return int(place[1]), place[2]
