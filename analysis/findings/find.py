"""The findings of a run: for each instance and phase the window and the body level, for each phase its p99 requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from analysis.findings.body_rules import BODY_RULES
from analysis.findings.classifier import Classification, classify
from analysis.findings.confidence import LEVELS, RunState
from analysis.findings.facts import facts, wall_partition
from analysis.findings.finding import Finding, Rows, Scope, make_finding
from analysis.findings.rows import link, scope_filter
from analysis.findings.rule import Measures
from analysis.findings.shares import (
    BODY_PARTS,
    Key,
    Sums,
    batch_sums,
    device_shares,
    is_cpu,
    response_shares,
)
from analysis.findings.tail import Tail, tail_finding, tails
from analysis.findings.tail_batches import OPERATIONS, tail_measures
from analysis.findings.window_rules import CLIENT, CLIENT_LAG_RATIO, WINDOW_RULES
from analysis.overhead import profiling_ratio
from analysis.query import MEMORY_LIMIT_BYTES, connect
from analysis.store import RunStore
from analysis.wording import share_text

if TYPE_CHECKING:
    import duckdb

_TABLES = ("batch_costs", "joined", *OPERATIONS)


def find(
    store: RunStore,
    metrics: Mapping[str, Any],
    verdict: Mapping[str, Any] | None = None,
    unmet_checks: Sequence[str] = (),
    memory_limit_bytes: int = MEMORY_LIMIT_BYTES,
) -> list[Finding]:
    """The findings of a run whose tables `batch_costs` and `joined` are written, in order of phase and instance.

    `metrics`: what `run_metrics` returned. `verdict`: the run's, by default the one it was sealed with.
    `unmet_checks`: names of the self-checks that are not met; they lower confidence. What is not in the run is not
    assessed; nothing that is missing raises.
    """
    manifest = store.manifest
    state = RunState(tuple(manifest.get("losses", [])), tuple(unmet_checks), profiling_ratio(store.run_dir))
    tables = [name for name in _TABLES if store.has(name)]
    with connect(store, tables, memory_limit_bytes) as connection:
        sums = batch_sums(connection) if "batch_costs" in tables else {}
        shares = response_shares(connection) if "joined" in tables else {}
        view = _View(
            store, connection, tables, manifest, _client(store, verdict, manifest), state, sums, shares
        )
        found: list[Finding] = []
        ends = tails(connection, list(metrics.get("phases", {}))) if "joined" in tables else {}
        slowest = tail_measures(connection, tables, ends) if "batch_costs" in tables else {}
        for phase, of_phase in metrics.get("phases", {}).items():
            for key, instance in of_phase.get("instances", {}).items():
                found += view.instance(phase, key, instance["measures"])
            for (at, server), end in ends.items():
                if at == phase:
                    own = {key: of_tail for (other, key), of_tail in slowest.items() if other == phase}
                    found.append(view.tail(phase, server, end, of_phase.get("instances", {}), own))
    return found


@dataclass(frozen=True)
class _Client:
    """What the run's verdict says of the load generator: `is_bottleneck` None if it never looked at it."""

    is_bottleneck: float | None
    sentence: str
    advice: str


def _client(store: RunStore, verdict: Mapping[str, Any] | None, manifest: Mapping[str, Any]) -> _Client:
    known = verdict if verdict is not None else manifest.get("verdict") or {}
    found = known.get("client_bottleneck")
    if found:
        return _Client(1.0, str(found["sentence"]), str(found["advice"]))
    looked = "client_bottleneck" in known and store.has("worker_samples")
    return _Client(0.0 if looked else None, "", "")


