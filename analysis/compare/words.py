"""What runs beside runs say, in sentences: `words.j2`."""

from __future__ import annotations

from functools import cache
from typing import Any

from squall.analysis.wording import templates


@cache
def words() -> Any:
    """The macros of `words.j2` by name, each a function that returns its text."""
    return templates("squall.analysis.compare").get_template("words.j2").module
