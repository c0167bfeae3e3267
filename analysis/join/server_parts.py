"""Where the time of a request goes: what lies between its send and its batch, and between its batch and its end.

    sent            queue_start  compute_start  input_end    output_start  compute_end  send_end         done
     │── network ────│── queue ───│── input ─────│─ infer ────│── output ───│─ residual ─│── network ──────│
                                                 │hand│compute│over│

    latency = lag + network + queue + input + handover + compute + output + residual

lag and compute (the model's own execution, `executions`) are measured for each request; a closed loop has no lag.
The others, which `joined.parts_level` tells the source of:

trace       Triton's trace of this request has the instants above. queue, input and output are differences of these;
            handover = infer - compute, at least 0, for the batch lies within infer; network = (queue_start - sent) +
            (done - send_end), at least 0, in which the offset of two clocks cancels. So the residual is the time from
            the core to the server's front end on the way out, less what a record takes beyond Triton's own infer.
            A trace without the end of its sending has compute_end instead. Of several rows of a request at its model
            the one whose batch starts first counts; its sending ends with the last of all its rows at the server, for
            the parts of an ensemble send nothing themselves.
statistics  Means of the second in which the request ended, by server and model. With Triton's sums over its n_t
            requests that ended in that second and that it executed, which the response cache did not answer
            (`triton_samples`, by the middle of their interval), and ours over the
            n_j requests that ended ok in it and have a batch, rounded down to ns:
                input    = Σ compute_input / n_t            output = Σ compute_output / n_t
                handover = Σ compute_infer / n_t - Σ (batch_end - batch_start) / n_j, at least 0
                network  = Σ (done - sent) / n_j - Σ (queue + input + infer + output) / n_t, at least 0
            Half of network and of handover lies on either side of the batch. The queue is what is left of the
            request's own wait before its batch:
                queue    = wait - network / 2 - input - handover / 2, from 0 to wait
            The residual is then what is left of the time after its batch. In the mean it is how far the queue so found
            is from Triton's own, and 0 where nothing was cut at 0; of one request it is how far it is from the mean.
            With fewer than `LEAST_REQUESTS` of either kind in the second, the means are those of the request's phase.
            A model that requests of several kinds belong to, those that ask it and those of an ensemble with it as a
            step, has no such means: Triton's do not tell them apart.
none        neither is there: the parts are null.

A request that its client gave up before its batch ended has its parts all the same; the residual is then negative.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from squall.scenarios.units import NS_PER_S

LEAST_REQUESTS = 30
"""Of a second: a mean of fewer is off by more than a fifth of what single requests are."""

PARTS = (
    "lag_ns",
    "network_ns",
    "queue_ns",
    "input_ns",
    "handover_ns",
    "compute_ns",
    "output_ns",
    "residual_ns",
)
"""Columns of `joined` that add up to the latency, where parts_level is not none; lag_ns is null in a closed loop."""
LEVELS = ("none", "trace", "statistics")

Columns = Mapping[str, pa.Array]
"""Columns of the same rows, by name; int64."""

_OF_SEVERAL = """
SELECT (e.server, e.model) FROM served r JOIN placed e USING (place) WHERE r.is_ok
GROUP BY e.server, e.model HAVING count(DISTINCT r.request_kind) > 1
"""
SERVED_SUMS = f"""
-- Sums over the requests that ended ok in a second.
CREATE TEMP TABLE served_sums AS
SELECT e.server, e.model, r.phase, r.done_ns // {NS_PER_S} AS second, count(*) AS n_joined,
    sum(r.done_ns - r.sent_ns) AS service_ns, sum(e.end_ns - e.start_ns) AS compute_ns
FROM served r JOIN placed e USING (place) WHERE r.is_ok AND (e.server, e.model) NOT IN ({_OF_SEVERAL})
GROUP BY ALL
"""
NO_TRITON_SUMS = """
-- The same by Triton's statistics.
CREATE TEMP TABLE triton_sums(
    server VARCHAR, model VARCHAR, phase VARCHAR, second BIGINT, n_triton HUGEINT, server_ns HUGEINT,
    input_ns HUGEINT, infer_ns HUGEINT, output_ns HUGEINT)
