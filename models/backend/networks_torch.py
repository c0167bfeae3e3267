"""The models of the zoo as PyTorch modules, one definition each: what is served, what it is checked against, and what
is exported. Copied beside forward_torch.py into the version folder, which loads it from there.

Parameters have the names of the weights: of a head those of weights.npz, of an encoder those of Hugging Face's
checkpoints (`encoder.layer.0.attention.self.query.weight`).

Encoders: BERT (Devlin et al., 2019, arXiv:1810.04805) and XLM-RoBERTa (Conneau et al., 2020, arXiv:1911.02116): layers
of a post-norm transformer (Vaswani et al., 2017, arXiv:1706.03762, section 3.1) with GELU by the error function.
"""

import zlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

_HEAD_EPSILON = 1e-5
_MASKED = -3e4
"""Added to the scores of positions that are masked: exp of it is 0 in float32 too, and half precision holds it. Where
every position is masked all count alike, as no -inf would have it."""
_SPREAD = (4 * (256**2 - 1) / 12) ** 0.5
"""Standard deviation of the sum of four uniform bytes, whose mean is 510: approximately normal, within 3.5 of these."""
_CHUNK = 1 << 24  # weights made at a time, for the memory of the integers in between


class _Head(nn.Module):
    """Weights by name, each a parameter. `prepared()`: the forward pass of the weights as they are now, which finds
    them without a look-up at each batch."""

    def __init__(self, weights):
        super().__init__()
        for name, array in weights.items():
            self.register_parameter(name, nn.Parameter(torch.as_tensor(array), requires_grad=False))

    def forward(self, x):
        return self.prepared()(x)


class LinearHead(_Head):
    """x [rows, width] to [rows, classes]."""

    def prepared(self):
        layers = list(zip(self.w.unbind(), self.b.unbind(), strict=True))
        w_out, b_out = self.w_out, self.b_out

        def network(x):
            for matrix, b in layers:
                x = torch.addmm(b, x, matrix).relu_()
            return torch.addmm(b_out, x, w_out)

        return network


class LinearHeadStacked(_Head):
    """x [rows, width] to [rows, heads, classes]."""

    def prepared(self):
        layers = list(zip(self.w.unbind(), self.b.unsqueeze(2).unbind(), strict=True))
        n_heads, w_out, b_out = self.w.shape[1], self.w_out, self.b_out.unsqueeze(1)

        def network(x):
            x = x.expand(n_heads, *x.shape)
            for matrix, b in layers:
                x = torch.baddbmm(b, x, matrix).relu_()
            return torch.baddbmm(b_out, x, w_out).transpose(0, 1)

        return network


class SeqlenHead(_Head):
    """x [rows, width] to [rows, classes]."""

    def prepared(self):
        parts = (self.w, self.b, self.gain, self.bias)
        layers = list(zip(*(part.unbind() for part in parts), strict=True))
        position, w_out, b_out = self.position, self.w_out, self.b_out
        sequence = position.shape[0]

        def network(x):
            width = x.shape[1]
            y = (x.unsqueeze(1) + position).view(-1, width)
            for matrix, b, gain, bias in layers:
                y = F.layer_norm(torch.addmm(b, y, matrix), (width,), gain, bias, _HEAD_EPSILON).relu_()
            return torch.addmm(b_out, y.view(-1, sequence, width)[:, 0], w_out)

        return network


class _Part(nn.Module):
    """A node of the tree that the weights' names make; it computes nothing by itself."""

    def __init__(self, /, **parts):
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)


def _encoder_layer(hidden, intermediate, epsilon):
    projections = {name: nn.Linear(hidden, hidden) for name in ("query", "key", "value")}
    closing = _Part(dense=nn.Linear(hidden, hidden), LayerNorm=nn.LayerNorm(hidden, epsilon))
    return _Part(
        attention=_Part(**{"self": _Part(**projections), "output": closing}),
        intermediate=_Part(dense=nn.Linear(hidden, intermediate)),
        output=_Part(dense=nn.Linear(intermediate, hidden), LayerNorm=nn.LayerNorm(hidden, epsilon)),
    )


