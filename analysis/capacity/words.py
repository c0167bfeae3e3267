"""The answer in a sentence, and the lines of the screen."""

from __future__ import annotations

from collections.abc import Sequence

from squall.analysis.capacity.answer import Answer, Settings
from squall.analysis.decisions.figures import UNDECIDED
from squall.analysis.requests.failures import CLIENT
from squall.analysis.wording import count_text, duration_text, names_text, rate_text


def sentence(answer: Answer, settings: Settings) -> str:
    """What answers the question.

    `carries 300/s (95 %: 291 to 309) within p(95)<50ms; safe for 9 of 10 bursts: 281/s`
    """
    within = f"within {promises_text(settings)}"
    by = ", scaled by amplitude" if settings.scale == "amplitude" else ""
    edge = answer.boundary_summary
    match answer.kind:
        case "found":
            return f"carries {_carried(answer)} {within}{by}{_safe(answer)}"
        case "nothing passes":
            seeds = _seeds_of(answer, "nothing passes")
            return f"nothing passes{seeds}: broken at every load that was tried {within}{by}"
        case "nothing fails":
            seeds = _seeds_of(answer, "nothing fails")
            most = ", the most that was tried," if not seeds else " in all seeds"
            return f"nothing fails{seeds}: carries {rate_text(edge.feasible_max_hz)}{most} {within}{by}"
        case "client limit":
            told = f": {answer.reason}" if answer.reason else ""
            carried = f"carries {rate_text(edge.feasible_max_hz)} {within}{by}"
            name = "client limit" if answer.cause in ("", CLIENT) else "limit of what could be measured"
            return f"{name}: {carried}; more could not be measured{told}"
        case "searching":
            return f"searching {within}{by}: {len(answer.per_seed)} of {settings.n_seeds} seeds"
        case _:
            name = "undecided" if answer.kind == UNDECIDED else "not measured"
            return f"{name}{by}: {answer.reason or 'no load could be measured'}"


def _seeds_of(answer: Answer, kind: str) -> str:
    """Which seeds they are, where they are not all."""
    own = [str(one.seed) for one in answer.per_seed if one.kind == kind]
    return f" of seed {names_text(own)}" if len(own) < len(answer.per_seed) else ""


def promises_text(settings: Settings) -> str:
    """The promises as people write them: without the metric where it is response time."""
    return " and ".join(one.removeprefix("response ") for one in settings.promises)


def _carried(answer: Answer) -> str:
    interval = answer.interval
    if interval is None:
        carried = rate_text(answer.capacity_hz)
    else:
        low, high = (rate_text(one).removesuffix("/s") for one in (interval.low_hz, interval.high_hz))
        carried = f"{rate_text(interval.rate_hz)} ({answer.level:.0%}: {low} to {high})".replace("%", " %")
    if answer.feasible is None:
        return carried
    return f"from {rate_text(answer.feasible.low_hz)} to {carried}, not less,"


def _safe(answer: Answer) -> str:
    if answer.safe is None:
        return ""
    unsure = "" if answer.safe.is_confirmed else ", not confirmed"
    return f"; safe for {10 * answer.share:.0f} of 10 bursts: {rate_text(answer.safe.rate_hz)}{unsure}"


def fact_lines(answer: Answer, settings: Settings) -> list[str]:
    """What stands below the sentence."""
    found = []
    near, edge = answer.at_capacity, answer.boundary_summary
    if edge.binding_constraint:
        found.append(f"breaks first: {edge.binding_constraint}")
    if answer.feasible is not None:
        found.append(f"less load is not kept: {answer.feasible.cause}")
    if near is not None:
        if near.bottleneck:
            found.append(f"limits there: {near.bottleneck}")
        found.append(
            f"at {rate_text(near.rate_hz)}: {count_text(near.in_flight_mean_count)} in flight, busiest second"
            f" {rate_text(near.peak_1s_hz)}, busiest 100 ms {rate_text(near.peak_100ms_hz)}"
        )
    if answer.knee is not None:
        knee = answer.knee
        done = (
            f"{rate_text(knee.throughput_hz)} done in {duration_text(knee.response_mean_ns)} each on average"
        )
        found.append(f"knee at {rate_text(knee.rate_hz)}: {done}")
    if answer.saturation_hz is not None:
        found.append(f"backlog grows from {rate_text(answer.saturation_hz)} on")
    found.append(
        f"{answer.n_runs} runs, {answer.minutes:.1f} min; scaled by {settings.scale} from {rate_text(settings.base_hz)}"
    )
    return found


def lines(answers: Sequence[Answer], settings: Settings) -> list[str]:
    """The screen: the answer first; of several sets of servers each."""
    found = []
    for answer in answers:
        head = f"{answer.variant}: " if len(answers) > 1 else ""
        found += [f"{head}{sentence(answer, settings)}", *fact_lines(answer, settings), *answer.notes]
    return [*found, *efficiency_lines(answers)]


def efficiency_lines(answers: Sequence[Answer]) -> list[str]:
    """Capacity of all servers against that of one, where both are known: C(N) / (N C(1))."""
    found = []
    for name, ratio in scaling(answers).items():
        found.append(f"scaling efficiency of {name}: {ratio:.2f} of so many single ones")
    return found


def scaling(answers: Sequence[Answer]) -> dict[str, float]:
    """C(N) / (N C(1)) of each set of several servers, by its name."""
    known = {one.n_servers: one for one in answers if one.capacity_hz is not None}
    if 1 not in known or known[1].capacity_hz is None:
        return {}
    single_hz = known[1].capacity_hz
    return {
        one.variant: one.capacity_hz / (n * single_hz)
        for n, one in known.items()
        if n > 1 and one.capacity_hz is not None
    }
