"""The stages of the pipeline as functions of tensors, and its network with seeded weights. Of the probe's process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

_MEAN = (0.485, 0.456, 0.406)
_STD = (0.229, 0.224, 0.225)
"""Of ImageNet's pictures by channel, with which vision models of torchvision are fed."""
_BRIGHTEST = 255.0
_SPREAD = 3.0
"""Standard deviation of the logits over the classes, about: so that the best classes stand out of the rest."""


class Preprocess(nn.Module):
    """uint8 [batch, height, width, 3] to normalised [batch, 3, height, width] in `dtype`, step by step."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(_MEAN).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(_STD).view(1, 3, 1, 1))

    def forward(self, pictures: Tensor) -> Tensor:
        planes = pictures.permute(0, 3, 1, 2).contiguous().to(torch.float32)
        shifted = planes / _BRIGHTEST - self.mean
        scaled: Tensor = shifted / self.std
        return scaled.to(self._dtype)


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(x + self.second_norm(self.second(y)))


class Net(nn.Module):
    """A residual network in the manner of ResNet (He et al., 2015): normalised pictures to float32 logits."""

    def __init__(self, blocks: int, width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, stride=4, padding=3, bias=False)
        self.stem_norm = nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(*(_Block(width) for _ in range(blocks)))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        y = self.blocks(torch.relu(self.stem_norm(self.stem(x))))
        logits: Tensor = self.head(y.mean(dim=(2, 3)))
        return logits.to(torch.float32)


class Postprocess(nn.Module):
    """Logits to the probabilities of the best classes and their numbers, both [batch, top_k]."""

    def __init__(self, top_k: int) -> None:
        super().__init__()
        self._top_k = top_k

    def forward(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        values, indices = torch.softmax(logits, dim=-1).topk(self._top_k, dim=-1)
        return values, indices


class Fused(nn.Module):
    """All three as one module, to be captured or compiled."""

    def __init__(self, preprocess: Preprocess, net: Net, postprocess: Postprocess) -> None:
        super().__init__()
        self.preprocess, self.net, self.postprocess = preprocess, net, postprocess

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = self.postprocess(self.net(self.preprocess(pictures)))
        return found


def seeded_pictures(config: Mapping[str, Any], seed: int, n_batches: int, margin: int) -> Tensor:
    """uint8 [n_batches * batch, image + margin, image + margin, 3]: noise in squares, brighter in some pictures than in
    others, so that they do not all look alike to the network."""
    generator = torch.Generator().manual_seed(seed)
    n, side = n_batches * config["batch_size"], config["image_size"] + margin
    coarse = torch.randint(0, 256, (n, 3, 8, 8), generator=generator).to(torch.float32)
    light = torch.rand(n, 3, 1, 1, generator=generator)
    grown = nn.functional.interpolate(coarse * light, size=(side, side), mode="nearest")
    return grown.permute(0, 2, 3, 1).contiguous().to(torch.uint8)


def seeded_net(config: Mapping[str, Any], seed: int, pictures: Tensor) -> Net:
    """Random weights of that seed on the CPU in float32, in eval mode; its head is scaled by the logits of `pictures`,
    uint8 as the pipeline has them, so that these differ by class and by picture."""
    torch.manual_seed(seed)
    net: Net = Net(**config["net"]).eval()
    with torch.no_grad():
        net.head.weight.div_(net.head.weight.norm(dim=1, keepdim=True))
        net.head.bias.zero_()
        features = net.blocks(torch.relu(net.stem_norm(net.stem(Preprocess(torch.float32)(pictures)))))
        means = features.mean(dim=(2, 3))
        centre, spread = means.mean(dim=0), means.std(dim=0, unbiased=False) + 1e-6
        net.head.weight.mul_(_SPREAD / spread)
        net.head.bias.sub_(net.head.weight @ centre)
        logits = net(Preprocess(torch.float32)(pictures))
        factor = _SPREAD / float(logits.std()) if float(logits.std()) > 0 else 1.0
        net.head.weight.mul_(factor)
        net.head.bias.mul_(factor)
    return net
