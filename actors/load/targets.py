"""The servers that one worker loads: how each is reached, its requests as bytes, the client that sends them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from squall.actors.clock import Clock
from squall.actors.load.choice import Choice
from squall.actors.load.client import Client
from squall.actors.load.engine import Engine, templates_needed
from squall.actors.load.grpc_client import GrpcClient
from squall.actors.load.http_client import HttpClient
from squall.actors.load.lane import Lane
from squall.actors.load.shared_memory import (
    Kind,
    Places,
    Region,
    SharedMemorySettings,
    Slots,
    place_tensors,
    register,
)
from squall.actors.load.streams import StreamRule
from squall.actors.messages.grpc_stream import GrpcStreamTemplate, streamed
from squall.actors.messages.grpc_wire import GrpcTemplate, grpc_head, grpc_template
from squall.actors.messages.gzip_wire import (
    grpc_gzip_head,
    grpc_gzipped,
    gzipped,
    http_front,
    settling_of,
)
from squall.actors.messages.http_stream import HttpStreamTemplate, http_stream_head, http_stream_template
from squall.actors.messages.http_wire import HttpTemplate, http_head, http_template
from squall.actors.messages.packed import PackFile, PackWriter
from squall.actors.messages.packed_templates import Form, PackedModel
from squall.actors.messages.template import Layout, Template, TemplateKey
from squall.actors.messages.value_check import Check
from squall.actors.net.loop import Loop
from squall.actors.net.stream import Address, Route, TlsSettings
from squall.models.payload import (
    GZIP,
    ID_DIGITS,
    PLAIN,
    PREFIX,
    RequestBody,
    RequestOptions,
    encode_body,
    largest_reply_bytes,
)
from squall.models.spec import ModelSpec
from squall.scenarios.errors import ClusterError, TargetError
from squall.scenarios.plan.closed import ClosedPlan
from squall.scenarios.plan.plan import Plan

LARGEST_TARGET_COUNT = 64
Inputs = Mapping[Kind, Mapping[str, NDArray[np.generic]]]
"""Arrays by name for each (rows, payload variant)."""
_NO_PLACES = Places({}, {})


@dataclass(frozen=True)
class TargetSettings:
    """One server as a worker loads it; `name` is what the rows call it. `specs`: of each model under load, None of one
    that it does not serve.

    `unix`: path on the worker's node of a Unix socket that is loaded instead of host and port, which then only name
    the server.
    """

    name: str
    host: str
    port: int
    specs: tuple[ModelSpec | None, ...]
    tls: TlsSettings | None = None
    unix: str | None = None
    shared_memory: SharedMemorySettings | None = None

    @property
    def authority(self) -> str:
        """The server as HTTP names it; an IPv6 address in brackets (RFC 3986, 3.2.2)."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def spec(self) -> ModelSpec:
        """That of the one model under load."""
        (spec,) = self.specs
        assert spec is not None
        return spec

    @property
    def where(self) -> str:
        """What a worker connects to, for people."""
        return self.unix or f"{self.host}:{self.port}"


def refuse_strange_plan(plan: Plan | ClosedPlan, n_targets: int, choice: Choice) -> None:
    """Raises ClusterError for a plan that is not of these targets, or says them where the worker is to choose."""
    target = plan.target
    if choice != "planned":
        if target is not None:
            raise ClusterError(
                "the plan says which server each request is for, and the worker is to choose it"
            )
        return
    if target is None and n_targets > 1 and len(plan):
        raise ClusterError(f"the plan does not say which of {n_targets} servers each request is for")
    if target is not None and len(target) and int(target.max()) >= n_targets:
        raise ClusterError(f"the plan is for server number {int(target.max())}, there are {n_targets}")


def keys_needed(plan: Plan | ClosedPlan, n_targets: int, choice: Choice) -> set[TemplateKey]:
    """The distinct (target, rows, variant) that a plan may need. Raises as `refuse_strange_plan` does."""
    refuse_strange_plan(plan, n_targets, choice)
    if choice != "planned":
        return {(number, *kind) for number in range(n_targets) for kind in templates_needed(plan)}
    numbers = [0] if plan.target is None else np.unique(plan.target).tolist()
    return {(number, *kind) for number in numbers for kind in templates_needed(plan, number)}


