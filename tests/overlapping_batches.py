"""An instance as TensorRT's backend runs one: batches are issued while others compute, so that their intervals overlap;
the work is first in, first out on a stream, and says itself which batch it is of."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from squall.actors.inject.kernel_ring import KERNEL, SYNC
from squall.analysis.recorded import Windows
from squall.cluster.node.injected.execution_lanes import ExecutionLanes
from squall.cluster.node.injected.kernel_owners import Held, Instance, Int64s, Tally, by_lane, held_by

Window = tuple[int, int]
PROCESS = 11
US = 1_000


@dataclass
class Schedule:
    """What instances did; (n,) each, in the order of calls over all of them."""

    instances: tuple[Instance, ...]
    operations: NDArray[np.void]
    """Of the ring's layout KERNEL."""
    true_batch: Int64s
    true_instance: Int64s
    launched_ns: Int64s
    events: NDArray[np.void]
    """Of the ring's layout SYNC."""
    recorded_ns: Int64s
    """When each event's call was made."""
    end_ns: int


@dataclass
class Rules:
    """Times in us."""

    seed: int = 0
    n_batches: int = 200
    n_instances: int = 1
    n_kernels: int = 6
    kernel_us: float = 100.0
    jitter: float = 0.2
    ahead: int = 1
    """Batches that are issued while one computes: with 1 the next is when its first kernel has read the inputs."""
    gap_us: float = 300.0
    """Mean time between two requests: below what an execution takes the instance has always more to do."""
    events: tuple[int, ...] = (6, 7)
    """Operations of an execution after which an event is recorded on its stream; there is a copy after the kernels."""
    n_event_sets: int = 2
    """Executions that record events of their own by turns; 0: each has new ones."""
    without_execution: frozenset[int] = frozenset()
    """Batches that fail before they put anything on the GPU."""
    unreported: frozenset[int] = frozenset()
    """Batches that nobody tells of."""
    lost_events: frozenset[int] = frozenset()
    answer_us: float = 60.0
    """From the last operation of a batch to its end as it is told."""


@dataclass
class _Made:
    rows: list[tuple[int, int, int, int, int, int, int]] = field(default_factory=list)
    events: list[tuple[int, int, int, int]] = field(default_factory=list)
    """Correlation id, stream, event, instant of the call."""


def schedule(rules: Rules) -> Schedule:
    """By `rules`, with everything that is not said drawn from their seed."""
    rng = np.random.default_rng(rules.seed)
    made, number = _Made(), 0
    spans: list[list[Window]] = [[] for _ in range(rules.n_instances)]
    free = [[0.0] * rules.n_batches for _ in range(rules.n_instances)]
    gpu = [0.0] * rules.n_instances
    arrived = 1_000.0 * US
    thread = 0.0
    for batch in range(rules.n_batches * rules.n_instances):
        instance, own = batch % rules.n_instances, batch // rules.n_instances
        arrived += rng.exponential(rules.gap_us * US)
        start = max(arrived, thread, free[instance][own - rules.ahead] if own >= rules.ahead else 0.0)
        at, first_end = max(start + 20 * US, gpu[instance]), 0.0
        call = start + 2 * US
        ids = range(rules.n_kernels + 1)
        if own in rules.without_execution:
            ids, first_end = range(0), start
        for place in ids:
            took = (
                rules.kernel_us
                * US
                * max(0.05, rng.normal(1, rules.jitter))
                * (0.2 if place == ids[-1] else 1)
            )
            made.rows.append((number, instance, own, int(at), int(at + took), int(call), place))
            number, at, call = number + 1, at + took + rng.exponential(1 * US), call + 2 * US
            first_end = first_end or at
            for order, after in enumerate(rules.events):
                if after == place + 1:
                    turn = own % rules.n_event_sets if rules.n_event_sets else own
                    event = 1000 * instance + len(rules.events) * turn + order
                    made.events.append((number, 7 + instance, event, int(call)))
                    number, call = number + 1, call + 2 * US
        gpu[instance] = max(gpu[instance], at)
        free[instance][own] = first_end
        thread = call
        spans[instance].append((int(start), int(at + rules.answer_us * US * (0.5 + rng.random()))))
    instances = tuple(
        Instance(
            *np.array([(*span, 100 + own) for own, span in enumerate(one) if own not in rules.unreported]).T
        )
        for one in spans
    )
    rows = np.array(made.rows)
    operations = np.zeros(len(rows), KERNEL)
    operations["correlation_id"], operations["stream"], operations["context"] = rows[:, 0], 7 + rows[:, 1], 1
    operations["start_ns"], operations["end_ns"] = rows[:, 3], rows[:, 4]
    told = np.array([one for place, one in enumerate(made.events) if place not in rules.lost_events])
    told = told.reshape(-1, 4)
    events = np.zeros(len(told), SYNC)
    events["correlation_id"], events["stream"], events["event"] = told[:, 0], told[:, 1], told[:, 2]
    events["context"] = 1
    return Schedule(
        instances, operations, 100 + rows[:, 2], rows[:, 1], rows[:, 5], events, told[:, 3], int(max(gpu)) + 1_000_000
    )  # fmt: skip


@dataclass
class Found:
    """What is tied of what lies in the windows."""

    held: Held
    true_batch: Int64s
    true_instance: Int64s

    @property
    def n_wrong(self) -> int:
        """Tied to a batch that is not theirs; what has an instance that is not its own counts too."""
        tied = self.held.is_tied
        is_other = (self.held.batch_id != self.true_batch) | (self.held.instance != self.true_instance)
        return int(np.count_nonzero(is_other & tied))

    @property
    def share(self) -> float:
        return float(np.mean(self.held.is_tied))


def found(made: Schedule, windows: list[Window] | None = None, with_events: bool = True) -> Found:
    """By the rings of a process that was recorded in `windows`; none: all the time.

    What was launched while it was off is not recorded, nor are events.
    """
    spans = windows or [(0, made.end_ns)]
    on = Windows.of((start, start, end, end) for start, end in spans)
    is_seen = np.logical_or.reduce(
        [
            (first <= made.launched_ns) & (made.launched_ns < last) & (made.operations["end_ns"] <= last)
            for first, last in spans
        ]
    )
    rows = made.operations[is_seen]
    is_told = np.logical_or.reduce(
        [(first <= made.recorded_ns) & (made.recorded_ns < last) for first, last in spans]
    )
    events = made.events[is_told if with_events else np.zeros(len(made.events), np.bool_)]
    begun = tuple(int(on.hold(one.begins_ns, one.begins_ns).sum()) for one in made.instances)
    tally, lanes = Tally(made.instances, begun), list(by_lane(PROCESS, rows["context"], rows["stream"]))
    for lane, own in lanes:
        tally.add(lane, rows["start_ns"][own], rows["end_ns"][own])
    owners = tally.owners()
    executions = ExecutionLanes(on, made.instances)
    order = np.random.default_rng(1).permutation(len(events))  # CUPTI's buffers come in any order
    executions.note(PROCESS, events[order], [rows])
    executions.begin(owners)
    executions.add(lanes, rows)
    executions.match(owners)
    told = executions.told(lanes, rows)
    held = held_by(made.instances, owners, lanes, rows["start_ns"], rows["end_ns"], told)
    return Found(held, made.true_batch[is_seen], made.true_instance[is_seen])
