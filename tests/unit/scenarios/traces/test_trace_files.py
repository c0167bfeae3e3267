"""The public traces, where they are at hand: each row as an independent, slow parse of the same file has it."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from squall.scenarios.traces.parts.part import session_number
from squall.scenarios.traces.reading import TraceOptions, open_trace, read_trace

TRACES = Path(__file__).resolve().parents[4].parent / "shared" / "traces"
S = 1_000_000_000


def trace_file(name: str) -> Path:
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"needs the public trace {name} in ../shared/traces")
    return path


def table_rows(path: Path) -> Iterator[dict[str, str]]:
    with gzip.open(path, "rt") as file:
        yield from csv.DictReader(file)


def test_azure_llm_is_read_to_its_100_ns() -> None:
    path = trace_file("azure_llm_conv_2023.csv.gz")
    part = read_trace(path)
    stamps = []
    rows = list(table_rows(path))
    for row in rows:
        whole, _, ticks = row["TIMESTAMP"].partition(".")
        seconds = datetime.strptime(whole, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
        stamps.append(int(seconds) * S + int(ticks) * 100)
    assert open_trace(path).format == "azure-llm"
    assert len(part) == 19_366
    assert part.stamp_ns.tolist() == stamps
    for name in ("ContextTokens", "GeneratedTokens"):
        assert part.sizes[name].tolist() == [int(row[name]) for row in rows]


def test_mooncake_is_read_to_its_ms() -> None:
    path = trace_file("mooncake_conversation_fast25.jsonl.gz")
    part = read_trace(path)
    with gzip.open(path, "rt") as file:
        rows = [json.loads(line, parse_int=Decimal) for line in file]
    assert open_trace(path).format == "mooncake"
    assert len(part) == 12_031
    assert part.stamp_ns.tolist() == [int(row["timestamp"] * 1_000_000) for row in rows]
    for name in ("input_length", "output_length"):
        assert part.sizes[name].tolist() == [int(row[name]) for row in rows]


def test_nasa_requests_are_read_with_clients_and_bytes() -> None:
    path = trace_file("nasa_http_1995-08-01.csv.gz")
    part = read_trace(path)
    rows = list(table_rows(path))
    assert len(part) == 30_969
    assert part.stamp_ns.tolist() == [int(row["unix_time"]) * S for row in rows]
    assert part.sizes["bytes"].tolist() == [int(row["bytes"]) for row in rows]
    assert part.session is not None
    assert part.session.tolist() == [session_number(row["client_id"]) for row in rows]
    assert np.unique(part.session).size == 2_365


def test_nasa_counts_are_expanded_at_the_start_of_their_second() -> None:
    path = trace_file("nasa_http_1995-07-13_counts.csv.gz")
    part = read_trace(path)
    expected = [int(row["second"]) * S for row in table_rows(path) for _ in range(int(row["count"]))]
    assert open_trace(path).tick_ns == S
    assert len(part) == 134_203
    assert part.stamp_ns.tolist() == expected


@pytest.mark.slow
def test_servegen_draws_what_its_rates_promise() -> None:
    path = trace_file("servegen_client_windows_day1.csv.gz")
    part = read_trace(path, TraceOptions(model="mm-image"))
    rows = [row for row in table_rows(path) if row["model"] == "mm-image"]
    rates = np.array([float(row["rate"]) for row in rows])
    c2 = np.array([float(row["cv"]) for row in rows]) ** 2
    # A renewal count over T has mean rate·T in equilibrium and variance of about c2·rate·T: windows are independent.
    expected, error = 600 * rates.sum(), np.sqrt((600 * rates * c2).sum())
    assert abs(len(part) - expected) < 4 * error
    assert error < 0.02 * expected  # or the bound above would hold for anything
    assert part.session is not None
    assert np.unique(part.session).size == len({row["client"] for row in rows})
