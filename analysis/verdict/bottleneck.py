"""Was the client the limit, by what, and what has to be added? One sentence with its evidence.

Asked only where a check says that the client did not keep up. The causes, in the order in which they are looked
for: CPU of the workers, the order of sequences, the cap `max_in_flight`, CPU of their nodes, and a stall that none of
these explains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from squall.analysis.arrays import Floats
from squall.analysis.locust.users import is_locust_load
from squall.analysis.requests import workers as workers_of
from squall.analysis.requests.failures import is_cut
from squall.analysis.requests.requests import Requests, rows_in
from squall.analysis.tables.manifest import Manifest
from squall.analysis.tables.sealed import Bottleneck
from squall.analysis.verdict.client_checks import SATURATED_RATIO, SATURATED_SHARE_RATIO
from squall.analysis.verdict.run_view import RunView
from squall.analysis.verdict.user_checks import USERS_CHECK, waited_texts
from squall.analysis.wording import counted_text, duration_text, share_text
from squall.scenarios.sequences import IN_TURN

ROOMY_RATIO = 0.60
"""CPU of a worker in its busiest second at which bursts within that second still find room: what is advised."""

STOLEN = "was stolen"
CAP = "max_in_flight"
"""What the detail of a request says that the cap held back."""
ORDER = "sequence order"


@dataclass(frozen=True, eq=False)
class ClientView:
    """What the measure phases show of the client. `workers` has rows; `hosts` are those of client nodes or None.

    `inside_ratio`: share of the users' time that a closed loop spent inside the client, 0 where that is allowed.
    `waited`: clauses of what users of Locust waited for it, beyond what is allowed.
    """

    measured: Requests
    workers: pa.Table
    hosts: pa.Table | None
    manifest: Manifest
    allowed_lag_ns: int
    inside_ratio: float
    waited: Sequence[str]

    @classmethod
    def of(cls, view: RunView, workers: pa.Table) -> ClientView:
        """What the run shows to its checks, as far as it is of the client."""
        hosts = rows_in(view.samples.hosts, [span.name for span in view.spans])
        if hosts is not None:
            nodes = pa.array(sorted(set(workers.column("node").to_pylist())), pa.string())
            hosts = hosts.filter(pa.compute.is_in(hosts.column("node").cast(pa.string()), nodes))
        is_inside = view.users is not None and USERS_CHECK.name in view.unmet()
        return cls(
            view.measured,
            workers,
            hosts if hosts is not None and hosts.num_rows else None,
            view.manifest,
            view.allowed.p50_ns,
            view.users.gap_ratio if is_inside and view.users is not None else 0.0,
            waited_texts(view) if is_locust_load(view.manifest) else (),
        )

    @property
    def nodes(self) -> list[str]:
        """Nodes with workers."""
        return sorted(set(self.workers.column("node").to_pylist()))

    @property
    def clients(self) -> Mapping[str, Any]:
        """Section `clients` of the scenario."""
        clients: Mapping[str, Any] = (self.manifest.scenario or {}).get("clients", {})
        return clients

    @property
    def n_late(self) -> int:
        """Requests that left too late, or never because the client did not come to it."""
        never = self.measured.outcome.is_any_of(["unsent"]) & ~is_cut(self.measured)
        return int(never.sum()) + int((self._lags_ns() > self.allowed_lag_ns).sum())

    def n_held(self, why: str) -> int:
        """Of those, the ones whose detail says that this held them back."""
        detail = self.measured.detail
        is_held = detail.is_any_of([word for word in detail.words if why in word])
        is_late = ~self.measured.is_sent | (self.measured.lag_ns > self.allowed_lag_ns)
        return int((is_held & is_late).sum()) if self.measured.is_open else 0

    def lateness(self) -> str:
        """What waited for the client, as a clause; empty if nothing shows that anything did."""
        backlog = workers_of.peak_total(self.workers, "n_backlog")
        if backlog:
            return f"{counted_text(backlog, 'arrival was', 'arrivals were')} due and unsent"
        if self.n_late:
            words = counted_text(self.n_late, "request left", "requests left")
            return f"{words} more than {duration_text(self.allowed_lag_ns)} late"
        inside = f"{share_text(self.inside_ratio)} of the users' time passed inside it"
        return ", ".join([*([inside] if self.inside_ratio > 0 else []), *self.waited])

    def _lags_ns(self) -> Any:
        sent = self.measured.lag_ns[self.measured.is_sent]
        return sent if self.measured.is_open else np.zeros(0, dtype=np.int64)


def find_bottleneck(run: RunView) -> Bottleneck | None:
    """The client's bottleneck, of a run of which a check shows that the client was the limit.

    None without samples of its workers, and where nothing but requests that a lost worker or a refused connection left
    unsent is amiss.
    """
    if run.workers is None:
        return None
    view = ClientView.of(run, run.workers)
    return _by_worker_cpu(view) or _by_order(view) or _by_cap(view) or _by_node_cpu(view) or _by_stall(view)


def _by_worker_cpu(view: ClientView) -> Bottleneck | None:
    full = workers_of.saturation(view.workers, SATURATED_RATIO, SATURATED_SHARE_RATIO)
    if not full.n_saturated:
        return None
    evidence = f"{full.n_saturated} of {counted_text(full.n_workers, 'worker')} "
    evidence += f"{'was' if full.n_saturated == 1 else 'were'} at {share_text(full.busy_ratio)} CPU"
    if full.n_samples < full.n_samples_of:
        evidence += f" in {full.n_samples} of {full.n_samples_of} samples"
    lateness = view.lateness()
    evidence += f" while {lateness}" if lateness else ""
    advice = _more_workers(view, full)
    if is_locust_load(view.manifest):
        advice += "; a Locust worker has one core"
    return _bottleneck("worker cpu", "The client was the bottleneck", evidence, advice)


def _more_workers(view: ClientView, full: workers_of.Saturation) -> str:
    n_nodes = len(view.nodes)
    n_needed = max(full.n_workers + 1, math.ceil(workers_of.needed_cpu(view.workers) / ROOMY_RATIO))
    n_per_node = math.ceil(full.n_workers / n_nodes)
    n_needed_per_node = math.ceil(n_needed / n_nodes)
    here = f"use about {n_needed} workers (clients.workers_per_node: {n_needed_per_node})"
    idle = _idle_cores(view)
    if not idle:
        return f"{here} or more nodes"
    node, n_idle = min(idle.items(), key=lambda item: item[1])
    n_room = n_per_node + int(n_idle)
    if n_needed_per_node <= n_room:
        return f"{here}: {node} had {n_idle:.1f} cores idle"
    there = f"(clients.workers_per_node: {n_room}) on {math.ceil(n_needed / n_room)} client nodes"
    return f"use about {n_needed} workers {there}: {node} had only {n_idle:.1f} cores idle"


def _idle_cores(view: ClientView) -> dict[str, float]:
    """Mean idle cores of each client node; empty without host samples."""
    if view.hosts is None:
        return {}
    node = np.array(view.hosts.column("node").to_pylist())
    idle = (1.0 - _node_busy(view.hosts)) * workers_of.column(view.hosts, "n_cores")
    return {str(one): float(idle[node == one].mean()) for one in np.unique(node)}


def _node_busy(hosts: pa.Table) -> Floats:
    """Share of all cores that is neither idle nor waiting for a disk; what other guests took counts as busy."""
    return 1.0 - workers_of.column(hosts, "cpu_idle") - workers_of.column(hosts, "cpu_iowait")


def _by_cap(view: ClientView) -> Bottleneck | None:
    """Held back for the most part, of those late or of those waiting."""
    n_held, n_late = view.n_held(CAP), view.n_late
    held_peak = workers_of.peak_total(view.workers, "n_held")
    backlog_peak = workers_of.peak_total(view.workers, "n_backlog")
    if not (n_held and 2 * n_held >= n_late) and not (held_peak and 2 * held_peak >= backlog_peak):
        return None
    cap = view.clients.get(CAP)
    evidence = f"{CAP}{f' {cap}' if cap else ''} held back "
    evidence += (
        counted_text(n_held, "request") if n_held else f"up to {counted_text(held_peak, 'arrival')} at once"
    )
    evidence += f" while the workers were at {share_text(_mean_busy(view))} CPU, so that the lag is the cap's"
    advice = f"the server was slower than the load: raise or remove clients.{CAP}, or lower the rate"
    return _bottleneck(
        "max_in_flight", "The client was the bottleneck by its cap, not by its CPU", evidence, advice
    )


def _by_order(view: ClientView) -> Bottleneck | None:
    """Most of those late waited for the request before them in their sequence."""
    n_held = view.n_held(IN_TURN)
    if not n_held or 2 * n_held < view.n_late:
        return None
    evidence = (
        f"{counted_text(n_held, 'request')} waited for the one before in the same sequence while the workers"
    )
    evidence += f" were at {share_text(_mean_busy(view))} CPU, so that the lag is the order's"
    advice = "the server was slower than requests of a sequence are due: raise clients.sequences.concurrent"
    claim = "The client was the bottleneck by the order of sequences, not by its CPU"
    return _bottleneck(ORDER, claim, evidence, f"{advice}, or lower the rate")


def _by_node_cpu(view: ClientView) -> Bottleneck | None:
    if view.hosts is None:
        return None
    busy, names = _node_busy(view.hosts), np.array(view.hosts.column("node").to_pylist())
    is_full = busy >= SATURATED_RATIO
    shares = {str(one): float(is_full[names == one].mean()) for one in np.unique(names)}
    node, share = max(shares.items(), key=lambda item: item[1])
    if share <= SATURATED_SHARE_RATIO:
        return None
    own = view.hosts.filter(pa.array(names == node))
    n_cores = int(workers_of.column(own, "n_cores").max())
    full = share_text(float(busy[is_full & (names == node)].mean()))
    took = f"the workers took {share_text(_share_of_node(view, node, n_cores))}"
    server = own.column("server_cpu_ns").drop_null().to_numpy()
    if len(server):
        ratio = float(server.sum() / (workers_of.column(own, "interval_ns").sum() * n_cores))
        took += f" and the server {share_text(ratio)}"
    evidence = (
        f"the {counted_text(n_cores, 'core')} of {node} were {full} busy in {share_text(share)} of samples"
    )
    evidence += f", of which {took} on average"
    lateness = view.lateness()
    evidence += f", while {lateness}" if lateness else ""
    advice = "add client nodes, or move what else runs there away: more workers on this node would not help"
    return _bottleneck(
        "node cpu", "The client was the bottleneck, for want of CPU on its node", evidence, advice
    )


def _share_of_node(view: ClientView, node: str, n_cores: int) -> float:
    """CPU time of the node's workers, waiting busily included, over that of all its cores."""
    names = np.array(view.workers.column("node").to_pylist())
    own = view.workers.filter(pa.array(names == node))
    n_workers = len(set(own.column("worker").to_pylist()))
    mean = float(workers_of.column(own, "cpu_ns").sum() / workers_of.column(own, "interval_ns").sum())
    return mean * n_workers / n_cores


