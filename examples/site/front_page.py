"""What README.md shows: the story of Lily, the table of evidence, and the picture.

    python examples/site/front_page.py            runs it all and prints it
    python examples/site/front_page.py --write    and writes the results, the picture, README.md

The story needs stories260K.bin and tok512.bin of llama2.c in the folder that REFIMPL_MODELS names;
without them, --write keeps the story that front_page.json has. tests/test_readme.py compares all.
"""

import argparse
import hashlib
import json
import math
import os
import textwrap
from itertools import zip_longest
from pathlib import Path

import numpy as np

from refimpl import QQ, Compression, Config, Rotary, convert, floats, generate, random_model, read_model, read_tokenizer
from refimpl.files.disk import replacing
from refimpl.prompt.fidelity import distance, sizes_in_bytes
from refimpl.verify.formal import IN_PART, PROVED
from refimpl.verify.registry import verify

HERE = Path(__file__).parent
README, RESULTS, PICTURE = HERE.parents[1] / "README.md", HERE / "front_page.json", HERE / "dissolving.svg"
WEIGHTS = ("stories260K.bin", "tok512.bin")

STORY = (
    "Once upon a time, a girl named Lily found a little frog. The frog was sad. He could not find "
    "his mom. Lily wanted to help the frog."
)
TEXT, TOKENS, WIDTH = "Lily", 48, 30
MEMORIES = (8, 16)  # points of the memories that stand for the story approximately

# The rows of the table of evidence, and what each says in a few words
EVIDENCE = {
    "iclca": "prompt as biases = prompt read",
    "iclca_removal": "the biases can be taken out again",
    "recurrent_eq_sum": "running state = the definition",
    "chunked_eq_sum": "chunks = the definition",
    "rope_relative": "RoPE sees distances only",
    "causality": "no token sees a later one",
    "kv_cache": "softmax: KV cache = prompt",
    "rwkv_state": "RWKV: state = prompt",
    "von_oswald": "layer = gradient step",
    "ren_liu": "dual model: attention = one step",
}


def weights():
    """The paths of the model and its tokenizer, or none."""
    paths = [Path(os.environ.get("REFIMPL_MODELS", "")) / name for name in WEIGHTS]
    return paths if all(path.is_file() for path in paths) else []


def lily():
    """How a trained model goes on after "Lily": without the story, with it baked in or read."""
    path, tokens = weights()
    model, tokenizer = read_model(path), read_tokenizer(tokens)
    story, (start, *text) = tokenizer.encode(STORY), tokenizer.encode(TEXT)
    baked = convert(model, story)
    runs = {
        "no story": generate(model, [start, *text], TOKENS),
        "baked in, not read": generate(baked, text, TOKENS),
        "read again": generate(model, [*story, *text], TOKENS),
    }
    ids = {name: list(run) for name, run in runs.items()}
    prompted = model([*story, *text])[len(story) :]
    cache, memories = sizes_in_bytes(baked)["kv_cache"], []
    for points in MEMORIES:
        memory = convert(model, story, by=Compression("tilted", points))
        same = agreement(list(generate(memory, text, TOKENS)), ids["read again"])
        memories.append({"points": points, "share": sizes_in_bytes(memory)["biases"] / cache, "same": same})
    return {
        "story": len(story),
        "ids": ids,
        "texts": {name: tokenizer.decode(found) for name, found in ids.items()},
        "logits": float(distance(baked(text), prompted)[0]),
        "memories": memories,
    }


def agreement(a, b):
    """How many ids are the same before the first that is not?"""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))


