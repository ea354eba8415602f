"""A prompt becomes biases: without it, the model answers exactly as if it had read it."""

# %%
# A model of two layers with RoPE, in exact rationals. Its rotations are powers of points of the
# circle, and its norm has no root.
import tempfile

import refimpl as ri
from refimpl import QQ, Config, Rotary, convert

exact = {"phi": "identity", "norm": "rms_rational", "rope": Rotary(width=2, base=None)}
model = ri.random_model(QQ, Config(layers=2, width=2, d=2, m=2, vocabulary=9, **exact), seed=1)
prompt, text = [3, 1, 4], [1, 5]

# %%
# In each layer and head the prompt leaves two sums, seen from where the input will begin:
#
#     b_KV = Σ_j R_{j−M} φ(k_j) v_jᵀ        b_D = Σ_j φ(k_j)        j = 0 … M−1
#
# The size of the biases does not depend on the length M of the prompt.
converted = convert(model, prompt)
b = converted.biases[0]
print("b_KV", b.S.shape, " b_D", b.z.shape, " for a prompt of", converted.prompts[0], "tokens")

# %%
# One side reads the input alone, with the biases. The other side reads prompt and input, by the sum
# over all positions. `==` is exact.
prompted, _ = ri.transformer(model, prompt + text, form=ri.linear_attention)
assert (converted(text) == prompted[3:, :]).all() and not (model(text) == prompted[3:, :]).all()
print("converted == prompted; without the prompt the model says something else")

# %%
# Prompts compose: one after the other equals both at once. The last one can be taken out again.
twice = convert(converted, text)
assert (twice([8]) == convert(model, prompt + text)([8])).all()
undone = ri.unconvert(twice, text)
assert (undone([8]) == converted([8])).all()
print("converted one after the other:", twice.prompts, " and the last taken out:", undone.prompts)

# %%
# In float64 the two sides agree up to rounding. The same program also bounds the rounding, layer by
# layer.
sizes = {"layers": 3, "width": 16, "heads": 4, "d": 4, "m": 4, "hidden": 32, "vocabulary": 9}
deep = ri.random_model(ri.Float(), Config(**sizes, rope=Rotary(width=4)), seed=1)
baked = convert(deep, prompt)
print(ri.check_conversion(deep, baked, prompt, [2, 7, 1, 8]))

# %%
# The biases are weights like any others. A file of biases alone fits only the model they came from.
with tempfile.TemporaryDirectory() as folder:
    ri.save(f"{folder}/biases.safetensors", baked, biases_only=True)
    again = ri.load(f"{folder}/biases.safetensors", base=deep)
assert (again(text) == baked(text)).all()
print("saved and loaded: the same, bit for bit")
