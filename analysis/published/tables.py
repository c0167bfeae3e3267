"""The tables of a published experiment beside ours: texts in rows, for the page and the document."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from squall.analysis.published.evaluated import Evaluated
from squall.analysis.published.little import OURS
from squall.analysis.published.orderings import ORDERED, Ordering, better_of
from squall.analysis.published.sentences import claim_reading
from squall.analysis.published.values import VALID, Value
from squall.analysis.published.words import NOTHING, number_text, ratio_text, stated_text, value_text
from squall.analysis.render.decision_page import DecisionTable
from squall.analysis.wording import share_text
from squall.scenarios.published.figures import FIGURES
from squall.scenarios.units import digits_text

_UNBROKEN = re.compile(r"(?<=\d) (?=(?:ns|µs|ms|s|%|B|KiB|times)\b|%)|(?<=…) ")
"""Spaces at which a cell is not broken: between a number and its unit, and within an interval."""
GPU = (
    "gpu_compute_p50_ns", "execution_count", "batch_rows_mean", "sm_util_ratio", "gpu_util_ratio", "gpu_active_ratio",
    "idle_gap_p50_ns",
)  # fmt: skip
CALLS = ("sync_share_ratio", "launch_share_ratio", "copy_share_ratio", "sem_wait_ns", "h2d_mean_bytes")
KERNELS = (
    "kernel_mean_ns", "kernel_p50_ns", "kernels_per_batch_count", "gemms_per_batch_count", "layer_norm_share_ratio",
    "layer_norm_mean_ns",
)  # fmt: skip
_MOST_COLUMNS = 6
"""Figures of probes in a table, of which each may have two columns."""
LIMITS = ("regime", "bound_by")
_APART = ("users_count", "outside_ratio")
"""Of Little's law, which has a table of its own."""
_ROW = "row"


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> DecisionTable:
    """A table as wide as the page."""
    unbroken = tuple(tuple(_UNBROKEN.sub("\u00a0", cell) for cell in row) for row in rows)
    return DecisionTable(title, tuple(heads), unbroken, note, is_wrapped=True)


def figure_tables(found: Evaluated) -> list[DecisionTable]:
    """Published beside ours, by group of figures; groups without any are left out."""
    rest = [name for name in FIGURES if name not in (*ORDERED, *GPU, *CALLS, *KERNELS, *LIMITS, *_APART)]
    groups = {
        "The article's table, ours beside it": ORDERED,
        "The GPU and its batches": GPU,
        "CUDA calls and waits": CALLS,
        "Kernels": KERNELS,
        "What limits": LIMITS,
        **_probe_groups([name for name in rest if any(one.figure == name for one in found.values)]),
    }
    tables = [beside_table(found, title, names) for title, names in groups.items()]
    return [table for table in tables if table is not None]


def _probe_groups(names: Sequence[str]) -> dict[str, Sequence[str]]:
    """Figures of probes, as many together as a table is wide."""
    groups = [names[first : first + _MOST_COLUMNS] for first in range(0, len(names), _MOST_COLUMNS)]
    return {
        "The probe's figures" if at == 0 else f"The probe's figures, {at + 1}": group
        for at, group in enumerate(groups)
    }


def beside_table(found: Evaluated, title: str, figures: Sequence[str]) -> DecisionTable | None:
    """A row for each of the experiment; of each figure that there is what was published, if anything was, and ours."""
    columns: list[tuple[str, str, bool]] = []
    for name in figures:
        if name not in FIGURES:
            continue
        is_stated = any(found.stated(row, name) is not None for row in found.rows)
        is_ours = any(found.value(row, name) is not None for row in found.rows)
        columns += [("published", name, True)] if is_stated else []
        columns += [("here", name, False)] if is_ours or is_stated else []
    if not columns:
        return None
    heads = (_ROW, *(f"{FIGURES[name].title}, {whose}" for whose, name, _ in columns))
    rows = []
    for row in found.rows:
        cells = [
            stated_text(name, found.stated(row, name)) if is_stated else value_text(found.value(row, name))
            for _, name, is_stated in columns
        ]
        if any(cell != NOTHING for cell in cells):
            rows.append((found.label(row), *cells))
    return _table(title, heads, rows, _note(found, figures)) if rows else None