def _by_stall(view: ClientView) -> Bottleneck | None:
    """Late without a full CPU and without a cap: says what else was seen."""
    loop_ns = int(workers_of.column(view.workers, "loop_lag_ns").max())
    is_late = view.n_late or view.inside_ratio > 0 or view.waited or loop_ns > view.allowed_lag_ns
    if not is_late or view.manifest.losses:  # what a lost worker left unsent is no stall
        return None
    lateness = view.lateness()
    if (slow := _by_slow_path(view)) is not None:
        return slow
    seen = [f"its event loops were up to {duration_text(loop_ns)} late", *_signs(view)]
    evidence = f"{lateness}, though " if lateness else ""
    evidence += f"its workers were at {share_text(_mean_busy(view))} CPU; {', '.join(seen)}"
    advice = "see what else stops the workers (other processes, steal, power saving), or use more nodes"
    if is_locust_load(view.manifest):
        advice = f"see what users do that is no request and no wait (calls that fire no event), {advice[4:]}"
    if workers_of.column(view.workers, "n_write_pauses").any():
        advice = "the server or the network took requests in too slowly: raise clients.connections, or lower the rate"
    return _bottleneck("stall", "The client was the bottleneck, though not by its CPU", evidence, advice)


def _by_slow_path(view: ClientView) -> Bottleneck | None:
    """A closed loop whose users waited inside workers that send in Python: that is what the path takes, no stall."""
    without = [one for one in view.manifest.workers if one.no_lane]
    if not without or view.inside_ratio <= 0 or is_locust_load(view.manifest):
        return None
    if _steal(view) > view.inside_ratio / 2 or [sign for sign in _signs(view) if STOLEN not in sign]:
        return (
            None  # what was stolen can hold up as large a share of the users' time; the rest stops a worker
        )
    evidence = f"{view.lateness()}, in workers at {share_text(_mean_busy(view))} CPU: "
    evidence += workers_of.lane_text(view.manifest.workers)
    advice = "mend what keeps them from the C lane, or share the users among more workers (clients.workers_per_node)"
    return _bottleneck(
        "slow path", "The client was the bottleneck, by its slower path in Python", evidence, advice
    )


