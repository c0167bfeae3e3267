"""As much of the Python API of TensorRT as `squall.models.plan_export` calls: the order of its calls, and its refusals.

What it accepts is that of TensorRT-RTX 1.7, which `tests/integration/test_export.py` builds with where it is installed.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any


class _Logger:
    Severity = SimpleNamespace(INTERNAL_ERROR=0, ERROR=1, WARNING=2)


_ANSWERS = {
    "parse_from_file": True, "add_optimization_profile": 0, "set_timing_cache": True,
    "build_serialized_network": memoryview(b"plan"), "serialize": b"times",
}  # fmt: skip
_REFUSALS = {"parse_from_file": False, "add_optimization_profile": -1, "set_timing_cache": False}


class FakeTensorRT:
    """The module, and whatever its calls make. `calls`: in their order; `refuses`: a call that answers as TensorRT does
    when it fails; `says`: what its log then has."""

    ILogger = _Logger
    NetworkDefinitionCreationFlag = SimpleNamespace(STRONGLY_TYPED=1)
    BuilderFlag = SimpleNamespace(TF32="TF32")  # 11 has no FP16
    MemoryPoolType = SimpleNamespace(WORKSPACE="WORKSPACE")
    num_errors = 1

    def __init__(self, version: str = "11.4.0", refuses: str = "", says: str = "") -> None:
        self.__version__ = version
        self.calls: list[tuple[Any, ...]] = []
        self._refuses, self._says = refuses, says

    def __getattr__(self, name: str) -> Any:
        return partial(self._called, name)

    def Builder(self, log: Any) -> Any:
        self.log = log
        if self._called("Builder") is None:
            raise TypeError("factory function returned nullptr")
        return self

    def desc(self) -> str:
        return self._says

    def _called(self, name: str, *given: Any) -> Any:
        self.calls.append((name, *(one for one in given if isinstance(one, str | int | bytes | tuple))))
        if name != self._refuses:
            return _ANSWERS.get(name, self)
        for severity, text in ((2, "only a warning"), (1, self._says), (2, "another warning")):
            self.log.log(severity, text)
        return _REFUSALS.get(name)
