"""The probe's process: `python -m squall.actors.probes.process FOLDER`, in which the probe's owner left `config.json`.

It writes `rows.jsonl`, its instants on the monotonic clock, `trace/`, and last `answer.json`: the facts of what it
measured, or in `error` one line why it did not. It ends when its owner ends. Standard library alone up to the point at
which torch is known to be there.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_LONGEST_REASON = 400
INSTALL = "pip install torch, or `pip install squall[torch]`"


class Refused(Exception):
    """The probe cannot run here: one line with the mend."""


def main(folder: Path) -> int:
    """0: measured. 1: `answer.json` says why not, or what there is without the profiler's part."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # prctl(2)
    asked = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if os.getppid() != asked["owner"]:
        return 1  # it ended before that was set
    has_measured = False
    try:
        for answer in _answers(asked, folder):
            _leave(answer, folder)
            has_measured = True
    except Refused as error:
        _leave({"error": str(error)}, folder)
    except Exception as error:  # the edge of the process; the log has the traceback
        traceback.print_exc()
        if has_measured:  # what was left says that the profiler's part is missing
            return 1
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        told = f"{type(error).__name__}: {lines[0] if lines else 'without a word'}"[:_LONGEST_REASON]
        _leave({"error": f"the probe broke off: {told}; its log has the rest"}, folder)
    else:
        return 0
    return 1


def _leave(answer: Mapping[str, Any], folder: Path) -> None:
    beside = folder / "answer.json.new"
    beside.write_text(json.dumps(answer), encoding="utf-8")
    beside.rename(folder / "answer.json")


def _answers(asked: Mapping[str, Any], folder: Path) -> Iterator[dict[str, Any]]:
    """The facts as they come, each with all before it: what has been measured outlives a profiler that crashes."""
    config = asked["config"]
    try:
        torch = import_module("torch")
    except ImportError as error:
        raise Refused(f"torch is not installed, or does not load ({error}): {INSTALL}") from error
    device = _device(torch, config["device"])
    torch.set_num_threads(1)  # more would spin beside the one that gives the GPU its work
    name = {"operator": "operator_probe.OperatorMeasure", "pipeline": "pipeline_probe.PipelineMeasure"}
    module, _, measure_class = name[config["kind"]].partition(".")
    measure_type = getattr(import_module(f"squall.actors.probes.{module}"), measure_class)
    begun_ns = time.monotonic_ns()
    with (folder / "rows.jsonl").open("w", encoding="utf-8") as rows, torch.no_grad():
        measure = measure_type(
            config, device, asked["seed"], lambda row: print(json.dumps(row), file=rows), folder / "trace"
        )
        for facts in measure.measure():
            rows.flush()
            times = {"begun_ns": begun_ns, "ended_ns": time.monotonic_ns()}
            yield {**facts, **times, "torch": _versions(torch, device)}


def _device(torch: Any, wanted: str) -> Any:
    """Raises Refused where there is none."""
    if wanted == "cpu":
        return torch.device("cpu")
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        raise Refused(
            f"torch {torch.__version__} is built without CUDA: install one that is (https://pytorch.org), or set "
            "device: cpu"
        )
    if not torch.cuda.is_available():
        raise Refused("torch sees no GPU here: squall doctor says what is missing; or set device: cpu")
    try:
        torch.cuda.init()
        torch.zeros(1, device="cuda")
    except RuntimeError as error:
        lines = str(error).splitlines() or [""]
        raise Refused(
            f"the GPU cannot be used by torch: {lines[0]}; squall doctor says what is missing"
        ) from error
    return torch.device("cuda", torch.cuda.current_device())


def _versions(torch: Any, device: Any) -> dict[str, Any]:
    """What ran it; no path and no name of the host."""
    found: dict[str, Any] = {"version": torch.__version__, "threads": torch.get_num_threads()}
    if device.type == "cuda":
        found["cuda"] = torch.version.cuda
        found["cudnn"] = torch.backends.cudnn.version()
        found["gpu"] = torch.cuda.get_device_name(device)
        uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))  # since torch 2.4
        found["gpu_uuid"] = uuid if not uuid or uuid.startswith("GPU-") else f"GPU-{uuid}"
        found["capability"] = ".".join(map(str, torch.cuda.get_device_capability(device)))
        found["peak_memory_bytes"] = torch.cuda.max_memory_allocated(device)
    return found


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
