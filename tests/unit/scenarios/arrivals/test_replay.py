"""Replay: every public trace to its own resolution, and sizes and sessions that stay with their arrivals."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
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
SPAN_MS = int(STAMPS_MS[-1] - STAMPS_MS[0])


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A minute of arrivals on a grid of 1 ms; the size of each is its ms since the first, the user is row mod 40."""
    path = tmp_path_factory.mktemp("trace") / "trace.csv"
    since = STAMPS_MS - STAMPS_MS[0]
    lines = [
        f"{ms},{size},user-{i % N_USERS},{size + 1}"
        for i, (ms, size) in enumerate(zip(STAMPS_MS, since, strict=True))
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


def user_of(trace: Path) -> dict[int, int]:
    """Number of the user by session number."""
    _, _, sessions = columns(trace)
    return {session: index % N_USERS for index, session in enumerate(sessions.tolist())}


def test_a_trace_as_it_is_has_every_row_at_its_instant(trace: Path) -> None:
    offsets, sizes, sessions = columns(trace)
    assert (offsets == (STAMPS_MS - STAMPS_MS[0]) * MS).all()
    assert (sizes * MS == offsets).all()
    assert len(set(sessions.tolist())) == N_USERS
    assert sessions[:N_USERS].tolist() == sessions[N_USERS : 2 * N_USERS].tolist()
    assert instants(trace) == offsets.tolist()
    assert max(instants(trace, S, length="10s")) < S


def test_a_window_counts_from_its_own_start_and_just_ends(trace: Path) -> None:
    offsets, sizes, _ = columns(trace, start="10s", length="5s")
    assert (offsets == sizes * MS - 10 * S).all()
    assert sizes.tolist() == [ms for ms in (STAMPS_MS - STAMPS_MS[0]).tolist() if 10_000 <= ms < 15_000]


def test_a_time_scale_is_exact_and_cuts_at_the_horizon(trace: Path) -> None:
    offsets, sizes, _ = columns(trace, time_scale="7/3")
    assert offsets.tolist() == [size * MS * 7 // 3 for size in sizes.tolist()]
    offsets, sizes, _ = columns(trace, 2 * S, time_scale="1/7")
    assert offsets.tolist() == [size * MS // 7 for size in sizes.tolist()]
    assert len(offsets) == sum(ms * MS // 7 < 2 * S for ms in (STAMPS_MS - STAMPS_MS[0]).tolist())


def test_the_horizon_cuts_after_the_scaling(tmp_path: Path) -> None:
    path = tmp_path / "ns.txt"
    path.write_text("5\n6\n7\n")
    for horizon_ns, offsets in ((7, [0]), (8, [0, 7]), (14, [0, 7]), (15, [0, 7, 14])):
        assert instants(path, horizon_ns, unit="ns", time_scale=7) == offsets


def test_a_loop_repeats_the_window_with_its_length_as_period(trace: Path) -> None:
    offsets, sizes, _ = columns(trace, 22 * S, start="10s", length="5s", loop=True)
    assert (offsets % (5 * S) == sizes * MS - 10 * S).all()
    laps = np.bincount(offsets // (5 * S))
    assert laps.size == 5
    assert laps[0] == laps[1] == laps[2] == laps[3] > laps[4] > 0


def test_a_loop_of_the_whole_trace_closes_with_the_mean_gap_or_the_tick(trace: Path) -> None:
    last = SPAN_MS * MS
    cases: tuple[tuple[dict[str, Any], int], ...] = (
        ({}, last + last // (N_ROWS - 1)),
        ({"quantum": "spread", "quantum_width": "3s"}, last + 3 * S),
    )
    for config, period in cases:
        offsets, _, _ = columns(trace, 3 * period, loop=True, **config)
        assert len(offsets) == 3 * N_ROWS - (offsets.size != 3 * N_ROWS)
        if not config:
            assert offsets[N_ROWS] == period
            assert offsets[2 * N_ROWS] == 2 * period


def test_spread_arrivals_stay_inside_their_tick_with_their_requests(trace: Path) -> None:
    offsets, sizes, _ = columns(trace, quantum="spread", quantum_width="3s")
    late = offsets - sizes * MS
    assert (late >= 0).all()
    assert (late < 3 * S).all()
    assert sorted(sizes.tolist()) == (STAMPS_MS - STAMPS_MS[0]).tolist()
    # uniform over 3 s: mean 1.5 s, sd of the mean 3 / sqrt(12) / sqrt(3000) = 0.0158 s
    assert abs(late.mean() / S - 1.5) < 4 * 0.0158
    assert (np.diff(sizes) < 0).any()  # rows of one tick change their order


def test_thinning_takes_whole_rows(trace: Path) -> None:
    offsets, sizes, _ = columns(trace, rate_scale={"kind": "thin", "keep": 0.3})
    assert (offsets == sizes * MS).all()
    assert abs(len(offsets) - 900) < 4 * 25.1  # sd sqrt(3000 * 0.3 * 0.7) = 25.1


def test_thinning_by_session_takes_all_of_some_sessions_and_draws_nothing(trace: Path) -> None:
    scale = {"kind": "thin-by-session", "keep": 0.5}
    offsets, sizes, sessions = columns(trace, rate_scale=scale)
    assert (offsets == sizes * MS).all()
    assert set(np.unique(sessions, return_counts=True)[1].tolist()) == {N_ROWS // N_USERS}
    assert 8 < len(set(sessions.tolist())) < 32  # of 40, sd sqrt(40 / 4) = 3.2
    assert columns(trace, seed=2, rate_scale=scale)[0].tolist() == offsets.tolist()


def test_replicated_requests_follow_theirs_within_the_jitter(trace: Path) -> None:
    users = user_of(trace)
    scale = {"kind": "replicate", "copies": 3, "jitter": "500ms"}
    offsets, sizes, sessions = columns(trace, rate_scale=scale)
    late = offsets - sizes * MS
    assert np.unique(sizes, return_counts=True)[1].sum() == 3 * N_ROWS == len(sizes)
    assert (late >= 0).all()
    assert (late <= 500 * MS).all()
    own = np.array([session in users for session in sessions.tolist()])
    assert own.sum() == N_ROWS  # the first of each is the trace's own, at its own instant
    assert (late[own] == 0).all()
    assert len(set(sessions.tolist())) == 3 * N_USERS


def test_overlapped_windows_come_at_once(trace: Path) -> None:
    scale = {"kind": "overlap", "copies": 3}
    assert replayed(trace, length="10s", rate_scale=scale).end_ns == 10 * S
    offsets, sizes, sessions = columns(trace, length="10s", rate_scale=scale)
    lap = sizes * MS // (10 * S)
    assert (offsets == sizes * MS - lap * 10 * S).all()
    assert (
        np.lexsort((sizes, offsets)) == np.arange(offsets.size)
    ).all()  # at one instant window after window
    assert sizes.size == sum(ms < 30_000 for ms in (STAMPS_MS - STAMPS_MS[0]).tolist())
    assert len(set(sessions.tolist())) == 3 * N_USERS
    whole = instants(trace, rate_scale={"kind": "overlap", "copies": 4})
    assert abs(len(whole) - N_ROWS) <= 1  # of the mean gap behind the last one, a rest below 4 ns is left
    assert len(instants(trace, 20 * S, length="10s", rate_scale=scale, loop=True)) == 2 * sizes.size


def test_an_envelope_drawn_anew_takes_requests_of_the_same_bin(trace: Path) -> None:
    scale = {"kind": "envelope", "factor": 2.5, "bin": "2s"}
    offsets, sizes, _ = columns(trace, rate_scale=scale)
    assert (offsets // (2 * S) == sizes * MS // (2 * S)).all()
    assert abs(len(offsets) - 2.5 * N_ROWS) < 4 * (2.5 * N_ROWS) ** 0.5
    assert offsets[-1] < (SPAN_MS + 100) * MS  # no further than the mean gap behind the last arrival
    assert set(offsets.tolist()) - set((sizes * MS).tolist())


class _Reader:
    """Rows in parts of any size, as a reader gives them."""

    size_names = ("tokens", "replies")
    reading = None
    unit = "ms"

    def __init__(self, part_rows: int) -> None:
        self._part_rows = part_rows

    def __iter__(self) -> Iterator[TracePart]:
        since = STAMPS_MS - STAMPS_MS[0]
        users = np.arange(N_ROWS, dtype=np.int64) % N_USERS
        users[::3] = -1  # names none
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
    trace: Path, config: dict[str, Any], is_looped: bool, n_draws: int
) -> None:
    """Over draws of n the mean is within 4 standard errors, taken from the draws, of what is expected."""
    edges = np.array([0, 2_500 * MS, 4 * S, 7_777 * MS, 14 * S, 25 * S])
    one = arrivals(trace, loop=is_looped, **config)
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


def test_the_same_generator_gives_the_same_arrivals_and_another_other_ones(trace: Path) -> None:
    first, same, other = (
        columns(trace, seed=seed, quantum="spread", quantum_width="3s")[0].tolist() for seed in (1, 1, 2)
    )
    assert first == same != other


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
