"""The figures of a level in perf_analyzer's words, which stand in `perf_words.j2`; its units and its rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

from squall.analysis.studies.perf_level import GpuFigures, LevelFigures
from squall.analysis.studies.perf_windows import IN_A_ROW
from squall.analysis.wording import templates
from squall.scenarios.foreign_text import printable


def number(value: float) -> str:
    """As C++ streams print a double: six digits."""
    return f"{value:.6g}"


def microseconds(value_ns: float) -> str:
    """Whole us, cut off; `inf` where a failed request stands there, `nan` where nothing does."""
    return str(int(value_ns // 1_000)) if math.isfinite(value_ns) else str(value_ns)


def heading(mode: str, level: float) -> str:
    """The first line of a level; empty of request intervals."""
    return "".join(_lines("heading", mode, level))


def level_lines(figures: LevelFigures, percentile: int | None, is_grpc: bool, is_verbose: bool) -> list[str]:
    """Passes where asked for, then client and server."""
    return _lines("level", figures, percentile, is_grpc, is_verbose)


def metrics_lines(gpus: Sequence[GpuFigures]) -> list[str]:
    """What --collect-metrics prints."""
    return _lines("metrics", gpus)


def summary_lines(mode: str, levels: Sequence[LevelFigures], percentile: int | None) -> list[str]:
    """What stands at the end: a line for each level."""
    return _lines("summary", mode, levels, percentile)


def _lines(macro: str, *arguments: object) -> list[str]:
    text: str = getattr(_macros(), macro)(*arguments)
    return text.splitlines()


@cache
def _macros() -> Any:
    """Those of `perf_words.j2`, by name."""
    environment = templates("squall.analysis.studies")
    environment.filters |= {"number": number, "us": microseconds, "printable": printable}
    environment.globals["IN_A_ROW"] = IN_A_ROW
    return environment.get_template("perf_words.j2").module
