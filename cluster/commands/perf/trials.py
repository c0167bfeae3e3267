"""How a level is measured: runs one after another, until one has three windows in a row that are stable.

perf_analyzer sends on and looks at one more window each time, up to --max-trials. A run of squall has its length from
the start: the first has three windows, which is all that a steady server takes, the next ones twice as many each time,
up to what is left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import measure_spans
from squall.analysis.studies.perf_rows import EndedRequests
from squall.analysis.studies.perf_windows import (
    IN_A_ROW,
    Window,
    count_windows,
    first_stable,
    latency_ns,
    request_window,
    time_windows,
    warm_from_ns,
)
from squall.cluster.commands.perf.asked import Asked
from squall.cluster.commands.perf.mapping import Load
from squall.scenarios.records import Frozen
from squall.scenarios.units import NS_PER_S

_MOST_RUNS = 4
_WARMUP_NS = NS_PER_S
_SHORTEST_NS = NS_PER_S
"""Of a measured phase: workers are sampled once a second."""
_GUESSED_S = 2
"""Of a closed loop whose throughput is not known yet."""
_MARGIN = 1.25
"""Over the time that so many requests should take."""


class Seen(Frozen):
    """What a run told. `hz`: requests a second of its measured phase; `is_stable`: its windows were, so that it was
    INVALID if another is to follow it; `is_over`: one of its last windows was above the latency threshold."""

    n_windows: int
    hz: float
    is_stable: bool = False
    is_over: bool = False


class Trial(Frozen, eq=False):
    """A run of a level and its windows. `first`: the first of those that count, None where they are not stable."""

    load: Load
    store: RunStore
    requests: EndedRequests
    windows: list[Window]
    first: int | None
    seen: Seen
    is_valid: bool
    reason: str

    @property
    def first_counted(self) -> int:
        """Of the windows that figures are made of: the stable ones, else the last three."""
        return max(0, len(self.windows) - IN_A_ROW) if self.first is None else self.first

    @property
    def counted(self) -> list[Window]:
        """These windows; none of a run without any."""
        return self.windows[self.first_counted : self.first_counted + IN_A_ROW]


def next_load(
    asked: Asked, level: Fraction | None, known_hz: float | None, before: Sequence[Seen]
) -> Load | None:
    """How long the next run of a level is; None where no more is to be tried. `known_hz`: of a schedule; `before`:
    runs that were not accepted."""
    n_invalid = sum(one.is_stable for one in before)
    if len(before) >= _MOST_RUNS or n_invalid > 1 or any(one.is_over for one in before):
        return None
    hz = known_hz if known_hz is not None else (before[-1].hz or None if before else None)
    if asked.n_requests:
        measured_ns = _requests_ns(asked.n_requests, hz, before)
    else:
        n_windows = _windows_left(asked.max_trials, before)
        if not n_windows:
            return None
        measured_ns = n_windows * _window_ns(asked, hz)
        if asked.n_warmup:  # what the warm-up phase had not room for
            measured_ns += _window_ns(asked, hz)
    warmup_ns = min(_WARMUP_NS, asked.window_ns)
    if asked.n_warmup and hz is not None:
        warmup_ns = max(warmup_ns, math.ceil(_MARGIN * asked.n_warmup / hz * NS_PER_S))
    return Load(level, warmup_ns, max(measured_ns, _SHORTEST_NS))


def _windows_left(max_trials: int, before: Sequence[Seen]) -> int:
    """How many windows the next run has: 0 where no three of them are left. A run that was INVALID takes none of them
    away, and neither does one with too few, its length being a guess."""
    tried = [one.n_windows for one in before if not one.is_stable]
    used = sum(n for n in tried if n >= min(IN_A_ROW, max_trials))
    left = max_trials - used
    if used:
        more = 2 * used + 1  # twice as many each time: most levels settle soon
        is_last = len(before) == _MOST_RUNS - 1 or left - more < IN_A_ROW
        return (left if left >= IN_A_ROW else 0) if is_last else more
    return IN_A_ROW if max_trials >= 2 * IN_A_ROW else max_trials


def _window_ns(asked: Asked, hz: float | None) -> int:
    if not asked.counts_windows:
        return asked.window_ns
    return NS_PER_S * (1 if hz is None else max(1, math.ceil(_MARGIN * asked.window_requests / hz)))


def _requests_ns(n_requests: int, hz: float | None, before: Sequence[Seen]) -> int:
    """Long enough for so many, twice as long each time that it was not."""
    seconds = _GUESSED_S if hz is None else 1 + math.ceil(_MARGIN * n_requests / hz)
    return (NS_PER_S * seconds) << max(0, len(before) - 1)


def read_trial(asked: Asked, load: Load, store: RunStore, is_valid: bool, reason: str) -> Trial:
    """A run that was made. Raises `MissingTable` where it has no requests."""
    requests = EndedRequests.read(store)
    (span,) = measure_spans(store.manifest)
    windows = cut(asked, requests, span.start_ns, span.end_ns)
    first = _first(asked, windows)
    hz = len(requests.between(span.start_ns, span.end_ns)) * NS_PER_S / (span.end_ns - span.start_ns)
    return Trial(
        load,
        store,
        requests,
        windows,
        first,
        Seen(len(windows), hz, first is not None, _is_over(asked, windows)),
        is_valid,
        reason,
    )


def _first(asked: Asked, windows: Sequence[Window]) -> int | None:
    """Where the windows that count begin; None where none do."""
    if asked.n_requests:
        return 0 if windows else None
    return first_stable(windows, asked.stability_ratio, asked.percentile, asked.is_async)


def cut(asked: Asked, requests: EndedRequests, start_ns: int, end_ns: int) -> list[Window]:
    """The windows of a measured phase, as many as --max-trials at most; of --request-count the one."""
    if asked.n_requests:
        sent_from_ns = warm_from_ns(requests, start_ns, asked.n_warmup)
        return [] if sent_from_ns is None else request_window(requests, sent_from_ns, asked.n_requests)
    begin_ns = warm_from_ns(requests, start_ns, asked.n_warmup)
    if begin_ns is None:
        return []
    if asked.counts_windows:
        found = count_windows(requests, begin_ns, end_ns, asked.window_requests)
    else:
        found = time_windows(requests, begin_ns, end_ns, asked.window_ns)
    return found[: asked.max_trials]


def _is_over(asked: Asked, windows: Sequence[Window]) -> bool:
    """Whether one of the last three windows is over the latency threshold: perf_analyzer looks no further then."""
    limit_ns = asked.latency_threshold_ns
    if limit_ns is None or asked.n_requests:
        return False
    return any(latency_ns(window.requests, asked.percentile) >= limit_ns for window in windows[-IN_A_ROW:])
