"""Where a server answers and what it serves: asked of one that was started here, or of one that runs already."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Any

from squall.actors.net.stream import TlsSettings
from squall.actors.net.triton_control import Control, ControlError, authority
from squall.actors.net.triton_models import latest, object_of, path_of, ready_models
from squall.models.spec import ModelSpec, is_decoupled
from squall.scenarios.config.models.model import ModelConfig
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.config.servers import ServerConfig
from squall.scenarios.errors import TargetError

READY = "/v2/health/ready"
_LIVE = "/v2/health/live"
METRICS = "/metrics"
_ESCAPED = ", and a Triton that takes a URL as it is written finds no name that a URL escapes: give the model another"
TRITON_GRPC_PORT = 8_001
"""Triton's default; server.grpc_port says another."""


@dataclass(frozen=True)
class ServedModel:
    """A model under load of a server. `steps`: the models that the steps of an ensemble end in, one that a request
    passes twice twice; empty for any other model."""

    spec: ModelSpec
    steps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Endpoint:
    """Where a server answers and what it serves. `has_records`: its models write batch records that we
    collect. `spec` and `steps` are those of its first model under load, see `ServedModel`; `others`: the next.

    `url`: of its HTTP port; `tls`: how to speak to it there if that is https. `source`: url, container, PATH or wheel.
    """

    url: str
    tls: TlsSettings | None
    grpc_port: int
    metrics_url: str | None
    source: str
    server_version: str
    spec: ModelSpec
    has_records: bool
    steps: tuple[str, ...] = ()
    decoupled: tuple[str, ...] = ()
    """Those models of the server that are, by name."""
    others: tuple[ServedModel, ...] = ()

    @property
    def models(self) -> tuple[ServedModel, ...]:
        """All that are under load."""
        return (ServedModel(self.spec, self.steps), *self.others)

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


def default_tls(url: str) -> TlsSettings | None:
    """How everything speaks TLS with a server at `url` of which nothing else is said: the system's authorities; None
    without TLS."""
    return TlsSettings() if url.startswith("https:") else None


def attach(models: Sequence[ModelConfig], server: ServerConfig, tls: TlsSettings | None = None) -> Endpoint:
    """The running server at `server.url`, where `tls` holds if that is https (None: the system's authorities).

    Raises TargetError where it or a model is not ready, and for files of TLS that cannot be used.
    """
    assert server.url is not None
    url = server.url.rstrip("/")
    grpc_port = server.grpc_port or TRITON_GRPC_PORT
    metrics_url = None
    if server.metrics_port is not None:
        metrics_url = f"http://{bracketed(authority(url)[0])}:{server.metrics_port}"
        with closing(Control(metrics_url)) as metrics:
            not_there = why_not(metrics, METRICS)
        if not_there is not None:
            raise TargetError(f"server.metrics_port: no metrics at {metrics_url}{METRICS}: {not_there}")
    return inspect(url, tls, grpc_port, models, "url", metrics_url, has_records=False)


def bracketed(host: str) -> str:
    """As it stands in a URL: an IPv6 address in brackets (RFC 3986, 3.2.2)."""
    return f"[{host}]" if ":" in host else host


def inspect(
    url: str,
    tls: TlsSettings | None,
    grpc_port: int,
    models: Sequence[ModelConfig],
    source: str,
    metrics_url: str | None,
    has_records: bool,
) -> Endpoint:
    """What the server at `url` says of itself and the models. Raises TargetError where one is not ready."""
    try:
        control = Control(url, tls)
    except OSError as error:
        raise TargetError(f"no Triton is ready at {url}: {error}") from error
    try:
        not_there = why_not_there(control)
        if not_there is not None:
            raise TargetError(f"no Triton is ready at {url}: {not_there}")
        found = [_inspect_model(control, url, model) for model in models]
        version = str(object_of(control, "/v2").get("version", "unknown"))
    except (ControlError, ValueError, KeyError) as error:
        raise TargetError(f"{url} does not answer like a Triton server: {error}") from error
    finally:
        control.close()
    first, *others = (one for one, _ in found)
    decoupled = tuple(sorted({name for _, names in found for name in names}))
    return Endpoint(
        url, tls, grpc_port, metrics_url, source, version, first.spec, has_records, first.steps, decoupled,
        tuple(others),
    )  # fmt: skip


