"""What of a command line squall cannot honour: refused where the answer would be another one, else told."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from squall.cluster.commands.perf.asked import Asked
from squall.cluster.commands.perf.flags import FLAGS, Flag, Typed
from squall.cluster.commands.perf.served import Served
from squall.cluster.driver.payload_packing import GivenRequests
from squall.models.made import make_inputs
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError
from squall.scenarios.plan.plan import kind_code

_SEQUENCE_FLAGS = tuple(
    flag.name
    for flag in FLAGS
    if flag.name.startswith("sequence-") or flag.name in ("num-of-sequences", "serial-sequences")
)
_ONLY = {
    "service-kind": (("triton",), "squall loads Triton over HTTP and gRPC"),
    "grpc-compression-algorithm": (("none", "gzip"), "squall compresses with gzip"),
}
"""The values that squall honours, and why."""
_FORMATS = ("input-tensor-format", "output-tensor-format")


def metrics_port(url: str) -> int | None:
    """Of --metrics-url; None where it names none."""
    found = re.search(r":(\d+)(?:/|$)", url.split("//")[-1])
    return None if found is None else int(found[1])


def refuse(typed: Typed) -> None:
    """Raises ScenarioError that names every flag without which the answer would be another one."""
    refused = [(flag, _why(flag, typed)) for flag in FLAGS if flag.name in typed]
    lines = [f"{flag.shown.partition(',')[0].split()[0]} ({why})" for flag, why in refused if why]
    if lines:
        raise ScenarioError(f"perf: cannot be honoured: {'; '.join(lines)}")


def _why(flag: Flag, typed: Typed) -> str | None:
    value = typed[flag.name][-1]
    if flag.name in _ONLY:
        only, why = _ONLY[flag.name]
        return None if value.lower() in only else f"{value}: {why}"
    if flag.name == "shared-memory":
        return "cuda: squall shares the memory of the host: system" if value.lower() == "cuda" else None
    if flag.name in _FORMATS:
        both = {typed.get(name, ["binary"])[-1].lower() for name in _FORMATS}
        is_grpc = typed.get("i", [""])[-1].lower() == "grpc"
        return None if len(both) == 1 or is_grpc else "tensors of requests and replies are json, or none is"
    if flag.name in ("input-data", "data-directory"):
        paths = [one for name in ("input-data", "data-directory") if name in typed for one in typed[name]]
        is_one = len([path for path in paths if path not in ("zero", "random")]) <= 1
        return None if is_one else "squall reads one file or folder"
    return flag.why if flag.kept == "refused" else None


def refuse_payload(asked: Asked, scenario: Scenario, served: Served) -> None:
    """Makes one payload, or reads the first of the data. Raises ScenarioError where the model does not take it."""
    (one,) = scenario.models
    if one.clients.data is None:
        shapes, inputs = one.model.shapes, one.clients.inputs
        make_inputs(served.spec, asked.batch_size, 0, one.seed, shapes, inputs)
        return
    first = np.array([kind_code(asked.batch_size, 0)], np.int64)
    for _ in GivenRequests(one, first, served.spec).read():
        pass


def refuse_model(typed: Typed, asked: Asked, served: Served) -> None:
    """Raises ScenarioError for a model that squall does not load as perf_analyzer does."""
    why = _why_not_sequences(typed, asked) if served.spec.is_stateful else None
    if why is not None:
        raise ScenarioError(f"perf: cannot be honoured: model {served.spec.name} keeps sequences, and {why}")
    if served.spec.is_decoupled and not asked.is_streaming:
        raise ScenarioError(
            f"perf: model {served.spec.name} is decoupled, and needs --streaming and -i grpc, as in perf_analyzer"
        )
    if asked.is_streaming and asked.shares_memory:
        raise ScenarioError(
            "perf: cannot be honoured: --shared-memory with --streaming: responses come one by one, and an output has"
            " one place"
        )
    if asked.is_streaming and asked.is_validated:
        raise ScenarioError(
            "perf: cannot be honoured: --streaming with validation_data: squall compares no responses that come one by"
            " one"
        )


def asked_of_model(typed: Typed, asked: Asked, served: Served) -> Asked:
    """As perf_analyzer takes it for that model: with sequences it is asynchronous unless --sync says otherwise."""
    return replace(asked, is_async=True) if served.spec.is_stateful and "sync" not in typed else asked


def _why_not_sequences(typed: Typed, asked: Asked) -> str | None:
    """What of the command line is not to be had of a stateful model."""
    if asked.batch_size > 1:
        return "a request of these has one row: -b 1"
    if "sequence-id-range" in typed:
        return "squall chooses the ids of sequences itself, of each run others: leave --sequence-id-range out"
    if "serial-sequences" in typed and asked.mode != "concurrency":
        return "a schedule waits for no reply: --serial-sequences is for --concurrency-range"
    if any(Path(one).is_file() for one in asked.input_data):
        return "entries of a file (--input-data) are not played as sequences"
    return None


def notes(typed: Typed, asked: Asked, served: Served) -> list[str]:
    """What is told: flags that change nothing here, and what differs for this command line."""
    told = [
        f"{flag.shown.partition(',')[0].split()[0]}: changes nothing: {flag.why}"
        for flag in FLAGS
        if flag.kept == "told" and flag.name in typed and _is_worth_telling(flag.name, typed)
    ]
    if not served.spec.is_stateful:
        told += [
            f"--{name}: changes nothing: the model keeps no sequences"
            for name in _SEQUENCE_FLAGS
            if name in typed
        ]
    elif asked.mode == "concurrency" and "num-of-sequences" in typed:
        told.append(
            "--num-of-sequences: changes nothing: each user has one sequence at a time, as in perf_analyzer"
        )
    if asked.protocol == "grpc" and any(typed.get(name, [""])[-1].lower() == "json" for name in _FORMATS):
        told.append("json tensors: change nothing with -i grpc, as in perf_analyzer")
    if asked.protocol == "grpc" and asked.headers:
        told.append("-H: sent as metadata of each call too, which perf_analyzer leaves out with -i grpc")
    if asked.protocol == "grpc" and asked.http_url is None:
        told.append(
            f"model and statistics are asked over HTTP at {served.url} (--http-url says another place)"
        )
    if asked.metrics_url is not None and metrics_port(asked.metrics_url) is None:
        told.append(f"--metrics-url: {asked.metrics_url} has no port: Triton's metrics are not read")
    if served.has_cache:
        told.append(
            "the model asks for the response cache: where the server has one, squall counts its hits and has no times"
            " of them, so the CSV has no columns of it"
        )
    booleans = [tensor.name for tensor in served.spec.inputs if tensor.datatype == "BOOL"]
    if asked.input_data == ("zero",) and booleans:
        told.append(
            f"--input-data=zero: {', '.join(booleans)} of datatype BOOL is drawn: squall states no range of booleans"
        )
    return told


def _is_worth_telling(name: str, typed: Typed) -> bool:
    return not (name == "trace-level" and set(typed[name]) == {"OFF"})
