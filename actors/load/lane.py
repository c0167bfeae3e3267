"""The C lane of a worker: what Python hands to it and takes back; see `actors/native/lane.h` for what it does.

It is built where a C compiler is at hand when squall is installed. Without it, over TLS, or with a cap on requests
in flight, the engine does the same in Python, at several times the CPU time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from squall.actors.load.choice import RULES, Choice
from squall.actors.load.handed_sequences import HandedSequences
from squall.actors.load.pacing import NEVER_NS, Due, begin_of
from squall.actors.load.recorder import BUFFER_ROWS, NEVER, RECORD_FIELDS, ROW_BYTES, Recorder
from squall.actors.messages.gzip_wire import Settling
from squall.actors.messages.packed_templates import PackedTemplates
from squall.actors.messages.template import Template, TemplateKey
from squall.actors.net.loop import Loop
from squall.analysis.storage.schema import OUTCOME_CODE
from squall.scenarios.model_shares import models_of
from squall.scenarios.plan.closed import ClosedPlan
from squall.scenarios.plan.plan import Plan
from squall.scenarios.sequences import IN_TURN

try:
    from squall.actors import _lane as core
except ImportError:
    core = None  # type: ignore[assignment]

IS_BUILT = core is not None
NOT_BUILT = "it was not built, no C compiler was at hand when squall was installed"
BUILD_MEND = "install a C compiler and Python's headers (Debian: gcc python3-dev), then install squall again"
_SHARE_OF_STRAYS = 4
_MOST_STRAYS = 256
_CHUNK_ROWS = 1_024
LEAST_CHECK_EVERY = 8
"""Where more replies than every 8th are compared, all go through Python: each takes its connection with it."""


class Flight(NamedTuple):
    """A request on a stray. `template` is its number, `body` what came of a gRPC message; -1: not reached."""

    token: int
    at_ns: int
    scheduled_ns: int
    phase: int
    template: int
    sent_ns: int
    first_ns: int
    stream: int
    has_head: int
    body: bytes


class Owner(Protocol):
    """Who parks a connection."""

    @property
    def target(self) -> int:
        """Number of the server that it leads to."""

    def take_back(self, stray: Stray) -> None:
        """The connection is Python's again."""


class Stray(NamedTuple):
    """A connection that comes back. `lost`: -1, or the errno that ended it, 0 for the end of the stream.

    `data` came at `now_ns` and was not looked at; `unsent` is what the socket did not take; `state` is next stream,
    window, bytes received and frames without use of a gRPC connection.
    """

    owner: Owner
    lost: int
    data: bytes
    now_ns: int
    unsent: bytes
    state: tuple[int, int, int, int]
    flights: list[tuple[Any, ...]]


