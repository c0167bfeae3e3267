"""What a published experiment beside ours says, in sentences: for a screen, the page and the document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from squall.analysis.published.claims import (
    HELD,
    NOT_MEASURED,
    UNDECIDED,
    UNMEASURED,
    Claim,
    claim_value_text,
)
from squall.analysis.published.evaluated import Evaluated
from squall.analysis.published.little import OURS, OUTSIDE_LIMIT_RATIO, PUBLISHED, Cycle
from squall.analysis.published.orderings import AGREES, CONTRADICTS, WORDS, Ordering, better_of
from squall.analysis.published.values import VALID
from squall.analysis.published.words import ratio_text, stated_text, value_text
from squall.analysis.wording import counted_text, names_text, share_text
from squall.scenarios.published.figures import FIGURES

REHEARSAL = "A rehearsal in small sizes: its figures mean nothing."
_UNSTATED = "not stated"
"""What files say where an article says nothing."""
_OF_PROBES = (
    "first_call_ns", "warm_call_ns", "call_kernel_ns", "kernel_of_cpu_ratio", "crossover_size_count", "bound",
    "pipeline_ns", "gain_ratio", "not_measured",
)  # fmt: skip
_SHOWN = ("throughput_hz", "p50_ns", "p95_ns", "p99_ns", "outside_ratio", "regime")


def answer(found: Evaluated) -> str:
    """One sentence: how many orderings agree, how many claims hold."""
    if not found.is_measured:
        said = "Nothing was measured yet" if not found.runs else "No run counts"
        return f"{said}: {verdicts_text(found)}"
    parts = [text for text in (_orderings_text(found.orderings), _claims_text(found.claims)) if text]
    return (
        "; ".join(parts) if parts else "The article states nothing that could agree or not: see the figures"
    )


def _orderings_text(orderings: Sequence[Ordering]) -> str:
    if not orderings:
        return ""
    counted = Counter(one.word for one in orderings)
    told = [f"{counted[word]} {_plural(word, counted[word])}" for word in WORDS if counted[word]]
    n = len(orderings)
    head = (
        "The one ordering that the article states" if n == 1 else f"Of {n} orderings that the article states"
    )
    return f"{head}: {', '.join(told)}" if n == 1 else f"{head} {', '.join(told)}"


_MANY = {AGREES: "agree", CONTRADICTS: "contradict"}


def _plural(word: str, n: int) -> str:
    return word if n == 1 else _MANY.get(word, word)


def _claims_text(claims: Sequence[Claim]) -> str:
    if not claims:
        return ""
    counted = Counter(one.word for one in claims)
    rest = "".join(f", {counted[word]} {word}" for word in (UNDECIDED, UNMEASURED) if counted[word])
    return f"{counted[HELD]} of {counted_text(len(claims), 'claim')} held{rest}"


def verdicts_text(found: Evaluated) -> str:
    """How the runs ended."""
    counted = found.verdicts()
    told = [
        f"{n} {status}" for status, n in sorted(counted.items(), key=lambda one: (one[0] != VALID, one[0]))
    ]
    return f"{counted_text(counted.total(), 'run')}: {', '.join(told)}" if told else "no runs"


def ordering_text(one: Ordering) -> str:
    """An ordering in words: what the article says, and what ours show."""
    title = FIGURES[one.figure].title
    better = better_of(one, one.published_ratio)
    said = f"{one.other} over {one.one} by {title}: {ratio_text(one.published_ratio)} published"
    if better is None:
        said = f"{one.other} and {one.one} have equal {title} published"
    seeds = (
        ""
        if one.ratio is None
        else f", {ratio_text(one.ratio, one.low, one.high)} here over {_seeds(one.n_pairs)}"
    )
    return f"{said}{seeds}: {one.word}"


def _seeds(n: int) -> str:
    return "one seed" if n == 1 else f"{n} seeds"


def claim_text(one: Claim) -> str:
    """A claim with its bound, our value, and the word."""
    whose = f"{one.of} over {one.to}" if one.to is not None else one.of
    value = f": {claim_reading(one)}" if claim_reading(one) != "-" else ""
    note = f" ({one.note})" if one.note else ""
    kind = FIGURES[one.figure]
    asked = f" {one.bound.removeprefix('is ')}" if kind.unit == "text" else f", {one.bound}"
    return f"{one.says} ({whose}: {kind.title}{asked}){value}: {one.word}{note}"


def claim_reading(one: Claim) -> str:
    """Our value of a claim with its interval."""
    if one.text:
        return one.text
    text = claim_value_text(one.figure, one.to, one.value)
    if one.low is None or one.high is None:
        return text
    ends = (claim_value_text(one.figure, one.to, end) for end in (one.low, one.high))
    return f"{text} ({' … '.join(ends)})"


def hardware_text(found: Evaluated) -> str:
    """The article's hardware."""
    stated = found.published.article.hardware
    return "hardware that is not stated" if stated == _UNSTATED else stated


