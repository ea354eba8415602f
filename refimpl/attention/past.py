"""Past: what earlier text is to a layer. A State, a KVCache and what a recurrence has carried are pasts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, Self

from ..arrays import Array
from .feature_maps import Kernel


class Past(Protocol):
    """Arrays, and the position at which the next token is read."""

    @property
    def position(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """Bytes needed to go on from it."""
        ...

    def map_arrays(self, f: Callable[[Array, int], Array]) -> Self:
        """The same past with f(x, how many axes are its own) for every array x."""
        ...

    def shifted(self, by: int, kernel: Kernel) -> Self:
        """The same past, seen from `by` positions further on; NotDefined where it would look different."""
        ...

    def weighed(self, old: Self | None, strength: Any) -> Self:
        """The past in which the text after `old` counts `strength` times: old + λ (self − old)."""
        ...

    def arrays(self) -> dict[str, Array]:
        """Its arrays by the names they have in a file."""
        ...

    def metadata(self) -> list[dict[str, Any]]:
        """What a file must say of it besides its arrays."""
        ...

    @classmethod
    def owns(cls, name: str) -> bool:
        """Could an array of this name in a file be part of such a past?"""
        ...

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], metadata: Any, position: int, kernel: Kernel, width: int) -> Self:
        """The past with these arrays and metadata of a file, of which nothing is believed.

        width : of a key
        """
        ...
