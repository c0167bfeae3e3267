"""A null server or a load worker with one fault in its real path: `python -m tests.golden.faulty FAULT MODULE …`.

A program of the tests; what follows MODULE are its own arguments.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from heapq import heappush
from types import SimpleNamespace
from typing import Any

import squall.actors.load.worker_process
import squall.actors.null.queue
import squall.actors.null.server
from squall.actors.clock import Alarm
from squall.actors.load.engine import Engine
from squall.actors.load.worker import LoadWorker, WorkerSettings
from squall.scenarios.plan.plan import Plan

LATE_NS = 1_000_000
_AT = 50
"""Which service time is dropped or given twice."""


def plant(where: Any, name: str, value: object) -> None:
    """`value` in the place of `where.name`, until the process ends."""
    setattr(where, name, value)


def clock_runs(rate: float) -> None:
    """The server's clock and its timer, from its start on."""
    begun_ns = time.monotonic_ns()

    def now_ns() -> int:
        return begun_ns + round(rate * (time.monotonic_ns() - begun_ns))

    arm = Alarm.arm

    def arm_by_it(alarm: Alarm, at_ns: int) -> None:
        arm(alarm, begun_ns + round((at_ns - begun_ns) / rate))

    plant(Alarm, "arm", arm_by_it)
    plant(squall.actors.null.server, "time", SimpleNamespace(monotonic_ns=now_ns))


def timer_is_slow() -> None:
    """Departures come a tenth later than their instants, as if the timer's clock alone were slow."""
    push = heappush

    def late(heap: list[Any], entry: tuple[int, ...]) -> None:
        departure_ns, arrival_ns = entry[0], entry[7]
        push(heap, (departure_ns + (departure_ns - arrival_ns) // 10, *entry[1:]))

    plant(squall.actors.null.server, "heappush", late)


def stream_with(n_times: int) -> None:
    """One service time of the stream is given so many times."""
    drawn = squall.actors.null.queue.service_times

    def spoilt(service: squall.actors.null.queue.Service, seed: int) -> Iterator[int]:
        for number, service_ns in enumerate(drawn(service, seed)):
            yield from [service_ns] * (n_times if number == _AT else 1)

    squall.actors.null.queue.service_times = spoilt


def one_lane_more() -> None:
    """The server has a lane that nobody asked for."""
    make = squall.actors.null.queue.Lanes.__init__

    def more(
        lanes: squall.actors.null.queue.Lanes, service: Any, seed: int, n_lanes: int, most: int | None
    ) -> None:
        make(lanes, service, seed, n_lanes + 1, most)

    plant(squall.actors.null.queue.Lanes, "__init__", more)


def replies_stamped(late_ns: int) -> None:
    """The worker stamps the end of each reply so much late."""
    real = Engine.on_reply

    def late(engine: Engine, exchange: Any) -> None:
        exchange.done_ns += late_ns
        real(engine, exchange)

    plant(Engine, "on_reply", late)
    make = LoadWorker.__init__

    def without_lane(worker: LoadWorker, settings: WorkerSettings, clock: Any) -> None:
        make(worker, replace(settings, lane=False), clock)

    plant(LoadWorker, "__init__", without_lane)


def schedule_moves_along() -> None:
    """The worker was held up for 20 ms in the middle, and anchors the rest of its schedule anew: omission."""
    real = LoadWorker.prepare

    def moved(worker: LoadWorker, plan: Plan) -> None:
        offset_ns = plan.offset_ns.copy()
        offset_ns[len(offset_ns) // 2 :] += 20_000_000
        real(worker, replace(plan, offset_ns=offset_ns))

    plant(LoadWorker, "prepare", moved)


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
