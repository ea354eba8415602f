"""Mistakes of feature maps: one step of the formula wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...arrays import Array
from ...attention.feature_maps import outer
from ...systems import System
from ..families.feature_map import FeatureMap
from ..families.rope import number
from ..mistakes import mistake
from ..running import value_of


def of(*names: str) -> Callable[[Any], bool]:
    """Mistakes of the maps with these names, whatever number stands behind."""
    return lambda spec: spec.phi.partition("(")[0] in names


# Maps with a name


@mistake("the 1 is missing: elu(x)", needs=of("elu+1"))
class EluAlone(FeatureMap):
    def features(self, x: Array, system: System) -> Any:
        return super().features(x, system) - 1


@mistake("exp is missing: max(x, 0) + 1", needs=of("elu+1"))
class ReluPlusOne(FeatureMap):
    def features(self, x: Array, system: System) -> Any:
        return system.xp.maximum(x, system.xp.zeros_like(x)) + 1


@mistake("exp is of all numbers: max(x, 0) + exp(x)", needs=of("elu+1"))
class ExpOfAll(FeatureMap):
    def features(self, x: Array, system: System) -> Any:
        return system.xp.maximum(x, system.xp.zeros_like(x)) + system.xp.exp(x)


@mistake("the sign is kept out: |x|", needs=of("relu"))
class Absolute(FeatureMap):
    def features(self, x: Array, system: System) -> Any:
        return system.xp.maximum(x, -x)


@mistake("all numbers are squared, not the positive ones alone", needs=of("relu2"))
class SquareOfAll(FeatureMap):
    def features(self, x: Array, system: System) -> Any:
        return x * x


@mistake("the largest entry of a token is subtracted before exp", needs=of("exp"))
class ExpShifted(FeatureMap):
    def features(self, x: Array, system: System) -> Any:
        return super().features(x - system.xp.max(x, axis=-1, keepdims=True), system)


@mistake("it is a softmax over the entries", needs=of("exp"))
class ExpDivided(FeatureMap):
    def features(self, x: Array, system: System) -> Any:
        e = super().features(x - system.xp.max(x, axis=-1, keepdims=True), system)
        return e / system.xp.sum(e, axis=-1, keepdims=True)


@mistake("x is missing: 1/(1 + exp(−x))", needs=of("silu"))
class Sigmoid(FeatureMap):
    def features(self, x: Array, system: System) -> Any:
        return system.xp.ones_like(x) / (1 + system.xp.exp(-x))


@mistake("the sign in exp is wrong: x/(1 + exp(x))", needs=of("silu"))
class SiluOfMinus(FeatureMap):
    def features(self, x: Array, system: System) -> Any:
        return -super().features(-x, system)


@mistake("it is x/(1 + exp(−1.702 x)), which stands for gelu", needs=of("silu"))
class SiluQuick(FeatureMap):
    def features(self, x: Array, system: System) -> Any:
        return x / (1 + system.xp.exp(-(x * number(system, 1.702))))


@mistake("√2 is missing: vec(xxᵀ)/√d", needs=of("taylor2"))
class TaylorUnhalved(FeatureMap):
    def features(self, x: Array, system: System) -> Any:
        f, d = super().features(x, system), x.shape[-1]
        return system.xp.concat([f[..., : 1 + d], outer(x, x) / system.xp.sqrt(number(system, d))], axis=-1)


@mistake("d is missing: [1, x, vec(xxᵀ)/√2]", needs=of("taylor2"))
class TaylorUnscaled(FeatureMap):
    def features(self, x: Array, system: System) -> Any:
        f = super().features(x, system)
        return system.xp.concat([f[..., :1], x, outer(x, x) / system.xp.sqrt(number(system, 2))], axis=-1)


@mistake("the scale is √d, not d^¼: [1, x/√d, vec(xxᵀ)/(d√2)]", needs=of("taylor2"))
class TaylorOverscaled(FeatureMap):
    def features(self, x: Array, system: System) -> Any:
        f, root = super().features(x, system), system.xp.sqrt(number(system, x.shape[-1]))
        square = outer(x / root, x) / (root * system.xp.sqrt(number(system, 2)))
        return system.xp.concat([f[..., :1], x / root, square], axis=-1)


@mistake("entries are paired with later ones, not with earlier ones", needs=of("dpfp"))
class RolledBack(FeatureMap):
    def features(self, x: Array, system: System) -> Any:
        xp = system.xp
        both = xp.concat([x, -x], axis=-1)
        a, nu = xp.maximum(both, xp.zeros_like(both)), self.function.count(1) // 2
        order = (np.arange(a.shape[-1]) + j for j in range(1, nu + 1))
        return xp.concat([a * xp.take(a, i % a.shape[-1], axis=-1) for i in order], axis=-1)


@mistake("relu is missing, so that features may be negative", needs=of("dpfp"))
class ReluMissing(FeatureMap):
    def features(self, x: Array, system: System) -> Any:
        xp = system.xp
        a, nu = xp.concat([x, -x], axis=-1), self.function.count(1) // 2
        order = (np.arange(a.shape[-1]) - j for j in range(1, nu + 1))
        return xp.concat([a * xp.take(a, i % a.shape[-1], axis=-1) for i in order], axis=-1)


# Positive random features

positive = of("positive")


@mistake("|x|²/2 is missing", needs=positive)
class NoSquare(FeatureMap):
    def half_square(self, x: Any, system: System) -> Any:
        return super().half_square(x, system) * 0


@mistake("|x|² is not halved", needs=positive)
class NotHalved(FeatureMap):
    def half_square(self, x: Any, system: System) -> Any:
        return super().half_square(x, system) * 2


@mistake("|x|²/2 is added, not subtracted", needs=positive)
class SquareAdded(FeatureMap):
    def half_square(self, x: Any, system: System) -> Any:
        return -super().half_square(x, system)


@mistake("|x|²/2 is of x without its scale", needs=lambda spec: positive(spec) and spec.scale == "d")
class SquareUnscaled(FeatureMap):
    def half_square(self, x: Any, system: System) -> Any:
        return super().half_square(x / self.factor(x.shape[-1], system), system)


@mistake("|x|/2 instead of |x|²/2", needs=positive)
class NormNotSquared(FeatureMap):
    def half_square(self, x: Any, system: System) -> Any:
        return system.xp.sqrt(super().half_square(x, system) * 2) / 2


@mistake("ω has the other sign", needs=positive)
class OmegaNegative(FeatureMap):
    def project(self, x: Any, omega: Any, system: System) -> Any:
        return -super().project(x, omega, system)


@mistake("the scale is d^(−1/2), not d^(−1/4)", needs=lambda spec: positive(spec) and spec.scale == "d")
class ScaleNotRooted(FeatureMap):
    def factor(self, d: int, system: System) -> Any:
        return super().factor(d, system) * super().factor(d, system)


@mistake(
    "the largest ω·x of all tokens is subtracted, so later ones change earlier ones",
    "performer-pytorch",
    needs=positive,
)
class LargestOfAll(FeatureMap):
    def stabilise(self, exponent: Any, shown: Any, system: System) -> Any:
        top = np.max(value_of(shown), axis=(-1, -2), keepdims=True, initial=-np.inf)
        return exponent - system.convert(np.where(np.isfinite(top), top, 0.0))


@mistake("1/√r is missing", "performer-pytorch", needs=positive)
class NoRoot(FeatureMap):
    def divide(self, e: Any, d: int, system: System) -> Any:
        return e


@mistake("it is divided by r, not by √r", needs=positive)
class NotRooted(FeatureMap):
    def divide(self, e: Any, d: int, system: System) -> Any:
        return e / number(system, max(e.shape[-1], 1))


@mistake("it is divided by √d, not by √r", needs=positive)
class RootOfWidth(FeatureMap):
    def divide(self, e: Any, d: int, system: System) -> Any:
        return e / system.xp.sqrt(number(system, d))


@mistake("ε is added after the division by √r", needs=lambda spec: positive(spec) and spec.eps > 0)
class EpsAfter(FeatureMap):
    def divide(self, e: Any, d: int, system: System) -> Any:
        eps = number(system, self.eps)
        return super().divide(e - eps, d, system) + eps
