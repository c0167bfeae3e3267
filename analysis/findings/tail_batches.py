"""The batches that served the p99 requests, and of their measures those that the rules of the body ask for.

Definitions are those of docs/metrics.md. What needs the whole device, contention and GPM's samples, stays that of all
batches; the events of the other batches are not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from squall.analysis.findings.rule import Measures
from squall.analysis.findings.shares import Key
from squall.analysis.findings.tail import Key as TailKey
from squall.analysis.findings.tail import Tail
from squall.analysis.metrics.batches import batch_sums, pick
from squall.analysis.metrics.launches import launch_figures, launch_measures
from squall.analysis.metrics.operations import KEY, Row, add_operations, by_group

if TYPE_CHECKING:
    import duckdb

_CHOSEN = f"SELECT {KEY} FROM joined WHERE batch_id IS NOT NULL AND instance <> '' AND ({{where}})"
_TOTALS = """
SELECT grp, count(launch_start_ns) AS n_launched, sum(end_ns - start_ns) FILTER (is_copy)
    / nullif(sum(end_ns - start_ns) FILTER (is_kernel), 0) AS copy_to_kernel_ratio
FROM operations WHERE is_whole GROUP BY grp
"""


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
    sums = batch_sums(connection)
    found = {grp: dict(row["measures"]) for grp, row in sums.items()}
    if add_operations(connection, tables, "batches"):
        launches = launch_figures(connection)
        for grp, row in by_group(connection, _TOTALS).items():
            found[grp] |= _told(launches[grp], bool(row["n_launched"]))
            found[grp]["copy_to_kernel_ratio"] = row["copy_to_kernel_ratio"]
    return {(row["phase"], row["key"]): found[grp] for grp, row in sums.items()}


def _told(launches: Row, has_launches: bool) -> Measures:
    """The measures that these operations tell of; of the others what holds of all batches stays said."""
    measures = launch_measures(launches)
    untold = set() if has_launches else {"issue_interval_ns", "op_median_ns", "issue_to_op_ratio"}
    if not any(cause["n"] for cause in launches["body_idle_by_cause"].values()):
        untold.add("host_wait_of_idle_ratio")
    if not launches["launch_to_start"]["n"]:
        untold.add("launch_depth_nonempty_mean")
    return {name: value for name, value in measures.items() if name not in untold}
