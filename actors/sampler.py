"""Samples of Triton, host and GPU at a steady pace, each from its own thread, spilled as they come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import pyarrow as pa

from actors.clock import Clock
from actors.control import Control
from actors.link import TlsSettings
from actors.spool import Spool
from analysis.schema import arrow_schema
from scenarios.units import NS_PER_S

Row = dict[str, Any]
_BASELINE_TIMEOUT_S = 15.0


class Source(Protocol):
    """One kind of sample: `table` names its table; `sample` gives rows for the interval since the last call."""

    table: str

    def sample(self, now_ns: int) -> list[Row]: ...


class Sampler:
    """Calls a source at absolute multiples of `interval_ns`, from `start` to `stop`, in a thread of its own.

    A source that raises is asked again at the next tick; how often and why is told by `losses`.
    """

    def __init__(
        self, source: Source, labels: Mapping[str, str], interval_ns: int, path: Path, clock: Clock
    ) -> None:
        self._source = source
        self._labels = dict(labels)
        self._interval_ns = interval_ns
        self._clock = clock
        self._spool = Spool(path, source.table)
        self._halt = threading.Event()
        self._has_baseline = threading.Event()
        self._n_failures = 0
        self._last_failure = ""
        self._thread = threading.Thread(target=self._run, name=f"squall-{source.table}", daemon=True)

    def start(self) -> None:
        """Takes the baseline and returns; rows follow from the first tick on."""
        self._thread.start()
        if not self._has_baseline.wait(_BASELINE_TIMEOUT_S):
            self._note_failure(f"no baseline within {_BASELINE_TIMEOUT_S:g} s")

    def stop(self) -> None:
        """Takes a last sample, so that the deltas add up to the whole, and closes the file."""
        self._halt.set()
        self._thread.join()
        self._spool.close()

    def losses(self) -> list[str]:
        """What is missing from the table, as sentences; empty if nothing is."""
        found = []
        if self._n_failures:
            found.append(
                f"{self._source.table}: {self._n_failures} samples failed, last: {self._last_failure}"
            )
        if self._spool.error:
            found.append(f"{self._source.table}: samples lost, the spill file: {self._spool.error}")
        return found

    def _run(self) -> None:
        """All ticks in this one thread: a source need not be thread-safe."""
        due_ns = self._clock.monotonic_ns() + self._interval_ns
        self._tick()
        self._has_baseline.set()
        while not self._halt.wait(max(0, due_ns - self._clock.monotonic_ns()) / NS_PER_S):
            self._tick()
            # ticks that a slow sample ran over are not made up for
            n_over = max(0, self._clock.monotonic_ns() - due_ns) // self._interval_ns
            due_ns += (1 + n_over) * self._interval_ns
        self._tick()

    def _tick(self) -> None:
        now_ns = self._clock.monotonic_ns()
        try:
            rows = self._source.sample(now_ns)
            if rows:
                filled = [{**self._labels, "phase": "", **row} for row in rows]
                self._spool.write(pa.Table.from_pylist(filled, schema=arrow_schema(self._source.table)))
        except Exception as error:  # a thread's edge: recorded, and the next tick tries again
            self._note_failure(f"{type(error).__name__}: {error}")

    def _note_failure(self, why: str) -> None:
        self._n_failures += 1
        self._last_failure = why


class TritonSource:
    """Deltas of the statistics extension (`/v2/models/M/stats`), and pending requests from the metrics.

    `model` at all its versions. A counter that went back (server restarted) starts anew from zero.
    """

    table = "triton_samples"

    def __init__(self, url: str, metrics_url: str | None, model: str, tls: TlsSettings | None = None) -> None:
        """`metrics_url` is http, on loopback. Raises OSError for files of TLS that cannot be used."""
        self._control = Control(url, tls)
        self._metrics = Control(metrics_url) if metrics_url else None
        self._model = model
        self._previous: dict[str, tuple[int, Row]] = {}

    def sample(self, now_ns: int) -> list[Row]:
        statistics = self._control.ask_json(f"/v2/models/{quote(self._model)}/stats")
        pending = self._pending()
        rows = []
        for item in statistics["model_stats"]:
            version = str(item["version"])
            current = _cumulative(item)
            previous = self._previous.get(version)
            self._previous[version] = (now_ns, current)
            if previous is not None:
                rows.append(self._delta(version, now_ns, current, *previous, pending.get(version)))
        return rows

    def close(self) -> None:
        """Closes its connections; call when its sampler has stopped."""
        self._control.close()
        if self._metrics is not None:
            self._metrics.close()

    def _delta(
        self, version: str, now_ns: int, current: Row, then_ns: int, previous: Row, pending: int | None
    ) -> Row:
        if any(current[name] < previous[name] for name in current if name != "batches"):
            previous = {**dict.fromkeys(previous, 0), "batches": {}}
        row = {name: current[name] - previous[name] for name in current if name != "batches"}
        batches = {
            size: count - previous["batches"].get(size, 0)
            for size, count in sorted(current["batches"].items())
            if count > previous["batches"].get(size, 0)
        }
        return {
            **row,
            "model": self._model, "version": version, "t_ns": now_ns, "interval_ns": now_ns - then_ns,
            "batch_sizes": list(batches), "batch_counts": list(batches.values()), "pending_count": pending,
        }  # fmt: skip

    def _pending(self) -> dict[str, int]:
        """Requests waiting for execution, by version; empty where the server gives no metrics."""
        if self._metrics is None:
            return {}
        text = self._metrics.ask("/metrics").decode()
        found = {}
        for line in text.splitlines():
            if line.startswith("nv_inference_pending_request_count{") and f'model="{self._model}"' in line:
                version = line.partition('version="')[2].partition('"')[0]
                found[version] = round(float(line.rpartition(" ")[2]))
        return found


def _cumulative(item: Mapping[str, Any]) -> Row:
    """Counters of one model version, in the columns of triton_samples."""
    stats = item["inference_stats"]

    def of(name: str, field: str) -> int:
        return int(stats.get(name, {}).get(field, 0))

    return {
        "request_count": of("success", "count"), "failure_count": of("fail", "count"),
        "inference_count": int(item.get("inference_count", 0)),
        "execution_count": int(item.get("execution_count", 0)),
        "queue_ns": of("queue", "ns"), "compute_input_ns": of("compute_input", "ns"),
        "compute_infer_ns": of("compute_infer", "ns"), "compute_output_ns": of("compute_output", "ns"),
        "success_ns": of("success", "ns"),
        "batches": {
            int(batch["batch_size"]): int(batch["compute_infer"]["count"]) for batch in item.get("batch_stats", ())
        },
    }  # fmt: skip


class HostSource:
    """CPU, run queue, context switches, network drops and memory of this node, and the server's CPU time."""

    table = "host_samples"

    def __init__(self, server_pids: Callable[[], Sequence[int]]) -> None:
        self._server_pids = server_pids
        self._previous: tuple[int, Row] | None = None

    def sample(self, now_ns: int) -> list[Row]:
        import psutil

        cpu, cores = psutil.cpu_times(), psutil.cpu_count() or 1
        network = psutil.net_io_counters()
        current = {
            "user": cpu.user + cpu.nice, "system": cpu.system + getattr(cpu, "irq", 0) + getattr(cpu, "softirq", 0),
            "iowait": getattr(cpu, "iowait", 0.0), "steal": getattr(cpu, "steal", 0.0), "idle": cpu.idle,
            "switches": psutil.cpu_stats().ctx_switches, "drops": network.dropin + network.dropout if network else 0,
            "server_cpu_s": _cpu_time_s(self._server_pids()),
        }  # fmt: skip
        then, self._previous = self._previous, (now_ns, current)
        if then is None:
            return []
        then_ns, before = then
        delta = {name: current[name] - before[name] for name in current if name != "server_cpu_s"}
        total = sum(delta[name] for name in ("user", "system", "iowait", "steal", "idle")) or 1.0
        row = {f"cpu_{name}": delta[name] / total for name in ("user", "system", "iowait", "steal", "idle")}
        is_known = current["server_cpu_s"] is not None and before["server_cpu_s"] is not None
        row |= {
            "t_ns": now_ns, "interval_ns": now_ns - then_ns, "n_cores": cores, "run_queue": _run_queue(),
            "context_switches": delta["switches"], "network_drops": delta["drops"],
            "memory_available_bytes": psutil.virtual_memory().available,
            "server_cpu_ns": (
                round((current["server_cpu_s"] - before["server_cpu_s"]) * NS_PER_S) if is_known else None
            ),
        }  # fmt: skip
        return [row]


def _cpu_time_s(pids: Sequence[int]) -> float | None:
    """CPU seconds used so far by `pids`; None without any, or where one has ended and took its count along."""
    import psutil

    try:
        times = [psutil.Process(pid).cpu_times() for pid in pids]
    except psutil.Error:
        return None
    return sum(used.user + used.system for used in times) if times else None


def _run_queue() -> int:
    """Runnable threads of the node: `procs_running` in /proc/stat, this one included."""
    with open("/proc/stat", encoding="ascii") as stat:
        for line in stat:
            if line.startswith("procs_running"):
                return int(line.split()[1])
    return 0
