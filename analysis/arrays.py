"""Names of the arrays that every room of the analysis speaks of."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Integers = NDArray[np.integer[Any]]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
