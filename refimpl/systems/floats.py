"""Floats: whatever array-API library the arrays come from, in every real or complex dtype it has."""

from __future__ import annotations

import functools
import importlib
import math
import warnings
from fractions import Fraction
from typing import Any

import numpy as np

from ..errors import choose
from .array import SystemArray, System, array_namespace, device, elementwise, fractions, host, wide_floats
from .formats import FORMATS, nearest, round_to

# library: the extra that installs it
LIBRARIES = {"numpy": "", "torch": "torch", "jax.numpy": "jax", "cupy": "cupy", "array_api_strict": "test"}


def dtype_name(dtype: Any) -> str:
    """ "float32", in whatever way a library spells it."""
    return str(getattr(dtype, "__name__", dtype)).split(".")[-1]


class Float(System):
    """One library, dtype and device: `Float()`, `Float("torch", "bfloat16", "cuda")`, `Float.of(array)`."""

    def __init__(self, library: str = "numpy", dtype: str = "float64", device: Any = None) -> None:

        library = {"jax": "jax.numpy"}.get(library, library)
        choose("Float", "library", library, LIBRARIES)
        try:
            module = importlib.import_module(library)
        except ImportError as error:
            raise ImportError(f"{library} is not installed: pip install 'refimpl[{LIBRARIES[library]}]'") from error
        if isinstance(device, str) and library == "array_api_strict":
            device = module.Device(device)
        if isinstance(device, str) and library == "jax.numpy":
            device = importlib.import_module("jax").devices(device)[0]
        xp = array_namespace(module.zeros(0))
        wanted = getattr(module, dtype, None)
        try:
            with warnings.catch_warnings(action="ignore"):  # JAX's, on giving less than was asked
                got = xp.zeros(0, dtype=wanted).dtype
            floating = wanted is not None and xp.isdtype(got, ("real floating", "complex floating"))
        except TypeError:
            floating = False
        if not floating:
            raise ValueError(f"Float: {library} has no floating dtype {dtype!r}")
        if got != wanted:
            raise ValueError(f"Float: {library} makes {got} of {dtype!r} here; for JAX, set jax_enable_x64 first")
        self._set(xp, wanted, device, library)

    def _set(self, xp: Any, dtype: Any, device: Any, library: str) -> None:
        self.xp, self.dtype, self.device = xp, dtype, device
        self.kind = dtype_name(dtype)
        self.can = System.can - ({"ordered"} if "complex" in self.kind else set())
        self.name = f"{library} {self.kind}" + (
            "" if device is None or "cpu" in str(device).lower() else f" on {device}"
        )

    @classmethod
    def of(cls, x: Any) -> Float:
        """The system an array already lives in."""
        return cls._found(array_namespace(x), x.dtype, device(x))

    @classmethod
    @functools.lru_cache(maxsize=64)
    def _found(cls, xp: Any, dtype: Any, device: Any) -> Float:
        self = cls.__new__(cls)
        self._set(xp, dtype, device, xp.__name__.removeprefix("array_api_compat."))
        return self

    def convert(self, values: Any) -> Any:
        """Numbers, nested lists, NumPy arrays or arrays over ℚ, rounded to this dtype, on this device."""
        if "complex" in self.kind and not isinstance(values, SystemArray):
            return self.place(host(values).astype(np.complex128))
        if self.kind in FORMATS and (wide := wide_floats(values)) is not None:
            return self.place(wide + 0.0)  # −0.0 becomes 0, as it does by way of fractions
        exact = fractions(values, f"{self.name}.convert")
        rounded: np.ndarray = elementwise(
            lambda x: nearest(x, self.kind if self.kind in FORMATS else "float64"), exact
        ).astype(np.float64)
        if self.kind in ("longdouble", "float128"):  # two float64 hold what one cannot
            rest = elementwise(lambda x, y: float(x - Fraction(y)) if abs(y) < math.inf else 0.0, exact, rounded)
            rounded = rounded.astype(np.longdouble) + rest.astype(np.float64)
        return self.place(rounded)

    def place(self, host: np.ndarray) -> Any:
        """Round float64 to this dtype on the host, then hand it over in the narrowest dtype that every library takes."""
        if self.kind in ("float32", "float16", "bfloat16"):
            host = round_to(host, self.kind).astype(np.float32)
        return self.xp.astype(self.xp.asarray(host, device=self.device), self.dtype)

    def equal(self, x: Any, y: Any) -> bool:
        return x.shape == y.shape and bool(self.xp.all(x == y))

    def random(self, shape: tuple[int, ...], seed: int) -> Any:
        """Uniform over [-1, 1), rounded to this dtype."""
        return self.place(np.random.default_rng(seed).uniform(-1, 1, shape))

    def angles(self, frequencies: list[tuple[Fraction, Fraction]], positions: Any) -> tuple[Any, Any]:
        cos, sin = host_angles(frequencies, positions)
        return self.place(cos), self.place(sin)


def host_angles(frequencies: list[tuple[Fraction, Fraction]], positions: Any) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of pθ in float64, right to 2⁻⁵¹ at any position up to 2⁵³, for θ up to 2⁶⁴.

    θ/2π = T/2⁶⁴ + τ with T an integer: p T modulo 2⁶⁴ is what uint64 computes, so whole turns drop out without rounding.
    Quarter turns drop out next, and what is left is small: |angle| < 0.8, wrong by < 0.8·2⁻⁵², to which cos and sin add 2⁻⁵³.
    """
    whole, part = _turns(tuple(frequencies))
    p = np.asarray(positions, dtype=np.int64)[..., None]
    with np.errstate(over="ignore"):
        turned = (p.astype(np.uint64) * whole).astype(np.int64)
        quarter = (turned + 2**61) >> 62
        rest = turned - (quarter << 62)
    angle = (rest + p * part) * (2 * np.pi / 2**64)
    c, s = np.cos(angle), np.sin(angle)
    return np.choose(quarter % 4, [c, -s, -c, s]), np.choose(quarter % 4, [s, c, -s, -c])


@functools.cache
def _turns(frequencies: tuple[tuple[Fraction, Fraction], ...]) -> tuple[np.ndarray, np.ndarray]:
    """T modulo 2⁶⁴ and 2⁶⁴ τ, for each θ."""
    import mpmath

    ctx = mpmath.MPContext()
    ctx.prec = 200
    theta = [ctx.power(*(ctx.mpf(x.numerator) / x.denominator for x in pair)) for pair in frequencies]
    if any(abs(t) >= 2**64 for t in theta):
        raise ValueError(f"angle_table: `frequencies` must be below 2^64 in size, got {float(max(theta, key=abs)):.3g}")
    turns = [ctx.ldexp(t / (2 * ctx.pi), 64) for t in theta]
    whole = [int(ctx.nint(t)) for t in turns]
    part = [float(t - w) for t, w in zip(turns, whole, strict=True)]
    return np.array([w % 2**64 for w in whole], dtype=np.uint64), np.array(part)
