"""Triton's Prometheus text, read strictly: a line that is not of the format is refused, never skipped.

Source of the format: Prometheus text exposition 0.0.4 and OpenMetrics 1.0 (which adds exemplars behind `#`).
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

FAILURE_REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")
"""Why requests fail, in Triton's words. None of them counts a request refused because the queue was full."""

_LABEL_TEXT = r'[^"{}]*(?:"(?:[^"\\\n]|\\.)*"[^"{}]*)*'
_SERIES = re.compile(rf"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{{({_LABEL_TEXT})\}})?[ \t]*")
_LONG_SERIES = re.compile(
    rf"(?P<head>[a-zA-Z_:][a-zA-Z0-9_:]*(?:\{{{_LABEL_TEXT}\}})?)"
    r"[ \t]+(?P<value>[^\s#]+)"
    r"(?:[ \t]+-?[0-9.]+)?"  # the time stamp
    r"(?:[ \t]+#[ \t]*\{.*)?[ \t]*"  # the exemplar
)
_LABEL = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\.)*)"[ \t]*(?:,|$)')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", '"': '"', "\\": "\\"}

_LINE_CHARACTERS = 65_536
_CACHED_CHARACTERS = 1_024
_MOST_COUNT = 2**53
"""Beyond it a number of Prometheus, which is a float, counts no more."""

_PREFIX = "nv_inference_"
_FAILURE = "nv_inference_request_failure"
_PENDING = "nv_inference_pending_request_count"


class MetricsError(ValueError):
    """The text is not what a metrics endpoint answers; says which line."""


class Series(NamedTuple):
    """One line: `value` may be NaN or infinite."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass
class ModelCounters:
    """What the metrics say of one version of a model.

    `counters`: since it was loaded, by series name, failures by series name and reason; all in the unit of the series.
    `pending_count`: requests that wait for execution, None where that is not told or no number.
    """

    counters: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    pending_count: int | None = None


def parse_metrics(text: str) -> Iterator[Series]:
    """Every series of the text in its order, comments left out. Raises MetricsError."""
    for line in text.split("\n"):
        line = line.rstrip("\r")
        if len(line) > _LINE_CHARACTERS:
            raise MetricsError(f"the metrics have a line of more than {_LINE_CHARACTERS:,} characters")
        if not line or line[0] == "#":
            continue
        head, _, value = line.rpartition(" ")
        known = (_series if len(head) <= _CACHED_CHARACTERS else _series.__wrapped__)(head)
        try:
            if known is None:  # a time stamp or an exemplar follows the value
                found = _LONG_SERIES.fullmatch(line)
                known = _series(found["head"]) if found else None
                if found is None or known is None:
                    raise ValueError("it is no series")
                value = found["value"]
            yield Series(*known, _number(value))
        except ValueError as error:
            raise MetricsError(f"the metrics have a line that cannot be read: {line[:100]!r}") from error


def failure_key(reason: str) -> str:
    """Key of `ModelCounters.counters` for the failures of one reason."""
    return f"{_FAILURE} {reason}"


def model_counters(text: str) -> dict[tuple[str, str], ModelCounters]:
    """Counters of each model and version, summed over series that differ by other labels. Raises MetricsError.

    Gauges other than the pending requests, summaries' quantiles and values that are no number are left out: they do
    not add up.
    """
    found: dict[tuple[str, str], ModelCounters] = defaultdict(ModelCounters)
    for name, labels, value in parse_metrics(text):
        if not name.startswith(_PREFIX) or "model" not in labels or "version" not in labels:
            continue
        model = found[labels["model"], labels["version"]]
        if not math.isfinite(value) or "quantile" in labels or "le" in labels:
            continue
        if name == _PENDING:
            model.pending_count = (model.pending_count or 0) + round(value)
            continue
        reason = labels.get("reason")
        model.counters[f"{name} {reason}" if reason else name] += round(value)
    for model in found.values():
        if any(abs(count) > _MOST_COUNT for count in (*model.counters.values(), model.pending_count or 0)):
            raise MetricsError(f"the metrics count more than {_MOST_COUNT:,}")
    return dict(found)


@lru_cache(maxsize=16_384)  # these texts stay the same from scrape to scrape
def _series(text: str) -> tuple[str, Mapping[str, str]] | None:
    """Name and labels of `name{label="value",…}`; None for any other text."""
    found = _SERIES.fullmatch(text)
    try:
        return (found[1], _labels(found[2] or "")) if found else None
    except ValueError:
        return None


def _number(text: str) -> float:
    if "_" in text:  # Python's, not Prometheus's
        raise ValueError(f"{text} is no number")
    return float(text)


def _labels(text: str) -> Mapping[str, str]:
    labels: dict[str, str] = {}
    at = 0
    while at < len(text):
        found = _LABEL.match(text, at)
        if found is None or found[1] in labels:
            raise ValueError(f"no label at {text[at:]!r}")
        labels[found[1]] = _ESCAPE.sub(_unescaped, found[2])
        at = found.end()
    return labels


def _unescaped(escape: re.Match[str]) -> str:
    """A backslash before any other character stands for itself."""
    return _ESCAPED.get(escape[1], escape[0])
