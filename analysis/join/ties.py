"""Which batch each record of the kernel library belongs to: by the instance that it is of, and by time.

    process 11, stream 7    ▪▪▪  ▪▪▪      ▪▪▪  ▪▪▪         all of them lie in batches of a, some in those of b
    batches of a           [───][────]   [────][───]
    batches of b         [────]     [────]       [────]

A *lane* is what works for one instance alone: a process (an instance of the Python backend has one of its own), else a
stream of it (an instance inside the server has streams of its own: ONNX Runtime, TensorRT and PyTorch backends), or a
thread that calls CUDA. A lane belongs to the instance whose batches hold nearly all of what it did, if no other
instance's do (`squall.analysis.join.holders`).

An operation of an owned lane belongs to the batch of that instance that holds it whole. Batches of one instance may
overlap (TensorRT begins one while another computes): what several hold belongs to the one that the events of its stream
tell (`squall.analysis.join.execution_matching`), else it is ambiguous, and belongs to none.

Everything is read part by part: what is held does not grow with the records, but for the events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from squall.analysis.join.execution_matching import ALWAYS, NEVER, Stretch, matched_rows
from squall.analysis.join.holders import Stretches, holder_of
from squall.analysis.storage.collected import KernelTies
from squall.analysis.storage.nsys import DEVICE_TABLES, TIED_TABLES
from squall.analysis.storage.parquet import read_parquet, rows_of
from squall.analysis.storage.part import disk_errors
from squall.analysis.storage.query import MEMORY_LIMIT_BYTES, attach, connect, rows
from squall.analysis.storage.schema import NO_DEVICE
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import RunPhase, measure_spans

if TYPE_CHECKING:
    import duckdb

_READ = ("batches", "recordings", "cuda_events")
_TIE = ("instance", "instance_device", "batch_id")
_NOTED_SHARE = 0.01
_AMBIGUOUS = " lie in several batches of their instance, which overlap, and are tied to none"
_HOW_TO_TELL = "; no CUDA event was recorded: add events to profile.kernel_kinds to tell them apart"

_SPANS = """
-- Measured stretch of a server in which all of its operations were recorded.
CREATE TEMP TABLE spans AS
SELECT server, greatest(w.start_ns, p.start_ns) AS start_ns, least(w.end_ns, p.end_ns) AS end_ns,
    row_number() OVER (ORDER BY server, w.start_ns, p.start_ns) AS span
FROM recordings w JOIN (SELECT unnest($starts::BIGINT[]) AS start_ns, unnest($ends::BIGINT[]) AS end_ns) p
    ON w.start_ns < p.end_ns AND p.start_ns < w.end_ns
WHERE w.end_ns > w.start_ns
"""
_BATCHES = """
-- Batch as interval `number`, from 0, of its instance, the `owner`, in order of start: what its backend reports, which
-- has the copies of inputs and outputs too, else what the model recorded. `reach_ns`: the latest end so far, and
-- `reaching` the batch that has it; `first_end_ns`: the first end of those that begin later.
CREATE TEMP TABLE held AS
SELECT *, max(CASE WHEN end_ns = reach_ns THEN number END) OVER (PARTITION BY owner ORDER BY number) AS reaching,
    coalesce(start_ns < lag(reach_ns) OVER (PARTITION BY owner ORDER BY number), false) AS is_overlapping,
    min(end_ns) OVER (PARTITION BY owner ORDER BY number ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING)
        AS first_end_ns
FROM (
    SELECT *, row_number() OVER by_start - 1 AS number, max(end_ns) OVER by_start AS reach_ns
    FROM (
        SELECT server, instance, instance_device, batch_id, coalesce(exec_start_ns, b.start_ns) AS start_ns,
            greatest(coalesce(exec_start_ns, b.start_ns), coalesce(exec_end_ns, b.end_ns)) AS end_ns,
            dense_rank() OVER (ORDER BY server, model, instance, instance_device) AS owner
        FROM batches b SEMI JOIN recordings USING (server))
    WINDOW by_start AS (PARTITION BY owner ORDER BY start_ns, end_ns, batch_id ROWS UNBOUNDED PRECEDING));

