"""Figures of a summary as texts and lines, for the screen and the report."""

from __future__ import annotations

from collections.abc import Iterable

from squall.analysis.join.children import ChildModel
from squall.analysis.limits import LIMITS
from squall.analysis.requests.by_server import ServerLoad, ServersFigures
from squall.analysis.requests.closed_loop import UserFigures
from squall.analysis.requests.rejections import Rejections
from squall.analysis.requests.sequences import SequenceFigures
from squall.analysis.requests.stimulus import Stimulus
from squall.analysis.requests.streams import StreamFigures
from squall.analysis.statistics.latency import Quantile
from squall.analysis.summary.step_figures import StepFigures
from squall.analysis.summary.stragglers import Straggler
from squall.analysis.verdict.phase_figures import LoadFigures, ModelLoad, RateFigures, SeriesFigures
from squall.analysis.wording import change_text, count_text, duration_text, rate_text, share_text


def quantile_text(quantile: Quantile) -> str:
    """The value; `failed` where the quantile falls on failures; `n too small` where it was refused."""
    if quantile.is_infinite:
        return "failed"
    return "n too small" if quantile.is_refused else duration_text(quantile.value_ns)


def interval_text(quantile: Quantile) -> str:
    """The 95 % interval, `?` for an end that the rows do not carry or that falls on failures; `none` without one."""
    if quantile.interval_reason:
        return "none"
    low, high = (
        duration_text(end) if end is not None else "?" for end in (quantile.low_ns, quantile.high_ns)
    )
    return f"{low} … {high}"


def load_rows(load: LoadFigures) -> list[tuple[str, RateFigures]]:
    """The series of a load with their labels: a closed loop has only what its users sent."""
    if load.intended is None:
        return [("sent by users", load.delivered)]
    return [("intended", load.intended), ("delivered", load.delivered)]


def burstiness(series: RateFigures) -> SeriesFigures | None:
    """The series with its burstiness; None of one over several phases, which has none."""
    return series if isinstance(series, SeriesFigures) else None


CLOSED_STIMULUS = (
    "none: users send when they have been answered, so that nothing was scheduled to hold the sends to"
)


def intended_lines(phase: str, figures: SeriesFigures) -> list[str]:
    """What a phase is about to send, before it is sent: a line, or two."""
    idc = (figures.idc_1s_ratio, figures.idc_10s_ratio, figures.idc_100s_ratio)
    peak = (figures.peak_to_mean_1s_ratio, figures.peak_to_mean_10s_ratio, figures.peak_to_mean_60s_ratio)
    scales = {
        "dispersion": _at_scales(zip((1, 10, 100), idc, strict=True)),
        "peak to mean": _at_scales(zip((1, 10, 60), peak, strict=True)),
    }
    local, c2 = count_text(figures.local_c2_ratio), count_text(figures.gap_c2_ratio)
    parts = [f"{count_text(figures.n)} arrivals, {rate_text(figures.rate_hz)}", f"gap c² {c2}, local {local}"]
    lines = [f"{phase}: {'; '.join([*parts, *(f'{name} {text}' for name, text in scales.items() if text)])}"]
    if figures.safe_load_ratio is not None:
        window, load = duration_text(figures.safe_load_window_ns), share_text(figures.safe_load_ratio)
        lines.append(f"{phase}: above {load} load its busiest {window} alone overloads the server")
    return lines


def _at_scales(scales: Iterable[tuple[int, float | None]]) -> str:
    """`5.1 at 1 s, 20 at 10 s`: the scales that the phase carries; empty without any."""
    return ", ".join(f"{count_text(value)} at {scale} s" for scale, value in scales if value is not None)


def stimulus_lines(stimulus: Stimulus) -> list[str]:
    """Planned against sent of one phase, in two lines."""
    bursts = stimulus.bursts
    first = f"{count_text(stimulus.n_within)} of {count_text(stimulus.n_planned)} sent within it"
    if stimulus.n_unreached:
        first += f"; {count_text(stimulus.n_unreached)} more found no server"
    if stimulus.second_ratio is not None:
        first += f"; worst second {share_text(stimulus.second_ratio)} off"
    first += f", bursts {share_text(bursts.difference_ratio)}" if bursts else ""
    changes = ", ".join(
        f"{one.window_ns / 10**9:g} s {change_text(one.change_ratio)}" for one in stimulus.dispersion
    )
    distance = stimulus.gap_ks_ratio
    parts = {
        "dispersion": changes,
        "drift": duration_text(stimulus.end_drift_ns),
        "gap KS": "-" if distance is None else f"{distance:.3f}",
    }
    return [first, "; ".join(f"{name} {text}" for name, text in parts.items() if text)]


