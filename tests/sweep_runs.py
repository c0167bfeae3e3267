"""Experiments and what stands for their runs: figures that are known beforehand, no server, no clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from squall.analysis.record import to_json
from squall.analysis.studies.sweep_result import Sweep
from squall.analysis.studies.sweep_rows import Figures
from squall.cluster.commands.decisions.site import Site
from squall.cluster.commands.decisions.sweeper import Asked, Surroundings, run_sweep
from squall.cluster.driver.run import RunResult
from squall.cluster.interrupts import Interrupts
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.experiment import Experiment, load_experiment

POISSON = {"kind": "poisson", "rate": "60/s"}
SCENARIO: dict[str, Any] = {
    "name": "held", "seed": 1, "model": {"name": "linear_head"},
    "phases": [
        {"name": "warm", "kind": "warmup", "duration": "1s", "arrivals": POISSON},
        {"name": "burst", "kind": "measure", "duration": "2s", "arrivals": POISSON},
        {"name": "end", "kind": "drain", "duration": "1s"},
    ],
}  # fmt: skip
MATRIX = {"model.max_batch_size": [1, 8], "model.queue_delay": ["0s", "5ms"]}
SITE = Site("1.0", "some CPU", 2, (), "")
OTHER_SITE = Site("1.0", "some CPU", 2, ("some GPU",), "500.1")

FiguresOf = Callable[[Scenario, int], Figures]
"""Of a scenario that is run, and how many runs were begun before."""


def write_experiment(folder: Path, **changes: Any) -> Path:
    """An experiment file of four cells, two seeds, without fresh runs of the best cell."""
    path = folder / "experiment.yaml"
    stated = {"scenario": SCENARIO, "matrix": MATRIX, "repeats": 2, "confirm": 0, **changes}
    path.write_text(
        yaml.safe_dump({key: value for key, value in stated.items() if value is not None}, sort_keys=False)
    )
    return path


def load(folder: Path, **changes: Any) -> Experiment:
    """That of `write_experiment`."""
    return load_experiment(write_experiment(folder, **changes))


def figures(p95_ns: float = 5e6, throughput_hz: float = 60.0, **changes: Any) -> Figures:
    """Of a run of 120 requests without failures."""
    known: dict[str, Any] = {
        "n": 120, "p50_ns": p95_ns / 2, "p95_ns": p95_ns, "p99_ns": 2 * p95_ns, "throughput_hz": throughput_hz,
        "offered_hz": 60.0, **changes,
    }  # fmt: skip
    return Figures(**known)


def by_batch(scenario: Scenario, _: int) -> Figures:
    """A seed adds its tenth; a larger batch is slower, and lets more through."""
    batch, delay_ms = scenario.models[0].model.max_batch_size, scenario.models[0].model.queue_delay_ns / 1e6
    p95_ms = (4.0 + 0.5 * batch + 0.1 * delay_ms) * (1.0 + 0.1 * (scenario.seed % 7))
    wobble = 1.0 + 0.002 * ((13 * scenario.seed + 5 * batch + int(delay_ms)) % 11)
    return figures(1e6 * p95_ms * wobble, 50.0 + batch)


@dataclass
class FakeRuns:
    """Stands for `run_scenario`: `statuses` of runs by number, else VALID; an exception is raised."""

    figures_of: FiguresOf = by_batch
    statuses: Mapping[int, str | BaseException] = field(default_factory=dict)
    before: Callable[[int, Interrupts], None] = lambda _, __: None
    digests: list[str] = field(default_factory=list)
    found: dict[str, Figures] = field(default_factory=dict)

    def __call__(self, one: Scenario, out: Path, ray: str | None, interrupts: Interrupts) -> RunResult:
        del ray
        number = len(self.digests)
        self.digests.append(one.digest())
        run_dir = out / f"run-{one.digest()[:12]}-{len(list(out.iterdir()))}"
        run_dir.mkdir()
        self.before(number, interrupts)
        status = self.statuses.get(number, "VALID")
        if isinstance(status, BaseException):
            raise status
        self.found[run_dir.name] = self.figures_of(one, number)
        return RunResult(run_dir, None, status)

    def read(self, result: RunResult) -> tuple[Figures, str]:
        """Its figures, and why it is not VALID."""
        return self.found[result.run_dir.name], "" if result.status == "VALID" else "send lag"

    def around(self, site: Site = SITE) -> Surroundings:
        """The surroundings of a sweep of these runs, in which no time passes."""
        return Surroundings(self, self.read, lambda _: site, lambda: (), lambda: 0.0, lambda _: None)


def sweep(
    experiment: Experiment,
    out: Path,
    runs: FakeRuns,
    resume: Path | None = None,
    site: Site = SITE,
    is_forced: bool = False,
    interrupts: Interrupts | None = None,
) -> tuple[Path, Sweep]:
    """A sweep of `runs`, or the rest of one."""
    asked = Asked(out, resume, None, is_forced, Path("experiment.yaml"))
    return run_sweep(experiment, asked, interrupts or Interrupts(), runs.around(site))


def comparable(found: Sweep) -> list[dict[str, Any]]:
    """Its rows without what a second sweep of the same cells has otherwise: times and names of folders."""
    rows: list[dict[str, Any]] = to_json(found)["runs"]
    return [{key: value for key, value in row.items() if key not in ("run", "wall_s")} for row in rows]
