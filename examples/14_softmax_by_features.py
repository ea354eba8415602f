"""Softmax attention through features: a prompt becomes a memory of fixed size, of known error."""

# %%
# exp(x·y) is the mean of φ(x)·φ(y) over random directions. The mean squared error of a map has a
# formula; here it stands beside the error that was measured.
import numpy as np

import refimpl as ri
from refimpl import Compression, Config, Float, Rotary, convert, random_features
from refimpl.attention.memory import Memory, join, write

rng, r = np.random.default_rng(0), 64
x, y = 0.35 * rng.standard_normal((2, 1, 8))
for kind in ("positive", "hyperbolic", "trigonometric", "orthogonal", "simplex"):
    draws = [random_features(kind, r, 8, seed=seed, system=Float()) for seed in range(500)]
    off = np.array([(phi(x) @ phi(y).T).item() - np.exp(x @ y.T).item() for phi in draws])
    print(f"{kind:14} mean error {off.mean():8.1e}   root mean square {np.sqrt((off**2).mean()):.4f},", end=" ")
    print(f"by the formula {np.sqrt(ri.mean_squared_error(kind, x[0], y[0], r)):.4f}")

# %%
# A memory keeps Σ φ(y_j) v_jᵀ and Σ φ(y_j), with the scale of its sums as a logarithm: keys of any
# size fit, texts can be joined, and no later key changes an earlier output. Here the last key is
# a thousand times larger than the others.
keys, values, query = rng.standard_normal((6, 8)), rng.standard_normal((6, 2)), rng.standard_normal((1, 8))
keys[-1] *= 1000
phi = random_features("positive", r, 8, seed=0, system=Float())
both = join(write(phi, keys[:4], values[:4]), write(phi, keys[4:], values[4:]))
num, den, _ = both.read(query)
again, total, _ = write(phi, keys, values).read(query)
print("joined and at once:", num / den, again / total)

# %%
# The same works for models. Only the prompt's share of the sums is approximate; without `by` it is
# exact, as a KV cache.
sizes = {"layers": 2, "width": 16, "heads": 4, "groups": 2, "d": 8, "m": 8, "vocabulary": 9}
model = ri.random_model(Float(), Config(**sizes, phi="softmax", rope=Rotary(8, placement="before")), seed=0)
prompt, text = list(rng.integers(0, 9, 60)), [1, 2, 3, 4]
kinds = (("positive", 64), ("trigonometric", 64), ("clusters", 16), ("cholesky", 16))
for by in (None, *(Compression(*kind) for kind in kinds)):
    found = ri.fidelity(model, convert(model, prompt, by=by), prompt, text)
    print(f"{by or 'KV cache'!s:18} {found.bytes:6} bytes of {found.cache_bytes}:", end=" ")
    print(f"error {found.error:.1e}, dropped {found.dropped_error:.1e}")

# %%
# Prompts stack. Under RoPE an earlier memory is seen from further on if its directions are rotated:
# neither S nor z changes.
by = Compression("positive", 64)
twice = convert(convert(model, prompt[:40], by=by), prompt[40:], by=by)
(memory,) = twice.biases[0].memories
print(f"two prompts, {twice.prompts}, one memory, its directions rotated", end=" ")
print(f"by {memory.phi.turn} positions: S {memory.S.shape}")

# %%
# With all keys as points of the kernel itself, the memory is the KV cache, and exact.
num, den, _ = Memory(ri.Points(keys[:-1]), values[:-1]).read(query)
weights = np.exp(query @ keys[:-1].T)
print("largest difference to softmax:", np.abs(num / den - weights @ values[:-1] / weights.sum()).max())
