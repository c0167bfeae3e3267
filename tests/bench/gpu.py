"""What the collectors see on a real GPU: runs of two heads in PyTorch fp16, held against `nsys stats` and searched.

    python -m tests.bench.gpu OUT [--seconds S] [--rate HZ] [--graphs] [--heads HEAD ...]

Each head is run with nsys, NVML and GPM through two measured phases of S seconds (6) at HZ requests of 8 rows a second
(1,500), once steady and once in bursts. Then, for each phase: are all tables there, which share of the kernels is
tied to a batch, do calls, kernels, copies and OS-runtime calls equal what NVIDIA's own `nsys stats` says of the raw
report, and is any of the secrets that were planted (environment, argument, output) in the scrubbed report or in a
table? Prints one JSON object; exit code 1 where an answer is not what it must be.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml

from squall.actors.nsys.tools import NsysTools, find_nsys
from squall.analysis.nsys.report import NsysReport
from squall.analysis.record import to_json
from squall.analysis.storage.schema import arrow_schema
from squall.analysis.storage.store import RunStore
from squall.cluster.node.triton_home import cache_dir
from tests.nsys_stats import summary

TABLES = (
    "requests", "batches", "joined", "windows", "triton_samples", "host_samples", "core_samples", "thread_samples",
    "gpu_samples", "gpu_processes", "kernels", "memcpys", "syncs", "cuda_api", "osrt", "nvtx", "clock_marks",
)  # fmt: skip
REPORTS = {
    "cuda_api_sum": "cudaapisum", "cuda_gpu_kern_sum:base": "gpukernsum:base",
    "cuda_gpu_mem_time_sum": "gpumemtimesum", "osrt_sum": "osrtsum",
}  # fmt: skip
"""Reports of `nsys stats`, and their names before 2023."""
_VERSION = re.compile(r"_v\d+$")
_KEPT = re.compile(r"raw report of phase (\w+), not scrubbed, is in squall's cache on \S+: (.+)$")
LEAST_TIED = 0.99
LEAST_SM_RATIO = 10.0


def scenario_of(head: str, options: argparse.Namespace) -> dict[str, Any]:
    """Two measured phases after a warm-up, with a pause for nsys to import the first report."""
    seconds, rate_hz, on_gpu = options.seconds, options.rate, options.device == "gpu"
    steady = {"kind": "poisson", "rate": f"{rate_hz:g}/s"}
    bursts = {
        "kind": "envelope", "preset": "nasa-flash-crowd", "bin": f"{max(20, round(seconds * 1000 / 60))}ms",
        "rate": f"{rate_hz:g}/s",
    }  # fmt: skip
    return {
        "name": head.replace("_", "-"), "seed": 1,
        "model": {
            "name": head, "framework": "torch", "device": options.device,
            "precision": "fp16" if on_gpu else "fp32", "cuda_graphs": options.graphs,
            "max_batch_size": 256, "preferred_batch_sizes": [128, 256], "queue_delay": "1ms",
        },
        "clients": {"workers_per_node": 4, "timeout": "5s", "rows": {"kind": "constant", "value": 8}},
        "phases": [
            {"name": "warmup", "kind": "warmup", "duration": "3s", "arrivals": steady},
            {"name": "steady", "kind": "measure", "duration": f"{seconds:g}s", "arrivals": steady},
            {"name": "between", "kind": "warmup", "duration": "12s", "arrivals": {**steady, "rate": "50/s"}},
            {"name": "burst", "kind": "measure", "duration": f"{seconds:g}s", "arrivals": bursts},
            {"name": "drain", "kind": "drain", "duration": "3s"},
        ],
        "profile": {"nsys": "required", "nvml": "required" if on_gpu else "off", "osrt_threshold": "20us"},
    }  # fmt: skip


def planted() -> dict[str, str]:
    """Secrets by where they are planted: TZ reaches the server's environment; TMPDIR its arguments and its output.

    The latter names a folder that it makes in /tmp: Ray's sockets below it must have short paths.
    """
    texts = {name: f"sq{secrets.token_hex(6)}" for name in ("environment", "argument")}
    Path("/tmp", texts["argument"]).mkdir(mode=0o700)
    return texts


def run(head: str, out: Path, options: argparse.Namespace, found: dict[str, str]) -> RunStore:
    """One `squall run` with the secrets planted; its sealed directory. Raises RuntimeError where there is none."""
    scenario = out / f"{head}.yaml"
    scenario.write_text(yaml.safe_dump(scenario_of(head, options)))
    command = [sys.executable, "-m", "squall.cluster.cli", "run", str(scenario), "--out", str(out / head)]
    env = {**os.environ, "TZ": f":/{found['environment']}", "TMPDIR": f"/tmp/{found['argument']}"}
    done = subprocess.run(
        [*command, "--keep-raw-report"], env=env, capture_output=True, text=True, timeout=400, check=False
    )
    sys.stderr.write(done.stderr[-3_000:] + done.stdout[-6_000:])
    runs = sorted((out / head).glob("*/manifest.json"))
    if not runs:
        raise RuntimeError(f"no run of {head}: {done.stderr[-500:]}")
    return RunStore.open(runs[-1].parent)


def raw_reports(store: RunStore) -> dict[str, Path]:
    """The raw report of each phase, by the run's own notes."""
    kept = [_KEPT.search(note) for note in store.manifest.notes]
    return {one[1]: cache_dir() / one[2] for one in kept if one is not None}


