"""The identities of ICLAA. (The tables of examples/15 measure how near features come to softmax.)

The right side has no memories: it is a sum over all positions, in which the similarity of a query
and a prompt key is φ(x)·φ(y).
"""

from __future__ import annotations

import functools
from dataclasses import replace
from fractions import Fraction
from typing import Any

from ...attention.feature_maps import Kernel
from ...attention.memory import Memory, Points
from ...attention.random_features import KINDS, RandomFeatures
from ...attention.softmax_attention import KVCache
from ...prompt.compression import Compression
from ...systems.array import host
from ...systems.floats import array_namespace
from ..cases import FeatureCase, ModelCase
from ..implementation import Implementation
from ..theorem import DERIVED, Numbers, Sides, Theorem
from .features import draw_features
from .iclca import Problem

# These theorems need a real system, and a quick run in such systems takes every second case, from
# the first on: these cases must cover every option.
ROPES = (("half", 4), ("interleaved", 2))
SIZES = ((3, 2, 4, 3), (2, 3, 5, 2))
CASES = tuple(
    FeatureCase(phi, *SIZES[(i + flip) % 2], rope=ROPES[(i + flip) % 2])
    for i, phi in enumerate(KINDS)
    for flip in (0, 1)
)
# One layer, so that its bounds are never vacuous
SHALLOW = ModelCase(3, 2, heads=2, groups=1, d=2, m=3, phi="softmax", rope=("interleaved", "before", 2))
DEEP = ModelCase(2, 2, layers=2, heads=2, m=2, phi="softmax", hidden=2, norm="layer", activation="gelu")
CACHED = (
    SHALLOW,
    replace(SHALLOW, M=1, n=3, rope=None),
    replace(SHALLOW, layers=2, rope=("half", "before", 2), hidden=2, norm="rms", activation="silu"),
    ModelCase(0, 2, phi="softmax"),
    replace(DEEP, table=9, restart=False, vocabulary=3),
)


def scaled(case: FeatureCase, numbers: Numbers, width: int) -> tuple[Any, ...]:
    """q, k (n, d), v (n, m) of prompt and text together, and √c = d^-¼."""
    n = case.M + case.n
    q, k, v = (numbers.draw(n, w) for w in (case.d, case.d, width))
    xp = array_namespace(q)
    return q, k, v, xp.sqrt(xp.sqrt(xp.ones_like(q[:1, :1]) / case.d)), xp


def any_features(case: FeatureCase, numbers: Numbers) -> RandomFeatures:
    return draw_features(case, numbers) if case.phi != "taylor" else RandomFeatures("taylor", None)


def carried_eq_sum(case: FeatureCase, numbers: Numbers, impl: Implementation) -> Sides:
    """Logarithmic features with a running scale give the output of plain features, split or not."""
    phi = any_features(case, numbers)
    q, k, v, _, _ = scaled(case, numbers, 2)
    want, _ = impl.linear_attention(q, k, v, Kernel(phi))
    o, _ = impl.linear_attention_carried(q, k, v, phi=phi)
    yield "o", o, want
    first, memory = impl.linear_attention_carried(*(x[: case.M, :] for x in (q, k, v)), phi=phi)
    rest, _ = impl.linear_attention_carried(*(x[case.M :, :] for x in (q, k, v)), phi=phi, memory=memory)
    yield f"o, split after {case.M}", array_namespace(q).concat([first, rest], axis=-2), want


