"""The mean squared error of each map of random_features.py, by a formula."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays import Array
from ..checks import check_integer, check_shape, leading_axes
from ..errors import choose
from ..systems import floats
from ..systems.floats import quiet
from .random_features import BLOCKS, KINDS, best_A, check_feature_count, check_statistic


def mean_squared_error(kind: str, x: Array, y: Array, r: int | None, *, a: float | None = None) -> Any:
    """E (φ(x)·φ(y) − exp(x·y))² of random_features(kind, r, d, a=a): a value, not a bound.

    Here u = x·y, a = |x+y|², c = |x−y|². P is the number of pairs of directions that share a block,
    and Cov < 0 is the covariance of such a pair over the square of its mean (`block_covariance`).

        positive               e^{a+2u} (1 − e^{−a}) / r
        hyperbolic             (1 − e^{−a}) · positive
        trigonometric          e^{|x|²+|y|²} (1 − e^{−c})² / r
        favor++                e^{L+2u} (1 − e^{−L}) / r
                               L = d log(1−4A) − d/2 log(1−8A) + 2a (1−4A)/(1−8A) − a
        orthogonal, simplex    e^{a+2u} (1 − e^{−a} + 2P/r · e^{−a} Cov) / r
        taylor                 (e^u − 1 − u − u²/2)² = (u³/6 · ₁F₁(1; 4; u))²

    x, y : (..., d), of a system whose numbers are rational    ->  (...), NumPy; inf beyond float64
    Source   as for RandomFeatures. Ours: the values for blocks, for which papers have bounds, and
             the forms, chosen so that little cancels
    """
    from scipy.special import hyp1f1

    who = "mean_squared_error"
    choose(who, "kind", kind, KINDS)
    fixed, r = check_statistic(who, kind, a), check_feature_count(who, kind, r)
    x, y = floats(x), floats(y)
    check_shape(who, "x", x, "width")
    d = check_integer(who, "d", x.shape[-1], least=2 if kind == "simplex" else 1, other="the width of `x` and `y`, ")
    check_shape(who, "y", y, d, like="to match `x`")
    leading_axes(who, x=x[..., None], y=y[..., None])
    u, plus, minus = (np.sum(v, axis=-1) for v in (x * y, (x + y) ** 2, (x - y) ** 2))
    with quiet():
        if r is None:
            return (u**3 / 6 * hyp1f1(1, 4, u)) ** 2
        if kind == "trigonometric":
            return np.exp(plus - 2 * u + 2 * np.log(-np.expm1(-minus))) / r  # inf · 0 is 0 here, at x = y
        if kind == "favor++":
            A = best_A(fixed, d)
            L = d * math.log(1 - 4 * A) - d / 2 * math.log(1 - 8 * A) + plus * (2 * (1 - 4 * A) / (1 - 8 * A) - 1)
            return np.exp(L + 2 * u) * -np.expm1(-L) / r
        spread = -np.expm1(-plus)
        if kind == "hyperbolic":
            return np.exp(plus + 2 * u) * spread**2 / r
        if kind in BLOCKS and (P := r // d * math.comb(d, 2) + math.comb(r % d, 2)):
            covariance = block_covariance(np.minimum(plus, 100), d, kind)  # beyond 100, e^−a makes it vanish
            spread = spread + 2 * P / r * np.exp(-plus) * covariance
        return np.exp(plus + 2 * u) * spread / r


def block_covariance(a: NDArray[np.float64], d: int, kind: str) -> NDArray[np.float64]:
    """The covariance of exp(ω_1·z) and exp(ω_2·z) in a block, over their squared mean; |z|² = a.

        Σ_{l≥1} N_l P_l(κ) m_l²,   κ = 0 or −1/(d−1),
        m_l = (a/2)^{l/2} Γ((d+l)/2)/Γ(d/2+l) ₁F₁(l/2; d/2+l; −a/2)

    Our derivation: exp(ρ v·z) is a series in the Legendre polynomials P_l of dimension d, with
    P_l(1) = 1. Over all rotations of a pair (v_1, v_2), the mean of P_l(v_1·ẑ) P_k(v_2·ẑ) is
    P_l(κ)/N_l if k = l, where N_l is the number of harmonics, else 0. m_l e^{a/2} is the mean of
    the coefficients over ρ ~ χ_d. The term l = 0 is the square of the mean. For κ = 0 there are no
    odd terms, and l = 2 is negative; for the simplex l = 1 comes first, and is negative too.
    """
    from scipy.special import gammaln, hyp1f1, xlogy

    kappa, degree = -1 / (d - 1) if kind == "simplex" else 0.0, 1
    total, size, before, P = np.zeros_like(a), a, 1.0, kappa
    while np.any(size > 2.0**-60 * np.abs(total)):
        log_N = math.log((2 * degree + d - 2) / (degree + d - 2)) + gammaln(degree + d - 1)
        log_N = log_N - gammaln(degree + 1) - gammaln(d - 1)
        log_m = xlogy(degree / 2, a / 2) + gammaln((d + degree) / 2) - gammaln(d / 2 + degree)
        size = np.exp(log_N + 2 * log_m) * hyp1f1(degree / 2, d / 2 + degree, -a / 2) ** 2  # |P| ≤ 1: a bound
        total = total + P * size
        before, P = P, ((2 * degree + d - 2) * kappa * P - degree * before) / (degree + d - 2)
        degree += 1
    return total
