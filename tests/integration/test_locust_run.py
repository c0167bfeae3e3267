"""Locustfiles as the load of whole runs: Ray, the embedded Triton, Locust's own master and workers."""

from __future__ import annotations

import signal
import socket
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.csv as pacsv
import pytest

from squall.analysis.storage.store import RunStore
from tests.integration.live_runs import Bench, Live, processes_of, titled, wait_until

pytestmark = [pytest.mark.beside, pytest.mark.slow]

PLAIN = """
from locust import HttpUser, constant, task

class Shopper(HttpUser):
    wait_time = constant(0.02)

    @task
    def live(self):
        self.client.get("/v2/health/live")
"""
DOCUMENTED = """
import time
from locust import FastHttpUser, HttpUser, User, between, constant, tag, task

class Shopper(HttpUser):
    wait_time = between(0.01, 0.03)
    weight = 3

    def on_start(self):
        self.client.get("/v2/health/ready", name="log in")

    @task(3)
    def look(self):
        for _ in range(3):
            self.client.get("/v2/health/live")

    @task
    def buy(self):
        with self.client.get("/v2", catch_response=True) as response:
            if response.json()["name"] != "a shop":
                response.failure("no shop")

    @task
    def missing(self):
        self.client.get("/v2/models/nothing")

class Quick(FastHttpUser):
    wait_time = constant(0.02)

    @task
    def live(self):
        self.client.get("/v2/health/live", name="quick")

class Own(User):
    wait_time = constant(0.05)

    @task
    def call(self):
        begun = time.perf_counter()
        fact = {"request_type": "own", "name": "call", "response_length": 7, "exception": None, "context": {}}
        self.environment.events.request.fire(**fact, response_time=(time.perf_counter() - begun) * 1000)
"""


def mapping_of(
    folder: Path, locustfile: str, users: int = 6, seconds: float = 3, **changes: Any
) -> dict[str, Any]:
    (folder / "shop.py").write_text(locustfile)
    return {
        "name": "try", "seed": 7,
        "model": {
            "name": "seqlen_head", "max_batch_size": 8,
            "settings": {"width": 16, "layers": 1, "sequence": 2, "classes": 2},
        },
        "clients": {"workers_per_node": 2, **changes},
        "load": {"locust": {"file": str(folder / "shop.py"), "users": users, "spawn_rate": 20}},
        "phases": [
            {"name": "warmup", "kind": "warmup", "duration": "500ms"},
            {"name": "main", "kind": "measure", "duration": f"{round(seconds * 1000)}ms"},
            {"name": "drain", "kind": "drain", "duration": "1s"},
        ],
        "profile": {"nsys": "off", "nvml": "off"},
    }  # fmt: skip


def texts(table: pa.Table, name: str) -> list[str]:
    found: list[str] = table.column(name).cast(pa.string()).to_pylist()
    return found


def assert_counted_alike(store: RunStore) -> Counter[tuple[str, str]]:
    """Rows by method and name, which Locust's statistics, its workers and the manifest count alike."""
    rows, facts = store.read("requests"), store.manifest.locust
    assert facts is not None
    names = list(zip(texts(rows, "method"), texts(rows, "name"), strict=True))
    by_name = Counter(names)
    failed = Counter(
        name for name, outcome in zip(names, texts(rows, "outcome"), strict=True) if outcome != "ok"
    )
    *named, total = facts.entries
    assert {(one.method, one.name): one.n_requests for one in named} == by_name
    assert {(one.method, one.name): one.n_failures for one in named if one.n_failures} == failed
    assert (total.name, total.n_requests, total.n_failures) == ("Aggregated", len(rows), failed.total())
    by_worker = Counter(rows.column("worker").to_pylist())
    assert {one.worker: one.n_requests for one in facts.workers} == by_worker
    assert all(one.has_reported for one in facts.workers)
    assert store.manifest.plan.n_arrivals == len(rows)
    return by_name


def user_processes(bench: Bench, is_master: bool = False) -> list[psutil.Process]:
    """Locust's own processes of the bench's run."""
    found = titled(processes_of(bench.tmp), "squall.actors.locust.process")
    return [one for one in found if (one.cmdline()[-1] == "-1") == is_master]  # it has no ring for rows


def under_load(bench: Bench, mapping: dict[str, Any], at_least_s: float = 1.0) -> Live:
    live = bench.start_run(mapping)
    bench.wait_for_phase("main", at_least_s)
    return live


