"""Sections of the manifest on what was collected beside the requests: observers, the profiler, its reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from squall.scenarios.records import Float, Int, Led, LeftOut, Listed, Record

BY_KERNEL_LIBRARY = "by the kernel library in the server's processes"
"""`how` of the collector `kernels`."""
BY_MODEL, BY_LIBRARY = "by the model itself", "by the batch library in the server"
BY_HOOK = "by the hook in Python models"
"""`how` of the collector `batches`."""


class CollectorState(Record):
    """Whether a collector ran."""

    status: str
    """`on`; `off`: not wanted; `missing`: wanted, and gives nothing"""
    reason: str = ""
    """why it is not on"""
    mend: str = ""
    """what would give it"""
    how: LeftOut[str] = ""
    """in which of several ways it ran"""


class SamplerCost(Record):
    """What the sampling of one table cost the observer, and what its source tells of itself."""

    REST = "told"

    interval_ns: Int | None = None
    """wanted between two samples"""
    n_ticks: Int = 0
    """samples taken"""
    n_late: Int = 0
    """those that began more than a tenth of the interval after their instant"""
    n_skipped: Int = 0
    """those that a slow one ran over"""
    n_rows: Int = 0
    """rows written"""
    cpu_ns: Int | None = None
    """CPU time of its thread, reads and writes"""
    wall_ns: Int | None = None
    """from its first sample to its end"""
    longest_read_ns: Int | None = None
    """longest read of the source"""
    told: Mapping[str, Any] = field(default_factory=dict)
    """what its source tells of itself"""


class FetchFacts(Record):
    """What fetching a node's spill files took, where the driver cannot read its disk."""

    n_bytes_during: Int = 0
    """bytes that came before the load ended"""
    n_bytes_after: Int = 0
    """bytes that came after it"""
    busy_ns: Int = 0
    """time in asking for pieces, holding them to their checksums and writing them"""
    n_asked_again: Int = 0
    """pieces that came torn or damaged"""
    n_begun_anew: Int = 0
    """copies that were not what the node had"""


class ObserverCost(Record):
    """What observing a node cost."""

    cpu_ns: Int | None = None
    """CPU time of the observer since it was ready"""
    wall_ns: Int | None = None
    """since then"""
    start_cpu_ns: Int | None = None
    """CPU time before that"""
    samplers: Mapping[str, SamplerCost] = field(default_factory=dict)
    """by table, with the server behind `-` where it has several"""


class ClockCost(Record):
    """What reading the nodes' clocks took of the driver."""

    n_probes: Int
    """readings"""
    cpu_ns: Int
    """CPU time"""


class ProfiledPhase(Record):
    """Whether nsys recorded a measured phase."""

    is_profiled: bool = False
    """recorded, at least from some instant on"""
    profiled_after_ns: Int | None = None
    """from when after its start; 0 or less: wholly; null: never"""
    reason: str = ""
    """why it is not, or why a step of it failed"""
    start_s: Float | None = None
    """seconds that the start of the recording took"""
    stop_s: Float | None = None
    """seconds that its stop took"""
    record_cpu_s: Float | None = None
    """CPU seconds of nsys's own processes while it recorded"""


class NsysProblem(Record):
    """What of nsys does not work on the server's node."""

    what: str
    """the problem"""
    mend: str
    """what mends it"""
    is_fatal: bool = True
    """no reports without the mend"""


class NsysStep(Record):
    """What a step of nsys took."""

    phase: str
    """measured phase"""
    step: str
    """start, record (from start to stop), stop, import or export"""
    seconds: Float | None = None
    """wall seconds"""
    cpu_s: Float | None = None
    """CPU seconds of it and of the session's own processes, not inside the server"""


class ReportScrub(Record):
    """What of a report was kept; docs/profiling.md says by which rule."""

    rows: Mapping[str, Int] = field(default_factory=dict)
    """rows kept of each table"""
    n_rows_dropped: Int = 0
    """rows of kept tables that were left out"""
    dropped_tables: Listed[str] = ()
    """tables left out; names that nsys would not give read `?`"""
    n_strings: Int = 0
    """texts kept"""
    n_strings_dropped: Int = 0
    """texts left out"""


