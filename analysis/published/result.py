"""A published experiment beside ours: what was run, and what is found, as the file that is kept.

What is found follows from the runs alone, so that a file that is read is evaluated anew by the rules of this version.
Numbers have six significant digits and runs the names of their directories: the file is small, the same for the same
runs, and says nothing of the machine but what `host` says.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from squall.analysis.published.claims import claims_of
from squall.analysis.published.evaluated import Evaluated, leading
from squall.analysis.published.figures import INFINITE
from squall.analysis.published.little import Cycle, our_cycle, published_cycles
from squall.analysis.published.orderings import orderings_of
from squall.analysis.published.sentences import screen_lines
from squall.analysis.published.values import WHAT_COUNTS, RunFigures, Value, rows_of, values_of
from squall.analysis.record import from_json
from squall.scenarios.config.loader import section_from_mapping
from squall.scenarios.errors import AnalysisError, ScenarioError
from squall.scenarios.published.file import PublishedFile

__all__ = ["Reproduction", "RunFigures", "evaluate", "joined"]

SCHEMA_VERSION = 1
_DIGITS = 6
_FOLDERS = re.compile(r"(?<![\w.:/])~?/(?:[^\s/'\",;:]+/)+")
"""Folders of an absolute path; its last name stays."""


@dataclass(frozen=True)
class Reproduction(Evaluated):
    """What was evaluated, as a file and as lines."""

    def lines(self) -> list[str]:
        """What was found, for a screen: the answer, a line for each row and claim, how the runs ended."""
        return screen_lines(self)

    def to_json(self) -> dict[str, Any]:
        """What the file holds. `from_json` reads all but `found`, which follows from it."""
        return {
            "schema_version": SCHEMA_VERSION,
            "host": self.host,
            "date": self.date,
            "command": self.command,
            "is_small": self.is_small,
            "what_counts": WHAT_COUNTS,
            "published": self.published.model_dump(mode="json", exclude_defaults=True),
            "runs": [_short(asdict(run)) for run in self.runs],
            "found": {
                "values": self._values(),
                **{
                    name: [_rounded(_short(asdict(one))) for one in getattr(self, name)]
                    for name in ("orderings", "claims", "cycles")
                },
            },
        }

    def to_text(self) -> str:
        """The file: `to_json`, a line for each run and for each thing found."""
        found = self.to_json()
        lists = {"runs": found.pop("runs"), **found.pop("found")}
        parts = [f"{_line(name)}:{_line(value)}" for name, value in found.items()]
        runs, *rest = (f"{_line(name)}:[\n{_lines(rows)}]" for name, rows in lists.items())
        inside = ",\n".join(rest)
        return "{" + ",\n".join([*parts, runs, f'"found":{{{inside}}}']) + "}\n"

    def _values(self) -> list[dict[str, Any]]:
        """Of each row and part, by figure: n, mean and the ends of its interval, what there is of these; or a text."""
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for one in self.values:
            numbers = [one.n, *(_six(value) for value in (one.mean, one.low, one.high) if value is not None)]
            found.setdefault((one.row, one.part), {})[one.figure] = one.text or numbers
        return [{"row": row, "part": part, "figures": figures} for (row, part), figures in found.items()]

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Reproduction:
        """Of what `to_json` made, evaluated anew. Raises AnalysisError, in one line, for anything else."""
        try:
            if found["schema_version"] != SCHEMA_VERSION:
                raise AnalysisError(
                    f"schema_version {found['schema_version']}: this version of squall reads {SCHEMA_VERSION}"
                )
            published = section_from_mapping(PublishedFile, found["published"], "published")
            runs = [from_json(RunFigures, {**_EMPTY, **run}) for run in found["runs"]]
            told = [found[name] for name in ("host", "date", "command", "is_small")]
        except (KeyError, TypeError) as error:
            raise AnalysisError(f"it is no reproduction of an experiment: {error} is not there") from error
        except ScenarioError as error:
            raise AnalysisError(str(error)) from error
        return evaluate(published, runs, *told)


def evaluate(
    published: PublishedFile, runs: Iterable[RunFigures], host: str, date: str, command: str, is_small: bool
) -> Reproduction:
    """All that our runs say of a published experiment. `runs`: every attempt, in the order in which they ran."""
    kept = tuple(_plain(run) for run in runs)
    values = values_of(published, kept)
    return Reproduction(
        published=published,
        host=_without_folders(host),
        date=date,
        command=_without_folders(command),
        is_small=is_small,
        runs=kept,
        values=values,
        orderings=orderings_of(published, kept),
        claims=claims_of(published, kept, lambda row, figure: leading(values, row, figure)),
        cycles=(*published_cycles(published), *_our_cycles(rows_of(published, kept), values)),
    )


def joined(found: Sequence[Reproduction]) -> Reproduction:
    """Reproductions of one experiment as one: other seeds, or other parts, or the same run on another machine. Raises
    AnalysisError where they are of two experiments, or have a run of the same part, row and seed both."""
    first = found[0]
    for other in found[1:]:
        if (other.published, other.is_small) != (first.published, first.is_small):
            raise AnalysisError(
                f"{other.published.name}: is not of the same experiment as the others, or only one is a rehearsal"
            )
    runs = [run for one in found for run in one.runs]
    seen = Counter(key for one in found for key in {(run.part, run.row, run.seed) for run in one.runs})
    twice = [key for key, n in seen.items() if n > 1]
    if twice:
        part, row, seed = twice[0]
        raise AnalysisError(f"{first.published.name}: {part}, {row}, seed {seed} is in two of them")

    def told(values: Sequence[str]) -> str:
        return "; then ".join(dict.fromkeys(values))

    return evaluate(
        first.published,
        runs,
        told([one.host for one in found]),
        told([one.date for one in found]),
        told([one.command for one in found]),
        first.is_small,
    )


def _our_cycles(rows: Sequence[str], values: Sequence[Value]) -> list[Cycle]:
    """Of rows whose users are known; figures of runs that do not count stand in where a row has no other."""
    found = []
    for row in rows:
        own = {one.figure: one for one in reversed(values) if one.row == row}
        numbers = {name: one.marked if one.mean is None else one.mean for name, one in own.items()}
        cycle = our_cycle(row, {name: value for name, value in numbers.items() if value is not None})
        if cycle is None:
            continue
        limits = [own[name].text for name in ("regime", "bound_by") if name in own and own[name].text]
        said = f"{cycle.claim}; the run itself says {limits[0]}" if limits else cycle.claim
        found.append(replace(cycle, claim=said))
    return found


def _plain(run: RunFigures) -> RunFigures:
    """As it is kept: six digits, no folders."""
    figures = {name: _kept(value) for name, value in run.figures.items() if value == value}  # no NaN
    name = run.run.rstrip("/").rpartition("/")[2]
    return replace(run, figures=figures, run=name, reason=_without_folders(run.reason))


def _without_folders(text: str) -> str:
    return _FOLDERS.sub("", text)


def _kept(value: float | str) -> float | str:
    if isinstance(value, str):
        return value
    return _six(float(value)) if math.isfinite(value) else INFINITE


def _six(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {name: _six(value) if isinstance(value, float) else value for name, value in row.items()}


_EMPTY = {"reason": "", "under": "", "run": ""}
"""Texts of a run that are left out while they are empty."""


def _short(row: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is empty."""
    return {name: value for name, value in row.items() if value not in (None, "")}


def _line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _lines(rows: Sequence[object]) -> str:
    return ",\n".join(_line(row) for row in rows)
