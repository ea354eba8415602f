"""RoPE: rotary position embedding, by rotations (cos, sin), so that it is exact in ℚ and GF(p).

R_p rotates pair i of the features by p·θ_i. If c² + s² = 1, then R_{a+b} = R_a R_b and
R_pᵀ = R_{-p} in every number system (theorem rope_relative).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..arrays import Array
from ..checks import (
    check_function,
    check_integer,
    check_kinds,
    check_shape,
    common_namespace,
    first_index,
    is_true,
    leading_axes,
)
from ..errors import ZeroDenominator, brief, choose
from ..systems import System, SystemArray, system_of
from ..systems.floats import array_namespace, device

LAYOUTS = ("half", "interleaved")
PLACEMENTS = ("after", "before")
Table = Callable[[Sequence[int]], tuple[Array, Array]]


@dataclass(frozen=True)
class Rope:
    """Rotations, and how a model uses them.

    table : positions -> (cos, sin), from `angle_table` or `power_table`
    layout : "half" or "interleaved"
    placement : "after" φ, in the numerator alone: (R_t φ(q_t))ᵀ R_s φ(k_s) over φ(q_t)ᵀ φ(k_s);
                "before" the kernel: φ(R_t q_t)ᵀ φ(R_s k_s) in numerator and denominator
    Source   RoFormer eq. 19 (after); Llama, GPT-J (before)
    """

    table: Table
    layout: str = "half"
    placement: str = "after"

    def __post_init__(self) -> None:
        check_function("Rope", "table", self.table)
        choose("Rope", "layout", self.layout, LAYOUTS)
        choose("Rope", "placement", self.placement, PLACEMENTS)

    def __call__(self, x: Array, positions: Sequence[int]) -> Array:
        """R_p x_t for each token t and its position p.   x : (..., n, d)"""
        check_shape("Rope", "x", x, "tokens", "features")
        return self.turn(x, *self.rotations(positions, x.shape[-2]))

    def rotations(self, positions: Sequence[int], tokens: int) -> tuple[Array, Array]:
        """(cos, sin), with one row for each token."""
        cos, sin = self.table(positions)
        if cos.shape[0] != tokens:
            raise ValueError(f"Rope: `positions` must have one entry per token, {tokens}, got {cos.shape[0]}")
        return cos, sin

    def turn(self, x: Array, cos: Array, sin: Array) -> Array:
        """The rows of x, rotated by the rows of a table."""
        check_kinds("Rope", x=x, cos=cos, sin=sin)
        check_shape("Rope", "sin", sin, *cos.shape, like="to match `cos`")
        if 2 * cos.shape[-1] > x.shape[-1]:
            check_pairs("Rope", x, cos.shape[-1])
        return turn_pairs(x, cos, sin, self.layout)

    def turn_rows(self, S: Array, by: int) -> Array:
        """R_by S: rotate the feature axis of S (..., r, m)."""
        transpose = array_namespace(S).matrix_transpose
        return transpose(self.turn(transpose(S), *self.table([by])))


def rotate(x: Array, cos: Array, sin: Array, /, *, layout: str = "half") -> Array:
    """Rotate pairs of features.

        (a, b)  ->  (a cos − b sin, a sin + b cos)

    x : (..., n, d)    cos, sin : (..., n, h), 2h ≤ d    ->  (..., n, d); the rest is copied
    half: pairs (i, i+h), as in NeoX and Llama.   interleaved: pairs (2i, 2i+1), as in GPT-J.
    Needs    ring
    """
    common_namespace("rotate", x=x, cos=cos, sin=sin)
    choose("rotate", "layout", layout, LAYOUTS)
    check_shape("rotate", "x", x, "tokens", "features")
    rows = 1 if cos.shape[-2:-1] == (1,) else x.shape[-2]
    check_shape("rotate", "cos", cos, rows, "pairs", like="to match `x`")
    check_shape("rotate", "sin", sin, *cos.shape, like="to match `cos`")
    leading_axes("rotate", x=x, cos=cos)
    check_pairs("rotate", x, cos.shape[-1])
    return turn_pairs(x, cos, sin, layout)


def turn_pairs(x: Array, cos: Array, sin: Array, layout: str) -> Array:
    """The formula of `rotate`."""
    xp, h, half = array_namespace(x), cos.shape[-1], layout == "half"
    a, b = (x[..., :h], x[..., h : 2 * h]) if half else (x[..., 0 : 2 * h : 2], x[..., 1 : 2 * h : 2])
    turned = xp.concat([a * cos - b * sin, a * sin + b * cos], axis=-1)
    turned = turned if half else interleave_pairs(turned, h)
    rest = x[..., 2 * h :]
    return xp.concat([turned, xp.broadcast_to(rest, (*turned.shape[:-1], rest.shape[-1]))], axis=-1)


def check_pairs(who: str, x: Array, pairs: int) -> None:
    """Refuse x with fewer features than so many pairs have."""
    if 2 * check_integer(who, "pairs", pairs, least=0) > x.shape[-1]:
        wanted = f"at least {2 * pairs} features for {pairs} pairs"
        raise ValueError(f"{who}: `x` must have {wanted}, got shape {tuple(x.shape)}")


def interleave(x: Array, /, *, pairs: int) -> Array:
    """The permutation P of theorem rope_layouts: P rotate(x, half) = rotate(P x, interleaved)."""
    common_namespace("interleave", x=x)
    check_pairs("interleave", x, pairs)
    return interleave_pairs(x, pairs)


def interleave_pairs(x: Array, pairs: int) -> Array:
    """Features (i, i + pairs) become neighbours (2i, 2i + 1); the rest stays."""
    xp = array_namespace(x)
    both = xp.stack([x[..., :pairs], x[..., pairs : 2 * pairs]], axis=-1)
    return xp.concat([xp.reshape(both, (*x.shape[:-1], 2 * pairs)), x[..., 2 * pairs :]], axis=-1)


def deinterleave(x: Array, /, *, pairs: int) -> Array:
    """P⁻¹: from the interleaved to the half layout."""
    xp = common_namespace("deinterleave", x=x)
    check_pairs("deinterleave", x, pairs)
    return xp.concat([x[..., 0 : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2], x[..., 2 * pairs :]], axis=-1)


WIDEST = 2**20  # features that a table may rotate


def angle_table(like: Any, width: int, *, base: Any = 10000, frequencies: Sequence[Any] | None = None) -> Table:
    """The usual rotations, cos pθ_i and sin pθ_i with θ_i = base^(−2i/width).

    like : the system of the table, or an array in it
    width : how many features are rotated, an even number; fewer than all is partial rotary
    frequencies : explicit θ_i instead
    Floats are computed on the host, within 2⁻⁵¹ at any position, then rounded to the dtype.
    Needs    real
    """
    if not isinstance(like, System):
        common_namespace("angle_table", like=like)
    system = like if isinstance(like, System) else system_of(like)
    if check_integer("angle_table", "width", width, least=0) % 2:
        raise ValueError(f"angle_table: `width` must be even, to pair features, got {width}")
    if width > WIDEST:
        raise ValueError(f"angle_table: `width` must be at most {WIDEST}, got {brief(width)}")
    try:
        frequencies = None if frequencies is None else list(frequencies)
    except TypeError:
        raise TypeError(f"angle_table: `frequencies` must be a list of numbers, got {brief(frequencies)}") from None
    if frequencies is not None and len(frequencies) != width // 2:
        wanted = f"{width // 2} entries for width {width}"
        raise ValueError(f"angle_table: `frequencies` must have {wanted}, got {len(frequencies)}")
    b = exact_number("base", base)
    if b <= 0:
        raise ValueError(f"angle_table: `base` must be positive, got {base}")
    theta = [(b, Fraction(-2 * i, width)) for i in range(width // 2)]
    if frequencies is not None:
        theta = [(exact_number(f"frequencies[{i}]", f), Fraction(1)) for i, f in enumerate(frequencies)]
    system.angles(theta, [])  # a frequency that is too large is refused here
    return lambda positions: system.angles(theta, check_positions("angle_table", positions))


def exact_number(name: str, x: Any) -> Fraction:
    """A finite number of any type, as a Fraction."""
    try:
        return Fraction(*x.as_integer_ratio())
    except (AttributeError, ValueError, OverflowError):
        raise ValueError(f"angle_table: `{name}` must be a finite number, got {brief(x)}") from None


def power_table(c: Array, s: Array, /) -> Table:
    """Rotations by powers of given circle points: cos + i sin = (c + i s)^p, by repeated squaring.

    c, s : (h,) with c² + s² = 1. Exact in ℚ and GF(p); with c = 0, s = 1 these are quarter turns,
    which are exact in every dtype.
    Needs    ring

    >>> from refimpl import QQ
    >>> cos, sin = power_table(*circle_point(QQ.ones((1,)) / 2))([0, 1, 2, -1])
    >>> cos[:, 0], sin[:, 0]
    (ℚ([1, 3/5, -7/25, 3/5]), ℚ([0, 4/5, 24/25, -4/5]))
    """
    xp = common_namespace("power_table", c=c, s=s)
    check_shape("power_table", "c", c, "pairs", all_axes=True)
    check_shape("power_table", "s", s, c.shape[0], like="to match `c`", all_axes=True)
    if system_of(c).exact and is_true(xp.any(off := c * c + s * s != xp.ones_like(c))):
        raise ValueError(f"power_table: `c`, `s` must satisfy c² + s² = 1, pair {first_index(off)[0]} does not")

    @functools.lru_cache(maxsize=4096)  # bounded, however long the text is
    def power(p: int) -> tuple[Array, Array]:
        if p == 0:
            return xp.ones_like(c), xp.zeros_like(c)
        if p < 0:
            x, y = power(-p)
            return x, -y
        x, y = power(p // 2)
        x, y = x * x - y * y, x * y + x * y
        return (x * c - y * s, x * s + y * c) if p % 2 else (x, y)

    def table(positions: Sequence[int]) -> tuple[Array, Array]:
        rows = [power(p) for p in check_positions("power_table", positions)]
        if not rows:
            empty = xp.zeros((0, *c.shape), dtype=c.dtype, device=device(c))
            return empty, empty
        return xp.stack([x for x, _ in rows], axis=0), xp.stack([y for _, y in rows], axis=0)

    return table


def circle_point(t: Array, /) -> tuple[Array, Array]:
    """A point of c² + s² = 1 from its parameter: ((1 − t²)/(1 + t²), 2t/(1 + t²)).

    Needs    field; t² ≠ −1
    """
    check_kinds("circle_point", t=t)
    bottom = 1 + t * t
    if isinstance(bottom, SystemArray) and is_true((zero := bottom.system.singular(bottom)).any()):
        where = f"in {bottom.system.name}, entry {first_index(zero)} does not"
        raise ZeroDenominator(f"circle_point: `t` must satisfy t² ≠ −1 {where}")
    return (1 - t * t) / bottom, (t + t) / bottom


def check_positions(who: str, positions: Sequence[int]) -> list[int]:
    """Positions as Python integers, of either sign, up to 2⁵³ in size."""
    try:
        p = [operator.index(i) for i in positions]
    except TypeError:
        raise TypeError(f"{who}: `positions` must be a sequence of integers, got {brief(positions)}") from None
    if any(abs(i) > 2**53 for i in p):
        raise ValueError(f"{who}: `positions` must not exceed 2^53 in size, got {max(p, key=abs)}")
    return p
