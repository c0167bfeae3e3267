"""Locust's master and workers as processes, without Ray: what its users did against what Locust counted of it.

The server is the null Triton. `tests/integration/test_locust_run.py` has whole runs.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from squall.actors.locust.locust_master import LocustMaster, MasterAccount
from squall.actors.locust.locust_worker import LocustWorker
from squall.actors.locust.settings import MASTER, LocustSettings
from squall.actors.spill import read_spill
from squall.actors.triton_user.handed import UserTarget
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.errors import LostActor, ScenarioError
from squall.scenarios.locust_plan import LocustPlan
from squall.scenarios.run_plan import plan_run
from tests.null_process import NullProcess

pytestmark = pytest.mark.beside

SOON_NS = 300_000_000
PATIENCE_S = 60.0

MIXED = """
from locust import FastHttpUser, HttpUser, between, events, task

class Shopper(HttpUser):
    wait_time = between(0.01, 0.05)

    def on_start(self):
        self.client.get("/v2/health/ready", name="login")

    @task(3)
    def look(self):
        self.client.get("/v2/health/live")

    @task
    def judged(self):
        with self.client.get("/v2", catch_response=True) as response:
            response.failure("as asked")

class Caller(FastHttpUser):
    wait_time = between(0.01, 0.05)

    @task
    def nowhere(self):
        self.client.get("/nowhere?x=1", name="/nowhere")

    @task
    def boom(self):
        raise ValueError("boom")
"""
SHAPED = """
from locust import FastHttpUser, LoadTestShape, constant, task

class Caller(FastHttpUser):
    wait_time = constant(0.05)

    @task
    def look(self):
        self.client.get("/v2/health/live")

class Steps(LoadTestShape):
    def tick(self):
        at_s = self.get_run_time()
        return (2, 10) if at_s < 1 else (4, 10) if at_s < 2 else None
"""
QUITTING = """
from locust import FastHttpUser, constant, task

class Caller(FastHttpUser):
    wait_time = constant(0.01)
    n = 0

    @task
    def look(self):
        self.client.get("/v2/health/live")
        Caller.n += 1
        if Caller.n == 20:
            self.environment.runner.quit()
"""
SLOW = """
from locust import FastHttpUser, task

class Caller(FastHttpUser):
    @task
    def look(self):
        self.client.get("/v2/health/live")
        while True:
            self._sleep(30)

    def _sleep(self, seconds):
        import gevent.event
        gevent.event.Event().wait(seconds)
