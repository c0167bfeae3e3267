"""A made-up run whose load was Locust's: users of two workers, each event of them known, and what Locust would say.

Of every three users two call the model through squall's class, one sends plain requests that carry no id of ours. A
user waits `inside_ns` in its process before each send, which is in no response time, and wakes `late_ns` late.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from squall.analysis.storage.schema import arrow_schema
from tests.synthetic_runs import (
    MS,
    START_NS,
    Columns,
    S,
    SyntheticRun,
    _add_batch,
    _host,
    _manifest,
    _triton,
    _workers,
    phase_at,
)

N_USERS = 24
THINK_NS = 40 * MS
LATE_NS = 10 * MS
END_NS = START_NS + 14 * S
MODEL, PLAIN = ("HTTP", "seqlen_head"), ("GET", "/v2/health/ready")


def synthesise_locust(inside_ns: int = 20_000, late_ns: int = 100_000, at_once: int = 1) -> SyntheticRun:
    """14 s of load in the phases of the other made-up runs; `at_once`: requests that a user sends side by side."""
    run: SyntheticRun = pickle.loads(_locust_run(inside_ns, late_ns, at_once))
    return run


@cache
def _locust_run(inside_ns: int, late_ns: int, at_once: int) -> bytes:
    rng = np.random.default_rng(1)
    rows: list[dict[str, Any]] = []
    thinks: list[tuple[int, int, int, int]] = []  # worker, asleep from, to wake at, awake
    for user in range(N_USERS):
        t = START_NS
        while True:
            done = 0
            for _ in range(at_once):
                sent = t + inside_ns
                ended = sent + 2 * MS + int(rng.exponential(8 * MS))
                done = max(done, ended)
                if ended < END_NS:
                    rows.append({"user": user, "sent_ns": sent, "done_ns": ended})
            if done >= END_NS:
                break
            wake = done + int(rng.exponential(THINK_NS))
            thinks.append((user % 2, done, wake, wake + late_ns))
            t = wake + late_ns
            if t >= END_NS:
                break
    rows.sort(key=lambda row: row["done_ns"])
    counts = [0, 0]
    for row in rows:
        worker = row["user"] % 2
        row["worker"], row["request_id"] = worker, worker + 2 * counts[worker]
        counts[worker] += 1
    requests = _requests(rows)
    batches: Columns = {name: [] for name in arrow_schema("batches").names if name != "run"}
    asked = [i for i in range(len(rows)) if requests["request_kind"][i] and requests["outcome"][i] == "ok"]
    for i in asked:
        _add_batch(
            batches, rows[i]["sent_ns"] + MS, rows[i]["done_ns"] - MS // 2, 1, [rows[i]["request_id"]], 1
        )
    by_id = {
        name: dict(zip(requests["request_id"], requests[name], strict=True)) for name in ("rows", "sent_ns")
    }
    tables = {
        "requests": requests,
        "batches": batches,
        "triton_samples": _triton(by_id, batches, 1),  # type: ignore[arg-type]  # looked up by request id
        "host_samples": _host(rng, 1),
        "worker_samples": _workers(rng, requests),
        "locust_samples": _samples(rows, thinks),
    }
    manifest = _manifest(np.array(requests["sent_ns"]), 1)
    manifest["plan"] |= {"load": "locust", "n_users": N_USERS}
    manifest["scenario"]["load"] = {"locust": {"file": "locustfile.py", "users": N_USERS, "spawn_rate": 24.0}}
    manifest["locust"] = _facts(requests)
    return pickle.dumps(SyntheticRun(manifest, tables))


def _requests(rows: Sequence[dict[str, Any]]) -> Columns:
    n = len(rows)
    requests: Columns = {
        name: [row[name] for row in rows] for name in ("request_id", "worker", "sent_ns", "done_ns")
    }
    same = {
        "node": "node-0",
        "target": "server-0",
        "scheduled_ns": None,
        "response_bytes": 208,
    }
    requests |= {name: [value] * n for name, value in same.items()}
    is_plain = [row["user"] % 3 == 2 for row in rows]
    failed = [i % 400 == 7 for i in range(n)]
    requests |= {
        "phase": [phase_at(t) for t in requests["sent_ns"]],
        "request_kind": ["" if plain else "seqlen_head" for plain in is_plain],
        "rows": [0 if plain else 1 for plain in is_plain],
        "request_bytes": [0 if plain else 4396 for plain in is_plain],
        "first_byte_ns": [
            None if plain else t - 10_000 for plain, t in zip(is_plain, requests["done_ns"], strict=True)
        ],
        "outcome": ["server_error" if one else "ok" for one in failed],
        "detail": ["500 Server Error" if one else "" for one in failed],
        "method": [(PLAIN if plain else MODEL)[0] for plain in is_plain],
        "name": [(PLAIN if plain else MODEL)[1] for plain in is_plain],
    }
    return requests


def _samples(rows: Sequence[dict[str, Any]], thinks: Sequence[tuple[int, int, int, int]]) -> Columns:
    columns: Columns = {name: [] for name in arrow_schema("locust_samples").names if name != "run"}
    slept = np.array(thinks)
    of_user = np.array([row["worker"] for row in rows])
    done = np.array([row["done_ns"] for row in rows])

    def overlap(begin: np.ndarray, end: np.ndarray, a: int, b: int) -> int:
        return int(np.maximum(np.minimum(end, b) - np.maximum(begin, a), 0).sum())

    for second in range(1, 16):
        a, b = START_NS + (second - 1) * S, START_NS + second * S
        for worker in (0, 1):
            _, asleep, wake, awake = slept[slept[:, 0] == worker].T
            end = np.full(len(wake), END_NS)
            woke = (awake >= a) & (awake < b)
            is_there = b <= END_NS
            lateness = (awake - wake)[woke]
            row = {
                "phase": phase_at(a), "node": "node-0", "worker": worker, "t_ns": b, "interval_ns": S,
                "n_users": N_USERS // 2 if is_there else 0,
                "n_thinking": int(((asleep < b) & (wake >= b)).sum()) if is_there else 0,
                "present_ns": N_USERS // 2 * S if is_there else 0,
                "think_ns": overlap(asleep, np.minimum(wake, end), a, b),
                "overslept_ns": overlap(wake, np.minimum(awake, end), a, b),
                "n_wakes": int(woke.sum()), "n_late_wakes": int((lateness > LATE_NS).sum()),
                "late_max_ns": int(lateness.max(initial=0)),
                "n_requests": int(((done >= a) & (done < b) & (of_user == worker)).sum()),
                "n_failures": 0, "n_errors": 0, "n_died": 0, "n_cut": 0,
            }  # fmt: skip
            for name, value in row.items():
                columns[name].append(value)
    return columns


def bucket(ms: float) -> int:
    """As Locust rounds a response time before it counts it (`bucket_response_time` of its stats.py)."""
    if ms < 100:
        return round(ms)
    if ms < 1_000:
        return round(ms, -1).__int__()
    return int(round(ms, -2 if ms < 10_000 else -3))


def quantile_of(values: Sequence[int], q: float) -> int:
    """The value with ⌊q n⌋ before it, Locust's rank."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * q), len(ordered) - 1)]


