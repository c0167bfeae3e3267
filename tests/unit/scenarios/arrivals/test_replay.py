"""Replay: every public trace to its own resolution, and sizes and sessions that stay with their arrivals."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from squall.scenarios.arrivals import replay as replay_module
from squall.scenarios.arrivals.replay import Replay, TraceArrivals
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.errors import ScenarioError
from squall.scenarios.plan.drafting import plan_scenario
from squall.scenarios.traces.part import TracePart
from squall.scenarios.traces.reading import open_trace, read_trace
from squall.scenarios.units import parse_duration

S, MS = 1_000_000_000, 1_000_000
HOUR = 3_600 * S
TRACES = Path(__file__).resolve().parents[4].parent / "shared" / "traces"


def parsed(path: Path, stamp: str, size: str) -> tuple[list[int], list[int]]:
    """(ns from the first row, size) of each row, with csv, json and Decimal alone."""
    stamps, sizes = [], []
    with gzip.open(path, "rt", newline="") as file:
        rows: Iterator[dict[str, Any]] = (
            (json.loads(line) for line in file) if ".jsonl" in path.name else csv.DictReader(file)
        )
        for row in rows:
            text = str(row[stamp])
            if " " in text:
                moment, _, digits = text.partition(".")
                at = Decimal(int(datetime.fromisoformat(f"{moment}+00:00").timestamp())) + Decimal(
                    f"0.{digits}"
                )
            else:
                at = Decimal(text) / (1_000 if ".jsonl" in path.name else 1)
            n_times = int(row["count"]) if size == "" else 1
            stamps += [int(at * S)] * n_times
            sizes += [int(row[size]) if size else 1] * n_times
    return [stamp - stamps[0] for stamp in stamps], sizes


@pytest.mark.parametrize(
    ("name", "stamp", "size", "hours"),
    [
        ("azure_llm_conv_2023.csv.gz", "TIMESTAMP", "ContextTokens", 1),
        ("azure_llm_conv_2023.csv.gz", "TIMESTAMP", "GeneratedTokens", 1),
        ("mooncake_conversation_fast25.jsonl.gz", "timestamp", "input_length", 1),
        ("nasa_http_1995-08-01.csv.gz", "unix_time", "bytes", 24),
        ("nasa_http_1995-07-13_counts.csv.gz", "second", "", 25),
    ],
)
def test_a_public_trace_is_planned_at_its_own_instants_with_its_own_sizes(
    name: str, stamp: str, size: str, hours: int
) -> None:
    if not (TRACES / name).exists():
        pytest.skip(f"needs the public trace {name} in ../shared/traces")
    stamps, sizes = parsed(TRACES / name, stamp, size)
    arrivals: dict[str, Any] = {"kind": "trace", "file": str(TRACES / name)}
    if stamp == "unix_time":
        arrivals["column"] = stamp
    most = 10**8
    rows = {"kind": "trace", "size": size, "max": most} if size else {"kind": "constant", "value": 1}
    plan = plan_scenario(planned(arrivals, f"{hours}h", rows, most))
    assert len(plan) > 10_000
    assert plan.offset_ns.tolist() == stamps
    assert plan.rows.tolist() == [max(1, size) for size in sizes]  # a request of 0 bytes is still one row


def planned(arrivals: dict[str, Any], duration: str, rows: dict[str, Any], max_rows: int) -> Any:
    mapping = {
        "name": "test", "seed": 3, "model": {"name": "head", "max_batch_size": max_rows}, "clients": {"rows": rows},
        "phases": [
            {"name": "replay", "kind": "measure", "duration": duration, "arrivals": arrivals},
            {"name": "drain", "kind": "drain", "duration": "1s"},
        ],
    }  # fmt: skip
    return scenario_from_mapping(mapping, "test")


N_ROWS, N_USERS = 3_000, 40
STAMPS_MS = np.cumsum(np.random.default_rng(8).integers(0, 40, N_ROWS)) + 5_000
SINCE_MS: list[int] = (STAMPS_MS - STAMPS_MS[0]).tolist()


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A minute of arrivals on a grid of 1 ms; the size of each is its ms since the first, the user is row mod 40."""
    path = tmp_path_factory.mktemp("trace") / "trace.csv"
    lines = [
        f"{ms},{size},user-{i % N_USERS},{size + 1}"
        for i, (ms, size) in enumerate(zip(STAMPS_MS, SINCE_MS, strict=True))
    ]
    path.write_text("timestamp_ms,tokens,user,replies\n" + "\n".join(lines) + "\n")
    return path


Columns = tuple[Any, Any, Any]
"""Instants, sizes and sessions."""


def arrivals(path: Path, **config: Any) -> TraceArrivals:
    return TraceArrivals.model_validate({"kind": "trace", "file": str(path), **config})


