"""Quantiles by Locust's rank over exact rows, beside those of Locust's own classes over the same response times."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from squall.analysis.requests.named_rows import QUANTILES, rows_by_name
from tests.known import known
from tests.locust_runs import MODEL, bucket, quantile_of, synthesise_locust
from tests.synthetic_runs import MS

_LOCUST = """
import json, sys
from locust.stats import RequestStats
stats = RequestStats()
for ms in json.load(sys.stdin):
    stats.log_request("HTTP", "seqlen_head", ms, 0)
one = stats.get("seqlen_head", "HTTP")
print(json.dumps([one.get_response_time_percentile(q) for q in (0.5, 0.95, 0.99)]))
"""


def test_the_rank_of_a_quantile_is_that_of_locusts_own_statistics(tmp_path: Path) -> None:
    """In a process of its own: Locust patches the interpreter that imports it."""
    run = synthesise_locust()
    run.derived = run.seal = False
    (one,) = [one for one in rows_by_name(run.write(tmp_path)).names if (one.method, one.name) == MODEL]
    requests = run.tables["requests"]
    own_ms = [
        (done - sent) / MS
        for name, sent, done in zip(*(requests[key] for key in ("name", "sent_ns", "done_ns")), strict=True)
        if name == MODEL[1]
    ]
    done = subprocess.run(
        [sys.executable, "-c", _LOCUST], input=json.dumps(own_ms), text=True, check=True, timeout=60,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    exact_ms = [known(ns) / MS for ns in (one.figures.p50_ns, one.figures.p95_ns, one.figures.p99_ns)]
    said_ms = json.loads(done.stdout)
    assert said_ms == [quantile_of([*map(bucket, own_ms)], q) for q in QUANTILES]
    assert np.abs(np.array(said_ms) - exact_ms).max() <= 0.5  # below 100 ms Locust keeps whole ms