def nvidias(tools: NsysTools, raw: Path, folder: Path) -> dict[str, Counter[tuple[str, int, int]]]:
    """(name, n, total) of each report of `nsys stats`, version suffixes stripped."""
    env = {**os.environ, **tools.env}
    called = {new: new if tools.version >= (2023,) else old for new, old in REPORTS.items()}
    names = ",".join(called.values())
    subprocess.run(
        [str(tools.nsys), "stats", "--format=csv", "--force-export=true", f"--report={names}", "-o", str(folder / "s"),
         str(raw)], env=env, check=True, capture_output=True, timeout=300,
    )  # fmt: skip
    found = {}
    for report, name in called.items():
        path = folder / f"s_{name.replace(':', '_')}.csv"
        rows = list(csv.reader(path.open())) if path.exists() else []
        found[report] = _merged((row[-1], int(row[2]), int(row[1])) for row in rows[1:] if len(row) > 3)
    return found


def ours(report: NsysReport) -> dict[str, Counter[tuple[str, int, int]]]:
    """The same of the scrubbed report."""
    return {
        name: _merged((row["name"], row["n"], row["total"]) for row in summary(report, name).to_pylist())
        for name in REPORTS
    }


def _merged(rows: Any) -> Counter[tuple[str, int, int]]:
    counts: dict[str, list[int]] = {}
    for name, n, total in rows:
        sums = counts.setdefault(_called(name), [0, 0])
        sums[0] += n
        sums[1] += total
    return Counter((name, n, total) for name, (n, total) in counts.items())


def _called(name: str) -> str:
    """One name for what versions of nsys call differently: suffixes of API versions, kinds of copies in full."""
    name = _VERSION.sub("", name).strip("[]")
    return re.sub(
        r"(Device|Host|Peer)-to-(Device|Host|Peer)", lambda found: f"{found[1][0]}to{found[2][0]}", name
    )


def search(store: RunStore, texts: dict[str, str]) -> dict[str, int]:
    """In how many files of the run directory each secret is: their bytes, and the values of the Parquet files."""
    n_files = dict.fromkeys(texts, 0)
    for path in sorted(store.run_dir.rglob("*")):
        if not path.is_file() or path.parent.name == "logs":
            continue
        content = path.read_bytes()
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            content += "\n".join(
                str(value)
                for column in table.columns
                if pa.types.is_string(column.type) or pa.types.is_dictionary(column.type)
                for value in pc.unique(column.combine_chunks()).to_pylist()
            ).encode()
        for name, text in texts.items():
            n_files[name] += text.encode() in content
    return n_files


def examine(head: str, store: RunStore, tools: NsysTools, texts: dict[str, str]) -> dict[str, Any]:
    """All answers about one run."""
    manifest = store.manifest
    found: dict[str, Any] = {
        "verdict": manifest.status, "reasons": list(manifest.reasons),
        "nsys": manifest.nsys.version, "missing_tables": [name for name in TABLES if not store.has(name)],
        "rows": {name: store.read(name, ["phase"]).num_rows for name in TABLES if store.has(name)},
        "scrubbed_files_with_secret": search(store, texts), "phases": {},
    }  # fmt: skip
    reports = raw_reports(store)
    found["raw_reports_with_secret"] = {
        name: sum(text.encode() in path.read_bytes() for path in reports.values())
        for name, text in texts.items()
    }
    for phase, raw in reports.items():
        with tempfile.TemporaryDirectory() as folder:
            theirs = nvidias(tools, raw, Path(folder))
            exported = Path(folder) / "raw.sqlite"
            subprocess.run(
                [str(tools.nsys), "export", "--type=sqlite", "-f", "true", "-o", str(exported), str(raw)],
                env={**os.environ, **tools.env}, check=True, capture_output=True, timeout=300,
            )  # fmt: skip
            content = exported.read_bytes()
            for name, text in texts.items():
                found["raw_reports_with_secret"][name] += text.encode() in content
        found["phases"][phase] = _examine_phase(store, phase, theirs)
    shutil.rmtree(next(iter(reports.values())).parent, ignore_errors=True) if reports else None
    found["costs"] = json.loads((store.run_dir / "summary.json").read_text())["collector_costs"]
    found["gpu_sampler"] = {
        name: to_json(facts)
        for name, facts in manifest.observers["node-0"].samplers.items()
        if name.startswith("gpu_")
    }
    found["head"] = head
    return found


