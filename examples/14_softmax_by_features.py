"""Softmax attention through features: a prompt becomes a memory of fixed size, approximately, and how far off is known beforehand."""

# %%
# exp(x·y) is the mean of φ(x)·φ(y) over random directions. How far off a map is, on average, is a
# formula; here beside what came out.
import numpy as np

from refimpl import (
    Compression,
    Config,
    Float,
    Points,
    Rotary,
    convert,
    fidelity,
    mean_squared_error,
    random_features,
    random_model,
)
from refimpl.attention.memory import Memory, join, write

rng, r = np.random.default_rng(0), 64
x, y = 0.35 * rng.standard_normal((2, 1, 8))
for kind in ("positive", "hyperbolic", "trigonometric", "orthogonal", "simplex"):
    draws = [random_features(kind, r, 8, seed=seed, system=Float()) for seed in range(500)]
    off = np.array([(phi(x) @ phi(y).T).item() - np.exp(x @ y.T).item() for phi in draws])
    print(
        f"{kind:14} mean error {off.mean():8.1e}   root mean square {np.sqrt((off**2).mean()):.4f}, by the formula",
        end=" ",
    )
    print(f"{np.sqrt(mean_squared_error(kind, x[0], y[0], r)):.4f}")

# %%
# A memory keeps Σ φ(y_j) v_jᵀ and Σ φ(y_j), with the scale of its sums as a logarithm: keys of any
# size fit, texts can be joined, and no key that comes later changes what was read before. Here the
# last key is a thousand times larger than the others.
keys, values, query = rng.standard_normal((6, 8)), rng.standard_normal((6, 2)), rng.standard_normal((1, 8))
keys[-1] *= 1000
phi = random_features("positive", r, 8, seed=0, system=Float())
both = join(write(phi, keys[:4], values[:4]), write(phi, keys[4:], values[4:]))
num, den, _ = both.read(query)
again, total, _ = write(phi, keys, values).read(query)
print("joined and at once:", num / den, again / total)

# %%
# The same for whole models. Only what the prompt adds to the sums of the input is approximate;
# without `by` it is exact, as a KV cache.
config = Config(
    layers=2, width=16, heads=4, groups=2, d=8, m=8, phi="softmax", rope=Rotary(8, placement="before"), vocabulary=9
)
model = random_model(Float(), config, seed=0)
prompt, text = list(rng.integers(0, 9, 60)), [1, 2, 3, 4]
for by in (
    None,
    Compression("positive", 64),
    Compression("trigonometric", 64),
    Compression("clusters", 16),
    Compression("cholesky", 16),
):
    found = fidelity(model, convert(model, prompt, by=by), prompt, text)
    print(
        f"{by or 'KV cache'!s:18} {found.bytes:6} bytes of {found.cache_bytes}: error {found.error:.1e}, dropped {found.dropped_error:.1e}"
    )

# %%
# Prompts stack. Under RoPE an earlier memory is seen from further on by turning its directions:
# neither S nor z is touched.
once = convert(convert(model, prompt[:40], by=Compression("positive", 64)), prompt[40:], by=Compression("positive", 64))
(memory,) = once.biases[0].memories
print(
    f"two prompts, {once.prompts}, one memory, its directions turned by {memory.phi.turn} positions: S {memory.S.shape}"
)

# %%
# All keys as points of the kernel itself: that memory is the KV cache, and exact.
exact = Memory(Points(keys[:-1]), values[:-1])
num, den, _ = exact.read(query)
weights = np.exp(query @ keys[:-1].T)
print("largest difference to softmax:", np.abs(num / den - weights @ values[:-1] / weights.sum()).max())
