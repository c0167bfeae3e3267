"""A server behind a Unix socket on the client's own node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from squall.actors.clock import SystemClock
from squall.actors.load.worker import LoadWorker
from squall.scenarios.errors import TargetError
from tests.golden.driving import MS, S, assert_one_row_each, column, plan_of, run_worker, settings_of, toward
from tests.null_process import NullProcess, null_spec


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_unix_socket_is_loaded_as_a_port_is(protocol: str, tmp_path: Path) -> None:
    plan = plan_of([i * 2 * MS for i in range(100)], 10 * S)
    prefix = os.path.relpath(tmp_path / "null")  # an address has room for 107 bytes
    settings = toward(
        settings_of(tmp_path, 1, spec=null_spec(), protocol=protocol), unix=f"{prefix}-{protocol}"
    )
    with NullProcess(f"--unix={prefix}"):
        rows = run_worker(settings, plan)
    assert_one_row_each(rows, plan)
    assert column(rows, "outcome") == ["ok"] * 100


def test_a_unix_socket_that_is_not_there_is_named(tmp_path: Path) -> None:
    worker = LoadWorker(toward(settings_of(tmp_path, 1), unix="/absent"), SystemClock())
    with pytest.raises(TargetError) as caught:
        worker.prepare(plan_of([0], S))
    assert str(caught.value) == "worker 0: no connection to /absent: No such file or directory"
