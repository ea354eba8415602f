"""The number systems against plain Python: every namespace function, conversion and refusal."""

from __future__ import annotations

import importlib
import itertools
import math
import os
import shutil
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refimpl as ri
from refimpl import (
    GF,
    MP,
    QQ,
    Degrees,
    Dependencies,
    Dual,
    Float,
    NotDefined,
    Rounded,
    RunningError,
    floats,
    system,
    system_of,
)
from refimpl.systems import (
    ArraySystem,
    ObjectSystem,
    System,
    balls,
    classes_by_word,
    finite_field,
    fractions,
    is_prime,
    require,
)
from refimpl.systems.array import SystemArray, host
from refimpl.systems.balls import Balls
from refimpl.systems.finite_field import FiniteField
from refimpl.systems.floats import require_of
from tests.helpers.assertions import says
from tests.helpers.strategies import FLINT, SEEDS

# 2^31 is where the products of GF(p) change method, 2^61-1 where they end.
PRIMES = [2, 3, 10007, 2**31 - 1, 2**31 + 11, 2**32 - 5, 2**60 - 93, 2**61 - 1]
EXACT = [QQ, *map(GF, PRIMES)]
NUMBERS = [*EXACT, MP(30), balls(30, "iv"), *([balls(30, "arb")] if FLINT else [])]
SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)

shown = pytest.mark.parametrize("numbers", NUMBERS, ids=repr)
exactly = pytest.mark.parametrize("numbers", EXACT, ids=repr)


def plain(numbers: ArraySystem, x: SystemArray) -> np.ndarray:
    """The entries as Python numbers: integers modulo p, or rationals (of balls and mpmath: their
    midpoints).
    """
    return x.planes[0].astype(object) if hasattr(numbers, "p") else fractions(x, "test")


def agrees(numbers: ArraySystem, got: SystemArray, want: Any) -> bool:
    """Equal to a computation by plain Python integers or fractions; up to rounding in mpmath,
    contained in balls.
    """
    want = np.asarray(want, dtype=object)
    if got.shape != want.shape:
        return False
    if hasattr(numbers, "p"):
        return bool(np.all(got.planes[0].astype(object) == want % numbers.p))
    if isinstance(numbers, Balls):
        return all(
            a <= w <= b for (a, b), w in zip(map(numbers.ends, got.planes[0].ravel()), want.ravel(), strict=True)
        )
    if numbers.exact:
        return bool(np.all(plain(numbers, got) == want))
    # At most 3 products and 3 sums of numbers below 2: 6 roundings of at most 8·2^-prec each.
    return all(
        abs(a - w) <= Fraction(48, 2**numbers.ctx.prec)
        for a, w in zip(plain(numbers, got).ravel(), want.ravel(), strict=True)
    )


# Handles


def test_handles_say_what_they_can():
    every, field = {"ring", "field", "ordered", "real"}, {"ring", "field"}
    table = {
        QQ: field | {"ordered"},
        GF(7): field,
        MP(20): every,
        balls(20): every,
        Float(): every,
        Rounded("float16"): every,
        RunningError(): every,
        Degrees(): field,
        Dependencies(): every,
        Dual(QQ): field | {"ordered"},
        Dual(GF(7)): field,
        Float("numpy", "complex128"): every - {"ordered"},
    }
    assert {numbers: set(numbers.can) for numbers in table} == table
    assert [numbers for numbers in table if numbers.exact] == [QQ, GF(7), Dual(QQ), Dual(GF(7))]


