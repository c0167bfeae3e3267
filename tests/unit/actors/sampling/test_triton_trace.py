from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import squall.actors.sampling.triton_trace
from squall.actors.net.triton_control import ControlError
from squall.actors.sampling.triton_trace import (
    LOG_FREQUENCY,
    TraceSwitch,
    read_traces,
    trace_files,
    trace_holds,
    trace_options,
    trace_reason,
)
from squall.analysis.storage.schema import arrow_schema
from squall.models.payload import ID_DIGITS

LABELS = {"run": "r", "node": "node-0", "server": "server-0"}
COMPUTE = ("COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END")


@dataclass
class Setting:
    """What server/src/tracer.cc does, in its words: TraceSetting::WriteTrace and TraceFile::SaveTraces."""

    file: Path
    log_frequency: int
    index: int = 0
    waiting: list[str] = field(default_factory=list)

    def write_trace(self, streams: dict[int, list[str]]) -> None:
        self.waiting.append(",".join(",".join(stream) for stream in streams.values()))
        if self.log_frequency and len(self.waiting) >= self.log_frequency:
            self.end()

    def end(self) -> None:
        """The setting is replaced, or the server ends: what waits is written."""
        if self.waiting:
            name = f"{self.file.name}.{self.index}" if self.log_frequency else self.file.name
            (self.file.parent / name).write_text("[" + ",".join(self.waiting) + "]")
            self.index += 1
            self.waiting = []


@dataclass
class Trace:
    """One traced request: TraceManager::Trace with its streams, one for itself and one for each child."""

    trace_id: int
    streams: dict[int, list[str]] = field(default_factory=dict)

    def stamp(self, name: str, ns: int, trace_id: int | None = None) -> None:
        """CaptureTimestamp, and the second half of TraceActivity."""
        own = trace_id or self.trace_id
        text = f'{{"id":{own},"timestamps":[{{"name":"{name}","ns":{ns}}}]}}'
        self.streams.setdefault(own, []).append(text)

    def request_start(
        self, ns: int, model: str, request_id: str, trace_id: int | None = None, parent_id: int = 0
    ) -> None:
        """TraceActivity of REQUEST_START, which tells of the model; nothing is escaped."""
        own = trace_id or self.trace_id
        text = f'{{"id":{own},"model_name":"{model}","model_version":1'
        text += f',"request_id":"{request_id}"' if request_id else ""
        text += f',"parent_id":{parent_id}' if parent_id else ""
        self.streams.setdefault(own, []).append(text + "}")
        self.stamp("REQUEST_START", ns, own)


def over_http(trace_id: int, t: int, compute: int, request_id: str, model: str = "m") -> Trace:
    """An HTTP request that arrives at t, in the batch that starts at `compute`; facts: the response is complete before
    the computation has ended."""
    trace = Trace(trace_id)
    trace.stamp("HTTP_RECV_START", t)
    trace.stamp("HTTP_RECV_END", t + 1)
    trace.request_start(t + 2, model, request_id)
    trace.stamp("QUEUE_START", t + 3)
    for step, name in enumerate(COMPUTE):
        if name == "COMPUTE_END":
            trace.stamp("INFER_RESPONSE_COMPLETE", compute + 25)
        trace.stamp(name, compute + 10 * step)
    trace.stamp("REQUEST_END", compute + 40)
    trace.stamp("HTTP_SEND_START", compute + 50)
    trace.stamp("HTTP_SEND_END", compute + 60)
    return trace


def over_grpc(trace_id: int, t: int, compute: int, request_id: str) -> Trace:
    trace = Trace(trace_id)
    trace.stamp("GRPC_WAITREAD_START", t - 2_950_000_000)  # the slot has waited since then for any request
    trace.stamp("GRPC_WAITREAD_END", t)
    trace.request_start(t + 2, "m", request_id)
    trace.stamp("QUEUE_START", t + 3)
    for step, name in enumerate(COMPUTE):
        trace.stamp(name, compute + 10 * step)
    trace.stamp("REQUEST_END", compute + 40)
    for reply in range(2):  # a decoupled model
        trace.stamp("GRPC_SEND_START", compute + 50 + 100 * reply)
        trace.stamp("GRPC_SEND_END", compute + 60 + 100 * reply)
    return trace


def ours(request_id: int) -> str:
    return f"{request_id:0{ID_DIGITS}}"


