"""A model of somebody else's that uses CUDA, without CUDA: its process loads the kernel library as the driver would,
and has a CUPTI of known behaviour (tests/native/fake_cupti.c) make its kernels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from squall.analysis.storage.clock_track import ClockTrack
from tests.integration.foreign_models import GATHERED, TENSORS

N_KERNELS = 3
"""Of each request; and each execution has two copies."""
LONGEST_NS = 1_000_000
"""No operation takes so long, from its making: 1 us, and a ns for each of its number."""
MODEL = '''
import ctypes
import json
import os
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Gives its input back. Tells of everything that it puts on the GPU: what, number, requests, before, after."""

    def initialize(self, args):
        self._cupti = ctypes.CDLL(os.environ["SQUALL_CUPTI"])
        ctypes.CDLL(os.environ["CUDA_INJECTION64_PATH"]).InitializeInjection()  # CUDA would, in its first call
        told = json.loads(args["model_config"])["parameters"]["told"]["string_value"]
        self._told = open(os.path.join(told, str(os.getpid())), "w")
        self._n = 0
        self._busy = threading.Lock()
        threading.Thread(target=self._idle, daemon=True).start()

    def _launch(self, what, requests=()):
        """The fake makes device, context and stream of the number: executions have theirs, other kernels another."""
        number = 120 * self._n + (0 if requests else 4)
        before = time.monotonic_ns()
        if what == "copy":
            self._cupti.fake_copy(ctypes.c_uint32(number), 0)
        else:
            self._cupti.fake_kernel(ctypes.c_uint32(number), b"_Z6matmulPKfS0_Pf", 1)
        ids = ",".join(requests) or "-"
        self._told.write(f"{what} {number} {ids} {before} {time.monotonic_ns()}\\n")
        self._told.flush()
        self._n += 1

    def _idle(self):
        """Kernels of no batch."""
        while True:
            time.sleep(0.02)
            with self._busy:
                self._launch("kernel")

    def execute(self, requests):
        ids = [request.request_id() for request in requests]
        with self._busy:
            self._launch("copy", ids)
            for _ in range(KERNELS * len(ids)):
                self._launch("kernel", ids)
            time.sleep(0.002)
            self._launch("copy", ids)
            time.sleep(0.002)
        inputs = [pb_utils.get_input_tensor_by_name(request, "IN") for request in requests]
        outputs = [pb_utils.Tensor.from_dlpack("OUT", np.array(one.as_numpy())) for one in inputs]
        return [pb_utils.InferenceResponse([one]) for one in outputs]
'''


def write_cuda_model(folder: Path, name: str, told: Path, n_instances: int) -> None:
    """Each instance's process writes what it did to a file below `told`, called by its process id."""
    (folder / name / "1").mkdir(parents=True)
    told.mkdir()
    (folder / name / "1" / "model.py").write_text(MODEL.replace("KERNELS", str(N_KERNELS)))
    (folder / name / "config.pbtxt").write_text(
        f'name: "{name}"\nbackend: "python"\n{GATHERED}{TENSORS}'
        f"instance_group [{{ kind: KIND_CPU count: {n_instances} }}]\n"
        f'parameters {{ key: "told" value: {{ string_value: "{told}" }} }}\n'
    )


@dataclass(frozen=True)
class Launched:
    """One operation as its model tells of it; instants around its making. `requests`: ours of the execution that it
    belongs to; empty: of none."""

    what: str
    process: int
    number: int
    requests: tuple[int, ...]
    before_ns: int
    after_ns: int


def launched(told: Path, clock: ClockTrack) -> list[Launched]:
    """All that was put on the GPU; instants by `clock`."""
    found = []
    for path in told.iterdir():
        for line in path.read_text().splitlines():
            what, number, ids, *edges = line.split()
            requests = tuple(int(one) for one in ids.split(",") if one.isdigit())
            before_ns, after_ns = (clock.target_ns(int(edge)) for edge in edges)
            found.append(Launched(what, int(path.name), int(number), requests, before_ns, after_ns))
    return found
