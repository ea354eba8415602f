"""A prompt as a memory: how well does each kind stand for a prompt, at equal size, on real models?

ICLAA is Chen et al.'s (2024); maps that use the prompt's keys are our trial. REFIMPL_MODELS=FOLDER
names a folder with real weights. Options: --full takes minutes; --plot FILE.png
"""

import os
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from scipy.stats import t as student

from refimpl import Compression, Config, Float, Rotary, convert, generate, random_model, read_model
from refimpl.attention.random_features import KINDS as RANDOM
from refimpl.cli.experiment import read_options, with_progress
from refimpl.files.disk import replacing
from refimpl.prompt.compression import KINDS
from refimpl.prompt.fidelity import distance, sizes_in_bytes

options = read_options()
prompts, seeds, scales = (8, 2, (0.5, 1, 2)) if options.full else (2, 1, (1,))
widths, M, n = ((16, 64, 256, 1024, 4096), 256, 32) if options.full else ((16, 256), 96, 16)

# %%
# stories260K (Llama: RoPE, 4 groups of 2 heads of width 8) tells its own prompts. gpt-nano (GPT-2:
# 11 positions) sorts six letters; its positions go on, or start again, which adds an error.
folder, files = os.environ.get("REFIMPL_MODELS", ""), ("stories260K.bin", "gpt-nano-sort-model.json")
real = all((Path(folder) / name).is_file() for name in files) and folder
if real:
    llama, nano = (read_model(Path(folder) / name) for name in files)
else:
    print("REFIMPL_MODELS names no folder with real weights: these are random models, which say nothing of real ones")
    rotary = Rotary(8, placement="before")
    llama = random_model(Float(), Config(2, 32, 4, 2, 8, 8, phi="softmax", vocabulary=64, rope=rotary), seed=0)
    nano = random_model(Float(), Config(2, 16, 2, d=8, m=8, phi="softmax", vocabulary=3, table=11), seed=0)


def story(seed):
    drawn = np.random.default_rng(seed).integers(0, llama.config.vocabulary, M + n)
    text = [1, *generate(llama, [1], M + n - 1, temperature=1, seed=seed)] if real else list(drawn)
    return text[:M], text[M:]


def letters(seed):
    return (text := list(np.random.default_rng(seed).integers(0, 3, 6))), sorted(text)[:5]


random_maps, maps_by_keys = (*RANDOM, "half rank"), KINDS[len(RANDOM) :]  # half of the columns of [b_KV b_D]
first, second = ("stories260K", "gpt-nano") if real else ("random Llama", "random GPT-2")
also = f"{second}, positions restarted"
subjects = {first: (llama, story, True), second: (nano, letters, False), also: (nano, letters, True)}


# %%
# The prompted model is the truth; a memory must beat the model without the prompt. With scale s
# attention is exp(s q·k/√d). Intervals are Student's, 95 %, over prompts; seeds are averaged.
def mean(values):
    each = np.mean(np.reshape(values, (prompts, -1)), axis=-1)
    return np.mean(each), student.ppf(0.975, prompts - 1) * np.std(each, ddof=1) / np.sqrt(prompts)


