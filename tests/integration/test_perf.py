"""`squall perf` on a real Triton: CSV, export and table held to the tables of its own runs."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import measure_spans
from squall.cluster.node.endpoint import Endpoint
from squall.scenarios.config.loader import load_scenario
from tests.certificates import Authority
from tests.command import Command
from tests.integration.live_runs import Bench
from tests.integration.serving import serving
from tests.null_process import NullProcess

pytestmark = pytest.mark.beside
ANY_SPREAD = ("-s", "9999", "-r", "3")
"""What is tested is not whether a crowded host is steady."""
HEADER = (
    "Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,Server Compute Infer,"
    "Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency"
)


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    with serving(tmp_path_factory.mktemp("perf")) as (_, endpoint):
        yield endpoint


def ended(bench: Bench, *flags: str) -> tuple[list[str], list[str], int]:
    """Lines of stdout and of stderr, and the exit code."""
    ray = ["--ray", bench.ray] if bench.ray else []
    live = bench.start("perf", "-m", "seqlen_head", "--out", bench.out, *ANY_SPREAD, *ray, *flags)
    code = live.end()
    return bench.stdout().splitlines(), live.lines, code


def perf(bench: Bench, *flags: str) -> tuple[list[str], list[str]]:
    """The lines of a search that ended well, or with 3: the host was too busy for a VALID run."""
    said, lines, code = ended(bench, *flags)
    assert code in (0, 3), lines
    return said, lines


def runs(bench: Bench) -> list[RunStore]:
    """In the order in which they were made: one that was INVALID is followed by another of its level."""
    (folder,) = bench.out.iterdir()
    found = [RunStore.open(path.parent) for path in folder.glob("*/manifest.json")]
    return sorted(found, key=lambda store: measure_spans(store.manifest)[0].start_ns)


def runs_of(bench: Bench, document: dict[str, Any]) -> list[RunStore]:
    """Of each level of an export the run that its windows are of."""

    def holds(store: RunStore, experiment: dict[str, Any]) -> bool:
        (span,) = measure_spans(store.manifest)
        begin_ns: int = experiment["window_boundaries"][0]
        return span.start_ns <= begin_ns < span.end_ns

    stores = runs(bench)
    return [next(one for one in stores if holds(one, experiment)) for experiment in document["experiments"]]


def rows_between(store: RunStore, edges: list[int]) -> dict[str, Any]:
    """`requests` that ended between the first edge and the last."""
    table = store.read("requests", ["sent_ns", "done_ns", "outcome"]).to_pydict()
    done = np.array([one or 0 for one in table["done_ns"]])
    inside = np.flatnonzero((done >= edges[0]) & (done < edges[-1]))
    return {name: [table[name][index] for index in inside] for name in table}


def hold_to_tables(bench: Bench, csv_file: Path, document: dict[str, Any], levels: list[float]) -> None:
    """Counts equal, percentiles those of numpy on the raw rows."""
    stores = runs_of(bench, document)
    report = {
        float(next(iter(row.values()))): row for row in csv.DictReader(csv_file.read_text().splitlines())
    }
    assert [one["experiment"]["value"] for one in document["experiments"]] == levels
    assert sorted(report) == levels
    for level, experiment, store in zip(levels, document["experiments"], stores, strict=True):
        edges = experiment["window_boundaries"]
        assert len(edges) == 4
        raw = rows_between(store, edges)
        assert set(raw["outcome"]) == {"ok"}
        told = [(one["timestamp"], one["response_timestamps"]) for one in experiment["requests"]]
        assert sorted(told) == sorted(
            (sent, [done]) for sent, done in zip(raw["sent_ns"], raw["done_ns"], strict=True)
        )
        service = np.array(raw["done_ns"]) - np.array(raw["sent_ns"])
        for percentile in (50, 90, 95, 99):
            expected = np.percentile(service, percentile, method="inverted_cdf") // 1_000
            assert int(report[level][f"p{percentile} latency"]) == expected
        seconds = (edges[-1] - edges[0]) / 1e9
        assert float(report[level]["Inferences/Second"]) == pytest.approx(len(service) / seconds, rel=1e-5)


@pytest.mark.slow
def test_a_range_of_concurrency_is_written_as_its_runs_have_it(alone: Bench, triton: Endpoint) -> None:
    files = alone.folder / "a.csv", alone.folder / "a.json"
    saved = alone.folder / "saved.yaml"
    said, _ = perf(
        alone, "-u", f"127.0.0.1:{triton.port}", "--concurrency-range", "1:2", "-p", "400",
        "-f", str(files[0]), "--profile-export-file", str(files[1]), "--save-scenario", str(saved),
    )  # fmt: skip
    document = json.loads(files[1].read_text())
    hold_to_tables(alone, files[0], document, [1, 2])
    stores = runs_of(alone, document)
    assert files[0].read_text().splitlines()[0] == f"Concurrency,{HEADER}"
    assert [one for one in said if "Request concurrency" in one] == [
        f"Request concurrency: {n}" for n in (1, 2)
    ]
    assert said[-1].startswith("Concurrency: 2, throughput: ")
    assert [store.manifest.plan.n_users for store in stores] == [1, 2]
    assert load_scenario(saved).digest() == stores[0].manifest.scenario_digest


@pytest.mark.long
@pytest.mark.slow
def test_poisson_rates_over_grpc_are_written_as_their_runs_have_them(alone: Bench, triton: Endpoint) -> None:
    files = alone.folder / "a.csv", alone.folder / "a.json"
    said, warned = perf(
        alone, "-i", "grpc", "-u", f"127.0.0.1:{triton.grpc_port}", "--http-url", f"127.0.0.1:{triton.port}",
        "--request-rate-range", "60:90:30", "--request-distribution", "poisson", "-p", "1000", "--percentile", "95",
        "-b", "2", "-f", str(files[0]), "--profile-export-file", str(files[1]), "-v",
    )  # fmt: skip
    document = json.loads(files[1].read_text())
    stores = runs_of(alone, document)
    report = list(csv.DictReader(files[0].read_text().splitlines()))
    assert files[0].read_text().splitlines()[0] == f"Request Rate,{HEADER}"
    for store, experiment, row in zip(stores, document["experiments"], report, strict=True):
        n = len(rows_between(store, experiment["window_boundaries"])["outcome"])
        assert len(experiment["requests"]) == n
        assert float(row["Inferences/Second"]) == pytest.approx(2 * n / 3, rel=1e-5)
        assert store.manifest.plan.load == "open"
    assert any("squall: from the scheduled instant" in line for line in said)
    assert any("Avg gRPC time" in line for line in said)
    assert said[-3] == "Inferences/Second vs. Client p95 Batch Latency"
    assert not any("asked over HTTP" in line for line in warned)


@pytest.mark.slow
@pytest.mark.long
def test_gaps_of_a_file_come_again_and_again_as_they_stand_there(alone: Bench, triton: Endpoint) -> None:
    gaps = alone.folder / "gaps.txt"
    gaps.write_text("10000\n20000\n50000\n")
    perf(alone, "-u", f"127.0.0.1:{triton.port}", "--request-intervals", str(gaps), "-p", "1000")
    store, *_ = runs(alone)
    measured = store.read("requests", ["scheduled_ns"], pc.field("phase") == "measure")
    scheduled = np.sort(measured["scheduled_ns"].to_numpy())
    seen = np.diff(scheduled)[:36].tolist()
    assert seen == [20_000_000, 50_000_000, 10_000_000] * 12


@pytest.mark.slow
@pytest.mark.long
def test_a_number_of_requests_after_a_warm_up_in_shared_memory(alone: Bench, triton: Endpoint) -> None:
    export = alone.folder / "a.json"
    said, _ = perf(
        alone, "-u", f"127.0.0.1:{triton.port}", "--request-count", "100", "--warmup-request-count", "20",
        "--shared-memory", "system", "-z", "--profile-export-file", str(export),
    )  # fmt: skip
    assert "    Request count: 100" in said
    (experiment,) = json.loads(export.read_text())["experiments"]
    assert len(experiment["requests"]) == 100


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["-m", "seqlen_head", "--schedule", "1,2"], 2, "--schedule (use a trace in a scenario"),
        (["-m", "nope"], 1, "model 'nope' is not ready"),
        (["-m", "seqlen_head", "-b", "9"], 2, "9 rows, but model seqlen_head takes at most 8"),
        (["-m", "a", "-i", "grpc"], 1, "--http-url says where"),
    ],
)
def test_what_cannot_be_done_is_one_line_before_anything_is_sent(
    command: Command, triton: Endpoint, flags: list[str], code: int, said: str
) -> None:
    found, out, err = command("perf", *flags, "-u", f"127.0.0.1:{triton.port}")
    (line,) = (one for one in err.splitlines() if one.startswith("squall: "))
    assert (found, out) == (code, "")
    assert err.endswith(f"{line}\n")
    assert said in line


@pytest.mark.slow
@pytest.mark.long
def test_flags_of_tls_are_those_of_a_run_over_mutual_tls(alone: Bench, tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    folder.mkdir()
    authority = Authority(folder)
    server, client = authority.issue("server", "DNS:localhost"), authority.issue("client", "DNS:client")
    options = [f"--tls-certificate={server.certificate}", f"--tls-key={server.key}"]
    with NullProcess(*options, f"--tls-client-ca={authority.ca}") as null:
        said, _ = perf(
            alone, "-m", "linear_head", "-u", f"https://localhost:{null.ports['http']}", "--request-count", "50",
            "--ssl-https-ca-certificates-file", str(authority.ca),
            "--ssl-https-client-certificate-file", str(client.certificate),
            "--ssl-https-private-key-file", str(client.key),
        )  # fmt: skip
    assert "    Request count: 50" in said


@pytest.mark.slow
@pytest.mark.long
def test_requests_that_fail_are_counted_and_end_the_search(alone: Bench) -> None:
    report = alone.folder / "a.csv"
    with NullProcess("--service=constant:2ms", "--fault=503:0.05") as null:
        said, lines, code = ended(
            alone, "-m", "linear_head", "-u", f"127.0.0.1:{null.ports['http']}", "--concurrency-range", "2:4",
            "-p", "500", "-f", str(report),
        )  # fmt: skip
    assert code == 99, lines
    (row,) = csv.DictReader(report.read_text().splitlines())
    assert (row["Concurrency"], row["p99 latency"]) == ("2", "inf")
    assert any("of them failed" in line for line in said)