def _note(found: Evaluated, figures: Sequence[str]) -> str:
    """Which runs the figures are of."""
    leading = [
        value for row in found.rows for name in figures if (value := found.value(row, name)) is not None
    ]
    by_part: dict[str, list[Value]] = {}
    for value in leading:
        by_part.setdefault(value.part, []).append(value)
    told = []
    for part, values in by_part.items():
        under = ", ".join(dict.fromkeys(one.under for one in values if one.under)) or "no profiler"
        counts = sorted({one.n for one in values})
        n = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        n += " runs" if counts[-1] != 1 else " run"
        is_told = (
            part in found.published.parts and not found.is_small
        )  # a rehearsal has other lengths and seeds
        about = f" ({found.published.parts[part].about})" if is_told else ""
        told.append(f"{part}{about}, under {under}, {n} a row")
    has_seeds = any(one.n > 1 for one in leading)
    mean = "Means over seeds, with 95 % intervals from two on. " if has_seeds else ""
    return f"Ours, by what counts: {'; '.join(told)}. {mean}".strip() if told else ""


def other_parts_table(found: Evaluated) -> DecisionTable | None:
    """Figures of parts that do not lead: the same in a run of another length, or under another collector."""
    leading = {
        (one.row, one.figure, one.part)
        for row in found.rows
        for name in FIGURES
        if (one := found.value(row, name))
    }
    rest = [one for one in found.values if (one.row, one.figure, one.part) not in leading]
    if not rest:
        return None
    names = [name for name in FIGURES if any(one.figure == name for one in rest)]
    rows = []
    for part, row in dict.fromkeys((one.part, one.row) for one in rest):
        own = {one.figure: one for one in rest if (one.part, one.row) == (part, row)}
        rows.append((f"{row} ({part})", *(value_text(own.get(name)) for name in names)))
    heads = (_ROW, *(FIGURES[name].title for name in names))
    return _table("The same in other runs", heads, rows, "Beside the figures above, not in them.")


def orderings_tables(found: Evaluated) -> list[DecisionTable]:
    """The matrix of each figure that has more than one pair, then every ordering with its figures."""
    if not found.orderings:
        return []
    tables = []
    for figure in dict.fromkeys(one.figure for one in found.orderings):
        own = [one for one in found.orderings if one.figure == figure]
        if len(own) > 1:
            tables.append(_matrix(figure, own))
    rows = tuple(_ordering_row(one) for one in found.orderings)
    heads = (
        "published as better", "than", "by", "ratio published", "ratio here", "seeds", "p after Holm",
        "the article's order",
    )  # fmt: skip
    note = (
        "A ratio is of the first named row over the second. Told apart by the paired test of squall compare over seeds,"
        " Holm over all of them at 5 %: 'agrees' or 'contradicts' is wrong in at most one experiment in twenty."
        " Only directions and ratios are compared: GPU and backend differ."
    )
    return [*tables, _table("Orderings", heads, rows, note)]


def _matrix(figure: str, own: Sequence[Ordering]) -> DecisionTable:
    names = list(dict.fromkeys(name for one in own for name in (one.one, one.other)))
    by_pair = {(one.one, one.other): one for one in own}
    rows = []
    for at, name in enumerate(names):
        cells = [
            _cell(by_pair.get((names[below], name))) if below < at else "" for below in range(len(names) - 1)
        ]
        rows.append((f"{at + 1}. {name}", *cells))
    heads = (f"{FIGURES[figure].title}: row over column", *(str(at + 1) for at in range(len(names) - 1)))
    note = "In a cell the ratio of the row's figure to the column's: published, here, and whether the order agrees."
    return _table(f"Orderings by {FIGURES[figure].title}", heads, rows, note)


def _cell(one: Ordering | None) -> str:
    if one is None:
        return NOTHING
    here = NOTHING if one.ratio is None else f"{one.ratio:.2f}"
    return f"{one.published_ratio:.2f} | {here} {_SIGNS.get(one.word, one.word)}"


_SIGNS = {"cannot be told apart here": "not told apart", "published values equal": "equal"}


def _ordering_row(one: Ordering) -> tuple[str, ...]:
    """With the row that was published as better first."""
    is_turned = better_of(one, one.published_ratio) == one.one
    first, second = (one.one, one.other) if is_turned else (one.other, one.one)
    ratios = (one.ratio, one.low, one.high)
    published = one.published_ratio
    if is_turned:
        published = 1.0 / published
        ratios = _inverse(one.ratio), _inverse(one.high), _inverse(one.low)
    p = NOTHING if one.p is None else digits_text(one.p, 2)
    title = FIGURES[one.figure].title
    return first, second, title, f"{published:.2f}", ratio_text(*ratios), str(one.n_pairs), p, one.word


