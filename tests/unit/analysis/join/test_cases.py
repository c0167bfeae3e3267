"""`batch_costs` and `joined` of small runs that `cases.yaml` has as tables: what goes in, and what must come out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.join.batch_costs import write_batch_costs
from squall.analysis.join.join import read_join_report, write_joined
from squall.analysis.storage.schema import TABLES
from squall.scenarios.errors import AnalysisError
from tests.many_examples import examples
from tests.plain_runs import plain_run

Row = dict[str, Any]
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # of thousands of cells
FILE = yaml.safe_load((Path(__file__).parent / "cases.yaml").read_text())


def cells(text: str) -> list[list[Any]]:
    """The values of each line; columns are two spaces apart."""
    return [[yaml.load(cell, _LOADER) for cell in re.split(r" {2,}", line)] for line in text.splitlines()]


def raw_rows(case: Row) -> dict[str, list[Row]]:
    """The raw tables of a case."""
    found: dict[str, list[Row]] = {}
    for tables in (FILE["runs"].get(case.get("of"), {}), case):
        is_base = tables is not case
        for name in TABLES.keys() & tables.keys() - {"batch_costs", "joined"}:
            header, *lines = cells(tables[name])
            rows = [FILE["defaults"].get(name, {}) | dict(zip(header, line, strict=True)) for line in lines]
            if not (is_base and name in case.get("without", ())):
                more = case.get("set", {}).get(name, {}) if is_base else {}
                found.setdefault(name, []).extend(row | more for row in rows)
    return found


@pytest.mark.parametrize("name", FILE["cases"])
def test_what_the_join_makes_of_a_run(name: str, tmp_path: Path) -> None:
    case = FILE["cases"][name]
    tables = raw_rows(case)
    store = plain_run(tmp_path, tables, **case.get("manifest", {}))
    write = write_joined if "requests" in tables else write_batch_costs
    if "error" in case:
        with pytest.raises(AnalysisError, match=case["error"]):
            write(store)
        assert not store.has("batch_costs")
        return
    write(store)
    for table in {"batch_costs", "joined"} & case.keys():
        found = store.read(table)
        expected = {column: values for column, *values in cells(case[table])}
        assert found.select([*expected]).to_pydict() == expected
        assert found.num_rows == len(next(iter(expected.values()), []))
    if "report" in case:
        report = read_join_report(store)
        assert {name: getattr(report, name) for name in case["report"]} == case["report"]


@examples(6)
@given(
    batches=st.lists(
        st.tuples(st.integers(0, 10**15), st.lists(st.integers(0, 50), max_size=12), st.integers(0, 50)),
        min_size=1, max_size=8,
    )
)  # fmt: skip
def test_the_parts_of_a_batch_add_up_to_it_and_foreign_rows_keep_theirs(
    batches: list[tuple[int, list[int], int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    tables: dict[str, list[Row]] = {"requests": [], "batches": [], "kernels": []}
    expected: dict[int, int | None] = {}
    for batch_id, (whole, rows, foreign) in enumerate(batches):
        ids = list(range(len(expected), len(expected) + len(rows)))
        n = sum(rows) + foreign
        before = [sum(rows[:i]) for i in range(len(rows))]
        for request_id, b, own in zip(ids, before, rows, strict=True):
            expected[request_id] = whole * (b + own) // n - whole * b // n if n else None  # without bound
            tables["requests"].append({"request_id": request_id, "rows": own, "sent_ns": 0, "done_ns": 9})
        tie = {"instance": "m_0", "batch_id": batch_id}
        tables["batches"].append({
            **tie, "model": "m", "start_ns": batch_id, "end_ns": batch_id + 1, "rows": n, "n_requests": len(rows),
            "request_ids": ids,
        })  # fmt: skip
        tables["kernels"].append({**tie, "start_ns": 0, "end_ns": whole, "gpu_uuid": "GPU-0"})
    tables["requests"].append({"request_id": len(expected), "rows": 1})
    store = plain_run(tmp_path_factory.mktemp("shares"), tables)
    write_joined(store)
    found = {row["request_id"]: row["kernel_share_ns"] for row in store.read("joined").to_pylist()}
    assert found == {**expected, len(expected): None}
