"""refimpl: linearized attention and in-context learning, in one source over many number systems.

One notation, in code, tests and proofs:

    n tokens    t query position    s ≤ t key position    d key width    m value width
    r features    M prompt length
    q, k (..., n, d)    v (..., n, m)    phi φ: (..., d) -> (..., r)
    R_p the RoPE rotation of position p
    S = Σ φ(k_s) v_sᵀ (..., r, m)    z = Σ φ(k_s) (..., r)
    Positions start at 0. Leading axes (batch, heads ...) broadcast.

Start with nano.py, which has the theory on one page.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .public import *


def __getattr__(name: str) -> Any:
    """The public names are imported together, when one is asked for: the command needs none."""
    public = importlib.import_module("refimpl.public")  # which brings in submodules, too
    return globals()[name] if name in globals() else getattr(public, name)


def __dir__() -> list[str]:
    return [*globals(), *__getattr__("__all__")]