def _signs(view: ClientView) -> list[str]:
    """What the samples show beside CPU, where there is any of it."""
    signs = []
    if n := int(workers_of.column(view.workers, "n_write_pauses").sum()):
        signs.append(f"{counted_text(n, 'send')} found the socket full")
    if n := int(workers_of.column(view.workers, "n_socket_errors").sum()):
        signs.append(f"{counted_text(n, 'connection')} failed or broke")
    gc_ns = float(workers_of.column(view.workers, "gc_pause_ns").max())
    if gc_ns > view.allowed_lag_ns:
        signs.append(f"garbage collections took up to {duration_text(gc_ns)} of a sample")
    if (steal := _steal(view)) > 0.01:
        signs.append(f"up to {share_text(steal)} of its node's CPU {STOLEN}")
    return signs


def _steal(view: ClientView) -> float:
    """The largest share of the client nodes' CPU that a sample saw stolen; 0 without samples."""
    return 0.0 if view.hosts is None else float(workers_of.column(view.hosts, "cpu_steal").max())


def _mean_busy(view: ClientView) -> float:
    return float(workers_of.busy_ratios(view.workers).mean())


def _bottleneck(cause: str, claim: str, evidence: str, advice: str) -> Bottleneck:
    sentence = f"{claim}: {evidence}; {advice}."
    return Bottleneck(cause=cause, sentence=sentence, evidence=evidence, advice=advice)
