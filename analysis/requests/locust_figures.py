"""Section `locust` of the summary: Locust's statistics beside the same of the exact rows, and what its users saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from squall.analysis.requests.asked import asked_mean
from squall.analysis.requests.closed_loop import UserTime
from squall.analysis.requests.locust_statistics import is_aggregate, unreported
from squall.analysis.requests.named_rows import QUANTILES, NamedRows, RowsByName, Timed
from squall.analysis.requests.user_watch import count_in_all, locust_time
from squall.analysis.requests.users import reported_mean_ns, seen_mean_ns
from squall.analysis.storage.locust import LocustEntry, LocustFacts
from squall.analysis.storage.timeline import RunPhase
from squall.scenarios.records import Frozen
from squall.scenarios.units import NS_PER_MS

ROUNDED_NS = 1_000
"""What a response time may differ between Locust's sum and a row: Locust adds floats of ms, rows hold whole ns."""
DRIFT_RATIO = 5e-4
"""What it may differ besides: both instants of a row went to the run's clock, and clocks drift by less than that (NTP
slews by at most 500 ppm)."""


class NameFigures(Frozen):
    """One method and name: `locust`, what Locust says, and `rows`, the same of the exact rows by the same definition of
    a quantile (the response time with ⌊q n⌋ before it). `rounding_ratios`: by quantile what Locust's rounding made of
    it, over the exact one less 1. `is_agreeing`: equal counts and failures, and the same sum of response times but for
    the rounding of floats and clocks."""

    method: str
    name: str
    locust: Timed | None
    rows: Timed | None
    rounding_ratios: Mapping[str, float]
    is_agreeing: bool


class LocustUserFigures(Frozen):
    """Locust's users in the measure phases, means over their time: asked for, present, asleep as they asked, asleep
    behind that. `late_ratio`: share of `n_wakes` that came late, `late_max_ns` the latest. `seen_mean_ns`: what a
    request took its user, (present - think) / requests; `reported_mean_ns`: what of it Locust's response times hold."""

    asked_mean_count: float | None
    present_mean_count: float
    thinking_mean_count: float
    overslept_mean_count: float
    n_wakes: int
    late_ratio: float | None
    late_max_ns: int
    seen_mean_ns: int | None
    reported_mean_ns: int | None


class UserException(Frozen):
    """What user code raised outside of requests, and how often."""

    message: str
    n: int


class LocustFigures(Frozen):
    """What Locust ran and said, beside the rows. `names`: by method and name, `total`: all together (Locust's mean of
    the sums of its entries; quantiles only where it gave its own total). `is_agreeing`: all of `names` do; None where
    `unreported` says why Locust's statistics are not whole. `n_plain`: requests that are not of a `TritonUser`, carry
    no id that squall knows, and are joined to no batch. `rounding_max_ratio`: the largest of any name, without its
    sign. `n_errors`, `n_died`: exceptions of user code, and users that one ended; `n_users_lost`: gone with a worker;
    `n_cut`: stopped within a task at the end, so that a request may have no row. All of the whole run but `users`.
    `exit_code`: that the file gave Locust, 0: none."""

    version: str
    file: str
    user_classes: tuple[str, ...]
    shape: str
    n_workers: int
    names: tuple[NameFigures, ...]
    total: NameFigures | None
    is_agreeing: bool | None
    unreported: str
    n_plain: int
    rounding_max_ratio: float | None
    users: LocustUserFigures | None
    exceptions: tuple[UserException, ...]
    n_errors: int
    n_died: int
    n_users_lost: int
    n_cut: int
    exit_code: int = 0


def locust_figures(
    facts: LocustFacts | None,
    rows: RowsByName | None,
    samples: pa.Table | None,
    users: UserTime | None,
    spans: Sequence[RunPhase],
) -> LocustFigures | None:
    """None of a run whose load was not Locust's. `samples`: all of `locust_samples`; `users`: over `spans`."""
    if facts is None:
        return None
    found = {(one.method, one.name): one for one in (rows.names if rows is not None else ())}
    said = {(one.method, one.name): one for one in facts.entries if not is_aggregate(one)}
    names = tuple(_beside(*key, said.get(key), found.get(key)) for key in sorted({*said, *found}))
    why = unreported(facts)
    roundings = [abs(ratio) for one in names for ratio in one.rounding_ratios.values()]
    return LocustFigures(
        version=facts.version,
        file=facts.file,
        user_classes=facts.user_classes,
        shape=facts.shape,
        n_workers=len(facts.workers),
        names=names,
        total=_total(facts, list(said.values()), rows),
        is_agreeing=None if why else all(one.is_agreeing for one in names),
        unreported=why,
        n_plain=rows.total.n_plain if rows is not None and rows.total is not None else 0,
        rounding_max_ratio=max(roundings, default=None),
        users=_users(facts, samples, users, spans),
        exceptions=tuple(
            UserException(one.message, one.n) for one in sorted(facts.exceptions, key=lambda one: -one.n)
        ),
        n_errors=count_in_all(samples, "n_errors"),
        n_died=count_in_all(samples, "n_died"),
        n_users_lost=sum(one.n_users_lost for one in facts.workers),
        n_cut=count_in_all(samples, "n_cut"),
        exit_code=facts.exit_code,
    )


