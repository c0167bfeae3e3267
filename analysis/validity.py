"""Did the tool keep up? Whether a run's numbers are about the server, or about the client that sent the load.

Every check states its figure, its limit and what it means. One that is not met, or could not be assessed
because its table is absent, makes the run INVALID. The checks look at the phases of kind `measure` alone,
save for completeness, which holds for the whole run. A closed-loop run has no schedule to hold its sends to: there
Little's law takes the place of the checks of load and lag. Where the client was the limit, a sentence says by what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from analysis import workers as workers_of
from analysis.bottleneck import Bottleneck, ClientView, find_bottleneck
from analysis.check import Check, held_to
from analysis.closed_loop import UserTime, user_time
from analysis.figures import rank_value, rows_in
from analysis.limits import LIMITS, Limits
from analysis.requests import Int64s, Requests, in_order, together
from analysis.stimulus import Stimulus, sends_of, verify
from analysis.stimulus_checks import stimulus_checks
from analysis.store import RunStore
from analysis.timeline import measure_spans
from analysis.wording import figure_text


@dataclass(frozen=True)
class Verdict:
    """VALID if every check is met, else INVALID with a sentence for each that is not.

    `client_bottleneck` says why the client was the limit, if it was; its sentence then leads the reasons.
    """

    status: str
    reasons: tuple[str, ...]
    checks: tuple[Check, ...]
    client_bottleneck: Bottleneck | None = None

    def to_mapping(self) -> dict[str, Any]:
        """As `RunStore.seal` takes it and summary.json holds it."""
        return {
            "status": self.status,
            "reasons": list(self.reasons),
            "checks": [asdict(check) for check in self.checks],
            "client_bottleneck": asdict(self.client_bottleneck) if self.client_bottleneck else None,
        }


def judge_run(store: RunStore, limits: Limits = LIMITS) -> Verdict:
    """`judge` over the tables of a run, open or sealed. Raises `MissingTable` if there are no requests."""
    workers, hosts = (
        store.read(name) if store.has(name) else None for name in ("worker_samples", "host_samples")
    )
    return judge(Requests.read(store), workers, store.manifest, limits, hosts)


def judge(
    everything: Requests,
    worker_samples: pa.Table | None,
    manifest: Mapping[str, Any],
    limits: Limits = LIMITS,
    host_samples: pa.Table | None = None,
    stimuli: Sequence[Stimulus] | None = None,
) -> Verdict:
    """The verdict on a run from its requests, samples and its manifest's plan, phases, nodes and losses.

    Pure. `worker_samples` and `host_samples` are None if the table is absent; host samples only serve to say
    what to add where the client was the limit. `stimuli`: those of `run_stimuli`, where they are known already.
    """
    spans = measure_spans(manifest)
    names = [span.name for span in spans]
    measured = everything.in_phases(names)
    checks = [
        _completeness(everything, manifest),
        _lost_records(everything),
        _losses(manifest),
        _measured_ok(measured),
    ]
    bottleneck = None
    if len(measured):
        workers, allowed_ns = rows_in(worker_samples, names), _allowed_lag_ns(measured, limits)
        users = None if everything.is_open else user_time(everything, spans, manifest)
        if everything.is_open:
            found = run_stimuli(everything, manifest, limits) if stimuli is None else stimuli
            planned = [one for one in found if one.n_planned]
            n_unsent = int(measured.outcome.is_any_of(["unsent"]).sum())
            allowed = {name: _allowed_lag_ns(measured.in_phases([name]), limits) for name in names}
            checks += stimulus_checks(n_unsent, planned, allowed, limits)
        elif users is not None:
            checks.append(_users_accounted(users, limits))
        checks.append(_clock_bound(measured, manifest, limits))
        checks += _worker_checks(workers, allowed_ns, limits)
        if workers is not None and workers.num_rows:
            unmet = [check.name for check in checks if not check.is_met]
            inside = users.gap_ratio if users is not None and USERS_CHECK in unmet else 0.0
            hosts = _of_nodes(rows_in(host_samples, names), workers)
            view = ClientView(measured, workers, hosts, manifest, allowed_ns, limits, inside)
            bottleneck = find_bottleneck(view, unmet)
    reasons = [check.reason for check in checks if not check.is_met]
    leading = [bottleneck.sentence] if bottleneck else []
    return Verdict("INVALID" if reasons else "VALID", (*leading, *reasons), tuple(checks), bottleneck)


def run_stimuli(requests: Requests, manifest: Mapping[str, Any], limits: Limits = LIMITS) -> list[Stimulus]:
    """Planned against sent in each measure phase; empty for a closed loop, which plans no instants."""
    if not requests.is_open:
        return []
    return [verify(sends, limits) for sends in sends_of(requests, measure_spans(manifest))]


def _of_nodes(hosts: pa.Table | None, workers: pa.Table) -> pa.Table | None:
    """Host samples of the nodes that have workers; None without any."""
    if hosts is None:
        return None
    nodes = pa.array(sorted(set(workers.column("node").to_pylist())), pa.string())
    kept = hosts.filter(pa.compute.is_in(hosts.column("node").cast(pa.string()), nodes))
    return kept if kept.num_rows else None


def _completeness(everything: Requests, manifest: Mapping[str, Any]) -> Check:
    """Every planned arrival has exactly one row: counts ids that are missing, doubled or not of the plan.

    Closed loop: every request that a worker issued. Ids are user + users · index, so that a user's indexes have
    no holes.
    """
    plan = manifest.get("plan", {})
    n_planned = int(plan.get("n_arrivals", 0))
    ids = everything.request_id
    if everything.is_open:
        known = _distinct(ids[together((ids >= 0) & (ids < n_planned))])
        n_missing, what = n_planned - len(known), "planned arrivals"
    else:
        known = _distinct(ids[together(ids >= 0)])
        n_missing = max(abs(n_planned - len(known)), _holes(known, int(plan.get("n_users", 1))))
        what = "requests issued"
    n_wrong = n_missing + (len(ids) - len(known))
    advice = "look in logs/ for a worker that died, and run again"
    meaning = f"number of {what} without exactly one row"
    return held_to("completeness", n_wrong if n_planned else None, 0, "count", meaning, advice)


def _distinct(ids: Int64s) -> Int64s:
    """Each id once, in order. Of ids that are sorted it takes a fraction of the time of numpy's `unique`."""
    ordered = in_order(ids)
    is_first = np.ones(len(ordered), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return ordered[together(is_first)]


def _holes(ids: Int64s, n_users: int) -> int:
    """Indexes that are missing before the last one of each user; `ids` are unique."""
    last = np.full(n_users, -1, dtype=np.int64)
    np.maximum.at(last, ids % n_users, ids // n_users)
    return int((last + 1).sum()) - len(ids)


def _lost_records(everything: Requests) -> Check:
    """Of the whole run: a record that is gone may have been of any answer, however slow."""
    n_lost = int(everything.outcome.is_any_of(["lost"]).sum())
    advice = "what they took is not known; look in logs/ for a worker that died, and run again"
    return held_to("lost records", n_lost, 0, "count", "number of arrivals whose record was lost", advice)


def _losses(manifest: Mapping[str, Any]) -> Check:
    losses = list(manifest.get("losses", []))
    advice = "; ".join(str(loss).rstrip(".") for loss in losses)
    return held_to("losses", len(losses), 0, "count", "number of losses noted during the run", advice)


def _measured_ok(measured: Requests) -> Check:
    """At least one measured request ended ok; written as a share that failed, below 1."""
    failed = 1.0 - float(measured.is_ok.mean()) if len(measured) else None
    meaning = "share of measured requests that failed"
    is_met = failed is not None and failed < 1.0
    if is_met:
        return Check("ok share", failed, 1.0, "ratio", True, meaning)
    advice = "no request of a measure phase ended ok; see the outcomes and the server's log"
    reason = f"{meaning[0].upper()}{meaning[1:]} is {figure_text(failed, 'ratio')}: {advice}."
    return Check("ok share", failed, 1.0, "ratio", False, meaning, reason)


USERS_CHECK = "users accounted for"


def _users_accounted(users: UserTime, limits: Limits) -> Check:
    """Little's law; the limit allows for the think times, of which only the law is known here."""
    limit = limits.user_gap_ratio + limits.user_gap_errors * users.gap_error_ratio
    meaning = "difference of users from throughput x (service + think), of the users"
    advice = "requests spent that time inside the load generator; add client workers or nodes"
    if users.gap_ratio < 0:
        advice = "users sent sooner than their think time allows"
    return held_to(USERS_CHECK, abs(users.gap_ratio), limit, "ratio", meaning, advice)


def _allowed_lag_ns(measured: Requests, limits: Limits) -> int:
    latency_p99_ns = rank_value(measured.latency_ns[measured.is_ok], 0.99) or 0
    return max(limits.lag_ns, round(limits.lag_of_latency_ratio * latency_p99_ns))


def _clock_bound(measured: Requests, manifest: Mapping[str, Any], limits: Limits) -> Check:
    """Largest sum of both clocks' bounds over the pairs of client node and server node; 0 on one node."""
    nodes = manifest.get("nodes", {})
    servers = {str(server["node"]) for server in manifest.get("servers", {}).values()}
    clients = measured.node.counts()
    pairs = [(a, b) for a in clients for b in servers if a != b]
    bounds = [[nodes.get(node, {}).get("clock_error_ns") for node in pair] for pair in pairs]
    known = all(bound is not None for pair in bounds for bound in pair)
    value = max((sum(pair) for pair in bounds), default=0) if known else None
    latency_ns = rank_value(measured.latency_ns[measured.is_ok], 0.50) or 0
    limit = round(limits.clock_of_latency_ratio * latency_ns)
    advice = "probe the clocks longer, or use a better clock source (PTP, chrony)"
    return held_to(
        "clock bound", value, limit, "ns", "bound on the error between client and server clocks", advice
    )


def _worker_checks(measured: pa.Table | None, allowed_ns: int, limits: Limits) -> list[Check]:
    """`measured`: samples of the measure phases; None if the table is absent."""
    loop_p95_ns = busy_share = None
    if measured is not None and measured.num_rows:
        loop_p95_ns = rank_value(
            measured.column("loop_lag_ns").to_numpy(), 1.0 - limits.saturated_share_ratio
        )
        busy_share = float((workers_of.busy_ratios(measured) >= limits.saturated_ratio).mean())
    allowed_busy = limits.saturated_share_ratio
    more = "add client workers or nodes"
    return [
        held_to(
            "event-loop lag p95", loop_p95_ns, allowed_ns, "ns", "event-loop lag p95 of the workers", more
        ),
        held_to(
            "worker saturation",
            busy_share,
            allowed_busy,
            "ratio",
            f"share of worker samples with at least {limits.saturated_ratio:.0%} CPU",
            more,
        ),
    ]
