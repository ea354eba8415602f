"""What the tables of bad input are made of: good arguments, to be spoilt one at a time.

A table maps a message to the call that must be refused with it, word for word; or to several calls,
by name. The tables stand beside the tests of each package, in `bad_input*.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import refimpl as ri
from refimpl import QQ, Compression, Config, Points, Rope, Rotary
from refimpl.attention.memory import write

Call = Callable[[], Any]
Table = dict[str, Call | dict[str, Call]]


@dataclass(frozen=True)
class Case:
    run: Call
    error: type[Exception]
    message: str


def cases(tables: dict[type[Exception], Table]) -> dict[str, Case]:
    """The cases of these tables, each named by its message, or by the name of the call where "
    "several have one message."""
    found: dict[str, Case] = {}
    for error, table in tables.items():
        for message, calls in table.items():
            for name, run in (calls if isinstance(calls, dict) else {message: calls}).items():
                assert name not in found, name
                found[name] = Case(run, error, message)
    return found


F = ri.Float()
inf, nan = float("inf"), float("nan")
la, soft = ri.linear_attention, ri.softmax_attention


def a(*shape: int) -> Any:
    return F.random(shape, sum(shape))


def put(x: Any, at: Any, value: float) -> Any:
    x = x.copy()
    x[at] = value
    return x


def f32(*arrays: Any) -> list[Any]:
    return [x.astype(np.float32) for x in arrays]


def column(system: Any, *values: Any) -> Any:
    return system.convert([[x] for x in values])


def torch() -> Any:
    return pytest.importorskip("torch")


def table(width: int, like: Any = F) -> Any:
    return ri.angle_table(like, width)


n, d, m = 5, 3, 2
q, k, v, S, z = a(n, d), a(n, d), a(n, m), a(d, m), a(d)
Q = tuple(QQ.random(s, 1) for s in ((n, d), (n, d), (n, m)))
keep = np.ones((1, n), dtype=bool)
before = Rope(table(2), placement="before")
points, directions = Points(a(4, d)), ri.random_features("positive", 4, d, seed=0, system=F)
recalled = write(directions, k, v)

config = Config(layers=1, width=3, heads=2, groups=1, d=2, m=2, vocabulary=5)
model = ri.random_model(F, config, 1)
W = dict(model.weights)
table_model = ri.random_model(F, replace(config, table=4), 1)
unrolled = ri.random_model(F, ri.Rwkv("5.2", 1, 4, 2, 5, 7), 1)
softmax_model = ri.random_model(F, replace(config, phi="softmax", rope=Rotary(2, placement="before")), 1)

converted = ri.convert(model, [3, 1, 4])
bias = converted.biases[0]
kept = ri.convert(softmax_model, [3, 1, 4]).biases[0]
remembering = ri.convert(softmax_model, [3, 1, 4], by=Compression("positive", 4))

# Every name of a feature map, as an error lists them.
FEATURE_MAPS = ", ".join(
    sorted([*ri.FEATURE_MAPS, *(f"{family}({i})" for family in ("dpfp", "polynomial") for i in (1, 2))])
)