class Lane:
    """The core with the numbers of its templates, and the judgement whether it is of use."""

    def __init__(
        self,
        loop: Loop,
        recorder: Recorder,
        templates: Mapping[TemplateKey, Template] | PackedTemplates,
        n_targets: int = 1,
        choice: Choice = "planned",
        settling: Settling | None = None,
        sequences: HandedSequences | None = None,
    ) -> None:
        """Where it is to choose, `templates` has each request for each of the targets, in the same order. `settling`:
        what each has behind its id; `sequences`: those that they are of.

        Raises OSError where the system gives no timer.
        """
        assert core is not None
        self.core = core.Lane(
            loop.epoll_fd, loop.spin_ns, recorder.take_filled, bytearray(BUFFER_ROWS * ROW_BYTES), ROW_BYTES,
            RECORD_FIELDS, OUTCOME_CODE["ok"], n_targets,
        )  # fmt: skip
        if settling is not None:
            self.core.set_between(settling.base, b"".join(b"".join(digits) for digits in settling.table))
        self.sequences = sequences
        if sequences is not None:
            rule, (texts, id_at, is_varint) = sequences.rule, sequences.places
            held = recorder.code_of(IN_TURN)
            self.core.set_sequences(
                b"".join(texts), id_at, is_varint, rule.is_ordered, rule.is_cut_by_failure, held
            )
        self._layouts: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self.numbers: Callable[[Any, Any, Any], NDArray[np.int32]]
        """Of the templates of these targets, rows and variants."""
        if isinstance(templates, PackedTemplates):
            self.templates: Sequence[Template] = templates
            self._add_packed(templates)
            self.numbers = templates.numbers
        else:
            self.templates = list(templates.values())
            self._numbers = {id(template): self._added(template) for template in self.templates}
            table = _table({key: self._numbers[id(template)] for key, template in templates.items()})
            self.numbers = lambda target, rows, variants: table[target, rows, variants]
        self.is_chooser = choice != "planned"
        if self.is_chooser:
            self.core.choose_by(RULES.index(choice), len(templates) // n_targets)
        self._taught: dict[int, Any] = {}
        self._n_strays = [0] * n_targets
        self.n_done = 0
        self.is_over = False

    def is_of_use(self, target: int) -> bool:
        """False where so many connections to that server came back that parking them costs more than it saves."""
        n_done = self.core.n_done_by(target)
        return not self.is_over and self._n_strays[target] < _MOST_STRAYS + n_done // _SHARE_OF_STRAYS

    def _added(self, one: Template) -> int:
        number = self._layouts.setdefault(id(one.known), len(self._layouts))
        return self.core.add_template(
            one.head, one.tail, one.rows, one.n_bytes, one.check_every, one.target, number, one.kind
        )

    def _add_packed(self, templates: PackedTemplates) -> None:
        """All at once, their tails where they are."""
        for block in templates.blocks:
            file, (heads, table) = block.model.file, block.places()
            every = templates[block.begin].check_every
            self.core.add_templates(
                file.view, heads, table, every, block.target, file.n_layouts, block.model.kind
            )
        self._layouts = {id(known): number for number, known in enumerate(templates.known)}

    def number_of(self, template: Template) -> int:
        return template.number if template.number is not None else self._numbers[id(template)]

    def learn(self, template: Template) -> None:
        """A reply to `template` was right: the next of its layout need not be judged."""
        layout, number = template.layout, self._layouts[id(template.known)]
        if layout is not None and self._taught.get(number) is not layout:
            self._taught[number] = layout
            self.core.know_layout(number, layout.prefix, layout.suffix, layout.n_bytes, layout.n_json_bytes)

    def read(self, items: list[Any]) -> list[Stray]:
        """What the core gave back."""
        strays = [Stray._make(item) for item in items]
        for stray in strays:
            self._n_strays[stray.owner.target] += 1
        return strays

    def due_of(self, flight: Flight) -> Due:
        return Due(
            flight.at_ns, flight.scheduled_ns, flight.token, flight.phase, self.templates[flight.template]
        )

    def due_of_arrival(self, values: Sequence[int]) -> Due:
        """Of what the core gave as instant due, scheduled, token, phase and number of the template."""
        at_ns, scheduled_ns, token, phase, template = values
        return Due(at_ns, scheduled_ns, token, phase, self.templates[template])

    def detail_of(self, flight: Flight) -> str:
        """Why it was sent late, where it was held back."""
        is_held = self.sequences is not None and self.core.turn_of(flight.token)[1]
        return IN_TURN if is_held else ""


class _LanePacing:
    """What both loops share: the core keeps the arrivals; Python sends those for which no connection is free."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._core = lane.core

    @property
    def next_ns(self) -> int:
        """When Python must send; NEVER_NS while the core can."""
        return self._core.stuck_ns

    @property
    def is_over(self) -> bool:
        return self._core.next_ns == NEVER_NS

    def take(self) -> Due:
        return self._lane.due_of_arrival(self._core.take())


class LaneOpenLoop(_LanePacing):
    """`squall.actors.load.pacing.OpenLoop` with the arrivals in the core."""

    def __init__(self, plan: Plan, lane: Lane) -> None:
        super().__init__(lane)
        self._plan = plan
        self._start_ns = 0
        self._templates = self._numbers(slice(None))
        self._sequences = lane.sequences.columns(plan.seq) if lane.sequences is not None else None
        self._ceased: int | None = None  # the first row that is not sent any more

    def _numbers(self, rows: slice) -> NDArray[np.int32]:
        """Of the templates of these arrivals."""
        plan = self._plan
        target: Any = 0 if plan.target is None else plan.target[rows]
        return self._lane.numbers(target, plan.rows[rows], plan.variant[rows])

    def begin(self, start_ns: int) -> None:
        plan, self._start_ns = self._plan, start_ns
        self._core.begin_open(
            start_ns,
            np.ascontiguousarray(plan.offset_ns, np.int64),
            np.ascontiguousarray(plan.seq, np.int64),
            np.ascontiguousarray(plan.phase, np.uint8),
            self._templates,
            self._sequences,
        )
        self._templates, self._sequences = self._templates[:0], None  # the core has its own

    def n_due_by(self, at_ns: int) -> int:
        return int(np.searchsorted(self._plan.offset_ns, at_ns - self._start_ns, side="right"))

    def user_of(self, token: int) -> int:
        """None: an open loop has no users."""
        del token
        return 0

    def ended(self, due: Due, at_ns: int) -> None:
        del at_ns  # the plan does not care
        self._core.landed(due.template.target)

    def left_out(self, due: Due) -> None:
        del due

    def cease(self, at_ns: int) -> bool:
        first = self._core.n_begun
        if first < self.n_due_by(at_ns):
            return False
        self._ceased = first
        self._core.halt()
        return True

    def rest(self) -> Iterator[Due]:
        while not self.is_over:
            yield self.take()
        if self._ceased is not None:
            yield from self._from(self._ceased)

    def _from(self, first: int) -> Iterator[Due]:
        """The arrivals from that row on."""
        plan, templates = self._plan, self._lane.templates
        for start in range(first, len(plan), _CHUNK_ROWS):
            rows = slice(start, start + _CHUNK_ROWS)
            at_ns = (plan.offset_ns[rows] + self._start_ns).tolist()
            numbers, tokens = self._numbers(rows).tolist(), plan.seq[rows].tolist()
            for at, token, phase, number in zip(
                at_ns, tokens, plan.phase[rows].tolist(), numbers, strict=True
            ):
                yield Due(at, at, token, phase, templates[number])


class LaneClosedLoop(_LanePacing):
    """`squall.actors.load.pacing.ClosedLoop` with the users in the core; it asks for the steps of a user 64 at
    a time."""

    def __init__(self, plan: ClosedPlan, lane: Lane) -> None:
        super().__init__(lane)
        self._plan = plan
        self._start_ns = 0
        self._chunks: dict[int, Any] = {}

    def begin(self, start_ns: int) -> None:
        self._start_ns = start_ns
        users, sequences = np.ascontiguousarray(self._plan.users, np.int64), self._lane.sequences
        assert sequences is None or sequences.rule.n_lanes == self._plan.n_users, (
            "each user has one at a time"
        )
        self._core.begin_closed(
            start_ns, users, self._plan.n_users, self._enter, self._refill,
            None if sequences is None else (sequences.sequences.first_id, self._lengths),
        )  # fmt: skip

    def n_due_by(self, at_ns: int) -> int:
        return self._core.n_due_by(at_ns)

    def user_of(self, token: int) -> int:
        """Index here of the user whose request that is."""
        return int(np.searchsorted(self._plan.users, token % self._plan.n_users))

    def ended(self, due: Due, at_ns: int) -> None:
        self._core.landed(due.template.target)
        self._core.ended(self.user_of(due.token), at_ns)

    def left_out(self, due: Due) -> None:
        self._core.left_out(self.user_of(due.token), due.at_ns)

    def cease(self, at_ns: int) -> bool:
        """Not of users: how many requests they would have sent is not known."""
        del at_ns
        return False

    def rest(self) -> Iterator[Due]:
        """None: what a user would have sent is no arrival."""
        self._core.halt()
        return iter(())

    def _enter(self, index: int, first_phase: int, free_ns: int) -> tuple[int, int, int] | None:
        number = int(self._plan.users[index])
        begin = begin_of(self._plan, number, first_phase, self._start_ns, free_ns)
        if begin is None:
            return None
        phase, send_ns = begin
        self._chunks[index] = self._plan.step_chunks(number, phase)
        return send_ns, phase, self._start_ns + self._plan.spans[phase].end_ns

    def _lengths(self, index: int, first: int) -> bytes:
        assert self._lane.sequences is not None
        return self._lane.sequences.lengths(int(self._plan.users[index]), first)

    def _refill(self, index: int) -> tuple[bytes, bytes]:
        think_ns, rows, variants = next(self._chunks[index])
        targets = self._plan.targets[index][models_of(variants, self._plan.models)]
        return think_ns.astype(np.int64).tobytes(), self._lane.numbers(targets, rows, variants).tobytes()


def lane_pacing(plan: Plan | ClosedPlan, lane: Lane) -> LaneOpenLoop | LaneClosedLoop:
    """The pacing of a plan whose arrivals the core keeps."""
    return LaneClosedLoop(plan, lane) if isinstance(plan, ClosedPlan) else LaneOpenLoop(plan, lane)


def _table(keys: Mapping[TemplateKey, int]) -> NDArray[np.int32]:
    """Numbers of the templates by target, rows and variant."""
    shape = [max(key[axis] for key in keys) + 1 for axis in range(3)] if keys else [1, 0, 0]
    table = np.full(shape, NEVER, np.int32)
    for key, number in keys.items():
        table[key] = number
    return table
