"""The findings of a run: for each instance and phase the window and the body level, for each phase its p99 requests.

Of models that executed beside those to which the requests belong there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from squall.analysis.clocks.timeline import measure_spans
from squall.analysis.compare.overhead_file import profiling_ratio
from squall.analysis.findings.beginning import beginning_finding, weakened
from squall.analysis.findings.ceilings import Ceiling, ceiling_text, ceilings
from squall.analysis.findings.finding import UNASSESSED, Finding, Rows, Scope, make_finding
from squall.analysis.findings.rows import link, scope_filter
from squall.analysis.findings.rules.body_rules import BODY_RULES
from squall.analysis.findings.rules.classifier import Classification, classify
from squall.analysis.findings.rules.confidence import Confidence, RunState
from squall.analysis.findings.rules.facts import facts, wall_partition
from squall.analysis.findings.rules.rule import Measures
from squall.analysis.findings.rules.shares import (
    BODY_PARTS,
    Key,
    Sums,
    batch_sums,
    cpu_measures,
    device_shares,
    gpu_measures,
    is_cpu,
    response_shares,
)
from squall.analysis.findings.rules.tried import RULES, rules_of
from squall.analysis.findings.rules.window_rules import (
    CLIENT,
    CLIENT_LAG_RATIO,
    QUEUE,
    REFUSED,
    STARVED,
    UNSERVED,
)
from squall.analysis.findings.sent import SentRequests
from squall.analysis.findings.statistics import statistics_finding
from squall.analysis.findings.tail import Tail, tail_finding, tails
from squall.analysis.findings.tail_batches import tail_measures
from squall.analysis.findings.unserved import absent_finding, unserved_filter
from squall.analysis.metrics.measures import instance_key, instance_of, server_of
from squall.analysis.metrics.model_statistics import ModelStatistics, model_statistics
from squall.analysis.metrics.records import InstanceMetrics, RunMetrics
from squall.analysis.recorded import library_windows
from squall.analysis.requests.cold import ColdFigures
from squall.analysis.requests.requests import Requests, is_open_load
from squall.analysis.storage.query import MEMORY_LIMIT_BYTES, connect
from squall.analysis.storage.store import RunStore
from squall.analysis.tables.deployed import ModelFacts, ServerFacts
from squall.analysis.tables.manifest import Manifest
from squall.analysis.tables.nsys import OPERATIONS
from squall.analysis.tables.sealed import Verdict
from squall.analysis.verdict.cpu_shares import CpuShares
from squall.analysis.verdict.gpu_shares import GpuShares
from squall.analysis.verdict.run_view import Samples, run_gpus, run_shares
from squall.analysis.wording import count_text, share_text

if TYPE_CHECKING:
    import duckdb

_GPU_FULL_RATIO = 0.8
"""Share of the phase in which the GPU is busy from which on another instance there has little to gain, as GPU-bound."""
_CPU_FULL_RATIO = 0.2
"""Share of the node's CPU that is idle below which another instance that computes on it has little to gain."""
_TABLES = ("batch_costs", "joined", "requests", *OPERATIONS)


