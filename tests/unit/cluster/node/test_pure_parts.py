"""Batch records, placement, ledger, ports and the server's wheel: what needs no cluster."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import squall.cluster.node.batches
import squall.cluster.node.server
import squall.cluster.node.triton_home
from squall.cluster.driver.ingest import RECORD_GONE, Ledger
from squall.cluster.node.batches import read_batches
from squall.cluster.node.server import Ports, free_ports, refuse_no_model, triton_options
from squall.scenarios.config.models import ModelConfig
from squall.scenarios.config.servers import ServerConfig
from squall.scenarios.errors import TargetError
from squall.scenarios.plan.plan import PhaseSpan, Plan

LABELS = {"run": "r", "node": "node-0", "server": "server-0", "model": "m", "version": "1"}


def record(batch_id: int, ids: list[str], **extra: int) -> str:
    return json.dumps({"b": batch_id, "s": 10, "e": 20, "r": len(ids), "i": ids, **extra})


def batches(folder: Path, *lines: str, end: str = "\n") -> tuple[list[dict[str, Any]], list[str]]:
    (folder / "m_0.jsonl").write_text("\n".join(lines) + end)
    losses: list[str] = []
    rows = [row for table in read_batches(folder, LABELS, losses) for row in table.to_pylist()]
    return rows, losses


def test_batch_records_become_rows_with_foreign_ids_counted(tmp_path: Path) -> None:
    name = json.dumps({"instance": "m_0_gpu", "pid": 1})
    rows, losses = batches(tmp_path, name, record(0, ["000000000007", "probe", "12"]), record(1, []))
    assert losses == []
    assert [row["instance"] for row in rows] == ["m_0_gpu"] * 2
    assert [(row["batch_id"], row["request_ids"], row["n_requests"], row["n_foreign"]) for row in rows] == [
        (0, [7], 3, 2), (1, [], 0, 0)
    ]  # fmt: skip


def test_records_of_several_models_lie_below_their_names_and_versions(tmp_path: Path) -> None:
    for model, version in (("dense", "3"), ("text", "1")):
        (tmp_path / model / version).mkdir(parents=True)
        (tmp_path / model / version / f"{model}_0.jsonl").write_text(record(0, ["000000000007"]) + "\n")
    losses: list[str] = []
    rows = [row for table in read_batches(tmp_path, LABELS, losses) for row in table.to_pylist()]
    assert [(row["model"], row["version"], row["instance"], row["server"]) for row in rows] == [
        ("dense", "3", "dense_0", "server-0"), ("text", "1", "text_0", "server-0")
    ]  # fmt: skip


def test_a_server_is_told_of_each_repository_and_each_model() -> None:
    options = triton_options(["/a", "/b"], ["dense", "text"], Ports(1, 2, 3), "x-", "x")
    assert [options[at + 1] for at, one in enumerate(options) if one == "--model-repository"] == ["/a", "/b"]
    assert [one for one in options if one.startswith("--load-model")] == [
        "--load-model=dense",
        "--load-model=text",
    ]


def test_a_repository_without_its_model_is_named_by_the_key_of_the_model(tmp_path: Path) -> None:
    for folder in ("text/1", "ensemble", "Documents/mine/1"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "ensemble" / "config.pbtxt").touch()
    own = ModelConfig(name="dense")
    refuse_no_model(
        [own, *(ModelConfig(name=name, repository=str(tmp_path)) for name in ("text", "ensemble"))]
    )
    for name in ("Documents", "Documents/mine", "."):
        with pytest.raises(TargetError, match=rf"^model\.repository: .* has no model '{name}', which"):
            refuse_no_model([ModelConfig(name=name, repository=str(tmp_path))])
    for models, key in (([], "model"), ([own], "models.gone")):
        with pytest.raises(
            TargetError,
            match=rf"^{key}\.repository: .* has no model 'gone', which is a folder with config.pbtxt or versions$",
        ):
            refuse_no_model([*models, ModelConfig(name="gone", repository=str(tmp_path))])


def test_a_record_whose_first_line_was_lost_is_known_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "m_0.gpu1.jsonl").write_text(record(0, []))
    rows, _ = batches(tmp_path, record(0, []))
    assert [(row["instance"], row["instance_device"]) for row in rows] == [("m_0", 1), ("m_0", -1)]


def test_a_line_cut_off_at_any_byte_is_told_and_costs_only_itself(tmp_path: Path) -> None:
    last = record(1, ["000000000001"])
    for cut in range(1, len(last)):
        rows, losses = batches(tmp_path, record(0, ["000000000000"]), last[:cut], end="")
        assert [row["batch_id"] for row in rows] == [0]
        assert losses == ["batches: instance m_0: 0 records were not written, 1 lines are cut off"]


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000, "[]", "{}", '{"b":1}', '{"instance":7}', '{"instance":"a","device":"b"}', "\x00",
        '{"b":"1","s":1,"e":2,"r":1,"i":[]}', '{"b":1,"s":1,"e":99999999999999999999,"r":1,"i":[]}',
        '{"b":1,"s":1,"e":2,"r":1,"i":"000000000001"}', '{"b":1,"s":1,"e":2,"r":1,"i":[1]}',
        '{"b":1,"s":1,"e":2,"r":true,"i":[]}', '{"b":1,"s":1,"e":2,"r":1,"i":[],"lost":"all"}',
    ],
)  # fmt: skip
def test_a_line_that_no_model_writes_counts_as_cut_off(tmp_path: Path, line: str) -> None:
    rows, losses = batches(tmp_path, record(0, []), line, record(1, []))
    assert [row["batch_id"] for row in rows] == [0, 1]
    assert losses == ["batches: instance m_0: 0 records were not written, 1 lines are cut off"]


def test_records_that_the_model_could_not_write_are_told(tmp_path: Path) -> None:
    rows, losses = batches(tmp_path, record(0, []), record(3, [], lost=2), record(9, [], lost=7))
    assert len(rows) == 3
    assert losses == ["batches: instance m_0: 7 records were not written, 0 lines are cut off"]


def test_more_records_than_a_table_holds_are_all_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(squall.cluster.node.batches, "_ROWS_A_TABLE", 20)
    rows, _ = batches(tmp_path, *(record(i, []) for i in range(41)))
    assert [row["batch_id"] for row in rows] == list(range(41))


def plan_of(n: int) -> Plan:
    return Plan(
        seq=np.arange(n, dtype=np.int64), offset_ns=np.arange(n, dtype=np.int64) * 10, phase=(np.arange(n) % 2 > 0)
        .astype(np.uint8), rows=np.full(n, 3, np.int32), variant=np.zeros(n, np.uint8),
        spans=(PhaseSpan("warm", "warmup", 0, 5), PhaseSpan("m", "measure", 5, 100)),
    )  # fmt: skip


def test_the_ledger_gives_a_lost_row_for_each_arrival_that_no_worker_recorded() -> None:
    labels = {"run": "r", "target": "server-0", "request_kind": "m"}
    ledger = Ledger(plan_of(6), labels, ["node-0", "node-1"], 1_000)
    assert ledger.n_missing == 6
    everything = pa.concat_tables(ledger.missing_tables([None, None]))
    ledger.note(everything.filter([True, False, True, True, True, False]), 1_000)
    assert ledger.n_missing == 2
    rows = pa.concat_tables(ledger.missing_tables([None, None])).to_pylist()
    shared = {
        **labels, "node": "node-1", "worker": 1, "phase": "m", "rows": 3, "outcome": "lost",
        "detail": RECORD_GONE, "request_bytes": 0, "response_bytes": 0, "sent_ns": None, "first_byte_ns": None,
        "done_ns": None, "method": None, "name": None,
    }  # fmt: skip
    assert rows == [
        {**shared, "request_id": 1, "scheduled_ns": 1_010}, {**shared, "request_id": 5, "scheduled_ns": 1_050}
    ]  # fmt: skip
    ledger.note(everything, 1_000)
    assert list(ledger.missing_tables([None, None])) == []


class _Socket:
    """A socket that binds on a machine where `taken` are taken and free ports count up from 40,000."""

    taken: tuple[int, ...] = (8001,)
    n_made = 0

    def __init__(self, family: int) -> None:
        del family
        type(self).n_made += 1
        self._port = 40_000 + self.n_made

    def setsockopt(self, *_: int) -> None: ...

    def bind(self, address: tuple[str, int]) -> None:
        if address[1] in self.taken:
            raise OSError(98, "Address already in use")
        self._port = address[1] or self._port

    def getsockname(self) -> tuple[str, int]:
        return ("127.0.0.1", self._port)

    def close(self) -> None:
        type(self).n_made -= 1


def test_a_port_that_is_taken_is_one_line_and_no_probe_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("squall.cluster.node.server.socket.socket", _Socket)
    with pytest.raises(TargetError) as caught:
        free_ports(ServerConfig(http_port=8000, grpc_port=8001))
    assert str(caught.value) == "server.grpc_port: port 8001 on 127.0.0.1: Address already in use"
    assert _Socket.n_made == 0


def test_ports_are_those_of_the_scenario_and_free_ones_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("squall.cluster.node.server.socket.socket", _Socket)
    ports = free_ports(ServerConfig(http_port=8000))
    assert ports.http == 8000
    assert len({ports.http, ports.grpc, ports.metrics}) == 3


MEND = (
    "connect this machine to a package index once, copy the cache folder from a machine that has it "
    "(SQUALL_CACHE_DIR), put tritonserver on the PATH, or pass --server URL"
)


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes `pip download` end as told, in a cache of the test and with no tritonserver on the PATH."""
    monkeypatch.setenv("SQUALL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))

    def answer(code: int, stderr: str = "", wheel: bytes | None = None, hangs: bool = False) -> None:
        def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
            assert command[:4] == [sys.executable, "-m", "pip", "download"]
            if hangs:
                raise subprocess.TimeoutExpired(command, 600)
            if wheel is not None:
                (Path(command[command.index("--dest") + 1]) / "nvidia_pytriton-0.whl").write_bytes(wheel)
            return subprocess.CompletedProcess(command, code, "", stderr)

        monkeypatch.setattr("squall.cluster.node.triton_home.subprocess.run", run)

    return answer


def failure() -> str:
    with pytest.raises(TargetError) as caught:
        squall.cluster.node.triton_home.find_triton()
    return str(caught.value)


def test_a_wheel_that_pip_cannot_fetch_is_told_in_pips_words_with_the_mend(pip: Any) -> None:
    pip(1, "WARNING: x\nERROR: No matching distribution\n")
    wheel = squall.cluster.node.triton_home.WHEEL
    assert failure() == (
        f"{wheel} is not cached and could not be fetched (ERROR: No matching distribution); {MEND}"
    )


def test_a_fetch_that_does_not_end_is_told_with_the_mend(pip: Any) -> None:
    pip(0, hangs=True)
    assert failure() == f"fetching {squall.cluster.node.triton_home.WHEEL} took more than 600 s; {MEND}"


def test_a_wheel_that_is_not_the_known_one_is_refused_and_leaves_no_home(pip: Any, tmp_path: Path) -> None:
    pip(0, wheel=b"another")
    digest = hashlib.sha256(b"another").hexdigest()
    known = squall.cluster.node.triton_home._WHEEL_SHA256
    assert failure() == f"nvidia_pytriton-0.whl has sha256 {digest}, not {known}: it is not the known wheel"
    assert list((tmp_path / "cache").iterdir()) == []
