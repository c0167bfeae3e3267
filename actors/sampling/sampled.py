"""Everything that an observer samples, of its node, a server, the GPUs: joined from the modules of the sources.

Imported for the tables alone too, by `squall.analysis.storage.schema`: nothing here or below imports that.
"""

from __future__ import annotations

from collections.abc import Sequence

from squall.actors.sampling import cpu_source, host, threads, triton_source
from squall.actors.sampling.gpu import source as gpu_source
from squall.actors.sampling.observer_settings import ObserverSettings
from squall.actors.sampling.source import Sampled, Seen, Source

TABLES = (
    *triton_source.TABLES,
    *threads.TABLES,
    *host.TABLES,
    *gpu_source.TABLES,
    *cpu_source.TABLES,
)
OF_NODE = (*host.SAMPLED, *cpu_source.SAMPLED)
"""From the start."""
OF_SERVER = (*threads.SAMPLED, *triton_source.SAMPLED)
"""From when the server is told."""
OF_GPUS = gpu_source.SAMPLED
"""From when they are asked for."""
FILLED = tuple(
    [one.table for one in OF_NODE] + [one.table for one in OF_SERVER] + [one.table for one in OF_GPUS]
)


def sources_of(
    kinds: Sequence[Sampled[Seen]], seen: Seen, settings: ObserverSettings
) -> list[tuple[Source, int]]:
    """Each source that there is, and its interval."""
    found = [(kind, kind.source(seen)) for kind in kinds]
    for kind, source in found:
        assert source is None or source.table == kind.table, (
            f"what is to fill {kind.table} fills another table"
        )
    return [(source, kind.interval_ns(settings)) for kind, source in found if source is not None]
