"""The promises of a run's scenario held to the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from squall.analysis.clocks.timeline import RunPhase, planned_measure_spans
from squall.analysis.decisions.figures import BROKEN, INVALID, PromiseFigures
from squall.analysis.decisions.judged import Held, hold
from squall.analysis.decisions.late_parts import late_parts
from squall.analysis.requests.failures import FailureFigures
from squall.analysis.requests.requests import Labels, Requests
from squall.analysis.requests.streams import response_times
from squall.analysis.storage.query import connect
from squall.analysis.storage.store import RunStore
from squall.analysis.tables.manifest import Manifest
from squall.analysis.wording import share_text
from squall.scenarios.errors import AnalysisError
from squall.scenarios.promises.grammar import parse_promises
from squall.scenarios.promises.promise import OF_RESPONSES, Promise


def promises_of(manifest: Manifest) -> tuple[Promise, ...]:
    """Those of the scenario that ran. Raises AnalysisError where they cannot be read."""
    try:
        return parse_promises((manifest.scenario or {}).get("promises")) or ()
    except ValueError as error:
        raise AnalysisError(f"promises of the manifest: {error}") from error


def unexpected_failures(failures: FailureFigures, promises: Sequence[PromiseFigures] | None) -> str:
    """What `expect.failures` says of a run: a sentence if more requests failed than it allows, else empty.

    A promise about failures takes its place.
    """
    if not failures.is_beyond or any(one.metric == "failures" for one in promises or ()):
        return ""
    return f"{failures.sentence} expect.failures allows {share_text(failures.allowed_ratio)}."


def hold_run(store: RunStore, requests: Requests, spans: Sequence[RunPhase]) -> list[Held]:
    """The promises of a run held to its `requests`, in the scenario's order; `spans` are its measured phases as the
    schedule has them.

    Only of a broken one are requests kept in it, for `diagnosed`.
    """
    promises = promises_of(store.manifest)
    gpus = _gpus(store, requests) if any(one.scope.gpu is not None for one in promises) else None
    is_of_responses = any(one.metric in OF_RESPONSES for one in promises)
    responses = response_times(store, requests) if is_of_responses else None
    found = [hold(one, requests, spans, gpus, responses) for one in promises]
    return [one if one.figures.verdict == BROKEN else one.without_requests() for one in found]


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
    ids = np.asarray(table.column("request_id").to_numpy(), dtype=np.int64)
    told = Labels.from_column(table.column("gpu_uuid"))
    order = np.argsort(ids, kind="stable")
    places = np.searchsorted(ids[order], requests.request_id)
    is_there = places < len(ids)
    is_there[is_there] = ids[order][places[is_there]] == requests.request_id[is_there]
    codes = np.full(len(requests), len(told.words), dtype=np.int64)
    codes[is_there] = told.codes[order][places[is_there]]
    return Labels(codes, (*told.words, ""))
