"""Where a server answers and what it serves: asked of one that was started here, or of one that runs already."""

from __future__ import annotations

import os
import re
import socket
import time
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import field, replace
from typing import Any

from squall.actors.net.access import PLAIN, Access
from squall.actors.net.stream import Address, TlsSettings
from squall.actors.net.triton_control import Control, ControlError, authority
from squall.actors.net.triton_models import (
    INSPECTION_S,
    MOST_64,
    MOST_STEPS,
    STATISTICS,
    describe_model,
    index_of,
    object_of,
    path_of,
    ready_models,
    step_names,
    whole_of,
)
from squall.analysis.storage.deployed import ServingFacts
from squall.analysis.wording import names_text
from squall.models.spec import ZOO, ModelSpec, head_of, head_spec, is_decoupled
from squall.scenarios.config.models import ModelConfig
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.config.servers import ServerConfig
from squall.scenarios.errors import ScenarioError, TargetError
from squall.scenarios.foreign_text import VARIABLE
from squall.scenarios.records import Frozen
from squall.scenarios.sizes import LARGEST_BATCH

_NS_PER_US = 1_000
READY = "/v2/health/ready"
_LIVE = "/v2/health/live"
METRICS = "/metrics"
_ESCAPED = ", and a Triton that takes a URL as it is written finds no name that a URL escapes: give the model another"
_CONNECT_S = 1.0
_CONNECTS_S = 10.0
"""To all addresses of one name."""
_MOST_LEVELS = 8
_MOST_TOLD = 20
"""Models or versions in one message."""
_VERSION_CHARACTERS = 64
Known = dict[str, Mapping[str, Any]]
"""Configurations that were read, by model."""
TRITON_GRPC_PORT = 8_001
"""Triton's default; server.grpc_port says another."""
STATISTICS_API, METRICS_API = "statistics", "metrics"
_LOST = {
    "health": "its models are taken to be ready",
    "server": "its version is not known",
    "metadata": "the model's version is the one that is stated, or the latest that repository or statistics name",
    "configuration": (
        "inputs and outputs are those of its metadata; its largest batch, its priorities, the steps of an ensemble, and"
        " whether it keeps sequences or answers response by response are not known"
    ),
    STATISTICS_API: "what it counts itself is not in the run: executions, batch sizes, queue and compute times",
    METRICS_API: "requests that wait, and why some failed, are not in its samples",
}
"""What a run goes without, by what a server refuses who asks."""
HEADERS_MEND = "headers go with every call: clients.headers, or -H of init and perf"


class ServedModel(Frozen):
    """A model under load of a server. `steps`: the models that the steps of an ensemble end in, one that a request
    passes twice twice; empty for any other model."""

    spec: ModelSpec
    steps: tuple[str, ...] = ()


class Endpoint(Frozen):
    """Where a server answers and what it serves. `has_records`: its models write batch records that we
    collect. `models`: those under load.

    `url`: of its HTTP port; `access`: how it is spoken to there. `source`: url, container, PATH or wheel.
    `refused`: the calls that it refuses who asks, each with why.
    """

    url: str
    access: Access
    grpc_port: int
    metrics_url: str | None
    source: str
    server_version: str
    models: tuple[ServedModel, ...]
    has_records: bool
    decoupled: tuple[str, ...] = ()
    """Those models of the server that are, by name."""
    refused: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    """What will go wrong with it, and the mend; of one that squall started."""
    servers: tuple[str, ...] = ()
    """Addresses behind its name that take connections, where they are of several servers: more than one of a family."""
    serving: Mapping[str, ServingFacts] = field(default_factory=dict)
    """How the models under load and the steps behind them are served, by name."""

    @property
    def has_statistics(self) -> bool:
        """Whether what it counts is that of the whole load, and may be asked for."""
        return STATISTICS_API not in self.refused and not self.servers

    @property
    def told_refused(self) -> list[str]:
        """A line for each call that it refuses, with what the run goes without."""
        return [f"{self.url} refuses {api} ({why}): {_LOST[api]}" for api, why in self.refused.items()]

    @property
    def told_servers(self) -> str:
        """A line on the several servers behind its name. One of them may have an IPv4 and an IPv6 address."""
        n_ipv6 = sum(address.startswith("[") for address in self.servers)
        n_least = max(n_ipv6, len(self.servers) - n_ipv6)
        count = str(n_least) if n_least == len(self.servers) else f"at least {n_least}"
        return (
            f"{count} servers answer to the name in {self.url}: {names_text(self.servers)}; the load goes to all of"
            " them, and what one of them counts is left out: for figures of each, name each in servers"
        )

    def spec_of(self, model: str) -> ModelSpec | None:
        """Of the model of that name; None where it is not under load here."""
        return next((one.spec for one in self.models if one.spec.name == model), None)

    @property
    def host(self) -> str:
        return authority(self.url)[0]

    @property
    def port(self) -> int:
        return authority(self.url)[1]