def sum_slack_ns(n: int, total_ns: float) -> int:
    """What the sums of the response times of `n` requests may differ between Locust and the rows."""
    return round(n * ROUNDED_NS + DRIFT_RATIO * total_ns)


def _users(
    facts: LocustFacts, samples: pa.Table | None, users: UserTime | None, spans: Sequence[RunPhase]
) -> LocustUserFigures | None:
    if samples is None or not samples.num_rows or not spans:
        return None
    watched = locust_time(samples, spans)
    return LocustUserFigures(
        asked_mean_count=asked_mean(facts, spans),
        present_mean_count=watched.present_ns / watched.duration_ns,
        thinking_mean_count=watched.think_ns / watched.duration_ns,
        overslept_mean_count=watched.overslept_ns / watched.duration_ns,
        n_wakes=round(watched.n_wakes),
        late_ratio=watched.late_ratio,
        late_max_ns=watched.late_max_ns,
        seen_mean_ns=seen_mean_ns(users) if users is not None else None,
        reported_mean_ns=reported_mean_ns(users) if users is not None else None,
    )


def _total(facts: LocustFacts, entries: Sequence[LocustEntry], rows: RowsByName | None) -> NameFigures | None:
    """All names together: Locust's own total, else the sum of its entries, which has no quantiles."""
    own = next(filter(is_aggregate, facts.entries), None)
    if own is None and entries:
        own = LocustEntry(
            method="",
            name="",
            n_requests=sum(one.n_requests for one in entries),
            n_failures=sum(one.n_failures for one in entries),
            total_ms=sum(one.total_ms for one in entries),
            max_ms=max((one.max_ms for one in entries if one.max_ms is not None), default=None),
        )
    total = rows.total if rows is not None else None
    return None if own is None and total is None else _beside("", "", own, total)


def _beside(method: str, name: str, entry: LocustEntry | None, rows: NamedRows | None) -> NameFigures:
    """Counts are equal, and the sums of response times but for rounding, where both agree. What rounding made of the
    quantiles is known where both counted the same requests: else more than that differs."""
    said = _of_locust(entry, rows) if entry is not None else None
    found = rows.figures if rows is not None else None
    is_agreeing, roundings = False, {}
    if entry is not None and said is not None and rows is not None and found is not None:
        off_ns = abs(entry.total_ms * NS_PER_MS - rows.total_ns)
        is_same = said.n_requests == found.n_requests
        is_agreeing = (
            is_same
            and said.n_failures == found.n_failures
            and off_ns <= sum_slack_ns(found.n_requests, rows.total_ns)
        )
        roundings = {
            key: getattr(said, f"{key}_ns") / exact_ns - 1.0
            for key in ("p50", "p95", "p99")
            if is_same
            and (exact_ns := getattr(found, f"{key}_ns"))
            and getattr(said, f"{key}_ns") is not None
        }
    return NameFigures(method, name, said, found, roundings, is_agreeing)


def _of_locust(entry: LocustEntry, rows: NamedRows | None) -> Timed:
    """Locust's mean is over the requests that have a response time: all, where the rows do not say otherwise."""
    is_known = rows is not None and rows.figures.n_requests == entry.n_requests
    n_timed = rows.n_timed if rows is not None and is_known else entry.n_requests
    said_ms = {float(q): value_ms for q, value_ms in entry.quantiles_ms.items()}  # `0.5` or `0.50`
    ends_ms = [*(said_ms.get(q) for q in QUANTILES), entry.max_ms]
    return Timed(
        entry.n_requests,
        entry.n_failures,
        entry.total_ms * NS_PER_MS / n_timed if n_timed else None,
        *(None if value_ms is None else round(value_ms * NS_PER_MS) for value_ms in ends_ms),
    )
