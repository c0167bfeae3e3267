"""What a run says of a promise, as `summary.json` holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from squall.analysis.statistics.latency import Quantile
from squall.scenarios.records import Frozen

KEPT, BROKEN, UNDECIDED, INVALID = "kept", "broken", "undecided", "invalid"
VERDICTS = (INVALID, BROKEN, UNDECIDED, KEPT)
"""What outranks what."""


class PlaceInRun(Frozen):
    """[offset, offset + duration) of a phase, from its start, in which `n` requests began, `n_late` of them late."""

    phase: str
    offset_ns: int
    duration_ns: int
    n: int
    n_late: int


class LateOfModel(Frozen):
    """Of `n` requests that asked a model `n_late` were late."""

    n: int
    n_late: int


class Certainty(Frozen):
    """When no answer of the rest could keep the promise any more: the plan's n is known, and so is what it allows. Of a
    kept one in a run that ended when it was decided: when none could break it."""

    phase: str
    offset_ns: int
    request_id: int


class LateParts(Frozen):
    """Where the time of late requests went that ended ok: means against those of the scope in time, ns by part.

    `grew_most` makes `share_ratio` of the difference between the two means.
    """

    n: int
    n_in_time: int
    grew_most: str
    share_ratio: float
    late_ns: dict[str, float]
    in_time_ns: dict[str, float]


class WithoutCold(Frozen):
    """A promise held to the requests outside of the cold stretches alone: a figure beside the verdict, which stays that
    of all. `what`: those stretches in words, which hold `n_cold` of its requests, `n_cold_late` of them late; `advice`:
    the warm-up that would have covered them. `verdict`, `value`, `is_infinite` and `late_ratio` as in
    PromiseFigures."""

    kind: str
    what: str
    n_cold: int
    n_cold_late: int
    verdict: str
    value: float | None
    is_infinite: bool
    late_ratio: float | None
    advice: str


class PromiseFigures(Frozen):
    """One promise in one run. `verdict`: kept, broken, undecided, or invalid where the run is not VALID; `reason`: of
    the last two.

    Of `n` requests `n_late` were late and `n_allowed` may be; `used_ratio` is the one over the other, None where none
    may. `value` in `unit`: the quantile, longest time, share or count that is promised, None without requests and where
    `is_infinite`. Where each burst or window must keep it these are of the one that used most, which `worst` names, and
    of `n_parts` `n_parts_broken` broke it; else `worst` is the second in which most were late. `interval`: the 95 %
    interval of a quantile in this one run. `n_unknown` requests may be of its model or GPU, or not. `n_unsent` were not
    sent since the promises were decided: `value` is then the least it can be where it is broken, the most where it is
    kept. `cold`: where much of the late lies in a cold stretch. `late_by_model`: of a broken one about requests of
    several models, the model of most late requests first.
    """

    promise: str
    metric: str
    scope: str
    phase: str
    condition: str
    verdict: str
    reason: str
    is_of_each_run: bool
    allowed_ratio: float | None
    n: int
    n_late: int
    n_unknown: int
    n_unsent: int
    n_failed: int
    n_allowed: int | None
    late_ratio: float | None
    used_ratio: float | None
    value: float | None
    unit: str
    is_infinite: bool
    interval: Quantile | None
    n_parts: int
    n_parts_broken: int
    certain: Certainty | None
    worst: PlaceInRun | None
    failure: str
    late: LateParts | None
    late_by_model: Mapping[str, LateOfModel]
    cold: WithoutCold | None = None


def worst_verdict(verdicts: Sequence[str]) -> str:
    """Of several promises together: kept where all are."""
    return next((one for one in VERDICTS if one in verdicts), UNDECIDED)
