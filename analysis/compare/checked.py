"""What `squall check` found, and as files: JSON, JUnit XML, GitHub-flavoured Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from html import escape

from squall.analysis.compare.figures import BROKEN, INVALID, PromiseFigures, worst_verdict
from squall.analysis.compare.over_seeds import PromiseDecision, SeedPromise, decide
from squall.analysis.shown import escaped_lines, markdown_text
from squall.analysis.wording import macros, templates
from squall.scenarios.records import Frozen

SCHEMA_VERSION = 1
UNFINISHED = "unfinished"
"""Seeds are still to run: no verdict yet, whatever those before them say."""


class CheckedRun(Frozen):
    """The run of one seed: its directory, status and what it says of each promise, none where it has no requests.
    `is_replaced`: it was INVALID, and run once more with the same seed. `is_decided`: it ended when its promises were
    decided. `failed`: why it failed whatever its promises say, as `unexpected_failures` tells; empty if it did not."""

    seed: int
    run: str
    status: str
    seconds: float
    promises: tuple[PromiseFigures, ...]
    is_replaced: bool = False
    is_decided: bool = False
    failed: str = ""


class Checked(Frozen):
    """A scenario's promises over seeds. Its fields are the keys of `check.json`. `n_seeds_planned`: None where all that
    were to run have run; else `verdict` and those of the promises are unfinished."""

    schema_version: int
    scenario: str
    scenario_digest: str
    verdict: str
    promises: tuple[PromiseDecision, ...]
    runs: tuple[CheckedRun, ...]
    n_seeds_planned: int | None = None

    @property
    def n_seeds(self) -> int:
        """Seeds that have run."""
        return sum(not one.is_replaced for one in self.runs)

    @property
    def seeds_text(self) -> str:
        """How many seeds, and of how many where more are to run."""
        if self.n_seeds_planned is not None:
            return f"{self.n_seeds} of {self.n_seeds_planned} seeds have run"
        return f"{self.n_seeds} seeds"


def evaluate(
    scenario: str, digest: str, runs: Sequence[CheckedRun], n_seeds_planned: int | None = None
) -> Checked:
    """The verdict on at least one run; `n_seeds_planned`: where seeds are still to run, after any number of runs. A run
    without requests leaves every promise invalid."""
    found = Checked(SCHEMA_VERSION, scenario, digest, INVALID, (), tuple(runs), n_seeds_planned)
    if n_seeds_planned is not None:
        so_far = evaluate(scenario, digest, runs).promises if runs else ()
        unfinished = tuple(replace(one, verdict=UNFINISHED, reason="") for one in so_far)
        return replace(found, verdict=UNFINISHED, promises=unfinished)
    counted = [one for one in runs if not one.is_replaced]
    if any(not one.promises for one in counted):
        return found
    n = len(counted[0].promises)
    promises = tuple(
        decide([SeedPromise(one.seed, one.run, one.promises[place]) for one in counted], n)
        for place in range(n)
    )
    failed = [BROKEN] if failed_lines(found) else []
    verdict = worst_verdict([*(one.verdict for one in promises), *failed])
    return replace(found, verdict=verdict, promises=promises)


def lines(checked: Checked) -> list[str]:
    """The screen: a line for each promise, and last the verdict."""
    told = [f"{one.verdict}: {one.promise}: {decision_text(one)}" for one in checked.promises]
    told += failed_lines(checked)
    invalid = [f"{one.run}: {one.status}" for one in checked.runs if one.status != "VALID"]
    return [*told, *invalid, f"{checked.verdict}: {checked.scenario}, {checked.seeds_text}"]


def failed_lines(checked: Checked) -> list[str]:
    """A line for each run that counts which failed by itself: beyond `expect.failures`, or by the exit code of its
    locustfile."""
    return [
        f"seed {one.seed}, {one.run}: {one.failed}"
        for one in checked.runs
        if one.failed and one.status == "VALID" and not one.is_replaced
    ]


def decision_text(one: PromiseDecision) -> str:
    """The evidence in one line."""
    text: str = macros(__package__, "words.j2").evidence(one)
    return text


def markdown(checked: Checked) -> str:
    """For a job's summary."""
    return _filled("checked.md.j2", checked, markdown_text)


def junit(checked: Checked) -> str:
    """JUnit XML: a test case for each promise. One more where runs failed by themselves."""
    return _filled("checked.xml.j2", checked, lambda text: escape(escaped_lines(text)).replace("\n", "&#10;"))


def _filled(template: str, checked: Checked, shown: Callable[[str], str]) -> str:
    """The file; `shown`: of each text in it."""
    from markupsafe import Markup

    def finalized(value: object) -> object:
        return shown(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = templates("squall.analysis.compare", finalized)
    return environment.get_template(template).render(
        checked=checked, failed=failed_lines(checked), evidence=decision_text,
        seconds=sum(one.seconds for one in checked.runs),
    )  # fmt: skip
