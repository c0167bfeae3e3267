"""Where the time of the p99 requests goes, and what grew most against those up to the median.

Of the requests of a phase and server that ended ok, of several models under load of each: the tail are those at or
beyond the p99 of the latency, the base those up to its median (both by nearest rank). Each latency is the sum of its
parts, row by row:

    lag + network + queue + input + handover + output + residual + batch         where these parts are known
    lag + wait + reply + batch                                                   where only the batch is
    lag + unjoined                                                               where not even that is
    batch = kernel_busy + copy_exposed + sync_wait + launch_idle + head + tail   where seen on a GPU, else compute
                                         body_idle, of calls that were not recorded

so that the means of the parts add up to the mean latency, and their growth to its growth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from squall.analysis.findings.confidence import Reason, RunState
from squall.analysis.findings.finding import UNASSESSED, Evidence, Finding, Scope, link, lowered
from squall.analysis.findings.sent import Sent
from squall.analysis.findings.shares import BODY_PARTS, LATENCY
from squall.analysis.statistics.latency import smallest_n
from squall.analysis.storage.parquet import literal
from squall.analysis.wording import count_text, duration_text, share_text
from squall.scenarios.records import Frozen

if TYPE_CHECKING:
    import duckdb

Q = 0.99

_SPLIT = ("network", "queue", "input", "handover", "output", "residual")
_BATCH = (*BODY_PARTS, "head", "tail")
TAIL_PARTS = ("lag", *_SPLIT, *_BATCH, "body_idle", "wait", "compute", "reply", "unjoined")
_IDLE = "greatest(0, compute_ns - kernel_busy_ns - copy_exposed_ns - head_ns - tail_ns)"

OUTSIDE = "network and other steps"
"""What `network` is of requests that pass several models: all outside of the one that they are joined to."""

FAILED_RATIO = 0.01
"""Of the requests, as many did not end ok as the tail has: with their latencies in it, the p99 would be another."""

NEXT_STEPS = {
    "lag": "The client sent late: see the checks of the verdict.",
    "network": "Look at the network, the server's front end and the client's own lag in that time.",
    "queue": "The tail waits for batches before it: see what arrives together (table windows) and what a batch costs.",
    "input": "The server gathers inputs slowly: look at the sizes of requests and at shared memory.",
    "handover": "The core hands over to the model's process slowly: look at the CPU of the node and its run queue.",
    "output": "The server scatters outputs slowly: look at the sizes of replies.",
    "residual": "Nothing recorded explains it: record Triton's trace of each request.",
    "wait": "Record Triton's statistics or trace: they split network from queue.",
    "reply": "Record Triton's statistics or trace: they split the way back.",
    "unjoined": "Its batches are unknown: see Triton's statistics, and the share of requests that were joined.",
}
"""What to do about a part that grew; of the batch's parts the finding of the body level says."""


_SHOWN = ("request_id", "batch_id", f"{LATENCY} AS latency_ns")


class Tail(Frozen):
    """Means over the `n` requests of the tail and the `n_base` of the base, ns, by part; all parts of both. `model`:
    what they ask, empty where the run has one."""

    phase: str
    server: str
    model: str
    n: int
    n_base: int
    p99_ns: int
    median_ns: int
    parts_ns: Mapping[str, float]
    base_ns: Mapping[str, float]

    @property
    def latency_ns(self) -> float:
        """Mean latency of the tail."""
        return sum(self.parts_ns.values())

    @property
    def growth_ns(self) -> dict[str, float]:
        """By how much each part is longer than in the base."""
        return {part: value - self.base_ns[part] for part, value in self.parts_ns.items()}

    @property
    def grew_most(self) -> str:
        """The part that grew most."""
        return max(self.growth_ns, key=lambda part: self.growth_ns[part])

    @property
    def where(self) -> str:
        """SQL condition for its rows in `joined`."""
        own = f"phase = {literal(self.phase)} AND target = {literal(self.server)} AND outcome = 'ok'"
        if self.model:
            own += f" AND request_kind = {literal(self.model)}"
        return f"{own} AND {LATENCY} >= {self.p99_ns}"


