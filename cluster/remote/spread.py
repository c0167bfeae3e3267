"""Slices of an analysis as Ray tasks, on every node that sees the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from socket import gethostname
from typing import Any

from squall.analysis.storage.manifest_file import MANIFEST
from squall.analysis.storage.object_folder import Access, ObjectFolder, access_here, place_at, take_access
from squall.analysis.storage.part import error_reason
from squall.analysis.storage.query import Answer, Partition
from squall.scenarios.errors import ClusterError, SquallError

_END_TIMEOUT_S = 30.0


class TaskSpread:
    """A `Spread` (squall.analysis.storage.query) over the Ray that this process has joined: a task and a CPU for each
    partition.

    The run lies in object storage, which each task reads and writes as this process may, or it must be one folder under
    one absolute path for every node that takes a task, such as on a disk that they share. Each task holds as much
    memory as its partition says, so that a node holds that once per CPU.
    """

    def __init__(self, where: str) -> None:
        """`where`: folder or address of the run."""
        self._run = place_at(where) or Path(where)
        self._access = access_here() if isinstance(self._run, ObjectFolder) else None

    def __call__(
        self, function: Callable[[Partition], Answer], partitions: Sequence[Partition], /
    ) -> list[Answer]:
        """The answers, in the order of `partitions`. Raises the SquallError of a task that raised one, ClusterError for
        one that failed otherwise or died; before that, those that run have ended.

        No more tasks are handed in than there are CPUs: nothing has to be cancelled, which Ray 2.60 may abort at.
        """
        import ray

        task = ray.remote(_do).options(num_cpus=1, max_retries=0)
        begun: list[Any] = []
        try:
            n_at_once = max(1, int(ray.cluster_resources().get("CPU", 1)))
            for number, partition in enumerate(partitions):
                if number >= n_at_once:
                    ended, _ = ray.wait(begun, num_returns=number - n_at_once + 1)
                    ray.get(ended)
                begun.append(task.remote(function, partition, self._run, self._access))
            return list(ray.get(begun))
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, SquallError):
                raise cause from None
            raise ClusterError(f"a task of the analysis failed: {type(cause).__name__}: {cause}") from error
        except ray.exceptions.RayError as error:
            words = str(error).strip().splitlines() or [type(error).__name__]
            raise ClusterError(f"a task of the analysis died: {words[0]}") from error
        finally:
            _wait(begun)


def _do(
    function: Callable[[Partition], Answer],
    partition: Partition,
    run: Path | ObjectFolder,
    access: Access | None,
) -> Answer:
    """`function(partition)`, on whatever node it comes to."""
    if isinstance(run, Path):
        if not (run / "tables").is_dir():
            raise ClusterError(
                f"a node of Ray does not see {run}: put the run directory on a disk that all nodes have under "
                "this path, or analyze without --ray"
            )
        return function(partition)
    assert access is not None
    take_access(access)  # an argument alone: what Ray knows of an environment it shows and logs
    try:
        run.open(MANIFEST).close()
    except OSError as error:
        raise ClusterError(
            f"a node of Ray ({gethostname()}) cannot read {run}: {error_reason(error)}"
        ) from error
    return function(partition)


def _wait(begun: list[Any]) -> None:
    """Waits until none of the tasks runs any more."""
    import ray

    try:
        ray.wait(begun, num_returns=len(begun), timeout=_END_TIMEOUT_S) if begun else None
    except ray.exceptions.RayError:
        return  # Ray itself is gone, and its tasks with it
