"""What the GPU did while a request was at a server whose batches of its model give no ids, or whose model is decoupled:
sums over the server's kernels up to any instant. Of several models these are of all: no kernel is said to be a model's.

A kernel counts for an interval if it starts in it, so that intervals that touch count each kernel once. Time in which
any kernel ran, up to t, is what all kernels that start by t cover, less what lies beyond t: that is one piece, from t
to the last end among them, for all of these began before.

Of a server that the kernel library recorded in windows, requests that one window holds from send to end have sums.

The state of a GPU at an instant is that of the NVML sample which holds it.
"""

from __future__ import annotations

COLUMNS = ("util", "sm_util", "sm_clock_hz", "throttle_reasons")
"""Columns of `gpu_samples` that are the state; `joined` has them with gpu_ in front."""

GPU_STATES = """
-- NVML sample of a whole GPU: of a GPU and its MIG instances the whole one counts, else the first. is_only: no other
-- GPU of the node was sampled.
CREATE TEMP TABLE gpu_states AS
SELECT node, gpu_uuid, t_ns, interval_ns, util, sm_util, sm_clock_hz, throttle_reasons,
    count(DISTINCT gpu_uuid) OVER (PARTITION BY node) = 1 AS is_only
FROM gpu_samples
QUALIFY mig_instance = min(mig_instance) OVER (PARTITION BY node, gpu_uuid);
"""
GPU_STATE = ", ".join(
    f"CASE WHEN g.t_ns - {{at}} < g.interval_ns THEN g.{name} END AS gpu_{name}" for name in COLUMNS
)
"""Of sample `g`, the first of its GPU that ends at instant `at` or after it, if it holds that."""

MEANWHILE = """
-- Servers and what some request asks of them, with none of these in any batch; has_ids: some in one of a decoupled
-- model.
CREATE TEMP TABLE silent AS
SELECT server, request_kind, false AS has_ids FROM (SELECT DISTINCT target AS server, request_kind FROM requests)
ANTI JOIN (SELECT DISTINCT p.server, s.request_kind FROM served s JOIN placed p USING (place))
    USING (server, request_kind)
UNION ALL
SELECT DISTINCT p.server, s.request_kind, true FROM served s JOIN placed p USING (place)
SEMI JOIN decoupled USING (server, model);

-- Silent server and phase with kernels: its node, and its GPU with most kernel time.
CREATE TEMP TABLE silent_phases AS
SELECT k.server, k.phase, min(k.node) AS node, arg_max(k.gpu_uuid, (k.kernel_ns, k.gpu_uuid)) AS gpu_uuid
FROM (SELECT server, phase, gpu_uuid, min(node) AS node, sum(end_ns - start_ns) AS kernel_ns
    FROM kernels SEMI JOIN silent USING (server) WHERE end_ns >= start_ns GROUP BY ALL) k
GROUP BY k.server, k.phase;

-- Instant at which kernels of a silent server start: sums over all that start by then, and the last end among them.
CREATE TEMP TABLE meanwhile AS
SELECT DISTINCT server, start_ns, count(*) OVER own AS n_kernels,
    CAST(sum(end_ns - start_ns) OVER own AS BIGINT) AS kernel_ns,
    CAST(sum(greatest(0, end_ns - greatest(start_ns, before_ns))) OVER own AS BIGINT) AS busy_ns,
    max(end_ns) OVER own AS reached_ns
FROM (SELECT server, start_ns, end_ns, coalesce(max(end_ns) OVER (PARTITION BY server ORDER BY start_ns, end_ns
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), start_ns) AS before_ns
    FROM kernels SEMI JOIN silent_phases USING (server) WHERE end_ns >= start_ns)
WINDOW own AS (PARTITION BY server ORDER BY start_ns)
"""

_GONE = """
SELECT r.request_id, r.target, r.sent_ns, r.done_ns, p.node, p.gpu_uuid
FROM first_rows r JOIN silent_phases p ON p.server = r.target AND p.phase = r.phase
JOIN silent s ON s.server = r.target AND s.request_kind = r.request_kind
    AND (NOT s.has_ids OR r.request_id IN (
        SELECT s.request_id FROM served s
        JOIN (FROM placed SEMI JOIN decoupled USING (server, model)) p USING (place)))
ASOF LEFT JOIN recorded_windows v ON v.server = r.target AND r.sent_ns >= v.start_ns
WHERE r.sent_ns IS NOT NULL AND r.done_ns IS NOT NULL
    AND (r.done_ns <= v.end_ns OR r.target NOT IN (SELECT server FROM recorded_windows))
"""
_AT = """
SELECT r.*, coalesce(m.n_kernels, 0) AS n_kernels_{edge}, coalesce(m.kernel_ns, 0) AS kernel_ns_{edge},
    coalesce(m.busy_ns - greatest(0, m.reached_ns - r.{edge}_ns), 0) AS busy_ns_{edge}
FROM ({rows}) r ASOF LEFT JOIN meanwhile m ON m.server = r.target AND r.{edge}_ns > m.start_ns
"""
WHILE_THERE = f"""
SELECT w.request_id, w.gpu_uuid, n_kernels_done - n_kernels_sent AS n_kernels,
    kernel_ns_done - kernel_ns_sent AS kernel_ns, busy_ns_done - busy_ns_sent AS kernel_busy_ns,
    {GPU_STATE.format(at="w.sent_ns")}
FROM ({_AT.format(edge="done", rows=_AT.format(edge="sent", rows=_GONE))}) w
ASOF LEFT JOIN gpu_states g ON g.node = w.node AND g.gpu_uuid = w.gpu_uuid AND w.sent_ns <= g.t_ns
ORDER BY w.request_id
"""
"""What the GPU did from the send to the end of each request that asks a model whose batches at its server give no ids,
and of each that belongs to a decoupled model, in a phase in which the server has kernels; its GPU is that with most
kernel time in that phase, and its state that at the send. Of a repeated id the first row counts."""
