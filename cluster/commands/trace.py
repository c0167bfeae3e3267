"""`squall trace`: describe a trace, fit processes to it, make and convert traces."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from squall.cluster.commands.options import RunArgument
from squall.cluster.commands.printed import print_result, say
from squall.scenarios.errors import ScenarioError

if TYPE_CHECKING:
    from squall.analysis.traces.fitted import Fitted
    from squall.scenarios.arrivals.replay import Replay
    from squall.scenarios.traces.part import TracePart

LONGEST_NS = 2**61
"""Horizon that no trace reaches: 73 years."""

_PAGES = (".html", ".htm")
_PICTURES = (".png", ".svg")

trace_app = typer.Typer(no_args_is_help=True)

FileArgument = Annotated[Path, typer.Argument(help="A trace file.", metavar="FILE")]
OutArgument = Annotated[Path, typer.Argument(help="File to write.", metavar="OUT")]
FormatOption = Annotated[
    str | None, typer.Option("--format", "-f", help="Format of FILE; none: recognised. Wrong ones list all.")
]
UnitOption = Annotated[str | None, typer.Option("--unit", help="Unit of numbers: s, ms, us or ns.")]
ColumnOption = Annotated[str | None, typer.Option("--column", help="The column that holds the times.")]
RepairOption = Annotated[
    list[str] | None,
    typer.Option("--repair", help="sort, skip-bad, drop-duplicates or clip-negative. Repeatable."),
]
StampAtOption = Annotated[
    str | None,
    typer.Option("--stamp-at", metavar="END", help="Which end of a request the times are: begin or end."),
]
DurationColumnOption = Annotated[
    list[str] | None,
    typer.Option(
        "--duration-column", help="A duration to take off the end of a request. Repeatable: their sum."
    ),
]
DurationUnitOption = Annotated[
    str | None, typer.Option("--duration-unit", help="Unit of its numbers: s, ms, us or ns.")
]
SpreadOption = Annotated[
    str | None,
    typer.Option("--spread", metavar="TICK", help="Place each arrival at random inside its tick: 1s, 3s."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any key of `arrivals: {kind: trace}`: start=10m, time_scale=1/60. Repeatable.",
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Seed of all that is drawn.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
ToOption = Annotated[
    str | None, typer.Option("--to", "-t", help="Format of OUT: parquet, csv or jsonl; none: by its ending.")
]
PlotOption = Annotated[
    Path | None, typer.Option("--plot", help="Also draw it: a .png, .svg or .html file.", metavar="PLOT")
]


@trace_app.callback()
def _ends_tidily(context: typer.Context) -> None:
    """Arrival traces: describe, fit a process, synthesise, convert formats."""
    # SIGTERM ends a command as Ctrl-C does, so that no half-written file stays
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    context.call_on_close(lambda: signal.signal(signal.SIGTERM, before))


@trace_app.command()
def info(
    file: FileArgument,
    format_: FormatOption = None,
    unit: UnitOption = None,
    column: ColumnOption = None,
    repair: RepairOption = None,
    stamp_at: StampAtOption = None,
    duration_column: DurationColumnOption = None,
    duration_unit: DurationUnitOption = None,
    spread: SpreadOption = None,
    overrides: SetOption = None,
    seed: SeedOption = 1,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rate, bursts, memory and tails of a trace, and what they do to a queue."""
    from squall.analysis.report.trace_screen import render_trace
    from squall.analysis.traces.info import trace_summary

    if plot is not None and plot.suffix not in (*_PAGES, *_PICTURES):
        raise ScenarioError(f"--plot {plot}: must end in .png, .svg or .html")
    settings = _settings(
        file, spread, overrides, format=format_, unit=unit, column=column, repair=repair, stamp_at=stamp_at,
        duration_columns=duration_column, duration_unit=duration_unit,
    )  # fmt: skip
    part, source, notes = _read(settings, seed)
    summary = {"file": str(file), **source, **trace_summary(part.stamp_ns, part.sizes, part.session)}
    summary["notes"] = [*notes, *_if_ends(settings, seed, summary), *summary["notes"]]
    print_result(summary, lambda width: render_trace(summary, file.name, width), as_json)
    if plot is not None:
        _draw(plot, part, summary, file.name)


