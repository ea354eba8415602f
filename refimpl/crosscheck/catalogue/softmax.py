"""Mistakes of softmax attention: one step of the formula wrong."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ...arrays import Array, HostArray
from ...systems import System
from ..families.rope import number
from ..families.softmax import SoftmaxAttention, hide, top_of
from ..mistakes import mistake
from ..running import rounded, value_of

BLOCKS = (16, 32, 64, 128)


# What a token sees


@mistake("the next token is seen")
class NextSeen(SoftmaxAttention):
    def sees(self, t: HostArray, s: HostArray, M: int, N: int) -> Any:
        return super().sees(t, s, M, N) | (s == t + 1)


@mistake("a token does not see itself")
class OwnMissing(SoftmaxAttention):
    def sees(self, t: HostArray, s: HostArray, M: int, N: int) -> Any:
        return super().sees(t, s, M, N) & (s != t)


@mistake("the mask begins at the first key, not so that it ends at the last", "bottom-right and top-left causal masks")
class TopLeft(SoftmaxAttention):
    def sees(self, t: HostArray, s: HostArray, M: int, N: int) -> Any:
        return super().sees(t - M, s, M, N)


@mistake("the past is ignored", "transformers#46190: prefill and decode differ")
class PastIgnored(SoftmaxAttention):
    def sees(self, t: HostArray, s: HostArray, M: int, N: int) -> Any:
        return super().sees(t, s, M, N) & (s >= M)


@mistake("only the past is seen")
class OnlyPast(SoftmaxAttention):
    def sees(self, t: HostArray, s: HostArray, M: int, N: int) -> Any:
        return super().sees(t, s, M, N) & (s < M)


@mistake("the first token of the past is lost")
class FirstOfPastLost(SoftmaxAttention):
    def sees(self, t: HostArray, s: HostArray, M: int, N: int) -> Any:
        return super().sees(t, s, M, N) & ((s > 0) | (M == 0))


@mistake("after a past, new tokens see all new ones")
class NewSeeAll(SoftmaxAttention):
    def sees(self, t: HostArray, s: HostArray, M: int, N: int) -> Any:
        return super().sees(t, s, M, N) | ((s >= M) & (M > 0))


@mistake("the window is one token too wide")
class WindowWider(SoftmaxAttention):
    def sees(self, t: HostArray, s: HostArray, M: int, N: int) -> Any:
        return super().sees(t, s, M, N) | ((t - s == self.window) & (self.window > 0))


@mistake("the window is one token too narrow")
class WindowNarrower(SoftmaxAttention):
    def sees(self, t: HostArray, s: HostArray, M: int, N: int) -> Any:
        return super().sees(t, s, M, N) & ((t - s != self.window - 1) | (self.window == 0))


@mistake("keys after the last full block of {} are dropped", "fla#1140: odd lengths", BLOCKS)
class LastBlockDropped(SoftmaxAttention):
    number: ClassVar[int]

    def sees(self, t: HostArray, s: HostArray, M: int, N: int) -> Any:
        return super().sees(t, s, M, N) & (s < N // self.number * self.number)


@mistake("only keys of the same block of {} are seen", numbers=BLOCKS)
class OwnBlock(SoftmaxAttention):
    number: ClassVar[int]

    def sees(self, t: HostArray, s: HostArray, M: int, N: int) -> Any:
        return super().sees(t, s, M, N) & (t // self.number == s // self.number)


@mistake("keys of a block of {} are masked as the whole block is: no mask within", numbers=BLOCKS)
class BlockNotMasked(SoftmaxAttention):
    number: ClassVar[int]

    def sees(self, t: HostArray, s: HostArray, M: int, N: int) -> Any:
        return super().sees(t, s, M, N) | (t // self.number == s // self.number)


# The mask


@mistake("hidden scores are −10⁴, not −∞: all is seen where scores are lower")
class Masked(SoftmaxAttention):
    def weigh(self, scores: Array, seen: HostArray, system: System) -> Array:
        every = np.ones_like(seen)
        return super().weigh(system.xp.where(seen, scores, number(system, -1e4)), every, system)


@mistake("10⁴ is taken off hidden scores: they are seen where scores differ by more")
class Lowered(SoftmaxAttention):
    def weigh(self, scores: Array, seen: HostArray, system: System) -> Array:
        lower = system.convert(np.where(seen, 0.0, -1e4))
        return super().weigh(scores + lower, np.ones_like(seen), system)


@mistake("hidden scores are 0, not −∞")
class MaskedByZero(SoftmaxAttention):
    def weigh(self, scores: Array, seen: HostArray, system: System) -> Array:
        return super().weigh(hide(scores, seen, system), np.ones_like(seen), system)


@mistake("the mask comes after the softmax, whose sum is not taken again")
class MaskedAfter(SoftmaxAttention):
    def weigh(self, scores: Array, seen: HostArray, system: System) -> Array:
        w = super().weigh(scores, np.ones_like(seen), system)
        return hide(w / system.xp.sum(w, axis=-1, keepdims=True), seen, system)

    def read(self, w: Array, v: Array, system: System) -> Array:
        return w @ v


@mistake("hidden scores are capped, too, and so seen")
class CappedAfter(SoftmaxAttention):
    def weigh(self, scores: Array, seen: HostArray, system: System) -> Array:
        if not self.softcap:
            return super().weigh(scores, seen, system)
        return super().weigh(system.xp.where(seen, scores, number(system, -self.softcap)), np.ones_like(seen), system)


# The scores


@mistake("the scale is applied twice")
class ScaledTwice(SoftmaxAttention):
    def factor(self, d: int, m: int, heads: int) -> float:
        return super().factor(d, m, heads) ** 2


@mistake("the scale is of the width of v, m^(-1/2)")
class ScaleOfValues(SoftmaxAttention):
    def factor(self, d: int, m: int, heads: int) -> float:
        return float(m**-0.5)


@mistake("the scale is of the width of all heads")
class ScaleOfAllHeads(SoftmaxAttention):
    def factor(self, d: int, m: int, heads: int) -> float:
        return float((heads * d) ** -0.5)


@mistake("the scale is d^(1/2): it multiplies where it should divide")
class ScaleInverted(SoftmaxAttention):
    def factor(self, d: int, m: int, heads: int) -> float:
        return float(d**0.5)


@mistake("scores are cut off at the cap, without tanh")
class CapCut(SoftmaxAttention):
    def cap(self, scores: Any, system: System) -> Any:
        if not self.softcap:
            return scores
        a, xp = number(system, self.softcap), system.xp
        return xp.minimum(xp.maximum(scores, -a), a)


@mistake("the cap is not multiplied back: tanh(scores/a)")
class CapNotBack(SoftmaxAttention):
    def cap(self, scores: Array, system: System) -> Any:
        return super().cap(scores, system) / number(system, self.softcap or 1)


# exp


@mistake("nothing is subtracted before exp: it overflows", "xformers#98: NaN in float16")
class NothingSubtracted(SoftmaxAttention):
    def weigh(self, scores: Array, seen: HostArray, system: System) -> Array:
        return self.round_weights(hide(system.xp.exp(scores), seen, system))


@mistake("the largest score of all tokens is subtracted, not that of each: others vanish")
class LargestOfAll(SoftmaxAttention):
    at_once: ClassVar[bool] = True

    def weigh(self, scores: Array, seen: HostArray, system: System) -> Array:
        top = np.max(value_of(top_of(scores, seen, system)), axis=(-1, -2), keepdims=True, initial=-np.inf)
        return hide(system.xp.exp(scores - system.convert(np.where(np.isfinite(top), top, 0.0))), seen, system)


@mistake("the largest score is taken before the mask: what is seen vanishes")
class LargestHidden(SoftmaxAttention):
    def weigh(self, scores: Array, seen: HostArray, system: System) -> Array:
        return hide(super().weigh(scores, np.ones_like(seen), system), seen, system)


@mistake("powers of 2 instead of e")
class PowersOfTwo(SoftmaxAttention):
    def cap(self, scores: Array, system: System) -> Any:
        return super().cap(scores, system) * number(system, np.log(2.0))


@mistake("the sum of the weights has 1 more")
class OneMore(SoftmaxAttention):
    def weigh(self, scores: Array, seen: HostArray, system: System) -> Array:
        top = system.convert(np.maximum(value_of(top_of(scores, seen, system)), 0.0))
        exp = system.xp.exp
        return system.xp.concat([hide(exp(scores - top), seen, system), exp(-top)], axis=-1)

    def read(self, w: Array, v: Array, system: System) -> Array:
        return (w[..., :-1] @ v) / system.xp.sum(w, axis=-1, keepdims=True)


@mistake("the weights are not divided by their sum")
class NotDivided(SoftmaxAttention):
    def weigh(self, scores: Array, seen: HostArray, system: System) -> Array:
        return hide(system.xp.exp(scores), seen, system)

    def read(self, w: Array, v: Array, system: System) -> Array:
        return w @ v


@mistake("the weights are not divided by their sum, the largest of which is 1")
class NotDividedShifted(SoftmaxAttention):
    def read(self, w: Array, v: Array, system: System) -> Array:
        return w @ v


@mistake("the softmax is over the queries, not over the keys")
class OverQueries(SoftmaxAttention):
    at_once: ClassVar[bool] = True

    def weigh(self, scores: Array, seen: HostArray, system: System) -> Array:
        turn = system.xp.matrix_transpose
        return turn(super().weigh(turn(scores), seen.T, system))

    def read(self, w: Array, v: Array, system: System) -> Array:
        return (w / system.xp.sum(w, axis=-2, keepdims=True)) @ v


@mistake("the softmax is over the heads, not over the keys")
class OverHeads(SoftmaxAttention):
    def weigh(self, scores: Array, seen: HostArray, system: System) -> Array:
        top = np.max(value_of(scores), axis=1, keepdims=True, initial=-np.inf)
        w = system.xp.exp(scores - system.convert(np.where(np.isfinite(top), top, 0.0)))
        return hide(w / system.xp.sum(w, axis=1, keepdims=True), seen, system)

    def read(self, w: Array, v: Array, system: System) -> Array:
        return w @ v


@mistake("sums of earlier blocks of {} are not scaled down when a larger score comes", "", BLOCKS)
class NotRescaled(SoftmaxAttention):
    number: ClassVar[int]

    def weigh(self, scores: Array, seen: HostArray, system: System) -> Array:
        starts = range(0, max(scores.shape[-1], 1), self.number)
        tops = [
            value_of(top_of(scores[..., a : a + self.number], seen[:, a : a + self.number], system)) for a in starts
        ]
        shown = [np.any(seen[:, a : a + self.number], axis=-1, keepdims=True) for a in starts]
        high = np.maximum.accumulate([np.where(f, x, -np.inf) for f, x in zip(shown, tops, strict=True)], axis=0)
        wide = np.concatenate([np.broadcast_to(x, (*x.shape[:-1], self.number)) for x in high], axis=-1)
        top = np.where(np.isfinite(wide), wide, 0.0)[..., : scores.shape[-1]]
        return hide(system.xp.exp(scores - system.convert(top)), seen, system)


@mistake("exp(scores) is rounded to bfloat16 before it meets v")
class WeightsInBfloat16(SoftmaxAttention):
    narrow: ClassVar[str] = "bfloat16"

    def read(self, w: Any, v: Array, system: System) -> Any:
        return (rounded(w, self.narrow) @ v) / system.xp.sum(w, axis=-1, keepdims=True)


@mistake("exp(scores) is rounded to float16 before it meets v")
class WeightsInFloat16(WeightsInBfloat16):
    narrow: ClassVar[str] = "float16"


@mistake("the weights are rounded to bfloat16")
class ProbabilitiesInBfloat16(SoftmaxAttention):
    narrow: ClassVar[str] = "bfloat16"

    def read(self, w: Any, v: Array, system: System) -> Any:
        return rounded(w / system.xp.sum(w, axis=-1, keepdims=True), self.narrow) @ v


@mistake("the weights are rounded to float16")
class ProbabilitiesInFloat16(ProbabilitiesInBfloat16):
    narrow: ClassVar[str] = "float16"


@mistake("the scores are rounded to bfloat16")
class ScoresInBfloat16(SoftmaxAttention):
    narrow: ClassVar[str] = "bfloat16"

    def cap(self, scores: Any, system: System) -> Any:
        return super().cap(rounded(scores, self.narrow), system)


@mistake("the scores are rounded to float16")
class ScoresInFloat16(ScoresInBfloat16):
    narrow: ClassVar[str] = "float16"


# Heads, rows and positions


@mistake("all heads read the first head of k and v")
class FirstHead(SoftmaxAttention):
    def head_of_keys(self, heads: int, groups: int) -> HostArray:
        return np.zeros(heads, dtype=int)


@mistake("all batch rows have the past of the first")
class PastOfFirstRow(SoftmaxAttention):
    def past_keys(self, past: Array, system: System) -> Array:
        return system.xp.broadcast_to(past[:1], past.shape)


@mistake("positions begin at 0, whatever came before", "transformers#46190: prefill and decode differ")
class FromZero(SoftmaxAttention):
    def turn_q(self, x: Array, first: int, dtype: str, system: System) -> Any:
        return super().turn_q(x, 0, dtype, system)

    def turn_k(self, x: Array, first: int, dtype: str, system: System) -> Any:
        return super().turn_k(x, 0, dtype, system)


@mistake("positions begin one too late")
class OneLate(SoftmaxAttention):
    def first_position(self, position: int, M: int) -> int:
        return position + 1


@mistake("q has the positions 0, 1, …, whatever came before")
class QueriesFromZero(SoftmaxAttention):
    def turn_q(self, x: Array, first: int, dtype: str, system: System) -> Any:
        return super().turn_q(x, 0, dtype, system)


@mistake("q is not turned by RoPE")
class QueriesNotTurned(SoftmaxAttention):
    def turn_q(self, x: Array, first: int, dtype: str, system: System) -> Any:
        return x


@mistake("k is not turned by RoPE")
class KeysNotTurned(SoftmaxAttention):
    def turn_k(self, x: Array, first: int, dtype: str, system: System) -> Any:
        return x
