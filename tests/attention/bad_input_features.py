"""Bad input to random features: every message, word for word."""

from __future__ import annotations

import numpy as np

import refimpl as ri
from refimpl import QQ, NotDefined, Rope
from refimpl.attention.feature_error import mean_squared_error
from refimpl.attention.random_features import RandomFeatures, random_features
from tests.helpers.bad_input import F, Table, cases

omega = F.random((4, 3), 0)
phi, taylor = RandomFeatures("positive", omega), RandomFeatures("taylor", None)
before, after = (Rope(ri.angle_table(F, 2), placement=placement) for placement in ("before", "after"))
x3 = F.random((3,), 1)
NAMES = "favor++, hyperbolic, orthogonal, positive, simplex, taylor, trigonometric"


def rf(kind="positive", r=4, d=3, *, seed=0, system=F, a=None):
    return random_features(kind, r, d, seed=seed, system=system, a=a)


VALUE_ERRORS: Table = {
    f"RandomFeatures: did you mean 'positive'? `kind` must be one of {NAMES}, got 'positiv'": lambda: RandomFeatures(
        "positiv", omega
    ),
    "RandomFeatures: `omega` must be None for taylor, got a value of type ndarray": lambda: RandomFeatures(
        "taylor", omega
    ),
    "RandomFeatures: `omega` must be an array (directions, width) for simplex, got None": lambda: RandomFeatures(
        "simplex", None
    ),
    "RandomFeatures: `omega` must have shape (..., directions, width), got (3,)": lambda: RandomFeatures(
        "positive", x3
    ),
    "RandomFeatures: `A` must be a finite number ≤ 0, got 1": lambda: RandomFeatures("favor++", omega, 1),
    "RandomFeatures: `A` must be a finite number ≤ 0, got nan": lambda: RandomFeatures("favor++", omega, float("nan")),
    "RandomFeatures: `A` must be a finite number ≤ 0, got -inf": lambda: RandomFeatures(
        "favor++", omega, float("-inf")
    ),
    "RandomFeatures: `A` must be a finite number ≤ 0, got False": lambda: RandomFeatures("favor++", omega, False),
    "RandomFeatures: `A` must be a finite number ≤ 0, got '0'": lambda: RandomFeatures("favor++", omega, "0"),
    "RandomFeatures: `A` must be 0 but for favor++, got -1": lambda: RandomFeatures("positive", omega, -1),
    "RandomFeatures: `x` must have shape (..., tokens, 3) to match `omega`, got (2, 4)": lambda: phi(
        F.random((2, 4), 0)
    ),
    "RandomFeatures: `x` must have shape (..., tokens, 3) to match `omega`, got (3,)": lambda: phi.log(x3),
    "RandomFeatures: `x` must have shape (..., tokens, width), got (3,)": lambda: taylor(x3),
    "RandomFeatures.rotated: `by` must be an integer, got 1.5": lambda: phi.rotated(before, 1.5),
    f"random_features: did you mean 'favor++'? `kind` must be one of {NAMES}, got 'favor'": lambda: rf("favor"),
    "random_features: `d` must be an integer ≥ 1, got 0": lambda: rf(d=0),
    "random_features: `d` must be an integer ≥ 2, got 1": lambda: rf("simplex", d=1),
    "random_features: `seed` must be an integer ≥ 0, got -1": lambda: rf(seed=-1),
    "random_features: `seed` must be an integer ≥ 0, got None": lambda: rf(seed=None),
    "random_features: `r` must be an integer ≥ 1, got 0": lambda: rf(r=0),
    "random_features: `r` must be an integer ≥ 1, got None": lambda: rf(r=None),
    "random_features: `r` must be even for hyperbolic, which makes two features of each direction, got 5": lambda: rf(
        "hyperbolic", r=5
    ),
    "random_features: `r` must be None for taylor, whose features are 1 + d + d², got 5": lambda: rf("taylor", r=5),
    "random_features: `a` must be None but for favor++, got 1": lambda: rf(a=1),
    "random_features: `a` must be a finite number ≥ 0 for favor++, |x + y|² as fixed in advance, got None": lambda: rf(
        "favor++"
    ),
    "random_features: `a` must be a finite number ≥ 0 for favor++, |x + y|² as fixed in advance, got -1": lambda: rf(
        "favor++", a=-1
    ),
    "random_features: `a` must be a finite number ≥ 0 for favor++, |x + y|² as fixed in advance, got inf": lambda: rf(
        "favor++", a=float("inf")
    ),
    f"mean_squared_error: `kind` must be one of {NAMES}, got 'fourier'": lambda: mean_squared_error(
        "fourier", x3, x3, 2
    ),
    "mean_squared_error: `y` must have shape (..., 3) to match `x`, got (2,)": lambda: mean_squared_error(
        "positive", x3, x3[:2], 2
    ),
    "mean_squared_error: `x` must have shape (..., width), got ()": lambda: mean_squared_error(
        "positive", x3[0], x3, 2
    ),
    "mean_squared_error: `d` must be the width of `x` and `y`, an integer ≥ 2, got 1": lambda: mean_squared_error(
        "simplex", x3[:1], x3[:1], 2
    ),
    "mean_squared_error: leading axes (2,) of `y` must broadcast with (4,) of `x`": lambda: mean_squared_error(
        "positive", omega, omega[:2], 2
    ),
    (
        "mean_squared_error: `r` must be even for trigonometric, which makes two features of each direction, got 3"
    ): lambda: mean_squared_error("trigonometric", x3, x3, 3),
    "mean_squared_error: `r` must be None for taylor, whose features are 1 + d + d², got 3": lambda: mean_squared_error(
        "taylor", x3, x3, 3
    ),
    "mean_squared_error: `a` must be None but for favor++, got 1": lambda: mean_squared_error(
        "positive", x3, x3, 3, a=1
    ),
    "mean_squared_error: `a` must be a finite number ≥ 0 for favor++, |x + y|² as fixed in advance, got None": lambda: (
        mean_squared_error("favor++", x3, x3, 3)
    ),
}
TYPE_ERRORS: Table = {
    "RandomFeatures: `omega` must be an array (NumPy, torch, JAX, or of a refimpl system), got list": lambda: (
        RandomFeatures("positive", [[1.0]])
    ),
    "RandomFeatures: `omega` has dtype float64, `x` has float32; convert one of them explicitly": lambda: phi(
        x3[None].astype(np.float32)
    ),
    "RandomFeatures.rotated: `rope` must be a Rope, got NoneType": lambda: phi.rotated(None, 1),
    "random_features: `system` must be a System, got module": lambda: rf(system=np),
}
NOT_DEFINED: Table = {
    "exp is not defined in ℚ; a map to taylor features needs a real system": lambda: taylor(QQ.random((2, 3), 0)),
    (
        "RandomFeatures.rotated: directions are rotated under RoPE before the kernel; under RoPE after φ, "
        "shift the state itself"
    ): lambda: phi.rotated(after, 1),
    "RandomFeatures.rotated: taylor features have no directions to rotate; let positions go on": lambda: taylor.rotated(
        before, 1
    ),
    "exp is not defined in ℚ; a map to positive features needs a real system": lambda: rf(system=QQ),
}
CASES = cases({ValueError: VALUE_ERRORS, TypeError: TYPE_ERRORS, NotDefined: NOT_DEFINED})
