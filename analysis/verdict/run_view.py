"""A run as its checks look at it: its requests, its samples, and what is made of them once for several checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import pyarrow as pa

from squall.analysis.limits import LIMITS, allowed_lag_ns
from squall.analysis.requests.closed_loop import UserTime
from squall.analysis.requests.failures import failures_of, is_cut, is_lost, is_unreached
from squall.analysis.requests.named_rows import RowsByName, rows_by_name
from squall.analysis.requests.requests import Requests, rows_in
from squall.analysis.requests.stimulus import Stimulus, sends_of, verify
from squall.analysis.requests.user_watch import LocustTime, locust_time
from squall.analysis.requests.users import is_locust_load, users_of_run
from squall.analysis.statistics.order_statistics import rank_value
from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.sealed import CheckResult, Failures
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import RunPhase, measure_spans
from squall.analysis.verdict.check import SENDS, Check
from squall.analysis.verdict.cpu_shares import CpuShares, cpu_shares, in_flight_by_node, programs_of
from squall.analysis.verdict.gpu_shares import TABLES as GPU_TABLES
from squall.analysis.verdict.gpu_shares import GpuShares, gpu_shares
from squall.analysis.verdict.lag_parts import JUDGED, LagPart, lag_parts
from squall.scenarios.records import Frozen

HUB_LAG_NS = 5_000_000
"""Locust: lag that is always allowed, in place of `lag_ns`: its hub has coarse timers and runs all users in turn. Ten
users at 2 % CPU had 1.6 ms (FastHttpUser) and 3.6 ms (HttpUser) at the p95, sixty at 37 % had 8.3 ms, three hundred at
81 % 89 ms (Locust 2.47.0, a shared host with 2 cores, 2026-11-26)."""


class Samples(Frozen, eq=False):
    """What was sampled beside the requests; None where the table is absent."""

    workers: pa.Table | None = None
    hosts: pa.Table | None = None
    cpus: pa.Table | None = None
    locust_users: pa.Table | None = None
    """All of `locust_samples`, of a run whose load was Locust's."""
    locust_rows: RowsByName | None = None
    """The requests of such a run by Locust's names."""
    gpus: Mapping[str, pa.Table | None] = field(default_factory=dict)
    """What `gpu_shares` reads, of the whole run: what the GPUs do by themselves shows where no load is."""

    @classmethod
    def read(cls, store: RunStore) -> Samples:
        """Those of a run; nothing of the use of GPUs where these were not sampled."""

        def read(name: str, columns: Sequence[str] = ()) -> pa.Table | None:
            return store.read(name, list(columns) or None) if store.has(name) else None

        is_locust, has_gpus = is_locust_load(store.manifest), store.has("gpu_samples")
        return cls(
            read("worker_samples"),
            read("host_samples"),
            read("cpu_samples"),
            locust_users=read("locust_samples") if is_locust else None,
            locust_rows=rows_by_name(store) if is_locust and store.has("requests") else None,
            gpus={name: read(name, columns) for name, columns in GPU_TABLES.items()} if has_gpus else {},
        )


class AllowedLag(NamedTuple):
    """Of a phase: what its latency p50 allows to a median lag, and its p95 to a p95 of lags."""

    p50_ns: int
    p95_ns: int