def users_text(users: UserFigures) -> tuple[str, str]:
    """Little's law as it came out for users who wait: what is accounted for, and the rest."""
    rate, inside = rate_text(users.throughput_hz), count_text(round(users.inside_client_mean_count, 2))
    service, think = duration_text(users.service_mean_ns), duration_text(users.think_mean_ns)
    accounted = f"{count_text(users.users_mean_count)} = {rate} x ({service} service + {think} think)"
    if users.gap_ratio < -LIMITS.user_gap_errors * users.gap_error_ratio:
        much = f"- {inside.removeprefix('-')} ({share_text(-users.gap_ratio)} of them)"
        return accounted, f"{much}: some have requests side by side, or send before they have thought"
    return accounted, f"+ {inside} inside the load generator ({share_text(users.gap_ratio)} of them)"


def rejections_text(rejections: Rejections) -> tuple[str]:
    """What the queue policy refused, as the clients counted it, and what of it Triton's own metric has."""
    total = rejections.total
    server = total.server_rejected_count
    other = f", other {count_text(total.other_count)}" if total.other_count else ""
    known = "not sampled" if server is None else count_text(server)
    full, waited = count_text(total.full_queue_count), count_text(total.queue_timeout_count)
    return (f"full queue {full}, queue timeout {waited}{other}; Triton's metric: {known}",)


def server_lines(figures: ServersFigures, latency_name: str) -> list[str]:
    """A line for each of several servers, and one of how alike they are; nothing of one."""
    lines = [_server_text(name, one, latency_name) for name, one in figures.servers.items()]
    spread = count_text(figures.p95_ratio) if figures.p95_ratio is None else f"{figures.p95_ratio:.2f}"
    return [*lines, f"largest p95 over smallest: {spread}"]


def model_load_lines(name: str, one: ModelLoad, latency_name: str) -> list[str]:
    """A line or more for one of several models: what of the load asked it and how it answered, what its server did, and
    its responses where they come one by one."""
    asked = f" ({share_text(one.asked_ratio)} asked)" if one.asked_ratio is not None else ""
    failed = f", {count_text(one.n_failed)} not ok" if one.n_failed else ""
    spread = {quantile.q: quantile_text(quantile) for quantile in one.latency.spreads[latency_name].quantiles}
    first = (
        f"{name}: {share_text(one.planned_ratio)} of requests{asked}, {count_text(one.n_sent)} of {count_text(one.n)} "
        f"sent{failed}, {rate_text(one.throughput_hz)} ok; {latency_name} p50 {spread[0.50]}, p95 {spread[0.95]}, p99 "
        f"{spread[0.99]}"
    )
    told = []
    if one.batches is not None:
        told.append(f"{count_text(one.batches.n)} batches of {count_text(one.batches.rows_mean_count)} rows")
    if one.triton is not None:
        queue, infer = (
            duration_text(one.triton.queue_mean_ns),
            duration_text(one.triton.compute_infer_mean_ns),
        )
        told.append(f"queue {queue}, infer {infer}")
    if one.join is not None:
        told.append(f"{share_text(one.join.joined_ratio)} joined by id")
    lines = [first, f"{name}: {'; '.join(told)}"] if told else [first]
    if one.streams is not None:
        lines += [f"{name}: {line}" for line in (*_response_times(one.streams), _responses_text(one.streams))]
    return lines


def straggler_text(one: Straggler) -> str:
    """How much slower a server is than the others, and why."""
    much = "falls on failures" if one.p95_ratio is None else f"is {one.p95_ratio:.2f} times the others'"
    why = "; ".join(one.reasons) or "nothing that was recorded tells it apart from them"
    return f"p95 of {one.server} {much}: {why}"


def _server_text(name: str, one: ServerLoad, latency_name: str) -> str:
    p50, p95, p99 = map(quantile_text, one.quantiles)
    failed = f", {count_text(one.n_failed)} not ok" if one.n_failed else ""
    work = "-" if one.work_of_asked_ratio is None else f"{one.work_of_asked_ratio:.2f}"
    return (
        f"{name}: {share_text(one.planned_ratio)} of requests, {count_text(one.n_sent)} of {count_text(one.n)} sent"
        f"{failed}; {latency_name} p50 {p50}, p95 {p95}, p99 {p99}; work over asked {work}"
    )


