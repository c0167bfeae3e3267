"""The one screen at the end of a run, within 80 columns and about 45 lines. Rendering only."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from squall.analysis.decisions.figures import KEPT
from squall.analysis.decisions.of_run import unexpected_failures
from squall.analysis.findings.finding import Finding
from squall.analysis.findings.tail import OUTSIDE
from squall.analysis.join.counts import JoinFigures
from squall.analysis.locust.lines import locust_lines
from squall.analysis.metrics.model_statistics import ModelFigures
from squall.analysis.render.diagnosis_lines import LEGEND, SAVES, check_lines, finding_lines
from squall.analysis.render.figure_lines import (
    CLOSED_STIMULUS,
    burstiness,
    child_text,
    interval_text,
    load_rows,
    model_load_lines,
    quantile_text,
    rejections_text,
    sequence_lines,
    server_lines,
    step_text,
    stimulus_lines,
    straggler_text,
    stream_lines,
    users_text,
)
from squall.analysis.render.observing_lines import (
    cost_text,
    kernel_lines,
    profile_lines,
    recording_lines,
    under_text,
)
from squall.analysis.render.promise_lines import decided_line, outcome_text, promise_lines
from squall.analysis.requests.cold_words import cold_lines
from squall.analysis.requests.failures import never_text
from squall.analysis.requests.stimulus import Stimulus
from squall.analysis.summary.identities import Identity
from squall.analysis.summary.summary_file import Summary
from squall.analysis.tables.collected import BY_HOOK, BY_LIBRARY, CollectorState
from squall.analysis.tables.sealed import Verdict
from squall.analysis.verdict.lag_parts import LagPart
from squall.analysis.verdict.phase_figures import (
    BatchFigures,
    LoadFigures,
    OutcomeFigures,
    TritonFigures,
)
from squall.analysis.wording import LATENCY_LABELS, count_text, duration_text, rate_text, share_text

WIDTH = 80
LABEL_WIDTH = 12
MOST_LINES = 4
"""Lines that a list of reasons or failures may take; the report holds the rest."""

_NO_BREAK = "\N{NO-BREAK SPACE}"
_WITHIN_FIGURE = re.compile(r"(?<=\d) (?=%|[nµm]?s\b)|(?<=≤) ")
"""Spaces at which a line is not broken: between a number and its unit, and after a sign."""

FAULT_STYLE = "bold red"
STATUS_STYLES = {"VALID": "bold green", "INVALID": "bold red", "ABORTED": "bold yellow"}

_WHOLE_RATIO = 0.99
"""Of a phase, the load from which on it counts as whole: the last arrival of one worker alone is no end of it."""


def render(summary: Summary, run_dir: str, width: int = WIDTH) -> RenderableType:
    """What `squall run` prints last, from `summary.summarise`. `run_dir` is where the files are.

    Text beside labels takes `width` columns; figures stand in tables of 80.
    """
    measure, streams = summary.measure, summary.measure.streams
    facts = {
        "Stimulus": _stimulus_lines(summary.stimulus),
        "Promises": promise_lines(summary.promises or ())[: 2 * MOST_LINES],
        "Ended early": list(filter(None, [decided_line(summary.decided)])),
        "Users": list(users_text(measure.users)) if measure.users else [],
        "Locust": locust_lines(summary.locust) if summary.locust else [],
        "Outcomes": _outcome_lines(measure.outcomes),
        "Servers": _server_lines(summary),
        "Models": _model_load_lines(summary),
        "Rejected": list(rejections_text(summary.rejections)) if summary.rejections else [],
        "Streams": stream_lines(streams) if streams else [],
        "Sequences": sequence_lines(measure.sequences) if measure.sequences else [],
        "Batches": _batch_lines(measure.batches, summary.collectors),
        "Triton": [*_triton_lines(measure.triton), *_model_lines(measure.models)],
        "Mean time": _join_lines(
            measure.join, summary.latency_name, streams is not None, summary.steps is not None
        ),
        "Steps": _step_lines(summary),
        "Tool, host": _host_lines(summary),
        "Counts": _identity_lines(summary.identities, check_lines(summary.self_checks)),
        "Diagnosis": _diagnosis_lines(summary.findings),
        "Profile": _profile_lines(summary)[:MOST_LINES],
        "Recording": recording_lines(summary.recording),
        "Observing": [cost_text(summary.collector_costs)],
        "Notes": list(summary.notes[:MOST_LINES]),
        "Not recorded": _missing_lines(summary.collectors),
        "Files": [f"{run_dir}/  report.html  summary.json  tables/  manifest.json"],
    }
    return Group(
        _headline(summary),
        _load_table(measure.load),
        _latency_table(summary),
        *_latency_notes(summary),
        _interval_line(summary),
        *(Text(_first_line(line), "bold yellow") for line in cold_lines(summary.cold)[:MOST_LINES]),
        Text(),
        _fact_grid(facts, width),
        _verdict(summary.verdict),
        *_promised(summary),
    )


def _headline(summary: Summary) -> Text:
    measure = summary.measure
    phases = ", ".join(measure.phases) or "no measure phase"
    text = Text(summary.run, style="bold")
    length = duration_text(measure.duration_ns)
    if measure.loaded_ns is not None and measure.loaded_ns < _WHOLE_RATIO * measure.duration_ns:
        length = f"{duration_text(measure.loaded_ns)} of {length}"
    text.append(f"   {phases}, {length}, seed {summary.seed}   ", style="dim")
    text.append(summary.verdict.status, style=STATUS_STYLES[summary.verdict.status])
    if measure.failures.is_beyond:
        text.append(f", {share_text(measure.failures.failed_ratio)} failed", style=FAULT_STYLE)
        if n := measure.failures.n_never:
            text.append(f", {count_text(n)} never sent", style=FAULT_STYLE)
    return text


def _plain_table(*headers: str) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, width=WIDTH, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False, header_style="dim"
    )  # fmt: skip
    for position, header in enumerate(headers):
        table.add_column(header, justify="left" if position == 0 else "right", no_wrap=True)
    return table


def _load_table(load: LoadFigures) -> RenderableType:
    headers = ("Load", "requests", "rate", "gap c²", "IDC 0.1 s", "1 s", "10 s", "peak/mean")
    table = _plain_table(*headers)
    for name, series in load_rows(load):
        own = burstiness(series)
        scales = (
            (own.gap_c2_ratio, own.idc_100ms_ratio, own.idc_1s_ratio, own.idc_10s_ratio, own.peak_to_mean_1s_ratio)
            if own is not None
            else (None,) * (len(headers) - 3)
        )  # fmt: skip
        table.add_row(name, count_text(series.n), rate_text(series.rate_hz), *map(count_text, scales))
    return Padding(table, (1, 0, 1, 0))


def _latency_table(summary: Summary) -> Table:
    latency = summary.measure.latency
    spreads = latency.spreads
    names = [f"p{100 * quantile.q:g}" for quantile in spreads[summary.latency_name].quantiles]
    head = f"Latency{under_text(summary.latency_under).replace(' ', chr(10), 1)}"  # a column has no room for both
    table = _plain_table(head, "mean", *names, "max")
    for kind, label in LATENCY_LABELS[summary.load].items():
        spread = spreads[kind]
        values = ["few n" if one.is_refused else quantile_text(one) for one in spread.quantiles]
        mean, largest = spread.mean_of_finite_ns, spread.max_of_finite_ns
        table.add_row(label, duration_text(mean), *values, duration_text(largest))
    parts = latency.parts_of_lag
    if _is_marked(parts):
        table.add_row("lag's part", "", *map(_lag_part_text, parts), "")
    return table


def _is_marked(parts: Sequence[LagPart | None]) -> bool:
    return any(part and part.is_above for part in parts)


def _lag_part_text(part: LagPart | None) -> Text:
    """The share of a quantile that is lag, marked where it is more than is allowed."""
    if part is None:
        return Text("-", "dim")
    text = share_text(part.ratio)
    return Text(f"! {text}", FAULT_STYLE) if part.is_above else Text(text, "dim")


def _latency_notes(summary: Summary) -> list[RenderableType]:
    """What no reader of these latencies may miss: how many failed, and which quantiles are the client's."""
    measure, notes = summary.measure, []
    if measure.failures.is_beyond:
        own = measure.failures
        share, n = share_text(own.failed_ratio), count_text(own.n - own.n_never)
        notes.append(f"{share} of these {n} requests failed: infinitely slow in quantiles, not in mean, max")
        if own.n_never:
            notes.append(f"{never_text(own.n_never)}: infinitely slow in quantiles, too")
    if _is_marked(measure.latency.parts_of_lag):
        notes.append("! more of this quantile than allowed is send lag: the client's, not the server's")
    return [Text(note, FAULT_STYLE) for note in notes]


