"""Sections of the manifest on what the run stood on: nodes and their clocks, servers, workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from squall.analysis.tables.document import LEFT_OUT, With


@dataclass(frozen=True, kw_only=True)
class ClockKnots:
    """A node's clock against the run clock: straight lines between knots. docs/clocks.md tells how it is made."""

    at_ns: Annotated[
        tuple[int, ...],
        "instants of the node's clock; each but the first as the difference from the one before",
    ]
    offset_ns: Annotated[tuple[int, ...], "run clock minus the node's there, as differences too"]
    error_ns: Annotated[tuple[int, ...], "bound on its error there"]
    probed_ns: Annotated[
        tuple[int, ...] | None,
        "first and last instant of the node's clock between which it was read; null: known everywhere",
    ] = None
    steps: Annotated[
        tuple[tuple[int, ...], ...], "pairs of instants between which it did what no allowance covers"
    ] = ()


@dataclass(frozen=True, kw_only=True)
class RayPriority:
    """How Ray started its processes on a node, and what squall made of it for its own."""

    niceness_given: Annotated[int, "niceness from Ray"]
    niceness: Annotated[int, "niceness that is left"]
    oom_score_adj_given: Annotated[int, "oom_score_adj from Ray"]
    oom_score_adj: Annotated[int, "oom_score_adj that is left"]


@dataclass(frozen=True, kw_only=True)
class GpuPlace:
    """Where a GPU sits; null: not told."""

    uuid: Annotated[str, "the GPU"]
    pcie_generation: Annotated[int | None, "highest that GPU and slot can have"] = None
    pcie_lanes: Annotated[int | None, "most that GPU and slot can have"] = None
    numa_node: Annotated[int | None, "by the kernel"] = None
    cores: Annotated[tuple[int, ...] | None, "logical CPUs beside it"] = None
    n_nvlinks: Annotated[int | None, "NVLinks that are up"] = None
    ways: Annotated[Mapping[str, str], "what lies between it and each other GPU of the node, by UUID"] = (
        field(default_factory=dict)
    )


@dataclass(frozen=True, kw_only=True)
class GpuUse:
    """What a GPU did at one moment; null: not told."""

    uuid: Annotated[str, "the GPU"]
    util: Annotated[float | None, "nvidia-smi's utilisation, 0 to 1, of the last 1/6 to 1 s"] = None
    memory_used_bytes: Annotated[int | None, "of all processes and the driver"] = None
    processes: Annotated[
        tuple[int, ...] | None, "ids of the processes with a context, as NVML tells them"
    ] = None


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """A node of the run: hardware, kernel, clock; no name of host or user."""

    n_cores: Annotated[int | None, "logical CPUs"] = None
    cpu_model: Annotated[str | None, "as /proc/cpuinfo has it"] = None
    memory_bytes: Annotated[int | None, "all of its memory"] = None
    kernel: Annotated[str | None, "release"] = None
    gpus: Annotated[tuple[str, ...] | None, "names of its GPUs; empty: it has none; null: not known"] = None
    gpu_places: Annotated[tuple[GpuPlace, ...], LEFT_OUT, "where each of them sits"] = ()
    gpus_before: Annotated[
        tuple[GpuUse, ...], LEFT_OUT, "what each of them did before the run started a server there"
    ] = ()
    ray_watchdogs: Annotated[tuple[str, ...], "what Ray may do to its own processes"] = ()
    folder: Annotated[str | None, LEFT_OUT, "scratch folder of the run there"] = None
    clock_offset_ns: Annotated[int | None, "run clock minus its monotonic clock when it was last read"] = None
    clock_error_ns: Annotated[int | None, "largest bound on the error of that, over the load"] = None
    clock_drift_ppm: Annotated[float | None, "mean drift while it was read"] = None
    clock_track: Annotated[ClockKnots | None, LEFT_OUT, "offset and error at each instant"] = None
    ray: Annotated[RayPriority | None, LEFT_OUT, "what Ray gave squall's processes there"] = None


@dataclass(frozen=True, kw_only=True)
class Cgroup:
    """What the own cgroup (v2) of a process allows it; null: no limit, or not to be read."""

    cpu_quota: Annotated[float | None, "CPUs"] = None
    cpu_weight: Annotated[int | None, "cpu.weight"] = None
    memory_max_bytes: Annotated[int | None, "memory.max"] = None


@dataclass(frozen=True, kw_only=True)
class ProcessState:
    """How processes that are alike are scheduled and limited; null: not to be read."""

    name: Annotated[str, "name of the process"]
    policy: Annotated[str | None, "scheduling policy"] = None
    realtime_priority: Annotated[int | None, "of a policy in real time"] = None
    niceness: Annotated[int | None, "within its session"] = None
    autogroup_niceness: Annotated[int | None, "of its session among sessions; null: no autogroups"] = None
    oom_score_adj: Annotated[int | None, "place among the kernel's victims"] = None
    io_class: Annotated[str | None, "class of its I/O"] = None
    n_cores: Annotated[int | None, "logical CPUs that it may run on"] = None
    limits: Annotated[Mapping[str, int | None] | None, "soft limits by name; null: none"] = None
    cgroup: Annotated[Cgroup | None, "what its cgroup allows"] = None
    n_processes: Annotated[int, "how many are alike"] = 1


@dataclass(frozen=True, kw_only=True)
class ServerScheduling:
    """How a server's processes are scheduled; empty where none can be looked at."""

    processes: Annotated[tuple[ProcessState, ...], LEFT_OUT, "those alike once"] = ()
    unusual: Annotated[
        tuple[str, ...], With("processes"), "what of that nobody deploys, as sentences without an end"
    ] = ()


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """A model under load of a server."""

    model: Annotated[str | None, "its name"] = None
    version: Annotated[str | None, "its version"] = None
    steps: Annotated[
        tuple[str, ...], "of an ensemble the models behind it, in order, as often as a request passes them"
    ] = ()
    batch_record: Annotated[bool | None, "the model writes a record of each batch"] = None


