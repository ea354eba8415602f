"""Exact probes: inputs on which all correct kernels agree by `==`, in any dtype and any order.

Keys are one-hot or zero, queries and values are small integers, partial sums are at most 2^p for p
significant bits, denominators are powers of two, and rotations are by multiples of 90°. So no
operation rounds, on any device, and a difference is a fault of structure and not of rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..attention.feature_maps import Kernel
from ..attention.linear_attention import State
from ..attention.rope import Rope, power_table
from ..checks import check_flag, check_integer, prefix_length
from ..errors import brief
from ..systems import QQ, Float, Rounded, System
from .bounds import finite_fractions, unit_roundoff


@dataclass(frozen=True, eq=False)
class Probe:
    """Arguments of linear_attention in one system, and the exact output and state over ℚ.

    These are computed by integers, and not by any form of linear_attention.
    """

    q: Any
    k: Any
    v: Any
    options: dict[str, Any]
    expected: Any
    expected_state: State

    def mismatch(self, o: Any, state: State | None = None) -> str | None:
        """A sentence on the first difference of output (and state); None if all are equal."""
        pairs = [("o", o, self.expected)]
        if state is not None:
            pairs += [("S", state.S, self.expected_state.S), ("z", state.z, self.expected_state.z)]
        for name, got, want in pairs:
            if got is None:
                return f"{name} is missing"
            if tuple(got.shape) != want.shape:
                return f"{name} has shape {tuple(got.shape)} instead of {want.shape}"
            if name == "o" and got.dtype != self.q.dtype:
                return f"{name} has dtype {got.dtype} instead of {self.q.dtype}"
            found, not_finite = finite_fractions(got)
            bad = (found != want.planes[0]) | not_finite
            if bad.any():
                at = tuple(int(i) for i in np.argwhere(bad)[0])
                entry = "nan or inf" if not_finite[at] else found[at]
                return f"{name}{list(at)} is {entry} instead of {want.planes[0][at]}"
        if state is not None and state.position != self.expected_state.position:
            return f"position is {state.position} instead of {self.expected_state.position}"
        return None


def exact_probe(
    system: System,
    *,
    n: int,
    r: int,
    m: int,
    heads: int = 2,
    seed: int = 0,
    mask: str | int = "causal",
    normalise: bool = True,
    layout: str | None = None,
    start: bool = True,
) -> Probe:
    """A probe for φ = identity (or relu, without rope).

    system          a Float of any library and dtype, or a Rounded format
    n, r, m, heads  the shape; r ≥ 1
    layout          of a RoPE after φ by multiples of 90°; None for no RoPE
    start           begin from a non-zero state, at position 3

    >>> probe = exact_probe(Float("numpy", "float16"), n=5, r=3, m=2, start=False)
    >>> weights = np.tril(probe.q @ probe.k.swapaxes(-1, -2))
    >>> total = weights.sum(-1, keepdims=True)
    >>> probe.mismatch(weights @ probe.v / total)
    >>> probe.mismatch(weights @ probe.v / (total + np.float16(1e-2))).split(" is ")[0]
    'o[0, 0, 0]'
    """
    if not isinstance(system, Float | Rounded):
        raise TypeError(f"exact_probe: `system` must be a Float or Rounded system, got {brief(system)}")
    for name, x in (("n", n), ("r", r), ("m", m), ("heads", heads)):
        check_integer("exact_probe", name, x, most=2**20)
    check_integer("exact_probe", "seed", seed, least=0)
    check_flag("exact_probe", "start", start)
    if r < 1 or min(n, m, heads) < 0:
        raise ValueError(f"exact_probe: need r ≥ 1 and n, m, heads ≥ 0, got r={r}, n={n}, m={m}, heads={heads}")
    limit = int(1 / unit_roundoff(system.format if isinstance(system, Rounded) else system.dtype))
    rng = np.random.default_rng(seed)

    # Feature 0 is written once, by the state or by token 0, so that z_0 = 1: the query of feature 0
    # fills each denominator up to a power of two. The others are written a few times each, at
    # random tokens of the text and at the last one.
    S, z = np.zeros((heads, r, m), dtype=np.int64), np.zeros((heads, r), dtype=np.int64)
    if start:
        S, z = rng.integers(-1, 2, S.shape), rng.integers(0, 2, z.shape)
        z[:, 0] = 1
    q, k = np.zeros((2, heads, n, r), dtype=np.int64)
    v = rng.choice([-1, 1], (heads, n, m))
    if n and not start:
        k[:, 0, 0] = 1
    P, free = prefix_length("exact_probe", mask, n), np.arange(0 if start else 1, n)
    for h in range(heads):
        count = min(len(free), (r - 1) * (limit // 32) if r > 1 else 4)
        written = np.union1d(rng.choice(free, max(count - 1, 0), replace=False), free[-1:])
        if r > 1:
            k[h, written, rng.permutation(np.arange(len(written)) % (r - 1) + 1)] = 1
        else:  # the only feature is written as 1, 2, 4, 8, which doubles its sum
            k[h, written, 0] = 2 ** np.arange(len(written))
        for t in range(n):
            z_t = z[h] + k[h, : max(t + 1, P)].sum(axis=0)
            q[h, t, [k[h, t].argmax(), rng.integers(1, max(r, 2)) % r]] = 1  # the one that t wrote, and one more
            q[h, t, 0] = 0
            mass = int(q[h, t] @ z_t)
            q[h, t, 0] = (1 << mass.bit_length()) - mass if r > 1 else 1

    turn = 1 + np.arange(r // 2) % 3  # multiples of 90° per position: 1, 2 or 3, never 360°
    cos, sin = np.array([1, 0, -1, 0])[turn], np.array([0, 1, 0, -1])[turn]
    rope = None if layout is None else Rope(power_table(system.convert(cos), system.convert(sin)), layout)
    options: dict[str, Any] = {"mask": mask, "kernel": Kernel(rope=rope, normalise=normalise)}
    if start:
        options["state"] = State(system.convert(S), system.convert(z), 3)
    quarter = (turn if layout is not None else 0 * turn) * np.arange(3 * start, 3 * start + n)[:, None]
    fq, fk = (quarter_turns(x, quarter, layout) for x in (q, k))
    seen = np.arange(n)[None, :] < np.maximum(np.arange(1, n + 1), P)[:, None]
    num = ((fq @ fk.swapaxes(-1, -2)) * seen) @ v + fq @ S
    den = ((q @ k.swapaxes(-1, -2)) * seen).sum(axis=-1, keepdims=True) + q @ z[..., None]
    after = State(QQ.convert(S + fk.swapaxes(-1, -2) @ v), QQ.convert(z + k.sum(axis=-2)), 3 * start + n)
    expected = QQ.convert(num) / QQ.convert(den) if normalise else QQ.convert(num)
    return Probe(system.convert(q), system.convert(k), system.convert(v), options, expected, after)


def quarter_turns(x: np.ndarray, quarter: np.ndarray, layout: str | None) -> np.ndarray:
    """Pairs of features of x (..., n, r), turned by so many times 90°, (n, r // 2): in integers."""
    h, turned = quarter.shape[-1], x.copy()
    first, second = (np.arange(h), np.arange(h) + h) if layout != "interleaved" else 2 * np.arange(h) + [[0], [1]]
    a, b = x[..., first], x[..., second]
    turned[..., first] = np.choose(quarter % 4, [a, -b, -a, b])
    turned[..., second] = np.choose(quarter % 4, [b, a, -b, -a])
    return turned
