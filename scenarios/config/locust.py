"""The load of a scenario that is Locust's: which locustfile, how many users, and what Locust is told besides."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Any

from pydantic import Field

from squall.scenarios.arrivals.users import LARGEST_USER_COUNT
from squall.scenarios.errors import Sentences, holding
from squall.scenarios.fields import (
    Count,
    Duration,
    Port,
    PositiveDuration,
    PositiveNumber,
    Section,
    Text,
)
from squall.scenarios.units import NS_PER_S

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
    run_time_ns: PositiveDuration | None = None  # where no phases are stated
    user_classes: tuple[Text, ...] = ()  # empty: all of the file
    tags: tuple[Text, ...] = ()
    exclude_tags: tuple[Text, ...] = ()
    host: Text | None = None  # else that of the user class, else the server's HTTP address
    stop_timeout_ns: Duration | None = None  # else the length of the drain
    options: tuple[
        Annotated[str, Field(strict=True)], ...
    ] = ()  # of Locust's command line, the file's own among them
    web: WebConfig | None = None
    html: bool = False  # Locust's HTML report beside its CSV files

    def misfits(self) -> Sentences:
        flags = [
            one.partition("=")[0] if one.startswith("--") else one[:2] for one in self.options
        ]  # -u5 is -u 5
        file = PurePath(self.file)
        yield from holding({
            f"file: {file.name} is no locustfile, whose name ends in .py": file.suffix != ".py",
            **{f"options: {one} has a key of its own, use load.locust.{OURS.get(one)}": one in OURS for one in flags},
            **{f"options: {one} is for squall to say, leave it out": one in SQUALLS for one in flags},
            **{f"options: {one} is for the command locust alone, leave it out": one in INSTEAD for one in flags},
            f"spawn_rate: at {self.spawn_rate:g} a second {self.users} users take longer than the 292 years of an int64"
            " in ns": self.users / self.spawn_rate * NS_PER_S >= _LONGEST_NS,
            **{
                f"include: {one} does not lie in the folder of the locustfile": (
                    not PurePath(one).is_relative_to(file.parent) or ".." in PurePath(one).parts
                )
                for one in self.include
            },
        })  # fmt: skip


class LoadConfig(Section):
    """Who makes the load, where it is not squall's own client."""

    locust: LocustConfig


def with_users(phase: Any) -> Any:
    """A phase of a scenario whose load is Locust's, as it is stated, with its arrivals; anything of the wrong type is
    left for validation."""
    if isinstance(phase, Mapping) and phase.get("kind") != "drain" and phase.get("arrivals") is None:
        return {**phase, "arrivals": {"kind": "locust"}}
    return phase
