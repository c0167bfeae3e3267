"""A scenario: what is served, what is sent and what is profiled, validated and immutable.

Keys of the file that hold a quantity have no unit in their name, their values have (`timeout: 5s`);
the attributes have (`timeout_ns`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
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
from squall.scenarios.arrivals.scaling import Ratio
from squall.scenarios.arrivals.users import ClosedArrivals
from squall.scenarios.arrivals.varying import EnvelopeArrivals
from squall.scenarios.config.client import ClientConfig
from squall.scenarios.config.locust import LoadConfig, with_users
from squall.scenarios.config.models import ModelConfig, ModelEntry, ModelScenario
from squall.scenarios.config.profile import ProfileConfig
from squall.scenarios.config.records import RecordsConfig
from squall.scenarios.config.rows import RowsConfig
from squall.scenarios.config.rules import keys_without_effect, misfits, server_keys_without_effect
from squall.scenarios.config.servers import ServerConfig, ServerEntry, ServersCount, ServersField, shared_of
from squall.scenarios.errors import Sentences, refuse
from squall.scenarios.fields import (
    Keys,
    NonNegative,
    PositiveDuration,
    Probability,
    Section,
    Slug,
    Text,
    Whole,
    repeated,
    stated_keys,
)
from squall.scenarios.foreign_text import kept_headers
from squall.scenarios.promises import Promise, format_promises, parse_promises
from squall.scenarios.sizes import (
    LARGEST_ARRIVAL_COUNT,
    LARGEST_MODEL_COUNT,
    LARGEST_PHASE_COUNT,
)
from squall.scenarios.units import NS_PER_S, digits_text, format_duration


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
    timeout_ns: PositiveDuration | None = None  # else that of the clients
    rows: RowsConfig | None = None  # else those of the clients
    shares: dict[Text, NonNegative] | None = (
        None  # by model, one that is left out has none; else those of the models
    )

    def misfits(self) -> Sentences:
        arrivals, duration_ns = self.arrivals, self.duration_ns
        if self.kind == "drain" and arrivals:
            yield "a drain sends nothing, remove arrivals"
        if self.kind != "drain" and not arrivals:
            yield f"a {self.kind} phase needs arrivals"
        if not isinstance(arrivals, UserArrivals | None):
            expected = arrivals.stated_count(self.drawn_ns)
            if expected > LARGEST_ARRIVAL_COUNT:
                yield f"{digits_text(expected)} requests are above the {LARGEST_ARRIVAL_COUNT:,} of a phase"
        elif self.speed is not None:
            what = "closed loop" if arrivals else "drain"
            yield f"speed: a {what} has no schedule that could be faster or slower; leave it out"
        if isinstance(arrivals, EnvelopeArrivals) and arrivals.curve and arrivals.bin_ns:
            n_bins = math.ceil(self.drawn_ns / arrivals.bin_ns)
            if not any(arrivals.curve[:n_bins]):
                yield f"the curve is 0 over the whole phase, which holds its first {n_bins} bins"
        if isinstance(arrivals, ClosedArrivals) and arrivals.ramp_ns > duration_ns:
            ramp, length = format_duration(arrivals.ramp_ns), format_duration(duration_ns)
            yield f"the ramp of {ramp} is longer than the phase of {length}"

    @property
    def duration_ns(self) -> int:
        """Length of the phase in the run: drawn_ns / speed, rounded up, so that every arrival is before its end."""
        return self.drawn_ns if self.speed is None else math.ceil(self.drawn_ns / self.speed)


class ExpectConfig(Section):
    """What the user expects of the server: what goes beyond it leads the verdict, and makes no run INVALID."""

    failures: Probability = 0.01  # share of the measured requests that may fail


STRUCK: dict[str, Keys] = {"clients": {"lease": "5s"}, "records": {"keep": "gathered"}}
"""Keys that earlier versions had, at their defaults: a digest counts them, so that runs from before still compare."""

OF_A_RUN = "of a run"
"""In the context of a validation: the mapping is that of a run that was, by any version, and is not judged anew."""

DRAIN_NS = 30 * NS_PER_S
"""What Locust's users have to end the task that they are in where no phases are stated, unless more is."""

