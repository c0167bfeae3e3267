"""A foreign program on the GPU of a server, seen and named: runs alone and beside it, and what NVML says meanwhile.

    python -m tests.bench.gpu_neighbour OUT [--seconds S] [--rate HZ] [--budget S] [--device cpu]

First what NVML answers about processes (none, then a foreign PyTorch program that multiplies matrices), with the ids
of that program here and in its own namespace. Then `squall run` of a small model on GPU 0: alone; with the program on
GPU 0 all the time; with it on and off every two seconds; and where there are two GPUs, with it on GPU 1, and two
servers, one a GPU, with it on GPU 1. Of each the verdict, the first finding, p95, and what the run says of other
processes on its GPUs, as a table; all of it, and NVML's raw answers in the middle of each run, are in
OUT/gpu_neighbour.json. No run is begun when the budget (170 s) is spent. Exit code 1 where a run does not say what it
must. `--device cpu` tries the program where no GPU is.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from squall.analysis.storage.store import RunStore

_SQUALL = [sys.executable, "-m", "squall.cluster.cli"]
_READY_S, _RUN_S = 60.0, 120.0
NEIGHBOUR = """
import os, sys, threading, time
import torch

gpu, on_s, off_s = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
threading.Timer(300, os._exit, (0,)).start()
a = torch.randn(8192, 8192, device=f"cuda:{gpu}", dtype=torch.float16)
(a @ a).sum().item()
print("ready", flush=True)
while True:
    until = time.monotonic() + on_s
    while time.monotonic() < until:
        for _ in range(8):
            b = a @ a
        torch.cuda.synchronize(gpu)
    time.sleep(off_s)
