"""Your own model: its weights by a small mapping, and each of its layers beside ours."""

# %%
# A model as somebody wrote it, in plain NumPy. Its weights are called as its author liked, matrices
# are (out, in) as in torch, and q, k, v come from one of them.
import importlib.util

import numpy as np

import refimpl as ri
from refimpl import Config, Rotary

rng, heads, d = np.random.default_rng(0), 2, 4
mine = {"tok": rng.standard_normal((9, 8)), "norm": 1 + rng.random(8) / 4}
for i in range(2):
    mine |= {f"block{i}.qkv": rng.standard_normal((24, 8)) / 2, f"block{i}.out": rng.standard_normal((8, 8)) / 2}
    mine |= {f"block{i}.norm": 1 + rng.random(8) / 4}


def rms(x, gain):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * gain


def my_forward(tokens):
    """Logits, and the states: the embedding and the output of each layer."""
    x, n = mine["tok"][tokens], len(tokens)
    states, cos, sin = [x], *(f(np.arange(n)[:, None] * np.array([1, 0.01])) for f in (np.cos, np.sin))
    for i in range(2):
        y = rms(x, mine[f"block{i}.norm"]) @ mine[f"block{i}.qkv"].T
        q, k, v = np.moveaxis(y.reshape(n, 3, heads, d), (1, 2), (0, 1))
        (a, b), (e, f) = np.split(q, 2, -1), np.split(k, 2, -1)
        q = np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)
        k = np.concatenate([e * cos - f * sin, e * sin + f * cos], -1)
        scores = np.where(np.tri(n, dtype=bool), np.exp(q @ np.swapaxes(k, 1, 2) / d**0.5), 0)
        o = scores @ v / scores.sum(-1, keepdims=True)
        states.append(x := x + np.moveaxis(o, 0, 1).reshape(n, -1) @ mine[f"block{i}.out"].T)
    return rms(x, mine["norm"]) @ mine["tok"].T, states


# %%
# The mapping says what each tensor holds; {} is the number of a layer, and .T a transpose.
config = Config(2, 8, heads, d=d, m=d, phi="softmax", norm="rms", vocabulary=9, rope=Rotary(d, placement="before"))
mapping = {"tok": "embedding", "norm": "gain", "block{}.norm": "gain_1"}
mapping |= {"block{}.qkv": ["W_Q.T", "W_K.T", "W_V.T"], "block{}.out": "W_O.T"}
model = ri.model_from_weights(config, mine, mapping)
print(ri.compare(model, my_forward))

# %%
# One .T is forgotten. The matrix is square, so every shape still fits; and yet:
print(ri.compare(ri.model_from_weights(config, mine, mapping | {"block{}.out": "W_O"}), my_forward))

# %%
# The same from a state_dict of torch, if torch is here.
if importlib.util.find_spec("torch"):
    import torch

    state_dict = {name: torch.tensor(w) for name, w in mine.items()}
    print("from torch:", ri.compare(ri.model_from_weights(config, state_dict, mapping), my_forward).verdict)
