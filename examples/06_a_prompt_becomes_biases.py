"""A prompt becomes biases: convert it once, throw it away, and the model answers exactly as if it had read it."""

# %%
# A model of two layers with RoPE, in exact rationals; its rotations are powers of points of the
# circle, its norm has no root.
import tempfile

from refimpl import (
    QQ,
    Config,
    Float,
    Rotary,
    check_conversion,
    convert,
    linear_attention,
    load,
    random_model,
    save,
    transformer,
    unconvert,
)

exact = {"phi": "identity", "norm": "rms_rational", "rope": Rotary(width=2, base=None)}
model = random_model(QQ, Config(layers=2, width=2, d=2, m=2, vocabulary=9, **exact), seed=1)
prompt, text = [3, 1, 4], [1, 5]

# %%
# What the prompt leaves behind, in each layer and head, seen from where the input will begin:
#
#     b_KV = Σ_j R_{j−M} φ(k_j) v_jᵀ        b_D = Σ_j φ(k_j)        j = 0 … M−1
#
# The size of the biases does not depend on the length M of the prompt.
converted = convert(model, prompt)
print(
    "b_KV",
    converted.biases[0].S.shape,
    " b_D",
    converted.biases[0].z.shape,
    " for a prompt of",
    converted.prompts[0],
    "tokens",
)

# %%
# The input alone, with the biases, against prompt and input, by the sum over all positions. `==` is
# exact.
prompted, _ = transformer(model, prompt + text, form=linear_attention)
assert (converted(text) == prompted[3:, :]).all() and not (model(text) == prompted[3:, :]).all()
print("converted == prompted; without the prompt the model says something else")

# %%
# Prompts compose: one after the other equals both at once. The last one can be taken out again.
twice = convert(converted, text)
assert (twice([8]) == convert(model, prompt + text)([8])).all()
assert (unconvert(twice, text)([8]) == converted([8])).all()
print("converted one after the other:", twice.prompts, " and the last taken out:", unconvert(twice, text).prompts)

# %%
# In float64 the two agree up to rounding. How much rounding may do is computed too, layer by layer,
# from the same program.
deep = random_model(
    Float(), Config(layers=3, width=16, heads=4, d=4, m=4, hidden=32, rope=Rotary(width=4), vocabulary=9), seed=1
)
baked = convert(deep, prompt)
print(check_conversion(deep, baked, prompt, [2, 7, 1, 8]))

# %%
# The biases are weights like any others. Saved alone, they go back only onto the model they came
# from.
with tempfile.TemporaryDirectory() as folder:
    save(f"{folder}/biases.safetensors", baked, biases_only=True)
    again = load(f"{folder}/biases.safetensors", base=deep)
assert (again(text) == baked(text)).all()
print("saved and loaded: the same, bit for bit")
