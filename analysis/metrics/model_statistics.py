"""What Triton's statistics say of every model that took part in a phase: the model under load, and those behind it.

An ensemble's own queue and compute say nothing: its requests wait in the queues of its steps. Pure over
`triton_samples`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from squall.analysis.storage.manifest import Manifest

_SUMS = (
    "request_count", "failure_count", "inference_count", "execution_count", "queue_ns", "compute_input_ns",
    "compute_infer_ns", "compute_output_ns", "success_ns",
)  # fmt: skip
_CACHED = "cache_hit_count"
_KEYS = ("phase", "server", "model")


@dataclass(frozen=True)
class ModelFigures:
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


@dataclass(frozen=True)
class ModelStatistics:
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

    def figures(self) -> ModelFigures:
        """As the summary holds them."""
        n = self.n_requests
        return ModelFigures(
            model=self.model,
            request_count=n,
            failure_count=self.n_failed,
            execution_count=self.n_executions,
            batch_rows_mean=self.batch_rows,
            queue_mean_ns=round(self.queue_ns / n) if n else None,
            compute_mean_ns=round(self.compute_ns / n) if n else None,
            success_mean_ns=round(self.success_ns / n) if n else None,
            cache_hit_count=self.n_cached,
        )


def model_statistics(samples: pa.Table | None, phases: Sequence[str]) -> list[ModelStatistics]:
    """Of each model of each server in each of `phases` that succeeded or failed at anything there, busiest first."""
    if samples is None:
        return []
    columns = [samples.column(name).cast(pa.string()) for name in _KEYS]
    sums = [name for name in (*_SUMS, _CACHED) if name in samples.column_names]
    table = pa.table([*columns, *(samples.column(name) for name in sums)], names=[*_KEYS, *sums])
    grouped = table.group_by(list(_KEYS)).aggregate([(name, "sum") for name in sums]).to_pylist()
    found = [
        ModelStatistics(
            row["phase"], row["server"], row["model"],
            *(int(row.get(f"{name}_sum") or 0) for name in ("request_count", "failure_count", "inference_count",
            "execution_count", "queue_ns", "compute_input_ns", "compute_infer_ns", "compute_output_ns", "success_ns",
            _CACHED)),
        )
        for row in grouped
        if row["phase"] in phases
    ]  # fmt: skip
    taking_part = [one for one in found if one.n_requests or one.n_failed]
    return sorted(
        taking_part, key=lambda one: (phases.index(one.phase), one.server, -one.success_ns, one.model)
    )


def model_figures(samples: pa.Table | None, phases: Sequence[str], manifest: Manifest) -> list[ModelFigures]:
    """Figures of the models behind those that the load is for: an ensemble's steps in order, then the busiest."""
    own = models_under_load(manifest)
    models = [one for server in manifest.servers.values() for one in server.models]
    steps = list(dict.fromkeys(step for one in models for step in one.steps))
    by_model: dict[str, list[ModelStatistics]] = {}
    for one in model_statistics(samples, phases):
        if own and (one.server, one.model) not in own:
            by_model.setdefault(one.model, []).append(one)
    names = [*(step for step in steps if step in by_model), *(name for name in by_model if name not in steps)]
    return [_added(by_model[name]).figures() for name in names]


def _added(found: Sequence[ModelStatistics]) -> ModelStatistics:
    """One model's statistics over several phases and servers."""
    names = [one.name for one in fields(ModelStatistics)][len(_KEYS) :]
    return replace(found[0], **{name: sum(getattr(one, name) for one in found) for name in names})


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
