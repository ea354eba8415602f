"""Floats, and everything about the array libraries they come from: NumPy, torch, JAX, CuPy.

Code that runs on plain floats needs only this module of `systems`. Where NumPy has a faster way
than the plain expression, the docstring gives the expression and the code takes the faster way.
"""

from __future__ import annotations

import functools
import importlib
import math
import operator
import threading
from contextlib import suppress
from fractions import Fraction
from typing import Any, cast

import array_api_compat
import numpy as np

from ..arrays import Array, HostArray, Namespace
from ..errors import NotDefined, brief, choose, printable
from .array import (
    GLOBAL_STATE,
    Frequencies,
    System,
    SystemArray,
    elementwise,
    fractions,
    generator,
    host,
    refuse_argument,
    refuse_masked,
    require,
)
from .formats import FORMATS, nearest, round_to

# library: the extra that installs it
LIBRARIES = {"numpy": "", "torch": "torch", "jax.numpy": "jax", "cupy": "cupy", "array_api_strict": "test"}
# dtype: its name in safetensors files
FILE_DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}

# Silences NumPy's warnings where the code itself looks for nan and inf, and says where they are.
quiet = functools.partial(np.errstate, all="ignore")

# Where OpenBLAS multiplies so many rows, or a multiple, it adds up each as it would among more. So
# products cut there into pieces have the bits of the whole, unless they are very small.
CUT = 48


_namespaces: dict[type, Namespace] = {}  # by the type of arrays


def array_namespace(x: Array) -> Namespace:
    """The array namespace of x. array_api_compat finds it by the type of x, but slowly, so once."""
    if isinstance(x, SystemArray):
        return cast(Namespace, x.system)
    if type(x) not in _namespaces:
        example = np.empty(0) if isinstance(x, np.ndarray) else x  # JAX makes arrays of NumPy that count as its own
        _namespaces[type(x)] = cast(Namespace, array_api_compat.array_namespace(example))
    return _namespaces[type(x)]


def device(x: Array) -> Any:
    """The device of x. array_api_compat finds any, but is slow for NumPy."""
    return "cpu" if isinstance(x, np.ndarray | SystemArray) else array_api_compat.device(cast(Any, x))


def require_of(x: Array, capability: str, who: str) -> None:
    """Refuse an array whose system lacks what `who` needs. Complex floats lack an order."""
    if isinstance(x, SystemArray):
        require(x.system, capability, who)
    elif capability == "ordered" and "complex" in str(x.dtype):
        require(Float.of(x), capability, who)


def constant(x: Array, value: Fraction) -> Fraction | float:
    """A rational constant beside x: exact in a system of ours, rounded to the dtype of floats."""
    return value if isinstance(x, SystemArray) else float(value)


def integer_array(x: Any) -> HostArray | None:
    """Integers of any kind, in rows of one length, on the host; None if some are no integers."""
    a = np.asarray(x, dtype=object) if isinstance(x, list | tuple) else host(x)
    try:
        return np.asarray(np.frompyfunc(operator.index, 1, 1)(a), dtype=object)
    except TypeError:
        return None


def wide_floats(x: Any) -> HostArray | None:
    """Finite numbers as float64, without rounding; None where float64 does not hold them."""
    if isinstance(x, SystemArray):
        return x.system.as_floats(x)
    if not hasattr(x, "dtype"):
        return None
    a = host(x)
    return a.astype(np.float64) if a.dtype.kind == "f" and a.dtype.itemsize <= 8 and np.isfinite(a).all() else None


def keep_where(x: Array, keep: Any) -> Array:
    """where(keep, x, 0). It may overwrite x, which nobody else may hold."""
    if isinstance(x, np.ndarray):
        np.copyto(x, 0, where=~keep)
        return x
    if isinstance(x, SystemArray):
        return x.system.keep_where(x, keep)
    xp = array_namespace(x)
    return xp.where(keep, x, xp.zeros_like(x))


