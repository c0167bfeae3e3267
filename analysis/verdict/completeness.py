"""Is every request there, just once? The checks of a run's rows against its plan, and of the losses that it noted."""

from __future__ import annotations

import numpy as np

from squall.analysis.arrays import Int64s
from squall.analysis.locust.users import is_locust_load
from squall.analysis.requests.failures import is_lost
from squall.analysis.requests.requests import Requests, in_order, together
from squall.analysis.tables.manifest import Manifest
from squall.analysis.verdict.check import Check, held_to


def completeness(everything: Requests, manifest: Manifest) -> Check:
    """Every planned arrival has exactly one row: counts ids that are missing, doubled or not of the plan.

    Closed loop: every request that a worker issued. Ids are user + users · index, so that a user's indexes have
    no holes. Users of Locust that were stopped within a request leave holes: there its rows are counted, and held to
    Locust's own counts beside this.
    """
    plan = manifest.plan
    n_planned = plan.n_arrivals
    ids = everything.request_id
    if everything.is_open:
        known = _distinct(ids[together((ids >= 0) & (ids < n_planned))])
        n_missing, what = n_planned - len(known), "planned arrivals"
    else:
        known = _distinct(ids[together(ids >= 0)])
        n_missing, what = abs(n_planned - len(known)), "requests issued"
        if not is_locust_load(manifest):
            n_missing = max(n_missing, _holes(known, 1 if plan.n_users is None else plan.n_users))
    n_wrong = n_missing + (len(ids) - len(known))
    advice = "look in logs/ for a worker that died, and run again"
    meaning = f"number of {what} without exactly one row"
    return held_to("completeness", n_wrong if n_planned else None, 0, "count", meaning, advice)


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


def lost_records(everything: Requests) -> Check:
    """Of the whole run: a record that is gone may have been of any answer, however slow."""
    n_lost = int(is_lost(everything).sum())
    advice = "what they took is not known; look in logs/ for a worker that died, and run again"
    return held_to("lost records", n_lost, 0, "count", "number of arrivals whose record was lost", advice)


def losses(manifest: Manifest) -> Check:
    """What the run itself noted as missing: requests, batch records, nodes."""
    noted = manifest.losses
    advice = "; ".join(loss.rstrip(".") for loss in noted)
    return held_to("losses", len(noted), 0, "count", "number of losses noted during the run", advice)
