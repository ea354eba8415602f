"""What a number is. One source runs over all of these.

| handle | numbers | can |
|---|---|---|
| `Float(library, dtype, device)` | floats of any array-API library | ring, field, ordered, real |
| `MP(digits)` | mpmath at a stated precision | ring, field, ordered, real |
| `QQ` | exact rationals | ring, field, ordered |
| `GF(p)` | integers modulo a prime up to 2⁶¹−1 | ring, field |
| `balls(digits)` | rigorous enclosures | ring, field, real; order only as maximum |
| `Rounded(format, points)` | a narrow float format, rounded at named points | ring, field, ordered, real |
| `RunningError(dtype)` | floats that carry a bound on their error | ring, field, ordered, real |
| `Degrees()` | degrees of numerator and denominator | ring, field |
| `Dependencies()` | which inputs an entry depends on | every function, formally |
| `Dual(base)` | a + bε over another system: derivatives | as the base |

A new system is one file: subclass `ObjectSystem` (numbers are Python objects) or `ArraySystem` (numbers are planes of
machine numbers), give it a name, what it can do, and its arithmetic.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import choose
from .array import ArraySystem, ObjectSystem, System, SystemArray, fractions, require, seed_of
from .balls import ArbBalls, Balls
from .degrees import Degrees
from .dependencies import Dependencies
from .dual import Dual
from .finite_field import FiniteField, is_prime
from .floats import Float, wide_floats
from .formats import round_to
from .multiprecision import Multiprecision
from .rational import Rational
from .rounded import Rounded
from .running_error import RunningError

__all__ = [
    "GF",
    "MP",
    "QQ",
    "ArraySystem",
    "Degrees",
    "Dependencies",
    "Dual",
    "Float",
    "ObjectSystem",
    "Rounded",
    "RunningError",
    "System",
    "SystemArray",
    "balls",
    "floats",
    "fractions",
    "is_prime",
    "require",
    "round_to",
    "seed_of",
    "system",
    "system_of",
]

QQ = Rational()
GF = functools.cache(FiniteField)
MP = functools.cache(Multiprecision)


@functools.cache
def balls(digits: int, maker: str | None = None) -> Balls:
    """Balls by `arb` (python-flint) when installed, else by `mpmath.iv`; or by the maker that is named."""
    if maker is None:
        maker = "arb" if importlib.util.find_spec("flint") else "iv"
    choose("balls", "maker", maker, ("arb", "iv"))
    if maker == "arb" and not importlib.util.find_spec("flint"):
        raise ImportError("python-flint is not installed: pip install 'refimpl[fast]'")
    return ArbBalls(digits) if maker == "arb" else Balls(digits)


def system(name: str) -> System:
    """A system by name: "float64", "torch bfloat16", "mpmath(50)", "Q", "GF(10007)", "balls(30)", "rounded(bfloat16)", "dependencies".

    >>> system("GF(10007)").convert([-1])
    GF(10007)([10006])
    >>> system("Q").convert([0.1])
    ℚ([3602879701896397/36028797018963968])
    """
    word, _, argument = name.strip().removesuffix(")").partition("(")
    if len(words := word.replace(" on ", " ").split()) in (2, 3):
        return Float(*words)
    makers: dict[str, Callable[[], System]] = {
        "Q": lambda: QQ,
        "GF": lambda: GF(_integer(name, argument, 2**61 - 1)),
        "mpmath": lambda: MP(_integer(name, argument, 50)),
        "balls": lambda: balls(_integer(name, argument, 30)),
        "rounded": lambda: Rounded(argument or "bfloat16"),
        "dependencies": Dependencies,
        **{dtype: functools.partial(Float, "numpy", dtype) for dtype in ("float64", "float32", "float16")},
    }
    choose("system", "name", word, makers)
    return makers[word]()


def _integer(name: str, argument: str, default: int) -> int:
    if argument and not argument.isdecimal():
        raise ValueError(f"system: `name` must have an integer in its brackets, got {name!r}")
    return int(argument or default)


def system_of(x: Any) -> System:
    """The system an array lives in."""
    return x.system if isinstance(x, SystemArray) else Float.of(x)


def floats(x: Any) -> np.ndarray:
    """The nearest float64 numbers, on the host: an explicit way out of any system whose numbers are rationals."""
    wide = wide_floats(x)  # sooner than by way of fractions, where it is exact
    return np.asarray(fractions(x, "floats").astype(np.float64)) if wide is None else wide + 0.0
