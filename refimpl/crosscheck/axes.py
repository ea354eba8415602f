"""The axes of a kernel's arrays, as a word: BHTD, BTHD, BT(HD), THD.

Here all arrays have the order of the formulas: (batch, head, token, entry), states (batch, head,
key, value). B is a batch row, H a head, T a token, D an entry of a token; of states, K is a feature
and V a value. Letters in brackets are one axis of the kernel; 1 is an axis of length 1.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from ..arrays import HostArray
from ..errors import brief


class Axes(NamedTuple):
    """How a kernel orders the axes of arrays whose order here is `ours`."""

    ours: str
    theirs: tuple[str, ...]  # the letters of each axis

    @classmethod
    def read(cls, who: str, word: str, ours: str) -> Axes:
        parts = re.findall(r"\(([A-Z]+)\)|([A-Z1])", word) if isinstance(word, str) else []
        theirs = tuple(a or b for a, b in parts)
        letters = "".join(theirs).replace("1", "")
        spelt = "".join(f"({a})" if a else b for a, b in parts)
        if spelt != word or len(set(letters)) != len(letters) or not set(letters) <= set(ours):
            wanted = f"each of the letters {ours} at most once, such as {ours}; one axis of several in brackets"
            raise ValueError(f"{who} must have {wanted}, got {brief(word)}")
        return cls(ours, theirs)

    @property
    def missing(self) -> str:
        """The letters of axes that the kernel has not: their length is 1."""
        return "".join(c for c in self.ours if c not in "".join(self.theirs))

    def shape(self, sizes: dict[str, int]) -> tuple[int, ...]:
        """The shape that the kernel sees."""
        return tuple(int(np.prod([sizes.get(c, 1) for c in axis])) for axis in self.theirs)

    def give(self, x: HostArray) -> HostArray:
        """An array in our order as the kernel takes it."""
        sizes = dict(zip(self.ours, x.shape, strict=True))
        if wrong := [c for c in self.missing if sizes[c] != 1]:
            raise ValueError(f"axes {''.join(self.theirs)} have no {wrong[0]}, which must then be 1, got {sizes}")
        order = [self.ours.index(c) for c in "".join(self.theirs) if c != "1"]
        order += [self.ours.index(c) for c in self.missing]
        return np.ascontiguousarray(np.transpose(x, order)).reshape(self.shape(sizes))

    def take(self, x: HostArray, sizes: dict[str, int]) -> HostArray:
        """An array of the kernel, whose shape is right, in our order."""
        letters = [c for c in "".join(self.theirs) if c != "1"] + list(self.missing)
        split = x.reshape([sizes[c] for c in letters])
        return np.transpose(split, [letters.index(c) for c in self.ours])
