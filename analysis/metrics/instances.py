"""The measures of instances over some of their batches: what the slow ones are made of, say."""

from __future__ import annotations

from collections.abc import Sequence

from squall.analysis.metrics.assessment import BatchKey, assess, opened
from squall.analysis.metrics.measures import Measures
from squall.analysis.metrics.spans import measured_phases
from squall.analysis.storage.query import MEMORY_LIMIT_BYTES
from squall.analysis.storage.store import RunStore


def measures_of_batches(
    store: RunStore, phase: str, batches: Sequence[BatchKey], memory_limit_bytes: int = MEMORY_LIMIT_BYTES
) -> dict[str, Measures]:
    """By instance key, the measures over those of `batches` (server, instance, its device, batch_id) that began in
    `phase`.

    Every name of `MEASURES`; the wall_… ones are None, those of the GPU and its samples are of the whole phase. All
    instances in one call: it reads the events of the run once.
    """
    with opened(store, batches, memory_limit_bytes) as connection:
        phases = [one for one in measured_phases(store, connection) if one.name == phase]
        found = assess(store, connection, phases, True, memory_limit_bytes)
        return {key: found.measures((own, key)) for own, key in found.sums if own == phase and phases}
