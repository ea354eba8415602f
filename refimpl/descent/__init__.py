"""In-context learning read as gradient descent: a module for each paper, in every number system.

    gradient.py     gradients, taken from the loss by dual numbers
    irie.py         a linear layer trained by gradient descent is linear attention to its history
    von_oswald.py   linear self-attention whose layers are gradient steps; GD++
    dai.py          attention without softmax as implicit finetuning, and how alike the two are
    ren_liu.py      softmax attention as one gradient step on a dual model, and its variants
    patch.py        a context as a rank-one change of an MLP, exact for one token only

Tokens are rows, as everywhere. The weights W (m, r) of a predictor are written as in the papers,
f(x) = W x, so a row x becomes x Wᵀ. The docstrings say which parts are our own.
"""
