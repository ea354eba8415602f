"""Feature maps alone, and positive random features."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from ...arrays import Array
from ...attention.feature_maps import FEATURE_MAPS, feature_map
from ...systems import System
from ...systems.floats import array_namespace
from ...systems.formats import round_to
from ..axes import Axes
from ..plan import Case
from ..spec import Arrays, Spec, convention, conventions, seeded
from .rope import number

NAMES = (*FEATURE_MAPS, "silu", "positive")
MOST = 2**22  # features of a case
WHOLE: dict[str, tuple[float, ...]] = {  # numbers of which a map makes whole ones, without a rounding
    "identity": (-3, -2, -1, 1, 2, 5),
    "elu+1": (-800, 0, 1, 2, 5, 11),
    "relu": (-3, -2, -1, 1, 2, 5),
    "relu2": (-3, -2, -1, 1, 2, 5),
    "exp": (-800, 0),
    "polynomial": (-2, -1, 1, 2),
    "dpfp": (-2, -1, 1, 2),
}


@dataclass(frozen=True, kw_only=True)
class FeatureMap(Spec):
    """φ(x), of each token by itself.

    positive: φ(x) = (exp(ω_i·y − |y|²/2 − top) + ε)/√r with y = x/d^¼ and ω given
    """

    call: str = convention("x -> o", "how it is called and what it returns")
    phi: str = convention("elu+1", "the feature map", others=NAMES)
    scale: str = convention("1", "positive: the factor of x, or 'd' for d^(-1/4)", others=("1", "d"))
    stabiliser: str = convention("none", "positive: whether the largest ω·x of a token is subtracted", "none", "token")
    eps: float = convention(0.0, "positive: what is added to exp", others=(0.0, 1e-4, 1e-6, 1e-3, 1e-8))
    omega_axes: str = convention("KD", "the order of the axes of ω: direction K, entry D", others=("KD", "DK"))

    family: ClassVar[str] = "feature_map"
    given: ClassVar[tuple[str, ...]] = ("x", "omega")
    made: ClassVar[tuple[str, ...]] = ("o",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.phi != "positive":
            self.function  # noqa: B018  this refuses an unknown name
        if ("omega" in self.calls.given) != (self.phi == "positive"):
            wanted = "given for the map positive alone, such as call 'x, omega -> o'"
            raise ValueError(f"{type(self).__name__}: `omega` must be {wanted}, got {self.call!r} and {self.phi!r}")
        if self.scale != "d" and not re.fullmatch(r"\d*\.?\d+(e[-+]?\d+)?", str(self.scale)):
            raise ValueError(f"{type(self).__name__}: `scale` must be 'd' or a positive number, got {self.scale!r}")

    # How its arrays lie

    def axes_of(self, name: str) -> Axes:
        if name == "omega":
            return Axes.read(f"{type(self).__name__}: `omega_axes`", self.omega_axes, "KD")
        return super().axes_of(name)

    def sizes_of(self, name: str, case: Case) -> dict[str, int]:
        if name == "omega":
            return {"K": case.m, "D": case.d}
        return {"B": case.batch, "H": case.heads, "T": case.n, "D": case.d if name == "x" else self.count(case)}

    def count(self, case: Case) -> int:
        """How many features a map makes of a token."""
        if self.phi == "positive":
            return case.m
        return int(getattr(self.function, "count", lambda d: d)(case.d))

    @property
    def function(self) -> Any:
        return FUNCTIONS[self.phi] if self.phi in FUNCTIONS else feature_map(self.phi)

    def refuses(self, case: Case) -> str:
        if case.heads != case.groups:
            return "it has no groups of heads"
        if case.batch * case.heads * case.n * self.count(case) > MOST:
            return "these are many features"
        return super().refuses(case)

    def plain(self) -> tuple[Any, ...]:
        same = {} if self.phi == "positive" else {"scale": "1", "stabiliser": "none", "eps": 0.0, "omega_axes": "KD"}
        return tuple(same.get(f.name, getattr(self, f.name)) for f in conventions(self))

    # The formula, in steps. A mistake is a subclass with one of them wrong.

    def compute(self, x: Arrays, system: System) -> Arrays:
        tokens = system.convert(x["x"])
        if self.phi != "positive":
            return {"o": self.features(tokens, system)}
        tokens = tokens * self.factor(x["x"].shape[-1], system)
        shown = self.project(tokens, system.convert(x["omega"]), system)
        e = system.xp.exp(self.stabilise(shown - self.half_square(tokens, system), shown, system))
        return {"o": self.divide(e + number(system, self.eps) if self.eps else e, x["x"].shape[-1], system)}

    def features(self, x: Array, system: System) -> Any:
        """φ(x), for the maps with a name."""
        return self.function(x)

    def factor(self, d: int, system: System) -> Any:
        """The factor of x."""
        if self.scale != "d":
            return number(system, float(self.scale))
        root = system.xp.sqrt
        return number(system, 1) / root(root(number(system, d)))

    def half_square(self, x: Any, system: System) -> Any:
        """|x|²/2"""
        return system.xp.sum(x * x, axis=-1, keepdims=True) / number(system, 2)

    def project(self, x: Any, omega: Any, system: System) -> Any:
        """ω_i·x"""
        return x @ system.xp.matrix_transpose(omega)

    def stabilise(self, exponent: Any, shown: Any, system: System) -> Any:
        """The exponents, less the largest ω_i·x of each token."""
        return exponent - system.xp.max(shown, axis=-1, keepdims=True) if self.stabiliser == "token" else exponent

    def divide(self, e: Any, d: int, system: System) -> Any:
        """exp/√r"""
        return e / system.xp.sqrt(number(system, max(e.shape[-1], 1)))

    # What it is tried on

    def is_exact(self, case: Case, dtype: str) -> bool:
        """The map makes whole numbers of whole numbers."""
        return case.values == "whole" and self.base_name in WHOLE

    @property
    def base_name(self) -> str:
        """The map's name without a number, if that leaves products in the range of float16."""
        name, _, rest = self.phi.partition("(")
        return name if int(rest.rstrip(")") or 0) < 15 else ""

    def inputs(self, case: Case, dtype: str) -> Arrays:
        """Whole numbers that the map does not round, or any."""
        rng = seeded(case)
        shape, size = (case.batch, case.heads, case.n, case.d), {"large": 8.0, "tiny": 2.0**-10}.get(case.values, 1.0)
        x = (2 * rng.integers(-64, 64, shape) + 1) / 64 * size
        if case.values == "fine":
            x = rng.normal(size=shape)
        elif self.is_exact(case, dtype):
            x = rng.choice(WHOLE[self.base_name], shape)
        omega = rng.integers(-16, 17, (case.m, case.d)) / 8
        return {"x": round_to(x, dtype), "omega": round_to(omega, dtype)}


def elu_plus_one(x: Array) -> Any:
    """elu(x) + 1. Kernels that add 1 to elu(x) lose digits of small numbers, and are right."""
    xp = array_namespace(x)
    zero = xp.zeros_like(x)
    return xp.maximum(x, zero) + (xp.exp(xp.minimum(x, zero)) - 1) + 1


def silu(x: Array) -> Any:
    """x / (1 + exp(−x))"""
    return x / (1 + array_namespace(x).exp(-x))


FUNCTIONS: dict[str, Callable[[Array], Any]] = {"elu+1": elu_plus_one, "silu": silu}
