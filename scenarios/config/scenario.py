"""A scenario: what is served, what is sent and what is profiled, validated and immutable.

Keys of the file that hold a quantity have no unit in their name, their values have (`timeout: 5s`);
the attributes have (`timeout_ns`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    ValidationInfo,
    model_validator,
)

from squall.scenarios.arrivals.kinds import ArrivalsConfig, UserArrivals
from squall.scenarios.arrivals.replay import TraceArrivals
from squall.scenarios.arrivals.scaling import OTHER_SESSIONS, Ratio
from squall.scenarios.arrivals.users import ClosedArrivals, LocustArrivals
from squall.scenarios.arrivals.varying import EnvelopeArrivals
from squall.scenarios.config.clients.client import ClientConfig
from squall.scenarios.config.clients.routing import NO_MIRROR, WEIGHED
from squall.scenarios.config.clients.rows import RowsConfig, TraceRows, max_rows
from squall.scenarios.config.locust import LoadConfig, implied_phases, with_locust_arrivals
from squall.scenarios.config.models import (
    NO_TRACE_ROWS,
    ModelConfig,
    ModelEntry,
    ModelScenario,
    Share,
    has_its_own,
    keys_without_effect,
    misfits_of_several,
    model_scenarios,
    served_at,
    shares_of,
    why_without_effect,
)
from squall.scenarios.config.profile import ProfileConfig, too_close
from squall.scenarios.config.records import RecordsConfig
from squall.scenarios.config.servers import (
    OWN_KEYS,
    ServerConfig,
    ServerEntry,
    ServersCount,
    ServersField,
    misfits_of_list,
    misfits_of_server,
    server_keys_without_effect,
    shared_of,
)
from squall.scenarios.fields import (
    Number,
    PositiveDuration,
    Section,
    Slug,
    Text,
    Whole,
    refuse,
    repeated,
    stated_keys,
)
from squall.scenarios.foreign_text import kept_headers
from squall.scenarios.promises import Promise, format_promises, parse_promises, refuse_strangers
from squall.scenarios.sizes import (
    LARGEST_ARRIVAL_COUNT,
    LARGEST_MODEL_COUNT,
    LARGEST_PHASE_COUNT,
)
from squall.scenarios.units import digits_text, format_duration


def _none_of_one(speed: Fraction) -> Fraction | None:
    """A speed of 1 is none: one schedule has one digest."""
    return None if speed == 1 else speed


class PhaseConfig(Section):
    """A stretch of the run; phases follow each other without a gap.

    Its arrivals are drawn over `drawn_ns`, and their instants divided by `speed`: the same requests, shape and routing
    at `speed` times the rate, in a stretch of `duration_ns`.
    """

    name: Slug
    kind: Literal["warmup", "measure", "drain"]
    drawn_ns: PositiveDuration = Field(alias="duration")
    arrivals: ArrivalsConfig | None = None
    speed: Annotated[Ratio, AfterValidator(_none_of_one)] | None = None  # None: 1
    timeout_ns: PositiveDuration | None = Field(default=None, alias="timeout")  # else that of the clients
    rows: RowsConfig | None = None  # else those of the clients
    shares: dict[Text, Share] | None = (
        None  # by model, one that is left out has none; else those of the models
    )

    @model_validator(mode="after")
    def _arrivals_by_kind(self) -> PhaseConfig:
        if (self.kind == "drain") != (self.arrivals is None):
            raise ValueError(
                "a drain sends nothing, remove arrivals"
                if self.arrivals
                else f"a {self.kind} phase needs arrivals"
            )
        expected = (
            0.0
            if self.arrivals is None or isinstance(self.arrivals, UserArrivals)
            else self.arrivals.stated_count(self.drawn_ns)
        )
        if expected > LARGEST_ARRIVAL_COUNT:
            raise ValueError(
                f"{digits_text(expected)} requests are above the {LARGEST_ARRIVAL_COUNT:,} of a phase"
            )
        if isinstance(self.arrivals, EnvelopeArrivals) and self.arrivals.curve is not None:
            assert self.arrivals.bin_ns is not None
            n_bins = math.ceil(self.drawn_ns / self.arrivals.bin_ns)
            if not any(self.arrivals.curve[:n_bins]):
                raise ValueError(f"the curve is 0 over the whole phase, which holds its first {n_bins} bins")
        if isinstance(self.arrivals, ClosedArrivals) and self.arrivals.ramp_ns > self.duration_ns:
            ramp, duration = format_duration(self.arrivals.ramp_ns), format_duration(self.duration_ns)
            raise ValueError(f"the ramp of {ramp} is longer than the phase of {duration}")
        return self

    @model_validator(mode="after")
    def _speed_of_a_schedule(self) -> PhaseConfig:
        if self.speed is not None and (self.arrivals is None or isinstance(self.arrivals, UserArrivals)):
            without = "a drain" if self.arrivals is None else "a closed loop"
            raise ValueError(f"speed: {without} has no schedule that could be faster or slower; leave it out")
        return self

    @property
    def duration_ns(self) -> int:
        """Length of the phase in the run: drawn_ns / speed, rounded up, so that every arrival is before its end."""
        return self.drawn_ns if self.speed is None else math.ceil(self.drawn_ns / self.speed)


class ExpectConfig(Section):
    """What the user expects of the server: what goes beyond it leads the verdict, and makes no run INVALID."""

    failures: Annotated[Number, Field(ge=0, le=1)] = 0.01  # share of the measured requests that may fail


STRUCK: dict[str, dict[str, Any]] = {"clients": {"lease": "5s"}, "records": {"keep": "gathered"}}
"""Keys that earlier versions had, at their defaults: a digest counts them, so that runs from before still compare."""

OF_A_RUN = "of a run"
"""In the context of a validation: the mapping is that of a run that was, by any version, and is not judged anew."""

PromisesField = Annotated[
    tuple[Promise, ...] | None, BeforeValidator(parse_promises), PlainSerializer(format_promises)
]
"""What the service is held to; a mapping from metrics to conditions in the file."""


_OF_LOCUST = {
    "workers_per_node", "on_client_loss", "inputs", "payload_variants", "request", "headers", "timeout_ns",
    "largest_reply_bytes",
}  # fmt: skip
"""Keys of `clients` that mean something beside Locust's load: of its workers, and of what a TritonUser sends."""


