"""What Locust did, beside the requests of its users: a table of its workers, and its section of the manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from squall.analysis.columns import INTERVAL, OF_NODE, PhaseAt, T, Table, columns
from squall.scenarios.records import Float, Int, LeftOut, Listed, Record

TABLES = (
    Table(
        "locust_samples",
        "second of a Locust worker",
        PhaseAt("t_ns"),
        columns(
            *OF_NODE,
            "worker  id  Locust worker, as in `requests`",
            T,
            INTERVAL,
            """
            n_users       count  users that run at t_ns
            n_thinking    count  of these asleep at t_ns, as they asked
            present_ns    ns     time in the interval that users ran, summed over them
            think_ns      ns     of that asleep, up to the instant at which each had asked to wake
            overslept_ns  ns     of that still asleep behind that instant: Locust was late to wake them
            n_wakes       count  users that woke in the interval
            n_late_wakes  count  of these more than `late_ns` of the manifest late
            late_max_ns   ns     largest lateness of a wake in the interval
            n_requests    count  requests that Locust counted in the interval
            n_failures    count  of these failed, as Locust counts
            n_errors      count  exceptions of user code in the interval, outside of requests
            n_died        count  users that an exception ended in the interval
            n_cut         count  users stopped in the interval within a task: a request of theirs may have no row
            """,
        ),
    ),
)


class LocustEntry(Record):
    """Locust's own statistics of the requests of one method and name, over the whole run."""

    method: str
    """method, or type, of the requests"""
    name: str
    """name that they are counted under"""
    n_requests: Int
    """requests that ended"""
    n_failures: Int
    """of these failed"""
    total_ms: Float
    """sum of their response times"""
    min_ms: Float | None = None
    """smallest response time"""
    max_ms: Float | None = None
    """largest response time"""
    quantiles_ms: Mapping[str, Float] = field(default_factory=dict)
    """response times by quantile (0.5 and so on), from Locust's rounded counts"""
    response_bytes: Int = 0
    """sum of their response lengths"""


class LocustFailure(Record):
    """Failures of requests that Locust counts together."""

    method: str
    """method, or type, of the requests"""
    name: str
    """name that they are counted under"""
    error: str
    """in Locust's words"""
    n: Int
    """how many"""


class LocustException(Record):
    """An exception of user code outside of requests."""

    message: str
    """what it says"""
    traceback: str
    """where it came from"""
    n: Int
    """how often"""


class AskedUsers(Record):
    """What Locust was asked for from an instant on."""

    t_ns: Int
    """instant of the run clock"""
    n_users: Int
    """users"""
    spawn_rate_hz: Float
    """users to spawn, or to stop, a second"""


class LocustWorkerFacts(Record):
    """A Locust worker at its end."""

    worker: Int
    """its number"""
    n_requests: Int | None = None
    """requests that Locust counted there; null: it was lost"""
    n_failures: Int | None = None
    """of these failed"""
    has_reported: bool = False
    """its last report came to the master, so that Locust's statistics hold them all"""
    n_users_lost: Int = 0
    """users that it ran when it was lost"""


class LocustFacts(Record):
    """What Locust ran and what it says of it, of a run whose load it made."""

    version: str
    """of Locust"""
    file: str
    """name of the locustfile"""
    file_sha256: str
    """of it and the files beside it"""
    node: str
    """node of the master"""
    user_classes: Listed[str] = ()
    """that could be spawned"""
    shape: LeftOut[str] = ""
    """class of its LoadTestShape; empty: none"""
    host: LeftOut[str] = ""
    """that the users were given; empty: their own"""
    late_ns: Int = 0
    """wakes later than that are counted as late"""
    asked: Listed[AskedUsers] = ()
    """users asked for, in order of time"""
    ended_ns: LeftOut[Int | None] = None
    """when the file itself ended the load before its time, on the run clock"""
    entries: Listed[LocustEntry] = ()
    """its statistics, by method and name; the last is of all, named Aggregated"""
    failures: LeftOut[Listed[LocustFailure]] = ()
    """failed requests by error"""
    exceptions: LeftOut[Listed[LocustException]] = ()
    """of user code outside of requests"""
    workers: Listed[LocustWorkerFacts] = ()
    """by number"""
    files: Listed[str] = ()
    """its own outputs, below `locust/` of the run directory"""
    exit_code: LeftOut[Int] = 0
    """that the file gave Locust (`environment.process_exit_code`), the master's first; 0: none"""
    is_whole: bool = True
    """false: the master was lost, and what it would have said with it"""
