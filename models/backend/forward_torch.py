"""The models of the zoo in PyTorch, on the CPU or a GPU. Copied beside model.py into the version folder, which loads it
from there, and networks_torch.py and encoder_weights.py with it.

A batch on a GPU: each input gathered into one buffer (pinned, if not told otherwise), one copy to the device, the
forward pass (kernels one by one, or the replay of a CUDA graph), one copy of the outputs into host memory, one wait.
Floats travel as float32 and are rounded on the device. Everything runs on the device's default stream; nothing depends
on the calling thread.
"""

import bisect
import importlib
import locale
import math
import time
from functools import partial

import numpy as np
import torch

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
_CHECK_ROWS = 8
_WARM_ROWS, _WARM_STEPS, _WARM_S = 64, 24, 4.0
"""Without graphs every batch size up to the first and so many between it and the largest, in equal ratios, are computed
once before the server is ready, as far as the seconds last: cuBLAS picks kernels by size, and CUDA loads each at its
first use."""
_TOLERANCE = {"fp32": (1e-3, 1e-4), "fp16": (2e-2, 5e-2)}
"""Within which what is served agrees with the module in float32 (`networks_torch.difference`). `docs/models.md` has the
reasons."""
_HEAD_SCALE = 1.0
"""Standard deviation of a head's outputs, at least; it has few of them, which differ little between rows."""
_GIB = 1 << 30
_USED_UP = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""What PyTorch says of a GPU's memory, in whichever of its errors."""


# beside this file
encoder_weights, networks = map(importlib.import_module, ("encoder_weights", "networks_torch"))


def range_functions():
    """torch's own nvtxRangePushA and nvtxRangePop; None for a build without CUDA."""
    nvtx = getattr(torch._C, "_nvtx", None)
    return None if nvtx is None else (nvtx.rangePushA, nvtx.rangePop)


def _device_of(device_id):
    if device_id is None:
        return torch.device("cpu")
    if torch.version.cuda is None:
        raise RuntimeError(
            f"torch {torch.__version__} is built for the CPU alone: install one built for CUDA"
        )
    n_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device_id >= n_devices:
        raise RuntimeError(
            f"torch {torch.__version__} (CUDA {torch.version.cuda}) sees {n_devices} GPUs, this instance is "
            f"for GPU {device_id}: compare its CUDA version with the driver's in nvidia-smi"
        )
    return torch.device("cuda", device_id)


def _too_little(name, device, what):
    """The error to raise. A GPU without room for a context of CUDA does not even say what is free."""
    try:
        free, total = torch.cuda.mem_get_info(device)
        left = f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB of GPU {device.index} are free"
    except RuntimeError:
        left = f"GPU {device.index} has no room for a context of CUDA"
    return RuntimeError(
        f"{name}: {what}, and {left}: use fewer model.instances, a smaller model.max_batch_size, or model.precision: "
        "fp16"
    )


def _compiled(network):
    """`network` for batches of any number of rows, compiled in this process: a pool of compilers would be started as
    copies of the program that embeds this Python."""
    locale.setlocale(
        locale.LC_CTYPE, "C.UTF-8"
    )  # Triton's Python has ASCII, and PyTorch reads sources of UTF-8
    importlib.import_module("torch._inductor.config").compile_threads = 1
    compiled = torch.compile(network, dynamic=True)

    def call(*inputs):
        try:
            return compiled(*inputs)
        except Exception as error:
            if any(words in str(error) for words in _USED_UP):
                raise
            words = " ".join(str(error).split())[:200] or type(error).__name__
            raise RuntimeError(
                f"model.compile: torch.compile failed ({words}): on the server's node it needs Python's headers and a"
                " C++ compiler, on a GPU a C compiler and the package triton: install them, or set model.compile: false"
            ) from error

    return call


