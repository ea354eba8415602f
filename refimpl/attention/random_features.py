"""Random features for the softmax kernel SM(x, y) = exp(x·y): maps φ with E φ(x)·φ(y) = SM(x, y).

Attention at the usual scale takes x = q/d^¼ and y = k/d^¼. Everywhere r counts the features that come out: trigonometric and
hyperbolic maps make two of each direction, so theirs are r/2 directions (where papers count pairs, their r is half of ours).
Papers are cited as read in notes on them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from ..checks import check_integer, check_shape, check_type, common_namespace
from ..errors import NotDefined, brief, choose
from ..systems import System, require
from ..systems.floats import array_namespace, constant, require_of
from .feature_maps import outer
from .rope import Rope, rotate

KINDS = ("positive", "hyperbolic", "trigonometric", "favor++", "orthogonal", "simplex", "taylor")
PAIRS = ("hyperbolic", "trigonometric")  # two features for each direction
BLOCKS = ("orthogonal", "simplex")  # directions in blocks of d


@dataclass(frozen=True, eq=False)
class RandomFeatures:
    """A map φ with E φ(x)·φ(y) = exp(x·y), for directions ω_i ~ N(0, I_d).

        positive        r^{-½} exp(ω_i·x − |x|²/2)
        hyperbolic      r^{-½} exp(±ω_i·x − |x|²/2)
        trigonometric   (r/2)^{-½} exp(|x|²/2) [sin ω_i·x, cos ω_i·x]
        favor++         r^{-½} (1−4A)^{d/4} exp(A|ω_i|² + √(1−4A) ω_i·x − |x|²/2),  A ≤ 0
        orthogonal      as positive, in each block of d the directions at right angles
        simplex         as positive, in each block of d the directions at cosines −1/(d−1)
        taylor          [1, x, vec(xxᵀ)/√2], no chance: φ(x)·φ(y) = 1 + u + u²/2, u = x·y

    omega : (..., r, d), or (..., r/2, d) where two features come of a direction; None for taylor      A : 0 but for favor++
    seed, turn : where `random_features` drew ω, and how many positions it was turned since; None: ω comes from elsewhere
    Needs    real
    Source   Rahimi and Recht 2007 (trigonometric), Choromanski et al. 2021 (positive, hyperbolic, orthogonal), Likhosherstov et al.
             2022 (favor++), Reid et al. 2023 (simplex), Arora et al. 2024 (taylor: Based, of x that is scaled already)
    """

    kind: str
    omega: Any
    A: Fraction | float = 0
    seed: int | None = None
    turn: int = 0
    drawn: Any = None  # ω before it turned: to turn it by a and then by b is to turn it by a + b, bit for bit

    needs = "real"

    def __post_init__(self) -> None:
        choose("RandomFeatures", "kind", self.kind, KINDS)
        if (self.omega is None) != (self.kind == "taylor"):
            must = "None for taylor" if self.kind == "taylor" else f"an array (directions, width) for {self.kind}"
            raise ValueError(f"RandomFeatures: `omega` must be {must}, got {brief(self.omega)}")
        if self.omega is not None:
            common_namespace("RandomFeatures", omega=self.omega)
            check_shape("RandomFeatures", "omega", self.omega, "directions", "width")
        right = not isinstance(self.A, bool) and isinstance(self.A, int | float | Fraction) and -math.inf < self.A <= 0
        if not right or (self.A != 0 and self.kind != "favor++"):
            limits = "a finite number ≤ 0" if self.kind == "favor++" else "0 but for favor++"
            raise ValueError(f"RandomFeatures: `A` must be {limits}, got {brief(self.A)}")

    @property
    def name(self) -> str:
        return f"{self.kind} features"

    __name__ = name

    @property
    def positive(self) -> bool:
        """Is every feature > 0?"""
        return self.kind not in ("trigonometric", "taylor")

    def features(self, d: int) -> int:
        """How many come out."""
        return 1 + d + d * d if self.omega is None else self.omega.shape[-2] * (2 if self.kind in PAIRS else 1)

    def log(self, x: Any, /) -> tuple[Any, Any]:
        """(f, c) with φ(x) = f · exp(c): finite where φ(x) itself would overflow or vanish.

        x : (..., n, d)    ->  f : (..., n, r), all 1 if φ is positive;  c : (..., n, r), or (..., n, 1) if it is not
        """
        xp = common_namespace("RandomFeatures", x=x, **({} if self.omega is None else {"omega": self.omega}))
        require_of(x, "real", f"a map to {self.name}")
        d = "width" if self.omega is None else self.omega.shape[-1]
        check_shape("RandomFeatures", "x", x, "tokens", d, like="" if self.omega is None else "to match `omega`")
        one, half = xp.ones_like(x[..., :1]), xp.sum(x * x, axis=-1, keepdims=True) / 2
        if self.kind == "taylor":
            return xp.concat([one, x, outer(x, x) / xp.sqrt(one + one)], axis=-1), xp.zeros_like(one)
        p = xp.matmul(x, xp.matrix_transpose(self.omega))  # (..., n, directions)
        if self.kind == "trigonometric":
            return xp.concat([xp.sin(p), xp.cos(p)], axis=-1) / xp.sqrt(one * p.shape[-1]), half
        if self.kind == "hyperbolic":
            p = xp.concat([p, -p], axis=-1)
        if self.kind == "favor++":
            A, s = constant(x, Fraction(self.A)), one * constant(x, 1 - 4 * Fraction(self.A))
            p = (
                A * xp.sum(self.omega * self.omega, axis=-1)[..., None, :]
                + xp.sqrt(s) * p
                + xp.log(s) * x.shape[-1] / 4
            )
        c = p - half - xp.log(one * p.shape[-1]) / 2
        return xp.ones_like(c), c

    def __call__(self, x: Any, /) -> Any:
        """φ(x) = f · exp(c), (..., n, d) -> (..., n, r)."""
        f, c = self.log(x)
        return f * array_namespace(x).exp(c)

    def rotated(self, rope: Rope, by: int) -> RandomFeatures:
        """The map with directions R_by ω, through which a state is read that was shifted by `by`: neither S nor z is touched.

            φ_{Rω}(R x) = φ_ω(x)

        Needs    RoPE before the kernel; a map of ω·x, |ω| and |x| alone, so not taylor.  Gaussian, Haar and simplex laws stay what they are
        Source   our derivation
        """
        who = "RandomFeatures.rotated"
        check_type(who, "rope", rope, Rope)
        if rope.placement != "before":
            raise NotDefined(
                f"{who}: directions turn under RoPE before the kernel; under RoPE after φ the state itself turns, by shift"
            )
        if self.omega is None:
            raise NotDefined(f"{who}: {self.name} have no directions to turn; keep running positions")
        check_integer(who, "by", by)
        base, angle = (self.omega, by) if self.drawn is None else (self.drawn, self.turn + by)
        return replace(self, omega=rotate(base, *rope.table([angle]), layout=rope.layout), turn=self.turn + by)


def same_draw(a: Any, b: Any) -> bool:
    """Were both maps drawn from one seed, whatever they have turned since?"""
    draws = [
        (x.kind, x.A, x.seed, x.omega.shape) if isinstance(x, RandomFeatures) and x.seed is not None else None
        for x in (a, b)
    ]
    return draws[0] is not None and draws[0] == draws[1]


def random_features(
    kind: str, r: int | None, d: int, *, seed: int, system: System, a: float | None = None
) -> RandomFeatures:
    """Draw a map to r features of vectors of width d: on the host in float64, then converted to the numbers of `system`.

    a : for favor++, the |x + y|² for which its error is to be least. It must be known in advance: a mean over the text at hand
        would let a token see the future.
    Blocks are Haar's, norms χ_d. r need not be a multiple of d: the last block is cut.

    >>> from refimpl import Float
    >>> x = Float().random((3, 4), 0)
    >>> random_features("positive", 256, 4, seed=0, system=Float())(x).shape
    (3, 256)
    """
    who = "random_features"
    choose(who, "kind", kind, KINDS)
    check_type(who, "system", system, System)
    require(system, "real", f"a map to {kind} features")
    A = Fraction(least_error(statistic(who, kind, a), check_integer(who, "d", d, least=2 if kind == "simplex" else 1)))
    rng = np.random.default_rng(check_integer(who, "seed", seed, least=0))
    r = count(who, kind, r)
    if r is None:
        return RandomFeatures(kind, None)
    omega = system.convert(_directions(kind, r // 2 if kind in PAIRS else r, d, rng))
    return RandomFeatures(kind, omega, A, seed, drawn=omega)


def _directions(kind: str, n: int, d: int, rng: np.random.Generator) -> np.ndarray:
    if kind not in BLOCKS:
        return rng.standard_normal((n, d))
    Q = _orthonormal(rng.standard_normal((-(-n // d), d, d)))
    V = Q if kind == "orthogonal" else math.sqrt(d / (d - 1)) * (Q - np.sum(Q, axis=-2, keepdims=True) / d)
    D = np.sqrt(rng.chisquare(d, (len(Q), d, 1)))
    return (D * V).reshape(-1, d)[:n]


def _orthonormal(G: np.ndarray) -> np.ndarray:
    """Gram and Schmidt, row by row and each twice, on (..., d, d): of Gaussian rows, Haar's law.

    By sums and products of NumPy alone: LAPACK's last bits depend on the processor, and a seed must mean the same everywhere.
    """
    Q = np.zeros_like(G)
    for i in range(G.shape[-1]):
        v = G[..., i, :]
        for _ in range(2):
            along = np.sum(Q[..., :i, :] * v[..., None, :], axis=-1, keepdims=True)
            v = v - np.sum(along * Q[..., :i, :], axis=-2)
        Q[..., i, :] = v / np.sqrt(np.sum(v * v, axis=-1, keepdims=True))
    return Q


def count(who: str, kind: str, r: int | None) -> int | None:
    if kind == "taylor":
        if r is not None:
            raise ValueError(f"{who}: `r` must be None for taylor, whose features are 1 + d + d², got {brief(r)}")
        return None
    if check_integer(who, "r", r, least=1) % 2 and kind in PAIRS:
        raise ValueError(f"{who}: `r` must be even for {kind}, which makes two features of each direction, got {r}")
    return r


def statistic(who: str, kind: str, a: float | None) -> float:
    if kind != "favor++":
        if a is not None:
            raise ValueError(f"{who}: `a` must be None but for favor++, got {brief(a)}")
        return 0.0
    if isinstance(a, bool) or not isinstance(a, int | float | Fraction) or not 0 <= a < math.inf:
        raise ValueError(
            f"{who}: `a` must be a finite number ≥ 0 for favor++, |x + y|² as fixed in advance, got {brief(a)}"
        )
    return float(a)


def least_error(a: float, d: int) -> float:
    """A = (1 − 1/ρ)/8, ρ = 2d/(√((2a+d)² + 8da) + 2a + d): the A of least error at |x + y|² = a.   Source: Likhosherstov et al. 2022."""
    rho = 2 * d / (math.sqrt((2 * a + d) ** 2 + 8 * d * a) + 2 * a + d)
    return (1 - 1 / rho) / 8
