"""No example of a property test has a deadline, nor has their making: a busy machine may hold up any.

What was collected is there to the end: no garbage collection looks at it again.
"""

from __future__ import annotations

import atexit
import gc
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("squall", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("squall")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Sets thousands of tests and all modules apart: a full collection walked over them for 0.2 s each time.

    They are given back as the process ends, without which DuckDB's binding writes of leaks.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        atexit.register(gc.unfreeze)
        gc.enable()