@pytest.mark.parametrize("n_workers", [2, pytest.param(4, marks=pytest.mark.long)])
def test_a_documented_locustfile_runs_and_its_rows_are_counted_as_locust_counts(
    alone: Bench, n_workers: int
) -> None:
    live = alone.start_run(mapping_of(alone.folder, DOCUMENTED, 12, workers_per_node=n_workers))
    assert live.end() in (3, 99), live.lines  # a task fails; a busy machine makes users late
    store = alone.store()
    by_name = assert_counted_alike(store)
    assert {name for _, name in by_name} == {
        "log in", "/v2/health/live", "/v2", "/v2/models/nothing", "quick", "call"
    }  # fmt: skip
    assert by_name["GET", "log in"] in (7, 8), "of 12 users by weights of 3, 1 and 1"
    rows = store.read("requests")
    assert rows.column("scheduled_ns").null_count == len(rows)
    is_missing = [name == "/v2/models/nothing" for name in texts(rows, "name")]
    assert set(texts(rows.filter(is_missing), "outcome")).isdisjoint({"ok"})
    assert {"main", "warmup"} <= set(texts(rows, "phase"))
    assert set(store.read("locust_samples").column("worker").to_pylist()) == set(range(n_workers))
    assert "main" in texts(store.read("locust_samples"), "phase")
    assert store.manifest.losses == ()
    assert len(store.manifest.workers) == n_workers
    assert store.verify() == []
    alone.wait_until_gone()


@pytest.mark.long
def test_locusts_files_and_logs_lie_in_the_run_directory(alone: Bench) -> None:
    assert alone.start_run(mapping_of(alone.folder, PLAIN)).end() in (0, 3)
    store = alone.store()
    assert_counted_alike(store)
    facts = store.manifest.locust
    assert facts is not None
    assert facts.is_whole
    assert {"locust_stats.csv", "locust_stats_history.csv", "locust_failures.csv"} <= set(facts.files)
    assert {path.name for path in (store.run_dir / "locust").iterdir()} == set(facts.files)
    stats = pacsv.read_csv(store.run_dir / "locust" / "locust_stats.csv").to_pylist()
    assert [one["Request Count"] for one in stats] == [len(store.read("requests"))] * 2, (
        "of the name, and of all"
    )
    logs = {path.name for path in (store.run_dir / "logs").glob("locust-*.log")}
    assert logs == {"locust-master.log", "locust-worker-0.log", "locust-worker-1.log"}
    asked = facts.asked[0]
    assert (asked.n_users, asked.spawn_rate_hz) == (6, 20.0)
    assert store.manifest.start_ns is not None
    assert 0 <= asked.t_ns - store.manifest.start_ns < 5 * 10**9
    alone.wait_until_gone()


@pytest.mark.long
def test_a_killed_worker_names_users_and_rows_and_the_run_is_invalid(alone: Bench) -> None:
    live = under_load(alone, mapping_of(alone.folder, PLAIN, seconds=5))
    user_processes(alone)[0].kill()
    assert live.end() == 3, live.lines
    store = alone.store()
    facts = store.manifest.locust
    assert facts is not None
    (lost,) = [one for one in facts.workers if one.n_requests is None]
    (other,) = [one for one in facts.workers if one.n_requests is not None]
    by_worker = Counter(store.read("requests").column("worker").to_pylist())
    assert by_worker[other.worker] == other.n_requests
    (loss,) = store.manifest.losses
    assert f"locust-worker-{lost.worker} on node-0 was killed by signal 9: its 3 users are gone" in loss
    assert f"all {by_worker[lost.worker]} requests that it had recorded are kept" in loss
    assert (lost.has_reported, lost.n_users_lost) == (False, 3)
    assert by_worker[lost.worker] > 20
    assert store.manifest.plan.n_arrivals == by_worker.total()
    assert store.manifest.status == "INVALID"
    assert store.verify() == []
    alone.wait_until_gone()


@pytest.mark.long
def test_a_killed_supervisor_takes_its_users_along_and_they_are_named(alone: Bench) -> None:
    live = under_load(alone, mapping_of(alone.folder, PLAIN, seconds=6), 3.0)
    (served,) = titled(user_processes(alone)[0].parents(), "squall.cluster.remote.served LocustWorker")
    served.kill()
    assert live.end() == 3, live.lines
    store = alone.store()
    facts = store.manifest.locust
    assert facts is not None
    (lost,) = [one for one in facts.workers if one.n_requests is None]
    n_rows = Counter(store.read("requests").column("worker").to_pylist())[lost.worker]
    assert lost.n_users_lost == 3
    assert n_rows > 20
    assert any(
        f"worker {lost.worker}: its 3 users are gone" in one and f"{n_rows} of its requests are kept" in one
        for one in store.manifest.losses
    )
    alone.wait_until_gone()


