"""`squall trace` from end to end, without a server: every command on small traces of a known process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner, Result

from squall.analysis.storage.store import RunStore
from squall.analysis.traces.fitted import arrivals_of
from squall.cluster import cli
from squall.cluster.cli import app
from squall.scenarios.arrivals.kinds import OpenArrivals
from squall.scenarios.traces.reading import TraceOptions, read_trace
from tests.synthetic_runs import synthesise

S = 1_000_000_000


def squall(*words: object) -> Result:
    return CliRunner().invoke(app, ["trace", *map(str, words)], env={"COLUMNS": "80"}, catch_exceptions=True)


def done(*words: object) -> str:
    result = squall(*words)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A minute of Poisson arrivals at 20/s, a time a line, and its sizes."""
    offsets = arrivals_of({"kind": "poisson", "rate": "20/s"}).draw(np.random.default_rng(1), 60 * S)
    path = tmp_path / "poisson.csv"
    sizes = np.random.default_rng(2).integers(1, 9, offsets.size)
    rows = "\n".join(f"{time},{size}" for time, size in zip(offsets.tolist(), sizes.tolist(), strict=True))
    path.write_text(f"timestamp_ns,tokens\n{rows}\n")
    return path


def test_info_prints_the_figures_and_draws_them(trace: Path, tmp_path: Path) -> None:
    times = read_trace(trace).stamp_ns
    summary = json.loads(done("info", trace, "--json", "--plot", tmp_path / "p.png"))
    assert summary["n"] == times.size
    assert summary["as_is"]["rate_hz"] == pytest.approx(
        (times.size - 1) / (times[-1] - times[0]) * 1e9, rel=2e-3
    )
    assert summary["sizes"]["tokens"]["n"] == times.size
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    text = done("info", trace, "--plot", tmp_path / "p.html")
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "http://" not in (tmp_path / "p.html").read_text(encoding="utf-8").split("<script", 1)[0]


@pytest.fixture
def bursty(tmp_path: Path) -> Path:
    """100 s at 20/s on average, in every 20 s a burst of 5 s at four times the rate of the rest: a time a line."""
    shape = {"kind": "pulses", "factor": 4, "width": "5s", "period": "20s"}
    envelope = arrivals_of({"kind": "envelope", "rate": "20/s", "shape": shape})
    times = envelope.draw(np.random.default_rng(1), 100 * S)
    (tmp_path / "t.txt").write_text("\n".join(str(ns) for ns in times.tolist()))
    return tmp_path / "t.txt"


def test_fit_prints_a_snippet_that_a_scenario_takes_and_synth_draws_from_it(
    bursty: Path, tmp_path: Path
) -> None:
    snippet = tmp_path / "fit.yaml"
    report = json.loads(done("fit", bursty, "--unit", "ns", "--json", "--snippet", snippet))
    assert report["processes"]
    from pydantic import TypeAdapter

    config = yaml.safe_load(snippet.read_text())["arrivals"]
    TypeAdapter(OpenArrivals).validate_python(config)
    out = tmp_path / "long.parquet"
    assert "arrivals" in done("synth", snippet, out, "--duration", "200s", "--rate", "40/s")
    drawn = read_trace(out).stamp_ns
    # twice as long and twice the rate: 8,000 expected; with an IDC of 80, more than any fit here has, 3 s.e. are 2,400
    assert 5_600 < drawn.size < 10_400
    again = tmp_path / "again.parquet"
    done("synth", bursty, again, "--unit", "ns", "--process", "poisson", "--duration", "100s")
    assert dispersion(again) < 5  # Poisson: 1 ± 0.5; the trace itself has more than 20


