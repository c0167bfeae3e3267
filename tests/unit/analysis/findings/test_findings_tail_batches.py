"""The measures of the tail's batches are those of `squall.analysis.metrics`, taken over some batches."""

from __future__ import annotations

from pathlib import Path

from squall.analysis.findings.tail_batches import batches_measures
from squall.analysis.join.batch_costs import write_batch_costs
from squall.analysis.metrics.batches import pick
from squall.analysis.metrics.run import run_metrics
from squall.analysis.storage.nsys import OPERATIONS
from squall.analysis.storage.query import connect
from tests.regime_runs import Op, Phase, write_regime_run


def test_over_all_batches_they_are_those_of_the_instance(tmp_path: Path) -> None:
    mixed = (
        Op(40.0, 500_000),
        Op(7.0),
        Op(30.0, wait=True),
        Op(3.0),
        Op(90.0),
        Op(11.0, 9_000, is_pageable=True),
    )
    phases = [
        Phase("fast", mixed, issue_us=5.0, n_batches=20, slow_every=7),
        Phase("slow", mixed * 2, issue_us=33.0, n_batches=21, slow_every=4),
    ]
    store = write_regime_run(tmp_path, phases)
    write_batch_costs(store)
    expected = run_metrics(store)
    tables = ["batch_costs", *(name for name in OPERATIONS if store.has(name))]
    key = "server, instance, instance_device, batch_id"
    with connect(store, tables) as connection:
        pick(connection)
        found = batches_measures(connection, tables)
    with connect(store, ["batch_costs"]) as connection:
        pick(connection)
        without = batches_measures(connection, ["batch_costs"])
    with connect(store, tables) as connection:
        pick(connection, f"SELECT {key} FROM batch_costs WHERE batch_id < 20")
        some = batches_measures(connection, tables)
    for phase in ("fast", "slow"):
        measures = expected.measures[phase, "server-0/m_0"]
        own = found[phase, "server-0/m_0"]
        assert own == {name: measures[name] for name in own}
        assert sum(bool(value) for value in own.values()) >= 13
    assert some == {("fast", "server-0/m_0"): found["fast", "server-0/m_0"]}
    assert "issue_to_op_ratio" not in without["fast", "server-0/m_0"]
