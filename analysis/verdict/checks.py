"""Every check of a verdict, in the order in which they are held and shown: what it holds to which limit, and why.

`python -m squall.analysis.verdict.checks` prints them. A check is a row of `CHECKS`: its name, figure,
limit and unit, what the figure means, why the limit stands where it stands, and what helps.
"""

from __future__ import annotations

import sys

from squall.analysis.limits import LIMITS
from squall.analysis.requests.failures import is_lost
from squall.analysis.requests.stimulus import SCALES_NS
from squall.analysis.statistics.order_statistics import rank_value
from squall.analysis.verdict import client_checks as client
from squall.analysis.verdict import completeness as record
from squall.analysis.verdict import server_checks as server
from squall.analysis.verdict import stimulus_checks as stimulus
from squall.analysis.verdict import user_checks as users
from squall.analysis.verdict.check import CLIENT, SENDS, Check, Figure
from squall.analysis.verdict.lag_parts import JUDGED
from squall.analysis.verdict.run_view import has_measured, has_users, is_locust, is_open
from squall.analysis.wording import figure_text
from squall.scenarios.units import NS_PER_S

_MORE = "add client workers or nodes, or lower the rate"

USERS_CHECK = Check(
    "users accounted for", users.users_accounted, LIMITS.user_gap_ratio, "ratio",
    "difference of users from throughput x (service + think), of the users",
    "a twentieth of the users' time, beyond 3 standard errors of the think time: more, and the client slowed its own"
    " users down",
    where=has_users, shows=CLIENT,
)  # fmt: skip
LATE_CHECK = Check(
    "late users", users.late_users, 0.05, "ratio",
    "share of the users' wakes that came late",
    "as samples of a full worker: more, and users waited for their turn in a full process, before a send that no"
    " response time holds",
    where=is_locust, shows=CLIENT,
)  # fmt: skip
CPU_CHECK = Check(
    "CPU of the server", lambda view: server.cpu_figure(view.cpus), LIMITS.taken_ratio, "ratio",
    "share of the CPU that the server could have used and others had",
    "beyond it the server computes a quarter slower than on a host of its own; INVALID only where that made more than a"
    " tenth of the response times, too",
)  # fmt: skip
GPU_CHECK = Check(
    "GPU of the server", lambda view: server.gpu_figure(view.gpus), LIMITS.taken_ratio, "ratio",
    "share of the GPU's time that others had",
    "as of the CPU, in moments in which its servers had requests",
)  # fmt: skip

