"""The theory on one page: you will see nano.py turn a prompt into biases, in exact fractions.

Read refimpl/nano.py beside this. It has one function for each formula, and no checks, options or
speed. The last cells show that the library, which has all three, gives the same fractions.
"""

# %%
# The page runs its own example first. A model of two layers reads a prompt of three tokens and a
# text of one. Then the prompt becomes biases, and the text alone gives the same fractions. Without
# the prompt and the biases the output is different.
from fractions import Fraction

from refimpl import QQ, Config, Rotary, convert, nano, random_model, transformer

nano.example()

# %%
# RoPE: R_p rotates a pair of features p times by a point (c, s) of the circle. Lengths stay; the
# product of two rotated vectors depends on the distance of their positions only.
point, x, y = (QQ.convert([Fraction(3, 5)]), QQ.convert([Fraction(4, 5)])), QQ.convert([[1, 0]]), QQ.convert([[2, 1]])
print("R_2 (1, 0) =", nano.rotate(x, 2, point))
scores = [QQ.sum(nano.rotate(x, p, point) * nano.rotate(y, p + 2, point), axis=-1).tolist()[0] for p in (0, 7)]
print("(R_p x)·(R_{p+2} y) for p = 0, 7:", *scores)
assert scores[0] == scores[1]

# %%
# The definition: o_t = Σ_{s≤t} φ(q_t)ᵀ R_{s−t} φ(k_s) v_s / Σ_{s≤t} φ(q_t)ᵀ φ(k_s). The biases b_KV
# and b_D stand where the sums begin. At first they are zero: there was no prompt.
q, k, v = (QQ.random((1, 3, 2), seed) for seed in range(3))
o = nano.attention(q, k, v, phi := lambda x: x * x + 1, point, QQ.zeros((1, 2, 2)), QQ.zeros((1, 2)))
print("o_0 = v_0 =", o[0, 0, :], "  o_1 =", o[0, 1, :])

# %%
# A layer is attention and an MLP; a transformer is layers. The page and the library get the same
# weights: two heads of width 2, φ(x) = x² + 1, σ(h) = h (2 + h) / 4.
shape = {"layers": 2, "width": 4, "heads": 2, "d": 2, "m": 2, "hidden": 3, "norm": "none", "activation": "quadratic"}
model = random_model(QQ, Config(**shape, phi=phi, rope=Rotary(width=2, base=None)), seed=0)
w, names = model.weights, ("W_Q", "W_K", "W_V", "W_O", "W_up", "W_down")
layers = [{name: w[f"layers.{i}.{name}"] for name in names} for i in (0, 1)]
page = layers, 2, phi, (w["rope.c"], w["rope.s"]), lambda h: h * (2 + h) / 4
none = [(QQ.zeros((2, 2, 2)), QQ.zeros((2, 2)))] * 2
prompt, text = QQ.random((3, 4), 1), QQ.random((2, 4), 2)
o, _ = transformer(model, both := QQ.concat([prompt, text], axis=0))
assert QQ.equal(nano.transformer(both, *page, none), o)
print(f"transformer: equal, in fractions of {len(str(o[-1, 0].tolist()))} characters")

# %%
# Conversion: the prompt leaves Σ_j R_{j−M} φ(k_j) v_jᵀ and Σ_j φ(k_j) in every layer.
biases, converted = nano.convert(prompt, *page, none), convert(model, prompt)
for (b_KV, b_D), state in zip(biases, converted.biases, strict=True):
    assert QQ.equal(b_KV, state.S) and QQ.equal(b_D, state.z)
print("convert: equal; b_D of layer 0, head 0 =", biases[0][1][0, :])
assert QQ.equal(nano.transformer(text, *page, biases), converted(text)) and QQ.equal(converted(text), o[3:, :])
print("Without the prompt, page and library answer as if they had read it.")
