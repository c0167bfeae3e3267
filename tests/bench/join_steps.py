"""What the benchmark of the join measures: the steps of squall's own, and those that stand beside them."""

from __future__ import annotations

import resource
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.analysis.report.derive import N_THREADS
from squall.analysis.storage.query import connect, in_threads
from squall.analysis.storage.store import RunStore

_EVENTS = ("kernels", "memcpys", "cuda_api", "nvtx", "osrt")


@dataclass(frozen=True)
class Step:
    """`do(path, memory_limit_bytes)` on a run directory or an export, and the tables of the run that it reads."""

    title: str
    do: Callable[[Path, int], Any]
    reads: tuple[str, ...] = ()
    needs: str = ""
    """Module or program without which it is passed over."""


def batch_costs(run: Path, memory_limit_bytes: int) -> None:
    from squall.analysis.join.batch_costs import write_batch_costs

    write_batch_costs(RunStore.open(run), memory_limit_bytes, in_threads(N_THREADS))


def joined(run: Path, memory_limit_bytes: int) -> None:
    from squall.analysis.join.join import write_joined

    write_joined(RunStore.open(run), memory_limit_bytes, in_threads(N_THREADS))


def windows(run: Path, memory_limit_bytes: int) -> None:
    from squall.analysis.metrics.windows import write_windows

    write_windows(RunStore.open(run), memory_limit_bytes=memory_limit_bytes)


def metrics(run: Path, memory_limit_bytes: int) -> None:
    from squall.analysis.metrics.run import run_metrics

    run_metrics(RunStore.open(run), memory_limit_bytes=memory_limit_bytes)


def verdict(run: Path, _memory_limit_bytes: int) -> None:
    from squall.analysis.verdict.validity import judge_run

    judge_run(RunStore.open(run))


def summary(run: Path, memory_limit_bytes: int) -> None:
    from squall.analysis.report.summary import summarise

    summarise(RunStore.open(run), memory_limit_bytes)


def report(run: Path, _memory_limit_bytes: int) -> None:
    """From the summary that `derived` left."""
    from squall.analysis.report.page import write_report
    from squall.analysis.report.summary_file import Summary

    store = RunStore.open(run)
    write_report(store, Summary.read(store))


def derived(run: Path, memory_limit_bytes: int) -> None:
    from squall.analysis.report.derive import derive

    derive(RunStore.open(run), memory_limit_bytes=memory_limit_bytes)


_BARE = """
WITH members AS (SELECT unnest(request_ids) AS request_id, server, instance, instance_device, batch_id, start_ns, end_ns
    FROM batches),
busy AS (
    SELECT server, instance, instance_device, batch_id, count(*) AS n, sum(end_ns - start_ns) AS kernel_ns
    FROM kernels GROUP BY ALL)
SELECT count(*), sum(n), sum(kernel_ns), sum(start_ns - sent_ns), sum(done_ns - end_ns)
FROM requests JOIN members USING (request_id) JOIN busy USING (server, instance, instance_device, batch_id)
"""


def bare_query(run: Path, memory_limit_bytes: int) -> None:
    """Kernels summed by batch, and every request with its batch and these sums, as sums alone: nothing is written."""
    with connect(RunStore.open(run), ["requests", "batches", "kernels"], memory_limit_bytes) as connection:
        ((n, *_),) = connection.execute(_BARE).fetchall()
    if not n:
        raise RuntimeError("the query joined nothing")


def pandas_join(run: Path, memory_limit_bytes: int) -> None:
    """As a notebook would: each request with the next batch of its server by time, and the sums of its kernels.

    merge_asof knows no request ids: the batch is a guess. The data segment of the process is bounded.
    """
    pd: Any = import_module("pandas")
    resource.setrlimit(resource.RLIMIT_DATA, (memory_limit_bytes, memory_limit_bytes))
    key = ["server", "instance", "instance_device", "batch_id"]
    tables = run / "tables"
    requests = pd.read_parquet(tables / "requests", columns=["request_id", "target", "sent_ns", "done_ns"])
    batches = pd.read_parquet(tables / "batches", columns=[*key, "start_ns", "end_ns"])
    requests["server"], batches["server"] = requests["target"].astype(str), batches["server"].astype(str)
    found = pd.merge_asof(
        requests.sort_values("sent_ns"), batches.sort_values("start_ns"), left_on="sent_ns", right_on="start_ns",
        by="server", direction="forward",
    )  # fmt: skip
    kernels = pd.read_parquet(tables / "kernels", columns=[*key, "start_ns", "end_ns"])
    kernels["kernel_ns"] = kernels["end_ns"] - kernels["start_ns"]
    sums = kernels.groupby(key, observed=True)["kernel_ns"].agg(["sum", "count"]).reset_index()
    sums["server"] = sums["server"].astype(str)
    if not len(found.merge(sums, on=key, how="left")):
        raise RuntimeError("pandas joined nothing")


def scrubbed(export: Path, _memory_limit_bytes: int) -> int:
    """Rows that were kept."""
    from squall.analysis.nsys.scrub import scrub

    folder = _scrubbed_folder(export)
    shutil.rmtree(folder, ignore_errors=True)
    return sum(scrub(export, folder).rows.values())


def event_rows(export: Path, _memory_limit_bytes: int) -> int:
    """Rows of our tables, made of what `scrubbed` left."""
    from squall.analysis.nsys.report import NsysReport
    from squall.analysis.nsys.tables import EventLabels, event_tables

    labels = EventLabels("run", "node-0", "server-0")
    report = NsysReport(_scrubbed_folder(export))
    return sum(rows.num_rows for _, rows in event_tables(report, labels, _Shifted()))


def nsys_stats(export: Path, _memory_limit_bytes: int) -> None:
    """Sums of CUDA API calls and of kernels by name, as nsys prints them: nothing is joined."""
    command = ["nsys", "stats", "--report", "cudaapisum,gpukernsum", "--format", "csv", str(export)]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    if said.returncode or "cudaLaunchKernel" not in said.stdout:
        raise RuntimeError(f"nsys stats said: {(said.stderr or said.stdout)[-200:]}")


class _Shifted:
    def convert(self, source_ns: NDArray[np.int64], /) -> NDArray[np.int64]:
        return source_ns + 1_795_250_252_000_000_000


def _scrubbed_folder(export: Path) -> Path:
    return export.with_name(f"{export.stem}-scrubbed")


RUN_STEPS = {
    "batch_costs": Step("batch_costs", batch_costs, ("batches", *_EVENTS)),
    "joined": Step("joined", joined, ("requests", "batches")),
    "windows": Step("windows", windows, ("requests", "batches", "kernels", "memcpys")),
    "metrics": Step("metrics", metrics, ("requests", "batches", *_EVENTS)),
    "derive": Step("all that `squall analyze` does", derived, ("requests", "batches", *_EVENTS)),
    "verdict": Step("verdict, as a run is sealed", verdict, ("requests",)),
    "summary": Step("summary with metrics and findings", summary, ("requests", "batches", *_EVENTS)),
    "report": Step("report", report, ("requests",)),
    "bare": Step("bare DuckDB query", bare_query, ("requests", "batches", "kernels")),
    "pandas": Step("pandas merge_asof", pandas_join, ("requests", "batches", "kernels"), "pandas"),
}
EXPORT_STEPS = {
    "scrub": Step("ingest: scrub", scrubbed),
    "events": Step("ingest: tables", event_rows),
    "nsys": Step("`nsys stats`", nsys_stats, ("calls", "kernels"), "nsys"),
}
