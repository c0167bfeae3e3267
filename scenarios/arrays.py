"""Names of the arrays that every part of a plan speaks of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Array = NDArray[Any]
Columns = Mapping[str, Array]
"""Of equal length, by name."""
