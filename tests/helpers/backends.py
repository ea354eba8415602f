"""The array libraries that the core is run on, each with its dtypes."""

from __future__ import annotations

import array_api_strict
import pytest
from array_api_compat import device

from refimpl import Float


def strict(dtype, device):
    return Float("array_api_strict", dtype, array_api_strict.Device(device))


def library(name, dtype, device=None):
    pytest.importorskip(name)
    return Float(name, dtype, device)


BACKENDS = {
    "strict device1 float64": lambda: strict("float64", "device1"),
    "strict device1 float32": lambda: strict("float32", "device1"),
    "strict no_float64": lambda: strict("float32", "no_float64"),
    "torch float64": lambda: library("torch", "float64", "cpu"),
    "torch float32": lambda: library("torch", "float32", "cpu"),
    "torch float16": lambda: library("torch", "float16", "cpu"),
    "torch bfloat16": lambda: library("torch", "bfloat16", "cpu"),
    "jax float32": lambda: library("jax", "float32"),
    "jax float16": lambda: library("jax", "float16"),
    "jax bfloat16": lambda: library("jax", "bfloat16"),
}


def backends(*quick):
    """All of them; JAX, which compiles every operation for every shape, is slow but for those that
    are named.
    """
    slow = {name for name in BACKENDS if "jax" in name} - set(quick)
    return pytest.mark.parametrize(
        "backend", [pytest.param(b, marks=[pytest.mark.slow] if b in slow else []) for b in BACKENDS]
    )


def kept(system, x):
    """Whether x has the dtype and the device of its system."""
    return x.dtype == system.dtype and (system.device is None or str(device(x)) == str(system.device))
