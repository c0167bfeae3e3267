"""The null Triton as a process of its own, for tests and benches that load it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Self

from models.spec import ModelSpec, head_spec

_TIMEOUT_S = 20.0
_WIDTH, _CLASSES, _MAX_BATCH_SIZE = 4, 2, 32


def null_spec(width: int = _WIDTH, classes: int = _CLASSES) -> ModelSpec:
    """What the null Triton serves; give it the same sizes, `--width` and `--classes`, where they are not these."""
    return head_spec("linear_head", "1", {"width": width, "classes": classes}, _MAX_BATCH_SIZE)


class NullProcess:
    """Use as a context manager: it is ready inside, and has ended after. Can be killed and started again."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self._process: subprocess.Popen[str] | None = None
        self.ports: dict[str, int] = {}
        """Of `http` and `grpc`; a start after the first takes the same ones."""

    def start(self) -> None:
        """Returns when it is ready."""
        assert self._process is None
        ports = [f"--{protocol}-port={port}" for protocol, port in self.ports.items()]
        command = [sys.executable, "-m", "actors.null_triton", f"--width={_WIDTH}", *ports, *self._arguments]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.kill()
            raise RuntimeError("the null server did not start")
        ready = json.loads(line)
        self.ports = {protocol: ready[f"{protocol}_port"] for protocol in ("http", "grpc")}

    def kill(self) -> None:
        """SIGKILL: its connections end as those of a server that crashed."""
        self._end(is_killed=True)

    def _end(self, is_killed: bool) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        if is_killed:
            process.kill()
        process.stdin.close()
        try:
            process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end(is_killed=False)
