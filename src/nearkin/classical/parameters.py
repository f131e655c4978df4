"""What the parameters of learners may be, in scikit-learn's own terms.

``fit`` checks them; a wrong one is scikit-learn's ``InvalidParameterError``, which is a ``ValueError``.
"""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions

__all__ = [
    "AT_LEAST_ONE",
    "COMPONENTS",
    "FINITE",
    "INIT",
    "NOT_NEGATIVE",
    "PAIRS",
    "POSITIVE",
    "SHARE",
    "HasMethods",
    "Interval",
    "StrOptions",
]

AT_LEAST_ONE = Interval(Integral, 1, None, closed="left")
POSITIVE = Interval(Real, 0, np.inf, closed="neither")
NOT_NEGATIVE = Interval(Real, 0, np.inf, closed="left")
FINITE = Interval(Real, -np.inf, np.inf, closed="neither")
SHARE = Interval(Real, 0, 1, closed="left")

COMPONENTS: list[Any] = [AT_LEAST_ONE, None]
PAIRS: list[Any] = [Interval(Integral, 2, None, closed="left"), None]
INIT: list[Any] = [StrOptions({"auto", "identity", "pca"}), "array-like"]
