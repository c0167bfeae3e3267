"""Probes with real torch on the CPU: whole runs, broken-off ones, and outputs that differ."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from squall.actors.process.own_python import own_environment
from squall.analysis.report.derive import derive
from squall.analysis.report.page import write_report
from squall.analysis.run import open_run
from squall.analysis.storage.store import RunStore
from squall.analysis.studies.gpu_probe import probe_figures
from squall.cluster.commands.decisions.probe_run import probe_run
from squall.cluster.interrupts import Interrupts
from squall.scenarios.errors import AnalysisError, TargetError
from squall.scenarios.published.experiment import probe_from_mapping
from squall.scenarios.published.probe import PipelineProbe

pytestmark = pytest.mark.beside
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

OPERATOR = {
    "kind": "operator", "device": "cpu", "dtype": "fp32", "sizes": [64, 96], "repeats": 2, "calls_per_step": 2,
    "schedule": {"wait": 1, "warmup": 1, "active": 3},
}  # fmt: skip
PIPELINE: dict[str, Any] = {
    "kind": "pipeline", "device": "cpu", "dtype": "fp32", "batch_size": 2, "image_size": 16, "top_k": 3,
    "net": {"blocks": 1, "width": 4, "classes": 10}, "warmup": 1, "calls": 3, "repeats": 2,
}  # fmt: skip
FAIR = ("the repeats differ", "other processes took the probe's CPU")
"""What a busy host may make of a probe, which says nothing against the code."""
ROOT = Path(__file__).parents[2]


def measured(stated: dict[str, Any], out: Path) -> Path:
    with Interrupts() as interrupts:
        return probe_run(probe_from_mapping(stated), out, "probe", 3, interrupts)


@needs_torch
def test_an_operator_probe_leaves_a_sealed_run_with_every_call(tmp_path: Path) -> None:
    folder = measured(OPERATOR, tmp_path)
    run = open_run(folder)
    assert run.is_sealed
    assert RunStore.open(folder).verify() == []
    assert all(reason.startswith(FAIR) for reason in run.verdict.reasons)
    assert {"torch", "squall", "python"} <= set(run.manifest.versions)
    calls = run.pandas("probe_calls")
    n_calls = 2 * (1 + 2 * (1 + 1 + 3) * 2 * 2)  # sizes, first, under, steps, calls, repeats
    assert len(calls) == n_calls
    (phase,) = run.manifest.phases
    assert ((calls["start_ns"] >= phase.start_ns) & (calls["start_ns"] < phase.end_ns)).all()
    assert (calls["synced_ns"] >= calls["host_ns"]).all()
    active = calls[(calls["under"] == "profiler") & (calls["part"] == "active")]
    assert len(active) == 2 * 3 * 2 * 2
    assert (active["op_cpu_ns"] > 0).all()
    assert calls["kernel_ns"].isna().all()
    figures = probe_figures(folder)
    assert set(figures) == {"64", "96", "all sizes"}
    assert figures["all sizes"] == {"not_measured": "the probe ran on the CPU, which has no kernels"}
    kept = json.loads((folder / "probe.json").read_text())
    assert kept["figures"] == figures
    assert any(one["name"] == "aten::mm" for one in kept["facts"]["operators"]["64"])
    trace = json.loads(gzip.decompress((folder / "trace" / "64.json.gz").read_bytes()))
    assert any(one["name"] == "squall_call" for one in trace["traceEvents"])
    for command in (derive, write_report):
        with pytest.raises(AnalysisError, match="is the run of a probe"):
            command(RunStore.open(folder))


@needs_torch
@pytest.mark.slow
def test_a_pipeline_on_the_cpu_measures_its_base_and_says_why_not_the_rest(tmp_path: Path) -> None:
    folder = measured(PIPELINE, tmp_path)
    figures = probe_figures(folder)
    base = figures.pop("pageable, separate kernels")
    assert base["gain_ratio"] == 0
    assert {"stage_prep_ns", "stage_h2d_ns", "stage_inference_ns", "stage_postprocess_ns"} <= set(base)
    assert all("the probe ran on the CPU" in str(one["not_measured"]) for one in figures.values())
    stages = open_run(folder).pandas("probe_stages")
    assert len(stages) == 2 * (1 + 3) * 7  # repeats, calls, stages and the whole
    sums = stages[stages["stage"] != "total"].groupby(["repeat", "call"], observed=True)["span_ns"].sum()
    totals = stages[stages["stage"] == "total"].set_index(["repeat", "call"])["span_ns"]
    assert (sums <= totals).all(), "stages do not overlap"


def test_without_torch_the_run_is_aborted_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = tmp_path / "before"
    hidden.mkdir()
    told = "No module named 'torch'"
    (hidden / "torch.py").write_text(f"raise ModuleNotFoundError({told!r}, name='torch')\n")
    monkeypatch.syspath_prepend(str(hidden))  # the process that measures has our import path
    with pytest.raises(
        TargetError, match=r"torch is not installed, or does not load .*pip install torch"
    ) as error:
        measured(OPERATOR, tmp_path / "runs")
    assert "\n" not in str(error.value)
    (folder,) = (tmp_path / "runs").iterdir()
    manifest = RunStore.open(folder).manifest
    assert (manifest.status, manifest.reasons) == ("ABORTED", (str(error.value),))


@needs_torch
@pytest.mark.slow
def test_without_a_gpu_a_probe_of_one_is_aborted_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"built without CUDA|sees no GPU") as error:
        measured({**OPERATOR, "device": "gpu"}, tmp_path)
    assert "device: cpu" in str(error.value)


@needs_torch
@pytest.mark.slow
def test_a_size_that_does_not_fit_is_left_out_and_the_others_stand(tmp_path: Path) -> None:
    huge = 65_536  # three float32 squares of 17 GB each: more than the limit below
    once = {"repeats": 1, "calls_per_step": 1, "schedule": {"wait": 0, "warmup": 1, "active": 1}}
    asked = json.dumps({**OPERATOR, **once, "sizes": [64, huge]})
    code = (
        "import json, resource, sys; from pathlib import Path; from tests.integration.test_probes import measured\n"
        "resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))\n"
        "print(measured(json.loads(sys.argv[1]), Path(sys.argv[2])))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, asked, str(tmp_path)],
        cwd=ROOT, env=own_environment(), capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    figures = probe_figures(Path(found.stdout.strip()))
    assert figures[str(huge)] == {"not_measured": f"size {huge} does not fit into the memory of the device"}
    assert "warm_call_ns" in figures["64"]


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def begun(tmp_path: Path) -> tuple[subprocess.Popen[str], int]:
    """A long probe whose process measures, and the number of that."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    owner = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.probe_script", str(tmp_path / "runs")],
        cwd=ROOT, env={**own_environment(), "TMPDIR": str(scratch)}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_until(
        lambda: any(one.stat().st_size > 8192 for one in scratch.glob("squall-probe-*/rows.jsonl")),
        "the probe begins to measure",
    )
    (child,) = children(owner.pid)
    return owner, child


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_process_and_leaves_an_aborted_run_with_its_rows(
    tmp_path: Path, number: signal.Signals
) -> None:
    owner, child = begun(tmp_path)
    owner.send_signal(number)
    _, said = owner.communicate(timeout=60)
    assert said.strip().splitlines()[-1] == f"interrupted by {number.name}"
    assert not is_alive(child)
    (folder,) = (tmp_path / "runs").iterdir()
    run = open_run(folder)
    assert (run.verdict.status, run.verdict.reasons) == ("ABORTED", (f"interrupted by {number.name}",))
    assert len(run.table("probe_calls")) > 0
    assert not list((tmp_path / "scratch").glob("squall-probe-*"))


