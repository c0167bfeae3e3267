"""One run as a side of a comparison holds it: reduced to figures, what they rest on, and where its time went."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from squall.analysis.clocks.timeline import measure_spans
from squall.analysis.compare.pairs.run_account import NO_ACCOUNT, RunAccount, run_account
from squall.analysis.compare.run_figures import Reading, run_figures
from squall.analysis.requests.requests import Requests
from squall.analysis.statistics.latency import INFINITE_NS, smallest_n
from squall.analysis.storage.intact import content_errors_of, require_intact
from squall.analysis.storage.store import RunStore
from squall.analysis.tables.manifest import Manifest
from squall.scenarios.errors import SquallError
from squall.scenarios.locust_plan import NO_LOAD

FAILURES = "failures_ratio"
"""Share of the measured requests that did not end ok."""
_NO_LOAD = {name.removesuffix("_ns") for name in NO_LOAD}  # as the file has them
SHIFT_PERCENTS = tuple(range(1, 100))
"""Quantiles of the shift curve."""


@dataclass(frozen=True)
class Answers:
    """Of the replies of the measured phases. `sha256`: of id and size in bytes of each; None where one did not end ok.
    `n_checked` values were compared with the reference, `n_wrong` were wrong; None: none were compared."""

    sha256: str | None = None
    n_checked: int | None = None
    n_wrong: int | None = None


@dataclass(frozen=True)
class SideRun:
    """A run of side A or B. `schedule`: digest of its plan, `seed` its seed: both runs of a pair have the same.

    `load`: digest of what scenario and squall say of arrivals and rows, without which server each is for.

    `figures` by metric, those of `compare.run_figures` and `FAILURES`; `quantiles_ns`: (99,), of `SHIFT_PERCENTS`, None
    where infinite or where its requests carry none. `request_bytes_per_row`: median of the sent requests. `gpus`: UUIDs
    that it ran on; `states`: by the names of `squall.analysis.compare.pairs.settings`, of GPUs and CPU means over the
    measured phases; what was not sampled is absent. `ended_early`: its load was ended once the outcome of its promises
    was certain. `problem`: why it cannot be read.
    """

    name: str
    path: Path
    status: str
    reasons: tuple[str, ...] = ()
    ended_early: bool = False
    seed: int | None = None
    schedule: str = ""
    load: str = ""
    started_ns: int = 0
    scenario: Mapping[str, Any] = field(default_factory=dict)
    digest: str = ""
    is_open: bool = True
    collectors_on: tuple[str, ...] = ()
    setting: Mapping[str, str] = field(default_factory=dict)
    request_bytes_per_row: float | None = None
    gpus: tuple[str, ...] = ()
    states: Mapping[str, float] = field(default_factory=dict)
    figures: Mapping[str, Reading] = field(default_factory=dict)
    quantiles_ns: tuple[float | None, ...] = ()
    account: RunAccount = NO_ACCOUNT
    answers: Answers = Answers()
    problem: str = ""

    @property
    def is_valid(self) -> bool:
        """Whether its figures are of the load that was asked for."""
        return self.status == "VALID" and not self.ended_early and not self.problem

    @property
    def has_verdict(self) -> bool:
        """Whether it ran to its end: it is neither ABORTED nor open, and can be read."""
        return self.status in ("VALID", "INVALID") and not self.problem

    @property
    def why_left_out(self) -> str:
        """Of a run that is not valid: its status and how its first reason begins, or that it ended early."""
        if self.ended_early and self.status == "VALID":
            return self.problem or "ended early, once its promises were decided"
        return self.problem or "; ".join(
            [self.status or "not sealed", *(one.split(":")[0] for one in self.reasons[:1])]
        )


def read_side_run(path: Path) -> SideRun:
    """The run in directory `path`. Never raises for one that is damaged, open or INVALID: it says so."""
    try:
        with content_errors_of(path.name):
            store = RunStore.open(path)
            manifest = store.manifest
            if manifest.status != "VALID" or manifest.decided is not None:
                return SideRun(**_head(path, manifest))
            require_intact(store, derived_too=True)
            return _reduced(path, store, manifest)
    except (SquallError, OSError) as error:
        return SideRun(path.name, path, "", problem=f"cannot be read: {error}")


def _head(path: Path, manifest: Manifest) -> dict[str, Any]:
    return {
        "name": path.name,
        "path": path,
        "status": manifest.status or manifest.state,
        "reasons": tuple(manifest.reasons),
        "ended_early": manifest.decided is not None,
        "seed": manifest.seed,
        "schedule": manifest.plan.sha256 or "",
        "load": load_digest(manifest),
        "started_ns": manifest.started_ns or 0,
        "scenario": manifest.scenario or {},
        "digest": manifest.scenario_digest or "",
        "is_open": manifest.plan.load == "open",
        "collectors_on": tuple(
            sorted(name for name, one in manifest.collectors.items() if one.status == "on")
        ),
        "setting": _setting(manifest),
    }


def load_digest(manifest: Manifest) -> str:
    """Equal for runs of one squall that send the same rows at the same instants, from the same seed; the digest of a
    plan holds which of several servers each arrival is for, too."""
    scenario = manifest.scenario or {}
    clients = dict(scenario.get("clients") or {})
    said = [
        scenario.get("phases"), clients.get("rows"), clients.get("payload_variants"), scenario.get("seed"),
        dict(manifest.plan.n_by_phase), manifest.plan.n_users, manifest.versions.get("squall"),
    ]  # fmt: skip
    if scenario.get("load"):  # where a locustfile lies is nobody's matter, what it says is
        stated = {key: one for key, one in scenario["load"]["locust"].items() if key not in _NO_LOAD}
        said += [stated, manifest.locust.file_sha256 if manifest.locust is not None else None]
    if scenario.get("models"):
        keys = ("share", "rows", "payload_variants")
        said.append([[one.get(key) for key in keys] for one in manifest.stated_models.values()])
    if manifest.data is not None:
        said += [manifest.data.sha256, {**clients["data"], "path": None}]
    for name, data in sorted(manifest.data_by_model.items()):
        said += [name, data.sha256, {**manifest.stated_models[name]["data"], "path": None}]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _reduced(path: Path, store: RunStore, manifest: Manifest) -> SideRun:
    requests = Requests.read(store)
    measured = requests.in_phases([span.name for span in measure_spans(manifest)])
    figures = dict(run_figures(store).pooled)
    n = len(measured)
    n_failed = int((~measured.is_ok).sum())
    figures[FAILURES] = Reading(n_failed / n) if n else Reading(None, "no request was to be sent")
    return SideRun(
        **_head(path, manifest),
        request_bytes_per_row=_bytes_per_row(store),
        gpus=_gpus(store, manifest),
        states={**_gpu_states(store), **_cpu_states(store), **_uptime(manifest)},
        figures=figures,
        quantiles_ns=_quantiles(measured),
        account=run_account(store),
        answers=_answers(store, manifest, n_failed),
    )


def _setting(manifest: Manifest) -> dict[str, str]:
    """What a run stood on, by what it is called: hardware, versions."""
    found = {f"version of {name}": text for name, text in manifest.versions.items()}
    for label, node in manifest.nodes.items():
        of_node = {
            "CPU": node.cpu_model, "cores": node.n_cores, "kernel": node.kernel,
            "GPUs": None if node.gpus is None else ", ".join(node.gpus) or "none",
        }  # fmt: skip
        found |= {f"{what} of {label}": str(value) for what, value in of_node.items() if value is not None}
    for name, server in manifest.servers.items():
        of_server = {
            "Triton": server.server_version,
            "source": server.source,
            "model version": server.version,
        }
        found |= {f"{what} of {name}": text for what, text in of_server.items() if text is not None}
    return found


def _bytes_per_row(store: RunStore) -> float | None:
    table = store.read("requests", ["request_bytes", "rows"])
    sent = np.asarray(table.column("request_bytes").to_numpy(), np.float64)
    rows = np.asarray(table.column("rows").to_numpy(), np.float64)
    is_sent = (sent > 0) & (rows > 0)
    return float(np.median(sent[is_sent] / rows[is_sent])) if is_sent.any() else None


def _gpus(store: RunStore, manifest: Manifest) -> tuple[str, ...]:
    """Those that served requests, else those that the servers were given."""
    found = set[str]()
    if store.has("joined"):
        told = store.read("joined", ["gpu_uuid"]).column("gpu_uuid").cast("string").unique().to_pylist()
        found = {str(one) for one in told if one}
    if not found:
        found = {gpu for server in manifest.servers.values() for gpu in server.gpus}
    return tuple(sorted(found))


def _uptime(manifest: Manifest) -> dict[str, float]:
    """Of the server that has run longest, before the load; absent where it is not known."""
    known = [one.uptime_ns for one in manifest.servers.values() if one.uptime_ns is not None]
    return {"uptime_ns": float(max(known))} if known else {}


def _cpu_states(store: RunStore) -> dict[str, float]:
    if not store.has("cpu_samples"):
        return {}
    phases = {span.name for span in measure_spans(store.manifest)}
    table = store.read("cpu_samples", ["phase", "interval_ns", "n_cores", "others_ns", "steal_ns"])
    is_own = np.array([one in phases for one in table.column("phase").cast("string").to_pylist()], np.bool_)
    columns = {
        name: table.column(name).to_numpy().astype(np.float64)[is_own]
        for name in ("interval_ns", "n_cores", "others_ns", "steal_ns")
    }
    total = float((columns["interval_ns"] * columns["n_cores"]).sum())
    had = float((columns["others_ns"] + columns["steal_ns"]).sum())
    return {"others_ratio": had / total} if total else {}


def _gpu_states(store: RunStore) -> dict[str, float]:
    if not store.has("gpu_samples"):
        return {}
    phases = {span.name for span in measure_spans(store.manifest)}
    table = store.read("gpu_samples", ["phase", "sm_clock_hz", "temperature_c", "throttle_reasons"])
    is_own = np.array([one in phases for one in table.column("phase").cast("string").to_pylist()], np.bool_)
    found = {}
    for name in ("sm_clock_hz", "temperature_c", "throttle_reasons"):
        values = np.array(
            [np.nan if one is None else float(one) for one in table.column(name).to_pylist()], np.float64
        )[is_own]
        values = values[~np.isnan(values)]
        if len(values):
            is_mask = name == "throttle_reasons"
            found["throttled_ratio" if is_mask else name] = float(
                (values.astype(np.int64) & ~_IDLE_BIT != 0).mean() if is_mask else values.mean()
            )
    return found


_IDLE_BIT = 1
"""nvmlClocksThrottleReasonGpuIdle: nothing to run, which throttles nothing."""


def _quantiles(measured: Requests) -> tuple[float | None, ...]:
    """By nearest rank, without intervals: those are made over pairs."""
    values = np.sort(np.where(measured.is_ok, measured.latency_ns, INFINITE_NS))
    found = list[float | None]()
    for percent in SHIFT_PERCENTS:
        is_carried = smallest_n(percent / 100.0) <= len(values)
        value = int(values[-(-percent * len(values) // 100) - 1]) if is_carried else INFINITE_NS
        found.append(None if value == INFINITE_NS else float(value))
    return tuple(found)


def _answers(store: RunStore, manifest: Manifest, n_failed: int) -> Answers:
    """`n_failed`: of the measured requests."""
    digest = None
    if (
        not n_failed and manifest.plan.load != "locust"
    ):  # there a request of one id is another one in each run
        table = store.read("requests", ["request_id", "response_bytes", "phase"])
        phases = pa.array([span.name for span in measure_spans(manifest)], pa.string())
        table = table.filter(pc.is_in(table.column("phase").cast("string"), value_set=phases)).sort_by(
            "request_id"
        )
        digest = hashlib.sha256(
            b"".join(
                np.ascontiguousarray(table.column(name).to_numpy(), np.int64).tobytes()
                for name in ("request_id", "response_bytes")
            )
        ).hexdigest()
    checks = manifest.value_checks
    return Answers(digest, checks.n_checked if checks else None, checks.n_wrong if checks else None)
