"""Whether promises are about what a scenario has: its phases, servers, models and kind of load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from squall.scenarios.promises.promise import Promise
from squall.scenarios.units import format_duration


def refuse_strangers(
    promises: Sequence[Promise],
    phases_ns: Mapping[str, int],
    servers: Sequence[str] | None,
    models: Sequence[str],
    is_closed: bool,
) -> None:
    """Raises ValueError for a tag that names nothing of the scenario. `phases_ns`: the measured phases and how long
    they are; `servers` None: only the nodes say; `models`: those under load."""
    for one in promises:
        scope = one.scope
        if scope.phase is not None and scope.phase not in phases_ns:
            raise ValueError(f"{one.key}: no measured phase {scope.phase!r}, there is {_listed(phases_ns)}")
        if scope.server is not None and servers is not None and scope.server not in servers:
            raise ValueError(f"{one.key}: no server {scope.server!r}, there is {_listed(servers)}")
        if scope.model is not None and scope.model not in models:
            what = "model under load is" if len(models) == 1 else "models under load are"
            raise ValueError(f"{one.key}: the {what} {', '.join(map(repr, models))}")
        if is_closed:
            _refuse_schedule(one)
        own = [ns for name, ns in phases_ns.items() if scope.phase in (None, name)]
        if scope.window_ns is not None and scope.window_ns > min(own):
            window, phase = format_duration(scope.window_ns), format_duration(min(own))
            raise ValueError(f"{one.key}: a window of {window} is longer than a phase of {phase}")


def _refuse_schedule(one: Promise) -> None:
    """A closed loop has service times alone."""
    what = {"response": "response time", "send_lag": "send lag"}.get(one.metric)
    if one.scope.burst is not None:
        what = "bursts"
    if one.at_hz is not None:
        what = "load that is asked for"
    if one.aborts_on_fail:
        what = "number of requests that is known before its end, by which abortOnFail decides"
    if what is not None:
        raise ValueError(f"{one.text}: a closed loop has no schedule and so no {what}; promise service times")


def _listed(names: Mapping[str, int] | Sequence[str]) -> str:
    return ", ".join(names)