def lily_block(found):
    """Three columns, whose last line counts the ids that are those of the story read again."""
    columns = []
    for name, ids in found["ids"].items():
        same = sum(x == y for x, y in zip(ids, found["ids"]["read again"], strict=True))
        lines = textwrap.wrap(TEXT + " ".join(found["texts"][name].split("\n")), WIDTH - 3)
        columns.append([name.upper(), *lines, f"[{same} of {TOKENS} ids]"])
    depth = max(map(len, columns))
    columns = [[*column[:-1], *[""] * (depth - len(column)), column[-1]] for column in columns]
    lines = ("".join(f"{cell:{WIDTH}}" for cell in row).rstrip() for row in zip_longest(*columns, fillvalue=""))
    logits = math.ceil(math.log10(found["logits"] + 1e-300)) + 1
    memories = (f"{x['same']} with {x['points']} points ({x['share']:.0%} of its bytes)" for x in found["memories"])
    off = f"The logits at {TEXT} are the same to {power_of_ten(logits)} of their size."
    kept = f"An *approximate* memory in place of the cache keeps the first ids: {', '.join(memories)}."
    return "\n".join([f"> {STORY}", "", "```text", *lines, "```", "", f"{off} {kept}"])


def power_of_ten(n):
    return f"10{str(n).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


def evidence():
    """For each of ten theorems: what `refimpl verify` finds in each kind of system."""
    rows = []
    for name in EVIDENCE:
        found = verify([name])
        # systems that cannot state a theorem are left out; verify --json has all
        in_q = [r for r in found if r.system == "Q" and r.verdict == "EXACT"]
        modular = [r.probability for r in found if r.verdict == "EXACT" and r.probability is not None]
        bounds = {r.system for r in found if r.verdict in ("WITHIN BOUND", "EXACT")}  # by luck, nothing may round
        rows.append(
            {
                "theorem": name,
                "exact": in_q[0].instances if in_q else 0,
                "log10_chance": max((math.ceil(math.log10(p)) for p in modular), default=None),
                "floats": [x for x in ("float64", "float32") if x in bounds],
                "sets": any(r.system == "dependencies" and r.verdict == "EXACT" for r in found),
                "failed": sum(r.verdict == "FAIL" for r in found),
                "coq": len(PROVED.get(name, ())),
                "in_part": name in IN_PART,
            }
        )
    return rows


def evidence_block(rows):
    lines = ["| theorem | says | in ℚ | modulo p | floats | Coq |", "|---|---|---|---|---|---|"]
    for row in rows:
        exact = f"{row['exact']} exact" if row["exact"] else "sets" if row["sets"] else "–"
        chance = "–" if row["log10_chance"] is None else f"≤ {power_of_ten(row['log10_chance'])}"
        floats_, coq = "bound" if row["floats"] else "–", f"{row['coq']}{' in part' if row['in_part'] else ''}"
        lines.append(f"| `{row['theorem']}` | {EVIDENCE[row['theorem']]} | {exact} | {chance} | {floats_} | {coq} |")
    return "\n".join(lines)


def stages():
    """A prompt that becomes biases piece by piece, in ℚ: (tokens left, b_KV, b_D, output) of each.

    The last stage has neither prompt nor biases. All but the last have equal outputs.
    """
    rope = Rotary(width=2, base=None)
    sizes = {"layers": 2, "width": 4, "d": 4, "m": 4, "vocabulary": 9}
    config = Config(**sizes, norm="none", phi=lambda x: x * x + 1, rope=rope)
    model, prompt, text = random_model(QQ, config, seed=4), [3, 1, 4, 1, 5, 2], [6]
    found = []
    for done in (0, 2, 4, 6):
        here = convert(model, prompt[:done]) if done else model
        output = here([*prompt[done:], *text])[len(prompt) - done :, :]
        state = here.biases[0] if done else None
        pair = (state.S, state.z) if done else (QQ.zeros((1, 4, 4)), QQ.zeros((1, 4)))
        found.append((prompt[done:], *pair, output))
    found.append(([], QQ.zeros((1, 4, 4)), QQ.zeros((1, 4)), model(text)))
    return found


def picture_digest():
    """A digest of all numbers of the picture, which front_page.json keeps: an old one is seen."""
    shown = [(tokens, *(x.tolist() for x in arrays)) for tokens, *arrays in stages()]
    return hashlib.sha256(json.dumps(shown, default=str).encode()).hexdigest()


