"""A published experiment and our runs of it: what counts, means over seeds, orderings, claims, users by Little's law.

**What counts** (`WHAT_COUNTS`): of each part, row and seed the last attempt, if it is VALID. What INVALID runs gave is
shown where a row has no other, marked, and counts in no mean, ordering or claim. `regime`, `bound_by` and
`outside_ratio` tell why a run is INVALID, a client that is the limit, and are taken from all of them.

**Orderings.** Ours are told apart by the test of `squall compare`: the logarithms of the ratios of runs of the same
seed, Student's t of their mean, corrected by Holm over all pairs and figures of the experiment that the article tells
apart, so that with 95 % no two rows that are alike are told apart in any of them. With one seed nothing can be told
apart. Only directions and ratios are compared with the article, never absolutes: the GPU and the backend are others.

**Cycles.** users / throughput = cycle = response + outside (J. D. C. Little, Operations Research 9(3), 1961).
Closed-loop users are in a request, thinking, or held up by the load generator. What a row's cycle has beyond its mean
response was thought or lost in the client: 1,000 users at 1,151 requests/s have cycles of 869 ms, and with a mean of
441 ms half of each was spent outside any request. Where no mean was published its median stands in, and that is said:
the mean of a skewed latency is larger, so that less may have been outside.

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
from dataclasses import asdict, field, replace
from functools import cached_property
from itertools import combinations, product
from typing import Any

from squall.analysis.compare.change import Shown, differences, shown_by
from squall.analysis.limits import LIMITS
from squall.analysis.record import from_json
from squall.analysis.statistics.holm import holm
from squall.analysis.statistics.paired import LEAST_PAIRS
from squall.analysis.studies.published_words import claim_value_text
from squall.analysis.studies.sweep_cells import log_mean, mean
from squall.analysis.wording import duration_text, share_text
from squall.scenarios.config.loader import section_from_mapping
from squall.scenarios.errors import AnalysisError, ScenarioError
from squall.scenarios.published.figures import FIGURES
from squall.scenarios.published.file import ClaimConfig, PublishedFile, Stated
from squall.scenarios.records import Frozen
from squall.scenarios.units import NS_PER_S

SCHEMA_VERSION = 1
VALID = "VALID"
LOST = "LOST"
"""Of a run that was VALID, and whose directory is gone or damaged since."""
INFINITE = "infinite"
"""A quantile of a run that fell on failed requests."""
NOT_MEASURED = "not_measured"
"""The figure in which a probe says why a row has no others."""
OF_THE_CLIENT = ("regime", "bound_by", "outside_ratio")
"""Figures that are also taken from runs whose load generator was the limit, since they say so."""
WHAT_COUNTS = (
    "Of each part, row and seed the last attempt counts, if it is VALID. Figures marked INVALID are shown and count"
    " nowhere, but for the regime and the time outside requests, which say why a run is INVALID."
)

ORDERED = ("throughput_hz", "mean_ns", "p50_ns", "p95_ns", "p99_ns")
"""Figures by which rows are ordered."""
AGREES, CONTRADICTS = "agrees", "contradicts"
UNTOLD, EQUAL, UNMEASURED = "cannot be told apart here", "published values equal", "not measured"
WORDS = (AGREES, CONTRADICTS, UNTOLD, EQUAL, UNMEASURED)
HELD, NOT_HELD, UNDECIDED = "held", "not held", "undecided"
PUBLISHED, OURS = "published", "ours"
LEVEL = 0.05
MARGIN = math.log(1.05)
"""What `squall compare` calls the same; of no consequence here, where nothing is called the same."""
OUTSIDE_LIMIT_RATIO = LIMITS.user_gap_ratio
"""Share of the users' time that a run of ours may have outside of requests and think time."""

_FOLDERS = re.compile(r"(?<![\w.:/])~?/(?:[^\s/'\",;:]+/)+")
"""Folders of an absolute path; its last name stays."""


class RunFigures(Frozen):
    """One run of ours. `part`: of the file, or `probe`. `status`: VALID, INVALID, ABORTED, LOST, or what raised.
    `under`: the collectors that were on. `run`: name of its directory. `figures`: by name of `FIGURES`, a number or a
    text."""

    part: str
    row: str
    seed: int
    attempt: int
    status: str
    reason: str = ""
    under: str = ""
    run: str = ""
    figures: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def is_valid(self) -> bool:
        """Whether its figures may count."""
        return self.status == VALID

    @property
    def ending(self) -> str:
        """Its status, and the reason for it."""
        return f"{self.status}: {self.reason}" if self.reason else self.status

    def counts(self, figure: str) -> bool:
        """Whether that figure of it counts."""
        return self.is_valid or figure in OF_THE_CLIENT

    def number(self, figure: str) -> float | None:
        """The figure; infinity where it fell on failures, None where there is none."""
        value = self.figures.get(figure)
        if isinstance(value, str):
            return math.inf if value == INFINITE else None
        return value