PromisesField = Annotated[
    tuple[Promise, ...] | None, BeforeValidator(parse_promises), PlainSerializer(format_promises)
]
"""What the service is held to; a mapping from metrics to conditions in the file."""


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
        values = dict(values)
        load, server, phases = values.get("load"), values.get("server"), values.get("phases")
        if phases is None:
            values.pop("phases", None)
        elif isinstance(load, Mapping) and "locust" in load and isinstance(phases, list | tuple):
            values["phases"] = [with_users(phase) for phase in phases]
        if isinstance(values.get("servers"), list | tuple) and isinstance(server, Mapping):
            values["servers"] = [
                {**shared_of(server), **entry} if isinstance(entry, Mapping) else entry
                for entry in values["servers"]
            ]
        return values

    @model_validator(mode="after")
    def _sections_fit(self, info: ValidationInfo) -> Scenario:
        run_time_ns = None if self.load is None else self.load.locust.run_time_ns
        if not self.phases and run_time_ns is not None:
            object.__setattr__(self, "phases", self.phases_of_run_time())
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
        for why in misfits(self, bool(is_of_a_run)):
            raise ValueError(why)
        return self

    @property
    def models(self) -> tuple[ModelScenario, ...]:
        """Each model under load, in order."""
        entries = [(f"models[{index}]", entry) for index, entry in enumerate(self.stated_models or ())]
        if self.stated_model is not None:  # is one that has nothing of its own
            stated = self.stated_model
            entries = [("model", ModelEntry.model_construct(stated.model_fields_set, **dict(stated)))]
        return tuple(
            ModelScenario(key, entry, self.clients.model_copy(update=entry.own_of_clients()), self.seed)
            for key, entry in entries
        )

    @property
    def model_names(self) -> tuple[str, ...]:
        """In order."""
        return tuple(one.model.name for one in self.models)

    @property
    def has_data(self) -> bool:
        """Whether the inputs of some model are the user's."""
        return any(one.clients.data is not None for one in self.models)

    def served_at(self, n_servers: int) -> tuple[tuple[int, ...], ...]:
        """The servers of each model, by their numbers, sorted. Raises ValueError for one that there is not."""
        names = [f"server-{number}" for number in range(n_servers)]
        served = []
        for one in self.models:
            stated = range(n_servers) if one.model.servers is None else one.model.servers
            numbers = [names.index(server) if server in names else server for server in stated]
            twice, where = repeated(numbers), f"{one.key}.servers"
            refuse({
                **{
                    f"{where}: there is no server {server!r}, there are {', '.join(names)}": (
                        server not in range(n_servers)
                    )
                    for server in numbers
                },
                f"{where}: names server-{twice} twice": twice is not None,
            })  # fmt: skip
            served.append(tuple(sorted(map(int, numbers))))
        return tuple(served)

    def models_at(self, server: str) -> tuple[ModelConfig, ...]:
        """Those that the server of that name serves, in order."""
        number = int(server.rpartition("-")[2])
        of_model = self.served_at(number + 1 if self.servers is None else len(self.servers))
        return tuple(
            one.model for one, servers in zip(self.models, of_model, strict=True) if number in servers
        )

    def shares_of(self, phase: PhaseConfig) -> tuple[float, ...]:
        """Of each model in the requests of a phase, to those of the others. Raises ValueError for a share of a model
        that there is not, and where nothing is left."""
        own, where, names = phase.shares, f"phases.{phase.name}.shares", self.model_names
        shares = tuple(
            one.model.share if own is None else own.get(one.model.name, 0.0) for one in self.models
        )
        refuse({
            **{
                f"{where}.{name}: there is no such model, there are {', '.join(names)}": name not in names
                for name in own or ()
            },
            f"{'models' if own is None else where}: the shares are all 0, one must be above": not any(shares),
        })  # fmt: skip
        return shares

    @property
    def servers(self) -> tuple[ServerEntry, ...] | None:
        """One entry for each server, server-0 first; None where the nodes say how many: then `entries_for`."""
        stated = self.stated_servers
        if isinstance(stated, ServersCount):
            return None if stated.count is None else self.entries_for(stated.count)
        return self.entries_for(1) if stated is None else stated

    def entries_for(self, n_servers: int) -> tuple[ServerEntry, ...]:
        """So many servers as `server` says."""
        return (ServerEntry.model_construct(**dict(self.server)),) * n_servers

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
    def is_closed(self) -> bool:
        """Whether users make the load, squall's or Locust's: they have no schedule."""
        return any(isinstance(phase.arrivals, UserArrivals) for phase in self.phases)

    def phases_of_run_time(self) -> tuple[PhaseConfig, ...]:
        """As `load.locust.run_time` implies them: warmup until all users are there, `run_time`, and what they have to
        end their tasks."""
        assert self.load is not None
        locust = self.load.locust
        lengths = {
            "warmup": NS_PER_S + math.ceil(locust.users / locust.spawn_rate * NS_PER_S),
            "measure": locust.run_time_ns or 0,
            "drain": max(DRAIN_NS, locust.stop_timeout_ns or 0),
        }
        phases = [
            {"name": kind, "kind": kind, "duration": format_duration(length_ns)}
            for kind, length_ns in lengths.items()
        ]
        return tuple(map(PhaseConfig.model_validate, map(with_users, phases)))

    def to_mapping(self) -> Keys:
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

    def to_kept(self) -> Keys:
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


def with_struck_keys(mapping: Keys) -> Keys:
    """The mapping of a scenario with `STRUCK` at their defaults, as digests count them."""
    return {**mapping, **{section: mapping[section] | struck for section, struck in STRUCK.items()}}