def iclaa(case: FeatureCase, numbers: Numbers, impl: Implementation) -> Sides:
    """With a memory, attention is a sum over all positions, with φ(x)·φ(y) for prompt tokens.

    Two prompts enter one memory, one after the other; the second rotates the first's directions.
    """
    phi = any_features(case, numbers)
    q, k, v, root, xp = scaled(case, numbers, 2)
    assert case.rope
    rope, M = numbers.rope(case.rope[0], "before", case.rope[1]), case.M
    half = M // 2 if case.phi != "taylor" else 0
    memory, directions = None, phi
    for a, b in ((0, half), (half, M)):  # each prompt ends at −1, seen from where the next text begins
        if memory is not None:
            memory = memory.shifted(a - b, rope)
            directions = memory.phi
        if b > a:
            token = impl.write_memory(directions, root * rope(k[a:b, :], range(a - b, 0)), v[a:b, :])
            memory = token if memory is None else impl.join_memories(memory, token)
    empty = KVCache(k[:0, :], v[:0, :], host(xp.arange(0))[None, :] >= 0, 0, () if memory is None else (memory,))
    o, _ = impl.softmax_attention(*(x[M:, :] for x in (q, k, v)), rope=rope, cache=empty)

    turned = phi.rotated(rope, half - M) if half else phi
    x, y = root * rope(q[M:, :], range(case.n)), root * rope(k[:M, :], range(-M, 0))
    prompt = turned(x) @ xp.matrix_transpose(turned(y))  # (n, M)
    scores = xp.exp(x @ xp.matrix_transpose(root * rope(k[M:, :], range(case.n))))
    rows = []
    for t in range(case.n):
        sim = xp.concat([prompt[t : t + 1, :], scores[t : t + 1, : t + 1]], axis=-1)
        seen = xp.concat([v[:M, :], v[M : M + t + 1, :]], axis=-2)
        rows.append((sim @ seen) / xp.sum(sim, axis=-1, keepdims=True))
    yield "o", o, xp.concat([v[:0, :], *rows], axis=-2)


