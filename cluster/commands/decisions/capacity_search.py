"""A capacity search on real runs: its folder, what is kept after each run, and how it is taken up again."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from squall.analysis.record import to_json
from squall.analysis.report.templates import decision
from squall.analysis.storage.beneath import read_plain, refuse_ways_out
from squall.analysis.storage.part import error_reason
from squall.analysis.studies.capacity_answer import SCHEMA_VERSION, Answer, Settings, answer_of, scaling
from squall.analysis.studies.capacity_page import capacity_page
from squall.analysis.studies.capacity_probe import LOW
from squall.analysis.studies.capacity_rows import Row, read_rows, rows_bytes
from squall.analysis.studies.capacity_search import Found, Options, expected_probes, search
from squall.analysis.wording import counted_text, rate_text
from squall.cluster.commands.decisions.fewer_servers import ALL, fewer
from squall.cluster.commands.decisions.levels import Levels, ReadRun, read_run
from squall.cluster.commands.decisions.minutes import Beside, phases_s
from squall.cluster.measured import Measurer, write_bytes, write_text
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError, SquallError
from squall.scenarios.foreign_text import json_of
from squall.scenarios.units import NS_PER_S

FILE, PROBES, PAGE = "capacity.json", "probes.parquet", "capacity.html"


@dataclass
class CapacitySearch:
    """Searches into `measurer.folder`. `command`: what makes it again, one a line of the page.

    After each run `probes.parquet` and `capacity.json` are whole; the page is written at the end, and after each seed.
    """

    scenario: Scenario
    settings: Settings
    measurer: Measurer
    command: str
    rows: list[Row] = field(default_factory=list)
    read: ReadRun = read_run
    answers: list[Answer] = field(default_factory=list)
    _variant: str = field(default=ALL, init=False)
    _options: Options = field(init=False)
    _found: Found = field(default_factory=lambda: Found("searching", ()), init=False)

    def run(self, by_gpus: bool) -> list[Answer]:
        """The answers: of all servers, and `by_gpus` of one and of all but one.

        Raises what a run raises, once it has said how to go on.
        """
        self._keep()  # one that ends before its first probe can be taken up, too
        try:
            levels = self._searched(ALL, self.scenario, 1.0)
            if by_gpus:
                self._search_fewer(levels)
        except (SquallError, KeyboardInterrupt):
            self.measurer.screen.step(f"goes on with --resume {shlex.quote(str(self.measurer.folder))}")
            raise
        finally:
            if self.rows:
                self._keep_page()
        return self.answers

    def to_json(self) -> dict[str, Any]:
        """What `capacity.json` holds."""
        answers = self._all_answers()
        first = answers[0]
        found = {
            "schema_version": SCHEMA_VERSION,
            "answer": decision("capacity", first, self.settings)[0],
            "settings": asdict(self.settings),
            **to_json(first),
        }
        if len(answers) > 1:
            found["by_servers"] = {one.variant: to_json(one) for one in answers}
            found["scaling_efficiency_ratio"] = scaling(answers)
        return found

    def _search_fewer(self, levels: Levels) -> None:
        """One server, and all but one, from what all of them carry on."""
        first = self.answers[0]
        n_servers = first.n_servers
        for name, n, scenario in fewer(self.scenario, n_servers, levels.n_server_nodes or 1):
            self._searched(name, scenario, n / n_servers, first.capacity_hz)

    def _searched(
        self, variant: str, scenario: Scenario, share: float, known_hz: float | None = None
    ) -> Levels:
        settings = self.settings
        self._variant, self._found = variant, Found("searching", ())
        levels = Levels(
            scenario, settings.base_hz, settings.scale, variant, self.measurer, self.rows, self._keep_run, self.read,
        )  # fmt: skip
        options = self._options = Options(
            settings.n_seeds,
            settings.first_seed,
            share * (known_hz or settings.start_hz),
            settings.most_hz,
            settings.precision,
            settings.low_ratio,
        )
        self._tell_minutes()
        found = search(levels.measure, options, self._tell)
        self.answers.append(answer_of(variant, found, self.settings, self.rows, is_done=True))
        self._keep()
        return levels

    def _tell(self, found: Found) -> None:
        """What is known after a seed, and the minutes that are left."""
        self._found = found
        self._keep()
        if not found.is_hopeless:
            self._tell_minutes()

    def _keep_run(self) -> None:
        self._keep()
        if len(self.rows) == 1:  # what a run takes beside its phases is known now
            self._tell_minutes()

    def _tell_minutes(self) -> None:
        """The runs of this search to come, and their minutes if they are as long as at the edges found, at the start
        before any."""
        options, n_done = self._options, len(self._found.seeds)
        edges = [one.rate_hz for one in self._found.seeds if one.rate_hz]
        rate_hz = math.exp(sum(map(math.log, edges)) / len(edges)) if edges else options.start_hz
        is_done = {one.seed for one in self._found.seeds}
        begun = [one for one in self.rows if one.variant == self._variant and one.seed not in is_done]
        n_left = expected_probes(options, n_done) - sum(not one.is_replaced for one in begun)
        if n_left <= 0.0 or (n_done and not edges):
            return
        beside = Beside.of((one.seconds, self._phases_s(one.rate_hz)) for one in self.rows)
        is_low_left = not n_done and options.low_ratio > 0.0 and not any(one.purpose == LOW for one in begun)
        low_s = self._phases_s(options.low_ratio * rate_hz) - self._phases_s(rate_hz) if is_low_left else 0.0
        left_s = n_left * (self._phases_s(rate_hz) + beside.seconds) + low_s
        seeds = counted_text(options.n_seeds, "seed")
        told = f"{n_done} of {seeds} are done" if n_done else seeds
        name = f"{self._variant}: " if self._variant != ALL else ""
        self.measurer.screen.step(
            f"{name}{told}, about {counted_text(round(n_left), 'probe')} to come; if these lie at"
            f" {rate_text(rate_hz)}, {beside.minutes_text(left_s)}"
        )

    def _phases_s(self, rate_hz: float) -> float:
        """How long the phases of a run at that load are, in seconds."""
        own_s = phases_s(self.scenario)
        if self.settings.scale != "time":
            return own_s
        scaled_s = sum(one.duration_ns for one in self.scenario.phases if one.arrivals is not None) / NS_PER_S
        return own_s - scaled_s + scaled_s * self.settings.base_hz / rate_hz

    def _all_answers(self) -> list[Answer]:
        done = [one.variant for one in self.answers]
        if self._variant in done:
            return self.answers
        return [*self.answers, answer_of(self._variant, self._found, self.settings, self.rows, is_done=False)]

    def _keep(self) -> None:
        folder = self.measurer.folder
        delays = [one.queue_delay_ns for one in self.rows if one.queue_delay_ns is not None]
        if delays:
            self.settings = replace(self.settings, queue_delay_ns=max(delays))
        write_bytes(folder / PROBES, rows_bytes(self.rows))
        write_text(folder / FILE, json.dumps(self.to_json(), indent=2) + "\n")

    def _keep_page(self) -> None:
        folder = shlex.quote(str(self.measurer.folder))
        resumed = self.command if " --resume " in self.command else f"{self.command} --resume {folder}"
        commands = list(dict.fromkeys([self.command, resumed]))
        page = capacity_page(self._all_answers(), self.settings, self.rows, commands)
        write_text(self.measurer.folder / PAGE, page)


def resumed_rows(folder: Path, settings: Settings) -> list[Row]:
    """The runs of a search that was cut off.

    Raises ScenarioError where `folder` has none, or one of another scenario, schedule, promises or scale, StoreError
    where something leads out of it.
    """
    refuse_ways_out(folder)
    try:
        found = json_of(read_plain(folder / FILE))
        before = found["settings"]
        defining = {
            "scenario_digest": "scenario or promises", "scale": "--scale",
            "schedule_sha256": "the schedule (a trace, or squall itself)",
        }  # fmt: skip
        for key, what in defining.items():
            then, now = before[key], getattr(settings, key)
            if then != now:
                told = f"{what} changed since: {then!s:.12} then, {now!s:.12} now"
                raise ScenarioError(f"--resume {folder}: {told}")
    except OSError as error:
        raise ScenarioError(f"--resume {folder}: no search to go on with: {error_reason(error)}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ScenarioError(f"--resume {folder}: {FILE} is not that of a search") from error
    return read_rows(str(folder / PROBES))
