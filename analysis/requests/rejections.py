"""Requests that the server's queue policy refused: counted by the clients, since no metric of Triton has them all.

    full queue      refused as it arrives, before the scheduler takes it: in no statistic and no metric of Triton
    queue timeout   taken, waited too long: in the statistics' failures, in the metrics' failures as REJECTED

Source: `dynamic_batch_scheduler.cc` of triton-inference-server/core: a full queue is an error of the enqueue, answered
at once; an expired request ends in `RespondIfError`, which counts it. Seen so on 2.51.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from squall.analysis.requests.requests import Requests
from squall.analysis.storage.query import in_memory, rows
from squall.analysis.wording import macros
from squall.scenarios.records import Frozen

FULL_QUEUE = "Exceeds maximum queue size"
QUEUE_TIMEOUT = "Request timeout expired"
"""Triton's words, which a client keeps in `detail`."""

_GAVE_UP = ("timeout", "cancelled", "transport_error")
"""Outcomes of requests that the client no longer waited for: the server may have refused them later."""


class Refused(Frozen):
    """Requests that the clients saw refused, by why; `server_rejected_count`: by the server's metrics, None where these
    do not tell."""

    n: int
    full_queue_count: int
    queue_timeout_count: int
    other_count: int
    server_rejected_count: int | None


class ExplainedRefused(Refused):
    """`explanation`: why the server's count is what it is beside the clients', in one sentence."""

    explanation: str


class Rejections(Frozen):
    """Of all phases together, and of each."""

    total: ExplainedRefused
    by_phase: Mapping[str, Refused]


_REFUSED = f"""
-- of each phase and of all: what the clients saw refused and what they no longer waited for, and what the metrics
-- count as REJECTED
WITH seen AS (
    SELECT phase, count(*) FILTER (outcome = 'rejected') AS n,
        count(*) FILTER (outcome = 'rejected' AND contains(detail, '{FULL_QUEUE}')) AS n_full,
        count(*) FILTER (outcome = 'rejected' AND contains(detail, '{QUEUE_TIMEOUT}')
            AND NOT contains(detail, '{FULL_QUEUE}')) AS n_waited,
        count(*) FILTER (outcome IN {_GAVE_UP}) AS n_gave_up
    FROM requests GROUP BY phase),
counted AS (SELECT phase, sum(failure_rejected_count) AS n_server FROM triton_samples GROUP BY phase)
SELECT phase, coalesce(sum(n), 0)::BIGINT AS n, coalesce(sum(n_full), 0)::BIGINT AS full_queue_count,
    coalesce(sum(n_waited), 0)::BIGINT AS queue_timeout_count,
    coalesce(sum(n - n_full - n_waited), 0)::BIGINT AS other_count, sum(n_server)::BIGINT AS server_rejected_count,
    coalesce(sum(n_gave_up), 0)::BIGINT AS n_gave_up
FROM (SELECT unnest($phases::VARCHAR[]) AS phase) LEFT JOIN seen USING (phase) LEFT JOIN counted USING (phase)
GROUP BY ROLLUP (phase)
"""


def rejection_figures(
    requests: Requests, samples: pa.Table | None, phases: Sequence[str]
) -> Rejections | None:
    """Rejections in `phases` together (`total`) and in each (`by_phase`); None where there is none at all.

    `requests` and `samples` (`triton_samples`, None where absent) may hold other phases too. A request belongs to the
    phase it was planned in, a sample to the one it ended in: near a phase's edge the two differ, so that only `total`
    is compared and explained.
    """
    own = requests.table("phase", "outcome", "detail")
    with in_memory(requests=own, triton_samples=samples) as connection:
        found = {row.pop("phase"): row for row in rows(connection, _REFUSED, {"phases": list(phases)})}
    gave_up = {phase: row.pop("n_gave_up") for phase, row in found.items()}
    total = Refused(**found[None])
    if not total.n and not total.server_rejected_count:
        return None
    explanation = macros("squall.analysis.requests", "rejections.j2").explanation(total, gave_up[None])
    return Rejections(
        ExplainedRefused(**found[None], explanation=explanation),
        {phase: Refused(**found[phase]) for phase in phases},
    )
