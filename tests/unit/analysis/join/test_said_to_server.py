"""Which request ids a server can have heard."""

from __future__ import annotations

import pyarrow as pa

from squall.analysis.join.slices import said_to_server


def test_a_user_of_locust_who_calls_without_us_said_no_id_of_ours() -> None:
    rows = {
        "request_id": pa.array([0, 1, 2, 3]),
        "method": pa.array([None, "POST", "POST", None]),
        "request_kind": pa.array(["mlp", "mlp", "", ""]).dictionary_encode(),
    }
    assert said_to_server(rows).to_pylist() == [0, 1, None, 3]
