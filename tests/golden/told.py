"""An object for processes of a test's own."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np

from squall.cluster.placement import Node
from squall.scenarios.errors import TargetError

HERE = Node("node-0", "", "127.0.0.1", 0, True)
"""Without an id of Ray's: started from here."""


class Told:
    """What a test tells it is done in its process. The process imports this module."""

    def __init__(self, folder: str, refusal: str = "") -> None:
        if refusal:
            raise TargetError(refusal)
        self._folder = Path(folder)
        self._go = threading.Event()

    def add(self, values: np.ndarray[Any, np.dtype[np.int64]]) -> tuple[int, bool]:
        return int(values.sum()), values.flags.writeable

    def refuse(self, ours: bool) -> None:
        raise TargetError("not there") if ours else KeyError("not ours")

    def wait(self) -> str:
        self._go.wait(30.0)
        return "waited"

    def go(self) -> None:
        self._go.set()

    def abandoned(self) -> None:
        (self._folder / "abandoned").touch()
