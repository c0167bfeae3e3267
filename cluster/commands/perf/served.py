"""What perf_analyzer's `-u` and `-m` name: where the server is spoken to, and what it says of the model."""

from __future__ import annotations

import re
import urllib.parse
from typing import Any

from squall.actors.net.access import Access
from squall.actors.net.stream import TlsSettings
from squall.cluster.commands.headers import expanded
from squall.cluster.commands.perf.asked import Asked
from squall.cluster.node.endpoint import attach
from squall.models.spec import ModelSpec
from squall.scenarios.config.loader import section_from_mapping
from squall.scenarios.config.models import ModelConfig
from squall.scenarios.config.servers import ServerConfig, TlsConfig
from squall.scenarios.errors import ScenarioError, TargetError
from squall.scenarios.records import Frozen

_HTTP_PORT, _GRPC_PORT = 8_000, 8_001
_URL = re.compile(
    r"(?:(?P<scheme>https?|grpcs?)://)?(?P<host>\[[^\]]+\]|[^/:\s\[\]]+)(?::(?P<port>\d{1,5}))?/?"
)
_DEFAULT_PORTS = {"http": 80, "https": 443}


class Place(Frozen):
    """Where the server answers. `url`: over HTTP, as `server.url` takes it; `grpc_port`: None where HTTP is loaded."""

    url: str
    grpc_port: int | None

    @property
    def host(self) -> str:
        return urllib.parse.urlsplit(self.url).hostname or ""


class Served(Frozen):
    """The model as its server has it."""

    url: str
    spec: ModelSpec
    has_cache: bool


def place_of(asked: Asked) -> Place:
    """perf_analyzer's defaults where nothing is stated. With gRPC alone named, HTTP is taken to be on its host at 8000.

    Raises ScenarioError for what is no address of a server.
    """
    if asked.protocol == "http":
        if asked.http_url is not None:
            raise ScenarioError("--http-url: is for -i grpc; over HTTP, -u says where the server is")
        return Place(_http(f"localhost:{_HTTP_PORT}" if asked.url is None else asked.url, "-u"), None)
    found = _parts(f"localhost:{_GRPC_PORT}" if asked.url is None else asked.url, "-u")
    if found["port"] is None:
        raise ScenarioError(f"-u: {asked.url!r} has no port, and gRPC has none by default: host:{_GRPC_PORT}")
    http = asked.http_url or f"{found['host']}:{_HTTP_PORT}"
    return Place(_http(http, "--http-url"), int(found["port"]))


def _http(text: str, flag: str) -> str:
    """As curl takes it: http where no scheme is stated, at the scheme's own port where no port is."""
    found = _parts(text, flag)
    scheme = found["scheme"] or "http"
    if scheme not in _DEFAULT_PORTS:
        raise ScenarioError(f"{flag}: {text!r} is not an address for HTTP")
    return f"{scheme}://{found['host']}:{found['port'] or _DEFAULT_PORTS[scheme]}"


def _parts(text: str, flag: str) -> dict[str, Any]:
    found = _URL.fullmatch(text.strip())
    if found is None:
        raise ScenarioError(f"{flag}: {text!r} is not host:port")
    return found.groupdict()


def ask(asked: Asked, place: Place) -> Served:
    """What the server says of the model. Raises TargetError where it or the model is not ready."""
    tls, headers = None, expanded(asked.headers)
    if place.url.startswith("https:"):
        tls = TlsSettings(**section_from_mapping(TlsConfig, asked.tls.section, "--ssl-https-…").model_dump())
    model = section_from_mapping(ModelConfig, {"name": asked.model, **_version(asked)}, "-m, -x")
    server = section_from_mapping(ServerConfig, {"url": place.url}, "-u")
    access = Access(tls, headers)
    try:
        endpoint = attach([model], server, access)
    except TargetError as error:
        if asked.protocol == "http" or asked.http_url is not None:
            raise
        raise TargetError(
            f"{error}; with -i grpc the model is asked over HTTP: --http-url says where"
        ) from error
    facts = endpoint.serving.get(asked.model)
    return Served(
        url=place.url,
        spec=endpoint.models[0].spec,
        has_cache=facts is not None and facts.response_cache,
    )


def _version(asked: Asked) -> dict[str, str]:
    return {} if asked.version is None else {"version": asked.version}
