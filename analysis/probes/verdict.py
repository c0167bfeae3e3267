"""Whether a probe measured what it was to: checks, each with its limit, and the verdict of its run.

Pure: tables and facts in, a verdict out. docs/probes.md has what each check means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

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
Facts = Mapping[str, Any]


def judge_probe(
    kind: str, device: str, rows: pa.Table, facts: Facts, gpu_samples: Sequence[Facts], before: Facts
) -> Verdict:
    """`rows`: table `probe_calls` or `probe_stages`. `gpu_samples`: rows of that table during the probe. `before`:
    `util`, the busiest of the probe's GPU as a ratio, and `n_processes` on it, each None where NVML does not tell."""
    checks = [_spread(kind, rows), _queued(facts["host_share"])]
    if device == "gpu":
        checks += [*_alone(before), _held_down(gpu_samples)]
    if kind == "pipeline":
        checks.append(_outputs(facts["differing"]))
    reasons = tuple(one.reason for one in checks if one.reason)
    return Verdict(status="INVALID" if reasons else "VALID", reasons=reasons, checks=tuple(checks))


def _check(
    name: str, value: float | None, limit: float, unit: str, meaning: str, reason: str, why_not: str = ""
) -> CheckResult:
    """`reason` counts where the value is above the limit; `why_not` where there is no value."""
    is_met = value is None or value <= limit
    return CheckResult(
        name=name, value=value, limit=limit, unit=unit, is_met=is_met, meaning=meaning,
        reason="" if is_met else reason, not_assessed=why_not if value is None else "",
    )  # fmt: skip


def _spread(kind: str, rows: pa.Table) -> CheckResult:
    found = spreads(kind, rows)
    worst = max(found, key=lambda name: found[name], default="")
    value = found.get(worst)
    return _check(
        "repeats alike", value, MOST_SPREAD, "ratio",
        "largest spread of the medians of the repeats, by the middle one",
        f"the repeats differ: of {worst!r} their medians spread over {value or 0:.0%} of the middle one, allowed "
        f"{MOST_SPREAD:.0%}: other work on the host or the GPU, or a clock that changes",
        "there is one repeat",
    )  # fmt: skip


def spreads(kind: str, rows: pa.Table) -> dict[str, float]:
    """By size or variant: largest less smallest median of the repeats over their median. Of one repeat, nothing.

    Of an operator, the time until the device is done: what the host alone takes for a call says nothing where the
    device takes longer.
    """
    columns = rows.to_pydict()
    groups: dict[str, dict[int, list[int]]] = {}
    for index, part in enumerate(columns["part"]):
        if part != "active":
            continue
        if kind == "operator":
            if columns["under"][index] != "nothing":
                continue
            name, span = str(columns["size"][index]), columns["synced_ns"][index]
        else:
            if columns["stage"][index] != "total":
                continue
            name, span = columns["variant"][index], columns["span_ns"][index]
        groups.setdefault(name, {}).setdefault(columns["repeat"][index], []).append(span)
    found = {}
    for name, repeats in groups.items():
        medians = [float(np.median(one)) for one in repeats.values()]
        if len(medians) > 1:
            found[name] = (max(medians) - min(medians)) / float(np.median(medians))
    return found


def _queued(share: Facts) -> CheckResult:
    """Of the thread that makes the calls, while nothing else was recorded."""
    queued_ns, cpu_ns = share.get("queued_ns"), share.get("cpu_ns")
    value = None
    if queued_ns is not None and cpu_ns is not None and queued_ns + cpu_ns > 0:
        value = queued_ns / (queued_ns + cpu_ns)
    return _check(
        "CPU of the probe", value, MOST_QUEUED, "ratio", "share of its runnable time that the probe waited for a CPU",
        f"other processes took the probe's CPU: it waited {value or 0:.0%} of its time for one (put aside "
        f"{share.get('n_put_aside', 0)} times), allowed {MOST_QUEUED:.0%}",
        "the kernel does not tell (/proc/thread-self/schedstat)",
    )  # fmt: skip


def _alone(before: Facts) -> tuple[CheckResult, CheckResult]:
    util, n_processes = before.get("util"), before.get("n_processes")
    return (
        _check(
            "GPU idle before", util, MOST_BUSY, "ratio", "nvidia-smi's utilisation of the GPU before the probe began",
            f"the GPU was busy before the probe began: utilisation {util or 0:.0%}",
            "NVML does not tell",
        ),
        _check(
            "GPU without others", n_processes, 0, "count", "processes with a context on the GPU before the probe began",
            f"{n_processes} other processes had the GPU before the probe began",
            "NVML does not tell",
        ),
    )  # fmt: skip


def _held_down(samples: Sequence[Facts]) -> CheckResult:
    told = [one["throttle_reasons"] for one in samples if one.get("throttle_reasons") is not None]
    n_held = sum(1 for reasons in told if reasons & HELD_DOWN)
    return _check(
        "GPU clocks", n_held if told else None, 0, "count",
        "samples in which heat or a slowdown by hardware held the clocks of the GPU down",
        f"the clocks of the GPU were held down by heat or by hardware in {n_held} of {len(told)} samples",
        "NVML gave no sample",
    )  # fmt: skip


def _outputs(differing: Mapping[str, str]) -> CheckResult:
    told = "; ".join(f"{name}: {why}" for name, why in differing.items())
    return _check(
        "outputs alike", len(differing), 0, "count", "variants whose outputs are not those of the modules alone",
        f"the outputs differ from those of the modules alone, and the figures of such a variant are left out: {told}",
    )  # fmt: skip
