"""The promises of a run's scenario held to the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from squall.analysis.arrays import Bools, Int64s
from squall.analysis.compare.figures import BROKEN, INVALID, PromiseFigures, WithoutCold
from squall.analysis.compare.judged import Held, hold
from squall.analysis.compare.late_parts import late_parts
from squall.analysis.requests.cold import ColdFigures, LateFrom, is_much, is_within
from squall.analysis.requests.cold_words import advice_text, stretches_text
from squall.analysis.requests.locust_figures import LocustFigures
from squall.analysis.requests.requests import Labels, Requests
from squall.analysis.requests.streams import ResponseTimes, response_times
from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.query import connect
from squall.analysis.storage.sealed import Failures
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import RunPhase, measure_spans, planned_measure_spans
from squall.analysis.wording import share_text
from squall.scenarios.errors import AnalysisError
from squall.scenarios.promises import OF_RESPONSES, Promise, parse_promises


def promises_of(manifest: Manifest) -> tuple[Promise, ...]:
    """Those of the scenario that ran. Raises AnalysisError where they cannot be read."""
    try:
        return parse_promises((manifest.scenario or {}).get("promises")) or ()
    except ValueError as error:
        raise AnalysisError(f"promises of the manifest: {error}") from error


def unexpected_failures(
    failures: Failures, promises: Sequence[PromiseFigures] | None, locust: LocustFigures | None = None
) -> str:
    """Why a run failed: what the locustfile says of it by an exit code, and that more requests failed than
    `expect.failures` allows; empty if neither is so. A promise about failures takes the place of the latter."""
    told = (
        [f"{locust.file} ended its test with exit code {locust.exit_code}."]
        if locust and locust.exit_code
        else []
    )
    if failures.is_beyond and not any(one.metric == "failures" for one in promises or ()):
        told.append(f"{failures.sentence} expect.failures allows {share_text(failures.allowed_ratio)}.")
    return " ".join(told)


def hold_run(
    store: RunStore,
    requests: Requests,
    spans: Sequence[RunPhase],
    cold: Mapping[str, ColdFigures] | None = None,
) -> list[Held]:
    """The promises of a run held to its `requests`, in the scenario's order; `spans` are its measured phases as the
    schedule has them. `cold`: by phase how it began.

    Only of a broken one are requests kept in it, for `diagnosed`.
    """
    promises = promises_of(store.manifest)
    gpus = _gpus(store, requests) if any(one.scope.gpu is not None for one in promises) else None
    is_of_responses = any(one.metric in OF_RESPONSES for one in promises)
    responses = response_times(store, requests) if is_of_responses else None
    found = [hold(one, requests, spans, gpus, responses) for one in promises]
    began = {name: one for name, one in (cold or {}).items() if one.stretches}
    if began:
        is_cold = _is_cold(requests, spans, began)
        warm = np.flatnonzero(~is_cold)
        own = (
            gpus.take(warm) if gpus is not None else None,
            responses.take(warm) if responses is not None else None,
        )
        rest = requests.take(warm)
        cold_ids = requests.request_id[is_cold]
        found = [
            replace(
                one,
                figures=replace(
                    one.figures, cold=_without_cold(one, promise, began, cold_ids, rest, spans, own)
                ),
            )
            for promise, one in zip(promises, found, strict=True)
        ]
    return [one if one.figures.verdict == BROKEN else one.without_requests() for one in found]


def late_limits(manifest: Manifest, is_open: bool) -> dict[str, LateFrom]:
    """By measured phase the first promise that bounds the latency of its requests."""
    found: dict[str, LateFrom] = {}
    name = "response" if is_open else "service"
    for span in measure_spans(manifest):
        for one in promises_of(manifest):
            if one.metric == name and one.late_from_ns is not None and one.scope.phase in (None, span.name):
                found.setdefault(span.name, LateFrom(one.late_from_ns, one.text))
    return found


def _is_cold(requests: Requests, spans: Sequence[RunPhase], cold: Mapping[str, ColdFigures]) -> Bools:
    """Whether each request began in a cold stretch of its phase."""
    found = np.zeros(len(requests), dtype=np.bool_)
    for span in spans:
        if span.name in cold:
            own = np.flatnonzero(requests.planned_phase.is_any_of([span.name]) & requests.has_begun)
            found[own] = is_within(cold[span.name].stretches, requests.begin_ns[own] - span.start_ns)
    return found


def _without_cold(
    held: Held,
    promise: Promise,
    cold: Mapping[str, ColdFigures],
    cold_ids: Int64s,
    rest: Requests,
    spans: Sequence[RunPhase],
    rest_of: tuple[Labels | None, ResponseTimes | None],
) -> WithoutCold | None:
    """None where the cold stretches hold no more of what is late than of the rest, or there is none."""
    is_in = np.isin(held.request_id, cold_ids)
    n, n_late = int(is_in.sum()), int(held.is_late[is_in].sum())
    own = [one for name, one in cold.items() if promise.scope.phase in (None, name)]
    if not own or not is_much(n, n_late, len(is_in), int(held.is_late.sum())):
        return None
    figures = hold(promise, rest, spans, *rest_of).figures
    first = max(own, key=lambda one: one.n_late)
    return WithoutCold(
        kind=first.kind,
        what=stretches_text(first.stretches, first.phase),
        n_cold=n,
        n_cold_late=n_late,
        verdict=figures.verdict,
        value=figures.value,
        is_infinite=figures.is_infinite,
        late_ratio=figures.late_ratio,
        advice=advice_text(first.advice),
    )


def with_certain_request(store: RunStore) -> Manifest:
    """The manifest of a run that ended when its promises were decided, with the request that made it certain."""
    known = store.manifest
    decided = known.decided
    assert decided is not None
    requests, spans = Requests.read(store), planned_measure_spans(known)
    for held in hold_run(store, requests, spans):
        figures = held.figures
        if figures.promise == decided.promise and figures.certain is not None:
            start_ns = next(span.start_ns for span in spans if span.name == figures.certain.phase)
            certain_ns = start_ns + figures.certain.offset_ns
            decided = replace(decided, request_id=figures.certain.request_id, certain_ns=certain_ns)
    return replace(known, decided=replace(decided, n_unsent=int(requests.is_decided.sum())))


def diagnosed(
    store: RunStore, held: Sequence[Held], status: str, memory_limit_bytes: int
) -> tuple[PromiseFigures, ...] | None:
    """The figures of `held`, those of broken promises with where the time of late requests went. `status`: of the run,
    without VALID no promise is judged. None where nothing is promised."""
    if not held:
        return None
    if any(one.is_late.any() for one in held) and store.has("joined"):
        with connect(store, ["joined"], memory_limit_bytes) as connection:
            figures = [replace(one.figures, late=late_parts(connection, one)) for one in held]
    else:
        figures = [one.figures for one in held]
    if status != "VALID":
        figures = [replace(one, verdict=INVALID, reason=f"the run is {status}") for one in figures]
    return tuple(figures)


def _gpus(store: RunStore, requests: Requests) -> Labels:
    """UUID of the GPU with most of each request's batch, by `joined`; empty where none is known."""
    if not store.has("joined"):
        return Labels(np.zeros(len(requests), dtype=np.uint8), ("",))
    table = store.read("joined", ["request_id", "gpu_uuid"])
    told = Labels.from_column(table.column("gpu_uuid"))
    places = pc.index_in(pa.array(requests.request_id), table.column("request_id").combine_chunks())
    codes = np.append(
        told.codes.astype(np.int64), len(told.words)
    )  # the last of a request that was not joined
    return Labels(codes[pc.fill_null(places, len(table)).to_numpy()], (*told.words, ""))
