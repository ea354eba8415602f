"""Mistakes of linear attention: each class has one step of the formula wrong."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ...arrays import HostArray
from ..families.linear_attention import LinearAttention
from ..mistakes import mistake

CHUNKS = (16, 32, 64, 128, 256, 512)


def chunk_of(n: int, size: int) -> HostArray:
    """(n,): the chunk of each token."""
    return np.arange(n) // size


@mistake("the state is lost between chunks of {}", "fla#285, #494: prefill and decode differ", CHUNKS)
class LostBetweenChunks(LinearAttention):
    number: ClassVar[int]

    def seen(self, n: int) -> HostArray:
        chunk = chunk_of(n, self.number)
        return super().seen(n) * (chunk[:, None] == chunk)

    def seen_of_state(self, n: int) -> HostArray:
        return 1.0 * (chunk_of(n, self.number) == 0)

    def kept(self, n: int) -> HostArray:
        chunk = chunk_of(n, self.number)
        return 1.0 * (chunk == chunk.max(initial=0))

    def kept_of_state(self, n: int) -> float:
        return float(n <= self.number)


@mistake("the first state is ignored")
class NoFirstState(LinearAttention):
    def seen_of_state(self, n: int) -> HostArray:
        return np.zeros(n)

    def kept_of_state(self, n: int) -> float:
        return 0.0
