"""A null server or a load worker with one fault in its real path: `python -m tests.golden.faulty FAULT MODULE …`.

A program of the tests; what follows MODULE are its own arguments.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import actors.null_queue
import actors.null_server
import actors.probe
from actors.clock import Alarm
from actors.engine import Engine
from actors.loadgen import LoadWorker, WorkerSettings
from scenarios.plan import Plan

LATE_NS = 1_000_000
_AT = 50
"""Which service time is dropped or given twice."""


def clock_runs(rate: float) -> None:
    """The server's clock and its timer, from its start on."""
    begun_ns = time.monotonic_ns()

    def now_ns() -> int:
        return begun_ns + round(rate * (time.monotonic_ns() - begun_ns))

    arm = Alarm.arm

    def arm_by_it(alarm: Alarm, at_ns: int) -> None:
        arm(alarm, begun_ns + round((at_ns - begun_ns) / rate))

    Alarm.arm = arm_by_it  # type: ignore[method-assign]
    actors.null_server.time = SimpleNamespace(monotonic_ns=now_ns)  # type: ignore[attr-defined]


def timer_is_slow() -> None:
    """Departures come a tenth later than their instants, as if the timer's clock alone were slow."""
    push = actors.null_server.heappush  # type: ignore[attr-defined]

    def late(heap: list[Any], entry: tuple[int, ...]) -> None:
        departure_ns, arrival_ns = entry[0], entry[7]
        push(heap, (departure_ns + (departure_ns - arrival_ns) // 10, *entry[1:]))

    actors.null_server.heappush = late  # type: ignore[attr-defined]


def stream_with(n_times: int) -> None:
    """One service time of the stream is given so many times."""
    drawn = actors.null_queue.service_times

    def spoilt(service: actors.null_queue.Service, seed: int) -> Iterator[int]:
        for number, service_ns in enumerate(drawn(service, seed)):
            yield from [service_ns] * (n_times if number == _AT else 1)

    actors.null_queue.service_times = spoilt


def one_lane_more() -> None:
    """The server has a lane that nobody asked for."""
    make = actors.null_queue.Lanes.__init__

    def more(lanes: actors.null_queue.Lanes, service: Any, seed: int, n_lanes: int, most: int | None) -> None:
        make(lanes, service, seed, n_lanes + 1, most)

    actors.null_queue.Lanes.__init__ = more  # type: ignore[method-assign]


def replies_stamped(late_ns: int) -> None:
    """The worker stamps the end of each reply so much late."""
    real = Engine.on_reply

    def late(engine: Engine, exchange: Any) -> None:
        exchange.done_ns += late_ns
        real(engine, exchange)

    Engine.on_reply = late  # type: ignore[method-assign]
    make = LoadWorker.__init__

    def without_lane(worker: LoadWorker, settings: WorkerSettings, clock: Any) -> None:
        make(worker, replace(settings, lane=False), clock)

    LoadWorker.__init__ = without_lane  # type: ignore[method-assign]


def schedule_moves_along() -> None:
    """The worker was held up for 20 ms in the middle, and anchors the rest of its schedule anew: omission."""
    real = LoadWorker.prepare

    def moved(worker: LoadWorker, plan: Plan) -> None:
        offset_ns = plan.offset_ns.copy()
        offset_ns[len(offset_ns) // 2 :] += 20_000_000
        real(worker, replace(plan, offset_ns=offset_ns))

    LoadWorker.prepare = moved  # type: ignore[assignment, method-assign]


FAULTS: dict[str, Callable[[], None]] = {
    "none": lambda: None,
    "clock 10 % fast": lambda: clock_runs(1.1),
    "clock 10 % slow": lambda: clock_runs(0.9),
    "timer 10 % slow": timer_is_slow,
    "service time dropped": lambda: stream_with(0),
    "service time doubled": lambda: stream_with(2),
    "a lane more": one_lane_more,
    "replies stamped 1 ms late": lambda: replies_stamped(LATE_NS),
    "replies stamped 1 ms early": lambda: replies_stamped(-LATE_NS),
    "schedule moved along": schedule_moves_along,
}


def main() -> int:
    fault, module, *arguments = sys.argv[1:]
    FAULTS[fault]()
    sys.argv = [module, *arguments]
    code: int = importlib.import_module(module).main()
    return code


if __name__ == "__main__":
    sys.exit(main())