"""
"""Ends with who started it, or after 5 minutes."""


def scenario_of(options: argparse.Namespace, name: str, gpus: list[int]) -> dict[str, Any]:
    """A steady load of small requests, a server on each of `gpus`."""
    on_gpu = options.device == "gpu"
    arrivals = {"kind": "poisson", "rate": f"{options.rate:g}/s"}
    model: dict[str, Any] = {
        "name": "linear_head",
        "max_batch_size": 32,
        "queue_delay": "1ms",
        "instances": 1,
    }
    if on_gpu:
        model |= {"framework": "torch", "device": "gpu", "precision": "fp16"}
    return {
        "name": name, "seed": 1, "model": model,
        "clients": {"workers_per_node": 2, "timeout": "5s", "rows": {"kind": "constant", "value": 8}},
        "phases": [
            {"name": "warmup", "kind": "warmup", "duration": "3s", "arrivals": arrivals},
            {"name": "load", "kind": "measure", "duration": f"{options.seconds:g}s", "arrivals": arrivals},
            {"name": "drain", "kind": "drain", "duration": "3s"},
        ],
        "profile": {"nsys": "off", "kernels": "off", "nvml": "required" if on_gpu else "off"},
        **({"servers": [{"gpus": [gpu]} for gpu in gpus]} if on_gpu else {}),
    }  # fmt: skip


def _answer(ask: Callable[[], Any]) -> Any:
    """What NVML says, or its error in words."""
    try:
        return ask()
    except Exception as error:  # whatever it is, it is what was to be learnt
        return f"{type(error).__name__}: {error}"


def nvml_answers() -> list[dict[str, Any]] | str:
    """Everything about processes that NVML says of each GPU at this moment, raw."""
    import pynvml as nvml

    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return str(error)

    def processes(call: Callable[[Any], Any], gpu: Any) -> Any:
        return [
            {"pid": one.pid, "memory": one.usedGpuMemory, "gpu_instance": getattr(one, "gpuInstanceId", None)}
            for one in call(gpu)
        ]

    def use(gpu: Any) -> Any:
        return [
            {"pid": one.pid, "at_us": one.timeStamp, "sm": one.smUtil, "memory": one.memUtil}
            for one in nvml.nvmlDeviceGetProcessUtilization(gpu, 0)
        ]

    found = []
    for index in range(nvml.nvmlDeviceGetCount()):
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        newer = getattr(nvml, "nvmlDeviceGetProcessesUtilizationInfo", None)
        found.append({
            "index": index, "uuid": _answer(lambda: nvml.nvmlDeviceGetUUID(gpu)),  # noqa: B023
            "compute": _answer(lambda: processes(nvml.nvmlDeviceGetComputeRunningProcesses_v3, gpu)),  # noqa: B023
            "graphics": _answer(lambda: processes(nvml.nvmlDeviceGetGraphicsRunningProcesses_v3, gpu)),  # noqa: B023
            "mps": _answer(lambda: processes(nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3, gpu)),  # noqa: B023
            "use": _answer(lambda: use(gpu)),  # noqa: B023
            "use_info": "no such call" if newer is None else _answer(lambda: str(newer(gpu, 0))),  # noqa: B023
            "mig": _answer(lambda: nvml.nvmlDeviceGetMigMode(gpu)),  # noqa: B023
            "accounting": _answer(lambda: nvml.nvmlDeviceGetAccountingMode(gpu)),  # noqa: B023
            "util": _answer(lambda: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu),  # noqa: B023
            "memory_used": _answer(lambda: nvml.nvmlDeviceGetMemoryInfo(gpu).used),  # noqa: B023
            "throttle": _answer(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)),  # noqa: B023
        })  # fmt: skip
    nvml.nvmlShutdown()
    return found


def processes_here() -> list[dict[str, Any]]:
    """Of each process that may use a GPU its id, those in its namespaces, its name, and which driver files it holds."""
    found = []
    for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda one: int(one.name)):
        try:
            status = (folder / "status").read_text()
            fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
            opened = {
                os.readlink(one)
                for one in (folder / "fd").iterdir()
                if os.readlink(one).startswith("/dev/nvidia")
            }
        except OSError:
            continue
        if opened or "triton" in fields.get("Name", ""):
            found.append({
                "pid": int(folder.name), "nspid": fields.get("NSpid"), "parent": fields.get("PPid"),
                "name": fields.get("Name"), "driver": sorted(opened)[:6],
            })  # fmt: skip
    return found


@contextmanager
def neighbour(gpu: int | None, on_s: float = 1.0, off_s: float = 0.0) -> Iterator[int | None]:
    """The foreign program on a GPU while the block runs, its id; nothing where `gpu` is None."""
    if gpu is None:
        yield None
        return
    command = [sys.executable, "-c", NEIGHBOUR, str(gpu), str(on_s), str(off_s)]
    program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert program.stdout is not None
        if program.stdout.readline().strip() != "ready":
            raise RuntimeError("the neighbour did not start")
        yield program.pid
    finally:
        program.kill()
        program.wait(_READY_S)


def run(options: argparse.Namespace, name: str, gpus: list[int]) -> dict[str, Any]:
    """One `squall run`: what its summary says, its processes on GPUs, and NVML's answers in the middle of it."""
    path = options.out / f"{name}.yaml"
    path.write_text(yaml.safe_dump(scenario_of(options, name, gpus)))
    command = [*_SQUALL, "run", str(path), "--out", str(options.out / name)]
    begun = time.monotonic()
    screen = options.out / f"{name}.screen"
    with screen.open("w") as out:
        program = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        during: Any = None
        try:
            while program.poll() is None and time.monotonic() - begun < _RUN_S:
                time.sleep(0.5)
                here = processes_here() if during is None else []
                if any("triton" in (one["name"] or "") for one in here):
                    time.sleep(8.0)  # well into the warm-up or the load
                    during = {"nvml": nvml_answers(), "processes": processes_here()}
        finally:
            if program.poll() is None:
                program.terminate()
                program.wait(_READY_S)
    runs = sorted((options.out / name).glob("*/manifest.json"))
    if not runs:
        return {"error": screen.read_text()[-1500:], "exit_code": program.returncode}
    store = RunStore.open(runs[-1].parent)
    summary_file = store.run_dir / "summary.json"
    if not summary_file.exists():
        return {"error": screen.read_text()[-1500:], "exit_code": program.returncode}
    summary = json.loads(summary_file.read_text())
    latency = summary["measure"]["latency"]["response"]["quantiles"]
    rows = store.read("gpu_processes").to_pylist() if store.has("gpu_processes") else []
    by_process: dict[str, dict[str, Any]] = {}
    for row in rows:
        key = f"{row['gpu_uuid'][:12]} {row['process']}"
        own = by_process.setdefault(key, {
            "n": 0, "is_server": row["is_server"], "uses_driver": row["uses_driver"], "sm_util": [], "memory": 0,
        })  # fmt: skip
        own["n"] += 1
        own["memory"] = max(own["memory"], row["memory_used_bytes"] or 0)
        own["sm_util"].append(row["sm_util"])
    return {
        "exit_code": program.returncode, "seconds": round(time.monotonic() - begun, 1),
        "verdict": summary["verdict"]["status"], "reasons": summary["verdict"]["reasons"][:2],
        "findings": [
            {"server": one["scope"]["server"], "rule": one["rule"], "confidence": one["confidence"],
             "claim": one["claim"], "why": one["confidence_reasons"]}
            for one in summary["findings"] if one["level"] == "window"
        ],
        "p95_ns": next((one["value_ns"] for one in latency if one["q"] == 0.95), None),
        "gpu_use": summary["gpu_use"], "gpu_text": summary["gpu_text"], "gpu": summary["gpu"],
        "before": [one.__dict__ for one in store.manifest.nodes["node-0"].gpus_before],
        "processes": by_process, "during": during,
        "losses": summary["losses"],
    }  # fmt: skip


