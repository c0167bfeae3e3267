"""Was the load delivered, and could it be measured? Whether a run's numbers are about the server.

Every check states its figure, its limit and what it means. One that is not met, or of which the table is absent, makes
the run INVALID. One that has too few samples, or whose figure had no consequence for the sends, is not assessed and
decides nothing. The checks look at the phases of kind `measure` alone, save for completeness, which holds for the
whole run. A closed-loop run has no schedule to hold its sends to: there Little's law takes the place of the checks of
load and lag (`user_checks`). What a server does with a load that was delivered is data: failures beyond what the user
expects lead the reasons, of a VALID run too. Reasons come in the order of their causes (`causes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from squall.analysis.clocks.timeline import measure_spans
from squall.analysis.limits import LIMITS, Limits
from squall.analysis.locust.named_rows import rows_by_name
from squall.analysis.locust.users import is_locust_load, users_of_run
from squall.analysis.record import from_json, to_json
from squall.analysis.requests import workers as workers_of
from squall.analysis.requests.failures import Failures, failures_of, is_cut, is_lost, is_unreached
from squall.analysis.requests.requests import Requests, rows_in
from squall.analysis.requests.stimulus import Stimulus, sends_of, verify
from squall.analysis.statistics.order_statistics import rank_value
from squall.analysis.storage.store import RunStore
from squall.analysis.tables.manifest import Manifest
from squall.analysis.tables.sealed import SealedVerdict
from squall.analysis.verdict.bottleneck import Bottleneck, ClientView, find_bottleneck
from squall.analysis.verdict.causes import Cause, causes_of
from squall.analysis.verdict.check import Check, held_to
from squall.analysis.verdict.completeness import completeness, losses, lost_records
from squall.analysis.verdict.cpu_shares import CpuShares, cpu_shares, in_flight_by_node, programs_of
from squall.analysis.verdict.gpu_shares import BATCH_COLUMNS, GpuShares, GpuTables, gpu_shares
from squall.analysis.verdict.lag_parts import lag_part_checks
from squall.analysis.verdict.shared_gpu import gpu_checks
from squall.analysis.verdict.starvation import (
    Starvation,
    cpu_checks,
    judge_starvation,
    starved_clients,
    worst,
)
from squall.analysis.verdict.stimulus_checks import AllowedLag, stimulus_checks
from squall.analysis.verdict.user_checks import (
    USERS_CHECK,
    LocustRecord,
    locust_checks,
    more_workers,
    users_accounted,
    waited_texts,
)
from squall.analysis.verdict.verdict import VerdictFigures
from squall.analysis.wording import duration_text


@dataclass(frozen=True)
class Verdict:
    """VALID if no check is unmet, else INVALID with a sentence for each that is.

    The sentences of the causes lead the reasons; a VALID run has one where its server failed more than is expected.
    `client_bottleneck` says why the client was the limit, if it was.
    `starvation`: who took the server's CPU, if anybody did, or that its quota holds it back.
    """

    status: str
    reasons: tuple[str, ...]
    checks: tuple[Check, ...]
    failures: Failures
    causes: tuple[Cause, ...] = ()
    client_bottleneck: Bottleneck | None = None
    starvation: Starvation | None = None

    def figures(self) -> VerdictFigures:
        """As the summary holds it."""
        return VerdictFigures(
            status=self.status,
            reasons=self.reasons,
            causes=self.causes,
            failures=self.failures.figures(),
            checks=self.checks,
            client_bottleneck=self.client_bottleneck,
            starvation=self.starvation.figures() if self.starvation else None,
        )

    def sealed(self) -> SealedVerdict:
        """As `RunStore.seal` takes it."""
        return from_json(SealedVerdict, to_json(self.figures()), "verdict")


@dataclass(frozen=True, eq=False)
class Samples:
    """What was sampled beside the requests; None where the table is absent."""

    workers: pa.Table | None = None
    hosts: pa.Table | None = None
    cpus: pa.Table | None = None
    locust: LocustRecord | None = None
    """Of the whole run, of one whose load was Locust's."""
    gpus: GpuTables = field(default_factory=GpuTables)
    """Of the whole run: what the GPUs do by themselves shows where no load is."""

    @classmethod
    def read(cls, store: RunStore) -> Samples:
        """Those of a run."""
        tables = ("worker_samples", "host_samples", "cpu_samples", "locust_samples")
        workers, hosts, cpus, of_locust = (store.read(name) if store.has(name) else None for name in tables)
        gpus = _read_gpus(store)
        if not is_locust_load(store.manifest):
            return cls(workers, hosts, cpus, gpus=gpus)
        rows = rows_by_name(store) if store.has("requests") else None
        return cls(workers, hosts, cpus, LocustRecord(of_locust, rows), gpus)

    def in_phases(self, names: Sequence[str]) -> Samples:
        """The rows of these phases."""
        workers, hosts, cpus = (rows_in(table, names) for table in (self.workers, self.hosts, self.cpus))
        return Samples(workers, hosts, cpus, self.locust, self.gpus)

    @property
    def locust_users(self) -> pa.Table | None:
        """All of `locust_samples`; None where the table is absent."""
        return self.locust.samples if self.locust is not None else None


