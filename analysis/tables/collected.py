"""Sections of the manifest on what was collected beside the requests: observers, the profiler, its reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from squall.analysis.tables.document import LEFT_OUT, REST, With

BY_KERNEL_LIBRARY = "by the kernel library in the server's processes"
"""`how` of the collector `kernels`."""
BY_MODEL, BY_LIBRARY = "by the model itself", "by the batch library in the server"
BY_HOOK = "by the hook in Python models"
"""`how` of the collector `batches`."""


@dataclass(frozen=True, kw_only=True)
class CollectorState:
    """Whether a collector ran."""

    status: Annotated[str, "`on`; `off`: not wanted; `missing`: wanted, and gives nothing"]
    reason: Annotated[str, "why it is not on"] = ""
    mend: Annotated[str, "what would give it"] = ""
    how: Annotated[str, LEFT_OUT, "in which of several ways it ran"] = ""


@dataclass(frozen=True, kw_only=True)
class SamplerCost:
    """What the sampling of one table cost the observer, and what its source tells of itself."""

    interval_ns: Annotated[int | None, "wanted between two samples"] = None
    n_ticks: Annotated[int, "samples taken"] = 0
    n_late: Annotated[int, "those that began more than a tenth of the interval after their instant"] = 0
    n_skipped: Annotated[int, "those that a slow one ran over"] = 0
    n_rows: Annotated[int, "rows written"] = 0
    cpu_ns: Annotated[int | None, "CPU time of its thread, reads and writes"] = None
    wall_ns: Annotated[int | None, "from its first sample to its end"] = None
    longest_read_ns: Annotated[int | None, "longest read of the source"] = None
    told: Annotated[Mapping[str, Any], REST, "what its source tells of itself"] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FetchFacts:
    """What fetching a node's spill files took, where the driver cannot read its disk."""

    n_bytes_during: Annotated[int, "bytes that came before the load ended"] = 0
    n_bytes_after: Annotated[int, "bytes that came after it"] = 0
    busy_ns: Annotated[int, "time in asking for pieces, holding them to their checksums and writing them"] = 0
    n_asked_again: Annotated[int, "pieces that came torn or damaged"] = 0
    n_begun_anew: Annotated[int, "copies that were not what the node had"] = 0


@dataclass(frozen=True, kw_only=True)
class ObserverCost:
    """What observing a node cost."""

    cpu_ns: Annotated[int | None, "CPU time of the observer since it was ready"] = None
    wall_ns: Annotated[int | None, "since then"] = None
    start_cpu_ns: Annotated[int | None, "CPU time before that"] = None
    samplers: Annotated[
        Mapping[str, SamplerCost], "by table, with the server behind `-` where it has several"
    ] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ClockCost:
    """What reading the nodes' clocks took of the driver."""

    n_probes: Annotated[int, "readings"]
    cpu_ns: Annotated[int, "CPU time"]


@dataclass(frozen=True, kw_only=True)
class ProfiledPhase:
    """Whether nsys recorded a measured phase."""

    is_profiled: Annotated[bool, "recorded, at least from some instant on"] = False
    profiled_after_ns: Annotated[int | None, "from when after its start; 0 or less: wholly; null: never"] = (
        None
    )
    reason: Annotated[str, "why it is not, or why a step of it failed"] = ""
    start_s: Annotated[float | None, "seconds that the start of the recording took"] = None
    stop_s: Annotated[float | None, "seconds that its stop took"] = None
    record_cpu_s: Annotated[float | None, "CPU seconds of nsys's own processes while it recorded"] = None


@dataclass(frozen=True, kw_only=True)
class NsysProblem:
    """What of nsys does not work on the server's node."""

    what: Annotated[str, "the problem"]
    mend: Annotated[str, "what mends it"]
    is_fatal: Annotated[bool, "no reports without the mend"] = True


@dataclass(frozen=True, kw_only=True)
class NsysStep:
    """What a step of nsys took."""

    phase: Annotated[str, "measured phase"]
    step: Annotated[str, "start, record (from start to stop), stop, import or export"]
    seconds: Annotated[float | None, "wall seconds"] = None
    cpu_s: Annotated[
        float | None, "CPU seconds of it and of the session's own processes, not inside the server"
    ] = None


@dataclass(frozen=True, kw_only=True)
class ReportScrub:
    """What of a report was kept; docs/profiling.md says by which rule."""

    rows: Annotated[Mapping[str, int], "rows kept of each table"] = field(default_factory=dict)
    n_rows_dropped: Annotated[int, "rows of kept tables that were left out"] = 0
    dropped_tables: Annotated[
        tuple[str, ...], "tables left out; names that nsys would not give read `?`"
    ] = ()
    n_strings: Annotated[int, "texts kept"] = 0
    n_strings_dropped: Annotated[int, "texts left out"] = 0