def _inverse(value: float | None) -> float | None:
    return None if not value else 1.0 / value


def cycles_table(found: Evaluated) -> DecisionTable | None:
    """Little's law over the article's rows and ours."""
    if not found.cycles:
        return None
    heads = (
        _ROW,
        "whose",
        "users",
        "requests/s",
        "cycle",
        "response",
        "outside any request",
        "what that says",
    )
    rows = tuple(
        (
            one.row,
            "here" if one.whose == OURS else "published",
            number_text("users_count", one.users_count),
            number_text("throughput_hz", one.throughput_hz),
            number_text("mean_ns", one.cycle_ns),
            f"{number_text('mean_ns', one.response_ns)} ({one.response_name})",
            share_text(one.outside_ratio),
            one.claim,
        )
        for one in found.cycles
    )
    note = (
        "Users over requests/s is a user's cycle: response, think time, and what passed inside the load generator. Of"
        " ours the share outside is measured, and requests/s are users over the cycle that it makes."
    )
    return _table("Little's law", heads, rows, note)


def claims_table(found: Evaluated) -> DecisionTable | None:
    """What the article says of its rows, held to ours."""
    if not found.claims:
        return None
    heads = ("the article says", "figure", "of", "asked for", "here", "n", "word")
    rows = tuple(
        (
            one.says,
            FIGURES[one.figure].title,
            one.of if one.to is None else f"{one.of} over {one.to}",
            one.bound,
            claim_reading(one),
            str(one.n),
            f"{one.word}: {one.note}" if one.note else one.word,
        )
        for one in found.claims
    )
    return _table(
        "Claims",
        heads,
        rows,
        "By the mean over seeds and its interval, of a ratio over runs of the same seed.",
    )


def differences_table(found: Evaluated) -> DecisionTable:
    """What the article ran on, and what ours ran on."""
    article = found.published.article
    rows = [
        ("hardware", article.hardware, found.host),
        ("software and model", article.software, _model_text(found)),
        ("load", article.load, _load_text(found)),
    ]
    return _table("What differs", ("", "the article", "here"), rows)


def _model_text(found: Evaluated) -> str:
    model = (found.published.scenario or {}).get("model")
    if not isinstance(model, dict):
        return "squall's probe: PyTorch on the GPU, without a server" if found.published.probe else NOTHING
    parts = [
        str(model.get("name", "")),
        *(str(model[key]) for key in ("framework", "precision") if key in model),
    ]
    weights = (
        f"weights: {model['weights']}"
        if model.get("weights")
        else "seeded random weights of the architecture"
    )
    return f"Triton with {' '.join(part for part in parts if part)}, {weights}"


def _load_text(found: Evaluated) -> str:
    phases = (found.published.scenario or {}).get("phases")
    if not isinstance(phases, list | tuple):
        return NOTHING
    told = []
    for phase in phases:
        if isinstance(phase, dict) and phase.get("kind", "measure") == "measure":
            arrivals = phase.get("arrivals")
            users = arrivals.get("users") if isinstance(arrivals, dict) else None
            who = f"{users:,} users of squall for " if isinstance(users, int) else ""
            told.append(f"{who}{phase.get('duration', '')}")
    return "; ".join(told) or NOTHING


def runs_table(found: Evaluated) -> DecisionTable:
    """Every run with its verdict, and those of its figures that rows are ordered by, as they are; of a probe, whose
    rows are of one run and stand above, no figures."""
    is_probe = found.published.probe is not None
    runs = found.directories
    names = [name for name in ORDERED if not is_probe and any(name in run.figures for run in runs)]
    titles = (FIGURES[name].title for name in names)
    heads = ("run of", "part", "seed", "attempt", "verdict", "under", *titles, "run")
    rows = tuple(
        (
            NOTHING if is_probe else run.row or NOTHING,
            run.part,
            str(run.seed),
            str(run.attempt),
            run.status if run.status == VALID or not run.reason else f"{run.status}: {_brief(run.reason)}",
            run.under or NOTHING,
            *(_run_text(name, run.figures.get(name)) for name in names),
            run.run or NOTHING,
        )
        for run in runs
    )
    return _table("Runs", heads, rows, "Every attempt, in the order of parts and plan.")


def _run_text(figure: str, value: float | str | None) -> str:
    return value if isinstance(value, str) else number_text(figure, value)


_BRIEF = 160


def _brief(reason: str) -> str:
    return reason if len(reason) <= _BRIEF else f"{reason[:_BRIEF].rsplit(' ', 1)[0]} …"
