"""Problems for the attention forms. Hypothesis chooses shapes and options; values are uniform draws
of the number system.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st

import refimpl as ri

SEEDS = st.integers(0, 10**6)
FLINT = importlib.util.find_spec("flint") is not None
MAKERS = ["iv", pytest.param("arb", marks=pytest.mark.skipif(not FLINT, reason="python-flint is not installed"))]


@dataclass(frozen=True)
class Problem:
    """The shape of one attention problem. `build` fills it with numbers of any system."""

    lead_q: tuple[int, ...]
    lead_k: tuple[int, ...]
    n: int
    d: int
    m: int
    mask: str | int
    normalise: bool
    start: bool
    position: int
    rope: tuple[str, str, int] | None  # layout, placement, features turned
    seed: int
    chunk: int

    def table(self, system: Any, width: int) -> Any:
        if "real" in system.can:
            return ri.angle_table(system, width)
        return ri.power_table(*ri.circle_point(system.random((width // 2,), self.seed + 90)))

    def kernel(self, system: Any, phi: Any = "identity") -> ri.Kernel:
        if self.rope is None:
            return ri.Kernel(phi, normalise=self.normalise)
        layout, placement, width = self.rope
        return ri.Kernel(phi, ri.Rope(self.table(system, width), layout, placement), self.normalise)

    def build(self, system: Any, attempt: int = 0) -> tuple[tuple[Any, Any, Any], dict[str, Any]]:
        seed = 1000 * (1000 * attempt + self.seed)
        shapes = [(*self.lead_q, self.n, self.d), (*self.lead_k, self.n, self.d), (*self.lead_k, self.n, self.m)]
        arrays = tuple(system.random(shape, seed + i) for i, shape in enumerate(shapes))
        options: dict[str, Any] = {"mask": self.mask, "kernel": self.kernel(system)}
        if self.start:
            S, z = (
                system.random((*self.lead_k, self.d, self.m), seed + 10),
                system.random((*self.lead_k, self.d), seed + 11),
            )
            options["state"] = ri.State(S, z, self.position)
        return arrays, options  # type: ignore[return-value]

    def draw(self, system: Any) -> tuple[tuple[Any, Any, Any], dict[str, Any]]:
        """Numbers for which no denominator is zero: a draw that has one is thrown away, at most 20
        times.
        """
        for attempt in range(20):
            arrays, options = self.build(system, attempt)
            try:
                ri.linear_attention(*arrays, **options)
                return arrays, options
            except ri.ZeroDenominator:
                continue
        raise AssertionError(f"20 draws in a row had a zero denominator: {self}")

    def solve(self, system: Any, *forms: Any) -> list[Any]:
        """The results of several forms on one draw."""
        arrays, options = self.draw(system)
        return [
            form(*arrays, **options, **({"chunk": self.chunk} if "chunked" in form.__name__ else {})) for form in forms
        ]


@st.composite
def problems(draw: Any, *, max_n: int = 6, masks: bool = True, rope: bool = True) -> Problem:
    n, d, m = draw(st.integers(0, max_n)), draw(st.integers(1, 5)), draw(st.integers(0, 4))
    lead_q, lead_k = draw(
        st.sampled_from([((), ()), ((2,), (2,)), ((3, 2), (3, 2)), ((2, 3), (2, 1)), ((2,), ()), ((0,), (0,))])
    )
    mask: str | int = draw(st.sampled_from(["causal", "full"]) | st.integers(0, n)) if masks else "causal"
    turned = 2 * draw(st.integers(0, d // 2))
    layout, placement = draw(st.sampled_from(ri.rope.LAYOUTS)), draw(st.sampled_from(ri.rope.PLACEMENTS))
    return Problem(
        lead_q,
        lead_k,
        n,
        d,
        m,
        mask,
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.integers(-3, 40)),
        (layout, placement, turned) if rope and draw(st.booleans()) else None,
        draw(st.integers(0, 10**6)),
        draw(st.integers(1, 4)),
    )