def find(
    store: RunStore,
    metrics: RunMetrics | None,
    verdict: Verdict | None = None,
    unmet_checks: Sequence[str] = (),
    memory_limit_bytes: int = MEMORY_LIMIT_BYTES,
    cpus: Sequence[CpuShares] | None = None,
    gpus: Sequence[GpuShares] | None = None,
    cold: Mapping[str, ColdFigures] | None = None,
) -> list[Finding]:
    """The findings of a run whose tables `batch_costs` and `joined` are written, in order of phase and instance.

    `metrics`: what `run_metrics` returned, None of a run without batches. `verdict`: the run's; without one that of its
    seal. `unmet_checks`: names of the self-checks that are not met; they lower confidence. `cpus` and `gpus`: the run's
    `run_shares` and `run_gpus`; without them they are made, which reads its requests. `cold`: by phase how it began;
    what is worth a line comes first, and lowers the confidence of what follows about its phase. What is not in the run
    is not assessed; nothing that is missing raises.
    """
    manifest = store.manifest
    state = RunState(manifest.losses, tuple(unmet_checks), profiling_ratio(store.run_dir))
    tables = [name for name in _TABLES if store.has(name)]
    with connect(store, tables, memory_limit_bytes) as connection:
        sums = batch_sums(connection) if "batch_costs" in tables else {}
        shares = response_shares(connection) if "joined" in tables else {}
        limits = ceilings(connection, manifest) if "batch_costs" in tables else {}
        sent = SentRequests.read(connection) if "joined" in tables else SentRequests({})
        client = _client(store, verdict or manifest.verdict)
        phases = _instances(metrics, manifest)
        if cpus is None:
            is_known = store.has("cpu_samples") and store.has("requests")
            cpus = run_shares(Requests.read(store), Samples.read(store), manifest) if is_known else []
        if gpus is None:
            is_known = store.has("gpu_samples") and store.has("requests")
            gpus = run_gpus(Requests.read(store), Samples.read(store), manifest) if is_known else []
        models = model_statistics(
            store.read("triton_samples") if store.has("triton_samples") else None, list(phases)
        )
        in_windows = frozenset(library_windows(store))
        view = _View(
            store,
            connection,
            tables,
            manifest,
            client,
            state,
            sums,
            shares,
            sent,
            cpus,
            models,
            limits,
            in_windows,
            gpus,
        )
        found: list[Finding] = []
        ends = tails(connection, list(phases)) if "joined" in tables else {}
        slowest = tail_measures(connection, tables, ends) if "batch_costs" in tables else {}
        for phase, instances in phases.items():
            for key, instance in instances.items():
                if view.is_asked(phase, key):
                    found += view.instance(phase, key, instance)
            found += view.absent(phase, instances)
            for (at, server, model), end in ends.items():
                if at == phase:
                    own = {key: of_tail for (other, key), of_tail in slowest.items() if other == phase}
                    found.append(view.tail((phase, server, model), end, instances, own))
        return _behind_their_beginnings(view, found, cold or {})


_BY_OTHERS = frozenset(rule.name for rule in RULES if rule.asked_where)
"""What others took of the server's CPU or GPU, or a quota held back."""


def _behind_their_beginnings(
    view: _View, found: Sequence[Finding], cold: Mapping[str, ColdFigures]
) -> list[Finding]:
    """`found`, the findings of a phase behind the one about how it began, where that is worth a line; but what others
    took of the server's CPU or GPU comes before it, as that may be why its batches grew longer."""
    stated = {name: one for name, one in cold.items() if one.is_stated}
    if not stated:
        return list(found)
    starts = {span.name: span.start_ns for span in measure_spans(view.manifest)}
    connection = view.connection if "joined" in view.tables else None
    phases = list(dict.fromkeys([*(one.scope.phase for one in found), *stated]))
    behind: list[Finding] = []
    for phase in phases:
        own = [one for one in found if one.scope.phase == phase]
        if phase in stated:
            rivals = [one for one in own if one.rule in _BY_OTHERS]
            own = [weakened(one, stated[phase]) for one in own if one.rule not in _BY_OTHERS]
            behind += rivals
            behind.append(beginning_finding(connection, stated[phase], starts[phase], view.state))
        behind += own
    return behind


def _instances(metrics: RunMetrics | None, manifest: Manifest) -> dict[str, Mapping[str, InstanceMetrics]]:
    """The instances of each measure phase that began a batch in it, by key."""
    if metrics is None:
        return {span.name: {} for span in measure_spans(manifest)}
    return {name: phase.instances for name, phase in metrics.phases.items()}


@dataclass(frozen=True)
class _Client:
    """What the run's verdict says of the load generator: `is_bottleneck` None if it never looked at it."""

    is_bottleneck: float | None
    sentence: str
    advice: str


def _client(store: RunStore, verdict: Verdict | None) -> _Client:
    """`verdict`: without checks it never looked at the load generator, as that of an aborted run."""
    found = verdict.client_bottleneck if verdict is not None else None
    if found is not None:
        return _Client(1.0, found.sentence, found.advice)
    looked = verdict is not None and bool(verdict.checks) and store.has("worker_samples")
    return _Client(0.0 if looked else None, "", "")


