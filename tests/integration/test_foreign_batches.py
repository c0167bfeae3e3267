"""Batches of models that know nothing of squall, in a real Triton: all requests joined exactly, all counts Triton's."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from squall.actors.inject.library import built_library
from squall.actors.process.supervisor import region_prefix, remove_leftovers
from squall.analysis.storage.store import RunStore
from squall.cluster.node.agent import FIRST_SERVER
from squall.cluster.node.checkup import NodeCheckup
from squall.cluster.node.injected.ring_folder import rings_of
from squall.cluster.node.server import Ports, free_ports, triton_options
from squall.cluster.node.server_environment import server_environment
from squall.cluster.node.triton_home import find_triton
from squall.scenarios.config.servers import ServerConfig
from tests.integration.foreign_models import BY_ONE, GATHERED, WARMED, write_ensemble, write_model
from tests.integration.live_runs import Bench, scenario_mapping, wait_until

pytestmark = [
    pytest.mark.beside,
    pytest.mark.skipif(
        built_library("batches") is None, reason="the batch library was not built: no C compiler"
    ),
]


OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def scenario(folder: Path, model: str, rate_hz: float = 150, **profile: Any) -> dict[str, Any]:
    """Two seconds of requests of 1 to 4 rows to a model of the repository `folder`."""
    mapping = scenario_mapping(
        model={"name": model, "repository": str(folder), "max_batch_size": 8},
        profile={"nsys": "off", "nvml": "off", **profile},
    )
    mapping["clients"] |= {"timeout": "20s"}
    mapping["phases"] = [
        {"name": "burst", "kind": "measure", "duration": "2s",
            "arrivals": {"kind": "gamma", "rate": f"{rate_hz:g}/s", "cv": 2}},
        {"name": "drain", "kind": "drain", "duration": "10s"},
    ]  # fmt: skip
    return mapping


def finish(
    bench: Bench,
    mapping: dict[str, Any],
    *options: str,
    env: dict[str, str] | None = None,
    ends: Collection[int] = (0, 3),
) -> tuple[RunStore, dict[str, Any], str]:
    """The run's store, its summary and all of its screen."""
    live = bench.start_run(mapping, "--verbose", *options, env=env)
    assert live.end() in ends, live.lines
    store = bench.store()
    return store, json.loads((store.run_dir / "summary.json").read_text()), bench.stdout()


