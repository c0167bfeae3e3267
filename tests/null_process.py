"""The null Triton as a process of its own, for tests and benches that load it."""

from __future__ import annotations

from typing import Self

from squall.cluster.commands.local_workers import Child
from squall.models.spec import ModelSpec, head_spec
from squall.scenarios.errors import ClusterError

_TIMEOUT_S = 20.0
_WIDTH, _CLASSES, _MAX_BATCH_SIZE = 4, 2, 32


def null_spec(width: int = _WIDTH, classes: int = _CLASSES) -> ModelSpec:
    """What the null Triton serves; give it the same sizes, `--width` and `--classes`, where they are not these."""
    return head_spec("linear_head", "1", {"width": width, "classes": classes}, _MAX_BATCH_SIZE)


class NullProcess:
    """Use as a context manager: it is ready inside, and has ended after. Can be killed and started again."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self._child: Child | None = None
        self.ports: dict[str, int] = {}
        """Of `http` and `grpc`; a start after the first takes the same ones."""
        self.pid = 0
        """Of the server that was started last."""

    def start(self) -> None:
        """Returns when it is ready."""
        assert self._child is None
        ports = [f"--{protocol}-port={port}" for protocol, port in self.ports.items()]
        self._child = Child("squall.actors.null.triton", f"--width={_WIDTH}", *ports, *self._arguments)
        try:
            ready = self._child.hear(_TIMEOUT_S)
        except ClusterError:
            self.kill()
            raise
        self.pid = ready["pid"]
        self.ports = {protocol: ready[f"{protocol}_port"] for protocol in ("http", "grpc")}

    def kill(self) -> None:
        """SIGKILL: its connections end as those of a server that crashed."""
        if self._child is not None:
            self._child.kill()
        self._end()

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
