"""The search of `squall perf`: level after level, what each came to, and what is written of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from importlib.metadata import version
from typing import Literal

from squall.analysis.storage.store import RunStore
from squall.analysis.studies.perf_level import LevelFigures, level_figures
from squall.analysis.studies.perf_report import Experiment, ReportOptions, csv_text, export_json
from squall.analysis.studies.perf_windows import joined, spread_ratio
from squall.analysis.studies.perf_words import (
    microseconds,
    number,
    told,
)
from squall.cluster.commands.ending import EXIT_BROKEN, EXIT_INVALID, EXIT_UNDECIDED
from squall.cluster.commands.perf.asked import Asked
from squall.cluster.commands.perf.mapping import Load, scenario_of
from squall.cluster.commands.perf.ranges import binary, linear
from squall.cluster.commands.perf.served import Place, Served
from squall.cluster.commands.perf.trials import Trial, next_load, read_trial
from squall.cluster.measured import Measurer, write_text
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.records import Frozen
from squall.scenarios.units import NS_PER_S, format_duration

Ending = Literal["stable", "over", "unstable", "failed"]
"""What became of a level: told, above the latency threshold, not stable, or with requests that failed."""


class LevelResult(Frozen, eq=False):
    """A level that was measured. `is_valid`: the run delivered what was asked of it."""

    ending: Ending
    figures: LevelFigures | None
    experiment: Experiment
    is_valid: bool


@dataclass
class Search:
    """Measures levels and tells of each. `say`: a line of
    the report; `warn`: a line beside it."""

    asked: Asked
    place: Place
    served: Served
    measurer: Measurer
    say: Callable[[str], None]
    warn: Callable[[str], None]
    results: list[LevelResult] = field(default_factory=list)

    def run(self) -> None:
        """All levels. Raises what a run raises; what was measured by then is in `results`."""
        levels = self.asked.levels
        if levels is None:
            self._measure(None)
            return
        walk = binary(levels) if self.asked.is_binary else linear(levels)
        level = next(walk, None)
        while level is not None:
            is_met = self._measure(level)
            try:
                level = walk.send(is_met)
            except StopIteration:
                level = None

    def write(self) -> None:
        """The lines at the end, and the files that were asked for. Raises StoreError."""
        shown = [
            one.figures
            for one in self.results
            if one.figures is not None and one.ending in ("stable", "failed")
        ]
        for line in told("summary", self.asked.mode, shown, self.asked.percentile):
            self.say(line)
        if self.asked.report is not None and shown:
            options = ReportOptions(
                self.asked.mode,
                self.asked.percentile,
                self.asked.is_verbose_report,
                self.asked.collects_metrics,
            )
            write_text(self.asked.report, csv_text(shown, options))
        if self.asked.export is not None and self.results:
            document = export_json([one.experiment for one in self.results], f"squall {version('squall')}")
            write_text(self.asked.export, json.dumps(document, separators=(",", ":")))

    @property
    def exit_code(self) -> int:
        """0 where every level is stable and valid, or over the threshold that ends the search."""
        endings = {one.ending for one in self.results}
        if "failed" in endings:
            return EXIT_BROKEN
        if not all(one.is_valid for one in self.results):
            return EXIT_INVALID
        return EXIT_UNDECIDED if "unstable" in endings else 0

    def scenario(self, load: Load) -> Scenario:
        """Of a level, as it is run."""
        return scenario_of(self.asked, self.place, self.served, load)

    def rate_hz(self, level: Fraction | None) -> float | None:
        """Requests a second of a schedule; None of a closed loop."""
        if self.asked.mode == "request rate" and level is not None:
            return float(level)
        return None if self.asked.intervals is None else self.asked.intervals.rate_hz

    def _measure(self, level: Fraction | None) -> bool:
        """Whether the level was stable, without failures, and within the threshold."""
        shown = float(level) if level is not None else self.rate_hz(None) or 0.0
        title = "".join(told("heading", self.asked.mode, shown))
        if title:
            self.say(title)
        trial, n_windows = self._trial(level, shown)
        result = self._result(shown, trial)
        self.results.append(result)
        self._tell(shown, trial, result, n_windows)
        return result.ending == "stable"

    def _trial(self, level: Fraction | None, shown: float) -> tuple[Trial, int]:
        """The run that counts: the first that is stable and VALID, else the last that is stable, else the last; and how
        many windows were looked at."""
        tried: list[Trial] = []
        what, hz = self._what(shown), self.rate_hz(level)
        load = next_load(self.asked, level, hz, ())
        while load is not None:
            tried.append(self._once(load, what))
            if tried[-1].first is not None and tried[-1].is_valid:
                break
            load = next_load(self.asked, level, hz, [one.seen for one in tried])
            if load is not None:
                self.warn(f"{what} once more: {_why_again(tried[-1])}")
        stable = [one for one in tried if one.first is not None]
        return (stable or tried)[-1], sum(len(one.windows) for one in tried)

    def _once(self, load: Load, what: str) -> Trial:
        length = format_duration(load.measured_ns)
        result = self.measurer.once(self.scenario(load), f"{what}: {length} to be measured").result
        reasons = result.summary.verdict.reasons if result.summary is not None else ()
        reason = reasons[0] if reasons else f"the run is {result.status}"
        return read_trial(self.asked, load, RunStore.open(result.run_dir), result.status == "VALID", reason)

    def _result(self, shown: float, trial: Trial) -> LevelResult:
        edges = [one.start_ns for one in trial.windows[:1]] + [one.end_ns for one in trial.windows]
        inside = (
            joined(trial.windows, trial.requests).requests if trial.windows else trial.requests.between(0, 0)
        )
        experiment = Experiment(self.asked.mode, shown, edges, inside)
        if not trial.counted:
            return LevelResult("unstable", None, experiment, trial.is_valid)
        figures = level_figures(
            shown, self.asked.batch_size, self.asked.percentile, joined(trial.counted, trial.requests), trial.windows,
            trial.first_counted, trial.store,
        )  # fmt: skip
        return LevelResult(self._ending(trial, figures), figures, experiment, trial.is_valid)

    def _ending(self, trial: Trial, figures: LevelFigures) -> Ending:
        limit_ns = self.asked.latency_threshold_ns
        if figures.n_failed:
            return "failed"
        if limit_ns is not None and figures.stable_in_ns >= limit_ns:
            return "over"
        return "unstable" if trial.first is None else "stable"

    def _tell(self, shown: float, trial: Trial, result: LevelResult, n_windows: int) -> None:
        figures = result.figures
        if figures is None:
            self.warn(
                f"no window of {self._what(shown)} has enough requests: use a longer --measurement-interval"
            )
            return
        for line in told(
            "level", figures, self.asked.percentile, self.asked.protocol == "grpc", self.asked.n_verbose > 0
        ):
            self.say(line)
        if self.asked.collects_metrics:
            for line in told("metrics", figures.gpus):
                self.say(line)
            if not figures.gpus:
                self.warn(
                    "no GPU was sampled: NVML is read on the server's node, where that is one of the cluster"
                )
        if not result.is_valid:
            self.warn(f"[WARNING] {self._what(shown)} is INVALID: {trial.reason}")
        if result.ending == "over":
            limit_ms = (self.asked.latency_threshold_ns or 0) // 1_000_000
            self.warn(
                f"Measured latency went over the set limit of {limit_ms} msec:"
                f" {microseconds(figures.stable_in_ns)} usec"
            )
        if result.ending == "unstable":
            self.warn(_unstable(self.asked, self._what(shown), figures, n_windows))

    def _what(self, shown: float) -> str:
        return "request intervals" if self.asked.mode == "intervals" else f"{self.asked.mode} {number(shown)}"


def _why_again(trial: Trial) -> str:
    if not trial.is_valid:
        return trial.reason
    return "the windows are not stable" if trial.windows else "too few requests"


def _unstable(asked: Asked, what: str, figures: LevelFigures, n_windows: int) -> str:
    """By how much the windows that were looked at last differ."""
    last = slice(figures.first_counted, None)
    hz, latency = (100 * spread_ratio(values[last]) for values in (figures.pass_hz, figures.pass_latency_ns))
    flag = "--measurement-request-count" if asked.counts_windows else "--measurement-interval"
    return (
        f"Failed to obtain stable measurement within {n_windows} measurement windows for {what}: the last differ by"
        f" {number(round(hz, 1))} % in throughput and {number(round(latency, 1))} % in latency. Please try to increase"
        f" the {flag}; these figures stand in no CSV"
    )


def settings_lines(asked: Asked) -> list[str]:
    """What perf_analyzer prints before it sends."""
    lines = ["*** Measurement Settings ***", f"  Batch size: {asked.batch_size}", "  Service Kind: TRITON"]
    if asked.n_warmup:
        lines.append(f"  Sending {asked.n_warmup} warmup request{'s' if asked.n_warmup > 1 else ''}")
    if asked.n_requests:
        lines.append(f"  Sending {asked.n_requests} benchmark request{'s' if asked.n_requests > 1 else ''}")
    else:
        lines += _stabilizing(asked)
    lines += _limits(asked)
    if asked.mode == "request rate":
        kind = "poisson" if asked.is_poisson else "uniform"
        lines.append(f"  Using {kind} distribution on request generation")
    if asked.is_binary:
        lines.append("  Using Binary Search algorithm")
    return [*lines, f"  Using {'asynchronous' if asked.is_async else 'synchronous'} calls for inference", ""]


def _stabilizing(asked: Asked) -> list[str]:
    mode = "count_windows" if asked.counts_windows else "time_windows"
    of = "average" if asked.percentile is None else f"p{asked.percentile}"
    what = "throughput" if asked.is_async else "latency and throughput"
    window = (
        f"  Minimum number of samples in each window: {asked.window_requests}"
        if asked.counts_windows
        else f"  Measurement window: {asked.window_ns // (NS_PER_S // 1_000)} msec"
    )
    return [f'  Using "{mode}" mode for stabilization', f"  Stabilizing using {of} {what}", window]


def _limits(asked: Asked) -> Sequence[str]:
    levels = asked.levels
    if levels is None or levels.end == 1:
        return []
    limit = f"  Latency limit: {(asked.latency_threshold_ns or 0) // 1_000_000} msec"
    if levels.is_open:
        return [limit]
    most = number(float(max(levels.start, levels.end)))
    if asked.mode == "concurrency":
        return [limit, f"  Concurrency limit: {most} concurrent requests"]
    return [limit, f"  Request Rate limit: {most} requests per seconds"]
