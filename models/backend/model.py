"""Triton Python-backend model of squall's zoo, with a record and an NVTX range of every execution.

Triton copies nothing and imports nothing of ours: framework, record folder and the arguments of the forward pass come as
parameters of config.pbtxt, the weights of a head from `weights.npz`, those of an encoder from the file that a parameter
names (without one the forward pass makes seeded ones), and the forward pass from a file beside this one. Each execution
appends one JSON line
    {"b": batch id, "s": start_ns, "e": end_ns, "r": rows, "i": [request ids]}
to `<record_dir>/<instance>.jsonl`, `<record_dir>/<instance>.gpu1.jsonl` of an instance on GPU 1: Triton gives instances
on several GPUs one name. The clock is CLOCK_MONOTONIC, as that of the clients. A line with instance, device (the number
of the GPU, -1 on the CPU) and pid stands before the lines of each process. Lines that could not be written (full disk) are counted and told in the next
line that can be. Batch ids go on where an earlier process of the instance left the file.

The range of an execution reads `squall|<instance>|<cpu or gpu1>|<batch id>|<clock_ns>`: CLOCK_MONOTONIC just before it
was opened. It spans every CUDA call of the batch, on the same thread.

Tensors cross by DLPack, never `as_numpy()` or `Tensor(name, array)`: the stub of Triton 2.51 is built against
numpy 1's ABI and sees every element of a numpy 2 array as 0 bytes long, which empties outputs without an error.
"""

import ctypes
import fcntl
import glob
import importlib.util
import itertools
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

_TAIL_BYTES = 1 << 20  # of a record file: longer than any line
_USED = b"used_dltensor"
_FORWARD = {"numpy": "heads", "torch": "forward_torch"}
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


def _weights(version_dir, checkpoint):
    """By name; None where the forward pass makes them. Raises ValueError for a file that cannot be read."""
    if checkpoint is not None:
        return importlib.import_module("checkpoint").read(checkpoint)
    path = os.path.join(version_dir, "weights.npz")
    if not os.path.exists(path):
        return None
    with np.load(path) as weights:
        return dict(weights)


def _load_framework(framework):
    """The module with the forward passes; raises TritonModelException with the mend where it cannot be loaded."""
    try:
        return importlib.import_module(_FORWARD[framework])
    except (ImportError, OSError, ValueError) as error:  # a torch without its libraries raises any of them
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == framework
        what = "is not installed for" if is_missing else "cannot be loaded by"
        raise pb_utils.TritonModelException(
            f"{framework} {what} the Python that Triton embeds: {error}; install it into squall's environment on this "
            "node, or set model.framework: numpy, which computes heads, not encoders"
        ) from error


def _library_range_functions():
    """nvtxRangePushA and nvtxRangePop of the wheel nvidia-nvtx or of a CUDA toolkit; None without either.

    Not those of the package nvtx: it registers every text for good, so that memory grows with each batch, and takes
    nsys 2022.4 for absent (it asks nvtxDomainIsEnabled, which that one does not know).
    """
    spec = importlib.util.find_spec("nvidia")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    names = ("libnvtx3interop.so*", "libnvToolsExt.so.1")
    found = [path for folder in folders for name in names for path in sorted(glob.glob(f"{folder}/*/lib/{name}"))]
    for path in (*found, "libnvToolsExt.so.1"):
        try:
            library = ctypes.CDLL(path)
            push, pop = library.nvtxRangePushA, library.nvtxRangePop
        except (OSError, AttributeError):
            continue
        push.argtypes, pop.argtypes = (ctypes.c_char_p,), ()
        return push, pop
    return None


def _device(args):
    """Number of the GPU that Triton gave the instance; -1 for one on the CPU."""
    return int(args["model_instance_device_id"]) if args["model_instance_kind"] == "GPU" else -1


def _place(device):
    return "cpu" if device < 0 else f"gpu{device}"


class _Ranges:
    """Opens and closes an execution's range; without an NVTX library it is missing from a report, nothing else."""

    def __init__(self, instance, device, functions):
        self._prefix = f"squall|{instance}|{_place(device)}|".encode()
        self._push, self.close = functions or (lambda _: None, lambda: None)

    def open(self, batch_id):
        self._push(b"%b%d|%d" % (self._prefix, batch_id, time.monotonic_ns()))


def _own_record(folder, instance, device):
    """Name and open file of the first record of the instance that no living process has."""
    for number in itertools.count(1):
        own = instance if number == 1 else f"{instance}:{number}"
        name = own if device < 0 else f"{own}.{_place(device)}"
        fd = os.open(os.path.join(folder, f"{name}.jsonl"), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it ends with the process
        except BlockingIOError:
            os.close(fd)
            continue
        except OSError:
            pass  # a file system without locks
        return own, fd


class _Record:
    """Appends one line an execution; never raises into the serving path. `next_batch_id`: of the first line to come.

    `instance`: its name, `twin_0:2` where another process of that name and device has the record `twin_0`: Triton gives
    the instances of two groups one name if its configuration does.
    """

    def __init__(self, folder, instance, device):
        self._n_lost = 0
        self._is_cut = False
        self._fd = None
        self.next_batch_id = 0
        self.instance = instance
        if folder:
            self.instance, self._fd = _own_record(folder, instance, device)
            self._continue()
            self._write({"instance": self.instance, "device": device, "pid": os.getpid()})

    def _continue(self):
        """Reads what an earlier process of the instance left."""
        n_bytes = os.fstat(self._fd).st_size
        tail = os.pread(self._fd, _TAIL_BYTES, max(0, n_bytes - _TAIL_BYTES))
        self._is_cut = bool(tail) and not tail.endswith(b"\n")
        for line in reversed(tail.splitlines()):
            try:
                self.next_batch_id = json.loads(line)["b"] + 1
                return
            except (ValueError, KeyError, TypeError):
                continue

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
        self._inputs = [tensor["name"] for tensor in config["input"]]
        version_dir = os.path.join(args["model_repository"], args["model_version"])
        sys.path.insert(0, version_dir)  # of the files beside this one
        framework = _load_framework(parameters["framework"])
        instance, device = args["model_instance_name"], _device(args)
        try:
            weights = _weights(version_dir, parameters.get("weights"))
            self._forward = framework.Forward(
                weights=weights, device_id=device if device >= 0 else None, **json.loads(parameters["forward"])
            )
        except (RuntimeError, ValueError) as error:
            raise pb_utils.TritonModelException(str(error)) from error
        functions = getattr(framework, "range_functions", lambda: None)() or _library_range_functions()
        self._record = _Record(parameters.get("record_dir", ""), instance, device)
        self._ranges = _Ranges(self._record.instance, device, functions)
        self._next_batch_id = self._record.next_batch_id

    def execute(self, requests):
        start_ns = time.monotonic_ns()
        batch_id = self._next_batch_id
        self._next_batch_id += 1
        self._ranges.open(batch_id)
        try:
            columns = [
                [np.from_dlpack(pb_utils.get_input_tensor_by_name(request, name)) for request in requests]
                for name in self._inputs
            ]
            output = self._forward(columns)
            responses, first = [], 0
            for x in columns[0]:
                tensor = _to_triton("OUTPUT", output[first : first + len(x)])
                responses.append(pb_utils.InferenceResponse([tensor]))
                first += len(x)
        finally:
            self._ranges.close()
        end_ns = time.monotonic_ns()
        self._record.add(batch_id, start_ns, end_ns, first, [request.request_id() for request in requests])
        return responses

    def finalize(self):
        self._record.close()