Key = tuple[str, str, str]
"""Phase, server and, of several models under load, the model; else that is empty."""


def part_columns() -> dict[str, str]:
    """SQL over a row of `joined` for each of `TAIL_PARTS` but the last: ns, 0 where it has no such part."""
    split = "parts_level <> 'none'"
    on_gpu = "coalesce(n_kernels + n_copies, 0) > 0"
    plain = f"NOT ({split}) AND compute_ns IS NOT NULL"
    parts = {
        "lag": "coalesce(lag_ns, 0)",
        **{part: f"CASE WHEN {split} THEN coalesce({part}_ns, 0) ELSE 0 END" for part in _SPLIT},
        **{part: f"CASE WHEN {on_gpu} THEN coalesce({part}_ns, 0) ELSE 0 END" for part in _BATCH},
        "body_idle": f"CASE WHEN {on_gpu} AND sync_wait_ns IS NULL THEN coalesce({_IDLE}, 0) ELSE 0 END",
        "wait": f"CASE WHEN {plain} THEN wait_ns ELSE 0 END",
        "compute": f"CASE WHEN {on_gpu} THEN 0 ELSE coalesce(compute_ns, 0) END",
        "reply": f"CASE WHEN {plain} THEN reply_ns ELSE 0 END",
    }
    return {part: parts[part] for part in TAIL_PARTS[:-1]}


def whole_parts(latency_ns: float, values: Sequence[float]) -> dict[str, float]:
    """Means of `part_columns` by name, ns; what of the mean latency no part explains is `unjoined`."""
    rest_ns = latency_ns - sum(values)
    parts = dict(zip(TAIL_PARTS, values, strict=False))
    return {**parts, "unjoined": rest_ns if abs(rest_ns) >= 1.0 else 0.0}  # below 1 ns it is rounding


_MEANS = ", ".join(f"avg({part})" for part in ("latency_ns", *part_columns().values()))
_TAILS = f"""
-- Of each phase, server and model the means of latency and parts over its tail and over its base.
WITH ok AS (
    SELECT *, {LATENCY} AS latency_ns, CASE WHEN (
        SELECT count(DISTINCT request_kind) FILTER (request_kind <> '') FROM joined) > 1
        THEN request_kind ELSE '' END AS model
    FROM joined WHERE outcome = 'ok' AND list_contains($phases, phase)),
edges AS (
    SELECT phase, target, model, count(*) AS n_ok, min(sent_ns) AS first_ns,
        quantile_disc(latency_ns, {Q}) AS p99_ns, quantile_disc(latency_ns, 0.5) AS median_ns
    FROM ok GROUP BY ALL)
SELECT phase, target, model, any_value(n_ok), any_value(n) FILTER (is_tail),
    coalesce(any_value(n) FILTER (NOT is_tail), 0), any_value(p99_ns), any_value(median_ns),
    any_value(means) FILTER (is_tail), any_value(means) FILTER (NOT is_tail)
FROM (
    SELECT phase, target, model, latency_ns >= p99_ns AS is_tail, count(*) AS n, [{_MEANS}] AS means
    FROM ok JOIN edges USING (phase, target, model) WHERE latency_ns >= p99_ns OR latency_ns <= median_ns GROUP BY ALL)
JOIN edges USING (phase, target, model)
GROUP BY phase, target, model ORDER BY min(first_ns), target, model
"""


def tails(connection: duckdb.DuckDBPyConnection, phases: Sequence[str]) -> dict[Key, Tail | int]:
    """By phase, of `phases`, server and model of view `joined`: the tail, or the number of ok requests where these
    carry no p99."""
    found: dict[Key, Tail | int] = {}
    for phase, server, model, n_ok, n, n_base, p99_ns, median_ns, of_tail, of_base in connection.execute(
        _TAILS, {"phases": list(phases)}
    ).fetchall():
        # where all latencies are one value, tail and base are the same
        parts, base = (whole_parts(own[0], own[1:]) for own in (of_tail, of_base if n_base else of_tail))
        is_carried = n_ok >= smallest_n(Q)
        tail = (
            Tail(phase, server, model, n, n_base or n, p99_ns, median_ns, parts, base) if is_carried else n_ok
        )
        found[phase, server, model] = tail
    return found


