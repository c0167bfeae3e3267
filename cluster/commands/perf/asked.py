"""What a command line of perf_analyzer asks for, checked as perf_analyzer checks it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeVar

from squall.cluster.commands.headers import headers_typed
from squall.cluster.commands.options import on_disk
from squall.cluster.commands.perf.flags import FLAGS, Typed
from squall.cluster.commands.perf.intervals import Intervals, read_intervals
from squall.cluster.commands.perf.ranges import Range, parse_range
from squall.cluster.commands.perf.requesting import Lengths, Parameters, lengths_of, parameters_of
from squall.cluster.commands.perf.tls import Tls, tls_of
from squall.scenarios.config.inputs import DataConfig
from squall.scenarios.data.opening import is_validated
from squall.scenarios.errors import ScenarioError
from squall.scenarios.records import Frozen

LoadMode = Literal["concurrency", "request rate", "intervals"]
_DEFAULTS = {
    "service-kind": "triton", "i": "http", "b": "1", "measurement-mode": "time_windows", "measurement-interval": "5000",
    "measurement-request-count": "50", "request-count": "0", "warmup-request-count": "0", "stability-percentage": "10",
    "max-trials": "10", "percentile": "-1", "latency-threshold": "0", "request-distribution": "constant",
    "shared-memory": "none", "input-tensor-format": "binary", "output-tensor-format": "binary",
    "grpc-compression-algorithm": "none", "string-length": "128", "metrics-interval": "1000", "seed": "1",
    "num-of-sequences": "4", "sequence-length": "20", "sequence-length-variation": "20",
}  # fmt: skip
"""perf_analyzer's, and of the seed squall's."""
_CHOICES: dict[str, tuple[str, ...]] = {
    "service-kind": ("triton", "triton_c_api", "tfserving", "torchserve", "openai", "dynamic_grpc"),
    "i": ("http", "grpc"),
    "measurement-mode": ("time_windows", "count_windows"),
    "request-distribution": ("constant", "poisson"),
    "shared-memory": ("none", "system", "cuda"),
    "input-tensor-format": ("binary", "json"),
    "output-tensor-format": ("binary", "json"),
    "grpc-compression-algorithm": ("none", "gzip", "deflate"),
}
_LEAST = {
    "b": 1, "measurement-interval": 1, "measurement-request-count": 1, "request-count": 0, "warmup-request-count": 0,
    "max-trials": 1, "latency-threshold": 0, "string-length": 1, "metrics-interval": 10, "seed": 0, "random-seed": 0,
    "t": 1, "c": 1, "num-of-sequences": 1, "sequence-length": 1,
}  # fmt: skip
_MOST_PERCENTILE = 99
_NAMES = {flag.name for flag in FLAGS}
_Found = TypeVar("_Found")


class Asked(Frozen):
    """A command line. Of values that it does not state perf_analyzer's defaults.

    `levels`: None of request intervals; `percentile`: None where the average is asked for; `latency_threshold_ns`: None
    without; `input_data`: `random`, `zero`, or paths; `shapes`: dims by input; `n_verbose`: how often -v was given.
    """

    model: str
    version: str | None
    url: str | None
    http_url: str | None
    protocol: Literal["http", "grpc"]
    batch_size: int
    mode: LoadMode
    levels: Range | None
    is_binary: bool
    is_poisson: bool
    intervals: Intervals | None
    counts_windows: bool
    window_ns: int
    window_requests: int
    n_requests: int
    n_warmup: int
    stability_ratio: float
    max_trials: int
    percentile: int | None
    latency_threshold_ns: int | None
    is_async: bool
    input_data: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]
    string_length: int
    string_data: str | None
    is_json: bool
    is_streaming: bool
    is_gzip: bool
    parameters: Parameters
    lengths: Lengths
    n_sequences: int
    shares_memory: bool
    headers: dict[str, str]
    tls: Tls
    report: Path | None
    is_verbose_report: bool
    export: Path | None
    collects_metrics: bool
    metrics_url: str | None
    metrics_interval_ns: int
    n_verbose: int
    seed: int
    ray: str | None
    out: Path | None
    save_scenario: Path | None
    is_dry: bool

    @property
    def is_from_files(self) -> bool:
        """Whether inputs come from files."""
        return self.input_data not in (("zero",), ("random",))

    @cached_property
    def is_validated(self) -> bool:
        """Whether these say what replies must be. Raises ScenarioError for a file that cannot be read."""
        return self.is_from_files and is_validated(DataConfig(path=self.input_data[0]))


def asked_of(typed: Typed) -> Asked:
    """Raises ScenarioError for a value that a flag does not take, and for flags that do not go together."""
    get = _Values(typed)
    if not get.text("m"):
        raise ScenarioError("perf: -m MODEL is missing")
    mode, levels = _load_of(get)
    found = Asked(
        model=get.text("m") or "",
        version=get.text("x"),
        url=get.text("u"),
        http_url=get.text("http-url"),
        protocol="grpc" if get.choice("i") == "grpc" else "http",
        batch_size=get.number("b"),
        mode=mode,
        levels=levels,
        is_binary=get.has("binary-search") and levels is not None,
        is_poisson=get.choice("request-distribution") == "poisson",
        intervals=_intervals(get),
        counts_windows=get.choice("measurement-mode") == "count_windows",
        window_ns=get.number("measurement-interval") * 1_000_000,
        window_requests=get.number("measurement-request-count"),
        n_requests=get.number("request-count"),
        n_warmup=get.number("warmup-request-count"),
        stability_ratio=get.real("stability-percentage") / 100,
        max_trials=get.number("max-trials"),
        percentile=_percentile(get),
        latency_threshold_ns=get.number("latency-threshold") * 1_000_000 or None,
        is_async=get.has("async") or get.has("streaming"),
        input_data=_input_data(get),
        shapes=dict(_shape(one) for one in get.all("shape")),
        string_length=get.number("string-length"),
        string_data=get.text("string-data") or None,
        is_json=get.choice("input-tensor-format") == "json" and get.choice("i") == "http",
        is_streaming=get.has("streaming"),
        parameters=parameters_of(get.all("request-parameter")),
        lengths=lengths_of(get.number("sequence-length"), get.real("sequence-length-variation") / 100),
        n_sequences=get.number("num-of-sequences"),
        is_gzip=get.choice("grpc-compression-algorithm") == "gzip",
        shares_memory=get.choice("shared-memory") == "system",
        headers=headers_typed(get.all("H")),
        tls=tls_of(typed, get.choice("i") == "grpc"),
        report=get.target("latency-report-file"),
        is_verbose_report=get.has("verbose-csv"),
        export=get.target("profile-export-file"),
        collects_metrics=get.has("collect-metrics"),
        metrics_url=get.text("metrics-url"),
        metrics_interval_ns=get.number("metrics-interval") * 1_000_000,
        n_verbose=len(get.all("v")),
        seed=get.number("random-seed" if get.has("random-seed") else "seed"),
        ray=get.text("ray"),
        out=on_disk(get.path("out")),
        save_scenario=get.target("save-scenario"),
        is_dry=get.has("dry-run"),
    )
    _refuse_odd(found, get)
    return found


class _Values:
    """Values of flags by their names, checked; the last one where a flag was given more than once."""

    def __init__(self, typed: Typed) -> None:
        self._typed = typed

    def has(self, name: str) -> bool:
        return name in self._typed

    def all(self, name: str) -> Sequence[str]:
        return self._typed.get(name, ())

    def text(self, name: str) -> str | None:
        given = self.all(name)
        return given[-1] if given else _DEFAULTS.get(name)

    def choice(self, name: str) -> str:
        found, allowed = (self.text(name) or "").lower(), _CHOICES[name]
        if found not in allowed:
            raise ScenarioError(f"{shown(name)}: {self.text(name)!r} is none of {', '.join(allowed)}")
        return found

    def number(self, name: str) -> int:
        text = self.text(name) or ""
        try:
            found = int(text)
        except ValueError as error:
            raise ScenarioError(f"{shown(name)}: {text!r} is not a whole number") from error
        least = _LEAST.get(name)
        if least is not None and found < least:
            raise ScenarioError(f"{shown(name)}: {text} is below {least}")
        return found

    def real(self, name: str) -> float:
        text = self.text(name) or ""
        try:
            found = float(text)
        except ValueError as error:
            raise ScenarioError(f"{shown(name)}: {text!r} is not a number") from error
        if not 0.0 <= found < float("inf"):
            raise ScenarioError(f"{shown(name)}: {text} is not from 0 on")
        return found

    def path(self, name: str) -> Path | None:
        text = self.text(name)
        return None if text is None else Path(text)

    def target(self, name: str) -> Path | None:
        """A file that is to be written when all has been measured."""
        found = self.path(name)
        if found is not None and (found.is_dir() or not os.access(found.parent, os.W_OK | os.X_OK)):
            why = "is a folder" if found.is_dir() else f"{found.parent} is no folder that can be written to"
            raise ScenarioError(f"{shown(name)}: {found}: {why}")
        return found

    def file(self, name: str) -> Path | None:
        found = self.path(name)
        if found is not None and not found.is_file():
            raise ScenarioError(f"{shown(name)}: {found}: no such file")
        return found


def shown(name: str) -> str:
    """A flag as it is typed."""
    assert name in _NAMES, name
    return f"-{name}" if len(name) == 1 else f"--{name}"


def _load_of(get: _Values) -> tuple[LoadMode, Range | None]:
    """What is varied, and its range."""
    modes = ("concurrency-range", "request-rate-range", "request-intervals")
    given = [name for name in modes if get.has(name)]
    old = [name for name in ("t", "c", "d") if get.has(name)]
    if len(given) > 1 or (given and old):
        both = [*given, *old][:2]
        raise ScenarioError(
            f"{shown(both[0])} and {shown(both[1])} exclude each other: one kind of load at a time"
        )
    if given == ["request-intervals"]:
        return "intervals", None
    if given == ["request-rate-range"]:
        return "request rate", parse_range(
            "--request-rate-range", get.text("request-rate-range") or "", is_whole=False
        )
    if old:
        start = get.number("t") if get.has("t") else 1
        end = get.number("c") if get.has("d") and get.has("c") else start
        return "concurrency", parse_range("-t, -c", f"{start}:{end}", is_whole=True)
    text = get.text("concurrency-range") or "1"
    return "concurrency", parse_range("--concurrency-range", text, is_whole=True)


def _intervals(get: _Values) -> Intervals | None:
    path = get.file("request-intervals")
    return None if path is None else read_intervals(path)


def _percentile(get: _Values) -> int | None:
    found = get.number("percentile")
    if found != -1 and not 1 <= found <= _MOST_PERCENTILE:
        raise ScenarioError(f"--percentile: {found} is neither -1 nor from 1 to {_MOST_PERCENTILE}")
    return None if found == -1 else found


def _input_data(get: _Values) -> tuple[str, ...]:
    given = tuple(get.all("input-data"))
    paths = (*(one for one in given if one not in ("zero", "random")), *get.all("data-directory"))
    is_zero = get.has("z") or "zero" in given
    if paths and is_zero:
        raise ScenarioError(f"--input-data: zero data and {paths[0]!r} exclude each other")
    for path in paths:
        if not Path(path).exists():
            raise ScenarioError(
                f"--input-data: {path!r} is neither zero nor random, and no such file or folder"
            )
    return paths or (("zero",) if is_zero else ("random",))


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, colon, dims = text.rpartition(":")
    try:
        found = tuple(int(one) for one in dims.split(","))
    except ValueError as error:
        raise ScenarioError(f"--shape: {text!r} is not name:dim,dim") from error
    if not colon or not name or min(found) <= 0:
        raise ScenarioError(f"--shape: {text!r} is not name:dim,dim with dims above 0")
    return name, found


def _refuse_odd(asked: Asked, get: _Values) -> None:
    """Flags that perf_analyzer does not take together either."""
    levels = asked.levels
    if get.has("async") and get.has("sync"):
        raise ScenarioError("--async and --sync exclude each other")
    for name, value in (("--request-count", asked.n_requests), ("--warmup-request-count", asked.n_warmup)):
        if value and levels is not None and levels.has_several:
            raise ScenarioError(f"{name}: is for one level, and the range has several")
    if asked.n_requests and levels is not None and asked.n_requests < levels.start:
        raise ScenarioError(
            f"--request-count: {asked.n_requests} is below the level of {float(levels.start):g}"
        )
    if levels is not None and levels.is_open and asked.latency_threshold_ns is None:
        raise ScenarioError("a range whose end is 0 needs --latency-threshold: it would have no end")
    if asked.is_binary:
        _refuse_binary(asked, levels)
    if asked.export is not None and asked.export.exists():
        raise ScenarioError(f"--profile-export-file: {asked.export} is there already")
    if not asked.collects_metrics and (get.has("metrics-url") or get.has("metrics-interval")):
        raise ScenarioError("--metrics-url and --metrics-interval need --collect-metrics")
    if asked.is_streaming and (asked.protocol == "http" or get.has("sync")):
        raise ScenarioError("--streaming: needs -i grpc" + (", and not --sync" if get.has("sync") else ""))
    if asked.protocol == "http" and get.choice("grpc-compression-algorithm") != "none":
        raise ScenarioError("--grpc-compression-algorithm: needs -i grpc")


def _refuse_binary(asked: Asked, levels: Range | None) -> None:
    if levels is None or levels.is_open or levels.end < levels.start:
        raise ScenarioError("--binary-search: needs a range with an end that is not below its start")
    if asked.latency_threshold_ns is None:
        raise ScenarioError("--binary-search: needs --latency-threshold")
