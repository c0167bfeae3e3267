"""The public traces, where they are at hand: each row as an independent, slow parse of the same file has it."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from squall.scenarios.traces.part import session_number
from squall.scenarios.traces.reading import open_trace, read_trace

TRACES = Path(__file__).resolve().parents[4].parent / "shared" / "traces"
S = 1_000_000_000


def trace_file(name: str) -> Path:
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"needs the public trace {name} in ../shared/traces")
    return path


def table_rows(path: Path) -> Iterator[dict[str, str]]:
    """Each row with the texts of its cells, numbers of JSON as they are written."""
    with gzip.open(path, "rt") as file:
        if ".jsonl" in path.name:
            yield from (json.loads(line, parse_int=str, parse_float=str) for line in file)
        else:
            yield from csv.DictReader(file)


def azure_ns(row: dict[str, str]) -> int:
    whole, _, ticks = row["TIMESTAMP"].partition(".")
    at = datetime.strptime(whole, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    return int(at.timestamp()) * S + int(ticks) * 100


@pytest.mark.parametrize(("name", "format", "n_rows", "stamp_ns", "sizes"), [
    ("azure_llm_conv_2023.csv.gz", "azure-llm", 19_366, azure_ns, ("ContextTokens", "GeneratedTokens")),
    ("mooncake_conversation_fast25.jsonl.gz", "mooncake", 12_031, lambda row: int(Decimal(row["timestamp"]) * 10**6),
     ("input_length", "output_length")),
    ("nasa_http_1995-08-01.csv.gz", "csv", 30_969, lambda row: int(row["unix_time"]) * S, ("bytes",)),
    ("nasa_http_1995-07-13_counts.csv.gz", "counts", 134_203, lambda row: int(row["second"]) * S, ()),
])  # fmt: skip
def test_every_row_is_as_the_file_has_it(
    name: str, format: str, n_rows: int, stamp_ns: Callable[[dict[str, str]], int], sizes: tuple[str, ...]
) -> None:
    path = trace_file(name)
    part = read_trace(path)
    rows = list(table_rows(path))
    assert open_trace(path).format == format
    assert len(part) == n_rows
    assert part.stamp_ns.tolist() == [stamp_ns(row) for row in rows for _ in range(int(row.get("count", 1)))]
    assert {size: part.sizes[size].tolist() for size in sizes} == {
        size: [int(row[size]) for row in rows] for size in sizes
    }
    if "client_id" in rows[0]:
        assert part.session is not None
        assert part.session.tolist() == [session_number(row["client_id"]) for row in rows]


@pytest.mark.slow
def test_servegen_draws_what_its_rates_promise(tmp_path: Path) -> None:
    every = table_rows(trace_file("servegen_client_windows_day1.csv.gz"))
    rows = [row for row in every if row["model"] == "mm-image"]
    path = tmp_path / "mm-image.csv"
    path.write_text("\n".join([",".join(rows[0]), *(",".join(row.values()) for row in rows)]))
    part = read_trace(path)
    rates = np.array([float(row["rate"]) for row in rows])
    c2 = np.array([float(row["cv"]) for row in rows]) ** 2
    # A renewal count over T has mean rate·T in equilibrium and variance of about c2·rate·T: windows are independent.
    expected, error = 600 * rates.sum(), np.sqrt((600 * rates * c2).sum())
    assert abs(len(part) - expected) < 4 * error
    assert error < 0.02 * expected  # or the bound above would hold for anything
    assert part.session is not None
    assert np.unique(part.session).size == len({row["client"] for row in rows})
