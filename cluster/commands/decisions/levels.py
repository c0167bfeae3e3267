"""One level of load as a run: the scenario at that rate, run, read, and kept as a row."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

from squall.analysis.compare.figures import INVALID, PromiseFigures
from squall.analysis.compare.run_row import RunRow, run_row
from squall.analysis.findings.finding import UNASSESSED
from squall.analysis.report.summary_file import Summary
from squall.analysis.storage.store import RunStore
from squall.analysis.studies.capacity_probe import CONFIRM, LOW, Margin, Probe, margin_of
from squall.analysis.studies.capacity_rows import Row
from squall.analysis.wording import rate_text, share_text
from squall.cluster.driver.run import RunResult
from squall.cluster.measured import Measured, Measurer
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.plan.rates import Scale, factor_of, scaled_scenario
from squall.scenarios.promises import Promise

_PURPOSES = {LOW: ", far below the edge", CONFIRM: ", is the safe load kept"}


ReadRun = Callable[[RunResult], RunRow]
"""`read_run`, or what stands for it in a test."""


def read_run(result: RunResult) -> RunRow:
    """The row of a run with or without requests."""
    return run_row(RunStore.open(result.run_dir))


@dataclass
class Levels:
    """Measures levels of one scenario, and keeps a row of each run.

    `base_hz`: the scenario's own mean rate. What `rows` has already, by the digest of what would run, is not run again.
    `kept`: hears after each run.
    """

    scenario: Scenario
    base_hz: float
    scale: Scale
    variant: str
    measurer: Measurer
    rows: list[Row]
    kept: Callable[[], None]
    read: ReadRun = read_run
    n_server_nodes: int | None = field(default=None, init=False)

    def measure(self, seed: int, rate_hz: float, purpose: str) -> Probe:
        """The level nearest to `rate_hz` that a factor of a few digits gives. Raises as `Measurer.measure` does."""
        factor = factor_of(rate_hz / self.base_hz)
        own = self._at(seed, factor)
        digest = own.digest()
        known = [
            one
            for one in self.rows
            if one.digest == digest and one.variant == self.variant and not one.is_replaced
        ]
        if known:
            return known[-1].probe
        at_hz = self.base_hz * float(factor)
        title = f"{self._name}seed {seed} at {rate_text(at_hz)}{_PURPOSES.get(purpose, '')}"
        for one in self.measurer.measure(own, title):
            self._keep(one, at_hz, factor, purpose)
        row = self.rows[-1]
        self.measurer.screen.step(_told(row))
        return row.probe

    @property
    def _name(self) -> str:
        return f"{self.variant}: " if self.variant != "all" else ""

    def _at(self, seed: int, factor: Fraction) -> Scenario:
        seeded = scenario_from_mapping({**self.scenario.to_mapping(), "seed": seed}, self.scenario.name)
        return scaled_scenario(seeded, factor, self.scale)

    def _keep(self, one: Measured, at_hz: float, factor: Fraction, purpose: str) -> None:
        promises = self.scenario.promises or ()
        row = self.read(one.result)
        self.n_server_nodes = row.n_server_nodes or self.n_server_nodes
        self.rows.append(_row(one, promises, row, self.variant, at_hz, str(factor), purpose))
        self.kept()


def _row(
    one: Measured,
    promises: tuple[Promise, ...],
    row: RunRow,
    variant: str,
    at_hz: float,
    factor: str,
    purpose: str,
) -> Row:
    result, summary = one.result, one.result.summary
    figures = summary.promises if summary is not None else None
    found = _margin(result, promises, figures or ())
    place = next((i for i, promise in enumerate(promises) if promise.text == found.binding), None)
    bound = figures[place] if figures and place is not None else None
    return Row(
        variant=variant,
        purpose=purpose,
        seed=one.scenario.seed,
        rate_hz=at_hz,
        factor=factor,
        digest=one.scenario.digest(),
        run=result.run_dir.name,
        status=result.status,
        is_replaced=one.is_replaced,
        seconds=one.seconds,
        verdict=found.verdict,
        margin=found.margin,
        binding=found.binding,
        figure=None if bound is None else bound.value,
        limit=None if place is None else float(promises[place].limit),
        is_saturated=None if row.level is None else row.level.is_saturated,
        reason=found.reason,
        cause=_cause(summary) if found.verdict == INVALID else "",
        bottleneck="" if summary is None else bottleneck_text(summary),
        n_servers=row.n_servers,
        queue_delay_ns=row.queue_delay_ns,
        **({} if row.level is None else vars(row.level)),
    )


def _margin(result: RunResult, promises: tuple[Promise, ...], figures: tuple[PromiseFigures, ...]) -> Margin:
    summary = result.summary
    if result.status != "VALID" or not figures:
        reasons = summary.verdict.reasons if summary is not None else ()
        return Margin(INVALID, None, "", reasons[0] if reasons else f"the run is {result.status}")
    return margin_of(promises, figures)


def _cause(summary: Summary | None) -> str:
    """Kind of what made a run INVALID, as the verdict has it; empty where it names none."""
    causes = summary.verdict.causes if summary is not None else ()
    return causes[0].kind if causes else ""


def bottleneck_text(summary: Summary) -> str:
    """What the diagnosis of a run says that limits it, and what to try first: of the first cause that it names; else
    where the time of late requests went; empty where neither is known."""
    for one in summary.findings:
        if one.level == "window" and one.rule not in ("none", UNASSESSED):
            return f"{one.claim} {one.next_step}".strip()
    for promise in summary.promises or ():
        if promise.late is not None:
            return f"of late requests {promise.late.grew_most} grew most"
    return ""


def _told(row: Row) -> str:
    """The outcome of a level for the screen."""
    if row.margin is None:
        return f"{row.verdict}: {row.reason or row.binding or 'the figure is infinite'}"
    return f"{row.verdict}: {row.binding}, at {share_text(math.exp(row.margin))} of its limit"