@dataclass(eq=False)
class RunView:
    """A run as its checks look at it: most of its measure phases."""

    everything: Requests
    samples: Samples
    manifest: Manifest
    results: dict[str, tuple[Check, CheckResult]] = field(default_factory=dict)
    """Of the checks so far, by name, in their order."""

    @classmethod
    def read(cls, store: RunStore) -> RunView:
        """Of a run, open or sealed. Raises `MissingTable` if there are no requests."""
        return cls(Requests.read(store), Samples.read(store), store.manifest)

    @cached_property
    def stimuli(self) -> Sequence[Stimulus]:
        """Planned against sent in each measure phase; none of a closed loop, which plans no instants."""
        spans = self.spans if self.everything.is_open else ()
        return [verify(sends, LIMITS) for sends in sends_of(self.everything, spans)]

    @property
    def loaded(self) -> Sequence[Stimulus]:
        """Of the phases that have arrivals: others have nothing to deliver."""
        return [one for one in self.stimuli if one.n_planned]

    @cached_property
    def cpus(self) -> Sequence[CpuShares]:
        """Who had the CPU of each node in each measure phase, and what that did there; none without samples."""
        if self.samples.cpus is None:
            return ()
        in_flight = in_flight_by_node(self.everything, self.manifest)
        found = cpu_shares(self.samples.cpus, [span.name for span in self.spans], in_flight)
        return [replace(one, programs=programs_of(self.manifest, one.node)) for one in found]

    @cached_property
    def gpus(self) -> Sequence[GpuShares]:
        """Who used the GPUs of the servers in each measure phase, and what that did to the requests."""
        return gpu_shares(self.samples.gpus, self.everything, self.manifest)

    @cached_property
    def spans(self) -> Sequence[RunPhase]:
        """The measure phases."""
        return measure_spans(self.manifest)

    @cached_property
    def measured(self) -> Requests:
        """The requests of the measure phases."""
        return self.everything.in_phases([span.name for span in self.spans])

    @cached_property
    def by_phase(self) -> dict[str, Requests]:
        """The requests of each measure phase, where there are several."""
        if len(self.spans) < 2:
            return {}
        return {span.name: self.measured.in_phases([span.name]) for span in self.spans}

    @cached_property
    def workers(self) -> pa.Table | None:
        """Samples of the workers in the measure phases; None without any."""
        found = rows_in(self.samples.workers, [span.name for span in self.spans])
        return found if found is not None and found.num_rows else None

    @cached_property
    def failures(self) -> Failures:
        """Of the measured requests."""
        return failures_of(self.measured, self.manifest.scenario)

    @property
    def unreached_ratio(self) -> float:
        """Share of the measured requests for which there was no connection to the server."""
        return self.failures.n_unreached / self.failures.n

    @cached_property
    def n_unsent(self) -> int:
        """Measured arrivals never sent for the client's sake."""
        own = self.measured
        return int((~own.is_sent & ~is_unreached(own) & ~is_lost(own) & ~is_cut(own)).sum())

    @cached_property
    def users(self) -> UserTime | None:
        """Where the time of the users of a closed loop went; None of an open one, and where it is not known."""
        if self.everything.is_open:
            return None
        return users_of_run(self.everything, self.spans, self.manifest, self.samples.locust_users)

    @cached_property
    def watched(self) -> LocustTime | None:
        """How Locust's users were watched, in the measure phases; None where they were not."""
        samples = self.samples.locust_users
        return locust_time(samples, self.spans) if samples is not None and samples.num_rows else None

    @cached_property
    def allowed(self) -> AllowedLag:
        """Of all measure phases together."""
        return allowed_lag(self.measured, HUB_LAG_NS if is_locust_load(self.manifest) else LIMITS.lag_ns)

    @cached_property
    def allowed_by_phase(self) -> dict[str, AllowedLag]:
        """Of each measure phase."""
        own = {name: allowed_lag(requests, LIMITS.lag_ns) for name, requests in self.by_phase.items()}
        return own or {span.name: self.allowed for span in self.spans}

    @cached_property
    def lag_parts(self) -> dict[float, list[LagPart | None]]:
        """By quantile, of all measure phases together and, of several, of each."""
        found = [lag_parts(own, JUDGED) for own in (self.measured, *self.by_phase.values())]
        return {q: [of_phase[index] for of_phase in found] for index, q in enumerate(JUDGED)}

    def unmet(self, *shows: str) -> list[str]:
        """Names of the checks so far that are not met, of those that show one of these, or of all."""
        return [
            result.name
            for check, result in self.results.values()
            if result.is_unmet and (not shows or check.shows in shows)
        ]

    @property
    def is_late(self) -> bool:
        """Whether anything was done to the sends, by the checks so far."""
        return bool(self.unmet(SENDS))


def allowed_lag(measured: Requests, always_ns: int) -> AllowedLag:
    """What the p50 and the p95 of the latencies that ended ok allow to the same quantiles of lags, `always_ns` at
    least."""
    latency_ns = measured.latency_ns[measured.is_ok]
    p50_ns, p95_ns = (allowed_lag_ns(rank_value(latency_ns, q) or 0, always_ns) for q in (0.50, 0.95))
    return AllowedLag(p50_ns, p95_ns)


def has_measured(view: RunView) -> bool:
    """Whether any request was due in a measure phase."""
    return len(view.measured) > 0


def is_open(view: RunView) -> bool:
    """Whether the run had a schedule that its measured sends can be held to."""
    return has_measured(view) and view.everything.is_open


def has_users(view: RunView) -> bool:
    """Whether the load was a closed loop whose users' time is known."""
    return has_measured(view) and view.users is not None


def is_locust(view: RunView) -> bool:
    """Whether the load was Locust's."""
    return is_locust_load(view.manifest) and bool(view.spans)
