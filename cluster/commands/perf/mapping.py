"""The scenario of a level: what is asked for, as a scenario file says it."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from squall.cluster.commands.perf.asked import Asked
from squall.cluster.commands.perf.honoured import metrics_port
from squall.cluster.commands.perf.served import Place, Served
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.models import ModelConfig
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.fields import slug
from squall.scenarios.records import Frozen
from squall.scenarios.units import NS_PER_S, format_duration, format_rate

MEASURED = "measure"
"""The measured phase."""
DEFAULT_BATCH = int(ModelConfig.model_fields["max_batch_size"].default)
_WORKERS = 2
_LONGEST_WAIT_NS = 30 * NS_PER_S
_GRPC_CONNECTIONS = 16


class Load(Frozen):
    """A level and how long it is loaded. `level`: users, or requests per second; None of request intervals."""

    level: Fraction | None
    warmup_ns: int
    measured_ns: int


def scenario_of(asked: Asked, place: Place, served: Served, load: Load) -> Scenario:
    """Raises ScenarioError for what no scenario can say."""
    return scenario_from_mapping(mapping_of(asked, place, served, load), "perf")


def mapping_of(asked: Asked, place: Place, served: Served, load: Load) -> dict[str, Any]:
    """What a scenario file of the level holds: keys that differ from their defaults."""
    wait = format_duration(max(_LONGEST_WAIT_NS, 2 * asked.window_ns))
    arrivals = _arrivals(asked, load)
    phases = [
        {
            "name": "warmup",
            "kind": "warmup",
            "duration": format_duration(load.warmup_ns),
            "arrivals": arrivals,
        },
        {
            "name": MEASURED,
            "kind": "measure",
            "duration": format_duration(load.measured_ns),
            "arrivals": arrivals,
        },
        {"name": "drain", "kind": "drain", "duration": wait},
    ]
    return {
        "name": f"perf-{slug(asked.model)}",
        "seed": asked.seed,
        "model": _model(asked),
        "server": _server(asked, place),
        "clients": _clients(asked, place, served, load, wait),
        "phases": phases if load.warmup_ns else phases[1:],
        "profile": _profile(asked),
    }


def _arrivals(asked: Asked, load: Load) -> dict[str, Any]:
    if asked.intervals is not None:
        return asked.intervals.arrivals
    assert load.level is not None
    if asked.mode == "concurrency":
        return {"kind": "closed", "users": int(load.level)}
    return {"kind": "poisson" if asked.is_poisson else "constant", "rate": format_rate(float(load.level))}


def _model(asked: Asked) -> dict[str, Any]:
    found: dict[str, Any] = {"name": asked.model}
    if asked.version is not None:
        found["version"] = asked.version
    if asked.shapes:
        found["shapes"] = {name: list(dims) for name, dims in asked.shapes.items()}
    if asked.batch_size > DEFAULT_BATCH:
        found["max_batch_size"] = asked.batch_size
    return found


def _server(asked: Asked, place: Place) -> dict[str, Any]:
    found: dict[str, Any] = {"url": place.url}
    if place.grpc_port is not None:
        found["grpc_port"] = place.grpc_port
    port = None if asked.metrics_url is None else metrics_port(asked.metrics_url)
    if port is not None:
        found["metrics_port"] = port
    return found


def _clients(asked: Asked, place: Place, served: Served, load: Load, wait: str) -> dict[str, Any]:
    users = int(load.level) if asked.mode == "concurrency" and load.level is not None else None
    workers = _workers(asked, served, users)
    found: dict[str, Any] = {
        "workers_per_node": workers,
        "protocol": asked.protocol,
        "timeout": wait,
        "rows": {"kind": "constant", "value": asked.batch_size},
    }
    if users is not None:
        of_each = -(-users // workers)
        found["connections"] = of_each if asked.protocol == "http" else min(of_each, _GRPC_CONNECTIONS)
    if asked.headers:
        found["headers"] = asked.headers
    if asked.tls.is_wanted or place.url.startswith("https:"):
        found["tls"] = asked.tls.section
    if asked.shares_memory:
        found["shared_memory"] = True
    if asked.is_streaming:
        found["stream"] = True
    request = asked.parameters.section | ({"binary": False} if asked.is_json else {})
    request |= {"compression": "gzip"} if asked.is_gzip else {}
    if request:
        found["request"] = request
    if served.spec.is_stateful:
        of_schedule = {"concurrent": asked.n_sequences} if users is None else {}
        found["sequences"] = {"length": asked.lengths.law, **of_schedule}
    return found | _inputs(asked, served)


def _workers(asked: Asked, served: Served, users: int | None) -> int:
    """Each has a user, or of a stateful model's schedule a sequence, at least."""
    if users is not None:
        return min(_WORKERS, users)
    return min(_WORKERS, asked.n_sequences) if served.spec.is_stateful else _WORKERS


def _inputs(asked: Asked, served: Served) -> dict[str, Any]:
    """How inputs are made: from files; or one set for all requests, with text of the length that is asked for, and
    zeros where these are."""
    if asked.is_from_files:
        path = str(Path(asked.input_data[0]).resolve())
        check = {"share": 1, "rtol": 0, "atol": 0, "reference": path} if asked.is_validated else None
        return {"data": {"path": path}, **({"check": check} if check else {})}
    found: dict[str, Mapping[str, Any]] = {}
    for tensor in served.spec.inputs:
        if tensor.datatype == "BYTES":
            is_text = asked.string_data is not None
            found[tensor.name] = (
                {"words": [asked.string_data]} if is_text else {"length": asked.string_length}
            )
        elif asked.input_data == ("zero",) and tensor.datatype != "BOOL":
            found[tensor.name] = {"low": 0, "high": 0}
    return {"payload_variants": 1, **({"inputs": found} if found else {})}


def _profile(asked: Asked) -> dict[str, Any]:
    """Figures are of a server that nothing records kernels in, as perf_analyzer's are."""
    interval = {"gpu_interval": format_duration(asked.metrics_interval_ns)} if asked.collects_metrics else {}
    return {"kernels": "off", **interval}