def sums(x: Array, *, axis: int) -> Array:
    """sum(x, axis=axis, keepdims=True), axis −1 or −2. BLAS adds short rows three times as fast."""
    if isinstance(x, np.ndarray) and x.dtype in (np.float32, np.float64):
        return x @ _ones(x.shape[-1], 1, x.dtype) if axis == -1 else _ones(1, x.shape[-2], x.dtype) @ x
    return array_namespace(x).sum(x, axis=axis, keepdims=True)


@functools.lru_cache(maxsize=16)
def _ones(rows: int, columns: int, dtype: Any) -> HostArray:
    return np.ones((rows, columns), dtype)


def surely_finite(x: Array) -> bool:
    """all(isfinite(x)), or False where that takes longer. One nan or inf makes a sum nan or inf."""
    if isinstance(x, SystemArray):
        return x.system.always_finite
    if not isinstance(x, np.ndarray):
        return False
    if (rows := Rows.of(x)) is not None and rows.finite and rows.dtype == x.dtype:
        return True
    if x.size < 4096 or x.dtype not in (np.float32, np.float64) or x.ndim < 2:
        return bool(np.isfinite(x).all())
    with quiet():
        return bool(np.isfinite(sums(x, axis=-2)).all())  # type: ignore[call-overload]


def itemsize(x: Array) -> int:
    """Bytes of one number; of a Python object, about."""
    return int(getattr(x.dtype, "itemsize", 8))


class Pieces:
    """concat(pieces, axis=-2), of this shape, like `like`. NumPy's are written into one array."""

    def __init__(self, like: Array, shape: tuple[int, ...]) -> None:
        self.like, self.shape, self.n = like, shape, 0
        self.parts: list[Array] = []
        self.out: HostArray | None = None

    def append(self, piece: Array) -> None:
        if not isinstance(piece, np.ndarray):
            self.parts.append(piece)
        elif piece.shape == self.shape:
            self.out = piece
        elif piece.shape[-2]:
            self.out = np.empty(self.shape, piece.dtype) if self.out is None else self.out
            self.out[..., self.n : self.n + piece.shape[-2], :] = piece
            self.n += piece.shape[-2]

    def array(self) -> Array:
        if self.out is not None or len(self.parts) == 1:
            return self.parts[0] if self.out is None else self.out
        xp = array_namespace(self.like)
        empty = xp.zeros((*self.shape[:-2], 0, self.shape[-1]), dtype=self.like.dtype, device=device(self.like))
        return xp.concat([empty, *self.parts], axis=-2)


