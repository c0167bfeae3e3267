"""How many random examples property tests take: in `make test` a quarter of those in `make test-slow`.

Of those over planted runs it may be said, for nights in which they may take long:

    SQUALL_EXAMPLES=5000 .venv/bin/pytest --hypothesis-seed=7 --hypothesis-show-statistics \\
        tests/unit/analysis/test_many_planted_runs.py::test_many_planted_runs_come_out_as_loops_find_them

draws 5,000 runs from seed 7 in one process, without Ray, Triton or a network. Other seeds draw other runs, so that
several processes share the work; a failing run shrinks to a small one, which belongs into the quick test of what is
wrong as an `@example`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import HealthCheck, settings

VARIABLE = "SQUALL_EXAMPLES"
THOROUGH = 100
"""Examples of a test that states no number, in `make test-slow`."""
PROFILES = {"quick": THOROUGH // 4, "thorough": THOROUGH}
"""Of hypothesis, with their examples of such a test; none has a deadline for an example or for its making."""


def register_profiles() -> None:
    """Makes `PROFILES` known and loads the quick one, which `--hypothesis-profile=thorough` replaces."""
    for name, n in PROFILES.items():
        settings.register_profile(
            name, deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=n
        )
    settings.load_profile("quick")


def examples(n: int, **changes: Any) -> settings:
    """Settings of a property test that takes `n` examples in `make test-slow`, and a quarter of them in `make test`."""
    return settings(max_examples=max(1, n * settings().max_examples // THOROUGH), **changes)


def many(n: int) -> settings:
    """Settings of a property test that takes `n` examples, or as many as `SQUALL_EXAMPLES` says."""
    n_examples = int(os.environ.get(VARIABLE) or n)
    return settings(max_examples=n_examples, print_blob=True)


@contextmanager
def folder_in(parent: Path) -> Iterator[Path]:
    """A folder for the run of one example, gone when it has been looked at: thousands of them would fill a disk."""
    with TemporaryDirectory(dir=parent) as name:
        yield Path(name)
