"""One load worker: engine, client, recorder and its own samples, in one loop of one thread."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from squall.actors.client_worker import Account, Progress, Standing
from squall.actors.clock import Clock
from squall.actors.lateness import Lateness
from squall.actors.load.choice import Choice, Chooser
from squall.actors.load.client import Client
from squall.actors.load.engine import Between, Engine, Rules
from squall.actors.load.handed_sequences import HandedSequences
from squall.actors.load.lane import IS_BUILT, LEAST_CHECK_EVERY, NOT_BUILT, Lane, lane_pacing
from squall.actors.load.lane_turns import LaneTurns
from squall.actors.load.pacing import Due, plain_pacing
from squall.actors.load.recorder import Recorder
from squall.actors.load.sender import WINDOW_NS, Governor, Sender
from squall.actors.load.sequence_turns import Turns
from squall.actors.load.shared_memory import Kind, Region, region_name
from squall.actors.load.streams import StreamRule, Streams
from squall.actors.load.targets import (
    LARGEST_TARGET_COUNT,
    TargetSettings,
    Wire,
    client_of,
    encoded,
    keys_needed,
    packed,
    refuse_strange_plan,
    shared,
)
from squall.actors.messages.gzip_wire import SettlingBytes, settling_of
from squall.actors.messages.packed_templates import PackedTemplates
from squall.actors.messages.sequence_wire import SequenceBytes, n_bytes_of, places_of
from squall.actors.messages.template import Template, TemplateKey
from squall.actors.messages.value_check import Check, StreamCheck, Tally, ValueCheck, ValueRule
from squall.actors.net.loop import Loop
from squall.actors.net.stream import allow_many_files, words
from squall.actors.process.priority import Priority
from squall.actors.process.sweep import share
from squall.actors.spill import SpillFile
from squall.actors.worker_usage import GcWatch, Usage, cpu_ns, gc_count, sample_table
from squall.models.made import Made, make_inputs
from squall.models.payload import PLAIN, RequestOptions
from squall.models.spec import ModelSpec
from squall.scenarios.errors import ClusterError, SquallError, TargetError
from squall.scenarios.foreign_text import secrets_of, without_secrets
from squall.scenarios.model_shares import models_of
from squall.scenarios.plan.closed import ClosedPlan
from squall.scenarios.plan.plan import Plan
from squall.scenarios.promises import LateLimit
from squall.scenarios.records import AddressFacts, SenderScheduling
from squall.scenarios.sequences import SequenceRule, Sequences
from squall.scenarios.units import NS_PER_S

_SAMPLE_NS = NS_PER_S
_CONNECT_NS = 10 * NS_PER_S
_LARGEST_RECENT_COUNT = 4_096
_END_WITHIN_S = 20.0
Outputs = Mapping[str, np.ndarray[Any, np.dtype[Any]]]
Answers = Mapping[tuple[int, int], Outputs | Sequence[Outputs]]
"""Outputs by name for each (rows, payload variant); where requests are answered response by response, of each
response."""


@dataclass(frozen=True)
class ModelRequests:
    """How requests to one model are made, what they say beside their inputs, and how their replies are compared."""

    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    made: Made | None = None
    options: RequestOptions = PLAIN
    check: ValueRule | None = None


@dataclass(frozen=True)
class WorkerSettings:
    """What one worker needs to know beside its plan; plain values, so that it travels cheaply.

    `targets`: the servers that it loads, each over `n_connections`, all over one protocol; `choice`: who says which
    request goes to which. `seed` is that of the payloads; `models`: by their numbers in the plan; `spill_dir` is on the
    worker's node. `core`: the sender's own on that node. `late_limits`: what is counted of an open loop's requests
    while they are sent. `packed`: paths on the worker's node of requests that are encoded already, a file for each
    model: none is made then. `sequences`: requests are of sequences. `streams`: they are answered response by response.
    `largest_reply_bytes`: see `Wire`.
    """

    run: str
    node: str
    worker: int
    targets: tuple[TargetSettings, ...]
    seed: int
    rules: Rules
    n_connections: int
    spill_dir: str
    protocol: str = "http"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    spin_ns: int = 0
    lane: bool = True
    models: tuple[ModelRequests, ...] = (ModelRequests(),)
    priority: Priority = "normal"
    core: int | None = None
    choice: Choice = "planned"
    late_limits: tuple[LateLimit, ...] = ()
    packed: tuple[str, ...] = ()
    streams: StreamRule | None = None
    sequences: SequenceRule | None = None
    largest_reply_bytes: int | None = None

    @property
    def options(self) -> RequestOptions:
        """Of all models, as far as these cannot differ: compression, and parameters where requests are of sequences."""
        return self.models[0].options

    @property
    def model_names(self) -> list[str]:
        """Of all models of the servers, each once."""
        specs = [spec for target in self.targets for spec in target.specs if spec is not None]
        return list(dict.fromkeys(spec.name for spec in specs))

    def __post_init__(self) -> None:
        if not 1 <= len(self.targets) <= LARGEST_TARGET_COUNT:
            raise ValueError(f"a worker loads 1 to {LARGEST_TARGET_COUNT} servers, not {len(self.targets)}")


def why_no_lane(settings: WorkerSettings, templates: Iterable[Template]) -> str:
    """Why requests of these templates do not go through the C lane; empty where they do."""
    reasons = {
        NOT_BUILT: not IS_BUILT,
        "the settings leave it out": not settings.lane,
        "it speaks no TLS": any(target.tls is not None for target in settings.targets),
        "it knows no max_in_flight": settings.rules.max_in_flight is not None,
        "sequences keep their connections": settings.sequences is not None and settings.sequences.is_pinned,
        "responses come one by one": settings.streams is not None,
        "more than every eighth reply is compared in its values": any(
            0 < one.check_every < LEAST_CHECK_EVERY for one in templates
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


class LoadWorker:
    """Life: `prepare`, `run` once, `leftovers`; from other threads at any time `status`, `cease`, `stop`."""

    def __init__(self, settings: WorkerSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._loop: Loop | None = None
        self._engine: Engine | None = None
        self._clients: list[Client] = []
        self._lane: Lane | None = None
        self._no_lane = ""
        self._recorder: Recorder | None = None
        self._streams: Streams | None = None
        self._between: Between | None = None
        self._turns: Turns[Due] | LaneTurns[Due] | None = None
        self._sequences: Sequences | None = None
        n_between = 0
        if settings.sequences is not None:
            protocol, parameters = settings.protocol, settings.options.parameters
            self._sequences = sequences = Sequences(settings.sequences)
            self._between = SequenceBytes(sequences, protocol, parameters)
            self._turns = Turns(sequences, settings.sequences)
            n_between = n_bytes_of(protocol, parameters)
        elif settings.options.is_gzip:
            self._between = SettlingBytes(settling_of(settings.protocol))
        self._wire = Wire(
            settings.protocol,
            settings.headers,
            settings.options,
            settings.streams,
            n_between,
            settings.largest_reply_bytes,
        )
        self._samples: SpillFile | None = None
        self._kept: list[pa.Table] = []
        self._last_response_ns: list[int] = []
        self._is_stopped = threading.Event()
        self._is_over = threading.Event()
        self._is_over.set()
        self._tally = Tally()
        self._regions: list[Region] = []
        self._folder_lock: int | None = None
        self._gc_watch = GcWatch()
        self._ready_before_ns: int | None = None
        self._previous = Usage()
        self._due_ns = 0
        self._sender = Sender(settings.priority, settings.spin_ns > 0, settings.core)
        self._governor = Governor(self._sender, settings.core is not None)
        self._start_ns = 0
        self._lateness: Lateness | None = None

    def prepare(self, plan: Plan | ClosedPlan, answers: Answers | None = None) -> None:
        """Encodes every request, opens files and connections. `answers`: the right outputs, where they are checked.

        Raises ScenarioError for a payload the model does not take, TargetError where the server cannot be reached,
        ClusterError where the spill folder cannot be written, or shared memory or the priority cannot be had.
        """
        settings = self._settings
        allow_many_files()
        self._sender.rehearse()
        try:
            templates = self._requests(plan, answers)
            self._open_files([span.name for span in plan.spans])
        except SquallError:
            self._close_regions()
            raise
        assert self._recorder is not None
        self._loop = loop = Loop(self._clock, settings.spin_ns)
        length_ns = plan.spans[-1].end_ns
        if settings.late_limits and isinstance(plan, Plan):
            self._lateness = Lateness(settings.late_limits, plan, len(settings.targets))
        try:
            self._lane = lane = self._make_lane(loop, templates)
            pacing = lane_pacing(plan, lane) if lane is not None else plain_pacing(plan, templates)
            if lane is not None and lane.sequences is not None:
                self._turns = LaneTurns(lane.core, lane.due_of_arrival)
            chooser = None
            if settings.choice != "planned" and lane is None:
                chooser = Chooser(settings.choice, len(settings.targets), templates)
            self._engine = engine = Engine(
                pacing,
                length_ns,
                settings.rules,
                self._recorder,
                loop,
                self._clock,
                lane,
                chooser,
                self._streams,
                self._between,
                self._turns,
            )
            for number, target in enumerate(settings.targets):
                self._connect(number, target, loop, engine)
        except SquallError:
            self._give_up()
            raise

    def _requests(
        self, plan: Plan | ClosedPlan, answers: Answers | None = None
    ) -> Mapping[TemplateKey, Template] | PackedTemplates:
        """Every request that the plan may need, with the comparison of its replies' values."""
        settings = self._settings

        def checked(key: TemplateKey, rule: ValueRule) -> Check:
            assert answers is not None
            right = answers[key[1:]]
            if isinstance(right, Mapping):
                return ValueCheck(right, rule, self._tally)
            return StreamCheck(right, rule, self._tally)

        if settings.packed:
            refuse_strange_plan(plan, len(settings.targets), settings.choice)
            return self._packed(plan, checked)
        keys = sorted(keys_needed(plan, len(settings.targets), settings.choice))
        models = models_of([variant for _, _, variant in keys], plan.models).tolist()
        rules = {key: settings.models[model].check for key, model in zip(keys, models, strict=True)}
        templates = self._encode(plan, keys, models)
        return {
            key: one if (rule := rules[key]) is None else one.checked_by(checked(key, rule))
            for key, one in templates.items()
        }

    def _packed(self, plan: Plan | ClosedPlan, checked: Callable[..., Check]) -> PackedTemplates:
        """Every request of the files, model by model."""
        settings, found = self._settings, []
        for number, (path, own) in enumerate(zip(settings.packed, settings.models, strict=True)):
            spec = next(spec for target in settings.targets if (spec := target.specs[number]) is not None)
            check = None if own.check is None else partial(checked, rule=own.check)
            wire = replace(self._wire, options=own.options)
            first = plan.models[number].first
            kind = settings.model_names.index(spec.name)
            found.append(packed(Path(path), settings.targets, wire, check, number, first, kind))
        return PackedTemplates(found)

    def _encode(
        self, plan: Plan | ClosedPlan, keys: Sequence[TemplateKey], models: Sequence[int]
    ) -> dict[TemplateKey, Template]:
        """Every request of `keys`, which are sorted; servers of one model get the same inputs, which are made once."""
        settings = self._settings
        kinds: dict[tuple[int, int], list[Kind]] = {}
        for (number, rows, variant), model in zip(keys, models, strict=True):
            kinds.setdefault((number, model), []).append((rows, variant))
        made: dict[tuple[ModelSpec, Kind], dict[str, np.ndarray[Any, np.dtype[Any]]]] = {}
        templates: dict[TemplateKey, Template] = {}
        for (number, model), of_model in kinds.items():
            target, own = settings.targets[number], settings.models[model]
            spec, first = target.specs[model], plan.models[model].first
            if spec is None:
                raise ClusterError(
                    f"the plan sends requests to {target.name} for a model that it does not serve"
                )
            for rows, variant in of_model:
                if (spec, (rows, variant)) not in made:
                    made[spec, (rows, variant)] = make_inputs(
                        spec, rows, variant - first, settings.seed, own.shapes, own.made
                    )
            inputs = {kind: made[spec, kind] for kind in of_model}
            name = region_name(settings.run, settings.worker, number, model)
            region, places = shared(target, spec, name, inputs)
            if region is not None:
                self._regions.append(region)
            wire = replace(self._wire, options=own.options)
            found = encoded(target, spec, number, wire, inputs, region, places)
            number_of_name = settings.model_names.index(spec.name)
            templates |= {key: one.of_kind(number_of_name) for key, one in found.items()}
        return templates

    def _make_lane(
        self, loop: Loop, templates: Mapping[TemplateKey, Template] | PackedTemplates
    ) -> Lane | None:
        """None where the lane is not built or cannot do what the settings ask."""
        settings = self._settings
        some = templates.samples() if isinstance(templates, PackedTemplates) else templates.values()
        self._no_lane = why_no_lane(settings, some)
        if self._no_lane:
            return None
        assert self._recorder is not None
        try:
            settling = settling_of(settings.protocol) if settings.options.is_gzip else None
            n_targets, sequences = len(settings.targets), self._handed()
            return Lane(loop, self._recorder, templates, n_targets, settings.choice, settling, sequences)
        except OSError as error:
            raise ClusterError(f"worker {settings.worker}: no timer: {words(error)}") from error

    def _handed(self) -> HandedSequences | None:
        """What a lane must know of sequences."""
        settings = self._settings
        if self._sequences is None or settings.sequences is None:
            return None
        places = places_of(settings.protocol, settings.options.parameters)
        return HandedSequences(self._sequences, settings.sequences, places)

    def _connect(self, number: int, target: TargetSettings, loop: Loop, engine: Engine) -> None:
        """Makes the client of one server, and its connections."""
        settings = self._settings
        try:
            rule = settings.sequences
            is_one_at_a_time = (
                rule is not None and not rule.is_pinned
            )  # requests of a sequence have one server
            client = client_of(
                target,
                number,
                self._wire,
                loop,
                self._clock,
                engine,
                self._lane,
                settings.worker,
                is_one_at_a_time,
            )
            self._clients.append(client)
            client.open(settings.n_connections, self._clock.monotonic_ns() + _CONNECT_NS)
        except OSError as error:
            why = f"no connection to {target.where}: {words(error)}"
            raise TargetError(f"worker {settings.worker}: {why}") from error

    def _open_files(self, phases: list[str]) -> None:
        settings = self._settings
        labels = {"run": settings.run, "node": settings.node}
        targets = [target.name for target in settings.targets]
        kinds = settings.model_names
        folder, worker = Path(settings.spill_dir), settings.worker
        self._folder_lock = share(folder.parent)  # the node's scratch folder: it outlives an agent that dies
        try:
            self._samples = SpillFile(folder / f"worker_samples-{worker}.arrows", "worker_samples")
            self._samples.rehearse(sample_table({}))
            path = folder / f"requests-{worker}.arrows"
            listener = self._note_late if settings.late_limits else None
            secrets = secrets_of(settings.headers)
            self._recorder = Recorder(path, labels, worker, phases, targets, kinds, listener, secrets)
            if settings.streams is not None:
                path, rule = folder / f"responses-{worker}.arrows", settings.streams
                self._streams = Streams(path, labels, worker, phases, targets, rule, self._recorder)
        except OSError as error:
            if self._samples is not None:
                self._samples.close()
            if self._recorder is not None:
                self._recorder.close()
            raise ClusterError(f"worker {worker}: cannot write {folder}: {error.strerror}") from error

    def _give_up(self) -> None:
        """Closes what `prepare` has opened."""
        if self._lane is not None:
            self._lane.core.flush()
            self._lane.core.close()
        for client in self._clients:
            client.close()
        assert self._loop
        assert self._recorder
        self._loop.close()
        self._loop = None
        self._kept = self._recorder.close()
        if self._streams is not None:
            self._kept += self._streams.close()
        if self._samples is not None:
            self._samples.close()
        self._close_regions()
        if self._folder_lock is not None:
            os.close(self._folder_lock)
            self._folder_lock = None

    def _close_regions(self) -> None:
        for region in self._regions:
            region.close()
        self._regions.clear()

    def run(self, start_ns: int) -> None:
        """Follows the plan from `start_ns` (node's clock) and closes everything. Call `prepare` before.

        Raises ClusterError for a defect of ours; what was recorded by then is in the spill file.
        """
        if self._loop is None:
            raise ClusterError(f"worker {self._settings.worker} was not prepared")
        assert self._engine
        if self._is_stopped.is_set():
            self._engine.request_stop()
        self._is_over.clear()
        self._start_ns = self._due_ns = start_ns
        if self._lateness is not None:
            self._lateness.begin(start_ns)
        gc.collect()
        gc.freeze()
        gc.disable()  # a collection would stop the sends; what cycles there are wait for the end
        gc.callbacks.append(self._gc_watch)
        # a late worker's first sample still counts every arrival that was due by then
        at_ns = min(self._clock.monotonic_ns(), start_ns - 1)
        self._previous = replace(self._usage(self._engine, at_ns), n_due=0)
        try:
            self._follow(self._engine, start_ns)
        finally:
            gc.callbacks.remove(self._gc_watch)
            gc.enable()
            gc.unfreeze()

    def _follow(self, engine: Engine, start_ns: int) -> None:
        """`run`, with the collector of garbage out of the way."""
        self._sender.raise_thread()
        self._ready_before_ns = start_ns - self._clock.monotonic_ns()
        try:
            engine.run(self._clients, start_ns, self._on_tick, start_ns)
        except Exception as error:  # the process's edge: a fault of ours
            what = f"{type(error).__name__}: {error}"
            raise ClusterError(f"worker {self._settings.worker}: {what}") from error
        finally:
            self._sender.restore()
            self._flush(self._clock.monotonic_ns())
            self._tick(self._clock.monotonic_ns(), 0)
            self._give_up()
            self._is_over.set()

    def abandoned(self) -> None:
        """Who gave the orders is gone: ends the run and closes the files, which stay."""
        self.stop()
        self._is_over.wait(_END_WITHIN_S)
        if self._loop is not None:  # prepared, and never run
            self._give_up()

    def stop(self) -> None:
        """Ends `run` at once; what it has not done is recorded as cancelled or unsent."""
        self._is_stopped.set()
        if self._engine is not None:
            self._engine.request_stop()

    def cease(self, offset_ns: int) -> None:
        """Arrivals due more than `offset_ns` after the start instant are not sent: see `Engine.cease`."""
        if self._engine is not None:
            self._engine.cease(self._start_ns + offset_ns)

    def _note_late(self, records: np.ndarray[Any, np.dtype[np.void]]) -> None:
        if self._lateness is not None:
            self._lateness.note(records)

    def n_issued(self) -> int:
        """Requests that it has sent or was to send: in a closed loop, known at the end only."""
        return self._recorder.n_recorded if self._recorder is not None else 0

    def no_lane(self) -> str:
        """Why the common case of its requests does not run in C; empty where it does."""
        return self._no_lane

    def addresses(self) -> tuple[AddressFacts, ...]:
        """Connections to each address of its servers' names, once prepared."""
        targets = self._settings.targets
        pairs = zip(targets, self._clients, strict=False)
        return tuple(one for target, client in pairs for one in client.spread.used(target.name))

    def scheduling(self) -> SenderScheduling:
        """Of the thread that sends, once prepared."""
        return self._sender.scheduling

    def account(self) -> Account:
        """What it had while it ran; after `run`."""
        governor = self._governor
        return Account(
            self._sender.scheduling,
            governor.n_demotions,
            governor.demoted_ns,
            self._ready_before_ns,
            self.addresses(),
        )

    def tally(self) -> Tally:
        """Replies whose values it has compared."""
        return self._tally

    def leftovers(self) -> list[pa.Table]:
        """Rows of `requests` and `responses` that the spill files could not take: what each is says its schema."""
        return self._kept

    def spill_error(self) -> str:
        """Why the spill file cannot be written; empty while it can."""
        files = (self._recorder, self._streams)
        return next((file.error for file in files if file is not None and file.error), "")

    def progress(self) -> Progress:
        """How the worker stands."""
        engine, late = self._engine, self._lateness.counts if self._lateness is not None else None
        if engine is None:
            return Progress(0, 0, 0, 0, np.zeros(0, np.int64), late)
        secrets, why_failed = secrets_of(self._settings.headers), dict[str, int]()
        for why, n in engine.why_failed.copy().items():
            told = without_secrets(why, secrets)
            why_failed[told] = why_failed.get(told, 0) + n
        counters, recent = engine.counters, self._last_response_ns
        return Progress(
            counters.n_sent,
            counters.n_done,
            counters.n_failed,
            engine.n_in_flight,
            np.array(recent[:_LARGEST_RECENT_COUNT], np.int64),
            late,
            why_failed,
        )

    def status(self) -> Standing:
        """How the worker stands, and what troubles it."""
        return Standing(self.progress(), self.spill_error())

    def _on_tick(self, now_ns: int) -> int:
        """One row of worker_samples a second, on the second of the run; between them, a look at the priority."""
        if now_ns >= self._due_ns:
            self._tick(now_ns, now_ns - self._due_ns)
            self._due_ns += _SAMPLE_NS
        if not self._governor.is_needed:
            return self._due_ns
        self._governor.look(now_ns)
        return min(self._due_ns, now_ns + WINDOW_NS)

    def _usage(self, engine: Engine, now_ns: int) -> Usage:
        clients, counters = self._clients, engine.counters
        return Usage(
            now_ns, engine.n_due_by(now_ns), counters.n_sent, counters.n_done, cpu_ns(), gc_count(),
            self._gc_watch.paused_ns, sum(one.n_socket_errors for one in clients),
            sum(one.n_write_pauses for one in clients) + counters.n_write_pauses, engine.spun_ns,
        )  # fmt: skip

    def _tick(self, now_ns: int, loop_lag_ns: int) -> None:
        """A second has passed: what was recorded goes to the file, with a sample of the process."""
        self._take_sample(now_ns, loop_lag_ns)
        self._flush(now_ns)

    def _take_sample(self, now_ns: int, loop_lag_ns: int) -> None:
        assert self._engine
        assert self._recorder
        engine, previous = self._engine, self._previous
        self._previous = usage = self._usage(engine, now_ns)
        row = {
            "run": self._settings.run, "phase": "", "node": self._settings.node, "worker": self._settings.worker,
            "t_ns": now_ns, "interval_ns": now_ns - previous.at_ns,
            "n_due": usage.n_due - previous.n_due,
            "n_sent": usage.n_sent - previous.n_sent, "n_done": usage.n_done - previous.n_done,
            "n_backlog": engine.n_backlog, "n_in_flight": engine.n_in_flight,
            "n_connections": sum(client.n_connections for client in self._clients),
            "lag_max_ns": engine.counters.reset_lag(),
            "loop_lag_ns": loop_lag_ns, "cpu_ns": usage.cpu_ns - previous.cpu_ns,
            "gc_count": usage.gc_count - previous.gc_count,
            "gc_pause_ns": usage.gc_pause_ns - previous.gc_pause_ns,
            "n_socket_errors": usage.n_socket_errors - previous.n_socket_errors,
            "n_write_pauses": usage.n_write_pauses - previous.n_write_pauses,
            "n_held": engine.n_held, "spin_ns": usage.spun_ns - previous.spun_ns,
        }  # fmt: skip
        self._recorder.later(partial(self._write_sample, row))

    def _flush(self, now_ns: int) -> None:
        assert self._engine
        assert self._recorder
        self._last_response_ns = self._engine.take_recent()
        if self._lane is not None:
            self._lane.core.flush()
        self._recorder.flush()
        if self._streams is not None:
            self._streams.flush()
        if self._lateness is not None:
            self._recorder.later(partial(self._lateness.look, now_ns))

    def _write_sample(self, row: dict[str, Any]) -> None:
        assert self._samples
        self._samples.write(sample_table(row))
