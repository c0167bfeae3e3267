"""As much of the Python API of TensorRT as `squall.models.plan_export` calls: the order of its calls, and its refusals.

What it accepts is that of TensorRT-RTX 1.7, which `tests/integration/test_export.py` builds with where it is installed.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class FakeTensorRT:
    """The module. `calls`: in their order; `refuses`: a call that answers as TensorRT does when it fails; `says`: what
    its log then has."""

    def __init__(self, version: str = "11.4.0", refuses: str = "", says: str = "") -> None:
        self.__version__ = version
        self.calls: list[tuple[Any, ...]] = []
        self._refuses, self._says = refuses, says
        severity = SimpleNamespace(INTERNAL_ERROR=0, ERROR=1, WARNING=2)

        class Logger:
            Severity = severity

        self.ILogger = Logger
        self.NetworkDefinitionCreationFlag = SimpleNamespace(STRONGLY_TYPED=1)
        self.BuilderFlag = SimpleNamespace(TF32="TF32")  # 11 has no FP16
        self.MemoryPoolType = SimpleNamespace(WORKSPACE="WORKSPACE")

    def does(self, *call: Any, result: Any, failed: Any = None) -> Any:
        """Notes the call; `failed` where it is to be refused."""
        self.calls.append(call)
        if call[0] != self._refuses:
            return result
        self.log.log(self.ILogger.Severity.WARNING, "only a warning")
        self.log.log(self.ILogger.Severity.ERROR, self._says)
        self.log.log(self.ILogger.Severity.WARNING, "another warning")
        if isinstance(failed, Exception):
            raise failed
        return failed

    def Builder(self, log: Any) -> Any:
        self.log = log
        config = SimpleNamespace(
            clear_flag=lambda flag: self.does("clear_flag", flag, result=None),
            set_memory_pool_limit=lambda pool, n: self.does("set_memory_pool_limit", pool, n, result=None),
            add_optimization_profile=lambda _: self.does("add_optimization_profile", result=0, failed=-1),
            create_timing_cache=lambda held: self.does(
                "create_timing_cache", held, result=f"cache of {held!r}"
            ),
            set_timing_cache=lambda cache, ignore: self.does(
                "set_timing_cache", cache, ignore, result=True, failed=False
            ),
            get_timing_cache=lambda: SimpleNamespace(serialize=lambda: b"times"),
        )
        profile = SimpleNamespace(
            set_shape=lambda name, *dims: self.does("set_shape", name, *dims, result=None)
        )
        builder = SimpleNamespace(
            create_network=lambda flags: self.does("create_network", flags, result="network"),
            create_builder_config=lambda: self.does("create_builder_config", result=config),
            create_optimization_profile=lambda: profile,
            build_serialized_network=lambda *_: self.does(
                "build_serialized_network", result=memoryview(b"plan")
            ),
        )
        return self.does("Builder", result=builder, failed=TypeError("factory function returned nullptr"))

    def OnnxParser(self, network: str, log: Any) -> Any:  # noqa: ARG002 (as TensorRT's)
        return SimpleNamespace(
            parse_from_file=lambda path: self.does("parse_from_file", path, result=True, failed=False),
            num_errors=1,
            get_error=lambda _: SimpleNamespace(desc=lambda: self._says),
        )
