"""Runs through the real recording path without Ray: a null server, a load worker and an observer, each a process.

What they spilled is made a run directory as the driver makes it, sealed with its verdict, and its screen printed.
"""

from __future__ import annotations

import io
import os
import pickle
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console

from squall.actors.load.engine import Rules
from squall.actors.load.targets import TargetSettings
from squall.actors.load.worker import WorkerSettings
from squall.actors.sampling.observer import Observer
from squall.actors.sampling.observer_settings import ObserverSettings, ServerTarget
from squall.actors.spill import read_spill
from squall.analysis.report.screen import render
from squall.analysis.report.summary import summarise
from squall.analysis.report.summary_file import Summary
from squall.analysis.storage.manifest import read_manifest
from squall.analysis.storage.sealed import Verdict
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import RunPhase, assign_phase
from squall.analysis.verdict.validity import judge_run
from squall.cluster.commands.local_workers import Child
from squall.cluster.remote.spawn import spawn
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.plan.drafting import plan_scenario
from tests.golden.told import HERE
from tests.null_process import NullProcess, null_spec

S = 1_000_000_000
_TIMEOUT_S = 60.0
Between = Callable[[NullProcess], None]


@dataclass(frozen=True)
class VerdictRun:
    """A sealed run: its summary and its screen, 80 columns wide."""

    summary: Summary
    screen: list[str]

    @property
    def verdict(self) -> Verdict:
        return self.summary.verdict

    @property
    def first_line(self) -> str:
        """The first line of the verdict."""
        return [line.rstrip() for line in self.screen if line.startswith(self.verdict.status)][-1]


def scenario_of(rate: str = "200/s", measured: str = "1500ms", **changes: Any) -> dict[str, Any]:
    return {
        "name": "planted", "seed": 5, "model": {"name": "linear_head"},
        "phases": [
            {
                "name": "main", "kind": "measure", "duration": measured,
                "arrivals": {"kind": "poisson", "rate": rate},
            },
            {"name": "drain", "kind": "drain", "duration": "500ms"},
        ],
        **changes,
    }  # fmt: skip


def run_planted(
    folder: Path,
    *server: str,
    mapping: dict[str, Any] | None = None,
    before_start: Between | None = None,
    protocol: str = "http",
) -> VerdictRun:
    """One worker's run against a null server with the arguments `server`.

    `before_start` is called when the worker is connected and ready, before the start instant is chosen.
    """
    mapping = mapping or scenario_of()
    mapping["clients"] = {"protocol": protocol, **mapping.get("clients", {})}
    scenario = scenario_from_mapping(mapping, "planted")
    plan = plan_scenario(scenario)
    spill = folder / "spill"
    spill.mkdir()
    with ExitStack() as stack:
        null = stack.enter_context(NullProcess(*server))
        observed = ObserverSettings(
            "r",
            "node-0",
            str(spill),
            None,
            host_interval_ns=S // 4,
            thread_interval_ns=S // 4,
            triton_interval_ns=S // 4,
            own=(os.getpid(),),
        )
        observer = spawn("observer", HERE, 2, Observer, observed)
        stack.callback(observer.end)
        stack.callback(observer.call, Observer.stop)
        observer.call(Observer.add_server, ServerTarget("server-0", pids=(null.pid,)))
        settings = WorkerSettings(
            run="r", node="node-0", worker=0, seed=1,
            targets=(TargetSettings("server-0", "127.0.0.1", null.ports[protocol], (null_spec(),)),),
            rules=Rules(timeout_ns=scenario.clients.timeout_ns),
            n_connections=4, spill_dir=str(spill), protocol=protocol,
        )  # fmt: skip
        probe = stack.enter_context(Child("squall.actors.load.worker_process"))
        probe.tell(pickle.dumps((settings, plan)))
        probe.hear(_TIMEOUT_S)
        observer.call(Observer.set_client_pids, (probe.pid,))
        if before_start is not None:
            before_start(null)
        start_ns = time.monotonic_ns() + S // 5
        probe.tell(b"%d\n" % start_ns)
        probe.hear(_TIMEOUT_S)
    spans = [
        RunPhase(span.name, span.kind, start_ns + span.start_ns, start_ns + span.end_ns)
        for span in plan.spans
    ]
    store = RunStore.create(folder / "runs", "planted", time.time_ns(), read_manifest({
        "scenario": scenario.to_mapping(), "seed": scenario.seed,
        "plan": {"n_arrivals": len(plan), "load": "open"},
        "phases": [span._asdict() for span in spans],
        "nodes": {"node-0": {"clock_error_ns": 0}},
        "servers": {"server-0": {"node": "node-0", "model": "linear_head", "batch_record": False}},
        "workers": [{"worker": 0, "node": "node-0"}],
    }))  # fmt: skip
    for path in sorted(spill.glob("*.arrows")):
        _append(store, path, spans)
    store.flush()
    store.seal(judge_run(store))
    summary = summarise(store)
    return VerdictRun(summary, _screen(summary))


def _append(store: RunStore, path: Path, spans: list[RunPhase]) -> None:
    """A spill file's rows, each with the run's name and the phase that its instant lies in."""
    table = path.name.removesuffix(".arrows").partition("-")[0]
    with pa.OSFile(str(path)) as data:
        for part in read_spill(data):
            own = assign_phase(table, part, spans)
            at = own.schema.get_field_index("run")
            named = pa.array([store.run] * len(own)).cast(own.schema.field(at).type)
            store.append(table, own.set_column(at, own.schema.field(at), named))


def _screen(summary: Summary) -> list[str]:
    console = Console(width=80, file=io.StringIO(), color_system=None)
    console.print(render(summary, "runs/x", is_verbose=True))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()
