"""What Locust did, beside the requests of its users: a table of its workers, and its section of the manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from squall.analysis.tables.columns import (
    INTERVAL,
    NODE,
    PHASE,
    RUN,
    PhaseAt,
    T,
    Table,
    count,
    id_,
    ns,
)
from squall.analysis.tables.document import LEFT_OUT

TABLES = (
    Table(
        "locust_samples",
        "second of a Locust worker",
        PhaseAt("t_ns"),
        (
            RUN,
            PHASE,
            NODE,
            id_("worker", "Locust worker, as in `requests`"),
            T,
            INTERVAL,
            count("n_users", "users that run at t_ns"),
            count("n_thinking", "of these asleep at t_ns, as they asked"),
            ns("present_ns", "time in the interval that users ran, summed over them"),
            ns("think_ns", "of that asleep, up to the instant at which each had asked to wake"),
            ns("overslept_ns", "of that still asleep behind that instant: Locust was late to wake them"),
            count("n_wakes", "users that woke in the interval"),
            count("n_late_wakes", "of these more than `late_ns` of the manifest late"),
            ns("late_max_ns", "largest lateness of a wake in the interval"),
            count("n_requests", "requests that Locust counted in the interval"),
            count("n_failures", "of these failed, as Locust counts"),
            count("n_errors", "exceptions of user code in the interval, outside of requests"),
            count("n_died", "users that an exception ended in the interval"),
            count(
                "n_cut",
                "users stopped in the interval within a task: a request of theirs may have no row",
            ),
        ),
    ),
)


@dataclass(frozen=True, kw_only=True)
class LocustEntry:
    """Locust's own statistics of the requests of one method and name, over the whole run."""

    method: Annotated[str, "method, or type, of the requests"]
    name: Annotated[str, "name that they are counted under"]
    n_requests: Annotated[int, "requests that ended"]
    n_failures: Annotated[int, "of these failed"]
    total_ms: Annotated[float, "sum of their response times"]
    min_ms: Annotated[float | None, "smallest response time"] = None
    max_ms: Annotated[float | None, "largest response time"] = None
    quantiles_ms: Annotated[
        Mapping[str, float], "response times by quantile (0.5 and so on), from Locust's rounded counts"
    ] = field(default_factory=dict)
    response_bytes: Annotated[int, "sum of their response lengths"] = 0


@dataclass(frozen=True, kw_only=True)
class LocustFailure:
    """Failures of requests that Locust counts together."""

    method: Annotated[str, "method, or type, of the requests"]
    name: Annotated[str, "name that they are counted under"]
    error: Annotated[str, "in Locust's words"]
    n: Annotated[int, "how many"]


@dataclass(frozen=True, kw_only=True)
class LocustException:
    """An exception of user code outside of requests."""

    message: Annotated[str, "what it says"]
    traceback: Annotated[str, "where it came from"]
    n: Annotated[int, "how often"]


@dataclass(frozen=True, kw_only=True)
class AskedUsers:
    """What Locust was asked for from an instant on."""

    t_ns: Annotated[int, "instant of the run clock"]
    n_users: Annotated[int, "users"]
    spawn_rate_hz: Annotated[float, "users to spawn, or to stop, a second"]


@dataclass(frozen=True, kw_only=True)
class LocustWorkerFacts:
    """A Locust worker at its end."""

    worker: Annotated[int, "its number"]
    n_requests: Annotated[int | None, "requests that Locust counted there; null: it was lost"] = None
    n_failures: Annotated[int | None, "of these failed"] = None
    has_reported: Annotated[
        bool, "its last report came to the master, so that Locust's statistics hold them all"
    ] = False
    n_users_lost: Annotated[int, "users that it ran when it was lost"] = 0


@dataclass(frozen=True, kw_only=True)
class LocustFacts:
    """What Locust ran and what it says of it, of a run whose load it made."""

    version: Annotated[str, "of Locust"]
    file: Annotated[str, "name of the locustfile"]
    file_sha256: Annotated[str, "of it and the files beside it"]
    node: Annotated[str, "node of the master"]
    user_classes: Annotated[tuple[str, ...], "that could be spawned"] = ()
    shape: Annotated[str, LEFT_OUT, "class of its LoadTestShape; empty: none"] = ""
    host: Annotated[str, LEFT_OUT, "that the users were given; empty: their own"] = ""
    late_ns: Annotated[int, "wakes later than that are counted as late"] = 0
    asked: Annotated[tuple[AskedUsers, ...], "users asked for, in order of time"] = ()
    ended_ns: Annotated[
        int | None, LEFT_OUT, "when the file itself ended the load before its time, on the run clock"
    ] = None
    entries: Annotated[
        tuple[LocustEntry, ...], "its statistics, by method and name; the last is of all, named Aggregated"
    ] = ()
    failures: Annotated[tuple[LocustFailure, ...], LEFT_OUT, "failed requests by error"] = ()
    exceptions: Annotated[tuple[LocustException, ...], LEFT_OUT, "of user code outside of requests"] = ()
    workers: Annotated[tuple[LocustWorkerFacts, ...], "by number"] = ()
    files: Annotated[tuple[str, ...], "its own outputs, below `locust/` of the run directory"] = ()
    exit_code: Annotated[
        int,
        LEFT_OUT,
        "that the file gave Locust (`environment.process_exit_code`), the master's first; 0: none",
    ] = 0
    is_whole: Annotated[bool, "false: the master was lost, and what it would have said with it"] = True
