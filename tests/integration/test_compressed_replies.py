"""A Triton compresses replies for clients that accept that, as those of Locust say they do, and batches wait for it."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from squall.cluster.node.endpoint import Endpoint
from tests.integration.serving import serving

pytestmark = pytest.mark.beside

ROWS, CLASSES = 32, 512  # 64 KiB of answers that do not compress well, as those of models are
N_REQUESTS = 30


def get(endpoint: Endpoint, path: str) -> Any:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{endpoint.url}{path}", timeout=30) as reply:
        return json.load(reply)


def output_ns(endpoint: Endpoint) -> int:
    """Time that Triton spent on outputs of the model so far."""
    (stats,) = get(endpoint, f"/v2/models/{endpoint.models[0].spec.name}/stats")["model_stats"]
    return int(stats["inference_stats"]["compute_output"]["ns"])


def ask(endpoint: Endpoint, accept: str) -> list[str | None]:
    """Sends the same requests, one behind the other; how each reply is encoded."""
    x = np.random.default_rng(1).standard_normal((ROWS, 16)).astype(np.float32)
    described = {
        "inputs": [
            {
                "name": "INPUT", "shape": list(x.shape), "datatype": "FP32",
                "parameters": {"binary_data_size": x.nbytes},
            }
        ],
        "outputs": [{"name": "OUTPUT", "parameters": {"binary_data": True}}],
    }  # fmt: skip
    head = json.dumps(described).encode()
    headers = {"Accept-Encoding": accept, "Inference-Header-Content-Length": str(len(head))}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    found = []
    for _ in range(N_REQUESTS):
        request = urllib.request.Request(
            f"{endpoint.url}/v2/models/{endpoint.models[0].spec.name}/infer", head + x.tobytes(), headers
        )
        with opener.open(request, timeout=30) as reply:
            reply.read()
            found.append(reply.headers["Content-Encoding"])
    return found


def test_a_reply_is_compressed_where_the_client_accepts_it_and_the_output_of_its_batch_takes_longer(
    tmp_path: Path,
) -> None:
    sizes = {"width": 16, "layers": 1, "classes": CLASSES}
    with serving(tmp_path, name="linear_head", max_batch_size=ROWS, settings=sizes) as (_, endpoint):
        spent: dict[str, int] = {}
        for accept in ("identity", "gzip, deflate", "identity", "gzip, deflate"):
            before = output_ns(endpoint)
            encodings = ask(endpoint, accept)
            spent[accept] = spent.get(accept, 0) + output_ns(endpoint) - before
            assert set(encodings) == ({None} if accept == "identity" else {"gzip"})
    # 64 KiB take zlib about 2 ms and a copy 10 µs: a tenth of that shows it, whatever else the host does
    assert spent["gzip, deflate"] > 3 * spent["identity"], spent
