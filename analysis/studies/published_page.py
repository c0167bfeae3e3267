"""A published experiment and ours beside it: `reproduction.html`, the lines of the screen, and `docs/experiments.md`.

Rendering only, by rules alone: no sentence here is of one experiment. Sentences stand in `published_sentences.j2`.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from squall.analysis.report.decision_page import DecisionPage, DecisionTable, page_html
from squall.analysis.report.plots import Plot, Trace, bars, curve, points
from squall.analysis.shown import markdown_text
from squall.analysis.studies.published_result import (
    NOT_MEASURED,
    ORDERED,
    OURS,
    OUTSIDE_LIMIT_RATIO,
    PUBLISHED,
    VALID,
    WHAT_COUNTS,
    WORDS,
    Claim,
    Ordering,
    Reproduction,
    Value,
    middle,
)
from squall.analysis.studies.published_words import (
    NOTHING,
    claim_value_text,
    interval_text,
    number_text,
    ratio_text,
    stated_text,
)
from squall.analysis.wording import share_text, templates
from squall.scenarios.published.figures import FIGURES
from squall.scenarios.published.file import Stated
from squall.scenarios.units import digits_text

REHEARSAL = "A rehearsal in small sizes: its figures mean nothing."
SHARES = {
    "synchronisation": "sync_share_ratio",
    "launches": "launch_share_ratio",
    "copies": "copy_share_ratio",
}
GPU_SHARES = ("sm_util_ratio", "gpu_util_ratio", "gpu_active_ratio")
OPERATOR = {
    "host: a warmed-up call": "warm_call_ns",
    "GPU: kernels of a call": "call_kernel_ns",
    "host: the first call": "first_call_ns",
}
"""Curves of an operator over its size."""
CROSSOVER = "crossover_size_count"
STAGES = tuple(name for name in FIGURES if name.startswith("stage_"))
GROUPS: dict[str, Sequence[str]] = {
    "The article's table, ours beside it": ORDERED,
    "The GPU and its batches": (
        "gpu_compute_p50_ns", "execution_count", "batch_rows_mean", *GPU_SHARES, "idle_gap_p50_ns"
    ),
    "CUDA calls and waits": (*SHARES.values(), "sem_wait_ns", "h2d_mean_bytes"),
    "Kernels": (
        "kernel_mean_ns", "kernel_p50_ns", "kernels_per_batch_count", "gemms_per_batch_count",
        "layer_norm_share_ratio", "layer_norm_mean_ns",
    ),
    "What limits": ("regime", "bound_by"),
}  # fmt: skip
"""Figures of servers by table; those of Little's law have a table of their own, and what is left is of probes."""
_OF_LITTLE = ("users_count", "outside_ratio")
_MOST_COLUMNS = 6
"""Figures of probes in a table, of which each may have two columns."""
_ON_SCREEN = ("throughput_hz", "p50_ns", "p95_ns", "p99_ns", "outside_ratio", "regime")
_OF_PROBES = (
    "first_call_ns", "warm_call_ns", "call_kernel_ns", "kernel_of_cpu_ratio", CROSSOVER, "bound", "pipeline_ns",
    "gain_ratio", NOT_MEASURED,
)  # fmt: skip
MOST_NAMED = 5
"""Rows that plots name."""
_UNBROKEN = re.compile(r"(?<=\d) (?=(?:ns|µs|ms|s|%|B|KiB|times)\b|%)|(?<=…) ")
"""Spaces at which a cell is not broken: between a number and its unit, and within an interval."""
_MOST_OF_REASON = 160
_SCALES = {"ns": (1e-6, ", ms"), "ratio": (100.0, ", %"), "hz": (1.0, "")}
"""From our units to those of axes."""
_NS_PER_US, _NS_PER_MS = 1e3, 1e6
_ALL_TICKS_WIDTH, _TICK_LINES = 60, 5
"""Letters that fit side by side below an axis, and the lines of each."""
_APART = 0.12
"""Between published and ours, of the distance from row to row."""


