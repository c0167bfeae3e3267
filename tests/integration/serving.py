"""A Triton of a test's own that serves a head, and single requests to it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.cluster.node.endpoint import Endpoint
from squall.cluster.node.server import LOOPBACK, TritonServer
from squall.scenarios.config.loader import scenario_from_mapping
from tests.integration.live_runs import scenario_mapping

Array = NDArray[np.float32]


def server_of(
    folder: Path,
    cores: tuple[int, ...] = (),
    address: str = LOOPBACK,
    start_timeout: str = "60s",
    **model: Any,
) -> TritonServer:
    """Not started yet; `model`: keys of the scenario's section, the head's small sizes unless it names others."""
    mapping = scenario_mapping(server={"start_timeout": start_timeout})
    mapping["model"] = model if "repository" in model else {**mapping["model"], **model}
    scenario = scenario_from_mapping(mapping, "test")
    return TritonServer(
        [scenario.models[0].model], scenario.server, folder, None, has_gpu=False, cores=cores, address=address
    )


@contextmanager
def serving(folder: Path, **model: Any) -> Iterator[tuple[TritonServer, Endpoint]]:
    """The server while it runs; `model` as in `server_of`, with its `address` and `start_timeout`."""
    server = server_of(folder, **model)
    try:
        yield server, server.start()
    finally:
        server.stop()


def answer(endpoint: Endpoint, x: Array) -> Array:
    """What the model says to one request with the rows `x`."""
    tensor = {"name": "INPUT", "shape": list(x.shape), "datatype": "FP32", "data": x.ravel().tolist()}
    url = f"{endpoint.url}/v2/models/{endpoint.models[0].spec.name}/infer"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, json.dumps({"inputs": [tensor]}).encode(), timeout=30) as reply:
        output = json.load(reply)["outputs"][0]
    assert (output["name"], output["datatype"]) == ("OUTPUT", "FP32")
    return np.array(output["data"], np.float32).reshape(output["shape"])


def records(server: TritonServer) -> dict[str, list[dict[str, Any]]]:
    """Lines of the batch records by instance, those that name a process too."""
    return {
        path.stem: [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted(server.records.glob("*.jsonl"))
    }
