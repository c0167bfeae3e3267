"""The load generators on each client node: what they send, whose replies they check, which server gets what."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from squall.scenarios.config.inputs import DataConfig, InputConfig, WholeLaw
from squall.scenarios.config.rows import ConstantRows, RowsConfig
from squall.scenarios.config.servers import TlsConfig
from squall.scenarios.errors import Sentences, holding
from squall.scenarios.fields import (
    EACH_ONCE,
    Count,
    Duration,
    NonEmpty,
    NonNegative,
    Number,
    PositiveDuration,
    Section,
    Text,
    Whole,
    repeated,
    worded,
)
from squall.scenarios.sizes import LARGEST_VARIANT_COUNT
from squall.scenarios.units import NS_PER_S, format_size, parse_size

SMALLEST_SHARE = 1e-9  # less is a mistyped number: no run has a billion requests
_Share = Annotated[Number, Field(ge=SMALLEST_SHARE, le=1)]
_NAME = r"[^\W\d]\w*"
FUNCTION = rf"^(?:{_NAME}(?:\.{_NAME})*|.+\.py):{_NAME}$"
"""A Python function, by its module or its file."""


class ValueCheckConfig(Section):
    """Comparison of the values of some replies with those that the head's weights give, or a function or file of the
    user's.

    A float is right where |value - expected| <= atol + rtol * |expected|, anything else where it is the same.
    """

    share: _Share = 0.01  # at least this share of the requests
    rtol: NonNegative = 1e-3
    atol: NonNegative = 1e-5
    function: Annotated[Text, Field(pattern=FUNCTION)] | None = None  # called by the driver, of any model
    reference: Text | None = None  # .npz on the driver's node, for a model that is no head of the zoo

    def misfits(self) -> Sentences:
        if self.function is not None and self.reference is not None:
            yield "the right values come from function or from reference, not from both"

    @property
    def is_of_zoo(self) -> bool:
        """Whether the right values are those of a head of the zoo."""
        return self.function is None and self.reference is None

    def every(self, n_parties: int) -> int:
        """Requests whose id is a multiple of it are checked, by every one of `n_parties` in its turn.

        Parties (workers times servers; users of a closed loop) take ids in turn, so the two must have no common factor:
        the largest such number that still gives `share`.
        """
        every = max(1, int(1 / self.share + 1e-9))
        while math.gcd(every, n_parties) != 1:
            every -= 1
        return every


Parameter = bool | int | float | str
NS_PER_US = 1_000
LARGEST_PRIORITY = 65_535  # levels of a queue; more is a mistyped number
_INT64 = range(-(2**63), 2**63)
_OWN_KEYS = {
    "priority": "clients.request.priority",
    "timeout": "clients.request.timeout",
    "binary_data_output": "clients.request.binary",
    **dict.fromkeys(("sequence_id", "sequence_start", "sequence_end"), "clients.sequences"),
}
"""Parameters that a key of their own stands for."""
_OF_TRITON = "triton_"


def _sendable(value: object) -> object:
    """Types that the protocol has, and names that are not Triton's own; what is no mapping is left for validation."""
    for name, one in value.items() if isinstance(value, Mapping) else ():
        if name in _OWN_KEYS:
            raise ValueError(f"{name}: is {_OWN_KEYS[name]}")
        if str(name).startswith(_OF_TRITON):
            raise ValueError(f"{name}: Triton keeps names that begin with {_OF_TRITON} for itself")
        is_number = type(one) is float and math.isfinite(one)
        if not (type(one) in (bool, str) or is_number or (type(one) is int and one in _INT64)):
            raise ValueError(
                f"{name}: {one!r} is no text, true, false, whole number of 64 bits or finite number"
            )
    return value


def _whole_us(duration_ns: int) -> int:
    if duration_ns % NS_PER_US:
        raise ValueError("must be whole microseconds, as Triton counts it")
    return duration_ns