def reproduction_page(found: Reproduction) -> str:
    """The whole page in one file that needs no network. Of a rehearsal it says first that its figures mean nothing."""
    return page_html(page_of(found))


def page_of(found: Reproduction) -> DecisionPage:
    """What is on the page: the article's table first, ours beside it."""
    article, say = found.published.article, _sentences()
    warning = f"{REHEARSAL} " if found.is_small else ""
    first, *others = [*figure_tables(found), None]
    tables = [
        *others,
        *_ordering_tables(found.orderings),
        *_claims_table(found.claims),
        *_cycles_table(found),
        *_other_parts_table(found),
        _differences_table(found),
        *_runs_table(found),
    ]
    return DecisionPage(
        title=f"{warning}{found.published.title}: published and measured",
        answer=f"{warning}{say.answer(found)}.",
        is_good=None,
        facts=(say.published(article), f"Measured: {found.host}, {found.date}. {say.verdicts(found)}."),
        notes=(*reasons(found), *article.notes, WHAT_COUNTS),
        plots=plots_of(found),
        first_tables=() if first is None else (first,),
        tables=tuple(table for table in tables if table is not None),
        commands=(found.command,),
    )


def screen_lines(found: Reproduction) -> list[str]:
    """The answer, a line for each row and claim, how the runs ended."""
    say = _sentences()
    lines = [REHEARSAL] if found.is_small else []
    lines.append(say.answer(found))
    for row in found.rows:
        figures = [
            _named(value) + ("" if (stated := found.stated(row, name)) is None else _published(name, stated))
            for name in (_OF_PROBES if found.published.probe is not None else _ON_SCREEN)
            if (value := found.value(row, name)) is not None
        ]
        lines += [f"{row}: {'; '.join(figures)}"] if figures else []
    lines += map(say.claim, found.claims)
    for run in found.without_valid_run:
        lines.append(f"{run.row or 'all rows'} ({run.part}): no run counts, the last is {run.ending}")
    return [*lines, say.verdicts(found)]


def _named(value: Value) -> str:
    """A value with its figure's title, which may be what it is a share of: `0.01 % of a user's cycle`."""
    title, text = FIGURES[value.figure].title, value_text(value)
    if title.startswith("of "):
        return f"{text} {title}"
    return f"{title}: {text}" if value.figure == NOT_MEASURED else f"{title} {text}"


def _published(figure: str, stated: Stated) -> str:
    return f", published {stated_text(figure, stated)}"


