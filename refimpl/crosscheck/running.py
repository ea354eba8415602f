"""Numbers with a running error, of which more is known than the operations say."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays import HostArray
from ..systems import SystemArray
from ..systems.formats import round_to


def loosened(x: Any, off: HostArray) -> Any:
    """x, of which other executions may be off by so much more."""
    value, error = x.planes
    return x.system.wrap((value, error + off))


def rounded(x: Any, dtype: str) -> Any:
    """x rounded to a dtype. It is known exactly, except near the middle between two numbers."""
    if not isinstance(x, SystemArray):
        return round_to(x, dtype)
    value, error = (np.asarray(p, dtype=np.float64) for p in x.planes)
    low, high = (round_to(value + side * error, dtype) for side in (-2, 2))
    return x.system.wrap((round_to(value, dtype), high - low))


def value_of(x: Any) -> HostArray:
    """The numbers without their errors."""
    return np.asarray(x.planes[0] if isinstance(x, SystemArray) else x, dtype=np.float64)