-- Of the batches of an instance that begin at one instant the last; a reach and the first batch with it; an end, and
-- how many have ended until then.
CREATE TEMP TABLE starts AS
FROM held QUALIFY lead(start_ns) OVER (PARTITION BY owner ORDER BY number) IS DISTINCT FROM start_ns;
CREATE TEMP TABLE reaches AS SELECT owner, reach_ns, min(number) AS first FROM held GROUP BY ALL;
CREATE TEMP TABLE ends AS
SELECT DISTINCT owner, end_ns, count(*) OVER (PARTITION BY owner ORDER BY end_ns) AS n_over FROM held;

-- Instance, whether its batches overlap, and how many of them began while operations were recorded.
CREATE TEMP TABLE instances AS
SELECT h.owner, h.server, bool_or(h.is_overlapping) AS is_overlapping,
    count(*) FILTER (h.start_ns <= s.end_ns) AS n_begun
FROM held h ASOF LEFT JOIN spans s ON s.server = h.server AND h.start_ns >= s.start_ns GROUP BY h.owner, h.server;

-- Lane and instance: how many records the lane has, and how many of them batches of the instance hold.
CREATE TEMP TABLE tally(server VARCHAR, process BIGINT, context BIGINT, stream BIGINT, thread BIGINT, owner BIGINT,
    n BIGINT, n_held BIGINT);
-- Process of a server and span: the correlation ids of its operations.
CREATE TEMP TABLE seen(server VARCHAR, process BIGINT, span BIGINT, first_id BIGINT, last_id BIGINT)
"""
_ROWS = """(
SELECT file_row_number AS row, server, process, {lane}, start_ns, end_ns, correlation_id
FROM {source} WHERE recorded_by = 'library')"""
"""Records of one part of a table with their lane: of operations a stream (context and stream), of calls a thread."""
_OF_STREAM = "context, stream, -1::BIGINT AS thread"
_OF_THREAD = "-1::BIGINT AS context, -1::BIGINT AS stream, thread"
_TALLY = """
INSERT INTO tally
SELECT r.server, process, context, stream, thread, i.owner, count(*), count(*) FILTER (r.end_ns <= b.reach_ns)
FROM {rows} r JOIN instances i USING (server)
ASOF LEFT JOIN starts b ON b.owner = i.owner AND r.start_ns >= b.start_ns
GROUP BY ALL
"""
_SEEN = """
INSERT INTO seen
SELECT r.server, process, span, min(correlation_id), max(correlation_id)
FROM {rows} r ASOF JOIN spans s ON s.server = r.server AND r.start_ns >= s.start_ns GROUP BY ALL
"""
_LANES = """
WITH lanes AS (
    SELECT server, process, context, stream, thread, owner, sum(n) AS n, sum(n_held) AS n_held FROM tally GROUP BY ALL
    -- a process has its streams' operations
    UNION ALL SELECT server, process, NULL, NULL, NULL, owner, sum(n), sum(n_held) FROM tally
    WHERE thread = -1 GROUP BY ALL)
SELECT server, process, context, stream, thread, any_value(n)::BIGINT AS n,
    list(n_held::BIGINT ORDER BY owner) AS held, list(owner ORDER BY owner) AS owners,
    list(n_begun ORDER BY owner) AS n_begun, list(is_overlapping ORDER BY owner) AS is_overlapping
FROM lanes JOIN instances USING (server, owner)
GROUP BY server, process, context, stream, thread ORDER BY context NULLS FIRST
"""
"""Processes, whose other columns are null, then all other lanes."""
_OWNED = """(
SELECT r.*, coalesce(l.owner, p.owner) AS owner, l.lane FROM {rows} r
LEFT JOIN owners l USING (server, process, context, stream, thread)
LEFT JOIN (FROM owners WHERE context IS NULL) p ON p.server = r.server AND p.process = r.process)"""

_MARKS = """
-- Of a process the correlation ids that belong to a span: a record between the last operation of one and the first of
-- the next is of neither.
CREATE TEMP TABLE edges AS
SELECT server, process, span, last_id, greatest(first_id, coalesce(lag(last_id) OVER by_span + 1, first_id)) AS first_id
FROM (
    SELECT server, process, span, min(first_id) AS first_id,
        max(max(last_id)) OVER (PARTITION BY server, process ORDER BY span) AS last_id
    FROM seen GROUP BY server, process, span)
