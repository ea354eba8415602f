"""RoPE alone, with every convention that kernels have for it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from ...arrays import Array, HostArray
from ...errors import choose
from ...systems import MP, Float, RunningError, System
from ...systems.formats import FORMATS, round_to
from ..axes import Axes
from ..plan import Case
from ..running import loosened
from ..spec import DTYPES, Arrays, Spec, convention, conventions, seeded

TURN = Fraction("6.28318530717958647692528676655900576839433879875")  # 2π
LAYOUTS = ("half", "interleaved", "interleaved-to-half")
Circle = tuple[Array, Array]  # cos and sin


@dataclass(frozen=True, kw_only=True)
class RotaryEmbedding(Spec):
    """Rotary position embedding: pair i of the token at position p is turned by p θ_i.

    (a, b)  ->  (a cos pθ_i − b sin pθ_i, a sin pθ_i + b cos pθ_i)        θ_i = base^(−2i/width)
    """

    call: str = convention("x -> o", "how it is called and what it returns")
    layout: str = convention("half", "pairs (i, i + width/2), or (2i, 2i + 1), or read so, written as half", *LAYOUTS)
    base: float = convention(10000.0, "the base of the angles", others=(10000.0, 500000.0, 1000000.0, 1000.0))
    width: int = convention(0, "how many entries are turned (0: all)", others=(0, 2, 4))
    part: str = convention("first", "whether these are the first entries or the last", "first", "last")
    exponent: str = convention("width", "whether 2i is divided by the width or by all of d", "width", "d")
    sign: str = convention("+", "whether the angle of pair i is pθ_i or −pθ_i", "+", "-")
    scaling: str = convention("none", "how the θ_i are changed for long texts", "none", "linear", "llama3", "yarn")
    factor: float = convention(1.0, "the factor of this scaling")
    original: int = convention(8192, "the length of text before it: original_max_position_embeddings")
    low: float = convention(1.0, "llama3: low_freq_factor")
    high: float = convention(4.0, "llama3: high_freq_factor")
    fast: float = convention(32.0, "yarn: beta_fast")
    slow: float = convention(1.0, "yarn: beta_slow")
    truncate: bool = convention(True, "yarn: whether the ends of the ramp are whole numbers", others=(True, False))
    magnitude: float = convention(0.0, "yarn: attention_factor (0: 0.1 ln factor + 1)", others=(0.0, 1.0))
    angles: str = convention("", "the dtype of the angles (default: float32, or that in which it adds if wider)")
    positions_axes: str = convention("T", "the order of the axes of an array of positions: T, BT")
    columns: str = convention(
        "pairs", "whether given cos and sin have columns for pairs or entries", "pairs", "entries"
    )
    table_axes: str = convention("TD", "the order of the axes of given cos and sin: TD, 1TD, T1D")

    family: ClassVar[str] = "rope"
    given: ClassVar[tuple[str, ...]] = ("x", "positions", "cos", "sin")
    made: ClassVar[tuple[str, ...]] = ("o",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.angles:
            choose(type(self).__name__, "angles", self.angles, DTYPES)
        if self.width < 0 or self.width % 2:
            raise ValueError(f"{type(self).__name__}: `width` must be even, to pair entries, got {self.width}")

    # How its arrays lie

    def axes_of(self, name: str) -> Axes:
        others = {"positions": ("positions_axes", "BT"), "cos": ("table_axes", "TD"), "sin": ("table_axes", "TD")}
        if name not in others:
            return super().axes_of(name)
        word, ours = others[name]
        return Axes.read(f"{type(self).__name__}: `{word}`", getattr(self, word), ours)

    def sizes_of(self, name: str, case: Case) -> dict[str, int]:
        if name == "positions":
            return {"B": case.batch if "B" in self.positions_axes else 1, "T": case.n}
        if name in ("cos", "sin"):
            return {"T": case.n, "D": self.width_of(case.d) // (2 if self.columns == "pairs" else 1)}
        return {"B": case.batch, "H": case.heads, "T": case.n, "D": case.d}

    def dtype_of(self, name: str, dtype: str) -> str:
        return "int64" if name == "positions" else dtype

    def plain(self) -> tuple[Any, ...]:
        same: dict[str, Any] = {} if self.width else {"part": "first", "exponent": "width"}
        scales = self.scaling != "none" and (self.factor != 1 or self.magnitude not in (0, 1))
        same |= {} if scales else {"scaling": "none"}
        same |= {} if scales and self.scaling == "yarn" else {"truncate": True, "magnitude": 0.0}
        same |= {} if self.takes_table else {"columns": "pairs"}
        return tuple(same.get(f.name, getattr(self, f.name)) for f in conventions(self))

    def refuses(self, case: Case) -> str:
        if case.heads != case.groups:
            return "it has no groups of heads"
        if self.width_of(case.d) > case.d or self.width_of(case.d) % 2:
            return "RoPE needs an even width"
        placed = self.calls.given & {"positions", "cos"}
        return super().refuses(replace(case, position=0) if placed else case)

    @property
    def takes_table(self) -> bool:
        """Are cos and sin given, so that the kernel only turns?"""
        return "cos" in self.calls.given

    # The formula, in steps. A mistake is a subclass with one of them wrong.

    def compute(self, x: Arrays, system: System) -> Arrays:
        tokens = system.convert(x["x"])
        if not self.takes_table:
            return {"o": self.rotate(tokens, x["positions"][:, None], system)}
        cos, sin = (self.one_per_pair(system.convert(x[name])) for name in ("cos", "sin"))
        return {"o": self.turn(tokens, cos, sin, system)}

    def rotate(self, x: Array, positions: HostArray, system: System) -> Array:
        """R_p x.   x : (B, H, n, d)    positions : integers (B or 1, H or 1, n)"""
        if not positions.size:
            return x
        return self.turn(x, *self.table(self.place(positions, x.shape), x.shape[-1], system), system)

    def place(self, positions: HostArray, shape: tuple[int, ...]) -> HostArray:
        """The position of each token of x, of this shape."""
        return positions

    def one_per_pair(self, table: Array) -> Array:
        """The columns of a given table, one for each pair."""
        if self.columns == "pairs":
            return table
        return table[..., 0::2] if self.layout == "interleaved" else table[..., : table.shape[-1] // 2]

    def width_of(self, d: int) -> int:
        return self.width or d

    def turn(self, x: Array, cos: Array, sin: Array, system: System) -> Array:
        """x, with some of its entries turned.   cos, sin : (..., n, width/2)"""
        d, w = x.shape[-1], self.width_of(x.shape[-1])
        start = d - w if self.part == "last" else 0
        entries = self.turn_entries(x[..., start : start + w], cos, sin, system)
        return system.xp.concat([self.copy(x[..., :start]), entries, self.copy(x[..., start + w :])], axis=-1)

    def copy(self, x: Array) -> Array:
        """The entries that are not turned."""
        return x

    def turn_entries(self, x: Array, cos: Array, sin: Array, system: System) -> Array:
        a, b = self.pairs(x)
        return self.join(*self.turn_pairs(a, b, cos, -sin if self.sign == "-" else sin), system)

    def pairs(self, x: Array) -> tuple[Array, Array]:
        """The first and the second of each pair."""
        h = x.shape[-1] // 2
        return (x[..., :h], x[..., h:]) if self.layout == "half" else (x[..., 0::2], x[..., 1::2])

    def turn_pairs(self, a: Array, b: Array, cos: Array, sin: Array) -> tuple[Array, Array]:
        return a * cos - b * sin, a * sin + b * cos

    def join(self, a: Array, b: Array, system: System) -> Array:
        """The entries of these pairs."""
        xp = system.xp
        if self.layout == "interleaved":
            return xp.reshape(xp.stack([a, b], axis=-1), (*a.shape[:-1], 2 * a.shape[-1]))
        return xp.concat([a, b], axis=-1)

    def table(self, positions: HostArray, d: int, system: System) -> Circle:
        """cos pθ_i and sin pθ_i, times the magnitude: (..., n, width/2)."""
        cos, sin = self.circle(positions, d, system)
        if self.scaling != "yarn" or self.magnitude_of() == 1:
            return cos, sin
        magnitude = number(system, self.magnitude_of())
        return cos * magnitude, sin * magnitude

    def magnitude_of(self) -> float:
        """What YaRN multiplies the table by."""
        return self.magnitude or (0.1 * math.log(self.factor) + 1 if self.factor > 1 else 1.0)

    def circle(self, positions: HostArray, d: int, system: System) -> Circle:
        """cos and sin of the exact angles, and how far off a kernel is that rounds its angles."""
        exact = MP(40)
        theta = [(f, Fraction(1)) for f in exact.fractions(self.frequencies(d, exact)).tolist()]
        cos, sin = system.angles(theta, positions)
        if not isinstance(system, RunningError):
            return cos, sin
        rounds: Any = self.rounds(system)
        angle: Any = rounds.convert(np.asarray(positions, dtype=np.float64)[..., None]) * self.frequencies(d, rounds)
        off_cos, off_sin = (f(angle).planes[1] for f in (rounds.xp.cos, rounds.xp.sin))
        return loosened(cos, off_cos), loosened(sin, off_sin)

    def rounds(self, system: System) -> System:
        """The system in which a kernel computes its angles."""
        if not isinstance(system, RunningError):
            return system
        return RunningError(self.angles or (system.format if FORMATS[system.format][0] >= 24 else "float32"))

    def frequencies(self, d: int, system: System) -> Any:
        """(width/2,): θ_i, scaled."""
        return self.scale(self.powers(d, system), d, system)

    def powers(self, d: int, system: System) -> Any:
        """(width/2,): base^(−2i/width), as exp(−2i/width · log base)"""
        w, xp = self.width_of(d), system.xp
        part = system.convert(self.numerators(w).astype(np.float64)) / number(system, d if self.exponent == "d" else w)
        return xp.exp(-(part * xp.log(number(system, self.base))))

    def numerators(self, w: int) -> HostArray:
        """(w/2,): 2i"""
        return np.arange(0, w, 2)

    def scale(self, theta: Any, d: int, system: System) -> Any:
        """θ_i for long texts: some are divided by the factor."""
        if self.scaling == "none":
            return theta
        slow = theta / number(system, self.factor)
        if self.scaling == "linear":
            return slow
        kept = self.kept_by_llama3(theta, system) if self.scaling == "llama3" else self.kept_by_yarn(d, system)
        return slow * (1 - kept) + theta * kept

    def kept_by_llama3(self, theta: Any, system: System) -> Any:
        """How much of θ_i is kept: (original/wavelength − low)/(high − low), between 0 and 1."""
        turns = number(system, self.original) / (system.convert(TURN) / theta)
        low, high = number(system, self.low), number(system, self.high)
        return clip((turns - low) / (high - low), system)

    def kept_by_yarn(self, d: int, system: System) -> Any:
        """How much of θ_i is kept: 1 where a text has `fast` turns, 0 where it has `slow` ones."""
        w = self.width_of(d)
        first, last = (
            w * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(self.base))
            for turns in (self.fast, self.slow)
        )
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, w - 1)
        last += 0.001 * (first == last)
        ramp = (system.convert(np.arange(w // 2) * 1.0) - number(system, first)) / number(system, last - first)
        return 1 - clip(ramp, system)

    # What it is tried on

    def is_exact(self, case: Case, dtype: str) -> bool:
        """At position 0 nothing is turned; and given tables may be of quarter turns."""
        still = case.n <= 1 and not case.position and (self.scaling != "yarn" or self.magnitude_of() == 1)
        return case.values == "whole" and (self.takes_table or still)

    def inputs(self, case: Case, dtype: str) -> Arrays:
        """Numbers other than 0. Given positions have gaps, and begin anew halfway."""
        rng = seeded(case)
        shape = (case.batch, case.heads, case.n, case.d)
        size = {"large": 64.0, "tiny": 2.0**-10}.get(case.values, 1.0)
        x = rng.integers(1, 17, shape) * rng.choice([-1, 1], shape) / 8 * size
        x = rng.normal(size=shape) if case.values == "fine" else x
        each, half = np.arange(case.n), case.n // 2
        positions = each[None]
        if "positions" in self.calls.given:
            rows = self.sizes_of("positions", case)["B"]
            positions = np.cumsum(rng.integers(1, 4, (rows, case.n)), axis=1)
            positions = positions - positions[:, np.where(each < half, 0, half)]
        positions = case.position + positions
        tables = self.tables(case, positions[0], dtype) if self.takes_table else {}
        return {"x": round_to(x, dtype), "position": case.position, "positions": positions} | tables

    def tables(self, case: Case, positions: HostArray, dtype: str) -> Arrays:
        """cos and sin as a kernel gets them: quarter turns if the case is exact."""
        quarters = seeded(case, "turns").integers(4, size=(case.n, self.width_of(case.d) // 2))
        both: Any = [np.choose((quarters + k) % 4, [1.0, 0.0, -1.0, 0.0]) for k in (0, 3)]
        if case.values != "whole":
            both = self.table(positions, case.d, Float("numpy", "float64"))
        if self.columns == "entries":
            both = [np.repeat(x, 2, axis=-1) if self.layout == "interleaved" else np.tile(x, 2) for x in both]
        return {name: round_to(x, dtype) for name, x in zip(("cos", "sin"), both, strict=True)}


def number(system: System, x: float) -> Any:
    return system.convert(np.asarray(float(x)))


def clip(x: Any, system: System) -> Any:
    """x between 0 and 1."""
    xp = system.xp
    return xp.minimum(xp.maximum(x, xp.zeros_like(x)), xp.ones_like(x))
