"""Which step of several models the latency went to: figures by model of the requests that passed more than one.

    latency = lag + Σ (wait + compute) of the steps on the path + what follows the last step

Of the requests of some phases that ended ok. `steps` says what a step is, and what it waited.
"""

from __future__ import annotations

from collections.abc import Sequence

from squall.analysis.join.children import ChildModel, find_children
from squall.analysis.storage.query import MEMORY_LIMIT_BYTES, connect, rows
from squall.analysis.storage.store import RunStore
from squall.scenarios.records import Frozen

TAIL_QUANTILE = 0.95

_WALKED = """
-- Step of an ok request of the figures, with the request's latency.
CREATE TEMP TABLE walked AS
SELECT s.request_id, s.model, s.is_on_path, s.end_ns - s.start_ns AS compute_ns, s.wait_ns, j.latency_ns
FROM steps s JOIN (
    SELECT request_id, {latency}_ns AS latency_ns FROM joined
    WHERE outcome = 'ok' AND {latency}_ns IS NOT NULL AND list_contains($phases, phase)) j USING (request_id)
"""
_MODELS = f"""
WITH latencies AS (SELECT DISTINCT request_id, latency_ns FROM walked),
edge AS (SELECT quantile_disc(latency_ns, {TAIL_QUANTILE}) AS edge_ns FROM latencies),
whole AS (
    SELECT count(*) AS n, sum(latency_ns) AS latency_ns, sum(latency_ns) FILTER (latency_ns > edge_ns) AS tail_ns
    FROM latencies, edge),
passed AS (
    SELECT model, request_id, any_value(latency_ns) AS latency_ns, bool_or(is_on_path) AS is_on_path,
        sum(CASE WHEN is_on_path THEN wait_ns + compute_ns ELSE 0 END) AS path_ns
    FROM walked GROUP BY model, request_id),
models AS (
    SELECT model, count(*) AS n_requests, count(*) FILTER (is_on_path) AS n_on_path, sum(path_ns) AS path_ns,
        coalesce(sum(path_ns) FILTER (latency_ns > edge_ns), 0) AS path_tail_ns
    FROM passed, edge GROUP BY model),
-- an exact quantile holds all its values in memory: one column at a time
computed AS (SELECT model, quantile_disc(compute_ns, [0.5, {TAIL_QUANTILE}]) AS compute FROM walked GROUP BY model),
waited AS (SELECT model, quantile_disc(wait_ns, [0.5, {TAIL_QUANTILE}]) AS wait FROM walked GROUP BY model)
SELECT n, model, n_requests, n_on_path / n AS on_path_ratio, path_ns / nullif(latency_ns, 0) AS latency_ratio,
    path_tail_ns / nullif(tail_ns, 0) AS tail_latency_ratio, compute[1] AS compute_p50_ns,
    compute[2] AS compute_p95_ns, wait[1] AS wait_p50_ns, wait[2] AS wait_p95_ns
FROM models JOIN computed USING (model) JOIN waited USING (model), whole ORDER BY path_ns DESC, model
"""


class StepFigures(Frozen):
    """A model that requests passed as one of several. Its quantiles are by nearest rank, over all its steps.

    `on_path_ratio`: requests that have it on their critical path, of those with steps; `latency_ratio`: its waits and
    computations there over the latency of all of these; `tail_latency_ratio`: the same of those slower than their p95,
    None where none is.
    """

    model: str
    n_requests: int
    on_path_ratio: float
    latency_ratio: float | None
    tail_latency_ratio: float | None
    compute_p50_ns: int
    compute_p95_ns: int
    wait_p50_ns: int | None
    wait_p95_ns: int | None


class StepsFigures(Frozen):
    """Of `n_requests` that passed several executions, the models that these were of, that of the most latency first;
    `children`: models with executions that name no request, over the whole run."""

    n_requests: int
    models: tuple[StepFigures, ...]
    children: tuple[ChildModel, ...]


def step_figures(
    store: RunStore, phases: Sequence[str], is_open: bool, memory_limit_bytes: int = MEMORY_LIMIT_BYTES
) -> StepsFigures | None:
    """Over the requests of `phases`; None where none passed several executions and every one names its requests."""
    children = _children(store, memory_limit_bytes)
    n_requests = 0
    models = []
    if store.has("steps") and store.has("joined"):
        with connect(store, ["steps", "joined"], memory_limit_bytes) as connection:
            query = _WALKED.format(latency="response" if is_open else "service")
            connection.execute(query, {"phases": list(phases)})
            for row in rows(connection, _MODELS):
                n_requests = row.pop("n")
                models.append(StepFigures(**row))
    return StepsFigures(n_requests, tuple(models), children) if models or children else None


def _children(store: RunStore, memory_limit_bytes: int) -> tuple[ChildModel, ...]:
    if not store.has("batches"):
        return ()
    with connect(store, ["batches"], memory_limit_bytes) as connection:
        found = [one.model for one in find_children(connection, store.manifest, is_placed=False)]
    return tuple(one for one in found if one.n_batches)