def rows_of(store: RunStore, table: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = store.read(table).to_pylist()
    return rows


def counted(store: RunStore, column: str) -> Counter[str]:
    """By model, as Triton counts it."""
    total: Counter[str] = Counter()
    for row in rows_of(store, "triton_samples"):
        total[row["model"]] += row[column]
    return total


def assert_all_joined(store: RunStore, model: str, recorded_by: str = "library") -> None:
    """Every request that ended ok is in one batch, and batches and their rows are as many as Triton counts."""
    batches = [row for row in rows_of(store, "batches") if row["model"] == model]
    assert {row["recorded_by"] for row in batches} == {recorded_by}
    assert len(batches) == counted(store, "execution_count")[model] > 0
    assert sum(row["rows"] for row in batches) == counted(store, "inference_count")[model]
    requests = store.read("requests")
    is_ok = pc.equal(requests["outcome"].cast(pa.string()), "ok")
    ok = sorted(requests.filter(is_ok)["request_id"].to_pylist())
    assert sorted(one for row in batches for one in row["request_ids"]) == ok, "each once"
    joined = [row for row in rows_of(store, "joined") if row["outcome"] == "ok"]
    assert len(ok) == len(requests) == len(joined)
    assert {row["join_level"] for row in joined} == {"exact"}


def test_a_model_of_two_instances_is_recorded_batch_by_batch_and_diagnosed(
    alone: Bench, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    write_model(models, "plain", n_instances=2, sleep_s=0.01)
    store, summary, screen = finish(alone, scenario(models, "plain", batches="required"))
    assert_all_joined(store, "plain")
    state = store.manifest.collectors["batches"]
    assert (state.status, state.how) == ("on", "by the batch library in the server")
    assert {row["instance"] for row in rows_of(store, "batches")} == {"plain_0_0", "plain_0_1"}
    assert all(
        row["exec_start_ns"] <= row["start_ns"] < row["end_ns"] <= row["exec_end_ns"]
        for row in rows_of(store, "batches")
    )
    assert {row["source"] for row in rows_of(store, "batch_costs")} == {"library"}
    assert all(one["is_met"] for one in summary["identities"])
    found = {one["scope"]["instance"]: one["rule"] for one in summary["findings"] if one["level"] == "window"}
    assert found.keys() == {"plain_0_0", "plain_0_1"}
    assert "not assessed" not in found.values()
    assert "not recorded" not in screen.partition("Batches")[2].partition("\n")[0]
    alone.wait_until_gone()


@pytest.mark.slow
def test_a_server_without_the_library_has_its_batches_from_a_trace_that_is_asked_for(
    alone: Bench, tmp_path: Path
) -> None:
    """This Triton may die of it, after some thousand requests."""
    models = tmp_path / "models"
    write_model(models, "plain", n_instances=2, sleep_s=0.01)
    asked = scenario(models, "plain", rate_hz=60, batches="off", triton_trace="required")
    store, _, _ = finish(alone, asked)
    assert store.manifest.collectors["triton trace"].status == "on"
    costs = rows_of(store, "batch_costs")
    assert {row["source"] for row in costs} == {"trace"}
    assert len(costs) == counted(store, "execution_count")["plain"] > 0
    assert sum(row["rows"] for row in costs) == counted(store, "inference_count")["plain"]
    levels = {row["join_level"] for row in rows_of(store, "joined") if row["outcome"] == "ok"}
    assert levels == {"batch"}
    alone.wait_until_gone()


@pytest.mark.slow
def test_a_model_that_is_not_batched_is_recorded_without_its_warm_up(alone: Bench, tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_model(models, "alone", BY_ONE + WARMED)
    store, summary, _ = finish(alone, scenario(models, "alone", rate_hz=60))
    assert_all_joined(store, "alone")
    assert {row["n_requests"] for row in rows_of(store, "batches")} == {1}
    (note,) = [note for note in store.manifest.notes if note.startswith("batches")]
    assert note == "batches: 3 before the load, such as warm-ups of the model, are left out"
    assert all(one["is_met"] for one in summary["identities"])


@pytest.mark.slow
def test_of_an_ensemble_each_step_is_recorded_and_a_request_belongs_to_the_longer(
    alone: Bench, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    write_model(models, "tokenize", sleep_s=0.03)
    write_model(models, "classify")
    write_ensemble(models, "pipe")
    store, summary, _ = finish(alone, scenario(models, "pipe", rate_hz=60))
    for model in ("tokenize", "classify"):
        assert_all_joined(store, model)
    longest: dict[int, tuple[int, str]] = {}
    for batch in sorted(rows_of(store, "batches"), key=lambda row: row["start_ns"]):
        step = batch["end_ns"] - batch["start_ns"], batch["instance"]
        for one in batch["request_ids"]:
            longest[one] = max(longest.get(one, (0, "")), step, key=lambda known: known[0])
    owners = {row["request_id"]: row["instance"] for row in rows_of(store, "joined")}
    assert owners == {one: instance for one, (_, instance) in longest.items()}
    assert Counter(owners.values())["tokenize_0_0"] > len(owners) / 2
    assert {one["name"] for one in summary["identities"]} >= {
        "executions of tokenize", "executions of classify", "batch rows of tokenize", "joined",
    }  # fmt: skip
    assert all(one["is_met"] for one in summary["identities"])
    scopes = {one["scope"]["instance"] for one in summary["findings"] if one["level"] == "window"}
    assert scopes == set(owners.values())


@contextmanager
def their_server(
    folder: Path,
    models: Path,
    model: str,
    injected: list[str],
    cache_bytes: int = 0,
    others: Sequence[str] = (),
    further: Sequence[str] = (),
    ports: Ports | None = None,
) -> Iterator[str]:
    """URL of a Triton that somebody else started, with `injected` in its environment: NAME=VALUE. `others`: models that
    it loads beside; `further`: options of tritonserver; `ports`: free ones, where the caller must know them."""
    home, ports = find_triton(), ports or free_ports(ServerConfig())
    folder.mkdir()
    environment = server_environment(folder, home) | dict(one.split("=", 1) for one in injected)
    backends = ["--backend-directory", str(home.backends)] if home.backends else []
    options = triton_options([str(models)], [model], ports, region_prefix(str(folder)), "theirs")
    options += [*(f"--load-model={other}" for other in others), *further]
    if cache_bytes:
        caches = home.binary.parents[1] / "caches"
        options += ["--cache-directory", str(caches), "--cache-config", f"local,size={cache_bytes}"]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen([home.binary, *backends, *options], env=environment, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{ports.http}"
    try:
        wait_until(lambda: is_ready(f"{url}/v2/models/{model}/ready"), 60, (folder / "log").read_text())
        yield url
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        remove_leftovers(str(folder), time.time())


def is_ready(url: str) -> bool:
    try:
        with OPENER.open(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def ask(url: str, model: str, n: int) -> None:
    """Requests of somebody else's, one after the other."""
    tensor = {"name": "IN", "shape": [1, 4], "datatype": "FP32", "data": [0.0] * 4}
    body = json.dumps({"id": "theirs", "inputs": [tensor]}).encode()
    for _ in range(n):
        with OPENER.open(f"{url}/v2/models/{model}/infer", body, timeout=30) as reply:
            reply.read()


@pytest.mark.slow
def test_a_server_that_somebody_else_started_with_what_inject_prints_is_recorded(
    alone: Bench, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    write_model(models, "theirs", sleep_s=0.005)
    live = alone.start("inject", "--folder", tmp_path / "rings")
    assert live.end() == 0, live.lines
    with their_server(tmp_path / "server", models, "theirs", alone.stdout().splitlines()) as url:
        port = int(url.rpartition(":")[2])
        assert [one.status for one in NodeCheckup().server_findings(port)] == ["ok", "ok"]
        ask(url, "theirs", 5)
        mapping = scenario(models, "theirs", batches="required")
        del mapping["model"]["repository"]
        store, _, _ = finish(alone, mapping, "--server", url)
        assert_all_joined(store, "theirs")
        assert store.manifest.collectors["batches"].how == "by the batch library in the server"
        assert store.manifest.notes == ()


@pytest.mark.slow
def test_a_server_without_the_library_is_no_error_unless_batches_are_required(
    alone: Bench, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    write_model(models, "theirs")
    with their_server(tmp_path / "server", models, "theirs", []) as url:
        mapping = scenario(models, "theirs", batches="required")
        del mapping["model"]["repository"]
        live = alone.start_run(mapping, "--server", url)
        assert live.end() == 1
        assert (
            "profile.batches is required, but the server was started without SQUALL_BATCHES"
            in live.error_line()
        )
    alone.aborted()


@pytest.mark.slow
def test_answers_from_the_response_cache_have_no_batch_and_are_said_to(alone: Bench, tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_model(models, "cached", f"{GATHERED}response_cache {{ enable: true }}\n")
    live = alone.start("inject", "--folder", tmp_path / "rings")
    assert live.end() == 0, live.lines
    injected = alone.stdout().splitlines()
    with their_server(tmp_path / "server", models, "cached", injected, cache_bytes=1 << 20) as url:
        mapping = scenario(models, "cached")
        del mapping["model"]["repository"]
        store, summary, screen = finish(alone, mapping, "--server", url)
    n_hits = counted(store, "cache_hit_count")["cached"]
    rows = [row for row in rows_of(store, "joined") if row["outcome"] == "ok"]
    assert 0 < n_hits < len(rows)
    assert Counter(row["join_level"] for row in rows) == {"exact": len(rows) - n_hits, "none": n_hits}
    assert all(one["is_met"] for one in summary["identities"])
    assert {one["name"]: one["status"] for one in summary["self_checks"]}["unjoined"] == "met"
    assert "answered from the response cache and have no batch" in " ".join(screen.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cached", "n_variants"),
    [pytest.param(("tokenize", "classify"), 4, marks=pytest.mark.long), (("classify",), 60)],
)
def test_steps_that_the_response_cache_answers_are_counted_and_have_no_batch(
    alone: Bench, tmp_path: Path, cached: tuple[str, ...], n_variants: int
) -> None:
    """Of an ensemble: both steps nearly always, and one of them for a part of the requests."""
    models = tmp_path / "models"
    for name in ("tokenize", "classify"):
        write_model(models, name, f"{GATHERED}response_cache {{ enable: {str(name in cached).lower()} }}\n")
    write_ensemble(models, "pipe")
    live = alone.start("inject", "--folder", tmp_path / "rings")
    assert live.end() == 0, live.lines
    injected = alone.stdout().splitlines()
    with their_server(tmp_path / "server", models, "pipe", injected, cache_bytes=1 << 20) as url:
        mapping = scenario(models, "pipe")
        del mapping["model"]["repository"]
        mapping["clients"] |= {"payload_variants": n_variants, "rows": {"kind": "constant", "value": 1}}
        warm = {"kind": "poisson", "rate": "30/s"}
        mapping["phases"].insert(0, {"name": "warm", "kind": "warmup", "duration": "2s", "arrivals": warm})
        store, summary, screen = finish(alone, mapping, "--server", url)
    hits = counted(store, "cache_hit_count")
    assert sum(hits.values()) > 0
    assert {name for name, n in hits.items() if n} <= set(cached)
    assert all(one["is_met"] for one in summary["identities"])
    checks = {one["name"]: one["status"] for one in summary["self_checks"]}
    assert "unmet" not in (checks["unjoined"], checks["residual"])
    said = " ".join(screen.split())
    told = [one for one in summary["measure"]["models"] if one["cache_hit_count"]]
    assert said.count("answered from the response cache, without a batch") == len(told) > 0
    assert not any(one["rule"] == "network grows" for one in summary["findings"])


@pytest.mark.long
@pytest.mark.slow
def test_a_server_that_is_killed_leaves_the_batches_that_it_told_of(alone: Bench, tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_model(models, "plain", sleep_s=0.005)
    live = alone.start_run(scenario(models, "plain", rate_hz=100))
    alone.wait_for_phase("burst", 1.0)
    (server,) = [one for one in alone.processes() if one.name() == "tritonserver"]
    server.kill()
    assert live.end() == 3, live.lines
    store = alone.store()
    assert not [loss for loss in store.manifest.losses if loss.startswith("batches")]
    named = Counter(one for row in rows_of(store, "batches") for one in row["request_ids"])
    assert set(named.values()) == {1}
    ok = {row["request_id"] for row in rows_of(store, "requests") if row["outcome"] == "ok"}
    assert len(ok) > 10
    assert len(ok - named.keys()) <= 8, (
        "a backend tells of its batch after it has answered: one at most is missing"
    )
    alone.wait_until_gone()


@pytest.mark.long
@pytest.mark.slow
def test_a_run_whose_driver_was_killed_is_resumed_with_its_batches(alone: Bench, tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_model(models, "plain", sleep_s=0.005)
    live = alone.start_run(scenario(models, "plain", rate_hz=100))
    alone.wait_for_phase("burst", 1.0)
    live.process.kill()
    live.end()
    again = alone.start("resume", alone.store().run_dir)
    assert again.end() == 3, again.lines
    store = alone.store()
    named = [one for row in rows_of(store, "batches") for one in row["request_ids"]]
    assert len(named) == len(set(named)) > 10
    alone.wait_until_gone()
    folder = store.manifest.nodes["node-0"].folder
    assert folder is not None
    assert rings_of(Path(folder) / FIRST_SERVER, "batches") is None
