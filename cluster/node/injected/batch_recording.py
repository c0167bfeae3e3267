"""The batches of a node's server by the batch library, or by the hook in its Python models, from the start of the
server, or of following one, to a spill file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from squall.actors.inject.batch_ring import Writer
from squall.actors.inject.library import batch_environment
from squall.actors.process.state import listening_pids
from squall.cluster.node.injected.batch_rings import (
    BatchRings,
    take_left_rings,
    taken_files,
)
from squall.cluster.node.injected.effect import held_rings, injected, why_silent
from squall.cluster.node.injected.ring_folder import hold_all, make_ring_folder, remove_rings, rings_of
from squall.cluster.node.spills import Spills
from squall.scenarios.errors import ClusterError


def missing_library(folder: Path) -> str | None:
    """Why the batch library cannot be loaded into a server that is started here; None if it can."""
    try:
        batch_environment(folder, {})
    except ValueError as error:
        return str(error)
    return None


class BatchRecording:
    """`folder`: the server's own. One of `begin` and `follow`, or neither; `spill`, then `close`.

    In a folder of an agent that died, `spill` takes what that one had not taken.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rings: BatchRings | None = None

    def begin(self) -> dict[str, str]:
        """What a server that is to be started needs; its rings are watched from now on. Raises ClusterError."""
        try:
            rings = make_ring_folder(self._folder, "batches")
        except OSError as error:
            raise ClusterError(f"batches: {error.strerror or error}") from error
        try:
            environment = batch_environment(rings.path, {})
        except ValueError as error:
            rings.let_go()
            raise ClusterError(str(error)) from error
        self._rings = BatchRings([rings], self._folder)
        return environment

    def silence(self, log: str) -> str | None:
        """Why a server that `begin` was for, and which is ready, records nothing that can be taken; None if it does.

        `log`: what it wrote. Nothing is watched then any more: it is no loss.
        """
        if self._rings is None:
            return None
        rings = rings_of(self._folder, "batches")
        reason = "the folder of the rings is gone" if rings is None else why_silent(rings, log)
        if reason is not None:
            self._rings.stop()
            self._rings = None
            remove_rings(self._folder, "batches")
        return reason

    def follow(self, port: int) -> str | None:
        """Takes from now on what is recorded in a server that somebody else started, which listens at `port` here.
        Returns why that gives nothing; None if it does.

        What a hook's file names may be the folder of other servers too: a ring is this server's if it has it mapped.
        One that comes while the server does not listen, as it does not while it starts again, is taken for its.
        """

        def is_ours(ring: Path) -> bool:
            pids = listening_pids(port)
            return not pids or ring in held_rings(pids)

        found = injected(listening_pids(port))
        if found.folder is None:
            return found.reason
        try:
            held = hold_all(found.folders, "batches")
            self._rings = BatchRings(held, self._folder, begins_anew=True, is_ours=is_ours)
        except ClusterError as error:
            return str(error)
        return None

    @property
    def writer(self) -> Writer | None:
        """Who records in the server; None: nobody so far."""
        return self._rings.writer if self._rings is not None else None

    def spill(self, spills: Spills, labels: Mapping[str, str], from_ns: int) -> tuple[list[str], list[str]]:
        """Table `batches` of what was recorded from `from_ns` on, on this node's clock; returns losses and notes.

        `labels`: run, node and server of its rows.
        """
        if self._rings is not None:
            left, told = self._rings.stop(), self._rings.notes
        else:
            left, told = take_left_rings(self._folder)
        files = taken_files(self._folder)
        if not files:
            return left, told
        losses, notes = spills.write_recorded(files, labels, from_ns)
        return left + losses, told + notes

    def close(self, keeps_files: bool) -> None:
        """`keeps_files`: the rings stay for `squall resume`."""
        if self._rings is not None:
            self._rings.stop()
        if not keeps_files:
            remove_rings(self._folder, "batches")