def tail_finding(
    connection: duckdb.DuckDBPyConnection,
    key: Key,
    found: Tail | int,
    bodies: Mapping[str, str],
    state: RunState,
    sent: Sent,
    has_steps: bool = False,
) -> Finding:
    """The finding about the tail of a phase, server and model. `bodies`: a sentence by instance about their batches;
    `sent`: what became of all such requests; `has_steps`: they pass an ensemble, so that what is outside of the model
    that they are joined to is other steps too."""
    phase, server, model = key
    finding = _of_ok(connection, Scope(phase, server, requests="p99", model=model), found, bodies)
    if has_steps and finding.rule == "network grows":
        finding = replace(
            finding,
            rule="network and other steps grow",
            claim=finding.claim.replace(": network grew most", f": {OUTSIDE} grew most"),
            next_step="See the steps of these requests (table steps), and which of them the response cache answered.",
        )
    told: list[Reason] = []
    if sent.n_failed > FAILED_RATIO * sent.n:
        failed = f"{count_text(sent.n_failed)} of {count_text(sent.n)} requests did not end ok"
        told = [("medium", failed)]
        if isinstance(found, Tail):
            finding = replace(finding, claim=f"{failed} and are not among these. {finding.claim}")
    return lowered(finding, [*told, *state.reasons])


def _of_ok(
    connection: duckdb.DuckDBPyConnection, scope: Scope, found: Tail | int, bodies: Mapping[str, str]
) -> Finding:
    if isinstance(found, int):
        claim = f"Not assessed: {count_text(found)} ok requests carry no p99, which takes {smallest_n(Q)}."
        step = "Measure longer, or at a higher rate."
        return lowered(Finding(UNASSESSED, "tail", scope, claim, step), [("low", "too few requests")])
    growth, part = found.growth_ns, found.grew_most
    whole = sum(growth.values())
    if part == "unjoined":
        claim = "Not assessed: what the requests at or beyond the p99 waited for is unknown, for no batch of them is."
        return lowered(
            Finding(UNASSESSED, "tail", scope, claim, NEXT_STEPS[part]), [("low", "no batch is known")]
        )
    if whole < 1.0:
        claim = f"The p99 is the median, {duration_text(found.p99_ns)}: there is no tail."
        return Finding("none", "tail", scope, claim, "Look at the other two levels.")
    share = growth[part] / whole
    base = duration_text(found.latency_ns - whole)
    claim = (
        f"The {count_text(found.n)} requests at or beyond the p99 of {duration_text(found.p99_ns)} took "
        f"{duration_text(found.latency_ns)} on average, those up to the median {base}: "
        f"{_name(part)} grew most, by {duration_text(growth[part])}, {share_text(share)} of the difference."
    )
    told: list[Reason] = [] if share >= 0.5 else [("medium", "no part has half of the difference")]
    finding = Finding(
        f"{_name(part)} grows",
        "tail",
        scope,
        " ".join([claim, *filter(None, bodies.values())]),
        NEXT_STEPS.get(
            part, "It is a part of the batch: see the finding of the body level for these batches."
        ),
        margin=share,
        evidence=tuple(_evidence(found)),
        shares={name: value / found.latency_ns for name, value in found.parts_ns.items() if value},
        rows=link(connection, found.where, "joined", LATENCY, _SHOWN),
        not_shown="A part that grew need not be the cause: the queue grows behind any long batch.",
    )
    return lowered(finding, told)


def _evidence(found: Tail) -> list[Evidence]:
    growth = found.growth_ns
    return [
        Evidence(
            f"tail_{part}_ns", value, f"{duration_text(value)}, {_signed(growth[part])} against the base"
        )
        for part, value in found.parts_ns.items()
        if value or growth[part]
    ]


def _name(part: str) -> str:
    return part.replace("_", " ")


def _signed(value_ns: float) -> str:
    return f"{'+' if value_ns >= 0 else ''}{duration_text(value_ns)}"
