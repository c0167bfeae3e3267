"""The findings of a run: for each instance and phase the window and the body level, for each phase its p99 requests.

Of models that executed beside those to which the requests belong there is none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from squall.analysis.findings.beginning import beginning_finding, weakened
from squall.analysis.findings.ceilings import Ceiling, ceilings
from squall.analysis.findings.confidence import RunState
from squall.analysis.findings.facts import facts, wall_partition
from squall.analysis.findings.finding import (
    UNASSESSED,
    Finding,
    Rows,
    Scope,
    link,
    lowered,
    make_finding,
    scope_filter,
)
from squall.analysis.findings.rule import Classification, Level, Measures, classify
from squall.analysis.findings.sent import SentRequests
from squall.analysis.findings.shares import (
    BODY_PARTS,
    Key,
    Sums,
    body_sums,
    cpu_measures,
    device_shares,
    gpu_measures,
    is_cpu,
    response_shares,
)
from squall.analysis.findings.statistics import statistics_finding
from squall.analysis.findings.tail import Tail, tail_finding, tails
from squall.analysis.findings.tail_batches import tail_measures
from squall.analysis.findings.tried import RULES, rules_of
from squall.analysis.findings.unserved import REFUSED, UNSERVED, absent_finding, unserved_filter
from squall.analysis.limits import LIMITS
from squall.analysis.metrics.measures import instance_key, instance_of, server_of
from squall.analysis.metrics.model_statistics import ModelStatistics, model_statistics
from squall.analysis.metrics.records import InstanceMetrics, RunMetrics
from squall.analysis.recorded import library_windows
from squall.analysis.requests.cold import ColdFigures
from squall.analysis.requests.requests import is_open_load
from squall.analysis.storage.deployed import ModelFacts, ServerFacts
from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.nsys import OPERATIONS
from squall.analysis.storage.query import MEMORY_LIMIT_BYTES, attach, connect
from squall.analysis.storage.sealed import Bottleneck, Verdict
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import RunPhase, measure_spans
from squall.analysis.verdict.cpu_shares import CpuShares
from squall.analysis.verdict.gpu_shares import GpuShares
from squall.analysis.verdict.overhead_file import profiling_ratio
from squall.analysis.wording import sentences

if TYPE_CHECKING:
    import duckdb

_GPU_FULL_RATIO = 0.8
"""Share of the phase in which the GPU is busy from which on another instance there has little to gain, as GPU-bound."""
_CPU_FULL_RATIO = 0.2
"""Share of the node's CPU that is idle below which another instance that computes on it has little to gain."""
_TABLES = ("batch_costs", "joined", "requests", *OPERATIONS)
_STARVED = ("starved by others", "starved by the client")
_BY_OTHERS = frozenset(rule.name for rule in RULES.values() if rule.asked_where)
"""What others took of the server's CPU or GPU, or a quota held back."""


def find(
    store: RunStore,
    metrics: RunMetrics | None,
    verdict: Verdict | None,
    unmet_checks: Sequence[str],
    cpus: Sequence[CpuShares],
    gpus: Sequence[GpuShares],
    cold: Mapping[str, ColdFigures],
    memory_limit_bytes: int = MEMORY_LIMIT_BYTES,
) -> list[Finding]:
    """The findings of a run whose tables `batch_costs` and `joined` are written, in order of phase and instance.

    `metrics`: what `run_metrics` returned, None of a run without batches. `verdict`: the run's, where it was judged.
    `unmet_checks`: names of the self-checks that are not met; they lower confidence. `cpus` and `gpus`: those of its
    `RunView`. `cold`: by phase how it began; what is worth a line comes first, and lowers the confidence of what
    follows about its phase. What is not in the run is not assessed; nothing that is missing raises.
    """
    tables = [name for name in _TABLES if store.has(name)]
    with connect(store, tables, memory_limit_bytes) as connection:
        attach(connection, store, set(_TABLES) - set(tables))  # without rows
        view = _View(
            store,
            connection,
            tables,
            RunState(store.manifest.losses, tuple(unmet_checks), profiling_ratio(store.run_dir)),
            verdict,
            metrics,
            {(one.phase, one.node): one for one in cpus},
            gpus,
        )
        return view.behind_their_beginnings(
            [one for phase in view.instances for one in view.of_phase(phase)], cold
        )


