"""`squall selftest`: the client of this host against null servers: how much it can send, and are its answers right?"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import count, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.actors.load.lane import IS_BUILT, NOT_BUILT
from squall.analysis.statistics.answers import (
    FAILED,
    PASSED,
    QS,
    UNMEASURABLE,
    Requests,
    expect,
    judge_constant,
    judge_queue,
    judge_step,
)
from squall.analysis.statistics.exact_queue import Waits
from squall.cluster.commands.local_workers import Job, NullTriton, poisson_plan, run_workers
from squall.cluster.node.scratch import Scratch
from squall.scenarios.errors import ScenarioError
from squall.scenarios.plan.plan import deal, stream
from squall.scenarios.records import Frozen
from squall.scenarios.units import NS_PER_S, format_duration, parse_duration

PROTOCOLS = ("http", "grpc")
QUEUES = (("exponential", 1), ("constant", 1), ("exponential", 4))
"""Law of the service times, and lanes: M/M/1, M/D/1, M/M/4."""
MISS_RATIO = 0.05
"""Chance that a right client fails anywhere in the known answers of one selftest whose seed was not tried before."""
CONSTANT_NS = 5_000_000
CONSTANT_HZ = 200.0
FIRST_HZ = 4_000.0
_LEAST_HZ, _MOST_HZ = 125.0, 1_024_000.0
_GROWTH = 4.0
_N_BISECTIONS = 2
_N_REPEATS = 1
_STEP_DRAIN_NS = NS_PER_S
_CHECK_DRAIN_NS = 30 * NS_PER_S
_SHORTEST_NS, _LONGEST_NS = NS_PER_S // 10, 600 * NS_PER_S

Say = Callable[[str], None]
Answer = dict[str, Any]


class Options(Frozen):
    """What is tried: protocols, workers at once, length of a step and of a known answer, loads of the queues."""

    protocols: tuple[str, ...] = PROTOCOLS
    n_workers: tuple[int, ...] = (1,)
    step_ns: int = NS_PER_S
    check_ns: int = 4 * NS_PER_S
    load_ratios: tuple[float, ...] = (0.8,)
    seed: int = 1

    def __post_init__(self) -> None:
        for length_ns in (self.step_ns, self.check_ns):
            if not _SHORTEST_NS <= length_ns <= _LONGEST_NS:
                allowed = f"{format_duration(_SHORTEST_NS)} to {format_duration(_LONGEST_NS)}"
                raise ScenarioError(
                    f"selftest: a step or check of {format_duration(length_ns)}: use {allowed}"
                )
        unknown = [name for name in self.protocols if name not in PROTOCOLS]
        if unknown:
            raise ScenarioError(f"selftest: {unknown[0]!r} is no protocol, use {' or '.join(PROTOCOLS)}")

    def seed_of(self, use: str, *place: int) -> int:
        """The seed for one use at one place, independent of the others."""
        return int(stream(self.seed, f"selftest {use}", *place).integers(2**32))


def options_of(
    protocol: str | None, step: str, check: str | None, n_workers: int | None, is_full: bool, seed: int
) -> Options:
    """As the command line gives them. None: both protocols, a check of the load's usual length, workers by the cores.

    Raises ScenarioError for what cannot be used.
    """
    try:
        step_ns, check_ns = parse_duration(step), parse_duration(check or ("30s" if is_full else "4s"))
    except ValueError as error:
        raise ScenarioError(f"selftest: {error}") from error
    # a worker and its null server want a core each
    n_pairs = len(os.sched_getaffinity(0)) // 2
    n_more = min(4, n_pairs) if n_workers is None else n_workers
    return Options(
        protocols=(protocol,) if protocol else PROTOCOLS,
        n_workers=(1, n_more) if n_more > 1 else (1,),
        step_ns=step_ns,
        check_ns=check_ns,
        load_ratios=(0.5, 0.8, 0.95) if is_full else (0.8,),
        seed=seed,
    )


class Served(Frozen, eq=False):
    """What one client saw of a null server and what that recorded; `planned_ns`: the plan's own instants;
    `service_seed`: of the server's service times; `waits`: of both for a core."""

    protocol: str
    rows: Requests
    planned_ns: NDArray[np.int64]
    record: dict[str, NDArray[np.int64]]
    service_seed: int
    waits: Waits


