"""Both libraries inside a node's server: what its start needs for them, and their end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from squall.cluster.node.injected.batch_recording import BatchRecording
from squall.cluster.node.injected.kernel_recording import KernelRecording


class LibrariesInside:
    """`folder`: the server's own."""

    def __init__(self, folder: Path) -> None:
        self.batches = BatchRecording(folder)
        self.kernels = KernelRecording(folder)

    def begin(self, with_batches: bool, kernel_kinds: Sequence[str]) -> dict[str, str]:
        """What to add to the environment of a server that is to be started; empty kinds: no kernels.

        Raises ClusterError where the rings have no folder or a library is not there.
        """
        environment = self.batches.begin() if with_batches else {}
        return environment | (self.kernels.begin(kernel_kinds) if kernel_kinds else {})

    def close(self, keeps_files: bool) -> None:
        """`keeps_files`: the rings stay for `squall resume`."""
        self.batches.close(keeps_files)
        self.kernels.close(keeps_files)
