"""An instance as TensorRT's backend runs one: batches are issued while others compute, so that their intervals overlap;
the work is first in, first out on a stream, and says itself which batch it is of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from squall.actors.inject.kernel_ring import KERNEL, SYNC
from squall.analysis.arrays import Bools, Int64s
from squall.analysis.join.ties import prepare_ties, tied_rows
from squall.analysis.storage.query import over
from squall.analysis.storage.timeline import RunPhase

Window = tuple[int, int]
PROCESS = 11
US = 1_000


class Batches(NamedTuple):
    """Of an instance; (n,) each."""

    start_ns: Int64s
    end_ns: Int64s
    batch_id: Int64s


def tied(
    instances: Sequence[Batches],
    records: Mapping[str, Any],
    windows: Sequence[Window],
    events: Mapping[str, Any] | None = None,
    table: str = "kernels",
) -> pa.Table:
    """What `tied_rows` says of `records` of a process, columns by name, as `table`; `instances` by their numbers, of
    one server; `windows`: when it was recorded, in one measured phase."""
    common = {
        "server": "s",
        "process": PROCESS,
        "context": 1,
        "stream": 7,
        "thread": -1,
        "recorded_by": "library",
    }
    n = len(records["start_ns"])
    rows = {name: np.full(n, value) for name, value in common.items()}
    rows |= {"file_row_number": np.arange(n), "correlation_id": np.arange(n), "batch_id": np.full(n, -1)}
    rows |= {"instance": np.full(n, ""), "instance_device": np.full(n, -1), **records}
    batches = [
        {"server": "s", "model": "m", "instance": str(number), "instance_device": 0, "start_ns": start, "end_ns": end,
         "batch_id": batch_id, "exec_start_ns": None, "exec_end_ns": None}
        for number, own in enumerate(instances)
        for start, end, batch_id in zip(*(column.tolist() for column in own), strict=True)
    ]  # fmt: skip
    tables = {
        "batches": pa.Table.from_pylist(batches, schema=_BATCHES),
        "recordings": pa.table({
            "server": ["s"] * len(windows), "start_ns": [first for first, _ in windows],
            "end_ns": [last for _, last in windows],
        }),
        "cuda_events": pa.Table.from_pylist([], schema=_EVENTS),
        "records": pa.table(rows),
    }  # fmt: skip
    if events is not None:
        tables["cuda_events"] = pa.table({"server": np.full(len(events["event"]), "s"), **events})
    with over(tables) as connection:
        phase = RunPhase("measure", "measure", 0, 2**62)
        prepare_ties(connection, [phase], {table: ["records"]})
        return tied_rows(connection, table, "records")


def _schema(texts: Sequence[str], *numbers: str) -> pa.Schema:
    return pa.schema([*((name, pa.string()) for name in texts), *((name, pa.int64()) for name in numbers)])


_EVENTS = _schema(("server",), "process", "context", "stream", "correlation_id", "event")
_BATCHES = _schema(
    ("server", "model", "instance"),
    *("instance_device", "batch_id", "start_ns", "end_ns", "exec_start_ns", "exec_end_ns"),
)


@dataclass
class Schedule:
    """What instances did; (n,) each, in the order of calls over all of them."""

    instances: tuple[Batches, ...]
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
        Batches(
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
    """What is tied of what lies in the windows; (n,) each, -1: to none."""

    instance: Int64s
    batch_id: Int64s
    true_batch: Int64s
    true_instance: Int64s

    @property
    def is_tied(self) -> Bools:
        return self.batch_id >= 0

    @property
    def n_wrong(self) -> int:
        """Tied to a batch that is not theirs; what has an instance that is not its own counts too."""
        is_other = (self.batch_id != self.true_batch) | (self.instance != self.true_instance)
        return int(np.count_nonzero(is_other & self.is_tied))

    @property
    def share(self) -> float:
        return float(np.mean(self.is_tied))


def found(made: Schedule, windows: list[Window] | None = None, with_events: bool = True) -> Found:
    """Of a process that was recorded in `windows`; none: all the time.

    What was launched while it was off is not recorded, nor are events.
    """
    spans = windows or [(0, made.end_ns)]
    is_seen, is_told = (
        np.logical_or.reduce([(first <= at) & (at < last) & (ends <= last) for first, last in spans])
        for at, ends in ((made.launched_ns, made.operations["end_ns"]), (made.recorded_ns, made.recorded_ns))
    )
    order = np.random.default_rng(1).permutation(
        np.flatnonzero(is_told & with_events)
    )  # as CUPTI's buffers come
    ids = ("context", "stream", "correlation_id")
    records, events = (
        {name: rows[name].astype(np.int64) for name in names}
        for rows, names in (
            (made.operations[is_seen], (*ids, "start_ns", "end_ns")), (made.events[order], (*ids, "event"))
        )
    )  # fmt: skip
    events["process"] = np.full(len(order), PROCESS)
    rows = tied(made.instances, records, spans, events)
    instance = [int(name or -1) for name in rows["instance"].to_pylist()]
    batch_id = rows["batch_id"].fill_null(-1).to_numpy()
    return Found(
        np.array(instance, np.int64), batch_id, made.true_batch[is_seen], made.true_instance[is_seen]
    )
