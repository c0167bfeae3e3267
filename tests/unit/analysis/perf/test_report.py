"""CSV and JSON, held to the headers and keys of files that perf_analyzer 2.60 wrote."""

from __future__ import annotations

import csv
import io
import json

import pytest

from squall.analysis.perf.level import ServerFigures
from squall.analysis.perf.report import Experiment, ReportOptions, csv_text, export_json
from tests.unit.analysis.perf.figures import GPUS, figures
from tests.unit.analysis.perf.rows import ended

PLAIN = (
    "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,"
    "Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency"
)
RATE = PLAIN.replace("Concurrency", "Request Rate")
VERBOSE = f"{PLAIN},Avg latency,request/response,response wait"
METRICS = f"{VERBOSE},Avg GPU Utilization,Avg GPU Power Usage,Max GPU Memory Usage,Total GPU Memory"


@pytest.mark.parametrize(
    ("options", "header"),
    [
        (ReportOptions("concurrency", None, is_verbose=False, has_metrics=False), PLAIN),
        (ReportOptions("concurrency", None, is_verbose=False, has_metrics=True), PLAIN),
        (ReportOptions("concurrency", None, is_verbose=True, has_metrics=False), VERBOSE),
        (ReportOptions("concurrency", None, is_verbose=True, has_metrics=True), METRICS),
        (ReportOptions("request rate", None, is_verbose=False, has_metrics=False), RATE),
        (ReportOptions("concurrency", 95, is_verbose=True, has_metrics=False), VERBOSE.replace(",Avg latency", "")),
    ],
)  # fmt: skip
def test_the_header_is_that_of_perf_analyzer(options: ReportOptions, header: str) -> None:
    assert csv_text([figures()], options).splitlines()[0] == header


def test_a_decoupled_model_has_a_column_of_its_responses() -> None:
    options = ReportOptions("concurrency", None, is_verbose=True, has_metrics=False)
    header, row = csv_text([figures(response_hz=321.331)], options).splitlines()
    assert header == VERBOSE.replace("Second,", "Second,Response Throughput,")
    assert row.startswith("1,560.294,321.331,0,")


def test_a_percentile_that_was_asked_for_has_a_column_in_its_place() -> None:
    text = csv_text(
        [figures(percentile_ns={50: 1e6, 75: 2e6, 99: 3e6})],
        ReportOptions("concurrency", 75, is_verbose=False, has_metrics=False),
    )
    assert text.splitlines()[0].endswith("Client Recv,p50 latency,p75 latency,p99 latency")


def test_rows_stand_in_order_of_throughput_and_parts_add_up_to_the_latency() -> None:
    levels = [figures(level=float(n), throughput_hz=hz) for n, hz in ((1, 69.2), (2, 87.2), (3, 84.2))]
    text = csv_text(levels, ReportOptions("concurrency", None, is_verbose=True, has_metrics=True))
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["Concurrency"] for row in rows] == ["1", "3", "2"]
    parts = ("Client Send", "Network+Server Send/Recv", "Server Queue", "Server Compute Input", "Server Compute Infer",
             "Server Compute Output", "Client Recv")  # fmt: skip
    assert sum(int(rows[0][part]) for part in parts) == int(rows[0]["Avg latency"])
    assert int(rows[0]["request/response"]) + int(rows[0]["response wait"]) == int(rows[0]["Avg latency"])


def test_gpus_stand_in_a_field_by_uuid_with_a_semicolon_behind_each() -> None:
    text = csv_text(
        [figures(gpus=GPUS)], ReportOptions("concurrency", None, is_verbose=True, has_metrics=True)
    )
    (row,) = csv.DictReader(io.StringIO(text))
    assert row["Avg GPU Utilization"] == "GPU-a:0.33;GPU-b:0.5;"
    assert (row["Avg GPU Power Usage"], row["Max GPU Memory Usage"]) == (
        "GPU-a:55.25;",
        "GPU-a:10000;GPU-b:11000;",
    )
    assert row["Total GPU Memory"] == ""


def test_a_level_without_statistics_leaves_their_fields_empty_beside_one_that_has_them() -> None:
    options = ReportOptions("concurrency", None, is_verbose=False, has_metrics=False)
    text = csv_text([figures(server={}, throughput_hz=1.0), figures()], options)
    first, second = csv.DictReader(io.StringIO(text))
    assert (first["Server Queue"], second["Server Queue"]) == ("", "1107")
    assert "Server Queue" not in csv_text([figures(server={})], options)


def test_what_the_server_took_longer_than_the_client_saw_is_no_negative_network() -> None:
    slow = ServerFigures(request_count=1, queue_ns=10**9)
    text = csv_text(
        [figures(server={"m": slow})], ReportOptions("concurrency", None, is_verbose=False, has_metrics=False)
    )
    (row,) = csv.DictReader(io.StringIO(text))
    assert row["Network+Server Send/Recv"] == "0"


def test_the_export_has_the_keys_of_perf_analyzer_and_every_request_that_succeeded() -> None:
    requests = ended([100, 200, 300], [7, 9, 5], failed=(1,))
    document = export_json(
        [
            Experiment("concurrency", 2.0, [0, 400], requests),
            Experiment("request rate", 1.5, [0, 400], requests),
        ],
        "squall 1",
    )
    assert json.loads(json.dumps(document)) == document
    assert list(document) == ["experiments", "version", "service_kind", "endpoint"]
    assert (document["service_kind"], document["endpoint"], document["version"]) == ("triton", "", "squall 1")
    first, second = document["experiments"]
    assert list(first) == ["experiment", "requests", "window_boundaries"]
    assert (first["experiment"], second["experiment"]) == (
        {"mode": "concurrency", "value": 2}, {"mode": "request_rate", "value": 1.5},
    )  # fmt: skip
    assert first["requests"] == [
        {"timestamp": 100, "request_inputs": {}, "response_timestamps": [107], "response_outputs": [{}]},
        {"timestamp": 300, "request_inputs": {}, "response_timestamps": [305], "response_outputs": [{}]},
    ]
    assert first["window_boundaries"] == [0, 400]
