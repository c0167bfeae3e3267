"""Figures of cells, the front, the chosen cell again, and the answer in words."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from squall.analysis.experiments.cell_figures import log_mean, mean
from squall.analysis.experiments.page import page_of
from squall.analysis.experiments.result import FRONT, PERHAPS, Design, Sweep, evaluate
from squall.analysis.experiments.rows import CELL, CONFIRM, FAILED, INVALID, SweepRow, row_from_json
from squall.analysis.experiments.tables import as_csv, as_parquet, runs_table
from squall.analysis.experiments.words import answer, cell_lines, facts
from squall.analysis.record import to_json
from squall.analysis.render.decision_page import page_html
from tests.sweep_runs import figures
from tests.unit.analysis.experiments.test_rivals import row

WOBBLE = (1.00, 1.01, 0.99, 1.005)


def rows_of(p95_ms: Sequence[float], throughput: Sequence[float], wobble: float = 1.0) -> list[SweepRow]:
    """Four seeds of each cell; every one a little off, as a fraction `wobble` of a per cent and so."""
    found = list[SweepRow]()
    for cell, (ms, hz) in enumerate(zip(p95_ms, throughput, strict=True)):
        for block, seed_factor in enumerate((1.0, 1.5, 0.7, 1.2)):
            off = WOBBLE[(cell + block) % 4] ** wobble
            own = figures(
                1e6 * ms * seed_factor * off, hz * off, promises={"p(95)<9ms": "kept" if ms < 9 else "broken"}
            )
            found.append(
                row(len(found), None, block=block, role=CELL, cell=cell, label=f"c{cell}", figures=own)
            )
    return found


def found_in(rows: list[SweepRow], n_cells: int, n_planned: int | None = None) -> Sweep:
    cells = tuple((f"c{cell}", {"model.instances": cell}) for cell in range(n_cells))
    n = 4 * n_cells if n_planned is None else n_planned
    return evaluate(
        Design("tried", cells, ("p95", "throughput"), "blocked-random", "every run", 4, 1, n), rows
    )


def test_means_are_geometric_with_students_interval_on_logarithms() -> None:
    found = log_mean([1.0, 2.0, 4.0])
    assert found.mean == pytest.approx(2.0)
    # s = ln 2, t(97.5 %, 2) = 4.3027, half = 4.3027 ln 2 / sqrt(3)
    half = math.exp(4.302653 * math.log(2) / math.sqrt(3))
    assert found.low == pytest.approx(2 / half, rel=1e-6)
    assert found.high == pytest.approx(2 * half, rel=1e-6)
    assert (log_mean([3.0]).low, log_mean([None]).mean, log_mean([]).n) == (None, None, 0)
    infinite = log_mean([1.0, math.inf])
    assert (infinite.mean, infinite.n, infinite.n_infinite) == (None, 2, 1)
    assert mean([0.0, 0.0]).high == 0.0


def test_the_front_holds_what_no_cell_beats_in_both_and_says_which_may_lie_on_it() -> None:
    # c0 quick, c2 lets most through, c1 between; c3 is worse than c1 in both, c4 as c1 but for chance.
    found = found_in(rows_of([4.0, 5.0, 8.0, 6.0, 5.0002], [50.0, 60.0, 80.0, 55.0, 59.999]), 5)
    assert [one.front for one in found.cells][:4] == [FRONT, FRONT, FRONT, ""]
    assert found.cells[4].front in (FRONT, PERHAPS)
    equal = found_in(rows_of([5.0, 5.01], [60.0, 59.9]), 2)
    assert sorted(one.front for one in equal.cells) == [FRONT, PERHAPS]


def test_the_answer_names_the_best_and_who_cannot_be_told_apart_from_it() -> None:
    clear = found_in(rows_of([4.0, 5.0, 8.0], [50.0] * 3), 3)
    assert answer(clear).startswith("best by p95: c0, p95 4.2")
    assert answer(clear).endswith("; the next that differs is c1, +25.0 %")
    shared = found_in(rows_of([4.0, 4.01, 8.0], [50.0] * 3), 3)
    assert "not to be told apart from c1; the next that differs is c2, +100 %" in answer(shared)
    assert "by p95 the two cells cannot be told apart; lowest is c0" in answer(
        found_in(rows_of([4.0, 4.01], [5.0] * 2), 2)
    )
    four = found_in(rows_of([4.0, 4.01, 4.0, 4.01], [50.0] * 4), 4)
    assert "by p95 none of 4 cells can be told apart from the best" in answer(four)
    assert answer(found_in(rows_of([4.0], [50.0]), 1)).startswith("c0: p95 4.2")


def test_a_sweep_that_is_not_done_says_so_first() -> None:
    rows = rows_of([4.0, 5.0], [50.0] * 2)[:6]
    assert answer(found_in(rows, 2)).startswith("so far, after 6 of 8 runs: ")
    assert answer(found_in([], 2)) == "so far, after 0 of 8 runs: no cell has a finite p95 in its valid runs"


def test_invalid_and_failed_runs_are_told_of() -> None:
    rows = rows_of([4.0, 5.0], [50.0] * 2)
    rows[3] = replace(rows[3], outcome=INVALID, status="INVALID", reason="send lag", attempt=2)
    rows[7] = replace(rows[7], outcome=FAILED, status="", reason="it broke", figures=figures())
    found = found_in(rows, 2)
    assert [(one.n_valid, one.n_invalid, one.n_failed) for one in found.cells] == [(3, 1, 0), (3, 0, 1)]
    assert facts(found)[:2] == [
        "1 runs are INVALID, also when run once more: they count nowhere.",
        "1 runs failed: they count nowhere.",
    ]
    assert [line.split(": ")[0] for line in cell_lines(found)] == ["c0", "c1"]
    assert cell_lines(found)[0].endswith("best; 3 of 4 runs valid")


def test_fresh_runs_are_told_apart_from_those_that_chose() -> None:
    rows = rows_of([4.0, 5.0], [50.0] * 2, wobble=0.0)

    # the chosen: 4 ms times 1, 1.5, 0.7, 1.2; mean 4.24 ms, s of the logs 0.32: two fresh ones lie within
    # exp(+-3.18 * 0.32 * sqrt(1/4 + 1/2)) of it: 1.74 to 10.3 ms
    def fresh(*p95_ms: float) -> Sweep:
        own = [row(9 + k, 1e6 * ms, role=CONFIRM, block=4 + k, label="c0") for k, ms in enumerate(p95_ms)]
        return found_in([*rows, *own], 2)

    good = fresh(3.9, 5.0)
    assert good.confirmation is not None
    assert good.confirmation.is_expected
    assert good.confirmation.expected_low == pytest.approx(1.74e6, rel=0.01)
    assert good.confirmation.expected_high == pytest.approx(10.3e6, rel=0.01)
    assert good.cells == found_in(rows, 2).cells, "they are in no figure of the cells"
    (text,) = [line for line in facts(good) if line.startswith("With 2 fresh seeds c0 has p95 4.42 ms")]
    assert "as the runs that chose it led to expect (1.74 ms … 10.3 ms)" in text
    bad = fresh(15.0, 19.0)
    assert bad.confirmation is not None
    assert bad.confirmation.is_expected is False
    assert any("not what the runs that chose it led to expect" in line for line in facts(bad))


def test_a_row_survives_the_journal() -> None:
    one = replace(
        rows_of([4.0], [50.0])[0], figures=figures(infinite=("p95_ns",), promises={"a": "kept"}), gpu_c=60.0
    )
    assert row_from_json(to_json(one)) == one
    assert one.figures.value("p95") == math.inf


def test_the_page_answers_first_and_holds_every_run() -> None:
    rows = rows_of([4.0, 5.0], [50.0] * 2)
    rows[5] = replace(rows[5], outcome=INVALID, status="INVALID", reason="<send> lag", attempt=2)
    found = found_in(rows, 2)
    page = page_of(found, "squall sweep experiment.yaml")
    assert page.answer == answer(found)
    assert [plot.title for plot in page.plots] == [
        "p95 against throughput", "Cells, best first", "The reference cell over the sweep",
    ]  # fmt: skip
    assert page.plots[2].absent == "the experiment names no reference cell"
    html = page_html(page)
    shown = [
        [" ".join(cell.split()) for cell in re.findall("<td>(.*?)</td>", row, re.DOTALL)]
        for row in re.findall("<tr>(.*?)</tr>", html, re.DOTALL)
    ]
    cells, runs = ([row for row in shown if len(row) == n] for n in (8, 12))
    assert cells[0][:2] == ["c0", "4 of 4"]
    assert cells[1][1] == "3 of 4, 1 INVALID"
    assert cells[0][-1] == "p(95)&lt;9ms: 4 of 4"
    assert len(runs) == 8
    assert "invalid: &lt;send&gt; lag" in html
    marks = [one for one in page.plots[0].traces if one["mode"] == "markers" and one["name"] != "runs"]
    assert sum(len(one["x"]) for one in marks) == 2
    for one in marks:
        assert min(one["error_x"]["array"] + one["error_x"]["arrayminus"]) > 0


def test_what_more_instances_were_measured_to_do_is_said_of_cells_that_differ_in_nothing_else() -> None:
    rows = rows_of([14.6, 7.9, 7.9, 20.0], [60, 60, 60, 60])
    stated = [
        {"model.instances": n, "model.max_batch_size": batch} for n, batch in ((1, 4), (2, 4), (4, 4), (2, 8))
    ]
    cells = tuple((f"c{number}", own) for number, own in enumerate(stated))
    design = Design("tried", cells, ("p95",), "blocked-random", "every run", 4, 1, 16)
    first, second = (line for line in facts(evaluate(design, rows)) if "were measured" in line)
    scale = (1.5 * 0.7 * 1.2) ** 0.25
    assert first.startswith("model.instances: 2 were measured at p95 ")
    assert first.endswith("of 1 (c1 against c0).")
    told = [float(part.split(" ms")[0]) for part in first.split("p95 ")[1].split(" against ")[:2]]
    assert told == pytest.approx([7.9 * scale, 14.6 * scale], rel=0.01)
    assert second.startswith("model.instances: 4 were measured at p95 ")
    assert second.endswith("of 2 (c2 against c1), which cannot be told apart.")
    # only what was measured: of two cells that differ in more than the instances nothing is said
    alone = evaluate(design, [one for one in rows if one.cell in (0, 3)])
    assert not [line for line in facts(alone) if "were measured" in line]


def test_no_text_of_a_csv_file_is_a_formula_to_a_spreadsheet() -> None:
    reasons = ["=1+1", "+1", "-1", "@SUM(1)", "\t=1", "a=1", ""]
    rows = [replace(row(at, None, seed=-1), reason=reason) for at, reason in enumerate(reasons)]
    table = runs_table(found_in(rows, 1), ())
    written = list(csv.DictReader(io.StringIO(as_csv(table).decode(), newline="")))
    assert [one["reason"] for one in written] == ["'=1+1", "'+1", "'-1", "'@SUM(1)", "'\t=1", "a=1", ""]
    assert written[0]["seed"] == "-1", "a number stays one"
    assert pq.read_table(io.BytesIO(as_parquet(table))).column("reason").to_pylist() == reasons
