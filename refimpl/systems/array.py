"""Arrays over any number system, and the namespace that the core uses like an array library.

A `SystemArray` is a tuple of NumPy *planes* of one shape, and the system that reads them: one
plane of Python objects in ℚ, one of machine integers in GF(p), one of values and one of errors in
a running error analysis. Functions that only move entries (reshape, concat, where ...) are written
here once, for every plane. A system adds arithmetic on tuples of planes: `lift`, `add`, `neg`,
`mul`, `div`, `eq`.
"""

from __future__ import annotations

import functools
import hashlib
import math
import numbers
import operator
import os
import threading
from collections.abc import Callable
from fractions import Fraction
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np

from ..arrays import Array, HostArray, Namespace
from ..errors import NotDefined, brief, choose, printable

P = ParamSpec("P")
Made = TypeVar("Made")
Planes = tuple[HostArray, ...]
Frequencies = list[tuple[Fraction, Fraction]]  # θ = base^exponent as (base, exponent)

# mpmath keeps constants for the whole process, and python-flint a precision. A thread that uses
# them holds this; another that changes them behind our back cannot be helped. No fork takes place
# while one holds it, or the child would find it held for ever.
GLOBAL_STATE = threading.RLock()
if hasattr(os, "register_at_fork"):
    _release = GLOBAL_STATE.release
    os.register_at_fork(before=GLOBAL_STATE.acquire, after_in_parent=_release, after_in_child=_release)

# What a system can do, and the function whose absence shows that it cannot.
CAPABILITIES = {"ring": "multiplication", "field": "division", "ordered": "maximum", "real": "exp"}
FUNCTIONS = ("exp", "log", "sqrt", "tanh", "cos", "sin")  # of a real system

MOST_DIGITS = 10**9
MOST_DRAWS = 2**40  # numbers that one draw may have


class System:
    """A number system: its name, what it `can` do, and its array namespace `xp`.

    label : how `--system` spells it, as word(argument)
    words : the words with which a label of this class may begin, if it is not the name of the class
    ways  : the ways in which `verify` may compare its numbers
    file_label, file_dtype : how safetensors files name it and its numbers; "" if they have no place
    """

    name: str
    words: tuple[str, ...] = ()
    can: frozenset[str] = frozenset(CAPABILITIES)
    exact = False  # equality is decided, not estimated
    file_dtype: str = ""
    xp: Namespace
    equal: Callable[[Any, Any], bool]  # same shape and, entry by entry, the same numbers
    # The array of that name in a file as one of this system. Its numbers are not trusted.
    from_file: Callable[[str, HostArray], Array]

    def __init_subclass__(cls) -> None:
        for capability in getattr(cls, "can", ()):
            choose(cls.__name__, "can", capability, CAPABILITIES)
        if isinstance(cls.can, tuple | list | set):
            cls.can = frozenset(cls.can)

    def __repr__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    @functools.cached_property
    def label(self) -> str:
        return self.name

    @functools.cached_property
    def file_label(self) -> str:
        return self.label

    @classmethod
    def from_label(cls, word: str, argument: str) -> System:
        """The system that word(argument) spells; here there must be no argument."""
        refuse_argument(word, argument)
        return cls()

    @property
    def ways(self) -> tuple[str, ...]:
        if self.exact:
            return ("equality", "witness")
        raise NotDefined(f"verify: {self.name} has no way of deciding equality")

    def to_file(self, x: Any) -> HostArray:
        raise NotDefined(f"numbers of {self.name} cannot be written; floats of at most 64 bits and GF(p) can")

    def convert(self, values: Any) -> Array:
        raise NotImplementedError

    def random(self, shape: tuple[int, ...], seed: int) -> Array:
        raise NotDefined(f"uniform draws have no meaning in {self.name}")

    def angles(self, frequencies: Frequencies, positions: Any) -> tuple[Array, Array]:
        """(cos pθ, sin pθ), each (..., n, h), for integers p (..., n) and h frequencies θ."""
        raise NotDefined(f"cos is not defined in {self.name}; use power_table, which needs only c² + s² = 1")


def require(system: System, capability: str, who: str) -> None:
    """Refuse, in one sentence, a system that cannot do what `who` needs."""
    if capability not in system.can:
        lacking, a = CAPABILITIES[capability], "an" if capability[0] in "aeiou" else "a"
        raise NotDefined(f"{lacking} is not defined in {system.name}; {who} needs {a} {capability} system")


