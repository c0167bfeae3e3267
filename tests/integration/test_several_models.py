"""Real runs against several models under one load: heads of the zoo and somebody else's beside them in one server, and
servers that serve different ones."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from squall.actors.load.lane import IS_BUILT
from squall.analysis.storage.store import RunStore
from squall.cluster.node.server import TritonServer
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.model_shares import models_of
from squall.scenarios.plan.plan import Plan
from squall.scenarios.run_plan import plan_run
from tests.integration.foreign_models import write_caller, write_model, write_stream
from tests.integration.live_runs import Bench, scenario_mapping

pytestmark = pytest.mark.beside
NAMES = ("seqlen_head", "linear_head", "echo")
RIGHT = "def echoed(inputs):\n    return {'OUT': inputs['IN']}\n"
WRONG = "def echoed(inputs):\n    return {'OUT': inputs['IN'] + 1}\n"
CHECK_SHARE = 0.1


def mapping_of(folder: Path, answers: str = RIGHT, **changes: Any) -> dict[str, Any]:
    """Two heads and a model that gives its input back; in the burst the shares are others, and one head has none."""
    write_model(folder / "models", "echo")
    (folder / "right.py").write_text(answers)
    echo = {
        "name": "echo", "repository": str(folder / "models"), "max_batch_size": 8, "payload_variants": 2,
        "rows": {"kind": "constant", "value": 3},
        "check": {"share": CHECK_SHARE, "function": f"{folder / 'right.py'}:echoed"},
    }  # fmt: skip
    head = {"max_batch_size": 8, "check": {"share": CHECK_SHARE}}
    mapping = scenario_mapping(
        models=[
            {"name": "seqlen_head", "share": 2, "settings": {"width": 16, "layers": 1, "sequence": 2}, **head},
            {"name": "linear_head", "settings": {"width": 8, "layers": 1}, **head},
            echo,
        ],
        phases=[
            {"name": "warmup", "kind": "warmup", "duration": "1s", "arrivals": {"kind": "poisson", "rate": "100/s"}},
            {
                "name": "burst", "kind": "measure", "duration": "2s", "arrivals": {"kind": "poisson", "rate": "150/s"},
                "shares": {"seqlen_head": 1, "echo": 3},
            },
            {"name": "drain", "kind": "drain", "duration": "10s"},
        ],
        **changes,
    )  # fmt: skip
    mapping["clients"] |= {"timeout": "20s"}
    return {key: value for key, value in mapping.items() if key != "model"}


def run_of(bench: Bench, mapping: dict[str, Any]) -> RunStore:
    live = bench.start_run(mapping)
    assert live.end() in (0, 3, 99), live.lines
    return bench.store()


def columns(store: RunStore) -> dict[str, Any]:
    """Of all requests in the order of their ids: texts as lists, numbers as arrays."""
    table = store.read("requests").sort_by("request_id")
    texts = {
        name: table.column(name).cast(pa.string()).to_pylist()
        for name in ("target", "request_kind", "outcome")
    }
    return {name: table.column(name).to_numpy() for name in ("request_id", "rows")} | texts


def planned_kinds(mapping: dict[str, Any]) -> tuple[list[str], Plan]:
    scenario = scenario_from_mapping(mapping, "test")
    plan = plan_run(scenario, scenario.servers)
    assert isinstance(plan, Plan)
    return [scenario.model_names[number] for number in models_of(plan.variant, plan.models)], plan


def assert_counted_alike(store: RunStore, rows: dict[str, Any]) -> None:
    """The requests of each model at each server are as many as its own statistics say."""
    samples = store.read("triton_samples", ["server", "model", "request_count"]).to_pylist()
    counted: Counter[tuple[str, str]] = Counter()
    for one in samples:
        counted[one["server"], one["model"]] += one["request_count"]
    assert +counted == Counter(zip(rows["target"], rows["request_kind"], strict=True))


def assert_joined_to_its_own_model(store: RunStore, names: Sequence[str]) -> None:
    """By id, each measured request to a batch of the model that it asks."""
    batches = store.read("batches", ["server", "model", "instance", "batch_id"]).to_pylist()
    model_of = {(one["server"], one["instance"], one["batch_id"]): one["model"] for one in batches}
    rows = store.read("joined").to_pylist()
    assert {one["join_level"] for one in rows} == {"exact"}
    assert {one["request_kind"] for one in rows} == set(names)
    for one in rows:
        assert model_of[one["server"], one["instance"], one["batch_id"]] == one["request_kind"]


@pytest.mark.parametrize(
    "clients",
    [
        {"protocol": "http"},
        pytest.param({"protocol": "grpc"}, marks=pytest.mark.slow),
        pytest.param({"protocol": "http", "shared_memory": True}, marks=[pytest.mark.slow, pytest.mark.long]),
    ],
    ids=["http", "grpc", "shared memory"],
)
def test_three_models_of_one_server_are_asked_as_planned_and_answer_rightly(
    alone: Bench, tmp_path: Path, clients: dict[str, Any]
) -> None:
    mapping = mapping_of(tmp_path)
    mapping["clients"] |= clients
    store = run_of(alone, mapping)
    rows, (kinds, plan) = columns(store), planned_kinds(mapping)
    assert set(rows["outcome"]) == {"ok"}
    assert rows["request_kind"] == kinds
    assert np.array_equal(rows["rows"], plan.rows)
    assert set(kinds) == set(NAMES)
    assert "linear_head" not in {kind for kind, phase in zip(kinds, plan.phase, strict=True) if phase == 1}
    assert_counted_alike(store, rows)
    checks = store.manifest.value_checks
    assert checks is not None
    n_checked = int(np.count_nonzero(rows["request_id"] % checks.every == 0))
    assert (checks.n_checked, checks.n_wrong) == (n_checked, 0)
    assert [one.has_lane for one in store.manifest.workers] == [IS_BUILT] * 2
    (server,) = store.manifest.servers.values()
    assert tuple(one.model for one in server.models) == NAMES
    assert not any(one.batch_record for one in server.models), (
        "a library records the batches of all, if it can"
    )
    batches = store.read("batches", ["model", "rows"]).to_pylist() if store.has("batches") else []
    if store.manifest.collectors["batches"].status == "on":
        n_rows: Counter[str] = Counter()
        for one in batches:
            n_rows[one["model"]] += one["rows"]
        assert n_rows == {
            name: sum(n for kind, n in zip(kinds, rows["rows"], strict=True) if kind == name)
            for name in NAMES
        }
        assert_joined_to_its_own_model(store, NAMES)


@pytest.mark.slow
def test_no_request_comes_to_a_server_that_does_not_serve_its_model(alone: Bench, tmp_path: Path) -> None:
    mapping = mapping_of(tmp_path, servers=[{}, {}])
    for one, served in zip(mapping["models"], ([0], ["server-1", 0], [1]), strict=True):
        one["servers"] = served
    store = run_of(alone, mapping)
    rows, (kinds, plan) = columns(store), planned_kinds(mapping)
    assert set(rows["outcome"]) == {"ok"}
    assert rows["request_kind"] == kinds
    assert plan.target is not None
    assert rows["target"] == [f"server-{number}" for number in plan.target]
    assert set(zip(rows["target"], kinds, strict=True)) == {
        ("server-0", "seqlen_head"), ("server-0", "linear_head"), ("server-1", "linear_head"), ("server-1", "echo")
    }  # fmt: skip
    assert_counted_alike(store, rows)
    served = {name: [one.model for one in facts.models] for name, facts in store.manifest.servers.items()}
    assert served == {"server-0": ["seqlen_head", "linear_head"], "server-1": ["linear_head", "echo"]}
    assert [facts.batch_record for facts in store.manifest.servers.values()] == [True, False]
    batches = store.read("batches", ["server", "model", "rows"]).to_pylist()
    of_heads = sum(
        one["rows"] for one in batches if (one["server"], one["model"]) == ("server-0", "linear_head")
    )
    pairs = zip(rows["target"], kinds, rows["rows"], strict=True)
    assert of_heads == sum(n for server, kind, n in pairs if (server, kind) == ("server-0", "linear_head"))
    if store.manifest.collectors["batches"].status == "on":
        assert_joined_to_its_own_model(store, NAMES)


@pytest.mark.long
@pytest.mark.slow
def test_a_wrong_answer_is_of_the_model_that_gave_it(alone: Bench, tmp_path: Path) -> None:
    store = run_of(alone, mapping_of(tmp_path, WRONG))
    rows, checks = columns(store), store.manifest.value_checks
    assert checks is not None
    is_checked = rows["request_id"] % checks.every == 0
    is_echo = np.array([kind == "echo" for kind in rows["request_kind"]])
    is_bad = np.array([outcome == "bad_reply" for outcome in rows["outcome"]])
    assert np.array_equal(is_bad, is_checked & is_echo)
    assert checks.n_wrong == np.count_nonzero(is_bad) > 0


@pytest.mark.long
@pytest.mark.slow
def test_users_of_a_closed_loop_ask_several_models_of_a_server_that_runs_already(
    alone: Bench, tmp_path: Path
) -> None:
    mapping = mapping_of(tmp_path)
    scenario = scenario_from_mapping(mapping, "test")
    mapping["phases"][0]["arrivals"] = {
        "kind": "closed",
        "users": 3,
        "think": {"kind": "constant", "value": "5ms"},
    }
    mapping["phases"][1]["arrivals"] = mapping["phases"][0]["arrivals"] | {"users": 4}
    server = TritonServer(
        scenario.models_at("server-0"), scenario.server, tmp_path / "triton", None, has_gpu=False
    )
    (tmp_path / "triton").mkdir()
    try:
        url = server.start().url
        del mapping["models"][2]["repository"]
        store = run_of(alone, mapping | {"server": {"url": url}})
    finally:
        server.stop()
    rows = columns(store)
    assert set(rows["outcome"]) <= {"ok", "cancelled"}
    table = store.read("requests", ["phase", "request_kind"]).to_pylist()
    asked = {
        phase: Counter(one["request_kind"] for one in table if one["phase"] == phase)
        for phase in ("warmup", "burst")
    }
    assert set(asked["warmup"]) == set(NAMES)
    n, n_echo = asked["burst"].total(), asked["burst"]["echo"]
    assert asked["burst"]["linear_head"] == 0
    assert abs(n_echo / n - 0.75) < 5 * (0.75 * 0.25 / n) ** 0.5  # a share's standard error, five times
    assert_counted_alike(store, rows)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["grpc", pytest.param("http", marks=pytest.mark.long)])
def test_decoupled_models_are_asked_beside_models_that_answer_once(
    alone: Bench, tmp_path: Path, protocol: str
) -> None:
    """All of them response by response, one with data of its own, checked, each with figures and a promise of its own,
    and joined to batches of the model that it asks."""
    names = ("echo", "stream", "teller")
    write_model(tmp_path / "models", "echo")
    write_stream(tmp_path / "models", "stream")
    write_caller(tmp_path / "models", "teller", "echo", passes_id=False)
    (tmp_path / "right.py").write_text(RIGHT)
    function = f"{tmp_path / 'right.py'}:echoed"
    own = {"repository": str(tmp_path / "models"), "max_batch_size": 8, "payload_variants": 2}
    phases = [
        {
            "name": "main",
            "kind": "measure",
            "duration": "2s",
            "arrivals": {"kind": "poisson", "rate": "120/s"},
        },
        {"name": "drain", "kind": "drain", "duration": "10s"},
    ]
    mapping = scenario_mapping(models=[{"name": name, **own} for name in names], phases=phases)
    mapping["clients"] |= {
        "protocol": protocol, "timeout": "20s", "stream": {"tokens": "OUT"},
        "check": {"function": function, "share": 1},
        "rows": {"kind": "constant", "value": 2 if protocol == "grpc" else 1},
    }  # fmt: skip
    np.savez(tmp_path / "given.npz", IN=np.random.default_rng(5).normal(size=(9, 4)).astype(np.float32))
    del mapping["models"][1]["payload_variants"]
    mapping["models"][1]["data"] = {"path": str(tmp_path / "given.npz")}
    mapping["promises"] = {"first_response{model:echo}": "max<19s", "first_response{model:stream}": "max<3ms"}
    del mapping["model"]
    live = alone.start_run(mapping)
    assert live.end() in (3, 99), live.lines  # the model `stream` sleeps for 3 ms
    store = alone.store()
    rows, (kinds, _) = columns(store), planned_kinds(mapping)
    assert set(rows["outcome"]) == {"ok"}
    assert rows["request_kind"] == kinds
    checks = store.manifest.value_checks
    assert checks is not None
    assert (checks.n_checked, checks.n_wrong) == (len(kinds), 0)
    responses = store.read("responses").sort_by("request_id").to_pydict()
    assert responses["request_id"] == rows["request_id"].tolist()
    assert set(responses["tokens"]) == {4 * rows["rows"][0]}
    assert all(responses["is_final"])
    summary = json.loads((store.run_dir / "summary.json").read_text())
    of_model = {name: one["streams"] for name, one in summary["measure"]["by_model"].items()}
    assert {name: one["n_responses"] for name, one in of_model.items()} == Counter(kinds)
    assert of_model["stream"]["first_response_mean_ns"] > 3_000_000
    assert all(
        f"<td>first response, {name}</td>" in (store.run_dir / "report.html").read_text() for name in names
    )
    assert [one["n_late"] for one in summary["promises"]] == [0, kinds.count("stream")]
    samples = store.read("triton_samples", ["model", "request_count"]).to_pylist()
    counted: Counter[str] = Counter()
    for one in samples:
        counted[one["model"]] += one["request_count"]
    n_asked = Counter(kinds)
    n_asked["echo"] += n_asked["teller"]
    assert counted == n_asked, "the model `teller` asks `echo` for each of its requests"
    assert_joined_to_its_own_model(store, names)
