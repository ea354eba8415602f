"""Variants of attention, trained: do any of them learn better than softmax attention as it is?

The variants (regularised, augmented, with negative samples) are those on the slides of Ren & Liu,
by the formulas of refimpl.descent.ren_liu. Ours: the task (in-context regression), one layer, σ =
relu, c = ½, negatives with the least similar keys, g_1 and g_2 for the demonstrations alone, all
sizes. So no figure of theirs is repeated. Options: --full trains ten seeds for minutes; --plot
FILE.png
"""

# %%
# One function has all variants, for many sequences at once. K and V hold N demonstrations, then the
# query's own token; g_1 and g_2 augment.
from itertools import product

from refimpl.cli.experiment import read_options, with_progress
from refimpl.descent import ren_liu
from refimpl.files.disk import replacing

options = read_options()
try:
    import torch
except ImportError:
    raise SystemExit(print("All of this needs torch: pip install 'refimpl[torch]'")) from None
torch.set_num_threads(1)
rng = torch.manual_seed(0)


def attention(K, V, q, g_1, g_2, decay=0.0, off_diagonal=0.0, k=0, beta=0.0, kernel=torch.exp):
    K_D, V_D, V_T = g_2(K[..., :-1, :]), g_1(V[..., :-1, :]), V[..., -1:, :]
    kappa = kernel((torch.cat([K_D, K[..., -1:, :]], dim=-2) * q).sum(-1, keepdim=True))
    if k:
        order = (K_D @ K_D.mT + torch.diag(torch.full(K_D.shape[-2:-1], torch.inf))).argsort(stable=True)
        V_D = V_D - beta / k * torch.zeros_like(order, dtype=V.dtype).scatter(-1, order[..., :k], 1) @ V_D
    return (kappa * torch.cat([V_D, (1 - decay) * V_T], dim=-2)).sum(-2) / kappa.sum(-2) - off_diagonal * V_T[..., 0, :]


# %%
# Is it the same as refimpl's? With κ = k·q in place of exp, small integers and binary α, β/k,
# nothing rounds before the division, so `==` must hold. This does not test exp, nor that g_2 comes
# before exp here, as on the slides, but after φ in refimpl's Variant: for k·q they agree.
as_is, integers = lambda x: x, lambda *shape: torch.randint(1, 4, shape, generator=rng).to(torch.float64)
K, V, q = integers(6, 3), integers(6, 2), integers(1, 3)
augmented = [ren_liu.residual(integers(4, n), integers(n, 4), 0.5, torch.relu) for n in (2, 3)]
context = ren_liu.QueryContext(K[:-1], V[:-1], K[-1:], V[-1:], q[0])
for g, alpha, off, (k, beta) in product(([as_is] * 2, augmented), (0, 0.25), (0, 0.5), ((1, 0.0), (1, 0.5), (3, 0.75))):
    negatives = ren_liu.least_similar(g[1](K[:-1]), k)
    variant = ren_liu.Variant(alpha, off_diagonal=off, negatives=negatives, beta=beta, values=g[0], keys=g[1])
    assert torch.equal(attention(K, V, q, *g, alpha, off, k, beta, kernel=as_is), ren_liu.attention(context, variant))
print("equal to ren_liu.attention, bit for bit, in 24 variants")

# %%
# Sequences of N = 20 examples (x, y) and a query (x, 0), d = 3, x ~ U(−1, 1), w ~ N(0, I); the
# prediction is o. Every variant sees the same data and starts at the same weights, all seeds side
# by side. The loss is that of sequences held out: (y − ŷ)², at first about 1. N, d, Adam's rate (of
# 0.01, 0.03, 0.05, 0.1) and the scale of the first weights (of 1, 1/2, 1/5) were picked so that the
# normal form learns and its seeds agree; no variant was tuned. Still some seeds stay on a plateau,
# which is most of the spread.
seeds, epochs = (10, 100) if options.full else (3, 8)
X = 2 * torch.rand((seeds, 1024, 21, 3), generator=rng) - 1
y = X @ torch.randn((seeds, 1024, 3, 1), generator=rng)
tokens = torch.cat([X, torch.cat([y[:, :, :-1], 0 * y[:, :, -1:]], dim=2)], dim=3)
shapes = {"Q": (4, 4), "K": (4, 4), "V": (1, 4), "values": (8, 1), "values 2": (1, 8), "keys": (8, 4), "keys 2": (4, 8)}
start = {name: torch.randn((seeds, *shape), generator=rng) / 5 for name, shape in shapes.items()}


def losses(W, at, augment=(), **how):
    g = [
        ren_liu.residual(W[n][:, None], W[n + " 2"][:, None], 0.5, torch.relu) if n in augment else as_is
        for n in ("values", "keys")
    ]
    q, K, V = (
        torch.einsum("sbnw,shw->sbnh", tokens[:, at, first:], W[n]) for n, first in (("Q", -1), ("K", 0), ("V", 0))
    )
    return ((attention(K, V, q, *g, **how) - y[:, at, -1]) ** 2).mean((1, 2))


families = {
    "regularised": {f"{how} α={a}": {how: a} for how in ("decay", "off_diagonal") for a in (0.1, 0.5)},
    "augmented": {f"augmented {' and '.join(g)}": {"augment": g} for g in (("values",), ("keys",), ("values", "keys"))},
    "negative": {f"negative k={k} β={b}": {"k": k, "beta": b} for k in (1, 3) for b in (0.1, 0.5)},
}
curves, found = {}, {"lower in every seed": [], "higher in every seed": [], "lower in some": []}
variants = {"normal": {}, **families["regularised"], **families["augmented"], **families["negative"]}
for name, how in with_progress(variants.items(), "variant"):
    W, curves[name] = {n: x.clone().requires_grad_() for n, x in start.items()}, []
    adam = torch.optim.Adam(W.values(), lr=0.05)
    for _ in range(epochs):
        for i in range(0, 512, 128):
            adam.zero_grad()
            losses(W, slice(i, i + 128), **how).sum().backward()
            adam.step()
        with torch.no_grad():
            curves[name].append(losses(W, slice(512, 1024), **how))
    last, less = curves[name][-1], curves[name][-1] - curves["normal"][-1]
    verdict = (
        "lower in every seed" if (less < 0).all() else "higher in every seed" if (less > 0).all() else "lower in some"
    )
    found[verdict].append(name)
    print(f"{name:26} {last.mean():.4f} ± {last.std():.4f}", end="   ")
    print(f"less normal {less.mean():+.4f} ± {less.std():.4f}", flush=True)
print(f"Mean ± sd of {seeds} seeds after {epochs} epochs.", end=" ")
print("Of variants that do nothing, one in four is alike in three seeds.")
for verdict, names in found.items():
    print(f"{verdict}:", ", ".join(name for name in names if name != "normal") or "none")

# %%
# One plot for each family, with the spread of the seeds.
if options.plot:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4), layout="constrained")
    for axes, (family, members) in zip(figure.subplots(1, 3), families.items(), strict=True):
        for name in ("normal", *members):
            mean, sd = (f(torch.stack(curves[name]), dim=1).numpy() for f in (torch.mean, torch.std))
            axes.plot(mean, label=name)
            axes.fill_between(range(epochs), mean - sd, mean + sd, alpha=0.15)
        axes.set(title=family, xlabel="epochs", ylabel="loss")
        axes.legend()
    with replacing("--plot", options.plot) as file:
        figure.savefig(file, format="png")
