"""Exact arithmetic on BLAS: float64 matrix products can be exact, and here is how fast they are."""

# %%
# float64 holds every integer up to 2⁵³. As long as no sum can pass that, a product of float
# matrices is exact, in whatever order it is added up. Larger numbers are cut into digits, and long
# sums into blocks: as many as the prime needs.
import time
from fractions import Fraction

import numpy as np

from refimpl import GF, MP, Float, linear_attention_chunked, linear_attention_quadratic
from refimpl.systems.modular import plan


def seconds(run, rounds=5):
    """The result, and the least time it took."""
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        result = run()
        took.append(time.perf_counter() - began)
    return result, min(took)


floats = np.random.default_rng(0).random((256, 256))
_, dgemm = seconds(lambda: floats @ floats)
for p in (2**21 - 9, 2**31 - 1, 2**61 - 1):
    a, b = GF(p).random((256, 256), seed=0), GF(p).random((256, 256), seed=1)
    product, took = seconds(lambda a=a, b=b: a @ b)
    want = sum(x * y for x, y in zip(a[0].tolist(), b[:, 0].tolist(), strict=True)) % p
    assert product[0, 0].tolist() == want
    way = plan(p, terms=256)
    digits = f"{max(1, way.left)} × {max(1, way.right)} digits, blocks of {min(way.block, 256)}"
    print(f"p = {p:19}: {digits}; {took / dgemm:4.1f} times as long as in float64")

# %%
# The same works for many digits: rows and columns become integers times a power of two, and each
# entry is rounded once, at the end.
a, b = (MP(50).random((32, 32), seed) / 3 for seed in (0, 1))
product, fast = seconds(lambda: a @ b)
objects, slow = seconds(lambda: a.planes[0] @ b.planes[0], rounds=1)
exact = sum(x * y for x, y in zip(MP(50).fractions(a[0]), MP(50).fractions(b[:, 0]), strict=True))
once, often = (
    abs(float(1 - MP(50).fractions(MP(50).wrap((x[:1, :1],)))[0, 0] / exact)) for x in (product.planes[0], objects)
)
print(f"50 digits: {slow / fast:.0f} times as fast as one number after the other,", end=" ")
print(f"off by {once:.0e} instead of {often:.0e}")
assert once <= Fraction(1, 2 * 10**49)

# %%
# Chunked attention needs time and memory that do not grow with the square of the text.
for n in (512, 1024, 2048):
    q, k, v = (abs(Float().random((4, n, 32), seed)) for seed in range(3))
    (o, _), chunked = seconds(lambda q=q, k=k, v=v: linear_attention_chunked(q, k, v))
    (want, _), quadratic = seconds(lambda q=q, k=k, v=v: linear_attention_quadratic(q, k, v), rounds=2)
    print(f"{n} tokens: chunked {1e3 * chunked:6.1f} ms, quadratic {1e3 * quadratic:6.1f} ms,", end=" ")
    print(f"relative difference {abs(o / want - 1).max():.0e}")
