"""nsys and the server of a node: whether it can record there, the sessions the server runs in, why there is none."""

from __future__ import annotations

from pathlib import Path

from squall.actors.clock import Clock
from squall.actors.nsys.session import NsysSession
from squall.actors.nsys.tools import NsysTools, find_nsys
from squall.actors.sampling.gpu.source import missing_reason
from squall.analysis.nsys.tables import EventLabels
from squall.analysis.storage.collected import NsysFacts
from squall.cluster.node.node_profiler import NodeProfiler, Spill
from squall.cluster.node.triton_home import cache_dir
from squall.scenarios.config.profile import ProfileConfig
from squall.scenarios.errors import ClusterError, LostActor


class ServerNsys:
    """`begin` gives the server a profiler. Without it there is nothing to record: of a server without nsys, and where
    the agent that had begun it has died (`adopted`: the profile of its run, whose reports are still taken).

    `folder`: the server's own, scratch that the owner removes.
    """

    def __init__(self, node: str, folder: Path, clock: Clock, adopted: ProfileConfig | None) -> None:
        self._node = node
        self._folder = folder
        self._clock = clock
        self._adopted = adopted
        self._tools: NsysTools | None = None
        self._profiler: NodeProfiler | None = None
        self.why_without: str | None = None
        """Why a server that was to be started under nsys runs without it; None if it does not."""

    def missing(self, trace: tuple[str, ...]) -> str | None:
        """Why nsys cannot record `trace` here; None if it can. Raises ClusterError where SQUALL_NSYS names none."""
        tools = self._find()
        if tools is None:
            return f"nsys is not installed on {self._node}"
        fatal = next((problem for problem in tools.problems if problem.is_fatal), None)
        if fatal is not None:
            return f"{fatal.what}: {fatal.mend}"
        if set(trace) == {"cuda"} and missing_reason() is not None:
            return f"profile.trace asks for cuda alone, and {self._node} has no GPU"
        return None

    def _find(self) -> NsysTools | None:
        """See `find_nsys`, which asks nsys half a dozen questions: they are asked once."""
        if self._tools is None:
            self._tools = find_nsys(cache_dir())
        return self._tools

    def begin(self, profile: ProfileConfig) -> NodeProfiler:
        """The server's profiler from now on. Raises ClusterError without nsys, or without the session to join."""
        tools = self._find()
        if tools is None:
            raise ClusterError(f"nsys is not installed on {self._node}")
        self._folder.mkdir(exist_ok=True)
        self._profiler = NodeProfiler(tools, profile, self._folder, self._clock)
        return self._profiler

    def give_up(self, why: str) -> None:
        """The server runs without nsys, for that reason; nothing is left of the session that it was to run in."""
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            profiler.close()
            profiler.remove()
        self.why_without = why

    def renew(self) -> NsysSession:
        """See `NodeProfiler.renew`."""
        assert self._profiler is not None
        return self._profiler.renew()

    def start(self, phase: str) -> int:
        """Begins to record the server for `phase`; returns the instant at which it was on (node's clock)."""
        if self._profiler is None:
            raise LostActor("the server to record ended with the agent that had started it")
        return self._profiler.start(phase)

    def stop(self, phase: str) -> None:
        """Ends the recording; `spill` follows, at any time."""
        if self._profiler is None:
            raise ClusterError("its recording ended with the agent that made it")
        self._profiler.stop(phase)

    def spill(self, phase: str, labels: EventLabels, reports: Path, write: Spill) -> list[str]:
        """See `NodeProfiler.spill`; where the agent died that had begun it, of a recording that it had ended."""
        profiler = self._profiler
        if profiler is None:
            assert self._adopted is not None, "begin comes first"
            profiler = self.begin(self._adopted)
        return profiler.spill(phase, labels, reports, write)

    def facts(self) -> NsysFacts:
        """What nsys is, what its steps took and what its reports hold; empty without it."""
        return self._profiler.facts() if self._profiler is not None else NsysFacts()

    def close(self) -> list[str]:
        """Ends the sessions; returns what did not end as it should."""
        return self._profiler.close() if self._profiler is not None else []