class Value(Frozen):
    """A figure of a row in one part: over `n` runs that count its mean with a 95 % interval (geometric; of shares, and
    where a value is 0 or less, arithmetic), or what the runs say where it is a text. `marked`: the mean of runs that do
    not count, where none does. `note`: why there is no mean."""

    row: str
    figure: str
    part: str
    under: str
    n: int
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    text: str = ""
    marked: float | None = None
    note: str = ""

    @property
    def is_measured(self) -> bool:
        """Whether runs that count tell of it."""
        return self.mean is not None or bool(self.text)

    @property
    def number(self) -> float | None:
        """The mean, of runs that do not count where none does."""
        return self.marked if self.mean is None else self.mean


class Ordering(Frozen):
    """`other` over `one` by a figure: the published ratio, and ours over `n_pairs` seeds of `part` with its 95 %
    interval by itself. `p`: after Holm. `word`: of `WORDS`."""

    figure: str
    one: str
    other: str
    published_ratio: float
    word: str
    part: str = ""
    n_pairs: int = 0
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None

    @property
    def better(self) -> str | None:
        """The row that was published as better; None where neither was."""
        if self.published_ratio == 1.0:
            return None
        is_other = (self.published_ratio < 1.0) == bool(FIGURES[self.figure].is_better_low)
        return self.other if is_other else self.one

    @property
    def better_first(self) -> Ordering:
        """The same, with the row that was published as better over the other."""
        if self.better != self.one:
            return self
        ratios = (self.published_ratio, self.ratio, self.high, self.low)
        published, ratio, low, high = (1.0 / value if value else None for value in ratios)
        return replace(
            self,
            one=self.other,
            other=self.one,
            published_ratio=published or 0.0,
            ratio=ratio,
            low=low,
            high=high,
        )


class Claim(Frozen):
    """A claim of the file, by our mean over `n` runs (of a ratio: pairs of one seed) with its 95 % interval, or by our
    text. `word`: held or not held by mean and interval alike, undecided where the interval reaches over the bound, not
    measured. `note`: which of it the mean says where the interval does not, or why nothing was measured."""

    says: str
    figure: str
    of: str
    to: str | None
    bound: str
    word: str
    n: int = 0
    value: float | None = None
    low: float | None = None
    high: float | None = None
    text: str = ""
    note: str = ""


class Cycle(Frozen):
    """A row by Little's law. `whose`: published or ours. `response_ns`: its mean, or its p50, as `response_name` says.
    `outside_ratio`: of the cycle; below 0 where figures do not belong together. `claim`: what that says."""

    row: str
    whose: str
    users_count: float
    throughput_hz: float
    cycle_ns: float
    response_ns: float
    response_name: str
    outside_ratio: float
    claim: str