def stream_lines(figures: StreamFigures) -> list[str]:
    """First responses, gaps and rates of requests that are answered response by response, and how many at once."""
    return [*_response_times(figures), *stream_counts(figures)]


def stream_counts(figures: StreamFigures) -> list[str]:
    """How many responses there were, how many streams at once, and how many were cut."""
    at_once = f"in flight mean {count_text(round(figures.streams_mean_count, 1))}, most"
    lines = [_responses_text(figures), f"{at_once} {count_text(figures.streams_most_count)}"]
    if figures.n_cut or figures.n_hung_up:
        cut, hung_up = count_text(figures.n_cut), count_text(figures.n_hung_up)
        lines.append(f"{cut} failed after a response; {hung_up} were cut short by the client, as asked")
    return lines


def _response_times(figures: StreamFigures) -> list[str]:
    """First responses, and gaps where there are any."""
    first = f"first response {_spread_text(figures.first_response_mean_ns, figures.first_response)}"
    if figures.gap_mean_ns is None:
        return [first]
    return [first, f"gap {_spread_text(figures.gap_mean_ns, figures.gaps)}"]


def _responses_text(figures: StreamFigures) -> str:
    mean, most = count_text(round(figures.responses_mean_count, 2)), count_text(figures.responses_most_count)
    rates = [f"{rate_text(figures.responses_hz)} responses"]
    rates += [f"{rate_text(figures.tokens_hz)} tokens"] if figures.tokens_hz is not None else []
    return f"{count_text(figures.n_responses)} responses, {mean} a request (most {most}); {', '.join(rates)}"


def sequence_lines(figures: SequenceFigures) -> list[str]:
    """How many sequences there were and what became of them, and how long they took."""
    n_left = figures.n_begun - figures.n_ended - figures.n_cut
    cut = ", ".join(f"{count_text(n)} by {outcome}" for outcome, n in figures.cut_by.items())
    asked, got = (
        count_text(round(mean, 2))
        for mean in (figures.length_asked_mean_count, figures.length_got_mean_count)
    )
    at_once = f"at once mean {count_text(round(figures.at_once_mean_count, 1))}"
    return [
        f"{count_text(figures.n_begun)} begun, {count_text(figures.n_ended)} ended, {count_text(figures.n_cut)} cut"
        f"{f' ({cut})' if cut else ''}, {count_text(n_left)} left when the load ended",
        f"whole sequence {_spread_text(figures.duration_mean_ns, figures.durations)}",
        f"{asked} requests a sequence asked for, {got} got; {at_once}, most {count_text(figures.at_once_most_count)}",
    ]


def _spread_text(mean_ns: float | None, quantiles: Iterable[Quantile]) -> str:
    """`mean 2.1 ms, p50 2 ms, p99 3 ms`: those quantiles that the rows carry."""
    told = [f"p{100 * one.q:g} {quantile_text(one)}" for one in quantiles if not one.is_refused]
    return ", ".join([f"mean {duration_text(mean_ns)}", *told])


def step_text(one: StepFigures, latency_name: str) -> str:
    """What a model of several took of the requests that passed it."""
    tail = f", {share_text(one.tail_latency_ratio)} beyond p95" if one.tail_latency_ratio is not None else ""
    on_path = f"on the path of {share_text(one.on_path_ratio)}"
    share = f"{share_text(one.latency_ratio)} of the {latency_name} time{tail}"
    compute = f"compute p50 {duration_text(one.compute_p50_ns)}, p95 {duration_text(one.compute_p95_ns)}"
    wait = f"wait p50 {duration_text(one.wait_p50_ns)}, p95 {duration_text(one.wait_p95_ns)}"
    told = [share, on_path] if one.on_path_ratio else ["beside the path"]
    return f"{one.model}: {'; '.join([*told, compute, wait])}"


def child_text(one: ChildModel) -> str:
    """Whose the executions of a model are that name no request."""
    told = f"{one.model}: {count_text(one.n_batches)} batches name no request"
    if one.parent is None:
        return f"{told}, and are of no model's that can be told"
    rest = {"within several of its batches": one.n_ambiguous, "within none": one.n_unheld}
    left = "".join(f", {count_text(n)} {where}" for where, n in rest.items() if n)
    return f"{told}; {count_text(one.n_tied)} are tied to {one.parent} by time{left}"