class Scenario(Section):
    """One whole scenario. An object that exists is usable; trace files are read only by the plan.

    A file states one model (`model`) or several (`models`), and one server (`server`) or several (`servers`, which
    have in common what `server` says); here `models` and `servers` are lists, and what the file states has other names.
    """

    name: Slug
    seed: Whole
    stated_model: ModelConfig | None = Field(default=None, alias="model")
    stated_models: Annotated[
        tuple[ModelEntry, ...] | None, Field(min_length=2, max_length=LARGEST_MODEL_COUNT)
    ] = Field(default=None, alias="models")  # under one load, instead of `model`
    server: ServerConfig = ServerConfig()
    stated_servers: ServersField = Field(default=None, alias="servers")  # loaded under one schedule
    clients: ClientConfig = ClientConfig()
    load: LoadConfig | None = None  # None: squall's own client makes it
    phases: Annotated[tuple[PhaseConfig, ...], Field(min_length=1, max_length=LARGEST_PHASE_COUNT)] = ()
    profile: ProfileConfig = ProfileConfig()
    expect: ExpectConfig = ExpectConfig()
    promises: PromisesField = None
    stop_when: Literal["decided"] | None = None  # the load ends where the outcome of all promises is certain
    stop_when_failing: PositiveDuration | None = (
        None  # the load ends where all requests have failed for so long
    )
    records: RecordsConfig = RecordsConfig()

    @model_validator(mode="before")
    @classmethod
    def _filled_in(cls, values: Any) -> Any:
        """Arrivals that `load.locust` implies, and in entries of `servers` what `server` says of all of them."""
        if not isinstance(values, Mapping):
            return values
        values, server = dict(with_locust_arrivals(values)), values.get("server")
        if values.get("phases") is None:
            values.pop("phases", None)
        if isinstance(values.get("servers"), list | tuple) and isinstance(server, Mapping):
            entries = [
                {**shared_of(server), **entry} if isinstance(entry, Mapping) else entry
                for entry in values["servers"]
            ]
            return {**values, "servers": entries}
        return values

    @model_validator(mode="after")
    def _parts_fit(self, info: ValidationInfo) -> Scenario:
        run_time_ns = None if self.load is None else self.load.locust.run_time_ns
        if not self.phases and run_time_ns is not None:
            object.__setattr__(self, "phases", self._phases_of_run_time())
        refuse(
            {
                "phases: missing, they must be given, or load.locust.run_time": not self.phases,
                "models: stands beside model, which is for one; use one of the two": (
                    self.stated_model and self.stated_models
                ),
                "model: missing, it must be given, or models, for several": not (
                    self.stated_model or self.stated_models
                ),
            }
        )
        is_of_a_run = isinstance(info.context, Mapping) and info.context.get(OF_A_RUN)
        checks = [
            self._misfits_of_phases, self._misfits_of_locust, self._misfits_of_models, self._misfits_of_servers,
            self._misfits_of_traces, self._misfits_of_promises, *([] if is_of_a_run else [self._without_effect]),
        ]  # fmt: skip
        for check in checks:
            for why in check():
                raise ValueError(why)
        return self

    @property
    def models(self) -> tuple[ModelScenario, ...]:
        """Each model under load, in order."""
        return model_scenarios(self.stated_model, self.stated_models, self.clients, self.seed)

    @property
    def model_names(self) -> tuple[str, ...]:
        """In order."""
        return tuple(one.model.name for one in self.models)

    @property
    def has_data(self) -> bool:
        """Whether the inputs of some model are the user's."""
        return any(one.clients.data is not None for one in self.models)

    def served_at(self, n_servers: int) -> tuple[tuple[int, ...], ...]:
        """The servers of each model, by their numbers."""
        return served_at(self.models, n_servers)

    def models_at(self, server: str) -> tuple[ModelConfig, ...]:
        """Those that the server of that name serves, in order."""
        number = int(server.rpartition("-")[2])
        of_model = self.served_at(number + 1 if self.servers is None else len(self.servers))
        return tuple(
            one.model for one, servers in zip(self.models, of_model, strict=True) if number in servers
        )

    def shares_of(self, phase: PhaseConfig) -> tuple[float, ...]:
        """Of each model in the requests of a phase, to those of the others."""
        return shares_of(self.models, phase.shares, f"phases.{phase.name}.shares")

    @property
    def servers(self) -> tuple[ServerEntry, ...] | None:
        """One entry for each server, server-0 first; None where the nodes say how many: then `entries_for`."""
        stated = self.stated_servers
        if isinstance(stated, ServersCount):
            return None if stated.count is None else self.entries_for(stated.count)
        return self.entries_for(1) if stated is None else stated

    def entries_for(self, n_servers: int) -> tuple[ServerEntry, ...]:
        """So many servers as `server` says."""
        settings = self.server.model_dump(mode="json", by_alias=True, exclude_none=True)
        return (ServerEntry.model_validate(settings),) * n_servers

    @property
    def has_named_servers(self) -> bool:
        """Whether a file states `servers`, so that messages name each."""
        return self.stated_servers is not None

    @property
    def is_started(self) -> bool:
        """Whether squall starts the servers: all of them, or none."""
        return self.servers is None or self.servers[0].url is None

    def named_servers(self) -> list[tuple[str, tuple[str, ...], ServerConfig]]:
        """Each server that is stated, with its key path and the names of the models there."""
        if not isinstance(self.stated_servers, tuple):
            return [("server", self.model_names, self.server)]
        return [
            (f"servers[{index}]", tuple(one.name for one in self.models_at(f"server-{index}")), entry)
            for index, entry in enumerate(self.stated_servers)
        ]

    @property
    def _is_closed(self) -> bool:
        return any(isinstance(phase.arrivals, UserArrivals) for phase in self.phases)

    def _misfits_of_phases(self) -> Iterator[str]:
        """What phases cannot be together, as sentences that begin with a key path, as in the methods below."""
        twice = repeated([phase.name for phase in self.phases])
        if twice is not None:
            yield f"phases: the name {twice!r} is used twice"
        if not any(phase.kind == "measure" for phase in self.phases):
            yield "phases: at least one must be of kind 'measure'"
        if sum(phase.duration_ns for phase in self.phases) >= 2**63:
            yield "phases: together they are longer than the 292 years of an int64 in ns"
        if self.phases[-1].kind != "drain":
            yield f"phases: the last one, {self.phases[-1].name!r}, must be of kind 'drain'"
        loaded = [phase for phase in reversed(self.phases) if phase.arrivals is not None]
        by_loop = {isinstance(phase.arrivals, ClosedArrivals): phase.name for phase in loaded}
        if len(by_loop) > 1:  # a closed loop has service times only, which would be taken for response times
            yield (
                f"phases: {by_loop[True]!r} is closed-loop and {by_loop[False]!r} is not, use one or the other: service"
                " times of a closed loop are never mixed with response times"
            )

    def _misfits_of_locust(self) -> Iterator[str]:
        """Phases of Locust's users are of a scenario with Locust's load alone, which leaves no room for what squall's
        own client is told."""
        for phase in self.phases:
            where = f"phases.{phase.name}"
            if self.load is None and isinstance(phase.arrivals, LocustArrivals):
                yield f"{where}.arrivals: kind 'locust' is of a scenario with load.locust"
            if self.load is not None:
                if not isinstance(phase.arrivals, LocustArrivals | None):
                    yield f"{where}.arrivals: load.locust says what is sent; leave arrivals out"
                of_client = {"timeout": phase.timeout_ns, "rows": phase.rows, "shares": phase.shares}
                for key in filter(of_client.get, of_client):
                    yield f"{where}.{key}: the locustfile says what its users send; leave it out"
        if self.load is None:
            return
        locust = self.load.locust
        if locust.run_time_ns is not None and self.phases != self._phases_of_run_time():
            yield "load.locust.run_time: phases say how long the run is; leave one of both out"
        n_before = max(index + 1 for index, phase in enumerate(self.phases) if phase.kind != "drain")
        left_ns = sum(phase.duration_ns for phase in self.phases[n_before:])
        if locust.stop_timeout_ns is not None and locust.stop_timeout_ns > left_ns:
            timeout, drain = format_duration(locust.stop_timeout_ns), format_duration(left_ns)
            yield f"load.locust.stop_timeout: {timeout} is longer than the drain of {drain}, in which users end"
        of_own = "is of squall's own client, and load.locust has Locust's; leave it out"
        for name, field in ClientConfig.model_fields.items():
            default = field.get_default(call_default_factory=True)
            if name not in _OF_LOCUST and getattr(self.clients, name) != default:
                yield f"clients.{field.alias or name}: {of_own}"
        for one in self.models:
            if one.model.share != 1.0:
                yield f"{one.key}.share: the locustfile says which models its users ask; leave it out"
            for key in ("rows", "data", "check"):
                if getattr(one.model, key) is not None:
                    yield f"{one.key}.{key}: {of_own}"
            if one.clients.request is not None and one.clients.request.compression is not None:
                yield f"{one.place_of('request')}.compression: a TritonUser compresses nothing; leave it out"

    def _phases_of_run_time(self) -> tuple[PhaseConfig, ...]:
        """As `load.locust` implies them."""
        assert self.load is not None
        return tuple(PhaseConfig.model_validate(one) for one in implied_phases(self.load.locust)["phases"])

    def _misfits_of_models(self) -> Iterator[str]:
        """Shares, places and rows that the models under load cannot have."""
        models, is_several = self.models, self.stated_models is not None
        if is_several:
            yield from misfits_of_several(
                models, self.clients, None if self.servers is None else len(self.servers)
            )
        for phase in self.phases:
            where = f"phases.{phase.name}"
            if phase.shares is not None and not is_several:
                yield f"{where}.shares: are of a scenario with models, this one has one model"
            if phase.shares is not None and phase.arrivals is None:
                yield f"{where}.shares: a drain sends nothing, remove them"
            if is_several and isinstance(phase.rows, TraceRows):
                yield f"{where}.rows: {NO_TRACE_ROWS}"
            if phase.arrivals is not None:
                self.shares_of(phase)  # which raises for shares that cannot be
            of_phase = "clients.rows" if phase.rows is None else f"{where}.rows"
            for one in models:
                rows, most = one.rows_of(phase.rows), one.model.max_batch_size
                if max_rows(rows) > most:
                    place = of_phase if one.model.rows is None else f"{one.key}.rows"
                    yield f"{place}: up to {max_rows(rows)} rows are above {one.key}.max_batch_size {most}"
                if isinstance(rows, TraceRows) and not isinstance(phase.arrivals, TraceArrivals | None):
                    yield (
                        f"{of_phase}: kind 'trace' is for phases whose arrivals are a trace; give {where}.rows of its"
                        " own, such as kind 'empirical' with the same file"
                    )

    def _misfits_of_servers(self) -> Iterator[str]:
        """What several servers cannot have together, and what one of them cannot have."""
        clients, profile, stated = self.clients, self.profile, self.stated_servers
        if clients.routing.kind == "mirror" and self._is_closed:
            yield f"clients.routing: {NO_MIRROR}"
        if stated is not None:
            for key in OWN_KEYS:
                if getattr(self.server, key) is not None:
                    yield f"server.{key}: is of one server, write servers as a list and put it into its entries"
        if isinstance(stated, tuple):
            yield from misfits_of_list(stated)
            if len({entry.weight for entry in stated}) > 1 and not clients.routing.is_weighed:
                yield (
                    f"servers: have different weights, and clients.routing {clients.routing.kind!r} takes none; use"
                    f" {' or '.join(WEIGHED)}"
                )
        if self.servers is None or len(self.servers) > 1:
            of_one = {
                "profile.nsys": profile.nsys != "off",
                "clients.shared_memory": clients.shared_memory is not None,
                "clients.unix": clients.unix is not None,
            }
            for key in filter(of_one.get, of_one):
                yield f"{key}: is for a run of one server, and servers are several"
        if profile.nsys_session is not None and profile.nsys == "off":
            yield "profile.nsys_session: profile.nsys is off, add nsys: auto or required"
        for where, models, server in self.named_servers():
            if profile.nsys_session is not None and server.url is None:
                yield f"profile.nsys_session: is for a server at {where}.url; squall names its own session"
            yield from misfits_of_server(where, server, models, clients.tls, clients.protocol)
            if (
                profile.nsys != "off"
                and server.image is None
                and (server.url is None or profile.nsys_session)
            ):
                may_use_gpu = "cuda" in profile.trace and not (
                    server.url is None and all(one.model.is_cpu_head for one in self.models)
                )
                phases = [(phase.name, phase.kind, phase.duration_ns) for phase in self.phases]
                yield from too_close(phases, may_use_gpu)

    def _misfits_of_traces(self) -> Iterator[str]:
        """What takes a column of a trace needs the trace; a column that routes is read in place of its sessions, so
        nothing else may want these."""
        clients = self.clients
        column = clients.routing.column
        by_trace = {
            "clients.routing": clients.routing.kind == "trace",
            "clients.data.order": clients.data is not None and clients.data.order.kind == "trace",
        }
        if by_trace["clients.routing"] != (column is not None):
            yield "clients.routing: kind 'trace' and column, that of the trace, go together"
        if column is not None and clients.deal == "session":
            yield (
                f"clients.deal: by session needs the trace's sessions, and clients.routing takes column {column!r} for"
                " them; use sequence or hash"
            )
        for phase in self.phases:
            arrivals = phase.arrivals
            for key in filter(by_trace.get, by_trace):
                if phase.kind == "measure" and not isinstance(arrivals, TraceArrivals):
                    yield f"{key}: kind 'trace' needs arrivals of kind 'trace', and phase {phase.name!r} has others"
            if (
                column is not None
                and isinstance(arrivals, TraceArrivals)
                and isinstance(arrivals.rate_scale, OTHER_SESSIONS)
            ):
                yield (
                    f"phases.{phase.name}.arrivals.rate_scale: {arrivals.rate_scale.kind!r} makes other sessions, and"
                    f" clients.routing takes column {column!r} for them; use thin or envelope"
                )

    def _misfits_of_promises(self) -> Iterator[str]:
        """Promises about what this scenario does not have."""
        servers = None if self.servers is None else [f"server-{index}" for index in range(len(self.servers))]
        measured = {phase.name: phase.duration_ns for phase in self.phases if phase.kind == "measure"}
        try:
            refuse_strangers(self.promises or (), measured, servers, self.model_names, self._is_closed)
        except ValueError as error:
            yield f"promises: {error}"
        if self.stop_when is not None and self.promises is None:
            yield f"stop_when: {self.stop_when} is for promises over a schedule, and nothing is promised"
        if self.stop_when is not None and self._is_closed:
            yield f"stop_when: {self.stop_when} needs a known number of requests, which a closed loop has not"

    def _without_effect(self) -> Iterator[str]:
        """Stated keys that configure a server, or a model there, that squall does not configure."""
        for one in self.models:
            for key in keys_without_effect(one, self.is_started):
                if key in stated_keys(one.model):
                    yield f"{one.key}.{key}: {why_without_effect(key, one, self.is_started)}"
        for where, _, server in self.named_servers():
            for key in server_keys_without_effect(server):
                if key in stated_keys(server) - {"listen"}:  # which `ServerConfig` refuses
                    yield (
                        f"{where}.{key}: is for a server that squall starts, the one at url runs already; leave it out"
                    )

    def to_mapping(self) -> dict[str, Any]:
        """The scenario with every default that means something, in plain types with units, as a file states it: it
        loads back to an equal one."""
        mapping = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        for one, part in zip(self.models, mapping.get("models") or [mapping["model"]], strict=True):
            idle = keys_without_effect(one, self.is_started)
            if idle and "max_batch_size" not in stated_keys(one.model):
                idle = (*idle, "max_batch_size")  # the server's own configuration has it
            for key in idle:
                part.pop(key, None)
        servers = mapping["servers"] if isinstance(self.stated_servers, tuple) else []
        for entry in servers:
            for key, value in shared_of(mapping["server"]).items():
                if key in entry and entry[key] == value:
                    del entry[key]
        for entry in [mapping["server"], *servers] if not self.is_started else ():
            for key in server_keys_without_effect(self.named_servers()[0][2]):
                entry.pop(key, None)
        return mapping

    def to_kept(self) -> dict[str, Any]:
        """`to_mapping` for what is kept of a run: without values of headers that are written out, which may be secrets;
        in their place stands the variable that whoever runs it again must set."""
        mapping = self.to_mapping()
        headers = mapping["clients"].get("headers") or {}
        if headers:
            mapping["clients"]["headers"] = kept_headers(headers)
        return mapping

    def digest(self) -> str:
        """sha256, in hex, of the canonical JSON of `to_mapping()`: equal exactly for equal scenarios."""
        mapping = with_struck_keys(self.to_mapping())
        text = json.dumps(mapping, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode("ascii")).hexdigest()


def with_struck_keys(mapping: dict[str, Any]) -> dict[str, Any]:
    """The mapping of a scenario with `STRUCK` at their defaults, as digests count them."""
    return {**mapping, **{section: mapping[section] | struck for section, struck in STRUCK.items()}}


def refuse_as_factor(scenarios: Sequence[Scenario]) -> None:
    """Raises ValueError where scenarios that are to be compared differ in `max_batch_size` of a model whose
    configuration squall does not write: its batches would stay as they are."""
    sizes: dict[tuple[str, str], int] = {}
    for scenario in scenarios:
        server = scenario.named_servers()[0][2]
        for one in scenario.models:
            model = one.model
            loaded = server.control.load.get(model.name) if server.control is not None else None
            is_configured = loaded is not None and "max_batch_size" in loaded.config
            if is_configured or (scenario.is_started and model.repository is None):
                continue
            place = (model.name, server.url or model.repository or "")
            if sizes.setdefault(place, model.max_batch_size) != model.max_batch_size:
                raise ValueError(
                    f"{one.key}.max_batch_size: {sizes[place]} and {model.max_batch_size} differ, and"
                    f" {has_its_own(scenario.is_started)}: change it there with"
                    f" server.control.load.{model.name}.config.max_batch_size"
                )
