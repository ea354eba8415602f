"""RoPE without a cosine: with rational rotations, only relative positions matter, by `==`."""

# %%
# A rotation needs c² + s² = 1, not an angle. Every fraction t gives one:
#
#     c = (1 − t²)/(1 + t²)        s = 2t/(1 + t²)
from fractions import Fraction

from refimpl import QQ, Rope, angle_table, circle_point, power_table, system
from refimpl.attention.rope import deinterleave, interleave

c, s = circle_point(QQ.convert([Fraction(1, 2), Fraction(1, 3)]))
print("cos", *map(str, c.tolist()), "  sin", *map(str, s.tolist()))
rope = Rope(power_table(c, s))  # R_p: the p-th power of these rotations

# %%
# (R_a x)·(R_b y) depends on b − a only: move both by 1000 tokens and nothing changes.
x, y = QQ.convert([[1, 2, 3, 4]]), QQ.convert([[2, 0, 1, 5]])


def score(a, b):
    return QQ.sum(rope(x, [a]) * rope(y, [b]), axis=-1).tolist()[0]


assert score(3, 5) == score(1003, 1005) == score(-5, -3)
print("score at distance 2:", score(3, 5), "  at distance 3:", score(3, 6))

# %%
# Two layouts compute one function: Llama pairs features (i, i+2), GPT-J pairs (2i, 2i+1). A
# permutation P carries one into the other.
half, inter = rope, Rope(rope.table, "interleaved")
assert (interleave(half(x, [7]), pairs=2) == inter(interleave(x, pairs=2), [7])).all()
assert (deinterleave(interleave(x, pairs=2), pairs=2) == x).all()
print("mixing them up:", *map(str, half(x, [1]).tolist()[0]), " vs ", *map(str, inter(x, [1]).tolist()[0]))

# %%
# The usual angles p·10000^(−2i/d) are not rational. float32 has their cosines to within its
# rounding, even far out.
for p in (1, 4095, 10**6):
    cos32, _ = angle_table(system("float32"), 4)([p])
    exact, _ = angle_table(system("mpmath(40)"), 4)([p])
    print(f"position {p:8}: cos = {cos32[0, 0]:.8f} in float32, {exact.tolist()[0][0]} in truth")
