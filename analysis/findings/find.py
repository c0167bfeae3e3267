"""The findings of a run: for each instance and phase the window and the body level, for each phase its p99 requests.

Of models that executed beside those to which the requests belong there is none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

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
from squall.analysis.findings.rule import Level, Measures, Rule, classify
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
from squall.analysis.metrics.measures import instance_of, server_of
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
from squall.analysis.verdict.profiling import profiling_cost
from squall.analysis.wording import macros

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
    tables, profiling = [name for name in _TABLES if store.has(name)], profiling_cost(store.run_dir)
    with connect(store, tables, memory_limit_bytes) as connection:
        attach(connection, store, set(_TABLES) - set(tables))  # without rows
        view = _View(
            store,
            connection,
            tables,
            RunState(
                store.manifest.losses,
                tuple(unmet_checks),
                profiling.p50_ratio if profiling is not None else None,
            ),
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

    @property
    def bottleneck(self) -> Bottleneck | None:
        """The client's, as the verdict names it."""
        return self.verdict.client_bottleneck if self.verdict is not None else None

    @cached_property
    def spans(self) -> Mapping[str, RunPhase]:
        """The measure phases."""
        return {span.name: span for span in measure_spans(self.manifest)}

    @cached_property
    def instances(self) -> Mapping[str, Mapping[str, _Instance]]:
        """By phase and key; of a run without batches none in its measure phases."""
        if self.metrics is None:
            return {name: {} for name in self.spans}
        return {
            name: {key: _Instance(self, name, key, own) for key, own in phase.instances.items()}
            for name, phase in self.metrics.phases.items()
        }

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
        for instance in self.instances[phase].values():
            if instance.is_asked:
                yield from instance.findings()
        yield from self.absent(phase)
        yield from (self.tail(of, end) for of, end in self.ends.items() if of[0] == phase)

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
        server = self.server(scope.server)
        under_load = next((one for one in server.models if scope.model in ("", one.model)), ModelFacts())
        others = {name for one in server.models if one is not under_load for name in (one.model, *one.steps)}
        others -= {under_load.model, *under_load.steps}
        own = [one for one in self.statistics(scope.phase, scope.server) if one.model not in others]
        # what the cache answers has no batch, whoever records them
        if self.sent.knows_batches(scope.server, scope.model) and not any(one.n_cached for one in own):
            return finding
        found = statistics_finding(
            replace(scope, instance=under_load.model or "", model=""),
            own,
            under_load,
            self.length_ns(scope.phase),
            self.state,
            cpu_measures(self.cpu(scope.phase, scope.server)),
            server.serving,
        )
        return found or finding

    def statistics(self, phase: str, server: str) -> list[ModelStatistics]:
        """What Triton's tell of the models of a server in a phase."""
        return [one for one in self.models if (one.phase, one.server) == (phase, server)]

    def server(self, server: str) -> ServerFacts:
        """What is known of it; nothing of one that the manifest has not."""
        return self.manifest.servers.get(server) or ServerFacts(node="")

    def cpu(self, phase: str, server: str) -> CpuShares | None:
        """Who had the CPU of the server's node."""
        return self.cpus.get((phase, self.server(server).node))

    def length_ns(self, phase: str) -> int:
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
                everything = self.instances[phase][key].known
                bodies[key] = _compared(key, everything, facts({**everything, **own}))
        return tail_finding(
            self.connection,
            of_tail,
            end,
            bodies,
            self.state,
            self.sent.of(phase, server, model),
            any(one.steps for one in self.server(server).models if model in ("", one.model)),
        )

    def _is_behind(self, server: str, model: str, executed: str) -> bool:
        """Whether requests that ask `model` of a server pass the one that was `executed` there: itself, a step of it;
        any of the server where the run has one model, which then has no name here."""
        own = next((one for one in self.server(server).models if one.model == model), ModelFacts())
        return not model or executed in (model, *own.steps)

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