def test_names_and_system_by_name():
    named = {
        "Q": QQ,
        "GF(10007)": GF(10007),
        "GF": GF(2**61 - 1),
        "mpmath(25)": MP(25),
        "mpmath": MP(50),
        "balls(12)": balls(12),
        "balls": balls(30),
        "rounded(float16)": Rounded("float16"),
        "rounded": Rounded("bfloat16"),
        "float64": Float(),
        "float32": Float("numpy", "float32"),
        "float16": Float("numpy", "float16"),
        "numpy longdouble": Float("numpy", "longdouble"),
        "q": QQ,
        "ℚ": QQ,
        "QQ": QQ,
        "gf(10007)": GF(10007),
        "MP(25)": MP(25),
        "Balls(12)": balls(12),
        "rounded(FP16)": Rounded("float16"),
        "Float32": Float("numpy", "float32"),
        "half": Float("numpy", "float16"),
        "np.float32": Float("numpy", "float32"),
        "NumPy fp32": Float("numpy", "float32"),
        "array_api_strict.float32 on device1": Float("array_api_strict", "float32", "device1"),
        "array_api_strict float32 on device1": Float("array_api_strict", "float32", "device1"),
    }
    assert all(system(name) == numbers for name, numbers in named.items())
    assert [repr(numbers) for numbers in (QQ, GF(7), MP(25), Float(), balls(12, "iv"))] == [
        "ℚ",
        "GF(7)",
        "mpmath(25 digits)",
        "numpy float64",
        "balls(12 digits, mpmath.iv)",
    ]
    assert repr(Rounded("float16", ("partial",))) == "float16 rounded at inputs, partial"
    assert repr(QQ.convert([[1, 2.5]])) == "ℚ([[1, 5/2]])" and repr(Degrees().convert(0)) == "degrees(-inf; 0)"
    assert (
        Rounded("float16") == Rounded("float16") != Rounded("float16", ()) and MP(20) != MP(21) != 0 and GF(7) is GF(7)
    )
    for name, message in [
        (
            "GFF(7)",
            f"system: did you mean 'GF'? `name` must be one of {', '.join(sorted(classes_by_word()))}, got 'GFF'",
        ),
        ("Q(i)", "system: `name` must be 'Q' without brackets, got Q(i)"),
        ("float64(2)", "system: `name` must be 'float64' without brackets, got float64(2)"),
        ("float32 (torch)", "system: `name` must be 'float32' without brackets, got float32(torch)"),
        ("torch float32 (cpu)", "system: `name` must be one of"),
        ("dependencies(x)", "system: `name` must be 'dependencies' without brackets, got dependencies(x)"),
        ("GF(x)", "system: `name` must have an integer of at most 20 digits in its brackets, got 'GF(x)'"),
        (f"mpmath({'1' * 5000})", "must have an integer of at most 20 digits in its brackets, got 'mpmath(1111"),
        ("rounded(float19)", "did you mean 'float16'?"),
        (
            "touch float32",
            "Float: did you mean 'torch'? "
            "`library` must be one of array_api_strict, cupy, jax.numpy, numpy, torch, got 'touch'",
        ),
    ]:
        with says(ValueError, message):
            system(name)
    # nothing is similar to it
    with pytest.raises(ValueError, match=r"mpmath, rounded, got 'xyzzy'$"):
        system("xyzzy")


FLOAT32 = ("float32", "FP32", "f32", "single", "numpy.float32", np.float32, np.dtype("float32"), np.dtype(">f4"))


@pytest.mark.parametrize("dtype", FLOAT32, ids=str)
def test_a_dtype_in_every_form(dtype):
    wanted = Float("numpy", "float32")
    assert Float(dtype) == Float("numpy", dtype) == system(dtype) == wanted
    assert RunningError(dtype).format == Rounded(dtype).format == "float32" and ri.unit_roundoff(dtype) * 2**24 == 1
    assert Float(float) == Float() and Float("double") == Float("numpy", np.float64) == Float("numpy")


def test_a_dtype_of_another_library():
    torch = pytest.importorskip("torch")
    assert Float(torch.float32) == Float("torch.float32") == system(torch.float32) == Float("torch", np.float32)
    assert Float(torch.bfloat16) == system("torch.bfloat16") == Float("torch", "bf16") == system("torch bf16")
    assert Float(torch.half, device="meta").name == "torch float16 on meta"
    words = "Float: `dtype` must be of numpy, got torch.float32; 'float32' is right for each library"
    for make in (lambda: Float("numpy", torch.float32), lambda: Float(dtype=torch.float32)):
        with says(ValueError, words):
            make()


def test_a_dtype_of_jax():
    jnp = pytest.importorskip("jax.numpy")
    assert Float(jnp.float32) == Float("jax", "float32") == system("jnp.float32") == Float("jax.float32")


@pytest.mark.parametrize("dtype", [int, object, np.array(1.0, np.float32), 32, b"float32"], ids=str)
def test_what_is_no_dtype(dtype):
    with says(TypeError, "Float: `dtype` must be a dtype or a name such as 'float32', got "):
        Float("numpy", dtype)
    with says(TypeError, "system: `name` must be a str such as 'Q', or a dtype, got "):
        system(dtype)
    with says(ValueError, "Float: `library` must be one of"):
        Float(dtype)


def test_bfloat16_of_numpy():
    with says(ValueError, "numpy has no floating dtype 'bfloat16'; torch and JAX have it, and Rounded models it"):
        system("bfloat16")
    with says(ValueError, "Float: numpy has no floating dtype 'int8'"):
        Float(np.int8)


NEW_SYSTEM = """
import numpy as np
from .array import ObjectSystem

class Ratios(ObjectSystem):
    name, can, exact = "ratios", frozenset({"ring", "field"}), True

    def number(self, x):
        return x

    def random(self, shape, seed):
        return self.convert(np.random.default_rng(seed).integers(1, 9, shape))
"""


