"""What an article says of its rows, held to our figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from squall.analysis.compare.pairs.change import differences, shown_by
from squall.analysis.published.orderings import LEVEL, MARGIN, max_common
from squall.analysis.published.values import RunFigures, Value, last_attempts
from squall.analysis.published.words import number_text
from squall.analysis.statistics.paired import LEAST_PAIRS
from squall.scenarios.published.file import ClaimConfig, PublishedFile
from squall.scenarios.units import digits_text

HELD, NOT_HELD, UNDECIDED, UNMEASURED = "held", "not held", "undecided", "not measured"
NOT_MEASURED = "not_measured"
"""The figure in which a probe says why a row has no others."""
Find = Callable[[str, str], Value | None]
"""The leading value of a row and a figure."""


@dataclass(frozen=True)
class Claim:
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


def claims_of(file: PublishedFile, runs: Sequence[RunFigures], find: Find) -> tuple[Claim, ...]:
    """All of the file's, in its order."""
    return tuple(_claim(file, one, runs, find) for one in file.claims)


def _claim(file: PublishedFile, one: ClaimConfig, runs: Sequence[RunFigures], find: Find) -> Claim:
    head = (one.says, one.figure, one.of, one.to, bound_text(one))
    found = find(one.of, one.figure) if one.to is None else _ratio(file, one, runs, find)
    if found is None or not found.is_measured:
        note = "no run has the figure" if found is None else found.note
        reasons = [
            value.text
            for row in (one.of, one.to)
            if row and (value := find(row, NOT_MEASURED)) and value.text
        ]
        note = "; ".join(dict.fromkeys(reasons)) or note
        return Claim(*head, UNMEASURED, note=note)
    if found.text:
        is_held = all(_says(text, one.equals) for text in found.text.split("; "))
        return Claim(*head, HELD if is_held else NOT_HELD, found.n, text=found.text)
    assert found.mean is not None
    is_held = _is_within(one, found.mean)
    ends = [end for end in (found.low, found.high) if end is not None]
    word, note = HELD if is_held else NOT_HELD, ""
    if any(_is_within(one, end) != is_held for end in ends):
        word, note = UNDECIDED, f"the mean says {word}, and its interval reaches over the bound"
    return Claim(*head, word, found.n, found.mean, found.low, found.high, note=note)


def _says(text: str, wanted: str | None) -> bool:
    """Whether a regime is the wanted one, or names it: `queue-bound, launch-bound` is both."""
    plain = text.partition(" (")[0]
    return wanted is not None and (plain == wanted or wanted in plain.split(", "))


def _is_within(one: ClaimConfig, value: float) -> bool:
    if one.equals is not None:
        return one.equals == format(round(value, 6), "g")
    return (one.at_least is None or value >= one.at_least) and (one.at_most is None or value <= one.at_most)


def _ratio(file: PublishedFile, one: ClaimConfig, runs: Sequence[RunFigures], find: Find) -> Value | None:
    """`of` over `to`: of runs of the same seed, else of the means, without an interval."""
    assert one.to is not None
    part, pairs = max_common(file, last_attempts(runs), one.figure, one.to, one.of)
    pairs = [pair for pair in pairs if all(math.isfinite(value) for value in pair)]
    if len(pairs) >= LEAST_PAIRS:
        d = differences([to for to, _ in pairs], [of for _, of in pairs])
        shown = shown_by(d, MARGIN, LEVEL)
        mean, low, high = (math.exp(value) for value in (shown.centre, shown.low, shown.high))
        return Value(one.of, one.figure, part, "", len(pairs), mean, low, high)
    found = [find(row, one.figure) for row in (one.of, one.to)]
    of, to = found
    if of is None or to is None:
        return Value(one.of, one.figure, part, "", 0, note="not both rows have the figure")
    if of.mean is None or not to.mean:
        notes = [f"{value.row}: {value.note or 'the figure is 0'}" for value in (of, to) if not value.mean]
        marked = [value.mean or value.marked for value in (of, to)]
        if marked[0] and marked[1]:
            notes.append(
                f"runs that do not count show {claim_value_text(one.figure, one.to, marked[0] / marked[1])}"
            )
        return Value(one.of, one.figure, part, "", 0, note="; ".join(notes))
    return Value(one.of, one.figure, of.part, "", min(of.n, to.n), of.mean / to.mean)


def bound_text(one: ClaimConfig) -> str:
    """What the claim asks for, with units."""
    if one.equals is not None:
        return f"is {one.equals}"
    if one.at_least is not None and one.at_least == one.at_most:
        return f"exactly {claim_value_text(one.figure, one.to, one.at_least)}"
    ends = [
        f"{word} {claim_value_text(one.figure, one.to, end)}"
        for word, end in (("at least", one.at_least), ("at most", one.at_most))
        if end is not None
    ]
    return ", ".join(ends)


def claim_value_text(figure: str, to: str | None, value: float | None) -> str:
    """A value of a claim: a multiple of another row's, or in the unit of the figure."""
    if value is None:
        return "-"
    return f"{digits_text(value)} times" if to is not None else number_text(figure, value)
