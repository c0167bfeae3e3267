"""The load of a scenario that is Locust's: which locustfile, how many users, and what Locust is told besides."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Any

from pydantic import Field, model_validator

from squall.scenarios.config.arrivals import LARGEST_USER_COUNT
from squall.scenarios.config.fields import (
    Count,
    Duration,
    Port,
    PositiveDuration,
    PositiveNumber,
    Section,
    Text,
)
from squall.scenarios.units import NS_PER_S, format_duration

_OURS = {
    "-f": "file", "--locustfile": "file", "-H": "host", "--host": "host", "-u": "users", "--users": "users",
    "-r": "spawn_rate", "--spawn-rate": "spawn_rate", "-T": "tags", "--tags": "tags", "-E": "exclude_tags",
    "--exclude-tags": "exclude_tags", "-s": "stop_timeout", "--stop-timeout": "stop_timeout", "-t": "run_time",
    "--run-time": "run_time", "--html": "html",
}  # fmt: skip
"""Options of Locust that have a key of their own here."""
_SQUALLS = (
    "--master", "--worker", "--master-host", "--master-port", "--master-bind-host", "--master-bind-port", "--processes",
    "--expect-workers", "--expect-workers-max-wait", "--headless", "--autostart", "--autoquit", "--web-host",
    "--web-port", "-P", "--csv", "--csv-full-history", "--reset-stats", "--config", "--json", "--json-file",
)  # fmt: skip
"""Options of Locust that squall sets, or that would take from it what it measures."""
DRAIN_NS = 30 * NS_PER_S
"""Of a scenario that states no phases: what users have to end the task that they are in."""


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
    def _own_options(self) -> LocustConfig:
        for option in self.options:
            flag = option.partition("=")[0]
            if flag in _OURS:
                raise ValueError(f"options: {flag} has a key of its own, use load.locust.{_OURS[flag]}")
            if flag in _SQUALLS:
                raise ValueError(f"options: {flag} is for squall to say, leave it out")
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
    anything of the wrong type is left for validation."""
    load = values.get("load")
    locust = load.get("locust") if isinstance(load, Mapping) else None
    if not isinstance(locust, Mapping):
        return values
    phases = values.get("phases")
    if phases is None and locust.get("run_time") is not None:
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


def _phases_of(locust: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Warmup until all users are there, `run_time`, and what they have to end their tasks."""
    users, rate = locust.get("users", 1), locust.get("spawn_rate", 1.0)
    numbers = all(isinstance(one, int | float) and one > 0 for one in (users, rate))
    spawning_ns = round(users / rate * NS_PER_S) + NS_PER_S if numbers else NS_PER_S
    return [
        {"name": "warmup", "kind": "warmup", "duration": format_duration(spawning_ns)},
        {"name": "measure", "kind": "measure", "duration": locust["run_time"]},
        {"name": "drain", "kind": "drain", "duration": format_duration(DRAIN_NS)},
    ]