@dataclass(frozen=True)
class Wire:
    """How requests travel, whichever server they are for, and what each says beside its inputs.

    With `streams` they are answered response by response. `n_between_bytes`: of what each has of its own behind its id,
    over HTTP the parameters among it; requests of which `options` says that they are compressed have none but that.
    `largest_reply_bytes`: of a reply, or of one of several responses; None: what the models can answer, with room.
    """

    protocol: str
    headers: Mapping[str, str] = field(default_factory=dict)
    options: RequestOptions = PLAIN
    streams: StreamRule | None = None
    n_between_bytes: int = 0
    largest_reply_bytes: int | None = None

    def largest_reply_of(self, target: TargetSettings) -> int:
        """Bytes of a reply of that server that are taken."""
        if self.largest_reply_bytes is not None:
            return self.largest_reply_bytes
        specs = [spec for spec in target.specs if spec is not None]
        return max((largest_reply_bytes(spec, self.protocol == "grpc") for spec in specs), default=0)

    @property
    def _n_own_bytes(self) -> int:
        """What each request has behind its id, whatever for."""
        return settling_of(self.protocol).n_bytes if self.options.is_gzip else self.n_between_bytes

    @property
    def metadata(self) -> Mapping[str, str]:
        """Over gRPC, of each call."""
        return {**self.headers, "grpc-encoding": GZIP} if self.options.is_gzip else self.headers

    def template(
        self,
        authority: str,
        spec: ModelSpec,
        inputs: Mapping[str, NDArray[np.generic]],
        rows: int,
        places: Places,
    ) -> Template:
        """The request that carries `inputs`. Raises ScenarioError for what it cannot carry."""
        if self.protocol == "grpc":
            unary = grpc_template(
                spec,
                inputs,
                rows,
                places.inputs,
                places.outputs,
                self.options.parameters,
                self.n_between_bytes,
            )
            unary = grpc_gzipped(unary, spec) if self.options.is_gzip else unary
            return unary if self.streams is None else streamed(unary, self.streams.tokens_of(spec))
        if self.streams is not None:
            tokens, parameters = self.streams.tokens_of(spec), self.options.parameters
            return http_stream_template(authority, spec, inputs, rows, self.headers, tokens, parameters)
        return http_template(authority, spec, self.body(spec, inputs, places), rows, self.headers)

    def body(self, spec: ModelSpec, inputs: Mapping[str, NDArray[np.generic]], places: Places) -> RequestBody:
        """That of a request over HTTP with one reply."""
        said = replace(self.options, parameters={}) if self.n_between_bytes else self.options
        body = encode_body(spec, inputs, places.inputs, places.outputs, said)
        if self.options.is_gzip:
            return gzipped(body)
        return body.with_between(self.n_between_bytes) if self.n_between_bytes else body

    def form(self, target: TargetSettings, spec: ModelSpec) -> Form:
        """How the tails of encoded requests become requests to that model of a server."""
        authority, n_between = target.authority, self._n_own_bytes
        is_gzip = self.options.is_gzip
        tokens = None if self.streams is None else self.streams.tokens_of(spec)
        if self.protocol == "grpc":
            grpc: Callable[..., Template] = partial(GrpcTemplate, n_between_bytes=n_between)
            if self.streams is not None:
                grpc = partial(GrpcStreamTemplate, n_between_bytes=n_between, tokens=tokens)
            if is_gzip:
                return Form(grpc, spec, lambda n_tail, _: grpc_gzip_head(spec, n_tail))
            return Form(grpc, spec, lambda n_tail, _: grpc_head(spec, n_between + n_tail))
        if self.streams is not None:
            stream = partial(HttpStreamTemplate, tokens=tokens)
            return Form(
                stream, spec, lambda n_tail, _: http_stream_head(authority, spec, n_tail, self.headers)
            )
        front = http_front() if is_gzip else PREFIX
        is_binary, n_before = self.options.is_binary, len(front) + ID_DIGITS + n_between

        def head(n_tail: int, n_json: int) -> bytes:
            return http_head(authority, spec, n_json, n_before + n_tail, self.headers, is_binary, front)

        return Form(partial(HttpTemplate, is_json=not is_binary, n_between_bytes=n_between), spec, head)


