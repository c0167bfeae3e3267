"""Counts that must agree: the client's, the models' own record of batches, and Triton's statistics.

A request that the client gave up (timeout, cancelled, transport error), refused the reply of (bad reply) or lost the
record of may still have been served. Such requests bound by how much the server's counts may exceed the client's.

Of several servers each is held to the requests that were for it, of several models under load each to those that ask
it: what one counts too much makes up for no other's loss. One that records no batches, or that nobody sampled, has no
identity of these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from squall.analysis.recorded import TABLE as WINDOWS
from squall.analysis.recorded import whole
from squall.analysis.requests.locust_figures import sum_slack_ns
from squall.analysis.requests.locust_statistics import is_aggregate, unreported
from squall.analysis.requests.named_rows import RowsByName
from squall.analysis.requests.requests import Requests, model_names, server_names, together
from squall.analysis.requests.user_watch import count_in_all
from squall.analysis.requests.users import is_locust_load
from squall.analysis.storage.deployed import ModelFacts
from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.query import MEMORY_LIMIT_BYTES, connect
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import measure_spans
from squall.analysis.verdict.measured import RunTables, cache_hits, rows_of_model, unbatched_requests
from squall.scenarios.units import NS_PER_MS

MAY_HAVE_RUN = ("timeout", "cancelled", "transport_error", "bad_reply", "lost")
"""Outcomes after which the server may have served the request all the same."""
MEANINGS = {
    "rows": "rows of `requests` = {what}",
    "Locust's requests": "rows of `requests` = requests that Locust counts",
    "Locust's failures": "rows that did not end ok = failures that Locust counts",
    "Locust's response times": "ns of service of all rows = Locust's sum of response times, but for the rounding of "
    "floats and clocks",
    "triton success": "requests that Triton counts as succeeded{where} = requests that ended ok at the client",
    "joined": "requests that ended ok{where} and are joined to their batch by id = requests that ended ok",
    "batch rows": "rows in all batches{where} = rows of the requests that ended ok{often}",
    "executions": "batches{where} that were recorded = executions that Triton counts",
    "batch costs": "rows of `batch_costs` by a record = batches that were recorded",
    "ranges": "ranges that opened while their batch was executed = ranges of recorded batches",
    "kernel time": "ns of kernels in `batch_costs` = ns of the kernels that bear a batch{of_windows} and did not begin "
    "before what was recorded, each counted once",
}
"""What each kind of count must agree with what; its kind, and of which model at which server, are its name."""


@dataclass(frozen=True)
class Identity:
    """`found` must lie in [least, most]; they are equal where nothing may differ."""

    name: str
    meaning: str
    found: int
    least: int
    most: int

    STATED: ClassVar = ("is_met",)

    @property
    def is_met(self) -> bool:
        """Whether the counts agree."""
        return self.least <= self.found <= self.most


def _identity(
    kind: str, found: int, least: int, most: int | None = None, where: str = "", **words: str
) -> Identity:
    """An identity of MEANINGS; without `most` both counts are equal."""
    meaning = MEANINGS[kind].format(where=where, **words)
    return Identity(f"{kind}{where}", meaning, found, least, least if most is None else most)


@dataclass(frozen=True, eq=False)
class _Passing:
    """Requests of one model under load, each of which passes some model `n_times`."""

    requests: Requests
    n_times: int


def _bounds(passing: Sequence[_Passing], is_rows: bool = False) -> tuple[int, int]:
    """How many passes of requests, or of their rows, a model has counted at least and at most: those that ended ok, and
    on top those that may have run. An error that a model gives as the answer of one request counts as a success in
    Triton, and the request was in a batch."""

    def n(outcomes: Sequence[str]) -> int:
        found = 0
        for one in passing:
            chosen = one.requests.outcome.is_any_of(outcomes)
            found += one.n_times * int((one.requests.rows[chosen] if is_rows else chosen).sum())
        return found

    n_ok = n(["ok"])
    return n_ok, n_ok + n([*MAY_HAVE_RUN, "server_error"])


def identities(tables: RunTables, manifest: Manifest, executed: pa.Table | None = None) -> list[Identity]:
    """The identities that the tables there are can state, over the whole run, all phases.

    `tables.batches`: of the models that execute the load; `executed`: Triton's samples of these.
    """
    requests = tables.requests
    n_planned = manifest.plan.n_arrivals
    what = "planned arrivals" if requests.is_open else "requests that the workers issued"
    rows = _identity("rows", len(requests), n_planned, what=what)
    if is_locust_load(manifest):
        return [rows, *_of_locust_users(tables, manifest, executed)]
    return [rows, *_of_servers(tables, manifest, executed)]


def _of_locust_users(tables: RunTables, manifest: Manifest, executed: pa.Table | None) -> list[Identity]:
    """Those of the requests that ask a model; others of the users' may have been answered by a model too, and so may
    what a user that was stopped within a task had sent."""
    requests = tables.requests
    is_plain = requests.request_kind.is_any_of([""])
    n_cut = count_in_all(tables.locust_samples, "n_cut")
    n_more = int(is_plain.sum()) + n_cut
    more_rows = n_cut * int(requests.rows.max(initial=0))
    own = replace(tables, requests=requests.take(together(~is_plain)))
    slack = {"triton": n_more, "batch": more_rows}
    return [
        replace(one, most=one.most + slack.get(one.name.split()[0], 0))
        for one in _of_servers(own, manifest, executed)
    ]


def locust_identities(manifest: Manifest, rows: RowsByName | None) -> list[Identity]:
    """Locust's statistics against the rows, over all names; none where they are not whole, or of another load."""
    facts = manifest.locust
    if facts is None or rows is None or unreported(facts):
        return []
    entries = [one for one in facts.entries if not is_aggregate(one)]
    total = rows.total
    n, n_failed, total_ns = (total.n, total.n_failed, total.total_ns) if total is not None else (0, 0, 0)
    said_ns = round(sum(one.total_ms for one in entries) * NS_PER_MS)
    slack_ns = sum_slack_ns(n, total_ns)
    n_said, n_failed_said = (sum(getattr(one, of) for one in entries) for of in ("n_requests", "n_failures"))
    return [
        _identity("Locust's requests", n, n_said),
        _identity("Locust's failures", n_failed, n_failed_said),
        _identity("Locust's response times", total_ns, said_ns - slack_ns, said_ns + slack_ns),
    ]