class RequestConfig(Section):
    """Of every request: the outputs it asks for, parameters of the KServe v2 protocol, Triton's priority and timeout.

    `timeout_ns` is how long the server lets it wait, not the client: that is `clients.timeout`. `binary`: over HTTP
    tensors travel as bytes behind the JSON, else as numbers and texts in it. `compression`: of requests; replies come
    as they are.
    """

    outputs: Annotated[NonEmpty[Text], EACH_ONCE] | None = None
    parameters: Annotated[dict[Text, Parameter], BeforeValidator(_sendable)] = Field(default_factory=dict)
    priority: Annotated[Count, Field(le=LARGEST_PRIORITY)] | None = None
    timeout_ns: Annotated[PositiveDuration, AfterValidator(_whole_us)] | None = None
    binary: bool = True
    compression: Literal["gzip"] | None = None

    def sent_parameters(self) -> dict[str, Parameter]:
        """All that travel, by name: the timeout in µs."""
        found = dict(self.parameters)
        if self.priority is not None:
            found["priority"] = self.priority
        if self.timeout_ns is not None:
            found["timeout"] = self.timeout_ns // NS_PER_US
        return found


RoutingKind = Literal[
    "round-robin", "random", "weighted", "sticky", "trace", "least-in-flight", "two-choices", "mirror"
]
CHOSEN_AT_SEND: Final = ("least-in-flight", "two-choices")
WEIGHED = ("weighted", "sticky")
"""Kinds by which the servers' weights count."""
NO_MIRROR = "a user of a closed loop waits for one server's reply, so mirror has no meaning; use another kind"


class RoutingConfig(Section):
    """Which server gets an arrival, where there are several."""

    kind: RoutingKind = "round-robin"
    column: Text | None = None  # of the trace, by whose values kind `trace` routes

    @property
    def is_planned(self) -> bool:
        """True if the plan says which server gets an arrival; else its worker chooses at the instant of the send."""
        return self.kind not in CHOSEN_AT_SEND


LARGEST_CONCURRENT = 2**20


class SequencesConfig(Section):
    """Requests carry a correlation id, and marks of the first and the last of their sequence (`sequence_batching`).

    `length`: requests of a sequence. `concurrent`: sequences that go on at once, which a schedule's arrivals are dealt
    to in turn; of a closed loop each user has one. `order`: whether a request waits for the end of the one before it in
    its sequence. `on_failure`: whether what follows a request that failed is sent. `pinned`: to one connection.
    """

    length: WholeLaw
    concurrent: Annotated[Count, Field(le=LARGEST_CONCURRENT)] | None = None
    order: Literal["wait", "none"] = "wait"
    on_failure: Literal["stop", "continue"] = "stop"
    pinned: bool = False

    def misfits(self) -> Sentences:
        if self.pinned and self.order == "none":
            yield "pinned: a connection takes one request of its sequence at a time; use order: wait"


class CancelConfig(Section):
    """Clients that hang up: of `share` of the requests, once `after` responses have come."""

    share: _Share = 1.0
    after: Count


class StreamConfig(Section):
    """Each response becomes a row of `responses`, whether the model sends one or many.

    A decoupled model is always asked so. `tokens`: the output whose elements are the tokens of a response.
    """

    tokens: Text | None = None
    cancel: CancelConfig | None = None


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

    def misfits(self) -> Sentences:
        if not (self.inputs or self.outputs):
            yield "neither inputs nor outputs: use shared_memory: false"


Cores = Annotated[
    Literal["auto", "off"] | Count | NonEmpty[Whole],
    worded("use auto, off, a number of cores from 1, or a list of them: [6, 7]"),
]
DEFAULT_VARIANTS = 4


class ClientConfig(Section):
    """The load generators on each client node."""

    workers_per_node: Count = 2
    priority: Literal["auto", "realtime", "normal"] = "auto"  # of the threads that send
    cores: Cores = "auto"
    protocol: Literal["http", "grpc"] = "http"
    tls: TlsConfig | None = None
    unix: Text | None = None  # path on the client nodes, loaded instead of the port
    headers: dict[HeaderName, HeaderValue] = Field(default_factory=dict)  # gRPC: metadata
    spin_ns: Annotated[Duration, Field(le=LARGEST_SPIN_NS)] = 0
    timeout_ns: PositiveDuration = 5 * NS_PER_S
    largest_reply_bytes: Size | None = None  # else by the model's outputs
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

    def misfits(self) -> Sentences:
        framing = next((name for name in self.headers if name.lower() in _FRAMING), None)
        twice = repeated([name.lower() for name in self.headers])
        request, sequences, data = self.request, self.sequences, self.data
        yield from holding({
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