def experiments_document(all_found: Sequence[Reproduction]) -> str:
    """The whole text of `docs/experiments.md`, a section for each experiment in the order given."""
    from markupsafe import Markup

    def shown(value: object) -> object:
        return markdown_text(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    template = templates("squall.analysis.studies", shown).get_template("published_experiments.md.j2")
    return template.render(
        all=all_found, WORDS=WORDS, say=_sentences(), reasons=reasons, invalid=_invalid, title=_title, anchor=_anchor,
        what_counts=WHAT_COUNTS, rehearsal=REHEARSAL, cycles_table=_cycles_table,
        figure_tables=lambda found: [*figure_tables(found), *_other_parts_table(found)],
    )  # fmt: skip


def _title(found: Reproduction) -> str:
    return f"{found.published.name}: {found.published.title}"


def _anchor(title: str) -> str:
    """As GitHub makes it of a heading."""
    return "".join(one for one in title.lower().replace(" ", "-") if one.isalnum() or one in "-_")


def _invalid(found: Reproduction) -> dict[str, list[str]]:
    """How runs that are not VALID ended, each once with its rows."""
    rows_of: dict[str, dict[str, None]] = {}
    for run in found.directories:
        if not run.is_valid:
            is_of_one = run.row and run.part in found.published.parts
            rows_of.setdefault(run.ending, {})[f"{run.row} ({run.part})" if is_of_one else run.part] = None
    return {ending: [*rows] for ending, rows in rows_of.items()}


def reasons(found: Reproduction) -> list[str]:
    """Why figures differ, by what is in the data: hardware and backend, Little's law, regimes, CUDA's API."""
    say = _sentences()
    lines = [say.differing(found)]
    for whose, users in ((PUBLISHED, "the article's users"), (OURS, "our users")):
        cycles = [one for one in found.cycles if one.whose == whose]
        lines.append(say.outside(users, cycles, OUTSIDE_LIMIT_RATIO))
    has_regime = any(one.figure == "regime" and one.is_measured for one in found.values)
    figure = "regime" if has_regime else "bound_by"
    said = {row: one.text for row in found.rows if (one := found.value(row, figure)) and one.text}
    lines += [say.limits(said)] if said else []
    for figure in ("sync_share_ratio", "launch_share_ratio"):
        stated = [claim for row in found.rows if (claim := found.stated(row, figure)) is not None]
        published = [float(end) for one in stated for end in (one if isinstance(one, tuple) else (one,))]
        ours = [found.value(row, figure) for row in found.rows]
        means = [one.mean for one in ours if one and one.mean is not None]
        lines += [say.share(FIGURES[figure].title, published, means)] if published and means else []
    return [line for line in lines if line]


@cache
def _sentences() -> Any:
    """The macros of `published_sentences.j2` by name, each a function that returns its text."""
    environment = templates("squall.analysis.studies")
    environment.globals.update(FIGURES=FIGURES, WORDS=WORDS, ratio=ratio_text, reading=claim_reading)
    return environment.get_template("published_sentences.j2").module


def value_text(value: Value | None) -> str:
    """Ours: the mean with its interval, a text, or what is marked INVALID; `-` for nothing."""
    if value is None:
        return NOTHING
    if value.is_measured:
        return value.text or interval_text(
            lambda end: number_text(value.figure, end), value.mean, value.low, value.high
        )
    status = value.note.partition(":")[0] or NOTHING
    return status if value.marked is None else f"{number_text(value.figure, value.marked)} [{status}]"


def claim_reading(one: Claim) -> str:
    """Our value of a claim with its interval; `-` for nothing."""
    return one.text or interval_text(
        lambda end: claim_value_text(one.figure, one.to, end), one.value, one.low, one.high
    )


# tables


def _table(title: str, rows: Iterable[Mapping[str, str]], note: str = "") -> list[DecisionTable]:
    """A table as wide as the page, of rows with their cells by head; none without rows."""
    rows = [*rows]
    cells = tuple(tuple(_UNBROKEN.sub("\u00a0", cell) for cell in row.values()) for row in rows)
    return [DecisionTable(title, tuple(rows[0]), cells, note, is_wrapped=True)] if rows else []


def figure_tables(found: Reproduction) -> list[DecisionTable]:
    """Published beside ours, by group of figures; groups without any are left out."""
    of_servers = {*_OF_LITTLE, *(name for names in GROUPS.values() for name in names)}
    there = {one.figure for one in found.values}
    rest = [name for name in FIGURES if name in there and name not in of_servers]
    groups = {**GROUPS}
    for first in range(0, len(rest), _MOST_COLUMNS):
        title = f"The probe's figures{f', {first // _MOST_COLUMNS + 1}' if first else ''}"
        groups[title] = rest[first : first + _MOST_COLUMNS]
    return [table for title, names in groups.items() for table in _beside_table(found, title, names)]


def _beside_table(found: Reproduction, title: str, figures: Sequence[str]) -> list[DecisionTable]:
    """A row for each of the experiment; of each figure that there is what was published, if anything was, and ours."""
    is_stated = {name: any(found.stated(row, name) is not None for row in found.rows) for name in figures}
    is_ours = {name: any(found.value(row, name) for row in found.rows) for name in figures}
    rows = []
    for row in found.rows:
        cells = {}
        for name in figures:
            if is_stated[name]:
                cells[f"{FIGURES[name].title}, published"] = stated_text(name, found.stated(row, name))
            if is_stated[name] or is_ours[name]:
                cells[f"{FIGURES[name].title}, here"] = value_text(found.value(row, name))
        if any(cell != NOTHING for cell in cells.values()):
            rows.append(
                {"row": f"{found.rows.index(row) + 1}. {row}" if _is_numbered(found) else row, **cells}
            )
    return _table(title, rows, _runs_note(found, figures))


def _is_numbered(found: Reproduction) -> bool:
    """Whether there are too many rows for their names to stand below an axis; sizes are numbers by themselves."""
    return sum(not row.isdigit() for row in found.rows) > MOST_NAMED


def _runs_note(found: Reproduction, figures: Sequence[str]) -> str:
    """Which runs the figures are of."""
    values = [one for row in found.rows for name in figures if (one := found.value(row, name))]
    told = []
    for part in dict.fromkeys(one.part for one in values):
        own = [one for one in values if one.part == part]
        under = ", ".join(dict.fromkeys(one.under for one in own if one.under)) or "no profiler"
        least, most = min(one.n for one in own), max(one.n for one in own)
        n = f"{least} to {most}" if least != most else str(most)
        about = ""
        if part in found.published.parts and not found.is_small:  # a rehearsal has other lengths and seeds
            about = f" ({found.published.parts[part].about})"
        told.append(f"{part}{about}, under {under}, {n} {'run' if most == 1 else 'runs'} a row")
    if not told:
        return ""
    mean = " Means over seeds, with 95 % intervals from two on." if any(one.n > 1 for one in values) else ""
    return f"Ours, by what counts: {'; '.join(told)}.{mean}"


def _other_parts_table(found: Reproduction) -> list[DecisionTable]:
    """Figures of parts that do not lead: the same in a run of another length, or under another collector."""
    rest = [one for one in found.values if found.value(one.row, one.figure) is not one]
    names = [name for name in FIGURES if any(one.figure == name for one in rest)]
    rows = []
    for part, row in dict.fromkeys((one.part, one.row) for one in rest):
        own = {one.figure: one for one in rest if (one.part, one.row) == (part, row)}
        cells = {FIGURES[name].title: value_text(own.get(name)) for name in names}
        rows.append({"row": f"{row} ({part})", **cells})
    return _table("The same in other runs", rows, "Beside the figures above, not in them.")


def _ordering_tables(orderings: Sequence[Ordering]) -> list[DecisionTable]:
    """The matrix of each figure that has more than one pair, then every ordering with its figures."""
    tables: list[DecisionTable] = []
    for figure in dict.fromkeys(one.figure for one in orderings):
        own = {(one.one, one.other): one for one in orderings if one.figure == figure}
        if len(own) > 1:
            tables += _matrix(FIGURES[figure].title, own)
    note = (
        "A ratio is of the first named row over the second. Told apart by the paired test of squall compare over seeds,"
        " Holm over all of them at 5 %: 'agrees' or 'contradicts' is wrong in at most one experiment in twenty."
        " Only directions and ratios are compared: GPU and backend differ."
    )
    return [*tables, *_table("Orderings", map(_ordering_row, orderings), note)]


def _matrix(title: str, own: Mapping[tuple[str, str], Ordering]) -> list[DecisionTable]:
    names = list(dict.fromkeys(name for pair in own for name in pair))
    rows = []
    for at, name in enumerate(names):
        cells = {
            str(below + 1): _cell(own.get((names[below], name))) if below < at else ""
            for below in range(len(names) - 1)
        }
        rows.append({f"{title}: row over column": f"{at + 1}. {name}", **cells})
    note = "In a cell the ratio of the row's figure to the column's: published, here, and whether the order agrees."
    return _table(f"Orderings by {title}", rows, note)


def _cell(one: Ordering | None) -> str:
    if one is None:
        return NOTHING
    signs = {"cannot be told apart here": "not told apart", "published values equal": "equal"}
    return f"{one.published_ratio:.2f} | {ratio_text(one.ratio)} {signs.get(one.word, one.word)}"


def _ordering_row(one: Ordering) -> dict[str, str]:
    """With the row that was published as better first."""
    first, second = one.other, one.one
    ratios = [one.published_ratio, one.ratio, one.low, one.high]
    if one.better == one.one:
        first, second = second, first
        ratios = [
            1.0 / value if value else None for value in (one.published_ratio, one.ratio, one.high, one.low)
        ]
    published, *here = ratios
    return {
        "published as better": first,
        "than": second,
        "by": FIGURES[one.figure].title,
        "ratio published": ratio_text(published),
        "ratio here": ratio_text(*here),
        "seeds": str(one.n_pairs),
        "p after Holm": NOTHING if one.p is None else digits_text(one.p, 2),
        "the article's order": one.word,
    }


def _cycles_table(found: Reproduction) -> list[DecisionTable]:
    """Little's law over the article's rows and ours."""
    rows = [
        {
            "row": one.row,
            "whose": "here" if one.whose == OURS else "published",
            "users": number_text("users_count", one.users_count),
            "requests/s": number_text("throughput_hz", one.throughput_hz),
            "cycle": number_text("mean_ns", one.cycle_ns),
            "response": f"{number_text('mean_ns', one.response_ns)} ({one.response_name})",
            "outside any request": share_text(one.outside_ratio),
            "what that says": one.claim,
        }
        for one in found.cycles
    ]
    note = (
        "Users over requests/s is a user's cycle: response, think time, and what passed inside the load generator. Of"
        " ours the share outside is measured, and requests/s are users over the cycle that it makes."
    )
    return _table("Little's law", rows, note)


def _claims_table(claims: Sequence[Claim]) -> list[DecisionTable]:
    """What the article says of its rows, held to ours."""
    rows = [
        {
            "the article says": one.says,
            "figure": FIGURES[one.figure].title,
            "of": one.of if one.to is None else f"{one.of} over {one.to}",
            "asked for": one.bound,
            "here": claim_reading(one),
            "n": str(one.n),
            "word": f"{one.word}: {one.note}" if one.note else one.word,
        }
        for one in claims
    ]
    note = "By the mean over seeds and its interval, of a ratio over runs of the same seed."
    return _table("Claims", rows, note)


def _differences_table(found: Reproduction) -> DecisionTable:
    """What the article ran on, and what ours ran on."""
    article = found.published.article
    both = {
        "hardware": (article.hardware, found.host),
        "software and model": (article.software, _model_text(found)),
        "load": (article.load, _load_text(found)),
    }
    rows = [{"": what, "the article": theirs, "here": ours} for what, (theirs, ours) in both.items()]
    return _table("What differs", rows)[0]


def _model_text(found: Reproduction) -> str:
    model = (found.published.scenario or {}).get("model")
    if not isinstance(model, dict):
        return "squall's probe: PyTorch on the GPU, without a server" if found.published.probe else NOTHING
    parts = " ".join(str(model[key]) for key in ("name", "framework", "precision") if model.get(key))
    weights = (
        f"weights: {model['weights']}"
        if model.get("weights")
        else "seeded random weights of the architecture"
    )
    return f"Triton with {parts}, {weights}"


def _load_text(found: Reproduction) -> str:
    phases = (found.published.scenario or {}).get("phases")
    told = []
    for phase in phases if isinstance(phases, list | tuple) else ():
        if isinstance(phase, dict) and phase.get("kind", "measure") == "measure":
            arrivals = phase.get("arrivals")
            users = arrivals.get("users") if isinstance(arrivals, dict) else None
            who = f"{users:,} users of squall for " if isinstance(users, int) else ""
            told.append(f"{who}{phase.get('duration', '')}")
    return "; ".join(told) or NOTHING


def _runs_table(found: Reproduction) -> list[DecisionTable]:
    """Every run with its verdict, and those of its figures that rows are ordered by, as they are; of a probe, whose
    rows are of one run and stand above, no figures."""
    is_probe = found.published.probe is not None
    names = [name for name in ORDERED if any(name in run.figures for run in found.directories)]
    rows = [
        {
            "run of": NOTHING if is_probe else run.row or NOTHING,
            "part": run.part,
            "seed": str(run.seed),
            "attempt": str(run.attempt),
            "verdict": VALID if run.is_valid else f"{run.status}: {_brief(run.reason)}".removesuffix(": "),
            "under": run.under or NOTHING,
            **{
                FIGURES[name].title: stated_text(name, run.figures.get(name))
                for name in names
                if not is_probe
            },
            "run": run.run or NOTHING,
        }
        for run in found.directories
    ]
    return _table("Runs", rows, "Every attempt, in the order of parts and plan.")


def _brief(reason: str) -> str:
    whole = len(reason) <= _MOST_OF_REASON
    return reason if whole else f"{reason[:_MOST_OF_REASON].rsplit(' ', 1)[0]} …"


# plots, in the units of their axes


def plots_of(found: Reproduction) -> tuple[Plot, ...]:
    """Those that there is something for, in the order of the page."""
    return (
        *_operator_plot(found),
        *_stages_plot(found),
        *(plot for name in ORDERED if name != "mean_ns" for plot in _beside_plot(found, name)),
        *(plot for whose in (PUBLISHED, OURS) for plot in _cycles_plot(found, whose)),
        *_calls_plot(found),
        *(plot for name in GPU_SHARES for plot in _beside_plot(found, name)),
    )


def _beside_plot(found: Reproduction, figure: str) -> list[Plot]:
    """A figure of every row: published, and ours with its interval; none where neither has it."""
    kind = FIGURES[figure]
    scale, unit = _SCALES[kind.unit]
    values = {row: value for row in found.rows if _number(value := found.value(row, figure)) is not None}
    rows = [row for row in found.rows if row in values or found.stated(row, figure) is not None]
    published, counted, marked = (list[Sequence[Any]]() for _ in range(3))  # x, y and the ends of its whisker
    for at, row in enumerate(rows):
        stated, value = found.stated(row, figure), values.get(row)
        if not isinstance(stated, str) and (centre := middle(stated)) is not None:
            least, most = stated if isinstance(stated, tuple) else (centre, centre)
            published.append((at - _APART, scale * centre, scale * least, scale * most))
        if value is not None:
            numbers = (value.number, value.low, value.high)
            scaled = (None if one is None else scale * one for one in numbers)
            (marked if value.mean is None else counted).append((at + _APART, *scaled))
    if not published and not values:
        return []
    series = [_marks("published", published), _marks("here", counted)]
    if marked:
        series.append(points("here, INVALID", [one[0] for one in marked], [one[1] for one in marked]))
    is_name = kind.title.startswith("nvidia") or kind.title[1:2].isdigit()
    title = kind.title if is_name else kind.title[0].upper() + kind.title[1:]
    note = "Published as it stands, of a range its middle and ends; ours with a 95 % interval over seeds."
    return [_plot(found, title, f"{kind.title}{unit}", "points", series, rows, note)]


def _marks(name: str, marks: Sequence[Sequence[Any]]) -> Trace:
    x, y, low, high = ([one[place] for one in marks] for place in range(4))
    return points(name, x, y, low, high)


def _plot(
    found: Reproduction,
    title: str,
    y_label: str,
    kind: str,
    series: Sequence[Trace],
    rows: Sequence[str],
    note: str,
) -> Plot:
    """A plot over rows: their names below the axis, numbers where there are too many."""
    if _is_numbered(found):
        ticks = [str(found.rows.index(row) + 1) for row in rows]
    else:
        ticks = [_tick(row, _ALL_TICKS_WIDTH // max(1, len(rows))) for row in rows]
    axis = "number of the row" if _is_numbered(found) else ""
    return Plot(title, axis, y_label, kind, tuple(series), note, x_ticks=tuple(ticks))


def _tick(name: str, width: int) -> str:
    """The name in short lines."""
    lines = textwrap.wrap(name, width, break_long_words=False)
    if len(lines) > _TICK_LINES:
        lines = [*lines[: _TICK_LINES - 1], f"{lines[_TICK_LINES - 1]} …"]
    return "\n".join(lines)


def _stack(
    found: Reproduction, title: str, unit: str, rows: Sequence[str], curves: Mapping[str, Sequence[float | None]],
    note: str,
) -> list[Plot]:  # fmt: skip
    """Curves over rows, one on another; none without rows."""
    x = [float(at) for at in range(len(rows))]
    series = [bars(name, x, [*values]) for name, values in curves.items()]
    return [_plot(found, title, unit, "bar", series, rows, note)] if rows else []


def _calls_plot(found: Reproduction) -> list[Plot]:
    """Shares of the time in CUDA calls; none where no run was recorded."""
    rows = [row for row in found.rows if _number(found.value(row, "sync_share_ratio")) is not None]
    curves = {
        name: [100.0 * (_number(found.value(row, figure)) or 0.0) for row in rows]
        for name, figure in SHARES.items()
    }
    curves["other calls"] = [max(0.0, 100.0 - sum(of_row)) for of_row in zip(*curves.values(), strict=True)]
    note = "Ours, under nsys. A copy that blocks, as one of pageable memory does, counts as a copy."
    return _stack(found, "Time in CUDA's API", "share of it, %", rows, curves, note)


def _cycles_plot(found: Reproduction, whose: str) -> list[Plot]:
    """Cycles of users, the article's or ours: in the request, and outside of any; none where no users are known."""
    cycles = [one for one in found.cycles if one.whose == whose]
    curves = {
        "in a request": [min(one.response_ns, one.cycle_ns) / _NS_PER_MS for one in cycles],
        "outside any request": [max(0.0, one.cycle_ns - one.response_ns) / _NS_PER_MS for one in cycles],
    }
    note = "Little's law: users over requests/s is a cycle; what the mean response leaves of it lies outside."
    title = f"A user's cycle, {'here' if whose == OURS else 'published'}"
    return _stack(found, title, "ms", [one.row for one in cycles], curves, note)


def _stages_plot(found: Reproduction) -> list[Plot]:
    """Stages of a pipeline of each variant; none for another experiment."""
    of_row = {row: [_number(found.value(row, name)) for name in STAGES] for row in found.rows}
    rows = [row for row, values in of_row.items() if any(value is not None for value in values)]
    curves = {}
    for name, values in zip(STAGES, zip(*(of_row[row] for row in rows), strict=True), strict=False):
        if any(value is not None for value in values):
            title = FIGURES[name].title.removesuffix(", median")
            curves[title] = [None if value is None else value / _NS_PER_MS for value in values]
    note = "Medians of each stage: between CUDA events those of the device, by the clock those of the host."
    return _stack(found, "Stages of the pipeline", "ms", rows, curves, note)


def _operator_plot(found: Reproduction) -> list[Plot]:
    """Times of an operator over its size, both axes logarithmic; none for another experiment."""
    curves = []
    for name, figure in OPERATOR.items():
        sizes = [(float(row), _number(found.value(row, figure))) for row in found.rows if row.isdigit()]
        known = [(size, value / _NS_PER_US) for size, value in sizes if value]
        if known:
            curves.append(curve(name, [size for size, _ in known], [value for _, value in known], "points"))
    if not curves:
        return []
    crossing = next((one.mean for one in found.values if one.figure == CROSSOVER and one.mean), None)
    note = "Where the curves of kernels and host cross, the operator turns from overhead- to compute-bound"
    note += "." if crossing is None else f": from {crossing:,.0f} on."
    axis = "rows and columns of the matrices"
    return [Plot("Host and kernels over size", axis, "µs", "loglog", tuple(curves), note)]


def _number(value: Value | None) -> float | None:
    return None if value is None else value.number