def _interval_line(summary: Summary) -> RenderableType:
    headline = summary.latency_name
    quantiles = summary.measure.latency.spreads[headline].quantiles
    p95 = next(quantile for quantile in quantiles if quantile.q == 0.95)
    text = Text(f"{LATENCY_LABELS[summary.load][headline]} p95 ", style="bold")
    text.append(f"{quantile_text(p95)}{under_text(summary.latency_under)}", style="bold")
    text.append(f"   95 % interval {interval_text(p95)}   n {count_text(p95.n)}")
    text.append(f" (like {count_text(round(p95.n_eff))} independent)", style="dim")
    if not p95.interval_reason:
        return text
    return Group(text, _indented(p95.interval_reason, style="dim"))


def _fact_grid(facts: Mapping[str, list[str]], width: int) -> Table:
    """Each label with its lines beside it; a label without lines is left out."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=LABEL_WIDTH, style="bold", no_wrap=True)
    grid.add_column(width=width - LABEL_WIDTH - 2, overflow="fold")
    for label, lines in facts.items():
        for position, line in enumerate(lines):
            grid.add_row(label if position == 0 else "", Text(_hanging(line, width)))
    return grid


def _hanging(line: str, width: int) -> str:
    """`line` as the lines beside a label, indented from the second on, so that the next one is seen to begin."""
    whole = _WITHIN_FIGURE.sub(_NO_BREAK, line)
    parts = textwrap.wrap(whole, width - LABEL_WIDTH - 2, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(parts).replace(_NO_BREAK, " ")


def _indented(line: str, style: str = "") -> RenderableType:
    """`line` below its heading, all of its lines indented."""
    return Padding(Text(line, style), (0, 0, 0, 2))


def _stimulus_lines(stimuli: Mapping[str, Stimulus] | None) -> list[str]:
    """Two lines a phase, of the first phases; a closed loop says why it has none."""
    if stimuli is None:
        return [CLOSED_STIMULUS]
    lines = []
    for phase, stimulus in stimuli.items():
        first, second = stimulus_lines(stimulus)
        lines += [f"{phase}: {first}" if len(stimuli) > 1 else first, second]
    return lines[:MOST_LINES]


def _outcome_lines(outcomes: OutcomeFigures) -> list[str]:
    counts = ", ".join(f"{name} {count_text(n)}" for name, n in outcomes.counts.items())
    details = [f"{one.outcome} x {count_text(one.n)}: {one.detail[:64]}" for one in outcomes.details]
    return [f"{counts}   (ok {share_text(outcomes.ok_ratio)})", *details[: MOST_LINES - 1]]


def _server_lines(summary: Summary) -> list[str]:
    """Of several servers those with the most requests, and how alike they are; the report has all."""
    figures = summary.measure.servers
    if figures is None:
        return []
    *lines, alike = server_lines(figures, summary.latency_name)
    rest = len(lines) - MOST_LINES
    more = [f"and {rest} more servers: see the report"] if rest > 0 else []
    return [*lines[:MOST_LINES], *more, alike, *map(straggler_text, summary.stragglers[:MOST_LINES])]


def _model_load_lines(summary: Summary) -> list[str]:
    """Of several models under load the first; the report has all."""
    models = list((summary.measure.by_model or {}).items())
    lines = [
        line
        for name, one in models[:MOST_LINES]
        for line in model_load_lines(name, one, summary.latency_name)
    ]
    rest = len(models) - MOST_LINES
    return [*lines, f"and {rest} more models: see the report"] if rest > 0 else lines


def _batch_lines(batches: BatchFigures | None, collectors: Mapping[str, CollectorState]) -> list[str]:
    if batches is None:
        return ["not recorded"]
    sizes = f"mean {count_text(batches.rows_mean_count)}, p50 {count_text(batches.rows_p50_count)}"
    sizes += f", p95 {count_text(batches.rows_p95_count)}, max {count_text(batches.rows_max_count)}"
    per_batch = count_text(batches.requests_mean_count)
    state = collectors.get("batches")
    how = f"; {state.how}" if state is not None and state.how in (BY_LIBRARY, BY_HOOK) else ""
    return [f"{count_text(batches.n)} of {sizes} rows; {per_batch} requests each on average{how}"]


def _triton_lines(triton: TritonFigures | None) -> list[str]:
    if triton is None:
        return ["not recorded"]
    means = {
        "queue": triton.queue_mean_ns,
        "input": triton.compute_input_mean_ns,
        "infer": triton.compute_infer_mean_ns,
        "output": triton.compute_output_mean_ns,
    }
    parts = ", ".join(f"{word} {duration_text(mean_ns)}" for word, mean_ns in means.items())
    failed = count_text(triton.failure_count)
    succeeded = count_text(triton.request_count)
    lines = [
        f"mean {parts}",
        f"{succeeded} requests succeeded in its samples of these phases, {failed} failed",
    ]
    hits = count_text(triton.cache_hit_count)
    cached = f"{hits} of them were answered from the response cache and have no batch"
    return [*lines, cached] if triton.cache_hit_count else lines


def _model_lines(models: Sequence[ModelFigures]) -> list[str]:
    """The models behind the one under load, in the order of an ensemble's steps."""
    lines = [
        f"{one.model}: queue {duration_text(one.queue_mean_ns)}, compute "
        f"{duration_text(one.compute_mean_ns)}, {count_text(one.execution_count)} executions of "
        f"{count_text(one.batch_rows_mean)} rows{_cached_text(one)}"
        for one in models[:MOST_LINES]
    ]
    rest = len(models) - MOST_LINES
    return [*lines, f"and {rest} more models: see summary.json"] if rest > 0 else lines