CHECKS: tuple[Check, ...] = (
    Check(
        "completeness", record.completeness, 0, "count",
        "number of requests without exactly one row",
        "a request without a row may have been of any answer, however slow, and one with two counts twice",
        "look in logs/ for a worker that died, and run again",
    ),
    Check(
        "lost records", lambda view: Figure(int(is_lost(view.everything).sum())), 0, "count",
        "number of arrivals whose record was lost",
        "of the whole run: a record that is gone may have been of any answer, however slow",
        "what they took is not known; look in logs/ for a worker that died, and run again",
    ),
    Check(
        "losses", record.losses, 0, "count",
        "number of losses noted during the run",
        "whatever the run itself noted as missing may have held what its figures are of",
    ),
    Check(
        "ok share", record.ok_share, 1.0, "ratio",
        "share of measured requests that did not end ok",
        "one request that ended ok is enough for a latency; below that there is none",
    ),
    CPU_CHECK,
    GPU_CHECK,
    Check(
        "users present", users.users_present, 0.01, "ratio",
        "share of the users asked for that were missing, mean of the measure phases",
        "as `delivered load`: users are the load",
        where=is_locust,
    ),
    LATE_CHECK,
    Check(
        "Locust's counts", users.locust_counts, 0, "count",
        "difference of rows and failures by name from Locust's statistics",
        "both count the same requests, one by one",
        where=is_locust,
    ),
    Check(
        "server reached", lambda view: Figure(view.unreached_ratio), LIMITS.unreached_ratio, "ratio",
        "share of measured requests for which there was no connection to the server",
        "as `delivered load`: more, and the load was not delivered, for want of somebody to take it",
        "the load was not delivered: see that the server runs, and where it listens",
        where=lambda view: has_measured(view) and not is_locust(view),  # whose rows do not tell of connections
    ),
    Check(
        "unsent", lambda view: Figure(view.n_unsent), 0, "count",
        "number of measured arrivals never sent",
        "an arrival that was never sent is load that the server was spared",
        _MORE, is_open, SENDS,
    ),
    Check(
        "delivered load", stimulus.largest(stimulus.overall_difference), LIMITS.overall_ratio, "ratio",
        "difference of requests sent within a measure phase from those scheduled",
        "the first claim of a run",
        _MORE, is_open, SENDS,
    ),
    Check(
        "delivered load per second", stimulus.largest(lambda one: one.second_ratio), 0.05, "ratio",
        "largest difference of a second's sends from its schedule",
        "a burst cut by more than 5 % is another; beyond what one stall explains",
        _MORE, is_open, SENDS,
    ),
    Check(
        "delivered load in bursts",
        stimulus.largest(lambda one: one.bursts.difference_ratio if one.bursts else None), 0.05, "ratio",
        "share of the arrivals planned in bursts that was not sent within them, or came on top",
        "as of a second: a burst cut by more than 5 % is another",
        "the bursts were cut or filled up; add client workers", is_open, SENDS,
    ),
    *(
        Check(
            f"dispersion {window_ns / NS_PER_S:g} s", stimulus.dispersion(window_ns), LIMITS.dispersion_ratio, "ratio",
            f"change of the index of dispersion at {window_ns / NS_PER_S:g} s between schedule and sends",
            "in heavy traffic the mean wait is proportional to it, so that waits change by no more",
            "the bursts that were sent are not those of the scenario; add client workers", is_open, SENDS,
        )
        for window_ns in SCALES_NS
    ),
    Check(
        "sent early", stimulus.early, 0, "count",
        "number of arrivals sent before their time",
        "no send may come before its time: a load generator can be late, not early",
        "the clock or the schedule of a worker is wrong: please report it with logs/", is_open,
    ),
    Check(
        "send lag of the worst worker", stimulus.worst_worker, LIMITS.lag_ns, "ns",
        "send lag p95 of the worker with the largest",
        "a tenth of the latency p95, and what a timer on a busy host costs in any case",
        where=is_open, shows=SENDS,
    ),
    Check(
        "send lag end drift", stimulus.end_drift, LIMITS.lag_ns, "ns",
        "change of the median send lag from the first to the last second of a measure phase",
        "a tenth of the latency p50, or a ten-thousandth of the phase: a schedule that stretches by more has another"
        " rate in its fourth digit",
        "the schedule was stretched; add client workers or nodes", is_open, SENDS,
    ),
    *(
        Check(
            f"lag in p{100 * q:g}", stimulus.lag_part(q), LIMITS.timer_ns, "ns",
            f"part of the response time p{100 * q:g} that is send lag",
            "the client made at most a tenth of what is reported, or what a timer's wake-up costs",
            where=is_open, shows=SENDS,
        )
        for q in JUDGED
    ),
    USERS_CHECK,
    Check(
        "clock bound", client.clock_bound, 0, "ns",
        "bound on the error between client and server clocks",
        "a tenth of the latency p50: beyond it wait and reply of `joined` are mostly clock",
        "probe the clocks longer, or use a better clock source (PTP, chrony)", has_measured,
    ),
    Check(
        "event-loop lag p95",
        client.of_workers(
            lambda samples: rank_value(samples.column("loop_lag_ns").to_numpy(), 1.0 - client.SATURATED_SHARE_RATIO),
            lambda view: view.allowed.p95_ns,
        ),
        LIMITS.lag_ns, "ns",
        "event-loop lag p95 of the workers",
        "a tenth of the latency p95, and what a timer on a busy host costs in any case",
        where=has_measured, shows=CLIENT,
    ),
    Check(
        "worker saturation", client.of_workers(client.saturated_share), client.SATURATED_SHARE_RATIO, "ratio",
        f"share of worker samples with at least {client.SATURATED_RATIO:.0%} CPU",
        "one sample in twenty of a full worker is a burst that it had no room for",
        where=has_measured, shows=CLIENT,
    ),
)  # fmt: skip


def markdown() -> str:
    """A table of all of them. A limit that grows with the figures of the run, as the reason tells, is at least that."""
    rows = [
        f"| `{one.name}` | {one.meaning} | {figure_text(one.limit, one.unit)} | {one.reason} |\n"
        for one in CHECKS
    ]
    return "".join(["| check | figure | at most | why |\n|---|---|---|---|\n", *rows])


if __name__ == "__main__":
    sys.stdout.write(markdown())
