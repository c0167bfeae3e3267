"""The request that is tried before a load, over both protocols, against null servers: how it ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from squall.actors.load.targets import TargetSettings, Wire
from squall.actors.load.trial import Trial, TrialRequest, try_request
from squall.actors.messages.sequence_wire import n_bytes_of
from squall.models.payload import RequestOptions
from tests.null_process import NullProcess, null_spec

S = 1_000_000_000


def tried(null: NullProcess, protocol: str, timeout_ns: int = 20 * S, **wire: Any) -> Trial:
    spec = null_spec()
    target = TargetSettings("server-0", "127.0.0.1", null.ports[protocol], (spec,))
    inputs = {"INPUT": np.zeros((1, 4), np.float32)}
    is_sequence = "n_between_bytes" in wire
    return try_request(TrialRequest(target, Wire(protocol, **wire), spec, inputs, 1, is_sequence, timeout_ns))


PROTOCOLS = ("http", "grpc")


@pytest.mark.parametrize(
    ("fault", "outcome", "detail"),
    [
        ((), "ok", ""),
        (("--fault=503:1",), "rejected", ""),
        (("--fault=close:1",), "transport_error", "the server closed the connection"),
        (("--fault=wrong:1",), "bad_reply", ""),
        (("--fault=hang:1",), "timeout", "no whole reply within 0.1 s"),
    ],
)
def test_it_ends_as_a_request_of_the_load_would(fault: tuple[str, ...], outcome: str, detail: str) -> None:
    with NullProcess(*fault) as null:
        for protocol in PROTOCOLS:
            found = tried(null, protocol, S // 10 if outcome == "timeout" else 20 * S)
            assert found.outcome == outcome, found
            assert detail in found.detail
            assert found.took_ns >= S // 10 or outcome != "timeout"
    for protocol in PROTOCOLS:
        assert tried(null, protocol) == Trial("transport_error", "connect: Connection refused", 0)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_one_of_a_stateful_model_is_a_sequence_by_itself_and_a_compressed_one_is_whole(protocol: str) -> None:
    with NullProcess() as null:
        found = tried(null, protocol, n_between_bytes=n_bytes_of(protocol, {}))
        assert found.outcome == "ok", found
        found = tried(null, protocol, options=RequestOptions(is_gzip=True))
    assert found.outcome in ("ok", "server_error", "bad_reply"), found  # a null server may not inflate
