"""Counts that must agree: the client's, the models' own record of batches, and Triton's statistics.

A request that the client gave up (timeout, cancelled, transport error), refused the reply of (bad reply) or lost the
record of may still have been served. Such requests bound by how much the server's counts may exceed the client's.

Of several servers each is held to the requests that were for it, of several models under load each to those that ask
it: what one counts too much makes up for no other's loss. One that records no batches, or that nobody sampled, has no
identity of these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pyarrow as pa

from squall.analysis.recorded import TABLE as WINDOWS
from squall.analysis.recorded import whole
from squall.analysis.requests.locust_figures import sum_slack_ns
from squall.analysis.requests.locust_statistics import is_aggregate, unreported
from squall.analysis.requests.named_rows import RowsByName
from squall.analysis.requests.requests import Requests, model_names, server_names, together
from squall.analysis.requests.user_watch import count_in_all
from squall.analysis.requests.users import is_locust_load
from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.query import MEMORY_LIMIT_BYTES, connect, in_memory, rows
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import measure_spans
from squall.analysis.verdict.measured import RunTables
from squall.scenarios.records import Frozen
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
Row = Mapping[str, Any]


class Identity(Frozen):
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


def identities(tables: RunTables, manifest: Manifest, executed: pa.Table | None = None) -> list[Identity]:
    """The identities that the tables there are can state, over the whole run, all phases.

    `tables.batches`: of the models that execute the load; `executed`: Triton's samples of these. Of Locust's users
    those of the requests that ask a model: others may have been answered by a model too, and so may what a user that
    was stopped within a task had sent.
    """
    requests = tables.requests
    what = "planned arrivals" if requests.is_open else "requests that the workers issued"
    stated = [_identity("rows", len(requests), manifest.plan.n_arrivals, what=what)]
    if not is_locust_load(manifest):
        return stated + _of_servers(tables, requests, executed)
    is_plain = requests.request_kind.is_any_of([""])
    n_cut = count_in_all(tables.locust_samples, "n_cut")
    n_rows = n_cut * int(requests.rows.max(initial=0))
    slack = {"triton": int(is_plain.sum()) + n_cut, "batch": n_rows}
    return stated + [
        replace(one, most=one.most + slack.get(one.name.split()[0], 0))
        for one in _of_servers(tables, requests.take(together(~is_plain)), executed)
    ]


def locust_identities(manifest: Manifest, rows: RowsByName | None) -> list[Identity]:
    """Locust's statistics against the rows, over all names; none where they are not whole, or of another load."""
    facts = manifest.locust
    if facts is None or rows is None or unreported(facts):
        return []
    entries = [one for one in facts.entries if not is_aggregate(one)]
    n, n_failed, total_ns = 0, 0, 0
    if rows.total is not None:
        n, n_failed, total_ns = (
            rows.total.figures.n_requests,
            rows.total.figures.n_failures,
            rows.total.total_ns,
        )
    said_ns = round(sum(one.total_ms for one in entries) * NS_PER_MS)
    slack_ns = sum_slack_ns(n, total_ns)
    n_said, n_failed_said = (sum(getattr(one, of) for one in entries) for of in ("n_requests", "n_failures"))
    return [
        _identity("Locust's requests", n, n_said),
        _identity("Locust's failures", n_failed, n_failed_said),
        _identity("Locust's response times", total_ns, said_ns - slack_ns, said_ns + slack_ns),
    ]


_PASSED = f"""
-- of each server (null: of all) and each model the requests that pass it, each as often as it does: those that ended
-- ok; those that may have run all the same, as an error that a model gives as the answer of one request counts as a
-- success in Triton, and the request was in a batch; and the rows of both
WITH counted AS (
    SELECT target, request_kind, outcome, rows, count(*) AS n,
        outcome IN {(*MAY_HAVE_RUN, "server_error")} AS may_have_run
    FROM requests GROUP BY ALL)
SELECT server, model, max(n_times) AS n_times,
    coalesce(sum(n * n_times) FILTER (outcome = 'ok'), 0) AS n_ok,
    coalesce(sum(n * n_times) FILTER (may_have_run), 0) AS n_more,
    coalesce(sum(n * n_times * rows) FILTER (outcome = 'ok'), 0) AS rows_ok,
    coalesce(sum(n * n_times * rows) FILTER (may_have_run), 0) AS rows_more,
    -- what was given up may be executed after the last sample
    coalesce(sum(n * n_times) FILTER (may_have_run AND outcome <> 'server_error'), 0) AS n_late,
    -- the sizes of those that ended ok, the largest first, and how often each is
    coalesce(list([rows, n * n_times] ORDER BY rows DESC) FILTER (outcome = 'ok'), []) AS sizes
FROM passes LEFT JOIN counted ON coalesce(target = server, true) AND coalesce(request_kind = asked, true)
GROUP BY server, model
"""
_RECORDED = """
SELECT server, model, sum(rows) AS rows, sum(n_foreign) AS n_foreign,
    -- where all of a batch failed, a backend tells of its members alone, and Triton counts no execution
    count(*) FILTER (rows > 0) AS n_executions
FROM batches GROUP BY CUBE (server, model) HAVING count(*) > 0
"""
_SAMPLED = """
SELECT server, model, sum(request_count) AS n, sum(execution_count) AS n_executions,
    coalesce(sum(cache_hit_count), 0) AS n_hits
FROM triton_samples GROUP BY CUBE (server, model) HAVING count(*) > 0
"""
_ENDED_OK = """
SELECT target AS server, request_kind AS model, count(*) AS n
FROM requests WHERE outcome = 'ok' GROUP BY CUBE (target, request_kind)
"""
_PASSES = pa.schema(
    {"server": pa.string(), "asked": pa.string(), "model": pa.string(), "n_times": pa.int64()}
)


