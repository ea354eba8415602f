"""What running_error.py states of the functions of NumPy, torch and JAX holds on what is installed.

`python tests/ulps.py` measures the same with many more arguments.
"""

import math

import numpy as np
import pytest

from refimpl import Float, RunningError
from refimpl.systems.array import FUNCTIONS
from refimpl.systems.floats import host_angles
from refimpl.systems.running_error import ULPS
from tests import ulps


@pytest.mark.parametrize("dtype", ulps.DTYPES)
@pytest.mark.parametrize("library", ulps.LIBRARIES)
def test_functions_are_within_the_stated_units_in_the_last_place(library, dtype):
    assert tuple(ULPS) == FUNCTIONS == ulps.FUNCTIONS
    numbers, (bits, low, *_) = RunningError(dtype), ulps.DTYPES[dtype]
    found = ulps.measure(400, 1, dtypes=[dtype], libraries=[library], lengths=(1, 7))
    assert len(found) == len(FUNCTIONS) or (library, dtype) == ("numpy", "bfloat16")
    for (function, *_), (worst, below, where) in found.items():
        assert worst <= numbers.ulps[function], (function, worst, where)
        assert below * 2.0 ** (low - bits) <= numbers.tiny, (function, below)


@pytest.mark.parametrize(
    ("dtype", "exponent", "x", "y"), [("float64", -720, 1e-310, 1e300), ("float32", -90, 1e-40, 1e30)]
)
@pytest.mark.parametrize("library", ulps.LIBRARIES)
def test_the_bound_covers_what_is_flushed_to_zero(library, dtype, exponent, x, y):
    """JAX makes 0 of e^−720, and reads 10⁻³¹⁰ as 0."""
    numbers = RunningError(dtype)
    got = ulps.caller(library, "exp", dtype)(np.array([float(exponent)]), 1)
    assert abs(got[0] - math.exp(exponent)) <= numbers.error(numbers.exp(numbers.convert([exponent])))[0]
    narrow = np.dtype(dtype).type(x)
    system = Float(library, dtype)
    product = np.asarray(system.xp.asarray(np.array([narrow])) * system.convert([y]))
    error = numbers.error(numbers.convert(np.array([narrow])) * numbers.convert([y]))
    assert abs(product.astype(np.float64)[0] - float(narrow) * y) <= error[0]


def test_what_is_measured_is_seen():
    """A function that is off by 20 units in one entry of one short piece."""
    x = ulps.points("tanh", "float64", 40, 0)
    high, low = ulps.truth("tanh", x)
    got = np.tanh(x)
    assert ulps.errors(got, high, low, "float64")[0].max() < 3
    got[7] += 20 * np.spacing(got[7])
    normal, below = ulps.errors(got, high, low, "float64")
    assert 18 < normal.max() < 22 and normal.argmax() == 7 and not below.any()


def test_angles_take_cosines_and_sines_within_two_units():
    """host_angles states 2⁻⁵¹, of which cos and sin of an angle below 0.8 have 2 units at most."""
    x = np.random.default_rng(0).uniform(-0.8, 0.8, 2000)
    for name in ("cos", "sin"):
        assert ulps.errors(getattr(np, name)(x), *ulps.truth(name, x), "float64")[0].max() <= 2
    assert host_angles([(10000, 0)], [0])[0].tolist() == [[1.0]]
