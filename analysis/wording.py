"""How a figure is written for people, with three digits and a unit, on the screen and in the report."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import BytecodeCache, Environment

from squall.scenarios.units import digits_text

LATENCY_LABELS = {
    "open": {"response": "response", "service": "service", "lag": "send lag"},
    "closed": {"service": "service time"},
}
"""Latencies of a run by its load: a closed loop has service time alone, and says so in full."""

_UNBROKEN = re.compile(r"(?<=\d) (?=(?:ns|µs|ms|s|%|B|KiB|times)\b|%)|(?<=…) ")
_NS_STEPS = ((10**9, "s"), (10**6, "ms"), (10**3, "µs"), (1, "ns"))


def duration_text(ns: float | None) -> str:
    """`ns` as `1.23 ms`; `-` for None."""
    if ns is None:
        return "-"
    size, unit = next((step for step in _NS_STEPS if abs(ns) >= step[0]), _NS_STEPS[-1])
    return f"{_digits(ns / size)} {unit}"


def moment_text(ns: float | None) -> str:
    """An instant, ns since 1970, as `05:50:42.123456` UTC: two of one run differ in its last digits. `-` for None."""
    if ns is None:
        return "-"
    at = datetime.fromtimestamp(int(ns) // 10**9, UTC)
    return f"{at:%H:%M:%S}.{int(ns) % 10**9 // 1000:06d}"


def share_text(ratio: float | None) -> str:
    """`ratio` as `4.2 %`; `-` for None."""
    if ratio is None:
        return "-"
    if 0.995 <= ratio < 1.0:  # never "100 %" for what is not all
        return f"{math.floor(ratio * 10_000) / 100:.2f} %"
    return f"{_digits(100.0 * ratio)} %"


def count_text(count: float | None) -> str:
    """`count` as `1,234`, or with up to three digits if it is not whole; `-` for None."""
    if count is None:
        return "-"
    return f"{int(count):,}" if float(count).is_integer() else _digits(count)


def counted_text(n: int, one: str, many: str = "") -> str:
    """`n` with what is counted: `1 run`, `1,234 runs`; `many` where an s does not make it."""
    return f"{count_text(n)} {one if n == 1 else many or one + 's'}"


def rate_text(hz: float | None) -> str:
    """`hz` as `200/s`; `-` for None."""
    return "-" if hz is None else f"{_digits(hz)}/s"


def figure_text(value: float | None, unit: str) -> str:
    """`value` in `unit` of the schema: ns, ratio, count, hz or bytes."""
    if unit == "ns":
        return duration_text(value)
    if unit == "ratio":
        return share_text(value)
    if unit == "hz":
        return rate_text(value)
    return count_text(value)


def names_text(names: Sequence[str], most: int = 4) -> str:
    """The names with commas; of more than `most` the first ones, and how many more there are."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} more"


def change_text(ratio: float | None) -> str:
    """`ratio` as a change with its sign: `+0.12 %`; `-` for None."""
    return f"+{share_text(ratio)}" if ratio is not None and ratio > 0 else share_text(ratio)


def _digits(value: float) -> str:
    """`value` with three significant digits, or four from a thousand on, never in powers of ten, and thousands
    separated; below 1 with two decimals."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return digits_text(value, 3 if abs(value) < 1_000 else 4)
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def unbroken_text(text: str) -> str:
    """`text` with spaces that do not break between a number and its unit, and within an interval."""
    return _UNBROKEN.sub("\N{NO-BREAK SPACE}", text)


def templates(package: str, shown: Callable[[object], object] | None = None) -> Environment:
    """The templates of plain text in a package, with filters that write figures; `shown`: what is written of a value.

    Sentences are macros of such a template: its `module` has them as functions that return their text.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(package, "."), undefined=StrictUndefined, finalize=shown, trim_blocks=True,
        lstrip_blocks=True, bytecode_cache=compiled("text" if shown is None else "shown"),
    )  # fmt: skip
    environment.filters |= {
        "duration": duration_text,
        "share": share_text,
        "count": count_text,
        "counted": counted_text,
        "names": names_text,
        "rate": rate_text,
        "digits": digits_text,
    }
    return environment


@cache
def macros(package: str, template: str) -> Any:
    """The macros of a template of plain text in a package, by name: functions that return their text."""
    return templates(package).get_template(template).module


def compiled(kind: str) -> BytecodeCache | None:
    """Compiled templates, kept where Python keeps compiled modules: to compile those of a page takes half a second.
    None where Python keeps none. `kind`: of environment, since its options are part of what a template becomes."""
    from jinja2 import FileSystemBytecodeCache
    from jinja2.bccache import Bucket

    kept, newest_ns = Path(__file__).with_name("__pycache__"), _newest_ns()
    if sys.dont_write_bytecode or newest_ns is None or not os.access(kept, os.W_OK):
        return None

    class Compiled(FileSystemBytecodeCache):
        def get_source_checksum(self, source: str) -> str:
            return super().get_source_checksum(f"{newest_ns} {source}")

        def dump_bytecode(self, bucket: Bucket) -> None:
            with suppress(OSError):
                super().dump_bytecode(bucket)

    return Compiled(str(kept), f"{kind}-%s.template")


@cache
def _newest_ns() -> int | None:
    """When the sources last changed that a compiled template is of: what a filter makes of a constant is part of it.
    None where that cannot be read, as while they are replaced."""
    root = Path(__file__).parents[1]
    with suppress(OSError):
        return max(
            path.stat().st_mtime_ns
            for room in ("analysis", "scenarios")
            for path in (root / room).rglob("*.py")
        )
    return None