def refuse_argument(word: str, argument: str) -> None:
    if argument:
        raise ValueError(f"system: `name` must be {word!r} without brackets, got {word}({argument})")


def integer_argument(word: str, argument: str, default: int) -> int:
    """The integer in the brackets of a label."""
    if argument and not (argument.isdecimal() and len(argument) <= 20):  # a p below 2^61 has 19 digits
        wanted = "an integer of at most 20 digits in its brackets"
        raise ValueError(f"system: `name` must have {wanted}, got {printable(f'{word}({argument})', 60)!r}")
    return int(argument or default)


def fractions(values: Any, who: str) -> HostArray:
    """Numbers of any kind as an object array of Fractions, without rounding."""
    if isinstance(values, SystemArray):
        return values.system.fractions(values)
    refuse_masked(who, "values", values)
    a = host(values)
    if a.dtype.kind == "V" and a.dtype.isbuiltin == 2:  # floats of ml_dtypes fit in float64
        a = a.astype(np.float64)
    if a.dtype.kind not in "biufO":
        raise TypeError(f"{who}: cannot convert numbers of dtype {a.dtype}")
    a = a.astype(object)
    try:
        return elementwise(as_fraction, a)
    except (AttributeError, ValueError, OverflowError):
        at = first(elementwise(lambda x: not (isinstance(x, numbers.Real) and math.isfinite(x)), a).astype(bool))
        rule = "numbers must be finite and real, in rows of one length"
        raise ValueError(f"{who}: cannot convert {brief(a[at])} at index {at}; {rule}") from None


def first(bad: HostArray) -> tuple[int, ...]:
    """Index of the first True."""
    return tuple(int(i) for i in np.argwhere(bad)[0])


def refuse_masked(who: str, name: str, x: Any) -> None:
    """Refuse a masked array of NumPy: functions of arrays read what stands behind its mask."""
    if isinstance(x, np.ma.MaskedArray):
        advice = "fill it with .filled(...), and name tokens that do not count by `padding=`"
        raise TypeError(f"{who}: `{name}` must be a plain array, got a masked one, whose mask has no effect; {advice}")


def host(x: Any) -> HostArray:
    """The numbers of an array, on any device, as an array of NumPy."""
    if hasattr(x, "detach"):  # torch has dtypes that NumPy does not know
        x = x.detach().cpu()
        x = (x.float() if str(x.dtype).startswith(("torch.bfloat16", "torch.float8")) else x).numpy()
    elif hasattr(x, "get") and hasattr(x, "__cuda_array_interface__"):
        x = x.get()
    elif type(x).__module__.startswith("array_api_strict"):
        x = np.from_dlpack(x.to_device(x.__array_namespace__().Device("CPU_DEVICE")))
    # Without a dtype, NumPy would round a list of mixed integers to float64.
    return np.asarray(x, dtype=object if isinstance(x, list | tuple) else None)


def generator(who: str, shape: Any, seed: Any) -> np.random.Generator:
    """NumPy's generator of this seed, for an array of this shape; both are checked."""
    try:
        right = isinstance(shape, tuple | list) and all(operator.index(n) >= 0 for n in shape)
    except TypeError:
        right = False
    if not right or math.prod(shape) > MOST_DRAWS or len(shape) > 32:
        wanted = "a tuple of at most 32 integers ≥ 0, for at most 2^40 numbers"
        raise ValueError(f"{who}: `shape` must be {wanted}, got {brief(shape)}")
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ValueError(f"{who}: `seed` must be an integer ≥ 0, got {brief(seed)}")
    return np.random.default_rng(seed)


def check_digits(who: str, digits: Any) -> None:
    if not isinstance(digits, int) or isinstance(digits, bool) or not 1 <= digits <= MOST_DIGITS:
        raise ValueError(f"{who}: digits must be a positive integer up to 10^9, got {brief(digits)}")


def once(make: Callable[P, Made]) -> Callable[P, Made]:
    """The same function, which makes one system for one set of arguments, and refuses the rest."""
    made = functools.lru_cache(maxsize=None, typed=True)(make)

    @functools.wraps(make)
    def get(*args: P.args, **options: P.kwargs) -> Made:
        try:
            hash((args, *options.values()))
        except TypeError:  # `make` has its own words for it
            return make(*args, **options)
        return made(*args, **cast(Any, options))

    vars(get).update(cache_clear=made.cache_clear)
    return get


