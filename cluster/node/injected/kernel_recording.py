"""The kernels of a node's server by the kernel library: recorded in windows of the measured phases, kept in files of
this node, and the windows as table `recordings`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from squall.actors.inject.kernel_library import find_cupti, kernel_environment
from squall.actors.inject.kernel_ring import KernelKinds
from squall.actors.inject.library import CUPTI_VARIABLE, built_library
from squall.actors.process.state import listening_pids
from squall.actors.sampling.gpu.source import missing_reason
from squall.analysis.nsys.tables import EventLabels
from squall.analysis.recorded import Windows
from squall.analysis.storage.collected import KernelRecordingFacts, RecordedGpu, RecordedProcess
from squall.cluster.node.injected.effect import injected
from squall.cluster.node.injected.kernel_rings import KernelRings, left_rings, records_folder
from squall.cluster.node.injected.kernel_switch import KernelSwitch, planned
from squall.cluster.node.injected.kernel_tables import KernelTables
from squall.cluster.node.injected.kernel_windows import (
    Recorded,
    WindowFile,
    read_windows,
    window_table,
)
from squall.cluster.node.injected.process_gpus import recorded_gpus
from squall.cluster.node.injected.ring_folder import HeldRings, hold_alone, make_ring_folder, remove_rings
from squall.cluster.node.spills import Spills
from squall.scenarios.config.duty import Duty
from squall.scenarios.errors import ClusterError

NO_GPU = "the node has no GPU"
NO_CUDA = "no process of the server used CUDA"


def missing_kernels() -> str | None:
    """Why kernels of a server on this node cannot be recorded; None if they can. `NO_GPU`: there are none.

    A CUPTI that the environment names is taken at its word, also where NVML sees no GPU.
    """
    if missing_reason() is not None and not os.environ.get(CUPTI_VARIABLE):
        return NO_GPU
    if built_library("kernels") is None:
        return "the kernel library was not built: install squall where there is a C compiler"
    return None


def server_kernel_environment(rings: Path, kinds: Sequence[str]) -> dict[str, str]:
    """What a server on this node needs to record `kinds` into `rings`. Raises ClusterError without a library."""
    library = built_library("kernels")
    if library is None:
        raise ClusterError(missing_kernels() or "the kernel library was not built")
    flags = KernelKinds(0)
    for kind in kinds:
        flags |= KernelKinds[kind.upper()]
    return kernel_environment(library, rings, flags, find_cupti())


class KernelRecording:
    """`folder`: the server's own. One of `begin` and `follow`, or neither; `record`, `stop`, `spill`, `close`.

    In a folder of an agent that died, `spill` takes what that one had not taken.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._switch: KernelSwitch | None = None
        self._told: list[str] = []
        self._n_outside = 0
        self._gpus: tuple[RecordedGpu, ...] = ()

    def begin(self, kinds: Sequence[str]) -> dict[str, str]:
        """What a server that is to be started needs; its rings are watched from now on. Raises ClusterError."""
        try:
            rings = make_ring_folder(self._folder, "kernels")
        except OSError as error:
            raise ClusterError(f"kernels: {error.strerror or error}") from error
        try:
            environment = server_kernel_environment(rings.path, kinds)
        except ClusterError:
            rings.let_go()
            raise
        self._watch(rings, begins_anew=False)
        return environment

    def follow(self, port: int) -> str | None:
        """Watches the processes of a server that somebody else started, which listens at `port` here. Returns why that
        gives nothing; None if it does."""
        found = injected(listening_pids(port), "kernels")
        if found.folder is None:
            return found.reason
        try:
            self._watch(hold_alone(found.folder, "kernels"), begins_anew=True)
        except ClusterError as error:
            return str(error)
        return None

    def _watch(self, rings: HeldRings, begins_anew: bool) -> None:
        watched = KernelRings(rings, self._folder, self._tell, begins_anew)
        self._switch = KernelSwitch(watched, WindowFile(records_folder(self._folder)), self._tell)

    def _tell(self, line: str) -> None:
        if line not in self._told:
            self._told.append(line)

    def record(self, spans: Sequence[tuple[int, int]], duty: Duty | Literal["whole"]) -> None:
        """Records from now on in the measured phases [start, end) of this node's clock, as `duty` says."""
        if self._switch is not None:
            self._switch.plan(planned(spans, duty))

    def stop(self) -> None:
        """Ends recording, and takes what is left."""
        if self._switch is not None:
            self._switch.stop()

    def spill(self, spills: Spills, labels: Mapping[str, str]) -> list[str]:
        """Table `recordings` and those of the records; returns what is missing and what went wrong.

        `labels`: run, node and server of rows.
        """
        recorded = self._recorded()
        if recorded.windows:
            for loss in spills.write("recordings", "library", iter([window_table(recorded.windows, labels)])):
                self._tell(loss)
            self._spill_records(recorded, spills, labels)
        return list(self._told)

    def _spill_records(self, recorded: Recorded, spills: Spills, labels: Mapping[str, str]) -> None:
        """Tables of the records."""
        windows = (one for one in recorded.windows if one.length_ns)
        self._gpus = recorded_gpus()
        tables = KernelTables(
            [one for one in recorded.processes if one.path.exists()],
            Windows.of((one.begun_ns, one.start_ns, one.end_ns, one.done_ns) for one in windows),
            EventLabels(labels["run"], labels["node"], labels["server"]),
            self._gpus,
        )
        for loss in spills.write_all("library", tables.rows()):
            self._tell(loss)
        self._n_outside = tables.n_outside

    def _recorded(self) -> Recorded:
        """All that is known of the recording, which is over then."""
        self.stop()
        if self._switch is None:
            self._take_left()
        return read_windows(records_folder(self._folder))

    def _take_left(self) -> None:
        """What an agent that died had not taken from the rings of a server that it had started."""
        rings = left_rings(self._folder, self._tell)
        if rings is None:
            return
        into = WindowFile(records_folder(self._folder))
        for process in rings.processes:
            into.note_process(process.taken)
        cut = read_windows(records_folder(self._folder)).open_since
        if cut is not None:
            done_ns = max([cut.done_ns, *(one.ring.flushed_ns for one in rings.processes)])
            into.note_windows([replace(cut, done_ns=done_ns)])
            self._tell(
                "kernels: recording was on when its agent died: what it recorded since counts as not recorded"
            )
        rings.close()
        into.close()

    def facts(self) -> KernelRecordingFacts:
        """What was recorded, for the manifest; after `spill`."""
        recorded = read_windows(records_folder(self._folder))
        return KernelRecordingFacts(
            n_windows=len(recorded.windows),
            recorded_ns=sum(one.length_ns for one in recorded.windows),
            processes=tuple(
                RecordedProcess(process=one.pid, status=one.status, gpus=one.gpus)
                for one in recorded.processes
            ),
            gpus=self._gpus,
            n_outside=self._n_outside,
            losses=tuple(self._told),
        )

    def close(self, keeps_files: bool) -> None:
        """`keeps_files`: the rings stay for `squall resume`."""
        self.stop()
        if not keeps_files:
            remove_rings(self._folder, "kernels")