"""


@dataclass
class Load:
    """Processes of one load, and what came of them."""

    master: LocustMaster
    workers: list[LocustWorker]
    folder: Path
    start_ns: int = 0

    def rows(self) -> list[dict[str, Any]]:
        paths = sorted(self.folder.glob("requests-*.arrows"))
        tables = [table for path in paths for table in read_spill(pa.OSFile(str(path)))]
        found: list[dict[str, Any]] = pa.concat_tables(tables).to_pylist() if tables else []
        return found

    def samples(self, table: str) -> list[dict[str, Any]]:
        paths = sorted(self.folder.glob(f"{table}-*.arrows"))
        return [row for path in paths for one in read_spill(pa.OSFile(str(path))) for row in one.to_pylist()]


@pytest.fixture(scope="module")
def null() -> Iterator[NullProcess]:
    with NullProcess() as one:
        yield one


def plan_of(folder: Path, text: str, locust: dict[str, Any], measure: str, drain: str) -> LocustPlan:
    path = folder / "shop.py"
    path.write_text(text)
    phases = [
        {"name": "warmup", "kind": "warmup", "duration": "1s"},
        {"name": "measure", "kind": "measure", "duration": measure},
        {"name": "drain", "kind": "drain", "duration": drain},
    ]
    mapping = {
        "name": "shop", "seed": 1, "model": {"name": "linear_head"}, "phases": phases,
        "load": {"locust": {"file": str(path), "users": 6, "spawn_rate": 20.0, **locust}},
    }  # fmt: skip
    plan = plan_run(scenario_from_mapping(mapping, "test"), None)
    assert isinstance(plan, LocustPlan)
    return plan


@contextmanager
def prepared(
    null: NullProcess,
    folder: Path,
    text: str,
    n_workers: int = 2,
    measure: str = "2s",
    drain: str = "5s",
    **locust: Any,
) -> Iterator[Load]:
    plan = plan_of(folder, text, locust, measure, drain)
    url = f"http://127.0.0.1:{null.ports['http']}"
    settings = LocustSettings(
        run="run", node="node-0", worker=MASTER, n_workers=n_workers, address="127.0.0.1", spill_dir=str(folder),
        config=plan.config, files=plan.files, spans=plan.spans, load_end_ns=plan.load_end_ns,
        stop_timeout_ns=plan.stop_timeout_ns, host=url, targets=(UserTarget("server-0", url, "", ()),), models=(),
        seed=1,
    )  # fmt: skip
    master = LocustMaster(settings)
    workers = [LocustWorker(replace(settings, worker=number)) for number in range(n_workers)]
    try:
        host, port = master.prepare()
        with ThreadPoolExecutor(n_workers) as pool:
            list(pool.map(lambda one: one.prepare(host, port), workers))
        master.wait_for_workers()
        yield Load(master, workers, folder)
    finally:
        for worker in workers:
            worker.abandoned()
        master.abandoned()


def follow(
    load: Load, meanwhile: Callable[[Load], None] = lambda _: None
) -> tuple[MasterAccount, list[Exception]]:
    """Runs it to its end; what the runs of workers and master raised."""
    raised: list[Exception] = []

    def ran(run: Callable[[int], None]) -> None:
        try:
            run(load.start_ns)
        except Exception as error:
            raised.append(error)

    load.start_ns = time.monotonic_ns() + SOON_NS
    runs: list[Callable[[int], None]] = [load.master.run, *(one.run for one in load.workers)]
    threads = [threading.Thread(target=ran, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    meanwhile(load)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)
    return load.master.account(), raised


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def counted(account: MasterAccount) -> dict[tuple[str, str], tuple[int, int]]:
    *named, total = account.entries
    assert (total.method, total.name) == ("", "Aggregated")
    assert total.n_requests == sum(one.n_requests for one in named)
    return {(one.method, one.name): (one.n_requests, one.n_failures) for one in named}


def recorded(rows: list[dict[str, Any]]) -> dict[tuple[str, str], tuple[int, int]]:
    all_rows = Counter((row["method"], row["name"]) for row in rows)
    failed = Counter((row["method"], row["name"]) for row in rows if row["outcome"] != "ok")
    return {key: (n, failed[key]) for key, n in all_rows.items()}


def test_every_request_that_locust_counts_has_a_row_with_its_exact_time(
    null: NullProcess, tmp_path: Path
) -> None:
    with prepared(null, tmp_path, MIXED, options=["--loglevel", "ERROR"], html=True) as load:
        account, raised = follow(load)
        rows = load.rows()
        assert not raised
        assert account.is_whole
        assert account.reported == (0, 1)
        assert recorded(rows) == counted(account)
        assert (
            sum(n for n, _ in counted(account).values()) == sum(one.n_issued() for one in load.workers) > 100
        )
        assert [one.counted() for one in load.workers] == [
            (len(own), sum(row["outcome"] != "ok" for row in own), 0)
            for own in ([row for row in rows if row["worker"] == number] for number in range(2))
        ]
    for one in account.entries[:-1]:
        own = [row for row in rows if (row["method"], row["name"]) == (one.method, one.name)]
        exact_ms = sum(row["done_ns"] - row["sent_ns"] for row in own) / 1e6
        assert exact_ms == pytest.approx(one.total_ms, abs=len(own) * 1e-6)  # a row is a whole number of ns
    by_name = {row["name"]: (row["outcome"], row["detail"]) for row in rows}
    assert by_name["/v2"] == ("bad_reply", "as asked")
    assert by_name["/nowhere"][0] == "server_error"
    assert by_name["login"] == by_name["/v2/health/live"] == ("ok", "")
    assert {row["target"] for row in rows} == {"server-0"}
    ids = [row["request_id"] for row in rows]
    assert len(set(ids)) == len(ids)
    assert all(row["request_id"] % 2 == row["worker"] for row in rows)
    assert all(load.start_ns <= row["sent_ns"] <= row["done_ns"] for row in rows)
    assert {one.message for one in account.exceptions} == {"boom"}
    errors = sum(row["n_errors"] for row in load.samples("locust_samples"))
    assert errors == sum(one.n for one in account.exceptions) > 0
    assert {"locust_stats.csv", "locust_stats_history.csv", "locust_failures.csv", "report.html"} <= set(
        account.files
    )
    aggregated = account.files["locust_stats.csv"].decode().splitlines()[-1].split(",")
    assert aggregated[1:4] == ["Aggregated", str(len(rows)), str(sum(row["outcome"] != "ok" for row in rows))]


@pytest.mark.slow
def test_users_time_is_accounted_for_by_think_and_requests(null: NullProcess, tmp_path: Path) -> None:
    with prepared(null, tmp_path, SHAPED.partition("class Steps")[0].replace(", LoadTestShape", "")) as load:
        follow(load)
        rows, samples = load.rows(), load.samples("locust_samples")
    total = {name: sum(row[name] for row in samples) for name in ("present_ns", "think_ns", "overslept_ns")}
    service_ns = sum(row["done_ns"] - row["sent_ns"] for row in rows)
    assert total["think_ns"] == pytest.approx(
        len(rows) * 50e6, rel=0.1
    )  # 0.05 s after each, but for those cut off
    assert 0 < total["overslept_ns"] < total["present_ns"]
    assert total["think_ns"] + total["overslept_ns"] + service_ns <= total["present_ns"] * 1.001
    assert sum(row["n_requests"] for row in samples) == len(rows)
    processes = load.samples("worker_samples")
    assert sum(row["n_done"] for row in processes) == len(rows)
    assert all(row["cpu_ns"] > 0 for row in processes if row["n_done"])


@pytest.mark.slow
def test_a_shape_says_how_many_users_and_when_it_is_over(null: NullProcess, tmp_path: Path) -> None:
    with prepared(null, tmp_path, SHAPED, measure="30s", drain="1s") as load:
        account, raised = follow(load)
    assert not raised
    assert account.shape == "Steps"
    assert [one.n_users for one in account.asked] == [2, 4]
    assert account.ended_ns is not None
    assert account.ended_ns - load.start_ns < 30e9
    assert recorded(load.rows()) == counted(account)


@pytest.mark.slow
def test_user_code_that_quits_ends_its_users_and_keeps_all_rows(null: NullProcess, tmp_path: Path) -> None:
    with prepared(null, tmp_path, QUITTING, n_workers=1, measure="2s", drain="1s") as load:
        account, raised = follow(load)
    assert not raised
    assert account.is_whole
    assert account.reported == (0,)
    assert recorded(load.rows()) == counted(account)
    assert sum(n for n, _ in counted(account).values()) >= 20


def test_a_killed_worker_is_named_with_its_users_and_keeps_every_row(
    null: NullProcess, tmp_path: Path
) -> None:
    def kill_one(load: Load) -> None:
        until(lambda: load.workers[1].n_users() == 3 and load.workers[1].n_issued() > 20)
        os.kill(load.workers[1].pid(), 9)

    text = SHAPED.partition("class Steps")[0].replace(", LoadTestShape", "")
    with prepared(null, tmp_path, text, measure="4s", drain="1s") as load:
        account, raised = follow(load, kill_one)
        n_rows = load.workers[1].n_issued()
        (lost,) = raised
        assert isinstance(lost, LostActor)
        assert "was killed by signal 9: its 3 users are gone" in str(lost)
        assert f"all {n_rows} requests that it had recorded are kept" in str(lost)
        with pytest.raises(LostActor, match="its 3 users are gone"):
            load.workers[1].status()
    rows = Counter(row["worker"] for row in load.rows())
    assert rows[1] == n_rows > 20
    assert account.reported == (0,)
    entry, _ = account.entries
    assert rows[0] <= entry.n_requests <= rows[0] + rows[1]  # Locust has what the lost one had reported


@pytest.mark.slow
def test_a_killed_master_is_named_and_its_last_account_stays(null: NullProcess, tmp_path: Path) -> None:
    def kill(load: Load) -> None:
        until(lambda: load.workers[0].n_issued() > 20)
        os.kill(load.master.pid(), 9)
        until(lambda: load.master.account().asked != ())
        with pytest.raises(LostActor, match="the Locust master on node-0 is lost: it was killed by signal 9"):
            until(lambda: bool(load.master.status()))
        for one in load.workers:
            one.stop()

    text = SHAPED.partition("class Steps")[0].replace(", LoadTestShape", "")
    with prepared(null, tmp_path, text, measure="30s", drain="1s") as load:
        account, raised = follow(load, kill)
    assert [type(one) for one in raised] == [LostActor]
    assert not account.is_whole
    assert len(load.rows()) == sum(one.n_issued() for one in load.workers)


@pytest.mark.slow
def test_users_cut_within_a_task_are_counted_and_nothing_is_left_running(
    null: NullProcess, tmp_path: Path
) -> None:
    with prepared(null, tmp_path, SLOW, measure="1s", drain="1s") as load:
        pids = [load.master.pid(), *(one.pid() for one in load.workers)]
        _, raised = follow(load)
    assert not raised
    assert sum(row["n_cut"] for row in load.samples("locust_samples")) == 6
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(
            "import nosuchmodule\n",
            "shop.py, line 1: ModuleNotFoundError: No module named 'nosuchmodule'",
            id="import",
        ),
        pytest.param("x = 1\n", "shop.py: No User class found!", id="nothing", marks=pytest.mark.slow),
        pytest.param(
            "from locust import User, task\nclass A(User):\n    weight = 0\n    @task\n    def t(self): pass\n",
            "shop.py: ValueError: There are no users with weight > 0.",
            id="no weight",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "from locust import User, events, task\n@events.init.add_listener\ndef f(**_): raise ValueError('broke')\n"
            "class A(User):\n    @task\n    def t(self): pass\n",
            "a listener of events.init failed: ValueError: broke",
            id="listener of init",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "raise SystemExit('no')\n", "shop.py, line 1: SystemExit: no", id="exit", marks=pytest.mark.slow
        ),
    ],
)
def test_a_locustfile_that_cannot_run_is_one_line_in_its_own_words(
    null: NullProcess, tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(ScenarioError) as raised, prepared(null, tmp_path, text):
        pass
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("locust", "said"),
    [
        ({"user_classes": ["Nobody"]}, "shop.py: Unknown User(s): Nobody; it has Caller, Shopper"),
        ({"options": ["--no-such"]}, "load.locust.options: unrecognized arguments: --no-such"),
    ],
)
def test_settings_that_locust_does_not_know_are_one_line(
    null: NullProcess, tmp_path: Path, locust: dict[str, Any], said: str
) -> None:
    with pytest.raises(ScenarioError) as raised, prepared(null, tmp_path, MIXED, **locust):
        pass
    assert said in str(raised.value)


@pytest.mark.slow
def test_users_that_all_end_in_on_start_are_one_line(null: NullProcess, tmp_path: Path) -> None:
    text = (
        "from locust import HttpUser, task\nclass A(HttpUser):\n"
        "    def on_start(self): raise RuntimeError('no login')\n"
        "    @task\n    def t(self): pass\n"
    )
    told: list[str] = []

    def ask(load: Load) -> None:
        def is_told() -> bool:
            try:
                load.workers[0].status()
            except ScenarioError as error:
                told.append(str(error))
            return bool(told)

        until(is_told)
        for one in load.workers:
            one.stop()
        load.master.stop()

    with prepared(null, tmp_path, text, measure="30s", drain="1s") as load:
        follow(load, ask)
    assert "shop.py: all 3 users of locust-worker-0 ended in on_start" in told[0]
    assert told[0].endswith("RuntimeError: no login")


BLOCKING = """
import os, subprocess, time
from locust import User, constant, events, task

