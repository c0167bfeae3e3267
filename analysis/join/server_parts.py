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

MEANS = f"""
-- Sums over the requests that ended ok in a second.
WITH served_sums AS (
    SELECT e.server, e.model, r.phase, r.done_ns // {NS_PER_S} AS second, count(*) AS n_joined,
        sum(r.done_ns - r.sent_ns) AS service_ns, sum(e.end_ns - e.start_ns) AS compute_ns
    FROM served r JOIN placed e USING (place)
    WHERE r.is_ok AND (e.server, e.model) NOT IN (
        SELECT (e.server, e.model) FROM served r JOIN placed e USING (place) WHERE r.is_ok
        GROUP BY e.server, e.model HAVING count(DISTINCT r.request_kind) > 1)
    GROUP BY ALL),
-- The same by Triton's statistics.
triton_sums AS (
    SELECT server, model, phase, (t_ns - interval_ns // 2) // {NS_PER_S} AS second,
        sum(request_count - coalesce(cache_hit_count, 0)) AS n_triton,
        sum(queue_ns + compute_input_ns + compute_infer_ns + compute_output_ns) AS server_ns,
        sum(compute_input_ns) AS input_ns, sum(compute_infer_ns) AS infer_ns, sum(compute_output_ns) AS output_ns
    FROM triton_samples GROUP BY ALL)
SELECT server, model, second, phase,
    CAST(sum(output_ns) // sum(n_triton) AS BIGINT) AS mean_output_ns,
    CAST(sum(input_ns) // sum(n_triton) AS BIGINT) AS mean_input_ns,
    CAST(greatest(0, sum(infer_ns) // sum(n_triton) - sum(compute_ns) // sum(n_joined)) AS BIGINT) AS mean_handover_ns,
    CAST(greatest(0, sum(service_ns) // sum(n_joined) - sum(server_ns) // sum(n_triton)) AS BIGINT) AS mean_network_ns
FROM (SELECT * FROM served_sums UNION ALL BY NAME SELECT * FROM triton_sums)
GROUP BY GROUPING SETS ((server, model, second), (server, model, phase))
HAVING sum(n_triton) >= if(second IS NULL, 1, {LEAST_REQUESTS})
    AND sum(n_joined) >= if(second IS NULL, 1, {LEAST_REQUESTS})
"""
"""Query for file `means`: of the second, whatever the phase, and of the phase, whose second is null. Exact sums, so
that they are the same whatever the order of the rows."""

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
