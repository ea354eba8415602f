"""A kernel that is checked: it gets arrays of its library, and what it returns becomes float64.

A function is called in this process. One that is named as FILE.py:NAME or package.module:NAME runs
in a process of its own (worker.py), where it may crash, hang or print.
"""

from __future__ import annotations

import json
import os
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ..arrays import HostArray
from ..errors import printable
from ..systems import Float
from ..systems.array import host
from ..systems.floats import dtype_name, quiet
from .call import ReturnedOther
from .plan import Case
from .spec import Arrays, Spec


@dataclass
class Answer:
    """What a kernel returned: arrays in our order, or the problem that kept it from returning them.

    dtypes : of the results, by name
    touched : the arguments that it changed
    """

    results: dict[str, HostArray] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    touched: tuple[str, ...] = ()
    problem: str = ""


class Subject(Protocol):
    """Something that can be asked to compute a case."""

    def ask(self, spec: Spec, case: Case, arrays: Arrays, dtype: str) -> Answer: ...


@quiet()
def call(function: Callable[..., Any], spec: Spec, case: Case, arrays: Arrays, dtype: str) -> Answer:
    """Call a function on the arrays of a case."""
    given = {name: arrays[name] for name in spec.calls.given}
    theirs = {name: hand_over(spec, name, x, case, dtype) for name, x in given.items()}
    before = {name: host(x).copy() for name, x in theirs.items() if hasattr(x, "shape")}
    try:
        returned = spec.calls.make(function, theirs)
        results = {name: (host(x), dtype_name(x.dtype)) for name, x in returned.items()}
    except ReturnedOther as error:
        return Answer(problem=str(error))
    except Exception as error:
        if isinstance(error, AttributeError) and "dtype" in str(error):
            return Answer(problem="it returned something that is no array")
        return Answer(problem=f"it raised {type(error).__name__}: {printable(error)}")
    touched = tuple(name for name, x in before.items() if not same(x, host(theirs[name])))
    found: dict[str, HostArray] = {}
    for name, (x, _) in results.items():
        sizes = spec.sizes_of(name, case)
        wanted = spec.axes_of(name).shape(sizes)
        if x.shape != wanted:
            return Answer(problem=f"{name} has shape {x.shape} instead of {wanted}", touched=touched)
        try:
            found[name] = spec.axes_of(name).take(x.astype(np.float64), sizes)
        except (TypeError, ValueError):
            return Answer(problem=f"{name} has dtype {results[name][1]}", touched=touched)
    return Answer(found, {name: kind for name, (_, kind) in results.items()}, touched)


def same(a: HostArray, b: HostArray) -> bool:
    return a.shape == b.shape and a.tobytes() == np.ascontiguousarray(b).tobytes()


def hand_over(spec: Spec, name: str, x: Any, case: Case, dtype: str) -> Any:
    """An argument as the kernel takes it: its axes, library and dtype, and how it lies in memory."""
    if not isinstance(x, np.ndarray):
        return x
    x = spec.axes_of(name).give(x)
    system = Float(spec.library, spec.dtype_of(name, dtype))
    if case.memory == "strided" and spec.library in ("numpy", "torch", "cupy"):
        double = system.convert(np.repeat(x, 2, axis=-1))
        double[..., 1::2] = 7  # nobody should read it
        return double[..., ::2]
    made = system.convert(x)
    if case.memory == "read-only" and isinstance(made, np.ndarray):
        made.flags.writeable = False
    return made


@dataclass
class Function:
    """A function of this process."""

    function: Callable[..., Any]

    def ask(self, spec: Spec, case: Case, arrays: Arrays, dtype: str) -> Answer:
        return call(self.function, spec, case, arrays, dtype)
