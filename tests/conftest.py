"""No example of a property test has a deadline, nor has their making: a busy machine may hold up any.

What was collected is there to the end: no garbage collection looks at it again, and one of the rest, which tests make
by the thousand rows, comes at 10,000 objects more in place of 700. The process of the tests waits for no
disk: what it writes need not outlast a power cut.
"""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from zlib import crc32

import pytest

from tests.command import Command, command_in_process
from tests.many_examples import register_profiles

register_profiles()


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    return command_in_process(monkeypatch, capfd)


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
        gc.set_threshold(10_000, 20, 20)
        gc.enable()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Of SQUALL_SLICE=I/N, N slices of the files of tests of about the same size each, all but slice I (from 0)."""
    if "SQUALL_SLICE" not in os.environ or not collection_path.match("test_*.py"):
        return None
    number, n = map(int, os.environ["SQUALL_SLICE"].split("/"))
    file = collection_path.relative_to(Path(__file__).parent).as_posix()
    return None if crc32(file.encode()) % n == number else True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Appends the tests that were skipped to the file that SQUALL_SKIPPED names, one node id a line."""
    file = os.environ.get("SQUALL_SKIPPED")
    skipped = terminalreporter.stats.get("skipped", [])
    if file and skipped:
        with open(file, "a", encoding="utf-8") as out:
            out.writelines(f"{report.nodeid}\n" for report in skipped)
