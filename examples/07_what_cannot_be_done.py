"""What cannot be done: a few numbers show why a prompt must become these biases, no less."""

# %%
# This model adds. Tokens are (1, x, 0, 0); layer 1 finds y, layer 2 finds z, and the output is
# (1, x, y, z).
#
#     y_t = Σ_{s≤t} x_s        z_t = Σ_{s≤t} y_s²
#
# A prompt becomes its Σ x and its Σ y². Any other two numbers in their place would show in y or z.
from refimpl import QQ, convert
from refimpl.verify.theorems.witnesses import adder, biases, show, sums, text, then

model, prompt, x = adder(QQ, layers=2), text(QQ, 3, -1), text(QQ, 5)
print("prompt 3, −1; input 5:  y, z =", *sums(model, then(prompt, x)).tolist())
print("as biases, in layer 1 and 2:", *biases(convert(model, prompt))[:, 0].tolist())
assert QQ.equal(sums(convert(model, prompt), x), sums(model, then(prompt, x)))

# %%
# The theorem has three assumptions. Without any one of them, the bias would depend on the input.
print(show("needs_causality", "needs_relative_positions", "needs_separation"))

# %%
# Neither other weights nor biases of the projections do what a bias of the state does.
print(show("no_change_of_weights", "no_projection_biases"))

# %%
# Biases remember sums. Two prompts with the same sums are the same to every later token of this
# model, but an earlier prompt, put before them or taken from before them, shows the difference.
print(show("joining_biases", "lifo_only"))

# %%
# A difference is evidence only if it goes away with its cause. Under a causal mask, layer 2 needs
# one bias, whatever the input.
for mask in ("full", "causal"):
    ys = [adder(QQ, layers=1)(then(prompt, text(QQ, other)), mask=mask)[:2, 2] for other in (5, 6)]
    print(f"{mask:6} mask, inputs 5 and 6: Σ y² over the prompt is", *(QQ.sum(y * y, axis=0).tolist() for y in ys))
