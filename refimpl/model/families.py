"""The families of layers: each is a subclass of Family, in a file of this package."""

from __future__ import annotations

import functools
import importlib
import pkgutil

from .transformer import Family


@functools.cache
def families() -> dict[str, type[Family]]:
    """The configuration class of each family, by its name in files. A new file is found."""
    for module in pkgutil.iter_modules(importlib.import_module(__package__).__path__, f"{__package__}."):
        importlib.import_module(module.name)
    return {kind.family: kind for kind in Family.__subclasses__() if kind.__module__.startswith(f"{__package__}.")}