@trace_app.command()
def fit(
    file: FileArgument,
    format_: FormatOption = None,
    unit: UnitOption = None,
    column: ColumnOption = None,
    repair: RepairOption = None,
    stamp_at: StampAtOption = None,
    duration_column: DurationColumnOption = None,
    duration_unit: DurationUnitOption = None,
    spread: SpreadOption = None,
    overrides: SetOption = None,
    seed: SeedOption = 1,
    snippet: Annotated[
        Path | None, typer.Option("--snippet", help="Write the best fit there, as YAML for a phase.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Fits arrival processes to a trace, ranks them, and prints the best as a piece of a scenario."""
    from squall.analysis.report.fit_screen import render_fit
    from squall.analysis.traces.fit_report import fit_trace

    settings = _settings(
        file, spread, overrides, format=format_, unit=unit, column=column, repair=repair, stamp_at=stamp_at,
        duration_columns=duration_column, duration_unit=duration_unit,
    )  # fmt: skip
    part, source, notes = _read(settings, seed)
    for note in notes:
        _note(note)
    report = fit_trace(part.stamp_ns, seed=seed)
    print_result({"file": str(file), **source, **report.to_mapping()}, lambda _: render_fit(report), as_json)
    if snippet is not None:
        _write_text(snippet, report.snippet())


@trace_app.command()
def synth(
    file: FileArgument,
    out: OutArgument,
    process: Annotated[
        str | None, typer.Option("--process", help="Draw from this fit, not from the best: hawkes, mmpp, …")
    ] = None,
    duration: Annotated[
        str | None, typer.Option("--duration", help="Length of the new trace; none: that of the old.")
    ] = None,
    rate: Annotated[str | None, typer.Option("--rate", help="Its mean rate; none: that of the fit.")] = None,
    to: ToOption = None,
    format_: FormatOption = None,
    unit: UnitOption = None,
    column: ColumnOption = None,
    repair: RepairOption = None,
    stamp_at: StampAtOption = None,
    duration_column: DurationColumnOption = None,
    duration_unit: DurationUnitOption = None,
    spread: SpreadOption = None,
    overrides: SetOption = None,
    seed: SeedOption = 1,
) -> None:
    """Makes a longer or scaled trace: from a fit to FILE, or from a .yaml file with `arrivals`."""
    from squall.analysis.traces.synthesis import synthesise_file

    if file.suffix in (".yaml", ".yml"):
        part = synthesise_file(file, duration, rate, seed)
    else:
        from squall.analysis.traces.synthesis import synthesise_fit

        settings = _settings(
        file, spread, overrides, format=format_, unit=unit, column=column, repair=repair, stamp_at=stamp_at,
        duration_columns=duration_column, duration_unit=duration_unit,
    )  # fmt: skip
        old, _, notes = _read(settings, seed)
        for note in notes:
            _note(note)
        fitted, end_ns = _best_fit(old, seed) if process is None else _fit_named(process, old, seed)
        part = synthesise_fit(fitted, end_ns, old, duration, rate, seed)
    _write(out, to, [part])


def _best_fit(old: TracePart, seed: int) -> tuple[Fitted, int]:
    from squall.analysis.traces.fit_report import fit_trace

    report = fit_trace(old.stamp_ns, seed=seed)
    return report.best.fitted, report.end_ns


def _fit_named(process: str, old: TracePart, seed: int) -> tuple[Fitted, int]:
    """Without the fits after it, and without the ranking, which no one asked for."""
    from squall.analysis.traces.fit_report import fits_of

    fits, end_ns = fits_of(old.stamp_ns, seed=seed)
    names = []
    for one in fits:
        if one.name == process:
            return one, end_ns
        names.append(one.name)
    raise ScenarioError(f"--process {process}: the fits of this trace are {', '.join(names)}")


@trace_app.command()
def convert(
    file: FileArgument,
    out: OutArgument,
    to: ToOption = None,
    format_: FormatOption = None,
    unit: UnitOption = None,
    column: ColumnOption = None,
    repair: RepairOption = None,
    stamp_at: StampAtOption = None,
    duration_column: DurationColumnOption = None,
    duration_unit: DurationUnitOption = None,
    spread: SpreadOption = None,
    overrides: SetOption = None,
    seed: SeedOption = 1,
) -> None:
    """Writes a trace as Parquet, CSV or JSON lines; windows, scales and repairs it on the way where asked to."""
    settings = _settings(
        file, spread, overrides, format=format_, unit=unit, column=column, repair=repair, stamp_at=stamp_at,
        duration_columns=duration_column, duration_unit=duration_unit,
    )  # fmt: skip
    _convert(out, to, settings, seed)


@trace_app.command("from-run")
def from_run(
    run_dir: RunArgument,
    out: OutArgument,
    phase: Annotated[
        list[str] | None, typer.Option("--phase", help="A phase; none: all measure phases. Repeatable.")
    ] = None,
    instant: Annotated[str, typer.Option("--instant", help="scheduled or sent.")] = "scheduled",
    to: ToOption = None,
) -> None:
    """Turns the load of a recorded run into a trace, with the rows of each request."""
    from squall.analysis.requests.capture import trace_of_run
    from squall.analysis.storage.intact import content_errors_of, require_intact
    from squall.analysis.storage.store import RunStore

    if instant not in ("scheduled", "sent"):
        raise ScenarioError(f"--instant {instant}: must be scheduled or sent")
    store = RunStore.open(run_dir)
    with content_errors_of(store.where):
        require_intact(store)
        part = trace_of_run(store, phase or [], instant)  # type: ignore[arg-type]
    _write(out, to, [part])


@trace_app.command("from-log")
def from_log(
    log: Annotated[
        Path, typer.Argument(help="An access log: text, JSON lines or a table; also .gz.", metavar="LOG")
    ],
    out: OutArgument,
    spread: SpreadOption = None,
    to: ToOption = None,
    format_: FormatOption = None,
    unit: UnitOption = None,
    column: ColumnOption = None,
    repair: RepairOption = None,
    stamp_at: StampAtOption = None,
    duration_column: DurationColumnOption = None,
    duration_unit: DurationUnitOption = None,
    overrides: SetOption = None,
    seed: SeedOption = 1,
) -> None:
    """Turns an access log into a trace: begins of requests, bytes and clients. Lines out of order are sorted.

    Where a log stamps the end of a request, its duration is taken off. Client addresses become numbers that cannot be
    turned back; nothing else of a line is kept.
    """
    repairs = list(dict.fromkeys(["sort", *(repair or [])]))
    settings = _settings(
        log, spread, overrides, format=format_, unit=unit, column=column, repair=repairs, stamp_at=stamp_at,
        duration_columns=duration_column, duration_unit=duration_unit,
    )  # fmt: skip
    replay = _convert(out, to, settings, seed)
    if settings.quantum != "spread" and replay.reading.has_seconds:
        _note("the log has whole seconds: add --spread 1s, or replay with quantum: spread")


def _settings(file: Path, spread: str | None, overrides: list[str] | None, **given: object) -> Any:
    """The `TraceArrivals` that the options describe; `given`: its keys, None where not. Raises ScenarioError."""
    from squall.scenarios.arrivals.replay import TraceArrivals
    from squall.scenarios.config.loader import section_from_mapping
    from squall.scenarios.strict_yaml import parse_yaml

    mapping: dict[str, Any] = {"kind": "trace", "file": str(file)}
    mapping |= {key: value for key, value in given.items() if value is not None}
    if spread is not None:
        mapping |= {"quantum": "spread", "quantum_width": spread}
    for item in overrides or []:
        key, equals, value = item.partition("=")
        if not equals:
            raise ScenarioError(f"--set {item}: has no '=', write key=value")
        mapping[key.strip()] = parse_yaml(value, f"--set {item}")
    settings = section_from_mapping(TraceArrivals, mapping, str(file))
    if settings.loop:
        raise ScenarioError("loop: a trace file has an end; loop it where a scenario replays it")
    return settings


def _convert(out: Path, to: str | None, settings: Any, seed: int) -> Replay:
    """Writes the replayed trace with stamps from the first arrival's, and says how it was read."""
    replay = _replayed(settings, seed)
    _write(out, to, [_as_recorded(replay)])
    for note in replay.reading.told(settings.quantum == "spread"):
        _note(note)
    return replay


def _replayed(settings: Any, seed: int) -> Replay:
    from squall.scenarios.plan.plan import stream

    replay: Replay = settings.replay(stream(seed, "arrivals", 0), LONGEST_NS)
    return replay


def _as_recorded(replay: Replay) -> TracePart:
    """The arrivals from the stamp on at which their window begins."""
    return replace(replay.rows, stamp_ns=replay.rows.stamp_ns + replay.origin_ns)


def _read(settings: Any, seed: int) -> tuple[TracePart, dict[str, Any], tuple[str, ...]]:
    """The whole of it, what was done to read it, and what is to be said of that."""
    replay = _replayed(settings, seed)
    if not len(replay.rows):
        raise ScenarioError(f"{settings.file}: the trace has no arrivals in that window")
    reading = settings.model_dump(mode="json", by_alias=True, exclude_none=True)
    source = {"reading": reading, "stamps_from": replay.stamps_from}
    return _as_recorded(replay), source, replay.reading.told(settings.quantum == "spread")


def _if_ends(settings: Any, seed: int, summary: dict[str, Any]) -> list[str]:
    """What the figures would be if stamps of which nothing says it were ends: nothing where no duration is known."""
    from squall.analysis.traces.info import describe_series
    from squall.analysis.wording import count_text
    from squall.scenarios.units import NS_PER_S

    if not summary["stamps_from"]["maybe"]:
        return []
    try:
        part, *_ = _read(settings.model_copy(update={"stamp_at": "end"}), seed)
    except ScenarioError:
        return []
    other = describe_series(part.stamp_ns)
    busiest = next((peak["count"] for peak in other["peaks"] if peak["window_ns"] == NS_PER_S), None)
    own = next((peak["count"] for peak in summary["as_is"]["peaks"] if peak["window_ns"] == NS_PER_S), None)
    index = next(one["idc_ratio"] for one in other["dispersion"] if one["window_ns"] == NS_PER_S)
    as_read = next(one["idc_ratio"] for one in summary["as_is"]["dispersion"] if one["window_ns"] == NS_PER_S)
    return [
        f"If the stamps are ends: {count_text(busiest)} arrivals in the busiest second instead of {count_text(own)},"
        f" index of dispersion at 1 s {count_text(index)} instead of {count_text(as_read)}."
    ]


def _write(out: Path, to: str | None, parts: Any) -> None:
    from squall.scenarios.traces.writing import format_for, write_trace

    n = write_trace(out, format_for(out, to), parts)
    say(f"{out}: {n:,} arrivals")


def _draw(plot: Path, part: TracePart, summary: dict[str, Any], title: str) -> None:
    """One picture, or a page that loads nothing, by the ending of the name."""
    from squall.analysis.report.decision_page import page_html
    from squall.analysis.report.png import write_png
    from squall.analysis.report.trace_plots import trace_plots
    from squall.analysis.report.trace_screen import trace_page
    from squall.scenarios.traces.writing import whole_or_not

    plots = trace_plots(part.stamp_ns, summary, part.sizes)
    with whole_or_not(plot) as new:
        if plot.suffix in _PAGES:
            new.write_text(page_html(trace_page(summary, plots, title or plot.stem)), encoding="utf-8")
        else:
            write_png(new, plots, title)
    _note(f"{plot}: drawn")


def _write_text(path: Path, text: str) -> None:
    from squall.scenarios.traces.writing import whole_or_not

    with whole_or_not(path) as new:
        new.write_text(text, encoding="utf-8")
    _note(f"{path}: written")


def _note(text: str) -> None:
    say(f"squall {text}", on_stderr=True)
