"""The arrays that the learners speak in."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
FLOATS = (np.float64, np.float32)  # the precisions that are kept; anything else becomes the first