@dataclass(frozen=True, kw_only=True)
class ServingFacts:
    """How a server serves a model, by the configuration that it has of it; null: it has none of that."""

    max_batch_size: Annotated[int, "most rows of an execution; 0: the model has no batch dimension"] = 0
    queue_delay_ns: Annotated[
        int | None, "longest wait of its dynamic batcher for more rows; null: it has no dynamic batcher"
    ] = None
    n_instances: Annotated[int | None, "of all its groups, on all GPUs that these name"] = None
    response_cache: Annotated[bool, "it asks for the response cache, which the server may lack"] = False


@dataclass(frozen=True, kw_only=True)
class ControlFacts:
    """Models that were loaded and unloaded for the run."""

    loading_ns: Annotated[
        Mapping[str, int], "what loading took, all of it, until the model was ready, by model"
    ] = field(default_factory=dict)
    configured: Annotated[tuple[str, ...], "of these, with a configuration of the scenario's"] = ()
    beside: Annotated[tuple[str, ...], "became ready with these, as steps of an ensemble do"] = ()
    unloaded: Annotated[tuple[str, ...], "were ready before and were unloaded"] = ()
    is_restored: Annotated[
        bool | None, "all is as it was before the run; null: it was not to be put back, or not yet"
    ] = None
    left: Annotated[tuple[str, ...], LEFT_OUT, "what is otherwise than before, as sentences"] = ()


@dataclass(frozen=True, kw_only=True)
class ServerFacts:
    """A server under load. `model`, `version`, `steps` and `batch_record` are of the first model under load there."""

    node: Annotated[str, "its node; of a server elsewhere the driver's"]
    model: Annotated[str | None, "model under load"] = None
    version: Annotated[str | None, "its version"] = None
    source: Annotated[str | None, "where the server comes from"] = None
    server_version: Annotated[str | None, "version of Triton"] = None
    batch_record: Annotated[bool | None, "the model writes a record of each batch"] = None
    steps: Annotated[
        tuple[str, ...],
        "of an ensemble the models behind it, in order, as often as a request passes them",
    ] = ()
    decoupled: Annotated[
        tuple[str, ...],
        LEFT_OUT,
        "models whose answers may leave after their execution has returned, by name",
    ] = ()
    scheduling: Annotated[ServerScheduling, "how its processes are scheduled"] = ServerScheduling()
    gpus: Annotated[
        tuple[str, ...],
        LEFT_OUT,
        "UUIDs of the GPUs that it sees, by its own ordinals; empty: all of its node, or not known",
    ] = ()
    uptime_ns: Annotated[
        int | None,
        LEFT_OUT,
        "age of its oldest process before the load, where that can be looked at",
    ] = None
    control: Annotated[
        ControlFacts | None, LEFT_OUT, "of a scenario with `server.control`, what it changed"
    ] = None
    serving: Annotated[
        Mapping[str, ServingFacts],
        LEFT_OUT,
        "how it serves the models under load and the steps behind them, by name",
    ] = field(default_factory=dict)
    others: Annotated[
        tuple[ModelFacts, ...], LEFT_OUT, "further models under load there, in the scenario's order"
    ] = ()

    @property
    def models(self) -> tuple[ModelFacts, ...]:
        """All models under load there, the first one first; empty where not even that one is known."""
        first = ModelFacts(
            model=self.model, version=self.version, steps=self.steps, batch_record=self.batch_record
        )
        return (first, *self.others) if self.model is not None else ()


@dataclass(frozen=True, kw_only=True)
class SenderScheduling:
    """What a worker's sending thread got."""

    policy: Annotated[str, "fifo: in real time"]
    realtime_priority: Annotated[int, "of fifo"]
    niceness: Annotated[int, "else"]
    cores: Annotated[tuple[int, ...], "cores of its own; empty: all of the process"] = ()
    why_less: Annotated[str, "why it has less than was asked for; empty where it has it"] = ""


@dataclass(frozen=True, kw_only=True)
class AddressFacts:
    """What a load generator had of one address of a server's name."""

    server: Annotated[str, "which server"]
    address: Annotated[str, "IP and port"]
    n_connections: Annotated[int, "connections to it that came about"]
    why_left_out: Annotated[str, "why none went there any more; empty where they did"] = ""


@dataclass(frozen=True, kw_only=True)
class WorkerFacts:
    """A load generator."""

    worker: Annotated[int, "its number"]
    node: Annotated[str, "its node"]
    has_lane: Annotated[bool | None, "sends by the C lane"] = None
    no_lane: Annotated[str | None, "why it does not; empty where it does"] = None
    n_planned: Annotated[int | None, LEFT_OUT, "open loop: arrivals of its plan"] = None
    n_users: Annotated[int | None, LEFT_OUT, "closed loop: users of its plan"] = None
    scheduling: Annotated[SenderScheduling | None, LEFT_OUT, "what its sending thread has, at its end"] = None
    n_demotions: Annotated[
        int | None, LEFT_OUT, "times its priority was taken away, since it computed too much"
    ] = None
    demoted_ns: Annotated[int | None, LEFT_OUT, "time without it"] = None
    ready_before_ns: Annotated[
        int | None,
        LEFT_OUT,
        "how long before the start instant it was ready to send; negative: it was late",
    ] = None
    addresses: Annotated[
        tuple[AddressFacts, ...], LEFT_OUT, "addresses of its servers, and its connections to each"
    ] = ()
