"""A toy of each kind whose recipe is followed by a test."""

from __future__ import annotations

from tests.recipes.steps import Recipe, Step

_READER = '''"""Lines that begin with `@`: stamps in s."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from squall.scenarios.traces.parts.options import TraceOptions, TraceUnit
from squall.scenarios.traces.readers.blocks import text_blocks
from squall.scenarios.traces.readers.chunk import Chunk, Mending, chunk_of
from squall.scenarios.traces.readers.instants import Clock
from squall.scenarios.traces.readers.recognise import Opening


def is_at_lines(opening: Opening) -> bool:
    return opening.line.startswith(b"@")


@dataclass(frozen=True)
class AtSource:
    """A stamp a line. A `Source`."""

    path: Path
    unit: TraceUnit | None
    unit_is_assumed: bool = False
    size_names: tuple[str, ...] = ()
    has_sessions: bool = False
    tick_ns: int | None = None
    reading: None = None

    def chunks(self, mending: Mending) -> Iterator[Chunk]:
        clock = Clock(self.unit or "s", "number")
        for block in text_blocks(self.path):
            texts = [line.decode("utf-8", "replace").removeprefix("@") for _, line in block.lines()]
            stamp_ns, faults = clock.read_each(texts)
            yield chunk_of(stamp_ns, {}, None, block.row_of, faults, mending)


def at_source(path: Path, options: TraceOptions) -> AtSource:
    return AtSource(path, options.unit or "s")
'''

_RECORD = """_AT_LINES = Format(
    name="at-lines",
    recognise=is_at_lines,
    read=at_source,
    write=as_text(encoders.at_lines),
    kept_sizes=encoders.no_size,
    keeps_sessions=False,
    endings=(".at",),
)

"""

_ENCODER = """def at_lines(_: TracePart) -> Encoder:
    return Rows(lambda part: ["@", decimal_texts(part.stamp_ns, 9), "\\n"])


"""

FORMAT = Recipe(
    title="A trace format",
    name="at_lines",
    imports="squall.scenarios.traces.formats",
    steps=(
        Step(
            "scenarios/traces/parts/options.py",
            "import",
            "TypeError: FORMATS of squall.scenarios.traces.formats: 'at-lines' is no TraceFormat",
            edits=(('    "parquet",\n', '    "at-lines",\n'),),
        ),
        Step(
            "scenarios/traces/readers/at_lines.py",
            "import",
            "No module named 'squall.scenarios.traces.readers.at_lines'",
            text=_READER,
        ),
        Step(
            "scenarios/traces/writers/encoders.py",
            "import",
            "has no attribute 'at_lines'",
            edits=(("def mooncake(_", _ENCODER),),
        ),
        Step(
            "scenarios/traces/formats.py",
            "import",
            "TypeError: FORMATS of squall.scenarios.traces.formats: 'at-lines' of TraceFormat has no record",
            edits=(
                (
                    "from squall.scenarios.traces.readers.chunk import Source\n",
                    "from squall.scenarios.traces.readers.at_lines import at_source, is_at_lines\n",
                ),
                ("_LINES = Format(", _RECORD),
                ("    _LINES,\n", "    _AT_LINES,\n"),
            ),
        ),
        Step(
            "tests/unit/scenarios/traces/test_trace_formats.py",
            "tests/unit/scenarios/traces/test_formats.py::test_every_format_has_an_example",
            "at-lines",
            edits=(
                (
                    '    ("second,count\\n10,2\\n20,0\\n30,1\\n", "counts"',
                    '    ("@0.5\\n@7\\n", "at-lines", [S // 2, 7 * S], {}),\n',
                ),
            ),
        ),
        Step(
            "docs/arrivals.md",
            "tests/unit/test_docs.py::test_the_arrivals_page_names_every_preset_format_repair_and_deal",
            "at-lines",
            edits=(
                (
                    "| `lines` | one time a line",
                    "| `at-lines` | `@` and a time, one a line | s | none | none |\n",
                ),
            ),
        ),
    ),
    tries="""
from pathlib import Path
import numpy as np
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.plan.drafting import plan_scenario
from squall.scenarios.traces.parts.part import TracePart
from squall.scenarios.traces.reading import open_trace
from squall.scenarios.traces.writing import format_for, lost_in, write_trace

path = Path("toy.at")
part = TracePart(np.array([0, 5, 70]) * 100_000_000, {"n": np.array([1, 2, 3])})
write_trace(path, format_for(path), [part])
load = {"name": "m", "kind": "measure", "duration": "10s", "arrivals": {"kind": "trace", "file": str(path)}}
phases = [load, {"name": "end", "kind": "drain", "duration": "1s"}]
whole = {"name": "toy", "seed": 1, "model": {"name": "any"}, "phases": phases}
plan = plan_scenario(scenario_from_mapping(whole, "toy"))
print(open_trace(path).format, path.read_text().split(), lost_in("at-lines", part), plan.offset_ns.tolist())
path.unlink()
""",
    asked="at-lines ['@0', '@0.5', '@7'] (\"the size column 'n'\",) [0, 500000000, 7000000000]\n",
)