def _facts(requests: Columns) -> dict[str, Any]:
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    n_failed: dict[tuple[str, str], int] = defaultdict(int)
    n_by_worker = [0, 0]
    names = ("method", "name", "sent_ns", "done_ns", "outcome", "worker")
    for method, name, sent, done, outcome, worker in zip(*(requests[one] for one in names), strict=True):
        times[method, name].append((done - sent) / MS)
        n_failed[method, name] += outcome != "ok"
        n_by_worker[worker] += 1
    entries = [
        {
            "method": method, "name": name, "n_requests": len(own), "n_failures": n_failed[method, name],
            "total_ms": sum(own), "min_ms": min(own), "max_ms": max(own), "response_bytes": 208 * len(own),
            "quantiles_ms": {str(q): quantile_of([*map(bucket, own)], q) for q in (0.5, 0.95, 0.99)},
        }
        for (method, name), own in times.items()
    ]  # fmt: skip
    return {
        "version": "2.47.0", "file": "locustfile.py", "file_sha256": "0" * 64, "node": "node-0",
        "user_classes": ["ModelUser", "PlainUser"], "late_ns": LATE_NS,
        "asked": [{"t_ns": START_NS, "n_users": N_USERS, "spawn_rate_hz": float(N_USERS)}],
        "entries": entries,
        "workers": [
            {"worker": worker, "n_requests": n, "n_failures": 0, "has_reported": True}
            for worker, n in enumerate(n_by_worker)
        ],
        "files": [],
    }  # fmt: skip