@dataclass(eq=False)
class _Instance:
    """An instance of a model in a phase of the run."""

    run: _View
    phase: str
    key: str
    metrics: InstanceMetrics

    @property
    def server(self) -> str:
        """The server that it is of."""
        return server_of(self.key)

    @property
    def sums(self) -> Sums | None:
        """What its batches add up to."""
        return self.run.sums.get((self.phase, self.key))

    @property
    def ceiling(self) -> Ceiling | None:
        """What it carries at most."""
        return self.run.ceilings.get((self.phase, self.key))

    @property
    def cpu(self) -> CpuShares | None:
        """Who had the CPU of its node."""
        return self.run.cpu(self.phase, self.server)

    @property
    def is_asked(self) -> bool:
        """Whether any request belongs to its model, where some of the phase belong to one of its server.

        Else it is a step of an ensemble that took longest of none of them, or serves somebody else.
        """
        of_run = self.run.sums
        asked = {
            of_run[one].model
            for one in self.run.shares
            if one[0] == self.phase and one in of_run and server_of(one[1]) == self.server
        }
        return not asked or self.sums is None or self.sums.model in asked

    def findings(self) -> Iterator[Finding]:
        """Those of both levels."""
        known, scope = self.known, _scope(self.phase, self.key)
        parts = BODY_PARTS if known.get("body_sync_wait_ratio") is not None else (*BODY_PARTS[:2], "idle")
        of_body = {part: known.get(f"body_{part}_ratio") for part in parts}
        body = self._finding("body", scope, {} if None in of_body.values() else of_body)
        if known["instance_is_cpu"]:
            claim = "The model computes on the CPU: its batches have no body on a GPU."
            body = Finding("none", "body", scope, claim, "Go by the finding of the window level.")
        window = self._of_client(self._finding("window", scope, wall_partition(known)))
        yield self._cached(self._saturated(window, body))
        yield body

    def _finding(self, level: Level, scope: Scope, shares: Measures) -> Finding:
        found = classify(rules_of(level, self.known), self.known)
        rows = self._rows(scope, found.named.rule) if found.named is not None else None
        return make_finding(level, scope, found, self.known, self.run.state, shares, rows)

    def _rows(self, scope: Scope, rule: Rule) -> Rows | None:
        if rule.rows.table not in self.run.tables:
            return None
        model = self.sums.model if self.sums is not None else ""
        if rule in (UNSERVED, REFUSED):
            where = unserved_filter(scope, model, self.run.sent, rule)
        else:
            is_unnamed = self.sums is not None and not self.sums.instance
            where = scope_filter(rule.rows.table, scope, model if is_unnamed else None)
        return link(self.run.connection, where, **dict(rule.rows))

    @cached_property
    def known(self) -> dict[str, float | None]:
        """What the rules are tried on."""
        run, measures, sums = self.run, self.metrics.measures, self.sums
        uuid = self.metrics.gpu_uuid or run.manifest.gpu_of(self.server, self.metrics.instance_device)
        model = sums.model if sums is not None else ""
        serving = run.server(self.server).serving.get(model)
        has_launches = measures.get("issue_interval_ns") is not None or (sums and sums.n_launches is not None)
        looked = run.verdict is not None and bool(run.verdict.checks) and run.store.has("worker_samples")
        more = {
            **device_shares(measures, sums),
            **run.shares.get((self.phase, self.key), {}),
            **run.sent.measures(self.phase, self.server, model),
            **cpu_measures(self.cpu),
            **gpu_measures(run.gpus, self.phase, self.server, uuid),
            **self._load_measures(),
            **self._cpu_time_measures(),
            # its operations were recorded without the calls that launched them
            "is_without_launches": float(not has_launches) if sums and sums.n_operations else None,
            "n_profiled_in_windows": float(sums.n_tied) if sums and self.server in run.in_windows else None,
            # the longest wait of the model's batcher for more rows; 0 where it has none
            "queue_delay_ns": None if serving is None else float(serving.queue_delay_ns or 0),
            # without checks the verdict never looked at the load generator, as that of an aborted run
            "client_is_bottleneck": 1.0 if run.bottleneck is not None else 0.0 if looked else None,
            "load_is_closed": 0.0 if is_open_load(run.manifest) else 1.0,
            "instance_is_cpu": self._is_cpu(),
        }
        return facts(measures, more)

    def _is_cpu(self) -> float | None:
        """Whether it computes on the CPU; None too where the phase lacks operations that it must have had: its batches
        launched some, or had some in another phase."""
        on_gpu = {one for one, own in self.run.sums.items() if own.n_operations}
        has_cuda = any(at == self.phase and server_of(key) == self.server for at, key in on_gpu)
        found = is_cpu(self.sums, self.server, self.run.manifest, has_cuda)
        has_launched = self.sums is not None and self.sums.n_launches
        return None if found and (has_launched or any(key == self.key for _, key in on_gpu)) else found

    def _load_measures(self) -> dict[str, float | None]:
        """What all instances of its model carry at most, requests/s, and the load beside it."""
        own, length_ns = self.ceiling, self.run.length_ns(self.phase)
        if own is None or not own.is_largest_known or length_ns <= 0:
            return {}
        if own.all_hz is None:  # no batch was full: the load is far below
            return {"load_of_ceiling_ratio": 0.0}
        offered_hz = self.run.sent.of(self.phase, own.server, own.model).n * 1e9 / length_ns
        return {"ceiling_hz": own.all_hz, "load_of_ceiling_ratio": offered_hz / own.all_hz}

    def _cpu_time_measures(self) -> dict[str, float | None]:
        """CPU that the servers of its node had, and that they had or waited for, over the length of all batches
        there."""
        run, cpu, node = self.run, self.cpu, self.run.server(self.server).node
        exec_ns = sum(
            one.exec_ns
            for (at, _), one in run.ceilings.items()
            if at == self.phase and run.server(one.server).node == node
        )
        if cpu is None or "server" not in cpu.cores or self.phase not in run.spans or not exec_ns:
            return {"is_cpu_time_unknown": 1.0}
        had_ratio = cpu.cores["server"] * run.length_ns(self.phase) / exec_ns
        return {
            "cpu_of_exec_ratio": had_ratio,
            "cpu_or_wait_of_exec_ratio": had_ratio / max(1.0 - (cpu.server_wait_ratio or 0.0), 1e-3),
            "is_cpu_time_unknown": 0.0,
        }

    def _of_client(self, window: Finding) -> Finding:
        """The verdict's own words, where it names the client's bottleneck; less sure where little time passed there,
        and of any other name."""
        client = self.run.bottleneck
        if client is None or window.rule in _STARVED:
            return window
        lag, is_named = self.known.get("client_lag_share_ratio"), window.rule == "client-bound"
        if is_named:
            window = replace(window, claim=_say().client(client, lag), next_step=_say().client_step(client))
        is_sure = is_named and lag is not None and lag >= LIMITS.client_lag_ratio
        return window if is_sure else lowered(window, [("medium", _say().client_lag(lag, is_named))])

    def _saturated(self, window: Finding, body: Finding) -> Finding:
        """A queue-bound instance is named together with what saturates it, what it carries at most and what to try
        first."""
        if window.rule != "queue-bound":
            return window
        own, cpu, known = self.ceiling, self.cpu, self.known
        idle = None if cpu is None or not cpu.n_cores else cpu.cores.get("idle", 0.0) / cpu.n_cores
        busy = known.get("gpu_activity_ratio") or 0.0
        more = _say().saturated(window.also, body, own, known.get("load_of_ceiling_ratio"))
        first = _say().first_step(
            busy if busy >= _GPU_FULL_RATIO else None,
            known["instance_is_cpu"] and idle is not None and idle < _CPU_FULL_RATIO,
            idle,
            own.n_alike if own is not None else 0,
        )
        return replace(window, claim=f"{window.claim} {more}", next_step=f"{first} {window.next_step}")

    def _cached(self, window: Finding) -> Finding:
        """With the requests that the response cache answered, of which its measures say nothing."""
        model = self.sums.model if self.sums is not None else None
        own = [one for one in self.run.statistics(self.phase, self.server) if one.model == model]
        n_cached, n = sum(one.n_cached for one in own), sum(one.n_requests for one in own)
        return replace(window, claim=f"{window.claim} {_say().cached(n_cached, n)}") if n_cached else window


def _say() -> Any:
    return macros(__package__, "find.j2")


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
    return str(_say().compared(key, *named))
