"""A scenario: what is served, what is sent and what is profiled, validated and immutable.

Keys of the file that hold a quantity have no unit in their name, their values have (`timeout: 5s`);
the attributes have (`timeout_ns`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
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
from squall.scenarios.config.locust.load import LoadConfig, with_locust_phases
from squall.scenarios.config.locust.refusals import refuse_clients, refuse_models
from squall.scenarios.config.models.mix import (
    ModelEntry,
    ModelsField,
    Share,
    refuse_bad_models,
    refuse_trace_rows,
    served_at,
    shares_of,
)
from squall.scenarios.config.models.model import ModelConfig
from squall.scenarios.config.profile import ProfileConfig
from squall.scenarios.config.recordings import too_close
from squall.scenarios.config.records import RecordsConfig
from squall.scenarios.config.servers import (
    ServerConfig,
    ServerEntry,
    ServersField,
    alike,
    refuse_bad_servers,
    refuse_tls_without_its_server,
    refuse_unloaded,
    with_shared_keys,
    without_shared_keys,
)
from squall.scenarios.config.without_effect import (
    has_its_own,
    model_keys_without_effect,
    refuse_model_keys,
    refuse_server_keys,
    server_keys_without_effect,
    stated_keys,
    without_keys,
)
from squall.scenarios.fields import (
    Number,
    PositiveDuration,
    Section,
    Slug,
    Text,
    Whole,
)
from squall.scenarios.foreign_text import kept_headers
from squall.scenarios.promises import Promise, format_promises, parse_promises, refuse_strangers
from squall.scenarios.sizes import (
    LARGEST_ARRIVAL_COUNT,
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


class Scenario(Section):
    """One whole scenario. An object that exists is usable; trace files are read only by the plan."""

    name: Slug
    seed: Whole
    lone: ModelConfig | None = Field(default=None, alias="model")
    several: ModelsField | None = Field(default=None, alias="models")  # under one load, instead of `model`
    server: ServerConfig = ServerConfig()
    servers: ServersField = None  # several, loaded under one schedule; none: the one of `server`
    clients: ClientConfig = ClientConfig()
    load: LoadConfig | None = None  # None: squall's own client makes it
    phases: Annotated[tuple[PhaseConfig, ...], Field(min_length=1, max_length=LARGEST_PHASE_COUNT)]
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
    def _phases_of_locust(cls, values: Any) -> Any:
        """Phases that `load.locust` implies."""
        return with_locust_phases(values) if isinstance(values, Mapping) else values

    @model_validator(mode="before")
    @classmethod
    def _shared_server(cls, values: Any) -> Any:
        """Entries of `servers` with what `server` says of all of them."""
        if isinstance(values, Mapping) and values.get("servers") is not None:
            return {**values, "servers": with_shared_keys(values["servers"], values.get("server"))}
        return values

    @model_validator(mode="after")
    def _parts_fit(self, info: ValidationInfo) -> Scenario:
        names = [phase.name for phase in self.phases]
        twice = [name for index, name in enumerate(names) if name in names[:index]]
        if twice:
            raise ValueError(f"phases: the name {twice[0]!r} is used twice")
        if not any(phase.kind == "measure" for phase in self.phases):
            raise ValueError("phases: at least one must be of kind 'measure'")
        if sum(phase.duration_ns for phase in self.phases) >= 2**63:
            raise ValueError("phases: together they are longer than the 292 years of an int64 in ns")
        if self.phases[-1].kind != "drain":
            raise ValueError(f"phases: the last one, {names[-1]!r}, must be of kind 'drain'")
        self._refuse_two_loops()
        self._refuse_strange_load()
        self._refuse_bad_models()
        self._refuse_bad_servers()
        for where, models, server in self.named_servers():
            self._refuse_session_elsewhere(where, server)
            refuse_tls_without_its_server(self.clients.tls, self.clients.protocol, where, server)
            refuse_unloaded(models, where, server)
            self._refuse_close_recordings(server)
        for where, one in zip(self.model_keys, self.each_model(), strict=True):
            for phase in one.phases:
                one._refuse_bad_rows(phase, where)
        self._refuse_strange_promises()
        self._refuse_named_entries()
        if not (isinstance(info.context, Mapping) and info.context.get(OF_A_RUN)):
            self._refuse_without_effect()
        return self

    @property
    def model(self) -> ModelConfig:
        """The model of a scenario that has one; of another see `each_model`."""
        assert self.lone is not None, "models are several"
        return self.lone

    def each_model(self) -> tuple[Scenario, ...]:
        """For each model, in order, the scenario in which it is alone, with what `clients` and `phases` say of its
        requests; the scenario itself where it has one."""
        if self.several is None:
            return (self,)
        found = []
        for entry in self.several:
            phases = self.phases
            if entry.rows is not None:
                phases = tuple(phase.model_copy(update={"rows": None}) for phase in phases)
            own = {
                "lone": entry,
                "several": None,
                "phases": phases,
                "clients": entry.clients_of(self.clients),
            }
            found.append(self.model_copy(update=own))
        return tuple(found)

    @property
    def entry(self) -> ModelEntry | None:
        """The model, where it is one of several that is alone here (`each_model`)."""
        return self.lone if isinstance(self.lone, ModelEntry) else None

    def key_of(self, key: str) -> str:
        """Where that key of `clients` stands for the model: with the model, where it is one of several that has its
        own."""
        entry = self.entry
        is_own = entry is not None and getattr(entry, key, None) is not None
        return f"models.{self.model.name}.{key}" if is_own else f"clients.{key}"

    @property
    def has_data(self) -> bool:
        """Whether the inputs of some model are the user's."""
        return any(one.clients.data is not None for one in self.each_model())

    @property
    def model_names(self) -> tuple[str, ...]:
        """In order."""
        return tuple(one.name for one in self.several or (self.model,))

    def served_at(self, n_servers: int) -> tuple[tuple[int, ...], ...]:
        """The servers of each model, by their numbers."""
        return (tuple(range(n_servers)),) if self.several is None else served_at(self.several, n_servers)

    def models_at(self, server: str) -> tuple[ModelConfig, ...]:
        """Those that the server of that name serves, in order."""
        if self.several is None:
            return (self.model,)
        entries = self.server_entries()
        number = int(server.rpartition("-")[2])
        of_model = self.served_at(number + 1 if entries is None else len(entries))
        return tuple(one for one, servers in zip(self.several, of_model, strict=True) if number in servers)

    def shares_of(self, phase: PhaseConfig) -> tuple[float, ...]:
        """Of each model in the requests of a phase, to those of the others."""
        if self.several is None:
            return (1.0,)
        return shares_of(self.several, phase.shares, f"phases.{phase.name}.shares")

    def rows_of(self, phase: PhaseConfig) -> RowsConfig:
        """How many rows the requests of a phase carry: its own law, else that of the clients."""
        return phase.rows if phase.rows is not None else self.clients.rows

    @property
    def model_keys(self) -> tuple[str, ...]:
        """The key path of each model."""
        return ("model",) if self.several is None else tuple(f"models[{i}]" for i in range(len(self.several)))

    def _refuse_bad_models(self) -> None:
        """One model or several, and shares that are of these."""
        if self.lone is not None and self.several is not None:
            raise ValueError("models: stands beside model, which is for one; use one of the two")
        if self.lone is None and self.several is None:
            raise ValueError("model: missing, it must be given, or models, for several")
        for phase in self.phases:
            where = f"phases.{phase.name}.shares"
            if phase.shares is not None and self.several is None:
                raise ValueError(f"{where}: are of a scenario with models, this one has one model")
            if phase.shares is not None and phase.arrivals is None:
                raise ValueError(f"{where}: a drain sends nothing, remove them")
        if self.several is None:
            return
        entries = self.server_entries()
        refuse_bad_models(self.several, self.clients, None if entries is None else len(entries))
        for phase in self.phases:
            refuse_trace_rows(f"phases.{phase.name}.rows", phase.rows)
            if phase.arrivals is not None:
                self.shares_of(phase)

    def _refuse_bad_rows(self, phase: PhaseConfig, of_model: str) -> None:
        """No more rows than a batch takes, and rows and sessions of a trace only where there is one; `of_model`: key
        path of the model, which this scenario has alone."""
        where = "clients.rows" if phase.rows is None else f"phases.{phase.name}.rows"
        rows, most = self.rows_of(phase), self.model.max_batch_size
        if max_rows(rows) > most:
            raise ValueError(
                f"{self._rows_key(where, of_model)}: up to {max_rows(rows)} rows are above"
                f" {of_model}.max_batch_size {most}"
            )
        if phase.arrivals is None or isinstance(phase.arrivals, TraceArrivals):
            return
        if isinstance(rows, TraceRows):
            raise ValueError(
                f"{where}: kind 'trace' is for phases whose arrivals are a trace; give phases.{phase.name}.rows of its"
                " own, such as kind 'empirical' with the same file"
            )

    def _rows_key(self, where: str, of_model: str) -> str:
        """Where the rows stand: with the model, where it has its own."""
        return f"{of_model}.rows" if getattr(self.model, "rows", None) is not None else where

    @property
    def _is_closed(self) -> bool:
        return any(isinstance(phase.arrivals, UserArrivals) for phase in self.phases)

    def server_entries(self) -> tuple[ServerEntry, ...] | None:
        """One entry for each server, server-0 first; None where the nodes say how many: then `entries_for`."""
        if isinstance(self.servers, tuple):
            return self.servers
        if self.servers is not None and self.servers.count is None:
            return None
        return self.entries_for(1 if self.servers is None else self.servers.count or 1)

    def entries_for(self, n_servers: int) -> tuple[ServerEntry, ...]:
        """So many servers as `server` says."""
        return alike(self.server, n_servers)

    @property
    def is_started(self) -> bool:
        """Whether squall starts the servers: all of them, or none."""
        entries = self.server_entries()
        return entries is None or entries[0].url is None

    def named_servers(self) -> list[tuple[str, tuple[str, ...], ServerConfig]]:
        """Each server's settings, with the key path that they stand at and the names of the models there."""
        if not isinstance(self.servers, tuple):
            return [("server", self.model_names, self.server)]
        names = [
            tuple(one.name for one in self.models_at(f"server-{index}")) for index in range(len(self.servers))
        ]
        return [(f"servers[{index}]", names[index], entry) for index, entry in enumerate(self.servers)]

    def _refuse_bad_servers(self) -> None:
        """What several servers cannot have together, and routing that cannot be."""
        self._refuse_bad_column()
        routing = self.clients.routing
        if routing.kind == "mirror" and self._is_closed:
            raise ValueError(f"clients.routing: {NO_MIRROR}")
        if self.servers is None:
            return
        refuse_bad_servers(self.server, self.servers)
        entries = self.servers if isinstance(self.servers, tuple) else ()
        if len({entry.weight for entry in entries}) > 1 and not routing.is_weighed:
            raise ValueError(
                f"servers: have different weights, and clients.routing {routing.kind!r} takes none; use"
                f" {' or '.join(WEIGHED)}"
            )
        if self.profile.nsys != "off" and len(entries) != 1:
            raise ValueError("profile.nsys: nsys profiles a run of one server, and servers are several")
        if self.clients.shared_memory is not None and len(entries) != 1:
            raise ValueError("clients.shared_memory: is shared with one server, and servers are several")
        if self.clients.unix is not None and len(entries) != 1:
            raise ValueError("clients.unix: is the socket of one server, and servers are several")

    def _refuse_bad_column(self) -> None:
        """The column of a trace that routes is read in place of its sessions, so nothing else may want these."""
        clients = self.clients
        is_by_trace = clients.routing.kind == "trace"
        if is_by_trace != (clients.routing.column is not None):
            raise ValueError("clients.routing: kind 'trace' and column, that of the trace, go together")
        if not is_by_trace:
            return
        if clients.deal == "session":
            raise ValueError(
                f"clients.deal: by session needs the trace's sessions, and clients.routing takes column"
                f" {clients.routing.column!r} for them; use sequence or hash"
            )
        for phase in self.phases:
            arrivals = phase.arrivals
            if phase.kind == "measure" and not isinstance(arrivals, TraceArrivals):
                raise ValueError(
                    f"clients.routing: kind 'trace' needs arrivals of kind 'trace', and phase {phase.name!r} has others"
                )
            if isinstance(arrivals, TraceArrivals) and isinstance(arrivals.rate_scale, OTHER_SESSIONS):
                raise ValueError(
                    f"phases.{phase.name}.arrivals.rate_scale: {arrivals.rate_scale.kind!r} makes other sessions, and"
                    f" clients.routing takes column {clients.routing.column!r} for them; use thin or envelope"
                )

    def _refuse_named_entries(self) -> None:
        """Entries of the data that a trace names need the trace."""
        data = self.clients.data
        if data is None or data.order.kind != "trace":
            return
        for phase in self.phases:
            if phase.kind == "measure" and not isinstance(phase.arrivals, TraceArrivals):
                raise ValueError(
                    f"clients.data.order: kind 'trace' needs arrivals of kind 'trace', and phase {phase.name!r} has"
                    " others; use sequence, random or zipf"
                )

    def _refuse_session_elsewhere(self, where: str, server: ServerConfig) -> None:
        """A session of the user's is for servers of the user's, and for a run that records."""
        if self.profile.nsys_session is None:
            return
        if server.url is None:
            raise ValueError(
                f"profile.nsys_session: is for a server at {where}.url; squall names its own session"
            )
        if self.profile.nsys == "off":
            raise ValueError("profile.nsys_session: profile.nsys is off, add nsys: auto or required")

    def _refuse_close_recordings(self, server: ServerConfig) -> None:
        """A second recording that cannot begin in time is a profile that is not there: told before the run."""
        profile = self.profile
        is_out_of_reach = server.image is not None or (
            server.url is not None and profile.nsys_session is None
        )
        if profile.nsys == "off" or is_out_of_reach:
            return
        is_cpu_head = server.url is None and all(
            one.model.repository is None and (one.model.framework == "numpy" or one.model.device == "cpu")
            for one in self.each_model()
        )
        phases = [(phase.name, phase.kind, phase.duration_ns) for phase in self.phases]
        trouble = too_close(phases, "cuda" in profile.trace and not is_cpu_head)
        if trouble:
            raise ValueError(f"phases: {trouble}")

    def _refuse_two_loops(self) -> None:
        """A closed loop has service times only; beside response times they would be taken for these."""
        loaded = [phase for phase in self.phases if phase.arrivals is not None]
        closed = [phase.name for phase in loaded if isinstance(phase.arrivals, ClosedArrivals)]
        other = [phase.name for phase in loaded if not isinstance(phase.arrivals, ClosedArrivals)]
        if closed and other:
            raise ValueError(
                f"phases: {closed[0]!r} is closed-loop and {other[0]!r} is not, use one or the other: service"
                " times of a closed loop are never mixed with response times"
            )

    def _refuse_strange_load(self) -> None:
        """Phases of Locust's users only where there are some, and then no others; and what means nothing to these."""
        for phase in self.phases:
            where = f"phases.{phase.name}"
            if (
                isinstance(phase.arrivals, LocustArrivals) != (self.load is not None)
                and phase.arrivals is not None
            ):
                raise ValueError(
                    f"{where}.arrivals: kind 'locust' is of a scenario with load.locust"
                    if self.load is None
                    else f"{where}.arrivals: load.locust says what is sent; leave arrivals out"
                )
            stated = next(
                (key for key in ("timeout_ns", "rows", "shares") if getattr(phase, key) is not None), None
            )
            if self.load is not None and stated is not None:
                key = stated.removesuffix("_ns")
                raise ValueError(f"{where}.{key}: the locustfile says what its users send; leave it out")
        if self.load is None:
            return
        if self.load.locust.run_time_ns is not None and self.phases != self._phases_of_run_time():
            raise ValueError("load.locust.run_time: phases say how long the run is; leave one of both out")
        self._refuse_users_beyond_the_end(self.load.locust.stop_timeout_ns)
        refuse_clients(self.clients)
        refuse_models(self.several or ())

    def _refuse_users_beyond_the_end(self, stop_timeout_ns: int | None) -> None:
        """Users of Locust end in the last drains."""
        left_ns = 0
        for phase in reversed(self.phases):
            if phase.kind != "drain":
                break
            left_ns += phase.duration_ns
        if stop_timeout_ns is not None and stop_timeout_ns > left_ns:
            timeout, drain = format_duration(stop_timeout_ns), format_duration(left_ns)
            raise ValueError(
                f"load.locust.stop_timeout: {timeout} is longer than the drain of {drain}, in which users end"
            )

    def _phases_of_run_time(self) -> tuple[PhaseConfig, ...]:
        """As `load.locust` implies them."""
        assert self.load is not None
        load = self.load.model_dump(mode="json", by_alias=True, exclude_none=True)
        implied = with_locust_phases({"load": load})["phases"]
        return tuple(PhaseConfig.model_validate(one) for one in implied)

    def _refuse_strange_promises(self) -> None:
        """Promises about what this scenario does not have."""
        entries = self.server_entries()
        servers = None if entries is None else [f"server-{index}" for index in range(len(entries))]
        measured = {phase.name: phase.duration_ns for phase in self.phases if phase.kind == "measure"}
        is_closed = self._is_closed
        try:
            refuse_strangers(self.promises or (), measured, servers, self.model_names, is_closed)
        except ValueError as error:
            raise ValueError(f"promises: {error}") from error
        if self.stop_when is not None and (self.promises is None or is_closed):
            why = (
                "nothing is promised"
                if self.promises is None
                else "a closed loop has no known number of requests"
            )
            raise ValueError(f"stop_when: {self.stop_when} is for promises over a schedule, and {why}")

    def to_mapping(self) -> dict[str, Any]:
        """The scenario with every default that means something, in plain types with units: it loads back to an equal
        one."""
        mapping = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        if isinstance(self.servers, tuple):
            mapping["servers"] = without_shared_keys(mapping["servers"], mapping["server"])
        models = [
            without_keys(part, one._idle_keys())
            for part, one in zip(mapping.get("models") or [mapping["model"]], self.each_model(), strict=True)
        ]
        mapping |= {"model": models[0]} if self.several is None else {"models": models}
        if not self.is_started:
            idle = server_keys_without_effect(self.named_servers()[0][2])
            mapping["server"] = without_keys(mapping["server"], idle)
            if "servers" in mapping:
                mapping["servers"] = [without_keys(one, idle) for one in mapping["servers"]]
        return mapping

    def to_kept(self) -> dict[str, Any]:
        """`to_mapping` for what is kept of a run: without values of headers that are written out, which may be secrets;
        in their place stands the variable that whoever runs it again must set."""
        mapping = self.to_mapping()
        headers = mapping["clients"].get("headers") or {}
        if headers:
            mapping["clients"]["headers"] = kept_headers(headers)
        return mapping

    def _idle_keys(self) -> tuple[str, ...]:
        """Keys of its one model that change nothing, and, where the server's own configuration has it, the default of
        `max_batch_size`."""
        keys = model_keys_without_effect(self.model, self.is_started, self._has_zoo_check)
        is_default = "max_batch_size" not in stated_keys(self.model)
        return (*keys, "max_batch_size") if keys and is_default else keys

    @property
    def _has_zoo_check(self) -> bool:
        """Whether replies of its one model are held to the weights of the zoo's."""
        return self.clients.check is not None and self.clients.check.is_of_zoo

    def _refuse_without_effect(self) -> None:
        """Stated keys that change nothing."""
        for where, one in zip(self.model_keys, self.each_model(), strict=True):
            refuse_model_keys(where, one.model, self.is_started, one._has_zoo_check)
        for where, _, server in self.named_servers():
            refuse_server_keys(where, server)

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
        for key, one in zip(scenario.model_keys, scenario.each_model(), strict=True):
            model = one.model
            loaded = server.control.load.get(model.name) if server.control is not None else None
            is_configured = loaded is not None and "max_batch_size" in loaded.config
            if is_configured or (scenario.is_started and model.repository is None):
                continue
            place = (model.name, server.url or model.repository or "")
            if sizes.setdefault(place, model.max_batch_size) != model.max_batch_size:
                raise ValueError(
                    f"{key}.max_batch_size: {sizes[place]} and {model.max_batch_size} differ, and"
                    f" {has_its_own(scenario.is_started)}: change it there with"
                    f" server.control.load.{model.name}.config.max_batch_size"
                )