def rows_of(files: list[Path], losses: list[str]) -> list[dict[str, Any]]:
    tables = list(read_traces(files, LABELS, losses))
    assert all(table.schema == arrow_schema("triton_traces") for table in tables)
    return [row for table in tables for row in table.to_pylist()]


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path / "trace.json", LOG_FREQUENCY)


def read(setting: Setting) -> list[dict[str, Any]]:
    """The rows, where nothing is lost."""
    setting.end()
    losses: list[str] = []
    rows = rows_of(trace_files(setting.file), losses)
    assert losses == []
    return rows


def test_a_request_over_http_has_every_instant(setting: Setting) -> None:
    setting.write_trace(over_http(7, 1_000, 2_000, ours(42)).streams)
    (row,) = read(setting)
    assert row == {
        **LABELS, "phase": "", "model": "m", "version": "1", "trace_id": 7, "parent_trace_id": None, "request_id": 42,
        "protocol": "http", "recv_start_ns": 1_000, "recv_end_ns": 1_001, "request_start_ns": 1_002,
        "queue_start_ns": 1_003, "compute_start_ns": 2_000, "compute_input_end_ns": 2_010,
        "compute_output_start_ns": 2_020, "compute_end_ns": 2_030, "request_end_ns": 2_040, "send_start_ns": 2_050,
        "send_end_ns": 2_060,
    }  # fmt: skip


def test_a_request_over_grpc_arrives_when_the_wait_for_it_ends(setting: Setting) -> None:
    t = 10_000_000_000
    setting.write_trace(over_grpc(1, t, t + 100, ours(1)).streams)
    (row,) = read(setting)
    assert (row["protocol"], row["recv_start_ns"], row["recv_end_ns"]) == ("grpc", t, t)
    assert (row["send_start_ns"], row["send_end_ns"]) == (t + 150, t + 260)


def test_a_record_that_never_came_to_a_model_is_kept(setting: Setting) -> None:
    trace = Trace(3)
    trace.stamp("HTTP_RECV_START", 5)
    trace.stamp("HTTP_RECV_END", 6)
    setting.write_trace(trace.streams)
    setting.write_trace(over_http(4, 10, 20, ours(1)).streams)
    partial, whole = read(setting)
    assert (partial["model"], partial["recv_start_ns"], partial["queue_start_ns"]) == ("", 5, None)
    assert partial["request_id"] is None
    assert whole["trace_id"] == 4


@pytest.mark.parametrize("is_parent_first", [True, False])
def test_the_parts_of_an_ensemble_name_their_parent(setting: Setting, is_parent_first: bool) -> None:
    trace = Trace(1)
    trace.stamp("HTTP_RECV_START", 1)
    trace.request_start(2, "ensemble", ours(9))
    for child in (2, 3):
        trace.request_start(10 * child, f"part{child}", ours(9), child, parent_id=1)
        trace.stamp("COMPUTE_START", 10 * child + 1, child)
    trace.stamp("REQUEST_END", 50)
    streams = dict(trace.streams) if is_parent_first else dict(reversed(trace.streams.items()))
    setting.write_trace(streams)
    rows = {row["trace_id"]: row for row in read(setting)}
    assert {key: (row["model"], row["parent_trace_id"], row["request_id"]) for key, row in rows.items()} == {
        1: ("ensemble", None, 9), 2: ("part2", 1, 9), 3: ("part3", 1, 9)
    }  # fmt: skip
    assert (rows[1]["compute_start_ns"], rows[2]["compute_start_ns"], rows[2]["protocol"]) == (None, 21, "")


@pytest.mark.parametrize("foreign", ["", "mine", "42", "0000000000042", "00000000004٢", "-00000000042"])
def test_an_id_that_is_not_ours_is_null(setting: Setting, foreign: str) -> None:
    setting.write_trace(over_http(1, 1, 2, foreign).streams)
    assert read(setting)[0]["request_id"] is None