def block():
    with open({pids!r}, "a") as file:
        child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        file.write(f"{{child.pid}}\\n")
    while True:
        pass

class Busy(User):
    wait_time = constant(0.1)

    def on_start(self):
        {on_start}

    @task
    def work(self):
        {task}

@events.test_stop.add_listener
def over(**_):
    {test_stop}
"""


_BLOCKING: dict[tuple[str, str], list[pytest.MarkDecorator]] = {
    ("by itself", "task"): [pytest.mark.slow], ("stopped", "on_start"): [pytest.mark.slow],
    ("driver gone", "test_stop"): [pytest.mark.slow],
}  # fmt: skip


@pytest.mark.parametrize(
    ("ending", "place"),
    [
        # one of each ending and place in the slow suite, the rest in the longest
        pytest.param(
            ending, place, marks=_BLOCKING.get((ending, place), [pytest.mark.slow, pytest.mark.long])
        )
        for ending in ("by itself", "stopped", "driver gone")
        for place in ("on_start", "task", "test_stop")
    ],
)
def test_code_that_blocks_ends_with_the_load_and_so_does_what_it_started(
    null: NullProcess, tmp_path: Path, place: str, ending: str
) -> None:
    started = tmp_path / "started"
    places = dict.fromkeys(("on_start", "task", "test_stop"), "pass")
    text = BLOCKING.format(pids=str(started), **{**places, place: "block()"})

    def end(load: Load) -> None:
        if ending == "by itself":
            return
        if place != "test_stop":
            until(started.exists)
        users: list[LocustWorker | LocustMaster] = [*load.workers, load.master]
        for one in users:
            one.stop() if ending == "stopped" else one.abandoned()

    with prepared(null, tmp_path, text, n_workers=1, measure="1s", drain="1s", users=1) as load:
        pids = [load.master.pid(), load.workers[0].pid()]
        _, raised = follow(load, end)
    pids += [int(line) for line in started.read_text().split()] if started.exists() else []
    living = [
        one for one in psutil.process_iter() if one.pid in pids and one.status() != psutil.STATUS_ZOMBIE
    ]
    assert not living
    if ending == "by itself":
        assert len(pids) > 2
        told = [str(one) for one in raised]
        assert any("code of the locustfile blocks, and was killed" in one for one in told), told