WINDOW by_span AS (PARTITION BY server, process ORDER BY span);

-- Event recorded on a lane of an instance whose batches overlap, and before the first of a span a row without one; a
-- segment of the lane begins behind each. An event has no instant: its place is that of the call, and calls of a
-- process are numbered in their order.
CREATE TEMP TABLE marks AS
WITH recorded AS (
    SELECT l.lane, l.owner, g.span, g.first_id, e.correlation_id, e.event
    FROM cuda_events e JOIN owners l USING (server, process, context, stream)
    ASOF JOIN edges g ON g.server = e.server AND g.process = e.process AND e.correlation_id <= g.last_id
    WHERE l.lane IS NOT NULL AND e.correlation_id >= g.first_id)
SELECT lane, owner, span, correlation_id, event FROM recorded
UNION ALL SELECT DISTINCT lane, owner, span, first_id - 1, -1 FROM recorded;

CREATE TEMP TABLE segments(lane BIGINT, correlation_id BIGINT, start_ns BIGINT, end_ns BIGINT);
-- Segment whose batch is told, by its instance's number.
CREATE TEMP TABLE told(lane BIGINT, correlation_id BIGINT, number BIGINT)
"""
_SEGMENTS = """
INSERT INTO segments
SELECT m.lane, m.correlation_id, min(r.start_ns), max(r.end_ns)
FROM {owned} r ASOF JOIN marks m ON m.lane = r.lane AND r.correlation_id > m.correlation_id GROUP BY ALL
"""
_OF_LANE = f"""
SELECT span, correlation_id, event, s.start_ns AS span_start_ns, s.end_ns AS span_end_ns,
    coalesce(min(g.start_ns), {NEVER}) AS start_ns, coalesce(max(g.end_ns), {ALWAYS}) AS end_ns
FROM marks m JOIN spans s USING (span) LEFT JOIN segments g USING (lane, correlation_id)
WHERE lane = ? GROUP BY ALL ORDER BY span, correlation_id
"""
_TIED = """
WITH around AS (
    -- Record that some batch of its instance holds: the last that had begun, else the one that reaches farthest.
    SELECT r.row, r.owner, r.start_ns, r.end_ns,
        CASE WHEN b.end_ns >= r.end_ns THEN b.number ELSE b.reaching END AS number,
        -- Several hold it: more have begun than have ended. Where one that begins later is over before it ends, that
        -- count says too little: then any earlier one that may hold it counts.
        CASE WHEN coalesce(b.first_end_ns < r.end_ns, false) THEN f.first < b.number
            ELSE b.number - coalesce(e.n_over, 0) > 0 END AS is_shared, t.number AS told
    FROM {owned} r
    ASOF JOIN starts b ON b.owner = r.owner AND r.start_ns >= b.start_ns
    ASOF JOIN reaches f ON f.owner = r.owner AND r.end_ns <= f.reach_ns
    ASOF LEFT JOIN ends e ON e.owner = r.owner AND r.end_ns > e.end_ns
    ASOF LEFT JOIN told t ON t.lane = r.lane AND r.correlation_id > t.correlation_id
    WHERE r.end_ns <= b.reach_ns),
tied AS (
    SELECT a.row, h.batch_id, h.instance, h.instance_device FROM around a LEFT JOIN held h ON h.owner = a.owner
        AND h.number = CASE WHEN is_shared THEN told ELSE a.number END
        AND h.start_ns <= a.start_ns AND h.end_ns >= a.end_ns)
