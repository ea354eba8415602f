"""Assertions that several tests share."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from refimpl.systems import SystemArray, fractions


def says(kind: Any, message: str) -> Any:
    """The error must carry this text, word for word."""
    return pytest.raises(kind, match=re.escape(message))


def peak_memory(run: Callable[[], Any]) -> int:
    """The most bytes that Python and NumPy hold at once while this runs, beyond what they held."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def contains(numbers: Any, x: SystemArray, exact: SystemArray) -> bool:
    """Every ball of x contains the number of ℚ, or of mpmath at a much higher precision."""
    return all(
        a <= e <= b
        for (a, b), e in zip(map(numbers.ends, x.planes[0].ravel()), fractions(exact, "test").ravel(), strict=True)
    )


def informative(numbers: Any, x: SystemArray) -> bool:
    """No row of balls is vacuous: the widest ball of a row is smaller than the row's largest
    number. A row without radius always is.
    """
    rows = x.planes[0].reshape(-1, x.shape[-1]) if x.planes[0].size else []
    for row in rows:
        ends = [numbers.ends(a) for a in row]
        radius, size = max((b - a) / 2 for a, b in ends), max(abs(a + b) / 2 for a, b in ends)
        if radius and radius >= size:
            return False
    return True
