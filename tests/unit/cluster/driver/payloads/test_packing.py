"""From data to the file of encoded requests: what is in it, what is refused, and how much memory it takes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from squall.actors.messages.packed import PackFile
from squall.cluster.driver.payloads import packing
from squall.cluster.driver.payloads.packing import GivenRequests, check_without_spec, one_spec
from squall.models.spec import ModelSpec, TensorSpec
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ClusterError, ScenarioError
from squall.scenarios.plan.routed import plan_run

SPEC = ModelSpec("m", "1", (TensorSpec("IN", "FP32", (4,)),), (), 8)


def scenario(path: Path, arrivals: dict[str, Any] | None = None, **clients: Any) -> Scenario:
    return scenario_from_mapping({
        "name": "s", "seed": 3, "model": {"name": "head", "max_batch_size": 8},
        "clients": {"data": {"path": str(path), "order": "random"}, **clients},
        "phases": [
            {
                "name": "main", "kind": "measure", "duration": "1s",
                "arrivals": arrivals or {"kind": "poisson", "rate": "50/s"},
            },
            {"name": "end", "kind": "drain", "duration": "1s"},
        ],
    }, "s.yaml")  # fmt: skip


@pytest.fixture
def values(tmp_path: Path) -> Path:
    path = tmp_path / "values.npy"
    np.save(path, np.arange(4_000, dtype=np.float32).reshape(1_000, 4))
    return path


def test_only_what_the_plan_can_send_is_encoded(tmp_path: Path, values: Path) -> None:
    one = scenario(values, rows={"kind": "uniform", "low": 1, "high": 2})
    plan = plan_run(one, one.server_entries())
    given = GivenRequests(one, plan, SPEC)
    facts = given.write(tmp_path / "packed")
    file = PackFile(tmp_path / "packed")
    assert np.array_equal(file.kinds, plan.kind_codes())
    assert 30 < len(file) == facts.n_encoded < 100
    assert (facts.n_entries, facts.format, facts.encoded_bytes) == (
        1_000,
        "npy",
        (tmp_path / "packed").stat().st_size,
    )
    assert given.check() == replace(facts, encoded_bytes=0)
    last = file.tail(len(file) - 1)
    tensors = np.frombuffer(file.view[last.start : last.start + last.n_bytes][-32:], np.float32)
    first = int(file.kinds[-1] & 0xFFFFFFFF)
    assert tensors.tolist() == [float(4 * (first + row) % 4_000 + i) for row in (0, 1) for i in range(4)]


def test_users_of_a_closed_loop_may_send_every_entry(tmp_path: Path, values: Path) -> None:
    one = scenario(values, {"kind": "closed", "users": 2})
    assert (
        GivenRequests(one, plan_run(one, one.server_entries()), SPEC).write(tmp_path / "packed").n_encoded
        == 1_000
    )


def test_more_requests_than_can_be_encoded_are_refused(values: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MOST_KINDS", 999)
    one = scenario(values, {"kind": "closed", "users": 2})
    with pytest.raises(
        ScenarioError, match=r"1,000 different requests can be sent of .* at most 999 are encoded"
    ):
        GivenRequests(one, plan_run(one, one.server_entries()), SPEC)


def test_a_fault_leaves_no_file(tmp_path: Path, values: Path) -> None:
    one = scenario(values)
    spec = replace(SPEC, inputs=(TensorSpec("IN", "INT32", (4,)),))
    (tmp_path / "to").mkdir()
    with pytest.raises(ScenarioError, match=r"values.npy: row \d+: input IN \(column 'array'\) is INT32"):
        GivenRequests(one, plan_run(one, one.server_entries()), spec).write(tmp_path / "to" / "packed")
    assert list((tmp_path / "to").iterdir()) == []
    with pytest.raises(ClusterError, match="encoded requests cannot be written to"):
        GivenRequests(one, plan_run(one, one.server_entries()), SPEC).write(tmp_path / "none" / "packed")


@pytest.mark.parametrize(
    ("clients", "why"),
    [
        (
            {"request": {"binary": False}},
            r"clients\.request\.binary: false: input IN is not UTF-8, as JSON needs it",
        ),
        ({"stream": True}, r"input IN is not UTF-8, as generate_stream needs it"),
    ],
)
def test_bytes_that_json_does_not_carry_are_told_with_their_row(
    tmp_path: Path, clients: dict[str, Any], why: str
) -> None:
    pq.write_table(pa.table({"IN": [b"ok", b"\xff"]}), tmp_path / "a.parquet")
    one = scenario(tmp_path / "a.parquet", **clients)
    spec = replace(SPEC, inputs=(TensorSpec("IN", "BYTES", (1,)),))
    given = GivenRequests(one, plan_run(one, one.server_entries()), spec)
    with pytest.raises(ScenarioError, match=rf"a\.parquet: row 2: {why}"):
        given.write(tmp_path / "packed")


def test_servers_whose_models_differ_in_more_than_the_version_are_refused() -> None:
    assert one_spec([SPEC, replace(SPEC, version="2")]) == SPEC
    with pytest.raises(ScenarioError, match="the servers' models take different inputs"):
        one_spec([SPEC, replace(SPEC, inputs=(TensorSpec("IN", "FP32", (5,)),))])


def test_without_a_spec_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff\n" * 3)
    one = scenario(tmp_path / "a.txt")
    with pytest.raises(ScenarioError, match="row 1: is not UTF-8 text"):
        check_without_spec(one, plan_run(one, one.server_entries()))


_PACKED = """
import sys
from pathlib import Path

from squall.actors.load.targets import TargetSettings, Wire, packed
from squall.actors.clock import SystemClock
from squall.actors.load.lane import IS_BUILT, Lane
from squall.actors.net.loop import Loop
from squall.cluster.driver.payloads.packing import GivenRequests
from squall.models.spec import ModelSpec, TensorSpec
from squall.scenarios.plan.routed import plan_run
from tests.unit.cluster.driver.payloads.test_packing import scenario


def anonymous_bytes():
    for line in open("/proc/self/status"):
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024


folder, n = Path(sys.argv[1]), int(sys.argv[2])
spec = ModelSpec("m", "1", (TensorSpec("IN", "FP32", (16_384,)),), (), 8)
one = scenario(folder / "values.npy", {"kind": "closed", "users": 2})
given = GivenRequests(one, plan_run(one, one.server_entries()), spec)
before = anonymous_bytes()
assert given.write(folder / "packed").n_encoded == n
written = anonymous_bytes()
found = packed(folder / "packed", [TargetSettings("server-0", "127.0.0.1", 1, (spec,))], Wire("http"), None)
if IS_BUILT:
    class Recorder:
        take_filled = None.__init__
    Lane(Loop(SystemClock()), Recorder, found)
print(written - before, anonymous_bytes() - written, (folder / "packed").stat().st_size)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """200 MB of entries of 64 KiB: neither encoding them nor a lane that can send them holds a twentieth of them."""
    n = 3_200
    values = np.lib.format.open_memmap(tmp_path / "values.npy", "w+", np.float32, (n, 16_384))
    values[:] = 1.5
    values.flush()
    done = subprocess.run(
        [sys.executable, "-c", _PACKED, str(tmp_path), str(n)], capture_output=True, text=True, check=True,
        cwd=Path(__file__).parents[5],
    )  # fmt: skip
    for_writing, for_sending, n_bytes = map(int, done.stdout.split())
    assert n_bytes > n * 65_536
    assert for_writing < n_bytes / 20
    assert for_sending < n_bytes / 20