class Rows(np.ndarray):
    """Memory of rows (..., capacity, width) in which NumPy arrays that were appended to stand.

    The first `used` rows are taken and are never written again; `finite`: they hold no nan or inf.
    """

    used: int
    finite: bool
    lock: Any

    @staticmethod
    def of(x: HostArray) -> Rows | None:
        """The memory in which x stands, if it is of this kind."""
        base = x.base
        while base is not None and not isinstance(base, Rows):
            base = getattr(base, "base", None)
        return base

    @classmethod
    def copied(cls, x: HostArray, lead: tuple[int, ...], n: int) -> Rows:
        """The rows of x, taken, and room for n and some more."""
        used, width = x.shape[-2:]
        rows = cls((*lead, used + n + max(64, (used + n) // 8), width), x.dtype)  # it must own its memory
        rows.used, rows.finite, rows.lock = used, surely_finite(x), threading.Lock()
        rows[..., :used, :] = x
        return rows

    def begin_with(self, x: HostArray) -> bool:
        """Is x the first rows, from the first to its last?"""
        place, own = x.__array_interface__["data"][0], self.__array_interface__["data"][0]
        steps = zip(x.shape, x.strides, self.strides, strict=False)
        fits = x.ndim == self.ndim and x.shape[:-2] == self.shape[:-2] and x.shape[-1] == self.shape[-1]
        return bool(x.size) and fits and place == own and all(n == 1 or a == b for n, a, b in steps)

    def claim(self, used: int, n: int) -> bool:
        """Take n more rows behind `used` ones, if they are free: of two callers one gets them."""
        with self.lock:
            free = self.used == used and used + n <= self.shape[-2]
            self.used += n if free else 0
            return free


def append_rows(x: Array, new: Array, lead: tuple[int, ...]) -> Array:
    """concat([x, new], axis=-2), broadcast to these leading axes.

    NumPy's are written behind x, into room that an earlier call has left, so a text that grows
    token by token is not copied for each. All that others hold stays as it is, since only behind
    the newest rows more can be written in place. The result is read-only.
    """
    if not isinstance(x, np.ndarray):
        xp = array_namespace(x)
        return xp.concat([xp.broadcast_to(y, (*lead, *y.shape[-2:])) for y in (x, new)], axis=-2)
    used, n = x.shape[-2], new.shape[-2]
    rows = Rows.of(x)
    if rows is None or rows.shape[:-2] != lead or not rows.begin_with(x) or not rows.claim(used, n):
        rows = Rows.copied(x, lead, n)
        rows.claim(used, n)
    rows[..., used : used + n, :] = new
    rows.finite = rows.finite and surely_finite(new)
    both = rows.view(np.ndarray)[..., : used + n, :]
    both.flags.writeable = False
    return both


def dtype_name(dtype: Any) -> str:
    """ "float32", in whatever way a library spells it."""
    return str(getattr(dtype, "__name__", dtype)).split(".")[-1]


# What people write for a dtype, and for the library before it; NumPy's dtypes serve every library.
SHORT = {"fp64": "float64", "f64": "float64", "double": "float64", "fp32": "float32", "f32": "float32"}
SHORT |= {"single": "float32", "fp16": "float16", "f16": "float16", "half": "float16", "bf16": "bfloat16"}
PREFIXES = {"torch": "torch", "jax": "jax.numpy", "jax.numpy": "jax.numpy", "jnp": "jax.numpy", "cupy": "cupy"}
PREFIXES |= {"cp": "cupy", "array_api_strict": "array_api_strict", "numpy": "", "np": "", "ml_dtypes": "", "": ""}


def read_dtype(dtype: Any) -> tuple[str, str] | None:
    """Of a dtype as people write it: its library, or "" if it serves each, and its name; else None.

    >>> [read_dtype(x) for x in ("float32", "FP32", np.float32, np.dtype("float32"))]
    [('', 'float32'), ('', 'float32'), ('', 'float32'), ('', 'float32')]
    >>> read_dtype("torch.float32")
    ('torch', 'float32')
    """
    root = type(dtype).__module__.split(".")[0]
    if isinstance(dtype, np.dtype):
        dtype = dtype.name
    elif isinstance(dtype, type) and issubclass(dtype, float | np.generic):
        dtype = "float64" if dtype is float else dtype.__name__
    elif root in ("torch", "jax", "array_api_strict") and "dtype" in (type(dtype).__name__.lower(), *dir(dtype)):
        dtype = f"{root}.{dtype_name(dtype)}"
    if not isinstance(dtype, str):
        return None
    prefix, _, name = dtype.strip().rpartition(".")
    if prefix not in PREFIXES:
        return "", dtype
    return PREFIXES[prefix], SHORT.get(name.lower(), name.lower() if name.lower() in FORMATS else name)


def dtype_library(dtype: Any) -> str:
    """The library of a dtype such as torch.float32; NumPy for one that serves each.

    >>> dtype_library("torch.float32"), dtype_library("float32")
    ('torch', 'numpy')
    """
    found = read_dtype(dtype)
    return (found and found[0]) or "numpy"


class Float(System):
    """Floats of a library: `Float()`, `Float("torch", "bfloat16", "cuda")`, `Float.of(x)`.

    dtype : a name, or a dtype of the library or of NumPy; None is "float64". It may stand alone, as
            in `Float("float32")` and `Float(torch.float32)`
    """

    words = ("float64", "float32", "float16")

    def __init__(self, library: Any = "numpy", dtype: Any = None, device: Any = None) -> None:
        alone = read_dtype(library) if dtype is None else None
        if alone and (alone[1] in FILE_DTYPES or not isinstance(library, str)):
            library, dtype = alone[0] or "numpy", alone[1]
        library = "jax.numpy" if isinstance(library, str) and library == "jax" else library
        choose("Float", "library", library, LIBRARIES)
        given, found = dtype, read_dtype("float64" if dtype is None else dtype)
        if found is None:
            raise TypeError(f"Float: `dtype` must be a dtype or a name such as 'float32', got {brief(dtype)}")
        of, dtype = found
        if of and of != library:
            raise ValueError(
                f"Float: `dtype` must be of {library}, got {brief(given)}; {dtype!r} is right for each library"
            )
        try:
            module = importlib.import_module(library)
        except ImportError as error:
            raise ImportError(f"{library} is not installed: pip install 'refimpl[{LIBRARIES[library]}]'") from error
        if isinstance(device, str) and library in ("array_api_strict", "jax.numpy"):
            jax = library == "jax.numpy"
            device = importlib.import_module("jax").devices(device)[0] if jax else module.Device(device)
        if library == "numpy" and not (device is None or (isinstance(device, str) and device == "cpu")):
            raise ValueError(f"Float: `device` must be 'cpu' or None for NumPy, got {brief(device)}")
        xp = array_namespace(module.zeros(0))
        wanted, floating = getattr(module, dtype, None), False
        with suppress(TypeError, AttributeError):
            got = cast(Any, xp).result_type(wanted)  # JAX may give less
            floating = wanted is not None and xp.isdtype(got, ("real floating", "complex floating"))
        if not floating:
            advice = "; torch and JAX have it, and Rounded models it" * (dtype == "bfloat16")
            raise ValueError(f"Float: {library} has no floating dtype {printable(repr(dtype))}{advice}")
        if got != wanted:
            raise ValueError(f"Float: {library} makes {got} of {dtype!r} here; for JAX, set jax_enable_x64 first")
        self._set(xp, wanted, device, library)

    def _set(self, xp: Namespace, dtype: Any, device: Any, library: str) -> None:
        self.xp, self.dtype, self.device = xp, dtype, device
        self.kind = self.file_label = dtype_name(dtype)
        self.file_dtype = FILE_DTYPES.get(self.kind, "")
        self.can = System.can - ({"ordered"} if "complex" in self.kind else set())
        elsewhere = device is not None and "cpu" not in str(device).lower()
        self.name = f"{library} {self.kind}" + (f" on {device}" if elsewhere else "")
        self.label = self.name.removeprefix("numpy ")

    @classmethod
    def of(cls, x: Array) -> Float:
        """The system an array already lives in."""
        return cls._of(array_namespace(x), x.dtype, device(x))

    @classmethod
    @functools.lru_cache(maxsize=64)
    def _of(cls, xp: Namespace, dtype: Any, device: Any) -> Float:
        self = cls.__new__(cls)
        self._set(xp, dtype, device, xp.__name__.removeprefix("array_api_compat."))
        return self

    @classmethod
    def from_label(cls, word: str, argument: str) -> Float:
        refuse_argument(word, argument)
        return cls("numpy", word)

    @property
    def ways(self) -> tuple[str, ...]:
        if str(self.device).startswith("meta"):
            raise NotDefined(f"verify: {self.name} has shapes but no values; there is nothing to compare")
        if self.kind not in FORMATS:
            known = "float64, float32, float16 or bfloat16"
            raise NotDefined(f"verify: no error bound is known for {self.name}; it must be {known}")
        if FORMATS[self.kind][0] < 24:
            return ("probe", "oracle")
        return ("bound", "probe", "oracle", *(["sampled"] if self.kind == "float64" else []))

    def to_file(self, x: Array) -> HostArray:
        return host(x) if self.file_dtype else super().to_file(x)

    def from_file(self, name: str, x: HostArray) -> Array:
        return self.place(x)

    def convert(self, values: Any) -> Array:
        """Numbers, nested lists, NumPy arrays or arrays over ℚ, rounded to this dtype."""
        refuse_masked(f"{self.name}.convert", "values", values)
        if "complex" in self.kind and not isinstance(values, SystemArray):
            return self.place(host(values).astype(np.complex128))
        if self.kind in FORMATS and (wide := wide_floats(values)) is not None:
            return self.place(wide + 0.0)  # −0.0 becomes 0, as it does by way of fractions
        exact = fractions(values, f"{self.name}.convert")
        format = self.kind if self.kind in FORMATS else "float64"
        rounded: HostArray = elementwise(lambda x: nearest(x, format), exact).astype(np.float64)
        if self.kind in ("longdouble", "float128"):  # two float64 hold what one cannot
            rest = elementwise(lambda x, y: float(x - Fraction(y)) if abs(y) < math.inf else 0.0, exact, rounded)
            rounded = rounded.astype(np.longdouble) + rest.astype(np.float64)
        return self.place(rounded)

    def place(self, x: HostArray) -> Array:
        """Float64, rounded on the host, then passed on in a dtype that every library takes."""
        if self.kind in ("float32", "float16", "bfloat16"):
            x = round_to(x, self.kind).astype(np.float32)
        return self.xp.astype(self.xp.asarray(x, device=self.device), self.dtype)

    def equal(self, x: Array, y: Array) -> bool:
        return x.shape == y.shape and bool(self.xp.all(x == y))

    def random(self, shape: tuple[int, ...], seed: int) -> Array:
        """Uniform over [-1, 1), rounded to this dtype."""
        return self.place(generator(f"{self.name}.random", shape, seed).uniform(-1, 1, shape))

    def angles(self, frequencies: Frequencies, positions: Any) -> tuple[Array, Array]:
        cos, sin = host_angles(frequencies, positions)
        return self.place(cos), self.place(sin)


# θ/2π = T/2⁶⁴ + τ with T an integer. uint64 computes p T modulo 2⁶⁴, so whole turns drop out
# without rounding. Quarter turns drop out next, and the angle that is left is small: below 0.8 in
# size and wrong by less than 0.8·2⁻⁵², to which cos and sin add 2⁻⁵³.
def host_angles(frequencies: Frequencies, positions: Any) -> tuple[HostArray, HostArray]:
    """cos and sin of pθ in float64, right to 2⁻⁵¹ at any position up to 2⁵³, for θ up to 2⁶⁴."""
    whole, part = _turns(tuple(frequencies))
    p = np.asarray(positions, dtype=np.int64)[..., None]
    with np.errstate(over="ignore"):
        turn = (p.astype(np.uint64) * whole).astype(np.int64)
        quarter = (turn + 2**61) >> 62
        rest = turn - (quarter << 62)
    angle = (rest + p * part) * (2 * np.pi / 2**64)
    c, s = np.cos(angle), np.sin(angle)
    return np.choose(quarter % 4, [c, -s, -c, s]), np.choose(quarter % 4, [s, c, -s, -c])


@functools.cache
def _turns(frequencies: tuple[tuple[Fraction, Fraction], ...]) -> tuple[HostArray, HostArray]:
    """T modulo 2⁶⁴ and 2⁶⁴ τ, for each θ."""
    import mpmath

    ctx = mpmath.MPContext()
    ctx.prec = 200
    with GLOBAL_STATE:
        theta = [ctx.power(*(ctx.mpf(x.numerator) / x.denominator for x in pair)) for pair in frequencies]
        turn = 2 * ctx.pi
    if any(abs(t) >= 2**64 for t in theta):
        raise ValueError(f"angle_table: `frequencies` must be below 2^64 in size, got {float(max(theta, key=abs)):.3g}")
    turns = [ctx.ldexp(t / turn, 64) for t in theta]
    whole = [int(ctx.nint(t)) for t in turns]
    part = [float(t - w) for t, w in zip(turns, whole, strict=True)]
    return np.array([w % 2**64 for w in whole], dtype=np.uint64), np.array(part)