class Encoder(nn.Module):
    """Tokens to one vector a row: input_ids, attention_mask int64 [rows, sequence] to float32 [rows, hidden].

    `n_types` token types, of which the first is used. A subclass has `positions` of the tokens and `pooled`, the vector
    of a row.
    """

    epsilon = 1e-12
    n_types = 1

    def __init__(self, sizes):
        super().__init__()
        hidden = sizes["hidden"]
        self.heads, self.hidden = sizes["heads"], hidden
        self.embeddings = _Part(
            word_embeddings=nn.Embedding(sizes["vocabulary"], hidden),
            position_embeddings=nn.Embedding(sizes["positions"], hidden),
            token_type_embeddings=nn.Embedding(self.n_types, hidden),
            LayerNorm=nn.LayerNorm(hidden, self.epsilon),
        )
        layers = [_encoder_layer(hidden, sizes["intermediate"], self.epsilon) for _ in range(sizes["layers"])]
        self.encoder = _Part(layer=nn.ModuleList(layers))

    def prepared(self):
        return self

    def forward(self, input_ids, attention_mask):
        own = self.embeddings
        x = own.word_embeddings(input_ids) + own.position_embeddings(self.positions(attention_mask))
        x = own.LayerNorm(x + own.token_type_embeddings.weight[0])
        bias = ((1 - attention_mask) * _MASKED).to(x.dtype)[:, None, None, :]
        for layer in self.encoder.layer:
            x = self._layer(layer, x, bias)
        return self.pooled(x, attention_mask)

    def _layer(self, layer, x, bias):
        rows, sequence, _ = x.shape
        shape = (rows, sequence, self.heads, self.hidden // self.heads)
        own, closing = layer.attention.self, layer.attention.output
        query, key, value = (
            project(x).view(shape).transpose(1, 2) for project in (own.query, own.key, own.value)
        )
        mask = bias.expand(rows, 1, sequence, sequence)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        mixed = mixed.transpose(1, 2).reshape(rows, sequence, self.hidden)
        x = closing.LayerNorm(closing.dense(mixed) + x)
        wide = F.gelu(layer.intermediate.dense(x))
        return layer.output.LayerNorm(layer.output.dense(wide) + x)


class BertEncoder(Encoder):
    """BERT; its pooler: Linear and tanh of the first position."""

    n_types = 2

    def __init__(self, sizes):
        super().__init__(sizes)
        self.pooler = _Part(dense=nn.Linear(self.hidden, self.hidden))

    def positions(self, attention_mask):
        return torch.arange(attention_mask.shape[1], device=attention_mask.device)

    def pooled(self, x, attention_mask):  # noqa: ARG002 (as the other's)
        return torch.tanh(self.pooler.dense(x[:, 0])).float()


class E5Encoder(Encoder):
    """XLM-RoBERTa, whose positions count from 2 on, of what is not masked (1 is padding's); the mean over the mask, to
    length 1, as the model cards of E5 say (Wang et al., 2024, arXiv:2402.05672)."""

    epsilon = 1e-5

    def positions(self, attention_mask):
        return torch.cumsum(attention_mask, 1) * attention_mask + 1

    def pooled(self, x, attention_mask):
        mask = attention_mask.unsqueeze(2).float()
        mean = (x.float() * mask).sum(1) / mask.sum(1).clamp(min=1.0)
        return F.normalize(mean, dim=1)


_HEADS = {
    "linear_head": LinearHead,
    "linear_head_stacked": LinearHeadStacked,
    "seqlen_head": SeqlenHead,
}
_ENCODERS = {"bert_tiny": BertEncoder, "multilingual_e5_large": E5Encoder}


def build(name, sizes, weights, device="cpu"):
    """The module in float32, in eval mode; its forward takes the inputs in the order of the model's spec.

    `weights`: arrays by name (another type of floats becomes float32; names that the module has not are left); None:
    of an encoder, seeded ones by `sizes["weights_seed"]`, bit for bit those of `squall.models.encoders`. On the device
    "meta" an encoder has shapes and no values. Raises ValueError where a weight is missing or of another shape, and for
    a head without weights.
    """
    if name in _HEADS:
        if weights is None:
            raise ValueError(f"{name} needs its weights: squall.models.heads.make_weights makes them")
        return _HEADS[name](weights).eval().to(device)
    with torch.device("meta"):
        module = _ENCODERS[name](sizes).eval()
    module.requires_grad_(False)
    if str(device) == "meta":
        return module
    state = module.state_dict()
    if weights is None:
        found = {key: _seeded(key, one.shape, sizes["weights_seed"], device) for key, one in state.items()}
    else:
        found = {key: _given(key, one.shape, weights, device) for key, one in state.items()}
    module.load_state_dict(found, assign=True)
    return module.requires_grad_(False)


def _given(name, shape, weights, device):
    if name not in weights:
        raise ValueError(f"has no weight {name}")
    array = torch.as_tensor(weights[name])
    if array.shape != shape:
        raise ValueError(
            f"weight {name} has the shape {list(array.shape)}, and the sizes make it {list(shape)}"
        )
    return array.to(device, torch.float32, copy=True)


def _scale(name, shape):
    """Mean and standard deviation of a seeded weight: products keep the variance of what goes in, whatever the width;
    gains and biases are no ones and zeros, or an answer without them would be right."""
    if name.endswith("LayerNorm.weight"):
        return 1.0, 0.1
    if "embeddings" in name and len(shape) == 2:
        return 0.0, 0.02
    return 0.0, 0.02 if len(shape) == 1 else shape[1] ** -0.5


def _mixed(x):
    """A permutation of 32-bit numbers without visible order (C. Wellons, "hash-prospector", 2018: 16 21f0aaad 15
    735a2d97 15), in int64: no product exceeds 63 bits."""
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x735A2D97) & 0xFFFFFFFF
    return x ^ (x >> 15)


def _seeded(name, shape, seed, device):
    """Element i is a function of seed, name and i alone: the same on every device, in any order."""
    key = zlib.crc32(f"{seed}/{name}".encode())
    mean, deviation = _scale(name, shape)
    found = torch.empty(shape, dtype=torch.float32, device=device)
    flat = found.view(-1)
    for first in range(0, flat.numel(), _CHUNK):
        part = flat[first : first + _CHUNK]
        x = torch.arange(first, first + part.numel(), dtype=torch.int64, device=device)
        x = _mixed(_mixed(x) ^ key)
        total = (x & 255) + (x >> 8 & 255) + (x >> 16 & 255) + (x >> 24) - 510
        part.copy_(total).mul_(deviation / _SPREAD)
        if mean:
            part.add_(mean)
    return found


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
