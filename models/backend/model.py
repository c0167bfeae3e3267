"""Triton Python-backend model of squall's heads, in numpy, with a record of every execution.

Triton copies nothing and imports nothing of ours: head, sizes and record folder come as parameters of
config.pbtxt, the weights from `weights.npz` beside this file. Each execution appends one JSON line
    {"b": batch id, "s": start_ns, "e": end_ns, "r": rows, "i": [request ids]}
to `<record_dir>/<instance>.jsonl`; the clock is CLOCK_MONOTONIC, as that of the clients. The first line names
the instance. Lines that could not be written (full disk) are counted and told in the next line that can be.

Tensors cross by DLPack, never `as_numpy()` or `Tensor(name, array)`: the stub of Triton 2.51 is built against
numpy 1's ABI and sees every element of a numpy 2 array as 0 bytes long, which empties outputs without an error.
"""

import ctypes
import json
import os
import sys
import time

# Triton embeds this Python isolated, so it does not read PYTHONPATH, which names the environment with numpy.
sys.path[:0] = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p not in sys.path]

# One core an instance: a pool of BLAS threads would take the clients' cores on the same node.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402  (after the thread settings, which numpy reads once)
import triton_python_backend_utils as pb_utils  # noqa: E402

try:
    import nvtx
except ImportError:  # without the package the ranges are missing from an nsys report, nothing else
    nvtx = None


def _relu(x):
    return np.maximum(x, 0.0, out=x)


def _linear_head(weights, x):
    for w, b in zip(weights["w"], weights["b"]):
        x = _relu(x @ w + b)
    return x @ weights["w_out"] + weights["b_out"]


def _linear_head_stacked(weights, x):
    x = np.broadcast_to(x, (weights["w"].shape[1], *x.shape))
    for w, b in zip(weights["w"], weights["b"]):
        x = _relu(np.matmul(x, w) + b[:, None, :])
    out = np.matmul(x, weights["w_out"]) + weights["b_out"][:, None, :]
    return np.ascontiguousarray(out.transpose(1, 0, 2))


def _seqlen_head(weights, x):
    sequence = weights["position"].shape[0]
    x = np.broadcast_to(x[:, None, :], (x.shape[0], sequence, x.shape[1])) + weights["position"]
    for w, b, gain, bias in zip(weights["w"], weights["b"], weights["gain"], weights["bias"]):
        x = x @ w + b
        x -= x.mean(axis=-1, keepdims=True)
        x /= np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(1e-5))
        x = _relu(x * gain + bias)
    return x[:, 0, :] @ weights["w_out"] + weights["b_out"]


HEADS = {
    "linear_head": _linear_head,
    "linear_head_stacked": _linear_head_stacked,
    "seqlen_head": _seqlen_head,
}


_USED = b"used_dltensor"
_set_name = ctypes.pythonapi.PyCapsule_SetName
_set_name.argtypes, _set_name.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_int


def _to_triton(name, array):
    """A Triton tensor that shares the array's memory.

    The stub renames a capsule that it took to "used_dlpack"; numpy knows only the standard's "used_dltensor" (Python
    specification of DLPack) and would print a traceback for every tensor.
    """
    capsule = array.__dlpack__()
    tensor = pb_utils.Tensor.from_dlpack(name, capsule)
    _set_name(capsule, _USED)
    return tensor


class _Record:
    """Appends one line an execution; never raises into the serving path."""

    def __init__(self, folder, instance):
        self._n_lost = 0
        self._is_cut = False
        self._fd = None
        if folder:
            path = os.path.join(folder, f"{instance}.jsonl")
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._write({"instance": instance, "pid": os.getpid()})

    def add(self, batch_id, start_ns, end_ns, rows, ids):
        if self._fd is None:
            return
        line = {"b": batch_id, "s": start_ns, "e": end_ns, "r": rows, "i": ids}
        if self._n_lost:
            line["lost"] = self._n_lost
        self._write(line)

    def _write(self, line):
        data = (json.dumps(line, separators=(",", ":")) + "\n").encode()
        if self._is_cut:
            data = b"\n" + data  # the piece before stays a line of its own
        try:
            n_written = os.write(self._fd, data)
        except OSError:
            n_written = 0
        if n_written:
            self._is_cut = n_written < len(data)
        if n_written < len(data):
            self._n_lost += 1

    def close(self):
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        version_dir = os.path.join(args["model_repository"], args["model_version"])
        with np.load(os.path.join(version_dir, "weights.npz")) as weights:
            self._weights = dict(weights)
        self._forward = HEADS[parameters["head"]]
        self._instance = args["model_instance_name"]
        self._record = _Record(parameters.get("record_dir", ""), self._instance)
        self._n_batches = 0

    def execute(self, requests):
        start_ns = time.monotonic_ns()
        batch_id = self._n_batches
        self._n_batches += 1
        if nvtx is not None:
            nvtx.push_range(f"squall|{self._instance}|{batch_id}")
        inputs = [np.from_dlpack(pb_utils.get_input_tensor_by_name(request, "INPUT")) for request in requests]
        counts = [len(x) for x in inputs]
        output = self._forward(self._weights, np.concatenate(inputs) if len(inputs) > 1 else inputs[0].copy())
        responses, first = [], 0
        for count in counts:
            tensor = _to_triton("OUTPUT", output[first : first + count])
            responses.append(pb_utils.InferenceResponse([tensor]))
            first += count
        if nvtx is not None:
            nvtx.pop_range()
        end_ns = time.monotonic_ns()
        self._record.add(batch_id, start_ns, end_ns, first, [request.request_id() for request in requests])
        return responses

    def finalize(self):
        self._record.close()