_UNRECORDED = {"rows": 0, "n_foreign": 0, "n_executions": 0}
"""Of a step where others of its ensemble have a record, and of the one model of a run that records batches."""
_UNSAMPLED = {"n": 0, "n_executions": 0, "n_hits": 0}


def _of_servers(tables: RunTables, requests: Requests, executed: pa.Table | None) -> list[Identity]:
    """Of several servers each is held to the requests for it, of several models under load each to those that ask it
    and to those of the ensembles under load there that pass it. None in place of a server or model stands for all."""
    servers: Sequence[str | None] = server_names(requests, tables.manifest)
    servers = servers if len(servers) > 1 else [None]
    is_several = len(model_names(requests, tables.manifest)) > 1
    passes = {server: _passes(tables.manifest, requests, server, is_several) for server in servers}
    passing = [
        {"server": server, "asked": asked if is_several else None, "model": model, "n_times": n}
        for server, of_server in passes.items()
        for asked, models in of_server.items()
        for model, n in models.items()
    ]
    own = requests.table("target", "request_kind", "outcome", "rows")
    with in_memory(requests=own, batches=tables.batches, triton_samples=executed) as connection:
        connection.register("passes", pa.Table.from_pylist(passing, schema=_PASSES))
        passed, recorded, sampled, ended = (
            {(one["server"], one["model"]): one for one in rows(connection, sql)}
            for sql in (_PASSED, _RECORDED, _SAMPLED, _ENDED_OK)
        )
    stated = []
    is_alone = (
        servers == [None] and not is_several
    )  # then a table without a row of the model says that it has none
    for server, of_server in passes.items():
        every = dict.fromkeys([*of_server, *(step for models in of_server.values() for step in models)])
        has_steps = any((server, step) in recorded for step in every if step not in of_server)
        for model in every:
            is_step = model not in of_server
            where = (f" of {model}" if is_several or is_step else "") + (f" at {server}" if server else "")
            models, key = of_server.get(model), (server, model)
            is_told = (
                has_steps and not is_several
                if is_step
                else is_alone and not has_steps and tables.batches is not None
            )
            batches = recorded.get(key, _UNRECORDED if is_told else None)
            n_hits = {
                step: sampled.get((server, step), {}).get("n_hits", 0) for step in (*(models or ()), model)
            }
            is_sampled = is_alone and not is_step and executed is not None
            one, samples = passed[key], sampled.get(key, _UNSAMPLED if is_sampled else None)
            if models and samples:
                stated.append(
                    _identity("triton success", samples["n"], one["n_ok"], one["n_ok"] + one["n_more"], where)
                )
            if batches:
                stated += _of_batches(batches, samples, one, n_hits[model], where)
            if (
                models
                and tables.joined is not None
                and (is_told or any((server, step) in recorded for step in models))
            ):
                asked = model if is_several else None
                n_ok = ended.get((server, asked), {}).get("n", 0)
                n_exact = sum(
                    each.n_ok_by_level.get("exact", 0)
                    for counts in tables.joined.values()
                    for each in counts
                    if server in (None, each.target) and asked in (None, each.model)
                )
                # a cache answers a request to the model, or to an ensemble's every step
                of_steps = [n_hits[step] // n for step, n in models.items() if step != model]
                n_cached = n_hits[model] + min(of_steps, default=0)
                stated.append(_identity("joined", n_exact, n_ok - n_cached, n_ok, where))
    return stated


def _passes(
    manifest: Manifest, requests: Requests, server: str | None, is_several: bool
) -> dict[str | None, Counter[str | None]]:
    """By model that requests to a server may ask the models that one passes, and how often."""
    own = requests if server is None else requests.at_server(server)
    kinds = sorted(own.request_kind.counts()) if is_several else []
    known = [
        one for name, facts in manifest.servers.items() if server in (None, name) for one in facts.models
    ]
    found: dict[str | None, Counter[str | None]] = {kind: Counter([kind]) for kind in kinds}
    found |= {one.model: Counter([one.model, *one.steps]) for one in known}
    return found or ({} if is_several else {None: Counter([None])})


def _of_batches(
    batches: Row, samples: Row | None, passed: Row, n_hits: int, where: str
) -> Iterator[Identity]:
    if batches["n_foreign"] == 0:
        often = f", {passed['n_times']} times" if passed["n_times"] > 1 else ""
        cached_rows = 0  # at most: which were in the cache is not known
        for size, n in passed["sizes"]:
            cached_rows += size * min(n, n_hits)
            n_hits -= min(n, n_hits)
        least, most = passed["rows_ok"] - cached_rows, passed["rows_ok"] + passed["rows_more"]
        yield _identity("batch rows", batches["rows"], least, most, where, often=often)
    if samples:
        n = samples["n_executions"]
        yield _identity("executions", batches["n_executions"], n, n + passed["n_late"], where)


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
