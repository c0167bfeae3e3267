"""The finding about a server of which no batch is known: what Triton's statistics of its models tell.

    a request in the server = queue and compute of each model that it passes
                              an ensemble: its steps; a model that calls others: these, and the rest of its own infer

Named is the largest of these parts: `queue-bound` or `compute-bound`, and at which step; where the response cache
answers half of the requests to that model, `answered from the cache`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from squall.analysis.findings.confidence import Reason, RunState, cpu_reasons
from squall.analysis.findings.finding import Finding, Scope, lowered, stated
from squall.analysis.findings.rule import Measures
from squall.analysis.limits import LIMITS
from squall.analysis.metrics.model_statistics import ModelStatistics
from squall.analysis.storage.deployed import ModelFacts, ServingFacts
from squall.analysis.wording import count_text, macros

QUEUES, COMPUTES, CACHED = "queue-bound", "compute-bound", "answered from the cache"
CACHED_RATIO = 0.5
"""Share of the requests of the model that is named that the response cache answers from which on neither its queue nor
its execution is what a request is like."""
_LEAST_REQUESTS = 30
_STEPS = {
    QUEUES: "Give {model} more instances, allow larger batches, or make its execution shorter: requests wait for it.",
    COMPUTES: "Make the execution of {model} shorter, or give it more cores or a GPU: its queue is the lesser part.",
    CACHED: "To measure {model} itself, turn its response_cache off, or send more different inputs (payload_variants).",
}


def statistics_finding(
    scope: Scope,
    found: Sequence[ModelStatistics],
    under_load: ModelFacts,
    length_ns: int,
    state: RunState,
    cpu: Measures,
    serving: Mapping[str, ServingFacts],
) -> Finding | None:
    """The finding of the window level; None where no request of the phase succeeded at the model under load.

    `found`: the models of the phase and server but those of other loads; `under_load`: the manifest's entry, with
    `model` and, of an ensemble, `steps`; `length_ns`: of the phase; `cpu`: `shares.cpu_measures` of it;
    `serving`: how the server serves its models, by name.
    """
    named = next((one for one in found if one.model == under_load.model), None)
    if named is None or not named.n_requests:
        return None
    steps = tuple(dict.fromkeys(under_load.steps))
    parts = _parts(named, found, steps)
    total_ns = sum(parts.values())
    if not total_ns:
        return None
    model, kind = max(parts, key=lambda part: parts[part])
    part_ns, n = parts[model, kind], named.n_requests
    share, rule = part_ns / total_ns, QUEUES if kind == "queue" else COMPUTES
    own = next(one for one in found if one.model == model)
    cached_ratio = own.n_cached / own.n_requests if own.n_requests else 0.0
    if cached_ratio >= CACHED_RATIO:
        rule, share = CACHED, cached_ratio
    told: list[Reason] = [("medium", "means of Triton's statistics: no batch is known")]
    if share < 0.5:
        told.append(("low", "no part has half of the time in the server"))
    if n < _LEAST_REQUESTS:
        told.append(("low", f"{count_text(n)} requests, fewer than {_LEAST_REQUESTS}"))
    say = macros(__package__, "statistics.j2")
    where = say.where(model, named.model, model in steps)
    phase_ratio = own.executing_ns / length_ns if length_ns else None
    claim = say.claim(own, where, kind, part_ns / n, total_ns / n, phase_ratio, rule == CACHED)
    next_step, details = _STEPS[rule].format(model=model), [where] if model != named.model else []
    served = serving.get(model)
    delay_ns = 0 if served is None else served.queue_delay_ns or 0
    held_ratio = min(parts[model, "queue"], delay_ns * own.n_requests) / total_ns
    if rule != CACHED and held_ratio >= LIMITS.queue_delay_ratio:
        claim += f" {say.delay(delay_ns, held_ratio)}"
        next_step = f"Lower the max_queue_delay of {model}. {next_step}"
        details.append("queue delay")
    finding = Finding(
        rule,
        "window",
        scope,
        claim,
        next_step,
        margin=share,
        evidence=tuple(stated(f"{name}_{what}_mean_ns", value / n) for (name, what), value in parts.items()),
        details=tuple(details),
        shares={f"{name} {what}": value / total_ns for (name, what), value in parts.items()},
        not_shown="Means over the phase tell nothing of bursts, and not which request waited for which.",
    )
    return lowered(finding, [*told, *cpu_reasons(cpu), *state.reasons])


def _parts(
    named: ModelStatistics, found: Sequence[ModelStatistics], steps: Sequence[str]
) -> dict[tuple[str, str], int]:
    """Time summed over the requests, by model and queue or compute."""
    if steps:
        own = [one for one in found if one.model in steps]
        return {key: value for one in own for key, value in _of(one, one.compute_ns).items()}
    called = [one for one in found if one.model != named.model]
    inside_ns = named.compute_ns - sum(one.success_ns for one in called)
    parts = _of(named, max(0, inside_ns))
    return parts | {key: value for one in called for key, value in _of(one, one.compute_ns).items()}


def _of(one: ModelStatistics, compute_ns: int) -> dict[tuple[str, str], int]:
    return {(one.model, "queue"): one.queue_ns, (one.model, "compute"): compute_ns}