def dispersion(trace: Path) -> float:
    counts = np.bincount(read_trace(trace).stamp_ns // (10 * S))
    return float(counts.var(ddof=1) / counts.mean())


@pytest.mark.slow
def test_synth_draws_from_the_best_fit_where_none_is_named(bursty: Path, tmp_path: Path) -> None:
    drawn = tmp_path / "drawn.parquet"
    done("synth", bursty, drawn, "--unit", "ns")
    assert dispersion(drawn) > 5


def test_convert_keeps_instants_and_sizes_and_scales_exactly(trace: Path, tmp_path: Path) -> None:
    before = read_trace(trace)
    done("convert", trace, tmp_path / "t.parquet")
    after = read_trace(tmp_path / "t.parquet")
    assert after.stamp_ns.tolist() == before.stamp_ns.tolist()
    assert after.sizes["tokens"].tolist() == before.sizes["tokens"].tolist()
    done("convert", trace, tmp_path / "fast.parquet", "--set", "time_scale=1/3", "--set", "start=10s")
    kept = before.stamp_ns[before.stamp_ns - before.stamp_ns[0] >= 10 * S] - before.stamp_ns[0] - 10 * S
    fast = read_trace(tmp_path / "fast.parquet")
    assert (fast.stamp_ns - fast.stamp_ns[0]).tolist() == (kept // 3 - kept[0] // 3).tolist()


def test_a_log_becomes_a_trace_with_bytes_and_clients(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_text(
        '192.0.2.1 - - [10/Oct/2000:13:55:37 -0700] "GET /a HTTP/1.0" 200 2326\n'
        '192.0.2.2 - - [10/Oct/2000:13:55:36 -0700] "GET /b HTTP/1.0" 200 -\n'
        '192.0.2.1 - - [10/Oct/2000:13:55:39 -0700] "GET /c HTTP/1.0" 404 7\n'
    )
    out = tmp_path / "t.parquet"
    assert "3 arrivals" in done("from-log", log, out)
    part = read_trace(out)
    assert np.diff(part.stamp_ns).tolist() == [S, 2 * S]
    assert part.sizes["bytes"].tolist() == [-1, 2326, 7]
    assert part.session is not None
    assert part.session[1] == part.session[2] != part.session[0]
    assert b"192.0.2" not in out.read_bytes()
    done("from-log", log, tmp_path / "spread.parquet", "--spread", "1s")
    spread = read_trace(tmp_path / "spread.parquet").stamp_ns
    assert (spread % S != 0).any()
    assert (spread // S - part.stamp_ns // S).tolist() == [0, 0, 0]


def recorded_run(folder: Path) -> RunStore:
    """A run of which nothing is derived: its requests are all that is read."""
    run = synthesise()
    run.derived = False
    return run.write(folder)


def test_a_run_becomes_a_trace_of_what_was_asked_for_or_sent(tmp_path: Path) -> None:
    store = recorded_run(tmp_path)
    requests = store.read("requests", ["phase", "scheduled_ns", "sent_ns", "rows"])
    is_measured = np.array([name == "burst" for name in requests.column("phase").to_pylist()])
    for instant in ("scheduled", "sent"):
        out = tmp_path / f"{instant}.parquet"
        done("from-run", store.run_dir, out, "--instant", instant)
        expected = requests.column(f"{instant}_ns").to_numpy()[is_measured]
        assert read_trace(out).stamp_ns.tolist() == sorted(
            expected[~np.isnan(expected)].astype(np.int64).tolist()
        )
        assert read_trace(out).sizes["rows"].sum() == requests.column("rows").to_numpy()[is_measured].sum()
    done("from-run", store.run_dir, tmp_path / "all.csv", "--phase", "warmup", "--phase", "burst")
    assert read_trace(tmp_path / "all.csv", TraceOptions()).stamp_ns.size == requests.num_rows


@pytest.fixture
def failing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    def call(*words: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["squall", "trace", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        return int(str(caught.value.code)), capsys.readouterr().err

    return call


def test_what_is_wrong_is_one_line(
    trace: Path, tmp_path: Path, failing: Callable[..., tuple[int, str]]
) -> None:
    store = recorded_run(tmp_path)
    cases = [
        (("info", tmp_path / "none.csv"), 2, "no such trace file"),
        (("info", trace, "--format", "azur"), 2, "format"),
        (("info", trace, "--set", "quantm=spread"), 2, "did you mean 'quantum'?"),
        (("info", trace, "--set", "quantum"), 2, "has no '='"),
        (("info", trace, "--spread", "3"), 2, "has no unit"),
        (("info", trace, "--set", "start=2h"), 2, "no arrival from 2h on"),
        (("info", trace, "--plot", tmp_path / "x.doc"), 2, "must end in .png, .svg or .html"),
        (("convert", trace, tmp_path / "no" / "t.parquet"), 2, "t.parquet"),
        (("convert", trace, tmp_path / "t.what"), 2, "name one of parquet, csv, jsonl"),
        (("convert", trace, tmp_path / "t.csv", "--to", "azure-llm"), 2, "name one of parquet, csv, jsonl"),
        (("from-run", store.run_dir, tmp_path / "t.csv", "--phase", "bust"), 1, "has no phase 'bust'"),
        (("from-run", store.run_dir, tmp_path / "t.csv", "--instant", "due"), 2, "scheduled or sent"),
        (("synth", trace, tmp_path / "t.csv", "--process", "poison"), 2, "poison"),
    ]
    for words, code, text in cases:
        found, err = failing(*words)
        assert (found, err.count("\n")) == (code, 1), (words, err)
        assert text in err, (words, err)
