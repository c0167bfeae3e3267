"""Findings and self-checks of a summary as lines of text for the screen."""

from __future__ import annotations

from collections.abc import Sequence

from squall.analysis.findings.beginning import LEVEL as BEGINNING
from squall.analysis.findings.finding import UNASSESSED, Finding, Scope
from squall.analysis.findings.self_check import SelfCheck
from squall.analysis.tables.columns import NO_DEVICE
from squall.analysis.wording import figure_text, share_text

MOST_FINDINGS = 6
"""Findings on the screen; the report holds all."""

SAVES = "saves ≤"
LEGEND = "(how sure that is, and the most that mending it alone can save)"
"""What stands in the brackets of these lines."""

CLIENT = "client-bound"
"""Its sentence stands in the verdict already."""


def finding_lines(findings: Sequence[Finding], n_most: int = MOST_FINDINGS) -> list[str]:
    """A line for each instance and phase with both levels, and one for the p99 requests of each server and phase."""
    lines = []
    has_several = len({one.scope.server for one in findings if one.scope.server}) > 1
    for one in findings:
        where = f"{one.scope.phase}, {one.scope.server}" if has_several else one.scope.phase
        if one.level == BEGINNING:
            lines.append(f"{one.scope.phase}: {one.rule} ({one.confidence}): {_of_beginning(one)}")
        elif one.level == "window":
            body = next((other for other in findings if _is_body_of(other, one)), None)
            lines.append(_instance_line(one, body, instance_text(one.scope, findings)))
        elif one.level == "tail" and one.rule != UNASSESSED:
            asked = f", {one.scope.model}" if one.scope.model else ""
            lines.append(f"{where}{asked}, p99: {_tail_text(one)}")
    if len(lines) > n_most:
        return [*lines[:n_most], f"and {len(lines) - n_most} more: see report.html"]
    return lines


def check_lines(checks: Sequence[SelfCheck]) -> list[str]:
    """How many self-checks are met, and a line for each that is not; those not assessed stand in the report."""
    by_status = {status: [one for one in checks if one.status == status] for status in ("met", "unmet")}
    n_assessed = sum(len(found) for found in by_status.values())
    lines = [f"{len(by_status['met'])} of {n_assessed} met"]
    for one in by_status["unmet"]:
        where = f" ({one.where})" if one.where else ""
        value, limit = figure_text(one.value, one.unit), figure_text(one.limit, one.unit)
        lines.append(f"{one.name}: {value}, limit {limit}{where}: {one.meaning}")
    return lines


def _of_beginning(one: Finding) -> str:
    """Its first measure: the rest stands below the latencies."""
    first = one.evidence[0]
    if first.measure == "drift_ratio":
        return f"{first.text} as long at its end, at equal batch size"
    return f"{first.text} of the late requests; what follows is about the whole phase"


def _tail_text(one: Finding) -> str:
    """What grew most, of the difference between the means of the p99 requests and of those up to the median."""
    if one.rule == "none":
        return "no tail: it is the median"
    return f"{one.rule} most, {share_text(one.margin)} of the gap to the faster half"


def _is_body_of(other: Finding, window: Finding) -> bool:
    return other.level == "body" and other.scope == window.scope


def instance_text(scope: Scope, findings: Sequence[Finding]) -> str:
    """What `scope` is called: the name of its instance, else of its server.

    With its server where several of `findings` are of instances of that name on several servers, and with its GPU where
    on one: Triton names the instances of all GPUs alike.
    """
    name, device = scope.instance, scope.instance_device
    if not name:
        return f"{scope.server}, {scope.model}" if scope.model else scope.server
    alike = [one.scope for one in findings if one.scope.instance == name]
    text = f"{scope.server}/{name}" if len({one.server for one in alike}) > 1 else name
    if len({one.instance_device for one in alike if one.server == scope.server}) < 2:
        return text
    return f"{text} on the CPU" if device == NO_DEVICE else f"{text} on GPU {device}"


def _instance_line(window: Finding, body: Finding | None, instance: str) -> str:
    text = f"{window.scope.phase}, {instance}: {_named(window)}"
    return f"{text}; batches {_named(body)}" if body is not None and body.rule != "none" else text


def _named(one: Finding) -> str:
    """The regime, how sure that is, and the most that it could give back of the mean latency by itself."""
    if one.rule == "none":
        return "no rule holds"
    if one.rule == UNASSESSED:
        return UNASSESSED
    if one.rule == CLIENT:
        runner = one.runner_up
        behind = f"; behind that {runner.rule}" if runner is not None and runner.holds else ""
        return f"{CLIENT}: see the verdict{behind}"
    names = f"{one.rule}, {', '.join(one.details)}" if one.details else one.rule
    bound = one.give_back.response_ratio
    gives = f", {SAVES} {share_text(bound)} of latency" if bound is not None else ""
    return f"{names} ({one.confidence}{gives}){_behind(one)}"


def _behind(one: Finding) -> str:
    """The runner-up of the window level where it holds too: what more collectors or another run may name first."""
    runner = one.runner_up
    is_told = runner is not None and runner.holds and one.level == "window"
    return f", then {runner.rule}" if runner is not None and is_told else ""
