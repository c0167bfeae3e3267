"""Several models of a real Triton, each asked with entries of its own data, beside one whose inputs squall makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from squall.actors.load.lane import IS_BUILT
from squall.models.payload import objects, write_tensor
from tests.integration.live_runs import Bench, scenario_mapping
from tests.integration.test_data import LENGTHS, N_ENTRIES, token_ids, tokens, write_echo, write_reader
from tests.integration.test_several_models import assert_counted_alike, columns, planned_kinds, run_of

pytestmark = [pytest.mark.slow, pytest.mark.beside]

NAMES = ("reader", "minimal", "linear_head")
LINES = [f"line {number}: " + "é" * (number * 37 % 400) for number in range(40)]
RIGHT = """
def first(inputs):
    return {"out": inputs["ids"][:, :1]}


def same(inputs):
    return {"OUTPUT": inputs["TEXT"]}
"""


def mapping_of(folder: Path, checked_share: float, **clients: Any) -> dict[str, Any]:
    """An encoder of token ids, which writes them down, a model that gives lines of text back, and a head of the zoo."""
    write_reader(folder)
    write_echo(folder, "TEXT", "STRING")
    (folder / "lines.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    (folder / "right.py").write_text(RIGHT)
    own = {"repository": str(folder / "models"), "max_batch_size": 4}
    mapping = scenario_mapping(
        models=[
            {
                "name": "reader", "share": 3, **own, "inputs": {"mask": {"like": "ids", "low": 1.0, "high": 1.0}},
                "rows": {"kind": "constant", "value": 1},
                "data": {
                    "path": str(tokens(folder / "tokens.parquet")), "columns": {"ids": "tokens"}, "order": "random",
                },
                "check": {"share": checked_share, "function": f"{folder / 'right.py'}:first"},
            },
            {
                "name": "minimal", "share": 2, **own, "rows": {"kind": "uniform", "low": 1, "high": 3},
                "data": {"path": str(folder / "lines.txt")},
                "check": {"share": checked_share, "function": f"{folder / 'right.py'}:same"},
            },
            {
                "name": "linear_head", "settings": {"width": 8, "layers": 1}, "max_batch_size": 8,
                "check": {"share": checked_share},
            },
        ],
        phases=[
            {"name": "main", "kind": "measure", "duration": "3s", "arrivals": {"kind": "poisson", "rate": "120/s"}},
            {"name": "drain", "kind": "drain", "duration": "15s"},
        ],
    )  # fmt: skip
    mapping["clients"] |= {"timeout": "20s", **clients}
    return {key: value for key, value in mapping.items() if key != "model"}


@pytest.mark.parametrize(
    ("protocol", "n_workers", "share"),
    [("http", 2, 0.1), pytest.param("grpc", 1, 1.0, marks=pytest.mark.long)],
)
def test_each_model_is_asked_with_the_entries_of_its_own_data(
    alone: Bench, tmp_path: Path, protocol: str, n_workers: int, share: float
) -> None:
    """Through the lane where a tenth of the replies are compared, in Python where all are."""
    mapping = mapping_of(tmp_path, share, protocol=protocol, workers_per_node=n_workers)
    store = run_of(alone, mapping)
    rows, (kinds, plan) = columns(store), planned_kinds(mapping)
    assert set(rows["outcome"]) == {"ok"}
    assert (rows["request_kind"], set(kinds)) == (kinds, set(NAMES))
    assert np.array_equal(rows["rows"], plan.rows)
    assert_counted_alike(store, rows)
    # what is asked is the plan's, whose digest knows neither workers nor protocol
    assert store.manifest.plan.sha256 == plan.sha256()
    assert (
        plan.sha256()
        == planned_kinds({**mapping, "clients": {"rows": mapping["clients"]["rows"]}})[1].sha256()
    )
    seen = [json.loads(line) for line in (tmp_path / "seen").read_text().splitlines()]
    told = {int(one["id"]): (one["ids"], one["mask"]) for one in seen}
    assert len(seen) == len(told) == kinds.count("reader")
    firsts = {name: one.first for name, one in zip(NAMES, plan.models, strict=True)}
    entries = [int(variant) - firsts[kind] for kind, variant in zip(kinds, plan.variant, strict=True)]
    for number, entry in enumerate(entries):
        if kinds[number] == "reader":
            assert told[number] == ([token_ids(entry)], [[1] * LENGTHS[entry]])
    texts = [number for number, kind in enumerate(kinds) if kind == "minimal"]
    assert [entries[number] for number in texts] == [place % len(LINES) for place in range(len(texts))]
    sizes = store.read("requests", ["request_id", "response_bytes"]).sort_by("request_id")["response_bytes"]
    beside = set()
    for number in texts:
        lines = [
            LINES[(entries[number] + row) % len(LINES)].encode() for row in range(int(plan.rows[number]))
        ]
        beside.add(sizes[number].as_py() - len(write_tensor(objects(lines))))
    assert max(beside) - min(beside) <= 6  # digits of the lengths that a reply states
    checks = store.manifest.value_checks
    assert checks is not None
    n_checked = int(np.count_nonzero(rows["request_id"] % checks.every == 0))
    assert (checks.n_checked, checks.n_wrong) == (n_checked, 0)
    assert [one.has_lane for one in store.manifest.workers] == [IS_BUILT and share < 1] * n_workers
    facts = store.manifest.data_by_model
    asked = set(zip(kinds, plan.rows.tolist(), entries, strict=True))
    assert {name: (one.format, one.n_entries, one.n_encoded) for name, one in facts.items()} == {
        "reader": ("parquet", N_ENTRIES, sum(one[0] == "reader" for one in asked)),
        "minimal": ("text", len(LINES), sum(one[0] == "minimal" for one in asked)),
    }


@pytest.mark.long
def test_bad_data_of_one_model_is_told_with_its_name_and_nothing_is_sent(
    alone: Bench, tmp_path: Path
) -> None:
    mapping = mapping_of(tmp_path, 0.1)
    path = tmp_path / "tokens.parquet"
    pq.write_table(pa.table({"tokens": [[1, 2]] * 20 + [None] + [[3]] * 20}), path)
    mapping["models"][0]["data"]["order"] = "sequence"
    live = alone.start_run(mapping)
    assert live.end() == 2
    assert f"models.reader.data: {path}: row 21: " in live.error_line()
    assert not (tmp_path / "seen").exists() or not (tmp_path / "seen").read_text()
