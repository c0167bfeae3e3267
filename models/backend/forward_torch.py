"""The heads in PyTorch, on the CPU or a GPU. Copied beside model.py into the version folder, which loads it from there.

A batch on a GPU: inputs gathered into one pinned buffer, one copy to the device, the forward pass (kernels one by one,
or the replay of a CUDA graph), one copy of the outputs into pinned memory, one wait. Inputs travel as float32 and are
rounded on the device. Everything runs on the device's default stream; nothing depends on the calling thread.
"""

import bisect

import numpy as np
import torch
import torch.nn.functional as F

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
_EPSILON = 1e-5
_WARM_ROWS = 64
"""Without graphs every batch size up to this one is computed once before the server is ready: cuBLAS picks kernels by
size, and CUDA loads each at its first use."""


def _linear_head(w):
    layers = list(zip(w["w"].unbind(), w["b"].unbind(), strict=True))

    def network(x):
        for matrix, b in layers:
            x = torch.addmm(b, x, matrix).relu_()
        return torch.addmm(w["b_out"], x, w["w_out"])

    return network


def _linear_head_stacked(w):
    layers = list(zip(w["w"].unbind(), w["b"].unsqueeze(2).unbind(), strict=True))
    n_heads = w["w"].shape[1]

    def network(x):
        x = x.expand(n_heads, *x.shape)
        for matrix, b in layers:
            x = torch.baddbmm(b, x, matrix).relu_()
        return torch.baddbmm(w["b_out"].unsqueeze(1), x, w["w_out"]).transpose(0, 1)

    return network


def _seqlen_head(w):
    layers = list(zip(*(w[name].unbind() for name in ("w", "b", "gain", "bias")), strict=True))

    def network(x):
        rows, width = x.shape
        y = (x.unsqueeze(1) + w["position"]).view(-1, width)
        for matrix, b, gain, bias in layers:
            y = F.layer_norm(torch.addmm(b, y, matrix), (width,), gain, bias, _EPSILON).relu_()
        return torch.addmm(w["b_out"], y.view(rows, -1, width)[:, 0], w["w_out"])

    return network


_NETWORKS = {
    "linear_head": _linear_head,
    "linear_head_stacked": _linear_head_stacked,
    "seqlen_head": _seqlen_head,
}


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


class Forward:
    """Called with the inputs of a batch, float32 (rows, width) each; returns float32 (all rows, ...), in their order.

    `device_id` None: the CPU. `batch_sizes`: ascending up to the largest batch; with `cuda_graphs` a batch is computed
    as the next of these sizes, its last rows holding what an earlier batch left (no row depends on another).
    Raises RuntimeError where there is no such GPU.
    """

    def __init__(self, head, weights, device_id, precision, cuda_graphs, batch_sizes):
        device = _device_of(device_id)
        torch.set_num_threads(1)
        # whatever the environment says: full float32 products, and half sums kept in float32
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        dtype = _DTYPES[precision]
        on_device = {name: torch.from_numpy(array).to(device, dtype) for name, array in weights.items()}
        width, out_dims = weights["w"].shape[-1], (*weights["w_out"].shape[:-2], weights["w_out"].shape[-1])
        with torch.inference_mode():
            network = _NETWORKS[head](on_device)
        if device.type == "cpu":
            self._answer = _CpuBatch(network, dtype)
            self([np.zeros((1, width), np.float32)])
            return
        torch.cuda.set_device(device)
        self._answer = batch = _GpuBatch(network, device, dtype, batch_sizes[-1], width, out_dims)
        if cuda_graphs:
            batch.capture(batch_sizes)
        sizes = (
            batch_sizes
            if cuda_graphs
            else sorted({*batch_sizes, *range(1, min(batch_sizes[-1], _WARM_ROWS) + 1)})
        )
        for size in sizes:
            self([np.zeros((size, width), np.float32)])

    @torch.inference_mode()
    def __call__(self, inputs):
        return self._answer(inputs)


class _CpuBatch:
    def __init__(self, network, dtype):
        self._network, self._dtype = network, dtype

    def __call__(self, inputs):
        x = torch.from_numpy(np.concatenate(inputs)).to(self._dtype)
        return self._network(x).float().contiguous().numpy()


class _GpuBatch:
    """Buffers for the largest batch on host and device, and the graphs by batch size."""

    def __init__(self, network, device, dtype, max_rows, width, out_dims):
        self._network, self._device, self._dtype = network, device, dtype
        self._x_host = torch.zeros((max_rows, width), pin_memory=True)
        self._x = torch.zeros((max_rows, width), device=device)
        self._y = torch.zeros((max_rows, *out_dims), device=device)
        self._y_host = torch.zeros((max_rows, *out_dims), pin_memory=True)
        self._x_array, self._y_array = self._x_host.numpy(), self._y_host.numpy()
        self._stream = torch.cuda.default_stream(device)
        self._sizes, self._graphs = (), {}

    def __call__(self, inputs):
        rows = sum(len(x) for x in inputs)
        np.concatenate(inputs, out=self._x_array[:rows])
        self._x[:rows].copy_(self._x_host[:rows], non_blocking=True)
        if self._graphs:
            self._graphs[self._sizes[bisect.bisect_left(self._sizes, rows)]].replay()
        else:
            self._compute(rows)
        self._y_host[:rows].copy_(self._y[:rows], non_blocking=True)
        self._stream.synchronize()
        return self._y_array[:rows].copy()  # the buffer is the next batch's

    def _compute(self, rows):
        self._y[:rows].copy_(self._network(self._x[:rows].to(self._dtype)))

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
