"""Exact probes: inputs on which every correct kernel must agree with `==`, in any dtype, summation order and device.

Keys are one-hot or zero, queries and values small integers, partial sums at most 2^p for p significant bits, denominators
powers of two, rotations quarter turns. No operation rounds, so what differs is a fault of structure, not of rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..linear_attention import linear_attention
from ..rope import Rope, power_table
from ..state import State
from ..systems import QQ, Float, Rounded, System, fractions
from .bounds import unit_roundoff


@dataclass(frozen=True, eq=False)
class Probe:
    """Arguments of linear_attention in the numbers of one system, and what must come out, over ℚ."""

    q: Any
    k: Any
    v: Any
    options: dict[str, Any]
    expected: Any
    expected_state: State

    def mismatch(self, o: Any, state: State | None = None) -> str | None:
        """Where an output (and a final state) differs, in words; None if every entry is equal."""
        pairs = [("o", o, self.expected)]
        if state is not None:
            pairs += [("S", state.S, self.expected_state.S), ("z", state.z, self.expected_state.z)]
        for name, got, want in pairs:
            if tuple(got.shape) != want.shape:
                return f"{name} has shape {tuple(got.shape)} instead of {want.shape}"
            bad = fractions(got, "mismatch") != want.planes[0]
            if bad.any():
                at = tuple(int(i) for i in np.argwhere(bad)[0])
                return f"{name}{list(at)} is {fractions(got, 'mismatch')[at]} instead of {want.planes[0][at]}"
        return None


def exact_probe(
    system: System, *, n: int, r: int, m: int, heads: int = 2, seed: int = 0, mask: str | int = "causal", normalise: bool = True,
    layout: str | None = None, start: bool = True,
) -> Probe:  # fmt: skip
    """A probe for φ = identity (or relu, without rope).

    system : a Float of any library and dtype, or a Rounded format      n, r, m, heads : shape, r ≥ 1
    layout : of a RoPE after φ by quarter turns, None for no rope       start : begin from a non-zero state at position 3
    """
    if not isinstance(system, Float | Rounded):
        raise TypeError(f"exact_probe: `system` must be a Float or Rounded system, got {system!r}")
    if r < 1 or min(n, m, heads) < 0:
        raise ValueError(f"exact_probe: need r ≥ 1 and n, m, heads ≥ 0, got r={r}, n={n}, m={m}, heads={heads}")
    limit = int(1 / unit_roundoff(system.format if isinstance(system, Rounded) else system.dtype))
    rng = np.random.default_rng(seed)

    # Feature 0 is written once, by the state or by token 0, so that z_0 = 1: it fills each denominator up to a power of two.
    k = np.zeros((heads, n, r), dtype=np.int64)
    hot = rng.integers(1, max(r, 2), (heads, n)) % r
    for h in range(heads):
        for s in range(n):
            if hot[h, s] and k[h, :, hot[h, s]].sum() < limit // 32:
                k[h, s, hot[h, s]] = 1
    S, z = np.zeros((heads, r, m), dtype=np.int64), np.zeros((heads, r), dtype=np.int64)
    if start:
        S, z = rng.integers(-1, 2, S.shape), rng.integers(0, 2, z.shape)
        z[:, 0] = 1
    elif n:
        k[:, 0] = np.eye(r, dtype=np.int64)[0]
    v = rng.integers(-1, 2, (heads, n, m))
    P = n if mask == "full" else 0 if mask == "causal" else int(mask)
    q = np.zeros_like(k)
    for t in range(n):
        z_t = z + k[:, : max(t + 1, P)].sum(axis=1)
        for h in range(heads):
            q[h, t, rng.integers(1, max(r, 2), 2) % r] = 1
            q[h, t, 0] = 0
            mass = int(q[h, t] @ z_t[h])
            q[h, t, 0] = (1 << mass.bit_length()) - mass

    def options(numbers: System) -> dict[str, Any]:
        chosen: dict[str, Any] = {"mask": mask, "normalise": normalise}
        if start:
            chosen["state"] = State(numbers.convert(S), numbers.convert(z), 3)
        if layout is not None:
            chosen["rope"] = Rope(power_table(numbers.convert(cos), numbers.convert(sin)), layout)
        return chosen

    turn = 1 + np.arange(r // 2) % 3  # quarter turns per position: 1, 2, 3, none of them a whole turn
    cos, sin = np.array([1, 0, -1, 0])[turn], np.array([0, 1, 0, -1])[turn]
    expected, after = linear_attention(*(QQ.convert(x) for x in (q, k, v)), **options(QQ))
    return Probe(system.convert(q), system.convert(k), system.convert(v), options(system), expected, after)
