"""What a stranger says to a Locust master, under a worker's name or its own; Locust in a process of its own, since it
patches it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgpack  # type: ignore[import-untyped]
import zmq

from squall.analysis.record import from_json
from squall.analysis.storage.locust import LocustFacts
from squall.scenarios.units import NS_PER_S
from tests.locust_pair import LedWorker

SCRIPT = """
import json
from types import SimpleNamespace as Named

from squall.actors.locust.master_role import MasterRole

digits = "9" * 10**6
ids = [f"locust-worker-{digits}_x", "abc", "", 5, "locust-worker-7_x", "locust-worker-1_x"]
sent = []
role = object.__new__(MasterRole)
role._settings = Named(n_workers=3)
role._reported, role._missing = {0}, set()
role._runner = Named(
    clients=Named(missing=[Named(id=one) for one in ids]), server=Named(send_to_client=sent.append)
)
role._note_missing()
for worker in (digits, [1], None, 7, -1, 2.5):
    role._take_last_report(None, Named(data={"worker": worker}, node_id="x"))
print(json.dumps([sorted(role._missing), sorted(role._reported), len(sent), role._awaits_reports()]))
"""


def test_only_workers_of_the_run_count_as_missing_or_reported() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    assert json.loads(done.stdout) == [[1], [0], 0, True]


ACCOUNT_SCRIPT = """
import json
from pathlib import Path
from types import SimpleNamespace as Named

from locust.stats import RequestStats

from squall.actors.locust.outputs import Outputs

stats = RequestStats()
for number in range(10_001):
    stats.log_request("GET", f"/user/{number}", 1.0, 10)
stats.total.num_failures = 10**30
stats.log_error("GET", "/user/0", "e" * 10**5)
exceptions = {n: {"msg": "m", "traceback": "\\x1b" * 10**5 + str(n), "count": 1, "nodes": set()} for n in range(10_000)}
outputs = object.__new__(Outputs)
outputs._environment = Named(stats=stats, runner=Named(exceptions=exceptions))
print(json.dumps(outputs.account()))
"""


def test_the_account_of_any_number_of_names_is_one_that_a_manifest_can_have() -> None:
    done = subprocess.run([sys.executable, "-c", ACCOUNT_SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    assert len(done.stdout) < 20 * 1024**2
    facts = from_json(
        LocustFacts,
        {"version": "", "file": "", "file_sha256": "", "node": "", **json.loads(done.stdout)},
    )
    assert len(facts.entries) == 10_001
    assert (facts.entries[-1].name, facts.entries[-1].n_requests) == ("Aggregated", 10_001)
    assert facts.entries[-1].n_failures == 2**63 - 1
    assert [len(one.error) for one in facts.failures] == [10_000]
    assert 0 < len(facts.exceptions) < 200
    assert facts.exceptions[0].traceback.endswith("\x1b0")


TOLD = 10**9
"""Requests, in each false report."""


def _entry(**odd: object) -> dict[str, object]:
    return {
        "name": "ask", "method": "own", "last_request_timestamp": None, "start_time": 1.0, "num_requests": TOLD,
        "num_none_requests": 0, "num_failures": 0, "total_response_time": 1.0, "max_response_time": 1.0,
        "min_response_time": 1.0, "total_content_length": 0, "response_times": {1: 1}, "num_reqs_per_sec": {},
        "num_fail_per_sec": {}, **odd,
    }  # fmt: skip


def _report(entry: dict[str, object], **error: object) -> list[object]:
    errors = {"k": {"method": "own", "name": "ask", "error": "x", "occurrences": 1, **error}} if error else {}
    total = {**entry, "name": "Aggregated", "method": ""}
    data = {"stats": [entry], "stats_total": total, "errors": errors, "user_classes_count": {"Caller": 1}}
    return ["stats", data, "stranger"]


ASKS = ["locustfile", {"version": "2.47.0"}, "stranger"]
MESSAGES: list[object] = [
    ASKS,
    ["locustfile", {"version": 5}, "stranger"],
    ["locustfile", None, "stranger"],
    5,
    ["client_ready"],
    [["client_ready"], None, "stranger"],
    ["client_ready", 5, "stranger"],
    ["heartbeat", None, "another"],
    ["exception", {"msg": 5, "traceback": "x"}, "stranger"],
    ["exception", None, "stranger"],
    _report(_entry(num_failures=1.5)),
    _report(_entry(method=5)),
    _report(_entry(), occurrences="x"),
    _report(_entry(response_times={"x": 1})),
    {"__datetime__": 1, "as_str": "x"},
]
UNKNOWN = ["spawning", None, "stranger"]
"""Locust answers it, and by then has heard all that came before."""


def test_a_stranger_is_told_nothing_of_the_file_and_leaves_the_statistics_as_they_are(tmp_path: Path) -> None:
    pair = LedWorker(tmp_path, 60 * NS_PER_S)
    pair.lead()
    master = pair._master
    load = threading.Thread(target=pair.run, args=(time.monotonic_ns() + NS_PER_S,))
    load.start()
    host, port = master._ready["address"]
    context = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.setsockopt(zmq.IDENTITY, b"stranger")
    stranger.connect(f"tcp://{host}:{port}")
    try:
        until_s = time.monotonic() + 30.0
        while not master._asked:  # Locust forgets what it was told before
            assert time.monotonic() < until_s
            time.sleep(0.01)
        for message in MESSAGES:
            stranger.send(msgpack.dumps(message))
        stranger.send(b"\xc1")
        stranger.send(msgpack.dumps(UNKNOWN))
        assert stranger.poll(30_000), "the master hears no more"
        assert msgpack.loads(stranger.recv()) == ["quit", None, "stranger"]
        while load.is_alive() and not pair.status().progress.n_done:
            time.sleep(0.05)
        pair.stop()
        load.join()
    finally:
        context.destroy(linger=0)
        pair.abandoned()
    account = master.account()
    assert account.is_whole
    assert [(one.method, one.name, one.n_failures) for one in account.entries] == [
        ("own", "ask", 0),
        ("", "Aggregated", 0),
    ]
    assert 0 < account.entries[0].n_requests == account.entries[1].n_requests < TOLD
    assert (account.failures, account.exceptions) == ((), ())
