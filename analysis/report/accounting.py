"""Where the latency of the requests went, part by part: in the mean, and by band of the latency.

Of the ok requests of some phases that are joined to their batch by id. Parts come in three levels, each of which adds
up to the latency row by row, so that the means of the parts add up to the mean latency in every band:

    batch    lag + wait + compute + reply
    server   lag + network + queue + input + handover + compute + output + residual
    device   as server, with compute = kernels + copies + sync wait + launch idle + head + tail; of batches with kernels

The finest level that at least `LEAST_RATIO` of the requests have is taken, over those that have it. A closed loop has
no lag: its latency is the service time.
"""

from __future__ import annotations

from collections.abc import Sequence

from squall.analysis.join.counts import Accounting, Part
from squall.analysis.storage.parquet import literal
from squall.analysis.storage.query import MEMORY_LIMIT_BYTES, connect
from squall.analysis.storage.store import RunStore

LEAST_RATIO = 0.9
BAND_QUANTILES = (0.50, 0.90, 0.95, 0.99)
BANDS = ("up to p50", "p50 to p90", "p90 to p95", "p95 to p99", "beyond p99")
"""Bands of the latency between its own order statistics."""

_COMPUTE = {
    "kernels": "kernel_busy_ns",
    "copies": "copy_exposed_ns",
    "sync wait": "sync_wait_ns",
    "launch idle": "launch_idle_ns",
    "head": "head_ns",
    "tail": "tail_ns",
}
_BEFORE = {"network": "network_ns", "queue": "queue_ns", "input": "input_ns", "handover": "handover_ns"}
_AFTER = {"output": "output_ns", "residual": "residual_ns"}
LEVELS: dict[str, dict[str, str]] = {
    "device": {**_BEFORE, **_COMPUTE, **_AFTER},
    "server": {**_BEFORE, "compute": "compute_ns", **_AFTER},
    "batch": {"wait": "wait_ns", "compute": "compute_ns", "reply": "reply_ns"},
}
"""Parts of the service time by level, the finest first: name for people, column of `joined`."""
_HAS = {
    "device": "residual_ns IS NOT NULL AND n_kernels > 0 AND sync_wait_ns IS NOT NULL",
    "server": "residual_ns IS NOT NULL",
    "batch": "compute_ns IS NOT NULL AND service_ns IS NOT NULL",
}
_KEPT = f"""
-- the requests of a level, each with its band: one as slow as the edge of two counts in the lower one
CREATE TEMP TABLE kept AS
WITH own AS (SELECT {{columns}} FROM joined WHERE {{kept}}),
edges AS (SELECT quantile_disc({{latency}}, {list(BAND_QUANTILES)}) AS edges FROM own)
SELECT *, len(list_filter(edges, lambda edge: {{latency}} > edge)) AS band FROM own, edges
"""
_P95 = "SELECT quantile_disc({}, 0.95) FROM kept"
"""Of one column after the other: an exact quantile holds all its values in memory."""
_RESIDUAL = "SELECT median(abs(residual_ns) / greatest({}_ns, 1)) FROM kept"
_JOINED = "outcome = 'ok' AND join_level IN ('exact', 'batch') AND service_ns IS NOT NULL"


def accounting(
    store: RunStore,
    phases: Sequence[str],
    is_open: bool,
    memory_limit_bytes: int = MEMORY_LIMIT_BYTES,
    model: str | None = None,
) -> Accounting | None:
    """The parts of the latency over the requests of `phases`, of those that ask `model` alone where one is given; None
    where none is joined. Raises MissingTable."""
    with connect(store, ["joined"], memory_limit_bytes) as connection:
        of_model = "" if model is None else f" AND request_kind = {literal(model)}"
        kept = f"{_JOINED} AND list_contains($phases, phase){of_model}"
        counts = ", ".join(f"count(*) FILTER ({condition})" for condition in _HAS.values())
        sql = f"SELECT count(*), {counts} FROM joined WHERE {kept}"
        ((n_of, *n_by_level),) = connection.execute(sql, {"phases": list(phases)}).fetchall()
        found = dict(zip(_HAS, n_by_level, strict=True))
        level = next((one for one, n in found.items() if n and n >= LEAST_RATIO * n_of), None)
        if level is None:
            return None
        latency = "response" if is_open else "service"
        names = {latency: f"{latency}_ns", **({"lag": "lag_ns"} if is_open else {}), **LEVELS[level]}
        given = {
            "columns": ", ".join(names.values()),
            "kept": f"{kept} AND {_HAS[level]}",
            "latency": names[latency],
        }
        connection.execute(_KEPT.format(**given), {"phases": list(phases)})
        sums = ", ".join(f"[coalesce(sum({column}), 0), count({column})]" for column in names.values())
        of_bands = dict(connection.execute(f"SELECT band, [{sums}] FROM kept GROUP BY band").fetchall())
        parts, bands = {}, {}
        for at, (name, column) in enumerate(names.items()):
            ((p95_ns,),) = connection.execute(_P95.format(column)).fetchall()
            own = [of_bands[band][at] if band in of_bands else (0, 0) for band in range(len(BANDS))]
            total_ns, n = (sum(values) for values in zip(*own, strict=True))
            parts[name] = Part(round(total_ns / n), int(p95_ns))
            bands[name] = tuple(own_ns / own_n if own_n else None for own_ns, own_n in own)
        del bands[latency]
        ((residual,),) = (
            connection.execute(_RESIDUAL.format(latency)).fetchall() if level != "batch" else [(None,)]
        )
        return Accounting(
            level=level, n=found[level], n_of=n_of, parts=parts, bands=bands, residual_p50_ratio=residual
        )


def parts_query(level: str, measured: str, is_open: bool) -> str:
    """The query that makes `Accounting.parts` of that level again, means not rounded, of the rows of `joined` that the
    condition `measured` is true of."""
    columns = {"response": "response_ns", "lag": "lag_ns"} if is_open else {"service": "service_ns"}
    columns |= LEVELS[level]
    means, p95s = (
        ", ".join(form.format(column) for column in columns.values())
        for form in ("avg({})", "quantile_disc({}, 0.95)")
    )
    return (
        f"SELECT unnest({[*columns]}) AS part, unnest([{means}]) AS mean_ns, unnest([{p95s}]) AS p95_ns"
        f" FROM joined WHERE {measured} AND {_JOINED} AND {_HAS[level]}"
    )
