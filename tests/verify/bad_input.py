"""Bad input to what verify computes: every message, word for word."""

from __future__ import annotations

from fractions import Fraction

from refimpl import State
from refimpl.verify.bounds import exact_with_bound
from refimpl.verify.conversion_check import check_conversion
from tests.helpers.bad_input import S, Table, cases, converted, k, model, q, v

VALUE_ERRORS: Table = {
    "exact_with_bound: `state` has S but no z; a normalised layer needs both": lambda: exact_with_bound(
        q, k, v, u=Fraction(1, 2**53), state=State(S, None)
    ),
    "check_conversion: `text` must hold ids from 0 to 4, got 9 at token 0": lambda: check_conversion(
        model, converted, [3, 1, 4], [9]
    ),
}

CASES = cases({ValueError: VALUE_ERRORS})
