"""Executions of which no request is named, such as those of a model that another one asks without passing its request's
id on: by which model's executions they are held, and by which one of them.

    batches of the parent   [────────────]  [──────────────]      name requests
    of the child, nameless     [───] [──]       [────]

A child's batches belong to the model whose batches hold nearly all of them whole, if no other model's do
(`squall.analysis.join.holders`) nor chance does: the same batches, had they come a little sooner or later. Requests of
somebody else's that bear no id come whenever they like, and so are held by nobody nearly always. Of a known parent a
batch belongs to the one that holds it; what several hold, as of two instances, belongs to none.

Only batches between the first and the last that names a request count: warm-ups come before.

Where a server has several models under load, one of them whose batches never name a request has those of its own
requests, and is nobody's child.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from squall.analysis.arrays import Int64s
from squall.analysis.join.holders import AMBIGUOUS, UNHELD, Stretches, holder_of
from squall.analysis.storage.manifest import Manifest
from squall.scenarios.records import Frozen

if TYPE_CHECKING:
    import duckdb

SHIFTS: Final = (-1.31, -0.73, -0.37, 0.37, 0.73, 1.31)
"""By how much of the median length of the holder's batches a child's are moved to see what chance holds: about as far
as they are long, so that a burst stays one, and no simple share of it, for children may come in even steps."""

_NAMELESS = """
SELECT DISTINCT server, model FROM batches b WHERE len(request_ids) = 0 AND n_requests > 0 AND EXISTS (
    SELECT 1 FROM batches o WHERE o.server = b.server AND o.model <> b.model AND len(o.request_ids) > 0)
ORDER BY ALL
"""
_NAMING = """
SELECT model, min(start_ns), max(end_ns) FROM batches WHERE server = $server AND len(request_ids) > 0
GROUP BY model ORDER BY model
"""
_BATCHES = """
SELECT b.start_ns, b.end_ns, {place} AS place FROM {batches}
WHERE b.server = $server AND b.model = $model AND b.end_ns >= b.start_ns AND {only}
"""
_NAMELESS_WITHIN = "len(b.request_ids) = 0 AND b.start_ns >= {first_ns} AND b.end_ns <= {last_ns}"
_UNPLACED = {"place": "0::BIGINT", "batches": "batches b"}
_PLACED = {
    "place": "p.place",
    "batches": """batches b JOIN placed p ON p.server = b.server AND p.model = b.model AND p.instance = b.instance
        AND p.instance_device = b.instance_device AND p.batch_id = b.batch_id AND p.source <> 'trace'""",
}
Batches = Mapping[str, Int64s]
"""(n,) `start_ns`, `end_ns` and `place` of batches."""


class ChildModel(Frozen):
    """A model with batches that name no request, between those that do: of which model they are, None: of none that
    can be told. `n_ambiguous`: several batches of the parent hold it; `n_unheld`: none does."""

    server: str
    model: str
    parent: str | None
    n_batches: int
    n_tied: int
    n_ambiguous: int
    n_unheld: int


class Found(Frozen, eq=False):
    """A child model; (n_tied,) `place` of its batches and `parent_place` of those that hold them."""

    model: ChildModel
    place: Int64s
    parent_place: Int64s


def find_children(
    connection: duckdb.DuckDBPyConnection, manifest: Manifest, is_placed: bool
) -> Iterator[Found]:
    """Each model of each server with batches that name no request, one after the other; needs view `batches`.

    `is_placed`: table `placed` is there too, else places are 0.
    """

    def read(server: str, model: str, only: str = "true") -> Batches:
        query = _BATCHES.format(**_PLACED if is_placed else _UNPLACED, only=only)
        found: Batches = connection.execute(query, {"server": server, "model": model}).fetchnumpy()
        return found

    for server, model in connection.execute(_NAMELESS).fetchall():
        naming = connection.execute(_NAMING, {"server": server}).fetchall()
        others = [other for other, _, _ in naming if other != model]
        if len(others) == len(naming) and model in _asked(manifest, server):
            continue
        first_ns, last_ns = min(first for _, first, _ in naming), max(last for _, _, last in naming)
        own = read(server, model, _NAMELESS_WITHIN.format(first_ns=first_ns, last_ns=last_ns))
        # one at a time: each may have as many batches as there are requests
        n_held = [_stretches(read(server, other)).n_held(own["start_ns"], own["end_ns"]) for other in others]
        parent = others[int(np.argmax(n_held))]
        yield _found(own, server, model, parent, read(server, parent), n_held)


def _asked(manifest: Manifest, server: str) -> set[str | None]:
    """The models under load there, of several."""
    facts = manifest.servers.get(server)
    return {one.model for one in facts.models} if facts is not None and len(facts.models) > 1 else set()


def _stretches(batches: Batches) -> Stretches:
    return Stretches(batches["start_ns"], batches["end_ns"])


def _found(
    own: Batches, server: str, model: str, parent: str, batches: Batches, n_held: Sequence[int]
) -> Found:
    """Which of the child's batches `own` those of the model that holds most of them hold, if they are its."""
    n, stretches = len(own["start_ns"]), _stretches(batches)
    shares = np.array([*n_held, _by_chance(own, batches, stretches)], np.float64)
    if holder_of(n, shares, _n_begun(own, stretches)) != int(np.argmax(n_held)):
        nothing = np.zeros(0, np.int64)
        return Found(ChildModel(server, model, None, n, 0, 0, 0), nothing, nothing)
    holders = stretches.holders(own["start_ns"], own["end_ns"])
    is_tied = holders >= 0
    told = ChildModel(
        server, model, parent, n, int(is_tied.sum()),
        int((holders == AMBIGUOUS).sum()), int((holders == UNHELD).sum()),
    )  # fmt: skip
    return Found(told, own["place"][is_tied], batches["place"][stretches.order[holders[is_tied]]])


def _n_begun(own: Batches, stretches: Stretches) -> int:
    """Batches of the parent that began while the child's came."""
    if not len(own["start_ns"]):
        return 0
    begun = stretches.begins_ns
    return int(np.count_nonzero((begun >= own["start_ns"].min()) & (begun <= own["end_ns"].max())))


def _by_chance(own: Batches, batches: Batches, stretches: Stretches) -> float:
    """How many of a child's batches the parent's would hold if they came at other instants."""
    lengths_ns = batches["end_ns"] - batches["start_ns"]
    length_ns = float(np.median(lengths_ns)) if len(lengths_ns) else 0.0
    moved = [round(shift * length_ns) for shift in SHIFTS]
    return float(np.mean([stretches.n_held(own["start_ns"] + by, own["end_ns"] + by) for by in moved]))
