"""Instances that Triton gives one name: each has a record and ids of its own."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import squall.models.repository
from squall.cluster.node.batches import read_batches
from tests.integration.serving import answer, serving

GROUPS = 'instance_group [ { name: "twin", kind: KIND_CPU }, { name: "twin", kind: KIND_CPU } ]'
N_REQUESTS = 20


@pytest.mark.beside
def test_instances_of_two_groups_of_one_name_record_their_batches_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a host with two GPUs, whose instances have one name too; without a GPU two groups of one name do it."""
    written = squall.models.repository.config_pbtxt

    def with_twins(*arguments: object) -> str:
        lines = written(*arguments).splitlines()  # type: ignore[arg-type]
        return "\n".join(GROUPS if line.startswith("instance_group") else line for line in lines)

    monkeypatch.setattr(squall.models.repository, "config_pbtxt", with_twins)
    with serving(tmp_path) as (server, endpoint):
        (dims,) = (tensor.dims for tensor in endpoint.models[0].spec.inputs)
        x = np.zeros((1, *(abs(size) for size in dims if size != -1)), np.float32)
        for _ in range(N_REQUESTS):
            answer(endpoint, x)
    labels = {
        "run": "r",
        "node": "node-0",
        "server": "server-0",
        "model": endpoint.models[0].spec.name,
        "version": "1",
    }
    losses: list[str] = []
    rows = [row for table in read_batches(server.records, labels, losses) for row in table.to_pylist()]
    assert losses == []
    by_instance = Counter((row["instance"], row["instance_device"]) for row in rows)
    assert by_instance.keys() == {("twin_0", -1), ("twin_0:2", -1)}
    assert by_instance.total() == N_REQUESTS
    for (instance, _), n in by_instance.items():
        assert [row["batch_id"] for row in rows if row["instance"] == instance] == list(range(n))
