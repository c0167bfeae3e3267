"""What Locust's workers saw of their users over some phases, from `locust_samples`.

A sample tells of an interval; what of it lies in a phase is taken in the same share, as if spread evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from squall.analysis.arrays import Floats
from squall.analysis.requests.workers import column, seconds_of
from squall.analysis.storage.timeline import RunPhase
from squall.scenarios.units import NS_PER_S


@dataclass(frozen=True)
class LocustTime:
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


def locust_time(samples: pa.Table, spans: Sequence[RunPhase]) -> LocustTime:
    """Over `spans`, from all rows of `locust_samples`, those of other phases too: a phase may end within a sample."""
    shares = [_shares(samples, span) for span in spans]
    share = np.sum(shares, axis=0) if shares else np.zeros(samples.num_rows)

    def part(name: str) -> float:
        return float((column(samples, name) * share).sum())

    return LocustTime(
        duration_ns=sum(span.end_ns - span.start_ns for span in spans),
        present_ns=round(part("present_ns")),
        think_ns=round(part("think_ns")),
        overslept_ns=round(part("overslept_ns")),
        n_wakes=part("n_wakes"),
        n_late=part("n_late_wakes"),
        late_max_ns=int(column(samples, "late_max_ns")[share > 0].max(initial=0.0)),
        n_samples=int((share > 0).sum()),
    )


def _shares(samples: pa.Table, span: RunPhase) -> Floats:
    """Share of each sample's interval that lies in the span."""
    end_ns = samples.column("t_ns").to_numpy().astype(np.int64)
    length_ns = samples.column("interval_ns").to_numpy().astype(np.int64)
    inside_ns = np.minimum(end_ns, span.end_ns) - np.maximum(end_ns - length_ns, span.start_ns)
    found: Floats = np.maximum(inside_ns, 0) / np.maximum(length_ns, 1)
    return found


def count_before(samples: pa.Table, name: str, end_ns: int) -> int:
    """Sum of a column over the samples that begin before `end_ns`."""
    begun_ns = samples.column("t_ns").to_numpy() - samples.column("interval_ns").to_numpy()
    return int(column(samples, name)[begun_ns < end_ns].sum())


def count_in_all(samples: pa.Table | None, name: str) -> int:
    """Sum of a column over the whole run; 0 without the table."""
    return int(column(samples, name).sum()) if samples is not None else 0


def per_second(samples: pa.Table, name: str) -> tuple[Floats, Floats]:
    """Instants (ns) and the sum of `name`, a count at an instant, over the workers that sampled about then."""
    t_ns = samples.column("t_ns").to_numpy().astype(np.int64)
    if not len(t_ns):
        return np.empty(0), np.empty(0)
    kept, place = np.unique(seconds_of(samples), return_inverse=True)
    sums = np.bincount(place, weights=column(samples, name), minlength=len(kept))
    return (kept * NS_PER_S + t_ns.min()).astype(np.float64), sums.astype(np.float64)
