"""Faults that are planted into the recording path, one each, and the checks that each of them must fail.

`plant` changes the module that it is given, which has just been loaded in a process of a real run. What is changed is
what records, counts or derives; no table is edited.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

Module = Any
DERIVED = ("made up", "h200", "regime")
"""Kinds of run that only ingest and analysis take part in: `tests.planted_faults.derived`."""
_MS = 1_000_000


@dataclass(frozen=True)
class Fault:
    """`told`: what is wrong, in words. `checks`: names of those that must not be met, of verdict, counts, self-checks.

    `run`: the kind of run that it is planted in: open, closed, python (the engine without its lane), nsys, two nodes;
    of what takes no load, made up (the analysis of a made-up run), h200 (a real export of nsys through ingest and
    analysis) and regime (the analysis of a planted run with kernels).
    `seconds`: length of its measured phase.
    """

    module: str
    told: str
    plant: Callable[[Module], None]
    checks: tuple[str, ...]
    run: str = "open"
    seconds: int = 6

    @property
    def is_live(self) -> bool:
        """Whether a load is sent in its run."""
        return self.run not in DERIVED


def _around(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Replaces a function by one that is given it first, of the same name: calls of actors go by that."""

    def replace(new: Callable[..., Any]) -> None:
        old = getattr(owner, name)
        setattr(owner, name, wraps(old)(lambda *arguments, **named: new(old, *arguments, **named)))

    return replace


def _drop_records(module: Module) -> None:
    """The last row of each buffer does not reach the file."""
    _around(module.Recorder, "_write")(lambda old, self, buffer, n_rows: old(self, buffer, n_rows - 1))


def _renumbered(module: Module) -> None:
    def row(old: Any, *arguments: Any) -> dict[str, Any]:
        found: dict[str, Any] = old(*arguments)
        return {**found, "batch_id": found["batch_id"] - 1}

    _around(module, "_row")(row)


def _double_records(module: Module) -> None:
    def write(old: Any, self: Any, data: Any) -> bool:
        if "scheduled_ns" in data.column_names:
            old(self, data)
        return bool(old(self, data))

    _around(module.SpillFile, "write")(write)


def _each_second(action: Callable[[int], None]) -> Callable[[Module], None]:
    """Does something in the sending thread once a second, before it samples itself; told which second it is."""

    def plant(module: Module) -> None:
        calls = []

        def take_sample(old: Any, self: Any, now_ns: int, loop_lag_ns: int) -> None:
            calls.append(now_ns)
            action(len(calls))
            old(self, now_ns, loop_lag_ns)

        _around(module.LoadWorker, "_take_sample")(take_sample)

    return plant


def _sleep(seconds: float) -> None:
    import time

    time.sleep(seconds)


def _burn(seconds: float) -> None:
    import time

    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def _slow_waits(module: Module) -> None:
    def wait(old: Any, self: Any, until_ns: int) -> Any:
        found = old(self, until_ns)
        _sleep(0.150)
        return found

    _around(module.Loop, "wait")(wait)


def _busy_waits(module: Module) -> None:
    def wait(old: Any, self: Any, until_ns: int) -> Any:
        found = old(self, until_ns)
        _burn(0.02)
        return found

    _around(module.Loop, "wait")(wait)


def _stop_early(module: Module) -> None:
    def run(old: Any, self: Any, start_ns: int) -> None:
        import threading
        import time

        wait_s = (start_ns - time.monotonic_ns()) / 1e9 + 3.0
        threading.Timer(max(0.0, wait_s), self.stop).start()
        old(self, start_ns)

    _around(module.LoadWorker, "run")(run)


def _shift_sends(shift_ns: Callable[[int], int]) -> Callable[[Module], None]:
    """The engine is told that arrivals are due earlier or later than the plan says, by how far they are into it."""

    def plant(module: Module) -> None:
        def advance(old: Any, self: Any) -> None:
            old(self)
            if self._next is not None:
                self.next_ns = self._next.at_ns + shift_ns(self._next.at_ns - self._start_ns)

        def take(old: Any, self: Any) -> Any:
            due = old(self)
            if self._next is not None:
                self.next_ns = self._next.at_ns + shift_ns(self._next.at_ns - self._start_ns)
            return due

        _around(module.OpenLoop, "_advance")(advance)
        _around(module.OpenLoop, "take")(take)

    return plant