class Reproduction(Frozen):
    """`published`: the file. `host`: GPU, driver, CPU and squall's version in words; `date`, `command`: of the runs.
    `is_small`: a rehearsal, whose figures mean nothing. `runs`: all, every attempt, as `evaluate` keeps them. What is
    found follows from these."""

    published: PublishedFile
    host: str
    date: str
    command: str
    is_small: bool
    runs: tuple[RunFigures, ...]

    @cached_property
    def rows(self) -> tuple[str, ...]:
        """Names of the rows: those of the article, then what else was run, in the order of the runs."""
        return tuple(
            dict.fromkeys(
                [*(row.name for row in self.published.rows), *(run.row for run in self.runs if run.row)]
            )
        )

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """Names of the parts: those of the file, then what else was run."""
        return tuple(dict.fromkeys([*self.published.parts, *(run.part for run in self.runs)]))

    @cached_property
    def last(self) -> tuple[RunFigures, ...]:
        """Of each part, row and seed the run that comes last."""
        return tuple({(run.part, run.row, run.seed): run for run in self.runs}.values())

    @cached_property
    def directories(self) -> tuple[RunFigures, ...]:
        """Of each run one of its rows: a probe measures many rows in one run, a run of a server one."""
        found: dict[tuple[object, ...], RunFigures] = {}
        for run in self.runs:
            found.setdefault(
                (run.part, run.run) if run.run else (run.part, run.row, run.seed, run.attempt), run
            )
        return tuple(found.values())

    @property
    def verdicts(self) -> Counter[str]:
        """How many runs ended how, every attempt."""
        return Counter(run.status for run in self.directories)

    @property
    def without_valid_run(self) -> tuple[RunFigures, ...]:
        """Of each row and part that was run and has no VALID run that stands, the last one; a run that told no row
        speaks for its part, where that has no rows."""
        parts_of_rows = {run.part for run in self.runs if run.row}
        told = [run for run in self.last if run.row or run.part not in parts_of_rows]
        valid = {(run.part, run.row) for run in told if run.is_valid}
        last = {(run.part, run.row): run for run in told}
        return tuple(run for place, run in last.items() if place not in valid)

    def seen(self, part: str, row: str, figure: str) -> list[RunFigures]:
        """The last runs of that part and row that tell of the figure; none where it is not taken from there."""
        stated = self.published.parts.get(part)  # what the file does not name gives all
        if stated and (figure not in stated.gives or (stated.rows is not None and row not in stated.rows)):
            return []
        return [run for run in self.last if (run.part, run.row) == (part, row) and figure in run.figures]

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """Every figure of every row in every part that gives it; of a row and figure the one that leads first: of the
        part with most runs that count, of these the first in the file."""
        found: list[Value] = []
        for row, figure in product(self.rows, FIGURES):
            own = [
                _value(row, figure, part, seen)
                for part in self.parts
                if (seen := self.seen(part, row, figure))
            ]
            found += sorted(own, key=lambda one: -one.n)
        return tuple(found)

    @cached_property
    def leading(self) -> dict[tuple[str, str], Value]:
        """By row and figure, the value of the part that leads."""
        return {(one.row, one.figure): one for one in reversed(self.values)}

    def value(self, row: str, figure: str) -> Value | None:
        """Ours, of the part that leads; None where no run has it."""
        return self.leading.get((row, figure))

    def stated(self, row: str, figure: str) -> Stated | None:
        """What the article states of a row."""
        return next((one.published.get(figure) for one in self.published.rows if one.name == row), None)

    @property
    def is_measured(self) -> bool:
        """Whether any figure of ours counts."""
        return any(one.is_measured for one in self.values)

    def _paired(self, figure: str, one: str, other: str) -> tuple[str, list[tuple[float, float]]]:
        """The part that has most seeds in common of both rows, and the figures of these, `one` first. Positive figures
        of runs that count."""
        best: tuple[str, list[tuple[float, float]]] = ("", [])
        for part in self.parts:
            of_one, of_other = (
                {
                    run.seed: value
                    for run in self.seen(part, row, figure)
                    if run.counts(figure) and (value := run.number(figure)) is not None and value > 0
                }
                for row in (one, other)
            )
            pairs = [(of_one[seed], of_other[seed]) for seed in sorted(of_one.keys() & of_other)]
            if len(pairs) > len(best[1]):
                best = part, pairs
        return best

    @cached_property
    def orderings(self) -> tuple[Ordering, ...]:
        """Every pair of rows and figure that the article states for both, in the order of the file."""
        found: list[Ordering] = []
        tested: list[tuple[int, Shown]] = []
        for figure, (one, other) in product(ORDERED, combinations(self.published.rows, 2)):
            of_one, of_other = (middle(row.published.get(figure)) for row in (one, other))
            if of_one is None or of_other is None:
                continue
            part, pairs = self._paired(figure, one.name, other.name)
            shown, ratios = _shown(pairs), tuple[float | None, ...]()
            word = EQUAL if of_one == of_other else UNTOLD if pairs else UNMEASURED
            if shown is not None:
                ratios = shown.ratios
                tested += [(len(found), shown)] if word == UNTOLD else []
            elif pairs:  # of one seed there is no interval
                (log,) = differences([of for of, _ in pairs], [of for _, of in pairs]).tolist()
                ratios = (math.exp(log) if math.isfinite(log) else None,)
            found.append(
                Ordering(figure, one.name, other.name, of_other / of_one, word, part, len(pairs), *ratios)
            )
        for (place, shown), p in zip(tested, holm([shown.p_value for _, shown in tested]), strict=True):
            found[place] = replace(found[place], p=p)
            if p <= LEVEL and shown.centre != 0.0:
                is_alike = (shown.centre > 0) == (found[place].published_ratio > 1.0)
                found[place] = replace(found[place], word=AGREES if is_alike else CONTRADICTS)
        return tuple(found)

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        """All of the file's, in its order."""
        return tuple(self._claim(one) for one in self.published.claims)

    def _claim(self, one: ClaimConfig) -> Claim:
        head = (one.says, one.figure, one.of, one.to, bound_text(one))
        value = self.value(one.of, one.figure) if one.to is None else self._ratio(one, one.to)
        if value is None or not value.is_measured:
            why = [self.value(row, NOT_MEASURED) for row in (one.of, one.to) if row]
            reasons = dict.fromkeys(known.text for known in why if known and known.text)
            note = "; ".join(reasons) or ("no run has the figure" if value is None else value.note)
            return Claim(*head, UNMEASURED, note=note)
        if value.mean is None:
            is_held = all(_names(text, one.equals) for text in value.text.split("; "))
            return Claim(*head, HELD if is_held else NOT_HELD, value.n, text=value.text)
        is_held = _is_within(one, value.mean)
        word, note = HELD if is_held else NOT_HELD, ""
        if any(end is not None and _is_within(one, end) != is_held for end in (value.low, value.high)):
            word, note = UNDECIDED, f"the mean says {word}, and its interval reaches over the bound"
        return Claim(*head, word, value.n, value.mean, value.low, value.high, note=note)

    def _ratio(self, claim: ClaimConfig, to: str) -> Value:
        """`of` over `to`: of runs of the same seed, else of the means, without an interval."""
        _, pairs = self._paired(claim.figure, to, claim.of)
        pairs = [pair for pair in pairs if all(map(math.isfinite, pair))]
        head = (claim.of, claim.figure, "", "")
        if (shown := _shown(pairs)) is not None:
            return Value(*head, len(pairs), *shown.ratios)
        of, other = (self.value(row, claim.figure) for row in (claim.of, to))
        if of is None or other is None:
            return Value(*head, 0, note="not both rows have the figure")
        if of.mean is not None and other.mean:
            return Value(*head, min(of.n, other.n), of.mean / other.mean)
        notes = [f"{one.row}: {one.note or 'the figure is 0'}" for one in (of, other) if not one.mean]
        if of.number and other.number:
            shown_text = claim_value_text(claim.figure, to, of.number / other.number)
            notes.append(f"runs that do not count show {shown_text}")
        return Value(*head, 0, note="; ".join(notes))

    @cached_property
    def cycles(self) -> tuple[Cycle, ...]:
        """Little's law, of the article's rows that state throughput and a mean or median and whose users are known,
        then of ours."""
        found = []
        users = _stated_users(self.published)
        for row in self.published.rows:
            own_users, throughput, mean_ns, p50_ns = (
                _one(row.published.get(name))
                for name in ("users_count", "throughput_hz", "mean_ns", "p50_ns")
            )
            head = (row.name, PUBLISHED, own_users or users, throughput)
            found.append(_cycle(*head, mean_ns) or _cycle(*head, p50_ns, "p50, for want of a mean"))
        return tuple(one for one in [*found, *map(self._our_cycle, self.rows)] if one is not None)

    def _our_cycle(self, row: str) -> Cycle | None:
        """Of a row of ours; figures of runs that do not count stand in where a row has no other.

        The share outside of requests is what was measured over the very time in which users were there
        (`published_figures.user_figures`), and not what users / throughput leaves of the mean: of requests that began
        before the phase, or ended behind it, the mean has none.
        """
        names = ("users_count", "throughput_hz", "mean_ns", "outside_ratio")
        values = [self.value(row, name) for name in names]
        users, throughput_hz, mean_ns, outside = (None if one is None else one.number for one in values)
        if outside is None:
            return None
        cycle = _cycle(row, OURS, users, throughput_hz, mean_ns, outside=outside)
        limits = [one.text for name in ("regime", "bound_by") if (one := self.value(row, name)) and one.text]
        if cycle is None or not limits:
            return cycle
        return replace(cycle, claim=f"{cycle.claim}; the run itself says {limits[0]}")

    def to_json(self) -> dict[str, Any]:
        """What the file holds. `from_json` reads all but `found`, which follows from it."""
        values: dict[tuple[str, str], dict[str, Any]] = {}
        for one in self.values:  # n, mean and the ends of its interval, what there is of these; or a text
            numbers = [one.n, *(_six(end) for end in (one.mean, one.low, one.high) if end is not None)]
            values.setdefault((one.row, one.part), {})[one.figure] = one.text or numbers
        return {
            "schema_version": SCHEMA_VERSION,
            "host": self.host,
            "date": self.date,
            "command": self.command,
            "is_small": self.is_small,
            "what_counts": WHAT_COUNTS,
            "published": self.published.model_dump(mode="json", exclude_defaults=True),
            "runs": [_short(run) for run in self.runs],
            "found": {
                "values": [
                    {"row": row, "part": part, "figures": figures} for (row, part), figures in values.items()
                ],
                **{
                    name: [_short(one) for one in getattr(self, name)]
                    for name in ("orderings", "claims", "cycles")
                },
            },
        }

    def to_text(self) -> str:
        """The file: `to_json`, a line for each run and for each thing found."""
        found = self.to_json()
        lists = {"runs": found.pop("runs"), **found.pop("found")}
        parts = [f"{_line(name)}:{_line(value)}" for name, value in found.items()]
        runs, *rest = (
            f"{_line(name)}:[\n" + ",\n".join(map(_line, rows)) + "]" for name, rows in lists.items()
        )
        inside = ",\n".join(rest)
        return "{" + ",\n".join([*parts, runs, f'"found":{{{inside}}}']) + "}\n"

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Reproduction:
        """Of what `to_json` made, evaluated anew. Raises AnalysisError, in one line, for anything else."""
        try:
            if found["schema_version"] != SCHEMA_VERSION:
                raise AnalysisError(
                    f"schema_version {found['schema_version']}: this version of squall reads {SCHEMA_VERSION}"
                )
            published = section_from_mapping(PublishedFile, found["published"], "published")
            runs = [from_json(RunFigures, run) for run in found["runs"]]
            told = [found[name] for name in ("host", "date", "command", "is_small")]
        except (KeyError, TypeError) as error:
            raise AnalysisError(f"it is no reproduction of an experiment: {error} is not there") from error
        except ScenarioError as error:
            raise AnalysisError(str(error)) from error
        return evaluate(published, runs, *told)


