"""A probe as a run: its directory with tables, facts, trace and log, sealed with a verdict, whatever happens."""

from __future__ import annotations

import json
import platform
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa

from squall.actors.clock import utc_minus_monotonic_ns
from squall.actors.probes.runner import Probed, probed, run_probe
from squall.actors.sampling.gpu.source import driver_and_names
from squall.analysis.storage.manifest import Manifest, PhaseFacts
from squall.analysis.storage.schema import arrow_schema
from squall.analysis.storage.sealed import Verdict
from squall.analysis.storage.store import RunStore
from squall.analysis.studies.gpu_probe import FILE, judge_probe, probe_figures
from squall.cluster.commands.decisions.gpu_watch import GpuWatch
from squall.cluster.interrupts import Interrupts
from squall.cluster.node.node_facts import node_facts
from squall.scenarios.errors import SquallError, StoreError
from squall.scenarios.published.probe import OperatorProbe, PipelineProbe

PHASE = "probe"
_NODE = "node-0"
_TABLE = {"operator": "probe_calls", "pipeline": "probe_stages"}
_VERSIONS = ("squall", "numpy", "pyarrow")
Row = dict[str, Any]
Probe = OperatorProbe | PipelineProbe


def probe_run(config: Probe, out: Path, name: str, seed: int, interrupts: Interrupts) -> Path:
    """Measures in a process of its own, and returns the sealed run directory that it makes under `out`.

    Raises SquallError for what stopped it (no torch, no GPU, a process that died), KeyboardInterrupt after a signal;
    the run is sealed as aborted then, with the rows that had come.
    """
    store = RunStore.create(out, name, time.time_ns(), _first_manifest(config, name, seed))
    return _ProbeRun(config, store, seed, interrupts).execute()


def _first_manifest(config: Probe, name: str, seed: int) -> Manifest:
    driver, _ = driver_and_names() if config.device == "gpu" else ("", ())
    versions = {"python": platform.python_version(), **{one: version(one) for one in _VERSIONS}}
    return Manifest(
        scenario={"name": name, "seed": seed, "probe": config.model_dump(mode="json")},
        seed=seed,
        versions=versions | ({"gpu driver": driver} if driver else {}),
        started_ns=time.time_ns(),
        nodes={_NODE: node_facts()},
    )


class _ProbeRun:
    """The state of one run."""

    def __init__(self, config: Probe, store: RunStore, seed: int, interrupts: Interrupts) -> None:
        self._config, self._store, self._seed, self._interrupts = config, store, seed, interrupts
        self._anchor_ns = utc_minus_monotonic_ns()
        self._watch = GpuWatch(is_wanted=config.device == "gpu")

    def execute(self) -> Path:
        with tempfile.TemporaryDirectory(prefix="squall-probe-") as scratch:
            folder = Path(scratch)
            try:
                with self._interrupts.allowed():
                    self._watch.look_before()
                    run_probe(self._config, folder, self._seed, self._watch.tick)
                self._keep(probed(folder))
            except KeyboardInterrupt:
                self._abort(folder, f"interrupted by {self._interrupts.name or 'SIGINT'}")
                raise
            except SquallError as error:
                self._abort(folder, str(error))
                raise
            except BaseException as error:  # a fault of ours: the run must not stay open
                self._abort(folder, f"internal error: {type(error).__name__}: {error}")
                raise
            finally:
                self._watch.close()
        return self._store.run_dir

    def _keep(self, found: Probed) -> None:
        """Tables, facts, trace and log; the verdict; then the figures, from what was sealed."""
        facts = found.facts
        assert facts is not None, "run_probe raises without"
        table = self._append(found.rows)
        self._write_phase(facts["begun_ns"], facts["ended_ns"])
        self._append_gpu_samples()
        self._leave_files(found)
        about = {**facts, "gpu_before": self._watch.before, "gpu_watch": self._watch.trouble}
        self._write_facts(about, {})
        torch = facts["torch"]
        known = self._store.manifest
        self._store.amend(
            replace(
                known,
                versions={**known.versions, "torch": torch["version"]}
                | {name: str(torch[name]) for name in ("cuda", "cudnn") if torch.get(name)},
                notes=tuple(_notes(about)),
            )
        )
        self._store.seal(
            judge_probe(
                self._config.kind, self._config.device, table, facts, self._watch.rows(torch.get("gpu_uuid", "")),
                self._watch.before_of(torch.get("gpu_uuid", "")),
            )
        )  # fmt: skip
        self._write_facts(about, probe_figures(self._store.run_dir))

    def _append(self, rows: Sequence[Row]) -> pa.Table:
        name = _TABLE[self._config.kind]
        labels = {"run": self._store.run, "phase": PHASE, "node": _NODE}
        shifted = [{**labels, **row, "start_ns": row["start_ns"] + self._anchor_ns} for row in rows]
        table = pa.Table.from_pylist(shifted, schema=arrow_schema(name))
        if rows:
            self._store.append(name, table)
            self._store.flush(name)
        return table

    def _write_phase(self, begun_ns: int, ended_ns: int) -> None:
        start_ns, end_ns = begun_ns + self._anchor_ns, ended_ns + self._anchor_ns
        phase = PhaseFacts(name=PHASE, kind="measure", start_ns=start_ns, end_ns=end_ns)
        self._store.amend(replace(self._store.manifest, start_ns=start_ns, phases=(phase,)))

    def _append_gpu_samples(self) -> None:
        (phase,) = self._store.manifest.phases
        rows = []
        for row in self._watch.rows(""):
            at_ns = row["t_ns"] + self._anchor_ns
            inside = PHASE if phase.start_ns <= at_ns < phase.end_ns else ""
            rows.append({**row, "run": self._store.run, "phase": inside, "node": _NODE, "t_ns": at_ns})
        if rows:
            self._store.append("gpu_samples", pa.Table.from_pylist(rows, schema=arrow_schema("gpu_samples")))

    def _leave_files(self, found: Probed) -> None:
        for path in found.traces:
            self._store.write_file(f"trace/{path.name}", [path.read_bytes()])
        if found.log:
            self._store.write_file("logs/probe.log", [found.log.encode()])

    def _write_facts(self, facts: Mapping[str, Any], figures: Mapping[str, Any]) -> None:
        content = {"kind": self._config.kind, "figures": figures, "facts": facts}
        self._store.write_text(FILE, json.dumps(content, indent=2) + "\n")

    def _abort(self, folder: Path, reason: str) -> None:
        """Seals what had come as aborted; what cannot be written of that is told in the reasons."""
        if self._store.is_sealed:
            return
        reasons = [reason]
        try:
            found = probed(folder)
            if not self._store.has(_TABLE[self._config.kind]):
                self._append(found.rows)
            self._leave_files(found)
        except (SquallError, OSError, ValueError) as error:
            reasons.append(f"not all that had come is here: {error}")
        try:
            self._store.seal(Verdict(status="ABORTED", reasons=tuple(reasons)))
        except StoreError as error:
            raise StoreError(f"{reason}; {error}") from error


def _notes(facts: Mapping[str, Any]) -> list[str]:
    """What a reader of the figures must know, a sentence each."""
    found = [f"{name}: {why}" for name, why in facts["left_out"].items()]
    for key, what in (
        ("no_kernels", "no kernel times"),
        ("no_trace", "no trace"),
        ("gpu_watch", "no GPU samples"),
    ):
        if facts.get(key):
            found.append(f"{what}: {facts[key]}")
    return found
