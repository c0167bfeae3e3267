"""Plants one fault into the recording path of a real run.

Every Python process that has this folder on PYTHONPATH reads this file at its start. The fault is named in the file at
`SQUALL_PLANTED_FAULT`, looked at when the module is loaded that the fault is in: processes of a Ray that started
earlier have it too.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

_VARIABLE = "SQUALL_PLANTED_FAULT"


class _Planter:
    """Finds our modules as the path does, and changes the one that the fault is in once it is loaded."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> Any:
        del target
        if path is None or not name.startswith("squall."):
            return None
        try:
            planted = Path(os.environ[_VARIABLE]).read_text().strip()
        except (KeyError, OSError):
            return None
        from faults import FAULTS  # type: ignore[import-not-found]  # beside this file

        fault = FAULTS.get(planted)
        if fault is None or fault.module != name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_change(module: ModuleType) -> None:
            run(module)
            fault.plant(module)

        spec.loader.exec_module = run_and_change  # type: ignore[method-assign]
        return spec


if os.environ.get(_VARIABLE):
    sys.meta_path.insert(0, _Planter())
