"""The screen of `squall selftest`, within 80 columns. Rendering only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from squall.actors.load.lane import BUILD_MEND
from squall.analysis.requests.workers import LANE_COST
from squall.analysis.statistics.answers import FAILED, PASSED, UNMEASURABLE
from squall.analysis.wording import count_text, duration_text, rate_text

WIDTH = 80
_STYLES = {PASSED: "bold green", FAILED: "bold red", UNMEASURABLE: "bold yellow"}
_READING = (
    "exact: by Lindley's recursion on this run's arrivals and service times, equal to\n"
    "the server's record to the ns. Late, in, out: quickest tenth; over it: median."
)


def render(result: Mapping[str, Any]) -> RenderableType:
    """What `squall selftest` prints, from `squall.cluster.commands.selftest_runs.selftest`."""
    host, answers = result["host"], result["known_answers"]
    return Group(
        Text(f"squall selftest   {host['cores']} cores, Python {host['python']}", style="bold"),
        *_no_lane(host["no_lane"]),
        Text(),
        _sweep_table(result["sweep"]),
        Text(),
        _step_table(result),
        Text(),
        _answer_table(answers),
        Text(),
        _quantile_table(answers),
        Text(_READING, style="dim"),
        *_verdict(answers, result["status"]),
    )


def _no_lane(reason: str) -> list[Text]:
    """What the figures below do without."""
    if not reason:
        return []
    return [Text(f"without the C lane: {reason}; {LANE_COST}; {BUILD_MEND}", style="yellow")]


def _table(*headers: str, n_left: int) -> Table:
    """The first `n_left` columns are text, the others figures."""
    table = Table(
        box=box.SIMPLE_HEAD, width=WIDTH, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False, header_style="dim"
    )  # fmt: skip
    for position, header in enumerate(headers):
        table.add_column(header, justify="left" if position < n_left else "right", no_wrap=True)
    return table


def _sweep_table(sweeps: Iterable[Mapping[str, Any]]) -> Table:
    table = _table("Rate", "workers", "clean", "not clean", "because", n_left=1)
    table.columns[-1].no_wrap = False
    for sweep in sweeps:
        limit = sweep["lowest_unclean_hz"]
        last = [step for step in sweep["steps"] if step["rate_hz"] == limit][-1:]
        table.add_row(
            sweep["protocol"], str(sweep["n_workers"]), rate_text(sweep["highest_clean_hz"]), rate_text(limit),
            last[0]["reasons"][0] if last else "-",
        )  # fmt: skip
    return table


def _step_table(result: Mapping[str, Any]) -> Table:
    table = _table("Lag and CPU", "sent", "p50", "p95", "p99", "max", "user", "system", n_left=1)
    steps = [("top", one["at_highest"]) for one in result["sweep"]]
    steps += [("half", one) for one in result["at_half_rate"]]
    for label, step in steps:
        if step is not None:
            lags = [duration_text(step["send_lag_ns"][name]) for name in ("p50", "p95", "p99", "max")]
            cpu = [duration_text(step[f"cpu_{kind}_ns_per_request"]) for kind in ("user", "system")]
            table.add_row(
                f"{step['protocol']} x{step['n_workers']} {label}",
                rate_text(step["delivered_hz"]),
                *lags,
                *cpu,
            )
    return table


def _answer_table(answers: Iterable[Mapping[str, Any]]) -> Table:
    table = _table(
        "Known answers",
        "load",
        "service",
        "requests",
        "server late",
        "way in",
        "way out",
        "over it",
        n_left=1,
    )
    for answer in answers:
        load = "-" if answer["load_ratio"] is None else f"{answer['load_ratio']:g}"
        ways = answer["way_ns"] or {"in": None, "out": None}
        late = (answer["server_late_ns"], ways["in"], ways["out"])
        quick = [duration_text(one["p10"] if one else None) for one in late]
        over = answer["over_server_ns"]
        service, n = duration_text(answer["service_mean_ns"]), count_text(answer["n_requests"])
        table.add_row(_name(answer), load, service, n, *quick, duration_text(over["p50"] if over else None))
    return table


def _quantile_table(answers: Iterable[Mapping[str, Any]]) -> Table:
    table = _table("Response time", "", "theory's range", "exact", "server", "client", n_left=1)
    for answer in answers:
        for one in answer["quantiles"]:
            name = f"{_name(answer)} at {answer['load_ratio']:g}"
            span = f"{duration_text(one['low_ns'])} … {duration_text(one['high_ns'])}"
            measured = [duration_text(one[name]) for name in ("exact_ns", "server_ns", "client_ns")]
            table.add_row(name, f"p{100 * one['q']:g}", span, *measured)
    return table


def _verdict(answers: list[Mapping[str, Any]], status: str) -> list[Text]:
    n_passed = len([answer for answer in answers if answer["passed"]])
    text = Text("\n")
    text.append(status.upper(), style=_STYLES[status])
    text.append(f"   {n_passed} of {len(answers)} known answers", style="dim")
    failed = [answer for answer in answers if not answer["passed"]]
    return [
        text,
        *(Text(f"  {_name(one)}, {one['status']}: {'; '.join(one['reasons'])}") for one in failed),
    ]


def _name(answer: Mapping[str, Any]) -> str:
    return f"{answer['protocol']} {answer['queue']}"