def encoded(
    target: TargetSettings,
    spec: ModelSpec,
    number: int,
    wire: Wire,
    inputs: Inputs,
    region: Region | None,
    places: Mapping[Kind, Places],
) -> dict[TemplateKey, Template]:
    """The requests with these inputs to one model of a server; `places` are those of its shared memory, in `region`.

    Raises ScenarioError for a payload that the model does not take.
    """
    templates: dict[TemplateKey, Template] = {}
    known: dict[tuple[object, ...], list[Layout]] = {}  # by rows and inputs, which say the answers' shapes
    for kind, arrays in inputs.items():
        theirs = places.get(kind, _NO_PLACES)
        template = wire.template(target.authority, spec, arrays, kind[0], theirs)
        if theirs.outputs:
            assert region is not None
            template = template.answered_in(Slots(region, theirs.outputs))
        else:
            shapes = ((name, array.shape) for name, array in arrays.items())
            template = template.alike(known.setdefault((kind[0], *shapes), []))
        templates[number, *kind] = template.sent_to(number)
    return templates


def packed(
    path: Path,
    targets: Sequence[TargetSettings],
    wire: Wire,
    check: Callable[[TemplateKey], Check] | None,
    model: int = 0,
    first: int = 0,
    kind: int = 0,
) -> PackedModel:
    """The requests of the file at `path` to that model of each of the servers; `first` of its variants, its `kind`.

    Raises ClusterError where the file cannot be read.
    """
    try:
        file = PackFile(path)
    except (OSError, ValueError) as error:
        raise ClusterError(f"the encoded requests cannot be read: {error}") from error
    specs = [target.specs[model] for target in targets]
    forms = tuple(
        None if spec is None else wire.form(target, spec) for target, spec in zip(targets, specs, strict=True)
    )
    return PackedModel(file, forms, check, first, kind)


def pack(
    writer: PackWriter, spec: ModelSpec, wire: Wire, kind: Kind, inputs: Mapping[str, NDArray[np.generic]]
) -> None:
    """Encodes a request with these inputs, but for what depends on its server. OSError passes."""
    layout = (
        kind[0],
        *((name, array.shape) for name, array in inputs.items()),
    )  # says the shapes of the answers
    if wire.protocol == "http" and wire.streams is None:
        body = wire.body(spec, inputs, _NO_PLACES)
        writer.add(*kind, body.suffix, body.n_json_bytes, layout)
        return
    writer.add(*kind, wire.template("", spec, inputs, kind[0], _NO_PLACES).tail, 0, layout)


def shared(
    target: TargetSettings, spec: ModelSpec, name: str, inputs: Inputs
) -> tuple[Region | None, Mapping[Kind, Places]]:
    """The inputs to one of its models in shared memory, in a region `name` of which the server was told; none where it
    has no such.

    Raises TargetError where the server does not take it, ClusterError where the memory cannot be had, ScenarioError
    where an output has no fixed size.
    """
    if target.shared_memory is None:
        return None, {}
    region, places = place_tensors(name, spec, inputs, target.shared_memory)
    try:
        register(region, target.shared_memory)
    except TargetError:
        region.close()
        raise
    return region, places


def route_of(target: TargetSettings, protocol: str, worker: int = 0, is_one_at_a_time: bool = False) -> Route:
    """To the addresses that its host has now, of which worker number `worker` begins with its own. Raises OSError where
    it has none or the files of TLS cannot be used."""
    found, tls = Address.resolve_all(target.host, target.port, target.unix), target.tls
    first = worker % len(found)
    address, *others = found[first:] + found[:first]
    return Route(
        address,
        tls.context("h2" if protocol == "grpc" else "http/1.1") if tls else None,
        (tls.server_name or target.host) if tls else None,
        tuple(others),
        is_one_at_a_time,
    )


def client_of(
    target: TargetSettings,
    number: int,
    wire: Wire,
    loop: Loop,
    clock: Clock,
    engine: Engine,
    lane: Lane | None,
    worker: int = 0,
    is_one_at_a_time: bool = False,
) -> Client:
    """Without connections yet. Of the addresses that its host has now, workers begin with one each, in turn.

    Raises OSError where the host has no address or the files of TLS cannot be used."""
    on_response = engine.on_response if wire.streams is not None else None
    route = route_of(target, wire.protocol, worker, is_one_at_a_time)
    largest_bytes = wire.largest_reply_of(target)
    if wire.protocol != "grpc":
        return HttpClient(
            loop, clock, route, engine.on_reply, engine.on_failure, lane, number, on_response, largest_bytes
        )
    return GrpcClient(
        loop,
        clock,
        route,
        target.authority,
        wire.metadata,
        engine.on_reply,
        engine.on_failure,
        lane,
        engine.lend,
        engine.readopt,
        number,
        on_response,
        largest_bytes,
    )
