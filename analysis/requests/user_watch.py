"""What Locust's workers saw of their users over some phases, from `locust_samples`.

A sample tells of an interval; what of it lies in a phase is taken in the same share, as if spread evenly.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from squall.analysis.arrays import Floats
from squall.analysis.requests.workers import column
from squall.analysis.storage.query import over
from squall.analysis.storage.timeline import RunPhase
from squall.scenarios.records import Frozen


class LocustTime(Frozen):
    """Users' time over phases of `duration_ns`, summed over users. `present_ns`: they ran; of that `think_ns` asleep up
    to the instant at which they had asked to wake, `overslept_ns` asleep behind it. Of `n_wakes` wakes `n_late` were
    late; `late_max_ns`: the latest one of the samples that reach into the phases. `n_samples`: of these."""

    duration_ns: int
    present_ns: int
    think_ns: int
    overslept_ns: int
    n_wakes: float
    n_late: float
    late_max_ns: int
    n_samples: int

    @property
    def late_ratio(self) -> float | None:
        """Share of the wakes that were late; None of none."""
        return self.n_late / self.n_wakes if self.n_wakes else None


_TIME = """
-- `share`: how much of each sample lies in the spans
WITH shared AS (
    SELECT *, coalesce((SELECT sum(greatest(least(t_ns, end_ns) - greatest(t_ns - interval_ns, start_ns), 0))
        FROM spans), 0) / greatest(interval_ns, 1) AS share
    FROM samples)
SELECT coalesce(round(sum(present_ns * share)), 0)::BIGINT AS present_ns,
    coalesce(round(sum(think_ns * share)), 0)::BIGINT AS think_ns,
    coalesce(round(sum(overslept_ns * share)), 0)::BIGINT AS overslept_ns,
    coalesce(sum(n_wakes * share), 0)::DOUBLE AS n_wakes, coalesce(sum(n_late_wakes * share), 0)::DOUBLE AS n_late,
    coalesce(max(late_max_ns) FILTER (share > 0), 0) AS late_max_ns, count(*) FILTER (share > 0) AS n_samples
FROM shared
"""


def locust_time(samples: pa.Table, spans: Sequence[RunPhase]) -> LocustTime:
    """Over `spans`, from all rows of `locust_samples`, those of other phases too: a phase may end within a sample."""
    edges = [{"start_ns": span.start_ns, "end_ns": span.end_ns} for span in spans]
    schema = pa.schema({"start_ns": pa.int64(), "end_ns": pa.int64()})
    with over({"samples": samples, "spans": pa.Table.from_pylist(edges, schema=schema)}) as connection:
        ((*found,),) = connection.execute(_TIME).fetchall()
    return LocustTime(sum(span.end_ns - span.start_ns for span in spans), *found)


def count_before(samples: pa.Table, name: str, end_ns: int) -> int:
    """Sum of a column over the samples that begin before `end_ns`."""
    begun_ns = samples.column("t_ns").to_numpy() - samples.column("interval_ns").to_numpy()
    return int(column(samples, name)[begun_ns < end_ns].sum())


def count_in_all(samples: pa.Table | None, name: str) -> int:
    """Sum of a column over the whole run; 0 without the table."""
    return int(column(samples, name).sum()) if samples is not None else 0


_PER_SECOND = """
-- all workers sample at one instant of the run, late by their hubs: hence the half second
SELECT first_ns + (t_ns - first_ns + 500_000_000) // 1_000_000_000 * 1_000_000_000 AS at_ns, sum({})::DOUBLE AS n
FROM samples, (SELECT min(t_ns) AS first_ns FROM samples) GROUP BY at_ns ORDER BY at_ns
"""


def per_second(samples: pa.Table, name: str) -> tuple[Floats, Floats]:
    """Instants (ns) and the sum of `name`, a count at an instant, over the workers that sampled about then."""
    with over({"samples": samples}) as connection:
        found = connection.execute(_PER_SECOND.format(name)).fetchnumpy()
    return found["at_ns"].astype(np.float64), found["n"]
