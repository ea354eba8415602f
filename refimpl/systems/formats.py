"""Float formats: how many bits each has, and the nearest number of a format."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from ..arrays import HostArray

# format: (significant bits, least and greatest exponent e of a normal number m·2^e with ½ ≤ m < 1)
FORMATS = {
    "float64": (53, -1021, 1024),
    "float32": (24, -125, 128),
    "tfloat32": (11, -125, 128),
    "bfloat16": (8, -125, 128),
    "float16": (11, -13, 16),
}


@np.errstate(all="ignore")  # it rounds what underflows or overflows
def round_to(x: Any, format: str) -> HostArray:
    """The nearest number of the format, ties to even; gradual underflow; overflow to inf."""
    bits, low, high = FORMATS[format]
    m, e = np.frexp(np.asarray(x, dtype=np.float64))
    grid = np.maximum(e, low) - bits
    y = np.ldexp(np.rint(np.ldexp(m, e - grid)), grid)
    largest = np.ldexp(1 - 2.0**-bits, high)
    return np.asarray(np.where(np.abs(y) > largest, np.copysign(np.inf, y), y))


def nearest(x: Fraction, format: str) -> float:
    """The same for one exact rational, in one rounding; by way of float64 there would be two."""
    bits, low, high = FORMATS[format]
    top, below = x.numerator, x.denominator
    e = top.bit_length() - below.bit_length()  # 2^(e-1) < |x| < 2^(e+1)
    e += abs(top) << max(-e, 0) >= below << max(e, 0)  # now |x| < 2^e
    grid = max(e, low) - bits
    y, rest = divmod(top << max(-grid, 0), below := below << max(grid, 0))
    y += 2 * rest > below or (2 * rest == below and y % 2)
    return math.ldexp(y, grid) if abs(y).bit_length() + grid <= high else math.inf * (1 if x > 0 else -1)