@dataclass(frozen=True, kw_only=True)
class ReportClockFacts:
    """A report's clock on that of its node."""

    is_assumed: Annotated[
        bool, "no mark confirms it: nsys's own start is believed, `error_ns` is no bound"
    ] = True
    n_sleeps: Annotated[int, "marks that are sleeps"] = 0
    n_ranges: Annotated[int, "marks that are NVTX ranges"] = 0
    error_ns: Annotated[int | None, "bound on its error"] = None
    drift_ppm: Annotated[float | None, "mean drift"] = None
    behind_median_ns: Annotated[int | None, "by how much an event starts behind the reading before it"] = None
    behind_largest_ns: Annotated[int | None, "the largest of these"] = None
    assumption_error_ns: Annotated[
        int | None, "largest error that believing nsys's start would have made"
    ] = None


@dataclass(frozen=True, kw_only=True)
class TiedEvents:
    """Events of a table, and how many of them are tied to a batch."""

    n: Annotated[int, "events"] = 0
    n_tied: Annotated[int, "within a batch of an instance"] = 0
    n_without_call: Annotated[int, "without the call that launched them"] = 0


@dataclass(frozen=True, kw_only=True)
class ReportFacts:
    """What a report of a measured phase holds."""

    report_bytes: Annotated[int | None, LEFT_OUT, "size of nsys's own file"] = None
    exported_as: Annotated[str | None, LEFT_OUT, "format of nsys's export"] = None
    scrub: Annotated[ReportScrub | None, LEFT_OUT, "what of it was kept"] = None
    clock: Annotated[ReportClockFacts | None, LEFT_OUT, "its clock"] = None
    attribution: Annotated[Mapping[str, TiedEvents], LEFT_OUT, "by table of events"] = field(
        default_factory=dict
    )


@dataclass(frozen=True, kw_only=True)
class NsysFacts:
    """The profiler of the server's node. Empty where it could not be asked."""

    version: Annotated[str | None, LEFT_OUT, "version"] = None
    found: Annotated[str | None, With("version"), "where it was found, no path"] = None
    is_importer_repaired: Annotated[
        bool | None, With("version"), "its importer was started in another way"
    ] = None
    is_attached: Annotated[
        bool | None, With("version"), "the session is another's: `profile.nsys_session`"
    ] = None
    n_sessions: Annotated[int | None, With("version"), "one more for each server started again"] = None
    lost: Annotated[tuple[str, ...], With("version"), "why sessions were lost"] = ()
    problems: Annotated[tuple[NsysProblem, ...], With("version"), "what of it does not work"] = ()
    steps: Annotated[tuple[NsysStep, ...], With("version"), "what it did, in order"] = ()
    reports: Annotated[Mapping[str, ReportFacts], With("version"), "by measured phase"] = field(
        default_factory=dict
    )


@dataclass(frozen=True, kw_only=True)
class KernelTies:
    """How many rows of a table the batches of a server hold, where a library recorded both."""

    n: Annotated[int, "rows"]
    n_tied: Annotated[int, "of these in exactly one batch of the instance that they are of"]
    n_ambiguous: Annotated[
        int, "of these in several batches of that instance, which overlap, and not told apart: tied to none"
    ]


@dataclass(frozen=True, kw_only=True)
class RecordedProcess:
    """A process of the server that used CUDA, with the kernel library in it."""

    process: Annotated[int, "process id on its node"]
    status: Annotated[str, "how the library did in it, in one line (docs/kernels.md)"]
    gpus: Annotated[tuple[str, ...], "UUIDs of its CUDA devices, by number; empty: not known"] = ()


@dataclass(frozen=True, kw_only=True)
class RecordedGpu:
    """A GPU of the server's node, for what its SMs hold at most."""

    uuid: Annotated[str, "as NVML names it"]
    compute_capability: Annotated[tuple[int, ...], "major and minor, as NVML says"]
    sm_count: Annotated[int, "SMs, by its cores"]


@dataclass(frozen=True, kw_only=True)
class KernelRecordingFacts:
    """What the kernel library recorded of the server."""

    n_windows: Annotated[int, "rows of table `recordings`"] = 0
    recorded_ns: Annotated[int, "together so long"] = 0
    processes: Annotated[tuple[RecordedProcess, ...], "in the order in which they were found"] = ()
    gpus: Annotated[
        tuple[RecordedGpu, ...],
        "GPUs of the server's node of a compute capability that is known; none that is divided by MIG",
    ] = ()
    ties: Annotated[Mapping[str, KernelTies], "by table, how many of its rows are tied to a batch"] = field(
        default_factory=dict
    )
    n_outside: Annotated[int, "records that no window holds whole, as at its edges: left out"] = 0
    losses: Annotated[
        tuple[str, ...], "what is missing of it, and what went wrong; `notes` has them too"
    ] = ()


@dataclass(frozen=True, kw_only=True)
class ValueChecks:
    """How values were compared: floats within atol + rtol * |expected|, else exactly; of several models the first's."""

    every: Annotated[int, "of the requests those whose id is a multiple of it"]
    rtol: Annotated[float, "relative tolerance"]
    atol: Annotated[float, "absolute tolerance"]
    reference_sha256: Annotated[
        str | None, LEFT_OUT, "of the user's file of answers, or with their function"
    ] = None
    n_checked: Annotated[int | None, LEFT_OUT, "replies compared; a lost worker cannot say its own"] = None
    n_wrong: Annotated[int | None, LEFT_OUT, "of these the wrong ones"] = None