_TABLE = """    Table(
        "uptime_samples",
        "second of a node that runs",
        _SAMPLED,
        ("actors/sampling/uptime.py",),
        (*_LABELS, T, INTERVAL, ns("uptime_ns", "time since the node was started")),
    ),
"""

_SOURCE = '''"""Since when a node runs."""

from __future__ import annotations

import time
from typing import Any


class UptimeSource:
    """One row of uptime_samples a tick."""

    table = "uptime_samples"

    def __init__(self) -> None:
        self._last_ns: int | None = None

    def sample(self, now_ns: int) -> list[dict[str, Any]]:
        last_ns, self._last_ns = self._last_ns, now_ns
        if last_ns is None:
            return []
        uptime_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        return [{"t_ns": now_ns, "interval_ns": now_ns - last_ns, "uptime_ns": uptime_ns}]
'''

COLLECTOR = Recipe(
    title="A collector",
    name="uptime",
    imports="squall.actors.sampling.sampled",
    steps=(
        Step(
            "analysis/tables/node.py",
            "import",
            "uptime_samples is no observer's table of the schema",
            edits=(('    Table(\n        "core_samples",\n', _TABLE),),
        ),
        Step(
            "actors/sampling/uptime.py",
            "import",
            "No module named 'squall.actors.sampling.uptime'",
            text=_SOURCE,
        ),
        Step(
            "actors/sampling/sampled.py",
            "import",
            "nothing fills the table uptime_samples",
            edits=(
                (
                    "from squall.analysis.schema import TABLES\n",
                    "from squall.actors.sampling.uptime import UptimeSource\n",
                ),
                (
                    '    Sampled("core_samples"',
                    '    Sampled("uptime_samples", lambda to: to.host_interval_ns, lambda _: UptimeSource()),\n',
                ),
            ),
        ),
        Step(
            "docs/schema.md",
            "tests/unit/test_docs.py::test_the_schema_page_is_that_of_the_code",
            "uptime_samples",
            made_by="squall.analysis.schema",
        ),
        Step(
            "docs/sampling.md",
            "tests/unit/actors/sampling/test_sampled.py::test_the_page_tells_of_every_table_and_of_no_other",
            "uptime_samples",
            edits=(
                (
                    "| `thread_samples` |",
                    "| `uptime_samples` | the kernel's clock | 1 s | `profile.host_interval` |\n",
                ),
            ),
        ),
    ),
    tries="""
import tempfile
from pathlib import Path
import pyarrow as pa
from squall.actors.clock import SystemClock
from squall.actors.sampling.observer_process import Observing
from squall.actors.sampling.observer_settings import ObserverSettings
from squall.actors.spill import read_spill
from squall.analysis.clocks.timeline import RunPhase
from squall.analysis.clocks.track import ClockTrack
from squall.analysis.storage.store import RunStore
from squall.analysis.tables.manifest import Manifest
from squall.analysis.tables.sealed import SealedVerdict
from squall.cluster.driver.records.ingest import ingest_table

with tempfile.TemporaryDirectory() as folder:
    begun_ns = SystemClock().monotonic_ns()
    observing = Observing(ObserverSettings("run", "node-0", folder), SystemClock())
    observing.close()
    phases = [RunPhase("m", "measure", begun_ns, SystemClock().monotonic_ns() + 1)]
    store = RunStore.create(Path(folder), "toy", 0, Manifest())
    for table in read_spill(pa.OSFile(str(Path(folder) / "uptime_samples.arrows"))):
        ingest_table(store, "uptime_samples", table, ClockTrack.constant(0), phases)
    store.seal(SealedVerdict(status="VALID"))
    (row,) = store.read("uptime_samples").to_pylist()
    print(observing.losses(), row["phase"], row["node"], row["uptime_ns"] > row["interval_ns"] > 0)
""",
    asked="[] m node-0 True\n",
)