@dataclass(frozen=True)
class _View:
    """A run as the findings look at it."""

    store: RunStore
    connection: duckdb.DuckDBPyConnection
    tables: Sequence[str]
    manifest: Manifest
    client: _Client
    state: RunState
    sums: Mapping[Key, Sums]
    shares: Mapping[Key, Mapping[str, float | None]]
    sent: SentRequests
    cpus: Sequence[CpuShares]
    models: Sequence[ModelStatistics]
    ceilings: Mapping[Key, Ceiling]
    in_windows: frozenset[str] = frozenset()
    """Servers that the kernel library recorded."""
    gpus: Sequence[GpuShares] = ()

    def is_asked(self, phase: str, key: str) -> bool:
        """Whether any request belongs to the instance's model, where some of the phase belong to one of its server.

        Else it is a step of an ensemble that took longest of none of them, or serves somebody else.
        """
        server = server_of(key)
        asked = {
            self.sums[one].model
            for one in self.shares
            if one[0] == phase and one in self.sums and server_of(one[1]) == server
        }
        own = self.sums.get((phase, key))
        return not asked or own is None or own.model in asked

    def instance(self, phase: str, key: str, instance: InstanceMetrics) -> list[Finding]:
        """The findings of both levels."""
        known = self.facts(phase, key, instance)
        scope = _scope(phase, key)
        levels = {
            "window": classify(rules_of("window", known), known),
            "body": classify(rules_of("body", known), known),
        }
        rows = {level: self._rows(scope, found) for level, found in levels.items()}
        window = make_finding(
            "window", scope, levels["window"], known, self.state, wall_partition(known), rows["window"]
        )
        parts = BODY_PARTS if known["body_sync_wait_ratio"] is not None else (*BODY_PARTS[:2], "idle")
        body_shares = {part: known.get(f"body_{part}_ratio") for part in parts}
        body = make_finding(
            "body", scope, levels["body"], known, self.state, _whole(body_shares), rows["body"]
        )
        if known["instance_is_cpu"]:
            body = _no_body(scope)
        window = self._saturated(self._of_client(window, known), body, known, phase, key)
        return [self._cached(window, phase, key), body]

    def absent(self, phase: str, instances: Mapping[str, InstanceMetrics]) -> list[Finding]:
        """A finding for each instance, and each server without any, that had requests here and began no batch."""
        models = {key: own.model for (_, key), own in self.sums.items()}
        known = [(_scope(phase, key), model) for key, model in models.items() if key not in instances]
        busy = {(server_of(key), model) for key, model in models.items()}
        known += [
            (Scope(phase, server, model=model), model)
            for server in self.sent.servers
            for model in self.sent.models(server)
            if not any(at == server and self._is_behind(server, model, own) for at, own in busy)
        ]
        found = [
            self._of_statistics(absent_finding(self.connection, scope, model, self.sent, self.state))
            for scope, model in known
            if self.sent.of(phase, scope.server, model).n
        ]
        return list(
            {(one.rule, one.scope): one for one in found}.values()
        )  # that of statistics is of all instances

    def _of_statistics(self, finding: Finding) -> Finding:
        """Of a server, or model, without any batch what Triton's statistics tell; `finding` where they tell nothing."""
        scope = finding.scope
        if finding.rule != UNASSESSED:
            return finding
        span = next((one for one in measure_spans(self.manifest) if one.name == scope.phase), None)
        models = self._server(scope.server).models
        under_load = next((one for one in models if scope.model in ("", one.model)), ModelFacts())
        others = {name for one in models if one is not under_load for name in (one.model, *one.steps)}
        others -= {under_load.model, *under_load.steps}
        own = [
            one
            for one in self.models
            if (one.phase, one.server) == (scope.phase, scope.server) and one.model not in others
        ]
        is_cached = any(
            one.n_cached for one in own
        )  # what the cache answers has no batch, whoever records them
        if self.sent.knows_batches(scope.server, scope.model) and not is_cached:
            return finding
        found = statistics_finding(
            replace(scope, instance=under_load.model or "", model=""),
            own,
            under_load,
            span.end_ns - span.start_ns if span is not None else 0,
            self.state,
            cpu_measures(self.cpus, scope.phase, self._node_of(scope.server)),
            self._server(scope.server).serving,
        )
        return found or finding

    def _server(self, server: str) -> ServerFacts:
        return self.manifest.servers.get(server) or ServerFacts(node="")

    def tail(
        self,
        of_tail: tuple[str, str, str],
        end: Tail | int,
        instances: Mapping[str, InstanceMetrics],
        slowest: Mapping[str, Measures],
    ) -> Finding:
        """The finding about the p99 requests of a phase, server and model. `slowest`: measures over their batches, by
        instance."""
        phase, server, model = of_tail
        bodies = {}
        for key, own in slowest.items():
            sums = self.sums.get((phase, key))
            is_own = key.startswith(f"{server}/") and (
                sums is None or self._is_behind(server, model, sums.model)
            )
            if key in instances and is_own and isinstance(end, Tail):
                everything = self.facts(phase, key, instances[key])
                bodies[key] = _compared(key, everything, facts({**everything, **own}))
        return tail_finding(
            self.connection,
            of_tail,
            end,
            bodies,
            self.state,
            self.sent.of(phase, server, model),
            any(one.steps for one in self._server(server).models if model in ("", one.model)),
        )

    def _is_behind(self, server: str, model: str, executed: str) -> bool:
        """Whether requests that ask `model` of a server pass the one that was `executed` there: itself, a step of it;
        any of the server where the run has one model, which then has no name here."""
        own = next((one for one in self._server(server).models if one.model == model), ModelFacts())
        return not model or executed in (model, *own.steps)

    def facts(self, phase: str, key: str, instance: InstanceMetrics) -> dict[str, float | None]:
        """What the rules are tried on, of an instance in a phase."""
        server, measures = server_of(key), instance.measures
        uuid = instance.gpu_uuid or self.manifest.gpu_of(server, instance.instance_device)
        sums = self.sums.get((phase, key))
        more = {
            **device_shares(measures, sums),
            **self.shares.get((phase, key), {}),
            **self.sent.measures(phase, server, sums.model if sums is not None else ""),
            **cpu_measures(self.cpus, phase, self._node_of(server)),
            **gpu_measures(self.gpus, phase, server, uuid),
            **self._load_measures(phase, key),
            **self._cpu_time_measures(phase, self._node_of(server)),
            "is_without_launches": self._is_without_launches(sums, measures),
            "n_profiled_in_windows": float(sums.n_tied) if sums and server in self.in_windows else None,
            "queue_delay_ns": self._queue_delay_ns(server, sums.model if sums is not None else ""),
            "client_is_bottleneck": self.client.is_bottleneck,
            "load_is_closed": 0.0 if is_open_load(self.manifest) else 1.0,
            "instance_is_cpu": self._is_cpu(phase, key, sums),
        }
        return facts(measures, more)

    @staticmethod
    def _is_without_launches(sums: Sums | None, measures: Measures) -> float | None:
        """Whether its operations were recorded without the calls that launched them."""
        if sums is None or not sums.n_operations:
            return None
        is_known = sums.n_launches is not None or measures.get("issue_interval_ns") is not None
        return 0.0 if is_known else 1.0

    def _queue_delay_ns(self, server: str, model: str) -> float | None:
        """The longest wait of the model's batcher for more rows; 0 where it has none, None where nothing says."""
        serving = self._server(server).serving.get(model)
        return None if serving is None else float(serving.queue_delay_ns or 0)

    def _node_of(self, server: str) -> str:
        return self._server(server).node

    def _is_cpu(self, phase: str, key: str, sums: Sums | None) -> float | None:
        """Whether the instance computes on the CPU; None too where the phase lacks operations that it must have had:
        its batches launched some, or had some in another phase."""
        server = server_of(key)
        at_phase = [
            one for (at, other), one in self.sums.items() if at == phase and other.startswith(f"{server}/")
        ]
        found = is_cpu(sums, server, self.manifest, any(one.n_operations for one in at_phase))
        has_launched = sums is not None and bool(sums.n_launches)
        uses_gpu = has_launched or any(
            one.n_operations for (_, other), one in self.sums.items() if other == key
        )
        return None if found and uses_gpu else found

    def _rows(self, scope: Scope, found: Classification) -> Rows | None:
        if found.named is None or found.named.rule.rows.table not in self.tables:
            return None
        rows = found.named.rule.rows
        sums = self.sums.get(
            (scope.phase, instance_key(scope.server, scope.instance, scope.instance_device, ""))
        )
        if found.named.rule in (UNSERVED, REFUSED):
            own = unserved_filter(scope, sums.model if sums else "", self.sent, found.named.rule)
            return link(self.connection, own, rows)
        model = sums.model if sums is not None and not sums.instance else None
        return link(self.connection, scope_filter(rows.table, scope, model), rows)

    def _of_client(self, window: Finding, measures: Measures) -> Finding:
        """The verdict's own words, where it names the client's bottleneck; less sure where little time passed there,
        and of any other name."""
        if not self.client.sentence or window.rule in {one.name for one in STARVED}:
            return window
        lag = measures.get("client_lag_share_ratio")
        if window.rule != CLIENT.name:
            passed = "it is not known how much" if lag is None else f"{share_text(lag)} of the mean latency"
            return _lowered(
                window, f"the verdict names the client's bottleneck; {passed} passed before the send here"
            )
        claim = self.client.sentence
        if lag is not None:
            claim += f" Of the mean latency {share_text(lag)} passed before it had sent."
        step = f"{self.client.advice[:1].upper()}{self.client.advice[1:]}. Then run again: the server may do better."
        found = replace(window, claim=claim, next_step=step)
        if lag is None:
            return _lowered(
                found, "a closed loop has no lag that says how much of the latency is the client's"
            )
        if lag >= CLIENT_LAG_RATIO:
            return found
        reason = "the client's lag is a small part of the mean latency: the runner-up is about the rest"
        return _lowered(found, reason)

    def _cached(self, window: Finding, phase: str, key: str) -> Finding:
        """With the requests that the response cache answered, of which its measures say nothing."""
        sums, server = self.sums.get((phase, key)), server_of(key)
        own = [one for one in self.models if (one.phase, one.server) == (phase, server) and sums is not None]
        n_cached = sum(one.n_cached for one in own if sums is not None and one.model == sums.model)
        if not n_cached:
            return window
        n = sum(one.n_requests for one in own if sums is not None and one.model == sums.model)
        hits = f"The response cache answered {count_text(n_cached)} of {count_text(n)} requests of its model"
        return replace(window, claim=f"{window.claim} {hits}, which have no batch and are not among these.")

    def _alike(self, phase: str, key: str) -> list[Ceiling]:
        """The instances of its model at its server in the phase."""
        own = self.ceilings.get((phase, key))
        if own is None:
            return []
        return [
            one
            for (at, _), one in self.ceilings.items()
            if at == phase and (one.server, one.model) == (own.server, own.model)
        ]

    def _load_measures(self, phase: str, key: str) -> dict[str, float | None]:
        """What all instances of its model carry at most, requests/s, and the load beside it."""
        alike = self._alike(phase, key)
        known = [one.rate_hz for one in alike if one.rate_hz is not None]
        span = next((one for one in measure_spans(self.manifest) if one.name == phase), None)
        if not alike or not alike[0].is_largest_known or span is None or span.end_ns <= span.start_ns:
            return {"ceiling_hz": None, "load_of_ceiling_ratio": None}
        if not known:  # no batch was full: the load is far below
            return {"ceiling_hz": None, "load_of_ceiling_ratio": 0.0}
        ceiling_hz = len(alike) * sum(known) / len(known)
        offered_hz = (
            self.sent.of(phase, alike[0].server, alike[0].model).n * 1e9 / (span.end_ns - span.start_ns)
        )
        return {"ceiling_hz": ceiling_hz, "load_of_ceiling_ratio": offered_hz / ceiling_hz}

    def _cpu_time_measures(self, phase: str, node: str) -> dict[str, float | None]:
        """CPU that the servers of a node had, and that they had or waited for, over the length of all batches there."""
        cpu = next((one for one in self.cpus if (one.phase, one.node) == (phase, node)), None)
        span = next((one for one in measure_spans(self.manifest) if one.name == phase), None)
        here = [
            one for (at, _), one in self.ceilings.items() if at == phase and self._node_of(one.server) == node
        ]
        exec_ns = sum(one.exec_ns for one in here)
        if cpu is None or "server" not in cpu.cores or span is None or not exec_ns:
            return {"cpu_of_exec_ratio": None, "cpu_or_wait_of_exec_ratio": None, "is_cpu_time_unknown": 1.0}
        had_ratio = cpu.cores["server"] * (span.end_ns - span.start_ns) / exec_ns
        return {
            "cpu_of_exec_ratio": had_ratio,
            "cpu_or_wait_of_exec_ratio": had_ratio / max(1.0 - (cpu.server_wait_ratio or 0.0), 1e-3),
            "is_cpu_time_unknown": 0.0,
        }

    def _saturated(self, window: Finding, body: Finding, known: Measures, phase: str, key: str) -> Finding:
        """A queue-bound instance is named together with what saturates it, what it carries at most and what to try
        first."""
        if window.rule != QUEUE.name:
            return window
        what = window.also[0] if window.also else "none of the other rules"
        if body.margin is not None:
            what += f", its batches {body.rule}"
        alike = self._alike(phase, key)
        ceiling = (
            ceiling_text(self.ceilings[phase, key], len(alike), known.get("load_of_ceiling_ratio"))
            if alike
            else ""
        )
        claim = " ".join(one for one in (window.claim, ceiling, f"What saturates it: {what}.") if one)
        step = f"{self._first_step(phase, key, known, len(alike))} {window.next_step}"
        return replace(window, claim=claim, next_step=step)

    def _first_step(self, phase: str, key: str, known: Measures, n_instances: int) -> str:
        """What to try first of an instance that is full."""
        node = self._node_of(server_of(key))
        cpu = next((one for one in self.cpus if (one.phase, one.node) == (phase, node)), None)
        idle = None if cpu is None or not cpu.n_cores else cpu.cores.get("idle", 0.0) / cpu.n_cores
        if (known.get("gpu_activity_ratio") or 0.0) >= _GPU_FULL_RATIO:
            busy = share_text(known["gpu_activity_ratio"])
            return f"First: a GPU more, or shorter kernels; this one is busy for {busy}."
        if known.get("instance_is_cpu") and idle is not None and idle < _CPU_FULL_RATIO:
            return f"First: more cores or a cheaper model; {share_text(idle)} of the node's CPU is idle."
        room = f"; {share_text(idle)} of the node's CPU is idle" if idle is not None else ""
        return f"First: an instance more, {n_instances + 1} in place of {n_instances}{room}."


