"""Traces that are made to take a reader's time, memory or file: each is read in linear time, or refused in one line."""

from __future__ import annotations

import gzip
import os
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from squall.scenarios.errors import ScenarioError
from squall.scenarios.traces.readers import blocks, columnar, logs
from squall.scenarios.traces.readers.delimited import duplicate_names
from squall.scenarios.traces.readers.stamps import duration_ns
from squall.scenarios.traces.reading import TraceOptions, open_trace, read_trace
from squall.scenarios.traces.writing import whole_or_not

TIME = "[01/Jan/2020:00:00:00 +0000] "
IS_LOG = {
    "combined": logs.is_combined, "common": logs.is_common, "alb": logs.is_alb, "elb": logs.is_elb,
    "envoy": logs.is_envoy, "haproxy": logs.is_haproxy,
}  # fmt: skip
LONG = {
    "letters": "a",
    "digits": "1",
    "a request begins": f'{TIME}"',
    "a reply begins": '" 200 5 "',
    "brackets": "[ ",
    "hosts": "a:1 [",
    "blanks": " ",
    "an Envoy line begins": '[2020-01-01T00:00:00Z] "',
}


def cost_s(work: Callable[[], object]) -> float:
    """The best of five."""
    found = []
    for _ in range(5):
        begun = time.perf_counter()
        work()
        found.append(time.perf_counter() - begun)
    return min(found)


@pytest.mark.parametrize("piece", LONG)
@pytest.mark.parametrize("log", IS_LOG)
def test_a_long_line_takes_linear_time_to_recognise(log: str, piece: str) -> None:
    long_line = f"host - - {LONG[piece] * 2**18}".encode()[: 2**18]
    short_line = long_line[: 2**17]
    short, long = cost_s(lambda: IS_LOG[log](short_line)), cost_s(lambda: IS_LOG[log](long_line))
    assert long < 3 * short + 0.002  # a clock's own steps


@pytest.mark.parametrize("piece", LONG)
def test_the_head_of_a_long_log_is_read(tmp_path: Path, piece: str) -> None:
    whole = f'h - - {TIME}"GET / HTTP/1.1" 200 5'
    path = tmp_path / "access.log"
    path.write_text(f"{whole}\nhost - - {LONG[piece] * (65_000 // len(LONG[piece]))}\n{whole}\n")
    assert len(read_trace(path, TraceOptions(repairs=("skip-bad",)))) == 2


def test_fields_of_both_logs_are_found_by_arrow_as_they_were() -> None:
    line = '1.2.3.4 - a b [01/Jan/2020:00:00:00 +0000] "GET /\\"x HTTP/1.1" 200 512 "-" "agent" 0.123 rt=0.5'
    (found,) = logs._matched(rf"{logs._COMBINED}(?P<rest>.*)", [line])
    assert found == {
        "host": "1.2.3.4", "time": "01/Jan/2020:00:00:00 +0000", "bytes": "512", "rest": " 0.123 rt=0.5",
    }  # fmt: skip
    assert logs._matched(logs._COMMON, ["no log"]) == []


@pytest.mark.parametrize("text", ["1" * 10_000, "1" * 100_000 + "x", "0.1, " * 10_000, "1:" * 10_000])
def test_a_duration_of_thousands_of_characters_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration"):
        duration_ns(text, "s")


@pytest.mark.parametrize("text", ["1e999999999", "9e999999", "1" * 900])
def test_a_duration_beyond_any_number_is_too_long(text: str) -> None:
    with pytest.raises(ValueError, match="is too long for a duration"):
        duration_ns(text, "s")


def test_a_duration_of_several_upstreams_is_their_sum() -> None:
    assert duration_ns("0.1, 0.2 : 0.3", "s") == 600_000_000
    assert duration_ns("0e999999999", "s") == 0
    assert duration_ns("1e-999999999", "s") == 0


def test_columns_that_stand_twice_are_counted_once() -> None:
    class Header(tuple[str, ...]):
        n_counted = 0

        def count(self, name: object) -> int:
            type(self).n_counted += 1
            return super().count(name)

    assert duplicate_names(Header(("b", "a", "b", "a", "c"))) == ["a", "b"]
    assert Header.n_counted == 0


def test_a_table_of_thousands_of_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    path.write_text("timestamp" + ",x" * 2_000 + "\n1" + ",2" * 2_000 + "\n")
    with pytest.raises(
        ScenarioError, match="row 1: has 2001 columns; cut it to those of a trace, 2000 at most"
    ):
        open_trace(path)
    wide = tmp_path / "wide.parquet"
    pq.write_table(pa.table({f"x{n}": pa.array([1]) for n in range(2_001)}), wide)
    with pytest.raises(ScenarioError, match="has 2001 columns"):
        open_trace(wide)


def test_a_parquet_file_of_more_rows_than_any_trace_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "many.parquet"
    pq.write_table(pa.table({"timestamp_ns": pa.array([1, 2, 3])}), path)
    assert len(read_trace(path)) == 3
    monkeypatch.setattr(columnar, "MOST_ROWS", 2)
    with pytest.raises(ScenarioError, match="states 3 rows, a trace has 2 at most; cut it"):
        read_trace(path)


def test_a_text_of_more_rows_than_a_trace_has_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "MOST_ROWS", 3)
    path = tmp_path / "many.txt.gz"
    path.write_bytes(gzip.compress(b"1\n2\n3\n"))
    assert len(read_trace(path)) == 3
    path.write_bytes(gzip.compress(b"1\n2\n3\n4\n"))
    with pytest.raises(
        ScenarioError, match=r"many\.txt\.gz: has more than 3 rows, which a trace has at most; cut it"
    ):
        read_trace(path)


def test_an_arrow_file_whose_indices_lead_out_of_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "evil.arrow"
    words = pa.DictionaryArray.from_arrays(pa.array([0, 77_777_777], pa.int32()), pa.array(["a"]), safe=False)
    batch = pa.record_batch({"timestamp_ns": pa.array([1, 2]), "session": words})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pytest.raises(ScenarioError, match="cannot be read as a trace: "):
        read_trace(path)


@pytest.mark.parametrize(
    "format", [None, "csv", "lines", "parquet", "servegen", "common-log", "fixed-schedule"]
)
def test_a_pipe_is_not_waited_for(tmp_path: Path, format: str | None) -> None:
    path = tmp_path / "pipe.csv"
    os.mkfifo(path)
    with pytest.raises(ScenarioError, match="is a pipe or a device; write it to a file first"):
        open_trace(path, TraceOptions(format=format))  # type: ignore[arg-type]


def test_a_pipe_in_a_folder_of_client_windows_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "chunk-1-trace.csv")
    with pytest.raises(ScenarioError, match="is a pipe or a device"):
        read_trace(tmp_path, TraceOptions(format="servegen"))


def test_a_name_that_passes_cannot_be_foreseen(tmp_path: Path) -> None:
    names = set()
    for _ in range(2):
        with whole_or_not(tmp_path / "trace.csv") as passing:
            names.add(passing.name)
            passing.write_text("1\n")
    assert len(names) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["trace.csv"]
