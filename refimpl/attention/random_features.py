"""Random features for the softmax kernel SM(x, y) = exp(x·y): maps φ with E φ(x)·φ(y) = SM(x, y).

Attention at the usual scale takes x = q/d^¼ and y = k/d^¼. Everywhere r is the number of features.
The trigonometric and hyperbolic maps make two features of each direction, so they have r/2
directions. (Papers that count pairs have half of our r.)
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ..arrays import Array
from ..budget import spend
from ..checks import check_integer, check_shape, check_type, common_namespace
from ..errors import NotDefined, brief, choose
from ..systems import System, floats, require, system_of
from ..systems.floats import array_namespace, constant, quiet, require_of
from .feature_maps import Kernel, outer
from .memory import LogFeatures
from .rope import Rope, rotate

KINDS = ("positive", "hyperbolic", "trigonometric", "favor++", "orthogonal", "simplex", "taylor")
PAIRS = ("hyperbolic", "trigonometric")  # two features for each direction
BLOCKS = ("orthogonal", "simplex")  # directions in blocks of d


@dataclass(frozen=True, eq=False)
class RandomFeatures(LogFeatures):
    """A map φ with E φ(x)·φ(y) = exp(x·y), for directions ω_i ~ N(0, I_d).

        positive        r^{-½} exp(ω_i·x − |x|²/2)
        hyperbolic      r^{-½} exp(±ω_i·x − |x|²/2)
        trigonometric   (r/2)^{-½} exp(|x|²/2) [sin ω_i·x, cos ω_i·x]
        favor++         r^{-½} (1−4A)^{d/4} exp(A|ω_i|² + √(1−4A) ω_i·x − |x|²/2),  A ≤ 0
        orthogonal      as positive, in each block of d the directions at right angles
        simplex         as positive, in each block of d the directions at cosines −1/(d−1)
        taylor          [1, x, vec(xxᵀ)/√2], not random: φ(x)·φ(y) = 1 + u + u²/2, u = x·y

    omega : (..., r, d), or (..., r/2, d) where a direction has two features; None for taylor
    A : 0 except for favor++
    seed : the seed from which `random_features` drew ω; None: ω comes from elsewhere
    turn, unturned : by how many positions ω was rotated since then, and ω before that
    Needs    real
    Source   Rahimi and Recht 2007 (trigonometric), Choromanski et al. 2021 (positive, hyperbolic,
             orthogonal), Likhosherstov et al. 2022 (favor++), Reid et al. 2023 (simplex), Arora et
             al. 2024 (taylor: Based, of x that is scaled already)
    """

    kind: str
    omega: Array | None
    A: Fraction | float = 0
    seed: int | None = None
    turn: int = 0
    unturned: Array | None = None

    needs: ClassVar[str] = "real"

    def __post_init__(self) -> None:
        choose("RandomFeatures", "kind", self.kind, KINDS)
        if (self.omega is None) != (self.kind == "taylor"):
            must = "None for taylor" if self.kind == "taylor" else f"an array (directions, width) for {self.kind}"
            raise ValueError(f"RandomFeatures: `omega` must be {must}, got {brief(self.omega)}")
        if self.omega is not None:
            common_namespace("RandomFeatures", omega=self.omega)
            check_shape("RandomFeatures", "omega", self.omega, "directions", "width")
        if self.seed is not None:
            check_integer("RandomFeatures", "seed", self.seed, least=0)
        check_integer("RandomFeatures", "turn", self.turn)
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
        return self.kind not in ("trigonometric", "taylor")

    def features(self, d: int) -> int:
        return 1 + d + d * d if self.omega is None else self.omega.shape[-2] * (2 if self.kind in PAIRS else 1)

    @quiet()
    def log(self, x: Array, /) -> tuple[Array, Array]:
        """(f, c) with φ(x) = f · exp(c): finite where φ(x) itself would overflow or vanish.

        x : (..., n, d)    ->  f : (..., n, r);  c : (..., n, r), and f = 1, if φ is positive, else
        c : (..., n, 1)
        """
        xp = common_namespace("RandomFeatures", x=x, **self.directions or {})
        require_of(x, "real", f"a map to {self.name}")
        width, like = ("width", "") if self.omega is None else (self.omega.shape[-1], "to match `omega`")
        check_shape("RandomFeatures", "x", x, "tokens", width, like=like)
        one, half = xp.ones_like(x[..., :1]), xp.sum(x * x, axis=-1, keepdims=True) / 2
        if self.omega is None:
            return xp.concat([one, x, outer(x, x) / xp.sqrt(one + one)], axis=-1), xp.zeros_like(one)
        p = xp.matmul(x, xp.matrix_transpose(self.omega))  # (..., n, directions)
        if self.kind == "trigonometric":
            return xp.concat([xp.sin(p), xp.cos(p)], axis=-1) / xp.sqrt(one * p.shape[-1]), half
        if self.kind == "hyperbolic":
            p = xp.concat([p, -p], axis=-1)
        if self.kind == "favor++":
            A, s = constant(x, Fraction(self.A)), one * constant(x, 1 - 4 * Fraction(self.A))
            squares = xp.sum(self.omega * self.omega, axis=-1)[..., None, :]
            p = A * squares + xp.sqrt(s) * p + xp.log(s) * x.shape[-1] / 4
        c = p - half - xp.log(one * p.shape[-1]) / 2
        return xp.ones_like(c), c

    def __call__(self, x: Array, /) -> Array:
        """φ(x) = f · exp(c), (..., n, d) -> (..., n, r)."""
        f, c = self.log(x)
        return f * array_namespace(x).exp(c)

    def rotated(self, rope: Rope, by: int) -> Self:
        """The map with directions R_by ω. It reads a state shifted by `by`; S and z do not change.

            φ_{Rω}(R x) = φ_ω(x)        (theorem rotation_covariance)

        Rotations by a and then by b give the same bits as one rotation of the drawn ω by a + b.
        Needs    RoPE before the kernel; a map of ω·x, |ω| and |x| alone, so not taylor. The laws of
                 the directions (Gaussian, Haar, simplex) do not change
        Source   our derivation
        """
        who = "RandomFeatures.rotated"
        check_type(who, "rope", rope, Rope)
        if rope.placement != "before":
            after = "under RoPE after φ, shift the state itself"
            raise NotDefined(f"{who}: directions are rotated under RoPE before the kernel; {after}")
        if self.omega is None:
            raise NotDefined(f"{who}: {self.name} have no directions to rotate; let positions go on")
        check_integer(who, "by", by)
        start, angle = (self.omega, by) if self.unturned is None else (self.unturned, self.turn + by)
        return replace(self, omega=rotate(start, *rope.table([angle]), layout=rope.layout), turn=self.turn + by)

    def map_arrays(self, f: Callable[[Array, int], Array]) -> Self:
        return self if self.omega is None else replace(self, omega=f(self.omega, 2))

    @property
    def directions(self) -> dict[str, Array] | None:
        return None if self.omega is None else {"omega": self.omega}

    def arrays(self) -> dict[str, Array]:
        """The arrays that a file must hold: none if ω can be drawn again from its seed."""
        return self.directions or {} if self.seed is None else {}

    def metadata(self) -> dict[str, Any]:
        """The metadata that a file needs besides; for ω drawn from a seed it has a digest of ω."""
        found: dict[str, Any] = {"map": self.kind, "A": str(Fraction(self.A))}
        if self.seed is None or self.unturned is None:
            return found
        digest = hashlib.sha256(floats(self.unturned).astype("<f8").tobytes()).hexdigest()
        return found | {"seed": self.seed, "turn": self.turn, "omega": digest}

    @classmethod
    def from_metadata(cls, metadata: dict[str, Any], omega: Array | None, S: Array, kernel: Kernel, width: int) -> Self:
        """The map that a file describes, after checks. If the file has a seed, ω is drawn again.

        S : (..., r, m), read through the map      width : the width of a key
        """
        kind = str(metadata.get("map"))
        ratio = re.fullmatch(r"(-?\d{1,400})(?:/(\d{1,400}))?", str(metadata.get("A")))
        if not ratio or not int(ratio[2] or 1):
            raise ValueError(f"`A` must be a fraction such as '-1/8', got {brief(metadata.get('A'))}")
        A = Fraction(int(ratio[1]), int(ratio[2] or 1))
        if kind == "taylor" or "seed" not in metadata:
            return cls(kind, omega, A)
        if omega is not None:
            raise ValueError("`b_omega` must not be there for directions drawn from a seed, got both")
        seed = check_integer("metadata", "seed", metadata["seed"], least=0, most=2**64 - 1)
        turn = check_integer("metadata", "turn", metadata.get("turn"), least=-(2**53), most=2**53)
        law = "positive" if kind == "favor++" else kind  # the same directions
        spend_on_directions(kind, S.shape[-2], width)
        omega = random_features(law, S.shape[-2], width, seed=seed, system=system_of(S)).omega
        phi = cls(kind, omega, A, seed, unturned=omega)
        if phi.metadata()["omega"] != metadata.get("omega"):
            got = "another: drawn by another library, or changed"
            raise ValueError(f"`omega` must be the digest of the directions of seed {seed}, got {got}")
        if turn and kernel.rope is None:
            raise ValueError(f"`turn` must be 0 in a model without RoPE, got {turn}")
        return phi.rotated(kernel.rope, turn) if kernel.rope is not None and turn else phi

    @property
    def nbytes(self) -> int:
        """Bytes of the map in a file: its arrays; or a seed and a turn, 8 bytes each; and A."""
        return super().nbytes + 16 * (self.seed is not None) + 8 * (self.A != 0)


def same_draw(a: object, b: object) -> bool:
    """Were both maps drawn from one seed? They may have been rotated since."""
    if not isinstance(a, RandomFeatures) or not isinstance(b, RandomFeatures) or a.omega is None or b.omega is None:
        return False
    return a.seed is not None and (a.kind, a.A, a.seed, a.omega.shape) == (b.kind, b.A, b.seed, b.omega.shape)


def random_features(
    kind: str, r: int | None, d: int, *, seed: int, system: System, a: float | None = None
) -> RandomFeatures:
    """Draw a map to r features of vectors of width d: on the host in float64, then converted.

    a : for favor++, the |x + y|² for which its error is to be least. It must be known in advance: a
        mean over the text at hand would let a token see the future.
    Blocks follow Haar's law, norms χ_d. If r is not a multiple of d, the last block is cut.

    >>> from refimpl import Float
    >>> x = Float().random((3, 4), 0)
    >>> random_features("positive", 256, 4, seed=0, system=Float())(x).shape
    (3, 256)
    """
    who = "random_features"
    choose(who, "kind", kind, KINDS)
    check_type(who, "system", system, System)
    require(system, "real", f"a map to {kind} features")
    statistic = check_statistic(who, kind, a)
    A = Fraction(best_A(statistic, check_integer(who, "d", d, least=2 if kind == "simplex" else 1)))
    rng = np.random.default_rng(check_integer(who, "seed", seed, least=0))
    r = check_feature_count(who, kind, r)
    if r is None:
        return RandomFeatures(kind, None)
    if r * d > MOST_NUMBERS:
        raise ValueError(f"{who}: `r` and `d` must give at most 2^32 numbers, got {brief(r)} and {brief(d)}")
    omega = system.convert(draw_directions(kind, r // 2 if kind in PAIRS else r, d, rng))
    return RandomFeatures(kind, omega, A, seed, unturned=omega)


MOST_NUMBERS = 2**32  # of directions drawn at once


def spend_on_directions(kind: str, r: int, d: int) -> None:
    """Charge a file for directions that it does not hold: what stays in memory, and the drawing."""
    numbers = (-(-r // d) * d if kind in BLOCKS else r) * d
    steps = 10 + (4 * d if kind in BLOCKS else 0)  # a normal number; Gram–Schmidt, twice
    spend(f"{r} directions of width {d}, drawn from a seed,", memory=24 * numbers, operations=steps * numbers)


def draw_directions(kind: str, n: int, d: int, rng: np.random.Generator) -> NDArray[np.float64]:
    if kind not in BLOCKS:
        return rng.standard_normal((n, d))
    Q = orthonormal_rows(rng.standard_normal((-(-n // d), d, d)))
    V = Q if kind == "orthogonal" else math.sqrt(d / (d - 1)) * (Q - np.sum(Q, axis=-2, keepdims=True) / d)
    D = np.sqrt(rng.chisquare(d, (len(Q), d, 1)))
    return (D * V).reshape(-1, d)[:n]


def orthonormal_rows(G: NDArray[np.float64]) -> NDArray[np.float64]:
    """Gram–Schmidt on the rows of G (..., d, d), each twice: Gaussian rows give Haar's law.

    This uses only sums and products of NumPy: LAPACK's last bits depend on the processor, and a
    seed must mean the same everywhere.
    """
    Q = np.zeros_like(G)
    for i in range(G.shape[-1]):
        v = G[..., i, :]
        for _ in range(2):
            along = np.sum(Q[..., :i, :] * v[..., None, :], axis=-1, keepdims=True)
            v = v - np.sum(along * Q[..., :i, :], axis=-2)
        Q[..., i, :] = v / np.sqrt(np.sum(v * v, axis=-1, keepdims=True))
    return Q


def check_feature_count(who: str, kind: str, r: int | None) -> int | None:
    if kind == "taylor" and r is not None:
        raise ValueError(f"{who}: `r` must be None for taylor, whose features are 1 + d + d², got {brief(r)}")
    if kind != "taylor" and check_integer(who, "r", r, least=1) % 2 and kind in PAIRS:
        raise ValueError(f"{who}: `r` must be even for {kind}, which makes two features of each direction, got {r}")
    return r


def check_statistic(who: str, kind: str, a: float | None) -> float:
    if kind != "favor++":
        if a is not None:
            raise ValueError(f"{who}: `a` must be None but for favor++, got {brief(a)}")
        return 0.0
    if isinstance(a, bool) or not isinstance(a, int | float | Fraction) or not 0 <= a < math.inf:
        wanted = "a finite number ≥ 0 for favor++, |x + y|² as fixed in advance"
        raise ValueError(f"{who}: `a` must be {wanted}, got {brief(a)}")
    return float(a)


def best_A(a: float, d: int) -> float:
    """The A of least error at |x + y|² = a: (1 − 1/ρ)/8, ρ = 2d/(√((2a+d)² + 8da) + 2a + d).

    Source   Likhosherstov et al. 2022
    """
    rho = 2 * d / (math.sqrt((2 * a + d) ** 2 + 8 * d * a) + 2 * a + d)
    return (1 - 1 / rho) / 8
