"""The load generators on each client node: configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from squall.scenarios.config.clients.check import ValueCheckConfig
from squall.scenarios.config.clients.data import DataConfig
from squall.scenarios.config.clients.inputs import InputConfig
from squall.scenarios.config.clients.request import RequestConfig
from squall.scenarios.config.clients.routing import RoutingConfig
from squall.scenarios.config.clients.rows import ConstantRows, RowsConfig
from squall.scenarios.config.clients.sequences import SequencesConfig
from squall.scenarios.config.clients.stream import StreamConfig
from squall.scenarios.config.servers import TlsConfig
from squall.scenarios.fields import Count, Duration, PositiveDuration, Section, Text, refuse, repeated
from squall.scenarios.sizes import LARGEST_VARIANT_COUNT
from squall.scenarios.units import NS_PER_S, format_size, parse_size

LARGEST_SPIN_NS = NS_PER_S // 1_000  # longer is a mistyped unit: a sleeping thread wakes within 0.1 ms
HeaderName = Annotated[str, Field(strict=True, pattern=r"^[A-Za-z0-9_.-]+$")]
_FRAMING = (
    "content-length", "transfer-encoding", "content-encoding", "inference-header-content-length", "te", "connection",
)  # fmt: skip
"""Headers that say how a request is framed: another one beside squall's own would make a server misread it."""
HeaderValue = Annotated[str, Field(strict=True, pattern=r"^[ -~]*$")]


Size = Annotated[int, BeforeValidator(parse_size), PlainSerializer(format_size, return_type=str), Field(gt=0)]
"""In bytes; `64 MiB` in the file."""


def _on_or_off(value: object) -> object:
    """`true` stands for a section with its defaults, `false` for none."""
    return {True: {}, False: None}[value] if isinstance(value, bool) else value


class SharedMemoryConfig(Section):
    """Which tensors lie in POSIX shared memory instead of in messages; for a server on the client's node."""

    inputs: bool = True
    outputs: bool = True

    @model_validator(mode="after")
    def _some_tensors(self) -> SharedMemoryConfig:
        if not (self.inputs or self.outputs):
            raise ValueError("neither inputs nor outputs: use shared_memory: false")
        return self


def _cores_named(value: object) -> object:
    """One sentence for four forms."""
    is_number = type(value) is int and value >= 1
    is_list = isinstance(value, list | tuple) and value and all(type(i) is int and i >= 0 for i in value)
    if value in ("auto", "off") or is_number or is_list:
        return value
    raise ValueError("use auto, off, a number of cores from 1, or a list of them: [6, 7]")


DEFAULT_VARIANTS = 4


class ClientConfig(Section):
    """The load generators on each client node."""

    workers_per_node: Count = 2
    priority: Literal["auto", "realtime", "normal"] = "auto"  # of the threads that send
    cores: Annotated[Literal["auto", "off"] | int | tuple[int, ...], BeforeValidator(_cores_named)] = "auto"
    protocol: Literal["http", "grpc"] = "http"
    tls: TlsConfig | None = None
    unix: Text | None = None  # path on the client nodes, loaded instead of the port
    headers: dict[HeaderName, HeaderValue] = Field(default_factory=dict)  # gRPC: metadata
    spin_ns: Annotated[Duration, Field(le=LARGEST_SPIN_NS)] = Field(default=0, alias="spin")
    timeout_ns: PositiveDuration = Field(default=5 * NS_PER_S, alias="timeout")
    largest_reply_bytes: Size | None = Field(
        default=None, alias="largest_reply"
    )  # else by the model's outputs
    try_first: bool = True  # one request of each kind goes to each server before the load, which then begins
    max_in_flight: Count | None = None
    on_client_loss: Literal["continue", "stop"] = "continue"  # what the others do when one is lost
    connections: Count = 16  # opened per worker before the start; the pool grows to need
    rows: RowsConfig = ConstantRows()
    deal: Literal["sequence", "hash", "session"] = "sequence"  # which worker sends an arrival
    routing: RoutingConfig = RoutingConfig()  # and which of several servers gets it
    payload_variants: Annotated[Count, Field(le=LARGEST_VARIANT_COUNT)] = (
        DEFAULT_VARIANTS  # seeded inputs per row count
    )
    inputs: dict[str, InputConfig] | None = None  # how some are made, by name; else numbers as they come
    data: DataConfig | None = None  # inputs of the user's in place of made ones
    request: RequestConfig | None = None  # what each request says beside its inputs
    check: ValueCheckConfig | None = None  # compares values of replies
    shared_memory: Annotated[SharedMemoryConfig | None, BeforeValidator(_on_or_off)] = None
    sequences: SequencesConfig | None = None  # of requests to a stateful model
    stream: Annotated[StreamConfig | None, BeforeValidator(_on_or_off)] = None  # responses one by one

    @model_validator(mode="after")
    def _parts_fit(self) -> ClientConfig:
        framing = next((name for name in self.headers if name.lower() in _FRAMING), None)
        twice = repeated([name.lower() for name in self.headers])
        request, sequences, data = self.request, self.sequences, self.data
        refuse({
            f"headers.{framing}: squall writes it itself, as the request is; leave it out": framing,
            f"headers: {twice} is there twice, the case of a header does not count": twice,
            "request.binary: false is for protocol http, gRPC carries tensors as bytes": (
                self.protocol == "grpc" and request is not None and not request.binary
            ),
            "request.compression: requests of sequences are not compressed; leave one of both out": (
                sequences and request is not None and request.compression
            ),
            "sequences: a worker is dealt whole ones; leave deal out": sequences and self.deal != "sequence",
            f"sequences: routing {self.routing.kind!r} would split one over servers; use another kind": (
                sequences and self.routing.kind in ("mirror", "trace")
            ),
            "data: each entry is a payload of its own; leave payload_variants out": (
                data and self.payload_variants != DEFAULT_VARIANTS
            ),
            "data: its entries are not played as sequences, so that steps of several would be mixed; leave data or"
            " sequences out": data and sequences,
            "data: its entries travel in messages; leave shared_memory out": data and self.shared_memory,
        })  # fmt: skip
        return self