def _cached_text(model: ModelFigures) -> str:
    if not model.cache_hit_count:
        return ""
    hits = count_text(model.cache_hit_count)
    return f"; {hits} of {count_text(model.request_count)} answered from the response cache, without a batch"


def _join_lines(
    join: JoinFigures | None, latency_name: str, is_streamed: bool, has_steps: bool = False
) -> list[str]:
    """The parts of the mean latency that make a hundredth of it or more, and how sure the join is."""
    if join is None or join.accounting is None:
        return ["no request could be joined to its batch"]
    account = join.accounting
    whole_ns = account.parts[latency_name].mean_ns
    parts = {name: part.mean_ns for name, part in account.parts.items() if name != latency_name}
    if has_steps:
        parts = {OUTSIDE if name == "network" else name: ns for name, ns in parts.items()}
    if is_streamed:  # what is neither queue nor execution is mostly what a model works on after it
        parts = {"network and responses" if name == "network" else name: ns for name, ns in parts.items()}
    shown = {name: ns for name, ns in parts.items() if abs(ns) >= whole_ns / 100}
    means = " + ".join(f"{name} {duration_text(ns)}" for name, ns in shown.items()).replace(
        "+ residual -", "- residual "
    )
    clock = duration_text(join.clock_error_max_ns)
    residual = account.residual_p50_ratio
    rest = f"; median residual {share_text(residual)}" if residual is not None else ""
    return [
        f"{means} = {duration_text(whole_ns)}",
        f"{share_text(join.joined_ratio)} joined by id{rest}; clock error ≤ {clock}",
    ]


