"""Slices of an analysis as Ray tasks, on every node that sees the run directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from analysis.query import Answer, Partition
from analysis.store import MANIFEST
from scenarios.errors import ClusterError, SquallError

_END_TIMEOUT_S = 30.0


class TaskSpread:
    """A `Spread` (analysis.query) over the Ray that this process has joined: a task and a CPU for each partition.

    The run directory must be one folder under one absolute path for every node that takes a task, such as on a disk
    that they share. Each task holds as much memory as its partition says, so that a node holds that once per CPU.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    def __call__(
        self, function: Callable[[Partition], Answer], partitions: Sequence[Partition], /
    ) -> list[Answer]:
        """The answers, in the order of `partitions`. Raises the SquallError of a task that raised one, ClusterError for
        one that failed otherwise or died; before that, all others are ended."""
        import ray

        task = ray.remote(_do).options(num_cpus=1, max_retries=0)
        running: list[Any] = []
        try:
            running.extend(task.remote(function, partition, self._run_dir) for partition in partitions)
            return list(ray.get(running))
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, SquallError):
                raise cause from None
            raise ClusterError(f"a task of the analysis failed: {type(cause).__name__}: {cause}") from error
        except ray.exceptions.RayError as error:
            words = str(error).strip().splitlines() or [type(error).__name__]
            raise ClusterError(f"a task of the analysis died: {words[0]}") from error
        finally:
            _end(running)


def _do(function: Callable[[Partition], Answer], partition: Partition, run_dir: Path) -> Answer:
    """`function(partition)`, on whatever node it comes to."""
    if not (run_dir / MANIFEST).is_file():
        raise ClusterError(
            f"a node of Ray does not see {run_dir}: put the run directory on a disk that all nodes have under "
            "this path, or analyze without --ray"
        )
    return function(partition)


def _end(running: list[Any]) -> None:
    """Waits until none of the tasks runs any more; those that have not begun are cancelled."""
    import ray

    try:
        for reference in running:
            ray.cancel(reference, recursive=False)
        ray.wait(running, num_returns=len(running), timeout=_END_TIMEOUT_S) if running else None
    except ray.exceptions.RayError:
        return  # Ray itself is gone, and its tasks with it