def measure(model, text_of, restart):
    """{(kind, r): {scale: [(error, agreement)]}}, and the bytes of each."""
    found, sizes = {}, {}
    for scale, seed in with_progress(product(scales, range(prompts)), "scale and prompt"):
        weights = {name: w * scale if name.endswith(("W_Q", "b_Q")) else w for name, w in model.weights.items()}
        subject = replace(model, weights=weights)
        prompt, text = text_of(seed)
        want = subject([*prompt, *text])[len(prompt) :, :]
        found.setdefault(("dropped", 0), {}).setdefault(scale, []).append(distance(subject(text), want))
        for kind in (*random_maps, *maps_by_keys):
            name, rank = (kind, None) if kind in KINDS else ("positive", (model.config.m + 1) // 2)
            some = widths if name in RANDOM else [r for r in (2, 4, 8, 16, 32, 64, 128) if r < len(prompt)]
            for r in [None] if kind in ("taylor", "cache") else some:
                for draw in range(1 if kind in ("taylor", "cache", "cholesky", "tilted") else seeds):
                    made = convert(subject, prompt, restart=restart, by=Compression(name, r, draw, rank))
                    sizes[kind, r or 0] = sizes_in_bytes(made)
                    found.setdefault((kind, r or 0), {}).setdefault(scale, []).append(distance(made(text), want))
    return found, sizes


# %%
figures = {name: measure(*subject) for name, subject in subjects.items()}
for name, (found, sizes) in figures.items():
    print(f"\n{name}: relative logit error in %, × if worse than no prompt; next-token agreement at scale 1")
    print(f"{'kind':15}{'r':>5}{'memory':>9}" + "".join(f"{f'scale {s}':>18}" for s in scales) + f"{'agreement':>16}")
    best = {random_maps: [], maps_by_keys[:-1]: []}
    for (kind, r), by_scale in found.items():
        share = sizes[kind, r]["biases"] / sizes[kind, r]["kv_cache"] if kind != "dropped" else 0
        errors, floors = ([mean([e for e, _ in x[s]]) for s in scales] for x in (by_scale, found["dropped", 0]))
        pairs = zip(errors, floors, strict=True)
        cells = [f"{100 * e:11.3g} ± {100 * half:<4.2g}{' ×'[bool(e > floor)]}" for (e, half), (floor, _) in pairs]
        agree, half = mean([a for _, a in by_scale[1]])
        print(f"{kind:15}{r or '':>5}{share:8.2f}c{''.join(cells)}{100 * agree:9.1f} ± {100 * half:.2g}")
        for kinds, entries in best.items():
            entries += [(errors[scales.index(1)][0], f"{kind}({r})", share)] * (kind in kinds)
    for most in (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1):
        smallest = [min((entry for entry in entries if entry[2] <= most), default=None) for entries in best.values()]
        a, b = (f"{entry[1]} {100 * entry[0]:.3g}" if entry else "none so small" for entry in smallest)
        print(f"up to {most:6.4f} of the cache: random features {a}, maps by keys {b}")
print("""
memory: 1c is the exact KV cache. Chen et al. report for GPT-2: 16.56 % dropped, 9.17 % converted;
its size, prompts, number of features and positions are not known to us, so their figures only stand beside ours.""")

# %%
if options.plot:
    from matplotlib import pyplot as plt

    plt.switch_backend("agg")
    figure, axes = plt.subplots(1, len(figures), figsize=(18, 6), sharey=True)
    for axis, (name, (found, sizes)) in zip(axes, figures.items(), strict=True):
        for i, kind in enumerate((*random_maps, *maps_by_keys[:-1])):
            measures = {r: mean([e for e, _ in x[1]]) for (k, r), x in found.items() if k == kind}
            x, error, half = np.array(sorted((sizes[kind, r]["biases"], *m) for r, m in measures.items())).T
            bars, style = [np.minimum(half, 0.9 * error), half], "o-" if kind in maps_by_keys else "s--"  # bars above 0
            axis.errorbar(x, error, bars, fmt=style, ms=4, lw=1, elinewidth=0.5, color=plt.cm.tab20(i), label=kind)
        axis.axhline(mean([e for e, _ in found["dropped", 0][1]])[0], color="k", ls=":", label="prompt dropped")
        cache = sizes["cache", 0]["kv_cache"]
        axis.axvline(cache, color="k", lw=0.8, label="exact KV cache: right of it, it is cheaper")
        axis.set(xscale="log", yscale="log", title=name, xlabel="bytes of memory, all layers", ylim=(1e-4, 5))
    axes[0].set_ylabel("relative logit error, 95 % intervals")
    axes[-1].legend(fontsize=8, loc="lower right")
    with replacing("--plot", options.plot) as file:
        figure.savefig(file, format="png", dpi=100, bbox_inches="tight")