def _step_lines(summary: Summary) -> list[str]:
    """Of requests that passed several models those of most latency, and whose batches are that name nobody."""
    if summary.steps is None:
        return []
    models = summary.steps.models
    lines = [step_text(one, summary.latency_name) for one in models[:MOST_LINES]]
    rest = len(models) - MOST_LINES
    lines += [f"and {rest} more models: see summary.json"] if rest > 0 else []
    return [*lines, *map(child_text, summary.steps.children[:MOST_LINES])]


def _host_lines(summary: Summary) -> list[str]:
    lines = []
    if workers := summary.workers:
        cpu = f"CPU mean {share_text(workers.cpu_mean_ratio)}, max {share_text(workers.cpu_max_ratio)}"
        lag = f"loop lag p95 {duration_text(workers.loop_lag_p95_ns)}"
        lines.append(f"{workers.n_workers} workers: {cpu}; {lag}; gc {workers.gc_count}")
    if summary.lane:
        lines.append(summary.lane)
    for node, host in list((summary.host or {}).items())[:MOST_LINES]:
        lines.append(
            f"{node}: CPU mean {share_text(host.cpu_busy_mean)}, max {share_text(host.cpu_busy_max)}"
            f" of {host.n_cores} cores; steal max {share_text(host.cpu_steal_max)}"
        )
    return [*lines, *summary.cpu_text, *summary.gpu_text]


