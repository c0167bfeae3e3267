"""The GPU before and during a probe, as NVML has it: who had it, what it did, what held its clocks down."""

from __future__ import annotations

import time
from typing import Any

from squall.actors.sampling.gpu.source import GpuProcessSource, GpuSource, missing_reason

_EVERY_NS = 1_000_000_000
_APART_S = 0.3
"""Between the two readings before the probe: rates need two."""
Row = dict[str, Any]


class GpuWatch:
    """Call `look_before`, then `tick` as often as one likes, and `close`. Without NVML `trouble` says why."""

    def __init__(self, is_wanted: bool) -> None:
        self._is_wanted = is_wanted
        self.trouble = ""
        self._source: GpuSource | None = None
        self._rows: list[Row] = []
        self._due_ns = 0
        self.before: list[Row] = []
        """Of each GPU before the probe: `gpu_uuid`, `util`, `n_processes`."""

    def look_before(self) -> None:
        """Takes two readings, and who has a context."""
        if not self._is_wanted:
            return
        self.trouble = missing_reason() or ""
        if self.trouble:
            return
        self._source = GpuSource(with_gpm=False)
        processes = GpuProcessSource(lambda: ())
        try:
            self._source.sample(time.monotonic_ns())
            processes.sample(time.monotonic_ns())
            time.sleep(_APART_S)
            seen = self._source.sample(time.monotonic_ns())
            others = processes.sample(time.monotonic_ns())
            is_told = not processes.losses()
        finally:
            processes.close()
        self._rows += seen
        for row in seen:
            if not row["mig_instance"]:
                n = sum(1 for one in others if one["gpu_uuid"] == row["gpu_uuid"])
                known = {"gpu_uuid": row["gpu_uuid"], "util": row.get("util")}
                self.before.append({**known, "n_processes": n if is_told else None})

    def tick(self) -> None:
        """A sample where the last is a second old."""
        now_ns = time.monotonic_ns()
        if self._source is not None and now_ns >= self._due_ns:
            self._due_ns = now_ns + _EVERY_NS
            self._rows += self._source.sample(now_ns)

    def rows(self, gpu_uuid: str) -> list[Row]:
        """Samples so far, of that GPU or, with "", of all; `t_ns` is of the monotonic clock."""
        return [row for row in self._rows if gpu_uuid in ("", row["gpu_uuid"])]

    def before_of(self, gpu_uuid: str) -> Row:
        """The busiest of these before the probe; empty where NVML told nothing."""
        seen = [row for row in self.before if gpu_uuid in ("", row["gpu_uuid"])]
        found: Row = {}
        for name in ("util", "n_processes"):
            told = [row[name] for row in seen if row[name] is not None]
            if told:
                found[name] = max(told)
        return found

    def close(self) -> None:
        """Lets NVML go."""
        if self._source is not None:
            self._source.close()
            self._source = None