"""
TRITON_SUMS = """
INSERT INTO triton_sums
SELECT server, model, phase, (t_ns - interval_ns // 2) // 1000000000 AS second,
    sum(request_count - {cached}),
    sum(queue_ns + compute_input_ns + compute_infer_ns + compute_output_ns),
    sum(compute_input_ns), sum(compute_infer_ns), sum(compute_output_ns)
FROM triton_samples GROUP BY ALL
"""
_MEANS = """
SELECT m.model_place, {key},
    CAST(sum(output_ns) // sum(n_triton) AS BIGINT) AS output_ns,
    CAST(sum(input_ns) // sum(n_triton) AS BIGINT) AS input_ns,
    CAST(greatest(0, sum(infer_ns) // sum(n_triton) - sum(compute_ns) // sum(n_joined)) AS BIGINT) AS handover_ns,
    CAST(greatest(0, sum(service_ns) // sum(n_joined) - sum(server_ns) // sum(n_triton)) AS BIGINT) AS network_ns
FROM (SELECT * FROM served_sums UNION ALL BY NAME SELECT * FROM triton_sums) JOIN models m USING (server, model)
GROUP BY m.model_place, {key} HAVING sum(n_triton) >= {least} AND sum(n_joined) >= {least}
ORDER BY m.model_place, {key}
"""
SECOND_MEANS = _MEANS.format(key="second", least=LEAST_REQUESTS)
PHASE_MEANS = _MEANS.format(key="phase", least=1)
"""Exact sums, so that they are the same whatever the order of the rows."""

TRACES = """
SELECT request_id, core.*, greatest(core.compute_end_ns, send_end_ns) AS left_ns
FROM (
    SELECT s.request_id, max(t.send_end_ns) AS send_end_ns,
        arg_min({'queue_start_ns': queue_start_ns, 'compute_start_ns': compute_start_ns,
            'input_end_ns': compute_input_end_ns, 'output_start_ns': compute_output_start_ns,
            'compute_end_ns': compute_end_ns}, compute_start_ns) FILTER (t.model = p.model
            AND queue_start_ns IS NOT NULL AND compute_input_end_ns IS NOT NULL
            AND compute_output_start_ns IS NOT NULL AND compute_end_ns IS NOT NULL) AS core
    FROM served s JOIN placed p USING (place)
    JOIN triton_traces t ON t.request_id = s.request_id AND t.server = p.server
    GROUP BY s.request_id)
WHERE core IS NOT NULL
ORDER BY request_id
"""
"""Query for file `traces`: of a request with a batch the instants of its trace at the server and model of that."""
NO_TRACES = """
SELECT NULL::BIGINT AS request_id, NULL::BIGINT AS queue_start_ns, NULL::BIGINT AS compute_start_ns,
    NULL::BIGINT AS input_end_ns, NULL::BIGINT AS output_start_ns, NULL::BIGINT AS compute_end_ns,
    NULL::BIGINT AS left_ns WHERE false
"""


def server_parts(request: Columns, batch: Columns, trace: Columns, mean: Columns) -> dict[str, pa.Array]:
    """The columns of `joined` from parts_level to residual_ns, and idle_wait_ns, of the same rows.

    `request`: sent_ns, done_ns. `batch`: start_ns, end_ns, gap_before_ns (null: the first of its instance, idle ever
    before). `trace`: the columns of `TRACES`; `mean`: those of `means`. All null where there is none.
    """
    sent, done, start = request["sent_ns"], request["done_ns"], batch["start_ns"]
    compute, service = pc.subtract(batch["end_ns"], start), pc.subtract(done, sent)
    is_whole = pc.is_valid(pc.subtract(service, compute))
    is_traced = pc.and_(is_whole, pc.is_valid(trace["left_ns"]))
    is_meant = pc.and_(pc.and_not(is_whole, is_traced), pc.is_valid(mean["network_ns"]))
    traced = _traced_parts(sent, done, compute, trace)
    meant = _mean_parts(sent, start, mean)
    nothing = pa.scalar(None, pa.int64())
    parts = {
        name: pc.if_else(is_traced, traced[name], pc.if_else(is_meant, meant[name], nothing))
        for name in traced
    }
    idle_since = pc.max_element_wise(parts.pop("arrived_ns"), pc.subtract(start, batch["gap_before_ns"]))
    idle = pc.max_element_wise(pc.subtract(start, idle_since), 0)
    level = pc.if_else(is_traced, 1, pc.if_else(is_meant, 2, 0)).cast(pa.int32())
    residual = service
    for part in (*parts.values(), compute):
        residual = pc.subtract(residual, part)
    return {
        "parts_level": pa.DictionaryArray.from_arrays(level, pa.array(LEVELS)),
        **parts,
        "residual_ns": residual,
        "idle_wait_ns": pc.if_else(pc.or_(is_traced, is_meant), idle, nothing),
    }


def _traced_parts(sent: pa.Array, done: pa.Array, compute: pa.Array, trace: Columns) -> dict[str, pa.Array]:
    queue_start, input_end, output_start = (
        trace[f"{name}_ns"] for name in ("queue_start", "input_end", "output_start")
    )
    outside = pc.add(pc.subtract(queue_start, sent), pc.subtract(done, trace["left_ns"]))
    handover = pc.subtract(pc.subtract(output_start, input_end), compute)
    return {
        "network_ns": pc.max_element_wise(outside, 0),
        "queue_ns": pc.subtract(trace["compute_start_ns"], queue_start),
        "input_ns": pc.subtract(input_end, trace["compute_start_ns"]),
        "handover_ns": pc.max_element_wise(handover, 0),
        "output_ns": pc.subtract(trace["compute_end_ns"], output_start),
        "arrived_ns": queue_start,
    }


def _mean_parts(sent: pa.Array, start: pa.Array, mean: Columns) -> dict[str, pa.Array]:
    wait, way_in = pc.subtract(start, sent), pc.divide(mean["network_ns"], 2)
    before = pc.add(pc.add(way_in, mean["input_ns"]), pc.divide(mean["handover_ns"], 2))
    return {
        **{name: mean[name] for name in ("network_ns", "input_ns", "handover_ns", "output_ns")},
        "queue_ns": pc.max_element_wise(pc.subtract(wait, before), 0),
        "arrived_ns": pc.add(sent, way_in),
    }


def share_of(whole: pa.Array, rows_before: pa.Array, rows: pa.Array, batch_rows: pa.Array) -> pa.Array:
    """The part of `whole` that falls to `rows` after `rows_before` of `batch_rows`: floor(K c / R) - floor(K b / R).

    K c / R = (K // R) c + (K % R) c / R, whose products stay in int64. Null for an empty batch.
    """
    all_rows = pc.if_else(pc.greater(batch_rows, 0), batch_rows, pa.scalar(None, pa.int64()))
    quotient = pc.divide(whole, all_rows)
    rest = pc.subtract(whole, pc.multiply(quotient, all_rows))

    def up_to(rows: pa.Array) -> Any:
        count = pc.min_element_wise(rows, all_rows, skip_nulls=False)
        return pc.add(pc.multiply(quotient, count), pc.divide(pc.multiply(rest, count), all_rows))

    return pc.subtract(up_to(pc.add(rows_before, rows)), up_to(rows_before))
