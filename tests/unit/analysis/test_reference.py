"""Recorded runs, derived again: every row, key and word as before."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.reference import (
    ROOT,
    SCREEN,
    STUDIES,
    derive_again,
    differences,
    names,
    run_dirs,
    scenario_digests,
    study_differences,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", names())
def test_a_recorded_run_is_derived_again_to_the_row(name: str, tmp_path: Path) -> None:
    assert list(differences(ROOT / name, derive_again(name, tmp_path))) == []


@pytest.mark.parametrize("name", STUDIES)
def test_recorded_runs_are_concluded_from_as_before(name: str, tmp_path: Path) -> None:
    assert list(study_differences(name, tmp_path)) == []


def test_scenarios_have_the_digests_that_they_had() -> None:
    assert scenario_digests() == json.loads((ROOT / "scenario_digests.json").read_text())


def test_a_row_a_key_and_a_word_that_differ_are_told(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(ROOT / "h200_nsys", tmp_path / "h200_nsys"))
    assert list(differences(ROOT / "h200_nsys", copy)) == []
    (run,) = run_dirs(copy)
    (path,) = (run / "tables" / "joined").iterdir()
    rows = pq.read_table(path, partitioning=None)
    at = rows.schema.get_field_index("done_ns")
    later = pa.array([value + (number == 3) for number, value in enumerate(rows["done_ns"].to_pylist())])
    pq.write_table(rows.set_column(at, rows.schema.field(at), later.cast(rows.schema.field(at).type)), path)
    summary = json.loads((run / "summary.json").read_text())
    summary["measure"]["outcomes"]["n"] += 1
    copies = [one for one in _dicts(summary) if "bytes" in one]
    copies[0]["bytes"] += 1
    (run / "summary.json").write_text(json.dumps(summary))
    (run / SCREEN).write_text((run / SCREEN).read_text().replace("Outcomes", "Results"))
    told = list(differences(ROOT / "h200_nsys", copy))
    assert [line.split(": ")[1] for line in told[:2]] == ["joined", "joined"]
    words = (".bytes:", "measure.outcomes.n:", "'Outcomes")
    assert [sum(word in line for line in told[2:]) for word in words] == [1, 1, 1], told
    assert len(told) == 5


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    """All in a document, at any depth."""
    if isinstance(value, dict):
        yield value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _dicts(one)
