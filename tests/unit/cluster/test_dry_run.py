"""What a dry run says of plan, servers and clients, on a cluster of known nodes."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pytest

import squall.cluster.dry_run
from squall.actors.net.access import PLAIN
from squall.cluster.dry_run import DryRun, _code_notes, _mean_bytes, dry_run
from squall.cluster.interrupts import Interrupts
from squall.cluster.node.endpoint import Endpoint, ServedModel
from squall.cluster.placement import Node
from squall.models.spec import HEADS, TensorSpec, head_spec
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.errors import ScenarioError
from squall.scenarios.model_shares import models_of
from squall.scenarios.plan.drafting import plan_scenario

NODES = [
    Node("node-0", "id-0", "10.0.0.1", 0, True),
    Node("node-1", "id-1", "10.0.0.2", 2, False),
    Node("node-2", "id-2", "10.0.0.3", 0, False),
]
ARRIVALS = {"kind": "constant", "rate": "100/s"}


class _Session:
    """A Ray of known nodes."""

    def __init__(self, address: str | None) -> None:
        self.address = address

    def __enter__(self) -> _Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def nodes(self) -> list[Node]:
        return NODES


@pytest.fixture(autouse=True)
def _known_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(squall.cluster.dry_run, "Session", _Session)


def mapping(arrivals: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return {
        "name": "n", "seed": 1, "model": {"name": "linear_head", "settings": {"width": 8}},
        "clients": {"workers_per_node": 3, "rows": {"kind": "constant", "value": 2}},
        "phases": [
            {"name": "m", "kind": "measure", "duration": "3s", "arrivals": arrivals or ARRIVALS},
            {"name": "d", "kind": "drain", "duration": "1s"},
        ],
        **changes,
    }  # fmt: skip


def found(**changes: Any) -> DryRun:
    return dry_run(scenario_from_mapping(mapping(**changes), "test"), "10.0.0.1:6379", Interrupts())


def test_it_says_who_is_where_and_what_each_sends() -> None:
    found_ = found(server={"listen": "cluster"}, servers={"per": "gpu"})
    n = len(plan_scenario(scenario_from_mapping(mapping(), "test")))
    assert (found_.plan["n_arrivals"], found_.plan["seconds"]) == (n, 4.0)
    assert [(one["name"], one["node"], one["gpus"], one["listens"]) for one in found_.servers] == [
        ("server-0", "node-1", (0,), "10.0.0.2"), ("server-1", "node-1", (1,), "10.0.0.2"),
    ]  # fmt: skip
    assert sum(one["n_planned"] for one in found_.servers) == n
    assert [(one["node"], one["n_workers"]) for one in found_.clients] == [("node-0", 3), ("node-2", 3)]
    assert sum(one["n_planned"] for one in found_.clients) == n
    assert sum(one["input_bytes"] for one in found_.clients) == n * 2 * 8 * 4, "FP32 [2, 8] each"
    assert all(one["record_bytes"] > 80 * one["n_planned"] for one in found_.clients)


def test_inputs_in_json_have_no_bytes_that_are_known() -> None:
    as_json = {**mapping()["clients"], "request": {"binary": False}}
    assert {one["input_bytes"] for one in found(clients=as_json).clients} == {None}


def test_an_input_that_some_requests_leave_out_counts_for_its_share() -> None:
    scenario = scenario_from_mapping(mapping(clients={"inputs": {"hint": {"present": 0.25}}}), "test")
    hint = TensorSpec("hint", "INT32", (4,), is_optional=True)
    tensors = (TensorSpec("INPUT", "FP32", (8,)), hint, TensorSpec("t", "BYTES", (1,)))
    assert [_mean_bytes(scenario.models[0], one) for one in tensors] == [32.0, 4.0, None]


def test_lines_name_every_node_and_fit_what_the_json_says() -> None:
    lines = found(server={"listen": "cluster"}, servers={"count": 2}).lines()
    assert [line.split(":")[0] for line in lines[1:]] == [
        "server-0  on node-1", "server-1  on node-1", "clients   node-0", "clients   node-2",
    ]  # fmt: skip
    assert "started by squall, answers on 10.0.0.2; 150 arrivals" in lines[1]


def test_servers_that_workers_choose_have_no_plan_of_their_own() -> None:
    routing = {"workers_per_node": 1, "routing": {"kind": "two-choices"}}
    lines = found(server={"listen": "cluster"}, servers={"count": 2}, clients=routing).lines()
    assert lines[1].endswith("; workers choose")


def test_a_closed_loop_counts_users_and_the_rest_is_known_in_the_run() -> None:
    closed = {"kind": "closed", "users": 7}
    one = found(arrivals=closed)
    assert "7 users in 4 s" in one.lines()[0]
    assert [
        (client["n_planned"], client["record_bytes"], client["input_bytes"]) for client in one.clients
    ] == [(7, None, None)]
    assert "all clients run on its node, node-1" in one.note


def test_of_locust_it_says_who_its_users_and_where_its_processes_are(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("import locust\n")
    locust = {"file": str(tmp_path / "shop.py"), "users": 70, "spawn_rate": 35, "run_time": "3s"}
    whole = mapping(load={"locust": locust}, server={"listen": "cluster"}, servers={"count": 2})
    del whole["phases"], whole["clients"]["rows"]
    one = dry_run(scenario_from_mapping(whole, "test"), "10.0.0.1:6379", Interrupts())
    assert (one.plan["n_users"], one.plan["file"], one.plan["spawn_rate_hz"]) == (70, locust["file"], 35)
    assert [(of["node"], of["n_workers"], of["has_master"]) for of in one.clients] == [
        ("node-0", 3, True), ("node-2", 3, False),
    ]  # fmt: skip
    lines = one.lines()
    assert lines[0].startswith("plan      Locust: 70 users of shop.py, 35 a second, in 36 s; sha256 ")
    assert lines[1].endswith("answers on 10.0.0.2; the locustfile says who asks it")
    assert lines[3:] == [
        "clients   node-0: 3 Locust workers and the master", "clients   node-2: 3 Locust workers",
        f"note      {locust['file']}: its code is not run",
    ]  # fmt: skip
    (tmp_path / "shop.py").write_text("import locust\nclass Shopper(")
    with pytest.raises(
        ScenarioError, match=r"load\.locust\.file: shop\.py: SyntaxError: '\(' was never closed"
    ):
        dry_run(scenario_from_mapping(whole, "test"), "10.0.0.1:6379", Interrupts())


def test_an_image_a_repository_and_models_to_be_unloaded_are_named() -> None:
    own = {"name": "mine", "repository": "/home/you"}
    assert found(model=own, clients={}, server={"image": "triton:1"}).note.endswith(
        "image triton:1: is not run; in a run it has the network and the shared memory of its node;"
        " repository /home/you: the code of its models is not run"
    )
    unloaded = mapping(server={"url": "http://h:8000", "control": {"unload": ["a", "b"]}})
    assert _code_notes(scenario_from_mapping(unloaded, "test")) == ["http://h:8000: a, b would be unloaded"]


def test_the_code_of_a_function_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "right.py"
    path.write_text(f"open({str(tmp_path / 'was-run')!r}, 'w')\ndef right(inputs): return {{}}\n")
    check = {**mapping()["clients"], "check": {"function": f"{path}:right"}}
    assert f"{path}:right: its code is not run" in found(clients=check).note
    assert [one.name for one in tmp_path.iterdir()] == ["right.py"]
    path.write_text("def left(inputs): return {}\n")
    with pytest.raises(ScenarioError, match=r"right\.py has no function right$"):
        found(clients=check)


SEVERAL: dict[str, Any] = {
    "model": None,
    "models": [
        {"name": "linear_head", "share": 3, "settings": {"width": 8}},
        {
            "name": "seqlen_head",
            "settings": {"width": 16},
            "rows": {"kind": "constant", "value": 5},
            "servers": [1],
        },
    ],
    "servers": {"count": 2},
}


def test_of_several_models_it_says_who_serves_each_and_how_many_arrivals_ask_it() -> None:
    one = {key: value for key, value in mapping(**SEVERAL).items() if value is not None}
    scenario = scenario_from_mapping(one, "test")
    plan, found_ = plan_scenario(scenario), dry_run(scenario, "10.0.0.1:6379", Interrupts())
    n = [int(count) for count in np.bincount(models_of(plan.variant, plan.models))]
    assert [one["servers"] for one in found_.models] == [None, ["server-1"]]
    assert [one["phases"] for one in found_.models] == [
        {"m": {"share": 0.75, "n_planned": n[0]}}, {"m": {"share": 0.25, "n_planned": n[1]}}
    ]  # fmt: skip
    assert sum(one["n_planned"] for one in found_.servers) == sum(n) == 300
    assert sum(one["input_bytes"] for one in found_.clients) == n[0] * 2 * 8 * 4 + n[1] * 5 * 16 * 4
    assert f"model     seqlen_head: 25.0 % ({n[1]} arrivals) of m; on server-1" in found_.lines()
    assert found_.to_json()["models"] == list(found_.models)
    assert "models" not in found(servers={"count": 2}).to_json()


def test_of_several_models_it_tells_of_the_data_of_each_that_has_some(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.ones((30, 8), np.float32))
    (tmp_path / "lines.txt").write_text("a\nb\n")
    linear = {"name": "linear_head", "settings": {"width": 8}, "data": {"path": str(tmp_path / "rows.npy")}}
    theirs = {"name": "theirs", "repository": "/r", "data": {"path": str(tmp_path / "lines.txt")}}
    several = {**mapping(), "models": [linear, theirs, {"name": "seqlen_head", "settings": {"width": 16}}]}
    del several["model"]
    scenario = scenario_from_mapping(several, "test")
    one = dry_run(scenario, "10.0.0.1:6379", Interrupts())
    told = one.to_json()["data_by_model"]
    plan = plan_scenario(scenario)
    n_sent = len(set(plan.variant[models_of(plan.variant, plan.models) == 0].tolist()))
    assert {name: (of["format"], of["n_entries"], of["n_encoded"]) for name, of in told.items()} == {
        "linear_head": ("npy", 30, n_sent), "theirs": ("text", 2, 0)
    }  # fmt: skip
    assert "data" not in one.to_json()
    (line,) = [line for line in one.lines() if line.startswith("data      of theirs: ")]
    assert line.startswith(f"data      of theirs: {tmp_path / 'lines.txt'}: text, 2 entries; sha256 ")
    np.save(tmp_path / "rows.npy", np.ones((30, 7), np.float32))
    with pytest.raises(ScenarioError, match=r"^models\.linear_head\.data: .*rows.npy: row 1: input INPUT"):
        dry_run(scenario, "10.0.0.1:6379", Interrupts())


@pytest.mark.parametrize(
    ("clients", "why"),
    [
        (
            {"rows": {"kind": "constant", "value": 9}},
            r"clients\.rows: 9 rows, but model linear_head takes at most 4",
        ),
        (
            {"inputs": {"INPUT": {"words": ["a"]}}},
            r"clients\.inputs\.INPUT: words are of BYTES, and the input is FP32",
        ),
        ({"check": {"function": "nowhere.py:f"}}, r"clients\.check\.function: nowhere\.py:f: cannot be read"),
        ({"check": {"reference": "nowhere.npz"}}, r"clients\.check\.reference: nowhere\.npz: no such file"),
    ],
)
def test_what_a_run_refuses_before_it_starts_a_dry_run_refuses_too(
    monkeypatch: pytest.MonkeyPatch, clients: dict[str, Any], why: str
) -> None:
    spec = head_spec("linear_head", "1", HEADS["linear_head"].sizes({"width": 8}), 4)
    endpoint = Endpoint(
        "http://127.0.0.1:8000", PLAIN, 8001, None, "url", "2", (ServedModel(spec),), has_records=False
    )
    monkeypatch.setattr(squall.cluster.dry_run, "attach", lambda *_: endpoint)
    with pytest.raises(ScenarioError, match=why):
        found(server={"url": "http://127.0.0.1:8000"}, clients=clients)