def seed_of(*parts: object) -> int:
    """A seed made from these words and numbers alone, unrelated to that of any others."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big")


def as_fraction(x: Any) -> Fraction:
    """One number, exactly, with integers of Python inside."""
    n, d = x.as_integer_ratio() if hasattr(x, "as_integer_ratio") else (x.numerator, x.denominator)
    return Fraction(int(n), int(d))


def plain(x: Any) -> Any:
    """A rational of gmpy2 as one of Python, anything else as it is."""
    return as_fraction(x) if isinstance(x, numbers.Rational) and not isinstance(x, Fraction | int) else x


def elementwise(f: Callable[..., Any], *arrays: Any) -> HostArray:
    """f applied entry by entry to object arrays (which broadcast)."""
    return np.asarray(np.frompyfunc(f, len(arrays), 1)(*arrays), dtype=object)


class SystemArray:
    """An array over a number system. It computes only with its own kind and with rationals."""

    __slots__ = ("dtype", "ndim", "planes", "shape", "system")
    __array_ufunc__ = None  # else NumPy would apply its own functions entry by entry
    __hash__ = None  # type: ignore[assignment]
    device = "cpu"

    def __init__(self, system: ArraySystem, planes: Planes) -> None:
        self.system = self.dtype = system
        pairs = zip(planes, system.dtypes, strict=True)
        self.planes = tuple([p if type(p) is np.ndarray and p.dtype is t else np.asarray(p, dtype=t) for p, t in pairs])
        self.shape: tuple[int, ...] = self.planes[0].shape
        self.ndim = len(self.shape)

    def __array_namespace__(self, api_version: str | None = None) -> ArraySystem:
        return self.system

    def __array__(self, dtype: Any = None, copy: Any = None) -> HostArray:
        hint = "does not become a NumPy array by itself; use floats(x) or x.tolist()"
        raise TypeError(f"an array over {self.system.name} {hint}")

    def __getitem__(self, index: Any) -> SystemArray:
        return self.system.each(lambda p: p[index], self)

    def tolist(self) -> Any:
        planes = [(elementwise(plain, p) if p.dtype == object else p).tolist() for p in self.planes]
        return planes[0] if len(planes) == 1 else planes

    def __repr__(self) -> str:
        text = functools.partial(np.array2string, formatter={"object": lambda v: str(plain(v))}, separator=", ")
        with GLOBAL_STATE:  # python-flint prints as many digits as its precision has
            parts = [text(p) for p in self.planes]
        return f"{self.system.name}({'; '.join(parts)})"

    def __len__(self) -> int:
        return len(self.planes[0])

    def __neg__(self) -> SystemArray:
        return SystemArray(self.system, self.system.neg(self.planes))

    def __add__(self, other: Any) -> SystemArray:
        return self.system.binary("add", self, other)

    def __sub__(self, other: Any) -> SystemArray:
        return self + -self.system.coerce("subtract", other)

    def __rsub__(self, other: Any) -> SystemArray:
        return self.system.binary("add", -self, other)

    def __mul__(self, other: Any) -> SystemArray:
        return self.system.binary("mul", self, other)

    __radd__, __rmul__ = __add__, __mul__

    def __truediv__(self, other: Any) -> SystemArray:
        return self.system.binary("div", self, other)

    def __rtruediv__(self, other: Any) -> SystemArray:
        return self.system.binary("div", self.system.coerce("divide", other), self)

    def __matmul__(self, other: Any) -> SystemArray:
        return self.system.matmul(self, other)

    def __rmatmul__(self, other: Any) -> SystemArray:
        return self.system.coerce("matmul", other) @ self

    def __eq__(self, other: Any) -> HostArray:  # type: ignore[override]
        return self.system.compare("eq", self, other)

    def __ne__(self, other: Any) -> HostArray:  # type: ignore[override]
        return np.asarray(~(self == other))

    def __lt__(self, other: Any) -> HostArray:
        require(self.system, "ordered", "a comparison")
        return self.system.compare("less", self, other)

    def __gt__(self, other: Any) -> HostArray:
        return self.system.coerce("compare", other) < self

    def __le__(self, other: Any) -> HostArray:
        return np.asarray(~(self > other))

    def __ge__(self, other: Any) -> HostArray:
        return np.asarray(~(self < other))

    def __pow__(self, exponent: int) -> SystemArray:
        if not isinstance(exponent, int) or exponent < 0:
            raise TypeError(f"an exponent in {self.system.name} must be an integer ≥ 0, got {exponent!r}")
        return functools.reduce(operator.mul, [self] * exponent, self.system.ones_like(self))


class ArraySystem(System):
    """A number system that is its own array namespace. Subclasses give arithmetic on planes."""

    dtypes: tuple[np.dtype[Any], ...] = (np.dtype(object),)

    @property
    def itemsize(self) -> int:
        """Bytes of one number; of a Python object, about."""
        return sum(64 if dtype.hasobject else dtype.itemsize for dtype in self.dtypes)

    @property
    def xp(self) -> Namespace:  # type: ignore[override]
        return cast(Namespace, self)

    @property
    def __name__(self) -> str:  # array_api_compat asks every namespace for it
        return self.name

    def __getattr__(self, name: str) -> Any:
        if name in FUNCTIONS:
            return functools.partial(self.function, name)
        where = "refimpl.systems.array.ArraySystem"
        raise AttributeError(f"{name} is not among the array functions of {self.name}; see {where}")

    # Every system supplies lift, neg, add and mul. x, y: tuples of planes, which broadcast.

    def lift(self, fractions: HostArray) -> Planes:
        """Exact rationals (an object array of Fraction) as numbers of this system."""
        raise NotImplementedError

    def neg(self, x: Planes) -> Planes:
        raise NotImplementedError

    def add(self, x: Planes, y: Planes) -> Planes:
        raise NotImplementedError

    def mul(self, x: Planes, y: Planes) -> Planes:
        raise NotImplementedError

    def div(self, x: Planes, y: Planes) -> Planes:
        raise NotDefined(f"division is not defined in {self.name}")

    def eq(self, x: Planes, y: Planes) -> HostArray:
        return np.asarray(np.logical_and.reduce([np.asarray(a == b, dtype=bool) for a, b in zip(x, y, strict=True)]))

    # A system may supply these.

    def less(self, x: Planes, y: Planes) -> HostArray:
        raise NotDefined(f"order is not defined in {self.name}")

    def singular(self, x: SystemArray) -> HostArray:
        """The entries by which nothing can be divided."""
        return x == 0

    def fractions(self, x: SystemArray) -> HostArray:
        raise NotDefined(f"numbers of {self.name} are not rationals")

    def as_floats(self, x: SystemArray) -> HostArray | None:
        """The entries as float64, where that is exact and faster than by fractions."""
        return None

    def refuse_zero(self, y: Planes) -> None:
        zero = self.singular(self.wrap(y))
        if zero.any():
            raise ZeroDivisionError(f"division by zero in {self.name} at index {first(zero)}")

    def wrap(self, planes: Planes) -> SystemArray:
        return SystemArray(self, planes)

    def convert(self, values: Any) -> SystemArray:
        """Numbers, nested lists, NumPy arrays or arrays over ℚ as an array of this system."""
        if isinstance(values, SystemArray) and values.system == self:
            return values
        return self.wrap(self.lift(fractions(values, f"{self.name}.convert")))

    def coerce(self, verb: str, other: Any) -> SystemArray:
        if isinstance(other, SystemArray) and (other.system is self or other.system == self):
            return other
        if isinstance(other, int | Fraction) and not isinstance(other, bool):
            return self._constant(other)
        if isinstance(other, float):
            takes = repr(Fraction(other)) if math.isfinite(other) else "finite numbers"
            raise TypeError(f"{other} is a float; {self.name} takes {takes}")
        kind = other.system.name if isinstance(other, SystemArray) else type(other).__name__
        raise TypeError(f"cannot {verb} {self.name} and {kind}; convert one of them explicitly")

    def binary(self, name: str, x: SystemArray, y: Any) -> SystemArray:
        return self.wrap(getattr(self, name)(x.planes, self.coerce(name, y).planes))

    def compare(self, name: str, x: SystemArray, y: Any) -> HostArray:
        return np.asarray(getattr(self, name)(x.planes, self.coerce("compare", y).planes), dtype=bool)

    def unequal(self, x: SystemArray, y: SystemArray) -> HostArray:
        return x != y

    def equal(self, x: SystemArray, y: SystemArray) -> bool:
        return x.shape == y.shape and not self.unequal(x, y).any()

    # The namespace: functions that only move entries.

    def each(self, f: Callable[..., Any], *arrays: Any) -> SystemArray:
        """f on each plane of the arrays in turn; on masks, which are NumPy arrays, directly."""
        if len(arrays) == 1 and isinstance(arrays[0], SystemArray):
            return self.wrap(tuple([f(p) for p in arrays[0].planes]))
        if all(isinstance(a, np.ndarray) for a in arrays):
            return cast(SystemArray, f(*arrays))
        coerced = [self.coerce("combine", a) for a in arrays]
        return self.wrap(tuple([f(*planes) for planes in zip(*[a.planes for a in coerced], strict=True)]))

    def asarray(self, x: Any, /, *, dtype: Any = None, device: Any = None) -> SystemArray:
        return self.convert(x)

    @functools.cached_property
    def _constant(self) -> Callable[[int | Fraction], SystemArray]:
        """`convert`, with a cache: formulas ask for the same few numbers again and again."""
        return functools.lru_cache(maxsize=64)(self.convert)

    def zeros(self, shape: Any, *, dtype: Any = None, device: Any = None) -> SystemArray:
        return self.broadcast_to(self._constant(0), shape)

    def ones(self, shape: Any, *, dtype: Any = None, device: Any = None) -> SystemArray:
        return self.broadcast_to(self._constant(1), shape)

    def eye(self, n: int, *, dtype: Any = None, device: Any = None) -> SystemArray:
        return self.where(np.eye(n, dtype=bool), self.ones((n, n)), self.zeros((n, n)))

    def zeros_like(self, x: SystemArray, /) -> SystemArray:
        return self.zeros(x.shape)

    def ones_like(self, x: SystemArray, /) -> SystemArray:
        return self.ones(x.shape)

    def reshape(self, x: SystemArray, shape: Any) -> SystemArray:
        return self.each(lambda p: p.reshape(shape), x)

    def broadcast_to(self, x: SystemArray, shape: Any) -> SystemArray:
        return self.each(lambda p: np.broadcast_to(p, shape), x)

    def matrix_transpose(self, x: SystemArray) -> SystemArray:
        return self.each(lambda p: np.swapaxes(p, -1, -2), x)

    def moveaxis(self, x: SystemArray, source: int, destination: int, /) -> SystemArray:
        return self.each(lambda p: np.moveaxis(p, source, destination), x)

    def take(self, x: SystemArray, indices: HostArray | int, /, *, axis: int) -> SystemArray:
        return self.each(lambda p: np.take(p, indices, axis=axis), x)

    def concat(self, arrays: Any, *, axis: int = 0) -> SystemArray:
        return self.each(lambda *ps: np.concatenate(ps, axis=axis), *arrays)

    def stack(self, arrays: Any, *, axis: int = 0) -> SystemArray:
        return self.each(lambda *ps: np.stack(ps, axis=axis), *arrays)

    def where(self, condition: HostArray, x: Any, y: Any) -> SystemArray:
        return self.each(lambda p, q: np.where(condition, p, q), x, y)

    def keep_where(self, x: SystemArray, keep: HostArray) -> SystemArray:
        """where(keep, x, 0). A system may overwrite x, which nobody else may hold."""
        return self.where(keep, x, self.zeros_like(x))

    # Masks and indices are plain NumPy arrays, in every system of this kind.

    def arange(self, *args: Any, dtype: Any = None, device: Any = None) -> HostArray:
        return np.arange(*args)

    def any(self, condition: Any) -> Any:
        return np.any(condition)

    def isfinite(self, x: SystemArray) -> HostArray:
        return np.ones(x.shape, dtype=bool)

    @functools.cached_property
    def always_finite(self) -> bool:
        """Has this system neither nan nor inf?"""
        return type(self).isfinite is ArraySystem.isfinite

    # The namespace: arithmetic.

    def right_factor(self, x: SystemArray, y: Any) -> SystemArray:
        """y as the right factor of a matrix product."""
        right = self.coerce("matmul", y)
        if x.ndim < 2 or right.ndim < 2 or x.shape[-1] != right.shape[-2]:
            raise ValueError(f"matmul: cannot multiply shapes {x.shape} and {right.shape}")
        return right

    def matmul(self, x: SystemArray, y: Any) -> SystemArray:
        """Σ_k x[..., k] y[k, ...], one term after the other."""
        y = self.right_factor(x, y)
        lead = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        total = self.zeros((*lead, x.shape[-2], y.shape[-1]))
        for i in range(x.shape[-1]):
            total = total + x[..., :, i : i + 1] * y[..., i : i + 1, :]
        return total

    def _fold(self, f: Callable[..., Any], start: SystemArray, x: SystemArray, axis: int, keep: bool) -> SystemArray:
        for i in range(x.shape[axis]):
            start = f(start, self.take(x, i, axis=axis))
        return self.each(lambda p: np.expand_dims(p, axis), start) if keep else start

    def sum(self, x: SystemArray, *, axis: int, keepdims: bool = False) -> SystemArray:
        return self._fold(operator.add, self.zeros(np.delete(x.shape, axis)), x, axis, keepdims)

    def max(self, x: SystemArray, *, axis: int, keepdims: bool = False) -> SystemArray:
        return self._fold(self.maximum, self.take(x, 0, axis=axis), x, axis, keepdims)

    def min(self, x: SystemArray, *, axis: int, keepdims: bool = False) -> SystemArray:
        return -self.max(-x, axis=axis, keepdims=keepdims)

    def maximum(self, x: SystemArray, y: SystemArray) -> SystemArray:
        require(self, "ordered", "maximum")
        return self.where(x < y, y, x)

    def minimum(self, x: SystemArray, y: SystemArray) -> SystemArray:
        return -self.maximum(-x, -y)

    def abs(self, x: SystemArray) -> SystemArray:
        return self.maximum(x, -x)

    def function(self, name: str, x: SystemArray) -> SystemArray:
        """One of FUNCTIONS, by name; real systems override this."""
        raise NotDefined(f"{name} is not defined in {self.name}; it needs a real system")


class ObjectSystem(ArraySystem):
    """One plane of Python objects that know `+ - * / == <` themselves."""

    def number(self, x: Fraction) -> Any:
        """One exact rational as an object of this system."""
        raise NotImplementedError

    def lift(self, fractions: HostArray) -> Planes:
        return (elementwise(self.number, fractions),)

    def add(self, x: Planes, y: Planes) -> Planes:
        return (x[0] + y[0],)

    def neg(self, x: Planes) -> Planes:
        return (-x[0],)

    def mul(self, x: Planes, y: Planes) -> Planes:
        return (x[0] * y[0],)

    def div(self, x: Planes, y: Planes) -> Planes:
        self.refuse_zero(y)
        return (x[0] / y[0],)

    def less(self, x: Planes, y: Planes) -> HostArray:
        return np.asarray(x[0] < y[0], dtype=bool)

    def matmul(self, x: SystemArray, y: Any) -> SystemArray:
        y = self.right_factor(x, y)
        if not x.shape[-1]:
            return super().matmul(x, y)
        faster = self.large_product(x, y) if math.prod(x.shape) * y.shape[-1] > self.small_product else None
        return self.wrap((np.matmul(x.planes[0], y.planes[0]),)) if faster is None else faster

    small_product = 2**62  # terms up to which NumPy's loop over objects is the fastest way
    large_product: Callable[[SystemArray, SystemArray], SystemArray | None]  # a faster way, if there is one

    def sum(self, x: SystemArray, *, axis: int, keepdims: bool = False) -> SystemArray:
        if not x.shape[axis]:  # NumPy's sum of no objects is the integer 0
            return super().sum(x, axis=axis, keepdims=keepdims)
        return self.wrap((np.sum(x.planes[0], axis=axis, keepdims=keepdims),))

    def random(self, shape: tuple[int, ...], seed: int) -> Array:
        """Uniform over the multiples of 2⁻⁵² in [-1, 1), in a real system."""
        if "real" not in self.can:
            return super().random(shape, seed)
        return self.convert(generator(f"{self.name}.random", shape, seed).uniform(-1, 1, shape))

    def power(self, base: Fraction, exponent: Fraction, bits: int) -> Any:
        """base^exponent in a real system, with that many more bits where a system can."""
        raise NotImplementedError

    def angles(self, frequencies: Frequencies, positions: Any) -> tuple[Array, Array]:
        if "real" not in self.can:
            return super().angles(frequencies, positions)
        p = np.asarray(positions).astype(object)[..., None]
        bits = int(abs(p).max(initial=0)).bit_length()
        angle = self.wrap((p * np.array([self.power(*theta, bits) for theta in frequencies], dtype=object),))
        return self.cos(angle), self.sin(angle)