def test_a_new_system_is_one_file(tmp_path):
    shutil.copytree(Path(ri.__file__).parent, tmp_path / "refimpl", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "refimpl/systems/ratios.py").write_text(NEW_SYSTEM)
    command = [sys.executable, "-m", "refimpl", "verify", "chunked_eq_sum", "--system", "ratios", "--verbose"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 0 and "ratios  EXACT" in run.stdout, run.stdout + run.stderr


def test_capabilities_are_known_and_may_be_listed_in_any_way():
    from refimpl.systems import ObjectSystem

    class Listed(ObjectSystem):
        name, can = "listed", ("ring", "field")

    assert Listed.can == frozenset({"ring", "field"})
    with says(ValueError, "Wrong: did you mean 'ring'? `can` must be one of field, ordered, real, ring, got 'rings'"):
        type("Wrong", (ObjectSystem,), {"name": "wrong", "can": ("rings",)})


def test_ways_and_labels():
    ways = {
        "Q": ("equality", "witness"),
        "GF(7)": ("equality", "witness"),
        "balls(12)": ("enclosure",),
        "dependencies": ("structure",),
        "mpmath(25)": ("bound",),
        "rounded(float16)": ("probe", "oracle"),
        "float64": ("bound", "probe", "oracle", "sampled"),
        "float32": ("bound", "probe", "oracle"),
        "float16": ("probe", "oracle"),
        "array_api_strict float32": ("bound", "probe", "oracle"),
    }
    numbers = [QQ, GF(7), balls(12), Dependencies(), MP(25), Rounded("float16"), Float(), Float("numpy", "float32")]
    numbers += [Float("numpy", "float16"), Float("array_api_strict", "float32")]
    assert {each.label: each.ways for each in numbers} == ways
    assert Dual(QQ).ways == QQ.ways
    for each in (Degrees(), RunningError(), Dual(MP(20))):
        with says(NotDefined, f"verify: {each.name} has no way of deciding equality"):
            each.ways  # noqa: B018


def test_require_of_is_require_of_the_system():
    arrays = [Float("numpy", "complex128").random((2,), 0), np.zeros(2), QQ.zeros((2,)), GF(7).zeros((2,))]
    for x, capability in itertools.product(arrays, ("ring", "field", "ordered", "real")):
        said = []
        for refuse, argument in ((require_of, x), (require, system_of(x))):
            try:
                refuse(argument, capability, "test")
                said.append("")
            except NotDefined as error:
                said.append(str(error))
        assert said[0] == said[1] and bool(said[0]) == (capability not in system_of(x).can)


def test_import_allocates_nothing_large():
    script = """
import tracemalloc
import numpy
tracemalloc.start()
import refimpl
assert tracemalloc.get_traced_memory()[1] < 2**25 - 2**16, tracemalloc.get_traced_memory()
p = refimpl.GF(7)
x = p.random((256, 256), 0)
tracemalloc.reset_peak()
x @ x
assert tracemalloc.get_traced_memory()[1] > 2**25 - 2**16, tracemalloc.get_traced_memory()
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@shown
def test_system_of(numbers):
    x = numbers.convert([1, 2])
    assert (
        system_of(x) is numbers
        and x.dtype is numbers
        and x.__array_namespace__() is numbers.xp
        and len(x) == 2
        and x.device == "cpu"
    )
    assert system_of(np.zeros(2, np.float32)) == Float("numpy", "float32")


def test_what_a_new_system_forgets_is_said():
    class Nothing(ArraySystem):
        name = "nothing"
        can = frozenset()

    class Less(ObjectSystem):
        name = "less"

    x, plane = Nothing(), (np.zeros(1, dtype=object),)
    for attempt in (
        lambda: System().convert(1),
        lambda: x.convert(1),
        lambda: x.add(plane, plane),
        lambda: x.neg(plane),
        lambda: x.mul(plane, plane),
        lambda: Less().convert(1),
        lambda: Less().power(1, 1, 0),
    ):
        with pytest.raises(NotImplementedError):
            attempt()
    a = x.wrap(plane)
    for attempt, message in [
        (lambda: x.div(plane, plane), "division is not defined in nothing"),
        (lambda: x.less(plane, plane), "order is not defined in nothing"),
        (lambda: a < a, "maximum is not defined in nothing; a comparison needs an ordered system"),
        (lambda: x.maximum(a, a), "maximum is not defined in nothing; maximum needs an ordered system"),
        (lambda: floats(a), "numbers of nothing are not rationals"),
        (lambda: x.random((1,), 0), "uniform draws have no meaning in nothing"),
        (lambda: x.exp(a), "exp is not defined in nothing; it needs a real system"),
        (lambda: x.angles([], []), "cos is not defined in nothing; use power_table, which needs only c² + s² = 1"),
        (lambda: QQ.angles([], []), "cos is not defined in ℚ; use power_table, which needs only c² + s² = 1"),
        (lambda: require(x, "ring", "this"), "multiplication is not defined in nothing; this needs a ring system"),
        (lambda: require(x, "field", "this"), "division is not defined in nothing; this needs a field system"),
        (
            lambda: require(GF(7), "real", "softmax attention"),
            "exp is not defined in GF(7); softmax attention needs a real system",
        ),
    ]:
        with says(NotDefined, message):
            attempt()


def test_a_newcomer_adds_a_system_in_one_file():
    class Gauss:
        def __init__(self, a, b):
            self.a, self.b = a, b

        def __add__(self, o):
            return Gauss(self.a + o.a, self.b + o.b)

        def __neg__(self):
            return Gauss(-self.a, -self.b)

        def __mul__(self, o):
            return Gauss(self.a * o.a - self.b * o.b, self.a * o.b + self.b * o.a)

        def __truediv__(self, o):
            return self * Gauss(o.a / (o.a**2 + o.b**2), -o.b / (o.a**2 + o.b**2))

        def __eq__(self, o):
            return self.a == o.a and self.b == o.b

    class GaussianRationals(ObjectSystem):
        name, can, exact = "ℚ(i)", frozenset({"ring", "field"}), True

        def number(self, x):
            return Gauss(x, Fraction(0))

        def random(self, shape, seed):
            return self.wrap((np.frompyfunc(Gauss, 2, 1)(*(QQ.random(shape, seed + i).planes[0] for i in (0, 1))),))

    numbers = GaussianRationals()
    q, k, v = (numbers.random((2, 5, 3), seed) for seed in (1, 2, 3))
    i = numbers.wrap((np.array(Gauss(Fraction(0), Fraction(1)), dtype=object),))
    assert i * i == -1 and (i != 1).all()
    for mask, normalise in itertools.product(("causal", "full", 2), (True, False)):
        (a, s), (b, t) = (
            form(q, k, v, ri.Kernel(normalise=normalise), mask=mask, **own)
            for form, own in ((ri.linear_attention, {}), (ri.linear_attention_chunked, {"chunk": 2}))
        )
        assert numbers.equal(a, b) and numbers.equal(s.S, t.S) and numbers.equal(s.z, t.z)
    with says(ZeroDivisionError, "division by zero in ℚ(i) at index (1,)"):
        numbers.ones(2) / numbers.convert([1, 0])


# Conversion


@pytest.mark.parametrize(
    "dtype", [np.float16, np.float32, np.float64, np.longdouble, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]
)
def test_floats_convert_exactly(dtype):
    values = (
        (np.random.default_rng(0).uniform(-1, 1, (2, 3)).astype(np.longdouble) / 3).astype(np.float64).astype(dtype)
    )
    want = [[Fraction(*x.as_integer_ratio()) for x in row] for row in values.astype(np.longdouble)]
    assert QQ.convert(values).tolist() == want and QQ.convert(values[0, 0]).tolist() == want[0][0]
    assert all(x.denominator & (x.denominator - 1) == 0 for row in want for x in row)
    p = 2**61 - 1
    assert GF(p).convert(values).tolist() == [
        [x.numerator * pow(x.denominator, -1, p) % p for x in row] for row in want
    ]


def test_integers_convert_exactly_whatever_numpy_would_make_of_them():
    # np.asarray rounds both of these lists to float64
    assert QQ.convert([2**63 + 1, -1]).tolist() == [2**63 + 1, -1]
    assert QQ.convert([2**53 + 1, 0.5]).tolist() == [2**53 + 1, Fraction(1, 2)]
    assert QQ.convert(((1, Fraction(1, 3)), (True, 10**40))).tolist() == [[1, Fraction(1, 3)], [1, 10**40]]
    x = QQ.convert([np.int64(2**62), np.uint8(200)])
    assert (x * x * x).tolist() == [2**186, 200**3]  # NumPy's integers inside a Fraction would wrap
    assert QQ.convert(np.array([[1, 2]], dtype=np.int8)).tolist() == [[1, 2]] and QQ.convert(
        np.zeros((2, 0))
    ).shape == (2, 0)


def test_arrays_of_other_libraries_come_home():
    strict = importlib.import_module("array_api_strict")
    for device in ("CPU_DEVICE", "device1"):
        assert QQ.convert(strict.asarray([[0.5, 3.0]], device=strict.Device(device))).tolist() == [[0.5, 3]]
    gpu = SimpleNamespace(get=lambda: np.array([1.5]), __cuda_array_interface__={})
    assert host(gpu) == np.array([1.5])
    x = QQ.convert([0.5, Fraction(1, 3)])
    assert (
        QQ.convert(x) is x
        and MP(20).convert(x)[0] == Fraction(1, 2)
        and QQ.convert(MP(20).convert([0.5])).tolist() == [0.5]
    )
    assert floats(QQ.convert([Fraction(1, 3)])) == 1 / 3 and floats([0.5]).dtype == np.float64


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn"])
def test_torch_tensors_come_home(dtype):
    torch = pytest.importorskip("torch")
    x = torch.tensor([[0.5, -1.5]], dtype=getattr(torch, dtype), requires_grad=dtype != "float8_e4m3fn")
    assert QQ.convert(x).tolist() == [[0.5, -1.5]] and Float.of(x).kind == dtype


def test_jax_arrays_come_home():
    jnp = pytest.importorskip("jax.numpy")
    assert QQ.convert(jnp.asarray([0.5, 3], dtype=jnp.bfloat16)).tolist() == [0.5, 3]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[1, math.nan]], "ℚ.convert: cannot convert nan at index (0, 1); numbers must be finite and real"),
        (
            np.array([0, np.inf], dtype=np.float16),
            "ℚ.convert: cannot convert inf at index (1,); numbers must be finite and real",
        ),
        ([Fraction(1), 1j], "ℚ.convert: cannot convert 1j at index (1,); numbers must be finite and real"),
        (["1/2"], "ℚ.convert: cannot convert '1/2' at index (0,); numbers must be finite and real"),
        (np.array([1j]), "ℚ.convert: cannot convert numbers of dtype complex128"),
        (np.zeros(1, "V4"), "ℚ.convert: cannot convert numbers of dtype |V4"),
        (GF(7).ones(1), "a number of GF(7) stands for many rationals; compare inside GF(7) instead"),
        (Dual(QQ).ones(1), "numbers of dual numbers over ℚ are not rationals"),
    ],
)
def test_what_cannot_be_converted(values, message):
    with says((ValueError, TypeError), message):
        QQ.convert(values)


# Arithmetic


@shown
@given(shape=SHAPES, seed=SEEDS)
def test_arithmetic_is_that_of_python(numbers, shape, seed):
    x, y, z = (numbers.random(shape, seed + i) for i in range(3))
    a, b, c = (plain(numbers, t) for t in (x, y, z))
    assert agrees(numbers, x * y + z, a * b + c) and agrees(numbers, x - y, a - b) and agrees(numbers, -x, -a)
    assert (
        agrees(numbers, 3 * x - 2, 3 * a - 2)
        and agrees(numbers, 1 - x, 1 - a)
        and agrees(numbers, x + y * 5, a + 5 * b)
    )
    assert numbers.equal(x, x) and not numbers.equal(x, numbers.zeros((*shape, 2)))
    assert numbers.equal(x * (y + z), x * y + x * z) or not numbers.exact
    nonzero = ~numbers.singular(y)
    y = numbers.where(nonzero, y, 1)
    b = np.where(nonzero, b, 1)
    if isinstance(numbers, FiniteField):
        assert numbers.equal(x / y * y, x) and agrees(
            numbers, 1 / y, np.frompyfunc(lambda t: pow(t, -1, numbers.p), 1, 1)(b)
        )
    elif numbers.exact or isinstance(numbers, Balls):
        assert agrees(numbers, x / y, a / b) and agrees(numbers, 1 / y, 1 / b)
    else:  # one rounding, relative
        got = plain(numbers, x / y)
        assert all(
            abs(g - s / t) <= abs(s / t) / 2**numbers.ctx.prec
            for g, s, t in zip(got.ravel(), a.ravel(), b.ravel(), strict=True)
        )


@shown
@given(
    lead=st.sampled_from([((), ()), ((2,), (2,)), ((2, 1), (3,)), ((0,), (0,)), ((), (2,))]),
    n=st.integers(0, 3),
    k=st.integers(0, 3),
    m=st.integers(0, 3),
    seed=SEEDS,
)
def test_matmul_is_the_sum_of_products(numbers, lead, n, k, m, seed):
    x, y = numbers.random((*lead[0], n, k), seed), numbers.random((*lead[1], k, m), seed + 1)
    a, b = plain(numbers, x), plain(numbers, y)
    want = np.zeros((*np.broadcast_shapes(*lead), n, m), dtype=object) + sum(
        a[..., :, i, None] * b[..., None, i, :] for i in range(k)
    )
    assert agrees(numbers, x @ y, want)


@shown
@given(shape=st.lists(st.integers(0, 3), min_size=1, max_size=3), data=st.data(), keepdims=st.booleans(), seed=SEEDS)
def test_sum_over_any_axis(numbers, shape, data, keepdims, seed):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = numbers.random(tuple(shape), seed)
    want = np.zeros(np.sum(np.zeros(shape), axis=axis, keepdims=keepdims).shape, dtype=object)
    want = want + np.sum(plain(numbers, x), axis=axis, keepdims=keepdims)
    assert agrees(numbers, numbers.sum(x, axis=axis, keepdims=keepdims), want)


@shown
@given(seed=SEEDS)
def test_moving_entries_about(numbers, seed):
    x, y = numbers.random((2, 3), seed), numbers.random((2, 3), seed + 1)
    a, b = plain(numbers, x), plain(numbers, y)
    mask = np.random.default_rng(seed).integers(0, 2, (2, 3)).astype(bool)
    for got, want in [
        (numbers.reshape(x, (3, 2)), a.reshape(3, 2)),
        (numbers.matrix_transpose(x), a.T),
        (numbers.concat([x, y], axis=-1), np.hstack([a, b])),
        (numbers.stack([x, y], axis=1), np.stack([a, b], axis=1)),
        (numbers.where(mask, x, y), np.where(mask, a, b)),
        (numbers.where(mask, x, 0), np.where(mask, a, 0)),
        (numbers.broadcast_to(x, (2, 2, 3)), np.broadcast_to(a, (2, 2, 3))),
        (x[1], a[1]),
        (x[..., ::2], a[:, ::2]),
        (x[:, None], a[:, None]),
        (x[0, 0], a[0, 0]),
        (numbers.zeros((2,)), [0, 0]),
        (numbers.ones(2), [1, 1]),
        (numbers.zeros_like(x), 0 * a),
        (numbers.ones_like(x), 0 * a + 1),
        (numbers.asarray(x), a),
    ]:
        assert agrees(numbers, got, want)
    assert numbers.isfinite(x).all() and numbers.isfinite(x).shape == (2, 3)
    assert np.array_equal(numbers.arange(1, 4), [1, 2, 3]) and numbers.any(mask) == mask.any()
    assert np.array_equal(numbers.concat([mask, mask]), np.concatenate([mask, mask]))


@pytest.mark.parametrize("numbers", [numbers for numbers in NUMBERS if "ordered" in numbers.can], ids=repr)
@given(seed=SEEDS, keepdims=st.booleans())
def test_order(numbers, seed, keepdims):
    x, y = numbers.random((2, 3), seed), numbers.random((2, 3), seed + 1)
    a, b = plain(numbers, x), plain(numbers, y)
    for got, want in [
        (numbers.maximum(x, y), np.maximum(a, b)),
        (numbers.minimum(x, y), np.minimum(a, b)),
        (numbers.abs(x), abs(a)),
        (numbers.max(x, axis=-1, keepdims=keepdims), np.max(a, axis=-1, keepdims=keepdims)),
        (numbers.min(x, axis=0, keepdims=keepdims), np.min(a, axis=0, keepdims=keepdims)),
    ]:
        assert agrees(numbers, got, want)
    if isinstance(numbers, Balls):
        with says(NotDefined, f"balls overlap, so their order is not decided in {numbers.name}; use maximum"):
            assert x < y
    else:
        assert np.array_equal(x < y, a < b) and np.array_equal(x > y, a > b) and np.array_equal(x > 0, a > 0)
    assert np.array_equal(x == y, a == b) and np.array_equal(x != y, a != b)


@shown
def test_shapes_that_do_not_multiply(numbers):
    for a, b in (((2, 3), (2, 3)), ((3,), (3, 2)), ((2, 1), (3, 2))):
        with says(ValueError, f"matmul: cannot multiply shapes {a} and {b}"):
            numbers.ones(a) @ numbers.ones(b)


@shown
def test_nothing_else_mixes_in(numbers):
    x = numbers.ones((1, 1))
    with says(TypeError, f"0.5 is a float; {numbers.name} takes Fraction(1, 2)"):
        assert 0.5 * x
    with says(TypeError, f"nan is a float; {numbers.name} takes finite numbers"):
        assert x + math.nan
    for wrong, kind in (
        (np.ones((1, 1)), "ndarray"),
        (True, "bool"),
        (GF(5).ones((1, 1)), "GF(5)"),
        (np.float32(1), "float32"),
    ):
        for attempt in (
            lambda y: x + y,
            lambda y: y + x,
            lambda y: x - y,
            lambda y: y - x,
            lambda y: x * y,
            lambda y: y * x,
            lambda y: x / y,
            lambda y: y / x,
            lambda y: x == y,
            lambda y: x @ y,
            lambda y: y @ x,
            lambda y: numbers.where(np.array([[True]]), x, y),
        ):
            with says(TypeError, "convert one of them explicitly"):
                attempt(wrong)
        with says(TypeError, f"cannot add {numbers.name} and {kind}; convert one of them explicitly"):
            assert x + wrong
    with says(
        TypeError, f"an array over {numbers.name} does not become a NumPy array by itself; use floats(x) or x.tolist()"
    ):
        np.asarray(x)


@exactly
def test_division_by_zero_says_where(numbers):
    with says(ZeroDivisionError, f"division by zero in {numbers.name} at index (1, 0)"):
        numbers.ones((2, 1)) / numbers.convert([[1], [0]])


# Draws


@shown
@given(seed=SEEDS)
def test_draws_belong_to_their_seed(numbers, seed):
    x, again, other = (numbers.random((40,), s) for s in (seed, seed, seed + 1))
    assert np.array_equal(plain(numbers, x), plain(numbers, again)) and not np.array_equal(
        plain(numbers, x), plain(numbers, other)
    )


def test_draws_are_uniform_where_that_has_meaning():
    for p in (2, 3, 7):
        counts = np.bincount(GF(p).random((7000,), 0).planes[0], minlength=p)
        # Each count is binomial: 6 standard deviations are passed once in 10^8 draws.
        assert len(counts) == p and np.all(np.abs(counts - 7000 / p) < 6 * math.sqrt(7000 / p))
    high = GF(2**61 - 1).random((1000,), 0).planes[0] >> 60
    assert abs(high.mean() - 0.5) < 6 * 0.5 / math.sqrt(1000)
    assert set(QQ.random((5000,), 0).tolist()) == {Fraction(a, 8) for a in range(-48, 49)}
    for numbers in (Float(), MP(20), balls(20), Rounded("float16"), RunningError("float16")):
        x = floats(numbers.random((1000,), 3))
        assert -1 <= x.min() < -0.9 and 0.9 < x.max() <= 1


# GF(p)


@pytest.fixture(autouse=True)
def never_few(monkeypatch):
    """Even a few products modulo p go the way of many."""
    monkeypatch.setattr(finite_field, "FEW", 0)


@pytest.mark.parametrize("p", [2**31 + 11, 2**61 - 1])
@pytest.mark.parametrize("shape", [(), (3, 1), (2, 5, 4)])
def test_few_products_are_what_many_are(p, shape, monkeypatch):
    x, y = GF(p).random(shape, 1), GF(p).random(shape, 2)
    many = x * y, (x @ GF(p).matrix_transpose(y) if shape else x)
    monkeypatch.setattr(finite_field, "FEW", 1000)
    few = x * y, (x @ GF(p).matrix_transpose(y) if shape else x)
    for a, b in zip(many, few, strict=True):
        assert GF(p).equal(a, b) and a.planes[0].dtype == b.planes[0].dtype == np.int64


@pytest.mark.parametrize("p", PRIMES)
@pytest.mark.parametrize("k", [1, 511, 512, 513, 5000])
def test_finite_field_worst_cases(p, k):
    top = GF(p).convert(-1)  # p-1, the largest machine integer
    row, column = (GF(p).broadcast_to(top, shape) for shape in ((1, k), (k, 1)))
    assert (row @ column).tolist() == [[k % p]]
    assert (
        GF(p).sum(row, axis=-1).tolist() == [-k % p]
        and (top * top).tolist() == 1
        and (top + top).tolist() == (2 * p - 2) % p
    )
    x, y = GF(p).random((2, k), k), GF(p).random((k, 1), k + 1)
    assert (x @ y).tolist() == [[sum(a * b for a, (b,) in zip(row, y.tolist(), strict=True)) % p] for row in x.tolist()]
    assert (x[0] * y[:, 0]).tolist() == [a * b % p for a, (b,) in zip(x[0].tolist(), y.tolist(), strict=True)]


@pytest.mark.parametrize("p", PRIMES)
def test_products_at_the_edges_of_the_quotient(p):
    edges = sorted({a % p for b in (0, 1, 2**30, 2**31, 2**32, 2**60, p // 2, p // 3, p) for a in (b - 1, b, b + 1)})
    x = GF(p).convert(edges)
    assert (x[:, None] * x[None, :]).tolist() == [[a * b % p for b in edges] for a in edges]
    assert (x[:, None] @ x[None, :]).tolist() == [[a * b % p for b in edges] for a in edges]


@pytest.mark.parametrize("p", PRIMES)
def test_square_roots_in_finite_fields(p):
    x = GF(p).random((20,), 5)
    root = GF(p).sqrt(x * x)
    assert GF(p).equal(root * root, x * x) and all(r <= (p - 1) // 2 or p == 2 for r in root.tolist())
    if p > 2:
        odd = next(a for a in range(2, p) if pow(a, (p - 1) // 2, p) != 1)
        with says(NotDefined, f"{odd} has no square root in GF({p})"):
            GF(p).sqrt(GF(p).convert([odd]))
    for name in ("exp", "cos", "sin"):
        with says(NotDefined, f"{name} is not defined in GF({p}); it needs a real system"):
            getattr(GF(p), name)(x)


def test_every_square_root_of_small_fields():
    for p in (3, 5, 7, 11, 13, 17, 97):
        squares = {a * a % p for a in range(p)}
        assert [GF(p).sqrt(GF(p).convert(a)).tolist() for a in sorted(squares)] == [
            min(r for r in range(p) if r * r % p == a) for a in sorted(squares)
        ]


def test_rationals_in_finite_fields():
    assert GF(7).convert([Fraction(1, 3), Fraction(-1, 2), 0.5, 10**30]).tolist() == [5, 3, 4, 10**30 % 7]
    with says(ZeroDivisionError, "3/14 has no image in GF(7): its denominator is 0 there"):
        GF(7).convert(Fraction(3, 14))
    with says(ZeroDivisionError, "1/2 has no image in GF(2): its denominator is 0 there"):
        GF(2).convert(0.5)


# 561, 3215031751 and 3825123056546413051 are Carmichael numbers or strong pseudoprimes to the
# first bases; 2^61+15 is prime, but too large.
@pytest.mark.parametrize(
    "p",
    [
        -7,
        0,
        1,
        4,
        561,
        41041,
        3215031751,
        3825123056546413051 // 2,
        2147483649,
        (2**31 - 1) * 3,
        2**61 + 15,
        7.0,
        "7",
        True,
    ],
)
def test_only_primes_have_fields(p):
    with says(ValueError, f"GF: p must be a prime with 2 ≤ p ≤ 2^61-1, got {p!r}"):
        GF(p)


def test_primes():
    sieve = [n for n in range(2000) if n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))]
    assert (
        [n for n in range(2000) if is_prime(n)] == sieve and not is_prime(3825123056546413051) and is_prime(2**61 + 15)
    )


# Functions beyond the four operations


def test_powers_and_comparisons():
    x = QQ.convert([Fraction(-1, 2), 0, 3])
    assert (x**3).tolist() == [Fraction(-1, 8), 0, 27] and (x**0).tolist() == [1, 1, 1]
    assert (x <= 0).tolist() == [True, True, False] and (x >= 0).tolist() == [False, True, True]
    with says(TypeError, "an exponent in ℚ must be an integer ≥ 0, got 0.5"):
        x**0.5
    with says(TypeError, "an exponent in ℚ must be an integer ≥ 0, got -1"):
        x**-1


@pytest.mark.parametrize("name", ["log", "tanh"])
@given(seed=SEEDS)
def test_log_and_tanh_in_every_real_system(name, seed):
    """Balls enclose what mpmath finds with 80 digits; the running error bounds it; dual numbers
    have its slope.
    """
    oracle = MP(80)
    x = 2 + oracle.random((3,), seed)
    truth = fractions(getattr(oracle, name)(x), "test")
    for numbers in [balls(30, "iv"), *([balls(30, "arb")] if FLINT else [])]:
        y = getattr(numbers, name)(numbers.convert(x))
        assert all(a <= w <= b for (a, b), w in zip(map(numbers.ends, y.planes[0]), truth, strict=True))
        assert numbers.radius(y) < min(abs(w) for w in truth)
    for dtype in ("float64", "float32"):
        numbers = RunningError(dtype)
        y = getattr(numbers, name)(numbers.convert(x))
        assert all(
            abs(v - w) <= Fraction(e) for v, w, e in zip(fractions(y, "test"), truth, numbers.error(y), strict=True)
        )
        assert np.all(numbers.error(y) < np.abs(numbers.value(y)))
    dual, one = Dual(oracle), oracle.ones((3,))
    slope = dual.tangent(getattr(dual, name)(dual.join(x, one)))
    want = one / x if name == "log" else one - getattr(oracle, name)(x) ** 2
    assert oracle.equal(slope, want)


def test_log_of_what_may_be_negative_says_nothing():
    numbers = RunningError()
    assert np.isinf(numbers.error(numbers.log(numbers.wrap((np.array([1.0]), np.array([0.5]))))))
    for ball in [balls(30, "iv"), *([balls(30, "arb")] if FLINT else [])]:
        assert not ball.isfinite(ball.log(ball.convert([1]) + ball.sin(ball.convert([1])) * 0 - 1)).any()


def test_a_function_nobody_has_is_worded():
    with says(AttributeError, "mean is not among the array functions of ℚ; see refimpl.systems.array.ArraySystem"):
        QQ.mean(QQ.ones((2,)))
    with says(NotDefined, "log is not defined in GF(7); it needs a real system"):
        GF(7).log(GF(7).ones((2,)))


def test_dual_slopes_at_a_kink():
    """elu+1 is smooth at 0, with slope 1; relu has the slope of its right side there."""
    dual = Dual(MP(30))
    x = dual.join(MP(30).convert([0, 1, -1]), MP(30).ones((3,)))
    assert dual.tangent(ri.feature_maps.elu_plus_one(x)).tolist() == [1, 1, MP(30).ctx.exp(-1)]
    assert dual.tangent(ri.feature_maps.relu(x)).tolist() == [1, 1, 0]


def test_dependencies_refuse_to_compare_values():
    """A mask made from values would hide what it depends on."""
    deps = Dependencies()
    x = deps.tokens((3, 2))
    with says(NotDefined, "values are not known in dependencies; what depends on a comparison would go unseen"):
        x == 0  # noqa: B015
    assert deps.equal(x, x) and not deps.equal(x, deps.tokens((3, 2), [0, 1, 3]))
    assert deps.unequal(x, deps.tokens((3, 2), [0, 1, 3])).tolist() == [[False] * 2, [False] * 2, [True] * 2]


def test_ragged_rows_are_refused():
    with says(ValueError, "numbers must be finite and real, in rows of one length"):
        QQ.convert([[1, 2], [3]])


@pytest.mark.parametrize(
    "system", [Float(), QQ, GF(7), MP(20), ri.Rounded("bfloat16"), ri.RunningError("float64")], ids=lambda s: s.name
)
def test_draws_of_no_shape_are_refused(system):
    wanted = "a tuple of at most 32 integers ≥ 0, for at most 2^40 numbers"
    for shape in (3, (-1,), (2**30, 2**30), (1,) * 33, ("2",)):
        with says(ValueError, f"{system.name}.random: `shape` must be {wanted}, got "):
            system.random(shape, 0)
    for seed in (-1, 1.5, True):
        with says(ValueError, f"{system.name}.random: `seed` must be an integer ≥ 0, got {seed}"):
            system.random((2,), seed)
