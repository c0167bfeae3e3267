"""What the sections of a scenario cannot have together, as sentences that begin with a key path, and keys that change
nothing where they stand. Only the first sentence counts: what follows may rest on what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from squall.scenarios.arrivals.replay import TraceArrivals
from squall.scenarios.arrivals.scaling import OTHER_SESSIONS
from squall.scenarios.arrivals.users import ClosedArrivals, LocustArrivals
from squall.scenarios.config.client import NO_MIRROR, WEIGHED, ClientConfig
from squall.scenarios.config.inputs import TraceOrder
from squall.scenarios.config.profile import too_close
from squall.scenarios.config.rows import TraceRows, max_rows
from squall.scenarios.config.servers import OWN_KEYS, ServerConfig, ServerEntry
from squall.scenarios.errors import Sentences, holding
from squall.scenarios.fields import repeated, stated_keys
from squall.scenarios.units import format_duration

if TYPE_CHECKING:
    from squall.scenarios.config.models import ModelScenario
    from squall.scenarios.config.scenario import Scenario

_OF_LOCUST: Final = {
    "workers_per_node", "on_client_loss", "inputs", "payload_variants", "request", "headers", "timeout_ns",
    "largest_reply_bytes",
}  # fmt: skip
"""Keys of `clients` that mean something beside Locust's load: of its workers, and of what a TritonUser sends."""
_BY_SERVER: Final = ("round-robin", "random", "weighted", "sticky")
"""Kinds of routing among those servers that serve the model of an arrival."""
_BATCHER: Final = "config.dynamic_batching."
_WRITTEN: Final = {
    "instances": "instances",
    "preferred_batch_sizes": f"{_BATCHER}preferred_batch_size",
    "queue_delay": f"{_BATCHER}max_queue_delay_microseconds",
    "queue": f"{_BATCHER}default_queue_policy",
    "preserve_ordering": f"{_BATCHER}preserve_ordering",
    "device": "config.instance_group",
    **dict.fromkeys(("framework", "precision", "cuda_graphs", "pinned", "compile"), "config"),
}
"""Keys of a model whose configuration squall writes, which it does where it starts Triton with a model of the zoo, and
where `server.control.load.NAME` says it of another. `version`, `max_batch_size`, `shapes` and `settings` describe a
model to the clients, whoever serves it."""


def misfits(scenario: Scenario, is_of_a_run: bool) -> Sentences:
    """What is wrong with a scenario whose sections are right by themselves. `is_of_a_run`: it ran, whatever keys it
    has without effect. Raises ValueError with a sentence as `Scenario.shares_of` and `Scenario.served_at` do."""
    yield from _of_phases(scenario)
    yield from _of_locust(scenario)
    yield from _of_models(scenario)
    yield from _of_servers(scenario)
    yield from _of_traces(scenario)
    yield from _of_promises(scenario)
    if not is_of_a_run:
        yield from _without_effect(scenario)


def _of_phases(scenario: Scenario) -> Sentences:
    phases = scenario.phases
    kinds = [phase.kind for phase in phases]
    twice = repeated([phase.name for phase in phases])
    loaded = [phase for phase in reversed(phases) if phase.arrivals is not None]
    by_loop = {isinstance(phase.arrivals, ClosedArrivals): phase.name for phase in loaded}
    return holding({
        f"phases: the name {twice!r} is used twice": twice,
        "phases: at least one must be of kind 'measure'": "measure" not in kinds,
        "phases: together they are longer than the 292 years of an int64 in ns": (
            sum(phase.duration_ns for phase in phases) >= 2**63
        ),
        f"phases: the last one, {phases[-1].name!r}, must be of kind 'drain'": kinds[-1] != "drain",
        # a closed loop has service times only, which would be taken for response times
        f"phases: {by_loop.get(True)!r} is closed-loop and {by_loop.get(False)!r} is not, use one or the other: service"
        " times of a closed loop are never mixed with response times": len(by_loop) > 1,
    })  # fmt: skip


