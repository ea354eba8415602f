"""Somebody else's kernel: is it right, and if not, what is the mistake?"""

# %%
# A kernel in chunks of 16 tokens, as one would write it. The state goes from chunk to chunk.
import numpy as np

from refimpl.crosscheck import LinearAttention, crosscheck


def chunked(q, k, v, S, z, *, forget=False):
    """Causal linear attention with φ = relu: the output, and the state after the last token."""
    q, k, parts = np.maximum(q, 0), np.maximum(k, 0), []
    for i in range(0, q.shape[2], 16):
        z = z * 0 if forget and i else z
        a, b, c = (x[:, :, i : i + 16] for x in (q, k, v))
        scores = np.tril(a @ b.swapaxes(-1, -2))
        top, below = scores @ c + a @ S, scores.sum(-1, keepdims=True) + a @ z[..., None]
        parts.append(top / below)
        S, z = S + b.swapaxes(-1, -2) @ c, z + b.sum(-2)
    return np.concatenate([v[:, :, :0], *parts], axis=2), S, z


# %%
# Its conventions are stated, and it is right by them.
spec = LinearAttention(call="q, k, v, S, z -> o, S, z", phi="relu")
print(crosscheck(chunked, spec))

# %%
# Here z is forgotten between chunks, which shows in the 17th token. `allclose` on 16 tokens is
# content.
def forgetful(q, k, v, S, z):
    return chunked(q, k, v, S, z, forget=True)


print(crosscheck(forgetful, spec))

# %%
# The plan has cases for conditions under which mistakes show. A few of them:
for case in spec.plan()[::12]:
    print(f"{case}: {case.why}")