def _lowered(found: Finding, reason: str) -> Finding:
    """`found` with medium confidence at most."""
    confidence = Confidence(found.confidence, list(found.confidence_reasons))
    confidence.lower("medium", reason)
    return replace(found, confidence=confidence.level, confidence_reasons=tuple(confidence.reasons))


def _scope(phase: str, key: str) -> Scope:
    """`key`: of an instance, or the name of a server."""
    if "/" not in key:
        return Scope(phase, key)
    instance, device = instance_of(key)
    return Scope(phase, server_of(key), instance, instance_device=device)


def _whole(shares: Mapping[str, float | None]) -> dict[str, float | None]:
    """`shares`, or nothing where one is not assessed."""
    return {} if None in shares.values() else dict(shares)


def _no_body(scope: Scope) -> Finding:
    return Finding(
        rule="none",
        level="body",
        scope=scope,
        claim="The model computes on the CPU: its batches have no body on a GPU.",
        next_step="Go by the finding of the window level.",
        confidence="high",
    )


def _compared(key: str, everything: Measures, own: Measures) -> str:
    """What the batches of the tail are on the body level, against all batches."""
    names = []
    for measures in (own, everything):
        found = classify(BODY_RULES, measures)
        names.append(found.named.rule.name if found.named else found.status)
    if "not assessed" in names:
        return ""
    tail, whole = ("of no single regime" if name == "none" else name for name in names)
    if tail == whole:
        return f"Their batches in {key} are {tail}, as all of its batches are."
    return f"Their batches in {key} are {tail}, all of its batches {whole}."
