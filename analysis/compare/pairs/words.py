"""A comparison in words: the answer, the screen, and Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from squall.analysis.compare.pairs.change import DIFFERENT, SAME, UNDECIDED
from squall.analysis.compare.pairs.compared import INVALID, UNFINISHED, Comparison
from squall.analysis.compare.pairs.intervals import MeanChange
from squall.analysis.compare.pairs.kernels_change import ADDED, GONE
from squall.analysis.compare.pairs.metric_changes import BETTER, WORSE, MetricChange
from squall.analysis.compare.pairs.why import EqualSizes
from squall.analysis.compare.run_figures import CLIENT_CPU, SERVER_CPU, THROUGHPUT
from squall.analysis.compare.run_row import FAILURES
from squall.analysis.shown import markdown_row, markdown_text
from squall.analysis.wording import duration_text, figure_text, share_text

LABELS = {
    "p50_ns": "p50", "p95_ns": "p95", "p99_ns": "p99", FAILURES: "failures", THROUGHPUT: "throughput",
    CLIENT_CPU: "client CPU per request", SERVER_CPU: "server CPU per request",
}  # fmt: skip
_WIDE = 0.1
_LEAST_SHARE = 0.05
"""Of the change of a whole: smaller parts are not named."""


def answer(found: Comparison) -> str:
    """One sentence that answers whether B is no worse than A."""
    margin = margin_text(found.margin_ratio)
    n = f"{found.n_pairs} pairs"
    if found.verdict == UNFINISHED:
        return (
            f"Unfinished: {found.n_pairs} of {found.n_pairs_planned} pairs have run; there is no verdict yet"
        )
    if found.verdict == INVALID:
        n_bad = sum(bool(one.left_out) for one in found.pairs)
        return (
            f"Invalid: of {n_bad} of {len(found.pairs)} pairs a run is not VALID or ended early, so that nothing is"
            " decided"
        )
    if found.verdict == SAME:
        return f"B is the same as A within {margin} in p50, p95, failures and throughput ({n})"
    primary = [one for one in found.changes if one.is_primary]
    if found.verdict in (WORSE, BETTER):
        own = [_claim(one, found) for one in primary if one.outcome == found.verdict]
        others = [_claim(one, found) for one in primary if found.verdict == WORSE and one.outcome == BETTER]
        but = f", though {'; '.join(others)}" if others else ""
        return f"B is {found.verdict} than A: {'; '.join(own)}{but} ({n})"
    if not any(one.outcome == UNDECIDED for one in primary):
        better = next(one for one in primary if one.outcome == BETTER)
        return f"Undecided: {_claim(better, found)}, but B answers otherwise"
    open_ones = [one for one in primary if one.outcome == UNDECIDED]
    told = "; ".join(f"{LABELS[one.metric]} {_undecided(one)}" for one in open_ones)
    return f"Undecided after {n}: {told}"


def margin_text(ratio: float) -> str:
    """As it was typed: `3 %`."""
    return f"{100.0 * ratio:g} %"


def _claim(one: MetricChange, found: Comparison) -> str:
    label = LABELS[one.metric]
    what = f"{label} of the {found.latency_name} time" if one.metric in ("p50_ns", "p95_ns") else label
    return f"{what} {change_text(one)}"


def _undecided(one: MetricChange) -> str:
    if one.change is None:
        return f"not assessed, {one.reason}" if one.reason else change_text(one)
    more = f", {one.n_more} more pairs needed" if one.n_more is not None else ""
    return f"{change_text(one)}{more}"


def change_text(one: MetricChange) -> str:
    """The change with its half width: `+3.1 % ± 0.4 %`; of a wide interval, which is not symmetric, both ends."""
    if one.change is None:
        return "from finite to infinite" if one.n_infinite_b > one.n_infinite_a else "of infinite figures"
    half = None if one.low is None or one.high is None else (one.high - one.low) / 2.0
    if half is None or half > _WIDE:
        return f"{signed(one.change)} ({signed(one.low)} … {signed(one.high)})"
    return f"{signed(one.change)} ± {share_text(half)}"


def signed(ratio: float | None) -> str:
    """`+3.1 %`; `∞` for None, an interval that has no end."""
    if ratio is None:
        return "∞"
    return f"{'+' if ratio >= 0 else '-'}{share_text(abs(ratio))}"


def causes(found: Comparison) -> list[str]:
    """What changed, from requests to kernels; empty where nothing recorded tells."""
    return [*filter(None, [_of_parts(found), *_of_batches(found), *_of_gpu(found)])]


def _of_parts(found: Comparison) -> str:
    change = found.every
    if change is None:
        return ""
    whole = change.latency
    if not whole.is_shown:
        return f"The mean {found.latency_name} time changed by {span_text(whole)}: none is shown."
    parts = _named(change.parts, whole.change)
    return (
        f"The mean {found.latency_name} time of requests that ended ok changed by {span_text(whole)}: {parts};"
        f" unexplained {_ns(change.residual_ns)}."
    )


def _named(parts: Sequence[MeanChange], whole: float) -> str:
    """The parts that make the change, with their share of it."""
    own = [one for one in parts if whole and abs(one.change) >= _LEAST_SHARE * abs(whole) and one.is_shown]
    told = [f"{one.what} {_ns(one.change)} ({share_text(one.change / whole)} of it)" for one in own]
    return ", ".join(told) or "no part by itself is shown"


def _of_batches(found: Comparison) -> list[str]:
    change = found.batches
    if change is None:
        return []
    told = []
    if change.equal is not None:
        told.append(f"Batches of equal size: {equal_text(change.equal, found.margin_ratio)}.")
    if change.by_mix.is_shown and change.rows.is_shown:
        told.append(
            f"The mix of batch sizes changed: a request is served in a batch of {change.rows.b:.2f} rows instead of"
            f" {change.rows.a:.2f} on average, which makes {_ns(change.by_mix.change)} of the"
            f" {_ns(change.compute.change)} in compute."
        )
    return told


def _of_gpu(found: Comparison) -> list[str]:
    gpu = found.gpu
    if gpu is None:
        return []
    told = []
    if gpu.length.is_shown:
        told.append(
            f"On the GPU, at equal batch size, a batch changed by {span_text(gpu.length)}:"
            f" {_named(gpu.parts, gpu.length.change)}."
        )
    if gpu.kernel_time is not None:
        told.append(
            f"Kernels of a batch together, at equal size: {equal_text(gpu.kernel_time, found.margin_ratio)}."
        )
    for state in (ADDED, GONE):
        names = [one.name for one in gpu.kernels if one.state == state]
        if names:
            told.append(f"Kernels {state}: {', '.join(names[:4])}{' …' if len(names) > 4 else ''}.")
    return told


def equal_text(one: EqualSizes, margin_ratio: float) -> str:
    """`same within 3 %: +0.2 % (-0.1 % … +0.5 %)`."""
    words = f"same within {margin_text(margin_ratio)}" if one.verdict == SAME else one.verdict
    low, high = signed(one.low_ratio - 1.0), signed(one.high_ratio - 1.0)
    return f"{words}: {signed(one.ratio - 1.0)} ({low} … {high})"


def _ns(value: float) -> str:
    return f"{'+' if value >= 0 else '-'}{duration_text(abs(value))}"


def span_text(one: MeanChange) -> str:
    """The change with its half width."""
    if one.low is None or one.high is None:
        return _ns(one.change)
    return f"{_ns(one.change)} ± {duration_text((one.high - one.low) / 2.0)}"


def lines(found: Comparison) -> list[str]:
    """The screen: the answer, a line for each figure as benchstat has it, and why."""
    rows = [("", "A", "B", "B over A", ""), *(metric_row(one) for one in found.changes)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    table = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]).rstrip()
        for row in rows
    ]
    differs = [f"differs: {one.text}" for one in found.differs] or ["differs: nothing in the scenario"]
    return [
        answer(found), "", *table, "", *differs, *(f"mark: {one}" for one in found.marks), *aside(found),
        *causes(found), answers_text(found),
    ]  # fmt: skip


def aside(found: Comparison) -> list[str]:
    """The runs that do not count, a line each, and why."""
    return [
        *(f"left out, seed {one.seed}: {one.left_out}" for one in found.pairs if one.left_out),
        *(f"not in a pair: {one}" for one in found.unpaired),
        *(f"run again: {one}" for one in found.replaced),
    ]


def metric_row(one: MetricChange) -> tuple[str, str, str, str, str]:
    """Label, A, B, change, and what it means: `~` where nothing is shown."""
    unit = "ratio" if one.is_share else "hz" if one.metric == THROUGHPUT else "ns"
    a, b = (
        figure_text(mean, unit) if mean is not None else f"infinite in {n}" if n else "-"
        for mean, n in ((one.mean_a, one.n_infinite_a), (one.mean_b, one.n_infinite_b))
    )
    if one.p_value is None:
        return LABELS[one.metric], a, b, "", one.reason
    means = f"p={one.p_value:.3f} n={one.n_pairs}"
    if not one.is_primary:
        return LABELS[one.metric], a, b, change_text(one), f"explore ({means})"
    words = {DIFFERENT: one.direction, SAME: "~ same", UNDECIDED: "~ undecided"}[one.verdict]
    if one.verdict == DIFFERENT and one.outcome in (SAME, UNDECIDED):
        words += ", within the margin" if one.outcome == SAME else ", perhaps within the margin"
    if one.n_more is not None:
        words += f", {one.n_more} more pairs needed"
    reason = f"; {one.reason}" if one.reason else ""
    return LABELS[one.metric], a, b, change_text(one), f"{words} ({means}){reason}"


def answers_text(found: Comparison) -> str:
    """Whether both sides answered alike, as far as anything tells."""
    told = found.answers
    parts = []
    if told.is_same_sizes is not None:
        parts.append(
            "each reply has the same size on both sides"
            if told.is_same_sizes
            else "replies to the same requests differ in size"
        )
    for side, n_checked, n_wrong in (
        ("A", told.n_checked_a, told.n_wrong_a),
        ("B", told.n_checked_b, told.n_wrong_b),
    ):
        if n_checked is not None:
            parts.append(f"of {n_checked:,} compared replies of {side} {n_wrong or 0:,} were wrong")
    if told.n_checked_a is None or told.n_checked_b is None:
        parts.append("values were not compared on both sides: clients.check does that")
    return f"Answers: {'; '.join(parts)}."


def markdown(found: Comparison) -> str:
    """For a job's summary."""
    rows = [markdown_row(metric_row(one)) for one in found.changes]
    runs = [
        markdown_row((str(one.seed), one.run_a, one.run_b, one.first, one.left_out or "counts"))
        for one in found.pairs
    ]
    differs = [f"- {markdown_text(one.text)}" for one in found.differs] or ["- nothing in the scenario"]
    told = [*(f"- {markdown_text(one)}" for one in (*found.marks, *causes(found), answers_text(found)))]
    return "\n".join(
        [
            f"## {markdown_text(answer(found))}", "",
            f"A: {markdown_text(found.side_a)}, B: {markdown_text(found.side_b)}.", "",
            "| figure | A | B | B over A | |", "|---|---|---|---|---|", *rows, "", "What differs:", "", *differs, "",
            *told, "", "| seed | A | B | first | |", "|---|---|---|---|---|", *runs, "",
        ]
    )  # fmt: skip


def part_row(one: MeanChange, whole: MeanChange) -> tuple[str, ...]:
    """Part, mean in A and B, change with interval, share of the change of the whole."""
    share = share_text(one.change / whole.change) if whole.change else "-"
    return one.what, duration_text(one.a), duration_text(one.b), span_text(one), share
