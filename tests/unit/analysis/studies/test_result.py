"""Figures of cells, the front, the chosen cell again, and the answer in words."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from squall.analysis.record import to_json
from squall.analysis.studies.sweep_cells import log_mean, mean
from squall.analysis.studies.sweep_page import plots_of, sweep_page
from squall.analysis.studies.sweep_result import Design, Sweep, evaluate
from squall.analysis.studies.sweep_rows import CELL, CONFIRM, DONE, INVALID, SweepRow, row_from_json
from squall.analysis.studies.sweep_tables import as_csv, as_parquet, runs_table
from squall.analysis.studies.sweep_words import answer, cell_lines, facts
from tests.fields import field
from tests.sweep_runs import figures
from tests.unit.analysis.studies.test_rivals import row

CASES: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "sweeps.yaml").read_text())


def rows_of(
    p95: Sequence[float],
    throughput: Sequence[float] = (50,) * 5,
    wobble: float = 1.0,
    first: int = 20,
    fresh: Sequence[float] = (),
    outcomes: dict[int, str] | None = None,
    **_: Any,
) -> list[SweepRow]:
    """The runs that `sweeps.yaml` states."""
    found = list[SweepRow]()
    for cell, (ms, hz) in enumerate(zip(p95, throughput, strict=False)):
        for block, seed_factor in enumerate((1.0, 1.5, 0.7, 1.2)):
            off = (1.00, 1.01, 0.99, 1.005)[(cell + block) % 4] ** wobble
            promises = {"p(95)<9ms": "kept" if ms < 9 else "broken"}
            own = figures(1e6 * ms * seed_factor * off, hz * off, promises=promises)
            outcome = (outcomes or {}).get(len(found), DONE)
            changes = {"block": block, "role": CELL, "cell": cell, "label": f"c{cell}", "attempt": 2}
            found.append(
                row(
                    len(found),
                    None,
                    **changes,
                    outcome=outcome,
                    reason="<send> lag" * (outcome == INVALID),
                    figures=own,
                )
            )
    more = [row(9 + k, 1e6 * ms, role=CONFIRM, block=4 + k, label="c0") for k, ms in enumerate(fresh)]
    return [*found[:first], *more]


def found_in(rows: list[SweepRow], n_cells: int, factors: Sequence[dict[str, Any]] | None = None) -> Sweep:
    cells = tuple(
        (f"c{cell}", factors[cell] if factors else {"model.instances": cell}) for cell in range(n_cells)
    )
    objectives = ("p95", "throughput")
    return evaluate(
        Design("tried", cells, objectives, "blocked-random", "every run", 4, 1, 4 * n_cells), rows
    )


@pytest.mark.parametrize("name", CASES)
def test_runs_of_cells_are_told_as_stated(name: str) -> None:
    case = CASES[name]
    found = found_in(rows_of(**case), len(case["p95"]))
    begin, end = case.get("says", ("", ""))
    assert re.fullmatch(f"{re.escape(begin)}.*{re.escape(end)}", answer(found)), answer(found)
    for path, value in case.get("finds", {}).items():
        known = field(found, path)
        assert known == (value if isinstance(value, list) else pytest.approx(value, rel=0.01)), path
    assert [one for one in case.get("facts", ()) if one not in "\n".join(facts(found))] == []
    lines = zip(cell_lines(found), case.get("cell_lines", ()), strict=False)
    assert [line for line, end in lines if not line.endswith(end)] == []


def test_means_are_geometric_with_students_interval_on_logarithms() -> None:
    found = log_mean([1.0, 2.0, 4.0])
    # s = ln 2, t(97.5 %, 2) = 4.3027, half = 4.3027 ln 2 / sqrt(3)
    half = math.exp(4.302653 * math.log(2) / math.sqrt(3))
    assert (found.mean, found.low, found.high) == pytest.approx((2, 2 / half, 2 * half), rel=1e-6)
    assert (log_mean([3.0]).low, log_mean([None]).mean, log_mean([]).n) == (None, None, 0)
    infinite = log_mean([1.0, math.inf])
    assert (infinite.mean, infinite.n, infinite.n_infinite) == (None, 2, 1)
    assert mean([0.0, 0.0]).high == 0.0


def test_a_row_survives_the_journal() -> None:
    own = figures(infinite=("p95_ns",), promises={"a": "kept"})
    one = replace(rows_of([4.0])[0], figures=own, gpu_c=60.0)
    assert row_from_json(to_json(one)) == one
    assert one.figures.value("p95") == math.inf


def test_the_page_answers_first_and_holds_every_run() -> None:
    found = found_in(rows_of([4.0, 5.0], outcomes={5: INVALID}), 2)
    html, plots = sweep_page(found, "squall sweep experiment.yaml"), plots_of(found)
    assert f"<b>{answer(found)}</b>" in html
    assert [plot.title for plot in plots] == [
        "p95 against throughput", "Cells, best first", "The reference cell over the sweep",
    ]  # fmt: skip
    assert plots[2].absent == "the experiment names no reference cell"
    shown = [
        [" ".join(cell.split()) for cell in re.findall("<td>(.*?)</td>", row, re.DOTALL)]
        for row in re.findall("<tr>(.*?)</tr>", html, re.DOTALL)
    ]
    cells, runs = ([row for row in shown if len(row) == n] for n in (8, 12))
    assert [row[:2] for row in cells] == [["c0", "4 of 4"], ["c1", "3 of 4, 1 INVALID"]]
    assert cells[0][-1] == "p(95)&lt;9ms: 4 of 4"
    assert len(runs) == 8
    assert "invalid: &lt;send&gt; lag" in html
    marks = [one for one in plots[0].traces if one["mode"] == "markers" and one["name"] != "runs"]
    assert sum(len(one["x"]) for one in marks) == 2
    assert all(min(one["error_x"]["array"] + one["error_x"]["arrayminus"]) > 0 for one in marks)


def test_what_more_instances_were_measured_to_do_is_said_of_cells_that_differ_in_nothing_else() -> None:
    rows = rows_of([14.6, 7.9, 7.9, 20.0])
    factors = [
        {"model.instances": n, "model.max_batch_size": batch} for n, batch in ((1, 4), (2, 4), (4, 4), (2, 8))
    ]
    first, second = (line for line in facts(found_in(rows, 4, factors)) if "were measured" in line)
    said = re.fullmatch(
        r"model.instances: 2 were measured at p95 (.*) ms against (.*) ms of 1 \(c1 against c0\)\.", first
    )
    assert said is not None
    scale = (1.5 * 0.7 * 1.2) ** 0.25
    assert [*map(float, said.groups())] == pytest.approx([7.9 * scale, 14.6 * scale], rel=0.01)
    assert re.match(r"model.instances: 4 .* of 2 \(c2 against c1\), which cannot be told apart\.", second)
    # only what was measured: of two cells that differ in more than the instances nothing is said
    alone = facts(found_in([one for one in rows if one.cell in (0, 3)], 4, factors))
    assert not [line for line in alone if "were measured" in line]


def test_no_text_of_a_csv_file_is_a_formula_to_a_spreadsheet() -> None:
    reasons = ["=1+1", "+1", "-1", "@SUM(1)", "\t=1", "a=1", ""]
    rows = [replace(row(at, None, seed=-1), reason=reason) for at, reason in enumerate(reasons)]
    table = runs_table(found_in(rows, 1), ())
    written = list(csv.DictReader(io.StringIO(as_csv(table).decode(), newline="")))
    assert [one["reason"] for one in written] == ["'=1+1", "'+1", "'-1", "'@SUM(1)", "'\t=1", "a=1", ""]
    assert written[0]["seed"] == "-1", "a number stays one"
    assert pq.read_table(io.BytesIO(as_parquet(table))).column("reason").to_pylist() == reasons