def selftest(options: Options, say: Say) -> dict[str, Any]:
    """The whole result, as `--json` prints it. Raises SquallError where a server or worker cannot run.

    `say` gets a line on each step. Leaves no process and no file behind, however it ends.
    """
    scratch = Scratch()
    sweeps, halves = [], []
    try:
        for protocol in options.protocols:
            sweep, half = sweep_rates(options, protocol, 1, FIRST_HZ, scratch.path, say)
            sweeps.append(sweep)
            if half is not None:
                halves.append(half)
                for n in (n for n in options.n_workers if n > 1):
                    first_hz = round_rate(n * sweep["highest_clean_hz"])
                    sweeps.append(sweep_rates(options, protocol, n, first_hz, scratch.path, say)[0])
        answers = known_answers(options, scratch.path, say)
    finally:
        scratch.remove()
    return {
        "host": {
            "cores": len(os.sched_getaffinity(0)),
            "python": platform.python_version(),
            "no_lane": "" if IS_BUILT else NOT_BUILT,
        },
        "sweep": sweeps,
        "at_half_rate": halves,
        "known_answers": answers,
        "status": status_of(answers),
        "passed": status_of(answers) == PASSED,
    }


def status_of(answers: Sequence[Answer]) -> str:
    """Failed if one is; else not measurable if one is."""
    found = {answer["status"] for answer in answers}
    return next((status for status in (FAILED, UNMEASURABLE) if status in found), PASSED)


# the sweep


