"""Whether a probe measured what it was to: checks, each with its limit, and the verdict of its run.

Pure: tables and facts in, a verdict out. docs/probes.md has what each check means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from squall.analysis.probes.figures import rows_by
from squall.analysis.tables.sealed import CheckResult, Verdict

MOST_SPREAD = 0.25
"""Of the medians of the repeats, from the least to the most, by the middle one: published gains are of about 0.3, and
a spread as large as those would leave nothing of them."""
MOST_QUEUED = 0.05
"""Share of the time in which the probe could run that it waited for a CPU: half of the smallest share that matters."""
MOST_BUSY = 0.05
"""nvidia-smi's utilisation before the start: an idle GPU tells 0, and one tick of a monitor a few hundredths."""
HELD_DOWN = 0x08 | 0x20 | 0x40 | 0x80
"""Bits of NVML's clocks event reasons: hardware slowdown, software and hardware thermal, hardware power brake. The
software power cap (0x04) belongs to the card: under large products it is what the card can do."""
_SPREADS = """
    -- largest less smallest median of the repeats over their median; of one repeat, nothing
    WITH medians AS (
        SELECT {name}::VARCHAR AS name, median({span}) AS span_ns
        FROM measured WHERE part = 'active' AND {counts} GROUP BY name, repeat)
    SELECT name, (max(span_ns) - min(span_ns)) / median(span_ns) AS spread_ratio
    FROM medians GROUP BY name HAVING count(*) > 1"""
_SPANS = {
    "operator": {"name": "size", "span": "synced_ns", "counts": "under = 'nothing'"},
    "pipeline": {"name": "variant", "span": "span_ns", "counts": "stage = 'total'"},
}
"""Of an operator, the time until the device is done: what the host alone takes for a call says nothing where the device
takes longer."""
Facts = Mapping[str, Any]


def judge_probe(
    kind: str, device: str, rows: pa.Table, facts: Facts, gpu_samples: Sequence[Facts], before: Facts
) -> Verdict:
    """`rows`: table `probe_calls` or `probe_stages`. `gpu_samples`: rows of that table during the probe. `before`:
    `util`, the busiest of the probe's GPU as a ratio, and `n_processes` on it, each None where NVML does not tell."""
    spreads = rows_by(rows, _SPREADS.format(**_SPANS[kind]), "name")
    value_of = {name: float(figures["spread_ratio"]) for name, figures in spreads.items()}
    worst = max(value_of, key=lambda name: value_of[name], default="")
    spread = value_of.get(worst)
    checks = [
        _check(
            "repeats alike", spread, MOST_SPREAD, "ratio",
            "largest spread of the medians of the repeats, by the middle one",
            f"the repeats differ: of {worst!r} their medians spread over {spread or 0:.0%} of the middle one, allowed "
            f"{MOST_SPREAD:.0%}: other work on the host or the GPU, or a clock that changes",
            "there is one repeat",
        )
    ]  # fmt: skip
    share = facts["host_share"]  # of the thread that makes the calls, while nothing else was recorded
    queued_ns, cpu_ns = share.get("queued_ns"), share.get("cpu_ns")
    is_known = queued_ns is not None and cpu_ns is not None and queued_ns + cpu_ns > 0
    queued = queued_ns / (queued_ns + cpu_ns) if is_known else None
    checks.append(
        _check(
            "CPU of the probe", queued, MOST_QUEUED, "ratio",
            "share of its runnable time that the probe waited for a CPU",
            f"other processes took the probe's CPU: it waited {queued or 0:.0%} of its time for one (put aside "
            f"{share.get('n_put_aside', 0)} times), allowed {MOST_QUEUED:.0%}",
            "the kernel does not tell (/proc/thread-self/schedstat)",
        )
    )  # fmt: skip
    if device == "gpu":
        util, n_processes = before.get("util"), before.get("n_processes")
        told = [one["throttle_reasons"] for one in gpu_samples if one.get("throttle_reasons") is not None]
        n_held = sum(1 for reasons in told if reasons & HELD_DOWN)
        checks += [
            _check(
                "GPU idle before", util, MOST_BUSY, "ratio",
                "nvidia-smi's utilisation of the GPU before the probe began",
                f"the GPU was busy before the probe began: utilisation {util or 0:.0%}", "NVML does not tell",
            ),
            _check(
                "GPU without others", n_processes, 0, "count",
                "processes with a context on the GPU before the probe began",
                f"{n_processes} other processes had the GPU before the probe began", "NVML does not tell",
            ),
            _check(
                "GPU clocks", n_held if told else None, 0, "count",
                "samples in which heat or a slowdown by hardware held the clocks of the GPU down",
                f"the clocks of the GPU were held down by heat or by hardware in {n_held} of {len(told)} samples",
                "NVML gave no sample",
            ),
        ]  # fmt: skip
    if kind == "pipeline":
        differing = "; ".join(f"{name}: {why}" for name, why in facts["differing"].items())
        checks.append(
            _check(
                "outputs alike", len(facts["differing"]), 0, "count",
                "variants whose outputs are not those of the modules alone",
                "the outputs differ from those of the modules alone, and the figures of such a variant are left out:"
                f" {differing}", "",
            )
        )  # fmt: skip
    reasons = tuple(one.reason for one in checks if one.reason)
    return Verdict(status="INVALID" if reasons else "VALID", reasons=reasons, checks=tuple(checks))


def _check(
    name: str, value: float | None, limit: float, unit: str, meaning: str, reason: str, why_not: str
) -> CheckResult:
    """`reason` counts where the value is above the limit; `why_not` where there is no value."""
    is_met = value is None or value <= limit
    return CheckResult(
        name=name, value=value, limit=limit, unit=unit, is_met=is_met, meaning=meaning,
        reason="" if is_met else reason, not_assessed=why_not if value is None else "",
    )  # fmt: skip
