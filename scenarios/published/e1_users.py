"""The load of E1 as a locustfile: requests of token ids, as bytes, from users that do not think. Nothing of ours
imports it.

`locust -f` runs it too: --rows, --tokens, --vocabulary, --model, --accept-encoding.
"""

from __future__ import annotations

import json
import struct
from typing import Any

from locust import FastHttpUser, HttpUser, constant, events, task


@events.init_command_line_parser.add_listener
def _own_options(parser: Any) -> None:
    parser.add_argument("--rows", type=int, default=50, help="Data points of a request.")
    parser.add_argument("--tokens", type=int, default=64, help="Tokens of a data point.")
    parser.add_argument("--vocabulary", type=int, default=30522, help="Token ids are below it.")
    parser.add_argument("--model", default="bert_tiny", help="Name of the model.")
    parser.add_argument("--accept-encoding", default="", help="In place of the client's own, gzip among it.")


def _request(options: Any) -> tuple[bytes, dict[str, str]]:
    """Body and headers by Triton's binary tensor extension, the same for all users."""
    n = options.rows * options.tokens
    n_ids = options.vocabulary - 5  # those below are of the tokenizer itself
    blobs = {
        "input_ids": struct.pack(f"<{n}q", *(5 + place * 7_919 % n_ids for place in range(n))),
        "attention_mask": struct.pack(f"<{n}q", *([1] * n)),
    }
    described = [
        {
            "name": name,
            "shape": [options.rows, options.tokens],
            "datatype": "INT64",
            "parameters": {"binary_data_size": len(blob)},
        }
        for name, blob in blobs.items()
    ]
    outputs = [{"name": "OUTPUT", "parameters": {"binary_data": True}}]
    head = json.dumps({"inputs": described, "outputs": outputs}).encode()
    headers = {
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": str(len(head)),
    }
    if options.accept_encoding:
        headers["Accept-Encoding"] = options.accept_encoding
    return head + b"".join(blobs.values()), headers


@events.test_start.add_listener
def _make_request(environment: Any, **_: Any) -> None:
    environment.e1_path = f"/v2/models/{environment.parsed_options.model}/infer"
    environment.e1_body, environment.e1_headers = _request(environment.parsed_options)


class Requests(HttpUser):
    """By `requests`, Locust's default client."""

    wait_time = constant(0)

    @task
    def infer(self) -> None:
        own: Any = self.environment
        self.client.post(own.e1_path, data=own.e1_body, headers=own.e1_headers)


class FastRequests(FastHttpUser):
    """By geventhttpclient."""

    wait_time = constant(0)

    @task
    def infer(self) -> None:
        own: Any = self.environment
        self.client.post(own.e1_path, data=own.e1_body, headers=own.e1_headers)