def _lose_sample(module: Module) -> None:
    """What one reading of Triton's statistics had gained is not written."""
    calls = []

    def sample(old: Any, self: Any, now_ns: int) -> Any:
        calls.append(now_ns)
        found = old(self, now_ns)
        return [] if len(calls) == 12 else found

    _around(module.TritonSource, "sample")(sample)


def _in_model(old_text: str, new_text: str) -> Callable[[Module], None]:
    """Changes the code of the model that Triton runs, where it is written to the repository."""

    def plant(module: Module) -> None:
        def write(old: Any, folder: Any, model: Any, *rest: Any) -> Any:
            spec = old(folder, model, *rest)
            path = folder / spec.name / spec.version / "model.py"
            text = path.read_text()
            assert old_text in text
            path.write_text(text.replace(old_text, new_text))
            return spec

        _around(module, "write_repository")(write)

    return plant


def _count_more(module: Module) -> None:
    counted = module.Engine.n_in_flight
    module.Engine.n_in_flight = property(lambda self: counted.fget(self) + 7)


def _in_columns(table: str, **changed: str) -> Callable[[Module], None]:
    """Changes columns of a table that the join makes: each is written as an SQL expression of them."""

    def plant(module: Module) -> None:
        columns = ", ".join(f"{expression} AS {name}" for name, expression in changed.items())

        def write(old: Any, self: Any, number: int, rows: Any) -> Any:
            if self.table == table:
                import duckdb

                with duckdb.connect() as connection:
                    connection.register("made", rows)
                    rows = connection.sql(f"SELECT * REPLACE ({columns}) FROM made").to_arrow_table()
            return old(self, number, rows)

        _around(module.NewParts, "write")(write)

    return plant


def _in_events(table: str, change: Callable[[Any], Any]) -> Callable[[Module], None]:
    """Changes each piece of an event table as ingest makes it of the report."""

    def plant(module: Module) -> None:
        def events(old: Any, *arguments: Any, **named: Any) -> Any:
            for name, rows in old(*arguments, **named):
                yield name, change(rows) if table in (name, "every") else rows

        _around(module, "event_tables")(events)

    return plant


def _set(rows: Any, name: str, values: Any) -> Any:
    return rows.set_column(rows.column_names.index(name), rows.schema.field(name), [values])


