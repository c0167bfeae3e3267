"""Which GPUs a server sees that is given some of its node's."""

from __future__ import annotations

import pytest

from squall.cluster.node.server_environment import visible_gpus
from squall.scenarios.errors import TargetError

UUIDS = [f"GPU-{letter}" for letter in "abcd"]


@pytest.mark.parametrize(
    ("gpus", "allowed", "found"),
    [
        ((1,), None, ["GPU-b"]),
        ((0, 3), None, ["GPU-a", "GPU-d"]),
        ((0,), "2,3", ["GPU-c"]),
        ((1,), "GPU-d, GPU-b", ["GPU-b"]),
        ((0,), "MIG-1/2", ["MIG-1/2"]),
    ],
)
def test_indices_count_what_the_node_may_use(
    gpus: tuple[int, ...], allowed: str | None, found: list[str]
) -> None:
    assert visible_gpus(gpus, allowed, UUIDS) == found


def test_without_nvml_indices_stay_indices() -> None:
    assert visible_gpus((1, 0), None, []) == ["1", "0"]


@pytest.mark.parametrize(("allowed", "n"), [(None, 4), ("1,2", 2), ("", 0)])
def test_a_gpu_that_the_node_has_not_is_refused(allowed: str | None, n: int) -> None:
    with pytest.raises(TargetError, match=f"gpus names number 4 from 0, and the node has {n} GPUs"):
        visible_gpus((4,), allowed, UUIDS)