def sweep_rates(
    options: Options, protocol: str, n_workers: int, first_hz: float, folder: Path, say: Say
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The highest clean rate of all workers together, with every step on the way; and a step at half of it.

    Each worker has a null server of its own, which answers at once. A step that is not clean although all was sent
    at its end may have met a stall of the host: it is done once more, `_N_REPEATS` times in a sweep at most.
    """
    steps: list[dict[str, Any]] = []

    def is_clean(rate_hz: float) -> bool:
        steps.append(step(rate_hz))
        if _may_have_stalled(steps[-1]) and sum(map(_may_have_stalled, steps)) <= _N_REPEATS:
            steps.append(step(rate_hz))
        return bool(steps[-1]["is_clean"])

    def step(rate_hz: float) -> dict[str, Any]:
        seed = options.seed_of("step", next(numbers))
        parts = deal(poisson_plan(rate_hz, options.step_ns, _STEP_DRAIN_NS, seed), n_workers)
        jobs = [Job(server, protocol, part) for server, part in zip(servers, parts, strict=True)]
        probed = run_workers(jobs, folder)
        rows, cost = probed.together()
        figures = judge_step(rows, probed.start_ns, options.step_ns, cost)
        workers = "1 worker" if n_workers == 1 else f"{n_workers} workers"
        say(f"{protocol}, {workers}, {rate_hz:,.0f}/s: {'; '.join(figures['reasons']) or 'clean'}")
        return {"protocol": protocol, "n_workers": n_workers, "rate_hz": rate_hz, **figures}

    numbers = count()
    with ExitStack() as stack:
        servers = [stack.enter_context(NullTriton()) for _ in range(n_workers)]
        # more workers are asked for as much more, not for the highest of all: that would take minutes
        clean_hz, unclean_hz = highest_clean(is_clean, first_hz, _MOST_HZ if n_workers == 1 else first_hz)
        half = step(clean_hz / 2) if clean_hz is not None and n_workers == 1 else None
    at_highest = [one for one in steps if one["rate_hz"] == clean_hz and one["is_clean"]]
    sweep = {
        "protocol": protocol, "n_workers": n_workers, "highest_clean_hz": clean_hz,
        "lowest_unclean_hz": unclean_hz, "at_highest": at_highest[0] if at_highest else None, "steps": steps,
    }  # fmt: skip
    return sweep, half


def highest_clean(
    is_clean: Callable[[float], bool], first_hz: float, most_hz: float = _MOST_HZ
) -> tuple[float | None, float | None]:
    """(highest rate found clean, lowest found not clean) in Hz, up to `most_hz`; None where there is none.

    Goes up from `first_hz` by factors of 4 to the first rate that is not clean, or down to the first that is; then
    bisects, on a logarithmic scale.
    """
    clean: float | None = None
    unclean: float | None = None
    rate_hz = first_hz
    while (clean is None or unclean is None) and _LEAST_HZ <= rate_hz <= most_hz:
        if is_clean(rate_hz):
            clean = rate_hz
        else:
            unclean = rate_hz
        rate_hz = rate_hz * _GROWTH if unclean is None else rate_hz / _GROWTH
    if clean is None or unclean is None:
        return clean, unclean
    for _ in range(_N_BISECTIONS):
        middle = round_rate(math.sqrt(clean * unclean))
        if is_clean(middle):
            clean = middle
        else:
            unclean = middle
    return clean, unclean


def round_rate(rate_hz: float) -> float:
    """To two digits: a rate that one can say."""
    return float(f"{rate_hz:.2g}")


def _may_have_stalled(step: dict[str, Any]) -> bool:
    return not step["is_clean"] and step["n_requests"] > 0 and not step["n_failed"] and not step["n_overdue"]


# known answers


def known_answers(options: Options, folder: Path, say: Say) -> list[Answer]:
    """Constant service times, then each queue at each load; the protocols of one at the same time."""
    found = []
    for served in serve(options, options.protocols, f"constant:{CONSTANT_NS}ns", 0, CONSTANT_HZ, 0, folder):
        answer = judge_constant(
            CONSTANT_NS,
            CONSTANT_HZ,
            options.check_ns,
            served.rows,
            served.planned_ns,
            served.record,
            served.waits,
        )
        found.append(_told({"protocol": served.protocol, **answer}, say))
    for number, (load_ratio, (law, n_lanes)) in enumerate(product(options.load_ratios, QUEUES), 1):
        found += queue_answers(options, law, n_lanes, load_ratio, number, folder, say)
    return found


def queue_answers(
    options: Options, law: str, n_lanes: int, load_ratio: float, number: int, folder: Path, say: Say
) -> list[Answer]:
    """One queue, known answer `number` of a selftest, over each protocol.

    A check that the host may have spoilt is repeated, `_N_REPEATS` times at most, with the same arrivals and
    service times: a repeat is no second draw.
    """
    n_ranges = len(QUEUES) * len(options.load_ratios) * len(options.protocols) * len(QS)
    seed = options.seed_of("ranges", number)
    expected = expect(law, n_lanes, load_ratio, options.check_ns, MISS_RATIO / n_ranges, seed)
    queue, service = expected.queue, f"{law}:{expected.queue.service_ns}ns"
    answers: dict[str, Answer] = {}
    left: Sequence[str] = options.protocols
    for _ in range(1 + _N_REPEATS):
        for served in serve(options, left, service, n_lanes, queue.arrival_hz, number, folder):
            answer = judge_queue(
                expected, served.rows, served.planned_ns, served.record, served.service_seed, served.waits
            )
            answers[served.protocol] = _told({"protocol": served.protocol, **answer}, say)
        left = [name for name in left if answers[name]["status"] == UNMEASURABLE]
        if not left:
            break
    return [answers[name] for name in options.protocols]


def serve(
    options: Options,
    protocols: Sequence[str],
    service: str,
    n_lanes: int,
    rate_hz: float,
    number: int,
    folder: Path,
) -> list[Served]:
    """Poisson arrivals at null servers: one worker and one server for each protocol, all at the same time."""
    with ExitStack() as stack:
        jobs = []
        for protocol in protocols:
            place = number, PROTOCOLS.index(protocol)
            seed, record = options.seed_of("service", *place), folder / f"record-{protocol}.npz"
            arguments = f"--service={service}", f"--servers={n_lanes}", f"--seed={seed}"
            server = stack.enter_context(NullTriton(*arguments, record=record))
            plan = poisson_plan(rate_hz, options.check_ns, _CHECK_DRAIN_NS, options.seed_of("plan", *place))
            jobs.append(Job(server, protocol, plan))
        probed = run_workers(jobs, folder)
        return [
            Served(
                job.protocol,
                rows,
                probed.start_ns + job.plan.offset_ns,
                job.server.end(),
                options.seed_of("service", number, PROTOCOLS.index(job.protocol)),
                waits,
            )
            for job, rows, waits in zip(jobs, probed.rows, probed.waits, strict=True)
        ]


def _told(answer: Answer, say: Say) -> Answer:
    load = "" if answer["load_ratio"] is None else f" at load {answer['load_ratio']:g}"
    say(f"{answer['protocol']}, {answer['queue']}{load}: {'; '.join(answer['reasons']) or 'as known'}")
    return answer
