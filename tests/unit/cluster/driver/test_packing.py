"""From data to the file of encoded requests: what is in it, what is refused, and how much memory it takes."""

from __future__ import annotations

import re
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
from squall.actors.net.access import PLAIN
from squall.cluster.driver import payload_packing as packing
from squall.cluster.driver.payload_packing import (
    Codes,
    GivenRequests,
    Requests,
    check_without_spec,
    encoded_by_model,
    one_spec,
    sendable,
    told_in_manifest,
)
from squall.cluster.driver.payload_wires import stream_rule
from squall.cluster.node.endpoint import Endpoint, ServedModel
from squall.models.made import make_inputs
from squall.models.payload import write_tensor
from squall.models.spec import ModelSpec, TensorSpec
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ClusterError, ScenarioError
from squall.scenarios.plan.closed import ClosedPlan
from squall.scenarios.plan.plan import Plan
from squall.scenarios.run_plan import plan_run

SPEC = ModelSpec("m", "1", (TensorSpec("IN", "FP32", (4,)),), (), 8)


def planned(one: Scenario) -> Plan | ClosedPlan:
    """Of squall's own client."""
    plan = plan_run(one, one.servers)
    assert isinstance(plan, Plan | ClosedPlan)
    return plan


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


def codes_of(one: Scenario) -> Codes:
    """What can be sent to its model."""
    (codes,) = sendable(one, planned(one))
    return codes


@pytest.fixture
def values(tmp_path: Path) -> Path:
    path = tmp_path / "values.npy"
    np.save(path, np.arange(4_000, dtype=np.float32).reshape(1_000, 4))
    return path


def test_only_what_the_plan_can_send_is_encoded(tmp_path: Path, values: Path) -> None:
    one = scenario(values, rows={"kind": "uniform", "low": 1, "high": 2})
    plan = planned(one)
    given = GivenRequests(one.models[0], codes_of(one), SPEC)
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
    assert GivenRequests(one.models[0], codes_of(one), SPEC).write(tmp_path / "packed").n_encoded == 1_000


