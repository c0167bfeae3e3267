"""Self-checks over the events of the report: launched before it ran, tied to a batch, of a length that can be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from squall.analysis.clocks.timeline import RunPhase
from squall.analysis.findings.self_checks.self_check import SelfCheck, at_least, at_most
from squall.analysis.recorded import TABLE as WINDOWS
from squall.analysis.recorded import whole
from squall.analysis.tables.nsys import DEVICE_TABLES, EVENT_TABLES

if TYPE_CHECKING:
    import duckdb

COVERAGE_RATIO = 0.99
"""What is not tied to a batch is missing from head, body and tail."""
_Process = tuple[str, int | None]
"""Node and process id; None where the report names none."""
LAUNCH_CLOCK_NS = 10_000
"""GPU stamps are mapped to the host's clock by the driver, to some microseconds; a launch itself takes 2 or more."""


@dataclass(frozen=True)
class _Operations:
    """What one pass over a table of operations counts. Those that end before they start are `n_broken` alone."""

    by_process: Mapping[_Process, tuple[int, int]]
    """Operations, and those that bear a batch."""
    n_broken: int
    n_launched: int
    n_early: int
    tied_ns: float


def event_checks(
    connection: duckdb.DuckDBPyConnection, tables: Sequence[str], has_costs: bool, phases: Sequence[RunPhase],
    decoupled: Sequence[tuple[str, str]] = (),
) -> list[SelfCheck]:  # fmt: skip
    """Checks over the views `tables`, and `batch_costs` where `has_costs`. `phases`: those that are measured.

    Operations of batches that an edge of a recorded window or phase cuts do not count. Where a model
    of `decoupled`, of server and name, executed, none of its operations are tied, nor do all say whose they are: how
    many are tied is not assessed.
    """
    is_tied = has_costs and not _have_executed(connection, decoupled)
    of_whole = whole(connection, (one.start_ns for one in phases), WINDOWS in tables) if has_costs else "true"
    counted = {table: _count(connection, table, of_whole) for table in DEVICE_TABLES if table in tables}
    broken: dict[str, int] = {table: one.n_broken for table, one in counted.items()}
    calls = None
    if "cuda_api" in tables:
        broken["cuda_api"], calls = _count_calls(connection)
    for table in EVENT_TABLES:
        if table in tables and table not in broken:
            broken[table] = int(
                _one(connection, f"SELECT count(*) FROM {table} WHERE end_ns < start_ns") or 0
            )
    return [
        _launched_first(counted.values()),
        *_coverage(
            connection,
            [one.by_process for one in counted.values()],
            calls,
            is_tied,
            [one.name for one in phases],
            WINDOWS in tables,
        ),
        _kernel_sums(connection, counted.get("kernels"), has_costs),
        _broken({table: broken[table] for table in EVENT_TABLES if table in broken}),
    ]


def _have_executed(connection: duckdb.DuckDBPyConnection, models: Sequence[tuple[str, str]]) -> bool:
    """Whether any of the models, of server and name, has an execution in `batch_costs`."""
    query = "SELECT 1 FROM batch_costs WHERE server = ? AND model = ? LIMIT 1"
    return any(connection.execute(query, one).fetchall() for one in models)


def _count(connection: duckdb.DuckDBPyConnection, table: str, of_whole: str) -> _Operations:
    rows = connection.execute(f"""
        SELECT node, process, count(*) FILTER (end_ns >= start_ns),
            count(batch_id) FILTER (end_ns >= start_ns), count(*) FILTER (end_ns < start_ns), count(launch_start_ns),
            count(*) FILTER (launch_start_ns > start_ns + {LAUNCH_CLOCK_NS}),
            coalesce(sum(end_ns - start_ns) FILTER (batch_id IS NOT NULL AND end_ns >= start_ns), 0)::DOUBLE
        FROM {table} WHERE {of_whole} GROUP BY node, process""").fetchall()
    by_process = {(node, process): (n, n_tied) for node, process, n, n_tied, *_ in rows}
    n_broken, n_launched, n_early, tied_ns = (sum(row[place] for row in rows) for place in range(4, 8))
    return _Operations(by_process, n_broken, n_launched, n_early, tied_ns)


def _count_calls(connection: duckdb.DuckDBPyConnection) -> tuple[int, float | None]:
    """Broken calls, and the share of the calls of serving threads, those with any tied, that are tied."""
    ((n_broken, tied),) = connection.execute("""
        WITH threads AS (
            SELECT count(*) FILTER (phase <> '') AS n, count(batch_id) FILTER (phase <> '') AS n_tied,
                count(*) FILTER (end_ns < start_ns) AS n_broken
            FROM cuda_api GROUP BY node, process, thread)
        SELECT coalesce(sum(n_broken), 0), sum(n_tied) FILTER (n_tied > 0)::DOUBLE / sum(n) FILTER (n_tied > 0)
        FROM threads""").fetchall()
    return int(n_broken), tied


