"""Past: what a layer keeps of earlier text. State, KVCache and Carried implement it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Protocol, Self

from ..arrays import Array
from ..systems.floats import itemsize
from .feature_maps import Kernel


class Past(Protocol):
    """The arrays that a layer keeps, and the position at which the next token is read.

    map_arrays     the same past with f(x, axes) for each array x; axes: 2 for a matrix, else 1
    shifted        the same past, seen from `by` positions further on; NotDefined if impossible
    weighed        the past in which the text after `old` counts λ times: old + λ (self − old)
    arrays         its arrays, by the names that they have in a file
    owns           whether an array of this name in a file can be part of such a past
    """

    position: int

    @abstractmethod
    def map_arrays(self, f: Callable[[Array, int], Array]) -> Self: ...
    @abstractmethod
    def shifted(self, by: int, kernel: Kernel) -> Self: ...
    @abstractmethod
    def weighed(self, old: Self | None, strength: Any) -> Self: ...
    @abstractmethod
    def arrays(self) -> dict[str, Array]: ...
    @classmethod
    @abstractmethod
    def owns(cls, name: str) -> bool: ...
    @classmethod
    @abstractmethod
    def from_arrays(cls, arrays: Mapping[str, Array], metadata: Any, position: int, kernel: Kernel, width: int) -> Self:
        """The past with these arrays and metadata from a file.   width : the width of a key"""

    def metadata(self) -> list[dict[str, Any]]:
        """The metadata that a file needs besides the arrays."""
        return []

    @property
    def nbytes(self) -> int:
        """The size of its arrays in bytes."""
        return sum(prod(x.shape) * itemsize(x) for x in self.arrays().values())
