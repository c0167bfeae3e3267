"""The batches that served the p99 requests, and of their measures those that the rules of the body ask for.

Definitions are those of docs/metrics.md. What needs the whole device, contention and GPM's samples, stays that of all
batches; the events of the other batches are not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from squall.analysis.findings.rules.rule import Measures
from squall.analysis.findings.rules.shares import Key
from squall.analysis.findings.tail import Key as TailKey
from squall.analysis.findings.tail import Tail
from squall.analysis.metrics.figures.batch_figures import batch_measures, batch_sums, pick
from squall.analysis.metrics.figures.issue_figures import issue_measures
from squall.analysis.metrics.measures import INSTANCE, instance_key, ratio
from squall.analysis.metrics.sweeps.batch_sweep import BatchOps, BatchSweep, Issue
from squall.analysis.metrics.sweeps.device_ops import COPY, KERNEL
from squall.analysis.storage.row_groups import NULL
from squall.analysis.tables.nsys import DEVICE_TABLES

if TYPE_CHECKING:
    import duckdb

_KEY = "server, instance, instance_device, batch_id"
_OWNER = ", ".join(("phase", *INSTANCE))
_CHOSEN = f"SELECT {_KEY} FROM joined WHERE batch_id IS NOT NULL AND instance <> '' AND ({{where}})"
_ROWS = f"""
-- Picked batch by number, from 0.
CREATE TEMP TABLE tail_rows AS
SELECT row_number() OVER (ORDER BY {_OWNER}, batch_id) - 1 AS batch, {_OWNER}, batch_id FROM picked
"""
_OWN = f"""
SELECT b.batch, {{kind}}::BIGINT AS kind, o.start_ns, o.end_ns, o.launch_start_ns, o.launch_end_ns
FROM (SELECT * FROM {{table}} WHERE batch_id IN (SELECT batch_id FROM picked) AND end_ns >= start_ns) o
JOIN tail_rows b USING ({_KEY})
WHERE o.recorded_by <> 'library' OR ({_KEY}) IN (SELECT ({_KEY}) FROM picked WHERE tie <> 'none')
"""
"""By the number first: texts are compared for what is left. Of a batch that an edge of a window cuts no part counts."""
_GROUPS = f"SELECT {_OWNER}, count(*) FROM tail_rows GROUP BY ALL ORDER BY min(batch)"
_LAST_STARTS = """
SELECT max(start_ns) AS closed_ns FROM tail_rows LEFT JOIN tail_ops USING (batch) GROUP BY batch ORDER BY batch
"""
_BY_START = "SELECT * FROM tail_ops ORDER BY start_ns, end_ns"
_TOTALS = f"""
SELECT {_OWNER}, sum(end_ns - start_ns) FILTER (kind = {COPY})::DOUBLE,
    sum(end_ns - start_ns) FILTER (kind = {KERNEL})::DOUBLE, count(launch_start_ns)
FROM tail_ops JOIN tail_rows USING (batch) GROUP BY ALL
"""
_SLICE_ROWS = 200_000


def tail_measures(
    connection: duckdb.DuckDBPyConnection, tables: Sequence[str], ends: Mapping[TailKey, Tail | int]
) -> dict[Key, Measures]:
    """Measures over the batches of the tails' requests, by phase and instance key; empty where there are none.

    Views `joined`, `batch_costs` and those of OPERATIONS that are in `tables`. Batches without a record have no
    instance, and are left out.
    """
    filters = [f"({end.where})" for end in ends.values() if isinstance(end, Tail)]
    if not filters:
        return {}
    pick(connection, _CHOSEN.format(where=" OR ".join(filters)))
    return batches_measures(connection, tables)


def batches_measures(connection: duckdb.DuckDBPyConnection, tables: Sequence[str]) -> dict[Key, Measures]:
    """The same over the batches in `picked`."""
    found = {key: batch_measures(sums) for key, sums in batch_sums(connection).items()}
    own = [
        _OWN.format(kind=DEVICE_TABLES.index(table), table=table)
        for table in DEVICE_TABLES
        if table in tables
    ]
    if not own:
        return {**found}
    connection.execute(_ROWS)
    connection.execute(f"CREATE TEMP TABLE tail_ops AS {' UNION ALL '.join(own)}")
    issues = _issues(connection)
    for *owner, copy_ns, kernel_ns, n_launched in connection.execute(_TOTALS).fetchall():
        found[_key(owner)] |= {
            **_issue_measures(issues[_key(owner)], bool(n_launched)),
            "copy_to_kernel_ratio": ratio(copy_ns, kernel_ns),
        }
    connection.execute("DROP TABLE tail_ops; DROP TABLE tail_rows")
    return {**found}


def _issues(connection: duckdb.DuckDBPyConnection) -> dict[Key, Issue]:
    """How the operations in `tail_ops` follow one another, by owner of the batch."""
    groups = connection.execute(_GROUPS).fetchall()
    group = np.repeat(np.arange(len(groups)), [n for *_, n in groups])
    closed_ns = connection.sql(_LAST_STARTS).to_arrow_table()["closed_ns"].fill_null(NULL).to_numpy()
    sweep = BatchSweep(len(groups), group, closed_ns)
    for piece in connection.sql(_BY_START).to_arrow_reader(_SLICE_ROWS):
        if piece.num_rows:
            columns = (piece[name].fill_null(NULL).to_numpy() for name in BatchOps._fields)
            sweep.add(BatchOps(*columns))
    sweep.finish()
    return {_key(owner): issue for (*owner, _), issue in zip(groups, sweep.issues, strict=True)}


def _issue_measures(issue: Issue, has_launches: bool) -> Measures:
    """Those that these operations tell of; of the others what holds of all batches stays said."""
    measures = issue_measures(issue)
    untold = set() if has_launches else {"issue_interval_ns", "op_median_ns", "issue_to_op_ratio"}
    if not issue.n_by_cause.sum():
        untold.add("host_wait_of_idle_ratio")
    if issue.depth.first_ns is None:
        untold.add("launch_depth_nonempty_mean")
    return {name: value for name, value in measures.items() if name not in untold}


def _key(owner: Sequence[Any]) -> Key:
    phase, *instance = owner
    return phase, instance_key(*instance)