_CASE = """    case(
        "window", "long-batched", replace(ANY, head_us=200.0, tail_us=150.0, period_us=1_330.0), tail_us=10.0
    ),
"""
_RULE = """LONG = Rule(
    "long-batched",
    "window",
    ((at_least("exec_mean_ns", 900_000.0, "a toy's threshold"),),),
    "A batch takes {exec_mean_ns}.",
    "Make batches shorter.",
    "It does not tell why they are long.",
    GiveBack(),
    RowLink("batch_costs", "end_ns - start_ns", (*BATCH_KEY, "start_ns", "end_ns")),
)

"""

RULE = Recipe(
    title="A finding rule",
    name="long-batched",
    imports="squall.analysis.findings.rules.tried",
    steps=(
        Step(
            "analysis/findings/rules/rule.py",
            "import",
            "TypeError: RULES of squall.analysis.findings.rules.tried: 'long-batched' is no RuleName",
            edits=(('    "starved by others",\n', '    "long-batched",\n'),),
        ),
        Step(
            "analysis/findings/rules/window_rules.py",
            "import",
            "TypeError: RULES of squall.analysis.findings.rules.tried: no rule is called 'long-batched'",
            edits=(
                ("WINDOW_RULES = (\n", _RULE),
                (')\n"""In the order in which they are tried."""', "    LONG,\n"),
            ),
        ),
        Step(
            "tests/unit/analysis/findings/test_findings_regimes.py",
            "tests/unit/analysis/findings/test_findings_regimes.py::test_every_rule_and_closer_name_is_planted",
            "long-batched",
            edits=(
                (
                    '    case("body", "sync-bound"',
                    _CASE,
                ),
            ),
        ),
        Step(
            "docs/diagnosis.md",
            "tests/unit/docs/test_manual.py::test_the_rules_on_the_page_are_those_of_the_code",
            "rules_markdown() in PAGE",
            made_by="docs.make.manual",
        ),
    ),
    tries="""
import tempfile
from pathlib import Path
from tests.regime_runs import Op, Phase, diagnose, write_regime_run

BODY = (Op(50.0),) * 12
phases = [
    Phase("long", BODY, head_us=200.0, tail_us=150.0, period_us=1_330.0),
    Phase("short", BODY, head_us=100.0, tail_us=100.0, period_us=1_330.0),
]
with tempfile.TemporaryDirectory() as folder:
    found, _ = diagnose(write_regime_run(Path(folder), phases))
    print({one.scope.phase: one.rule for one in found if one.level == "window"})
""",
    asked="{'long': 'long-batched', 'short': 'none'}\n",
)

_HOST_ROW = (
    "tests/unit/actors/sampling/test_host.py::"
    "test_a_row_of_the_node_has_every_column_from_the_kernels_counters"
)

COLUMN = Recipe(
    title="A table column",
    name="cpu_busy",
    steps=(
        Step(
            "analysis/tables/node.py",
            _HOST_ROW,
            "cpu_busy",
            edits=(
                (
                    '            count("n_cores", "logical CPUs"),\n            count("run_queue"',
                    '            ratio("cpu_busy", "not idle"),\n',
                ),
            ),
        ),
        Step(
            "actors/sampling/host.py",
            _HOST_ROW,
            "cpu_busy",
            edits=(
                (
                    '                "run_queue": current["run_queue"], "memory_available_bytes"',
                    '                "cpu_busy": 1.0 - spent["idle"] / total,\n',
                ),
            ),
        ),
        Step(
            "tests/unit/actors/sampling/test_host.py",
            _HOST_ROW,
            "cpu_busy",
            edits=(
                (
                    '        "memory_available_bytes": 40 * 1_024, "network_drops"',
                    '        "cpu_busy": 0.7,\n',
                ),
            ),
        ),
        Step(
            "docs/schema.md",
            "tests/unit/test_docs.py::test_the_schema_page_is_that_of_the_code",
            "cpu_busy",
            made_by="squall.analysis.schema",
        ),
    ),
)

