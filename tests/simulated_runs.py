"""Runs of a scenario on a simulated clock, in place of `run_scenario`: its own plan, queued; its promises, judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from squall.analysis.arrays import Int64s
from squall.analysis.compare.figures import INVALID
from squall.analysis.compare.judged import hold
from squall.analysis.compare.level import level_of
from squall.analysis.compare.run_row import RunRow
from squall.analysis.requests.requests import Labels, Requests
from squall.analysis.storage.timeline import RunPhase
from squall.cluster.draining import Unanswered
from squall.cluster.driver.run import RunResult
from squall.cluster.interrupts import Interrupts
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.plan.drafting import plan_scenario
from squall.scenarios.units import NS_PER_S
from tests.simulated_servers import routed_response

START_NS = 1_000 * NS_PER_S


class SimulatedRuns:
    """Stands for `run_scenario`: a server a URL, each of `service_s`, arrivals in turn; one where there are none.

    `status`: of a run, from its scenario and mean rate; `ends_at`: the number of the run in which Ctrl-C comes.
    """

    def __init__(
        self,
        service_s: float,
        status: Callable[[Scenario, float], str] = lambda _scenario, _rate: "VALID",
        ends_at: int | None = None,
    ) -> None:
        self.digests: list[str] = []
        self._service_s = service_s
        self._status = status
        self._ends_at = ends_at
        self._requests: dict[str, tuple[Requests, list[RunPhase], int]] = {}

    def __call__(self, scenario: Scenario, out: Path, ray: str | None, interrupts: Interrupts) -> RunResult:
        del ray, interrupts
        if self._ends_at == len(self.digests):
            raise KeyboardInterrupt
        self.digests.append(scenario.digest())
        name = f"run-{scenario.digest()[:8]}-{len(self.digests)}"
        n_servers = len(scenario.servers) if isinstance(scenario.servers, tuple) else 1
        found, spans = self._served(scenario, n_servers)
        self._requests[name] = found, spans, n_servers
        rate_hz = len(found) * NS_PER_S / sum(span.end_ns - span.start_ns for span in spans)
        status = self._status(scenario, rate_hz)
        promises = [hold(one, found, spans).figures for one in scenario.promises or ()]
        verdict = SimpleNamespace(reasons=() if status == "VALID" else ("worker-0: CPU at 99 %",), causes=())
        if status != "VALID":
            promises = [replace(one, verdict=INVALID, reason=status) for one in promises]
        summary: Any = SimpleNamespace(promises=tuple(promises), verdict=verdict, findings=())
        return RunResult(out / name, summary, status)

    def read(self, result: RunResult) -> RunRow:
        """In place of `squall.cluster.commands.decisions.levels.read_run`."""
        found, spans, n_servers = self._requests[result.run_dir.name]
        return RunRow(
            result.run_dir.name,
            result.status,
            level=level_of(found, spans, None),
            n_servers=n_servers,
            n_server_nodes=1,
        )

    def left(self, result: RunResult) -> Unanswered:
        """In place of `squall.cluster.draining.left_of`."""
        level = self.read(result).level
        assert level is not None
        return Unanswered(level.n_unanswered, level.throughput_hz)

    def _served(self, scenario: Scenario, n_servers: int) -> tuple[Requests, list[RunPhase]]:
        plan = plan_scenario(scenario)
        arrival_s = plan.offset_ns / NS_PER_S
        response_s = routed_response(
            arrival_s, [self._service_s] * n_servers, "round-robin", np.random.default_rng(0)
        ).response_s
        spans = [
            RunPhase(span.name, span.kind, START_NS + span.start_ns, START_NS + span.end_ns)
            for span in plan.spans
        ]
        names = tuple(span.name for span in plan.spans)
        measured = [span for span in spans if span.kind == "measure"]
        return _requests(
            plan.offset_ns + START_NS, response_s, Labels(plan.phase.astype(np.int64), names)
        ), measured


def _requests(at_ns: Int64s, response_s: Any, phase: Labels) -> Requests:
    n = len(at_ns)
    none = Labels(np.zeros(n, np.int64), ("",))
    return Requests(
        is_open=True, request_id=np.arange(n), worker=np.zeros(n, np.int64), node=none, phase=phase,
        scheduled_ns=at_ns, sent_ns=at_ns, is_sent=np.ones(n, np.bool_),
        done_ns=at_ns + (response_s * NS_PER_S).astype(np.int64), is_done=np.ones(n, np.bool_),
        rows=np.ones(n, np.int64), outcome=Labels(np.zeros(n, np.int64), ("ok",)), detail=none, target=none,
        request_kind=none,
    )  # fmt: skip
