"""The identities of random features, which hold for directions of any distribution.

So directions are drawn like all other numbers. Only feature_error, on the mean and the mean squared
error, needs the distribution of random_features; it is checked by sampling.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

from ...arrays import Array
from ...attention.feature_maps import Kernel
from ...attention.linear_attention import State
from ...attention.random_features import BLOCKS, KINDS, PAIRS, RandomFeatures
from ...attention.state import no_text
from ...systems.floats import array_namespace, constant, device
from ..cases import FeatureCase
from ..implementation import Implementation
from ..theorem import DERIVED, Numbers, Sampled, Sides, Theorem

# In a quick run, systems that round see every second of these: each kind once.
ROPES = (("half", 4), ("interleaved", 2), ("half", 2), ("interleaved", 4))
CASES = tuple(
    FeatureCase(phi, *sizes, rope=ROPES[(i + flip) % 4])
    for i, phi in enumerate(KINDS[:-1])
    for flip, sizes in enumerate(((3, 2, 5, 3), (1, 1, 4, 1)))
)
TAYLOR = (FeatureCase("taylor", 0, 3, 4), FeatureCase("taylor", 0, 1, 1), FeatureCase("taylor", 0, 0, 3))
# Shapes that people use: all kinds of wide keys, and one kind of a longer text
WIDE = (
    *((FeatureCase(phi, 3, 2, 65, 128, rope=("half", 64)),) for phi in KINDS[:-1]),
    tuple(FeatureCase(phi, 33, 34, 3, 66, rope=("interleaved", 2)) for phi in KINDS[:-1]),
)


def more_cases(seed: int) -> tuple[FeatureCase, ...]:
    sizes = itertools.cycle(((4, 3, 6, 5), (0, 2, 4, 2), (2, 0, 5, 4)))
    return tuple(FeatureCase(phi, *next(sizes), rope=rope) for phi in KINDS[:-1] for rope in (*ROPES, ("half", 0)))


def draw_features(case: FeatureCase, numbers: Numbers) -> RandomFeatures:
    """A map with drawn directions and, for favor++, a drawn A < 0."""
    omega = numbers.draw(case.r, case.d)
    return RandomFeatures(case.phi, omega, -Fraction(numbers.integers(1, 8, 1)[0], 8) if case.phi == "favor++" else 0)


def rotation_covariance(case: FeatureCase, numbers: Numbers, impl: Implementation) -> Sides:
    """φ_ω(R_p x) = φ_{R_{−p}ω}(x), so rotated directions shift a state, and prompts stack."""
    phi, n = draw_features(case, numbers), case.M + case.n
    q, k, v = (numbers.draw(n, width) for width in (case.d, case.d, 2))
    assert case.rope
    far = 2**21 if case.r > 64 else 1100
    rope, (p,) = numbers.rope(case.rope[0], "before", case.rope[1]), numbers.integers(-50, far, 1)
    yield "φ of turned tokens", phi.rotated(rope, -p)(q), phi(rope(q, [p] * n))
    kernel = Kernel(phi, rope, phi.positive)
    want, _ = impl.linear_attention(q, k, v, kernel)
    past = impl.absorb(no_text(v, phi.features(case.d), 2), k[: case.M, :], v[: case.M, :], kernel)
    text, state = (x[case.M :, :] for x in (q, k, v)), State(past.S, past.z, 0)
    o, _ = impl.linear_attention_recurrent(*text, replace(kernel, phi=phi.rotated(rope, -case.M)), state=state)
    yield f"o after a prompt of {case.M}", o, want[case.M :, :]


def pairs(case: FeatureCase, numbers: Numbers) -> tuple[Array, Array, Any]:
    """x (n, 1, d), y (1, n, d) and their namespace."""
    x, y = numbers.draw(case.n, case.d), numbers.draw(case.n, case.d)
    return x[:, None, :], y[None, :, :], array_namespace(x)


def log_features(case: FeatureCase, numbers: Numbers, impl: Implementation) -> Sides:
    """φ(x)·φ(y) is a scaled mean, over ω, of exp ω·(x+y), cosh ω·(x+y) or cos ω·(x−y)."""
    phi, (x, y, xp) = draw_features(case, numbers), pairs(case, numbers)
    omega, (f, c), (g, e) = xp.matrix_transpose(phi.omega), phi.log(x), phi.log(y)
    half = (xp.sum(x * x, axis=-1) + xp.sum(y * y, axis=-1)) / 2
    if case.phi == "trigonometric":
        want = xp.exp(half) * xp.sum(xp.cos(xp.matmul(x - y, omega)), axis=-1) / case.r
    else:
        p, scale = xp.matmul(x + y, omega), xp.exp(-half)
        if case.phi == "favor++":
            A = Fraction(phi.A)
            root = xp.sqrt(xp.ones_like(half) * constant(x, 1 - 4 * A))
            p = root[..., None] * p + constant(x, 2 * A) * xp.sum(omega * omega, axis=0)
            scale = scale * root**case.d
        top = (xp.exp(p) + xp.exp(-p)) / 2 if case.phi == "hyperbolic" else xp.exp(p)
        want = scale * xp.sum(top, axis=-1) / case.r
    yield "φ(x)·φ(y) by logarithms", xp.sum(f * g * xp.exp(c + e), axis=-1), want
    yield "φ(x)·φ(y)", xp.sum(phi(x) * phi(y), axis=-1), want


def taylor_kernel(case: FeatureCase, numbers: Numbers, impl: Implementation) -> Sides:
    """φ(x)·φ(y) = 1 + u + u²/2, u = x·y."""
    x, y, xp = pairs(case, numbers)
    phi, u = RandomFeatures("taylor", None), xp.sum(x * y, axis=-1)
    yield "φ(x)·φ(y)", xp.sum(phi(x) * phi(y), axis=-1), 1 + u + u * u / 2


def feature_error(case: FeatureCase, numbers: Numbers, impl: Implementation) -> Iterator[Sampled]:
    """Random features are unbiased, and their mean squared error is what `mean_squared_error` says.

    MAPS maps of r features each are drawn as one map; where directions come in blocks of d, r = 2d.
    The laws of directions know no axes, so every map is read at d orthogonal x of one length, which
    tells almost as much as d maps. The errors of long x would vary more, and those of short ones
    would not tell directions in blocks from others.
    """
    u = numbers.draw(1, case.d)
    xp = array_namespace(u)
    mirror = 2 * xp.matrix_transpose(u) @ u / xp.sum(u * u, axis=-1)
    frame = xp.eye(case.d, dtype=u.dtype, device=device(u)) - mirror
    xs = [0.4 * frame[i : i + 1, :] for i in range(case.d)]
    a = {"a": 1.0} if case.phi == "favor++" else {}
    phi = impl.random_features(case.phi, MAPS * case.r, case.d, seed=numbers.seed, system=numbers.system, **a)
    pair = (2, MAPS, case.r // 2) if case.phi in PAIRS else (1, MAPS, case.r)
    estimates = [MAPS * xp.sum(xp.sum(xp.reshape(phi(x) * phi(x / 2), pair), axis=-1), axis=0) for x in xs]
    x, y = xs[0][0, :], xs[0][0, :] / 2
    SM = xp.exp(xp.sum(x * y, axis=-1))
    yield Sampled(f"{case.phi}: mean of φ(x)·φ(y)", sum(estimates) / case.d, SM)
    error = impl.mean_squared_error(case.phi, x, y, case.r, **a)
    yield Sampled(f"{case.phi}: mean squared error", sum((e - SM) ** 2 for e in estimates) / case.d, error)


def directed(case: FeatureCase) -> bool:
    return case.phi != "taylor"


MAPS = 250000
feature = functools.partial(
    Theorem.of, needs=("real", "a random feature"), cases=CASES, more=more_cases, usual=WIDE, group="softmax"
)
LONG = (FeatureCase("taylor", 0, 3, 65), FeatureCase("taylor", 0, 65, 5))
taylor = functools.partial(feature, cases=TAYLOR, usual=(LONG,), more=lambda seed: (FeatureCase("taylor", 0, 4, 7),))
SAMPLED = tuple(FeatureCase(phi, 0, 1, *((3, 6) if phi in BLOCKS else (4, 4))) for phi in KINDS[:-1])
sampled = functools.partial(feature, ways=("sampled",), cases=SAMPLED, usual=(), more=lambda seed: ())
BEFORE = "a real system; RoPE before the kernel; all kinds but taylor"
LAW = "directions drawn by random_features; sampled, at small |x + y|"
RAHIMI = "Rahimi and Recht 2007, Choromanski et al. 2021, Likhosherstov et al. 2022"
REID = "as for log_features; Reid et al. 2023 (simplex)"
COUPLED = "the values for orthogonal and simplex directions"
ORDER = 5
THEOREMS = (
    feature(rotation_covariance, BEFORE, DERIVED, lambda case: directed(case) and case.rope is not None),
    feature(log_features, "a real system; all kinds but taylor", RAHIMI, directed, ours="the logarithmic form"),
    taylor(taylor_kernel, "a real system, for √2", "Based, Arora et al. 2024", lambda case: case.phi == "taylor"),
    sampled(feature_error, LAW, REID, ours=COUPLED),
)