def test_more_requests_than_can_be_encoded_are_refused(values: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MOST_KINDS", 999)
    one = scenario(values, {"kind": "closed", "users": 2})
    with pytest.raises(
        ScenarioError, match=r"1,000 different requests can be sent of .* at most 999 are encoded"
    ):
        GivenRequests(one.models[0], codes_of(one), SPEC)


def test_a_fault_leaves_no_file(tmp_path: Path, values: Path) -> None:
    one = scenario(values)
    spec = replace(SPEC, inputs=(TensorSpec("IN", "INT32", (4,)),))
    (tmp_path / "to").mkdir()
    with pytest.raises(ScenarioError, match=r"values.npy: row \d+: input IN \(column 'array'\) is INT32"):
        GivenRequests(one.models[0], codes_of(one), spec).write(tmp_path / "to" / "packed")
    assert list((tmp_path / "to").iterdir()) == []
    with pytest.raises(ClusterError, match="encoded requests cannot be written to"):
        GivenRequests(one.models[0], codes_of(one), SPEC).write(tmp_path / "none" / "packed")


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
    given = GivenRequests(one.models[0], codes_of(one), spec, stream_rule(one, [spec]))
    with pytest.raises(ScenarioError, match=rf"a\.parquet: row 2: {why}"):
        given.write(tmp_path / "packed")


def test_servers_whose_models_differ_in_more_than_the_version_are_refused(values: Path) -> None:
    one = scenario(values)
    assert one_spec(one.models[0], [SPEC, replace(SPEC, version="2")]) == SPEC
    assert one_spec(one.models[0], [SPEC, replace(SPEC, n_priorities=3)]) == SPEC
    with pytest.raises(ScenarioError, match="the servers' models take different inputs"):
        one_spec(one.models[0], [SPEC, replace(SPEC, inputs=(TensorSpec("IN", "FP32", (5,)),))])


def test_without_a_spec_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff\n" * 3)
    one = scenario(tmp_path / "a.txt")
    with pytest.raises(ScenarioError, match="row 1: is not UTF-8 text"):
        check_without_spec(one.models[0], codes_of(one))


TEXT = ModelSpec("text", "1", (TensorSpec("TEXT", "BYTES", (1,)),), (), 8)
HEAD = replace(SPEC, name="head")


def several(values: Path, arrivals: dict[str, Any] | None = None, **of_text: Any) -> Scenario:
    """A head with 1,000 entries and a model of text, with data or not, each asked half of the time."""
    mapping = scenario(values, arrivals).to_mapping()
    own = {"data": mapping.pop("clients")["data"], "max_batch_size": 8}
    del mapping["model"]
    models = [{"name": "head", **own}, {"name": "text", "max_batch_size": 8, **of_text}]
    return scenario_from_mapping({**mapping, "models": models}, "s.yaml")


def endpoint(*specs: ModelSpec) -> Endpoint:
    return Endpoint(
        "http://127.0.0.1:9", PLAIN, 8001, None, "url", "2.51.0", tuple(map(ServedModel, specs)), False
    )


def encoded(one: Scenario, *endpoints: Endpoint) -> tuple[Requests, ...]:
    return encoded_by_model(one, planned(one), endpoints)


def test_each_of_several_models_has_a_file_with_its_own_requests(tmp_path: Path, values: Path) -> None:
    (tmp_path / "lines.txt").write_text("a\nbb\nccc\n")
    lines = {"path": str(tmp_path / "lines.txt")}
    one = several(values, data=lines, rows={"kind": "constant", "value": 2})
    head, text = encoded(one, endpoint(HEAD, TEXT), endpoint(TEXT))
    facts = [part.write(tmp_path / f"packed-{n}") for n, part in enumerate((head, text))]
    files = [PackFile(tmp_path / f"packed-{n}") for n in range(2)]
    plan = planned(one)
    assert [file.kinds.tolist() for file in files] == [codes.tolist() for codes in sendable(one, plan)]
    assert files[1].kinds.tolist() == [2 << 32, 2 << 32 | 1, 2 << 32 | 2], "entries counted from 0"
    tails = [files[1].tail(number) for number in range(3)]
    ends = [bytes(files[1].view[tail.start : tail.start + tail.n_bytes]) for tail in tails]
    for end, last in zip(ends, (b"a", b"bb", b"ccc"), strict=True):
        following = {b"a": b"bb", b"bb": b"ccc", b"ccc": b"a"}[last]
        joined = b"".join(len(element).to_bytes(4, "little") + element for element in (last, following))
        assert end.endswith(joined)
    assert told_in_manifest(one, facts) == {"data_by_model": {"head": facts[0], "text": facts[1]}}
    assert [(part.told, part.codes.size) for part in (head, text)] == [
        (f"of {values} to head", len(files[0])), (f"of {lines['path']} to text", 3)
    ]  # fmt: skip


def test_requests_that_squall_makes_are_encoded_beside_those_of_data(tmp_path: Path, values: Path) -> None:
    one = several(values, payload_variants=3, inputs={"TEXT": {"length": 5}})
    head, text = encoded(one, endpoint(HEAD, TEXT))
    assert head.write(tmp_path / "head") is not None
    assert text.write(tmp_path / "text") is None
    file = PackFile(tmp_path / "text")
    assert file.kinds.tolist() == [1 << 32, 1 << 32 | 1, 1 << 32 | 2]
    for number in range(3):
        made = make_inputs(TEXT, 1, number, one.seed, {}, one.models[1].clients.inputs)
        tail = file.tail(number)
        assert bytes(file.view[tail.start : tail.start + tail.n_bytes]).endswith(write_tensor(made["TEXT"]))


@pytest.mark.parametrize(
    ("of_text", "told"),
    [
        ({"data": {"path": "LINES"}}, "models.text.data: LINES: row 2: is not UTF-8 text"),
        (
            {"data": {"path": "VALUES"}},
            "models.text.data: VALUES: row 1: input TEXT (column 'array') is BYTES, and",
        ),
        (
            {"data": {"path": "LINES", "columns": {"TEXT": "words"}}},
            "LINES: has no column 'words' for input TEXT of model text, it has text; name it in models.text"
            ".data.columns",
        ),
        (
            {"data": {"path": "LINES", "columns": {"TEXTS": "text"}}},
            "models.text.data.columns.TEXTS: model text has no such input, did you mean 'TEXT'?",
        ),
        (
            {"data": {"path": "LINES"}, "inputs": {"words": {"length": 3}}},
            "models.text.inputs.words: model text has no such input, it has TEXT",
        ),
    ],
)
def test_a_fault_of_one_of_several_models_is_told_with_its_name(
    tmp_path: Path, values: Path, of_text: dict[str, Any], told: str
) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_bytes(b"good\n\xff\n")
    paths = {"LINES": str(lines), "VALUES": str(values)}
    of_text = {**of_text, "data": {**of_text["data"], "path": paths[of_text["data"]["path"]]}}
    for name, path in paths.items():
        told = told.replace(name, path)
    one = several(values, **of_text)
    with pytest.raises(ScenarioError, match=f"^{re.escape(told)}"):
        encoded(one, endpoint(HEAD, TEXT))[1].write(tmp_path / "packed")
    assert not (tmp_path / "packed.part").exists()


@pytest.mark.parametrize("has_data", [True, False])
def test_a_model_that_nothing_asks_has_an_empty_file(tmp_path: Path, values: Path, has_data: bool) -> None:
    (tmp_path / "lines.txt").write_text("a line\n")
    own = {"data": {"path": str(tmp_path / "lines.txt")}} if has_data else {}
    _, text = encoded(several(values, share=0, **own), endpoint(HEAD, TEXT))
    facts = text.write(tmp_path / "packed")
    assert (facts is not None and (facts.n_entries, facts.n_encoded)) == ((1, 0) if has_data else False)
    assert len(PackFile(tmp_path / "packed")) == 0


def test_what_is_encoded_is_the_same_at_every_server(values: Path) -> None:
    other = replace(TEXT, inputs=(TensorSpec("TEXT", "BYTES", (2,)),))
    with pytest.raises(ScenarioError, match=r"^models\.text: the servers' models take different inputs"):
        encoded(several(values), endpoint(HEAD, TEXT), endpoint(HEAD, other))
    with pytest.raises(ScenarioError, match=r"^models\.text.data: the servers' models take different inputs"):
        encoded(several(values, data={"path": str(values)}), endpoint(HEAD, TEXT), endpoint(HEAD, other))


def test_what_several_models_can_be_sent_counts_together(
    values: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "MOST_KINDS", 1_003)
    one = several(values, {"kind": "closed", "users": 2})
    with pytest.raises(
        ScenarioError, match=r"^models: 1,004 different requests can be sent, at most 1,003 are"
    ):
        encoded(one, endpoint(HEAD, TEXT))


def test_a_stateful_model_beside_others_is_refused_by_name(values: Path) -> None:
    stateful = replace(TEXT, is_stateful=True)
    with pytest.raises(ScenarioError, match=r"^models.text: it is stateful.* loaded alone"):
        encoded(several(values), endpoint(HEAD, stateful))


_PACKED = """
import sys
from pathlib import Path

from squall.actors.load.targets import TargetSettings, Wire, packed
from squall.actors.clock import SystemClock
from squall.actors.load.lane import IS_BUILT, Lane
from squall.actors.net.loop import Loop
from squall.actors.messages.packed_templates import PackedTemplates
from squall.cluster.driver.payload_packing import GivenRequests
from squall.models.spec import ModelSpec, TensorSpec
from tests.unit.cluster.driver.test_packing import codes_of, scenario


def anonymous_bytes():
    for line in open("/proc/self/status"):
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024


folder, n = Path(sys.argv[1]), int(sys.argv[2])
spec = ModelSpec("m", "1", (TensorSpec("IN", "FP32", (16_384,)),), (), 8)
one = scenario(folder / "values.npy", {"kind": "closed", "users": 2})
given = GivenRequests(one.models[0], codes_of(one), spec)
before = anonymous_bytes()
assert given.write(folder / "packed").n_encoded == n
written = anonymous_bytes()
found = PackedTemplates(
    [packed(folder / "packed", [TargetSettings("server-0", "127.0.0.1", 1, (spec,))], Wire("http"), None)]
)
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
        cwd=Path(__file__).parents[4],
    )  # fmt: skip
    for_writing, for_sending, n_bytes = map(int, done.stdout.split())
    assert n_bytes > n * 65_536
    assert for_writing < n_bytes / 20
    assert for_sending < n_bytes / 20
