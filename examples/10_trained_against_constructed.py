"""Trained against constructed: does trained linear self-attention become a gradient step?

Experiment and measures are those of von Oswald et al. 2023: N = 10, d = 10, x ~ U(−1, 1),
w ~ N(0, I), no query among the keys, η by line search. Ours: the exact η, and how it is trained.
Options: --full trains longer (minutes); --plot FILE.png
"""

# %%
# A lesson: N examples of y = w·x, each a token (x, y), and a query (x, 0), whose right answer is y.
# One layer of linear self-attention turns the query into (x, −ŷ). The d unit vectors are queries
# too: ŷ is linear in x, so the answers to these are ∂ŷ/∂x.
import numpy as np

from refimpl.cli.experiment import read_options, with_progress
from refimpl.descent.dai import cosine
from refimpl.descent.von_oswald import examples, proposition_1, queries, self_attention
from refimpl.files.disk import replacing

options = read_options()
N, d = 10, 10
W_0 = np.zeros((1, d))
rng = np.random.default_rng(0)


def draw(lessons):
    """Queries (lessons, 1 + d, d + 1), examples (lessons, N, d + 1), first answers (lessons,)."""
    X = rng.uniform(-1, 1, (lessons, N + 1, d))
    w = rng.normal(size=(lessons, d, 1))
    units = np.broadcast_to(np.eye(d), (lessons, d, d))
    asked = queries(np.concatenate([X[:, N:, :], units], axis=1), W_0)
    return asked, examples(X[:, :N, :], X[:, :N, :] @ w), (X @ w)[:, N, 0]


def answers(asked, shown, weights):
    """(lessons, 1 + d): ŷ, and after it ∂ŷ/∂x."""
    return -self_attention(asked, shown, *weights)[..., d]


def loss(y, guess):
    return ((y - guess) ** 2).mean() / 2


# %%
# Constructed: the weights of Proposition 1, with W_0 = 0. Then ŷ is η times its value at η = 1, so
# a regression of y on that value finds the best η. For all x and w at once η and its loss have a
# formula: E[y ŷ] and E[ŷ²] are moments of uniform and normal numbers.
asked, shown, y = draw(2048)
of_rate_1 = answers(asked, shown, proposition_1(W_0, 1.0, N))
eta = y @ of_rate_1[:, 0] / (of_rate_1[:, 0] @ of_rate_1[:, 0])
gd = eta * of_rate_1
print(f"a gradient step, with the best η for these examples, {eta:.3f}: loss ½(y − ŷ)² = {loss(y, gd[:, 0]):.4f}")
eta = 15 * N / (5 * (N + d) - 1)
print(f"over all x and w, η = 15N/(5(N + d) − 1) = {eta:.3f}: d/6 (1 − η/3) = {d / 6 * (1 - eta / 3):.4f}")

# %%
# Trained: the same layer, but all four matrices W_Q, W_K, W_V, P start as small random numbers and
# follow Adam, on new lessons at each step. (Of seven first scales and rates tried, we picked
# one: with some, the loss stays on a plateau for 300 steps.)
try:
    import torch
except ImportError:
    raise SystemExit(print("Training needs torch: pip install 'refimpl[torch]'")) from None
torch.set_num_threads(1)
training, lessons = (10000, 512) if options.full else (300, 256)
W = torch.randn((4, d + 1, d + 1), generator=torch.manual_seed(0), dtype=torch.float64) / 10
W.requires_grad_()
adam = torch.optim.Adam([W])


def measures():
    """On 2048 lessons: the loss, and how far ŷ and ∂ŷ/∂x are from the gradient step's."""
    got = answers(*map(torch.from_numpy, (asked, shown)), W.detach()).numpy()
    return loss(y, got[:, 0]), ((gd - got)[:, 0] ** 2).mean(), cosine(got[:, 1:], gd[:, 1:]).mean()


at, rows = range(0, training + 1, training // 10), []
for i in with_progress(range(training + 1), "step"):
    if i in at:
        rows.append(measures())
        print(
            "{:5} steps: loss {:.4f}, squared difference from GD's ŷ {:.5f}, cosine with its ∂ŷ/∂x {:.4f}".format(
                i, *rows[-1]
            )
        )
    new_asked, new_shown, new_y = map(torch.from_numpy, draw(lessons))
    guess = answers(new_asked[:, :1, :], new_shown, W)[:, 0]
    (W.grad,) = torch.autograd.grad(loss(new_y, guess), W)
    adam.param_groups[0]["lr"] = (1 - i / (training + 1)) / 100
    adam.step()

# %%
if options.plot:
    from matplotlib.figure import Figure

    figure = Figure()
    axes = figure.subplots()
    axes.legend(axes.plot(at, rows), ["loss", "difference²", "cosine"])
    axes.set(xlabel="steps of Adam")
    with replacing("--plot", options.plot) as file:
        figure.savefig(file, format="png")