def _launched_first(counted: Iterable[_Operations]) -> SelfCheck:
    known = [one for one in counted if one.n_launched]
    value = sum(one.n_early for one in known) if known else None
    meaning = "operations on the GPU that began before the call that launched them"
    return at_most("launched before run", value, 0, "count", meaning)


def _coverage(
    connection: duckdb.DuckDBPyConnection,
    counted: Sequence[Mapping[_Process, tuple[int, int]]],
    calls: float | None,
    is_tied: bool,
    phases: Sequence[str],
    in_windows: bool,
) -> list[SelfCheck]:
    """Batches of a measured phase count from its first tied one to its last: a recording begins and ends near it.

    `in_windows`: table `recordings` names servers whose batches are tied exactly where a window holds them; these do
    not count, nor what time ties of theirs.
    """
    operations = batches = None
    if is_tied:
        library = "(SELECT server FROM recordings)" if in_windows else "('')"
        of_reports = f"(tie <> 'window' OR server NOT IN {library})"
        tied = (
            _one(connection, f"SELECT sum(n_kernels + n_copies) FROM batch_costs WHERE {of_reports}") or 0.0
        )
        n = _n_operations(connection, counted)
        operations = tied / n if n else None
        of_phases = {"phases": list(phases)}
        batches = _one(connection, f"""
            SELECT avg((tie <> 'none')::INTEGER) FROM batch_costs JOIN (
                SELECT server, phase, min(start_ns) AS first_ns, max(end_ns) AS last_ns FROM batch_costs
                WHERE tie <> 'none' AND list_contains($phases, phase) GROUP BY server, phase) USING (server, phase)
            WHERE start_ns BETWEEN first_ns AND last_ns AND server NOT IN {library}""", of_phases)  # fmt: skip
    least = COVERAGE_RATIO
    tied_to, of_servers = "tied to a batch", "of processes with batches"
    profiled = "profiled batches of measured phases, from the first to the last of each"
    return [
        at_least(
            "operations tied", operations, least, "ratio", f"kernels, copies and sets {of_servers} {tied_to}"
        ),
        at_least("calls tied", calls, least, "ratio", f"CUDA calls of serving threads {tied_to}"),
        at_least("batches profiled", batches, least, "ratio", profiled),
    ]


def _n_operations(
    connection: duckdb.DuckDBPyConnection, counted: Sequence[Mapping[_Process, tuple[int, int]]]
) -> int:
    """Operations of processes of which any is tied, and of those that the report does not name.

    Ties by time are not on the operations: a batch so tied tells its process. Where one does not, all count; so they do
    where none is tied.
    """
    rows = connection.execute("""
        SELECT DISTINCT node, process, tie FROM batch_costs WHERE tie <> 'none' AND n_kernels + n_copies > 0
        """).fetchall()
    own = {key for one in counted for key, (_, n_tied) in one.items() if n_tied}
    own |= {(node, process) for node, process, _ in rows if process is not None}
    is_whole = not own or any(process is None and tie == "window" for _, process, tie in rows)
    return sum(
        n for one in counted for key, (n, _) in one.items() if is_whole or key in own or key[1] is None
    )


def _kernel_sums(
    connection: duckdb.DuckDBPyConnection, kernels: _Operations | None, has_costs: bool
) -> SelfCheck:
    """Only where every tie is by range: kernels tied by time carry no batch themselves."""
    off_ns = None
    if has_costs and kernels is not None:
        n_window = _one(connection, "SELECT count(*) FROM batch_costs WHERE tie = 'window'")
        of_batches = _one(connection, "SELECT sum(kernel_ns)::DOUBLE FROM batch_costs")
        if not n_window and of_batches is not None:
            off_ns = abs(of_batches - kernels.tied_ns)
    meaning = "kernel time that ranges tie to a batch and its costs do not hold, or the other way round"
    return at_most("kernel sums", off_ns, 0, "ns", meaning)


def _broken(counts: Mapping[str, int]) -> SelfCheck:
    where = ", ".join(table for table, count in counts.items() if count)
    meaning = "events of the report that end before they start; they are left out"
    return at_most("broken events", sum(counts.values()) if counts else None, 0, "count", meaning, where)


def _one(
    connection: duckdb.DuckDBPyConnection, sql: str, settings: Mapping[str, Sequence[str]] | None = None
) -> float | None:
    """The one figure of a query; None where it is null or has no row."""
    row = connection.execute(sql, settings).fetchone()
    return None if row is None or row[0] is None else float(row[0])
