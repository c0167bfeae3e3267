"""The heads in numpy, on the CPU. Copied beside model.py into the version folder, which loads it from there."""

import numpy as np


def _relu(x):
    return np.maximum(x, 0.0, out=x)


def _linear_head(weights, x):
    for w, b in zip(weights["w"], weights["b"], strict=True):
        x = _relu(x @ w + b)
    return x @ weights["w_out"] + weights["b_out"]


def _linear_head_stacked(weights, x):
    x = np.broadcast_to(x, (weights["w"].shape[1], *x.shape))
    for w, b in zip(weights["w"], weights["b"], strict=True):
        x = _relu(np.matmul(x, w) + b[:, None, :])
    out = np.matmul(x, weights["w_out"]) + weights["b_out"][:, None, :]
    return np.ascontiguousarray(out.transpose(1, 0, 2))


def _seqlen_head(weights, x):
    sequence = weights["position"].shape[0]
    x = np.broadcast_to(x[:, None, :], (x.shape[0], sequence, x.shape[1])) + weights["position"]
    for w, b, gain, bias in zip(weights["w"], weights["b"], weights["gain"], weights["bias"], strict=True):
        x = x @ w + b
        x -= x.mean(axis=-1, keepdims=True)
        x /= np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(1e-5))
        x = _relu(x * gain + bias)
    return x[:, 0, :] @ weights["w_out"] + weights["b_out"]


_NETWORKS = {
    "linear_head": _linear_head,
    "linear_head_stacked": _linear_head_stacked,
    "seqlen_head": _seqlen_head,
}


class Forward:
    """Called with the inputs of a batch, here of INPUT alone the arrays of its requests, float32 (rows, width) each;
    gives float32 (all rows, ...), in their order."""

    def __init__(  # as torch's
        self,
        head,
        sizes,  # noqa: ARG002
        weights,
        device_id,
        precision,
        cuda_graphs,
        batch_sizes,  # noqa: ARG002
        is_pinned=True,
        is_compiled=False,
    ):
        if device_id is not None or precision != "fp32" or cuda_graphs or is_compiled or not is_pinned:
            raise ValueError("framework numpy computes in fp32 on the CPU: use framework torch")
        if head not in _NETWORKS:
            raise ValueError(f"{head} is computed by torch alone: set model.framework: torch")
        self._network, self._weights = _NETWORKS[head], weights

    def __call__(self, columns):
        (inputs,) = columns
        return self._network(self._weights, np.concatenate(inputs) if len(inputs) > 1 else inputs[0].copy())
