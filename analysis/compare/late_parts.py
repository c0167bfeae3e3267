"""Where the time of late requests went, against those in time: means of the parts of `joined`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from squall.analysis.compare.figures import LateParts
from squall.analysis.compare.judged import Held
from squall.analysis.findings.shares import LATENCY
from squall.analysis.findings.tail import part_columns, whole_parts

if TYPE_CHECKING:
    import duckdb


def late_parts(connection: duckdb.DuckDBPyConnection, held: Held) -> LateParts | None:
    """Of the requests of a promise that ended ok; None where none was late, none in time, or no time grew. The
    connection has view `joined`."""
    if not held.is_late.any() or held.is_late.all():
        return None
    columns = ", ".join(f"avg({part})" for part in part_columns().values())
    told = pa.table({"request_id": held.request_id, "is_late": held.is_late})
    connection.register("held", told)
    try:
        rows = connection.execute(
            f"""SELECT is_late, count(*), avg({LATENCY}), {columns} FROM joined JOIN held USING (request_id)
            WHERE outcome = 'ok' GROUP BY is_late"""
        ).fetchall()
    finally:
        connection.unregister("held")
    means = {is_late: (n, whole_parts(latency_ns, values)) for is_late, n, latency_ns, *values in rows}
    if len(means) < 2:
        return None
    (n, late_ns), (n_in_time, in_time_ns) = means[True], means[False]
    growth = {part: value - in_time_ns[part] for part, value in late_ns.items()}
    whole = sum(growth.values())
    if whole < 1.0:
        return None
    most = max(growth, key=lambda part: growth[part])
    used = [part for part in late_ns if late_ns[part] or in_time_ns[part]]
    return LateParts(
        n=n,
        n_in_time=n_in_time,
        grew_most=most.replace("_", " "),
        share_ratio=growth[most] / whole,
        late_ns={part: late_ns[part] for part in used},
        in_time_ns={part: in_time_ns[part] for part in used},
    )
