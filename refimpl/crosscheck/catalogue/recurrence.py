"""Mistakes of recurrences: each class has one step of the formula wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ...arrays import Array, HostArray
from ...systems import RunningError, System
from ...systems.formats import round_to
from ..families.recurrence import Recurrence, Token, number, pair
from ..mistakes import mistake
from ..spec import Arrays

CHUNKS = (16, 32, 64, 128)


def shifted(x: HostArray, by: int, first: float) -> HostArray:
    """An array of tokens, each with the numbers of the one before it, or after it."""
    moved = np.roll(x, by, axis=2)
    moved[:, :, slice(0, 1) if by > 0 else slice(-1, None)] = first
    return moved


# Decays


class OtherDecays(Recurrence):
    """A recurrence whose decays are other ones."""

    def tokens(self, x: Arrays, k: HostArray, w: HostArray) -> Token:
        y = super().tokens(x, k, w)
        return y._replace(w=self.other_decays(y.w))

    def other_decays(self, w: HostArray) -> HostArray:
        """w, (batch, heads, tokens, keys, values)"""
        return w


@mistake("the decay falls on what the token itself writes, too")
class DecayedAfterWrite(Recurrence):
    def decayed(self, S: HostArray, y: Token) -> HostArray:
        return S

    def written(self, S: HostArray, D: HostArray, y: Token) -> HostArray:
        return np.asarray(y.w * super().written(S, D, y))


@mistake("the decay is that of the token before")
class DecayOfTokenBefore(OtherDecays):
    def other_decays(self, w: HostArray) -> HostArray:
        return shifted(w, 1, 1.0)


@mistake("the decay is that of the next token")
class DecayOfNextToken(OtherDecays):
    def other_decays(self, w: HostArray) -> HostArray:
        return shifted(w, -1, 1.0)


@mistake("the decay of the first token is that of all")
class DecayOfFirstToken(OtherDecays):
    def other_decays(self, w: HostArray) -> HostArray:
        return np.broadcast_to(w[:, :, :1], w.shape)


@mistake("the decay is applied twice")
class DecayedTwice(OtherDecays):
    def other_decays(self, w: HostArray) -> HostArray:
        return w * w


@mistake("the decays of keys fall on values, or the reverse", "fla#776, #905: K×V taken for V×K")
class DecayOnOtherAxis(OtherDecays):
    def other_decays(self, w: HostArray) -> HostArray:
        return w.swapaxes(-1, -2) if w.size else w


@mistake("the decay of the first entry is that of all entries")
class DecayOfFirstEntry(OtherDecays):
    def other_decays(self, w: HostArray) -> HostArray:
        return w[..., :1, :1]


@mistake("the decay of head 0 is that of all heads")
class DecayOfFirstHead(OtherDecays):
    def other_decays(self, w: HostArray) -> HostArray:
        return w[:, :1]


@mistake("the decay of batch row 0 is that of all rows")
class DecayOfFirstRow(OtherDecays):
    def other_decays(self, w: HostArray) -> HostArray:
        return w[:1]


@mistake("the heads have each other's decays, in reverse order", "slopes of heads, counted from the wrong end")
class DecaysOfHeadsReversed(OtherDecays):
    def other_decays(self, w: HostArray) -> HostArray:
        return w[:, ::-1]


@mistake("the first token does not decay the first state")
class FirstTokenDoesNotDecay(OtherDecays):
    def other_decays(self, w: HostArray) -> HostArray:
        return np.concatenate([np.ones_like(w[:, :, :1]), w[:, :, 1:]], axis=2)


@mistake("the first token of each chunk of {} does not decay the state", "sums of logarithms without the token", CHUNKS)
class ChunkBeginsUndecayed(OtherDecays):
    number: ClassVar[int]

    def other_decays(self, w: HostArray) -> HostArray:
        begins = np.arange(w.shape[2]) % self.number == 0
        return np.where(begins[:, None, None], 1.0, w)


@mistake("the last decay of a chunk of {} falls on the state twice", "", CHUNKS)
class ChunkEndsDecayedTwice(OtherDecays):
    number: ClassVar[int]

    def other_decays(self, w: HostArray) -> HostArray:
        begins = np.arange(w.shape[2]) % self.number == 0
        return np.asarray(w * np.where(begins[:, None, None], shifted(w, 1, 1.0), 1.0))


@mistake("the sum of the logarithms of decays in a chunk of {} is clamped at -20", "", CHUNKS)
class ClampedDecay(OtherDecays):
    number: ClassVar[int]

    def other_decays(self, w: HostArray) -> HostArray:
        with np.errstate(divide="ignore"):
            logs = np.log(w)
        for first in range(0, w.shape[2], self.number):
            part = logs[:, :, first : first + self.number]
            sums = np.maximum(np.cumsum(part, axis=2), -20.0)
            part[:] = np.diff(sums, axis=2, prepend=0.0)
        return np.exp(logs)


@mistake("the sum of the logarithms of all decays is clamped at -20")
class ClampedDecayOfText(ClampedDecay):
    number: ClassVar[int] = 2**30


@mistake("the logarithm of a decay is clamped at {}", "fla: a lower bound of the gates of KDA", (-1, -5, -10, -20))
class ClampedGate(OtherDecays):
    number: ClassVar[int]

    def other_decays(self, w: HostArray) -> HostArray:
        return np.maximum(w, np.exp(self.number))


@mistake("a decay is rounded to bfloat16", "fla: gates in the dtype of the activations")
class DecayInBfloat16(Recurrence):
    def decay_of(self, g: Array, x: Arrays, system: System) -> Array:
        return rounded(super().decay_of(g, x, system), "bfloat16", system)


@mistake("g is rounded to bfloat16", "fla: gates in the dtype of the activations")
class GateInBfloat16(Recurrence):
    def gates(self, g: HostArray) -> HostArray:
        return round_to(g, "bfloat16")


@mistake("the decay is 2^g, not e^g", "kernels that work with base 2 inside")
class DecayInBaseTwo(Recurrence):
    def decay_of(self, g: Array, x: Arrays, system: System) -> Array:
        base = 1.0 if self.gate in ("factor", "retnet") else float(np.log(2))
        return super().decay_of(g * number(system, base), x, system)


def rounded(w: Array, dtype: str, system: System) -> Array:
    """Numbers rounded to a dtype; off by where their errors may lead."""
    value, error = pair(w)
    near = round_to(value, dtype)
    if not isinstance(system, RunningError):
        return system.convert(near)
    off = np.maximum(np.abs(round_to(value + error, dtype) - near), np.abs(round_to(value - error, dtype) - near))
    return system.wrap((near, off))


# What is written


@mistake("β is doubled")
class BetaDoubled(Recurrence):
    def rates(self, x: Arrays) -> HostArray:
        return super().rates(x) * (2.0 if self.beta != "none" else 1.0)


@mistake("β is squared", "β folded into k and into v")
class BetaSquared(Recurrence):
    def rates(self, x: Arrays) -> HostArray:
        return np.asarray(super().rates(x) ** 2)


@mistake("β is that of the token before")
class BetaOfTokenBefore(Recurrence):
    def rates(self, x: Arrays) -> HostArray:
        return shifted(super().rates(x), 1, 0.0)


@mistake("β of head 0 is that of all heads")
class BetaOfFirstHead(Recurrence):
    def rates(self, x: Arrays) -> HostArray:
        return super().rates(x)[:, :1]


@mistake("β of batch row 0 is that of all rows")
class BetaOfFirstRow(Recurrence):
    def rates(self, x: Arrays) -> HostArray:
        return super().rates(x)[:1]


@mistake("β is the factor of what is erased alone")
class BetaErasesOnly(Recurrence):
    def correction(self, R: HostArray, y: Token) -> HostArray:
        return np.asarray(y.v - y.beta * (y.k.swapaxes(-1, -2) @ R))


@mistake("the delta rule erases what the token itself has written")
class ErasesAfterWrite(Recurrence):
    def correction(self, R: HostArray, y: Token) -> HostArray:
        return super().correction(R + self.addition(y), y)


@mistake("the delta rule adds what it should subtract")
class ErasesWithOtherSign(Recurrence):
    def correction(self, R: HostArray, y: Token) -> HostArray:
        return super().correction(-R, y)


@mistake("what is written is multiplied by one minus the decay", "HGRN's (1 − f), which callers have in k")
class WrittenTimesRest(Recurrence):
    def addition(self, y: Token) -> HostArray:
        return np.asarray((1 - y.w) * super().addition(y))


@mistake("a and b are exchanged")
class RankExchanged(Recurrence):
    def tokens(self, x: Arrays, k: HostArray, w: HostArray) -> Token:
        y = super().tokens(x, k, w)
        return y._replace(a=y.b.swapaxes(-1, -2), b=y.a.swapaxes(-1, -2))


@mistake("b aᵀ has the other sign")
class RankNegated(Recurrence):
    def tokens(self, x: Arrays, k: HostArray, w: HostArray) -> Token:
        y = super().tokens(x, k, w)
        return y._replace(b=-y.b)


@mistake("the state counts a token u times")
class BonusInsteadOfWrite(Recurrence):
    def addition(self, y: Token) -> HostArray:
        return np.asarray(super().addition(y) * (y.u if self.bonus else 1.0))


@mistake("the state counts a token 1 + u times")
class BonusWritten(Recurrence):
    def addition(self, y: Token) -> HostArray:
        return np.asarray(super().addition(y) * (1 + y.u))


# The state


@mistake("the state is lost between chunks of {}", "fla#285, #494: prefill and decode differ", CHUNKS)
class LostBetweenChunks(Recurrence):
    number: ClassVar[int]

    def entering(self, S: HostArray, y: Token) -> HostArray:
        return S if y.t % self.number or not y.t else np.zeros_like(S)


@mistake("the first state is ignored")
class NoFirstState(Recurrence):
    def first_state(self, S: HostArray) -> HostArray:
        return np.zeros_like(S)


@mistake("the first state of batch row 0 is that of all rows")
class FirstStateOfFirstRow(Recurrence):
    def first_state(self, S: HostArray) -> HostArray:
        return np.broadcast_to(S[:1], S.shape)


@mistake("the first state of head 0 is that of all heads")
class FirstStateOfFirstHead(Recurrence):
    def first_state(self, S: HostArray) -> HostArray:
        return np.broadcast_to(S[:, :1], S.shape)


def transposed(S: HostArray) -> HostArray:
    if S.shape[-1] != S.shape[-2]:
        raise ValueError("a state of this shape cannot be taken for its transpose")
    return S.swapaxes(-1, -2)


@mistake("the state is transposed, given and returned", "fla#776, #864, sglang#20283: K×V and V×K")
class Transposed(Recurrence):
    def compute(self, x: Arrays, system: System) -> Arrays:
        if not x["v"].shape[2]:
            return super().compute(x, system)
        found = super().compute(x | {"S": transposed(x["S"])}, system)
        return found | {"S": system.xp.matrix_transpose(found["S"])}


@mistake("the first state is taken for its transpose", "fla#776, #864, sglang#20283: K×V and V×K")
class FirstTransposed(Recurrence):
    def first_state(self, S: HostArray) -> HostArray:
        return transposed(S)


@mistake("the state is returned transposed", "fla#776, #864, sglang#20283: K×V and V×K")
class LastTransposed(Recurrence):
    def last_state(self, states: Sequence[HostArray]) -> HostArray:
        return transposed(super().last_state(states))


@mistake("the state that is returned lacks the last token")
class LastTokenNotWritten(Recurrence):
    def last_state(self, states: Sequence[HostArray]) -> HostArray:
        return states[max(len(states) - 2, 0)]


@mistake("the state that is returned is the first one")
class FirstStateReturned(Recurrence):
    def last_state(self, states: Sequence[HostArray]) -> HostArray:
        return states[0]


@mistake("the state that is returned lacks the tokens after the last whole chunk of {}", "fla#1140", CHUNKS)
class TailNotWritten(Recurrence):
    number: ClassVar[int]

    def last_state(self, states: Sequence[HostArray]) -> HostArray:
        n = len(states) - 1
        return states[n - n % self.number]


@mistake("the state is rounded to bfloat16 at each token", "vllm#13466, mlx-lm#988")
class StateInBfloat16(Recurrence):
    def stored(self, S: HostArray) -> HostArray:
        return round_to(S, "bfloat16")


@mistake("the first state is rounded to bfloat16", "vllm#13466: caches in the dtype of the activations")
class FirstStateInBfloat16(Recurrence):
    def first_state(self, S: HostArray) -> HostArray:
        return round_to(S, "bfloat16")


@mistake(
    "the state that is returned has been rounded to bfloat16", "vllm#13466: caches in the dtype of the activations"
)
class LastStateInBfloat16(Recurrence):
    def last_state(self, states: Sequence[HostArray]) -> HostArray:
        return round_to(super().last_state(states), "bfloat16")


@mistake("the state is rounded to float16 at each token", "TensorRT-LLM#14600")
class StateInFloat16(Recurrence):
    def stored(self, S: HostArray) -> HostArray:
        return round_to(S, "float16")


# Queries and keys


@mistake("the scale is applied twice")
class ScaledTwice(Recurrence):
    def factor(self, d: int) -> float:
        return super().factor(d) ** 2


@mistake("keys are scaled, too")
class KeysScaled(Recurrence):
    def keys(self, x: Arrays, system: System) -> Array:
        return super().keys(x, system) * number(system, self.factor(x["k"].shape[-1]))


@mistake("only q is normalised")
class KeysNotNormalised(Recurrence):
    def normalised_k(self, x: Array, system: System) -> Array:
        return x


@mistake("only k is normalised")
class QueriesNotNormalised(Recurrence):
    def normalised_q(self, x: Array, system: System) -> Array:
        return x


@mistake("the norm is the root of a mean, not of a sum", "RMS norm")
class RootOfMean(Recurrence):
    def normalised(self, x: Array, system: System) -> Array:
        if self.l2norm == "none":
            return x
        d = number(system, float(x.shape[-1]))
        squares = system.xp.sum(x * x, axis=-1, keepdims=True) / d
        return x / system.xp.sqrt(squares + number(system, self.l2norm_eps))


@mistake("every head takes the first group")
class FirstGroup(Recurrence):
    def head_of_few(self, heads: int, groups: int) -> HostArray:
        return np.zeros(heads, dtype=int)
