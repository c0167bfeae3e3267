"""Where the time of a run's requests went, reduced to sums: parts of `joined`, batches by size, kernels by name.

Of requests of measured phases that ended ok. Each latency is the sum of its parts (`squall.analysis.findings.tail`):

    latency = lag + network + queue + input + handover + compute + output + residual       where these parts are known
              lag + wait + compute + reply                                                 where only the batch is
              lag + unjoined                                                               where not even that is
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from squall.analysis.findings.shares import BODY_PARTS, LATENCY
from squall.analysis.findings.tail import TAIL_PARTS, part_columns, whole_parts
from squall.analysis.storage.parquet import literal

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
_SERIAL = re.compile(r"_\d+$")


@dataclass(frozen=True)
class PartMeans:
    """Means over `n` requests, ns, by part; all of `PARTS`."""

    n: int
    ns: Mapping[str, float]

    @property
    def latency_ns(self) -> float:
        """Their mean latency."""
        return sum(self.ns.values())


@dataclass(frozen=True)
class SizeSums:
    """Requests in batches of so many rows, and the sum over them of the lengths of their batches, ns."""

    rows: int
    n_requests: int
    compute_ns: float


@dataclass(frozen=True)
class RecordedSums:
    """Batches of `rows` rows of a model whose operations on the GPU were recorded: sums over them, ns by part, and of
    each kernel by name the number of calls and their time."""

    model: str
    rows: int
    n_batches: int
    ns: Mapping[str, float]
    kernels: Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class RunAccount:
    """`every` and `tail`: of all, and of those at or beyond the run's p90. `levels`: share of requests by what knows
    their parts. Empty or None where the run does not tell."""

    every: PartMeans | None = None
    tail: PartMeans | None = None
    levels: Mapping[str, float] | None = None
    sizes: tuple[SizeSums, ...] = ()
    recorded: tuple[RecordedSums, ...] = ()


NO_ACCOUNT = RunAccount()


def run_account(
    connection: duckdb.DuckDBPyConnection, tables: Sequence[str], phases: Sequence[str]
) -> RunAccount:
    """That of a run over the views `tables` of `connection`; of one without `joined` an empty one."""
    if "joined" not in tables or not phases:
        return NO_ACCOUNT
    every, tail = _part_means(connection, phases)
    return RunAccount(
        every,
        tail,
        _levels(connection, phases),
        _sizes(connection, phases),
        _recorded(connection, phases, "kernels" in tables) if "batch_costs" in tables else (),
    )


def _own(phases: Sequence[str]) -> str:
    """SQL, of rows of `joined`: ok in one of the phases, with a latency, which only a damaged row lacks."""
    named = ", ".join(map(literal, phases))
    return f"phase IN ({named}) AND outcome = 'ok' AND {LATENCY} IS NOT NULL"


def _part_means(
    connection: duckdb.DuckDBPyConnection, phases: Sequence[str]
) -> tuple[PartMeans | None, PartMeans | None]:
    columns = ", ".join(f"sum({part})::DOUBLE" for part in part_columns().values())
    rows = connection.execute(
        f"""WITH own AS (SELECT * FROM joined WHERE {_own(phases)}),
            edge AS (SELECT quantile_disc({LATENCY}, {TAIL_Q}) AS edge_ns FROM own)
        SELECT {LATENCY} >= edge_ns, count(*), sum({LATENCY})::DOUBLE, {columns} FROM own, edge GROUP BY 1"""
    ).fetchall()
    sums = {bool(is_tail): (int(n), list(values)) for is_tail, n, *values in rows}
    if not sums:
        return None, None
    n = sum(one[0] for one in sums.values())
    totals = [sum(column) for column in zip(*(one[1] for one in sums.values()), strict=True)]
    return _means(n, totals), _means(*sums[True])


def _means(n: int, totals: Sequence[float]) -> PartMeans:
    latency_ns, *parts = (total / n for total in totals)
    whole = whole_parts(latency_ns, parts)
    compute_ns = sum(whole[part] for part in _WITHIN)
    kept = {part: compute_ns if part == "compute" else whole[part] for part in PARTS}
    assert set(TAIL_PARTS) == {*PARTS, *_WITHIN}
    return PartMeans(n, kept)


def _levels(connection: duckdb.DuckDBPyConnection, phases: Sequence[str]) -> dict[str, float]:
    rows = connection.execute(
        f"SELECT parts_level, count(*) FROM joined WHERE {_own(phases)} GROUP BY 1"
    ).fetchall()
    n = sum(count for _, count in rows)
    return {str(level): count / n for level, count in sorted(rows)}


def _sizes(connection: duckdb.DuckDBPyConnection, phases: Sequence[str]) -> tuple[SizeSums, ...]:
    rows = connection.execute(
        f"""SELECT batch_rows, count(*), sum(compute_ns)::DOUBLE FROM joined
        WHERE {_own(phases)} AND batch_rows IS NOT NULL AND compute_ns IS NOT NULL GROUP BY 1 ORDER BY 1"""
    ).fetchall()
    return tuple(SizeSums(int(size), int(n), float(total)) for size, n, total in rows)


def _recorded(
    connection: duckdb.DuckDBPyConnection, phases: Sequence[str], has_kernels: bool
) -> tuple[RecordedSums, ...]:
    """Of batches with operations on the GPU. A batch is counted where its kernels are known, even where it has none."""
    named = ", ".join(map(literal, phases))
    own = f"phase IN ({named}) AND tie <> 'none' AND n_kernels IS NOT NULL AND n_kernels + coalesce(n_copies, 0) > 0"
    parts = ", ".join(f"sum({part})::DOUBLE" for part in _BATCH.values())
    sums = connection.execute(
        f"SELECT model, rows, count(*), {parts} FROM batch_costs WHERE {own} GROUP BY 1, 2 ORDER BY 1, 2"
    ).fetchall()
    kernels: dict[tuple[str, int], dict[str, tuple[float, float]]] = {}
    if has_kernels and sums:
        for model, size, name, n, total in connection.execute(
            f"""SELECT b.model, b.rows, k.name, count(*), sum(k.end_ns - k.start_ns)::DOUBLE
            FROM kernels k JOIN (SELECT * FROM batch_costs WHERE {own}) b
                USING (server, instance, instance_device, batch_id) GROUP BY ALL ORDER BY ALL"""
        ).fetchall():
            own_kernels = kernels.setdefault((model, size), {})
            before = own_kernels.get(kernel_name(name), (0.0, 0.0))
            own_kernels[kernel_name(name)] = (before[0] + n, before[1] + total)
    return tuple(
        RecordedSums(
            str(model),
            int(size),
            int(n),
            dict(zip(_BATCH, values, strict=True)),
            kernels.get((model, size), {}),
        )
        for model, size, n, *values in sums
    )


def kernel_name(name: str) -> str:
    """The name without the serial number that a compiler puts behind it: it numbers what it makes in each process."""
    return _SERIAL.sub("", name)
