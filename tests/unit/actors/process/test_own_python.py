"""What a process of ours does not import."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("pandas")

_CONVERT = """
import json, sys
from squall.actors.process.own_python import leave_out_pandas
if sys.argv[1] == "out":
    leave_out_pandas()
import pyarrow as pa
import pyarrow.dataset
numbers = pa.array([1, 2]).to_pylist()
try:
    import pandas
    why = ""
except ImportError as error:
    why = str(error)
print(json.dumps([numbers, "pandas._libs" in sys.modules, why]))
"""


@pytest.mark.parametrize(
    ("word", "is_there", "why"),
    [("in", True, ""), ("out", False, "pandas is left out of squall's own processes")],
)
def test_pandas_is_left_out_where_pyarrow_would_import_it(word: str, is_there: bool, why: str) -> None:
    done = subprocess.run([sys.executable, "-c", _CONVERT, word], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[1, 2], is_there, why]
