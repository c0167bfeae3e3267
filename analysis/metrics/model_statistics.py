"""What Triton's statistics say of every model that took part in a phase: the model under load, and those behind it.

An ensemble's own queue and compute say nothing: its requests wait in the queues of its steps. Pure over
`triton_samples`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.query import in_memory, rows
from squall.scenarios.records import Frozen

_SUMS = {
    "n_requests": "request_count", "n_failed": "failure_count", "n_rows": "inference_count",
    "n_executions": "execution_count", "queue_ns": "queue_ns", "input_ns": "compute_input_ns",
    "infer_ns": "compute_infer_ns", "output_ns": "compute_output_ns", "success_ns": "success_ns",
    "n_cached": "cache_hit_count",
}  # fmt: skip
# Over the versions of each model of each server in each phase, of those that took part in anything.
_STATISTICS = f"""
SELECT phase, server, model, {", ".join(f"coalesce(sum({of}), 0)::BIGINT AS {name}" for name, of in _SUMS.items())}
FROM triton_samples WHERE phase IN (SELECT unnest($phases::VARCHAR[])) GROUP BY phase, server, model
HAVING n_requests > 0 OR n_failed > 0
ORDER BY list_position($phases::VARCHAR[], phase), server, success_ns DESC, model
"""
# The same over phases and servers, of the models that are not under load themselves; none where that is not known.
_BEHIND = f"""
SELECT model, sum(n_requests)::BIGINT AS request_count, sum(n_failed)::BIGINT AS failure_count,
    sum(n_executions)::BIGINT AS execution_count, sum(n_rows) / nullif(execution_count, 0) AS batch_rows_mean,
    round_even(sum(queue_ns) / nullif(request_count, 0), 0)::BIGINT AS queue_mean_ns,
    round_even(sum(input_ns + infer_ns + output_ns) / nullif(request_count, 0), 0)::BIGINT AS compute_mean_ns,
    round_even(sum(success_ns) / nullif(request_count, 0), 0)::BIGINT AS success_mean_ns,
    sum(n_cached)::BIGINT AS cache_hit_count
FROM ({_STATISTICS}) WHERE len($own) > 0 AND NOT list_contains($own::VARCHAR[][], [server, model]) GROUP BY model
ORDER BY list_position($steps::VARCHAR[], model) NULLS LAST,
    min((list_position($phases::VARCHAR[], phase), server, -success_ns, model))
"""


class ModelFigures(Frozen):
    """A model behind those that the load is for: means over the requests that succeeded, None without any.
    `cache_hit_count`: those of them that the response cache answered, without a batch."""

    model: str
    request_count: int
    failure_count: int
    execution_count: int
    batch_rows_mean: float | None
    queue_mean_ns: int | None
    compute_mean_ns: int | None
    success_mean_ns: int | None
    cache_hit_count: int = 0


class ModelStatistics(Frozen):
    """Sums of a model's versions over a phase; times are summed over the requests that succeeded, ns. `n_cached`: those
    that the response cache answered, which queue and compute next to nothing."""

    phase: str
    server: str
    model: str
    n_requests: int
    n_failed: int
    n_rows: int
    n_executions: int
    queue_ns: int
    input_ns: int
    infer_ns: int
    output_ns: int
    success_ns: int
    n_cached: int = 0

    @property
    def compute_ns(self) -> int:
        """Input, infer and output."""
        return self.input_ns + self.infer_ns + self.output_ns

    @property
    def batch_rows(self) -> float | None:
        """Mean rows of an execution."""
        return self.n_rows / self.n_executions if self.n_executions else None

    @property
    def infer_mean_ns(self) -> float | None:
        """Mean time in the model, of the requests that it executed."""
        n = self.n_requests - self.n_cached
        return self.infer_ns / n if n > 0 else None

    @property
    def executing_ns(self) -> float:
        """About how long the model executed in all: its executions, each as long as that of the mean request."""
        return self.n_executions * (self.infer_mean_ns or 0.0)


def model_statistics(samples: pa.Table | None, phases: Sequence[str]) -> list[ModelStatistics]:
    """Of each model of each server in each of `phases` that succeeded or failed at anything there, busiest first."""
    with in_memory(triton_samples=samples) as connection:
        return [ModelStatistics(**row) for row in rows(connection, _STATISTICS, {"phases": list(phases)})]


def model_figures(samples: pa.Table | None, phases: Sequence[str], manifest: Manifest) -> list[ModelFigures]:
    """Figures of the models behind those that the load is for: an ensemble's steps in order, then the busiest."""
    own = [list(one) for one in models_under_load(manifest)]
    steps = [step for server in manifest.servers.values() for one in server.models for step in one.steps]
    given = {"phases": list(phases), "own": own, "steps": steps}
    with in_memory(triton_samples=samples) as connection:
        return [ModelFigures(**row) for row in rows(connection, _BEHIND, given)]


def of_models(samples: pa.Table | None, manifest: Manifest) -> pa.Table | None:
    """The samples of the models that the load is for; all of them where the manifest does not tell."""
    return _of(samples, models_under_load(manifest))


def of_executed(rows: pa.Table | None, manifest: Manifest) -> pa.Table | None:
    """The batches or samples of the models that the load is for and of an ensemble's steps. All as `of_models`."""
    return _of(rows, executed_models(manifest))


def executed_models(manifest: Manifest) -> frozenset[tuple[str, str]]:
    """Server and model of each that the load is for and of an ensemble's steps; empty where the manifest has none."""
    facts = manifest.servers.items()
    steps = {(name, step) for name, server in facts for one in server.models for step in one.steps}
    return frozenset(models_under_load(manifest) | steps)


def models_under_load(manifest: Manifest) -> set[tuple[str, str]]:
    """Server and model of each that requests are for, by the manifest."""
    facts = manifest.servers.items()
    return {(name, one.model) for name, server in facts for one in server.models if one.model is not None}


def _of(rows: pa.Table | None, models: Collection[tuple[str, str]]) -> pa.Table | None:
    if rows is None or not models:
        return rows
    servers, names = (rows.column(name).cast(pa.string()) for name in ("server", "model"))
    own = [pc.and_(pc.equal(servers, server), pc.equal(names, name)) for server, name in sorted(models)]
    return rows.filter(reduce(pc.or_, own))
