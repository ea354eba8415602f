"""RWKV, a real trained linear-attention model: a prompt becomes its state, exactly. With REFIMPL_MODELS=FOLDER on real weights."""

# %%
# A layer reads a text from a state and hands on the state after it. Nothing else of the past
# reaches the future, so a prompt *is* a state.
import os
import tempfile
from pathlib import Path

import numpy as np

from refimpl import (
    QQ,
    Float,
    Model,
    Rwkv,
    convert,
    generate,
    load,
    random_model,
    read_model,
    recurrence,
    recurrence_sum,
    save,
    transformer,
)
from refimpl.files.tokenizers import ByteTokenizer

r, w, k, a, b = (QQ.random((5, 2), seed) for seed in range(5))
v = QQ.random((5, 3), 5)
o, _ = recurrence(r, w, k, v, a=a, b=b)  # RWKV-7: S_t = (Diag(w_t) + b_t a_tᵀ) S_{t-1} + k_t v_tᵀ, a running state
summed, _ = recurrence_sum(r, w, k, v, a=a, b=b)  # Σ_s r_tᵀ (Π_{s<x≤t} A_x) k_s v_sᵀ: no state at all
assert QQ.equal(o, summed)
print("in ℚ, the running state and the explicit sum are the same fractions")

# %%
# A whole model. The prompted side never forms a state: each token sums over all positions before
# it.
path = Path(os.environ.get("REFIMPL_MODELS", "")) / "tiny-rwkv-5v2-730K-FP32.bin"
if path.is_file():
    model = read_model(path)
else:
    print("REFIMPL_MODELS names no folder with real weights: this is a model of random ones")
    model = random_model(Float(), Rwkv("5.2", layers=3, width=16, heads=2, hidden=32, vocabulary=256), seed=0)
bytes_ = ByteTokenizer()
prompt, text = bytes_.encode("The three of them walked on for a long time. " * 8), bytes_.encode("Then the")
prompted, _ = transformer(model, prompt + text, form="sum")
baked = convert(model, prompt)
apart = np.abs(baked(text) - prompted[len(prompt) :]).max() / np.abs(prompted).max()
print(
    f"{len(prompt)} bytes of prompt; logits from the state and from the sum over all positions: {apart:.1e} apart, relatively"
)

# %%
# The state goes into a file, the prompt away; and the text goes on as if it were there.
with tempfile.TemporaryDirectory() as place:
    save(f"{place}/baked.safetensors", baked, biases_only=True)
    again: Model = load(f"{place}/baked.safetensors", model)
    size = os.path.getsize(f"{place}/baked.safetensors")
going_on, read_again = (list(generate(m, ids, 60)) for m, ids in ((again, text), (model, prompt + text)))
assert going_on == read_again
print(f"{size:,} bytes of file. It goes on, either way: {bytes_.decode(going_on)!r}")