def published_text(found: Evaluated) -> str:
    """What was published, on what, in a sentence."""
    article = found.published.article
    return f"Published: {article.title}. On {hardware_text(found)}; {article.software}; {article.load}."


def reasons(found: Evaluated) -> list[str]:
    """Why figures differ, by what is in the data: hardware and backend, Little's law, regimes, CUDA's API."""
    article = found.published.article
    lines = [f"Published on {hardware_text(found)}, with {article.software}; measured on {found.host}."]
    for whose, words in ((PUBLISHED, "the article's users"), (OURS, "our users")):
        lines += _outside_lines(words, [one for one in found.cycles if one.whose == whose])
    for figure in ("bound_by", "regime"):
        said = {row: value.text for row in found.rows if (value := found.value(row, figure)) and value.text}
        if said and (figure == "regime" or not _has(found, "regime")):
            alike = set(said.values())
            told = (
                f"all rows: {next(iter(alike))}"
                if len(alike) == 1 and len(said) > 1
                else "; ".join(f"{row}: {text}" for row, text in said.items())
            )
            lines.append(f"What limits our rows, by the classifier: {told}.")
    lines += _api_lines(found)
    return lines


def _has(found: Evaluated, figure: str) -> bool:
    return any(one.figure == figure and one.is_measured for one in found.values)


def _outside_lines(whose: str, cycles: Sequence[Cycle]) -> list[str]:
    outside = [one for one in cycles if one.outside_ratio > OUTSIDE_LIMIT_RATIO]
    if not cycles:
        return []
    if not outside:
        n = f"all {len(cycles)} rows" if len(cycles) > 1 else "the one row"
        return [f"By Little's law {whose} are accounted for in {n} whose users are known."]
    shares = [one.outside_ratio for one in outside]
    names = names_text([one.row for one in outside])
    stands_in = [one for one in outside if one.response_name != "mean"]
    note = " (of rows without a mean by their p50, which may be less than it)" if stands_in else ""
    return [
        f"By Little's law {whose} spent {_span(shares)} of each cycle outside any request{note}: {names}."
        " They were thinking, or their load generator was the limit; then requests/s is its own, not the server's."
    ]


def _api_lines(found: Evaluated) -> list[str]:
    lines = []
    for figure in ("sync_share_ratio", "launch_share_ratio"):
        stated = [one for row in found.rows if (one := found.stated(row, figure)) is not None]
        published = [float(end) for one in stated for end in (one if isinstance(one, tuple) else (one,))]
        means = [
            value.mean for row in found.rows if (value := found.value(row, figure)) and value.mean is not None
        ]
        if published and means:
            told = f"{_span(published)} published, {_span(means)} here"
            lines.append(f"Share of {FIGURES[figure].title}, least to most of all rows: {told}.")
    return lines


def _span(shares: Sequence[float]) -> str:
    least, most = share_text(min(shares)), share_text(max(shares))
    return least if least == most else f"{least} to {most}"


def screen_lines(found: Evaluated) -> list[str]:
    """The answer, a line for each row and claim, how the runs ended."""
    lines = [REHEARSAL] if found.is_small else []
    lines.append(answer(found))
    for row in found.rows:
        figures = [
            _named(name, value_text(value)) + _published(found, row, name)
            for name in (_OF_PROBES if found.published.probe is not None else _SHOWN)
            if (value := found.value(row, name)) is not None
        ]
        if figures:
            lines.append(f"{row}: {'; '.join(figures)}")
    without = [
        f"{run.row or 'all rows'} ({run.part}): no run counts, the last is "
        + (f"{run.status}: {run.reason}" if run.reason else run.status)
        for run in found.without_valid_run
    ]
    return [*lines, *(claim_text(one) for one in found.claims), *without, verdicts_text(found)]


def _named(figure: str, text: str) -> str:
    """A value with its figure's title, which may be what it is a share of: `0.01 % of a user's cycle`."""
    title = FIGURES[figure].title
    if title.startswith("of "):
        return f"{text} {title}"
    return f"{title}: {text}" if figure == NOT_MEASURED else f"{title} {text}"


def _published(found: Evaluated, row: str, figure: str) -> str:
    stated = found.stated(row, figure)
    return "" if stated is None else f", published {stated_text(figure, stated)}"
