"""Feature maps φ: (..., d) -> (..., r). Any function of arrays will do that treats each token by itself; these have names.

Each says what it `needs` of the number system. Those that need no exp run exactly in ℚ, those that need no order also in GF(p).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..checks import integer, namespace, shape
from ..errors import brief, choose
from ..systems.floats import array_namespace, require_of

FeatureMap = Callable[[Any], Any]
FEATURE_MAPS: dict[str, FeatureMap] = {}


def needs(capability: str, name: str) -> Callable[[FeatureMap], FeatureMap]:
    """Register a map under its name, with what it needs of a number system: beyond a ring, which they all are, this is checked."""

    def mark(phi: FeatureMap) -> FeatureMap:
        def checked(x: Any, /) -> Any:
            require_of(x, capability, name)
            return phi(x)

        named = phi if capability == "ring" else functools.wraps(phi)(checked)
        named.needs = capability  # type: ignore[attr-defined]
        FEATURE_MAPS[name] = named
        return named

    return mark


def feature_map(name: str) -> FeatureMap:
    """A map by its name: one of FEATURE_MAPS, or "polynomial(2)", "dpfp(1)" with another number up to 16 in the brackets.

    >>> feature_map("polynomial(3)").__name__
    'polynomial(3)'
    """
    family, _, number = (
        name.removesuffix(")").partition("(") if isinstance(name, str) and name.endswith(")") else ("", "", "")
    )
    if family in FAMILIES and number.isdecimal() and int(number) <= 16:  # a name may come from a file
        return FAMILIES[family](int(number))
    choose("feature_map", "name", name, [*FEATURE_MAPS, *(f"{family}({n})" for family in FAMILIES for n in (1, 2))])
    return FEATURE_MAPS[name]


def pair(who: str, phi: Any) -> tuple[FeatureMap, FeatureMap]:
    """(φ_q, φ_k) from one map for both or from two, each a function or a name."""
    both = phi if isinstance(phi, tuple) else (phi, phi)
    if len(both) != 2 or not all(callable(f) or isinstance(f, str) for f in both):
        raise TypeError(f"{who}: `phi` must be a function, a name, or a pair (φ_q, φ_k) of them, got {brief(phi)}")
    phi_q, phi_k = (feature_map(f) if isinstance(f, str) else f for f in both)
    return phi_q, phi_k


@needs("ring", "identity")
def identity(x: Any, /) -> Any:
    """φ(x) = x"""
    return x


@needs("real", "elu+1")
def elu_plus_one(x: Any, /) -> Any:
    """φ(x) = elu(x) + 1 = max(x, 0) + exp(min(x, 0)).   Source: Katharopoulos et al. 2020."""
    xp = array_namespace(x)
    zero = xp.zeros_like(x)
    return xp.maximum(x, zero) + xp.exp(xp.minimum(x, zero))


@needs("ordered", "relu")
def relu(x: Any, /) -> Any:
    """φ(x) = max(x, 0)"""
    xp = array_namespace(x)
    return xp.maximum(x, xp.zeros_like(x))


@needs("ordered", "relu2")
def relu2(x: Any, /) -> Any:
    """φ(x) = max(x, 0)²"""
    return relu(x) * relu(x)


@needs("real", "exp")
def exp(x: Any, /) -> Any:
    """φ(x) = exp(x), entry by entry"""
    return array_namespace(x).exp(x)


@needs("real", "taylor2")
def taylor2(x: Any, /) -> Any:
    """φ(x) = [1, x/d^¼, vec(xxᵀ)/√(2d)], so φ(q)·φ(k) = 1 + u + u²/2 with u = q·k/√d.   Source: Based, Arora et al. 2024."""
    xp = array_namespace(x)
    one = xp.ones_like(x[..., :1])
    d = one * x.shape[-1]
    root = xp.sqrt(d)
    return xp.concat([one, x / xp.sqrt(root), outer(x, x) / xp.sqrt(d + d)], axis=-1)


def taylor2_pair(scale: Any) -> tuple[FeatureMap, FeatureMap]:
    """(φ_q, φ_k) of the kernel 1 + u + u²/2, u = scale·q·k: the scale all on the query's side, so no root is needed. Needs field."""

    def phi_q(x: Any, /) -> Any:
        return array_namespace(x).concat([x[..., :1] * 0 + 1, scale * x, scale * scale * outer(x, x) / 2], axis=-1)

    def phi_k(x: Any, /) -> Any:
        return array_namespace(x).concat([x[..., :1] * 0 + 1, x, outer(x, x)], axis=-1)

    return phi_q, phi_k


def polynomial(degree: int) -> FeatureMap:
    """φ(x) = [1, x] ⊗ ... ⊗ [1, x], so φ(q)·φ(k) = (1 + q·k)^degree. Needs ring; r = (d+1)^degree.

    >>> from refimpl import GF
    >>> x, phi = GF(7).convert([[2, 3]]), polynomial(2)
    >>> phi(x) @ GF(7).matrix_transpose(phi(x)), pow(1 + 2 * 2 + 3 * 3, 2, 7)
    (GF(7)([[0]]), 0)
    """
    integer("polynomial", "degree", degree, least=0)

    def phi(x: Any, /) -> Any:
        xp = array_namespace(x)
        one = xp.ones_like(x[..., :1])
        features, step = one, xp.concat([one, x], axis=-1)
        for _ in range(degree):
            features = outer(features, step)
        return features

    phi.__name__ = f"polynomial({degree})"
    phi.needs = "ring"  # type: ignore[attr-defined]
    return phi


def dpfp(nu: int) -> FeatureMap:
    """φ(x) = [relu([x, −x])_i · relu([x, −x])_{i−j}], j = 1 … ν, indices modulo 2d. Needs ordered; r = 2dν. Source: Schlag et al. 2021."""
    integer("dpfp", "nu", nu, least=1)

    def phi(x: Any, /) -> Any:
        xp = array_namespace(x)
        a = relu(xp.concat([x, -x], axis=-1))
        starts = [-j % a.shape[-1] for j in range(1, nu + 1)]
        rolled = [xp.concat([a[..., i:], a[..., :i]], axis=-1) for i in starts]
        return xp.concat([a * b for b in rolled], axis=-1)

    phi.__name__ = f"dpfp({nu})"
    phi.needs = "ordered"  # type: ignore[attr-defined]
    return phi


FAMILIES: dict[str, Callable[[int], FeatureMap]] = {"polynomial": polynomial, "dpfp": dpfp}


def hedgehog(W: Any, b: Any) -> FeatureMap:
    """φ(x) = softmax([2(Wx + b), −2(Wx + b)]) with learned W (e, d), b (e,). Needs real. Source: Zhang et al. 2024."""

    def phi(x: Any, /) -> Any:
        xp = namespace("hedgehog", x=x, W=W, b=b)
        require_of(x, "real", "hedgehog")
        shape("hedgehog", "W", W, "e", x.shape[-1], like="to match `x`")
        shape("hedgehog", "b", b, W.shape[-2], like="to match `W`")
        y = 2 * (xp.matmul(x, xp.matrix_transpose(W)) + b)
        y = xp.concat([y, -y], axis=-1)
        e = xp.exp(y - xp.max(y, axis=-1, keepdims=True))
        return e / xp.sum(e, axis=-1, keepdims=True)

    phi.__name__ = "hedgehog"
    return phi


def outer(x: Any, y: Any) -> Any:
    """vec(x yᵀ) on the last axis."""
    xy = x[..., :, None] * y[..., None, :]
    return array_namespace(x).reshape(xy, (*xy.shape[:-2], x.shape[-1] * y.shape[-1]))