def _of_servers(tables: RunTables, manifest: Manifest, executed: pa.Table | None) -> list[Identity]:
    requests = tables.requests
    servers = server_names(requests, manifest)
    of_server = _of_server if len(model_names(requests, manifest)) < 2 else _of_each_model
    if len(servers) < 2:
        return of_server(tables, executed, servers, "")
    stated: list[Identity] = []
    for server in servers:
        own = replace(
            tables,
            requests=requests.at_server(server),
            batches=_known_of(tables.batches, server),
            triton_samples=_known_of(tables.triton_samples, server),
        )
        stated += of_server(own, _known_of(executed, server), [server], f" at {server}")
    return stated


def _of_server(
    tables: RunTables, executed: pa.Table | None, servers: Sequence[str], where: str
) -> list[Identity]:
    """The identities of one server of one model under load, whose `tables` these are; `servers`: its name."""
    requests, stated = tables.requests, []
    once = [_Passing(requests, 1)]
    if tables.triton_samples is not None:
        stated.append(_success(tables.triton_samples, once, where))
    if tables.batches is not None:
        models = set(tables.batches.column("model").cast(pa.string()).unique().to_pylist())
        passed: Counter[str] = Counter()
        for one in _models(tables.manifest, tables.manifest.servers):  # of one ensemble, or of others
            passed |= Counter(one.steps)
        steps = sorted(passed) if models & passed.keys() else []  # else the ensemble stands for them
        for step in steps:
            batches, samples = _rows_of(tables.batches, "model", step), _rows_of(executed, "model", step)
            assert batches is not None
            often = [_Passing(requests, passed[step])]
            stated += _batch_identities(batches, samples, often, f" of {step}{where}")
        if not steps:
            stated += _batch_identities(tables.batches, tables.triton_samples, once, where)
        own = _models(tables.manifest, servers)
        n_cached = unbatched_requests(executed, own) if own else cache_hits(tables.triton_samples)
        stated += _joined(tables, servers if where else None, None, n_cached, where)
    return stated


def _models(manifest: Manifest, servers: Iterable[str]) -> list[ModelFacts]:
    """The models under load of those of `servers` that the manifest knows."""
    return [one for name in servers if name in manifest.servers for one in manifest.servers[name].models]


def _of_each_model(
    tables: RunTables, executed: pa.Table | None, servers: Sequence[str], where: str
) -> list[Identity]:
    """The same of a server of several: each model is held to the requests that ask it, and to those of the ensembles
    under load there that pass it."""
    known = _models(tables.manifest, servers)
    passes = {name: Counter([name]) for name in sorted(tables.requests.request_kind.counts())}
    passes |= {one.model: Counter([one.model, *one.steps]) for one in known if one.model is not None}
    of_model = {name: tables.requests.of_model(name) for name in passes}
    stated = []
    for name in dict.fromkeys([*passes, *(step for own in passes.values() for step in own)]):
        passing = [_Passing(of_model[asked], own[name]) for asked, own in passes.items() if own[name]]
        batches, samples = rows_of_model(tables.batches, name), rows_of_model(executed, name)
        if name in passes and samples is not None:
            stated.append(_success(samples, passing, f" of {name}{where}"))
        if batches is not None:
            stated += _batch_identities(batches, samples, passing, f" of {name}{where}")
        if name in passes and any(rows_of_model(tables.batches, one) is not None for one in passes[name]):
            own = replace(tables, requests=of_model[name])
            n_cached = unbatched_requests(executed, [one for one in known if one.model == name][:1])
            stated += _joined(own, servers if where else None, name, n_cached, f" of {name}{where}")
    return stated