def faults(found: dict[str, dict[str, Any]]) -> list[str]:
    """What is not as it must be."""
    wrong = [f"{name}: {one['error'][-300:]}" for name, one in found.items() if "error" in one]
    for name, one in found.items():
        rules = {each["server"]: each["rule"] for each in one.get("findings", ())}
        is_beside = name in ("same GPU", "on and off", "two servers")
        if is_beside and rules and "shared GPU" not in rules.values():
            wrong.append(f"{name}: the first findings are {rules}")
        if not is_beside and "shared GPU" in rules.values():
            wrong.append(f"{name}: called shared")
    return wrong


def table(found: dict[str, dict[str, Any]]) -> str:
    """A line for each run, and below it what it says of other processes."""
    lines = [
        f"{'run':12} {'verdict':8} {'p95 ms':>7} {'others':>7} {'made':>6} {'how':10} {'compared':9} first finding"
    ]
    for name, one in found.items():
        if "error" in one:
            lines.append(f"{name:12} failed: {one['error'][-200:]!r}")
            continue
        first = "; ".join(
            f"{each['server']} {each['rule']} ({each['confidence']})" for each in one["findings"]
        )
        p95 = f"{one['p95_ns'] / 1e6:.2f}" if one["p95_ns"] is not None else "-"
        for use in one["gpu_use"] or [{}]:
            others, made = (
                "-" if use.get(key) is None else f"{100 * use[key]:.0f} %"
                for key in ("foreign_ratio", "consequence_ratio")
            )
            how, compared = use.get("measured_by") or "-", use.get("compared") or "-"
            lines.append(
                f"{name:12} {one['verdict']:8} {p95:>7} {others:>7} {made:>6} {how:10} {compared:9} {first}"
            )
        lines += [f"    {text}" for text in (*one["gpu_text"], *one["reasons"])]
        lines.append(f"    processes: {_processes(one['processes'])}; before: {one['before']}")
    return "\n".join(lines)


def _processes(by_process: dict[str, dict[str, Any]]) -> str:
    found = []
    for key, one in by_process.items():
        known = [use for use in one["sm_util"] if use is not None]
        mean = f"{100 * sum(known) / len(known):.0f} %" if known else "no use"
        whose = "server" if one["is_server"] else f"driver open: {one['uses_driver']}"
        found.append(f"{key} ({whose}) {mean} in {len(known)} of {one['n']}, {one['memory'] >> 20} MiB")
    return "; ".join(found) or "none"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=800.0)
    parser.add_argument("--budget", type=float, default=170.0)
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    begun, on_gpu = time.monotonic(), options.device == "gpu"
    raw: dict[str, Any] = {"alone": {"nvml": nvml_answers(), "processes": processes_here()}}
    n_gpus = len(raw["alone"]["nvml"]) if isinstance(raw["alone"]["nvml"], list) else 0
    if on_gpu:
        with neighbour(0) as pid:
            time.sleep(2.5)
            raw["beside"] = {"neighbour": pid, "nvml": nvml_answers(), "processes": processes_here()}
    print(json.dumps(raw, indent=1, default=str), flush=True)
    plan: list[tuple[str, list[int], int | None, float]] = [("alone", [0], None, 0.0)]
    if on_gpu:
        plan += [("same GPU", [0], 0, 0.0), ("on and off", [0], 0, 2.0)]
    if on_gpu and n_gpus > 1:
        plan[2:2] = [("two servers", [0, 1], 1, 0.0)]
        plan += [("other GPU", [0], 1, 0.0)]
    found: dict[str, dict[str, Any]] = {}
    for name, gpus, beside, off_s in plan:
        if time.monotonic() - begun > options.budget:
            print(f"{name}: not begun, the budget is spent", flush=True)
            continue
        try:
            with neighbour(beside, 2.0 if off_s else 1.0, off_s):
                found[name] = run(options, name.replace(" ", "-").lower(), gpus)
        except (RuntimeError, OSError, KeyError) as error:
            found[name] = {"error": f"{type(error).__name__}: {error}"}
        (options.out / "gpu_neighbour.json").write_text(
            json.dumps({"raw": raw, "runs": found}, indent=1, default=str)
        )
        print(f"{name}: {found[name].get('verdict')} after {time.monotonic() - begun:.0f} s", flush=True)
        print(f"  in the middle: {json.dumps(found[name].get('during'), default=str)}", flush=True)
    print(table(found))
    wrong = faults(found) if on_gpu else []
    for one in wrong:
        print(one, file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
