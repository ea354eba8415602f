"""The version of this library, and the packages that it needs or can use."""

from __future__ import annotations

from importlib import metadata

__version__ = "0.1.0"

CORE = ("numpy", "scipy", "mpmath", "array-api-compat")
# distribution: (extra that installs it, what it is for)
OPTIONAL = {
    "torch": ("torch", "arrays on CPU, GPU"),
    "jax": ("jax", "arrays on CPU, GPU, TPU"),
    "cupy": ("cupy", "arrays on NVIDIA GPUs"),
    "gmpy2": ("fast", "fast mpmath and ℚ"),
    "python-flint": ("fast", "fast balls"),
    "ml-dtypes": ("test", "bfloat16 in NumPy"),
    "array-api-strict": ("test", "GPU code on a CPU"),
    "matplotlib": ("plot", "figures"),
}


def version(distribution: str) -> str | None:
    """The installed version of a distribution, which is not imported; None if there is none."""
    # CuPy's wheels are named by CUDA version.
    for name in (distribution, *(f"cupy-cuda{i}x" for i in (11, 12, 13) if distribution == "cupy")):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        except Exception as error:  # damaged metadata
            return f"unreadable ({type(error).__name__})"
    return None
