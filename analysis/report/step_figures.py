"""Which step of several models the latency went to: figures by model of the requests that passed more than one.

    latency = lag + Σ (wait + compute) of the steps on the path + what follows the last step

Of the requests of some phases that ended ok. `steps` says what a step is, and what it waited.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from squall.analysis.join.children import ChildModel, find_children
from squall.analysis.storage.query import MEMORY_LIMIT_BYTES, connect
from squall.analysis.storage.store import RunStore

if TYPE_CHECKING:
    import duckdb

TAIL_QUANTILE = 0.95

_WALKED = """
-- Step of an ok request of the figures, with the request's latency.
CREATE TEMP TABLE walked AS
SELECT s.request_id, s.model, s.is_on_path, s.end_ns - s.start_ns AS compute_ns, s.wait_ns, j.latency_ns
FROM steps s JOIN (
    SELECT request_id, {latency}_ns AS latency_ns FROM joined
    WHERE outcome = 'ok' AND {latency}_ns IS NOT NULL AND list_contains($phases, phase)) j USING (request_id)
"""
_REQUESTS = f"""
SELECT count(*), sum(latency_ns), quantile_disc(latency_ns, {TAIL_QUANTILE})
FROM (SELECT DISTINCT request_id, latency_ns FROM walked)
"""
_TAIL = "SELECT sum(latency_ns) FROM (SELECT DISTINCT request_id, latency_ns FROM walked WHERE latency_ns > $edge)"
_MODELS = """
SELECT model, count(*), count(*) FILTER (is_on_path), sum(path_ns), sum(path_ns) FILTER (latency_ns > $edge)
FROM (
    SELECT model, request_id, any_value(latency_ns) AS latency_ns, bool_or(is_on_path) AS is_on_path,
        sum(CASE WHEN is_on_path THEN wait_ns + compute_ns ELSE 0 END) AS path_ns
    FROM walked GROUP BY model, request_id)
GROUP BY model ORDER BY sum(path_ns) DESC, model
"""
_QUANTILES = f"SELECT model, quantile_disc({{column}}, [0.5, {TAIL_QUANTILE}]) FROM walked GROUP BY model"


@dataclass(frozen=True)
class StepFigures:
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


@dataclass(frozen=True)
class StepsFigures:
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
    models: tuple[StepFigures, ...] = ()
    if store.has("steps") and store.has("joined"):
        with connect(store, ["steps", "joined"], memory_limit_bytes) as connection:
            query = _WALKED.format(latency="response" if is_open else "service")
            connection.execute(query, {"phases": list(phases)})
            n_requests, models = _by_model(connection)
    return StepsFigures(n_requests, models, children) if models or children else None


def _children(store: RunStore, memory_limit_bytes: int) -> tuple[ChildModel, ...]:
    if not store.has("batches"):
        return ()
    with connect(store, ["batches"], memory_limit_bytes) as connection:
        found = [one.model for one in find_children(connection, store.manifest, is_placed=False)]
    return tuple(one for one in found if one.n_batches)


def _by_model(connection: duckdb.DuckDBPyConnection) -> tuple[int, tuple[StepFigures, ...]]:
    ((n, latency_ns, edge_ns),) = connection.execute(_REQUESTS).fetchall()
    if not n:
        return 0, ()
    ((tail_ns,),) = connection.execute(_TAIL, {"edge": edge_ns}).fetchall()
    compute, wait = (_quantiles(connection, column) for column in ("compute_ns", "wait_ns"))
    rows = connection.execute(_MODELS, {"edge": edge_ns}).fetchall()
    return n, tuple(
        StepFigures(
            model=model,
            n_requests=n_requests,
            on_path_ratio=n_on_path / n,
            latency_ratio=path_ns / latency_ns if latency_ns else None,
            tail_latency_ratio=(path_tail_ns or 0) / tail_ns if tail_ns else None,
            compute_p50_ns=compute[model][0],
            compute_p95_ns=compute[model][1],
            wait_p50_ns=wait[model][0],
            wait_p95_ns=wait[model][1],
        )
        for model, n_requests, n_on_path, path_ns, path_tail_ns in rows
    )


def _quantiles(connection: duckdb.DuckDBPyConnection, column: str) -> dict[str, list[int]]:
    """One column at a time: an exact quantile holds all its values in memory."""
    return dict(connection.execute(_QUANTILES.format(column=column)).fetchall())
