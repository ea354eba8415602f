"""Underflow in linearized attention: outputs of floats of which no digit is right.

A product below the smallest normal number loses digits, or all of them: in float16, 0.001³ is 0.
If a numerator or denominator is that small, the same sums are formed again, in float64 on the host,
scaled by powers of two. An output is lost if it is wrong by more than half, and by more than
rounding explains (refimpl/verify/bounds.py). A zero that is right is never lost: of v = 0, of
orthogonal q and k, of cancelling terms.

A column of a state S, z is lost if all its products underflow: whatever is read from it is 0.

Features are taken as they are, and a state as it is: what underflowed in them before is not seen.
Nor are float64 rows whose sums are 2⁹⁰⁰ times smaller than the largest keys and values allow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Any

import numpy as np

from ..arrays import Array, HostArray
from ..checks import is_true, locate
from ..errors import Underflow
from ..systems import system_of
from ..systems.array import host
from ..systems.floats import array_namespace, dtype_name, quiet
from ..systems.formats import FORMATS

LEAST = 2.0**-900  # scaled sums of magnitudes below this may have lost digits themselves
Sums = Callable[[Any, Any, Any, int], Iterator[tuple[Any, Any, Any, Any]]]


@lru_cache(typed=True)  # typed: dtypes of different libraries may not be compared
def smallest_normal(dtype: Any) -> float:
    """The smallest normal number of a dtype; 0 for numbers that are not judged here."""
    kind = dtype_name(dtype)
    return 2.0 ** (FORMATS[kind][1] - 1) if kind in FORMATS else 0.0


def any_below(limit: float, x: Any, y: Any) -> bool:
    """Is the magnitude of some entry below this limit?"""
    if isinstance(x, np.ndarray):
        least = np.minimum.reduce
        return bool(least(abs(x), None, initial=inf) < limit or least(abs(y), None, initial=inf) < limit)
    return any(is_true(array_namespace(a).any(abs(a) < limit)) for a in (x, y))


@dataclass(frozen=True, eq=False)
class Scaled:
    """A text in float64 on the host: queries are scaled row by row, keys and values as a whole.

    k, v : exponents e of the factor 2^−e      magnitudes : replace every number by its magnitude
    """

    text: Any
    k: int
    v: int
    block: int
    magnitudes: bool = False

    @property
    def n(self) -> int:
        return int(self.text.n)

    def __getitem__(self, tokens: slice) -> tuple[HostArray, ...]:
        fq, fk, gq, gk, v = self.text[tokens]
        Q, K, V = self.wide(fq), self.wide(fk, self.k), self.wide(v, self.v)
        G, H = Q if gq is fq else self.wide(gq), K if gk is fk else self.wide(gk, self.k)
        e = row_exponents(Q, G)
        Q_e = np.ldexp(Q, -e)
        return Q_e, K, Q_e if G is Q else np.ldexp(G, -e), H, V

    def wide(self, x: Array, exponent: int = 0) -> HostArray:
        y = np.ldexp(host(x).astype(np.float64), -exponent)
        return np.abs(y) if self.magnitudes else y


def row_exponents(*arrays: HostArray) -> HostArray:
    """(..., n, 1): the exponent of the largest entry of each row, in all these arrays."""
    largest = np.max([np.max(np.abs(x), axis=-1, keepdims=True) for x in arrays], axis=0)
    return np.asarray(np.frexp(largest)[1])


class Judge:
    """Refuses outputs of one call of attention that are lost to underflow.

    text, S, z, P : what the formula of attention was given
    sums : the formula by which the sums are formed again, `block` tokens at a time
    """

    def __init__(self, text: Any, S: Array, z: Array, P: int, sums: Sums, block: int) -> None:
        self.text, self.S, self.z, self.P, self.sums, self.block = text, S, z, P, sums, block
        self.system, (bits, low, _) = system_of(S), FORMATS[dtype_name(S.dtype)]
        self.normal, self.eta, self.u = 2.0 ** (low - 1), 2.0 ** (low - bits), 2.0**-bits
        self.reference: tuple[HostArray, ...] | None = None

    @quiet()
    def check(self, num: Array, den: Array, start: int, keep: Any) -> None:
        """Refuse the output num/den, of tokens from `start` on, if part of it is lost."""
        if self.reference is None:
            self.reference = self.form_again()
        if not self.reference:
            return
        rows = slice(start, start + num.shape[-2])
        e, exact, exact_den, A, A_den = (x[..., rows, :] for x in self.reference)
        counts = True if keep is None else host(keep)
        # what was computed, scaled alike; num, den may lack axes of the reference
        got, got_den = (host(x).astype(np.float64) for x in (num, den))
        small = ((np.abs(got) < self.normal) | (np.abs(got_den) < self.normal)) & counts
        K = self.text.n + self.S.shape[-2] + 2
        g = min(K * self.u / max(1 - K * self.u, 0.5), 1 / 8)
        if self.text.kernel.normalise:
            zero = (got_den == 0) & (np.abs(exact_den) > g * A_den) & (A_den > LEAST) & counts
            self.refuse(zero[..., 0], ("token",), start, "the denominator φ(q)·z underflows")
            scale: Any = self.v
            o, right, share = got / got_den, exact / exact_den, A_den / np.abs(exact_den)
            o = np.ldexp(o, -scale)
            bound = (g * (A / np.abs(exact_den) + np.abs(right) * share) + self.u * np.abs(right)) / (1 - g * share)
            known = (bound >= 0) & (g * share < 1) & (A_den > LEAST) & (got_den != 0)
        else:
            scale = e + self.k + self.v
            o, right, bound, known = np.ldexp(got, -scale), exact, g * A, True
        wrong = np.abs(o - right)
        lost = small & known & (A > LEAST) & (wrong > np.abs(right) / 2 + np.ldexp(self.eta, -scale)) & (wrong > bound)
        self.refuse(lost, ("token", "column"), start, "the output underflows")

    def form_again(self) -> tuple[HostArray, ...]:
        """Exponents of queries, num, den, both of magnitudes; () if no product can underflow."""
        blocks = [(a, min(a + self.block, self.text.n)) for a in range(0, self.text.n, self.block)]
        ranges = [[range_of(x) for x in self.text[a:b]] for a, b in blocks]
        ranges.append([(inf, 0.0)] * 5)  # of no tokens
        fq, fk, gq, gk, v = ((min(r[i][0] for r in ranges), max(r[i][1] for r in ranges)) for i in range(5))
        q, k, S, z = min(fq[0], gq[0]), min(fk[0], gk[0]), range_of(self.S), range_of(self.z)
        if min(q * k, k * v[0], q * k * v[0], q * S[0], q * z[0]) >= self.normal:
            return ()
        self.k = exponent(max(fk[1], gk[1], z[1]))
        self.v = max([exponent(x) - e for x, e in ((v[1], 0), (S[1], self.k)) if x], default=0)
        first = host(self.S).astype(np.float64), host(self.z).astype(np.float64)
        found = []
        for magnitudes in (False, True):
            text = Scaled(self.text, self.k, self.v, self.block, magnitudes)
            state = np.ldexp(first[0], -self.k - self.v), np.ldexp(first[1], -self.k)
            S_, z_ = (np.abs(x) if magnitudes else x for x in state)
            pieces = list(self.sums(text, S_, z_, self.P))
            found += [np.concatenate([p[i] for p in pieces], axis=-2) for i in (0, 1)]
        wide = Scaled(self.text, 0, 0, self.block).wide
        e = [row_exponents(wide(x[0]), wide(x[2])) for x in (self.text[a:b] for a, b in blocks)]
        return np.concatenate(e, axis=-2), *found

    def refuse(self, lost: HostArray, axes: tuple[str, ...], start: int, what: str) -> None:
        if lost.any():
            where, advice = locate(lost, axes, start), "scale `q`, `k` or `v` up, or use a wider dtype"
            raise Underflow(f"{self.text.who}: {what} {self.system.name} at {where}; {advice}")


ADVICE = "scale `k` or `v` up, or use a wider dtype"


def check_columns(who: str, before: Array, S: Array, pieces: Callable[[], Iterator[tuple[Array, Array]]]) -> None:
    """Refuse S = before + Σ φ(k) vᵀ if a column of it is 0 by underflow.

    pieces : makes φ(k) and v of the text, some tokens at a time
    """
    xp = array_namespace(S)
    if not is_true(xp.any(S[..., :1, :] == 0)):  # the first row tells most states apart, and costs little
        return
    empty = ~xp.any((S != 0) | (before != 0), axis=-2)
    if not is_true(xp.any(empty)):
        return
    every = [(host(K).astype(np.float64), host(V).astype(np.float64)) for K, V in pieces()]
    if not every:
        return
    k, v = (max((exponent(range_of(x[i])[1]) for x in every), default=0) for i in (0, 1))
    scaled = [(np.swapaxes(np.ldexp(K, -k), -1, -2), np.ldexp(V, -v)) for K, V in every]
    exact, A = (sum(f(K) @ f(V) for K, V in scaled) for f in (np.asarray, np.abs))
    known = (np.abs(exact) > 2.0**-50 * sum(V.shape[-2] for _, V in every) * A) & (A > LEAST)
    lost = host(empty) & np.any(known & (np.ldexp(A, k + v) < smallest_normal(S.dtype)), axis=-2)
    refuse_lost(who, "S", lost, ("column",), system_of(S).name)


def check_scaled(who: str, state: Any, scaled: Any) -> None:
    """Refuse a state that was scaled, if a column of S, or z, that had numbers has none left."""
    for name, axes in (("S", ("column",)), ("z", ())):
        x, y = getattr(state, name), getattr(scaled, name)
        if smallest_normal(x.dtype):
            xp, axis = array_namespace(x), -2 if axes else -1
            lost = xp.any(x != 0, axis=axis) & ~xp.any(y != 0, axis=axis)
            refuse_lost(who, name, host(lost), axes, system_of(x).name)


def refuse_lost(who: str, name: str, lost: HostArray, axes: tuple[str, ...], system: str) -> None:
    if lost.any():
        where = locate(lost, axes) if axes else "all features"
        raise Underflow(f"{who}: `{name}` underflows {system} at {where}; {ADVICE}")


def range_of(x: Array) -> tuple[float, float]:
    """The smallest magnitude that is not 0, or inf, and the largest."""
    y = np.abs(host(x).astype(np.float64))
    return float(np.min(y, where=y > 0, initial=inf)), float(np.max(y, initial=0.0))


def exponent(x: float) -> int:
    return int(np.frexp(x)[1])
