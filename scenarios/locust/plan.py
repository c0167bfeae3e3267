"""The plan of a run whose load is Locust's: when its phases are, and which files say what its users do.

What a user sends and when is for the locustfile to say, with a random state of its own: two runs of one plan are not
one schedule.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from squall.scenarios.config.locust import LocustConfig
from squall.scenarios.locust.files import LocustFiles
from squall.scenarios.plan.plan import PhaseSpan

NO_LOAD = {"file", "include", "run_time_ns", "web", "html"}
"""Keys that change nothing of what is sent: where files lie, what the phases say too, what is shown."""


def stated_load(config: LocustConfig) -> dict[str, Any]:
    """What `load.locust` says of the load but for its files, in plain types."""
    return config.model_dump(mode="json", by_alias=True, exclude=NO_LOAD)


@dataclass(frozen=True, eq=False)
class LocustPlan:
    """Users begin at the start instant, `config.spawn_rate` a second, or as the file's shape says; they are told to end
    at `load_end_ns`, and have `stop_timeout_ns` to end the task that they are in."""

    config: LocustConfig
    files: LocustFiles
    spans: tuple[PhaseSpan, ...]

    @property
    def load_end_ns(self) -> int:
        """End of the last phase that is no drain, from the start instant."""
        return max(span.end_ns for span in self.spans if span.kind != "drain")

    @property
    def stop_timeout_ns(self) -> int:
        """What users have to end the task that they are in: as stated, else what is left of the run."""
        stated = self.config.stop_timeout_ns
        return self.spans[-1].end_ns - self.load_end_ns if stated is None else stated

    def sha256(self) -> str:
        """Hex digest of settings, phases and files: the same wherever these lie."""
        spans = [(span.name, span.kind, span.start_ns, span.end_ns) for span in self.spans]
        stated = stated_load(self.config), spans, self.files.sha256()
        return hashlib.sha256(repr(stated).encode()).hexdigest()
