"""Low precision: a running sum in bfloat16 forgets, and probes tell rounding from mistakes."""

# %%
# z = Σ φ(k_s) is added up one token at a time, and rounded to bfloat16 after every token. bfloat16
# has 8 significant bits.
from refimpl import Rounded, exact_probe, floats, linear_attention, linear_attention_chunked, linear_attention_recurrent
from refimpl.attention.feature_maps import elu_plus_one

bf16 = Rounded("bfloat16")
for n in (64, 4096):
    phi = elu_plus_one(bf16.random((n, 16), seed=0))
    running = bf16.zeros((16,))
    for t in range(n):
        running = running + phi[t]
    once = bf16.sum(phi, axis=0)  # formed wide, rounded at the end
    exact = floats(phi).sum(axis=0)
    worst, best = (abs(floats(z) / exact - 1).max() for z in (running, once))
    print(f"{n:5} tokens: running z off by {worst:6.1%}, rounded once at the end by {best:.1%}")

# %%
# Once z reaches 2⁸ times a term, the term is at most half a step and rounds away. Ones stop at 256.
z = bf16.convert(0)
for _ in range(4096):
    z = z + 1
print("4096 ones add up to", z.tolist())

# %%
# So is a kernel that is 1 % off broken, or only rounded? A probe asks it where nothing rounds: keys
# are one-hot, values small integers, denominators powers of two. There every correct kernel must
# give == in every format.
for format in ("bfloat16", "float16"):
    probe = exact_probe(Rounded(format), n=9, r=4, m=3, layout="half", seed=1)
    for form in (linear_attention, linear_attention_recurrent, linear_attention_chunked):
        o, state = form(probe.q, probe.k, probe.v, **probe.options)
        print(f"{format:9} {form.__name__:28} {probe.mismatch(o, state) or 'exact'}")
        assert probe.mismatch(o, state) is None

# %%
# Rounding no longer hides a mistake, here a state read with one position too many.
wrong = {**probe.options, "state": type(state)(probe.options["state"].S, probe.options["state"].z, 4)}
o, state = linear_attention_recurrent(probe.q, probe.k, probe.v, **wrong)
print("off by one position:", probe.mismatch(o, state))