SELECT CASE WHEN recorded_by = 'library' THEN coalesce(t.instance, '') ELSE o.instance END AS instance,
    CASE WHEN recorded_by = 'library' THEN coalesce(t.instance_device, {no_device}) ELSE o.instance_device END
        AS instance_device,
    CASE WHEN recorded_by = 'library' THEN t.batch_id ELSE o.batch_id END AS batch_id,
    recorded_by = 'library' AS is_ours, t.row IS NOT NULL AND t.batch_id IS NULL AS is_ambiguous
FROM {source} o LEFT JOIN tied t ON t.row = o.file_row_number ORDER BY o.file_row_number
"""


def tie_kernels(store: RunStore, memory_limit_bytes: int = MEMORY_LIMIT_BYTES) -> list[str]:
    """Fills the columns `_TIE` of what the kernel library recorded, in an open run whose tables are flushed; says in
    the manifest how many rows are tied, and returns notes.

    Raises StoreError (disk), and AnalysisError for tables that squall did not write: what was not rewritten by then
    stays untied.
    """
    facts = store.manifest.kernels
    parts = {  # of an open run they lie on its disk
        table: [part for part in store.parts(table) if isinstance(part, Path)]
        for table in TIED_TABLES if store.has(table)
    }  # fmt: skip
    if facts is None or not parts:
        return []
    sources = {
        table: [f"(SELECT *, file_row_number FROM {read_parquet([part])})" for part in found]
        for table, found in parts.items()
    }
    ties: dict[str, KernelTies] = {}
    losses = tuple(one for one in facts.losses if _AMBIGUOUS not in one)  # of a tie of before
    store.amend(replace(store.manifest, kernels=replace(facts, ties={}, losses=losses)))
    with connect(store, [], memory_limit_bytes) as connection:
        attach(connection, store, _READ)
        prepare_ties(connection, measure_spans(store.manifest), sources)
        for table, paths in parts.items():
            counts: Counter[str] = Counter()
            with store.replacing(table) as new:
                for number, (path, source) in enumerate(zip(paths, sources[table], strict=True)):
                    found = tied_rows(connection, table, source)
                    counts += _counts(found)
                    with disk_errors(f"cannot read {table} of {store.where}"):
                        data = rows_of(path)
                    for name in _TIE:
                        data = data.set_column(data.schema.get_field_index(name), name, found[name])
                    new.write(number, data)
            ties[table] = KernelTies(**{name: counts[name] for name in ("n", "n_tied", "n_ambiguous")})
    n, n_ambiguous = (sum(getattr(one, name) for one in ties.values()) for name in ("n", "n_ambiguous"))
    notes = []
    if n_ambiguous > _NOTED_SHARE * n:
        notes.append(
            f"kernels: {n_ambiguous} of {n} records{_AMBIGUOUS}{'' if store.has('cuda_events') else _HOW_TO_TELL}"
        )
    facts = replace(facts, ties=ties, losses=(*losses, *notes))
    store.amend(replace(store.manifest, kernels=facts))
    return notes


def _counts(found: pa.Table) -> Counter[str]:
    own = found.filter(found["is_ours"])
    n_ambiguous = pc.sum(own["is_ambiguous"]).as_py() or 0
    return Counter(n=len(own), n_tied=len(own) - own["batch_id"].null_count, n_ambiguous=n_ambiguous)


def prepare_ties(
    connection: duckdb.DuckDBPyConnection, measured: Sequence[RunPhase], sources: Mapping[str, Sequence[str]]
) -> None:
    """Makes the tables that `tied_rows` reads, of views `batches`, `recordings` and `cuda_events`.

    `sources`: of each table SQL for its parts, with `file_row_number` as the place of a row; `measured`: the phases.
    """
    edges = {"starts": [one.start_ns for one in measured], "ends": [one.end_ns for one in measured]}
    connection.execute(_SPANS, edges)
    connection.execute(_BATCHES)
    ((has_events,),) = connection.execute("SELECT count(*) > 0 FROM cuda_events").fetchall()
    operations = [_rows("kernels", source) for table in DEVICE_TABLES for source in sources.get(table, ())]
    for source in [*operations, *(_rows("cuda_api", one) for one in sources.get("cuda_api", ()))]:
        connection.execute(_TALLY.format(rows=source))
    connection.register("owners", _owners(connection))
    if has_events:
        for source in operations:
            connection.execute(_SEEN.format(rows=source))
    connection.execute(_MARKS)
    if has_events:
        for source in operations:
            connection.execute(_SEGMENTS.format(owned=_OWNED.format(rows=source)))
        _tell_batches(connection)


def _rows(table: str, source: str) -> str:
    return _ROWS.format(source=source, lane=_OF_THREAD if table == "cuda_api" else _OF_STREAM)


def tied_rows(connection: duckdb.DuckDBPyConnection, table: str, source: str) -> pa.Table:
    """Of each row of a part of `table`, in order, its tie; `is_ours`: the library recorded it, `is_ambiguous`: several
    batches of its instance hold it, and nothing tells them apart."""
    owned = _OWNED.format(rows=_rows(table, source))
    if table not in DEVICE_TABLES:  # a wait's or a call's correlation id is no place on a stream
        owned = f"(SELECT * REPLACE (NULL AS lane) FROM {owned})"
    return connection.sql(_TIED.format(owned=owned, source=source, no_device=NO_DEVICE)).to_arrow_table()


def _owners(connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """The instance that each lane belongs to; lanes without one are absent. `lane`: number of a stream of an instance
    whose batches overlap.

    Where a process belongs to one, so do all of its lanes. Of several instances none has a process of its own whose
    batches overlap: together they may hold all that another one in the same process does.
    """
    found: list[dict[str, Any]] = []
    of_process: dict[tuple[str, int], int] = {}
    for row in rows(connection, _LANES):
        held = np.array(row["held"], np.int64)
        place = holder_of(row["n"], held, row["n_begun"][int(held.argmax())])
        process, is_process = (row["server"], row["process"]), row["context"] is None
        if is_process and place is not None and row["is_overlapping"][place] and len(held) > 1:
            place = None
        place = of_process.get(process, place)
        if place is None:
            continue
        if is_process:
            of_process[process] = place
        is_cut = not is_process and row["thread"] == -1 and row["is_overlapping"][place]
        found.append({**row, "owner": row["owners"][place], "lane": len(found) if is_cut else None})
    names = ("process", "context", "stream", "thread", "owner", "lane")
    schema = pa.schema([("server", pa.string()), *((name, pa.int64()) for name in names)])
    return pa.Table.from_pylist(found, schema=schema)


def _tell_batches(connection: duckdb.DuckDBPyConnection) -> None:
    """Fills `told`."""
    for lane, owner in connection.execute("SELECT DISTINCT lane, owner FROM marks ORDER BY lane").fetchall():
        spans = connection.execute(
            "SELECT start_ns, end_ns FROM held WHERE owner = ? ORDER BY number", [owner]
        )
        batches = Stretches(*spans.fetchnumpy().values())
        segments = connection.execute(_OF_LANE, [lane]).fetchnumpy()
        number = matched_rows([*_stretches(segments, batches)], batches)
        rows = {
            "lane": np.full(len(number), lane),
            "correlation_id": segments["correlation_id"],
            "number": number,
        }
        connection.register("told_rows", pa.table(rows))
        connection.execute("INSERT INTO told BY NAME FROM told_rows")


def _stretches(segments: Mapping[str, Any], batches: Stretches) -> Iterator[Stretch]:
    edges = np.flatnonzero(np.diff(segments["span"], prepend=-1, append=-1))
    for first, last in pairwise(edges):
        own = {name: values[first:last] for name, values in segments.items()}
        begun = np.searchsorted(batches.begins_ns, [own["span_start_ns"][0], own["span_end_ns"][0]])
        yield Stretch(own["event"][1:], own["start_ns"], own["end_ns"], int(begun[1] - begun[0]))