def _every(rows: Any, n: int, name: str, other: Callable[[Any], Any]) -> Any:
    """Column `name` with `other` of the rows in place of every n-th value."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    chosen = pa.array(np.arange(rows.num_rows) % n == n - 1)
    column = rows[name].combine_chunks()
    return _set(rows, name, pc.if_else(chosen, other(rows), column))


def _ends_early(rows: Any) -> Any:
    import pyarrow.compute as pc

    return _every(rows, 50, "end_ns", lambda of: pc.subtract(of["start_ns"].combine_chunks(), 5))


def _launched_late(rows: Any) -> Any:
    import pyarrow.compute as pc

    return _every(rows, 50, "launch_start_ns", lambda of: pc.add(of["start_ns"].combine_chunks(), _MS))


def _untied(rows: Any) -> Any:
    import pyarrow as pa

    return _every(rows, 20, "batch_id", lambda of: pa.scalar(None, of.schema.field("batch_id").type))


def _without_some_batches(rows: Any) -> Any:
    """What the report holds of every tenth batch is lost."""
    import numpy as np
    import pyarrow as pa

    if "batch_id" not in rows.column_names:
        return rows
    ids = rows["batch_id"].fill_null(0).to_numpy()
    return rows.filter(pa.array(np.asarray(ids % 10 != 3)))


def _lose_costs(module: Module) -> None:
    def write(old: Any, self: Any, connection: Any, query: str, order: str) -> Any:
        is_lossy = self.new.table == "batch_costs"
        return old(self, connection, f"FROM ({query}) WHERE row > 0" if is_lossy else query, order)

    _around(module.Slice, "write")(write)


def _without_marks(module: Module) -> None:
    """Neither the sleeps beside the server nor the ranges of the models tell the clock of a report."""
    _around(module, "parse_lines")(lambda old, _: old(""))

    def ranges(old: Any, report: Any) -> Any:
        return module.Marks(*(column[:0] for column in vars(old(report)).values()))

    _around(module, "_ranges")(ranges)


def _late_answers(module: Module) -> None:
    def answer(old: Any, self: Any, message: bytes, got_ns: int) -> Any:
        found = old(self, message, got_ns)
        _sleep(0.03)
        return found

    _around(module.ClockResponder, "_answer")(answer)


def _stepping_clock(module: Module) -> None:
    def begin(old: Any, self: Any, clock: Any, *rest: Any) -> None:
        first_ns = clock.monotonic_ns()

        def stepped_ns() -> int:
            now_ns: int = clock.monotonic_ns()
            return now_ns + (5 * _MS if now_ns > first_ns + 5_000 * _MS else 0)

        old(self, type("Stepping", (), {"monotonic_ns": staticmethod(stepped_ns)})(), *rest)

    _around(module.ClockResponder, "__init__")(begin)


_LINE = 'line = {"b": batch_id, "s": start_ns, "e": end_ns, "r": rows, "i": ids}'

FAULTS = {
    "records dropped": Fault(
        "squall.actors.load.recorder", "the recorder loses the last row of each buffer",
        _drop_records, ("losses", "lost records"),
    ),
    "records doubled": Fault(
        "squall.actors.spill", "each buffer is written to the spill file twice",
        _double_records, ("completeness", "rows"),
    ),
    "stall": Fault(
        "squall.actors.load.worker", "the sending thread sleeps for 1.2 s every other second",
        _each_second(lambda n: _sleep(1.2) if n % 2 else None),
        ("delivered load per second", "delivered load in bursts", "dispersion 0.1 s", "dispersion 1 s",
         "send lag of the worst worker", "lag in p95"), seconds=12,
    ),
    "long stalls": Fault(
        "squall.actors.load.worker", "the sending thread sleeps for 9 s every 20 s",
        _each_second(lambda n: _sleep(9.0) if n % 20 == 5 else None), ("dispersion 10 s",), seconds=104,
    ),
    "longest stalls": Fault(
        "squall.actors.load.worker", "the sending thread sleeps for 60 s every 150 s",
        _each_second(lambda n: _sleep(60.0) if n % 150 == 30 else None), ("dispersion 100 s",), seconds=1_010,
    ),
    "sleepy loop": Fault(
        "squall.actors.net.loop", "each wait of the event loop takes 150 ms longer", _slow_waits,
        ("lag in p50", "lag in p95", "lag in p99", "event-loop lag p95"), "python", 12,
    ),
    "busy loop": Fault(
        "squall.actors.net.loop", "the event loop computes for 20 ms after each wait", _busy_waits,
        ("worker saturation",), "python", 12,
    ),
    "stopped": Fault(
        "squall.actors.load.worker", "the worker stops in the third second", _stop_early, ("unsent", "delivered load"),
    ),
    "drift": Fault(
        "squall.actors.load.pacing", "each arrival is taken for due later, by 5 % of how far it is into the run",
        _shift_sends(lambda at_ns: at_ns // 20), ("send lag end drift",), "python",
    ),
    "early": Fault(
        "squall.actors.load.pacing", "each arrival is taken for due 3 ms early",
        _shift_sends(lambda _: -3 * _MS), ("sent early",), "python",
    ),
    "users held": Fault(
        "squall.actors.load.worker", "the sending thread sleeps for 0.5 s in each second, users wait within it",
        _each_second(lambda _: _sleep(0.5)), ("users accounted for",), "closed",
    ),
    "statistics lost": Fault(
        "squall.actors.sampling.triton_source", "one reading of Triton's statistics is not written",
        _lose_sample, ("triton success", "executions"),
    ),
    "batches lost": Fault(
        "squall.models.repository", "the model leaves out the record of every tenth batch",
        _in_model(_LINE, "if batch_id % 10 == 3:\n            return\n        " + _LINE),
        ("executions", "batch rows", "joined", "unjoined"),
    ),
    "ids lost": Fault(
        "squall.models.repository", "the model leaves out the first id of every tenth batch",
        _in_model(_LINE, _LINE.replace('"i": ids', '"i": ids[1:] if batch_id % 10 == 3 else ids')),
        ("joined", "unjoined"),
    ),
    "model's clock late": Fault(
        "squall.models.repository", "the model's instants are 50 ms late",
        _in_model(_LINE, _LINE.replace("start_ns", "start_ns + 50000000").replace("end_ns", "end_ns + 50000000")),
        ("batch before reply",),
    ),
    "model's clock early": Fault(
        "squall.models.repository", "the model's instants are 50 ms early",
        _in_model(_LINE, _LINE.replace("start_ns", "start_ns - 50000000").replace("end_ns", "end_ns - 50000000")),
        ("sent before batch",),
    ),
    "in flight": Fault(
        "squall.actors.load.engine", "the engine counts 7 requests in flight more than there are",
        _count_more, ("in flight",),
    ),
    "response": Fault(
        "squall.analysis.join.slices", "the join makes each response time 1 % longer",
        _in_columns("joined", response_ns="response_ns + response_ns // 100"), ("Little's law", "parts add up"),
        "made up",
    ),
    "network": Fault(
        "squall.analysis.join.slices", "the join puts 1 ns too much into the network's part",
        _in_columns("joined", network_ns="network_ns + 1"), ("parts add up",), "made up",
    ),
    "queue unexplained": Fault(
        "squall.analysis.join.slices", "the join calls the queue's part residual",
        _in_columns("joined", queue_ns="queue_ns - queue_ns", residual_ns="residual_ns + coalesce(queue_ns, 0)"),
        ("residual",), "made up",
    ),
    "costs lost": Fault(
        "squall.analysis.join.slices", "the first execution of each slice gets no row of batch_costs", _lose_costs,
        ("batch costs",), "made up",
    ),
    "events backwards": Fault(
        "squall.analysis.nsys.tables", "every 50th kernel ends 5 ns before it starts",
        _in_events("kernels", _ends_early), ("broken events",), "h200",
    ),
    "launches late": Fault(
        "squall.analysis.nsys.tables", "every 50th kernel is launched 1 ms after its start",
        _in_events("kernels", _launched_late), ("launched before run",), "h200",
    ),
    "kernels untied": Fault(
        "squall.analysis.nsys.tables", "every 20th kernel bears no batch", _in_events("kernels", _untied),
        ("operations tied",), "h200",
    ),
    "calls untied": Fault(
        "squall.analysis.nsys.tables", "every 20th CUDA call bears no batch", _in_events("cuda_api", _untied),
        ("calls tied",), "h200",
    ),
    "kernel time": Fault(
        "squall.analysis.join.slices", "half of the kernel time of a batch is counted",
        _in_columns("batch_costs", kernel_ns="kernel_ns // 2"), ("kernel sums", "kernel time"), "h200",
    ),
    "head": Fault(
        "squall.analysis.join.slices", "half of the time before a batch's first call is counted",
        _in_columns("batch_costs", head_ns="head_ns // 2"), ("wall",), "h200",
    ),
    "shares": Fault(
        "squall.analysis.join.slices", "requests get half of their share of a batch's kernels",
        _in_columns("joined", kernel_share_ns="kernel_share_ns // 2"), ("kernel shares",), "regime",
    ),
    "ranges lost": Fault(
        "squall.analysis.nsys.tables", "the report holds nothing of every tenth batch",
        _in_events("every", _without_some_batches), ("batches profiled",), "nsys",
    ),
    "batches renumbered": Fault(
        "squall.cluster.node.batches", "each batch bears the number of the one before it", _renumbered, ("ranges",),
        "nsys",
    ),
    "marks lost": Fault(
        "squall.analysis.nsys.clock", "no sleep and no range marks the clock of the report", _without_marks,
        ("report clock",), "nsys",
    ),
    "late answers": Fault(
        "squall.actors.sampling.clock_responder", "each answer of the far node's clock leaves 30 ms late",
        _late_answers, ("clock bound",), "two nodes",
    ),
    "stepping clock": Fault(
        "squall.actors.sampling.clock_responder", "the far node's clock steps by 5 ms in the fifth second",
        _stepping_clock, ("clock steps",), "two nodes",
    ),
}  # fmt: skip
"""By name."""

_LOCUST = "tests/unit/analysis/requests/test_locust_checks.py"
_NEIGHBOUR, _STARVED = "tests/golden/test_gpu_neighbour.py", "tests/integration/test_starved.py"
_HOSTS, _VERDICTS = "tests/unit/analysis/verdict/test_starvation_truths.py", "tests/golden/test_verdicts.py"
ELSEWHERE = (
    ("server reached", "the server is not there, or its port closes", _VERDICTS, "open"),
    ("ok share", "the server refuses every request, or answers each wrongly", _VERDICTS, "open"),
    ("CPU of the server", "busy loops beside the server take nine tenths of the cores", _STARVED, "open"),
    ("CPU of the server", "one to four busy loops a core beside a server at 1 to 50/s", _HOSTS, "simulated"),
    (
        "GPU of the server",
        "another process has nine tenths of the GPU for half of the phase, and batches take 2.5 times as long",
        _NEIGHBOUR,
        "nvml",
    ),
    (
        "GPU of the server",
        "another process has it all the time, so that nothing is there to compare with",
        _NEIGHBOUR,
        "nvml",
    ),
    (
        "GPU of the server",
        "the same in a container, where NVML names no process or the server's alone",
        _NEIGHBOUR,
        "nvml",
    ),
    ("GPU of the server", "another process has the GPU of one of two servers", _NEIGHBOUR, "nvml"),
    ("users present", "a tenth of the users die of an exception in on_start", _LOCUST, "locust"),
    ("late users", "users wake 30 ms late", _LOCUST, "locust"),
    ("Locust's counts", "every hundredth request of a name has no row", _LOCUST, "locust"),
    ("Locust's requests", "every hundredth request of a name has no row", _LOCUST, "locust"),
    ("Locust's failures", "a failed request is recorded as ok", _LOCUST, "locust"),
    ("Locust's response times", "rows hold response times rounded as Locust does", _LOCUST, "locust"),
)
"""Checks that faults of the world outside, or of made-up runs, fail: check, fault, test of it, run."""

_COLD, _COLD_RUN = "tests/golden/test_cold.py", "tests/integration/test_cold.py"
_TRIALS, _LOCUST_RUN = "tests/integration/test_trials.py", "tests/integration/test_locust_run.py"
_REGIMES = "tests/unit/analysis/findings/test_findings_regimes.py"
NAMED = (
    ("starved by others", "busy loops beside the server", _STARVED, "open"),
    ("shared GPU", "another process has nine tenths of the GPU from the middle on", _NEIGHBOUR, "nvml"),
    ("throttled, low", "clocks are held back in all samples beside a process with 8 % of the time", _REGIMES, "regime"),
    ("cold", "the model sleeps for 300 ms at each batch size that it has not seen", _COLD_RUN, "open"),
    ("cold", "the model is four to six times as slow until 4, 7 or 12 s", _COLD, "simulated"),
    ("cold", "a first execution of 8 s under a warm-up of 2 s", _COLD, "simulated"),
    ("leftovers", "a warm-up of 9,000/s overloads the server", _COLD, "simulated"),
    ("drift", "executions take 5 or 10 % longer with each second", _COLD, "simulated"),
    (
        "queue-bound, and its ceiling",
        "loads of 0.5 to 1.5 of the ceiling of models that sleep or compute",
        "tests/unit/analysis/findings/test_findings_overload.py",
        "regime",
    ),
    (
        "answered from the cache",
        "the response cache answers 98 of 100 requests",
        "tests/unit/analysis/findings/test_findings_statistics.py",
        "regime",
    ),
    ("exit 99", "a server that fails more than `expect.failures`", "tests/integration/test_failing_server.py", "open"),
    ("exit 99", "a listener of the locustfile sets `process_exit_code`", _LOCUST_RUN, "locust, real"),
    ("an address left out", "of three addresses of a name two refuse", "tests/integration/test_addresses.py", "open"),
    ("refused before Ray starts", "the server answers 400 or 403, wrongly, or closes", _TRIALS, "open"),
    ("every request fails", "each gets 400; told after 3 s, stopped after 8 s", _TRIALS, "open"),
    ("the driver was killed", "SIGKILL of the driver under load", "tests/integration/test_resume.py", "open"),
)  # fmt: skip
"""What else a run names, and the fault that was planted for it: name, fault, test of it, run."""