def _identity_lines(identities: Sequence[Identity], checks: list[str]) -> list[str]:
    """What counts of independent sources disagree, and the self-checks that are not met."""
    broken = [one for one in identities if not one.is_met]
    lines = [
        f"{one.name}: found {count_text(one.found)}, expected {_range_text(one.least, one.most)}"
        for one in broken
    ]
    head = "" if broken else f"all {len(identities)} agree; "
    return [*lines, f"{head}self-checks: {checks[0]}", *checks[1:MOST_LINES]]


def _range_text(least: float, most: float) -> str:
    return count_text(least) if least == most else f"{count_text(least)} … {count_text(most)}"


def _diagnosis_lines(findings: Sequence[Finding]) -> list[str]:
    lines = finding_lines(findings)
    return [*lines, LEGEND] if any(SAVES in line for line in lines) else lines


def _profile_lines(summary: Summary) -> list[str]:
    recorded = profile_lines(summary.profile or {}, summary.latency_under)
    return [*kernel_lines(summary.collectors), *recorded]


def _missing_lines(collectors: Mapping[str, CollectorState]) -> list[str]:
    """Names alone: why, and the mend, were said at the start."""
    missing = [name for name, one in collectors.items() if one.status == "missing"]
    return [f"{', '.join(missing)}: why, and the mend, stand in report.html"] if missing else []


def _verdict(verdict: Verdict) -> RenderableType:
    """The status with the first cause beside it, the other reasons, and how many checks are met."""
    met = [check for check in verdict.checks if check.is_met]
    n_left = sum(bool(check.not_assessed) for check in verdict.checks)
    rest = f", {n_left} not assessed" if n_left else ""
    counted = f"{len(met)} of {len(verdict.checks) - n_left} checks met{rest}"
    status, reasons = verdict.status, verdict.reasons
    first, *others = [*reasons[:MOST_LINES], counted]
    text = Text("\n")
    text.append(_first_line(f"{status}   {first}"))
    text.stylize(STATUS_STYLES[status], 1, 1 + len(status))
    lines = [_indented(line) for line in others]
    if len(reasons) > MOST_LINES:
        lines.append(_indented(f"and {len(reasons) - MOST_LINES} more: see summary.json", style="dim"))
    return Group(text, *lines)


def _promised(summary: Summary) -> list[RenderableType]:
    """The last line: failures beyond what is expected, then whether what was promised was kept."""
    failed = unexpected_failures(summary.measure.failures, summary.promises, summary.locust)
    if not failed and not summary.promises:
        return []
    parts = [f"FAILED: {failed}"] if failed else []
    parts += [outcome_text(summary.promises)] if summary.promises else []
    is_kept = not failed and all(one.verdict == KEPT for one in summary.promises or ())
    return [Text(_first_line(" ".join(parts)), "bold green" if is_kept else FAULT_STYLE)]


def _first_line(line: str) -> str:
    """`line` with what does not fit below it, indented."""
    whole = _WITHIN_FIGURE.sub(_NO_BREAK, line)
    parts = textwrap.wrap(whole, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(parts).replace(_NO_BREAK, " ")