_H200 = "tests/unit/analysis/metrics/test_metrics_h200.py::"

METRIC = Recipe(
    title="A metric",
    name="exec_per_row_ns",
    steps=(
        Step(
            "analysis/metrics/measures.py",
            f"{_H200}test_every_measure_is_there_and_the_wall_adds_up",
            "exec_per_row_ns",
            edits=(
                (
                    '    Measure("batch_rows_mean"',
                    '    Measure("exec_per_row_ns", "length of the batches over their rows"),\n',
                ),
            ),
        ),
        Step(
            "analysis/metrics/figures/batch_figures.py",
            f"{_H200}test_every_other_measure_has_a_value",
            "exec_per_row_ns",
            edits=(
                (
                    '        "head_tail_of_exec_ratio": ratio(',
                    '        "exec_per_row_ns": ratio(sums["exec_ns"], sums["n_rows"]),\n',
                ),
            ),
        ),
        Step(
            "docs/metrics.md",
            "tests/unit/analysis/metrics/test_metrics_docs.py::test_every_measure_is_in_the_docs",
            "exec_per_row_ns",
            edits=(
                (
                    "| `batch_rows_mean` | Σ rows",
                    "| `exec_per_row_ns` | length / Σ rows | batch_costs | ours | |\n",
                ),
            ),
        ),
    ),
)

_VALIDITY = "tests/unit/analysis/verdict/test_validity.py::"
_CHECKS = "tests/unit/test_checks_page.py::"

CHECK = Recipe(
    title="A check",
    name="failed share",
    steps=(
        Step(
            "analysis/limits.py",
            f"{_CHECKS}test_the_limits_name_every_check_of_the_verdict_and_none_that_there_is_not",
            "failed share",
            edits=(
                (
                    "    # verdict/validity.py: `server reached`\n",
                    "    # verdict/validity.py: `failed share`\n"
                    '    failed_ratio: float = 0.9\n    """Share of failures, of a toy."""\n',
                ),
            ),
        ),
        Step(
            "analysis/verdict/validity.py",
            f"{_CHECKS}test_no_fault_is_said_to_fail_a_check_that_there_is_not",
            "failed share",
            edits=(
                (
                    "        checks.append(_clock_bound(measured",
                    "        checks.append(_failed(measured, limits))\n",
                ),
                (
                    "def _clock_bound(",
                    "def _failed(measured: Requests, limits: Limits) -> Check:\n"
                    "    value = float((~measured.is_ok).mean())\n"
                    '    return held_to("failed share", value, limits.failed_ratio, "ratio", "failures", "mend it")\n'
                    "\n\n",
                ),
            ),
        ),
        Step(
            "tests/planted_faults/faults.py",
            f"{_CHECKS}test_every_check_of_the_code_has_a_fault_that_fails_it",
            "failed share",
            edits=(
                (
                    '    "ok share": (\n',
                    '    "failed share": ("the server refuses every request", "tests/golden/test_verdicts.py"),\n',
                ),
            ),
        ),
        Step(
            "docs/checks.md",
            f"{_CHECKS}test_the_page_is_made_of_the_planted_faults",
            "failed share",
            made_by="tests.planted_faults.page",
        ),
        Step(
            "tests/unit/analysis/verdict/test_validity.py",
            f"{_VALIDITY}test_a_run_that_kept_up_is_valid_with_every_check_met",
            "failed share",
            edits=(('        "worker saturation", "server reached"', '        "failed share",\n'),),
        ),
        Step(
            "docs/run.md",
            f"{_VALIDITY}test_every_check_of_a_verdict_stands_on_the_page",
            "failed share",
            edits=(("| `server reached` |", "| `failed share` | measured requests that failed | 90 % |\n"),),
        ),
    ),
)

RECIPES = (FORMAT, COLLECTOR, COLUMN, METRIC, RULE, CHECK)
