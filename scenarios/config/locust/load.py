"""The load of a scenario that is Locust's: which locustfile, how many users, and what Locust is told besides."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import PurePath
from typing import Annotated, Any

from pydantic import Field, model_validator

from squall.scenarios.arrivals.users import LARGEST_USER_COUNT
from squall.scenarios.fields import (
    Count,
    Duration,
    Port,
    PositiveDuration,
    PositiveNumber,
    Section,
    Text,
)
from squall.scenarios.units import NS_PER_S, format_duration, parse_duration

OURS = {
    "-f": "file", "--locustfile": "file", "-H": "host", "--host": "host", "-u": "users", "--users": "users",
    "-r": "spawn_rate", "--spawn-rate": "spawn_rate", "-T": "tags", "--tags": "tags", "-E": "exclude_tags",
    "--exclude-tags": "exclude_tags", "-s": "stop_timeout", "--stop-timeout": "stop_timeout", "-t": "run_time",
    "--run-time": "run_time", "--html": "html",
}  # fmt: skip
"""Options of Locust that have a key of their own here."""
SQUALLS = (
    "--master", "--worker", "--master-host", "--master-port", "--master-bind-host", "--master-bind-port", "--processes",
    "--slave", "--expect-slaves", "--expect-workers", "--expect-workers-max-wait", "--headless", "--headful",
    "--autostart", "--autoquit", "--web-host", "--web-port", "-P", "--csv", "--csv-full-history", "--reset-stats",
    "--config", "--json", "--json-file", "--exit-code-on-error", "--logfile", "--skip-log-setup",
)  # fmt: skip
"""Options of Locust that squall sets, or that would take from it what it measures."""
INSTEAD = (
    "-h", "--help", "-V", "--version", "-l", "--list", "--show-task-ratio", "--show-task-ratio-json", "--print-stats",
    "--only-summary",
)  # fmt: skip
"""Options by which Locust prints something, mostly instead of a load."""
_LONGEST_NS = 2**63
DRAIN_NS = 30 * NS_PER_S
"""Of a scenario that states no phases: what users have to end the task that they are in, unless it says more."""


class WebConfig(Section):
    """Locust's web page, on loopback of the node with its master."""

    port: Port = 8089


class LocustConfig(Section):
    """An unchanged locustfile, run by Locust's own runners on the client nodes."""

    file: Text
    include: tuple[
        Text, ...
    ] = ()  # files and folders beside it that it reads or imports, brought to every node
    users: Annotated[Count, Field(le=LARGEST_USER_COUNT)] = 1  # a LoadTestShape of the file says its own
    spawn_rate: PositiveNumber = 1.0  # users a second
    run_time_ns: PositiveDuration | None = Field(default=None, alias="run_time")  # where no phases are stated
    user_classes: tuple[Text, ...] = ()  # empty: all of the file
    tags: tuple[Text, ...] = ()
    exclude_tags: tuple[Text, ...] = ()
    host: Text | None = None  # else that of the user class, else the server's HTTP address
    stop_timeout_ns: Duration | None = Field(
        default=None, alias="stop_timeout"
    )  # else the length of the drain
    options: tuple[
        Annotated[str, Field(strict=True)], ...
    ] = ()  # of Locust's command line, the file's own among them
    web: WebConfig | None = None
    html: bool = False  # Locust's HTML report beside its CSV files

    @model_validator(mode="after")
    def _python_file(self) -> LocustConfig:
        if PurePath(self.file).suffix != ".py":
            raise ValueError(f"file: {PurePath(self.file).name} is no locustfile, whose name ends in .py")
        return self

    @model_validator(mode="after")
    def _own_options(self) -> LocustConfig:
        for option in self.options:
            flag = option.partition("=")[0] if option.startswith("--") else option[:2]  # -u5 is -u 5
            if flag in OURS:
                raise ValueError(f"options: {flag} has a key of its own, use load.locust.{OURS[flag]}")
            if flag in SQUALLS:
                raise ValueError(f"options: {flag} is for squall to say, leave it out")
            if flag in INSTEAD:
                raise ValueError(f"options: {flag} is for the command locust alone, leave it out")
        return self

    @model_validator(mode="after")
    def _spawned_in_time(self) -> LocustConfig:
        if self.users / self.spawn_rate * NS_PER_S >= _LONGEST_NS:
            raise ValueError(
                f"spawn_rate: at {self.spawn_rate:g} a second {self.users} users take longer than the 292 years of an"
                " int64 in ns"
            )
        return self

    @model_validator(mode="after")
    def _included_beside(self) -> LocustConfig:
        """What is brought to a node has its place beside the locustfile."""
        folder = PurePath(self.file).parent
        for one in self.include:
            if not PurePath(one).is_relative_to(folder) or ".." in PurePath(one).parts:
                raise ValueError(f"include: {one} does not lie in the folder of the locustfile")
        return self


class LoadConfig(Section):
    """Who makes the load, where it is not squall's own client."""

    locust: LocustConfig


def with_locust_phases(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """A scenario's mapping with the phases that it leaves out for `run_time`, and the arrivals of those that it states;
    anything of the wrong type is left for validation. Raises ValueError where neither says how long the run is."""
    load = values.get("load")
    locust = load.get("locust") if isinstance(load, Mapping) else None
    if not isinstance(locust, Mapping):
        return values
    phases = values.get("phases")
    if phases is None:
        if locust.get("run_time") is None:
            raise ValueError("phases: missing, they must be given, or load.locust.run_time")
        phases = _phases_of(locust)
    if not isinstance(phases, list | tuple):
        return values
    filled = [
        {**phase, "arrivals": {"kind": "locust"}}
        if isinstance(phase, Mapping) and phase.get("kind") != "drain" and phase.get("arrivals") is None
        else phase
        for phase in phases
    ]
    return {**values, "phases": filled}


def without_implied_phases(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """A scenario's whole mapping without the phases that `run_time` implies: they follow what is changed in it."""
    run_time = ((mapping.get("load") or {}).get("locust") or {}).get("run_time")
    return {key: value for key, value in mapping.items() if key != "phases" or run_time is None}


def _phases_of(locust: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Warmup until all users are there, `run_time`, and what they have to end their tasks. Where these are none, any
    phases: what is wrong is told of their own keys."""
    users, rate, run_time = locust.get("users", 1), locust.get("spawn_rate", 1.0), locust["run_time"]
    spawning_ns = NS_PER_S
    if all(isinstance(one, int | float) and 0 < one < _LONGEST_NS for one in (users, rate)):
        spawning_ns += math.ceil(min(users / rate * NS_PER_S, _LONGEST_NS))
    drain_ns = DRAIN_NS
    with suppress(ValueError):
        drain_ns = max(DRAIN_NS, parse_duration(locust.get("stop_timeout") or format_duration(DRAIN_NS)))
    with suppress(ValueError):
        if parse_duration(run_time) > 0 and spawning_ns < _LONGEST_NS:
            return _three(format_duration(spawning_ns), run_time, drain_ns)
    return _three("1s", "1s", drain_ns)


def _three(warmup: str, measure: str, drain_ns: int) -> list[dict[str, Any]]:
    return [
        {"name": "warmup", "kind": "warmup", "duration": warmup},
        {"name": "measure", "kind": "measure", "duration": measure},
        {"name": "drain", "kind": "drain", "duration": format_duration(drain_ns)},
    ]