def _read_gpus(store: RunStore) -> GpuTables:
    """What is known of the use of GPUs; nothing of a run whose GPUs were not sampled."""
    if not store.has("gpu_samples"):
        return GpuTables()

    def read(name: str, columns: Sequence[str] | None = None) -> pa.Table | None:
        return store.read(name, list(columns) if columns else None) if store.has(name) else None

    return GpuTables(
        read(
            "gpu_samples",
            ("phase", "node", "gpu_uuid", "mig_instance", "t_ns", "interval_ns", "sm_util", "util"),
        ),
        read("gpu_processes"),
        read("batches", BATCH_COLUMNS),
        read("triton_samples", ("phase", "server", "model", "success_ns")),
    )


_SENDS = ("unsent", "delivered load", "dispersion", "send lag", "lag in")
"""How the names of the checks begin that say what was done to the sends."""
_NO_CONSEQUENCE = "the sends kept to their schedule all the same"


def judge_run(store: RunStore, limits: Limits = LIMITS) -> Verdict:
    """`judge` over the tables of a run, open or sealed. Raises `MissingTable` if there are no requests."""
    return judge(Requests.read(store), Samples.read(store), store.manifest, limits)


def judge(
    everything: Requests,
    samples: Samples,
    manifest: Manifest,
    limits: Limits = LIMITS,
    stimuli: Sequence[Stimulus] | None = None,
    shares: Sequence[CpuShares] | None = None,
    gpus: Sequence[GpuShares] | None = None,
) -> Verdict:
    """The verdict on a run from its requests, samples and its manifest's plan, phases, nodes and losses.

    Pure. Of the samples only those of the workers are required: without `cpu_samples` of the server's node who had
    its CPU is not assessed, and no check. `stimuli`: those of `run_stimuli`, `shares`: those of `run_shares`, and
    `gpus`: those of `run_gpus`, where they are known already.
    """
    spans = measure_spans(manifest)
    names = [span.name for span in spans]
    measured, own = everything.in_phases(names), samples.in_phases(names)
    failures = failures_of(measured, manifest.scenario)
    checks = [
        completeness(everything, manifest),
        lost_records(everything),
        losses(manifest),
        _measured_ok(measured, failures),
    ]
    if shares is None:
        shares = run_shares(everything, samples, manifest)
    starved = [judge_starvation(one, limits) for one in shares]
    checks += cpu_checks(starved, limits)
    of_gpus = gpu_checks(run_gpus(everything, samples, manifest) if gpus is None else gpus, limits)
    checks += of_gpus
    bottleneck = None
    is_locust = is_locust_load(manifest)
    if is_locust and spans:
        checks += locust_checks(samples.locust, manifest, spans, limits)
    if len(measured):
        users = (
            None if everything.is_open else users_of_run(everything, spans, manifest, samples.locust_users)
        )
        if not is_locust:  # whose rows do not say whether there was a connection
            checks.append(_server_reached(failures, limits))
        if everything.is_open:
            found = run_stimuli(everything, manifest, limits) if stimuli is None else stimuli
            checks += _load_checks(measured, names, found, limits)
        elif users is not None:
            gone = failures.unreached_ratio > limits.unreached_ratio
            found_none = "users found no server" if gone else ""
            checks.append(users_accounted(users, limits, manifest).unless(found_none))
        checks.append(_clock_bound(measured, manifest, limits))
        allowed = _allowed_lag(measured, limits, limits.hub_lag_ns if is_locust else limits.lag_ns)
        excuse = _NO_CONSEQUENCE if everything.is_open and not _is_late(checks) else ""
        checks += _worker_checks(own.workers, allowed, limits, excuse, more_workers(manifest))
        unmet = [check.name for check in checks if check.is_unmet]
        inside = users.gap_ratio if users is not None and USERS_CHECK in unmet else 0.0
        waited = waited_texts(users, samples.locust_users, manifest, spans, unmet) if is_locust else ()
        if manifest.driver_ended_ns is None:  # else nobody was left to send
            bottleneck = _bottleneck(measured, own, manifest, unmet, allowed.p50_ns, limits, inside, waited)
    of_clients = starved_clients(shares, limits) if bottleneck is not None else ""
    shared_gpu = next((check.reason for check in of_gpus), "")
    killed = _driver_ended(manifest)
    causes = causes_of(failures, worst(starved), of_clients, bottleneck, killed, shared_gpu)
    # what was not sent for the kill says nothing of the clients: no advice to add any
    reasons = [
        check.reason for check in checks if check.is_unmet and not (killed and check.name.startswith(_SENDS))
    ]
    leading = [cause.sentence for cause in causes]
    return Verdict(
        "INVALID" if reasons or killed else "VALID",
        tuple(dict.fromkeys([*leading, *reasons])),
        tuple(checks),
        failures,
        causes,
        bottleneck,
        worst(starved),
    )


