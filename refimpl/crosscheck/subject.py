"""A kernel that is checked: it gets arrays of its library, and what it returns becomes float64."""

from __future__ import annotations

import sys
from collections.abc import Callable
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
    notes : what else it changed
    asked : False if it was spared the question, since it had died of such ones
    """

    results: dict[str, HostArray] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    touched: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    problem: str = ""
    asked: bool = True


class Subject(Protocol):
    """Something that can be asked to compute a case."""

    def ask(self, spec: Spec, case: Case, arrays: Arrays, dtype: str) -> Answer: ...

    def forgive(self) -> None:
        """Forget what it died of: from now on smaller cases are looked for."""


@dataclass
class Function:
    """A function of this process."""

    function: Callable[..., Any]

    def ask(self, spec: Spec, case: Case, arrays: Arrays, dtype: str) -> Answer:
        return call(self.function, spec, case, arrays, dtype)

    def forgive(self) -> None:
        """It does not die."""


@quiet()
def call(function: Callable[..., Any], spec: Spec, case: Case, arrays: Arrays, dtype: str) -> Answer:
    """Call a function on the arrays of a case, and look at all that it returns and changes."""
    arrays = {"heads": case.heads, "groups": case.groups} | arrays
    theirs = {name: hand_over(spec, name, arrays[name], case, dtype) for name in spec.calls.given}
    before = {name: host(x).copy() for name, x in theirs.items() if hasattr(x, "shape")}
    world = surroundings()
    try:
        returned = spec.calls.make(function, theirs)
        found = {name: read_result(spec, name, x, spec.sizes_made(name, case, arrays)) for name, x in returned.items()}
    except ReturnedOther as error:
        return Answer(problem=str(error))
    except Exception as error:
        return Answer(problem=f"it raised {type(error).__name__}: {printable(error)}")
    results, dtypes = ({name: pair[i] for name, pair in found.items()} for i in (0, 1))
    touched = tuple(sorted(name for name, x in before.items() if not same(x, host(theirs[name]))))
    return Answer(results, dtypes, touched, tuple(name for name, x in surroundings().items() if x != world.get(name, x)))


def surroundings() -> dict[str, Any]:
    """What belongs to the whole process, and no kernel should change."""
    state: Any = np.random.get_state()
    found: dict[str, Any] = {"the seed of NumPy": (state[1].tobytes(), state[2]), "np.seterr": np.geterr()}
    if torch := sys.modules.get("torch"):
        found["torch's default dtype"] = str(torch.get_default_dtype())
        found["torch's grad mode"] = torch.is_grad_enabled()
        found["torch's seed"] = torch.random.get_rng_state().numpy().tobytes()
    return found


def read_result(spec: Spec, name: str, x: Any, sizes: dict[str, int]) -> tuple[HostArray, str]:
    """A result in our order, as float64, and its dtype."""
    if not hasattr(x, "shape") or not hasattr(x, "dtype"):
        raise ReturnedOther(f"{name} must be an array, got {type(x).__name__}")
    axes, theirs = spec.axes_of(name), host(x)
    if theirs.shape != (wanted := axes.shape(sizes)):
        raise ReturnedOther(f"{name} must have shape {wanted}, got {theirs.shape}")
    if theirs.dtype.kind not in "fV":
        raise ReturnedOther(f"{name} must hold floats, got {dtype_name(x.dtype)}")
    return axes.take(theirs.astype(np.float64), sizes), dtype_name(x.dtype)


def same(a: HostArray, b: HostArray) -> bool:
    return a.shape == b.shape and a.tobytes() == b.tobytes()


def hand_over(spec: Spec, name: str, x: Any, case: Case, dtype: str) -> Any:
    """An argument as the kernel takes it: its axes, library and dtype, and how it lies in memory."""
    if not isinstance(x, np.ndarray):
        return x
    x, kind, device = spec.axes_of(name).give(x), spec.dtype_of(name, dtype), spec.device or None
    if kind == "int64":
        return Float(spec.library, "float32").xp.asarray(x.astype(np.int64), device=device)
    system = Float(spec.library, kind, device)
    if case.memory == "strided" and spec.library != "jax":
        double: Any = system.convert(np.repeat(x, 2, axis=-1))
        double[..., 1::2] = 7  # between the numbers, where nobody should read
        return double[..., ::2]
    made: Any = system.convert(x)
    if case.memory == "read-only" and isinstance(made, np.ndarray):
        made.flags.writeable = False
    return made