def evaluate(
    published: PublishedFile, runs: Iterable[RunFigures], host: str, date: str, command: str, is_small: bool
) -> Reproduction:
    """Our runs of a published experiment as they are kept: numbers of six digits, no folders. `runs`: every attempt, in
    the order in which they ran."""
    kept = [
        replace(
            run,
            figures={name: _kept(value) for name, value in run.figures.items() if value == value},  # no NaN
            run=run.run.rstrip("/").rpartition("/")[2],
            reason=_FOLDERS.sub("", run.reason),
        )
        for run in runs
    ]
    return Reproduction(
        published, _FOLDERS.sub("", host), date, _FOLDERS.sub("", command), is_small, tuple(kept)
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
    seen = Counter(key for one in found for key in {(run.part, run.row, run.seed) for run in one.runs})
    for (part, row, seed), n in seen.items():
        if n > 1:
            raise AnalysisError(f"{first.published.name}: {part}, {row}, seed {seed} is in two of them")
    host, date, command = (
        "; then ".join(dict.fromkeys(getattr(one, name) for one in found))
        for name in ("host", "date", "command")
    )
    runs = [run for one in found for run in one.runs]
    return evaluate(first.published, runs, host, date, command, first.is_small)


def middle(value: Stated | None) -> float | None:
    """A stated number as it is, a range by its geometric middle; None of what is not positive, and of a text."""
    if value is None or isinstance(value, str):
        return None
    if not isinstance(value, tuple):
        return float(value) if value > 0 else None
    if any(end <= 0 for end in value):
        return None
    return math.exp(math.fsum(math.log(end) for end in value) / len(value))


def bound_text(one: ClaimConfig) -> str:
    """What the claim asks for, with units."""
    if one.equals is not None:
        return f"is {one.equals}"
    if one.at_least is not None and one.at_least == one.at_most:
        return f"exactly {claim_value_text(one.figure, one.to, one.at_least)}"
    ends = {"at least": one.at_least, "at most": one.at_most}
    return ", ".join(
        f"{word} {claim_value_text(one.figure, one.to, end)}" for word, end in ends.items() if end is not None
    )


def _shown(pairs: Sequence[tuple[float, float]]) -> Shown | None:
    """What the figures of two rows show, the other over the one, seed by seed; None of fewer than two seeds."""
    if len(pairs) < LEAST_PAIRS:
        return None
    one, other = zip(*pairs, strict=True)
    return shown_by(differences(one, other), MARGIN, LEVEL, any(map(math.isinf, (*one, *other))))


def _names(text: str, wanted: str | None) -> bool:
    """Whether a regime is the wanted one, or names it: `queue-bound, launch-bound` is both."""
    plain = text.partition(" (")[0]
    return wanted is not None and wanted in (plain, *plain.split(", "))


def _is_within(one: ClaimConfig, value: float) -> bool:
    if one.equals is not None:
        return one.equals == format(round(value, 6), "g")
    return (one.at_least is None or value >= one.at_least) and (one.at_most is None or value <= one.at_most)


def _value(row: str, figure: str, part: str, seen: Sequence[RunFigures]) -> Value:
    own = [run for run in seen if run.counts(figure)]
    under = "; ".join(dict.fromkeys(run.under for run in own or seen if run.under))
    head = (row, figure, part, under, len(own))
    unit = FIGURES[figure].unit
    if unit == "text":
        texts = Counter(str(run.figures[figure]) for run in own).most_common()
        several = [f"{text} ({n} of {len(own)})" if len(texts) > 1 else text for text, n in texts]
        return Value(*head, text="; ".join(several))
    known = [run.number(figure) for run in own or seen]
    numbers = [value for value in known if value is not None and math.isfinite(value)]
    if own and len(numbers) < len(own):
        n = len(own) - len(numbers)
        return Value(*head, note=f"infinite in {n} of {len(own)} runs: the quantile fell on failed requests")
    is_arithmetic = unit == "ratio" or len(numbers) == 1 or any(value <= 0 for value in numbers)
    found = mean(numbers) if is_arithmetic else log_mean(numbers)
    if own:
        return Value(*head, found.mean, found.low, found.high)
    statuses = ", ".join(dict.fromkeys(run.status for run in seen))
    reason = next((f": {run.reason}" for run in seen if run.reason), "")
    return Value(*head, marked=found.mean, note=f"{statuses}{reason}")


def _cycle(
    row: str,
    whose: str,
    users: float | None,
    throughput_hz: float | None,
    response_ns: float | None,
    response_name: str = "mean",
    outside: float | None = None,
) -> Cycle | None:
    """The cycle of a row; `outside`: the share that was measured. None without users, requests/s or response time."""
    if not users or not throughput_hz or not response_ns:
        return None
    cycle_ns = users / throughput_hz * NS_PER_S
    name = response_name if outside is None else f"measured; {response_name}"
    ratio = 1.0 - response_ns / cycle_ns if outside is None else outside
    cycle, response = duration_text(cycle_ns), f"{name} {duration_text(response_ns)}"
    if ratio > OUTSIDE_LIMIT_RATIO:
        share = share_text(ratio)
        claim = (
            f"client-bound or thinking: {share} of a cycle of {cycle} lies outside any request ({response})"
        )
    elif ratio < -OUTSIDE_LIMIT_RATIO:
        claim = f"the figures do not belong together: {response} in a cycle of {cycle}"
    else:
        claim = f"accounted for: a cycle of {cycle} is the request ({response})"
    return Cycle(row, whose, users, throughput_hz, cycle_ns, response_ns, response_name, ratio, claim)


def _stated_users(file: PublishedFile) -> float | None:
    """Users that any row of the article states, else those of the scenario's closed loop."""
    for row in file.rows:
        if (users := _one(row.published.get("users_count"))) is not None:
            return users
    for phase in (file.scenario or {}).get("phases", ()):
        arrivals = phase.get("arrivals") if isinstance(phase, Mapping) else None
        users = arrivals.get("users") if isinstance(arrivals, Mapping) else None
        if isinstance(users, int | float) and users > 0:
            return float(users)
    return None


def _one(value: Stated | None) -> float | None:
    """A stated number, the middle of a range; None of a text."""
    if isinstance(value, tuple):
        return sum(value) / len(value)
    return None if value is None or isinstance(value, str) else float(value)


def _kept(value: float | str) -> float | str:
    if isinstance(value, str):
        return value
    return _six(float(value)) if math.isfinite(value) else INFINITE


def _six(value: float) -> float:
    return float(f"{value:.6g}")


def _short(row: Any) -> dict[str, Any]:
    """A record without what is empty, its numbers of six digits."""
    return {
        name: _six(value) if isinstance(value, float) else value
        for name, value in asdict(row).items()
        if value not in (None, "")
    }


def _line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
