"""The libraries inside the server: whether batches and kernels are recorded by them, and when."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress

from squall.analysis.storage.clock_track import ClockTrack
from squall.analysis.storage.collected import (
    BY_HOOK,
    BY_KERNEL_LIBRARY,
    BY_LIBRARY,
    BY_MODEL,
    KernelRecordingFacts,
)
from squall.cluster.driver.observed_collectors import BATCHES_MEND, ELSEWHERE, KERNELS_MEND, Collectors
from squall.cluster.node.agent import NodeAgent
from squall.cluster.node.injected.kernel_recording import NO_CUDA, NO_GPU
from squall.cluster.remote.spawn import Handle
from squall.scenarios.config.models import ModelConfig
from squall.scenarios.config.profile import ProfileConfig
from squall.scenarios.errors import LostActor
from squall.scenarios.plan.plan import PhaseSpan

_NSYS_HAS_CUPTI = "nsys records CUDA; CUPTI serves one profiler at a time"
_QUIET = (NO_GPU, NO_CUDA, _NSYS_HAS_CUPTI, ELSEWHERE)
"""Where kernels are recorded if they can be, these are no lack that somebody must be told of."""
_STOP_TIMEOUT_S = 60.0


class ServerLibraries:
    """Of a run's server. `choose_batches` and `choose_kernels` before a start by squall, `confirm` after it, `follow`
    after somebody else's; then `record`, `stop`, `judge`."""

    def __init__(self, models: Sequence[ModelConfig], profile: ProfileConfig, collectors: Collectors) -> None:
        """`models`: those that the server has under load."""
        self._record_themselves = all(model.repository is None for model in models)
        self._profile = profile
        self._collectors = collectors
        self._asked: Future[None] | None = None

    def choose_batches(self, agent: Handle[NodeAgent]) -> None:
        """Of a server that squall starts. Raises ClusterError where they are required and nothing records them."""
        if self._record_themselves:
            self._collectors.turn_on("batches", BY_MODEL)
            return
        reason, wanted = None, self._profile.batches
        if wanted != "off":
            reason = agent.call(NodeAgent.missing_library)
        self._collectors.choose("batches", wanted, reason, BATCHES_MEND, BY_LIBRARY)

    def choose_kernels(self, agent: Handle[NodeAgent]) -> None:
        """Likewise, when it is known whether nsys records."""
        reason = self._missing_kernels(agent) if self._profile.kernels != "off" else None
        self._note_kernels(reason)

    def confirm(self, agent: Handle[NodeAgent]) -> None:
        """When a server that squall starts is ready: notes what came to nothing. Raises ClusterError where that is
        required."""
        if self.has_batches:
            reason = agent.call(NodeAgent.missing_batches)
            self._note_batches(agent, reason)
        if self.kernel_kinds:
            self._note_kernels(agent.call(NodeAgent.missing_kernel_library))

    def follow(self, agent: Handle[NodeAgent], port: int | None) -> None:
        """Of a server that somebody else started, at `port` of the agent's node; None: on no node. Raises as above."""
        profile, reason = self._profile, ELSEWHERE if port is None else None
        if port is not None and profile.batches != "off":
            reason = agent.call(NodeAgent.follow_batches, port)
        self._note_batches(agent, reason)
        reason = ELSEWHERE if port is None else None
        if port is not None and profile.kernels != "off":
            reason = self._missing_kernels(agent) or agent.call(NodeAgent.follow_kernels, port)
        self._note_kernels(reason)

    def _note_batches(self, agent: Handle[NodeAgent], reason: str | None) -> None:
        """When it is known who records them in the server."""
        wanted, is_on = self._profile.batches, reason is None and self._profile.batches != "off"
        by_hook = is_on and agent.call(NodeAgent.batches_by) == "hook"
        self._collectors.choose("batches", wanted, reason, BATCHES_MEND, BY_HOOK if by_hook else BY_LIBRARY)

    def _missing_kernels(self, agent: Handle[NodeAgent]) -> str | None:
        if self._collectors.is_on("nsys") and "cuda" in self._profile.trace:
            return _NSYS_HAS_CUPTI
        return agent.call(NodeAgent.missing_kernels)

    def _note_kernels(self, reason: str | None) -> None:
        self._collectors.choose(
            "kernels", self._profile.kernels, reason, KERNELS_MEND, BY_KERNEL_LIBRARY, reason in _QUIET
        )

    @property
    def has_batches(self) -> bool:
        """Whether a server that squall starts is to have the batch library in it."""
        return not self._record_themselves and self._collectors.is_on("batches")

    @property
    def kernel_kinds(self) -> tuple[str, ...]:
        """What the kernel library is to record in it; empty: it is not loaded."""
        return tuple(self._profile.kernel_kinds) if self._collectors.is_on("kernels") else ()

    def record(
        self, agent: Handle[NodeAgent], clock: ClockTrack, start_ns: int, spans: Sequence[PhaseSpan]
    ) -> None:
        """Tells the server's node, without waiting, when to record: in measured phases, as `profile.duty` says.

        `start_ns`: the start instant on the run clock; `clock`: the node's.
        """
        if not self._collectors.is_on("kernels"):
            return
        edges = [(start_ns + one.start_ns, start_ns + one.end_ns) for one in spans if one.kind == "measure"]
        on_node = tuple((clock.source_ns(start), clock.source_ns(end)) for start, end in edges)
        with suppress(LostActor):  # told when it is next heard
            self._asked = agent.begin(NodeAgent.record_kernels, on_node, self._profile.duty)

    def stop(self, agent: Handle[NodeAgent]) -> None:
        """Ends recording. Raises ClusterError."""
        if self._asked is not None:
            agent.wait(self._asked, _STOP_TIMEOUT_S)
        agent.wait(agent.begin(NodeAgent.stop_kernels), _STOP_TIMEOUT_S)

    def judge(self, facts: KernelRecordingFacts) -> None:
        """Notes that the collector gave nothing, where that is so."""
        if facts.recorded_ns or not self._collectors.is_on("kernels"):
            return
        reasons = [one.status for one in facts.processes if "kernels recording (" not in one.status]
        if not facts.processes:
            reasons = [NO_CUDA]
        reason = next(iter([*reasons, *facts.losses]), "no window of a measured phase was recorded")
        if reason in _QUIET and self._profile.kernels == "auto":
            self._collectors.leave_out("kernels", reason)
        else:
            self._collectors.lose("kernels", reason, KERNELS_MEND)


def kernels_together(known: KernelRecordingFacts | None, new: KernelRecordingFacts) -> KernelRecordingFacts:
    """What was recorded of the servers of a run: sums, and all processes; each GPU once."""
    if known is None:
        return new
    return KernelRecordingFacts(
        n_windows=known.n_windows + new.n_windows,
        recorded_ns=known.recorded_ns + new.recorded_ns,
        processes=(*known.processes, *new.processes),
        gpus=tuple({gpu.uuid: gpu for gpu in (*known.gpus, *new.gpus)}.values()),
        n_outside=known.n_outside + new.n_outside,
        losses=(*known.losses, *new.losses),
    )