def replayed(
    path: Path, horizon_ns: int = HOUR, seed: int = 1, size: str = "tokens", **config: Any
) -> Replay:
    found = arrivals(path, **config).replay(np.random.default_rng(seed), horizon_ns, (size,) if size else ())
    stamps = found.rows.stamp_ns
    assert (np.diff(stamps) >= 0).all()
    assert ((stamps >= 0) & (stamps < horizon_ns)).all()
    return found


def columns(path: Path, horizon_ns: int = HOUR, seed: int = 1, **config: Any) -> Columns:
    rows = replayed(path, horizon_ns, seed, **config).rows
    assert rows.session is not None
    return rows.stamp_ns, rows.sizes["tokens"], rows.session


def instants(path: Path, horizon_ns: int = HOUR, **config: Any) -> list[int]:
    found: list[int] = arrivals(path, **config).draw(np.random.default_rng(1), horizon_ns).tolist()
    return found


def row_by_row(config: dict[str, Any], horizon_ns: int) -> list[tuple[int, int, int]]:
    """Instant, size and user of every arrival where nothing is drawn, one by one in whole numbers."""
    start_ns, length_ns = (parse_duration(config.get(key, "0s")) for key in ("start", "length"))
    rows = [(ms * MS - start_ns, ms, i % N_USERS) for i, ms in enumerate(SINCE_MS) if ms * MS >= start_ns]
    end_ns = rows[-1][0] + (rows[-1][0] - rows[0][0]) // (len(rows) - 1)
    copies, period_ns = config.get("rate_scale", {}).get("copies", 1), length_ns or end_ns
    if copies > 1:
        period_ns = length_ns or end_ns // copies
    # at one instant window after window, which is the order of the sizes
    rows = sorted((at % period_ns, ms, user) for at, ms, user in rows if at // period_ns < copies)
    ratio = Fraction(config.get("time_scale", 1))
    laps = range(int(horizon_ns / ratio) // period_ns + 1 if config.get("loop") else 1)
    every = (((at + lap * period_ns) * ratio // 1, ms, user) for lap in laps for at, ms, user in rows)
    return [row for row in every if row[0] < horizon_ns]


WINDOW = {"start": "10s", "length": "5s"}
OVERLAP = {"length": "10s", "rate_scale": {"kind": "overlap", "copies": 3}}


@pytest.mark.parametrize(
    ("config", "horizon_ns"),
    [
        ({}, HOUR),
        ({"length": "10s"}, S),
        (WINDOW, HOUR),
        ({"time_scale": "7/3"}, HOUR),
        ({"time_scale": "1/7"}, 2 * S),
        (WINDOW | {"loop": True}, 22 * S),
        ({"loop": True, "time_scale": "2/3"}, 130 * S),
        (OVERLAP, HOUR),
        ({"rate_scale": {"kind": "overlap", "copies": 4}}, HOUR),
        (OVERLAP | {"loop": True}, 20 * S),
    ],
)
def test_every_row_comes_at_its_instant_with_its_request(
    trace: Path, config: dict[str, Any], horizon_ns: int
) -> None:
    offsets, sizes, sessions = columns(trace, horizon_ns, **config)
    every = row_by_row(config, horizon_ns)
    assert list(zip(offsets.tolist(), sizes.tolist(), strict=True)) == [row[:2] for row in every]
    assert instants(trace, horizon_ns, **config) == offsets.tolist()
    # copies are of other sessions than the trace's own
    users = {(session, user) for session, (_, _, user) in zip(sessions.tolist(), every, strict=True)}
    copies = config.get("rate_scale", {}).get("copies", 1)
    assert len(users) == len(set(sessions.tolist())) == copies * N_USERS
    length = config.get("length")
    if length is not None and horizon_ns == HOUR:
        assert replayed(trace, **config).end_ns == parse_duration(length)


def test_a_loop_of_the_whole_trace_closes_with_the_tick(trace: Path) -> None:
    period_ns = SINCE_MS[-1] * MS + 3 * S
    laps = columns(trace, 3 * period_ns, loop=True, quantum="spread", quantum_width="3s")[0] // period_ns
    assert np.bincount(laps).tolist() == [N_ROWS] * 3


def test_the_horizon_cuts_after_the_scaling(tmp_path: Path) -> None:
    path = tmp_path / "ns.txt"
    path.write_text("5\n6\n7\n")
    for horizon_ns, offsets in ((7, [0]), (8, [0, 7]), (14, [0, 7]), (15, [0, 7, 14])):
        assert instants(path, horizon_ns, unit="ns", time_scale=7) == offsets


@pytest.mark.parametrize(
    ("config", "count", "count_sd", "most_late_ns", "mean_late_ns", "late_sd_ns"),
    [
        # uniform over 3 s: sd 3/√12 = 0.866
        ({"quantum": "spread", "quantum_width": "3s"}, N_ROWS, 0, 3 * S - 1, 1.5 * S, 0.866 * S),
        # binomial: sd √(3000 · 0.3 · 0.7) = 25.1
        ({"rate_scale": {"kind": "thin", "keep": 0.3}}, 900, 25.1, 0, 0, 0),
        # 75 arrivals each of 40 sessions: sd 75 √(40/4)
        ({"rate_scale": {"kind": "thin-by-session", "keep": 0.5}}, 1_500, 237, 0, 0, 0),
        # 0 of one in three, else uniform over 0.5 s: mean square 2/3 · 0.5²/3, sd 1/6
        (
            {"rate_scale": {"kind": "replicate", "copies": 3, "jitter": "500ms"}},
            9_000,
            0,
            S // 2,
            S / 6,
            S / 6,
        ),
    ],
)
def test_what_is_drawn_takes_whole_rows_and_puts_them_off_as_stated(
    trace: Path,
    config: dict[str, Any],
    count: int,
    count_sd: float,
    most_late_ns: int,
    mean_late_ns: float,
    late_sd_ns: float,
) -> None:
    offsets, sizes, sessions = columns(trace, **config)
    late = offsets - sizes * MS
    assert late.min() >= 0
    assert late.max() <= most_late_ns
    assert abs(late.mean() - mean_late_ns) <= 4 * late_sd_ns / offsets.size**0.5
    assert abs(offsets.size - count) <= 4 * count_sd
    again = [columns(trace, seed=seed, **config)[0].tolist() for seed in (1, 2)]
    assert again[0] == offsets.tolist()
    held = np.unique(sessions, return_counts=True)[1]
    match config.get("rate_scale", {}).get("kind"):
        case "thin-by-session":  # all of some sessions, and nothing is drawn
            assert set(held.tolist()) == {N_ROWS // N_USERS}
            assert again[1] == again[0]
        case "replicate":  # the first of each is the trace's own, at its own instant
            own = np.isin(sessions, columns(trace)[2])
            assert (own.sum(), late[own].max(), held.size) == (N_ROWS, 0, 3 * N_USERS)
        case None:
            assert sorted(sizes.tolist()) == SINCE_MS
            assert (np.diff(sizes) < 0).any()  # rows of one tick change their order
            assert again[1] != again[0]


def test_an_envelope_drawn_anew_takes_requests_of_the_same_bin(trace: Path) -> None:
    scale = {"kind": "envelope", "factor": 2.5, "bin": "2s"}
    offsets, sizes, _ = columns(trace, rate_scale=scale)
    assert (offsets // (2 * S) == sizes * MS // (2 * S)).all()
    assert abs(len(offsets) - 2.5 * N_ROWS) < 4 * (2.5 * N_ROWS) ** 0.5
    assert offsets[-1] < (SINCE_MS[-1] + 100) * MS  # no further than the mean gap behind the last arrival
    assert set(offsets.tolist()) - set((sizes * MS).tolist())


class _Reader:
    """Rows in parts of any size, as a reader gives them; every third names no user, unless `names_all`."""

    size_names = ("tokens", "replies")
    reading = None
    unit = "ms"

    def __init__(self, part_rows: int, names_all: bool = False) -> None:
        self._part_rows, self._names_all = part_rows, names_all

    def __iter__(self) -> Iterator[TracePart]:
        since = np.array(SINCE_MS)
        users = np.arange(N_ROWS, dtype=np.int64) % N_USERS
        if not self._names_all:
            users[::3] = -1
        yield from TracePart(STAMPS_MS * MS, {"tokens": since, "replies": since + 1}, users).pieces(
            self._part_rows
        )


CONFIGS: tuple[dict[str, Any], ...] = (
    {},
    {"start": "3s", "length": "9s"},
    {"time_scale": "3/7", "rate_scale": {"kind": "thin", "keep": 0.4}},
    {"quantum": "spread", "quantum_width": "3s", "rate_scale": {"kind": "thin-by-session", "keep": 0.4}},
    {"quantum": "spread", "quantum_width": "700ms", "time_scale": "2", "rate_scale": {"kind": "thin", "keep": 0.4}},
    {"length": "9s", "rate_scale": {"kind": "replicate", "copies": 3, "jitter": "1s"}},
    {"length": "9s", "rate_scale": {"kind": "overlap", "copies": 3}},
    {"length": "9s", "rate_scale": {"kind": "envelope", "factor": 1.7, "bin": "2s"}, "time_scale": "1/2"},
    {"quantum": "spread", "quantum_width": "3s", "rate_scale": {"kind": "envelope", "factor": 0.7, "bin": "2s"}},
)  # fmt: skip


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("is_looped", [False, True])
def test_the_parts_of_a_file_do_not_show(
    config: dict[str, Any], is_looped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows(part_rows: int) -> list[Any]:
        monkeypatch.setattr(replay_module, "open_trace", lambda *_: _Reader(part_rows))
        found = columns(Path("none"), 31 * S if is_looped else HOUR, loop=is_looped, **config)
        return [column.tolist() for column in found]

    assert rows(7) == rows(2_999) == rows(N_ROWS)


@pytest.mark.parametrize("n_draws", [16, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "config",
    [pytest.param(one, marks=[pytest.mark.slow] if at % 3 else []) for at, one in enumerate(CONFIGS)],
)
@pytest.mark.parametrize("is_looped", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_expected_counts_are_the_mean_of_what_is_drawn(
    config: dict[str, Any], is_looped: bool, n_draws: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over draws of n the mean is within 4 standard errors, taken from the draws, of what is expected."""
    monkeypatch.setattr(replay_module, "open_trace", lambda *_: _Reader(N_ROWS, names_all=True))
    edges = np.array([0, 2_500 * MS, 4 * S, 7_777 * MS, 14 * S, 25 * S])
    one = arrivals(Path("none"), loop=is_looped, **config)
    draws = [one.draw(np.random.default_rng(seed), 25 * S) for seed in range(n_draws)]
    counts = np.array([np.searchsorted(offsets, edges) for offsets in draws])
    expected = np.array([one.expected_count(int(edge), 25 * S) for edge in edges])
    error = np.maximum(counts.std(axis=0) / n_draws**0.5, 1e-9 + 0.02 * (counts.std(axis=0) > 0))
    assert (abs(counts.mean(axis=0) - expected) <= 4 * error).all()


@pytest.mark.parametrize("config", CONFIGS)
def test_all_size_columns_follow_and_the_stamps_are_those_of_the_file(
    trace: Path, config: dict[str, Any]
) -> None:
    one = replayed(trace, **config)
    whole = arrivals(trace, **config).replay(np.random.default_rng(1), HOUR)
    assert set(one.rows.sizes) == {"tokens"}
    assert whole.rows.sizes["tokens"].tolist() == one.rows.sizes["tokens"].tolist()
    assert (whole.rows.sizes["replies"] == whole.rows.sizes["tokens"] + 1).all()
    first_ns = int(read_trace(trace).stamp_ns[0])
    assert whole.origin_ns == first_ns + arrivals(trace, **config).start_ns


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"start": "2h"}, r"no arrival from 2h on, the last one comes 58215ms after the first; use an earlier start"),
        ({"start": "1ms", "length": "1ns"}, "no arrival in the 1ns from 1ms on; use another start or a longer length"),
        ({"rate_scale": {"kind": "overlap", "copies": 9}, "length": "20s"}, "9 windows of 20s are longer than the 5"),
        ({"time_scale": "1/1000000000", "loop": True}, "time_scale 1/1000000000 takes times beyond the 146 years"),
        ({"rate_scale": {"kind": "envelope", "factor": 1e7}}, "30,000,000,000 arrivals are more than a plan takes"),
    ],
)  # fmt: skip
def test_what_cannot_be_replayed_is_one_error(trace: Path, config: dict[str, Any], what: str) -> None:
    with pytest.raises(ScenarioError, match=f"^{trace}: .*{what}"):
        instants(trace, 300 * HOUR, **config)


def test_a_size_or_sessions_that_the_trace_has_not_are_named(trace: Path, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="has no size column 'input', it has tokens, replies"):
        replayed(trace, size="input")
    bare = tmp_path / "bare.txt"
    bare.write_text("0\n1\n")
    with pytest.raises(ScenarioError, match="thin-by-session needs a trace with sessions; use kind thin"):
        instants(bare, rate_scale={"kind": "thin-by-session", "keep": 0.5})
    with pytest.raises(ScenarioError, match="has no size column 'input', it has none"):
        replayed(bare, size="input")


def test_a_loop_without_a_period_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text("3\n3\n")
    with pytest.raises(
        ScenarioError, match="all 2 arrivals of the window come at one instant, so a loop has no period"
    ):
        instants(path, loop=True)
    assert instants(path, 3 * S, loop=True, length="1s") == [0, 0, S, S, 2 * S, 2 * S]
    assert instants(path) == [0, 0]


def test_a_trace_that_changes_while_it_is_read_is_refused(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "growing.csv"
    path.write_text(trace.read_text())

    def grown(*arguments: Any) -> Any:
        reader = open_trace(*arguments)
        path.write_text(trace.read_text() + f"{STAMPS_MS[-1] + 1},1,user-1,2\n")
        return reader

    monkeypatch.setattr(replay_module, "open_trace", grown)
    with pytest.raises(ScenarioError, match=r"growing\.csv: the trace changed while it was read; run again"):
        instants(path)