def _examine_phase(store: RunStore, phase: str, theirs: dict[str, Any]) -> dict[str, Any]:
    mine = ours(NsysReport(store.run_dir / "nsys" / "server-0" / phase))
    differing = {
        name: {"ours": _some(mine[name] - theirs[name]), "nsys stats": _some(theirs[name] - mine[name])}
        for name in REPORTS
        if mine[name] != theirs[name]
    }  # fmt: skip
    kernels = _of(store, "kernels", phase)
    gpu = _of(store, "gpu_samples", phase)
    tied = np.asarray(kernels.column("batch_id").is_valid()) if len(kernels) else np.zeros(0, bool)
    launched = pc.subtract(kernels.column("start_ns"), kernels.column("launch_start_ns")).drop_null()
    sm_util = gpu.column("sm_util").drop_null().to_numpy()
    power = gpu.column("power_instant_w").drop_null().to_numpy()
    return {
        "n_equal": {name: sum(n for _, n, _ in mine[name]) for name in REPORTS if name not in differing},
        "differing": differing,
        "n_kernels": len(kernels), "tied_ratio": float(tied.mean()) if len(tied) else None,
        "in_graphs": int(pc.sum(kernels.column("graph_node_id").is_valid()).as_py() or 0),
        "launch_to_start_ns": _quantiles(launched.to_numpy()),
        "sm_util": float(sm_util.mean()) if len(sm_util) else None, "n_gpm": len(sm_util),
        "power_w": float(power.mean()) if len(power) else None,
        "util": _mean(gpu, "util"),
        "tensor_util": _mean(gpu, "tensor_util"), "dram_util": _mean(gpu, "dram_util"),
        "sm_occupancy": _mean(gpu, "sm_occupancy"),
        "clock": to_json(store.manifest.nsys.reports[phase].clock),
    }  # fmt: skip


def _some(rows: Counter[tuple[str, int, int]]) -> list[str]:
    return sorted(map(str, rows))[:5]


def _of(store: RunStore, table: str, phase: str) -> pa.Table:
    data = store.read(table) if store.has(table) else arrow_schema(table).empty_table()
    return data.filter(pc.equal(data.column("phase").cast(pa.string()), phase))


def _mean(data: pa.Table, column: str) -> float | None:
    values = data.column(column).drop_null().to_numpy()
    return float(values.mean()) if len(values) else None


def _quantiles(values: Any) -> dict[str, float]:
    return {f"p{q:g}": float(np.percentile(values, q)) for q in (0, 1, 50, 99, 100)} if len(values) else {}


def faults(found: dict[str, dict[str, Any]]) -> list[str]:
    """What is not as it must be, as sentences; empty if all is well."""
    wrong = []
    for head, one in found.items():
        if one["missing_tables"]:
            wrong.append(f"{head}: no table {', '.join(one['missing_tables'])}")
        if len(one["phases"]) < 2:
            wrong.append(f"{head}: {len(one['phases'])} of 2 phases have a report")
        wrong += [
            f"{head}: the secret of the {name} is in {n} files"
            for name, n in one["scrubbed_files_with_secret"].items()
            if n
        ]
        wrong += [
            f"{head}: no secret of the {name} was planted"
            for name, n in one["raw_reports_with_secret"].items()
            if not n
        ]
        for phase, figures in one["phases"].items():
            if figures["differing"]:
                wrong.append(f"{head}, {phase}: not as nsys stats: {figures['differing']}")
            if (figures["tied_ratio"] or 0) < LEAST_TIED:
                wrong.append(f"{head}, {phase}: {figures['tied_ratio']} of the kernels are tied to a batch")
    if {"linear_head", "seqlen_head"} <= set(found):
        low, high = (found[head]["phases"]["steady"]["sm_util"] for head in ("linear_head", "seqlen_head"))
        if not low or high / low < LEAST_SM_RATIO:
            wrong.append(f"SM utilisation of the heads: {low} and {high}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rate", type=float, default=1_500.0)
    parser.add_argument("--graphs", action="store_true")
    parser.add_argument(
        "--device", choices=("gpu", "cpu"), default="gpu", help="cpu: to try the program itself"
    )
    parser.add_argument("--heads", nargs="+", default=["linear_head", "seqlen_head"])
    options = parser.parse_args()
    tools = find_nsys(cache_dir())
    if tools is None:
        sys.stderr.write("nsys is not installed\n")
        return 1
    options.out.mkdir(parents=True, exist_ok=True)
    found = {}
    texts = planted()
    try:
        for head in options.heads:
            found[head] = examine(head, run(head, options.out, options, texts), tools, texts)
    finally:
        shutil.rmtree(f"/tmp/{texts['argument']}", ignore_errors=True)
    wrong = faults(found)
    print(json.dumps({"heads": found, "faults": wrong}, indent=1))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
