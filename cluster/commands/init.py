"""`squall init`: a first scenario for a Triton that runs already. It asks the server and sends no request."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from squall.cluster.commands.options import on_disk
from squall.scenarios.errors import ScenarioError, TargetError

if TYPE_CHECKING:
    from squall.cluster.commands.draft import Wanted
    from squall.cluster.commands.served_models import ServedModel
    from squall.cluster.node.endpoint import Endpoint

_STDOUT = "-"
_DEFAULT = "scenario.yaml"
_CONNECT_S = 5.0
_MOST_TOLD = 20


class Protocol(StrEnum):
    """Over which the load goes."""

    HTTP = "http"
    GRPC = "grpc"


def init(
    server: Annotated[
        list[str],
        typer.Option(
            "--server", "-u", "--url",
            help="URL of a Triton: http://host:port or https://host:port. Repeatable, for several.",
        ),
    ],
    model: Annotated[str | None, typer.Option("--model", "-m", help="As the server calls it.")] = None,
    version: Annotated[str | None, typer.Option("--version", help="Of the model; else the latest.")] = None,
    protocol: Annotated[Protocol, typer.Option("--protocol", help="Over which the load goes.")] = Protocol.HTTP,
    grpc_port: Annotated[
        int | None, typer.Option("--grpc-port", help="Of the server's gRPC.  [default: 8001]")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", "-H", metavar="NAME:VALUE",
            help="Of every call, as clients.headers; ${NAME} in VALUE: that environment variable. Repeatable.",
        ),
    ] = None,
    out: Annotated[
        str, typer.Option("--out", metavar="FILE|-", help="The scenario; -: stdout.", callback=on_disk)
    ] = _DEFAULT,
    is_forced: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
) -> None:  # fmt: skip
    """Writes a first scenario for a model of a Triton that runs: it is asked what it serves, no load is sent."""
    from squall.cluster.commands.draft import Wanted, draft
    from squall.cluster.commands.headers import allowing, headers_typed, told_of_values

    path = None if out == _STDOUT else Path(out)
    if path is not None and not is_forced:
        _refuse_existing(path)
    port = _grpc_port(grpc_port) if protocol is Protocol.GRPC else grpc_port
    urls = tuple(dict.fromkeys(url.rstrip("/") for url in server))
    headers = headers_typed(header or ())
    wanted = Wanted(urls, protocol.value, version, port, _DEFAULT if path is None else path.name, headers)
    chosen, endpoints = _chosen(wanted, model)
    text = draft(chosen, endpoints[0].models[0].steps, wanted)
    _refuse_unloadable(text, chosen)
    if path is None:
        typer.echo(text, nl=False)
        return
    _write(path, text, is_forced)
    for line in told_of_values(headers, str(path)):
        typer.echo(line, err=True)
    typer.echo(f"{path} is written: squall run {quote(str(path))}{allowing(headers)}", err=True)


def _grpc_port(given: int | None) -> int:
    from squall.cluster.node.endpoint import TRITON_GRPC_PORT

    return TRITON_GRPC_PORT if given is None else given


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise ScenarioError(f"--out {path}: is there already; --force replaces it, --out names another file")


def _chosen(wanted: Wanted, name: str | None) -> tuple[ServedModel, list[Endpoint]]:
    """The model that is to be loaded, and every server as a run would see it. Raises ScenarioError where it is not
    told which, TargetError where a server or the model is not ready, or squall cannot load it."""
    from squall.actors.net.access import Access
    from squall.cluster.commands.headers import expanded
    from squall.cluster.commands.served_models import served_models
    from squall.cluster.node.endpoint import attach, default_tls
    from squall.scenarios.config.loader import section_from_mapping
    from squall.scenarios.config.models import ModelConfig
    from squall.scenarios.config.servers import ServerConfig
    from squall.scenarios.foreign_text import printable

    ports = {} if wanted.grpc_port is None else {"grpc_port": wanted.grpc_port}
    servers = [section_from_mapping(ServerConfig, {"url": url, **ports}, "--server") for url in wanted.urls]
    if name is not None or wanted.version is not None:
        stated = {"name": name or "any", **({} if wanted.version is None else {"version": wanted.version})}
        section_from_mapping(ModelConfig, stated, "--model")
    headers = expanded(wanted.headers)
    accesses = [Access(default_tls(url), headers) for url in wanted.urls]
    found = served_models(wanted.urls[0], accesses[0], name, wanted.version)
    if name is None and len(found) != 1:
        raise _which(found, wanted.urls[0])
    asked = section_from_mapping(
        ModelConfig, {"name": name or found[0].name, "version": wanted.version}, "--model"
    )
    endpoints = [attach([asked], one, access) for one, access in zip(servers, accesses, strict=True)]
    for line in (line for endpoint in endpoints for line in endpoint.told_refused):
        typer.echo(f"squall: {printable(line)}", err=True)
    if not found:
        raise TargetError(f"model {asked.name!r} was unloaded while it was asked for at {wanted.urls[0]}")
    _refuse_what_cannot_be_loaded(found[0], wanted, endpoints)
    return found[0], endpoints


def _which(found: Sequence[ServedModel], url: str) -> ScenarioError:
    """Prints a table of the models on stderr: stdout is for the scenario."""
    from squall.analysis.wording import names_text

    if found:
        from squall.cluster.commands.model_listing import listing
        from squall.cluster.commands.printed import print_screen

        print_screen(lambda _: listing(found), on_stderr=True)
    names = names_text([one.name for one in found], _MOST_TOLD)
    return ScenarioError(
        f"--model: {url} has {len(found)} models that are ready, name one: {names or '(none now)'}"
    )


def _refuse_what_cannot_be_loaded(model: ServedModel, wanted: Wanted, endpoints: Sequence[Endpoint]) -> None:
    first = endpoints[0]
    why = model.obstacle()
    if why is not None:
        raise TargetError(f"squall cannot load model {model.name!r}: {why}")
    deep = next((one.name for one in model.spec.inputs if len(one.dims) > 1), None)
    if first.models[0].spec.is_decoupled and wanted.protocol == "http" and deep is not None:
        raise TargetError(
            f"model {model.name!r} answers response by response, which over HTTP carries inputs of one dimension, and"
            f" {deep} has more: use --protocol grpc"
        )
    for endpoint in endpoints[1:]:
        if endpoint.models[0].spec != first.models[0].spec:
            raise TargetError(
                f"model {model.name!r} is another at {endpoint.url} than at {first.url}: version, inputs, outputs or"
                " max_batch_size differ, and one scenario loads one model"
            )
    if wanted.protocol == "grpc":
        for endpoint in endpoints:
            _refuse_no_listener(endpoint)


def _refuse_no_listener(endpoint: Endpoint) -> None:
    """Connects and closes: whether anything listens where the load is to go."""
    import socket

    try:
        socket.create_connection((endpoint.host, endpoint.grpc_port), _CONNECT_S).close()
    except OSError as error:
        raise TargetError(
            f"nothing listens for gRPC at {endpoint.host}:{endpoint.grpc_port}: {error.strerror or error}; its port is"
            " given with --grpc-port"
        ) from error


def _refuse_unloadable(text: str, model: ServedModel) -> None:
    """What is about to be written loads, and the model takes the payloads that it makes. Raises ScenarioError."""
    from squall.models.made import make_inputs
    from squall.scenarios.config.loader import scenario_from_mapping
    from squall.scenarios.strict_yaml import parse_yaml

    origin = "the scenario that was drafted"
    scenario = scenario_from_mapping(parse_yaml(text, origin), origin)
    make_inputs(model.spec, 1, 0, scenario.seed, scenario.models[0].model.shapes, scenario.clients.inputs)


def _write(path: Path, text: str, is_forced: bool) -> None:
    """The whole file or none. Raises ScenarioError."""
    from squall.scenarios.traces.writing import whole_or_not

    with whole_or_not(path) as part:
        part.write_text(text, encoding="utf-8")
        if not is_forced:
            _refuse_existing(path)