@pytest.mark.long
def test_where_the_scenario_says_so_a_lost_worker_ends_the_load(alone: Bench) -> None:
    live = under_load(alone, mapping_of(alone.folder, PLAIN, seconds=60, on_client_loss="stop"))
    user_processes(alone)[0].kill()
    assert live.end() == 3, live.lines
    assert any("the load stops, as clients.on_client_loss says" in line for line in live.lines)
    manifest = alone.store().manifest
    assert len(manifest.losses) == 1
    assert manifest.locust is not None
    assert manifest.locust.is_whole, "the master has ended by itself, and said what it counted"
    alone.wait_until_gone()


@pytest.mark.long
def test_a_killed_master_ends_the_load_and_every_row_is_kept(alone: Bench) -> None:
    live = under_load(alone, mapping_of(alone.folder, PLAIN, seconds=60))
    (master,) = user_processes(alone, is_master=True)
    master.kill()
    assert live.end() == 3, live.lines
    store = alone.store()
    assert store.manifest.losses == ("the Locust master is lost: it was killed by signal 9",)
    facts = store.manifest.locust
    assert facts is not None
    assert not facts.is_whole
    by_worker = Counter(store.read("requests").column("worker").to_pylist())
    assert {one.worker: one.n_requests for one in facts.workers} == by_worker
    alone.wait_until_gone()


@pytest.mark.long
def test_a_shape_that_ends_the_load_ends_the_run_and_its_phases(alone: Bench) -> None:
    shape = """
from locust import LoadTestShape

class Short(LoadTestShape):
    def tick(self):
        return (4, 8) if self.get_run_time() < 2 else None
"""
    live = alone.start_run(mapping_of(alone.folder, PLAIN + shape, seconds=60))
    assert live.end() in (0, 3), live.lines
    store = alone.store()
    assert_counted_alike(store)
    facts = store.manifest.locust
    assert facts is not None
    assert facts.shape == "Short"
    assert facts.ended_ns is not None
    assert [one.name for one in store.manifest.phases] == ["warmup", "main"]
    assert store.manifest.phases[-1].end_ns == facts.ended_ns
    assert sum("Locust ended the load before its time" in note for note in store.manifest.notes) == 1
    alone.wait_until_gone()


@pytest.mark.long
def test_locusts_page_is_on_loopback_and_ends_the_load(alone: Bench) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mapping = mapping_of(alone.folder, PLAIN, seconds=60)
    mapping["load"]["locust"]["web"] = {"port": port}
    live = under_load(alone, mapping)
    (master,) = user_processes(alone, is_master=True)
    listening = {one.laddr for one in master.net_connections("tcp") if one.status == psutil.CONN_LISTEN}
    assert {address.ip for address in listening} == {"127.0.0.1"}, (
        "the master's port too: all are on one node"
    )
    assert port in {address.port for address in listening}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/stop", method="POST", data=b"")
    with urllib.request.urlopen(request, timeout=30) as reply:
        assert reply.status == 200
    assert live.end() in (0, 3), live.lines
    store = alone.store()
    assert_counted_alike(store)
    facts = store.manifest.locust
    assert facts is not None
    assert facts.ended_ns is not None
    alone.wait_until_gone()


@pytest.mark.long
def test_where_on_start_ends_every_user_the_run_ends_with_its_words(alone: Bench) -> None:
    text = PLAIN + '\n    def on_start(self):\n        raise RuntimeError("no log-in today")\n'
    live = alone.start_run(mapping_of(alone.folder, text, seconds=60))
    assert live.end() == 2, live.lines
    assert "RuntimeError: no log-in today" in live.error_line()
    (reason,) = alone.aborted().manifest.reasons
    assert reason == live.error_line().removeprefix("squall: ")
    alone.wait_until_gone()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import nothing_of_the_sort\n", "ModuleNotFoundError: No module named 'nothing_of_the_sort'"),
        pytest.param("import locust\n", "No User class found!", marks=pytest.mark.long),
    ],
)
def test_a_file_that_no_node_can_run_is_one_line_in_its_own_words(
    alone: Bench, text: str, words: str
) -> None:
    live = alone.start_run(mapping_of(alone.folder, text))
    assert live.end() == 2, live.lines
    assert words in live.error_line()
    assert alone.aborted().tables() == []
    alone.wait_until_gone()


@pytest.mark.long
def test_ctrl_c_keeps_every_row(alone: Bench) -> None:
    live = under_load(alone, mapping_of(alone.folder, PLAIN, seconds=60))
    live.interrupt(signal.SIGINT)
    assert live.end() == 1, live.lines
    assert live.error_line() == "squall: interrupted by SIGINT"
    store = alone.aborted()
    facts = store.manifest.locust
    assert facts is not None
    by_worker = Counter(store.read("requests").column("worker").to_pylist())
    assert {one.worker: one.n_requests for one in facts.workers} == by_worker
    assert by_worker.total() == store.manifest.plan.n_arrivals > 40
    assert store.manifest.losses == ()
    alone.wait_until_gone()


