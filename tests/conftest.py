"""No example of a property test has a deadline, nor has their making: a busy machine may hold up any.

What was collected is there to the end: no garbage collection looks at it again.
"""

from __future__ import annotations

import gc

from hypothesis import HealthCheck, settings

settings.register_profile("squall", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("squall")


def pytest_collection_finish() -> None:
    """Sets thousands of tests and all modules apart: a full collection walked over them for 0.3 s each time."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Gives it back to the collector, without which DuckDB's binding writes of leaks as the process ends."""
    gc.unfreeze()