def specs_of(endpoints: Iterable[Endpoint]) -> list[ModelSpec]:
    """Of every model under load at every server."""
    return [model.spec for one in endpoints for model in one.models]


def tls_of(scenario: Scenario, server: ServerConfig) -> TlsSettings | None:
    """How everything speaks TLS with a server; None where neither `clients.tls` nor an https URL asks for it."""
    tls, url = scenario.clients.tls, server.url
    if tls is not None:
        return TlsSettings(**tls.model_dump())
    return None if url is None else default_tls(url)


def access_of(scenario: Scenario, server: ServerConfig) -> Access:
    """How everything speaks with a server. Raises ScenarioError as `headers_of`."""
    return Access(tls_of(scenario, server), headers_of(scenario))


def headers_of(scenario: Scenario) -> dict[str, str]:
    """Those of every call to a server, with the values of their variables. Raises ScenarioError for one that is not
    set."""
    return expand_headers(scenario.clients.headers, os.environ)


def expand_headers(
    headers: Mapping[str, str], environment: Mapping[str, str], where: str = "clients.headers."
) -> dict[str, str]:
    """`${NAME}` in a value becomes that environment variable, so that no token stands in scenario or manifest.

    Raises ScenarioError for a variable that is not set, or whose value no header can have; `where`: before the name of
    its header there.
    """

    def value_of(key: str, found: re.Match[str]) -> str:
        if found[1] not in environment:
            raise ScenarioError(f"{where}{key}: the environment variable {found[1]} is not set")
        value = environment[found[1]]
        if not (value.isascii() and value.isprintable()):
            raise ScenarioError(
                f"{where}{key}: the environment variable {found[1]} has a line end, or another character that no header"
                " may have"
            )
        return value

    return {
        key: VARIABLE.sub(lambda found, key=key: value_of(key, found), value)  # type: ignore[misc]
        for key, value in headers.items()
    }


def default_tls(url: str) -> TlsSettings | None:
    """How everything speaks TLS with a server at `url` of which nothing else is said: the system's authorities; None
    without TLS."""
    return TlsSettings() if url.startswith("https:") else None


def attach(models: Sequence[ModelConfig], server: ServerConfig, access: Access = PLAIN) -> Endpoint:
    """The running server at `server.url`.

    Raises TargetError where it or a model is not ready, and for files of TLS that cannot be used.
    """
    assert server.url is not None
    url = server.url.rstrip("/")
    grpc_port = server.grpc_port or TRITON_GRPC_PORT
    metrics_url, refused = None, dict[str, str]()
    if server.metrics_port is not None:
        metrics_url = f"http://{bracketed(authority(url)[0])}:{server.metrics_port}"
        with closing(Control(metrics_url, access)) as metrics:
            not_there = why_not(metrics, METRICS)
        if not_there is not None and not_there.is_refused:
            refused[METRICS_API], metrics_url = str(not_there), None
        elif not_there is not None:
            raise TargetError(f"server.metrics_port: no metrics at {metrics_url}{METRICS}: {not_there}")
    found = inspect(url, access, grpc_port, models, "url", metrics_url, has_records=False)
    return replace(found, refused={**found.refused, **refused}, servers=_servers_behind(url))


def _servers_behind(url: str) -> tuple[str, ...]:
    """See `Endpoint.servers`. An IPv4 and an IPv6 address of one name are taken to be of one server."""
    with suppress(OSError):
        by_family: dict[int, list[str]] = {}
        found, until_s = Address.resolve_all(*authority(url)), time.monotonic() + _CONNECTS_S
        for one in found if len(found) > 1 else ():
            if time.monotonic() > until_s:
                break
            with suppress(OSError):
                socket.create_connection(one.sockaddr[:2], _CONNECT_S).close()  # type: ignore[arg-type]
                by_family.setdefault(one.family, []).append(str(one))
        if any(len(ones) > 1 for ones in by_family.values()):
            return tuple(sorted(one for ones in by_family.values() for one in ones))
    return ()


