"""The state is the past: (S, z, position) replaces all tokens read so far, exactly."""

# %%
# Six tokens are read at once, with RoPE, in exact rationals.
from refimpl import QQ, Kernel, Rope, circle_point, linear_attention, power_table
from refimpl.attention.state import absorb, join, no_text, remove, shift

rope = Rope(power_table(*circle_point(QQ.convert([2, 3]))))
q, k, v = (QQ.random((6, width), seed) for seed, width in ((1, 4), (2, 4), (3, 2)))
whole, end = linear_attention(q, k, v, Kernel(rope=rope))

# %%
# A text can be split anywhere. Four tokens of prompt become S (4 × 2) and z (4); the other two
# tokens are read from there.
#
#     S = Σ R_s φ(k_s) v_sᵀ        z = Σ φ(k_s)
_, past = linear_attention(q[:4, :], k[:4, :], v[:4, :], Kernel(rope=rope))
rest, _ = linear_attention(q[4:, :], k[4:, :], v[4:, :], Kernel(rope=rope), state=past)
assert (rest == whole[4:, :]).all()
print("prefill 4 + decode 2 == one pass over 6; next position", past.position)

# %%
# Texts join like strings. A state belongs to its position, so join rotates the second one by
# R_p before adding.
empty = no_text(v, 4, 2)
a, b, c = (absorb(empty, k[i : i + 2, :], v[i : i + 2, :], Kernel(rope=rope)) for i in (0, 2, 4))
left, right = (
    join(join(a, b, Kernel(rope=rope)), c, kernel=Kernel(rope=rope)),
    join(a, join(b, c, Kernel(rope=rope)), kernel=Kernel(rope=rope)),
)
assert (left.S == right.S).all() and (left.S == end.S).all()
print("(ab)c == a(bc) == the state of the whole text")
assert not (a.S + b.S + c.S == end.S).all()
print("plain addition of S is wrong under RoPE")

# %%
# The last text can be taken out again.
undone = remove(left, c, Kernel(rope=rope))
assert (undone.S == join(a, b, Kernel(rope=rope)).S).all()

# %%
# A shift moves the prompt to positions −4 … −1. The input then starts at 0, as if there had been no
# prompt.
moved = shift(past, -4, Kernel(rope=rope))
rest, _ = linear_attention(q[4:, :], k[4:, :], v[4:, :], Kernel(rope=rope), state=moved)
assert (rest == whole[4:, :]).all()
print("shifted by −4: position", moved.position, "and the same output")
