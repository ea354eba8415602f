"""Mistakes of linear attention: each class has one step of the formula wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from ...arrays import Array, HostArray
from ...attention.rope import Table
from ...systems import RunningError, System, system_of
from ...systems.array import Frequencies, host
from ...systems.formats import round_to
from ..families.linear_attention import LinearAttention, number, weighed
from ..mistakes import mistake
from ..running import rounded
from ..spec import Arrays

CHUNKS = (16, 32, 64, 128, 256, 512)
NARROW = ("bfloat16", "float16")

# Where the field met them
PREFILL_AND_DECODE = "fla#285, #494, #92, transformers#46190: prefill and decode differ"
Z_IN_STATE = "fla#267, #268, #594, #875, #130, #47: z is not in the state, or summed over heads"
SHORT_OR_ODD = "fla#1140, #1142, #892: short or odd lengths, padding"
STATE_AXES = "fla#776, #864, #905, sglang#20283, attention-gym#402: the axes of S"
PHASES = "gpt-neox#1003, transformers#29285: angles in bfloat16"
NARROW_STATE = "vllm#13466, TensorRT-LLM#14600, mlx-lm#988: the state in bfloat16"


def takes_state(spec: LinearAttention) -> bool:
    return "S" in spec.calls.given


def returns_state(spec: LinearAttention) -> bool:
    return "S" in spec.calls.made


def divides(spec: LinearAttention) -> bool:
    return spec.normalise


def rotates(spec: LinearAttention) -> bool:
    return spec.rope != "none"


def scales(spec: LinearAttention) -> bool:
    return spec.scale != "1"


def reads_after(spec: LinearAttention) -> bool:
    return spec.reads == "after"


def maps(spec: LinearAttention) -> bool:
    return spec.phi != "identity"


def both(*needs: Callable[[LinearAttention], bool]) -> Callable[[LinearAttention], bool]:
    return lambda spec: all(need(spec) for need in needs)


def chunk_of(n: int, size: int) -> HostArray:
    """(n,): the chunk of each token."""
    return np.arange(n) // size


def same_chunk(n: int, size: int) -> HostArray:
    """(n, n): whether two tokens are of one chunk."""
    chunk = chunk_of(n, size)
    return np.asarray(np.equal.outer(chunk, chunk))


def is_border(n: int, size: int) -> HostArray:
    """(n,): whether a token is the last of its chunk."""
    return np.asarray(np.arange(n) % size == size - 1)


def ones_where(condition: Any) -> HostArray:
    """Weights: 1 there, else 0."""
    return np.asarray(condition, dtype=np.float64)


def without(x: HostArray, lost: Any) -> HostArray:
    """The weights, but 0 at some places."""
    return np.where(lost, 0.0, x)


# Chunks


@mistake("the state is lost between chunks of {}", PREFILL_AND_DECODE, CHUNKS)
class LostBetweenChunks(LinearAttention):
    number: ClassVar[int]

    def seen(self, n: int) -> HostArray:
        return without(super().seen(n), ~same_chunk(n, self.number))

    def seen_of_state(self, n: int) -> HostArray:
        return ones_where(chunk_of(n, self.number) == 0)

    def kept(self, n: int) -> HostArray:
        return ones_where(chunk_of(n, self.number) == max(n - 1, 0) // self.number)

    def kept_of_state(self, n: int) -> float:
        return float(n <= self.number)


@mistake("S is lost between chunks of {}, z is not", "", CHUNKS, needs=divides)
class OnlySLostBetweenChunks(LostBetweenChunks):
    def seen_by_z(self, n: int) -> HostArray:
        return LinearAttention.seen(self, n)

    def seen_of_z(self, n: int) -> HostArray:
        return np.ones(n)

    def kept_by_z(self, n: int) -> HostArray:
        return np.ones(n)

    def kept_of_z(self, n: int) -> float:
        return 1.0


@mistake("z is lost between chunks of {}, S is not", "", CHUNKS, needs=both(divides, returns_state))
class OnlyZLostBetweenChunks(LinearAttention):
    number: ClassVar[int]

    def seen_by_z(self, n: int) -> HostArray:
        return without(super().seen_by_z(n), ~same_chunk(n, self.number))

    def seen_of_z(self, n: int) -> HostArray:
        return ones_where(chunk_of(n, self.number) == 0)

    def kept_by_z(self, n: int) -> HostArray:
        return ones_where(chunk_of(n, self.number) == max(n - 1, 0) // self.number)

    def kept_of_z(self, n: int) -> float:
        return float(n <= self.number)


@mistake("it divides by the sum over the chunk of {} alone", "", CHUNKS, needs=divides)
class DividesByChunk(LinearAttention):
    number: ClassVar[int]

    def seen_by_z(self, n: int) -> HostArray:
        return without(super().seen_by_z(n), ~same_chunk(n, self.number))

    def seen_of_z(self, n: int) -> HostArray:
        return ones_where(chunk_of(n, self.number) == 0)


@mistake("the last, partial chunk of {} is not written into the state", SHORT_OR_ODD, CHUNKS, needs=returns_state)
class PartialChunkNotWritten(LinearAttention):
    number: ClassVar[int]

    def kept(self, n: int) -> HostArray:
        return ones_where(np.arange(n) < n - n % self.number)


@mistake("the outputs of the last, partial chunk of {} are 0", SHORT_OR_ODD, CHUNKS)
class PartialChunkZero(LinearAttention):
    number: ClassVar[int]

    def compute(self, x: Arrays, system: System) -> Arrays:
        out, n = super().compute(x, system), x["q"].shape[2]
        complete = ones_where(np.arange(n) < n - n % self.number)
        return out | {"o": weighed(system, out["o"], complete[:, None])}


@mistake("the returned state is that before the last chunk of {}", "", CHUNKS, needs=returns_state)
class StateBeforeLastChunk(LinearAttention):
    number: ClassVar[int]

    def kept(self, n: int) -> HostArray:
        return ones_where(chunk_of(n, self.number) < max(n - 1, 0) // self.number)


@mistake("the last token of each chunk of {} is missing in the state", "", CHUNKS)
class BorderDropped(LinearAttention):
    number: ClassVar[int]

    def seen(self, n: int) -> HostArray:
        return without(super().seen(n), is_border(n, self.number) & ~same_chunk(n, self.number))

    def kept(self, n: int) -> HostArray:
        return ones_where(~is_border(n, self.number))


@mistake("the last token of each chunk of {} is twice in the state", "", CHUNKS)
class BorderTwice(LinearAttention):
    number: ClassVar[int]

    def seen(self, n: int) -> HostArray:
        again = is_border(n, self.number) & ~same_chunk(n, self.number)
        return np.where(again, 2.0, 1.0) * super().seen(n)

    def kept(self, n: int) -> HostArray:
        return 1.0 + is_border(n, self.number)


@mistake("the first token of each chunk of {} is missing in the state", "", CHUNKS)
class FirstOfChunkDropped(LinearAttention):
    number: ClassVar[int]

    def seen(self, n: int) -> HostArray:
        return without(super().seen(n), (np.arange(n) % self.number == 0) & ~same_chunk(n, self.number))

    def kept(self, n: int) -> HostArray:
        return ones_where(np.arange(n) % self.number != 0)


@mistake("within a chunk of {}, tokens see later ones", "", CHUNKS)
class ChunkNotCausal(LinearAttention):
    number: ClassVar[int]

    def seen(self, n: int) -> HostArray:
        return np.maximum(super().seen(n), same_chunk(n, self.number))


@mistake("within a chunk of {}, tokens see only earlier chunks", "", CHUNKS)
class OwnChunkMissed(LinearAttention):
    number: ClassVar[int]

    def seen(self, n: int) -> HostArray:
        return without(super().seen(n), same_chunk(n, self.number))


@mistake("the chunk of {} before the own one is missed", "", CHUNKS)
class PreviousChunkMissed(LinearAttention):
    number: ClassVar[int]

    def seen(self, n: int) -> HostArray:
        chunk = chunk_of(n, self.number)
        return without(super().seen(n), np.subtract.outer(chunk, chunk) == 1)


@mistake("the first state is added again in every chunk of {}", "", CHUNKS, needs=takes_state)
class StateAddedPerChunk(LinearAttention):
    number: ClassVar[int]

    def seen_of_state(self, n: int) -> HostArray:
        return 1.0 + chunk_of(n, self.number)

    def kept_of_state(self, n: int) -> float:
        return 1.0 + max(n - 1, 0) // self.number


@mistake("only the first chunk of {} sees the first state", "", CHUNKS, needs=takes_state)
class StateInFirstChunk(LinearAttention):
    number: ClassVar[int]

    def seen_of_state(self, n: int) -> HostArray:
        return ones_where(chunk_of(n, self.number) == 0)


@mistake(
    "zeros that fill up a chunk of {} are counted: φ(0) is not 0",
    SHORT_OR_ODD,
    CHUNKS,
    needs=both(divides, returns_state, lambda spec: spec.phi in ("elu+1", "exp")),
)
class PaddingCounted(LinearAttention):
    number: ClassVar[int]

    def write_z(self, *steps: Any) -> Array:
        K, system = steps[0], steps[-1]
        filled = -K.shape[-2] % self.number
        return super().write_z(*steps) + number(system, filled)


# The state


@mistake("the first state is ignored", PREFILL_AND_DECODE, needs=takes_state)
class NoFirstState(LinearAttention):
    def seen_of_state(self, n: int) -> HostArray:
        return np.zeros(n)

    def kept_of_state(self, n: int) -> float:
        return 0.0


@mistake("of the first state only S is taken, not z", Z_IN_STATE, needs=both(takes_state, divides))
class NoFirstZ(LinearAttention):
    def seen_of_z(self, n: int) -> HostArray:
        return np.zeros(n)

    def kept_of_z(self, n: int) -> float:
        return 0.0


@mistake("of the first state only z is taken, not S", needs=both(takes_state, divides))
class NoFirstS(LinearAttention):
    def compute(self, x: Arrays, system: System) -> Arrays:
        return super().compute(x | {"S": 0 * x["S"]}, system)


@mistake("the first state is counted twice", needs=takes_state)
class FirstStateTwice(LinearAttention):
    def seen_of_state(self, n: int) -> HostArray:
        return np.full(n, 2.0)

    def kept_of_state(self, n: int) -> float:
        return 2.0


@mistake("the first state is read, but not passed on", needs=both(takes_state, returns_state))
class FirstStateNotPassedOn(LinearAttention):
    def kept_of_state(self, n: int) -> float:
        return 0.0


@mistake("the first state is passed on, but not read", needs=both(takes_state, returns_state))
class FirstStateNotRead(LinearAttention):
    def seen_of_state(self, n: int) -> HostArray:
        return np.zeros(n)


@mistake("all batch rows start from the state of row 0", needs=takes_state)
class StateOfRow0(LinearAttention):
    def compute(self, x: Arrays, system: System) -> Arrays:
        return super().compute(x | {name: first_for_all(x[name], 0) for name in "Sz"}, system)


@mistake("all heads start from the state of head 0", needs=takes_state)
class StateOfHead0(LinearAttention):
    def compute(self, x: Arrays, system: System) -> Arrays:
        return super().compute(x | {name: first_for_all(x[name], 1) for name in "Sz"}, system)


def first_for_all(x: HostArray, axis: int) -> HostArray:
    return np.broadcast_to(np.take(x, [0], axis=axis), x.shape)


@mistake("S is taken for (value, key) where it is square", STATE_AXES, needs=takes_state)
class SquareStateTransposed(LinearAttention):
    def compute(self, x: Arrays, system: System) -> Arrays:
        S = x["S"]
        return super().compute(x | {"S": np.swapaxes(S, 2, 3) if S.shape[2] == S.shape[3] else S}, system)


@mistake("S is returned as (value, key)", STATE_AXES, needs=returns_state)
class StateReturnedTransposed(LinearAttention):
    def compute(self, x: Arrays, system: System) -> Arrays:
        out = super().compute(x, system)
        return out | {"S": system.xp.matrix_transpose(out["S"])}


@mistake("S is taken and returned as (value, key)", STATE_AXES, needs=both(takes_state, returns_state))
class StateTransposed(StateReturnedTransposed):
    def compute(self, x: Arrays, system: System) -> Arrays:
        return super().compute(x | {"S": np.swapaxes(x["S"], 2, 3)}, system)


@mistake("the returned state lacks the last token", needs=returns_state)
class LastTokenNotKept(LinearAttention):
    def kept(self, n: int) -> HostArray:
        return without(np.ones(n), np.arange(n) == n - 1)


@mistake("the returned state lacks the first token", needs=returns_state)
class FirstTokenNotKept(LinearAttention):
    def kept(self, n: int) -> HostArray:
        return without(np.ones(n), np.arange(n) == 0)


@mistake("the returned state is the first one", needs=returns_state)
class StateNeverUpdated(LinearAttention):
    def kept(self, n: int) -> HostArray:
        return np.zeros(n)


@mistake("of the returned state only S is new, z is the first one", Z_IN_STATE, needs=both(returns_state, divides))
class ZNeverUpdated(LinearAttention):
    def kept_by_z(self, n: int) -> HostArray:
        return np.zeros(n)


@mistake("of the returned state only z is new, S is the first one", needs=both(returns_state, divides))
class SNeverUpdated(LinearAttention):
    def kept(self, n: int) -> HostArray:
        return np.zeros(n)

    def kept_by_z(self, n: int) -> HostArray:
        return np.ones(n)


# The mask


@mistake("every token sees all tokens")
class NotCausal(LinearAttention):
    def seen(self, n: int) -> HostArray:
        return np.ones((n, n))


@mistake("each token sees the next one", needs=reads_after)
class SeesNext(LinearAttention):
    def seen(self, n: int) -> HostArray:
        return np.tri(n, k=1)


@mistake("each token counts itself twice", needs=reads_after)
class OwnTokenTwice(LinearAttention):
    def seen(self, n: int) -> HostArray:
        return super().seen(n) + np.eye(n)


@mistake("every token sees the last one")
class LastLeaks(LinearAttention):
    def seen(self, n: int) -> HostArray:
        return np.where(np.arange(n) == n - 1, 1.0, super().seen(n))


@mistake("no token sees the first one")
class FirstUnseen(LinearAttention):
    def seen(self, n: int) -> HostArray:
        return without(super().seen(n), np.arange(n) == 0)


@mistake("time runs backwards")
class TimeReversed(LinearAttention):
    def seen(self, n: int) -> HostArray:
        return super().seen(n).T


@mistake("each token sees only the last {}", "", (64, 128, 256, 512, 1024))
class Window(LinearAttention):
    number: ClassVar[int]

    def seen(self, n: int) -> HostArray:
        t = np.arange(n)
        return without(super().seen(n), np.subtract.outer(t, t) >= self.number)


@mistake("tokens from {} on are neither seen nor written", "", (512, 1024))
class LengthCap(LinearAttention):
    number: ClassVar[int]

    def seen(self, n: int) -> HostArray:
        return without(super().seen(n), np.arange(n) >= self.number)

    def kept(self, n: int) -> HostArray:
        return ones_where(np.arange(n) < self.number)


@mistake("the last token of an odd length is dropped", SHORT_OR_ODD)
class OddLengthDropped(LinearAttention):
    def seen(self, n: int) -> HostArray:
        return without(super().seen(n), np.arange(n) >= n - n % 2)

    def kept(self, n: int) -> HostArray:
        return ones_where(np.arange(n) < n - n % 2)


@mistake("the output of a token is that of the one before")
class OutputShifted(LinearAttention):
    def compute(self, x: Arrays, system: System) -> Arrays:
        out, xp = super().compute(x, system), system.xp
        first, rest = xp.zeros_like(out["o"][..., :1, :]), out["o"][..., :-1, :]
        return out | {"o": xp.concat([first, rest], axis=-2)}


# Heads, batch rows, and what is taken for what


@mistake("all heads take the keys of head 0")
class KeysOfHead0(LinearAttention):
    def compute(self, x: Arrays, system: System) -> Arrays:
        return super().compute(x | {"k": first_for_all(x["k"], 1)}, system)


@mistake("all heads take the values of head 0")
class ValuesOfHead0(LinearAttention):
    def compute(self, x: Arrays, system: System) -> Arrays:
        return super().compute(x | {"v": first_for_all(x["v"], 1)}, system)


@mistake("all batch rows take the keys of row 0")
class KeysOfRow0(LinearAttention):
    def compute(self, x: Arrays, system: System) -> Arrays:
        return super().compute(x | {"k": first_for_all(x["k"], 0)}, system)


@mistake("z is summed over the heads", Z_IN_STATE, needs=divides)
class ZOverHeads(LinearAttention):
    def write_z(self, *steps: Any) -> Array:
        return over_heads(super().write_z(*steps))

    def read_z(self, f: Array, K: Array, V: Array, S: Array, *steps: Any) -> Array:
        return super().read_z(f, over_heads(K), V, over_heads(S), *steps)


@mistake("the denominator is summed over the heads", Z_IN_STATE, needs=divides)
class DenominatorOverHeads(LinearAttention):
    def read_z(self, *steps: Any) -> Array:
        return over_heads(super().read_z(*steps))


def over_heads(x: Array) -> Array:
    """Each head gets the sum over all."""
    xp = system_of(x).xp
    return xp.broadcast_to(xp.sum(x, axis=1, keepdims=True), x.shape)


@mistake("tokens and heads are taken for each other", "fla#547", needs=lambda spec: not takes_state(spec))
class TokensForHeads(LinearAttention):
    def compute(self, x: Arrays, system: System) -> Arrays:
        B, _, n, m = x["v"].shape
        turned = {name: np.swapaxes(x[name], 1, 2) for name in "qkv"}
        r = self.features_of(x["k"].shape[3])
        nothing = {"S": np.zeros((B, n, r, m)), "z": np.zeros((B, n, r))}
        out = super().compute(x | turned | nothing, system)
        return out | {"o": system.xp.moveaxis(out["o"], 1, 2)}


@mistake("an axis of all heads' entries is read as (entry, head)", needs=lambda spec: "(HD)" in spec.axes)
class EntriesBeforeHeads(LinearAttention):
    def compute(self, x: Arrays, system: System) -> Arrays:
        def read(a: HostArray) -> HostArray:
            B, H, n, d = a.shape
            flat = np.moveaxis(a, 1, 2)
            return np.moveaxis(flat.reshape(B, n, d, H), 3, 1)

        out, xp = super().compute(x | {name: read(x[name]) for name in "qkv"}, system), system.xp
        B, H, n, m = x["q"].shape[:3] + x["v"].shape[3:]
        flat = xp.moveaxis(out["o"], 1, 3)
        return out | {"o": xp.moveaxis(xp.reshape(flat, (B, n, H, m)), 2, 1)}


@mistake("k and v are taken for each other")
class KeysForValues(LinearAttention):
    def compute(self, x: Arrays, system: System) -> Arrays:
        return super().compute(x | {"k": x["v"], "v": x["k"]}, system)


@mistake("q and k are taken for each other")
class QueriesForKeys(LinearAttention):
    def compute(self, x: Arrays, system: System) -> Arrays:
        return super().compute(x | {"q": x["k"], "k": x["q"]}, system)


# The normaliser


@mistake("the denominator counts later tokens, too", needs=divides)
class ZNotCausal(LinearAttention):
    def seen_by_z(self, n: int) -> HostArray:
        return np.ones((n, n))


@mistake("the denominator lacks the own token", needs=both(divides, reads_after))
class ZWithoutOwnToken(LinearAttention):
    def seen_by_z(self, n: int) -> HostArray:
        return np.tri(n, k=-1)


@mistake("the denominator lacks the first state", Z_IN_STATE, needs=both(divides, takes_state))
class ZReadsNoState(LinearAttention):
    def seen_of_z(self, n: int) -> HostArray:
        return np.zeros(n)


@mistake("it divides by |φ(q)·z|", needs=both(divides, lambda spec: spec.phi in ("identity", "silu")))
class AbsoluteDenominator(LinearAttention):
    def divided(self, num: Array, den: Array, system: System) -> Array:
        return super().divided(num, system.xp.maximum(den, -den), system)


@mistake("it divides by max(φ(q)·z, 1)", needs=divides)
class DenominatorAtLeast1(LinearAttention):
    def divided(self, num: Array, den: Array, system: System) -> Array:
        return super().divided(num, system.xp.maximum(den, system.xp.ones_like(den)), system)


@mistake("it divides by the number of tokens", needs=divides)
class DividesByCount(LinearAttention):
    def divided(self, num: Array, den: Array, system: System) -> Array:
        count = np.arange(1.0, den.shape[-2] + 1)[:, None]
        return num / system.convert(np.broadcast_to(count, den.shape).copy())


@mistake("z sums keys without φ", needs=both(divides, maps))
class ZWithoutMap(LinearAttention):
    def features(self, q: Array, k: Array, position: int, system: System) -> tuple[Array, Array, Array, Array]:
        fq, fk, gq, _ = super().features(q, k, position, system)
        return fq, fk, gq, k


# The scale


def with_scale(spec: LinearAttention, scale: float) -> LinearAttention:
    """The formula with another scale."""
    return replace(spec.mistaken(LinearAttention), scale=repr(scale))


@mistake("the scale is applied twice", needs=scales)
class ScaledTwice(LinearAttention):
    def factor(self, d: int) -> float:
        return float(super().factor(d)) ** 2


@mistake("the scale is 1/d", needs=lambda spec: spec.scale != "d" and not spec.scale_is_idle())
class ScaleOfWidth(LinearAttention):
    def factor(self, d: int) -> float:
        return 1 / d


@mistake("the scale is its inverse", needs=scales)
class ScaleInverted(LinearAttention):
    def factor(self, d: int) -> float:
        return 1 / float(super().factor(d))


@mistake("the scale is that of the width of v", needs=lambda spec: spec.scale == "d")
class ScaleOfValues(LinearAttention):
    def compute(self, x: Arrays, system: System) -> Arrays:
        return with_scale(self, x["v"].shape[3] ** -0.5).compute(x, system)


@mistake("the scale is that of the width of all heads", needs=lambda spec: spec.scale == "d")
class ScaleOfAllHeads(LinearAttention):
    def compute(self, x: Arrays, system: System) -> Arrays:
        _, heads, _, d = x["q"].shape
        return with_scale(self, (heads * d) ** -0.5).compute(x, system)


@mistake("only the numerator is scaled", needs=both(scales, divides, lambda spec: spec.scale_place == "scores"))
class OnlyNumeratorScaled(LinearAttention):
    def factor_of_den(self, d: int) -> float:
        return 1.0


@mistake("k is scaled as well as q", needs=both(scales, lambda spec: spec.scale_place == "q"))
class KeysScaled(LinearAttention):
    def features(self, q: Array, k: Array, position: int, system: System) -> tuple[Array, Array, Array, Array]:
        return super().features(q, k * number(system, self.factor(k.shape[-1])), position, system)


# The feature map


@mistake("φ is applied to q alone", needs=maps)
class MapOfQueriesAlone(LinearAttention):
    def features_k(self, k: Array) -> Array:
        return k


@mistake("φ is applied to k alone", needs=maps)
class MapOfKeysAlone(LinearAttention):
    def features_q(self, q: Array) -> Array:
        return q


@mistake("φ is applied twice", needs=maps)
class MapTwice(LinearAttention):
    def features_q(self, q: Array) -> Array:
        return super().features_q(super().features_q(q))

    def features_k(self, k: Array) -> Array:
        return super().features_k(super().features_k(k))


@mistake("φ is elu without + 1", needs=lambda spec: spec.phi == "elu+1")
class MapWithoutOne(LinearAttention):
    def features_q(self, q: Array) -> Array:
        return super().features_q(q) - 1

    def features_k(self, k: Array) -> Array:
        return super().features_k(k) - 1


@mistake("φ is applied to v, too", needs=maps)
class MapOfValues(LinearAttention):
    def values(self, v: Array, position: int, system: System) -> Array:
        return self.features_k(v)


# RoPE


@mistake("RoPE rotates q alone", needs=rotates)
class RotatesQueriesAlone(LinearAttention):
    def rotated_k(self, x: Array, first: int, system: System) -> Array:
        return x


@mistake("RoPE rotates k alone", needs=rotates)
class RotatesKeysAlone(LinearAttention):
    def rotated_q(self, x: Array, first: int, system: System) -> Array:
        return x


@mistake("RoPE rotates the other way", needs=rotates)
class RotatesBackwards(LinearAttention):
    def table(self, width: int, system: System) -> Table:
        right = super().table(width, system)
        return lambda positions: right([-p for p in positions])


@mistake("RoPE rotates v, too", needs=rotates)
class RotatesValues(LinearAttention):
    def values(self, v: Array, position: int, system: System) -> Array:
        return self.rotated_k(v, position, system)


@mistake(
    "RoPE rotates in the denominator, too",
    "",
    needs=both(rotates, divides, maps, lambda spec: spec.rope_place == "after"),
)
class RotatesDenominator(LinearAttention):
    def features(self, q: Array, k: Array, position: int, system: System) -> tuple[Array, Array, Array, Array]:
        fq, fk, _, _ = super().features(q, k, position, system)
        return fq, fk, fq, fk


@mistake("RoPE counts positions from 1", needs=both(rotates, returns_state))
class PositionsFrom1(LinearAttention):
    def positions(self, n: int, first: int) -> list[int]:
        return super().positions(n, first + 1)


@mistake(
    "RoPE ignores the position of the first token", needs=both(rotates, lambda spec: "position" in spec.calls.given)
)
class PositionIgnored(LinearAttention):
    def positions(self, n: int, first: int) -> list[int]:
        return super().positions(n, 0)


@mistake("RoPE begins again in each chunk of {}", "", CHUNKS, needs=rotates)
class PositionsPerChunk(LinearAttention):
    number: ClassVar[int]

    def positions(self, n: int, first: int) -> list[int]:
        return [first + i % self.number for i in range(n)]


@mistake("RoPE stops at position {}", "", (512, 1024, 2048, 4096), needs=rotates)
class PositionsClamped(LinearAttention):
    number: ClassVar[int]

    def positions(self, n: int, first: int) -> list[int]:
        return [min(p, self.number - 1) for p in super().positions(n, first)]


@mistake("RoPE begins again at position {}", "", (512, 1024, 2048, 4096), needs=rotates)
class PositionsWrapped(LinearAttention):
    number: ClassVar[int]

    def positions(self, n: int, first: int) -> list[int]:
        return [p % self.number for p in super().positions(n, first)]


@mistake("RoPE's positions are rounded to {}", PHASES, NARROW, needs=rotates)
class PositionsRounded(LinearAttention):
    number: ClassVar[str]

    def positions(self, n: int, first: int) -> list[int]:
        return [int(p) for p in round_to(super().positions(n, first), self.number)]


def table_of(system: System, angle: Callable[[HostArray], HostArray]) -> Table:
    """Positions -> cosines and sines of these angles of theirs."""

    def table(positions: Any) -> tuple[Array, Array]:
        angles = angle(np.asarray(positions, dtype=np.float64)[:, None])
        return system.convert(np.cos(angles)), system.convert(np.sin(angles))

    return table


@mistake("RoPE's angles are rounded to {}", PHASES, NARROW, needs=rotates)
class AnglesRounded(LinearAttention):
    number: ClassVar[str]

    def table(self, width: int, system: System) -> Table:
        theta = float(self.rope_base) ** (-2 * np.arange(width // 2) / width)
        return table_of(system, lambda p: round_to(p * theta, self.number))


@mistake("RoPE's exponent is i/d instead of 2i/d", needs=rotates)
class HalfExponent(LinearAttention):
    def frequencies(self, width: int) -> Frequencies:
        return [(Fraction(self.rope_base), Fraction(-i, width)) for i in range(width // 2)]


@mistake("RoPE's frequencies are in reverse order", needs=rotates)
class FrequenciesReversed(LinearAttention):
    def frequencies(self, width: int) -> Frequencies:
        return super().frequencies(width)[::-1]


@mistake("RoPE takes sines for cosines", needs=rotates)
class SinesForCosines(LinearAttention):
    def table(self, width: int, system: System) -> Table:
        right = super().table(width, system)
        return lambda positions: right(positions)[::-1]


@mistake("RoPE takes the number of the head for the position", needs=rotates)
class HeadForPosition(LinearAttention):
    def rotated(self, x: Array, positions: list[int], system: System) -> Array:
        turned = super().rotated(system.xp.moveaxis(x, 1, 2), list(range(x.shape[1])), system)
        return system.xp.moveaxis(turned, 2, 1)


# Precision


def nearest(system: System, x: Array, format: str) -> Array:
    """The nearest numbers of a format."""
    return rounded(x, format) if isinstance(system, RunningError) else system.convert(round_to(host(x), format))


def nearest_sum(system: System, S: Array, k: Array, v: Array, format: str) -> Array:
    """The nearest numbers of a format to S + k vᵀ, which are certain where that sum is exact."""
    sums = S + system.xp.matrix_transpose(k) @ v
    if not isinstance(system, RunningError):
        return nearest(system, sums, format)
    (S, off), (k, off_k), (v, off_v), (x, error) = (as_floats(a) for a in (S, k, v, sums))
    exact = (off == 0) & (S + np.swapaxes(k, -1, -2) @ v == x) & ~np.any(off_k) & ~np.any(off_v)
    near = round_to(x, format)
    apart = np.maximum(*(np.abs(round_to(x + side * error, format) - near) for side in (-1, 1)))
    return system.wrap((near, np.where(exact, 0.0, apart)))


def as_floats(x: Any) -> tuple[HostArray, HostArray]:
    """Numbers with a running error, and that error."""
    value, error = x.planes
    return np.asarray(value, dtype=np.float64), np.asarray(error, dtype=np.float64)


class TokenByToken(LinearAttention):
    """The formula, token by token, with a state that is kept in a narrow format."""

    number: ClassVar[str]

    def states(self, K: Array, V: Array, S: Array, system: System) -> list[Array]:
        """The state before each token, and after the last."""
        found = [nearest(system, S, self.number)]
        for t in range(K.shape[-2]):
            k, v = K[..., t : t + 1, :], V[..., t : t + 1, :]
            found.append(nearest_sum(system, found[-1], k, v, self.number))
        return found

    def read_narrow(self, f: Array, K: Array, V: Array, S: Array, *steps: Any) -> Array:
        system, n = steps[-1], f.shape[-2]
        states = self.states(K, V, S, system)
        states = states[1:] if self.reads == "after" else states[:-1]
        rows = [f[..., :0, :] @ S, *(f[..., t : t + 1, :] @ states[t] for t in range(n))]
        o: Array = system.xp.concat(rows, axis=-2)
        return o

    def write_narrow(self, K: Array, V: Array, S: Array, *steps: Any) -> Array:
        return self.states(K, V, S, steps[-1])[-1]


@mistake("the state is rounded to {} after every token", NARROW_STATE, NARROW)
class StateRounded(TokenByToken):
    def read(self, *steps: Any) -> Array:
        return self.read_narrow(*steps)

    def write(self, *steps: Any) -> Array:
        return self.write_narrow(*steps)


@mistake("z is rounded to {} after every token", "", NARROW, needs=divides)
class ZRounded(TokenByToken):
    def read_z(self, *steps: Any) -> Array:
        return self.read_narrow(*steps)

    def write_z(self, *steps: Any) -> Array:
        return self.write_narrow(*steps)


@mistake("S is rounded to {} after every token, z is not", "", NARROW, needs=divides)
class SRounded(StateRounded):
    def read_z(self, *steps: Any) -> Array:
        return LinearAttention.read(self, *steps)

    def write_z(self, *steps: Any) -> Array:
        return LinearAttention.write(self, *steps)


@mistake("q, k and v are rounded to {}", "", ("bfloat16", "float16", "tfloat32"))
class InputsRounded(LinearAttention):
    number: ClassVar[str]

    def compute(self, x: Arrays, system: System) -> Arrays:
        return super().compute(x | {name: round_to(x[name], self.number) for name in "qkv"}, system)


@mistake("the returned state is rounded to {}", "", NARROW, needs=returns_state)
class ReturnedStateRounded(LinearAttention):
    number: ClassVar[str]

    def compute(self, x: Arrays, system: System) -> Arrays:
        out = super().compute(x, system)
        return out | {name: nearest(system, out[name], self.number) for name in "Sz"}
