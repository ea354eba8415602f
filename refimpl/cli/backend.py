"""The arguments --backend and --device: the library of the floats, and where they are."""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Callable

from ..errors import choose, find_name
from ..systems import Float, System, floats
from ..systems.floats import LIBRARIES
from .prompt import naming_flags


def add_backend_arguments(parser: argparse.ArgumentParser, default: str | None, words: str) -> None:
    library = functools.partial(find_name, known=(*LIBRARIES, "jax"))
    parser.add_argument("--backend", type=library, default=default, metavar="LIB", help=words)
    parser.add_argument("--device", metavar="DEV", help="device of the backend: cuda, cpu ...")


def prepare_backend(library: str | None) -> None:
    """JAX has float64 only if it is told so before it starts."""
    if library in ("jax", "jax.numpy"):
        os.environ.setdefault("JAX_ENABLE_X64", "1")


def check_backend(library: str, device: str | None) -> None:
    """Refuse a library or a device that is missing or unknown, or that keeps no numbers."""
    choose("convert", "--backend", library, [*LIBRARIES, "jax"])
    with naming_flags("--device", device="--device"):
        one = try_system(functools.partial(Float, library, "float32", device), library, device).convert([1])
    try:
        floats(one)
    except NotImplementedError:  # of torch
        raise ValueError(f"--device: {library} on {device} has shapes but no values to convert") from None


def try_system(make: Callable[[], System], name: str, device: str | None = None) -> System:
    """Make a system and one number in it: a missing device is then one error, not many."""
    try:
        system = make()
        system.convert([1])
    except (ImportError, ValueError, TypeError):
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise OSError(f"{name} cannot make an array on {device or 'its device'}: {reason}") from error
    return system
