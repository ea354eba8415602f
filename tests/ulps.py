"""`python tests/ulps.py` measures the errors of exp, log, sqrt, tanh, cos and sin of libraries.

The largest errors of NumPy, torch and JAX on this machine, in units in the last place, against
mpmath; `refimpl/systems/running_error.py` states what they may be. Libraries take other paths for
long and short arrays, for the tail of one, and for entries that do not lie side by side; all are
measured. Below the least normal number, the unit is that number times 2^(1−bits), the least of all.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

FUNCTIONS = ("exp", "log", "sqrt", "tanh", "cos", "sin")
# dtype: bits, least exponent of a normal number with ½ ≤ m < 1, largest and least argument of exp
DTYPES = {
    "float64": (53, -1021, 709.7, -745.2),
    "float32": (24, -125, 88.7, -103.9),
    "float16": (11, -13, 11.0, -17.3),
    "bfloat16": (8, -125, 88.7, -92.2),
}
LIBRARIES = tuple(name for name in ("numpy", "torch", "jax") if importlib.util.find_spec(name))
LENGTHS = (1, 2, 3, 5, 7, 9, 15, 17, 31, 33)
Table = dict[tuple[str, str, str], tuple[float, float, float]]  # (function, dtype, library): errors, and where


def points(function: str, dtype: str, count: int, seed: int) -> np.ndarray:
    """Arguments in float64 that the dtype holds: usual, tiny, large, and next to special ones."""
    rng = np.random.default_rng([seed, FUNCTIONS.index(function), list(DTYPES).index(dtype)])
    bits, low, most, least = DTYPES[dtype]
    each = count // 4

    def spread(low: float, high: float) -> np.ndarray:
        return rng.choice([-1, 1], each) * np.exp2(rng.uniform(low, high, each))

    near_one, tiny = rng.uniform(-1, 1, each), spread(-bits - 3, 0)
    high = 16.0 if dtype == "float16" else 128.0 if dtype != "float64" else 1024.0
    if function == "exp":
        x = [near_one, tiny, rng.uniform(least, most, each), rng.uniform(-20, 20, each)]
    elif function in ("log", "sqrt"):
        least = low - bits if dtype == "float16" else low - 1  # below that, an argument may be read as 0
        x = [1 + near_one, 1 + tiny / 4, np.abs(spread(low - 1, high)), np.abs(spread(least, low + 3))]
    elif function == "tanh":
        x = [near_one, tiny, rng.uniform(-20, 20, each), spread(-3, 3)]
    else:
        turns = np.pi / 2 * rng.integers(-1000, 1001, each) * (1 + 2.0 ** (2 - bits) * rng.integers(-1, 2, each))
        x = [rng.uniform(-np.pi, np.pi, each), tiny, turns, spread(0, min(high, 20.0))]
    a = as_dtype(np.concatenate(x), dtype)
    return a[np.isfinite(a)] if function != "log" else a[np.isfinite(a) & (a > 0)]


def as_dtype(x: np.ndarray, dtype: str) -> np.ndarray:
    """Rounded to the dtype, in float64."""
    with np.errstate(all="ignore"):
        if dtype == "bfloat16":  # the upper half of a float32
            return (x.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)
        return x.astype(dtype).astype(np.float64)


def truth(function: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The values by mpmath, each as the sum of two float64."""
    import mpmath

    ctx = mpmath.MPContext()
    ctx.prec = 160
    exact = [getattr(ctx, function)(ctx.mpf(float(a))) for a in x]
    high = np.array([float(y) for y in exact])
    return high, np.array([float(y - h) if np.isfinite(h) else 0.0 for y, h in zip(exact, high, strict=True)])


