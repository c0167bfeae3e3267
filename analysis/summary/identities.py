"""Counts that must agree: the client's, the models' own record of batches, and Triton's statistics.

A request that the client gave up (timeout, cancelled, transport error), refused the reply of (bad reply) or lost the
record of may still have been served. Such requests bound by how much the server's counts may exceed the client's.

Of several servers each is held to the requests that were for it: what one counts too much makes up for no other's loss.
One that records no batches, or that nobody sampled, has no identity of these.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from squall.analysis.recorded import TABLE as WINDOWS
from squall.analysis.recorded import WHOLE
from squall.analysis.requests.requests import Requests, server_names
from squall.analysis.storage.query import MEMORY_LIMIT_BYTES, connect
from squall.analysis.storage.store import RunStore
from squall.analysis.tables.manifest import Manifest
from squall.analysis.verdict.figures import RunTables, cache_hits

MAY_HAVE_RUN = ("timeout", "cancelled", "transport_error", "bad_reply", "lost")
"""Outcomes after which the server may have served the request all the same."""


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


def identities(tables: RunTables, manifest: Manifest, executed: pa.Table | None = None) -> list[Identity]:
    """The identities that the tables there are can state, over the whole run, all phases.

    `tables.batches`: of the models that execute the load; `executed`: Triton's samples of these.
    """
    requests = tables.requests
    n_planned = manifest.plan.n_arrivals
    what = "planned arrivals" if requests.is_open else "requests that the workers issued"
    rows = Identity("rows", f"rows of `requests` = {what}", len(requests), n_planned, n_planned)
    servers = server_names(requests, manifest)
    n_exact: Counter[str] = Counter()
    for counts in (tables.joined or {}).values():
        n_exact.update(counts.n_ok_exact)
    if len(servers) < 2:
        return [rows, *_of_server(tables, manifest, executed, n_exact.total())]
    stated = [rows]
    for server in servers:
        own = replace(
            tables,
            requests=requests.at_server(server),
            batches=_known_of(tables.batches, server),
            triton_samples=_known_of(tables.triton_samples, server),
        )
        stated += _of_server(own, manifest, _known_of(executed, server), n_exact[server], f" at {server}")
    return stated


def _of_server(
    tables: RunTables, manifest: Manifest, executed: pa.Table | None, n_exact: int, where: str = ""
) -> list[Identity]:
    """The identities of one server, whose `tables` these are; `n_exact` of its ok requests are joined by id."""
    requests, stated = tables.requests, []
    n_ok = int(requests.is_ok.sum())
    n_maybe = int(requests.outcome.is_any_of(MAY_HAVE_RUN).sum())
    if tables.triton_samples is not None:
        n_success = _total(tables.triton_samples, "request_count")
        meaning = f"requests that Triton counts as succeeded{where} = requests that ended ok at the client"
        # an error that a model gives as the answer of one request counts as a success in Triton
        n_error = int(requests.outcome.is_any_of(["server_error"]).sum())
        most = n_ok + n_maybe + n_error
        stated.append(Identity(f"triton success{where}", meaning, n_success, n_ok, most))
    if tables.batches is not None:
        models = set(tables.batches.column("model").cast(pa.string()).unique().to_pylist())
        passed: Counter[str] = Counter()
        for facts in manifest.servers.values():  # of one ensemble, or of others
            passed |= Counter(facts.steps)
        steps = sorted(passed) if models & passed.keys() else []  # else the ensemble stands for them
        for step in steps:
            batches, samples = _rows_of(tables.batches, "model", step), _rows_of(executed, "model", step)
            assert batches is not None
            stated += _batch_identities(batches, samples, requests, f" of {step}{where}", passed[step])
        if not steps:
            stated += _batch_identities(tables.batches, tables.triton_samples, requests, where)
    if tables.joined is not None and tables.batches is not None:
        meaning = (
            f"requests that ended ok{where} and are joined to their batch by id = requests that ended ok"
        )
        n_cached = cache_hits(tables.triton_samples)  # answered without a batch
        stated.append(Identity(f"joined{where}", meaning, n_exact, n_ok - n_cached, n_ok))
    return stated


def _rows_of(table: pa.Table | None, column: str, name: str) -> pa.Table | None:
    return None if table is None else table.filter(pc.equal(table.column(column).cast(pa.string()), name))


def _known_of(table: pa.Table | None, server: str) -> pa.Table | None:
    """The rows of a server; None where it has none, as it has no such record."""
    own = _rows_of(table, "server", server)
    return own if own is not None and own.num_rows else None


def _batch_identities(
    batches: pa.Table, samples: pa.Table | None, requests: Requests, of_what: str = "", n_passes: int = 1
) -> list[Identity]:
    """`batches` and `samples` of one model, which every request passes `n_passes` times."""
    is_maybe = requests.outcome.is_any_of(MAY_HAVE_RUN)
    ok_rows, maybe_rows = int(requests.rows[requests.is_ok].sum()), int(requests.rows[is_maybe].sum())
    stated = []
    if _total(batches, "n_foreign") == 0:
        often = f", {n_passes} times" if n_passes > 1 else ""
        meaning = f"rows in all batches{of_what} = rows of the requests that ended ok{often}"
        rows = _total(batches, "rows")
        largest = np.sort(requests.rows[requests.is_ok])[::-1]
        # at most: which were in the cache is not known
        cached_rows = int(np.repeat(largest, n_passes)[: cache_hits(samples)].sum())
        # a model's error may be that of a request which was in a batch
        error_rows = int(requests.rows[requests.outcome.is_any_of(["server_error"])].sum())
        most = n_passes * (ok_rows + maybe_rows + error_rows)
        stated.append(Identity(f"batch rows{of_what}", meaning, rows, n_passes * ok_rows - cached_rows, most))
    if samples is not None:
        n_executions = _total(samples, "execution_count")
        meaning = f"batches{of_what} that were recorded = executions that Triton counts"
        # where all of a batch failed, a backend tells of its members alone, and Triton counts no execution
        n_batches = int((batches.column("rows").to_numpy() > 0).sum())
        stated.append(Identity(f"executions{of_what}", meaning, n_batches, n_executions, n_executions))
    return stated


_KERNELS = "SELECT coalesce(sum(end_ns - start_ns), 0) FROM kernels WHERE batch_id IS NOT NULL AND end_ns >= start_ns"
_COSTS = """
SELECT count(*) FILTER (source <> 'trace'), coalesce(sum(kernel_ns) FILTER (tie = 'range'), 0) FROM batch_costs
"""


def cost_identities(store: RunStore, memory_limit_bytes: int = MEMORY_LIMIT_BYTES) -> list[Identity]:
    """The identities between `batch_costs` and the tables that it is made of; none without it."""
    if not store.has("batch_costs"):
        return []
    there = [table for table in ("batches", "kernels") if store.has(table)]
    stated = []
    with connect(store, ["batch_costs", *there], memory_limit_bytes) as connection:
        ((n_recorded, kernel_ns),) = connection.execute(_COSTS).fetchall()
        if "batches" in there:
            ((n_batches,),) = connection.execute("SELECT count(*) FROM batches").fetchall()
            meaning = "rows of `batch_costs` by a record = batches that were recorded"
            stated.append(Identity("batch costs", meaning, n_recorded, n_batches, n_batches))
        if "kernels" in there:
            in_windows = store.has(WINDOWS)
            query = f"{_KERNELS} AND {WHOLE}" if in_windows else _KERNELS
            ((all_ns,),) = connection.execute(query).fetchall()
            of_windows = " that a window holds" if in_windows else ""
            meaning = (
                f"ns of kernels in `batch_costs` = ns of the kernels that bear a batch{of_windows}, each counted "
                "once"
            )
            stated.append(Identity("kernel time", meaning, int(kernel_ns), int(all_ns), int(all_ns)))
    return stated


def _total(table: Any, column: str) -> int:
    return int(table.column(column).to_numpy().sum())