@dataclass(eq=False)
class _View:
    """A run as the findings look at it."""

    store: RunStore
    connection: duckdb.DuckDBPyConnection
    tables: Sequence[str]
    state: RunState
    verdict: Verdict | None
    metrics: RunMetrics | None
    cpus: Mapping[tuple[str, str], CpuShares]
    """By phase and node."""
    gpus: Sequence[GpuShares]

    @property
    def manifest(self) -> Manifest:
        """That of the run."""
        return self.store.manifest

    @cached_property
    def spans(self) -> Mapping[str, RunPhase]:
        """The measure phases."""
        return {span.name: span for span in measure_spans(self.manifest)}

    @cached_property
    def instances(self) -> Mapping[str, Mapping[str, InstanceMetrics]]:
        """By phase and key; of a run without batches none in its measure phases."""
        if self.metrics is None:
            return {name: {} for name in self.spans}
        return {name: phase.instances for name, phase in self.metrics.phases.items()}

    @cached_property
    def models(self) -> Sequence[ModelStatistics]:
        """What Triton's statistics tell of each."""
        samples = self.store.read("triton_samples") if self.store.has("triton_samples") else None
        return model_statistics(samples, list(self.instances))

    @cached_property
    def in_windows(self) -> Collection[str]:
        """Servers that the kernel library recorded."""
        return library_windows(self.store).keys()

    @cached_property
    def sums(self) -> Mapping[Key, Sums]:
        """What batches add up to."""
        return body_sums(self.connection)

    @cached_property
    def ceilings(self) -> Mapping[Key, Ceiling]:
        """What instances carry at most."""
        return ceilings(self.connection, self.manifest)

    @cached_property
    def shares(self) -> Mapping[Key, Mapping[str, float | None]]:
        """Of latencies."""
        return response_shares(self.connection)

    @cached_property
    def sent(self) -> SentRequests:
        """What became of requests."""
        return SentRequests.read(self.connection)

    @cached_property
    def ends(self) -> Mapping[tuple[str, str, str], Tail | int]:
        """The tails, by phase, server and model."""
        return tails(self.connection, list(self.instances))

    @cached_property
    def slowest(self) -> Mapping[Key, Measures]:
        """Measures over the batches of the tails' requests, by phase and instance."""
        return tail_measures(self.connection, self.tables, self.ends)

    def of_phase(self, phase: str) -> Iterator[Finding]:
        """Those of a phase, in order of its instances, those without any batch, and the tails."""
        for key, instance in self.instances[phase].items():
            if self.is_asked(phase, key):
                yield from self.instance(phase, key, instance)
        yield from self.absent(phase)
        yield from (self.tail(of, end) for of, end in self.ends.items() if of[0] == phase)

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
        parts = BODY_PARTS if known.get("body_sync_wait_ratio") is not None else (*BODY_PARTS[:2], "idle")
        of_body = {part: known.get(f"body_{part}_ratio") for part in parts}
        body = self._finding("body", scope, known, {} if None in of_body.values() else of_body)
        if known["instance_is_cpu"]:
            claim = "The model computes on the CPU: its batches have no body on a GPU."
            body = Finding("none", "body", scope, claim, "Go by the finding of the window level.")
        window = self._of_client(self._finding("window", scope, known, wall_partition(known)), known)
        window = self._saturated(window, body, known, phase, key)
        return [self._cached(window, phase, key), body]

    def _finding(self, level: Level, scope: Scope, known: Measures, shares: Measures) -> Finding:
        found = classify(rules_of(level, known), known)
        return make_finding(level, scope, found, known, self.state, shares, self._rows(scope, found))

    def absent(self, phase: str) -> list[Finding]:
        """A finding for each instance, and each server without any, that had requests here and began no batch."""
        models = {key: own.model for (_, key), own in self.sums.items()}
        begun = self.instances[phase]
        known = [(_scope(phase, key), model) for key, model in models.items() if key not in begun]
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
        server = self._server(scope.server)
        under_load = next((one for one in server.models if scope.model in ("", one.model)), ModelFacts())
        others = {name for one in server.models if one is not under_load for name in (one.model, *one.steps)}
        others -= {under_load.model, *under_load.steps}
        own = [one for one in self._statistics(scope.phase, scope.server) if one.model not in others]
        # what the cache answers has no batch, whoever records them
        if self.sent.knows_batches(scope.server, scope.model) and not any(one.n_cached for one in own):
            return finding
        found = statistics_finding(
            replace(scope, instance=under_load.model or "", model=""),
            own,
            under_load,
            self._length_ns(scope.phase),
            self.state,
            cpu_measures(self._cpu(scope.phase, scope.server)),
            server.serving,
        )
        return found or finding

    def _statistics(self, phase: str, server: str) -> list[ModelStatistics]:
        return [one for one in self.models if (one.phase, one.server) == (phase, server)]

    def _server(self, server: str) -> ServerFacts:
        return self.manifest.servers.get(server) or ServerFacts(node="")

    def _cpu(self, phase: str, server: str) -> CpuShares | None:
        """Who had the CPU of the server's node."""
        return self.cpus.get((phase, self._server(server).node))

    def _length_ns(self, phase: str) -> int:
        """0 of one that is not measured."""
        span = self.spans.get(phase)
        return span.end_ns - span.start_ns if span is not None else 0

    def tail(self, of_tail: tuple[str, str, str], end: Tail | int) -> Finding:
        """The finding about the p99 requests of a phase, server and model."""
        phase, server, model = of_tail
        bodies = {}
        for (at, key), own in self.slowest.items():
            sums = self.sums.get((phase, key))
            is_own = at == phase and key.startswith(f"{server}/")
            is_own = is_own and (sums is None or self._is_behind(server, model, sums.model))
            if key in self.instances[phase] and is_own and isinstance(end, Tail):
                everything = self.facts(phase, key, self.instances[phase][key])
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
        model = sums.model if sums is not None else ""
        serving = self._server(server).serving.get(model)
        has_launches = measures.get("issue_interval_ns") is not None or (sums and sums.n_launches is not None)
        looked = self.verdict is not None and bool(self.verdict.checks) and self.store.has("worker_samples")
        more = {
            **device_shares(measures, sums),
            **self.shares.get((phase, key), {}),
            **self.sent.measures(phase, server, model),
            **cpu_measures(self._cpu(phase, server)),
            **gpu_measures(self.gpus, phase, server, uuid),
            **self._load_measures(phase, key),
            **self._cpu_time_measures(phase, server),
            # its operations were recorded without the calls that launched them
            "is_without_launches": float(not has_launches) if sums and sums.n_operations else None,
            "n_profiled_in_windows": float(sums.n_tied) if sums and server in self.in_windows else None,
            # the longest wait of the model's batcher for more rows; 0 where it has none
            "queue_delay_ns": None if serving is None else float(serving.queue_delay_ns or 0),
            # without checks the verdict never looked at the load generator, as that of an aborted run
            "client_is_bottleneck": 1.0 if self._bottleneck is not None else 0.0 if looked else None,
            "load_is_closed": 0.0 if is_open_load(self.manifest) else 1.0,
            "instance_is_cpu": self._is_cpu(phase, key, sums),
        }
        return facts(measures, more)

    @property
    def _bottleneck(self) -> Bottleneck | None:
        return self.verdict.client_bottleneck if self.verdict is not None else None

    def _is_cpu(self, phase: str, key: str, sums: Sums | None) -> float | None:
        """Whether the instance computes on the CPU; None too where the phase lacks operations that it must have had:
        its batches launched some, or had some in another phase."""
        server = server_of(key)
        has_cuda = any(
            own.n_operations
            for (at, other), own in self.sums.items()
            if at == phase and other.startswith(f"{server}/")
        )
        found = is_cpu(sums, server, self.manifest, has_cuda)
        uses_gpu = (sums is not None and sums.n_launches) or any(
            own.n_operations for (_, other), own in self.sums.items() if other == key
        )
        return None if found and uses_gpu else found

    def _rows(self, scope: Scope, found: Classification) -> Rows | None:
        if found.named is None or found.named.rule.rows.table not in self.tables:
            return None
        rule = found.named.rule
        key = instance_key(scope.server, scope.instance, scope.instance_device, "")
        sums = self.sums.get((scope.phase, key))
        if rule in (UNSERVED, REFUSED):
            where = unserved_filter(scope, sums.model if sums else "", self.sent, rule)
        else:
            model = sums.model if sums is not None and not sums.instance else None
            where = scope_filter(rule.rows.table, scope, model)
        return link(self.connection, where, **dict(rule.rows))

    def _of_client(self, window: Finding, measures: Measures) -> Finding:
        """The verdict's own words, where it names the client's bottleneck; less sure where little time passed there,
        and of any other name."""
        client = self._bottleneck
        if client is None or window.rule in _STARVED:
            return window
        lag, say = measures.get("client_lag_share_ratio"), sentences(__package__, "find.j2")
        is_named = window.rule == "client-bound"
        if is_named:
            window = replace(window, claim=say.client(client, lag), next_step=say.client_step(client))
        is_sure = is_named and lag is not None and lag >= LIMITS.client_lag_ratio
        return window if is_sure else lowered(window, [("medium", say.client_lag(lag, is_named))])

    def _cached(self, window: Finding, phase: str, key: str) -> Finding:
        """With the requests that the response cache answered, of which its measures say nothing."""
        sums = self.sums.get((phase, key))
        own = [one for one in self._statistics(phase, server_of(key)) if sums and one.model == sums.model]
        n_cached, n = sum(one.n_cached for one in own), sum(one.n_requests for one in own)
        if not n_cached:
            return window
        hits = sentences(__package__, "find.j2").cached(n_cached, n)
        return replace(window, claim=f"{window.claim} {hits}")

    def _load_measures(self, phase: str, key: str) -> dict[str, float | None]:
        """What all instances of its model carry at most, requests/s, and the load beside it."""
        own, length_ns = self.ceilings.get((phase, key)), self._length_ns(phase)
        if own is None or not own.is_largest_known or length_ns <= 0:
            return {}
        if own.all_hz is None:  # no batch was full: the load is far below
            return {"load_of_ceiling_ratio": 0.0}
        offered_hz = self.sent.of(phase, own.server, own.model).n * 1e9 / length_ns
        return {"ceiling_hz": own.all_hz, "load_of_ceiling_ratio": offered_hz / own.all_hz}

    def _cpu_time_measures(self, phase: str, server: str) -> dict[str, float | None]:
        """CPU that the servers of its node had, and that they had or waited for, over the length of all batches
        there."""
        cpu, node = self._cpu(phase, server), self._server(server).node
        exec_ns = sum(
            one.exec_ns
            for (at, _), one in self.ceilings.items()
            if at == phase and self._server(one.server).node == node
        )
        if cpu is None or "server" not in cpu.cores or phase not in self.spans or not exec_ns:
            return {"is_cpu_time_unknown": 1.0}
        had_ratio = cpu.cores["server"] * self._length_ns(phase) / exec_ns
        return {
            "cpu_of_exec_ratio": had_ratio,
            "cpu_or_wait_of_exec_ratio": had_ratio / max(1.0 - (cpu.server_wait_ratio or 0.0), 1e-3),
            "is_cpu_time_unknown": 0.0,
        }

    def _saturated(self, window: Finding, body: Finding, known: Measures, phase: str, key: str) -> Finding:
        """A queue-bound instance is named together with what saturates it, what it carries at most and what to try
        first."""
        if window.rule != "queue-bound":
            return window
        own, cpu = self.ceilings.get((phase, key)), self._cpu(phase, server_of(key))
        idle = None if cpu is None or not cpu.n_cores else cpu.cores.get("idle", 0.0) / cpu.n_cores
        busy = known.get("gpu_activity_ratio") or 0.0
        say = sentences(__package__, "find.j2")
        more = say.saturated(window.also, body, own, known.get("load_of_ceiling_ratio"))
        first = say.first_step(
            busy if busy >= _GPU_FULL_RATIO else None,
            known.get("instance_is_cpu") and idle is not None and idle < _CPU_FULL_RATIO,
            idle,
            own.n_alike if own is not None else 0,
        )
        return replace(window, claim=f"{window.claim} {more}", next_step=f"{first} {window.next_step}")

    def behind_their_beginnings(
        self, found: Sequence[Finding], cold: Mapping[str, ColdFigures]
    ) -> list[Finding]:
        """`found`, the findings of a phase behind the one about how it began, where that is worth a line; but what
        others took of the server's CPU or GPU comes before it, as that may be why its batches grew longer."""
        stated = {name: one for name, one in cold.items() if one.is_stated}
        if not stated:
            return list(found)
        connection = self.connection if "joined" in self.tables else None
        behind: list[Finding] = []
        for phase in dict.fromkeys([*(one.scope.phase for one in found), *stated]):
            own = [one for one in found if one.scope.phase == phase]
            if phase in stated:
                behind += [one for one in own if one.rule in _BY_OTHERS]
                own = [weakened(one, stated[phase]) for one in own if one.rule not in _BY_OTHERS]
                start_ns = self.spans[phase].start_ns
                behind.append(beginning_finding(connection, stated[phase], start_ns, self.state))
            behind += own
        return behind


def _scope(phase: str, key: str) -> Scope:
    """`key`: of an instance, or the name of a server."""
    if "/" not in key:
        return Scope(phase, key)
    instance, device = instance_of(key)
    return Scope(phase, server_of(key), instance, instance_device=device)


def _compared(key: str, everything: Measures, own: Measures) -> str:
    """What the batches of the tail are on the body level, against all batches."""
    tail, whole = (classify(rules_of("body", {}), measures).status for measures in (own, everything))
    if UNASSESSED in (tail, whole):
        return ""
    named = ("of no single regime" if name == "none" else name for name in (tail, whole))
    return str(sentences(__package__, "find.j2").compared(key, *named))