def _driver_ended(manifest: Manifest) -> str:
    """When the driver of a run that was resumed had been killed under load, as a sentence; empty if it was not."""
    at_ns = manifest.driver_ended_ns
    if at_ns is None:
        return ""
    phase = next((one for one in reversed(manifest.phases) if one.start_ns <= at_ns), None)
    place = f"{duration_text(at_ns - phase.start_ns)} into phase {phase.name}" if phase else "before the load"
    return (
        f"The run's driver was killed {place}, and the load ended with it: what was due later was not sent, through no"
        " fault of clients or server; run it again."
    )


def _is_late(checks: Sequence[Check]) -> bool:
    """Whether anything was done to the sends."""
    return any(check.is_unmet and check.name.startswith(_SENDS) for check in checks)


def _bottleneck(
    measured: Requests,
    samples: Samples,
    manifest: Manifest,
    unmet: Sequence[str],
    allowed_ns: int,
    limits: Limits,
    inside_ratio: float,
    waited: Sequence[str],
) -> Bottleneck | None:
    """The client's, if there is one and its workers were sampled; `samples` are those of the measure phases."""
    workers = samples.workers
    if workers is None or not workers.num_rows:
        return None
    hosts = _of_nodes(samples.hosts, workers)
    view = ClientView(measured, workers, hosts, manifest, allowed_ns, limits, inside_ratio, tuple(waited))
    return find_bottleneck(view, unmet)


def _load_checks(
    measured: Requests, names: Sequence[str], stimuli: Sequence[Stimulus], limits: Limits
) -> list[Check]:
    """Of an open-loop run: was the load of the schedule sent, and how much of the latency is its lateness?"""
    phases = {name: measured.in_phases([name]) for name in names} if len(names) > 1 else {}
    by_phase = {name: _allowed_lag(own, limits, limits.lag_ns) for name, own in phases.items()}
    is_unsent = ~measured.is_sent & ~is_unreached(measured) & ~is_lost(measured) & ~is_cut(measured)
    checks = stimulus_checks(
        int(is_unsent.sum()),
        [one for one in stimuli if one.n_planned],
        by_phase or dict.fromkeys(names, _allowed_lag(measured, limits, limits.lag_ns)),
        limits,
    )
    return [*checks, *lag_part_checks({"": measured, **phases}, limits)]


def run_stimuli(requests: Requests, manifest: Manifest, limits: Limits = LIMITS) -> list[Stimulus]:
    """Planned against sent in each measure phase; empty for a closed loop, which plans no instants."""
    if not requests.is_open:
        return []
    return [verify(sends, limits) for sends in sends_of(requests, measure_spans(manifest))]


def run_shares(requests: Requests, samples: Samples, manifest: Manifest) -> list[CpuShares]:
    """Who had the CPU of each node in each measure phase, and what that did to the requests; empty without samples."""
    if samples.cpus is None:
        return []
    names = [span.name for span in measure_spans(manifest)]
    found = cpu_shares(samples.cpus, names, in_flight_by_node(requests, manifest))
    return [replace(one, programs=programs_of(manifest, one.node)) for one in found]


def run_gpus(requests: Requests, samples: Samples, manifest: Manifest) -> list[GpuShares]:
    """Who used the GPUs of the servers in each measure phase, and what that did to the requests."""
    return gpu_shares(samples.gpus, requests, manifest, [span.name for span in measure_spans(manifest)])


