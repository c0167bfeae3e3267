"""squall: replays bursty traffic against NVIDIA Triton and joins every latency with the batch that served it.

    run = squall.run("my.yaml")             # as the command `squall run`
    run = squall.open_run("runs/my-…")      # a run that is there
    run.verdict, run.summary, run.table("joined"), run.duckdb()

    from squall import TritonUser           # in a locustfile

docs/api.md shows it. Names are imported when they are first used, so that `import squall` costs nothing. The folders
beside this file are its packages: `squall.scenarios` stands in `scenarios/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from squall.actors.triton_user.grpc_user import TritonGrpcUser
    from squall.actors.triton_user.http_user import TritonUser
    from squall.analysis.run import Run, open_run
    from squall.cluster.api import run
    from squall.scenarios.config.scenario import Scenario
    from squall.scenarios.errors import (
        AnalysisError,
        ClusterError,
        MissingTable,
        ScenarioError,
        SquallError,
        StoreError,
        TargetError,
    )

    __version__: str

__all__ = [
    "AnalysisError",
    "ClusterError",
    "MissingTable",
    "Run",
    "Scenario",
    "ScenarioError",
    "SquallError",
    "StoreError",
    "TargetError",
    "TritonGrpcUser",
    "TritonUser",
    "__version__",
    "open_run",
    "run",
]

_ERRORS = "squall.scenarios.errors"
_MODULES = {
    "Run": "squall.analysis.run",
    "open_run": "squall.analysis.run",
    "run": "squall.cluster.api",
    "Scenario": "squall.scenarios.config.scenario",
    "TritonUser": "squall.actors.triton_user.http_user",
    "TritonGrpcUser": "squall.actors.triton_user.grpc_user",
    "SquallError": _ERRORS,
    "ScenarioError": _ERRORS,
    "TargetError": _ERRORS,
    "ClusterError": _ERRORS,
    "StoreError": _ERRORS,
    "AnalysisError": _ERRORS,
    "MissingTable": _ERRORS,
}
"""Where each public name is made."""


if not TYPE_CHECKING:  # a type checker would take any name for one of ours

    def __getattr__(name: str) -> object:
        if name == "__version__":
            from importlib.metadata import version

            found: object = version("squall")
        elif name in _MODULES:
            from importlib import import_module

            found = getattr(import_module(_MODULES[name]), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
