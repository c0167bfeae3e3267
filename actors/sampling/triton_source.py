"""Triton's own statistics of its models and its metrics, as deltas between two samples.

counters of the server   3   7   9 | restarted: 2   5
rows                       4   2      2*  3          * is_reset: counted from 0
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from squall.actors.net.access import PLAIN, Access
from squall.actors.sampling.source import OwnServer, Row, Sampled, Source
from squall.actors.sampling.triton_metrics import (
    FAILURE_REASONS,
    MetricsError,
    ModelCounters,
    failure_key,
    model_counters,
)
from squall.analysis.columns import INTERVAL, OF_SERVER, PhaseAt, T, Table, columns
from squall.scenarios.foreign_text import is_component

Key = tuple[str, str]
"""Model and version."""
Totals = Mapping[str, int]

_METRICS = "/metrics"
_BATCHES = "batches of "
_MOST_VERSIONS = 10_000
_REASON_COLUMNS = {reason: f"failure_{reason.lower()}_count" for reason in FAILURE_REASONS}

TABLES = (
    Table(
        "triton_samples",
        "statistics delta of a model between two samples",
        PhaseAt("t_ns"),
        columns(
            *OF_SERVER,
            """
            model    text  name of the model
            version  text  version of the model
            """,
            T,
            INTERVAL,
            """
            request_count           count       requests that succeeded
            failure_count           count       requests that failed; one refused for a full queue is not among them
            cache_hit_count         count?      requests of request_count that the response cache answered: they have no
                                                batch
            inference_count         count       rows inferred
            execution_count         count       executions (batches)
            queue_ns                ns          time in the scheduler's queue, summed over the requests that succeeded
            compute_input_ns        ns          time to gather inputs, summed over requests
            compute_infer_ns        ns          time in the model, summed over requests
            compute_output_ns       ns          time to scatter outputs, summed over requests
            success_ns              ns          time in the server, summed over the requests that succeeded
            batch_sizes             list:count  batch sizes in rows that were executed
            batch_counts            list:count  executions of each of batch_sizes
            pending_count           count?      requests waiting for execution at t_ns, from the metrics
            failure_rejected_count  count?      failures for a queue timeout, from the metrics: no metric counts those
                                                for a full queue
            failure_canceled_count  count?      failures because the client cancelled, from the metrics
            failure_backend_count   count?      failures in the backend, from the metrics
            failure_other_count     count?      other failures, from the metrics
            is_reset                claim       a counter went back, or the model was away before: the server or the
                                                model started anew, and this row counts from there
            """,
        ),
    ),
    Table(
        "triton_traces",
        "request that Triton's trace API recorded; requests of one batch share compute_start_ns",
        PhaseAt("request_start_ns"),
        columns(
            *OF_SERVER,
            """
            model                    text      name of the model; empty if the request never came as far as one
            version                  text      version of the model; empty as model is
            trace_id                 id        Triton's id of the trace
            parent_trace_id          id?       trace_id of the request that this one is a part of: an ensemble's, or a
                                               model's that called another
            request_id               id?       request_id of ours, in the rows of its parts too; null if the request is
                                               not ours
            protocol                 text      http or grpc; empty if the trace does not say, as for a part
            recv_start_ns            instant?  the server began to read the request (gRPC: end of its wait for one)
            recv_end_ns              instant?  the request was read: it had arrived
            request_start_ns         instant?  the request entered the core
            queue_start_ns           instant?  it entered the scheduler's queue
            compute_start_ns         instant?  its batch left the queue: the key of the batch within its model
            compute_input_end_ns     instant?  inputs were gathered
            compute_output_start_ns  instant?  the model had answered
            compute_end_ns           instant?  outputs were scattered
            request_end_ns           instant?  the core released the request: not the client's end
            send_start_ns            instant?  the server began to write the reply
            send_end_ns              instant?  the reply was handed to the network
            """,
        ),
    ),
)
"""`triton_traces` is read from files, see `squall.actors.sampling.triton_trace`."""


class TritonSource:
    """Deltas of the statistics extension, and of the metrics, of every version of some models of one server.

    What a counter gained between two samples that worked is in exactly one row, however many samples failed between:
    `interval_ns` tells how long that was. A counter that went back, or a model that was away and is here again, makes
    a row with `is_reset`, which counts from 0. Use it from one thread.
    """

    table = "triton_samples"
    late_s = 0.2
    """Triton counts a request once its answer has left: on a busy host 24 ms after its client had it."""

    def __init__(
        self,
        url: str,
        metrics_url: str | None,
        models: Sequence[str] | None,
        access: Access = PLAIN,
        with_others: bool = False,
    ) -> None:
        """`models`: names, or one name; None: every model that is ready. `metrics_url` is http, without TLS; the
        headers of `access` go there too.

        `with_others`: every other model too, from the first sample on in which it took part in anything: the steps of
        an ensemble, models that a model calls.

        Raises OSError for files of TLS that cannot be used.
        """
        from squall.actors.net.triton_control import (
            Control,  # the analysis takes the tables of this module alone
        )

        self._control = Control(url, access)
        self._metrics = Control(metrics_url, access) if metrics_url else None
        self._models = None if models is None else frozenset([models] if isinstance(models, str) else models)
        self._with_others = with_others
        self._took_part: set[Key] = set()
        self._then_ns: int | None = None
        self._statistics: dict[Key, Totals] = {}
        self._known: set[Key] = set()
        self._counted = _MetricsDeltas()
        self._n_unread = 0
        self._why_unread = ""

    def sample(self, now_ns: int) -> list[Row]:
        """A row for each version that is loaded; none at the first call.

        Raises OSError, KeyError or ValueError where the server gives no statistics: the next row covers the gap.
        """
        statistics = self._read_statistics()
        if len(self._known | statistics.keys()) > _MOST_VERSIONS:
            raise ValueError(f"the server has told of more than {_MOST_VERSIONS:,} versions of models")
        metrics = self._read_metrics()
        then_ns, self._then_ns = self._then_ns, now_ns
        before, self._statistics = self._statistics, statistics
        known, self._known = self._known, self._known | statistics.keys()
        metrics_rows = self._counted.rows(metrics, statistics.keys())
        if then_ns is None:
            return []
        rows = []
        for key, totals in statistics.items():
            delta, is_reset = _delta(totals, before.get(key, {}))
            is_reset = is_reset or (key in known and key not in before) or metrics_rows[key]["is_reset"]
            if not self._is_told(key, delta, metrics_rows[key]):
                continue
            place = {
                "model": key[0],
                "version": key[1],
                "t_ns": now_ns,
                "interval_ns": now_ns - then_ns,
            }
            rows.append({**place, **_statistics_row(delta), **metrics_rows[key], "is_reset": is_reset})
        return rows

    def _is_told(self, key: Key, delta: Totals, metrics: Row) -> bool:
        """Whether the version has a row: one that was asked for always, another once it took part in anything."""
        if self._models is None or key[0] in self._models or key in self._took_part:
            return True
        if any(delta.values()) or metrics["pending_count"]:
            self._took_part.add(key)
        return key in self._took_part

    def losses(self) -> list[str]:
        """What is missing beside samples that failed: models never seen, metrics that could not be read."""
        unseen = (self._models or frozenset()) - {model for model, _ in self._known}
        found = [
            f"{self.table}: the server gave no statistics of model {model!r}" for model in sorted(unseen)
        ]
        if self._n_unread:
            found.append(
                f"{self.table}: the metrics could not be read {self._n_unread} times, last: {self._why_unread}; "
                "their columns are null there, and the next row has what they gained"
            )
        return found

    def facts(self) -> dict[str, Any]:
        """What was sampled, for the manifest: every model and version that was ever loaded, and took part if it was not
        asked for by name."""
        told = {
            key
            for key in self._known
            if self._models is None or key[0] in self._models or key in self._took_part
        }
        return {
            "models": sorted("/".join(key) for key in told),
            "has_metrics": self._metrics is not None,
            "n_unread_metrics": self._n_unread,
        }

    def close(self) -> None:
        """Closes its connections; call when its sampler has stopped."""
        self._control.close()
        if self._metrics is not None:
            self._metrics.close()

    def _read_statistics(self) -> dict[Key, Totals]:
        """Counters of each wanted version that is loaded now; one that is unloaded is not among them."""
        from squall.actors.net.triton_models import STATISTICS

        told = self._control.ask_json(STATISTICS)["model_stats"]
        if not all(is_component(item["name"]) and is_component(str(item["version"])) for item in told):
            raise ValueError("the server gave statistics of a model that has no name")
        return {
            (item["name"], str(item["version"])): _totals(item)
            for item in told
            if self._with_others or self._models is None or item["name"] in self._models
        }

    def _read_metrics(self) -> dict[Key, ModelCounters] | None:
        """None where the server has none, or they cannot be read now."""
        if self._metrics is None:
            return None
        try:
            return model_counters(self._metrics.ask(_METRICS).decode())
        except (OSError, MetricsError, UnicodeDecodeError) as error:
            self._n_unread += 1
            self._why_unread = str(error)
            return None


def _triton(server: OwnServer) -> Source | None:
    target = server.target
    if target.url is None:
        return None
    return TritonSource(target.url, target.metrics_url, target.models, target.access, with_others=True)


SAMPLED = (Sampled("triton_samples", lambda to: to.triton_interval_ns, _triton),)


class _MetricsDeltas:
    """What the metrics' counters gained, each from its own last reading.

    They need not start anew together with the statistics: Triton keeps an unloaded model's metrics for a while.
    """

    def __init__(self) -> None:
        self._last: dict[Key, Totals] | None = None

    def rows(self, metrics: Mapping[Key, ModelCounters] | None, loaded: Collection[Key]) -> dict[Key, Row]:
        """The columns of the metrics for each of `loaded`, null where they do not tell; `metrics` None: not read."""
        rows = {key: self._row(metrics.get(key) if metrics is not None else None, key) for key in loaded}
        if metrics is not None:
            # an unloaded model's stay as they were: what they gained meanwhile is in its next row
            kept = metrics.keys() & (self._last or {}).keys() - set(loaded)
            current = {
                key: one.counters for key, one in metrics.items() if key in loaded or self._last is None
            }
            self._last = {**{key: (self._last or {})[key] for key in kept}, **current}
        return rows

    def _row(self, now: ModelCounters | None, key: Key) -> Row:
        row: Row = dict.fromkeys(_REASON_COLUMNS.values())
        if now is None or self._last is None:
            return {**row, "pending_count": now.pending_count if now else None, "is_reset": False}
        gained, is_reset = _delta(now.counters, self._last.get(key, {}))
        for reason, column in _REASON_COLUMNS.items():
            row[column] = gained.get(failure_key(reason))
        return {**row, "pending_count": now.pending_count, "is_reset": is_reset}


def _delta(now: Totals, before: Totals) -> tuple[dict[str, int], bool]:
    """What each counter gained, and whether one went back or is gone: then all of them count from 0."""
    is_reset = any(now.get(name, 0) < count for name, count in before.items())
    start = {} if is_reset else before
    return {name: count - start.get(name, 0) for name, count in now.items()}, is_reset


def _totals(item: Mapping[str, Any]) -> dict[str, int]:
    """Counters of one version since it was loaded: columns of triton_samples, and executions by batch size."""
    stats = item["inference_stats"]

    def of(name: str, field: str) -> int:
        return int(stats.get(name, {}).get(field, 0))

    return {
        "request_count": of("success", "count"), "failure_count": of("fail", "count"),
        "cache_hit_count": of("cache_hit", "count"),
        "inference_count": int(item.get("inference_count", 0)),
        "execution_count": int(item.get("execution_count", 0)),
        "queue_ns": of("queue", "ns"), "compute_input_ns": of("compute_input", "ns"),
        "compute_infer_ns": of("compute_infer", "ns"), "compute_output_ns": of("compute_output", "ns"),
        "success_ns": of("success", "ns"),
        **{
            f"{_BATCHES}{batch['batch_size']}": int(batch["compute_infer"]["count"])
            for batch in item.get("batch_stats", ())
        },
    }  # fmt: skip


def _statistics_row(delta: Totals) -> Row:
    """The columns of the statistics; batch sizes without an execution are left out."""
    batches = sorted(
        (int(name.removeprefix(_BATCHES)), count)
        for name, count in delta.items()
        if name.startswith(_BATCHES) and count
    )
    row: Row = {name: count for name, count in delta.items() if not name.startswith(_BATCHES)}
    return {
        **row,
        "batch_sizes": [size for size, _ in batches],
        "batch_counts": [count for _, count in batches],
    }
