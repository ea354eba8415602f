"""Feature maps φ: (..., d) -> (..., r), and the Kernel that φ makes together with RoPE.

Any function of arrays that treats each token by itself is a feature map; the maps here have names.
Each says what it `needs` of the number system. Maps without exp and roots run exactly in ℚ; those
that need no order run in GF(p) too. To add a map, write a function and register it with `needs`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any, cast

from ..arrays import Array
from ..budget import number
from ..checks import check_integer, check_kinds, check_scalar, check_shape, check_type, common_namespace
from ..errors import brief, choose, find_name
from ..systems.floats import array_namespace, quiet, require_of
from .rope import Rope

FeatureMap = Callable[[Array], Array]
Count = Callable[[int], int]  # how many features a map makes of d numbers
FEATURE_MAPS: dict[str, FeatureMap] = {}
MOST_NUMBERS = 2**32  # features made at once


@dataclass(frozen=True, eq=False)
class Kernel:
    """The kernel of linearized attention: φ, RoPE, and whether to divide.

    phi : φ by name, or a function of each token by itself, or a pair (φ_q, φ_k) of them
    rope : a Rope, placed after φ or before the kernel
    normalise : divide by φ(q_t)·z_t

    fq are the features of q in the numerator, gq those in the denominator; fk and gk likewise:

        RoPE after φ          fq = R_t φ(q_t)    gq = φ(q_t)
        before the kernel     fq = gq = φ(R_t q_t)
        no RoPE               fq = gq = φ(q_t)
    """

    phi: str | FeatureMap | tuple[str | FeatureMap, str | FeatureMap] = "identity"
    rope: Rope | None = None
    normalise: bool = True

    def __post_init__(self) -> None:
        self.maps  # noqa: B018  this refuses an unknown name
        check_type("Kernel", "normalise", self.normalise, bool)
        if self.rope is not None:
            check_type("Kernel", "rope", self.rope, Rope)

    @functools.cached_property
    def maps(self) -> tuple[FeatureMap, FeatureMap]:
        """(φ_q, φ_k)"""
        return pair_of_maps("Kernel", self.phi)

    def features(self, q: Array, k: Array, position: int) -> tuple[Array, Array, Array, Array]:
        """(fq, fk, gq, gk): features of numerator and denominator, of tokens from `position` on."""
        phi_q, phi_k = self.maps
        placement = self.rope.placement if self.rope else ""
        if placement == "before":
            q, k = self.rotate_tokens(q, k, position)
        gq, gk = q if phi_q is identity else phi_q(q), k if phi_k is identity else phi_k(k)
        if not phi_q is phi_k is identity:  # a map must keep all tokens, and make as many features of q as of k
            check_kinds("features", **{"k": k, "phi_k(k)": gk, "phi_q(q)": gq})
            check_shape("features", "phi_k(k)", gk, k.shape[-2], "features", like="to match `k`")
            check_shape("features", "phi_q(q)", gq, q.shape[-2], gk.shape[-1], like="to match phi_k(k)")
        fq, fk = self.rotate_tokens(gq, gk, position) if placement == "after" else (gq, gk)
        return fq, fk, gq, gk

    def rotate_tokens(self, q: Array, k: Array, position: int) -> tuple[Array, Array]:
        """R_{position+t} q_t and R_{position+t} k_t"""
        rope = cast(Rope, self.rope)
        cos, sin = rope.rotations(range(position, position + q.shape[-2]), q.shape[-2])
        return rope.turn(q, cos, sin), rope.turn(k, cos, sin)


def check_kernel(who: str, kernel: object) -> None:
    """Refuse what is no Kernel."""
    if not isinstance(kernel, Kernel):
        raise TypeError(f"{who}: `kernel` must be a Kernel, such as Kernel('elu+1'), got {type(kernel).__name__}")


def as_many(d: int) -> int:
    """The number of features of a map entry by entry."""
    return d


def up_to_squares(d: int) -> int:
    """The number of features 1, x_i and x_i x_j."""
    return 1 + d + d * d


def needs(capability: str, name: str, count: Count = as_many) -> Callable[[FeatureMap], FeatureMap]:
    """Register a map under its name, with the capability that it needs of a number system.

    count : how many features it makes of d numbers
    """

    def register(phi: FeatureMap) -> FeatureMap:
        FEATURE_MAPS[name] = check_input(phi, capability, name, count)
        return FEATURE_MAPS[name]

    return register


def check_input(phi: FeatureMap, capability: str, name: str, count: Count = as_many) -> FeatureMap:
    """The map for arrays (..., features) of floats or of a system with this capability only."""

    @functools.wraps(phi)
    @quiet()
    def checked(x: Array, /) -> Array:
        check_kinds(name, x=x)
        check_shape(name, "x", x, "features")
        require_of(x, capability, name)
        if (r := prod(x.shape[:-1]) * count(x.shape[-1])) > MOST_NUMBERS:
            raise ValueError(f"{name}: `x` must have at most 2^32 features in all, got {number(r)}")
        return phi(x)

    checked.needs, checked.count = capability, count  # type: ignore[attr-defined]
    return checked


def feature_map(name: str) -> FeatureMap:
    """A map by its name: one of FEATURE_MAPS, or "polynomial(2)", "dpfp(1)" with a number up to 16.

    The name may be in any case, and "elu_plus_one" is "elu+1".

    >>> feature_map("polynomial(3)").__name__
    'polynomial(3)'
    """
    name = find_name(name, FEATURE_MAPS) if isinstance(name, str) else name
    if isinstance(name, str) and name in FEATURE_MAPS:
        return FEATURE_MAPS[name]
    parts = re.fullmatch(r"(\w+)\((\d{1,4})\)", name) if isinstance(name, str) else None
    if parts and parts[1] in FAMILIES and int(parts[2]) <= 16:  # a name may come from a file
        return FAMILIES[parts[1]](int(parts[2]))
    choose("feature_map", "name", name, [*FEATURE_MAPS, *(f"{family}({n})" for family in FAMILIES for n in (1, 2))])
    return FEATURE_MAPS[name]


def pair_of_maps(who: str, phi: object) -> tuple[FeatureMap, FeatureMap]:
    """(φ_q, φ_k) from one map for both or from two, each a function or a name."""
    both = phi if isinstance(phi, tuple) else (phi, phi)
    if len(both) != 2 or not all(callable(f) or isinstance(f, str) for f in both):
        raise TypeError(f"{who}: `phi` must be a function, a name, or a pair (φ_q, φ_k) of them, got {brief(phi)}")
    phi_q, phi_k = (feature_map(f) if isinstance(f, str) else f for f in both)
    return phi_q, phi_k


@needs("ring", "identity")
def identity(x: Array, /) -> Array:
    """φ(x) = x"""
    return x


@needs("real", "elu+1")
def elu_plus_one(x: Array, /) -> Array:
    """φ(x) = elu(x) + 1 = max(x, 0) + exp(min(x, 0)).   Source: Katharopoulos et al. 2020."""
    xp = array_namespace(x)
    zero = xp.zeros_like(x)
    return xp.maximum(x, zero) + xp.exp(xp.minimum(x, zero))


@needs("ordered", "relu")
def relu(x: Array, /) -> Array:
    """φ(x) = max(x, 0)"""
    xp = array_namespace(x)
    return xp.maximum(x, xp.zeros_like(x))


@needs("ordered", "relu2")
def relu2(x: Array, /) -> Array:
    """φ(x) = max(x, 0)²"""
    return relu(x) * relu(x)


@needs("real", "exp")
def exp(x: Array, /) -> Array:
    """φ(x) = exp(x), entry by entry"""
    return array_namespace(x).exp(x)


@needs("real", "taylor2", up_to_squares)
def taylor2(x: Array, /) -> Array:
    """φ(x) = [1, x/d^¼, vec(xxᵀ)/√(2d)], so φ(q)·φ(k) = 1 + u + u²/2 with u = q·k/√d.

    Source   Based, Arora et al. 2024
    """
    xp = array_namespace(x)
    one = xp.ones_like(x[..., :1])
    d = one * x.shape[-1]
    root = xp.sqrt(d)
    return xp.concat([one, x / xp.sqrt(root), outer(x, x) / xp.sqrt(d + d)], axis=-1)


def taylor2_pair(scale: Any) -> tuple[FeatureMap, FeatureMap]:
    """(φ_q, φ_k) of 1 + u + u²/2, u = scale·q·k. Only φ_q has the scale.   Needs field"""

    number = isinstance(scale, int | float | Fraction) and not isinstance(scale, bool)
    if not number and getattr(scale, "shape", None) != ():
        raise TypeError(f"taylor2_pair: `scale` must be a number or an array of shape (), got {brief(scale)}")

    def phi_q(x: Array, /) -> Array:
        c = check_scalar("taylor2_pair", "scale", scale, x=x)
        return array_namespace(x).concat([x[..., :1] * 0 + 1, c * x, c * c * outer(x, x) / 2], axis=-1)

    def phi_k(x: Array, /) -> Array:
        return array_namespace(x).concat([x[..., :1] * 0 + 1, x, outer(x, x)], axis=-1)

    phi_q, phi_k = (check_input(phi, "field", "taylor2_pair", up_to_squares) for phi in (phi_q, phi_k))
    return phi_q, phi_k


def polynomial(degree: int) -> FeatureMap:
    """φ(x) = [1, x] ⊗ ... ⊗ [1, x], so φ(q)·φ(k) = (1 + q·k)^degree. Needs ring; r = (d+1)^degree.

    >>> from refimpl import GF
    >>> x, phi = GF(7).convert([[2, 3]]), polynomial(2)
    >>> phi(x) @ GF(7).matrix_transpose(phi(x)), pow(1 + 2 * 2 + 3 * 3, 2, 7)
    (GF(7)([[0]]), 0)
    """
    check_integer("polynomial", "degree", degree, least=0, most=64)

    def phi(x: Array, /) -> Array:
        xp = array_namespace(x)
        one = xp.ones_like(x[..., :1])
        features, step = one, xp.concat([one, x], axis=-1)
        for _ in range(degree):
            features = outer(features, step)
        return features

    phi.__name__ = f"polynomial({degree})"
    return check_input(phi, "ring", phi.__name__, lambda d: (d + 1) ** degree)


def dpfp(nu: int) -> FeatureMap:
    """φ(x) = [relu([x, −x])_i · relu([x, −x])_{i−j}], j = 1 … ν, indices modulo 2d; r = 2dν.

    Needs    ordered
    Source   Schlag et al. 2021
    """
    check_integer("dpfp", "nu", nu, least=1)

    def phi(x: Array, /) -> Array:
        xp = array_namespace(x)
        a = relu(xp.concat([x, -x], axis=-1))
        starts = [-j % a.shape[-1] for j in range(1, nu + 1)]
        rolled = [xp.concat([a[..., i:], a[..., :i]], axis=-1) for i in starts]
        return xp.concat([a * b for b in rolled], axis=-1)

    phi.__name__ = f"dpfp({nu})"
    return check_input(phi, "ordered", phi.__name__, lambda d: 2 * d * nu)


FAMILIES: dict[str, Callable[[int], FeatureMap]] = {"polynomial": polynomial, "dpfp": dpfp}


def hedgehog(W: Array, b: Array) -> FeatureMap:
    """φ(x) = softmax([2(Wx + b), −2(Wx + b)]) with learned W (e, d), b (e,).

    Needs    real
    Source   Zhang et al. 2024
    """

    common_namespace("hedgehog", W=W, b=b)
    check_shape("hedgehog", "W", W, "e", "d")
    check_shape("hedgehog", "b", b, W.shape[-2], like="to match `W`")

    def phi(x: Array, /) -> Array:
        xp = common_namespace("hedgehog", x=x, W=W, b=b)
        require_of(x, "real", "hedgehog")
        check_shape("hedgehog", "W", W, "e", x.shape[-1], like="to match `x`")
        y = 2 * (xp.matmul(x, xp.matrix_transpose(W)) + b)
        y = xp.concat([y, -y], axis=-1)
        e = xp.exp(y - xp.max(y, axis=-1, keepdims=True))
        return e / xp.sum(e, axis=-1, keepdims=True)

    phi.__name__ = "hedgehog"
    return phi


def outer(x: Array, y: Array) -> Array:
    """vec(x yᵀ) on the last axis."""
    xy = x[..., :, None] * y[..., None, :]
    return array_namespace(x).reshape(xy, (*xy.shape[:-2], x.shape[-1] * y.shape[-1]))