@needs_torch
@pytest.mark.slow
def test_the_process_ends_with_an_owner_that_is_killed(tmp_path: Path) -> None:
    owner, child = begun(tmp_path)
    owner.kill()
    owner.communicate(timeout=60)
    wait_until(lambda: not is_alive(child), "the probe's process ends")


@needs_torch
@pytest.mark.slow
def test_a_process_that_is_killed_leaves_an_aborted_run_with_one_line(tmp_path: Path) -> None:
    owner, child = begun(tmp_path)
    os.kill(child, signal.SIGKILL)
    _, said = owner.communicate(timeout=60)
    told = "the probe's process ended by SIGKILL before it had measured"
    assert told in said
    (folder,) = (tmp_path / "runs").iterdir()
    manifest = RunStore.open(folder).manifest
    assert manifest.status == "ABORTED"
    assert manifest.reasons[0].startswith(told)


def _pipeline_measure(tmp_path: Path, rows: list[dict[str, Any]]) -> Any:
    import torch

    from squall.actors.probes.pipeline_probe import PipelineMeasure

    config = probe_from_mapping(PIPELINE)
    assert isinstance(config, PipelineProbe)
    told = config.model_dump(mode="json")
    told["variants"] = [{**one.model_dump(), "name": one.name} for one in config.variants]
    return PipelineMeasure(told, torch.device("cpu"), 3, rows.append, tmp_path)


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("damage", ["another class", "another probability", "not a number", "a class twice"])
def test_a_variant_whose_outputs_differ_has_no_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    from squall.actors.probes import variants

    whole = variants.Pipeline.run

    def damaged(self: variants.Pipeline, index: int) -> variants.Outputs:
        values, indices = whole(self, index)
        values, indices = values.clone(), indices.clone()
        if index % 4 == 2:  # of one batch alone
            match damage:
                case "another class":
                    indices[0, 0] = (indices[0, 0] + 5) % 10
                case "another probability":
                    values[1, 1] *= 1.2
                case "not a number":
                    values[0, 0] = float("nan")
                case _:
                    indices[1, 1], values[1, 1] = indices[1, 0], values[1, 0]
        return values, indices

    rows: list[dict[str, Any]] = []
    sound = _pipeline_measure(tmp_path, rows)
    assert [facts["differing"] for facts in sound.measure()][-1] == {}
    assert rows
    rows.clear()
    monkeypatch.setattr(variants.Pipeline, "run", damaged)
    broken = _pipeline_measure(tmp_path, rows)
    *_, facts = broken.measure()
    assert facts["differing"]["pageable, separate kernels"].startswith("batch 2: ")
    assert facts["left_out"]["pageable, separate kernels"].startswith("its outputs differ: batch 2")
    assert rows == []


