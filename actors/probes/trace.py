"""Chrome traces of torch.profiler: the calls in them, and what of them may leave the host. Standard library alone.

squall_call  ├───────────────────────────┤        user_annotation: one call
cpu_op         ├─ aten::matmul ─┤├ aten::add ┤    ops of its thread; those within others are left out
cuda_runtime          ├ launch ┤      ├ launch ┤   bears the correlation of its kernel
kernel                      ├─ gemm ─┤   ├ add ┤
"""

from __future__ import annotations

import gzip
import json
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CALL = "squall_call"
"""Name of the range around each call."""
_RANGE = "user_annotation"
_OPERATOR = "cpu_op"
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_KEPT_KEYS = ("schemaVersion", "deviceProperties", "displayTimeUnit", "baseTimeNanoseconds", "traceEvents")
_NS_PER_US = 1_000
_LEAST_NAME = 4  # shorter names of hosts and users are in other words
Event = Mapping[str, Any]


@dataclass(frozen=True)
class TracedCall:
    """`op_cpu_ns`: in operators, on the host; `kernel_ns`: sum over what it launched, None where that is not known."""

    op_cpu_ns: int
    kernel_ns: int | None
    n_kernels: int


def traced_calls(document: Mapping[str, Any]) -> list[TracedCall]:
    """The calls of a trace in order of time."""
    events = [one for one in document["traceEvents"] if one.get("ph") == "X"]
    calls = sorted(
        (one for one in events if one.get("cat") == _RANGE and one["name"] == CALL), key=lambda one: one["ts"]
    )
    launches = sorted((one for one in events if one.get("cat") in _LAUNCHES), key=lambda one: one["ts"])
    operators = sorted((one for one in events if one.get("cat") == _OPERATOR), key=lambda one: one["ts"])
    on_device: dict[int, list[Event]] = {}
    for one in events:
        if one.get("cat") in _ON_DEVICE:
            on_device.setdefault(_correlation(one), []).append(one)
    found = []
    for call in calls:
        numbers = {_correlation(one) for one in _within(call, launches)} - {0}  # whatever thread CUPTI names
        kernels = [one for number in sorted(numbers) for one in on_device.get(number, ())]
        own = [one for one in _within(call, operators) if one["tid"] == call["tid"]]
        spent_us = sum(one["dur"] for one in _outermost(own))
        kernel_ns = round(sum(one["dur"] for one in kernels) * _NS_PER_US) if kernels else None
        found.append(TracedCall(round(spent_us * _NS_PER_US), kernel_ns, len(kernels)))
    return found


def _correlation(event: Event) -> int:
    return int(event.get("args", {}).get("correlation", 0))


def _within(call: Event, events: Iterable[Event]) -> list[Event]:
    end = call["ts"] + call["dur"]
    return [one for one in events if call["ts"] <= one["ts"] < end]


def _outermost(events: Sequence[Event]) -> list[Event]:
    """Of events in order of their begin, those that begin in no other."""
    found: list[Event] = []
    for one in events:
        if not found or one["ts"] >= found[-1]["ts"] + found[-1]["dur"]:
            found.append(one)
    return found


def names_of_host() -> list[str]:
    """What must not leave it: its name, its user's, the home folder, and the values of variables that look secret."""
    words = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "KEY", "CREDENTIAL")
    secret = [value for name, value in os.environ.items() if any(word in name.upper() for word in words)]
    users = [os.environ.get(name, "") for name in ("USER", "LOGNAME")]
    found = [*secret, str(Path.home()), socket.gethostname(), *users]
    return sorted({one for one in found if len(one) >= _LEAST_NAME and one != "root"}, key=len, reverse=True)


def scrubbed_text(text: str, names: Iterable[str]) -> str:
    """`text` without any of `names`."""
    for name in names:
        text = text.replace(name, "***")
    return text


def scrubbed(document: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """A trace without what is not of the calls: its own path, the environment, names of host and user."""
    kept = {key: document[key] for key in _KEPT_KEYS if key in document}
    found: dict[str, Any] = _clean(kept, names)
    return found


def _clean(value: Any, names: Sequence[str]) -> Any:
    match value:
        case str():
            return scrubbed_text(value, names)
        case dict():
            return {key: _clean(one, names) for key, one in value.items()}
        case list():
            return [_clean(one, names) for one in value]
        case _:
            return value


def write_trace(document: Mapping[str, Any], path: Path) -> None:
    """As `.json.gz`, which Perfetto and chrome://tracing open."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps(document).encode(), mtime=0))