@dataclass(frozen=True)
class _View:
    """A run as the findings look at it."""

    store: RunStore
    connection: duckdb.DuckDBPyConnection
    tables: Sequence[str]
    manifest: Mapping[str, Any]
    client: _Client
    state: RunState
    sums: Mapping[Key, Sums]
    shares: Mapping[Key, Mapping[str, float | None]]

    def instance(self, phase: str, key: str, measures: Measures) -> list[Finding]:
        """The findings of both levels."""
        known = self.facts(phase, key, measures)
        scope = _scope(phase, key)
        levels = {"window": classify(WINDOW_RULES, known), "body": classify(BODY_RULES, known)}
        rows = {level: self._rows(scope, found) for level, found in levels.items()}
        window = make_finding(
            "window", scope, levels["window"], known, self.state, wall_partition(known), rows["window"]
        )
        body_shares = {part: known.get(f"body_{part}_ratio") for part in BODY_PARTS}
        body = make_finding(
            "body", scope, levels["body"], known, self.state, _whole(body_shares), rows["body"]
        )
        if known["instance_is_cpu"]:
            body = _no_body(scope)
        return [self._saturated(self._of_client(window, known), body), body]

    def tail(
        self,
        phase: str,
        server: str,
        end: Tail | int,
        instances: Mapping[str, Any],
        slowest: Mapping[str, Measures],
    ) -> Finding:
        """The finding about the p99 requests of a server. `slowest`: measures over their batches, by instance."""
        bodies = {}
        for key, own in slowest.items():
            if key in instances and key.startswith(f"{server}/") and isinstance(end, Tail):
                everything = self.facts(phase, key, instances[key]["measures"])
                bodies[key] = _compared(key, everything, facts({**everything, **own}))
        return tail_finding(self.connection, (phase, server), end, bodies)

    def facts(self, phase: str, key: str, measures: Measures) -> dict[str, float | None]:
        """What the rules are tried on, of an instance in a phase."""
        server = key.split("/", 1)[0]
        sums = self.sums.get((phase, key))
        own = [one for (_, other), one in self.sums.items() if other.startswith(f"{server}/")]
        has_cuda = any(one.n_operations for one in own)
        more = {
            **device_shares(measures, sums),
            **self.shares.get((phase, key), {}),
            "client_is_bottleneck": self.client.is_bottleneck,
            "instance_is_cpu": is_cpu(sums, server, self.manifest, has_cuda),
        }
        return facts(measures, more)

    def _rows(self, scope: Scope, found: Classification) -> Rows | None:
        if found.named is None or found.named.rule.rows.table not in self.tables:
            return None
        rows = found.named.rule.rows
        sums = self.sums.get((scope.phase, f"{scope.server}/{scope.instance}"))
        model = sums.model if sums is not None and not sums.instance else None
        return link(self.connection, scope_filter(rows.table, scope, model), rows)

    def _of_client(self, window: Finding, measures: Measures) -> Finding:
        """The verdict's own words, where it names the client's bottleneck; less sure where little time passed there."""
        if window.rule != CLIENT.name or not self.client.sentence:
            return window
        lag = measures.get("client_lag_share_ratio")
        claim = f"{self.client.sentence} Of the mean latency {share_text(lag)} passed before it had sent."
        step = f"{self.client.advice[:1].upper()}{self.client.advice[1:]}. Then run again: the server may do better."
        found = replace(window, claim=claim, next_step=step)
        if lag is None or lag >= CLIENT_LAG_RATIO:
            return found
        reason = "the client's lag is a small part of the mean latency: the runner-up is about the rest"
        level = max(found.confidence, "medium", key=LEVELS.index)
        return replace(found, confidence=level, confidence_reasons=(*found.confidence_reasons, reason))

    def _saturated(self, window: Finding, body: Finding) -> Finding:
        """A queue-bound instance is named together with what saturates it."""
        if window.rule != "queue-bound":
            return window
        what = window.also[0] if window.also else "none of the other rules"
        if body.margin is not None:
            what += f", its batches {body.rule}"
        return replace(window, claim=f"{window.claim} What saturates it: {what}.")


def _scope(phase: str, key: str) -> Scope:
    server, _, instance = key.partition("/")
    return Scope(phase, server, instance)


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