class Forward:
    """Called with the inputs of a batch, for each input of the model the arrays of its requests, (rows, ...) each;
    returns float32 (all rows, ...), in their order.

    `weights`: by name, None: seeded ones of an encoder. `device_id` None: the CPU. `batch_sizes`: ascending up to the
    largest batch; with `cuda_graphs` a batch is computed as the next of these sizes, its last rows holding what an
    earlier batch left (no row depends on another). Raises RuntimeError where there is no such GPU, too little memory,
    or no compiler, where weights do not fit, and where answers differ from those of the module in float32.
    """

    def __init__(self, head, sizes, weights, device_id, **options):
        device = _device_of(device_id)
        torch.set_num_threads(1)
        # whatever the environment says: full float32 products, and half sums kept in float32
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        torch.backends.cuda.enable_cudnn_sdp(False)  # it would build a plan for each number of rows
        self._vocabulary = sizes.get("vocabulary")
        try:
            self._load(head, sizes, weights, device, **options)
        except RuntimeError as error:
            if device.type == "cpu" or not any(words in str(error) for words in _USED_UP):
                raise
            raise _too_little(head, device, "the memory of the GPU is used up") from error

    def _load(
        self,
        head,
        sizes,
        weights,
        device,
        precision,
        cuda_graphs,
        batch_sizes,
        is_pinned=True,
        is_compiled=False,
    ):
        if "hidden" in sizes:
            shapes = encoder_weights.weight_shapes(head, sizes)
        else:
            shapes = {name: array.shape for name, array in weights.items()}
        examples = networks.examples(sizes, min(_CHECK_ROWS, batch_sizes[-1]))
        if device.type == "cuda":
            torch.cuda.set_device(device)
            n_weights = sum(map(math.prod, shapes.values()))
            _refuse_little(head, sizes, n_weights, device, batch_sizes[-1], examples, precision)
        module = networks.Network(head, sizes, _tensors(shapes, sizes, weights, device))
        with torch.inference_mode():
            expected = module(*(torch.from_numpy(array).to(device) for array in examples)).cpu().numpy()
        network = self._served(module.to(_DTYPES[precision]))
        if is_compiled:
            network = _compiled(network)
        if device.type == "cpu":
            self._answer = _CpuBatch(network)
            self._check(head, precision, examples, expected, {1, len(expected)})
            return
        torch.cuda.empty_cache()  # of float32 weights, for other instances on this GPU
        buffers = (batch_sizes[-1], examples, expected.shape[1:], is_pinned)
        self._answer = batch = _GpuBatch(network, device, *buffers)
        if cuda_graphs:
            batch.capture(batch_sizes)
        self._check(head, precision, examples, expected, reversed(batch_sizes))
        if not cuda_graphs:
            end_s = time.monotonic() + _WARM_S
            for size in warm_sizes(batch_sizes[-1]):
                if time.monotonic() > end_s:
                    break
                self._check(head, precision, examples, expected, (size,))

    @staticmethod
    def _served(module):
        """The forward pass of the weights as they are served."""
        return module.prepared()

    def _check(self, head, precision, examples, expected, sizes):
        """Computes a batch of each of the sizes, of the rows of the examples over and over; raises RuntimeError where
        an answer is not the expected one."""
        for size in sizes:
            which = np.arange(size) % len(expected)
            found = self([[array[which]] for array in examples])
            least_scale = 0.0 if self._vocabulary else _HEAD_SCALE
            share = networks.difference(found, expected[which], *_TOLERANCE[precision], least_scale)
            if not share <= 1:
                raise RuntimeError(
                    f"{head}: what is to be served in {precision} differs from the module in float32 by {share:.3g} "
                    f"times what is allowed, in a batch of {size} rows: it is not served"
                )

    @torch.inference_mode()
    def __call__(self, columns):
        return self._answer(columns, self._refuse_ids if self._vocabulary else None)

    def _refuse_ids(self, ids):
        """A GPU that is asked for a row beyond the table of words computes nothing any more."""
        if ids.view(np.uint64).max(initial=0) >= self._vocabulary:  # negative ones are large then
            raise ValueError(
                f"input_ids has {ids.min()} to {ids.max()}, and the vocabulary is 0 to {self._vocabulary - 1}"
            )


def warm_sizes(max_rows):
    """Batch sizes beside those of the buckets, ascending."""
    steps = np.geomspace(_WARM_ROWS, max_rows, _WARM_STEPS) if max_rows > _WARM_ROWS else ()
    return sorted({*range(1, min(max_rows, _WARM_ROWS) + 1), *(int(size) for size in steps)})


