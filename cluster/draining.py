"""That servers which run already have nothing left of one run before the next begins."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from functools import partial

from squall.actors.net.access import PLAIN, Access
from squall.actors.net.triton_control import Control, ControlError, authority
from squall.actors.sampling.triton_metrics import MetricsError, model_counters
from squall.analysis.requests.failures import ANSWERED
from squall.cluster.driver.run import RunResult
from squall.cluster.interrupts import Interrupts
from squall.cluster.node.endpoint import METRICS, bracketed, headers_of
from squall.cluster.progress import Screen
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.records import Frozen
from squall.scenarios.units import NS_PER_S

LONGEST_S = 60.0
_LOOK_EVERY_S = 0.2


Ask = Callable[[str], int | None]
"""`pending`, or what stands for it in a test."""
Wait = Callable[[float, Callable[[], bool]], bool]
"""Waits so many seconds at most until something is over; whether it was in time."""


class Unanswered(Frozen):
    """`n` requests of the measured phases; `throughput_hz`: what was answered ok of these over their length."""

    n: int
    throughput_hz: float


def left_of(result: RunResult) -> Unanswered | None:
    """What a run left unanswered; None where it had no requests."""
    if result.summary is None:
        return None
    measured = result.summary.measure
    counts = measured.outcomes.counts
    n = sum(of_one for outcome, of_one in counts.items() if outcome not in ANSWERED)
    return Unanswered(n, measured.outcomes.n_ok * NS_PER_S / max(measured.duration_ns, 1))


class Draining:
    """Of runs that follow one another, in whatever folders: the next waits for what the last one left (`read`)."""

    def __init__(self, read: Callable[[RunResult], Unanswered | None] = left_of) -> None:
        self._read = read
        self._last: tuple[Scenario, RunResult] | None = None

    def heard(self, scenario: Scenario, result: RunResult) -> None:
        """A run has ended."""
        self._last = scenario, result

    def wait(self, screen: Screen, interrupts: Interrupts) -> None:
        """Before the next run. Raises KeyboardInterrupt."""
        if self._last is not None:
            scenario, result = self._last
            self._last = None
            drain(scenario, partial(self._read, result), screen, partial(wait_with, interrupts))


def drain(
    scenario: Scenario,
    read: Callable[[], Unanswered | None],
    screen: Screen,
    wait: Wait,
    ask: Ask | None = None,
) -> None:
    """Waits until servers that run already have nothing left of a run, at most a minute; says so where they still have.

    A run ends with its drain phase: once every reply is there nothing is left. Else Triton's own count of pending
    requests is asked for (`ask`) where `metrics_port` says where; where it does not, or a server does not tell, as long
    is waited as the unanswered ones take at the run's throughput. A server that squall started ended with its run.
    `read`: what the run left, read only where a server runs on.
    """
    entries = [one for one in scenario.servers or () if one.url is not None]
    left = read() if entries else None
    if left is None or not left.n:
        return
    places = [
        f"http://{bracketed(authority(one.url)[0])}:{one.metrics_port}"
        for one in entries
        if one.url is not None and one.metrics_port is not None
    ]
    asked = ask or partial(pending, access=Access(headers=headers_of(scenario)))
    if len(places) < len(entries) or any(asked(place) is None for place in places):
        wait_s = min(left.n / max(left.throughput_hz, 1e-3), LONGEST_S)
        screen.step(f"waits {wait_s:.1f} s for {left.n} requests that the server may still have")
        wait(wait_s, lambda: False)
    elif not wait(LONGEST_S, lambda: not any(map(asked, places))):
        screen.step(f"after {LONGEST_S:.0f} s the server still has requests of the run before", "red")


def pending(url: str, access: Access = PLAIN) -> int | None:
    """Requests that wait for execution at a server, of all its models; None where it does not tell."""
    try:
        with closing(Control(url, access)) as control:
            counters = model_counters(control.ask(METRICS).decode())
    except (ControlError, MetricsError, UnicodeDecodeError):
        return None
    told = [one.pending_count for one in counters.values() if one.pending_count is not None]
    return sum(told) if told else None


def wait_with(interrupts: Interrupts, longest_s: float, is_over: Callable[[], bool]) -> bool:
    """A `Wait` that a signal ends with KeyboardInterrupt."""
    end_s = time.monotonic() + longest_s
    with interrupts.allowed():
        while not is_over():
            if time.monotonic() >= end_s:
                return False
            time.sleep(min(_LOOK_EVERY_S, max(0.0, end_s - time.monotonic())))
    return True
