"""What runs stand on: squall's version and this machine's hardware. Runs of two sites are not compared with one
another."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import version

from squall.actors.sampling.gpu.source import driver_and_names
from squall.cluster.node.node_facts import cpu_facts


@dataclass(frozen=True)
class Site:
    """`gpus`: product names. `cluster`: address of a Ray cluster that is joined, whose nodes this machine does not
    know."""

    squall: str
    cpu_model: str
    n_cores: int
    gpus: tuple[str, ...]
    driver: str
    cluster: str = ""

    @property
    def digest(self) -> str:
        """Equal for equal sites."""
        known = [self.squall, self.cpu_model, self.n_cores, sorted(self.gpus), self.driver, self.cluster]
        return hashlib.sha256(json.dumps(known).encode()).hexdigest()[:12]

    @property
    def text(self) -> str:
        """In words, without a name of host or user."""
        counted = Counter(self.gpus)
        gpus = ", ".join(f"{n} x {name}" for name, n in counted.items())
        parts = [
            f"{self.cpu_model}, {self.n_cores} cores",
            f"{gpus}, driver {self.driver}" if gpus else "no GPU",
        ]
        return "; ".join([*parts, f"squall {self.squall}", *(["a Ray cluster"] if self.cluster else [])])


def this_site(ray_address: str | None) -> Site:
    """The site of runs that start here now."""
    driver, gpus = driver_and_names()
    model, n_cores = cpu_facts()
    return Site(version("squall"), model, n_cores, gpus, driver, ray_address or "")