def errors(got: np.ndarray, high: np.ndarray, low: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Errors in units in the last place, where the truth is normal and where it is below that."""
    bits, least = DTYPES[dtype][:2]
    exponent, largest = np.frexp(high)[1], 2.0 ** (1023 if dtype == "float64" else 16 if dtype == "float16" else 128)
    unit = np.ldexp(1.0, np.maximum(exponent, least) - bits)
    with np.errstate(all="ignore"):
        off = np.abs((got - high) / unit - low / unit)
    normal = (np.abs(high) >= np.ldexp(1.0, least - 1)) & (np.abs(high) < largest * (1 - 2.0**-7))
    below = np.abs(high) < np.ldexp(1.0, least - 1)
    return np.where(normal, off, 0), np.where(below, off, 0)


def runs(
    library: str, function: str, dtype: str, x: np.ndarray, pieces: int, lengths: Sequence[int]
) -> Iterator[tuple[slice, np.ndarray]]:
    """What a library gives: for all at once, strided, shifted by one, and in short pieces."""
    call = caller(library, function, dtype)
    yield slice(None), call(x, 1)
    if library != "jax":  # its arrays are contiguous
        yield slice(None), call(x, 2)
        yield slice(None), call(x, -3)
    yield slice(1, None), call(x[1:], 1)
    for length in lengths:
        for start in range(0, min(pieces * length, len(x) - length), length):
            at = slice(start, start + length)
            yield at, call(x[at], 1)


@functools.cache
def caller(library: str, function: str, dtype: str) -> Callable[[np.ndarray, int], np.ndarray]:
    """The function on float64 arguments, which lie in every so manieth place of an array."""
    if library == "numpy":
        run = getattr(np, function)

        def numpy_call(x: np.ndarray, stride: int) -> np.ndarray:
            room = np.ones(len(x) * abs(stride), dtype)
            room[::stride] = x
            with np.errstate(all="ignore"):
                return np.asarray(run(room[::stride]), np.float64)

        return numpy_call
    if library == "torch":
        import torch

        def torch_call(x: np.ndarray, stride: int) -> np.ndarray:
            room = torch.ones(len(x) * abs(stride), dtype=getattr(torch, dtype))
            room[:: abs(stride)] = torch.asarray(x).to(room.dtype)  # torch has no strides below 0
            return getattr(torch, function)(room[:: abs(stride)]).to(torch.float64).numpy()

        return torch_call
    os.environ.setdefault("JAX_ENABLE_X64", "1")
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)

    def jax_call(x: np.ndarray, stride: int) -> np.ndarray:
        # XLA would flush what is below normal on the way, so the host widens the result.
        return np.asarray(getattr(jnp, function)(jnp.asarray(x, dtype=getattr(jnp, dtype)))).astype(np.float64)

    return jax_call


def measure(
    count: int,
    pieces: int,
    seed: int = 0,
    functions: Iterable[str] = FUNCTIONS,
    dtypes: Iterable[str] = tuple(DTYPES),
    libraries: Iterable[str] = LIBRARIES,
    lengths: Sequence[int] = LENGTHS,
) -> Table:
    """The largest errors, normal and below, and the argument of the first, for all of these."""
    found: Table = {}
    for function in functions:
        for dtype in dtypes:
            x = points(function, dtype, count, seed)
            high, low = truth(function, x)
            for library in libraries:
                if library == "numpy" and dtype == "bfloat16":
                    continue  # NumPy has none
                worst, below, where = 0.0, 0.0, 0.0
                for at, got in runs(library, function, dtype, x, pieces, lengths):
                    normal, small = errors(got, high[at], low[at], dtype)
                    i = int(np.argmax(np.where(np.isnan(normal), np.inf, normal)))
                    if not normal[i] <= worst:
                        worst, where = float(normal[i]), float(x[at][i])
                    below = max(below, float(np.max(small)))
                found[function, dtype, library] = worst, below, where
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=100_000, metavar="N", help="arguments of each (default: 100000)")
    parser.add_argument("--pieces", type=int, default=200, metavar="N", help="pieces of each length (default: 200)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the arguments (default: 0)")
    options = parser.parse_args()
    print("function  dtype     library   units in the last place   below normal   worst at", flush=True)
    for function in FUNCTIONS:
        table = measure(options.points, options.pieces, options.seed, [function])
        for (_, dtype, library), (worst, below, where) in table.items():
            print(f"{function:9} {dtype:9} {library:9} {worst:23.3f} {below:14.3g}   {where!r}", flush=True)
