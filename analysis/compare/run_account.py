"""Where the time of a run's requests went, reduced to sums: parts of `joined`, batches by size, kernels by name.

Of requests of measured phases that ended ok. Each latency is the sum of its parts (`squall.analysis.findings.tail`):

    latency = lag + network + queue + input + handover + compute + output + residual       where these parts are known
              lag + wait + compute + reply                                                 where only the batch is
              lag + unjoined                                                               where not even that is
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from squall.analysis.findings.shares import BODY_PARTS, LATENCY
from squall.analysis.findings.tail import TAIL_PARTS, part_columns, whole_parts
from squall.scenarios.records import Frozen

if TYPE_CHECKING:
    import duckdb

TAIL_Q = 0.9
"""The tail of a run are its requests at or beyond its own p90."""
_WITHIN = (*BODY_PARTS, "head", "tail", "body_idle", "compute")
PARTS = (
    *("lag", "network", "queue", "input", "handover", "compute", "output", "residual"),
    *("wait", "reply", "unjoined"),
)
"""Of a latency; compute is its batch's, from start to end."""
_KNOWN = {
    "kernel busy": "kernel_busy_ns",
    "copy exposed": "coalesce(copy_exposed_ns, 0)",
    "sync wait": "coalesce(sync_wait_ns, 0)",
    "launch idle": "coalesce(launch_idle_ns, 0)",
    "head": "coalesce(head_ns, 0)",
    "tail": "coalesce(tail_ns, 0)",
}
_BATCH = {**_KNOWN, "idle": f"end_ns - start_ns - ({' + '.join(_KNOWN.values())})"}
BATCH_PARTS = tuple(_BATCH)
"""Of a batch whose operations on the GPU were recorded: they add up to its length. `idle`: sync wait and launch idle
together, where calls were not recorded."""
KERNEL_NAME = r"regexp_replace(name, '_\d+$', '')"
"""SQL, of a kernel: its name without the serial number that a compiler puts behind it, which numbers what it makes in
each process."""
_OWN = f"SELECT * FROM joined SEMI JOIN measured USING (phase) WHERE outcome = 'ok' AND {LATENCY} IS NOT NULL"
"""Requests that have a latency, which only a damaged row lacks."""
_RECORDED = """
    SELECT * FROM batch_costs SEMI JOIN measured USING (phase)
    WHERE tie <> 'none' AND n_kernels IS NOT NULL AND n_kernels + coalesce(n_copies, 0) > 0"""
_KERNELS = f"""
    SELECT model::VARCHAR, rows, {KERNEL_NAME} AS kernel, sum(n)::DOUBLE, sum(ns)::DOUBLE
    FROM (
        SELECT b.model, b.rows, name, count(*) AS n, sum(k.end_ns - k.start_ns) AS ns
        FROM kernels k JOIN recorded b USING (server, instance, instance_device, batch_id) GROUP BY ALL)
    GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"""


class PartMeans(Frozen):
    """Means over `n` requests, ns, by part; all of `PARTS`."""

    n: int
    ns: Mapping[str, float]

    @property
    def latency_ns(self) -> float:
        """Their mean latency."""
        return sum(self.ns.values())


class SizeSums(Frozen):
    """Requests in batches of so many rows, and the sum over them of the lengths of their batches, ns."""

    rows: int
    n_requests: int
    compute_ns: float


class RecordedSums(Frozen):
    """Batches of `rows` rows of a model whose operations on the GPU were recorded: sums over them, ns by part, and of
    each kernel by name the number of calls and their time."""

    model: str
    rows: int
    n_batches: int
    ns: Mapping[str, float]
    kernels: Mapping[str, tuple[float, float]]


class RunAccount(Frozen):
    """`every` and `tail`: of all, and of those at or beyond the run's p90. `levels`: share of requests by what knows
    their parts. Empty or None where the run does not tell."""

    every: PartMeans | None = None
    tail: PartMeans | None = None
    levels: Mapping[str, float] | None = None
    sizes: tuple[SizeSums, ...] = ()
    recorded: tuple[RecordedSums, ...] = ()


NO_ACCOUNT = RunAccount()


def run_account(connection: duckdb.DuckDBPyConnection, tables: Sequence[str]) -> RunAccount:
    """That of a run over the views `tables` of `connection`, and `measured`, its measured phases; of one without
    `joined` an empty one."""
    if "joined" not in tables:
        return NO_ACCOUNT
    connection.execute(f"CREATE TEMP VIEW own AS {_OWN}")
    every, tail = _part_means(connection)
    levels = connection.execute(
        "SELECT parts_level::VARCHAR, count(*) FROM own GROUP BY 1 ORDER BY 1"
    ).fetchall()
    n = sum(count for _, count in levels)
    sizes = connection.execute(
        """SELECT batch_rows, count(*), sum(compute_ns)::DOUBLE FROM own
        WHERE batch_rows IS NOT NULL AND compute_ns IS NOT NULL GROUP BY 1 ORDER BY 1"""
    ).fetchall()
    return RunAccount(
        every,
        tail,
        {level: count / n for level, count in levels},
        tuple(SizeSums(*row) for row in sizes),
        tuple(_recorded(connection, "kernels" in tables)) if "batch_costs" in tables else (),
    )


def _part_means(connection: duckdb.DuckDBPyConnection) -> tuple[PartMeans | None, PartMeans | None]:
    columns = ", ".join(f"sum({part})::DOUBLE" for part in part_columns().values())
    rows = connection.execute(
        f"""WITH edge AS (SELECT quantile_disc({LATENCY}, {TAIL_Q}) AS edge_ns FROM own)
        SELECT {LATENCY} >= edge_ns AS is_tail, count(*), sum({LATENCY})::DOUBLE, {columns} FROM own, edge
        GROUP BY is_tail ORDER BY is_tail"""
    ).fetchall()
    if not rows:
        return None, None
    return _means([sum(column) for column in zip(*rows, strict=True)]), _means(rows[-1])


def _means(sums: Sequence[float]) -> PartMeans:
    _, n, *totals = sums
    latency_ns, *parts = (total / n for total in totals)
    whole = whole_parts(latency_ns, parts)
    compute_ns = sum(whole[part] for part in _WITHIN)
    kept = {part: compute_ns if part == "compute" else whole[part] for part in PARTS}
    assert set(TAIL_PARTS) == {*PARTS, *_WITHIN}
    return PartMeans(int(n), kept)


def _recorded(connection: duckdb.DuckDBPyConnection, has_kernels: bool) -> Iterator[RecordedSums]:
    """Of batches with operations on the GPU. A batch is counted where its kernels are known, even where it has none."""
    connection.execute(f"CREATE TEMP VIEW recorded AS {_RECORDED}")
    parts = ", ".join(f"sum({part})::DOUBLE" for part in _BATCH.values())
    kernels: dict[tuple[str, int], dict[str, tuple[float, float]]] = {}
    for model, size, name, *sums in connection.execute(_KERNELS).fetchall() if has_kernels else ():
        kernels.setdefault((model, size), {})[name] = (sums[0], sums[1])
    for model, size, n, *values in connection.execute(
        f"SELECT model::VARCHAR, rows, count(*), {parts} FROM recorded GROUP BY 1, 2 ORDER BY 1, 2"
    ).fetchall():
        ns = dict(zip(_BATCH, values, strict=True))
        yield RecordedSums(model, size, n, ns, kernels.get((model, size), {}))
