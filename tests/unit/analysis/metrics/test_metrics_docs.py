"""docs/metrics.md names every figure."""

from __future__ import annotations

import re
from pathlib import Path

from squall.analysis.metrics.figures.request_figures import PARTS
from squall.analysis.metrics.measures import NAMES
from squall.analysis.metrics.records import PhaseMetrics, RunMetrics
from squall.analysis.metrics.sweeps.batch_sweep import CAUSES
from squall.analysis.summary.keys import names_of, records
from tests.known import known

DOCS = (Path(__file__).parents[4] / "docs" / "metrics.md").read_text(encoding="utf-8")
WORDS = set(re.findall(r"[a-z0-9_]+", DOCS))
LABELS = {"server", "instance", "model", "node", "process", "thread", "start_ns", "end_ns"}


def test_every_measure_is_in_the_docs() -> None:
    tables = re.findall(r"^\| (`.*?`) \|", DOCS, re.MULTILINE)
    listed = [name for cell in tables for name in re.findall(r"`([a-z0-9_]+)`", cell)]
    assert [name for name in listed if name in NAMES] == list(NAMES)


def test_every_figure_is_in_the_docs() -> None:
    found = {name for record in records(PhaseMetrics) for name in names_of(record)}
    assert {
        "sizes_known_time_ratio",
        "pageable_copy_of_exec_ratio",
        "fp16_util",
        "queue_to_compute_ratio",
    } <= found
    assert found - LABELS - WORDS == set()


def test_every_key_of_a_figure_by_name_is_in_the_docs(two_heads_metrics: RunMetrics) -> None:
    phase = two_heads_metrics.phases["linear_head"]
    found = set(CAUSES)
    for instance in phase.instances.values():
        found |= {*instance.mean_ns, *known(instance.launches).body_idle_by_cause}
    for gpu in phase.gpus.values():
        found |= {*known(gpu.idle_gaps).classes, *known(gpu.compute_gaps).classes}
    assert {"exec", "launch_idle", "host_wait", "1ms_or_more"} <= found
    assert found - WORDS == set()
    assert {part.removesuffix("_ns") for part in PARTS} <= WORDS