def _tensors(shapes, sizes, weights, device):
    """The weights by name, in float32 on the device: those given, else seeded ones."""
    if weights is None:
        made = [partial(make, device=device) for make in (torch.empty, torch.arange)]
        return {
            name: encoder_weights.seeded(name, shape, sizes["weights_seed"], *made)
            for name, shape in shapes.items()
        }
    return {
        name: torch.tensor(weights[name], dtype=torch.float32, device=device).view(shape)
        for name, shape in shapes.items()
    }


def _refuse_little(head, sizes, n_weights, device, max_rows, examples, precision):
    """Raises RuntimeError where the GPU has less memory free than the instance takes."""
    # about: weights are in float32 while they are made and compared; buffers; the widest layer of the largest batch
    if "hidden" in sizes:
        widest = sizes["sequence"] * (2 * sizes["intermediate"] + 6 * sizes["hidden"])
    else:
        widest = 3 * sizes.get("sequence", 1) * sizes.get("heads", 1) * sizes["width"]
    row_bytes = sum(array[0].nbytes for array in examples) + widest * _DTYPES[precision].itemsize
    needed = n_weights * 4 + max_rows * row_bytes
    if needed > torch.cuda.mem_get_info(device)[0]:
        raise _too_little(
            head, device, f"an instance takes about {needed / _GIB:.1f} GiB for batches of {max_rows} rows"
        )


class _CpuBatch:
    def __init__(self, network):
        self._network = network

    def __call__(self, columns, refuse_ids):
        gathered = [np.concatenate(arrays) for arrays in columns]
        if refuse_ids:
            refuse_ids(gathered[0])
        return self._network(*map(torch.from_numpy, gathered)).float().contiguous().numpy()


class _GpuBatch:
    """Buffers for the largest batch on host and device, and the graphs by batch size."""

    def __init__(self, network, device, max_rows, examples, out_dims, is_pinned):
        self._network, self._device = network, device
        like = [torch.from_numpy(array) for array in examples]
        shapes = [((max_rows, *one.shape[1:]), one.dtype) for one in like]
        self._x_host = [torch.zeros(shape, dtype=kind, pin_memory=is_pinned) for shape, kind in shapes]
        self._x = [torch.zeros(shape, dtype=kind, device=device) for shape, kind in shapes]
        self._y = torch.zeros((max_rows, *out_dims), device=device)
        self._y_host = torch.zeros((max_rows, *out_dims), pin_memory=is_pinned)
        self._x_arrays, self._y_array = [one.numpy() for one in self._x_host], self._y_host.numpy()
        self._stream = torch.cuda.default_stream(device)
        self._sizes, self._graphs = (), {}

    def __call__(self, columns, refuse_ids):
        rows = sum(map(len, columns[0]))
        for arrays, host in zip(columns, self._x_arrays, strict=True):
            np.concatenate(arrays, out=host[:rows])
        if refuse_ids:
            refuse_ids(self._x_arrays[0][:rows])
        for host, x in zip(self._x_host, self._x, strict=True):
            x[:rows].copy_(host[:rows], non_blocking=True)
        if self._graphs:
            self._graphs[self._sizes[bisect.bisect_left(self._sizes, rows)]].replay()
        else:
            self._compute(rows)
        self._y_host[:rows].copy_(self._y[:rows], non_blocking=True)
        self._stream.synchronize()
        return self._y_array[:rows].copy()  # the buffer is the next batch's

    def _compute(self, rows):
        self._y[:rows].copy_(self._network(*(x[:rows] for x in self._x)))

    @torch.inference_mode()
    def capture(self, sizes):
        """One graph per size. They share memory, as they never run at once and leave their outputs in `_y`."""
        stream, pool = torch.cuda.Stream(self._device), torch.cuda.graph_pool_handle()
        for size in reversed(sizes):  # largest first: the others find their memory in its pool
            stream.wait_stream(self._stream)
            with torch.cuda.stream(stream):
                self._compute(size)  # chooses and loads the kernels, which a capture must not do
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                self._compute(size)
            self._graphs[size] = graph
        self._sizes = tuple(sizes)
