"""What a number is: one source runs over all of these.

| system | numbers | can |
|---|---|---|
| `Float(library, dtype, device)` | floats of any array-API library | ring, field, ordered, real |
| `MP(digits)` | mpmath at a stated precision | ring, field, ordered, real |
| `QQ` | exact rationals | ring, field, ordered |
| `GF(p)` | integers modulo a prime up to 2⁶¹−1 | ring, field |
| `balls(digits)` | rigorous enclosures | ring, field, real; order only as maximum |
| `Rounded(format, points)` | narrow floats, rounded at named points | ring, field, ordered, real |
| `RunningError(dtype)` | floats that carry a bound on their error | ring, field, ordered, real |
| `Degrees()` | degrees of numerator and denominator | ring, field |
| `Dependencies()` | which inputs an entry depends on | every function, formally |
| `Dual(base)` | a + bε over another system: derivatives | as the base |

To add a system, write one file here. It subclasses `ObjectSystem` (numbers are Python objects) or
`ArraySystem` (numbers are planes of machine numbers) and gives it a name, what it can do, and its
arithmetic. `system(name)` and `refimpl verify --system` find it by its name.

Threads may share systems and arrays, and compute what they would compute one after the other, bit
for bit. An instance of `Degrees` belongs to one analysis, and so to one thread. mpmath's constants
and python-flint's precision are the whole process's: our threads use them in turn, but one that
changes `flint.ctx` meanwhile changes our balls, and they its precision.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import Any

import numpy as np

from ..arrays import Array, HostArray
from ..errors import choose, find_name
from .array import ArraySystem, ObjectSystem, System, SystemArray, fractions, refuse_masked, require, seed_of
from .balls import balls
from .degrees import Degrees
from .dependencies import Dependencies
from .dual import Dual
from .finite_field import GF, is_prime
from .floats import FILE_DTYPES, LIBRARIES, Float, read_dtype, wide_floats
from .formats import round_to
from .multiprecision import MP
from .rational import QQ
from .rounded import Rounded
from .running_error import RunningError

__all__ = ["GF", "MP", "QQ", "Degrees", "Dependencies", "Dual", "Float", "Rounded", "RunningError", "balls"]
__all__ += ["ArraySystem", "ObjectSystem", "System", "SystemArray", "system", "system_of"]
__all__ += ["floats", "fractions", "is_prime", "refuse_masked", "require", "round_to", "seed_of"]


# What people write for a word of a label, beside its other cases
ALSO = {"QQ": "Q", "MP": "mpmath", "Fraction": "Q", "fractions": "Q"}


def system(name: Any) -> System:
    """A system by label: "Q", "GF(10007)", "mpmath(50)", "torch bfloat16", "rounded(float16)" ...

    name : a label, in any case; or a dtype, as in Float: torch.float32, "fp32" ...

    >>> system("GF(10007)").convert([-1])
    GF(10007)([10006])
    >>> system("Q").convert([0.1])
    ℚ([3602879701896397/36028797018963968])
    """
    if not isinstance(name, str):
        if read_dtype(name) is None:
            raise TypeError(f"system: `name` must be a str such as 'Q', or a dtype, got {type(name).__name__}")
        return Float(name)
    word, _, argument = (part.strip() for part in name.strip().removesuffix(")").partition("("))
    known, (kind, _, device) = classes_by_word(), word.partition(" on ")
    if word not in known and not argument:
        if (alone := read_dtype(kind)) and alone[1] in FILE_DTYPES:
            return Float(kind, device=device.strip() or None)
        words = [*kind.split(), *device.split()]
        if len(words) in (2, 3):  # library, dtype and perhaps device
            return Float(find_name(words[0], (*LIBRARIES, "jax")), *words[1:])
    word = find_name(word, (*known, *ALSO))
    word = ALSO.get(word, word)
    choose("system", "name", word, known)
    return known[word].from_label(word, argument)


@functools.cache
def classes_by_word() -> dict[str, type[System]]:
    """Every word with which a label may begin, and its class, from all modules of this package."""
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    found = [c for module in modules for c in vars(module).values() if isinstance(c, type) and issubclass(c, System)]
    return {word: c for c in found for word in c.words or [getattr(c, "name", "")] if word}


def system_of(x: Array) -> System:
    """The system an array lives in."""
    if isinstance(x, SystemArray):
        return x.system
    try:
        return Float.of(x)
    except TypeError:
        kinds = "(NumPy, torch, JAX, or of a refimpl system)"
        raise TypeError(f"system_of: `x` must be an array {kinds}, got {type(x).__name__}") from None


def floats(x: Array) -> HostArray:
    """The nearest float64 numbers, on the host, for any system whose numbers are rationals."""
    refuse_masked("floats", "x", x)
    wide = wide_floats(x)  # faster than by way of fractions, where it is exact
    return np.asarray(fractions(x, "floats").astype(np.float64)) if wide is None else wide + 0.0