def _of_locust(scenario: Scenario) -> Sentences:
    """Phases of Locust's users are of a scenario with Locust's load alone, which leaves no room for what squall's own
    client is told."""
    for phase in scenario.phases:
        where = f"phases.{phase.name}"
        if scenario.load is None and isinstance(phase.arrivals, LocustArrivals):
            yield f"{where}.arrivals: kind 'locust' is of a scenario with load.locust"
        if scenario.load is not None:
            if not isinstance(phase.arrivals, LocustArrivals | None):
                yield f"{where}.arrivals: load.locust says what is sent; leave arrivals out"
            for key in holding({"timeout": phase.timeout_ns, "rows": phase.rows, "shares": phase.shares}):
                yield f"{where}.{key}: the locustfile says what its users send; leave it out"
    if scenario.load is None:
        return
    locust = scenario.load.locust
    if locust.run_time_ns is not None and scenario.phases != scenario.phases_of_run_time():
        yield "load.locust.run_time: phases say how long the run is; leave one of both out"
    drains = takewhile(lambda phase: phase.kind == "drain", reversed(scenario.phases))
    left_ns = sum(phase.duration_ns for phase in drains)
    if locust.stop_timeout_ns is not None and locust.stop_timeout_ns > left_ns:
        timeout, drain = format_duration(locust.stop_timeout_ns), format_duration(left_ns)
        yield f"load.locust.stop_timeout: {timeout} is longer than the drain of {drain}, in which users end"
    of_own = "is of squall's own client, and load.locust has Locust's; leave it out"
    default = ClientConfig()
    for name, key in ClientConfig.file_keys().items():
        if name not in _OF_LOCUST and getattr(scenario.clients, name) != getattr(default, name):
            yield f"clients.{key}: {of_own}"
    for one in scenario.models:
        if one.model.share != 1.0:
            yield f"{one.key}.share: the locustfile says which models its users ask; leave it out"
        for key in ("rows", "data", "check"):
            if getattr(one.model, key) is not None:
                yield f"{one.key}.{key}: {of_own}"
        if one.is_compressed:
            yield f"{one.place_of('request')}.compression: a TritonUser compresses nothing; leave it out"


def _of_models(scenario: Scenario) -> Sentences:
    """Shares, places and rows that the models under load cannot have."""
    models, is_several = scenario.models, scenario.stated_models is not None
    if is_several:
        yield from _of_several(scenario)
        yield from _misplaced(scenario)
    for phase in scenario.phases:
        where = f"phases.{phase.name}"
        if phase.shares is not None and not is_several:
            yield f"{where}.shares: are of a scenario with models, this one has one model"
        if phase.arrivals is not None:
            scenario.shares_of(phase)  # which raises for shares that cannot be
        elif phase.shares is not None:
            yield f"{where}.shares: a drain sends nothing, remove them"
        of_phase = "clients.rows" if phase.rows is None else f"{where}.rows"
        for one in models:
            rows, most = one.rows_of(phase.rows), one.model.max_batch_size
            n_rows = max_rows(rows)
            if n_rows > most:
                place = of_phase if one.model.rows is None else f"{one.key}.rows"
                yield f"{place}: up to {n_rows} rows are above {one.key}.max_batch_size {most}"
            if isinstance(rows, TraceRows) and not isinstance(phase.arrivals, TraceArrivals | None):
                yield (
                    f"{of_phase}: kind 'trace' is for phases whose arrivals are a trace; give {where}.rows of its own,"
                    " such as kind 'empirical' with the same file"
                )


def _of_several(scenario: Scenario) -> Sentences:
    """What several models cannot have together."""
    models, clients = scenario.models, scenario.clients
    twice = repeated(scenario.model_names)
    yield from holding({
        f"models: the name {twice!r} is used twice": twice,
        "clients.sequences: is for a scenario with one model, and models are several; leave it out": clients.sequences,
        "clients.data: is for a scenario with one model, and models are several; give each its own in models[].data": (
            clients.data
        ),
    })  # fmt: skip
    rows = {one.key: one.model.rows for one in models} | {
        f"phases.{phase.name}": phase.rows for phase in scenario.phases
    }
    for place, law in {"clients": clients.rows, **rows}.items():
        if isinstance(law, TraceRows):
            yield (
                f"{place}.rows: kind 'trace' is for a scenario with one model, and models are several; use another"
                " kind, such as 'empirical' with the same file"
            )
    for one in models:
        data, request = one.model.data, one.model.request
        yield from holding({
            f"{one.key}.data.order: kind 'trace' is for a scenario with one model, for a trace does not say which model"
            " a request asks; use sequence, random or zipf": data and isinstance(data.order, TraceOrder),
            f"{one.key}.data: each entry is a payload of its own; leave payload_variants out": (
                data and one.model.payload_variants
            ),
            f"{one.key}.data: its entries travel in messages; leave clients.shared_memory out": (
                data and clients.shared_memory
            ),
            f"{one.key}.request.compression: requests are compressed to all models or to none; say it in"
            " clients.request": one.is_compressed != models[0].is_compressed,
            f"{one.key}.request.binary: false is for protocol http, gRPC carries tensors as bytes": (
                request and not request.binary and clients.protocol == "grpc"
            ),
        })  # fmt: skip


