"""Is every request there, just once, and was any answered? Figures of a run's rows against its plan, and of the losses
that it noted, for the first checks."""

from __future__ import annotations

import numpy as np

from squall.analysis.arrays import Int64s
from squall.analysis.requests.requests import in_order, together
from squall.analysis.requests.users import is_locust_load
from squall.analysis.verdict.check import Figure
from squall.analysis.verdict.run_view import RunView


def completeness(view: RunView) -> Figure:
    """Counts ids that are missing, doubled or not of the plan.

    Closed loop: of every request that a worker issued. Ids are user + users · index, so that a user's indexes have
    no holes. Users of Locust that were stopped within a request leave holes: there its rows are counted, and held to
    Locust's own counts beside this.
    """
    plan, ids = view.manifest.plan, view.everything.request_id
    n_planned = plan.n_arrivals
    if view.everything.is_open:
        known = _distinct(ids[together((ids >= 0) & (ids < n_planned))])
        n_missing, what = n_planned - len(known), "planned arrivals"
    else:
        known = _distinct(ids[together(ids >= 0)])
        n_missing, what = abs(n_planned - len(known)), "requests issued"
        if not is_locust_load(view.manifest):
            n_missing = max(n_missing, _holes(known, 1 if plan.n_users is None else plan.n_users))
    n_wrong = n_missing + (len(ids) - len(known))
    return Figure(n_wrong if n_planned else None, meaning=f"number of {what} without exactly one row")


def _distinct(ids: Int64s) -> Int64s:
    """Each id once, in order. Of ids that are sorted it takes a fraction of the time of numpy's `unique`."""
    ordered = in_order(ids)
    is_first = np.ones(len(ordered), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return ordered[together(is_first)]


def _holes(ids: Int64s, n_users: int) -> int:
    """Indexes that are missing before the last one of each user; `ids` are unique."""
    last = np.full(n_users, -1, dtype=np.int64)
    np.maximum.at(last, ids % n_users, ids // n_users)
    return int((last + 1).sum()) - len(ids)


def losses(view: RunView) -> Figure:
    """Requests, batch records, nodes: what the run itself noted as missing."""
    noted = view.manifest.losses
    return Figure(len(noted), advice="; ".join(loss.rstrip(".") for loss in noted))


def ok_share(view: RunView) -> Figure:
    measured = view.measured
    failed_ratio = 1.0 - int(measured.is_ok.sum()) / len(measured) if len(measured) else None
    if failed_ratio is not None and failed_ratio < 1.0:
        return Figure(failed_ratio)
    return Figure(
        failed_ratio,
        sentence="No request of a measure phase ended ok, so that there is no latency of this server: see the outcomes"
        " and its log.",
    )
