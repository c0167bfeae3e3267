"""Sections of the manifest on what the run stood on: nodes and their clocks, servers, workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from squall.analysis.record import Name
from squall.scenarios.records import (
    AddressFacts,
    Float,
    GpuPlace,
    GpuUse,
    Int,
    Led,
    LeftOut,
    Listed,
    RayPriority,
    Record,
    SenderScheduling,
)


class ClockKnots(Record):
    """A node's clock against the run clock: straight lines between knots. docs/clocks.md tells how it is made."""

    at_ns: Listed[Int]
    """instants of the node's clock; each but the first as the difference from the one before"""
    offset_ns: Listed[Int]
    """run clock minus the node's there, as differences too"""
    error_ns: Listed[Int]
    """bound on its error there"""
    probed_ns: Listed[Int] | None = None
    """first and last instant of the node's clock between which it was read; null: known everywhere"""
    steps: Listed[Listed[Int]] = ()
    """pairs of instants between which it did what no allowance covers"""


class NodeFacts(Record):
    """A node of the run: hardware, kernel, clock; no name of host or user."""

    n_cores: Int | None = None
    """logical CPUs"""
    cpu_model: str | None = None
    """as /proc/cpuinfo has it"""
    memory_bytes: Int | None = None
    """all of its memory"""
    kernel: str | None = None
    """release"""
    gpus: Listed[str] | None = None
    """names of its GPUs; empty: it has none; null: not known"""
    gpu_places: LeftOut[Listed[GpuPlace]] = ()
    """where each of them sits"""
    gpus_before: LeftOut[Listed[GpuUse]] = ()
    """what each of them did before the run started a server there"""
    ray_watchdogs: Listed[str] = ()
    """what Ray may do to its own processes"""
    folder: LeftOut[str | None] = None
    """scratch folder of the run there"""
    clock_offset_ns: Int | None = None
    """run clock minus its monotonic clock when it was last read"""
    clock_error_ns: Int | None = None
    """largest bound on the error of that, over the load"""
    clock_drift_ppm: Float | None = None
    """mean drift while it was read"""
    clock_track: LeftOut[ClockKnots | None] = None
    """offset and error at each instant"""
    ray: LeftOut[RayPriority | None] = None
    """what Ray gave squall's processes there"""


class Cgroup(Record):
    """What the own cgroup (v2) of a process allows it; null: no limit, or not to be read."""

    cpu_quota: Float | None = None
    """CPUs"""
    cpu_weight: Int | None = None
    """cpu.weight"""
    memory_max_bytes: Int | None = None
    """memory.max"""


class ProcessState(Record):
    """How processes that are alike are scheduled and limited; null: not to be read."""

    name: str
    """name of the process"""
    policy: str | None = None
    """scheduling policy"""
    realtime_priority: Int | None = None
    """of a policy in real time"""
    niceness: Int | None = None
    """within its session"""
    autogroup_niceness: Int | None = None
    """of its session among sessions; null: no autogroups"""
    oom_score_adj: Int | None = None
    """place among the kernel's victims"""
    io_class: str | None = None
    """class of its I/O"""
    n_cores: Int | None = None
    """logical CPUs that it may run on"""
    limits: Mapping[str, Int | None] | None = None
    """soft limits by name; null: none"""
    cgroup: Cgroup | None = None
    """what its cgroup allows"""
    n_processes: Int = 1
    """how many are alike"""


class ServerScheduling(Record):
    """How a server's processes are scheduled; empty where none can be looked at."""

    LEAD = "processes"

    processes: LeftOut[Listed[ProcessState]] = ()
    """those alike once"""
    unusual: Led[Listed[str]] = ()
    """what of that nobody deploys, as sentences without an end"""


class ModelFacts(Record):
    """A model under load of a server."""

    model: str | None = None
    """its name"""
    version: str | None = None
    """its version"""
    steps: Listed[str] = ()
    """of an ensemble the models behind it, in order, as often as a request passes them"""
    batch_record: bool | None = None
    """the model writes a record of each batch"""