def _misplaced(scenario: Scenario) -> Sentences:
    """Servers that serve nothing, or among which the routing cannot choose."""
    servers = scenario.servers
    placed = [f"{one.key}.servers" for one in scenario.models if one.model.servers is not None]
    if not placed:
        return
    if servers is None:
        yield f"{placed[0]}: only the nodes say how many servers there are; write servers as a list, or its count"
        return
    of_model = scenario.served_at(len(servers))
    idle = set(range(len(servers))).difference(*of_model)
    if idle:
        yield f"models: server-{min(idle)} serves none of them"
    routing = scenario.clients.routing.kind
    if routing not in _BY_SERVER and any(len(numbers) < len(servers) for numbers in of_model):
        yield (
            f"{placed[0]}: clients.routing {routing!r} is for servers that all serve the same models; use"
            f" {', '.join(_BY_SERVER)}"
        )


def _of_servers(scenario: Scenario) -> Sentences:
    """What several servers cannot have together, and what one of them cannot have."""
    clients, profile, stated = scenario.clients, scenario.profile, scenario.stated_servers
    if clients.routing.kind == "mirror" and scenario.is_closed:
        yield f"clients.routing: {NO_MIRROR}"
    for key in OWN_KEYS if stated is not None else ():
        if getattr(scenario.server, key) is not None:
            yield f"server.{key}: is of one server, write servers as a list and put it into its entries"
    if isinstance(stated, tuple):
        yield from _of_list(stated)
        if len({entry.weight for entry in stated}) > 1 and clients.routing.kind not in WEIGHED:
            yield (
                f"servers: have different weights, and clients.routing {clients.routing.kind!r} takes none; use"
                f" {' or '.join(WEIGHED)}"
            )
    if scenario.servers is None or len(scenario.servers) > 1:
        of_one = {
            "profile.nsys": profile.nsys != "off",
            "clients.shared_memory": clients.shared_memory,
            "clients.unix": clients.unix,
        }
        for key in holding(of_one):
            yield f"{key}: is for a run of one server, and servers are several"
    if profile.nsys_session is not None and profile.nsys == "off":
        yield "profile.nsys_session: profile.nsys is off, add nsys: auto or required"
    for where, models, server in scenario.named_servers():
        url = server.url
        if profile.nsys_session and url is None:
            yield f"profile.nsys_session: is for a server at {where}.url; squall names its own session"
        for name in server.control.unload if server.control is not None else ():
            if name in models:
                yield f"{where}.control.unload: {name!r} is the model under load"
        if clients.tls and url is None:
            yield f"clients.tls: needs {where}.url, a server that squall starts speaks no TLS"
        # over HTTP the port that is loaded is that of the URL
        if clients.tls and clients.protocol == "http" and not str(url).startswith("https:"):
            yield f"clients.tls: over protocol http it needs an https:// {where}.url, not {url!r}"
        is_launched = server.image is None and (url is None or profile.nsys_session)
        if profile.nsys != "off" and is_launched:
            is_on_cpu = url is None and all(one.model.is_cpu_head for one in scenario.models)
            yield from too_close(scenario.phases, "cuda" in profile.trace and not is_on_cpu)


def _of_list(entries: Sequence[ServerEntry]) -> Sentences:
    """Either all servers run already or squall starts all, and no two of them are one."""
    if len({entry.url is None for entry in entries}) > 1:
        yield "servers: some have a url and some have none: give one to all or to none"
    places: dict[str, int] = {}
    for index, entry in enumerate(entries):
        if entry.url is not None:
            first = places.setdefault(_place(entry.url), index)
            if first != index:
                yield f"servers[{index}].url: {entry.url!r} is that of servers[{first}] too"


def _place(url: str) -> str:
    """The same for two spellings of one URL."""
    place = url.rstrip("/").lower()
    return place if place.rpartition(":")[2].isdecimal() else f"{place}:443"


def _of_traces(scenario: Scenario) -> Sentences:
    """What takes a column of a trace needs the trace; a column that routes is read in place of its sessions, so
    nothing else may want these."""
    clients = scenario.clients
    column = clients.routing.column
    by_trace = {
        "clients.routing": clients.routing.kind == "trace",
        "clients.data.order": clients.data is not None and isinstance(clients.data.order, TraceOrder),
    }
    if by_trace["clients.routing"] != (column is not None):
        yield "clients.routing: kind 'trace' and column, that of the trace, go together"
    if column and clients.deal == "session":
        yield (
            f"clients.deal: by session needs the trace's sessions, and clients.routing takes column {column!r} for"
            " them; use sequence or hash"
        )
    for phase in scenario.phases:
        scale = phase.arrivals.rate_scale if isinstance(phase.arrivals, TraceArrivals) else None
        if phase.kind == "measure" and not isinstance(phase.arrivals, TraceArrivals):
            for key in holding(by_trace):
                yield f"{key}: kind 'trace' needs arrivals of kind 'trace', and phase {phase.name!r} has others"
        if column is not None and isinstance(scale, OTHER_SESSIONS):
            yield (
                f"phases.{phase.name}.arrivals.rate_scale: {scale.kind!r} makes other sessions, and clients.routing"
                f" takes column {column!r} for them; use thin or envelope"
            )


