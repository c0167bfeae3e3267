"""Cases of `refused.yaml`: what is refused, at which place, in which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import yaml

_CASES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def refused(of: str) -> list[dict[str, Any]]:
    """The cases of one kind of file."""
    return cast("list[dict[str, Any]]", _CASES[of])


def assert_says(text: str, case: dict[str, Any]) -> None:
    """Holds one line, without the path of its file, to the case."""
    assert text.startswith(case["place"])
    assert case["says"] in text
    assert "\n" not in text
