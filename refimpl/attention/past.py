"""Past: the base class of all that earlier text can be to a layer (State, KVCache, Carried)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Protocol, Self

from ..arrays import Array
from ..systems.floats import itemsize
from .feature_maps import Kernel


class Past(Protocol):
    """Arrays, and the position at which the next token is read. Nothing in a file is believed.

    map_arrays     the same past with f(x, how many axes are its own) for every array x
    shifted        the same past, seen from `by` positions further on; NotDefined where that differs
    weighed        the past in which the text after `old` counts λ times: old + λ (self − old)
    arrays         its arrays by the names that they have in a file
    owns           could an array of this name in a file be part of such a past?
    """

    position: int

    def map_arrays(self, f: Callable[[Array, int], Array]) -> Self: ...
    def shifted(self, by: int, kernel: Kernel) -> Self: ...
    def weighed(self, old: Self | None, strength: Any) -> Self: ...
    def arrays(self) -> dict[str, Array]: ...
    @classmethod
    def owns(cls, name: str) -> bool: ...
    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], metadata: Any, position: int, kernel: Kernel, width: int) -> Self:
        """The past with these arrays and metadata of a file; width : of a key"""

    def metadata(self) -> list[dict[str, Any]]:
        """What a file must say of it besides its arrays."""
        return []

    @property
    def nbytes(self) -> int:
        """Bytes needed to go on from it."""
        return sum(prod(x.shape) * itemsize(x) for x in self.arrays().values())
