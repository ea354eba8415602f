"""Trained against constructed: does linear self-attention that is trained on in-context regression become a gradient step?

Experiment and measures are those of von Oswald et al. 2023: N = 10, d = 10, x ~ U(−1, 1), w ~ N(0, I), no query among the keys, η by line
search. Ours: the exact η, and how it is trained. --full trains longer (minutes). --plot FILE.png
"""

# %%
# An example is a token (x, y), a query is (x, 0). Beside each query come d unit vectors: ŷ is linear in x, so at these it is ∂ŷ/∂x.
import argparse

import numpy as np

from refimpl.descent.dai import cosine
from refimpl.descent.von_oswald import examples, proposition_1, queries, self_attention
from refimpl.files import replacing, target_file

(parser := argparse.ArgumentParser()).add_argument("--full", action="store_true")
parser.add_argument("--plot", type=lambda path: target_file("--plot", path))
options, rng, N, d = parser.parse_args(), np.random.default_rng(0), 10, 10


def draw(size):
    X, w, units = rng.uniform(-1, 1, (size, N + 1, d)), rng.normal(size=(size, d, 1)), np.broadcast_to(np.eye(d), (size, d, d))
    asked = queries(np.concatenate([X[:, N:, :], units], axis=1), np.zeros((1, d)))
    return asked, examples(X[:, :N, :], X[:, :N, :] @ w), (X @ w)[:, N, 0]


# %%
# Constructed: Proposition 1, W_0 = 0. ŷ is η times that of η = 1, so the best η is a quotient; of means over all x and w, if you like.
*test, y = draw(2048)
at_1 = -self_attention(*test, *proposition_1(np.zeros((1, d)), 1.0, N))[..., d]
gd = (eta := y @ at_1[:, 0] / (at_1[:, 0] @ at_1[:, 0])) * at_1
print(f"a gradient step, with the best η for these examples, {eta:.3f}: loss ½(y − ŷ)² = {((y - gd[:, 0]) ** 2).mean() / 2:.4f}")
print(f"over all x and w, η = 15N/(5(N + d) − 1) = {(eta := 15 * N / (5 * (N + d) - 1)):.3f}: d/6 (1 − η/3) = {d / 6 * (1 - eta / 3):.4f}")

# %%
# Trained, by Adam: all four matrices are free. (First scale and rate were picked of seven tried: some stay on a plateau for 300 steps.)
try:
    import torch
except ImportError:
    raise SystemExit(print("Training needs torch: pip install 'refimpl[torch]'")) from None
torch.set_num_threads(1)
W = (torch.randn((4, d + 1, d + 1), generator=torch.manual_seed(0), dtype=torch.float64) / 10).requires_grad_()
adam, rows, (steps, size) = torch.optim.Adam([W]), [], (10000, 512) if options.full else (300, 256)
for i in range(steps + 1):
    if i % (steps // 10) == 0:
        got = -self_attention(*map(torch.from_numpy, test), *W.detach()).numpy()[..., d]
        rows.append((((y - got[:, 0]) ** 2).mean() / 2, ((gd - got)[:, 0] ** 2).mean(), cosine(got[:, 1:], gd[:, 1:]).mean()))
        print("{:5} steps: loss {:.4f}, squared difference from GD's ŷ {:.5f}, cosine with its ∂ŷ/∂x {:.4f}".format(i, *rows[-1]))
    asked, shown, target = map(torch.from_numpy, draw(size))
    (W.grad,) = torch.autograd.grad(((self_attention(asked[:, :1, :], shown, *W)[:, 0, d] + target) ** 2).mean() / 2, W)
    adam.param_groups[0]["lr"] = (1 - i / (steps + 1)) / 100
    adam.step()
if options.plot:
    from matplotlib.figure import Figure

    (axes := (figure := Figure()).subplots()).legend(axes.plot(range(0, steps + 1, steps // 10), rows), ["loss", "difference²", "cosine"])
    with replacing("--plot", options.plot) as file:
        figure.savefig(file, format="png")
