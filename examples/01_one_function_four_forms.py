"""One function, four forms: four programs for linearized attention give equal fractions."""

# %%
# There are three tokens. Fractions go in and fractions come out: nothing is rounded anywhere.
from refimpl import (
    QQ,
    Float,
    Kernel,
    floats,
    linear_attention,
    linear_attention_chunked,
    linear_attention_quadratic,
    linear_attention_recurrent,
)

q = QQ.convert([[1, 2], [0, 1], [3, -1]])
k = QQ.convert([[1, 1], [2, 0], [1, 4]])
v = QQ.convert([[1, 0, 2], [0, 5, 1], [7, 1, 1]])

# %%
# The definition: each token sums over itself and the tokens before it.
#
#     o_t = φ(q_t)ᵀ Σ_{s≤t} φ(k_s) v_sᵀ / φ(q_t)ᵀ Σ_{s≤t} φ(k_s)
o, state = linear_attention(q, k, v)
print("o =", o)

# %%
# By hand, for t = 1: q_1·k_0 = 1 and q_1·k_1 = 0, so token 1 sees token 0 alone and returns v_0.
assert o[1, :].tolist() == v[0, :].tolist()

# %%
# A masked matrix of scores, a running state, and chunks give the same numbers. `==` is exact.
for form, options in [
    (linear_attention_quadratic, {}),
    (linear_attention_recurrent, {}),
    (linear_attention_chunked, {"chunk": 2}),
]:
    other, end = form(q, k, v, **options)
    print(f"{form.__name__:28} outputs equal: {(other == o).all()}   states equal: {(end.S == state.S).all()}")
    assert (other == o).all()

# %%
# In float64 the forms agree only up to rounding, and none is the right one. ℚ has the truth.
inputs = [Float().random((50, width), seed) for seed, width in enumerate((8, 8, 4))]
truth = floats(linear_attention(*map(QQ.convert, inputs), Kernel("relu"))[0])
for form in (linear_attention, linear_attention_quadratic, linear_attention_recurrent, linear_attention_chunked):
    o64, _ = form(*inputs, Kernel("relu"))
    print(f"{form.__name__:28} off by {abs(o64 - truth).max():.1e}")