def draw():
    """The stages, one below the other, as SVG."""
    from matplotlib import pyplot as plt

    found = stages()
    plt.switch_backend("agg")
    plt.rcParams.update({"svg.hashsalt": "refimpl", "font.family": "DejaVu Sans", "font.size": 10})
    figure, axes = plt.subplots(
        len(found), 4, figsize=(8, 5.6), width_ratios=(7, 3, 1, 6), gridspec_kw={"hspace": 0.35, "wspace": 0.18}
    )
    limits = [max(float(abs(floats(stage[i])).max()) for stage in found) for i in (1, 2, 3)]
    words = ["the prompt is read", "2 tokens are biases", "4 tokens are biases", "all are biases", "neither"]
    for row, (tokens, S, z, output), label in zip(axes, found, words, strict=True):
        gone = len(found[0][0]) - len(tokens)
        shown = [*found[0][0], 6]
        for i, token in enumerate(shown):
            text = i == len(shown) - 1
            here = text or i >= gone
            color = "#d1495b" if text else "#30638e" if here else "none"
            row[0].add_patch(plt.Rectangle((i, 0), 0.86, 0.86, fc=color, ec="#b8c4ce" if not here else color, ls="-"))
            row[0].text(i + 0.43, 0.4, str(token), ha="center", va="center", color="white" if here else "#b8c4ce")
        row[0].set(xlim=(-0.1, 7), ylim=(-0.25, 1.1), aspect="equal")
        row[0].set_title(label, loc="left", fontsize=10, pad=2)
        maps = {"cmap": "RdBu_r", "edgecolors": "white", "linewidth": 0.8}
        row[1].pcolormesh(floats(S)[0][::-1], vmin=-limits[0], vmax=limits[0], **maps)
        row[2].pcolormesh(floats(z)[0][::-1, None], vmin=-limits[1], vmax=limits[1], **maps)
        row[1].set_aspect("equal")
        row[2].set_aspect("equal")
        values = floats(output)[-1]
        same = QQ.equal(output, found[0][3])
        row[3].bar(np.arange(len(values)), values, color="#3c8d5a" if same else "#c7862b", width=0.75)
        row[3].axhline(0, color="#444444", lw=0.7)
        row[3].set_ylim(-1.1 * limits[2], 1.1 * limits[2])
        sign = "" if tokens == found[0][0] else "=" if same else "≠"
        row[3].text(-0.06, 0.5, sign, transform=row[3].transAxes, ha="right", va="center", fontsize=13)
        for axis in row:
            axis.set(xticks=[], yticks=[], frame_on=False)
    for axis, title in zip(axes[0], ("prompt and text", "b_KV", "b_D", "output for the text"), strict=True):
        box = axis.get_position()
        figure.text((box.x0 + box.x1) / 2, 0.94, title, ha="center", weight="bold")
    with replacing("front_page", PICTURE) as file:
        figure.savefig(file, format="svg", bbox_inches="tight", facecolor="white", metadata={"Date": None})


def with_blocks(text, results):
    """The text of README.md with its generated blocks."""
    for name, block in (("lily", lily_block(results["lily"])), ("evidence", evidence_block(results["evidence"]))):
        begin, end = f"<!-- {name}: begin, written by examples/site/front_page.py -->", f"<!-- {name}: end -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{block}\n{end}{rest.split(end)[1]}"
    return text


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    if weights():
        results["lily"] = lily()
    elif "lily" not in results:
        raise SystemExit(f"REFIMPL_MODELS must name a folder with {' and '.join(WEIGHTS)}")
    results |= {"evidence": evidence(), "picture": picture_digest()}
    print(lily_block(results["lily"]), evidence_block(results["evidence"]), sep="\n\n")
    print(results["lily"]["logits"], results["lily"]["memories"])
    if options.write:
        with replacing("front_page", RESULTS, "x") as file:
            file.write(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
        draw()
        readme = with_blocks(README.read_text(encoding="utf-8"), results)
        with replacing("front_page", README, "x") as file:
            file.write(readme)


if __name__ == "__main__":
    main()