class ReportClockFacts(Record):
    """A report's clock on that of its node."""

    is_assumed: bool = True
    """no mark confirms it: nsys's own start is believed, `error_ns` is no bound"""
    n_sleeps: Int = 0
    """marks that are sleeps"""
    n_ranges: Int = 0
    """marks that are NVTX ranges"""
    error_ns: Int | None = None
    """bound on its error"""
    drift_ppm: Float | None = None
    """mean drift"""
    behind_median_ns: Int | None = None
    """by how much an event starts behind the reading before it"""
    behind_largest_ns: Int | None = None
    """the largest of these"""
    assumption_error_ns: Int | None = None
    """largest error that believing nsys's start would have made"""


class TiedEvents(Record):
    """Events of a table, and how many of them are tied to a batch."""

    n: Int = 0
    """events"""
    n_tied: Int = 0
    """within a batch of an instance"""
    n_without_call: Int = 0
    """without the call that launched them"""


class ReportFacts(Record):
    """What a report of a measured phase holds."""

    report_bytes: LeftOut[Int | None] = None
    """size of nsys's own file"""
    exported_as: LeftOut[str | None] = None
    """format of nsys's export"""
    scrub: LeftOut[ReportScrub | None] = None
    """what of it was kept"""
    clock: LeftOut[ReportClockFacts | None] = None
    """its clock"""
    attribution: LeftOut[Mapping[str, TiedEvents]] = field(default_factory=dict)
    """by table of events"""


class NsysFacts(Record):
    """The profiler of the server's node. Empty where it could not be asked."""

    LEAD = "version"

    version: LeftOut[str | None] = None
    """version"""
    found: Led[str | None] = None
    """where it was found, no path"""
    is_importer_repaired: Led[bool | None] = None
    """its importer was started in another way"""
    is_attached: Led[bool | None] = None
    """the session is another's: `profile.nsys_session`"""
    n_sessions: Led[Int | None] = None
    """one more for each server started again"""
    lost: Led[Listed[str]] = ()
    """why sessions were lost"""
    problems: Led[Listed[NsysProblem]] = ()
    """what of it does not work"""
    steps: Led[Listed[NsysStep]] = ()
    """what it did, in order"""
    reports: Led[Mapping[str, ReportFacts]] = field(default_factory=dict)
    """by measured phase"""


class KernelTies(Record):
    """How many rows of a table the batches of a server hold, where a library recorded both."""

    n: Int
    """rows"""
    n_tied: Int
    """of these in exactly one batch of the instance that they are of"""
    n_ambiguous: Int
    """of these in several batches of that instance, which overlap, and not told apart: tied to none"""


class RecordedProcess(Record):
    """A process of the server that used CUDA, with the kernel library in it."""

    process: Int
    """process id on its node"""
    status: str
    """how the library did in it, in one line (docs/kernels.md)"""
    gpus: Listed[str] = ()
    """UUIDs of its CUDA devices, by number; empty: not known"""


class RecordedGpu(Record):
    """A GPU of the server's node, for what its SMs hold at most."""

    uuid: str
    """as NVML names it"""
    compute_capability: Listed[Int]
    """major and minor, as NVML says"""
    sm_count: Int
    """SMs, by its cores"""


class KernelRecordingFacts(Record):
    """What the kernel library recorded of the server."""

    n_windows: Int = 0
    """rows of table `recordings`"""
    recorded_ns: Int = 0
    """together so long"""
    processes: Listed[RecordedProcess] = ()
    """in the order in which they were found"""
    gpus: Listed[RecordedGpu] = ()
    """GPUs of the server's node of a compute capability that is known; none that is divided by MIG"""
    ties: Mapping[str, KernelTies] = field(default_factory=dict)
    """by table, how many of its rows are tied to a batch"""
    n_outside: Int = 0
    """records that no window holds whole, as at its edges: left out"""
    losses: Listed[str] = ()
    """what is missing of it, and what went wrong; `notes` has them too"""


class ValueChecks(Record):
    """How values were compared: floats within atol + rtol * |expected|, else exactly; of several models the first's."""

    every: Int
    """of the requests those whose id is a multiple of it"""
    rtol: Float
    """relative tolerance"""
    atol: Float
    """absolute tolerance"""
    reference_sha256: LeftOut[str | None] = None
    """of the user's file of answers, or with their function"""
    n_checked: LeftOut[Int | None] = None
    """replies compared; a lost worker cannot say its own"""
    n_wrong: LeftOut[Int | None] = None
    """of these the wrong ones"""