def _of_promises(scenario: Scenario) -> Sentences:
    """Promises about what the scenario does not have."""
    measured = {phase.name: phase.duration_ns for phase in scenario.phases if phase.kind == "measure"}
    servers = [f"server-{number}" for number, _ in enumerate(scenario.servers or ())]  # none: the nodes say
    for promise in scenario.promises or ():
        scope, where = promise.scope, f"promises: {promise.key}"
        for what, name, known in (
            ("measured phase", scope.phase, measured),
            ("server", scope.server, servers),
            ("model under load", scope.model, scenario.model_names),
        ):
            if name is not None and known and name not in known:
                yield f"{where}: there is no {what} {name!r}, only {', '.join(known)}"
        scheduled = {
            "response time": promise.metric == "response",
            "send lag": promise.metric == "send_lag",
            "bursts": scope.burst,
            "load that is asked for": promise.at_hz is not None,
            "number of requests that is known before its end, by which abortOnFail decides": promise.aborts_on_fail,
        }
        for lacking in holding(scheduled) if scenario.is_closed else ():
            yield (
                f"promises: {promise.text}: a closed loop has no schedule and so no {lacking}; promise service times"
            )
        shortest_ns = min(ns for name, ns in measured.items() if scope.phase in (None, name))
        if scope.window_ns is not None and scope.window_ns > shortest_ns:
            window, phase = format_duration(scope.window_ns), format_duration(shortest_ns)
            yield f"{where}: a window of {window} is longer than a phase of {phase}"
    if scenario.stop_when is not None:
        yield from holding({
            "stop_when: decided is for promises over a schedule, and nothing is promised": scenario.promises is None,
            "stop_when: decided needs a known number of requests, which a closed loop has not": scenario.is_closed,
        })  # fmt: skip


def _without_effect(scenario: Scenario) -> Sentences:
    """Stated keys that configure a server, or a model there, that squall does not configure."""
    for one in scenario.models:
        for key in keys_without_effect(one, scenario.is_started):
            if key in stated_keys(one.model):
                yield f"{one.key}.{key}: " + (
                    f"has no effect, {_has_its_own(scenario.is_started)}: leave it out, or change it there with"
                    f" server.control.load.{one.model.name}.{_WRITTEN[key]}"
                    if key in _WRITTEN
                    else "is for a model that squall serves, and a server at url has its own: leave it out,"
                    " server.control loads it"
                )
    for where, _, server in scenario.named_servers():
        for key in server_keys_without_effect(server):
            if key in stated_keys(server) - {"listen"}:  # which `ServerConfig` refuses
                yield f"{where}.{key}: is for a server that squall starts, the one at url runs already; leave it out"


def keys_without_effect(one: ModelScenario, is_started: bool) -> tuple[str, ...]:
    """Keys of the model, stated or not, that change nothing. `is_started`: squall starts its servers."""
    if is_started:
        return tuple(_WRITTEN) if one.model.repository is not None else ()
    has_zoo_check = one.clients.check is not None and one.clients.check.is_of_zoo
    return (*_WRITTEN, "repository", *(() if has_zoo_check else ("weights",)))


def server_keys_without_effect(server: ServerConfig) -> tuple[str, ...]:
    """Keys of `server`, stated or not, that change nothing: they are of a server that squall starts."""
    if server.url is None:
        return ()
    return ("nice", "stop_timeout", "listen", *(("start_timeout",) if server.control is None else ()))


def _has_its_own(is_started: bool) -> str:
    """Why squall does not configure the model, in words."""
    if is_started:
        return "the model of repository has a configuration of its own"
    return "a server at url has its models configured"


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
            if is_configured or not keys_without_effect(one, scenario.is_started):
                continue
            place = (model.name, server.url or model.repository or "")
            if sizes.setdefault(place, model.max_batch_size) != model.max_batch_size:
                raise ValueError(
                    f"{one.key}.max_batch_size: {sizes[place]} and {model.max_batch_size} differ, and"
                    f" {_has_its_own(scenario.is_started)}: change it there with"
                    f" server.control.load.{model.name}.config.max_batch_size"
                )
