"""The figures of a level in perf_analyzer's words, which stand in `perf_words.j2`; its units and its rounding."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from squall.analysis.studies.perf_windows import IN_A_ROW
from squall.analysis.wording import templates
from squall.scenarios.foreign_text import printable


def number(value: float) -> str:
    """As C++ streams print a double: six digits."""
    return f"{value:.6g}"


def microseconds(value_ns: float) -> str:
    """Whole us, cut off; `inf` where a failed request stands there, `nan` where nothing does."""
    return str(int(value_ns // 1_000)) if math.isfinite(value_ns) else str(value_ns)


def told(macro: str, *arguments: object) -> list[str]:
    """The lines of a macro of `perf_words.j2`: the `heading` of a level, the `level`, its `metrics`, the `summary`."""
    text: str = getattr(_macros(), macro)(*arguments)
    return text.splitlines()


@cache
def _macros() -> Any:
    """Those of `perf_words.j2`, by name."""
    environment = templates("squall.analysis.studies")
    environment.filters |= {"number": number, "us": microseconds, "printable": printable}
    environment.globals["IN_A_ROW"] = IN_A_ROW
    return environment.get_template("perf_words.j2").module