def test_batches_come_out_by_the_instant_that_their_requests_share(setting: Setting) -> None:
    rng = np.random.default_rng(5)
    sizes = rng.integers(1, 9, 700)
    wanted: dict[int, set[int]] = {}
    requests: list[tuple[int, int]] = []
    for batch, size in enumerate(sizes):
        ids = set(range(len(requests), len(requests) + int(size)))
        wanted[1_000_000 + 100 * batch] = ids
        requests += [(one, 1_000_000 + 100 * batch) for one in ids]
    for place in rng.permutation(len(requests)):  # written as they end, in any order
        request_id, compute = requests[place]
        setting.write_trace(over_http(request_id + 1, compute - 50, compute, ours(request_id)).streams)
    rows = read(setting)
    assert len(trace_files(setting.file)) == -(-len(requests) // LOG_FREQUENCY) > 1
    grouped = (
        pa.table({name: [row[name] for row in rows] for name in ("model", "compute_start_ns", "request_id")})
        .group_by(["model", "compute_start_ns"])
        .aggregate([("request_id", "list")])
    )
    found = zip(
        grouped["compute_start_ns"].to_pylist(), map(set, grouped["request_id_list"].to_pylist()), strict=True
    )
    assert dict(found) == wanted


def test_numbered_files_are_read_in_the_order_of_their_numbers_and_the_plain_one_too(tmp_path: Path) -> None:
    setting = Setting(tmp_path / "t.json", 1)
    for trace_id in range(1, 13):
        setting.write_trace(over_http(trace_id, trace_id, trace_id, "").streams)
    Setting(tmp_path / "t.json", 0, waiting=[",".join(over_http(99, 1, 2, "").streams[99])]).end()
    for other in ("t.json.tmp", "t.json.1.bak", "other.0"):
        (tmp_path / other).write_text("no trace")
    losses: list[str] = []
    assert [row["trace_id"] for row in rows_of(trace_files(tmp_path / "t.json"), losses)] == [
        *range(1, 13),
        99,
    ]
    assert losses == []


def test_nothing_was_traced(tmp_path: Path) -> None:
    losses: list[str] = []
    assert trace_files(tmp_path / "t.json") == []
    assert list(read_traces([], LABELS, losses)) == []
    (tmp_path / "t.json").write_text("[]")
    assert rows_of([tmp_path / "t.json"], losses) == []
    assert losses == []


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_wherever_a_file_is_cut_off_the_requests_before_are_kept_and_the_loss_is_told(
    setting: Setting, step: int
) -> None:
    for trace_id in (1, 2, 3):
        setting.write_trace(over_http(trace_id, trace_id, 10 * trace_id, ours(trace_id)).streams)
    whole = read(setting)
    (path,) = trace_files(setting.file)
    text = path.read_bytes()
    starts = [text.index(b'{"id":%d' % trace_id) for trace_id in (1, 2, 3)]
    edges = {place for start in starts for place in range(start - 3, start + 4)} | {len(text) - 1}
    for length in sorted({*range(0, len(text), step), *edges}):
        path.write_bytes(text[:length])
        losses: list[str] = []
        rows = rows_of([path], losses)
        n_whole = sum(start <= length for start in starts[1:])
        assert rows[:n_whole] == whole[:n_whole], length
        assert losses[0].startswith("triton_traces: trace.json.0 has no end"), length
        for row, right in zip(rows, whole, strict=False):  # a cut row lacks instants, it has no wrong ones
            assert all(row[name] in (right[name], None, "") for name in right), length


def test_an_id_that_breaks_the_json_costs_its_own_record_alone(setting: Setting) -> None:
    for trace_id, request_id in ((1, ours(1)), (2, 'a"b'), (3, "tab\t\n"), (4, '"},{"id":"x'), (5, ours(5))):
        setting.write_trace(over_http(trace_id, 1, 2, request_id).streams)
    setting.end()
    losses: list[str] = []
    rows = {row["trace_id"]: row for row in rows_of(trace_files(setting.file), losses)}
    assert set(rows) == {1, 2, 3, 4, 5}
    assert [rows[n]["model"] for n in (1, 2, 3, 4, 5)] == ["m", "", "m", "m", "m"]
    assert [rows[n]["request_id"] for n in (1, 5)] == [1, 5]
    assert rows[2]["compute_start_ns"] == 2
    assert losses == ["triton_traces: 2 records of trace.json.0 cannot be read"]


@pytest.mark.parametrize(
    "record",
    [
        "7", '"id"', "null", "[]", '{"name":1}', '{"id":"1"}', '{"id":1.5}', '{"id":true}', '{"id":-1}',
        '{"id":1,"timestamps":7}', '{"id":1,"timestamps":[7]}', '{"id":1,"timestamps":[{"name":"A"}]}',
        '{"id":1,"timestamps":[{"name":"A","ns":"1"}]}',
        '{"id":1,"timestamps":[{"name":"A","ns":9223372036854775808}]}',
    ],
)  # fmt: skip
def test_what_is_no_record_is_counted_and_left_out(tmp_path: Path, record: str) -> None:
    good = ",".join(over_http(5, 1, 2, ours(5)).streams[5])
    (tmp_path / "t").write_text(f"[{record},{good}]")
    losses: list[str] = []
    (row,) = rows_of([tmp_path / "t"], losses)
    assert (row["trace_id"], row["send_end_ns"]) == (5, 62)
    assert losses == ["triton_traces: 1 records of t cannot be read"]


def test_records_are_whole_across_the_pieces_of_a_large_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(squall.actors.sampling.triton_trace, "_PIECE_BYTES", 97)
    monkeypatch.setattr(squall.actors.sampling.triton_trace, "_ROWS_A_TABLE", 7)
    setting = Setting(tmp_path / "t", 0)
    for trace_id in range(1, 51):
        setting.write_trace(over_http(trace_id, trace_id, 10 * trace_id, ours(trace_id)).streams)
    setting.end()
    losses: list[str] = []
    tables = list(read_traces([tmp_path / "t"], LABELS, losses))
    assert [len(table) for table in tables] == [7] * 7 + [1]
    rows = [row for table in tables for row in table.to_pylist()]
    assert [(row["trace_id"], row["request_id"]) for row in rows] == [(n, n) for n in range(1, 51)]
    assert all(None not in (row["recv_start_ns"], row["send_end_ns"]) for row in rows)
    assert losses == []


def test_a_file_that_is_gone_is_a_loss(tmp_path: Path) -> None:
    losses: list[str] = []
    assert rows_of([tmp_path / "t.0"], losses) == []
    assert losses == ["triton_traces: t.0 cannot be read: No such file or directory"]


@pytest.mark.parametrize(
    ("version", "holds"),
    [
        ("2.51.0", False), ("2.56.9", False), ("2.57.0", True), ("2.57.0dev", True), ("2.100.1", True), ("3.0.0", True),
        ("1.99.0", False), ("25.04", False), ("", False), ("unknown", False), ("2", False), ("2.x", False),
    ],
)  # fmt: skip
def test_only_versions_with_the_fix_hold(version: str, holds: bool) -> None:
    assert trace_holds(version) is holds
    assert (trace_reason(version) is None) is holds


def test_why_a_server_is_not_traced_is_a_sentence() -> None:
    assert "Triton 2.51.0 crashes" in str(trace_reason("2.51.0"))
    assert "not known before it starts" in str(trace_reason(None))


def test_the_options_record_every_request_to_the_file_once_it_is_switched_on(tmp_path: Path) -> None:
    assert trace_options(tmp_path / "t") == [
        "--trace-config=mode=triton", "--trace-config=rate=1", "--trace-config=level=OFF",
        f"--trace-config=triton,file={tmp_path}/t", f"--trace-config=triton,log-frequency={LOG_FREQUENCY}",
    ]  # fmt: skip


class ScriptedTriton:
    """Answers like HandleTrace of server/src/http_server.cc: with the setting as it is then."""

    def __init__(self, **fixed: Any) -> None:
        self.bodies: list[Any] = []
        self._setting = {
            "trace_level": ["OFF"],
            "trace_rate": "1",
            "trace_count": "-1",
            "log_frequency": "1000",
        }
        self._fixed = fixed

    def ask(self, path: str, method: str, body: bytes) -> bytes:
        assert (path, method) == ("/v2/trace/setting", "POST")
        self.bodies.append(json.loads(body))
        return json.dumps(self._setting | self.bodies[-1] | self._fixed).encode()


@pytest.fixture
def switch(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(**fixed: Any) -> tuple[TraceSwitch, ScriptedTriton]:
        server = ScriptedTriton(**fixed)
        monkeypatch.setattr(squall.actors.sampling.triton_trace, "Control", lambda *_: server)
        return TraceSwitch("http://s"), server

    return make


def test_the_switch_sets_the_level_of_all_models(switch: Any) -> None:
    triton, server = switch()
    triton.turn_on()
    triton.turn_off()
    assert server.bodies == [{"trace_level": ["TIMESTAMPS"]}, {"trace_level": ["OFF"]}]


@pytest.mark.parametrize("fixed", [{"trace_level": ["OFF"]}, {"trace_rate": "1000"}])
def test_a_server_that_would_not_trace_every_request_is_an_error(switch: Any, fixed: Any) -> None:
    triton, _ = switch(**fixed)
    with pytest.raises(ControlError, match="not TIMESTAMPS of every request"):
        triton.turn_on()
