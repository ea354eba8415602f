"""Mistakes of RoPE: one step of the formula wrong."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ...arrays import Array, HostArray
from ...systems import System
from ...systems.floats import array_namespace
from ..families.rope import Circle, RotaryEmbedding, number
from ..mistakes import mistake
from ..running import rounded, value_of

TABLES = (512, 1024, 2048, 4096, 8192)


@mistake("positions begin at 1", "litgpt#2217 and kin: fine at position 0 only")
class OneBased(RotaryEmbedding):
    def place(self, positions: HostArray, shape: tuple[int, ...]) -> HostArray:
        return positions + 1


@mistake("the given position is ignored: each call begins at 0", "transformers#46190: prefill and decode differ")
class FromZero(RotaryEmbedding):
    def place(self, positions: HostArray, shape: tuple[int, ...]) -> HostArray:
        return np.broadcast_to(np.arange(shape[-2]), positions.shape)


@mistake("all tokens have the position of the first")
class FirstForAll(RotaryEmbedding):
    def place(self, positions: HostArray, shape: tuple[int, ...]) -> HostArray:
        return np.broadcast_to(positions[..., :1], positions.shape)


@mistake("given positions are counted on from the first of them")
class CountedOn(RotaryEmbedding):
    def place(self, positions: HostArray, shape: tuple[int, ...]) -> HostArray:
        return positions[..., :1] + np.arange(shape[-2])


@mistake("all batch rows have the positions of the first", "fla#1140: packed and padded texts")
class RowOfFirst(RotaryEmbedding):
    def place(self, positions: HostArray, shape: tuple[int, ...]) -> HostArray:
        return positions[:1]


@mistake("positions run on from one batch row to the next")
class RowsRunOn(RotaryEmbedding):
    def place(self, positions: HostArray, shape: tuple[int, ...]) -> HostArray:
        return positions + shape[-2] * np.arange(shape[0])[:, None, None]


@mistake("the head is taken as the position", "fla#547: (B, H, T, D) and (B, T, H, D)")
class HeadAsPosition(RotaryEmbedding):
    def place(self, positions: HostArray, shape: tuple[int, ...]) -> Any:
        return positions[..., :1] + np.arange(shape[1])[:, None] + 0 * positions


@mistake("positions end with a table of {}: later ones have its last row", numbers=TABLES)
class TableClamped(RotaryEmbedding):
    number: ClassVar[int]

    def place(self, positions: HostArray, shape: tuple[int, ...]) -> HostArray:
        return np.minimum(positions, self.number - 1)


@mistake("positions begin anew after a table of {}", numbers=TABLES)
class TableWrapped(RotaryEmbedding):
    number: ClassVar[int]

    def place(self, positions: HostArray, shape: tuple[int, ...]) -> HostArray:
        return np.remainder(positions, self.number)


@mistake("the exponent is −i/width, not −2i/width")
class ExponentHalved(RotaryEmbedding):
    def numerators(self, w: int) -> HostArray:
        return np.arange(w // 2)


@mistake("the exponent is −2(i + 1)/width, not −2i/width")
class ExponentFromOne(RotaryEmbedding):
    def numerators(self, w: int) -> HostArray:
        return np.arange(2, w + 1, 2)


@mistake("the frequencies are in reversed order")
class Reversed(RotaryEmbedding):
    def frequencies(self, d: int, system: System) -> Any:
        return super().frequencies(d, system)[::-1]


@mistake("all pairs have the frequency of the first")
class OneFrequency(RotaryEmbedding):
    def numerators(self, w: int) -> HostArray:
        return np.zeros(w // 2)


@mistake("sin and cos are swapped")
class Swapped(RotaryEmbedding):
    def turn_pairs(self, a: Array, b: Array, cos: Array, sin: Array) -> tuple[Array, Array]:
        return super().turn_pairs(a, b, sin, cos)


@mistake("the minus is missing: (a cos + b sin, a sin + b cos)")
class NoMinus(RotaryEmbedding):
    def turn_pairs(self, a: Array, b: Array, cos: Array, sin: Array) -> tuple[Array, Array]:
        return a * cos + b * sin, a * sin + b * cos


@mistake("the second of each pair is turned from the first as it is after its turn")
class InPlace(RotaryEmbedding):
    def turn_pairs(self, a: Array, b: Array, cos: Array, sin: Array) -> tuple[Array, Array]:
        first = a * cos - b * sin
        return first, first * sin + b * cos


@mistake("the columns of cos and sin are of the other layout", "gpt-neox#834, transformers#25199: pairs")
class OtherColumns(RotaryEmbedding):
    def turn_entries(self, x: Array, cos: Array, sin: Array, system: System) -> Array:
        a, b = self.pairs(x)
        h = a.shape[-1]
        order = np.arange(2 * h) // 2 if self.layout == "half" else np.arange(2 * h) % h
        parts = (order[:h], order[h:]) if self.layout == "half" else (order[0::2], order[1::2])
        (cos_a, sin_a), (cos_b, sin_b) = ([system.xp.take(t, i, axis=-1) for t in (cos, sin)] for i in parts)
        sign = -1 if self.sign == "-" else 1
        return self.join(a * cos_a - b * sin_a * sign, a * sin_b * sign + b * cos_b, system)


@mistake("it turns twice")
class TurnedTwice(RotaryEmbedding):
    def turn_entries(self, x: Array, cos: Array, sin: Array, system: System) -> Array:
        once = super().turn_entries(x, cos, sin, system)
        return super().turn_entries(once, cos, sin, system)


@mistake("it turns nothing")
class NotTurned(RotaryEmbedding):
    def turn_entries(self, x: Array, cos: Array, sin: Array, system: System) -> Array:
        return x


@mistake("the entries that are not turned are 0")
class RestZero(RotaryEmbedding):
    def copy(self, x: Array) -> Array:
        return x * 0


@mistake("the last pair is not turned")
class LastPairKept(RotaryEmbedding):
    def powers(self, d: int, system: System) -> Any:
        theta = super().powers(d, system)
        return theta * system.convert((np.arange(theta.shape[0]) < theta.shape[0] - 1) * 1.0)


@mistake("the angles are scaled twice")
class ScaledTwice(RotaryEmbedding):
    def scale(self, theta: Any, d: int, system: System) -> Any:
        return super().scale(super().scale(theta, d, system), d, system)


@mistake("the angles are scaled by the factor, not by its inverse")
class ScaledUp(RotaryEmbedding):
    def scale(self, theta: Any, d: int, system: System) -> Any:
        return theta * number(system, self.factor) if self.scaling == "linear" else super().scale(theta, d, system)


@mistake("what is divided by the factor is kept, and the other way round")
class KeptOthers(RotaryEmbedding):
    def kept_by_llama3(self, theta: Any, system: System) -> Any:
        return 1 - super().kept_by_llama3(theta, system)

    def kept_by_yarn(self, d: int, system: System) -> Any:
        return 1 - super().kept_by_yarn(d, system)


@mistake("frequencies between the limits are not blended")
class NotBlended(RotaryEmbedding):
    def kept_by_llama3(self, theta: Any, system: System) -> Any:
        kept = super().kept_by_llama3(theta, system)
        return system.xp.where(value_of(kept) < 1, system.xp.zeros_like(kept), kept)


@mistake("positions are rounded to bfloat16", "gpt-neox#1003, transformers#29285: phases in bfloat16")
class PositionsInBfloat16(RotaryEmbedding):
    narrow: ClassVar[str] = "bfloat16"

    def circle(self, positions: HostArray, d: int, system: System) -> Circle:
        angle = self.narrow_angles(np.asarray(positions, dtype=np.float64)[..., None], d, self.rounds(system))
        xp = array_namespace(angle)
        return system.convert(xp.cos(angle)), system.convert(xp.sin(angle))

    def narrow_angles(self, positions: HostArray, d: int, system: System) -> Any:
        return system.convert(rounded(positions, self.narrow)) * self.frequencies(d, system)


@mistake("positions are rounded to float16")
class PositionsInFloat16(PositionsInBfloat16):
    narrow: ClassVar[str] = "float16"


@mistake("the frequencies are rounded to bfloat16", "gpt-neox#1003, transformers#29285: phases in bfloat16")
class FrequenciesInBfloat16(PositionsInBfloat16):
    def narrow_angles(self, positions: HostArray, d: int, system: System) -> Any:
        return system.convert(positions) * rounded(self.frequencies(d, system), self.narrow)


@mistake("the frequencies are rounded to float16")
class FrequenciesInFloat16(FrequenciesInBfloat16):
    narrow: ClassVar[str] = "float16"


@mistake("the angles are rounded to bfloat16", "gpt-neox#1003, transformers#29285: phases in bfloat16")
class AnglesInBfloat16(PositionsInBfloat16):
    def narrow_angles(self, positions: HostArray, d: int, system: System) -> Any:
        return rounded(system.convert(positions) * self.frequencies(d, system), self.narrow)


@mistake("the angles are rounded to float16")
class AnglesInFloat16(AnglesInBfloat16):
    narrow: ClassVar[str] = "float16"


@mistake("positions, frequencies and angles are rounded to bfloat16", "gpt-neox#1003, transformers#29285")
class PhasesInBfloat16(FrequenciesInBfloat16):
    def narrow_angles(self, positions: HostArray, d: int, system: System) -> Any:
        return rounded(super().narrow_angles(rounded(positions, self.narrow), d, system), self.narrow)


@mistake("positions, frequencies and angles are rounded to float16")
class PhasesInFloat16(PhasesInBfloat16):
    narrow: ClassVar[str] = "float16"


@mistake("cos and sin are rounded to bfloat16")
class TableInBfloat16(RotaryEmbedding):
    narrow: ClassVar[str] = "bfloat16"

    def table(self, positions: HostArray, d: int, system: System) -> Circle:
        cos, sin = super().table(positions, d, system)
        return rounded(cos, self.narrow), rounded(sin, self.narrow)


@mistake("cos and sin are rounded to float16")
class TableInFloat16(TableInBfloat16):
    narrow: ClassVar[str] = "float16"
