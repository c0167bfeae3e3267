"""Logs whose true begins are known, in every format that people have: what `squall trace` reads from them.

A minute at 5/s with 56 more requests within one second, durations up to 12 s: 61 in the busiest second by their begins,
a few by their ends.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from squall.cluster.cli import app
from squall.scenarios.traces.reading import open_trace, read_trace

MS = 1_000_000
S = 1_000_000_000
ZERO_S = 1_795_845_042
Request = tuple[int, int]
"""Begin, ms since 1970, and duration in ms."""


def requests() -> list[Request]:
    """In the order of their ends, as a log is written."""
    begins = [place * 200 for place in range(300)] + [30_010 + place * 17 for place in range(56)]
    durations = np.random.default_rng(1).integers(1, 12_000, len(begins)).tolist()
    rows = [(ZERO_S * 1000 + begin, int(took)) for begin, took in zip(begins, durations, strict=True)]
    return sorted(rows, key=lambda row: (sum(row), row))


BEGINS = sorted(begin * MS for begin, _ in requests())


def squall(*words: object) -> Result:
    return CliRunner().invoke(app, ["trace", *map(str, words)], env={"COLUMNS": "80"}, catch_exceptions=True)


def iso(ms: int, zone: str = "Z", digits: int = 3) -> str:
    hours = 0 if zone == "Z" else int(zone[:3])
    at = datetime.fromtimestamp(ms / 1000, timezone(timedelta(hours=hours)))
    text = at.strftime("%Y-%m-%dT%H:%M:%S")
    return (text + (f".{ms % 1000:03d}" if digits else "")) + zone


def clf(ms: int, zone: str = "+0000", fraction: bool = False) -> str:
    at = datetime.fromtimestamp(ms // 1000, UTC) + timedelta(hours=int(zone[:3] or 0))
    return (
        at.strftime("%d/%b/%Y:%H:%M:%S")
        + (f".{ms % 1000:03d}" if fraction else "")
        + (f" {zone}" if zone else "")
    )


def seconds(ms: int) -> str:
    return f"{ms / 1000:.3f}"


def of_json(make: Callable[[int, int], dict[str, object]]) -> Callable[[int, int], str]:
    return lambda begin, took: json.dumps(make(begin, took))


def alb(begin: int, took: int, rest: str = "") -> str:
    parts = f"0.001 {seconds(took - 1)} 0.000" if took > 1 else f"0.000 {seconds(took)} 0.000"
    return (
        f"https {iso(begin + took)} app/lb/50dc6c 192.0.2.1:2817 10.0.0.1:80 {parts} 200 200 34 366"
        f' "GET https://x:443/ HTTP/1.1" "curl/7.46.0" - -{rest}'
    )


MS_LOGS: dict[str, Callable[[int, int], str]] = {
    "nginx-json": of_json(lambda b, d: {
        "time_local": clf(b + d, "+0200"), "time_iso8601": iso(b + d, "+02:00", 0), "msec": f"{(b + d) / 1000:.3f}",
        "remote_addr": "192.0.2.1", "request_time": seconds(d), "status": "200",
        "upstream_response_time": seconds(max(d - 1, 0)),
    }),
    "nginx-json-numbers": of_json(lambda b, d: {
        "@timestamp": iso(b + d, "+02:00"), "request_time": d / 1000, "upstream_response_time": "-", "status": 200,
    }),
    "nginx-json-own-keys": of_json(lambda b, d: {"status": 200, "request_time": d / 1000, "time": iso(b + d)}),
    "caddy": of_json(lambda b, d: {
        "level": "info", "ts": (b + d) / 1000, "logger": "http.log.access", "msg": "handled request",
        "request": {"remote_ip": "192.0.2.1", "method": "GET"}, "duration": d / 1000, "size": 12, "status": 200,
    }),
    "caddy-text-durations": of_json(lambda b, d: {
        "ts": iso(b + d), "logger": "http.log.access", "request": {"method": "GET"}, "duration": f"{d}ms",
    }),
    "traefik": of_json(lambda b, d: {
        "ClientHost": "192.0.2.1", "Duration": d * MS, "OriginDuration": d * MS // 2, "RouterName": "r", "StartLocal":
        iso(b, "+02:00"), "StartUTC": iso(b), "level": "info", "msg": "", "time": iso(b + d, "+02:00", 0),
    }),
    "traefik-without-start": of_json(lambda b, d: {
        "Duration": d * MS, "OriginDuration": d * MS // 2, "RouterName": "r", "time": iso(b + d),
    }),
    "envoy-json": of_json(lambda b, d: {
        "start_time": iso(b), "duration": d, "response_code": 200, "upstream_service_time": str(d), "bytes_sent": 9,
    }),
    "pino": of_json(lambda b, d: {"level": 30, "time": b + d, "pid": 1, "responseTime": d, "msg": "request completed"}),
    "elastic": of_json(lambda b, d: {
        "@timestamp": iso(b + d), "event": {"start": iso(b), "end": iso(b + d), "duration": d * MS},
    }),
    "begin-and-end": of_json(lambda b, d: {"start_time": iso(b), "end_time": iso(b + d)}),
    "api-gateway": of_json(
        lambda b, d: {"requestTime": clf(b), "requestTimeEpoch": b, "responseLatency": d}
    ),
    "end-and-ms": of_json(lambda b, d: {"finished_at": iso(b + d), "duration_ms": d}),
    "google-stated": of_json(lambda b, d: {
        "timestamp": iso(b + d), "receiveTimestamp": iso(b + d + 777), "httpRequest": {"latency": f"{d / 1000:.6f}s"},
    }),
    "alb": alb,
    "alb-created": lambda b, d: alb(b, d, f' arn:aws:x "Root=1" "-" "-" 0 {iso(b)} "forward" "-" "-"'),
    "alb-created-elsewhere": lambda b, d: alb(b, d, ' arn:x "Root=1" "-" "-" 0 2018-07-02T22:22:48.364000Z "forward"'),
    "elb-classic": lambda b, d: (
        f"{iso(b)} lb 192.0.2.1:2817 10.0.0.1:80 0.000 {seconds(d)} 0.000 200 200 0 29"
        ' "GET http://x:80/ HTTP/1.1" "curl/7.38.0" - -'
    ),
    "envoy-text": lambda b, d: (
        f'[{iso(b)}] "GET /v1 HTTP/2" 204 - 154 0 {d} 100 "192.0.2.1" "agent" "cc21d9b0" "locations" "10.0.2.1:80"'
    ),
    "istio-text": lambda b, d: (
        f'[{iso(b)}] "GET /v1 HTTP/2" 204 - via_upstream - "-" 154 0 {d} 100 "192.0.2.1" "agent" "cc21d9b0" "l" "a:80"'
    ),
    "haproxy": lambda b, d: (
        f"Feb  6 12:14:14 localhost haproxy[14389]: 192.0.2.1:33317 [{clf(b, '', True)}] http-in static/srv1"
        f' 10/0/30/69/{d} 200 2750 - - ---- 1/1/1/1/0 0/0 {{1wt.eu}} {{}} "GET /index.html HTTP/1.1"'
    ),
    "nginx-msec": lambda b, d: (
        f'192.0.2.1 - - [{clf(b + d)}] "GET / HTTP/1.1" 200 5 "-" "curl" {seconds(d)} {(b + d) / 1000:.3f}'
    ),
}  # fmt: skip
S_LOGS: dict[str, Callable[[int, int], str]] = {
    "nginx-time": lambda b, d: f'192.0.2.1 - - [{clf(b + d, "+0200")}] "GET / HTTP/1.1" 200 5 "-" "curl" {seconds(d)}',
    "nginx-named": lambda b, d: (
        f'192.0.2.1 - - [{clf(b + d)}] "GET / HTTP/1.1" 200 5 "-" "curl" "-" rt={seconds(d)} uct="0.000" urt="{seconds(d)}"'  # noqa: E501
    ),
    "ingress-nginx": lambda b, d: (
        f'192.0.2.1 - - [{clf(b + d)}] "GET / HTTP/1.1" 200 5 "-" "curl" 450 {seconds(d)} [default-x-80] []'
        f" 10.0.0.1:80 5 {seconds(max(d - 1, 0))} 200 0a1b2c"
    ),
    "apache-microseconds": lambda b, d: f'192.0.2.1 - - [{clf(b)}] "GET / HTTP/1.1" 200 5 "-" "curl" {d * 1000}',
    "traefik-common": lambda b, d: f'192.0.2.1 - - [{clf(b)}] "GET / HTTP/1.1" 200 5 "-" "-" 7 "r@docker" "http://x" {d}ms',  # noqa: E501
    "iis": lambda b, d: (
        f"{datetime.fromtimestamp((b + d) // 1000, UTC):%Y-%m-%d %H:%M:%S} 10.0.0.1 GET / - 80 - 192.0.2.1 curl - 200 0 0 {d}"  # noqa: E501
    ),
    "cloudfront": lambda b, d: "\t".join(
        (f"{datetime.fromtimestamp((b + d) // 1000, UTC):%Y-%m-%d\t%H:%M:%S}", "DFW3", "2390", "192.0.2.1", "GET", seconds(d))  # noqa: E501
    ),
}  # fmt: skip
HEADS = {
    "iis": "#Software: IIS\n#Version: 1.0\n#Date: 2026-11-28 00:00:00\n#Fields: date time s-ip cs-method cs-uri-stem"
    " cs-uri-query s-port cs-username c-ip cs(User-Agent) cs(Referer) sc-status sc-substatus sc-win32-status time-taken\n",  # noqa: E501
    "cloudfront": "#Version: 1.0\n#Fields: date time x-edge-location sc-bytes c-ip cs-method time-taken\n",
}


def written(folder: Path, name: str, line: Callable[[int, int], str], rows: Sequence[Request]) -> Path:
    path = folder / f"{name}.log"
    path.write_text(HEADS.get(name, "") + "".join(f"{line(*row)}\n" for row in rows))
    return path


def begins_of(log: Path, *words: str) -> list[int]:
    out = log.with_suffix(".parquet")
    result = squall("from-log", log, out, *words)
    assert result.exit_code == 0, (result.output, result.exception)
    return read_trace(out).stamp_ns.tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", MS_LOGS)
def test_the_begins_of_requests_come_out_to_the_ms(name: str, tmp_path: Path) -> None:
    words = ("--stamp-at", "end") if name == "google-stated" else ()
    log = written(tmp_path, name, MS_LOGS[name], requests())
    assert [(ns + MS // 2) // MS for ns in begins_of(log, *words)] == [ns // MS for ns in BEGINS]
    info = json.loads(squall("info", log, *words, "--repair", "sort", "--json").stdout)
    assert info["as_is"]["peaks"][0]["count"] == 61


@pytest.mark.parametrize("name", S_LOGS)
def test_logs_of_whole_seconds_are_within_one(name: str, tmp_path: Path) -> None:
    log = written(tmp_path, name, S_LOGS[name], requests())
    found = begins_of(log)
    assert len(found) == len(BEGINS)
    assert max(abs(a - b) for a, b in zip(found, BEGINS, strict=True)) <= S
    assert min(b - a for a, b in zip(found, BEGINS, strict=True)) >= 0
    result = squall("from-log", log, tmp_path / "o.csv")
    assert "the log has whole seconds: add --spread 1s" in told(result)
    is_of_ends = name not in ("apache-microseconds", "traefik-common")
    assert ("arrivals are up to 1 s early" in told(result)) == is_of_ends
    assert (
        "arrivals are up to 1 s early" in squall("info", log, "--repair", "sort", "--json").stdout
    ) == is_of_ends
    assert "1 s" not in told(squall("from-log", log, tmp_path / "o.csv", "--spread", "1s"))


@pytest.mark.parametrize("name", MS_LOGS)
def test_logs_of_finer_stamps_are_not_called_whole_seconds(name: str, tmp_path: Path) -> None:
    log = written(tmp_path, name, MS_LOGS[name], requests())
    assert "whole seconds" not in told(squall("from-log", log, tmp_path / "o.csv"))


def test_whole_numbers_in_ms_are_no_whole_seconds(tmp_path: Path) -> None:
    rows = [sum(row) - ZERO_S * 1000 for row in requests()]
    log = table(tmp_path, "t.csv", {"end_ms": list(rows), "duration_ms": [row[1] for row in requests()]})
    assert "whole seconds" not in told(squall("from-log", log, tmp_path / "o.csv"))
    seconds = table(
        tmp_path, "s.csv", {"end_s": [row // 1000 for row in rows], "duration_s": [0.5] * len(rows)}
    )
    assert "arrivals are up to 1 s early" in told(squall("from-log", seconds, tmp_path / "o.csv"))


@pytest.mark.parametrize("name", ["alb", "alb-created", "nginx-msec", "nginx-json"])
def test_an_end_that_is_stated_has_the_same_durations_taken_off(name: str, tmp_path: Path) -> None:
    log = written(tmp_path, name, MS_LOGS[name], requests())
    assert begins_of(log, "--stamp-at", "end") == begins_of(log)


@pytest.mark.parametrize("name", ["iis", "cloudfront"])
def test_what_is_stated_of_a_log_with_fields_is_heeded(name: str, tmp_path: Path) -> None:
    log = written(tmp_path, name, S_LOGS[name], requests())
    for words, said in {
        ("--column", "nonsense"): "leave out --column nonsense",
        ("--column", "time-taken"): "leave out --column time-taken",
        ("--stamp-at", "begin", "--duration-column", "time-taken"): "leave out 'time_taken'",
    }.items():
        refused = squall("from-log", log, tmp_path / "o.csv", *words)
        assert (refused.exit_code != 0, said in str(refused.exception)) == (True, True), refused.exception
    assert begins_of(log, "--column", "time") == begins_of(log)


def table(folder: Path, name: str, columns: dict[str, list[object]]) -> Path:
    path = folder / name
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
        return path
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(columns)
        rows.writerows(zip(*columns.values(), strict=True))
    return path


def told(result: Result) -> str:
    return " ".join(result.stderr.split())


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_functions_trace_in_seconds_of_its_own_begins_where_its_durations_say(
    ending: str, tmp_path: Path
) -> None:
    ends = [(sum(row) - ZERO_S * 1000) / 1000 for row in requests()]
    took = [row[1] / 1000 for row in requests()]
    apps = [f"app{place % 3}" for place in range(len(ends))]
    log = table(
        tmp_path,
        f"t.{ending}",
        {"app": list(apps), "func": list(apps), "end_timestamp": list(ends), "duration": list(took)},
    )
    words = ("--unit", "s") if ending == "parquet" else ()
    found = begins_of(log, *words) if ending == "csv" else None
    if found is not None:
        assert [(ns + MS // 2) // MS for ns in found] == [ns // MS - ZERO_S * 1000 for ns in BEGINS]
    info = squall("info", log, *words, "--json")
    summary = json.loads(info.stdout)
    assert summary["as_is"]["peaks"][0]["count"] == 61
    assert summary["stamps_from"]["less"] == ["duration"]
    assert any("end_timestamp" in note and "duration" in note for note in summary["notes"])


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_dated_ends_in_a_table_need_the_unit_of_their_durations(ending: str, tmp_path: Path) -> None:
    columns: dict[str, list[object]] = {
        "end_time": [iso(sum(row)) for row in requests()],
        "took": [row[1] for row in requests()],
    }
    log = table(tmp_path, f"t.{ending}", columns)
    refused = squall("from-log", log, tmp_path / "o.csv")
    assert refused.exit_code != 0
    assert "--duration-unit" in str(refused.exception)
    begins_of(log, "--duration-unit", "ms")
    assert (
        json.loads(squall("info", log, "--duration-unit", "ms", "--json").stdout)["as_is"]["peaks"][0][
            "count"
        ]
        == 61
    )
    named = table(tmp_path, f"n.{ending}", {"end_time": columns["end_time"], "took (ms)": columns["took"]})
    assert json.loads(squall("info", named, "--json").stdout)["as_is"]["peaks"][0]["count"] == 61


def test_a_parquet_of_types_says_units_itself(tmp_path: Path) -> None:
    ends = pa.array([sum(row) for row in requests()], pa.timestamp("ms", "UTC"))
    took = pa.array([row[1] for row in requests()], pa.duration("ms"))
    pq.write_table(
        pa.table({"completed_at": ends, "duration": took, "status": pa.array([200] * len(took))}),
        tmp_path / "t.parquet",
    )
    summary = json.loads(squall("info", tmp_path / "t.parquet", "--json").stdout)
    assert summary["as_is"]["peaks"][0]["count"] == 61


def test_a_duration_is_never_the_stamp(tmp_path: Path) -> None:
    cases: tuple[dict[str, list[object]], ...] = (
        {"request_time": [row[1] / 1000 for row in requests()], "status": [200] * 356},
        {"duration": [row[1] for row in requests()], "latency": [1] * 356},
        {"time": [row[1] / 1000 for row in requests()], "status": [200] * 356},
    )
    for columns in cases:
        log = table(tmp_path, "t.csv", columns)
        for words in (
            ("info", log),
            ("from-log", log, tmp_path / "o.csv"),
            ("convert", log, tmp_path / "o.csv", "--repair", "sort"),
        ):
            refused = squall(*words)
            assert refused.exit_code != 0, words
            assert "duration" in str(refused.exception) or "column" in str(refused.exception)
            assert "sort" not in str(refused.exception)


def test_two_instants_that_differ_are_refused_with_both(tmp_path: Path) -> None:
    rows = requests()
    log = tmp_path / "t.jsonl"
    log.write_text("".join(
        json.dumps({"timestamp": iso(begin), "logged_time": iso(begin + took + place % 7 * 900)}) + "\n"
        for place, (begin, took) in enumerate(rows)
    ))  # fmt: skip
    refused = squall("info", log)
    assert "--column timestamp" in str(refused.exception)
    assert "--column logged_time" in str(refused.exception)
    assert squall("info", log, "--column", "timestamp", "--repair", "sort").exit_code == 0


def test_a_stamp_of_which_nothing_says_the_side_is_told_with_what_it_would_be(tmp_path: Path) -> None:
    log = tmp_path / "t.jsonl"
    log.write_text(
        "".join(json.dumps({"timestamp": iso(sum(row)), "latency_ms": row[1]}) + "\n" for row in requests())
    )
    notes = " ".join(json.loads(squall("info", log, "--json").stdout)["notes"])
    assert "--stamp-at end" in notes
    assert "61 arrivals in the busiest second instead of" in notes
    assert "--stamp-at end" in told(squall("from-log", log, tmp_path / "o.csv"))
    assert "--stamp-at" not in told(squall("from-log", log, tmp_path / "o.csv", "--stamp-at", "begin"))
    stated = squall("info", log, "--stamp-at", "end", "--json")
    assert json.loads(stated.stdout)["as_is"]["peaks"][0]["count"] == 61


def test_ends_without_a_duration_are_told_for_what_they_are(tmp_path: Path) -> None:
    log = tmp_path / "t.jsonl"
    log.write_text(
        "".join(json.dumps({"end_time": iso(sum(row)), "status": 200}) + "\n" for row in requests())
    )
    assert "bursts shorter than the durations are smoothed" in told(
        squall("from-log", log, tmp_path / "o.csv")
    )
    common = written(
        tmp_path, "c", lambda b, d: f'192.0.2.1 - - [{clf(b + d)}] "GET / HTTP/1.1" 200 5', requests()
    )
    assert "Apache's are the begin, nginx's the end" in told(squall("from-log", common, tmp_path / "o.csv"))


def test_rows_without_a_duration_are_counted(tmp_path: Path) -> None:
    absent = "10.0.0.1:80 -1 -1 -1 460"
    lines = [
        re.sub(r"10.0.0.1:80 \S+ \S+ \S+ 200", absent, alb(*row)) if place % 10 == 0 else alb(*row)
        for place, row in enumerate(requests())
    ]
    log = tmp_path / "alb.log"
    log.write_text("\n".join(lines) + "\n")
    result = squall("from-log", log, tmp_path / "o.csv")
    assert result.exit_code == 0, result.exception
    assert "36 rows have no request_processing_time" in told(result)
    reader = open_trace(log)
    assert [sum(map(len, reader)) for _ in range(2)] == [len(lines)] * 2
    assert reader.reading is not None
    assert "36 rows have no" in reader.reading.told()[-1]  # of the last reading, not of both


def test_malformed_lines_are_named_and_left_out_where_that_is_asked_for(tmp_path: Path) -> None:
    for name in ("nginx-json", "alb", "envoy-text", "nginx-msec", "haproxy"):
        lines = [MS_LOGS[name](*row) for row in requests()]
        lines[5] = lines[5][: len(lines[5]) // 3]
        log = tmp_path / f"{name}.log"
        log.write_text("\n".join(lines) + "\n")
        refused = squall("from-log", log, tmp_path / "o.csv")
        assert "row 6" in str(refused.exception), name
        assert len(begins_of(log, "--repair", "skip-bad")) == len(BEGINS) - 1
