"""The folder of a published experiment that is run again: what it is of, and the runs that it holds so far."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from squall.analysis.record import from_json
from squall.analysis.report.summary_file import FILE as SUMMARY
from squall.analysis.storage.beneath import read_plain, refuse_ways_out
from squall.analysis.storage.intact import content_errors_of
from squall.analysis.storage.part import error_reason
from squall.analysis.studies.published_figures import figures_of_run
from squall.analysis.studies.published_result import LOST, VALID, RunFigures
from squall.analysis.studies.sweep_rows import SweepRow
from squall.cluster.commands.decisions.sweep_journal import FILE as JOURNAL
from squall.cluster.commands.decisions.sweep_journal import read_state
from squall.cluster.measured import folder_of_runs, write_text
from squall.scenarios.errors import ScenarioError, SquallError, StoreError
from squall.scenarios.foreign_text import json_of
from squall.scenarios.published.experiment import PublishedExperiment
from squall.scenarios.records import Frozen

FILE = "reproduction-of.json"
NO_PROFILER = "no profiler"
_DATE = "%Y-%m-%d"


class Folder(Frozen):
    """A folder that was begun, on `date` (UTC, `2026-11-26`)."""

    path: Path
    date: str


def begin(experiment: PublishedExperiment, out: Path) -> Folder:
    """A new one in `out`. Raises ScenarioError, StoreError."""
    path = folder_of_runs(out, experiment.file.name, "small" if experiment.is_small else "reproduced")
    date = datetime.now(UTC).strftime(_DATE)
    said = {
        "name": experiment.file.name,
        "digest": experiment.digest(),
        "is_small": experiment.is_small,
        "date": date,
    }
    write_text(path / FILE, json.dumps(said, indent=2) + "\n")
    return Folder(path, date)


def take_up(experiment: PublishedExperiment, path: Path) -> Folder:
    """One that was begun. Raises ScenarioError where there is none, or of another experiment, StoreError where
    something leads out of it."""
    refuse_ways_out(path)
    try:
        said = json_of(read_plain(path / FILE))
        name, digest, is_small = said["name"], said["digest"], said["is_small"]
        date = datetime.strptime(said["date"], _DATE).strftime(_DATE)
    except OSError as error:
        raise ScenarioError(
            f"{path}: holds no reproduced experiment: {FILE}: {error_reason(error)}"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ScenarioError(f"{path / FILE}: is damaged; begin anew without --resume") from error
    if name != experiment.file.name:
        raise ScenarioError(f"{path}: holds {name}, and {experiment.file.name} was asked for")
    if is_small != experiment.is_small:
        was, mend = ("a rehearsal", "add --small") if is_small else ("no rehearsal", "leave out --small")
        raise ScenarioError(f"{path}: holds {was}: {mend}")
    if digest != experiment.digest():
        raise ScenarioError(
            f"{path}: was begun with another {experiment.path.name}, or another squall's: begin anew without --resume"
        )
    return Folder(path, date)


def part_folder(folder: Path, part: str) -> Path:
    """Where the runs of a part go, made where it is not there. Raises StoreError."""
    path = folder / part
    try:
        path.mkdir(exist_ok=True)
    except FileExistsError as error:
        raise StoreError(f"{path} is no folder, and the runs of {part} go there: remove it") from error
    except OSError as error:
        raise StoreError(f"cannot make {path}: {error_reason(error)}") from error
    return path


def hosts(experiment: PublishedExperiment, folder: Folder) -> list[str]:
    """Where its runs ran, each host once, in words."""
    return list(dict.fromkeys(row.host for _, row in _rows(experiment, folder)))


def runs_so_far(experiment: PublishedExperiment, folder: Folder) -> list[RunFigures]:
    """The runs of all parts, every attempt, in the order of the parts and plans.

    The figures of a run are kept beside it once they are known, `RUN.figures.json`: the page needs its directory no
    more.
    """
    return [_figures(folder.path / part, part, row) for part, row in _rows(experiment, folder)]


def _rows(experiment: PublishedExperiment, folder: Folder) -> Iterator[tuple[str, SweepRow]]:
    for part in experiment.parts:
        if (folder.path / part / JOURNAL).exists():
            yield from ((part, row) for row in read_state(folder.path / part).all_rows())


def _figures(folder: Path, part: str, row: SweepRow) -> RunFigures:
    kept = folder / f"{row.run}.figures.json"
    figures: Mapping[str, int | float | str] = {}
    status, reason, under = row.status or "FAILED", row.reason, ""
    try:
        with content_errors_of(row.run):
            if row.run and kept.exists():
                said = from_json(_Kept, json_of(read_plain(kept)))
                figures, under = said.figures, said.under
            elif row.run:
                figures, under = figures_of_run(folder / row.run), _under(folder / row.run)
                write_text(kept, json.dumps({"figures": figures, "under": under}) + "\n")
    except (SquallError, OSError) as error:
        if status == VALID:
            status, reason = LOST, f"{row.run} cannot be read any more: {_one_line(error)}"
        else:
            reason = reason or _one_line(error)
    return RunFigures(
        part=part,
        row=row.label,
        seed=row.seed,
        attempt=row.attempt,
        status=status,
        reason=reason,
        under=under,
        run=row.run,
        figures=figures,
    )


class _Kept(Frozen):
    """`RUN.figures.json`."""

    figures: Mapping[str, int | float | str]
    under: str


def _one_line(error: Exception) -> str:
    """What is wrong with a run that was whole when it ended; of a library's exception also its kind."""
    words = (str(error).strip() or type(error).__name__).splitlines()[0]
    return words if isinstance(error, SquallError) else f"{type(error).__name__}: {words}"


def _under(run_dir: Path) -> str:
    """The profiler that latencies were measured under."""
    found = json_of(read_plain(run_dir / SUMMARY)).get("latency_under")
    return str(found["profiler"]) if found else NO_PROFILER