def _inspect_model(control: Control, url: str, model: ModelConfig) -> tuple[ServedModel, tuple[str, ...]]:
    """What the server says of a model, and which of its models are decoupled. Raises TargetError where it is not ready,
    ControlError, ValueError and KeyError as `object_of`."""
    named = path_of(model.name)
    path = f"{named}/versions/{model.version}" if model.version is not None else named
    not_ready = why_not(control, f"{path}/ready")
    if not_ready is not None:
        which = f" version {model.version}" if model.version is not None else ""
        raise TargetError(
            f"model {model.name!r}{which} is not ready at {url}: {not_ready}{_what_it_has(control, model.name)}"
        )
    of_model = model.version or latest(object_of(control, named))
    config = object_of(control, f"{named}/versions/{of_model}/config")
    spec = ModelSpec.from_config(config, of_model)
    steps = _steps(control, config)
    decoupled = _decoupled(control, {model.name: config}, steps)
    if not set(steps).isdisjoint(decoupled):
        spec = replace(spec, is_decoupled=True)  # Triton answers an ensemble so that has such a step
    return ServedModel(spec, steps), decoupled


def why_not(control: Control, path: str) -> str | None:
    """None if the server answers `path` with 200; else why not, in a few words."""
    try:
        control.ask(path)
    except ControlError as error:
        return str(error)
    return None


def why_not_there(control: Control) -> str | None:
    """None if a Triton answers for its models; else why not, in a few words.

    With strict readiness, the default, a Triton calls itself not ready for good once any model failed to load, and goes
    on to serve all others: where it is live, each model is to be asked itself.
    """
    not_ready = why_not(control, READY)
    is_answer = not_ready is not None and not_ready.startswith("status ")
    return None if is_answer and why_not(control, _LIVE) is None else not_ready


def _steps(control: Control, config: dict[str, Any], n_levels: int = 8) -> tuple[str, ...]:
    """Models at the ends of an ensemble's steps, as often as they are one; of a step that is an ensemble its own. Empty
    of others."""
    found: list[str] = []
    for step in (config.get("ensemble_scheduling") or {}).get("step") or ():
        name = str(step["model_name"])
        inner: tuple[str, ...] = ()
        if n_levels:
            inner = _steps(control, object_of(control, f"{path_of(name)}/config"), n_levels - 1)
        found += inner or (name,)
    return tuple(found)


def _decoupled(control: Control, known: Mapping[str, Any], steps: Sequence[str]) -> tuple[str, ...]:
    """Of the models of `known` configurations, the steps, and all others that are ready, which the model may ask: those
    that may answer after their execution has returned. One that does not say is not told."""
    configs = dict(known)
    for name in {*steps, *ready_models(control)} - configs.keys():
        with suppress(ControlError, ValueError):  # unloaded since
            configs[name] = object_of(control, f"{path_of(name)}/config")
    return tuple(sorted(name for name, config in configs.items() if is_decoupled(config)))


def _what_it_has(control: Control, name: str) -> str:
    """What the server has of the model, and other models; for the message where that is not ready. Empty where it does
    not say."""
    try:
        index = control.ask_json("/v2/repository/index", "POST")
        own = [one for one in index if one["name"] == name]
        ready = sorted({one["name"] for one in index if one.get("state") == "READY"} - {name})
    except (ControlError, KeyError, TypeError, AttributeError):
        return ""
    said = "; ".join(_state(one) for one in own)
    if any(one.get("state") == "READY" for one in own):
        is_escaped = urllib.parse.quote(name) != name
        return f"; of it, it has {said}{_ESCAPED if is_escaped else ''}"
    others = f"it has {', '.join(ready)}" if ready else "it has no models that are ready"
    return f"; the model is known there, but {said}; {others}" if own else f"; {others}"


def _state(entry: Mapping[str, Any]) -> str:
    """One entry of the repository index in words: `version 3 READY`, `UNAVAILABLE (why)`."""
    version = f"version {entry['version']} " if entry.get("version") else ""
    reason = f" ({entry['reason']})" if entry.get("reason") else ""
    return f"{version}{entry.get('state') or 'not loaded'}{reason}"
