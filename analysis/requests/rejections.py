"""Requests that the server's queue policy refused: counted by the clients, since no metric of Triton has them all.

    full queue      refused as it arrives, before the scheduler takes it: in no statistic and no metric of Triton
    queue timeout   taken, waited too long: in the statistics' failures, in the metrics' failures as REJECTED

Source: `dynamic_batch_scheduler.cc` of triton-inference-server/core: a full queue is an error of the enqueue, answered
at once; an expired request ends in `RespondIfError`, which counts it. Seen so on 2.51.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import pyarrow as pa
import pyarrow.compute as pc

from squall.analysis.requests.requests import Requests

FULL_QUEUE = "Exceeds maximum queue size"
QUEUE_TIMEOUT = "Request timeout expired"
"""Triton's words, which a client keeps in `detail`."""

_GAVE_UP = ("timeout", "cancelled", "transport_error")
"""Outcomes of requests that the client no longer waited for: the server may have refused them later."""


@dataclass(frozen=True)
class Refused:
    """Requests that the clients saw refused, by why; `server_rejected_count`: by the server's metrics, None where these
    do not tell."""

    n: int
    full_queue_count: int
    queue_timeout_count: int
    other_count: int
    server_rejected_count: int | None


@dataclass(frozen=True)
class ExplainedRefused(Refused):
    """`explanation`: why the server's count is what it is beside the clients', in one sentence."""

    explanation: str


@dataclass(frozen=True)
class Rejections:
    """Of all phases together, and of each."""

    total: ExplainedRefused
    by_phase: Mapping[str, Refused]


def rejection_figures(
    requests: Requests, samples: pa.Table | None, phases: Sequence[str]
) -> Rejections | None:
    """Rejections in `phases` together (`total`) and in each (`by_phase`); None where there is none at all.

    `requests` and `samples` (`triton_samples`, None where absent) may hold other phases too. A request belongs to the
    phase it was planned in, a sample to the one it ended in: near a phase's edge the two differ, so that only `total`
    is compared and explained.
    """
    by_phase = {phase: _counts(requests, samples, [phase]) for phase in phases}
    total = _counts(requests, samples, phases)
    if not total.n and not total.server_rejected_count:
        return None
    gave_up = requests.in_phases(phases).outcome.is_any_of(_GAVE_UP)
    explanation = _explanation(total, int(gave_up.sum()))
    return Rejections(ExplainedRefused(**asdict(total), explanation=explanation), by_phase)


def _counts(requests: Requests, samples: pa.Table | None, phases: Sequence[str]) -> Refused:
    """What the clients counted, and the server: None where its metrics do not tell."""
    own = requests.in_phases(phases)
    words = own.detail.take(own.outcome.is_any_of(["rejected"])).counts()
    n_refused = sum(words.values())
    full = sum(n for detail, n in words.items() if FULL_QUEUE in detail)
    waited = sum(n for detail, n in words.items() if QUEUE_TIMEOUT in detail and FULL_QUEUE not in detail)
    return Refused(
        n=n_refused,
        full_queue_count=full,
        queue_timeout_count=waited,
        other_count=n_refused - full - waited,
        server_rejected_count=_server_count(samples, phases),
    )


def _server_count(samples: pa.Table | None, phases: Sequence[str]) -> int | None:
    """Failures that the metrics count as REJECTED; None where no sample of these phases has them."""
    if samples is None or "failure_rejected_count" not in samples.schema.names:
        return None
    is_own = pc.is_in(samples.column("phase").cast(pa.string()), pa.array(list(phases), pa.string()))
    found = pc.sum(samples.filter(is_own).column("failure_rejected_count")).as_py()
    return None if found is None else int(found)


def _explanation(counts: Refused, n_gave_up: int) -> str:
    """Why the server's count is what it is beside the clients', in one sentence."""
    full, waited, server = counts.full_queue_count, counts.queue_timeout_count, counts.server_rejected_count
    if server is None:
        return "the server's metrics were not sampled: the clients alone have counted"
    unseen = f"no metric counts the {full} refused for a full queue" if full else "none met a full queue"
    if server == waited:
        return f"the server's metric has the {waited} queue timeouts and nothing else: {unseen}"
    if server < waited:
        return (
            f"the server's metric lacks {waited - server} queue timeouts: samples are missing, or ended in a phase "
            f"that is not counted here; {unseen}"
        )
    extra = server - waited
    if extra <= n_gave_up:
        return (
            f"the server's metric has {extra} queue timeouts more than the clients, which had given up "
            f"{n_gave_up} requests by then; {unseen}"
        )
    return (
        f"the server's metric has {extra} queue timeouts more than our clients: of other clients, or of the phase "
        f"before; {unseen}"
    )
