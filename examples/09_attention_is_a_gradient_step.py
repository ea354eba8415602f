"""Attention is a gradient step: you will see it four times, on a handful of numbers, by `==`.

Irie et al. claim that a trained layer is attention; von Oswald et al. and Ren & Liu claim that
attention is a step. Ours: that the biases of ICLCA are the step; the constants of the last part.
"""

# %%
# Three examples (x, y) of y = W x, a guess W_0, a rate η. Dual numbers differentiate the loss.
from fractions import Fraction

from refimpl import MP, QQ, convert, softmax_attention
from refimpl.descent import irie, ren_liu, von_oswald
from refimpl.descent.gradient import squared_error, step

X, Y, x = QQ.convert([[1, 0], [1, 1], [0, 2]]), QQ.convert([[2], [3], [2]]), QQ.convert([[3, 1]])
W_0, eta, T = QQ.convert([[1, 0]]), Fraction(3, 4), QQ.matrix_transpose
W_1 = step(squared_error, W_0, eta, X, Y)
W_2 = step(squared_error, W_1, eta, X, Y)
print("W_0, W_1, W_2:", W_0, W_1, W_2, "  W x:", *(x @ T(W) for W in (W_0, W_1, W_2)))

# %%
# Irie et al.: the layer need not change its weights. It keeps its training history, inputs as keys
# and errors as values, and attends to it.
errors, inputs = irie.training_history(W_0, X, Y, eta, 2, irie.half_squares)
print("two steps leave", inputs.shape[0], "pairs, with errors −η ∂L/∂y:", *(e[0] for e in errors.tolist()))
assert QQ.equal(irie.dual_form(W_0, errors, inputs, x), x @ T(W_2))

# %%
# von Oswald et al.: with these weights, a layer of linear self-attention is a step, and two layers
# are two. A query comes in as (x, −W_0 x) and goes out as (x, −W_1 x).
context, query = von_oswald.examples(X, Y), von_oswald.queries(x, W_0)
for layers, W in ((1, W_1), (2, W_2)):
    out = von_oswald.steps(query, context, W_0, eta, layers)
    print(f"{layers} layer{'s' * (layers - 1)}: (x, −W x) =", out)
    assert QQ.equal(von_oswald.predictions(out, 1), x @ T(W))

# %%
# The same as an ordinary model, whose examples become biases (example 06). ICLCA knows nothing of
# descent; yet its bias, transposed and times −η/N, is the change of the weights. The examples are
# gone, and the model has learned.
model = von_oswald.regression_model(W_0, eta, 3, layers=2)
converted = convert(model, von_oswald.model_examples(X, Y), mask="full")
b_KV = converted.biases[0].S[0, :, :]
print("b_KV =", T(b_KV), "ᵀ   −(η/N) b_KVᵀ =", von_oswald.weight_update(b_KV, eta, 3), "  W_1 − W_0 =", W_1 - W_0)
assert QQ.equal(von_oswald.weight_update(b_KV, eta, 3), W_1 - W_0)
assert QQ.equal(von_oswald.predictions(converted(von_oswald.model_queries(x, W_0)), 1), x @ T(W_2))

# %%
# Ren & Liu: softmax attention, too, is the prediction of a model W φ(x) after one step. exp is not
# in ℚ, so the two differ by rounding, which vanishes as digits are added. The rate cancels.
for digits in (20, 40, 80):
    mp, T = MP(digits), MP(digits).matrix_transpose
    shapes = ((3, 4), (1, 4), (4, 4), (4, 4), (2, 4))
    demonstrations, text, W_Q, W_K, W_V = (mp.random(shape, seed) for seed, shape in enumerate(shapes))
    tokens = mp.concat([demonstrations, text], axis=0)
    o = softmax_attention(tokens @ T(W_Q), tokens @ T(W_K), tokens @ T(W_V), scale=1)[0][-1, :]
    context = ren_liu.softmax_context(demonstrations, text, text[0, :], W_Q, W_K, W_V)
    off = [f"{float(max(mp.abs(ren_liu.one_step(context, rate) - o).tolist())):.0e}" for rate in (1, 7)]
    print(f"{digits} digits: softmax attention and one step of rate 1, 7 differ by", *off)
