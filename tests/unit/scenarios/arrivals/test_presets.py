"""Presets: normalised curves, and the same curves from the public traces where those are at hand."""

from __future__ import annotations

import csv
import gzip
import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from squall.scenarios.arrivals.presets import CLIENT_PRESETS, PRESETS, ClientPresetName, PresetName
from squall.scenarios.arrivals.process import Fitted
from squall.scenarios.arrivals.stationary import ClientsArrivals, Gamma, HawkesArrivals
from squall.scenarios.arrivals.varying import (
    BModelArrivals,
    EnvelopeArrivals,
    FgnArrivals,
    MmppArrivals,
)
from squall.scenarios.strict_yaml import parse_yaml
from squall.scenarios.traces.reading import read_trace

TRACES = Path(__file__).resolve().parents[4].parent / "shared" / "traces"
MINUTE_NS = 60 * 1_000_000_000


def trace_file(name: str) -> Path:
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"needs the public trace {name} in ../shared/traces")
    return path


def read_columns(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt") as file:
        return list(csv.DictReader(file))


def curve_of(counts: NDArray[np.int64] | NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(float(f"{count:.3g}") for count in counts / counts.mean())


def curve_of_preset(name: PresetName) -> tuple[float, ...]:
    return tuple(PRESETS[name].keys["envelope"]["curve"])


FITS: tuple[type[Fitted], ...] = (EnvelopeArrivals, MmppArrivals, HawkesArrivals, FgnArrivals, BModelArrivals)


@pytest.mark.parametrize("kind", FITS)
@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_process_of_each_kind(name: PresetName, kind: type[Fitted]) -> None:
    keys = {"kind": parse_yaml(kind.example, "example")["kind"], "rate": "5/s"}
    settled = kind.model_validate({**keys, "preset": name}).settled()
    assert settled.preset is None
    assert settled == kind.model_validate({**PRESETS[name].keys[settled.kind], **keys})


def test_keys_of_its_own_go_before_those_of_a_preset() -> None:
    keys = {"kind": "envelope", "rate": "5/s", "preset": "nasa-web"}
    residual = {"kind": "gamma", "cv": 2.0}
    settled = EnvelopeArrivals.model_validate({**keys, "bin": "1s", "residual": residual}).settled()
    assert (settled.bin_ns, settled.residual) == (1_000_000_000, Gamma(kind="gamma", cv=2.0))
    assert FgnArrivals.model_validate({**keys, "kind": "fgn", "bin": "2s"}).settled().bin_ns == 2_000_000_000


@pytest.mark.parametrize("name", CLIENT_PRESETS)
def test_a_client_preset_is_that_of_the_clients_of_its_trace(name: ClientPresetName) -> None:
    """Zipf by maximum likelihood of the shares; cv the median over windows and its spread, weighted by requests."""
    preset = CLIENT_PRESETS[name]
    assert "Apache-2.0" in preset.source
    clients = ClientsArrivals(kind="clients", rate="1/s", preset=name).settled()
    model = preset.title
    every = read_columns(trace_file("servegen_client_windows_day1.csv.gz"))
    rows = [row for row in every if row["model"] == model and float(row["rate"]) > 0]
    by_client: dict[str, float] = {}
    for row in rows:
        by_client[row["client"]] = by_client.get(row["client"], 0.0) + float(row["rate"])
    shares = np.sort(np.array(list(by_client.values())))[::-1] / sum(by_client.values())
    assert shares.size == clients.clients
    logs = np.log(np.arange(1, shares.size + 1))
    exponents = np.arange(0.5, 2.0, 0.005)
    losses = [s * (shares @ logs) + math.log(np.exp(-s * logs).sum()) for s in exponents]
    assert exponents[int(np.argmin(losses))] == pytest.approx(clients.zipf, abs=0.01)
    rates, cvs = np.array([[float(row["rate"]), float(row["cv"])] for row in rows]).T
    order = np.argsort(cvs)
    middle = np.searchsorted(np.cumsum(rates[order]), rates.sum() / 2)
    assert cvs[order][middle] == pytest.approx(clients.cv, abs=0.01)
    cut = np.log(np.clip(cvs, 0.1, math.sqrt(10)))
    spread = math.sqrt(np.average((cut - np.average(cut, weights=rates)) ** 2, weights=rates))
    assert spread == pytest.approx(clients.cv_sigma, abs=0.01)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_about_an_hour_of_minutes_with_mean_1(name: PresetName) -> None:
    preset = PRESETS[name]
    curve = curve_of_preset(name)
    assert preset.keys["envelope"]["bin"] == "60s"
    assert 58 <= len(curve) <= 60
    # 60 values rounded to 3 digits: each is off by at most 0.005 (0.5% of 1)
    assert np.mean(curve) == pytest.approx(1, abs=0.005)
    assert min(curve) > 0
    assert f"peak/mean {max(curve):.3g}" in preset.title
    assert "\n" not in preset.source


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_names_source_and_licence(name: PresetName) -> None:
    assert PRESETS[name].source.endswith(("CC-BY 4.0", "Apache-2.0", "may be freely redistributed"))


@pytest.mark.parametrize(
    ("name", "file", "n_bins"),
    [
        ("azure-conversation", "azure_llm_conv_2023.csv.gz", 58),
        ("mooncake-conversation", "mooncake_conversation_fast25.jsonl.gz", 59),
    ],
)
def test_the_conversation_curves_are_those_of_their_traces(name: PresetName, file: str, n_bins: int) -> None:
    stamps = read_trace(trace_file(file)).stamp_ns
    minutes = (stamps - stamps[0]) // MINUTE_NS
    counts = np.bincount(minutes, minlength=n_bins)[:n_bins]  # whole minutes only
    assert counts.min() >= 50
    assert curve_of_preset(name) == curve_of(counts)


def test_the_web_curve_is_the_smoothed_hour_of_the_busiest_minute() -> None:
    rows = read_columns(trace_file("nasa_http_1995-08-01.csv.gz"))
    seconds = np.array([int(row["unix_time"]) for row in rows])
    counts = np.bincount((seconds - 807_256_800) // 60)  # 02:00:00 EDT, the first request
    hour = int(counts.argmax()) // 60
    assert hour + 2 == 10
    bins = counts[60 * hour : 60 * (hour + 1)]
    assert bins.min() == 28
    smoothed = (np.roll(bins, 1) + 2 * bins + np.roll(bins, -1)) / 4
    assert curve_of_preset("nasa-web") == curve_of(smoothed)


def test_the_flash_crowd_curve_is_the_hour_of_the_launch() -> None:
    rows = read_columns(trace_file("nasa_http_1995-07-13_counts.csv.gz"))
    counts = np.array([int(row["count"]) for row in rows]).reshape(-1, 60).sum(axis=1)
    hour = int(counts.argmax()) // 60
    assert hour == 9  # STS-70 was launched at 09:41:55 EDT
    bins = counts[60 * hour : 60 * (hour + 1)]
    assert bins.min() == 38
    assert curve_of_preset("nasa-flash-crowd") == curve_of(bins)
