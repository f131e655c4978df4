"""What the arrays of an index are called."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float32]
"""Vectors, one a row."""
Codes = NDArray[np.int8]
"""The same as bytes."""
Rows = NDArray[np.int64]
"""Which of them."""
