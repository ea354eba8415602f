"""The families of layers: each is a class of this package with a `family` name and a `layer`."""

from __future__ import annotations

import functools
import importlib
import pkgutil

from .transformer import Family


@functools.cache
def families() -> dict[str, type[Family]]:
    """The configuration class of each family, by its name in files; modules are found."""
    found: dict[str, type[Family]] = {}
    for module in pkgutil.iter_modules(importlib.import_module(__package__).__path__, f"{__package__}."):
        for x in vars(importlib.import_module(module.name)).values():
            if isinstance(x, type) and x.__module__ == module.name and isinstance(getattr(x, "family", None), str):
                found[x.family] = x  # type: ignore[attr-defined]
    return found
