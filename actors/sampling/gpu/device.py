"""One GPU, or one MIG instance of it: which readings it supports, its counters, its GPM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from squall.actors.clock import Clock
from squall.actors.sampling.gpu.gpm import METRICS, GpmPair
from squall.actors.sampling.gpu.readings import READINGS, TRAFFIC, Reading
from squall.scenarios.units import NS_PER_S

Row = dict[str, Any]
_RATES = {column for reading in TRAFFIC for column in reading.columns}
_EARLY_NS = 5_000_000  # a tick that follows a late one comes a little sooner
_UNSUPPORTED = (
    "NVMLError_NotSupported",
    "NVMLError_NoPermission",
    "NVMLError_FunctionNotFound",
    "NVMLError_InvalidArgument",  # some calls on a MIG instance, and field ids that are newer than the driver
)
_GONE = (
    "NVMLError_GpuIsLost",
    "NVMLError_ResetRequired",
    "NVMLError_GpuNotFound",
    "NVMLError_Uninitialized",
    "NVMLError_DriverNotLoaded",
)


class GpuLost(Exception):
    """The GPU answers no more: its last words."""


class GpuDevice:
    """Reads one GPU (`mig_instance` empty) or MIG instance. What it refused once is not asked again.

    `gpm_get` fills a sample of GPM; `gpm_reason` says why there is none, if that is known beforehand.
    """

    def __init__(
        self,
        nvml: Any,
        handle: Any,
        gpu_uuid: str,
        mig_instance: str,
        clock: Clock,
        gpm_get: Callable[[Any], Any],
        gpm_reason: str,
    ) -> None:
        self._nvml = nvml
        self.handle = handle
        self.gpu_uuid = gpu_uuid
        self.mig_instance = mig_instance
        self._clock = clock
        self._gpm_get = gpm_get
        self.gpm_reason = gpm_reason
        self._gpm: GpmPair | None = None
        self._readings = [*READINGS, *TRAFFIC]
        self._refused: dict[str, str] = {}
        self._read_at_ns: dict[str, int] = {}
        self._totals: dict[str, tuple[int, float]] = {}
        self._at_ns: int | None = None
        self.n_failed = 0
        self.last_failure = ""

    def sample(self) -> Row | None:
        """The row since the last call; None the first time. Raises GpuLost."""
        begun_ns = self._clock.monotonic_ns()
        then_ns, self._at_ns = self._at_ns, begun_ns
        row = self._traffic_of_gpm(begun_ns)
        for reading in tuple(self._readings):
            read_at_ns = self._read_at_ns.get(reading.name)
            if read_at_ns is None or begun_ns >= read_at_ns + reading.period_ns - _EARLY_NS:
                self._read_at_ns[reading.name] = begun_ns
                row |= self._read(reading, begun_ns)
        if then_ns is None:
            return None
        return {
            "gpu_uuid": self.gpu_uuid, "mig_instance": self.mig_instance, "t_ns": begun_ns,
            "interval_ns": begun_ns - then_ns, "read_ns": self._clock.monotonic_ns() - begun_ns, **row,
        }  # fmt: skip

    def facts(self) -> Row:
        """Whether GPM works and why not, and the columns that stay null, with NVML's words."""
        silent = self._gpm.silent if self._gpm is not None else set(METRICS)
        unsupported = dict(self._refused)
        for name in sorted(silent):
            column = METRICS[name][0]
            if column not in _RATES:
                unsupported[column] = self.gpm_reason or "GPM gives no value"
        for name in METRICS.keys() - silent:  # what a counter refused, GPM has
            unsupported.pop(METRICS[name][0], None)
        return {
            "mig_instance": self.mig_instance, "has_gpm": self._gpm is not None, "gpm_reason": self.gpm_reason,
            "unsupported": dict(sorted(unsupported.items())), "n_failed_reads": self.n_failed,
            "last_failure": self.last_failure,
        }  # fmt: skip

    def close(self) -> None:
        """Frees what GPM holds."""
        if self._gpm is not None:
            self._gpm.close()
            self._gpm = None

    def _traffic_of_gpm(self, now_ns: int) -> Row:
        """All columns of GPM, starting it at the first call; what it covers is not read from counters."""
        if self._gpm is None:
            if not self.gpm_reason:
                self._start_gpm(now_ns)
            return {}
        row = self._guarded("gpm", (), lambda: self._gpm.take(now_ns) if self._gpm else {})
        covered = {
            reading for reading in TRAFFIC if all(row.get(name) is not None for name in reading.columns)
        }
        self._readings = [reading for reading in self._readings if reading not in covered]
        return row

    def _start_gpm(self, now_ns: int) -> None:
        try:
            self._gpm = GpmPair(self._nvml, self._gpm_get, now_ns)
        except self._nvml.NVMLError as error:
            self._raise_if_gone(error)
            self.gpm_reason = f"NVML refuses it: {error}"

    def _read(self, reading: Reading, now_ns: int) -> Row:
        row = self._guarded(reading.name, reading.columns, lambda: reading.read(self._nvml, self.handle))
        return self._changes(row, now_ns) if reading.is_total else row

    def _guarded(self, name: str, columns: tuple[str, ...], read: Callable[[], Row]) -> Row:
        """What a read gives; nothing where it fails. Refused for good: not asked again. Raises GpuLost."""
        try:
            return read()
        except self._nvml.NVMLError as error:
            self._raise_if_gone(error)
            if type(error).__name__ in _UNSUPPORTED and columns:
                self._readings = [reading for reading in self._readings if reading.name != name]
                self._refused |= dict.fromkeys(columns, str(error))
            else:
                self.n_failed += 1
                self.last_failure = f"{name}: {error}"
            return {}

    def _changes(self, totals: Row, now_ns: int) -> Row:
        """What the counters counted since they were read last, per second for rates; null where one went back."""
        row: Row = {}
        for column, total in totals.items():
            known = self._totals.get(column)
            self._totals[column] = (now_ns, total)
            if known is not None and total >= known[1] and now_ns > known[0]:
                change = total - known[1]
                row[column] = change * NS_PER_S / (now_ns - known[0]) if column in _RATES else change
        return row

    def _raise_if_gone(self, error: Exception) -> None:
        if type(error).__name__ in _GONE:
            raise GpuLost(str(error)) from error
