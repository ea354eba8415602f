"""Bad input to what verify computes: every message, word for word."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from refimpl import State
from refimpl.verify.bounds import exact_with_bound, judge
from refimpl.verify.cases import FeatureCase, ModelCase
from refimpl.verify.conversion_check import check_conversion
from tests.helpers.bad_input import S, Table, cases, converted, k, model, q, v

VALUE_ERRORS: Table = {
    "exact_with_bound: `state` has S but no z; a normalised layer needs both": lambda: exact_with_bound(
        q, k, v, u=Fraction(1, 2**53), state=State(S, None)
    ),
    "check_conversion: `text` must hold ids from 0 to 4, got 9 at token 0": lambda: check_conversion(
        model, converted, [3, 1, 4], [9]
    ),
    "ModelCase: `rope` must turn an even number of features, got 1": ModelCase(1, 1, rope=("half", "after", 1)).check,
    "FeatureCase: `rope` must turn an even number of features, got 1": FeatureCase(
        "positive", 1, 1, 2, rope=("half", 1)
    ).check,
}

TYPE_ERRORS: Table = {
    "judge: `bound` must be a float64 array of NumPy, as exact_with_bound makes it": lambda: judge(
        q, q, np.ones(q.shape, np.float32)
    )
}

CASES = cases({ValueError: VALUE_ERRORS, TypeError: TYPE_ERRORS})
