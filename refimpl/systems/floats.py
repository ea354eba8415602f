"""Floats: whatever array-API library the arrays come from, in every real or complex dtype it has."""

from __future__ import annotations

import importlib
from fractions import Fraction
from typing import Any

import numpy as np

from .array import System, fractions
from .rounded import round_to

# library: the extra that installs it
LIBRARIES = {"numpy": "", "torch": "torch", "jax.numpy": "jax", "cupy": "cupy", "array_api_strict": "test"}


class Float(System):
    """One library, dtype and device: `Float()`, `Float("torch", "bfloat16", "cuda")`, `Float.of(array)`."""

    def __init__(self, library: str = "numpy", dtype: str = "float64", device: Any = None) -> None:
        from array_api_compat import array_namespace

        library = {"jax": "jax.numpy"}.get(library, library)
        if library not in LIBRARIES:
            raise ValueError(f"Float: library must be one of {', '.join(LIBRARIES)}, got {library!r}")
        try:
            module = importlib.import_module(library)
        except ImportError as error:
            raise ImportError(f"{library} is not installed: pip install 'refimpl[{LIBRARIES[library]}]'") from error
        if not hasattr(module, dtype):
            raise ValueError(f"Float: {library} has no dtype {dtype!r}")
        self._set(array_namespace(module.zeros(0)), getattr(module, dtype), device, library)

    def _set(self, xp: Any, dtype: Any, device: Any, library: str) -> None:
        self.xp, self.dtype, self.device = xp, dtype, device
        kind = str(getattr(dtype, "__name__", dtype)).removeprefix(library + ".")
        self.name = f"{library} {kind}" + ("" if device in (None, "cpu") else f" on {device}")

    @classmethod
    def of(cls, x: Any) -> Float:
        """The system an array already lives in."""
        from array_api_compat import array_namespace, device

        self = cls.__new__(cls)
        xp = array_namespace(x)
        library = xp.__name__.removeprefix("array_api_compat.")
        self._set(xp, x.dtype, device(x), library)
        return self

    def convert(self, values: Any) -> Any:
        """Numbers, nested lists, NumPy arrays or arrays over ℚ, rounded to this dtype, on this device."""
        nearest = np.asarray(fractions(values, f"{self.name}.convert").astype(np.float64))
        return self._place(nearest)

    def _place(self, host: np.ndarray) -> Any:
        """Round float64 to this dtype on the host, then hand it over in the narrowest dtype that every library takes."""
        name = str(self.dtype).removeprefix("torch.")
        if name in ("float32", "float16", "bfloat16"):
            host = round_to(host, name).astype(np.float32)
        return self.xp.astype(self.xp.asarray(host, device=self.device), self.dtype)

    def equal(self, x: Any, y: Any) -> bool:
        return x.shape == y.shape and bool(self.xp.all(x == y))

    def random(self, shape: tuple[int, ...], seed: int) -> Any:
        """Uniform over [-1, 1), rounded to this dtype."""
        return self._place(np.random.default_rng(seed).uniform(-1, 1, shape))

    def angles(self, frequencies: list[tuple[Fraction, Fraction]], positions: Any) -> tuple[Any, Any]:
        cos, sin = host_angles(frequencies, positions)
        return self._place(cos), self._place(sin)


def host_angles(frequencies: list[tuple[Fraction, Fraction]], positions: Any) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of pθ in float64, right to about 2⁻⁵² at any position below 2⁵³.

    θ/2π = T/2⁶⁴ + τ with T an integer: p T modulo 2⁶⁴ is what uint64 computes, so whole turns drop out without rounding.
    """
    import mpmath

    ctx = mpmath.MPContext()
    ctx.prec = 200
    turns = [
        ctx.ldexp(ctx.power(ctx.mpf(b.numerator) / b.denominator, ctx.mpf(e.numerator) / e.denominator) / (2 * ctx.pi), 64)
        for b, e in frequencies
    ]
    whole = [int(ctx.nint(t)) for t in turns]
    p = np.asarray(positions, dtype=np.int64)[..., None]
    with np.errstate(over="ignore"):
        turned = (p.astype(np.uint64) * np.array([w % 2**64 for w in whole], dtype=np.uint64)).astype(np.int64)
    angle = (turned + p * np.array([float(t - w) for t, w in zip(turns, whole, strict=True)])) * (2 * np.pi / 2**64)
    return np.cos(angle), np.sin(angle)
