"""What runs stand on: squall's version and this machine's hardware. Runs of two sites are not compared with one
another."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from importlib.metadata import version

from squall.actors.sampling.gpu.source import driver_and_names
from squall.cluster.node.node_facts import cpu_facts
from squall.cluster.remote.session import LOCAL
from squall.scenarios.records import Frozen


class Site(Frozen):
    """`gpus`: product names. `cluster`: address of a Ray cluster that is joined, whose nodes this machine does not
    know. `used_cores`, `used_gpus`: how many this process may use (CPU affinity, CUDA_VISIBLE_DEVICES); None: all."""

    squall: str
    cpu_model: str
    n_cores: int
    gpus: tuple[str, ...]
    driver: str
    cluster: str = ""
    used_cores: int | None = None
    used_gpus: int | None = None

    @property
    def digest(self) -> str:
        """Equal for equal sites."""
        known = [self.squall, self.cpu_model, self.n_cores, sorted(self.gpus), self.driver, self.cluster]
        known += [one for one in (self.used_cores, self.used_gpus) if one is not None]
        return hashlib.sha256(json.dumps(known).encode()).hexdigest()[:12]

    @property
    def text(self) -> str:
        """In words, without a name of host or user."""
        counted = Counter(self.gpus)
        gpus = ", ".join(f"{n} x {name}" for name, n in counted.items())
        cores = "" if self.used_cores is None else f", {self.used_cores} of them used"
        visible = "" if self.used_gpus is None else f", {self.used_gpus} of them used"
        parts = [
            f"{self.cpu_model}, {self.n_cores} cores{cores}",
            f"{gpus}{visible}, driver {self.driver}" if gpus else "no GPU",
        ]
        return "; ".join([*parts, f"squall {self.squall}", *(["a Ray cluster"] if self.cluster else [])])


def this_site(ray_address: str | None) -> Site:
    """The site of runs that start here now."""
    driver, gpus = driver_and_names()
    model, n_cores = cpu_facts()
    used_cores = len(os.sched_getaffinity(0))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    used_gpus = (
        None if visible is None or not gpus else len([one for one in visible.split(",") if one.strip()])
    )
    return Site(
        version("squall"),
        model,
        n_cores,
        gpus,
        driver,
        "" if ray_address in (None, LOCAL) else ray_address,
        used_cores if used_cores < n_cores else None,
        used_gpus if used_gpus != len(gpus) else None,
    )
