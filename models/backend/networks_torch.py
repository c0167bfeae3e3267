"""The networks of the zoo in PyTorch, one definition each: what is served, what it is checked against, and what is
exported. Copied beside forward_torch.py into the version folder, which loads it from there.

Weights have the names of weights.npz in a head, those of `encoder_weights.py` in an encoder.

Encoders: BERT (Devlin et al., 2019, arXiv:1810.04805) and XLM-RoBERTa (Conneau et al., 2020, arXiv:1911.02116): layers
of a post-norm transformer (Vaswani et al., 2017, arXiv:1706.03762, section 3.1) with GELU by the error function.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

_HEAD_EPSILON = 1e-5
_MASKED = -3e4
"""Added to the scores of positions that are masked: exp of it is 0 in float32 too, and half precision holds it. Where
every position is masked all count alike, as no -inf would have it."""


class Network(nn.Module):
    """A network of the zoo in float32; its inputs are in the order of the model's spec, its output is float32.

    `weights`: tensors by name, each a parameter. `prepared()`: the forward pass of the weights as they are now, which
    finds them without a look-up at each batch; its output has their type.
    """

    def __init__(self, name, sizes, weights):
        super().__init__()
        self._prepare, self._sizes = _NETWORKS[name], sizes
        for key, tensor in weights.items():  # no parameter has a point in its name
            self.register_parameter(key.replace(".", "/"), nn.Parameter(tensor, requires_grad=False))

    def prepared(self):
        weights = {key.replace("/", "."): one for key, one in self.named_parameters()}
        return self._prepare(weights, self._sizes)

    def forward(self, *inputs):
        return self.prepared()(*inputs).float()


def _linear_head(own, sizes):  # noqa: ARG001 (as the others)
    """Of x [rows, width] to [rows, classes]."""
    layers = list(zip(own["w"].unbind(), own["b"].unbind(), strict=True))
    w_out, b_out = own["w_out"], own["b_out"]

    def network(x):
        x = x.to(w_out.dtype)
        for matrix, b in layers:
            x = torch.addmm(b, x, matrix).relu_()
        return torch.addmm(b_out, x, w_out)

    return network


def _linear_head_stacked(own, sizes):
    """Of x [rows, width] to [rows, heads, classes]."""
    layers = list(zip(own["w"].unbind(), own["b"].unsqueeze(2).unbind(), strict=True))
    n_heads, w_out, b_out = sizes["heads"], own["w_out"], own["b_out"].unsqueeze(1)

    def network(x):
        x = x.to(w_out.dtype).expand(n_heads, *x.shape)
        for matrix, b in layers:
            x = torch.baddbmm(b, x, matrix).relu_()
        return torch.baddbmm(b_out, x, w_out).transpose(0, 1)

    return network


def _seqlen_head(own, sizes):
    """Of x [rows, width] to [rows, classes]."""
    layers = list(zip(*(own[part].unbind() for part in ("w", "b", "gain", "bias")), strict=True))
    position, w_out, b_out = own["position"], own["w_out"], own["b_out"]
    sequence, width = sizes["sequence"], sizes["width"]

    def network(x):
        y = (x.to(w_out.dtype).unsqueeze(1) + position).view(-1, width)
        for matrix, b, gain, bias in layers:
            y = F.layer_norm(torch.addmm(b, y, matrix), (width,), gain, bias, _HEAD_EPSILON).relu_()
        return torch.addmm(b_out, y.view(-1, sequence, width)[:, 0], w_out)

    return network


def _encoder(own, sizes, epsilon, positions, pooled):
    """Of tokens to one vector a row: input_ids, attention_mask int64 [rows, sequence] to float32 [rows, hidden].

    `positions` of the tokens by the mask; `pooled`: the vector of a row by its tokens' and the mask. Of token types the
    first is used.
    """
    hidden, heads = sizes["hidden"], sizes["heads"]
    words, places, types = (
        own[f"embeddings.{part}_embeddings.weight"] for part in ("word", "position", "token_type")
    )
    norm = _pair(own, "embeddings.LayerNorm")
    parts = (
        *("attention.self.query", "attention.self.key", "attention.self.value"),
        *("attention.output.dense", "attention.output.LayerNorm"),
        *("intermediate.dense", "output.dense", "output.LayerNorm"),
    )
    layers = [[_pair(own, f"encoder.layer.{i}.{part}") for part in parts] for i in range(sizes["layers"])]

    def normed(x, weights):
        return F.layer_norm(x, (hidden,), *weights, epsilon)

    def network(input_ids, attention_mask):
        rows, sequence = input_ids.shape
        x = F.embedding(input_ids, words) + F.embedding(positions(attention_mask), places)
        x = normed(x + types[0], norm)
        bias = ((1 - attention_mask) * _MASKED).to(x.dtype)[:, None, None, :]
        mask = bias.expand(rows, 1, sequence, sequence)
        for *projections, mixing, mixed_norm, widening, narrowing, layer_norm in layers:
            query, key, value = (
                F.linear(x, *one).view(rows, sequence, heads, hidden // heads).transpose(1, 2)
                for one in projections
            )
            mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
            mixed = mixed.transpose(1, 2).reshape(rows, sequence, hidden)
            x = normed(F.linear(mixed, *mixing) + x, mixed_norm)
            wide = F.gelu(F.linear(x, *widening))
            x = normed(F.linear(wide, *narrowing) + x, layer_norm)
        return pooled(x, attention_mask)

    return network


def _pair(own, at):
    return own[f"{at}.weight"], own[f"{at}.bias"]


def _bert(own, sizes):
    """BERT; its pooler: Linear and tanh of the first position."""
    pooler = _pair(own, "pooler.dense")

    def positions(attention_mask):
        return torch.arange(attention_mask.shape[1], device=attention_mask.device)

    def pooled(x, attention_mask):  # noqa: ARG001 (as the other's)
        return torch.tanh(F.linear(x[:, 0], *pooler)).float()

    return _encoder(own, sizes, 1e-12, positions, pooled)


def _e5(own, sizes):
    """XLM-RoBERTa, whose positions count from 2 on, of what is not masked (1 is padding's); the mean over the mask, to
    length 1, as the model cards of E5 say (Wang et al., 2024, arXiv:2402.05672)."""

    def positions(attention_mask):
        return torch.cumsum(attention_mask, 1) * attention_mask + 1

    def pooled(x, attention_mask):
        mask = attention_mask.unsqueeze(2).float()
        mean = (x.float() * mask).sum(1) / mask.sum(1).clamp(min=1.0)
        return F.normalize(mean, dim=1)

    return _encoder(own, sizes, 1e-5, positions, pooled)


_NETWORKS = {
    "linear_head": _linear_head,
    "linear_head_stacked": _linear_head_stacked,
    "seqlen_head": _seqlen_head,
    "bert_tiny": _bert,
    "multilingual_e5_large": _e5,
}


def examples(sizes, n_rows):
    """Seeded inputs of so many rows, in the order of the model's spec; masks of several lengths, from 1 on."""
    rng = np.random.default_rng(0)
    if "vocabulary" not in sizes:
        return [rng.standard_normal((n_rows, sizes["width"])).astype(np.float32)]
    sequence = sizes["sequence"]
    lengths = np.maximum(sequence * (n_rows - np.arange(n_rows)) // n_rows, 1)
    mask = (np.arange(sequence) < lengths[:, None]).astype(np.int64)
    return [rng.integers(0, sizes["vocabulary"], (n_rows, sequence)), mask]


def difference(found, expected, rtol, atol, least_scale=0.0):
    """The largest difference in parts of what is allowed: `rtol` of the value itself and `atol` of the outputs' root
    mean square, which counts as `least_scale` at least, where few outputs might all be small by chance. Infinite for
    another shape or type, not a number where an answer is none."""
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return float("inf")
    scale = max(least_scale, float(np.sqrt(np.mean(np.square(expected, dtype=np.float64)))))
    return float(np.max(np.abs(found - expected) / (rtol * np.abs(expected) + atol * scale + 1e-30)))