@needs_torch
@pytest.mark.slow
@pytest.mark.long
def test_a_compiled_stage_gives_the_outputs_of_the_modules(tmp_path: Path) -> None:
    kinds = ("separate", "compiled")
    variants = [{"memory": "pageable", "kernels": one} for one in kinds]
    folder = measured({**PIPELINE, "variants": variants}, tmp_path)
    figures = probe_figures(folder)["pageable, one compiled stage"]
    assert "not_measured" not in figures
    assert {"stage_fused_ns", "gain_ratio"} <= set(figures)


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("how", ["raise ValueError('no')", "os.kill(os.getpid(), 11)"])
def test_what_was_measured_outlives_a_profiler_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    planted = tmp_path / "before"
    planted.mkdir()
    (planted / "sitecustomize.py").write_text(
        "import os, sys\n"
        "class Find:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'squall.actors.probes.operator_probe':\n"
        "            import torch.profiler\n"
        "            def fail(*_, **__):\n"
        f"                {how}\n"
        "            torch.profiler.profile.__enter__ = fail\n"
        "sys.meta_path.insert(0, Find())\n"
    )
    monkeypatch.syspath_prepend(str(planted))
    folder = measured(OPERATOR, tmp_path / "runs")
    run = open_run(folder)
    assert set(run.pandas("probe_calls")["under"]) == {"nothing"}
    figures = probe_figures(folder)
    assert figures["all sizes"]["not_measured"]
    assert "warm_call_ns" in figures["64"]
    assert "op_cpu_ns" not in figures["64"]
