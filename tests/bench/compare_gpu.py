"""`squall compare` on a GPU: linear_head eager against CUDA graphs, with the kernels and calls of both recorded.

    python -m tests.bench.compare_gpu OUT [--pairs N] [--seconds S] [--rate HZ] [--arrivals KIND] [--gpu N]

The head is 20 layers in PyTorch fp16, bound by launches where it is eager: what a comparison must name as changed is
the time in which the GPU waits for launches. `--arrivals` is poisson, or gamma with a cv of 2. `--device cpu` tries the
bench where no GPU is: a small head in NumPy, one instance against two, no kernels. Prints one JSON object, which is in
OUT/compare_gpu.json too: verdict, figures, parts, the batch on the GPU at equal size, kernels. Exit code 1 where a
comparison did not end, on a GPU also where B is not better or its largest change in a batch is not of `LAUNCH_BOUND`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

LAUNCH_BOUND = ("launch idle", "idle", "head")
"""Parts of a batch in which the GPU has nothing to run yet."""


def scenario_of(options: argparse.Namespace) -> dict[str, Any]:
    """Requests of 8 rows, and half of the measured phase recorded."""
    on_gpu = options.device == "gpu"
    arrivals: dict[str, Any] = {"kind": options.arrivals, "rate": f"{options.rate:g}/s"}
    if options.arrivals == "gamma":
        arrivals["cv"] = 2.0
    model: dict[str, Any] = {"name": "linear_head", "max_batch_size": 64, "queue_delay": "0ms"}
    if on_gpu:
        model |= {"framework": "torch", "device": "gpu", "precision": "fp16"}
    else:
        model |= {"settings": {"width": 64, "layers": 4}}
    kinds = ["kernels", "copies", "sync", "runtime", "driver"]
    return {
        "name": "eager-or-graphs", "seed": 1, "model": model,
        "clients": {"workers_per_node": 2, "timeout": "5s", "rows": {"kind": "constant", "value": 8},
                    "check": {"share": 0.01, "rtol": 0.02, "atol": 0.02}},
        "phases": [
            {"name": "warmup", "kind": "warmup", "duration": "2s", "arrivals": arrivals},
            {"name": "load", "kind": "measure", "duration": f"{options.seconds:g}s", "arrivals": arrivals},
            {"name": "drain", "kind": "drain", "duration": "2s"},
        ],
        "profile": {"nsys": "off", "kernels": "required" if on_gpu else "off", "kernel_kinds": kinds,
                    "duty": "200ms/400ms"},
        **({"servers": [{"gpus": [options.gpu]}]} if on_gpu else {}),
    }  # fmt: skip


def sides_of(device: str) -> list[str]:
    """What differs between A and B."""
    key, a, b = ("model.cuda_graphs", "false", "true") if device == "gpu" else ("model.instances", "1", "2")
    return ["--set-a", f"{key}={a}", "--set-b", f"{key}={b}"]


def compared(options: argparse.Namespace) -> dict[str, Any]:
    """What one `squall compare --json` found, and its exit code. Raises RuntimeError where it did not end."""
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "scenario.yaml"
    path.write_text(yaml.safe_dump(scenario_of(options)))
    command = [sys.executable, "-m", "squall.cluster.cli", "compare", str(path), *sides_of(options.device)]
    command += ["--pairs", str(options.pairs), "--out", str(options.out), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout.startswith("{"):
        raise RuntimeError(f"squall compare ended with {done.returncode}")
    return {**json.loads(done.stdout), "exit_code": done.returncode}


def told(found: dict[str, Any]) -> dict[str, Any]:
    """The part of a comparison that answers what changed."""
    gpu = found["gpu"] or {}
    kernels = [
        {"name": one["name"], "state": one["state"], "calls": [one["calls"]["a"], one["calls"]["b"]],
         "call_ns": [one["call_a_ns"], one["call_b_ns"]], "time_change_ns": one["time_ns"]["change"]}
        for one in gpu.get("kernels", ())
    ]  # fmt: skip
    figures = {
        one["metric"]: {key: one[key] for key in ("mean_a", "mean_b", "change", "low", "high", "verdict")}
        for one in found["changes"]
    }
    parts = {side: (found[side] or {}).get("parts") for side in ("every", "tail")}
    batch = {
        key: gpu.get(key)
        for key in ("n_pairs", "n_batches_a", "n_batches_b", "sizes", "length", "parts", "kernel_time")
    }
    return {
        "verdict": found["verdict"], "exit_code": found["exit_code"], "n_pairs": found["n_pairs"],
        "marks": found["marks"], "answers": found["answers"], "figures": figures, "parts": parts,
        "batches": found["batches"], "batch_on_gpu": batch, "kernels": kernels,
        "pairs": found["pairs"],
    }  # fmt: skip


def faults(found: dict[str, Any], device: str) -> list[str]:
    """What is not as it must be."""
    if device != "gpu":
        return []
    wrong = []
    if found["verdict"] != "better":
        wrong.append(f"graphs against eager: {found['verdict']}")
    parts = found["batch_on_gpu"]["parts"] or []
    if not parts or parts[0]["what"] not in LAUNCH_BOUND or parts[0]["change"] >= 0:
        wrong.append(f"the largest change of a batch is {parts[0]['what'] if parts else 'not known'}")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rate", type=float, default=800.0)
    parser.add_argument("--arrivals", choices=("poisson", "gamma"), default="poisson")
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    options = parser.parse_args()
    found = told(compared(options))
    (options.out / "compare_gpu.json").write_text(json.dumps(found, indent=1))
    print(json.dumps(found, indent=1))
    wrong = faults(found, options.device)
    for one in wrong:
        print(one, file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
