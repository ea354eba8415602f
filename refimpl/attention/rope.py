"""RoPE: rotary position embedding, with rotations as (cos, sin) so that it is exact in ℚ and GF(p).

R_p turns the pair i of features by p·θ_i. R_{a+b} = R_a R_b and R_pᵀ = R_{-p}, whatever the numbers, as long as c² + s² = 1.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..checks import first, integer, known, lead, namespace, shape
from ..errors import ZeroDenominator, brief, choose
from ..systems import SystemArray, System, system_of
from ..systems.floats import device

LAYOUTS = ("half", "interleaved")
PLACEMENTS = ("after", "before")


def rotate(x: Any, cos: Any, sin: Any, /, *, layout: str = "half") -> Any:
    """Turn pairs of features.

        (a, b)  ->  (a cos − b sin, a sin + b cos)

    x : (..., n, d)    cos, sin : (..., n, h), 2h ≤ d    ->  (..., n, d); features beyond 2h pass through
    half: pairs (i, i+h), as in NeoX and Llama.   interleaved: pairs (2i, 2i+1), as in GPT-J.
    Needs    ring
    """
    xp = namespace("rotate", x=x, cos=cos, sin=sin)
    choose("rotate", "layout", layout, LAYOUTS)
    shape("rotate", "x", x, "tokens", "features")
    shape(
        "rotate", "cos", cos, cos.shape[-2] if cos.shape[-2:-1] == (1,) else x.shape[-2], "pairs", like="to match `x`"
    )
    shape("rotate", "sin", sin, *cos.shape, like="to match `cos`")
    lead("rotate", x=x, cos=cos)
    h = enough("rotate", x, cos.shape[-1])
    a, b = (x[..., :h], x[..., h : 2 * h]) if layout == "half" else (x[..., 0 : 2 * h : 2], x[..., 1 : 2 * h : 2])
    a, b = a * cos - b * sin, a * sin + b * cos
    turned = xp.concat([a, b], axis=-1)
    if layout == "interleaved":
        turned = interleave(turned, pairs=h)
    rest = x[..., 2 * h :]
    return xp.concat([turned, xp.broadcast_to(rest, (*turned.shape[:-1], rest.shape[-1]))], axis=-1)


def interleave(x: Any, /, *, pairs: int) -> Any:
    """The permutation P between the layouts: P rotate(x, half) = rotate(P x, interleaved)."""
    xp, pairs = namespace("interleave", x=x), enough("interleave", x, pairs)
    both = xp.stack([x[..., :pairs], x[..., pairs : 2 * pairs]], axis=-1)
    return xp.concat([xp.reshape(both, (*x.shape[:-1], 2 * pairs)), x[..., 2 * pairs :]], axis=-1)


def deinterleave(x: Any, /, *, pairs: int) -> Any:
    """P⁻¹: from the interleaved to the half layout."""
    xp, pairs = namespace("deinterleave", x=x), enough("deinterleave", x, pairs)
    return xp.concat([x[..., 0 : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2], x[..., 2 * pairs :]], axis=-1)


def enough(who: str, x: Any, pairs: int) -> int:
    """How many pairs, if x has that many features."""
    if 2 * integer(who, "pairs", pairs, least=0) > x.shape[-1]:
        raise ValueError(
            f"{who}: `x` must have at least {2 * pairs} features for {pairs} pairs, got shape {tuple(x.shape)}"
        )
    return pairs


Table = Callable[[Sequence[int]], tuple[Any, Any]]


def angle_table(like: Any, width: int, *, base: Any = 10000, frequencies: Sequence[Any] | None = None) -> Table:
    """The usual rotations, cos pθ_i and sin pθ_i with θ_i = base^(−2i/width), for the system (or array) `like`.

    width : how many features turn, even; fewer than all is partial rotary.  frequencies : explicit θ_i instead.
    Floats are made on the host: right to 2⁻⁵¹ at any position, then rounded to the dtype.
    Needs    real
    """
    if not isinstance(like, System):
        namespace("angle_table", like=like)
    system = like if isinstance(like, System) else system_of(like)
    if integer("angle_table", "width", width, least=0) % 2:
        raise ValueError(f"angle_table: `width` must be even, to pair features, got {width}")
    if frequencies is not None and len(frequencies) != width // 2:
        raise ValueError(
            f"angle_table: `frequencies` must have {width // 2} entries for width {width}, got {len(frequencies)}"
        )
    b = rational("base", base)
    if b <= 0:
        raise ValueError(f"angle_table: `base` must be positive, got {base}")
    theta = [(b, Fraction(-2 * i, width)) for i in range(width // 2)]
    if frequencies is not None:
        theta = [(rational(f"frequencies[{i}]", f), Fraction(1)) for i, f in enumerate(frequencies)]
    return lambda positions: system.angles(theta, integers("angle_table", positions))


def rational(name: str, x: Any) -> Fraction:
    """A finite number of any kind, exactly."""
    try:
        return Fraction(*x.as_integer_ratio())
    except (AttributeError, ValueError, OverflowError):
        raise ValueError(f"angle_table: `{name}` must be a finite number, got {brief(x)}") from None


def power_table(c: Any, s: Any, /) -> Table:
    """Rotations by powers of given points of the circle: cos + i sin = (c + i s)^p, by repeated squaring.

    c, s : (h,) with c² + s² = 1.   Exact in ℚ and GF(p); with c = 0, s = 1 quarter turns, exact in every dtype.
    Needs    ring

    >>> from refimpl import QQ
    >>> cos, sin = power_table(*circle_point(QQ.ones((1,)) / 2))([0, 1, 2, -1])
    >>> cos[:, 0], sin[:, 0]
    (ℚ([1, 3/5, -7/25, 3/5]), ℚ([0, 4/5, 24/25, -4/5]))
    """
    xp = namespace("power_table", c=c, s=s)
    if c.ndim != 1 or s.shape != c.shape:
        raise ValueError(
            f"power_table: `c` and `s` must have one shape (pairs,), got {tuple(c.shape)} and {tuple(s.shape)}"
        )
    if system_of(c).exact and known(xp.any(off := c * c + s * s != xp.ones_like(c))):
        raise ValueError(f"power_table: `c`, `s` must satisfy c² + s² = 1, pair {first(off)[0]} does not")

    @functools.lru_cache(maxsize=4096)  # enough for what is asked again, and no more however long the text
    def power(p: int) -> tuple[Any, Any]:
        if p == 0:
            return xp.ones_like(c), xp.zeros_like(c)
        if p < 0:
            x, y = power(-p)
            return x, -y
        x, y = power(p // 2)
        x, y = x * x - y * y, x * y + x * y
        return (x * c - y * s, x * s + y * c) if p % 2 else (x, y)

    def table(positions: Sequence[int]) -> tuple[Any, Any]:
        rows = [power(p) for p in integers("power_table", positions)]
        empty = xp.zeros((0, *c.shape), dtype=c.dtype, device=device(c))
        return tuple(xp.stack(part, axis=0) if part else empty for part in ([x for x, _ in rows], [y for _, y in rows]))  # type: ignore[return-value]

    return table


def circle_point(t: Any, /) -> tuple[Any, Any]:
    """A point of c² + s² = 1 from its parameter: ((1 − t²)/(1 + t²), 2t/(1 + t²)).   Needs field; t² ≠ −1."""
    bottom = 1 + t * t
    if isinstance(bottom, SystemArray) and known((zero := bottom.system.singular(bottom)).any()):
        raise ZeroDenominator(
            f"circle_point: `t` must satisfy t² ≠ −1 in {bottom.system.name}, entry {first(zero)} does not"
        )
    return (1 - t * t) / bottom, (t + t) / bottom


def integers(who: str, positions: Sequence[int]) -> list[int]:
    """Positions as Python integers, of either sign, up to 2⁵³ in size."""
    try:
        p = [operator.index(i) for i in positions]
    except TypeError:
        raise TypeError(f"{who}: `positions` must be a sequence of integers, got {brief(positions)}") from None
    if any(abs(i) > 2**53 for i in p):
        raise ValueError(f"{who}: `positions` must not exceed 2^53 in size, got {max(p, key=abs)}")
    return p


@dataclass(frozen=True)
class Rope:
    """Rotations and how a model uses them.

    table : positions -> (cos, sin), from `angle_table` or `power_table`
    layout : "half" or "interleaved"
    placement : "after" φ, in the numerator alone: (R_t φ(q_t))ᵀ R_s φ(k_s) over φ(q_t)ᵀ φ(k_s);
                "before" the kernel: φ(R_t q_t)ᵀ φ(R_s k_s) in numerator and denominator.
    Source   RoFormer eq. 19 (after), as read in notes on it; Llama, GPT-J (before).
    """

    table: Table
    layout: str = "half"
    placement: str = "after"

    def __post_init__(self) -> None:
        choose("Rope", "layout", self.layout, LAYOUTS)
        choose("Rope", "placement", self.placement, PLACEMENTS)

    def __call__(self, x: Any, positions: Sequence[int]) -> Any:
        """R_p x_p for each token.   x : (..., n, d), one position per token."""
        shape("Rope", "x", x, "tokens", "features")
        return rotate(x, *self.rotations(positions, x.shape[-2]), layout=self.layout)

    def rotations(self, positions: Sequence[int], tokens: int) -> tuple[Any, Any]:
        """(cos, sin), one row for each of so many tokens."""
        cos, sin = self.table(positions)
        if cos.shape[0] != tokens:
            raise ValueError(f"Rope: `positions` must have one entry per token, {tokens}, got {cos.shape[0]}")
        return cos, sin