def _success(samples: pa.Table, passing: Sequence[_Passing], where: str) -> Identity:
    """`samples` of the model that they pass."""
    return _identity("triton success", _total(samples, "request_count"), *_bounds(passing), where)


def _joined(
    tables: RunTables, servers: Sequence[str] | None, model: str | None, n_cached: int, where: str
) -> list[Identity]:
    """Of `tables.requests`, which are for `servers` and ask `model`, None each: any. None without `joined`. `n_cached`:
    so many have no batch at most, as caches answered them."""
    if tables.joined is None:
        return []
    n_exact = sum(
        one.n_ok_by_level.get("exact", 0)
        for counts in tables.joined.values()
        for one in counts
        if (servers is None or one.target in servers) and model in (None, one.model)
    )
    n_ok = int(tables.requests.is_ok.sum())
    return [_identity("joined", n_exact, n_ok - n_cached, n_ok, where)]


def _rows_of(table: pa.Table | None, column: str, name: str) -> pa.Table | None:
    return None if table is None else table.filter(pc.equal(table.column(column).cast(pa.string()), name))


def _known_of(table: pa.Table | None, server: str) -> pa.Table | None:
    """The rows of a server; None where it has none, as it has no such record."""
    own = _rows_of(table, "server", server)
    return own if own is not None and own.num_rows else None


def _batch_identities(
    batches: pa.Table, samples: pa.Table | None, passing: Sequence[_Passing], of_what: str = ""
) -> list[Identity]:
    """`batches` and `samples` of one model, which every request of `passing` passes."""
    stated = []
    if _total(batches, "n_foreign") == 0:
        n_times = max(one.n_times for one in passing)
        often = f", {n_times} times" if n_times > 1 else ""
        rows = _total(batches, "rows")
        # at most: which were in the cache is not known
        sizes = [np.repeat(one.requests.rows[one.requests.is_ok], one.n_times) for one in passing]
        largest = np.sort(np.concatenate(sizes))[::-1]
        cached_rows = int(largest[: cache_hits(samples)].sum())
        least, most = _bounds(passing, is_rows=True)
        stated.append(_identity("batch rows", rows, least - cached_rows, most, of_what, often=often))
    if samples is not None:
        n_executions = _total(samples, "execution_count")
        # where all of a batch failed, a backend tells of its members alone, and Triton counts no execution
        n_batches = int((batches.column("rows").to_numpy() > 0).sum())
        # what was given up may be executed after the last sample
        n_late = sum(one.n_times * int(one.requests.outcome.is_any_of(MAY_HAVE_RUN).sum()) for one in passing)
        stated.append(_identity("executions", n_batches, n_executions, n_executions + n_late, of_what))
    return stated


_OF_COSTS = (
    (
        "batch costs",
        ("batches",),
        "SELECT (SELECT count(*) FILTER (source <> 'trace') FROM batch_costs), (SELECT count(*) FROM batches)",
    ),
    (
        "ranges",
        ("batches", "nvtx"),
        """
SELECT count(*) FILTER (ranges.clock_ns BETWEEN batches.start_ns AND batches.end_ns), count(*)
FROM nvtx AS ranges JOIN batches USING (server, instance, instance_device, batch_id)
WHERE batches.recorded_by = 'model' AND ranges.clock_ns IS NOT NULL HAVING count(*) > 0
""",
    ),
    (
        "kernel time",
        ("kernels",),
        """
SELECT (SELECT coalesce(sum(kernel_ns) FILTER (tie = 'range'), 0) FROM batch_costs), coalesce(sum(end_ns - start_ns), 0)
FROM kernels WHERE batch_id IS NOT NULL AND end_ns >= start_ns AND {whole}
""",
    ),
)
"""Identities of `batch_costs`: kind, tables that they take, and the query of both counts; of no row there is none."""


def cost_identities(store: RunStore, memory_limit_bytes: int = MEMORY_LIMIT_BYTES) -> list[Identity]:
    """The identities between `batch_costs` and the tables that it is made of; none without it."""
    if not store.has("batch_costs"):
        return []
    stated = []
    there = [table for table in ("batch_costs", "batches", "kernels", "nvtx") if store.has(table)]
    in_windows = store.has(WINDOWS)
    with connect(store, there, memory_limit_bytes) as connection:
        starts_ns = [span.start_ns for span in measure_spans(store.manifest)]
        of_windows = " that a window holds" if in_windows else ""
        is_whole = whole(connection, starts_ns, in_windows)
        for kind, needed, query in _OF_COSTS:
            if set(needed).issubset(there):
                for found, expected in connection.execute(query.format(whole=is_whole)).fetchall():
                    stated.append(_identity(kind, int(found), int(expected), of_windows=of_windows))
    return stated


def _total(table: Any, column: str) -> int:
    return int(table.column(column).to_numpy().sum())
