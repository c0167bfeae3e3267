"""Templates of this package, filled in: pages as HTML, sentences and screens as lines of text.

Sentences and screens are paragraphs of the same HTML: what others wrote is escaped by one rule, and cannot begin a line
or a label of its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from squall.analysis.columns import NO_DEVICE
from squall.analysis.compare.figures import worst_verdict
from squall.analysis.findings.tail import OUTSIDE
from squall.analysis.limits import LIMITS
from squall.analysis.report.plots import Plot
from squall.analysis.shown import escaped_lines, html_text
from squall.analysis.statistics.latency import Quantile
from squall.analysis.storage.collected import BY_HOOK, BY_LIBRARY
from squall.analysis.storage.schema import TABLES
from squall.analysis.traces.notes import window_text
from squall.analysis.wording import (
    change_text,
    compiled,
    count_text,
    duration_text,
    figure_text,
    moment_text,
    names_text,
    rate_text,
    share_text,
    unbroken_text,
)
from squall.scenarios.units import NS_PER_S, digits_text

if TYPE_CHECKING:
    from jinja2 import Environment

_INSTANTS = {name for table in TABLES.values() for name in table.instants}
"""Columns that hold points in time."""


def sentences(macro: str, *values: object, template: str = "sentences.html.j2") -> list[str]:
    """What that macro of the template says of the values, a line a paragraph."""
    return [line for _, line in labelled(macro, *values, template=template)]


def labelled(macro: str, *values: object, template: str = "sentences.html.j2") -> list[tuple[str, str]]:
    """The same with the label of each line."""
    return paragraphs(getattr(environment().get_template(template).module, macro)(*values))


def decision(macro: str, *values: object) -> list[str]:
    """What that macro of `decisions.html.j2` says of the values, a line a paragraph."""
    return sentences(macro, *values, template="decisions.html.j2")


def paragraphs(html: str) -> list[tuple[str, str]]:
    """The words of each paragraph that has some, with the last label before them, `<b>` at the head of a paragraph; an
    empty text before the first."""
    from markupsafe import Markup

    found, label = [], ""
    for paragraph in html.split("<p>"):
        named, _, words = paragraph.removeprefix("<b>").rpartition("</b>")
        label = Markup(named).unescape() or label
        if text := " ".join(Markup(words).unescape().split()):
            found.append((label, text))
    return found


def render_page(template: str, plots: Sequence[Plot], **values: object) -> str:
    """A page from a template that extends `page.html.j2`. It loads nothing: styles, plotly.js and data are in it."""
    plotly_js = files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")
    return (
        environment().get_template(template).render(plots=[*enumerate(plots)], plotly_js=plotly_js, **values)
    )


def quantile_text(quantile: Quantile) -> str:
    """The value; `failed` where the quantile falls on failures; `n too small` where it was refused."""
    if quantile.is_infinite:
        return "failed"
    return "n too small" if quantile.is_refused else duration_text(quantile.value_ns)


def interval_text(quantile: Quantile) -> str:
    """The 95 % interval, `?` for an end that the rows do not carry or that falls on failures; `none` without one."""
    if quantile.interval_reason:
        return "none"
    return " … ".join(
        "?" if end is None else duration_text(end) for end in (quantile.low_ns, quantile.high_ns)
    )


def large_text(value: float | None) -> str:
    """`value` as `count_text`, from ten million on in millions and so on: `1.00 G`."""
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value is not None and value >= max(size, 1e7):
            return f"{digits_text(value / size)} {letter}"
    return count_text(value)


def percent_text(ratio: float) -> str:
    """By how much `ratio` is more or less than 1, in percent: `+2.1`."""
    change = 100 * (ratio - 1)
    return f"{'+' if change >= 0 else ''}{digits_text(change, 2)}"


def _cell_text(value: object, name: str) -> object:
    """A value of a table's column: instants as UTC's time of day, lengths of time with their unit."""
    if not name.endswith("_ns") or not isinstance(value, int | float):
        return value
    return moment_text(value) if name in _INSTANTS else duration_text(value)


@cache
def environment() -> Environment:
    """Kept for the next template: one takes longer to compile than to fill in."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    def shown(value: object) -> object:
        return escaped_lines(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    made = Environment(
        loader=PackageLoader("squall.analysis.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=shown,
        bytecode_cache=compiled("html"),
    )
    made.policies["json.dumps_kwargs"] = {"default": float}
    made.filters |= {
        "duration": duration_text,
        "cell": _cell_text,
        "share": share_text,
        "change": change_text,
        "count": count_text,
        "names": names_text,
        "rate": rate_text,
        "figure": figure_text,
        "quantile": quantile_text,
        "interval": interval_text,
        "percent": percent_text,
        "digits": digits_text,
        "large": large_text,
        "unbroken": lambda cell: type(cell)(unbroken_text(cell)) if isinstance(cell, str) else cell,
        "window": window_text,
        "clock": lambda ns: str(timedelta(seconds=ns // NS_PER_S)),
        "pretty": lambda value: json.dumps(value, indent=2, ensure_ascii=False),
    }
    made.globals |= {
        "infinity": math.inf,
        "lines": lambda html: [line for _, line in paragraphs(html)],
        "limits": LIMITS,
        "no_device": NO_DEVICE,
        "outside": OUTSIDE,
        "ways_of_batches": (BY_LIBRARY, BY_HOOK),
        "html_text": html_text,
        "worst_verdict": worst_verdict,
    }
    return made
