"""What all readers of models share: files of which nothing is believed, and tensors taken from them by name."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import brief
from ...model.attention_layers import Config
from ...model.transformer import Model
from ...systems import Float, System
from ..safetensors import distinct, refuse

LARGEST_TEXT = 2**24  # bytes of a text or a tokenizer; the published ones have 2^20


def size_of(who: str, path: str | os.PathLike[str]) -> int:
    """The bytes of a regular file."""
    if not os.path.isfile(path):
        raise OSError(f"{who}: cannot read {path}: {'not a regular file' if os.path.exists(path) else 'no such file'}")
    return os.path.getsize(path)


def bytes_of(who: str, path: str | os.PathLike[str], most: int = LARGEST_TEXT) -> bytes:
    """A whole file, if it is no larger than that."""
    if (size := size_of(who, path)) > most:
        raise ValueError(f"{who}: {path}: the file must have at most {most} bytes, got {size}")
    return Path(path).read_bytes()


def text_of(who: str, path: str | os.PathLike[str], most: int = LARGEST_TEXT) -> str:
    try:
        return bytes_of(who, path, most).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{who}: {path}: the file must be text in UTF-8: {error}") from error


def object_of(who: str, path: str | os.PathLike[str], most: int = LARGEST_TEXT) -> dict[str, Any]:
    """The JSON object in a file; a key that stands there twice, NaN and Infinity are refused."""
    text = text_of(who, path, most)
    try:
        found = json.loads(text, object_pairs_hook=distinct, parse_constant=refuse)
    except RecursionError:
        raise ValueError(f"{who}: {path}: the JSON must not be nested as deep as it is") from None
    except ValueError as error:
        raise ValueError(f"{who}: {path}: the file must be JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{who}: {path}: the JSON must be an object, got {brief(found)}")
    return found


class Said:
    """What a configuration says: each answer of the right kind, or an error that names the file and the key."""

    def __init__(self, who: str, path: str | os.PathLike[str], answers: dict[str, Any]) -> None:
        self.about, self.path, self.answers = f"{who}: {path}", path, answers

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer ≥ 1; null, or no such key: the default, if there is one."""
        value = self.given(key, default)
        if type(value) is not int or value < 1:
            raise ValueError(f"{self.about}: `{key}` must be an integer ≥ 1, got {brief(value)}")
        return value

    def agrees(self, key: str, found: int) -> None:
        """Nothing, or what the tensors say."""
        if self.integer(key, found) != found:
            raise ValueError(
                f"{self.about}: `{key}` must be {found}, as in the tensors, got {brief(self.answers[key])}"
            )

    def one_of(self, key: str, *known: Any) -> None:
        """One of the values for which there is an implementation; the first is the default."""
        value = self.given(key, known[0])
        if not any(type(value) is type(k) and value == k for k in known):
            words = ", ".join(json.dumps(k) for k in known)
            raise ValueError(f"{self.about}: `{key}` must be {words}: nothing else is implemented, got {brief(value)}")

    def boolean(self, key: str, default: bool) -> bool:
        value = self.given(key, default)
        if type(value) is not bool:
            raise ValueError(f"{self.about}: `{key}` must be true or false, got {brief(value)}")
        return value

    def fraction(self, key: str, default: str) -> Fraction:
        """A number ≥ 0 below 2^64 as it is written in decimal: 1e-05 is 1/100000, of which the nearest float64 is that of 1e-05."""
        value = self.given(key, float(default))
        if type(value) not in (int, float) or not 0 <= value < 2**64:
            raise ValueError(f"{self.about}: `{key}` must be a number from 0 to 2^64, got {brief(value)}")
        return Fraction(repr(value))

    def given(self, key: str, default: Any) -> Any:
        value = self.answers.get(key)
        return default if value is None else value


class Tensors:
    """The tensors of a file: each is taken once, by its name in the file, with the shape that it must have."""

    def __init__(
        self, who: str, path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray], system: System
    ) -> None:
        self.about, self.arrays, self.system = f"{who}: {path}", dict(arrays), system

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    def shape(self, name: str, axes: int) -> tuple[int, ...]:
        """The shape of a tensor that must be there and have so many axes."""
        x = self.find(name)
        if x.ndim != axes or 0 in x.shape:
            raise ValueError(
                f"{self.about}: tensor {name!r} must have {axes} axes, none of them empty, got shape {x.shape}"
            )
        return x.shape

    def find(self, name: str) -> np.ndarray:
        if name not in self.arrays:
            raise ValueError(f"{self.about}: tensor {name!r} must be there, got no such name")
        return self.arrays[name]

    def take(self, name: str, *shape: int) -> np.ndarray:
        """The numbers of a tensor, in the order of the file."""
        x = self.find(name)
        if x.shape != shape:
            raise ValueError(f"{self.about}: tensor {name!r} must have shape {shape}, got {x.shape}")
        if x.dtype.kind != "f":
            raise ValueError(f"{self.about}: tensor {name!r} must hold floats, got {x.dtype}")
        if not np.isfinite(x).all():
            raise ValueError(f"{self.about}: tensor {name!r} must be finite, got nan or inf")
        return self.arrays.pop(name)

    def same(self, name: str, other: str) -> bool:
        return np.array_equal(self.find(name), self.find(other))

    def layers(self, name: str) -> int:
        """How many layers there are: name has {} for their number."""
        return next(i for i in range(len(self.arrays) + 1) if name.format(i) not in self.arrays)

    def model(self, weights: Mapping[str, np.ndarray], **config: Any) -> Model:
        """The model of these weights in the number system, if no tensor is left over."""
        if self.arrays:
            raise ValueError(
                f"{self.about}: tensor {min(self.arrays)[:200]!r} must be a weight of the model, or not be there"
            )
        try:
            return Model(Config(**config), {name: placed(x, self.system) for name, x in weights.items()})
        except ValueError as error:
            raise ValueError(f"{self.about}: {error}") from error


def placed(x: np.ndarray, system: System) -> Any:
    """Numbers of a file in a number system: exact in float64, which holds every float32, float16 and bfloat16."""
    wide = np.ascontiguousarray(x, np.float64)
    return system.place(wide) if isinstance(system, Float) else system.convert(wide)