def bracketed(host: str) -> str:
    """As it stands in a URL: an IPv6 address in brackets (RFC 3986, 3.2.2)."""
    return f"[{host}]" if ":" in host else host


def inspect(
    url: str,
    access: Access,
    grpc_port: int,
    models: Sequence[ModelConfig],
    source: str,
    metrics_url: str | None,
    has_records: bool,
) -> Endpoint:
    """What the server at `url` says of itself and the models. Raises TargetError where one is not ready, or it refuses
    what a request must know."""
    refused: dict[str, str] = {}
    known: Known = {}
    try:
        control = Control(url, access, None, INSPECTION_S)
    except OSError as error:
        raise TargetError(f"no Triton is ready at {url}: {error}") from error
    try:
        not_there = why_not_there(control, refused)
        if not_there is not None:
            raise TargetError(f"no Triton is ready at {url}: {not_there}")
        found = [_inspect_model(control, url, model, known, refused) for model in models]
        version = _server_version(control, refused)
        statistics = why_not(control, STATISTICS)
        if statistics is not None and statistics.is_refused:
            refused[STATISTICS_API] = str(statistics)
        behind = {name for one in found for name in (one.served.spec.name, *one.served.steps)}
        behind -= {one.served.spec.name for one in found if not one.has_config}
        serving = {name: serving_of(config) for name, config in known.items() if name in behind}
        decoupled = tuple(sorted(name for name, config in known.items() if is_decoupled(config)))
    except (ControlError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, ControlError) and error.is_refused:
            raise TargetError(f"{url} refuses who asks: {error}; {HEADERS_MEND}") from error
        raise TargetError(f"{url} does not answer like a Triton server: {error}") from error
    finally:
        control.close()
    return Endpoint(
        url, access, grpc_port, metrics_url, source, version, tuple(one.served for one in found), has_records,
        decoupled, refused, serving=serving,
    )  # fmt: skip


