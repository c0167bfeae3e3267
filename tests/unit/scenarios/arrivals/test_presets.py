"""Presets: a process of each kind, and what the public traces have, where those are at hand."""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import TypeAdapter

from squall.scenarios.arrays import Floats, Int64s
from squall.scenarios.arrivals.kinds import OpenPart
from squall.scenarios.arrivals.presets import PRESETS
from squall.scenarios.traces.reading import read_trace

TRACES = Path(__file__).resolve().parents[4].parent / "shared" / "traces"
MINUTE_NS = 60 * 1_000_000_000
ADAPTER: TypeAdapter[Any] = TypeAdapter(OpenPart)


def settled(**keys: Any) -> Any:
    """A process of 5/s with the keys of its preset in its place."""
    return ADAPTER.validate_python({"rate": "5/s", **keys}).settled()


def trace_file(name: str) -> Path:
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"needs the public trace {name} in ../shared/traces")
    return path


def columns(file: str, *names: str) -> list[tuple[str, ...]]:
    with gzip.open(trace_file(file), "rt") as text:
        return [tuple(row[name] for name in names) for row in csv.DictReader(text)]


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name, kinds in PRESETS.items() for kind in kinds]
)
def test_a_preset_is_a_process_of_each_kind(name: str, kind: str) -> None:
    preset = settled(kind=kind, preset=name)
    assert preset.preset is None
    assert preset == settled(kind=kind, **PRESETS[name][kind])
    if kind == "envelope":
        # about an hour of minutes; values rounded to 3 digits are each off by at most 0.005 (0.5 % of 1)
        assert (preset.bin_ns, 58 <= len(preset.curve) <= 60) == (MINUTE_NS, True)
        assert np.mean(preset.curve) == pytest.approx(1, abs=0.005)
        own = {"bin": "1s", "residual": {"kind": "gamma", "cv": 2.0}}
        assert settled(kind=kind, preset=name, **own) == settled(kind=kind, curve=preset.curve, **own)


MODELS = {
    "servegen-deepseek-r1": "deepseek-r1",
    "servegen-large": "m-large",
    "servegen-mid": "m-mid",
    "servegen-small": "m-small",
    "servegen-image": "mm-image",
}


@pytest.mark.parametrize("name", MODELS)
def test_a_client_preset_is_that_of_the_clients_of_its_trace(name: str) -> None:
    """Zipf by maximum likelihood of the shares; cv the median over windows and its spread, weighted by requests."""
    clients = settled(kind="clients", preset=name)
    every = columns("servegen_client_windows_day1.csv.gz", "model", "client", "rate", "cv")
    rows = [row for row in every if row[0] == MODELS[name] and float(row[2]) > 0]
    by_client: dict[str, float] = {}
    for _, client, rate, _ in rows:
        by_client[client] = by_client.get(client, 0.0) + float(rate)
    shares = np.sort(np.array(list(by_client.values())))[::-1] / sum(by_client.values())
    assert shares.size == clients.clients
    logs = np.log(np.arange(1, shares.size + 1))
    exponents = np.arange(0.5, 2.0, 0.005)
    losses = [s * (shares @ logs) + math.log(np.exp(-s * logs).sum()) for s in exponents]
    assert exponents[int(np.argmin(losses))] == pytest.approx(clients.zipf, abs=0.01)
    rates, cvs = np.array([(float(rate), float(cv)) for *_, rate, cv in rows]).T
    order = np.argsort(cvs)
    middle = np.searchsorted(np.cumsum(rates[order]), rates.sum() / 2)
    assert cvs[order][middle] == pytest.approx(clients.cv, abs=0.01)
    cut = np.log(np.clip(cvs, 0.1, math.sqrt(10)))
    spread = math.sqrt(np.average((cut - np.average(cut, weights=rates)) ** 2, weights=rates))
    assert spread == pytest.approx(clients.cv_sigma, abs=0.01)


def minutes(file: str, n_bins: int) -> Int64s:
    """Counts of the whole minutes."""
    stamps = read_trace(trace_file(file)).stamp_ns
    return np.bincount((stamps - stamps[0]) // MINUTE_NS)[:n_bins]


def hour(counts: Int64s, number: int) -> Int64s:
    """The minutes of the hour with the busiest one, which must be that hour."""
    assert int(counts.argmax()) // 60 == number
    return counts[60 * number : 60 * (number + 1)]


def web() -> Floats:
    """From 02:00:00 EDT, the first request, on; smoothed."""
    seconds = np.array(columns("nasa_http_1995-08-01.csv.gz", "unix_time"), np.int64).ravel()
    bins = hour(np.bincount((seconds - 807_256_800) // 60), 8)
    smoothed: Floats = (np.roll(bins, 1) + 2 * bins + np.roll(bins, -1)) / 4
    return smoothed


def launch() -> Int64s:
    """STS-70 was launched at 09:41:55 EDT."""
    counts = np.array(columns("nasa_http_1995-07-13_counts.csv.gz", "count"), np.int64)
    return hour(counts.reshape(-1, 60).sum(axis=1), 9)


COUNTS: dict[str, Callable[[], NDArray[Any]]] = {
    "azure-conversation": lambda: minutes("azure_llm_conv_2023.csv.gz", 58),
    "mooncake-conversation": lambda: minutes("mooncake_conversation_fast25.jsonl.gz", 59),
    "nasa-web": web,
    "nasa-flash-crowd": launch,
}


@pytest.mark.parametrize("name", COUNTS)
def test_a_curve_is_that_of_its_trace(name: str) -> None:
    counts = COUNTS[name]()
    curve = [float(f"{count:.3g}") for count in counts / counts.mean()]
    assert PRESETS[name]["envelope"]["curve"] == curve