def nystrom_exact(case: FeatureCase, numbers: Numbers, impl: Implementation) -> Sides:
    """K_PP⁻¹ K_PY [V 1] is exact at the landmarks P, and everywhere if all keys are landmarks."""
    q, k, v, root, xp = scaled(case, numbers, 3)
    M = case.M + case.n
    uneven = [(1 if j % 3 else 4) * k[j : j + 1, :] for j in range(M)]  # keys of unequal lengths need the scale
    y = root * xp.concat(uneven, axis=-2)
    for r in (M // 2, M):
        points, S, z, scale = impl.landmarks(y, v, host(xp.arange(M)), host(xp.arange(M)) % 3 + 1.0, r)
        x = root * q if r == M else points
        num, den, top = Memory(Points(points), S, z, scale).read(x)
        sim = xp.exp(x @ xp.matrix_transpose(y))
        yield f"numerator from {r} landmarks", xp.exp(top) * num, sim @ v
        yield f"denominator from {r} landmarks", xp.exp(top) * den, xp.sum(sim, axis=-1, keepdims=True)


def cache_conversion(case: ModelCase, numbers: Numbers, impl: Implementation) -> Sides:
    """A softmax model with the KV cache of a prompt gives its output on prompt and input."""
    problem = Problem.of(case, numbers, impl)
    convert = functools.partial(impl.convert, problem.model, problem.prompt, restart=case.restart)
    want = problem.prompted()
    yield "output from the cache", convert()(problem.text), want
    if case.M:
        yield "output from a memory of all tokens", convert(by=Compression("cache"))(problem.text), want
    M, memory = case.M, Compression("cache")
    stacks = (("a cache, then a memory", (None, memory)), ("three memories", (memory,) * 3))
    for name, makers in stacks if M > 1 else ():
        model, N = problem.model, len(makers)
        for i, by in enumerate(makers):
            prompt = problem.cut(i * M // N, (i + 1) * M // N)
            model = impl.convert(model, prompt, restart=case.restart, by=by)
        yield f"output from {name}", model(problem.text), want


def iclaa_strength(case: ModelCase, numbers: Numbers, impl: Implementation) -> Sides:
    """Prompts converted one after the other count λ₁, λ₂, λ₃ times each, in one joint memory.

    The right side is a sum over all positions, for a model of one layer of attention.
    """
    problem, λ = Problem.of(case, numbers, impl), [numbers.draw() for _ in range(3)]
    λ, by, M = [x * x + Fraction(1, 2) for x in λ], Compression("positive", case.chunk or FEATURES), case.M
    model, ends = problem.model, (0, M // 2, M - 1, M)
    for strength, a, b in zip(λ, ends, ends[1:], strict=False):
        model = impl.convert(model, problem.cut(a, b), by=by, strength=strength)
    ((memory, *others),) = (cache.memories for cache in model.biases or ())
    yield "memories", len(others), 0
    w, x, per = problem.model.weights, problem.both, case.heads // (case.groups or case.heads)
    xp, rope, at = array_namespace(x), problem.model.kernel.rope, range(-M, case.n)
    root, out = xp.sqrt(xp.sqrt(xp.ones_like(x[:1, :1]) / case.d)), x[M:, :]
    for h in range(case.heads):
        q, k, v = (
            x @ w[f"layers.0.W_{n}"][:, i * c : (i + 1) * c]
            for n, i, c in (("Q", h, case.d), ("K", h // per, case.d), ("V", h // per, case.m))
        )
        q, k = (root * (rope(y, at) if rope else y) for y in (q, k))
        prompt = memory.phi(q[M:, :]) @ xp.matrix_transpose(memory.phi(k[:M, :]))
        sim = xp.concat([λ[j] * prompt[:, ends[j] : ends[j + 1]] for j in range(3)], axis=-1)
        own = xp.exp(q[M:, :] @ xp.matrix_transpose(k[M:, :]))
        rows = []
        for t in range(case.n):
            weights = xp.concat([sim[t : t + 1, :], own[t : t + 1, : t + 1]], axis=-1)
            rows.append(weights @ v[: M + t + 1, :] / xp.sum(weights, axis=-1, keepdims=True))
        out = out + xp.concat(rows, axis=-2) @ w["layers.0.W_O"][h * case.m : (h + 1) * case.m, :]
    yield "output", impl.transformer(model, problem.text)[0], out


FEATURES = 66  # of a memory of usual size
TWICE = ModelCase(4, 2, heads=2, groups=1, m=3, phi="softmax", rope=("interleaved", "before", 2), chunk=5)
STRENGTHS = (TWICE, replace(TWICE, M=3, n=1, groups=2, rope=None), replace(TWICE, rope=("half", "before", 2), d=3))
MANY = (
    replace(TWICE, M=259, n=3, width=5, rope=("half", "before", 2), chunk=None),
    replace(TWICE, M=66, n=3, heads=6, groups=3, width=65, d=66, rope=("interleaved", "before", 66), chunk=None),
)
LONG = (
    tuple(FeatureCase(phi, 9, 5, 65, 128, rope=("half", 64)) for phi in ("positive", "hyperbolic", "favor++")),
    tuple(FeatureCase(phi, 33, 34, 3, 5, rope=("interleaved", 2)) for phi in ("orthogonal", "positive", "simplex")),
)
CACHES = (
    (
        replace(SHALLOW, M=260, n=2, heads=1, width=3, chunk=None),
        replace(SHALLOW, M=130, n=2, heads=8, groups=8, d=66, width=66, chunk=None),
    ),
    (replace(SHALLOW, M=1026, n=2, heads=1, width=3, rope=("half", "before", 2), chunk=None),),
)
CHEN = "Chen et al. 2024 (ICLAA)"
REAL = "a real, ordered system"
POSITIVE = REAL + "; denominators ≠ 0, as for all kinds but trigonometric"
TURNED = REAL + "; RoPE before the kernel; denominators ≠ 0"
STACKED = "stacked prompts, by rotated directions; the running scale"
LANDMARKS = tuple(FeatureCase("positive", *sizes) for sizes in ((2, 2, 3), (1, 1, 1), (1, 4, 4)))
RELATIVE = REAL + "; relative positions, or positions that go on"
theorem = functools.partial(Theorem.of, needs=("real", "softmax attention"), cases=CASES, usual=LONG, group="softmax")
cached = functools.partial(theorem, needs=("real", "a softmax model"), cases=CACHED, usual=CACHES)
ORDER = 6
THEOREMS = (
    theorem(carried_eq_sum, POSITIVE, DERIVED, lambda case: case.phi != "trigonometric"),
    theorem(iclaa, TURNED, CHEN, lambda case: case.rope is not None, ours=STACKED),
    theorem(
        nystrom_exact,
        REAL + "; no key twice",
        "Williams and Seeger 2001; our derivation",
        lambda case: case.phi == "positive" and case.M + case.n > 1,
        cases=LANDMARKS,
        usual=((FeatureCase("positive", 3, 4, 66), FeatureCase("positive", 9, 4, 33)),),
    ),
    cached(cache_conversion, RELATIVE, "folklore"),
    cached(iclaa_strength, RELATIVE, CHEN, cases=STRENGTHS, usual=(MANY,), ours="the strengths; " + STACKED),
)
