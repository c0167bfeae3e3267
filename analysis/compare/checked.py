"""What `squall check` found, and as files: JSON, JUnit XML, GitHub-flavoured Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from xml.etree import ElementTree

from squall.analysis.compare.figures import BROKEN, INVALID, KEPT, UNDECIDED, PromiseFigures, worst_verdict
from squall.analysis.compare.over_seeds import PromiseDecision, SeedPromise, decide
from squall.analysis.record import to_json
from squall.analysis.shown import escaped_lines, markdown_row, markdown_text
from squall.analysis.wording import share_text

SCHEMA_VERSION = 1
UNFINISHED = "unfinished"
"""Seeds are still to run: no verdict yet, whatever those before them say."""


@dataclass(frozen=True)
class CheckedRun:
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


@dataclass(frozen=True)
class Checked:
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

    def to_json(self) -> dict[str, Any]:
        """What the file holds."""
        found: dict[str, Any] = to_json(self)
        return found


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
    if one.verdict == UNFINISHED:
        kept = f"{one.n_kept} of {one.n_seeds} runs so far are within it"
    else:
        others = [run.figures.verdict for run in one.runs if run.figures.verdict not in (KEPT, BROKEN)]
        open_runs = [f"{others.count(word)} {word}" for word in dict.fromkeys(others)]
        kept = ", ".join([f"{one.n_kept} of {one.n_seeds} runs kept it", *open_runs])
    if one.n_seeds > 1 and one.verdict != UNFINISHED:
        kept += f" (a run does in at least {share_text(one.kept_least_ratio)} of cases)"
    parts = [kept]
    if one.late_ratio is not None:
        bounds = ""
        if one.late_low_ratio is not None and one.late_ratio > 0:
            low, high = max(0.0, one.late_low_ratio), one.late_high_ratio
            bounds = f" ({share_text(low)} … {share_text(high)})"
        parts.append(f"late {share_text(one.late_ratio)}{bounds} of {share_text(one.allowed_ratio)} allowed")
    return "; ".join([*parts, *filter(None, [one.reason])])


def markdown(checked: Checked) -> str:
    """For a job's summary."""
    rows = [markdown_row((one.promise, one.verdict, decision_text(one))) for one in checked.promises]
    runs = [markdown_row((str(one.seed), one.run, one.status, _kept_text(one))) for one in checked.runs]
    head = f"## {markdown_text(checked.scenario)}: {checked.verdict}"
    return "\n".join(
        [
            head, "", f"{checked.seeds_text}, scenario digest {markdown_text(checked.scenario_digest[:12])}.", "",
            "| promise | verdict | evidence |", "|---|---|---|", *rows, "",
            *map(markdown_text, failed_lines(checked)), "",
            "| seed | run | status | promises met |", "|---|---|---|---|", *runs, "",
        ]
    )  # fmt: skip


def junit(checked: Checked) -> str:
    """JUnit XML: a test case for each promise. Broken is a failure; undecided is skipped, for it says neither that the
    promise is broken nor that it is kept; invalid and unfinished are errors. One more where runs failed by
    themselves."""
    seconds = sum(one.seconds for one in checked.runs)
    cases = list[_Case]()
    for one in checked.promises:
        phase = one.runs[0].figures.phase
        tag = {KEPT: "", BROKEN: "failure", UNDECIDED: "skipped"}.get(one.verdict, "error")
        message = decision_text(one)
        seeds = [f"seed {run.seed}, {run.run}: {run.figures.verdict}" for run in one.runs]
        if one.verdict == UNFINISHED:
            message, seeds = f"{checked.seeds_text}: {message}", []
        took = seconds / len(checked.promises)
        cases.append(_Case(one.promise, phase, took, tag, one.verdict, message, "\n".join(seeds)))
    if failed := failed_lines(checked):
        cases.append(_Case("run", "", 0.0, "failure", BROKEN, failed[0], "\n".join(failed)))
    if not checked.promises:
        message = checked.seeds_text if checked.verdict == UNFINISHED else "a run has no requests"
        cases.append(_Case("runs", "", seconds, "error", checked.verdict, message))
    tags = [one.tag for one in cases]
    counts = {
        "tests": str(len(cases)),
        "failures": str(tags.count("failure")),
        "errors": str(tags.count("error")),
        "skipped": str(tags.count("skipped")),
        "time": f"{seconds:.3f}",
    }
    root = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(root, "testsuite", {"name": checked.scenario, **counts})
    for case in cases:
        classname = ".".join(filter(None, (checked.scenario, case.phase)))
        names = {"classname": classname, "name": case.name, "time": f"{case.seconds:.3f}"}
        element = ElementTree.SubElement(suite, "testcase", names)
        if case.tag:
            told = {"type": case.verdict, "message": case.message}
            ElementTree.SubElement(element, case.tag, told).text = case.text or None
    text = escaped_lines(ElementTree.tostring(root, encoding="unicode"))
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


class _Case(NamedTuple):
    """A test case, with what became of it in an element `tag`, empty where it passed."""

    name: str
    phase: str
    seconds: float
    tag: str
    verdict: str
    message: str
    text: str = ""


def _kept_text(one: CheckedRun) -> str:
    if one.is_replaced:
        return "run again"
    broken = sum(own.verdict == BROKEN for own in one.promises)
    return f"{sum(own.verdict == KEPT for own in one.promises)} of {len(one.promises)}, {broken} broken"
