"""Where a server answers and what it serves: asked of one that was started here, or of one that runs already."""

from __future__ import annotations

import urllib.parse
from dataclasses import dataclass
from typing import Any

from actors.control import Control, ControlError, authority
from actors.link import TlsSettings
from models.spec import ModelSpec
from scenarios.errors import TargetError
from scenarios.scenario import ModelConfig, Scenario, ServerConfig

READY = "/v2/health/ready"
_TRITON_GRPC_PORT = 8_001  # Triton's default; server.grpc_port says another


@dataclass(frozen=True)
class Endpoint:
    """Where a server answers and what it serves. `has_records`: its model writes batch records that we
    collect.

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
    """Models that the steps of an ensemble end in; empty for any other model."""

    @property
    def host(self) -> str:
        return authority(self.url)[0]

    @property
    def port(self) -> int:
        return authority(self.url)[1]


def tls_of(scenario: Scenario) -> TlsSettings | None:
    """How everything speaks TLS with the server; None where neither `clients.tls` nor an https URL asks for it."""
    tls, url = scenario.clients.tls, scenario.server.url
    if tls is not None:
        return TlsSettings(**tls.model_dump())
    return TlsSettings() if url is not None and url.startswith("https:") else None


def attach(model: ModelConfig, server: ServerConfig, tls: TlsSettings | None = None) -> Endpoint:
    """The running server at `server.url`, where `tls` holds if that is https (None: the system's authorities).

    Raises TargetError where it or the model is not ready, and for files of TLS that cannot be used.
    """
    assert server.url is not None
    url = server.url.rstrip("/")
    grpc_port = server.grpc_port or _TRITON_GRPC_PORT
    return inspect(url, tls, grpc_port, model, "url", None, has_records=False)


def inspect(
    url: str,
    tls: TlsSettings | None,
    grpc_port: int,
    model: ModelConfig,
    source: str,
    metrics_url: str | None,
    has_records: bool,
) -> Endpoint:
    """What the server at `url` says of itself and the model. Raises TargetError where that is not ready."""
    try:
        control = Control(url, tls)
    except OSError as error:
        raise TargetError(f"no Triton is ready at {url}: {error}") from error
    try:
        not_live = why_not(control, READY)
        if not_live is not None:
            raise TargetError(f"no Triton is ready at {url}: {not_live}")
        path = f"/v2/models/{urllib.parse.quote(model.name)}/versions/{model.version}"
        not_ready = why_not(control, f"{path}/ready")
        if not_ready is not None:
            raise TargetError(
                f"model {model.name!r} version {model.version} is not ready at {url}: "
                f"{not_ready}{_known_models(control)}"
            )
        config = _object(control, f"{path}/config")
        spec = ModelSpec.from_config(config, model.version)
        steps = _steps(control, config)
        version = str(_object(control, "/v2").get("version", "unknown"))
    except (ControlError, ValueError, KeyError) as error:
        raise TargetError(f"{url} does not answer like a Triton server: {error}") from error
    finally:
        control.close()
    return Endpoint(url, tls, grpc_port, metrics_url, source, version, spec, has_records, steps)


def why_not(control: Control, path: str) -> str | None:
    """None if the server answers `path` with 200; else why not, in a few words."""
    try:
        control.ask(path)
    except ControlError as error:
        return str(error)
    return None


def _steps(control: Control, config: dict[str, Any], n_levels: int = 8) -> tuple[str, ...]:
    """Models at the ends of an ensemble's steps, each once; of a step that is an ensemble its own. Empty of others."""
    found: dict[str, None] = {}
    for step in (config.get("ensemble_scheduling") or {}).get("step") or ():
        name = str(step["model_name"])
        inner: tuple[str, ...] = ()
        if n_levels:
            inner = _steps(
                control, _object(control, f"/v2/models/{urllib.parse.quote(name)}/config"), n_levels - 1
            )
        found.update(dict.fromkeys(inner or (name,)))
    return tuple(found)


def _object(control: Control, path: str) -> dict[str, Any]:
    content = control.ask_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path} gave {type(content).__name__}, not an object")
    return content


def _known_models(control: Control) -> str:
    """The models the server has, for the message about one it has not; empty where it does not say."""
    try:
        names = sorted({item["name"] for item in control.ask_json("/v2/repository/index", "POST")})
    except (ControlError, KeyError, TypeError):
        return ""
    return f"; it has {', '.join(names)}" if names else "; it has no models"
