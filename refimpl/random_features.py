"""Random features for the softmax kernel SM(x, y) = exp(x·y): maps φ with E φ(x)·φ(y) = SM(x, y), and how far off they are.

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

from .errors import NotDefined, brief, choose
from .feature_maps import outer
from .rope import Rope, rotate
from .shapes import instance, integer, lead, namespace, shape
from .systems import System, floats, require, system_of
from .systems.array import array_namespace
from .systems.fast import quiet
from .token_wise import constant

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
            namespace("RandomFeatures", omega=self.omega)
            shape("RandomFeatures", "omega", self.omega, "directions", "width")
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
        xp = namespace("RandomFeatures", x=x, **({} if self.omega is None else {"omega": self.omega}))
        require(system_of(x), "real", f"a map to {self.name}")
        d = "width" if self.omega is None else self.omega.shape[-1]
        shape("RandomFeatures", "x", x, "tokens", d, like="" if self.omega is None else "to match `omega`")
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
            p = A * xp.sum(self.omega * self.omega, axis=-1)[..., None, :] + xp.sqrt(s) * p + xp.log(s) * x.shape[-1] / 4
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
        instance(who, "rope", rope, Rope)
        if rope.placement != "before":
            raise NotDefined(f"{who}: directions turn under RoPE before the kernel; under RoPE after φ the state itself turns, by shift")
        if self.omega is None:
            raise NotDefined(f"{who}: {self.name} have no directions to turn; keep running positions")
        integer(who, "by", by)
        base, angle = (self.omega, by) if self.drawn is None else (self.drawn, self.turn + by)
        return replace(self, omega=rotate(base, *rope.table([angle]), layout=rope.layout), turn=self.turn + by)


def same_draw(a: Any, b: Any) -> bool:
    """Were both maps drawn from one seed, whatever they have turned since?"""
    draws = [(x.kind, x.A, x.seed, x.omega.shape) if isinstance(x, RandomFeatures) and x.seed is not None else None for x in (a, b)]
    return draws[0] is not None and draws[0] == draws[1]


def random_features(kind: str, r: int | None, d: int, *, seed: int, system: System, a: float | None = None) -> RandomFeatures:
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
    instance(who, "system", system, System)
    require(system, "real", f"a map to {kind} features")
    A = Fraction(_favor(_statistic(who, kind, a), integer(who, "d", d, least=2 if kind == "simplex" else 1)))
    rng = np.random.default_rng(integer(who, "seed", seed, least=0))
    r = _count(who, kind, r)
    if r is None:
        return RandomFeatures(kind, None)
    omega = system.convert(_directions(kind, r // 2 if kind in PAIRS else r, d, rng))
    return RandomFeatures(kind, omega, A, seed, drawn=omega)


def _directions(kind: str, count: int, d: int, rng: np.random.Generator) -> np.ndarray:
    if kind not in BLOCKS:
        return rng.standard_normal((count, d))
    Q = _orthonormal(rng.standard_normal((-(-count // d), d, d)))
    V = Q if kind == "orthogonal" else math.sqrt(d / (d - 1)) * (Q - np.sum(Q, axis=-2, keepdims=True) / d)
    D = np.sqrt(rng.chisquare(d, (len(Q), d, 1)))
    return (D * V).reshape(-1, d)[:count]


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


def _count(who: str, kind: str, r: int | None) -> int | None:
    if kind == "taylor":
        if r is not None:
            raise ValueError(f"{who}: `r` must be None for taylor, whose features are 1 + d + d², got {brief(r)}")
        return None
    if integer(who, "r", r, least=1) % 2 and kind in PAIRS:
        raise ValueError(f"{who}: `r` must be even for {kind}, which makes two features of each direction, got {r}")
    return r


def _statistic(who: str, kind: str, a: float | None) -> float:
    if kind != "favor++":
        if a is not None:
            raise ValueError(f"{who}: `a` must be None but for favor++, got {brief(a)}")
        return 0.0
    if isinstance(a, bool) or not isinstance(a, int | float | Fraction) or not 0 <= a < math.inf:
        raise ValueError(f"{who}: `a` must be a finite number ≥ 0 for favor++, |x + y|² as fixed in advance, got {brief(a)}")
    return float(a)


def _favor(a: float, d: int) -> float:
    """A = (1 − 1/ρ)/8, ρ = 2d/(√((2a+d)² + 8da) + 2a + d): the A of least error at |x + y|² = a.   Source: Likhosherstov et al. 2022."""
    rho = 2 * d / (math.sqrt((2 * a + d) ** 2 + 8 * d * a) + 2 * a + d)
    return (1 - 1 / rho) / 8


def mean_squared_error(kind: str, x: Any, y: Any, r: int | None, *, a: float | None = None) -> Any:
    """E (φ(x)·φ(y) − exp(x·y))² of random_features(kind, r, d, a=a): the value itself, not a bound; in float64, on the host.

    With u = x·y, a = |x+y|², c = |x−y|², P the pairs of directions that share a block and Cov < 0 their covariance in it:

        positive               e^{a+2u} (1 − e^{−a}) / r
        hyperbolic             (1 − e^{−a}) · positive
        trigonometric          e^{|x|²+|y|²} (1 − e^{−c})² / r
        favor++                e^{L+2u} (1 − e^{−L}) / r,   L = d log(1−4A) − d/2 log(1−8A) + 2a (1−4A)/(1−8A) − a
        orthogonal, simplex    e^{a+2u} (1 − e^{−a} + 2P/r · e^{−a} Cov) / r
        taylor                 (e^u − 1 − u − u²/2)² = (u³/6 · ₁F₁(1; 4; u))²

    x, y : (..., d), of any system whose numbers are rationals     ->  (...); inf beyond float64
    Source   as for RandomFeatures. Ours: the values for blocks, for which papers have bounds; the forms, in which little cancels
    """
    from scipy.special import hyp1f1

    who = "mean_squared_error"
    choose(who, "kind", kind, KINDS)
    statistic, r = _statistic(who, kind, a), _count(who, kind, r)
    x, y = floats(x), floats(y)
    shape(who, "x", x, "width")
    d = integer(who, "d", x.shape[-1], least=2 if kind == "simplex" else 1, other="the width of `x` and `y`, ")
    shape(who, "y", y, d, like="to match `x`")
    lead(who, x=x[..., None], y=y[..., None])
    u, plus, minus = (np.sum(v, axis=-1) for v in (x * y, (x + y) ** 2, (x - y) ** 2))
    with quiet():
        if r is None:
            return (u**3 / 6 * hyp1f1(1, 4, u)) ** 2
        if kind == "trigonometric":
            return np.exp(plus - 2 * u + 2 * np.log(-np.expm1(-minus))) / r  # inf · 0 is 0 here, at x = y
        if kind == "favor++":
            A = _favor(statistic, d)
            L = d * math.log(1 - 4 * A) - d / 2 * math.log(1 - 8 * A) + plus * (2 * (1 - 4 * A) / (1 - 8 * A) - 1)
            return np.exp(L + 2 * u) * -np.expm1(-L) / r
        spread = -np.expm1(-plus)
        if kind == "hyperbolic":
            return np.exp(plus + 2 * u) * spread**2 / r
        if kind in BLOCKS and (P := r // d * math.comb(d, 2) + math.comb(r % d, 2)):
            spread = spread + 2 * P / r * np.exp(-plus) * _covariance(np.minimum(plus, 100), d, kind)  # beyond, e^−a says all
        return np.exp(plus + 2 * u) * spread / r


def _covariance(a: Any, d: int, kind: str) -> Any:
    """The covariance of exp(ω_1·z) and exp(ω_2·z), relative to the square of their mean, for two directions of a block, |z|² = a.

        Σ_{l≥1} N_l P_l(κ) m_l²,   κ = 0 or −1/(d−1),   m_l = (a/2)^{l/2} Γ((d+l)/2)/Γ(d/2+l) ₁F₁(l/2; d/2+l; −a/2)

    Our derivation: exp(ρ v·z) is a series in the Legendre polynomials P_l of dimension d, P_l(1) = 1. Over all turns of a pair (v_1, v_2)
    the mean of P_l(v_1·ẑ) P_k(v_2·ẑ) is P_l(κ)/N_l if k = l, where N_l is the number of harmonics, else 0; and m_l e^{a/2} is the mean of
    the coefficients over ρ ~ χ_d. The term l = 0 is the square of the mean. With κ = 0 there are no odd l, and l = 2 is negative;
    the simplex has l = 1 before it, which is negative too.
    """
    from scipy.special import gammaln, hyp1f1, xlogy

    kappa, degree = -1 / (d - 1) if kind == "simplex" else 0.0, 1
    total, size, before, P = np.zeros_like(a), a, 1.0, kappa
    while np.any(size > 2.0**-60 * np.abs(total)):
        log_N = math.log((2 * degree + d - 2) / (degree + d - 2)) + gammaln(degree + d - 1) - gammaln(degree + 1) - gammaln(d - 1)
        log_m = xlogy(degree / 2, a / 2) + gammaln((d + degree) / 2) - gammaln(d / 2 + degree)
        size = np.exp(log_N + 2 * log_m) * hyp1f1(degree / 2, d / 2 + degree, -a / 2) ** 2  # the term is no larger: |P| ≤ 1
        total = total + P * size
        before, P = P, ((2 * degree + d - 2) * kappa * P - degree * before) / (degree + d - 2)
        degree += 1
    return total
