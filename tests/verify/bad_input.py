"""Bad input to what verify computes: every message, word for word."""

from __future__ import annotations

from fractions import Fraction

from refimpl import State
from refimpl.verify.bounds import exact_with_bound
from tests.helpers.bad_input import S, Table, cases, k, q, v

VALUE_ERRORS: Table = {
    "exact_with_bound: `state` has S but no z; a normalised layer needs both": lambda: exact_with_bound(
        q, k, v, u=Fraction(1, 2**53), state=State(S, None)
    )
}

CASES = cases({ValueError: VALUE_ERRORS})
