"""Drawn feature maps, and intervals that hold a true mean with probability 99.99 %."""

from __future__ import annotations

import numpy as np

from refimpl import Float
from refimpl.attention.random_features import random_features

F = Float()
Z = 3.8906  # two-sided, 99.99 %


def drawn(kind, r=4, d=3, *, seed=0, system=F, a=2.0):
    return random_features(
        kind, None if kind == "taylor" else r, d, seed=seed, system=system, a=a if kind == "favor++" else None
    )


def interval(sample):
    return np.mean(sample), Z * np.std(sample, ddof=1) / np.sqrt(len(sample))
