"""Of which runs `squall resume` says that their load ended with the driver: of those that were still to send."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from squall.analysis.storage.manifest import OPEN, DecidedFacts, Manifest, PhaseFacts
from squall.cluster.driver.resume import _Resuming

S = 1_000_000_000
PHASES = (
    PhaseFacts(name="m", kind="measure", start_ns=0, end_ns=10 * S),
    PhaseFacts(name="d", kind="drain", start_ns=10 * S, end_ns=12 * S),
)
BEFORE = Manifest(run="r", state=OPEN, phases=PHASES)
DECIDED = DecidedFacts(verdict="kept", promise="p", n=3, n_late=0, n_in_time=3, at_ns=5 * S, phases=PHASES)
KILLED = "the run ended before its turn"


def ended_ns(details: list[str], before: Manifest = BEFORE) -> int | None:
    """Of a run that sent every second until 4 s; `details`: of the arrivals that it did not send."""
    sent_ns = [n * S for n in range(5)]
    rows = pa.table({
        "sent_ns": pa.array([*sent_ns, *[None] * len(details)], pa.int64()),
        "outcome": ["ok"] * len(sent_ns) + ["unsent"] * len(details),
        "detail": [""] * len(sent_ns) + details,
    })  # fmt: skip
    store = SimpleNamespace(
        run="r", run_dir=Path("r"), manifest=before, has=lambda _: True, read=lambda *_: rows
    )
    return _Resuming(cast(Any, store), cast(Any, SimpleNamespace(step=print)))._driver_ended_ns()


def test_arrivals_before_whose_turn_the_run_ended_were_left_by_the_kill() -> None:
    assert ended_ns([KILLED] * 3) == 4 * S
    assert ended_ns([]) is None


@pytest.mark.parametrize(
    ("details", "before"),
    [
        (["the run ended while it was held back by max_in_flight"], BEFORE),
        (["the request before it in its sequence failed"], BEFORE),
        (["decided"], replace(BEFORE, decided=DECIDED)),
        (
            [KILLED],
            replace(BEFORE, notes=("every request failed: the load stops, as stop_when_failing says",)),
        ),
        ([KILLED], replace(BEFORE, notes=("the load stops, as clients.on_client_loss says",))),
    ],
)
def test_arrivals_that_the_scenario_left_out_were_not(details: list[str], before: Manifest) -> None:
    assert ended_ns(details, before) is None