@pytest.mark.long
def test_a_run_whose_driver_was_killed_is_resumed_without_its_locustfile(alone: Bench) -> None:
    live = under_load(alone, mapping_of(alone.folder, PLAIN, seconds=60), 2.0)
    live.process.kill()
    live.end()
    (alone.folder / "shop.py").unlink()
    wait_until(lambda: not user_processes(alone), 60, "the end of Locust's processes")
    resumed = alone.start("resume", alone.store().run_dir)
    assert resumed.end() == 3, resumed.lines
    store = alone.store()
    assert store.manifest.plan.n_arrivals == len(store.read("requests")) > 40
    assert any("what Locust itself would have said of it is gone" in loss for loss in store.manifest.losses)
    assert (store.run_dir / "logs" / "locust-master.log").exists()
    assert store.verify() == []
    alone.wait_until_gone()


CALLING = """
from locust import FastHttpUser, constant, task
from squall import TritonGrpcUser, TritonUser

class Http(TritonUser):
    wait_time = constant(0.02)

    @task
    def ask(self):
        answer = self.triton.infer("seqlen_head", rows=2)
        assert answer.is_ok, answer.detail

class Grpc(TritonGrpcUser):
    wait_time = constant(0.02)

    @task
    def ask(self):
        self.triton.infer(rows=3, name="three rows")

class Stranger(FastHttpUser):
    wait_time = constant(0.02)

    @task
    def ask(self):
        inputs = [{"name": "INPUT", "shape": [1, 16], "datatype": "FP32", "data": [0.5] * 16}]
        self.client.post("/v2/models/seqlen_head/infer", json={"id": "1", "inputs": inputs}, name="by hand")
"""


def test_requests_of_our_users_are_joined_to_their_batches_and_others_to_none(alone: Bench) -> None:
    live = alone.start_run(mapping_of(alone.folder, CALLING, 6))
    assert live.end() in (0, 3), live.lines
    store = alone.store()
    by_name = assert_counted_alike(store)
    assert by_name.keys() == {("POST", "seqlen_head"), ("grpc", "three rows"), ("POST", "by hand")}
    rows = store.read("requests").sort_by("request_id")
    assert set(texts(rows, "outcome")) == {"ok"}
    batch_of = {
        request_id: (one["batch_id"], one["start_ns"], one["end_ns"], one["rows"])
        for one in store.read("batches").to_pylist()
        for request_id in one["request_ids"] or ()
    }
    found = store.read("joined").sort_by("request_id").to_pylist()
    ours = [
        one for one in found if one["name"] != "by hand" and one["request_id"] != 1
    ]  # strangers say that too
    assert len(found) == len(rows)
    assert len(ours) > 50
    for one in ours:
        assert one["request_kind"] == "seqlen_head"
        assert one["rows"] == {"POST": 2, "grpc": 3}[one["method"]]
        batch_id, start_ns, end_ns, n_rows = batch_of[one["request_id"]]
        assert (one["batch_id"], one["join_level"]) == (batch_id, "exact")
        assert (one["batch_start_ns"], one["batch_end_ns"], one["batch_rows"]) == (start_ns, end_ns, n_rows)
        assert one["sent_ns"] < start_ns < end_ns < one["done_ns"]
    strangers = [one for one in found if one["name"] == "by hand"]
    assert {(one["batch_id"], one["request_kind"]) for one in strangers} == {(None, "")}
    assert {one["target"] for one in found} == {"server-0"}


def test_what_the_locustfile_says_of_its_test_is_taken_over(alone: Bench) -> None:
    text = PLAIN + (
        "\n\nfrom locust import events\n\n@events.quitting.add_listener\ndef judge(environment, **_):\n"
        "    environment.process_exit_code = 7\n"
    )
    live = alone.start_run(mapping_of(alone.folder, text))
    code = live.end()
    store = alone.store()
    assert store.manifest.locust is not None
    assert store.manifest.locust.exit_code == 7
    assert code == (99 if store.manifest.status == "VALID" else 3), live.lines
    last = alone.stdout().rstrip().rpartition("\n")[2]
    assert last.startswith("FAILED: shop.py ended its test with exit code 7."), alone.stdout()


def test_users_that_send_nothing_end_the_run_in_the_locustfiles_words(alone: Bench) -> None:
    text = "from locust import User, constant, task\n\nclass Idle(User):\n    wait_time = constant(0.1)\n\n    @task\n"
    text += "    def nothing(self):\n        raise RuntimeError('no stock today')\n"
    live = alone.start_run(mapping_of(alone.folder, text))
    assert live.end() == 2, live.lines
    assert live.error_line().startswith("squall: load.locust.file: shop.py: no user sent a request: ")
    assert "no stock today" in live.error_line()
    (reason,) = alone.aborted().manifest.reasons
    assert reason == live.error_line().removeprefix("squall: ")
