"""What a run is about to send: the plan's section of the manifest, and the lines on the screen before the start."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path, PurePath

import numpy as np

from squall.analysis.record import from_json, to_json
from squall.analysis.report.templates import sentences
from squall.analysis.storage.manifest import PlanFacts
from squall.analysis.verdict.figures import series_figures
from squall.analysis.verdict.phase_figures import SeriesFigures
from squall.analysis.wording import count_text
from squall.models.reference import refuse_large
from squall.models.repository import refuse_unsuited
from squall.models.spec import ENCODERS, ZOO, head_of
from squall.scenarios.arrivals.replay import TraceArrivals
from squall.scenarios.config.locust import LoadConfig
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError
from squall.scenarios.fields import Section
from squall.scenarios.locust_plan import LocustPlan
from squall.scenarios.plan.closed import ClosedPlan
from squall.scenarios.run_plan import RunPlan
from squall.scenarios.traces.reading import open_trace


def describe_plan(plan: RunPlan) -> PlanFacts:
    """What the manifest says of a plan; how many requests users send is known at its end."""
    if isinstance(plan, LocustPlan):
        return PlanFacts(load="locust", n_users=plan.config.users, sha256=plan.sha256())
    if isinstance(plan, ClosedPlan):
        return PlanFacts(load="closed", n_users=plan.n_users, sha256=plan.sha256())
    edges = np.searchsorted(plan.phase, np.arange(len(plan.spans) + 1, dtype=np.uint8)).tolist()
    counts = {
        span.name: last - first
        for span, (first, last) in zip(plan.spans, pairwise(edges), strict=True)
        if span.kind != "drain"
    }
    stimulus = {
        span.name: to_json(series_figures(plan.offset_ns, span.start_ns, span.end_ns))
        for span in plan.spans
        if span.kind == "measure"
    }
    return PlanFacts(
        load="open", n_arrivals=len(plan), sha256=plan.sha256(), n_by_phase=counts, stimulus=stimulus
    )


def refuse_empty(plan: PlanFacts) -> None:
    """Raises ScenarioError for a schedule, from `describe_plan`, that measures nothing."""
    if plan.load == "open" and not any(figures["n"] for figures in plan.stimulus.values()):
        raise ScenarioError(
            f"phases: no arrival falls into {' or '.join(plan.stimulus)}; use a higher rate, a longer phase or"
            " another seed"
        )


def refuse_strange_head(scenario: Scenario) -> None:
    """Raises ScenarioError where squall needs a model of the zoo, to start or to know right answers, that is not there,
    or not with these settings, this framework or weights of its own; and where it is too large to know right answers.
    """
    for one in scenario.models:
        check, model, where = one.clients.check, one.model, one.key
        is_of_zoo = scenario.is_started and model.repository is None
        if check is not None and check.is_of_zoo and not is_of_zoo and model.name not in ZOO:
            key = "clients" if check is scenario.clients.check else where
            raise ScenarioError(
                f"{key}.check: {model.name} is no head of the zoo; give function or reference, its right values"
            )
        if model.settings and not is_of_zoo and model.name not in ZOO:
            raise ScenarioError(
                f"{where}.settings: are sizes of a model of the zoo, and {model.name} is none; leave them out"
            )
        if is_of_zoo or (check is not None and check.is_of_zoo):
            sizes = head_of(model.name, where).sizes(model.settings, where)
            if is_of_zoo:
                refuse_unsuited(model, where)
            if check is not None and check.is_of_zoo:
                refuse_large(model.name, sizes, "clients" if check is scenario.clients.check else where)


def seeded_notes(scenario: Scenario) -> list[str]:
    """Says of each encoder that squall starts without weights of its own what it is."""
    if not scenario.is_started:
        return []
    return [
        f"model {model.name}: seeded random weights of the exact architecture, not trained ones (model.weights names"
        " none): its answers mean nothing, its cost does"
        for model in (one.model for one in scenario.models)
        if model.name in ENCODERS and model.repository is None and model.weights is None
    ]


def trace_notes(scenario: Scenario) -> list[str]:
    """What is to be said of how the trace of each phase is read: ends of requests, and stamps that say no side."""
    found: list[str] = []
    for trace in _traces_in([phase.arrivals for phase in scenario.phases]):
        path = Path(trace.file)
        reading = open_trace(path, trace).reading
        found += [f"trace {path.name}: {note}" for note in reading.told(trace.quantum == "spread")]
    return list(dict.fromkeys(found))


def _traces_in(value: object) -> Iterator[TraceArrivals]:
    """All traces in a section or a list of them: also shapes, and parts of sums and sequences."""
    if isinstance(value, TraceArrivals):
        yield value
    elif isinstance(value, Section):
        yield from _traces_in([own for _, own in value])
    elif isinstance(value, list | tuple):
        for own in value:
            yield from _traces_in(own)


def announce(plan: PlanFacts, load: LoadConfig | None = None) -> list[str]:
    """What the run is about to send, from `describe_plan`: the burstiness of each measure phase, and the digest.
    `load`: the scenario's, where it is not squall's own client that makes it."""
    digest = f"sha256 {(plan.sha256 or '')[:12]}"
    if load is not None:
        own = load.locust
        return [f"Locust: {users_text(own.users, own.file, own.spawn_rate)}; plan {digest}"]
    if plan.load == "closed":
        return [f"closed loop of {count_text(plan.n_users)} users: no schedule; plan {digest}"]
    lines = [
        line
        for phase, figures in plan.stimulus.items()
        for line in sentences("intended", phase, from_json(SeriesFigures, figures))
    ]
    return [*lines, f"schedule of {count_text(plan.n_arrivals)} arrivals, {digest}"]


def users_text(n_users: int, file: str, spawn_rate_hz: float) -> str:
    """How many users of which locustfile, as stated: a shape of the file's may say other numbers."""
    return f"{count_text(n_users)} users of {PurePath(file).name}, {spawn_rate_hz:g} a second"
