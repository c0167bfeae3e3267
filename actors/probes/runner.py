"""Starts the probe's process, waits for it, and reads what it left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from squall.actors.probes.trace import names_of_host, scrubbed_text
from squall.actors.process.own_python import own_command, own_environment
from squall.scenarios.errors import TargetError
from squall.scenarios.published.probe import OperatorProbe, PipelineProbe

_MODULE = "squall.actors.probes.process"
_LOG = "probe.log"
_POLL_S = 0.25
_WITHIN_S = 1_800.0
"""A probe of the published sizes takes one to three minutes, most of it in a compiler."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Probed:
    """What a probe left: `facts` beside the rows, None where it was broken off; instants are of the monotonic clock."""

    facts: Mapping[str, Any] | None
    rows: tuple[Row, ...]
    traces: tuple[Path, ...]
    log: str
    """Without names of the host and its user."""


def run_probe(
    config: OperatorProbe | PipelineProbe, folder: Path, seed: int, tick: Callable[[], None] = lambda: None
) -> None:
    """Measures in a process of its own, which leaves its files in `folder`; `tick` is called 4 times a second.

    Raises TargetError, in one line, where it cannot run here or died. Whatever is raised, the process has ended.
    """
    with (folder / _LOG).open("wb") as log:
        asked = {"config": _told(config), "seed": seed, "owner": os.getpid()}
        (folder / "config.json").write_text(json.dumps(asked), encoding="utf-8")
        process = subprocess.Popen(
            own_command(_MODULE, str(folder)),
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=_environment(folder),
        )  # fmt: skip
        try:
            code, last_s = None, time.monotonic() + _WITHIN_S
            while code is None:
                if time.monotonic() > last_s:
                    raise TargetError(
                        f"the probe's process was not done after {_WITHIN_S / 60:.0f} minutes, and was ended"
                    )
                tick()
                with suppress(subprocess.TimeoutExpired):
                    code = process.wait(_POLL_S)
        finally:
            with suppress(ProcessLookupError):  # with the compilers that it may have started
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    facts = _answer(folder)
    if facts is not None and "error" in facts:
        raise TargetError(str(facts["error"]))
    if facts is None:
        ended = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        raise TargetError(
            f"the probe's process ended {ended} before it had measured; its log has what it said"
        )


def probed(folder: Path) -> Probed:
    """What lies in `folder` behind `run_probe`, whole or broken off."""
    facts = _answer(folder)
    log = folder / _LOG
    said = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return Probed(
        facts=None if facts is None or "error" in facts else facts,
        rows=tuple(_rows(folder)),
        traces=tuple(sorted((folder / "trace").glob("*.json.gz"))),
        log=scrubbed_text(said, [str(folder), *names_of_host()]),
    )


def _told(config: OperatorProbe | PipelineProbe) -> dict[str, Any]:
    """As the process reads it, which knows none of our names."""
    found = config.model_dump(mode="json")
    if isinstance(config, PipelineProbe):
        found["variants"] = [{**one.model_dump(mode="json"), "name": one.name} for one in config.variants]
    return found


def _environment(folder: Path) -> dict[str, str]:
    """Compilers keep what they make in `folder`, and start no processes that outlive the probe."""
    return own_environment() | {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }


def _answer(folder: Path) -> dict[str, Any] | None:
    path = folder / "answer.json"
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _rows(folder: Path) -> list[Row]:
    """Up to a line that was cut off."""
    path = folder / "rows.jsonl"
    found: list[Row] = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                break
    return found