def _of_nodes(hosts: pa.Table | None, workers: pa.Table) -> pa.Table | None:
    """Host samples of the nodes that have workers; None without any."""
    if hosts is None:
        return None
    nodes = pa.array(sorted(set(workers.column("node").to_pylist())), pa.string())
    kept = hosts.filter(pa.compute.is_in(hosts.column("node").cast(pa.string()), nodes))
    return kept if kept.num_rows else None


def _measured_ok(measured: Requests, failures: Failures) -> Check:
    """At least one measured request ended ok, else there is no latency; written as a share that did not, below 1."""
    bad = 1.0 - failures.n_ok / len(measured) if len(measured) else None
    name, meaning = "ok share", "share of measured requests that did not end ok"
    if bad is not None and bad < 1.0:
        return Check(name, bad, 1.0, "ratio", True, meaning)
    reason = "No request of a measure phase ended ok, so that there is no latency of this server: see the outcomes and"
    return Check(name, bad, 1.0, "ratio", False, meaning, f"{reason} its log.")


def _server_reached(failures: Failures, limits: Limits) -> Check:
    """Nobody took what was due: that load was not delivered, through no fault of the client's."""
    meaning = "share of measured requests for which there was no connection to the server"
    advice = "the load was not delivered: see that the server runs, and where it listens"
    return held_to(
        "server reached", failures.unreached_ratio, limits.unreached_ratio, "ratio", meaning, advice
    )


def _allowed_lag(measured: Requests, limits: Limits, always_ns: int) -> AllowedLag:
    """What the p50 and the p95 of the latencies that ended ok allow to the same quantiles of lags, `always_ns` at
    least."""
    latency_ns = measured.latency_ns[measured.is_ok]
    return AllowedLag(
        *(
            max(always_ns, round(limits.lag_of_latency_ratio * (rank_value(latency_ns, q) or 0)))
            for q in (0.50, 0.95)
        )
    )


def _clock_bound(measured: Requests, manifest: Manifest, limits: Limits) -> Check:
    """Largest sum of both clocks' bounds over the pairs of client node and server node; 0 on one node."""
    nodes = manifest.nodes
    servers = {server.node for server in manifest.servers.values()}
    clients = measured.node.counts()
    pairs = [(a, b) for a in clients for b in servers if a != b]
    ends = {node for pair in pairs for node in pair}
    bounds = {node: nodes[node].clock_error_ns for node in ends & nodes.keys()}
    known = {node: bound for node, bound in bounds.items() if bound is not None}
    value = max((known[a] + known[b] for a, b in pairs), default=0) if ends == known.keys() else None
    latency_ns = rank_value(measured.latency_ns[measured.is_ok], 0.50) or 0
    limit = round(limits.clock_of_latency_ratio * latency_ns)
    advice = "probe the clocks longer, or use a better clock source (PTP, chrony)"
    check = held_to(
        "clock bound", value, limit, "ns", "bound on the error between client and server clocks", advice
    )
    return check.unless("" if measured.is_ok.any() else "no request ended ok, whose parts it would blur")


def _worker_checks(
    measured: pa.Table | None, allowed: AllowedLag, limits: Limits, excuse: str, more: str
) -> list[Check]:
    """`measured`: samples of the measure phases; None if the table is absent.

    `excuse`: why a late loop or a full worker had no consequence, if it had none. In an open loop each send is a
    sample of the loop's lateness, and there are many more of them than of its own timer's. `more`: what helps.
    """
    loop_p95_ns = busy_share = None
    if measured is not None and measured.num_rows:
        loop_p95_ns = rank_value(
            measured.column("loop_lag_ns").to_numpy(), 1.0 - limits.saturated_share_ratio
        )
        busy_share = float((workers_of.busy_ratios(measured) >= limits.saturated_ratio).mean())
        if measured.num_rows < limits.least_samples:
            excuse = f"{measured.num_rows} samples, it takes {limits.least_samples}"
    full = f"share of worker samples with at least {limits.saturated_ratio:.0%} CPU"
    late = held_to(
        "event-loop lag p95", loop_p95_ns, allowed.p95_ns, "ns", "event-loop lag p95 of the workers", more
    )
    saturated = held_to("worker saturation", busy_share, limits.saturated_share_ratio, "ratio", full, more)
    is_known = loop_p95_ns is not None
    return [
        *(one.unless(excuse if is_known else "") for one in (late, saturated)),
    ]
