"""A prompt is a state: RWKV, a real trained model, goes on from a file as if it had read a prompt.

REFIMPL_MODELS=FOLDER names a folder with real weights; without it, the weights are random.
"""

# %%
# A layer reads a text from a state and hands on the state after it. Nothing else of the past
# reaches the future, so a prompt *is* a state. RWKV-7 as a running state, and as an explicit sum:
#
#     S_t = (Diag(w_t) + b_t a_tᵀ) S_{t-1} + k_t v_tᵀ = A_t S_{t-1} + k_t v_tᵀ        o_t = S_tᵀ r_t
#     o_t = Σ_s r_tᵀ (Π_{s<x≤t} A_x) k_s v_sᵀ
import os
import tempfile
from pathlib import Path

import numpy as np

import refimpl as ri
from refimpl import QQ, Float, Model, Rwkv, convert
from refimpl.files.tokenizers import ByteTokenizer

r, w, k, a, b = (QQ.random((5, 2), seed) for seed in range(5))
v = QQ.random((5, 3), 5)
o, _ = ri.recurrence(r, w, k, v, a=a, b=b)
summed, _ = ri.recurrence_sum(r, w, k, v, a=a, b=b)
assert QQ.equal(o, summed)
print("in ℚ, the running state and the explicit sum are the same fractions")

# %%
# Now a whole model. The prompted side never forms a state: each token sums over all positions
# before it.
path = Path(os.environ.get("REFIMPL_MODELS", "")) / "tiny-rwkv-5v2-730K-FP32.bin"
if path.is_file():
    model = ri.read_model(path)
else:
    print("REFIMPL_MODELS names no folder with real weights: this is a model of random ones")
    model = ri.random_model(Float(), Rwkv("5.2", layers=3, width=16, heads=2, hidden=32, vocabulary=256), seed=0)
bytes_ = ByteTokenizer()
prompt, text = bytes_.encode("The three of them walked on for a long time. " * 8), bytes_.encode("Then the")
prompted, _ = ri.transformer(model, prompt + text, form="sum")
baked = convert(model, prompt)
off = np.abs(baked(text) - prompted[len(prompt) :]).max() / np.abs(prompted).max()
print(f"{len(prompt)} bytes of prompt; logits from the state and from the sum over all positions:", end=" ")
print(f"relative difference {off:.1e}")

# %%
# The state goes into a file, and the prompt is dropped. The text goes on as if the prompt were
# there.
with tempfile.TemporaryDirectory() as folder:
    ri.save(f"{folder}/baked.safetensors", baked, biases_only=True)
    again: Model = ri.load(f"{folder}/baked.safetensors", model)
    size = os.path.getsize(f"{folder}/baked.safetensors")
from_state, from_text = (list(ri.generate(m, ids, 60)) for m, ids in ((again, text), (model, prompt + text)))
assert from_state == from_text
print(f"{size:,} bytes of file. It goes on, either way: {bytes_.decode(from_state)!r}")
