"""A Ray session: one that is joined, or one that is started here and ends with us."""

from __future__ import annotations

import os
import shutil
import tempfile
from types import TracebackType
from typing import Self

from cluster.placement import Node
from scenarios.errors import ClusterError

_OBJECT_STORE_BYTES = 256 * 1024**2
"""Enough for plans and chunks of spill files; Ray would take a third of the memory."""
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_DEDUP_LOGS": "0"}


class Session:
    """Context manager. `address` None starts a local Ray with its files in a folder that is removed at the end.

    Raises ClusterError where Ray cannot be joined or started.
    """

    def __init__(self, address: str | None) -> None:
        self._address = address
        self._folder: str | None = None

    def __enter__(self) -> Self:
        os.environ.update(_QUIET)
        import ray

        options = {"logging_level": "ERROR", "log_to_driver": False, "configure_logging": True}
        try:
            if self._address is None:
                self._folder = tempfile.mkdtemp(prefix="squall-")
                ray.init(
                    address="local", include_dashboard=False, object_store_memory=_OBJECT_STORE_BYTES,
                    _temp_dir=os.path.join(self._folder, "ray"), **options,
                )  # fmt: skip
            else:
                ray.init(address=self._address, **options)
        except (
            Exception
        ) as error:  # Ray raises plain RuntimeError, ConnectionError, ValueError and its own here
            self.__exit__(None, None, None)
            words = str(error).strip().splitlines() or [type(error).__name__]
            where = "start a local Ray" if self._address is None else f"join Ray at {self._address}"
            raise ClusterError(f"cannot {where}: {words[0]}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import ray

        ray.shutdown()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def nodes(self) -> list[Node]:
        """The nodes alive, the driver's first, labelled node-0, node-1, … in that order."""
        import ray

        own = ray.get_runtime_context().get_node_id()
        alive = sorted(
            (item for item in ray.nodes() if item["Alive"]),
            key=lambda item: (item["NodeID"] != own, item["NodeManagerAddress"], item["NodeID"]),
        )
        return [
            Node(
                f"node-{index}", item["NodeID"], item["NodeManagerAddress"], int(item["Resources"].get("GPU", 0)),
                item["NodeID"] == own,
            )
            for index, item in enumerate(alive)
        ]  # fmt: skip
