"""Little's law for users of Locust: their time is service, think, and what passed inside the load generator.

    present = ∑ (response times that Locust measured) + asleep as they asked + the rest

Locust takes a response time within the user's own greenlet: what a request waits for its turn in the process before it
is sent, and what its user waits for its own behind it, is in none. One Locust process reported a median of 35 ms where
1,000 users at 1,789 requests a second had 559 ms a request (docs/results.md). The rest says so: it is present time that
is neither, and needs no clock but the worker's own (J. D. C. Little, Operations Research 9(3), 1961, over a finite
window).

A user that has several requests at once counts each of them: the sum of its parts may then exceed its time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from squall.analysis.requests.closed_loop import UserTime, user_time
from squall.analysis.requests.requests import Requests, together
from squall.analysis.requests.user_watch import locust_time
from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.timeline import RunPhase

LOCUST = "locust"
"""`plan.load` of a run whose load Locust makes."""


def is_locust_load(manifest: Manifest) -> bool:
    """Whether the users of the run are Locust's."""
    return manifest.plan.load == LOCUST


def users_of_run(
    everything: Requests, spans: Sequence[RunPhase], manifest: Manifest, samples: pa.Table | None
) -> UserTime | None:
    """The users' time over the phases `spans`, of squall's own closed loop or of Locust; None where it is not known.

    `everything` has all phases; `samples`: all of `locust_samples`.
    """
    if not is_locust_load(manifest):
        return user_time(everything, spans, manifest)
    if samples is None or not samples.num_rows or not spans:
        return None
    return locust_user_time(everything, spans, samples)


def locust_user_time(everything: Requests, spans: Sequence[RunPhase], samples: pa.Table) -> UserTime | None:
    """The same of Locust alone; None where no user was present. Think time was measured: it has no error."""
    watched = locust_time(samples, spans)
    if not watched.present_ns:
        return None
    done = everything.take(together(everything.is_done))
    service_ns = n_done = 0
    for span in spans:
        inside_ns = np.minimum(done.done_ns, span.end_ns) - np.maximum(done.sent_ns, span.start_ns)
        service_ns += int(np.maximum(inside_ns, 0).sum())
        n_done += int(((done.done_ns >= span.start_ns) & (done.done_ns < span.end_ns)).sum())
    return UserTime(
        duration_ns=watched.duration_ns,
        present_ns=watched.present_ns,
        service_ns=service_ns,
        think_ns=float(watched.think_ns),
        think_error_ns=0.0,
        n_done=n_done,
    )


def seen_mean_ns(users: UserTime) -> int | None:
    """What a request took its user, think time left out: (users / throughput) - think; None without requests."""
    return round((users.present_ns - users.think_ns) / users.n_done) if users.n_done else None


def reported_mean_ns(users: UserTime) -> int | None:
    """What of it the measured response times hold; None without requests."""
    return round(users.service_ns / users.n_done) if users.n_done else None
