"""Another process on a GPU of the server, planted behind a scripted NVML: what is said of it, from samples to summary.

A server with a batch of 2 ms or so serves 200 requests a second for 14 s; NVML is asked as an observer asks it, from
before the run until after it. In seconds with a neighbour that costs something, batches take so much longer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml
import pytest

from squall.actors.sampling.gpu.source import GpuProcessSource, GpuSource
from squall.analysis.report.summary import summarise
from squall.analysis.report.summary_file import Summary
from squall.analysis.requests.requests import Requests
from squall.analysis.storage.schema import arrow_schema
from squall.analysis.storage.sealed import Verdict
from squall.analysis.verdict.gpu_shares import TABLES, GpuShares, gpu_lines
from squall.analysis.verdict.run_view import RunView, Samples
from squall.analysis.verdict.validity import judge
from tests.synthetic_runs import (
    START_NS,
    S,
    SyntheticRun,
    as_table,
    phase_at,
    synthesise,
    synthesise_two_servers,
)
from tests.unit.actors.fake_nvml import FakeGpu, FakeMig, FakeNvml

SERVER, NEIGHBOUR = 700, 4711
TICK_NS = S // 10
FIRST_S, LAST_S = -3, 18
Tables = dict[str, dict[str, list[Any]]]
GIB = 1 << 30


@dataclass
class Clock:
    at_ns: int = 0

    def monotonic_ns(self) -> int:
        return self.at_ns


@dataclass(frozen=True)
class Neighbour:
    """Its share of the time of the GPU `gpu` in each second of the run, from 0 on; the last one goes on."""

    use: Sequence[float]
    gpu: int = 0

    def at(self, second: int) -> float:
        return self.use[min(max(second, 0), len(self.use) - 1)]


def _process(pid: int, used: int) -> Any:
    record = pynvml.c_nvmlProcessInfo_v3_t()
    record.pid, record.usedGpuMemory = pid, used
    return pynvml.nvmlStructToFriendlyObject(record)


def _use(pid: int, at_ns: int, sm_ratio: float) -> Any:
    sample = pynvml.c_nvmlProcessUtilizationSample_t()
    sample.pid, sample.timeStamp, sample.smUtil = pid, at_ns // 1_000, round(sm_ratio * 100)
    return sample


def _tables(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    neighbour: Neighbour | None,
    n_gpus: int = 1,
    server_use: float = 0.3,
    shows: Callable[[int], bool] = lambda _: True,
    host_pids: bool = False,
    tells_use: bool = True,
    is_mig: bool = False,
) -> Tables:
    """The tables of GPUs as sources over a scripted NVML fill them. `shows`: whether NVML names a process of this id;
    `host_pids`: it tells other ids than this node has."""
    parts = [FakeMig(values={"memory": GIB}, gi=1)] if is_mig else []
    gpus = [
        FakeGpu(uuid=f"GPU-{number}", values={"processes": [], "utilisation_of": []}, mig=list(parts))
        for number in range(n_gpus)
    ]
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(*gpus))
    for pid in () if host_pids else (SERVER, NEIGHBOUR):
        (tmp_path / "proc" / str(pid) / "fd").mkdir(parents=True, exist_ok=True)
        link = tmp_path / "proc" / str(pid) / "fd" / "7"
        if not link.is_symlink():
            link.symlink_to("/dev/nvidia0")
    clock = Clock()
    sources = (
        GpuSource(with_gpm=False, clock=clock),
        GpuProcessSource(lambda: [SERVER], tmp_path / "proc"),
    )
    tables: dict[str, list[dict[str, Any]]] = {"gpu_samples": [], "gpu_processes": []}
    for tick in range((LAST_S - FIRST_S) * 10 + 1):
        clock.at_ns = at_ns = START_NS + FIRST_S * S + tick * TICK_NS
        second = (at_ns - 1 - START_NS) // S
        for number, gpu in enumerate(gpus):
            own = server_use if number == 0 and 0 <= second < 14 else 0.0
            other = neighbour.at(second) if neighbour is not None and neighbour.gpu == number else 0.0
            shown = [(SERVER, own), (NEIGHBOUR, other)] if neighbour is not None else [(SERVER, own)]
            shown = [(pid + 100_000 * host_pids, use) for pid, use in shown if shows(pid)]
            gpu.values |= {
                "utilisation": (round(100 * min(1.0, own + other)), 0), "memory": 3 * GIB,
                "processes": [_process(pid, GIB) for pid, _ in shown],
                "utilisation_of": [_use(pid, at_ns, use) for pid, use in shown],
            }  # fmt: skip
            if not tells_use or is_mig:
                gpu.values["utilisation_of"] = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        tables["gpu_samples"] += sources[0].sample(at_ns)
        if tick % 10 == 0:
            tables["gpu_processes"] += sources[1].sample(at_ns)
    found = {}
    for table, rows in tables.items():
        names = [one for one in arrow_schema(table).names if one != "run"]
        labels = [{"phase": phase_at(row["t_ns"] - row["interval_ns"]), "node": "node-0"} for row in rows]
        whole = [{**label, **row} for label, row in zip(labels, rows, strict=True)]
        found[table] = {name: [row.get(name) for row in whole] for name in names}
    return {name: columns for name, columns in found.items() if columns["phase"]}


@dataclass(frozen=True)
class Looked:
    """What the analysis of the tables says of the GPUs, without the rest of a summary."""

    gpu_use: Sequence[GpuShares]
    verdict: Verdict

    @property
    def gpu_text(self) -> list[str]:
        return gpu_lines(self.gpu_use)


def _looked(run: SyntheticRun, tables: Tables, **node: Any) -> Looked:
    _plant(run, tables, **node)
    made = {
        name: as_table(name, {**columns, "run": ["r"] * len(columns["phase"])})
        for name, columns in run.tables.items()
    }
    gpus = {name: made.get(name) for name in TABLES}
    samples = Samples(made["worker_samples"], made["host_samples"], gpus=gpus)
    view = RunView(Requests.from_table(made["requests"]), samples, run.stated)
    return Looked(view.gpus, judge(view))


def _summary(run: SyntheticRun, tables: Tables, folder: Path, **node: Any) -> Summary:
    _plant(run, tables, **node)
    return summarise(run.write(folder))


def _plant(run: SyntheticRun, tables: Tables, **node: Any) -> None:
    run.tables |= tables
    uuids = sorted(set(tables["gpu_samples"]["gpu_uuid"]))
    run.manifest["nodes"]["node-0"] |= {
        "gpus": ["NVIDIA H200"] * len(uuids), "gpu_places": [{"uuid": one} for one in uuids], **node,
    }  # fmt: skip
    run.tables["batches"]["instance_device"] = [0] * len(run.tables["batches"]["phase"])


def _only(summary: Summary | Looked) -> GpuShares:
    (found,) = summary.gpu_use
    return found


def _check(summary: Summary | Looked) -> Any:
    return next((one for one in summary.verdict.checks if one.name == "GPU of the server"), None)


COMES = [0.0] * 8 + [0.9]
"""A neighbour that comes in the middle of the run."""


def test_a_neighbour_that_makes_batches_longer_is_named_with_what_it_took_and_did(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = synthesise(slower=[1.0] * 8 + [2.5] * 8)
    summary = _summary(run, _tables(monkeypatch, tmp_path, Neighbour(COMES)), tmp_path)
    found = _only(summary)
    assert (found.n_foreign, found.n_unknown, found.foreign_memory_bytes) == (1, 0, GIB)
    assert found.measured_by == "processes"
    assert found.compared == "moments"
    assert found.foreign_ratio == pytest.approx(0.45, abs=0.1)
    assert found.with_ns is not None
    assert found.without_ns is not None
    assert found.with_ns / found.without_ns == pytest.approx(2.5, abs=0.15)
    assert summary.verdict.status == "INVALID"
    assert summary.verdict.reasons[0].startswith(
        "Another process used the GPU: on GPU-0 of node-0 1 other process"
    )
    assert summary.verdict.causes[0].kind == "others took the GPU"
    assert _check(summary).reason == summary.verdict.reasons[0]
    first = summary.findings[0]
    assert (first.rule, first.confidence_reasons) == ("shared GPU", ("self-checks not met: in flight",)), (
        "made up"
    )
    (line,) = summary.gpu_text
    assert "batches of equal size took" in line


def test_a_neighbour_that_is_there_all_the_time_is_bound_for_want_of_a_comparison(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = synthesise(slower=[2.5] * 16)
    summary = _looked(run, _tables(monkeypatch, tmp_path, Neighbour([0.9])))
    found = _only(summary)
    assert found.compared == "bound"
    assert found.foreign_ratio == pytest.approx(0.9, abs=0.01)
    assert found.consequence_ratio is not None
    assert found.consequence_ratio <= 0.9
    assert summary.verdict.status == "INVALID"
    assert "there is nothing to compare with" in summary.verdict.reasons[0]


def test_a_neighbour_of_half_of_the_run_is_not_said_to_be_there_all_the_time_where_no_batch_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = synthesise(slower=[1.0] * 8 + [2.5] * 8)
    tables = _tables(monkeypatch, tmp_path, Neighbour(COMES))
    run.tables["batches"] = {name: [] for name in run.tables["batches"]}
    found = _only(_looked(run, tables))
    assert (found.measured_by, found.compared) == ("processes", "bound")
    assert "of the response times: no batch of the server is known" in gpu_lines([found])[0]


def test_a_busy_neighbour_without_consequence_is_told_and_the_run_is_valid(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    summary = _summary(synthesise(), _tables(monkeypatch, tmp_path, Neighbour(COMES)), tmp_path)
    assert summary.verdict.status == "VALID"
    check = _check(summary)
    assert not check.is_met
    assert "of the response times, where 10.0 % is the limit" in check.not_assessed
    assert _only(summary).consequence_ratio == pytest.approx(0.0, abs=0.05)
    assert summary.findings[0].rule != "shared GPU"


def test_a_neighbour_with_tiny_use_is_told_and_decides_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    summary = _looked(synthesise(), _tables(monkeypatch, tmp_path, Neighbour([0.03])))
    assert summary.verdict.status == "VALID"
    assert _check(summary).is_met
    (line,) = summary.gpu_text
    assert "1 other process had 3.00 % of its time" in line


def test_a_neighbour_on_another_gpu_is_none_of_the_servers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tables = _tables(monkeypatch, tmp_path, Neighbour([0.9], gpu=1), n_gpus=2, shows=lambda _: True)
    summary = _looked(synthesise(), tables)
    found = _only(summary)
    assert found.gpu_uuid == "GPU-0"
    assert found.foreign_ratio == 0.0
    assert summary.verdict.status == "VALID"
    assert _check(summary).is_met


def test_without_a_neighbour_nothing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    summary = _summary(
        synthesise(slower=[1.0] * 8 + [2.5] * 8), _tables(monkeypatch, tmp_path, None), tmp_path
    )
    assert _only(summary).foreign_ratio == 0.0
    assert summary.gpu_text == ()
    assert _check(summary).is_met
    assert "shared GPU" not in {one.rule for one in summary.findings}


def test_two_servers_are_compared_where_a_neighbour_has_the_gpu_of_one_all_the_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = synthesise_two_servers()
    batches = run.tables["batches"]
    is_second = [one == "server-1" for one in batches["server"]]
    batches["end_ns"] = [
        end + 2 * (end - start) * slow
        for start, end, slow in zip(batches["start_ns"], batches["end_ns"], is_second, strict=True)
    ]
    run.manifest["servers"]["server-0"] = {**run.manifest["servers"]["server-0"], "gpus": ["GPU-0"]}
    run.manifest["servers"]["server-1"] = {**run.manifest["servers"]["server-1"], "gpus": ["GPU-1"]}
    tables = _tables(monkeypatch, tmp_path, Neighbour([0.9], gpu=1), n_gpus=2)
    summary = _summary(run, tables, tmp_path)
    first, second = summary.gpu_use
    assert (first.servers, first.foreign_ratio) == (("server-0",), 0.0)
    assert (second.servers, second.compared) == (("server-1",), "servers")
    assert second.with_ns is not None
    assert second.without_ns is not None
    assert second.with_ns / second.without_ns == pytest.approx(3.0, abs=0.1)
    assert summary.verdict.status == "INVALID"
    assert "GPU-1" in summary.verdict.reasons[0]
    rules = {one.scope.server: one.rule for one in summary.findings if one.level == "window"}
    assert rules["server-1"] == "shared GPU"
    assert rules["server-0"] != "shared GPU"


def test_in_a_container_that_names_no_process_the_work_beside_ours_shows_while_none_is_in_flight(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tables = _tables(monkeypatch, tmp_path, Neighbour([0.9]), shows=lambda _: False)
    assert "gpu_processes" not in tables
    summary = _looked(synthesise(slower=[2.5] * 16), tables)
    found = _only(summary)
    assert (found.measured_by, found.compared) == ("activity", "bound")
    assert found.foreign_ratio == pytest.approx(0.9, abs=0.01)
    assert summary.verdict.status == "INVALID"
    assert summary.verdict.reasons[0].startswith("Something else used the GPU")


def test_in_a_container_that_names_its_own_processes_alone_the_work_of_others_is_not_taken_for_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tables = _tables(monkeypatch, tmp_path, Neighbour([0.9]), shows=lambda pid: pid == SERVER)
    summary = _looked(synthesise(slower=[2.5] * 16), tables)
    found = _only(summary)
    assert (found.n_foreign, found.measured_by) == (0, "activity")
    assert found.server_ratio == pytest.approx(0.3, abs=0.01)
    assert found.foreign_ratio == pytest.approx(0.9, abs=0.01)
    assert summary.verdict.status == "INVALID"


def test_ids_of_another_namespace_are_not_known_whose(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tables = _tables(monkeypatch, tmp_path, Neighbour([0.0]), host_pids=True)
    found = _only(_looked(synthesise(), tables))
    assert (found.n_foreign, found.n_unknown) == (0, 2)
    assert (found.measured_by, found.foreign_ratio) == ("activity", 0.0)


def test_a_process_that_was_there_before_the_server_is_anothers_whatever_its_namespace(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tables = _tables(monkeypatch, tmp_path, Neighbour(COMES), host_pids=True)
    before = [{"uuid": "GPU-0", "util": 0.0, "processes": [NEIGHBOUR + 100_000]}]
    run = synthesise(slower=[1.0] * 8 + [2.5] * 8)
    summary = _looked(run, tables, gpus_before=before)
    found = _only(summary)
    assert (found.n_foreign, found.n_unknown, found.server_ratio) == (1, 1, None)
    assert (found.measured_by, found.compared) == ("processes", "moments")
    assert summary.verdict.status == "INVALID"


def test_a_driver_without_use_per_process_leaves_what_the_gpu_does_by_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tables = _tables(monkeypatch, tmp_path, Neighbour([0.0]), tells_use=False)
    found = _only(_looked(synthesise(), tables))
    assert (found.n_foreign, found.measured_by, found.foreign_ratio) == (1, "activity", 0.0)


def test_mig_is_not_assessed_and_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    summary = _looked(synthesise(), _tables(monkeypatch, tmp_path, Neighbour([0.9]), is_mig=True))
    assert _only(summary).foreign_ratio is None
    assert _check(summary) is None
    assert summary.verdict.status == "VALID"
    (line,) = summary.gpu_text
    assert "whether others use it is not assessed: MIG divides it" in line


def test_a_process_of_a_server_whose_processes_are_not_known_is_not_called_anothers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = synthesise()
    run.manifest["servers"]["server-0"]["source"] = "url"
    tables = _tables(monkeypatch, tmp_path, Neighbour([0.9]))
    tables["gpu_processes"]["is_server"] = [False] * len(tables["gpu_processes"]["phase"])
    found = _only(_looked(run, tables))
    assert (found.n_foreign, found.n_unknown) == (0, 2)
    assert found.measured_by == "activity", "what the GPU does by itself is all that is known"


def test_a_process_of_the_server_that_is_known_late_is_the_servers_from_its_begin(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tables = _tables(monkeypatch, tmp_path, None)
    is_server = tables["gpu_processes"]["is_server"]
    is_server[:8] = [False] * 8
    assert any(is_server)
    found = _only(_looked(synthesise(), tables))
    assert (found.n_foreign, found.n_unknown, found.foreign_ratio) == (0, 0, 0.0)


def test_a_gpu_is_not_idle_for_want_of_ours_while_its_server_serves_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = synthesise()
    run.tables["batches"]["n_foreign"][0] = 1
    tables = _tables(monkeypatch, tmp_path, Neighbour([0.9]), shows=lambda _: False)
    summary = _looked(run, tables)
    assert _only(summary).foreign_ratio is None
    assert "the server serves requests of others, too" in summary.gpu_text[0]


def test_a_neighbour_that_left_before_the_load_is_not_taken_for_one_beside_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    leaves = Neighbour([0.9, 0.0])
    tables = _tables(monkeypatch, tmp_path, leaves, shows=lambda _: False)
    found = _only(_looked(synthesise(), tables))
    assert (found.measured_by, found.foreign_ratio) == ("activity", 0.0)