def serving_of(config: Mapping[str, Any]) -> ServingFacts:
    """What a model's configuration, from Triton as JSON, says of how it is served. Raises ValueError, TypeError and
    AttributeError for one that is none."""
    batcher, groups = config.get("dynamic_batching"), config.get("instance_group") or ()
    delay_us = None if batcher is None else batcher.get("max_queue_delay_microseconds", 0)
    return ServingFacts(
        max_batch_size=whole_of(config.get("max_batch_size", 0)),
        queue_delay_ns=None if delay_us is None else whole_of(delay_us, MOST_64 // _NS_PER_US) * _NS_PER_US,
        n_instances=sum(whole_of(one.get("count", 1)) * max(len(one.get("gpus") or ()), 1) for one in groups)
        or None,
        response_cache=bool((config.get("response_cache") or {}).get("enable")),
    )


class _Inspected(Frozen):
    """A model under load. `has_config`: its configuration is that of the server, which did not refuse it."""

    served: ServedModel
    has_config: bool


def _server_version(control: Control, refused: dict[str, str]) -> str:
    """`unknown` where it is refused, which is noted. Raises ControlError and ValueError as `object_of`."""
    try:
        return str(object_of(control, "/v2").get("version", "unknown"))[:_VERSION_CHARACTERS]
    except ControlError as error:
        if not error.is_refused:
            raise
        refused["server"] = str(error)
        return "unknown"


def _inspect_model(
    control: Control, url: str, model: ModelConfig, known: Known, refused: dict[str, str]
) -> _Inspected:
    """What the server says of a model; its configuration, its steps' and those of all others there are added to
    `known`, and what it refuses is noted. Raises TargetError where it is not ready, ControlError, ValueError and
    KeyError as `describe_model`."""
    named = path_of(model.name)
    path = f"{named}/versions/{model.version}" if model.version is not None else named
    not_ready = why_not(control, f"{path}/ready")
    if not_ready is not None and not_ready.is_refused:
        refused.setdefault("health", str(not_ready))
    elif not_ready is not None:
        which = f" version {model.version}" if model.version is not None else ""
        raise TargetError(
            f"model {model.name!r}{which} is not ready at {url}: {not_ready}{_what_it_has(control, model.name)}"
        )
    described = describe_model(control, model.name, model.version, LARGEST_BATCH)
    refused |= described.refused
    config = known[model.name] = described.config
    spec = ModelSpec.from_config(config, described.version)
    steps = _steps(control, config, known)
    _add_configs(control, {*steps, *ready_models(control)}, known)
    if any(is_decoupled(known[name]) for name in steps if name in known):
        spec = replace(spec, is_decoupled=True)  # Triton answers an ensemble so that has such a step
    _refuse_other_sizes(model, spec)
    return _Inspected(ServedModel(spec, steps), "configuration" not in described.refused)


def _refuse_other_sizes(model: ModelConfig, spec: ModelSpec) -> None:
    """Raises TargetError where the scenario states sizes of a model of the zoo, and the server's has others."""
    if not model.settings or model.name not in ZOO:
        return
    stated = head_spec(model.name, spec.version, head_of(model.name).sizes(model.settings), 1)
    own = [{one.name: one.dims for one in tensors} for tensors in (stated.inputs, spec.inputs)]
    if own[0] != own[1]:
        raise TargetError(
            f"model.settings: of these {model.name} takes {_dims(own[0])}, and the server's takes {_dims(own[1])}"
        )


def _dims(inputs: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(f"{name} {list(dims)}" for name, dims in inputs.items())


def why_not(control: Control, path: str) -> ControlError | None:
    """None if the server answers `path` with 200; else why not, in a few words."""
    try:
        control.ask(path)
    except ControlError as error:
        return error
    return None


def why_not_there(control: Control, refused: dict[str, str] | None = None) -> str | None:
    """None if a Triton answers for its models; else why not, in a few words. One that refuses to tell, which is noted
    in `refused` where that is given, may answer for them all the same.

    With strict readiness, the default, a Triton calls itself not ready for good once any model failed to load, and goes
    on to serve all others: where it is live, each model is to be asked itself.
    """
    not_ready = why_not(control, READY)
    if not_ready is None:
        return None
    if not_ready.is_refused and refused is not None:
        refused["health"] = str(not_ready)
        return None
    return None if not_ready.status and why_not(control, _LIVE) is None else str(not_ready)


def _steps(
    control: Control, config: Mapping[str, Any], known: Known, n_levels: int = _MOST_LEVELS
) -> tuple[str, ...]:
    """Models at the ends of an ensemble's steps, as often as they are one; of a step that is an ensemble its own. Empty
    of others. Each is asked once at most, what it says is added to `known`. Raises ValueError where they are too many
    to be an ensemble's."""
    found: list[str] = []
    for name in step_names(config):
        inner: tuple[str, ...] = ()
        if n_levels:
            try:
                if name not in known:
                    known[name] = object_of(control, f"{path_of(name)}/config")
                inner = _steps(control, known[name], known, n_levels - 1)
            except ControlError as error:
                if not error.is_refused:  # else it is taken to be no ensemble
                    raise
        found += inner or (name,)
        if len(found) > MOST_STEPS:
            raise ValueError(f"an ensemble ends in more than {MOST_STEPS:,} steps")
    return tuple(found)


def _add_configs(control: Control, names: set[str], known: Known) -> None:
    """Of the steps, and of all that are ready, which the model may ask. One that does not say is not added. Raises
    ControlError where the server no longer answers."""
    for name in names - known.keys():
        try:
            known[name] = object_of(control, f"{path_of(name)}/config")
        except ControlError as error:
            if not error.status:
                raise
        except ValueError:
            continue


def _what_it_has(control: Control, name: str) -> str:
    """What the server has of the model, and other models; for the message where that is not ready. Empty where it does
    not say."""
    try:
        index = index_of(control)
    except (ControlError, ValueError):
        return ""
    own = [one for one in index if one["name"] == name]
    ready = sorted({one["name"] for one in index if one["state"] == "READY"} - {name})
    said = "; ".join(_state(one) for one in own[:_MOST_TOLD])
    if any(one["state"] == "READY" for one in own):
        is_escaped = urllib.parse.quote(name) != name
        return f"; of it, it has {said}{_ESCAPED if is_escaped else ''}"
    others = f"it has {names_text(ready, _MOST_TOLD)}" if ready else "it has no models that are ready"
    return f"; the model is known there, but {said}; {others}" if own else f"; {others}"


def _state(entry: Mapping[str, Any]) -> str:
    """One entry of the repository index in words: `version 3 READY`, `UNAVAILABLE (why)`."""
    version = f"version {entry['version']} " if entry["version"] else ""
    reason = f" ({entry['reason']})" if entry["reason"] else ""
    return f"{version}{entry['state'] or 'not loaded'}{reason}"