class ServingFacts(Record):
    """How a server serves a model, by the configuration that it has of it; null: it has none of that."""

    max_batch_size: Int = 0
    """most rows of an execution; 0: the model has no batch dimension"""
    queue_delay_ns: Int | None = None
    """longest wait of its dynamic batcher for more rows; null: it has no dynamic batcher"""
    n_instances: Int | None = None
    """of all its groups, on all GPUs that these name"""
    response_cache: bool = False
    """it asks for the response cache, which the server may lack"""


class ControlFacts(Record):
    """Models that were loaded and unloaded for the run."""

    loading_ns: Mapping[str, Int] = field(default_factory=dict)
    """what loading took, all of it, until the model was ready, by model"""
    configured: Listed[str] = ()
    """of these, with a configuration of the scenario's"""
    beside: Listed[str] = ()
    """became ready with these, as steps of an ensemble do"""
    unloaded: Listed[str] = ()
    """were ready before and were unloaded"""
    is_restored: bool | None = None
    """all is as it was before the run; null: it was not to be put back, or not yet"""
    left: LeftOut[Listed[str]] = ()
    """what is otherwise than before, as sentences"""


class ServerFacts(Record):
    """A server under load. `model`, `version`, `steps` and `batch_record` are of the first model under load there."""

    node: Name
    """its node; of a server elsewhere the driver's"""
    model: str | None = None
    """model under load"""
    version: str | None = None
    """its version"""
    source: str | None = None
    """where the server comes from"""
    server_version: str | None = None
    """version of Triton"""
    batch_record: bool | None = None
    """the model writes a record of each batch"""
    steps: Listed[str] = ()
    """of an ensemble the models behind it, in order, as often as a request passes them"""
    decoupled: LeftOut[Listed[str]] = ()
    """models whose answers may leave after their execution has returned, by name"""
    scheduling: ServerScheduling = ServerScheduling()
    """how its processes are scheduled"""
    gpus: LeftOut[Listed[str]] = ()
    """UUIDs of the GPUs that it sees, by its own ordinals; empty: all of its node, or not known"""
    uptime_ns: LeftOut[Int | None] = None
    """age of its oldest process before the load, where that can be looked at"""
    control: LeftOut[ControlFacts | None] = None
    """of a scenario with `server.control`, what it changed"""
    serving: LeftOut[Mapping[str, ServingFacts]] = field(default_factory=dict)
    """how it serves the models under load and the steps behind them, by name"""
    others: LeftOut[Listed[ModelFacts]] = ()
    """further models under load there, in the scenario's order"""

    @property
    def models(self) -> tuple[ModelFacts, ...]:
        """All models under load there, the first one first; empty where not even that one is known."""
        first = ModelFacts(
            model=self.model, version=self.version, steps=self.steps, batch_record=self.batch_record
        )
        return (first, *self.others) if self.model is not None else ()


class WorkerFacts(Record):
    """A load generator."""

    worker: Int
    """its number"""
    node: Name
    """its node"""
    has_lane: bool | None = None
    """sends by the C lane"""
    no_lane: str | None = None
    """why it does not; empty where it does"""
    n_planned: LeftOut[Int | None] = None
    """open loop: arrivals of its plan"""
    n_users: LeftOut[Int | None] = None
    """closed loop: users of its plan"""
    scheduling: LeftOut[SenderScheduling | None] = None
    """what its sending thread has, at its end"""
    n_demotions: LeftOut[Int | None] = None
    """times its priority was taken away, since it computed too much"""
    demoted_ns: LeftOut[Int | None] = None
    """time without it"""
    ready_before_ns: LeftOut[Int | None] = None
    """how long before the start instant it was ready to send; negative: it was late"""
    addresses: LeftOut[Listed[AddressFacts]] = ()
    """addresses of its servers, and its connections to each"""
