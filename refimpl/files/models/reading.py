"""Settings and tensors, all of them checked, which all readers of models share."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from ...arrays import Array
from ...checks import check_type
from ...errors import brief
from ...model.transformer import Model
from ...systems import Float, System
from ...systems.array import first
from ..disk import PathLike, located


class Opening(NamedTuple):
    """The beginning of a file, by which its format is recognised."""

    start: bytes  # 28 bytes, or all of a shorter file
    is_safetensors: bool
    tensors: Collection[str]
    metadata: Mapping[str, str]
    size: int  # bytes of the file


class Format(NamedTuple):
    """A format of models: its name in messages, its test, and read(path, system=...)."""

    name: str
    recognises: Callable[[Opening], bool]
    read: Callable[..., Model]


class Settings:
    """The values of a configuration file, each checked; errors name the file and the key."""

    def __init__(self, who: str, path: PathLike, values: dict[str, Any]) -> None:
        self.who, self.path, self.about, self.values = who, path, f"{who}: {path}", values

    def get(self, key: str, default: Any) -> Any:
        """The value; the default if the value is null or the key is missing."""
        value = self.values.get(key)
        return default if value is None else value

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer ≥ 1; without a default the key must be there."""
        value = self.get(key, default)
        if type(value) is not int or value < 1:
            raise ValueError(f"{self.about}: `{key}` must be an integer ≥ 1, got {brief(value)}")
        return value

    def check_integer(self, key: str, found: int) -> None:
        """A value that is given must be the one found in the tensors."""
        if self.integer(key, found) != found:
            raise ValueError(f"{self.about}: `{key}` must be {found}, as in the tensors, got {brief(self.values[key])}")

    def check_one_of(self, key: str, *known: Any) -> None:
        """The value must be one of those that are implemented; the first is the default."""
        value = self.get(key, known[0])
        if not any(type(value) is type(k) and value == k for k in known):
            choices = ", ".join(json.dumps(k) for k in known)
            wanted = f"{choices}: nothing else is implemented"
            raise ValueError(f"{self.about}: `{key}` must be {wanted}, got {brief(value)}")

    def boolean(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if type(value) is not bool:
            raise ValueError(f"{self.about}: `{key}` must be true or false, got {brief(value)}")
        return value

    def fraction(self, key: str, default: str) -> Fraction:
        """A number from 0 to 2^64, exactly as it is written in decimal: 1e-05 is 1/100000."""
        value = self.get(key, float(default))
        if type(value) not in (int, float) or not 0 <= value < 2**64:
            raise ValueError(f"{self.about}: `{key}` must be a number from 0 to 2^64, got {brief(value)}")
        return Fraction(repr(value))


class Tensors:
    """The tensors of a file: each is taken once, with the shape that it must have."""

    def __init__(self, who: str, path: PathLike, arrays: Mapping[str, np.ndarray], system: System) -> None:
        check_type(who, "system", system, System)
        self.about, self.arrays, self.system = f"{who}: {path}", dict(arrays), system

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    def find(self, name: str) -> np.ndarray:
        if name not in self.arrays:
            raise ValueError(f"{self.about}: tensor {name!r} must be in the file, got no such name")
        return self.arrays[name]

    def shape(self, name: str, axes: int) -> tuple[int, ...]:
        """The shape of a tensor, which must have this many axes, none of them empty."""
        x = self.find(name)
        if x.ndim != axes or 0 in x.shape:
            wanted = f"must have {axes} axes, none of them empty"
            raise ValueError(f"{self.about}: tensor {name!r} {wanted}, got shape {x.shape}")
        return x.shape

    def take(self, name: str, *shape: int) -> np.ndarray:
        """The numbers of a tensor, which must be finite floats of this shape."""
        x = self.find(name)
        if x.shape != shape:
            raise ValueError(f"{self.about}: tensor {name!r} must have shape {shape}, got {x.shape}")
        if x.dtype.kind != "f":
            raise ValueError(f"{self.about}: tensor {name!r} must hold floats, got {x.dtype}")
        if not np.isfinite(x).all():
            at = first(~np.isfinite(x))
            raise ValueError(f"{self.about}: tensor {name!r} must be finite, got nan or inf at index {at}")
        return self.arrays.pop(name)

    def equal(self, name: str, other: str) -> bool:
        return np.array_equal(self.find(name), self.find(other))

    def remove_tied(self, name: str, other: str, config: PathLike) -> None:
        """Leave out a tensor that a configuration ties to another one."""
        if not self.equal(name, other):
            raise ValueError(f"{self.about}: tensor {name!r} must equal {other!r}, since {config} ties them")
        del self.arrays[name]

    def count_layers(self, name: str) -> int:
        """The number of layers, at least 1; {} in the name stands for the index of a layer."""
        self.find(name.format(0))
        return next(i for i in range(len(self.arrays) + 1) if name.format(i) not in self.arrays)

    def model(self, config: Any, weights: Mapping[str, np.ndarray]) -> Model:
        """The model of these weights in the number system, if no tensor is left over."""
        if self.arrays:
            name = min(self.arrays)[:200]
            raise ValueError(f"{self.about}: every tensor must be a weight of the model, got {name!r}, which is not")
        with located(self.about):
            return Model(config, {name: place_numbers(x, self.system) for name, x in weights.items()})


def place_numbers(x: np.ndarray, system: System) -> Array:
    """Numbers of a file in a number system, by way of float64, which holds all of them exactly."""
    wide = np.ascontiguousarray(x, np.float64)
    return system.place(wide) if isinstance(system, Float) else system.convert(wide)
