"""What the process of a Locust master or worker is told; plain values, so that it travels cheaply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from squall.actors.triton_user.handed import UserModel, UserTarget
from squall.scenarios.config.locust import LocustConfig
from squall.scenarios.locust_plan import LocustFiles
from squall.scenarios.plan.plan import PhaseSpan
from squall.scenarios.units import NS_PER_S

MASTER = -1
"""The number of the master among the workers."""
ACCOUNT = "account.json"
"""What a master has said last of its statistics, in the folder of its outputs."""
LATE_NS = 10_000_000
"""A user that wakes so long after it asked to is late: ten times what a hub with nothing to do takes."""


@dataclass(frozen=True)
class LocustSettings:
    """`worker`: its number, `MASTER` of the master. `spill_dir`: on its node, for rows, files and logs. `address`: of
    the node in the cluster, where the master listens. `host`: what users have that name none."""

    run: str
    node: str
    worker: int
    n_workers: int
    address: str
    spill_dir: str
    config: LocustConfig
    files: LocustFiles
    spans: tuple[PhaseSpan, ...]
    load_end_ns: int
    stop_timeout_ns: int
    host: str
    targets: tuple[UserTarget, ...]
    models: tuple[UserModel, ...]
    seed: int
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_ns: int = 5 * NS_PER_S
    late_ns: int = LATE_NS
    largest_reply_bytes: int | None = None

    @property
    def is_master(self) -> bool:
        """Whether it has no users of its own."""
        return self.worker == MASTER

    @property
    def name(self) -> str:
        """For people and files."""
        return "locust-master" if self.is_master else f"locust-worker-{self.worker}"
