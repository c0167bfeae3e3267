"""Heads in PyTorch, served by a real Triton: right answers on the CPU and on GPUs, alone and in gathered batches."""

from __future__ import annotations

import importlib.util
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from squall.actors.sampling.gpu.source import missing_reason
from squall.models.heads import forward, make_weights
from squall.models.spec import HEADS
from squall.scenarios.errors import TargetError
from tests.integration.serving import Array, answer, records, server_of, serving
from tests.tolerance import TOLERANCE

pytestmark = pytest.mark.beside

HAS_TORCH = importlib.util.find_spec("torch") is not None
NO_GPU = missing_reason()
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
needs_gpu = pytest.mark.skipif(not HAS_TORCH or NO_GPU is not None, reason=f"no torch on a GPU: {NO_GPU}")
SMALL = {"width": 64, "layers": 3, "classes": 2}
LARGE = {"width": 1024, "layers": 20, "classes": 2}
EXTRA = {"linear_head": {}, "linear_head_stacked": {"heads": 3}, "seqlen_head": {"sequence": 16}}
MAX_ROWS = 24  # no power of two: the largest graph has a size of its own


def inputs_of(rows: int, width: int, seed: int = 3) -> Array:
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)


def check(head: str, settings: dict[str, int], precision: str, x: Array, found: Array) -> None:
    weights = make_weights(head, HEADS[head].sizes(settings))
    if "position" in weights:  # no layer mixes positions, and only the first is read
        weights["position"] = weights["position"][:1]
    expected = forward(weights, x)
    rtol, atol = TOLERANCE[precision]
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


@pytest.mark.skipif(HAS_TORCH, reason="torch is installed")
def test_a_server_without_torch_says_so_and_how_to_mend_it(tmp_path: Path) -> None:
    server = server_of(tmp_path, framework="torch", device="cpu")
    with pytest.raises(
        TargetError, match=r"torch is not installed for the Python that Triton embeds: .* install it"
    ):
        server.start()
    assert server.pids() == []


@needs_torch
@pytest.mark.skipif(NO_GPU is None, reason="this host has a GPU")
def test_a_host_without_a_gpu_says_so(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="GPU"):
        server_of(tmp_path, framework="torch").start()


@needs_torch
@pytest.mark.parametrize(
    ("head", "precision"), [("linear_head", "fp32"), ("linear_head_stacked", "fp16"), ("seqlen_head", "fp32")]
)
def test_a_head_in_torch_on_the_cpu_gives_the_reference_answer(
    tmp_path: Path, head: str, precision: str
) -> None:
    settings = SMALL | EXTRA[head]
    keys = {"name": head, "settings": settings, "max_batch_size": 8, "framework": "torch", "device": "cpu"}
    with serving(tmp_path, **keys, precision=precision) as (server, endpoint):
        for rows in (8, 5, 1):
            x = inputs_of(rows, settings["width"])
            check(head, settings, precision, x, answer(endpoint, x))
    (lines,) = records(server).values()
    assert [line["r"] for line in lines[1:]] == [8, 5, 1]


@needs_gpu
@pytest.mark.parametrize("cuda_graphs", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("head", HEADS)
def test_a_head_in_torch_on_a_gpu_gives_the_reference_answer(
    tmp_path: Path, head: str, precision: str, cuda_graphs: bool
) -> None:
    settings = LARGE | EXTRA[head]
    keys = {"name": head, "settings": settings, "max_batch_size": MAX_ROWS, "preferred_batch_sizes": [12]}
    keys |= {"framework": "torch", "precision": precision, "cuda_graphs": cuda_graphs, "queue_delay": "5ms"}
    with serving(tmp_path, **keys, instances=2) as (server, endpoint):
        sizes = (MAX_ROWS, 7, 12, 1, 3)  # the largest first: what it leaves must not be seen
        for rows in sizes:
            x = inputs_of(rows, settings["width"], rows)
            check(head, settings, precision, x, answer(endpoint, x))
        check_gathered(endpoint, head, settings, precision)
        assert all(uses_a_gpu(lines[0]["pid"]) for lines in records(server).values())
    lines_of = records(server)
    batches = [line for lines in lines_of.values() for line in lines[1:]]
    assert len({lines[0]["pid"] for lines in lines_of.values()}) == len(lines_of) >= 2
    assert all(len(lines) > 1 for lines in lines_of.values()), "an instance was never used"
    assert any(len(line["i"]) > 1 for line in batches)
    assert sum(line["r"] for line in batches) == sum(sizes) + sum(1 + i % 5 for i in range(200))


def check_gathered(endpoint: Any, head: str, settings: dict[str, int], precision: str) -> None:
    """200 requests of 1 to 5 rows by 16 users: batches of several requests, each answer in its place."""
    asked = [inputs_of(1 + i % 5, settings["width"], 100 + i) for i in range(200)]
    with ThreadPoolExecutor(16) as users:
        found = list(users.map(lambda x: answer(endpoint, x), asked))
    assert [len(one) for one in found] == [len(x) for x in asked]
    check(head, settings, precision, np.concatenate(asked), np.concatenate(found))


def uses_a_gpu(pid: int) -> bool:
    """Whether the process has opened the device of CUDA's memory, as every CUDA context does."""
    folder = Path(f"/proc/{pid}/fd")
    return any(os.readlink(link).startswith("/dev/nvidia-uvm") for link in folder.iterdir())
