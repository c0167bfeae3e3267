"""Cases of tests as tables in `cases.yaml`, by the name of the test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

_CASES = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text("utf-8"))


def cases(name: str) -> list[Any]:
    """The rows of a table, each a list of what the test takes."""
    rows: list[Any] = _CASES[name]
    return rows
