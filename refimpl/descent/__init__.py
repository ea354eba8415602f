"""In-context learning read as gradient descent: each paper's claim in a room of its own, as code that runs in every number system.

    gradient.py     what a gradient is here: taken from the loss, by dual numbers
    irie.py         a linear layer trained by gradient descent is linear attention over its training history
    von_oswald.py   linear self-attention whose layers are gradient steps; GD++
    dai.py          attention without softmax as implicit finetuning, and how alike the two are
    ren_liu.py      softmax attention as one gradient step on a dual model, and the variants which that suggests
    patch.py        a context as a rank-one change of an MLP, exact but for one token only

Tokens are rows, as everywhere. Weights of a predictor, W (m, r), are written as in the papers: f(x) = W x, so that rows go by x Wᵀ.
"""
