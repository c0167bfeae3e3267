"""The runs that repeat a run, and quantiles over all of them with an interval from run to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from squall.analysis.arrays import Bools, Int64s
from squall.analysis.requests.requests import Labels, Requests, is_open_load, together
from squall.analysis.statistics.latency import LEAST_RUNS, Quantile, pooled_quantile
from squall.analysis.storage.intact import require_intact
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import measure_spans
from squall.analysis.verdict.profiling import profiling_cost
from squall.scenarios.errors import StoreError
from squall.scenarios.records import Frozen


class RepeatQuantile(Quantile):
    """Over several runs. `own_ns`: each run's own quantile, None where it has none, for the eye alone."""

    own_ns: tuple[int | None, ...] = ()


class RepeatFigures(Frozen):
    """Quantiles of the latency over the `runs` that repeat one another: over all measure phases, and of each."""

    runs: tuple[str, ...]
    n_runs: int
    is_same_schedule: bool
    latency_name: str
    measure: tuple[RepeatQuantile, ...]
    by_phase: Mapping[str, tuple[RepeatQuantile, ...]]


def repeats_of(run_dir: Path) -> list[Path]:
    """The run and those beside it that repeat it, in the order they ran; empty for one that has none.

    Runs of one `squall run --measure-overhead` repeat one another where they are of the same side (with or without
    profilers), of the same scenario and seed, and of pairs that count.
    """
    run_dir = run_dir.resolve()
    found = profiling_cost(run_dir)
    if found is None or run_dir.name not in found.runs or len(found.runs) < 2:
        return []
    runs = [run_dir.parent / name for name in found.runs]
    for path in runs:
        if path.is_symlink():
            raise StoreError(f"{path} is a link, which squall makes none of: remove it")
    digests = {path: RunStore.open(path).manifest.scenario_digest for path in runs}
    return [path for path in runs if digests[path] == digests[run_dir]]


def repeat_figures(run_dir: Path, qs: Sequence[float]) -> RepeatFigures | None:
    """Quantiles of the latency over all runs that repeat this one, over all measure phases and of each.

    None for fewer than 3 runs. The runs share their schedule: the interval holds what differs from run to run, the
    machine and the server; it is that of this schedule, not of others drawn from the same process.
    """
    paths = repeats_of(run_dir)
    if len(paths) < LEAST_RUNS:
        return None
    manifest = RunStore.open(run_dir).manifest
    phases = [span.name for span in measure_spans(manifest)]
    runs = [_latencies(path, phases) for path in paths]

    def figures(names: Sequence[str]) -> tuple[RepeatQuantile, ...]:
        own = [together(phase.is_any_of(names)) for phase, _, _ in runs]
        rows = [(ns[kept], failed[kept]) for kept, (_, ns, failed) in zip(own, runs, strict=True)]
        return tuple(
            RepeatQuantile(
                **asdict(pooled_quantile(rows, q)),
                own_ns=tuple(pooled_quantile([one], q).value_ns for one in rows),
            )
            for q in qs
        )

    return RepeatFigures(
        runs=tuple(path.name for path in paths),
        n_runs=len(paths),
        is_same_schedule=True,
        latency_name="response" if is_open_load(manifest) else "service",
        measure=figures(phases),
        by_phase={name: figures([name]) for name in phases},
    )


def _latencies(path: Path, phases: Sequence[str]) -> tuple[Labels, Int64s, Bools]:
    """Of the requests of a run's measure phases, (n,) each, their phase, latency, and whether they did not end ok: of
    several runs no more is held at once."""
    store = RunStore.open(path)
    require_intact(store)
    measured = Requests.read(store).in_phases(phases)
    phase = Labels(measured.phase.codes.copy(), measured.phase.words)
    return phase, measured.latency_ns, ~measured.is_ok
