"""DuckDB databases in memory that a process uses again: one costs 20 ms of CPU to open, most of it for the 3,000
functions that it registers, and a summary asks for some twenty (DuckDB 2.0.0, a host of 2 cores, 2026-11-23)."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager

import duckdb

_idle: dict[int, list[duckdb.DuckDBPyConnection]] = {}
"""Databases that nobody uses, by process: a fork has its parent's without their threads and must not touch them."""


@contextmanager
def database(temp_directory: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """An empty database of the caller's own that spills into `temp_directory`, for any thread.

    Its other settings are those of whoever had it last: set all that you need. One that an error left, or that has
    spilled, is not used again.
    """
    whole = _idle_or_new()
    try:
        whole.execute("SET temp_directory = $path", {"path": temp_directory})
        whole.execute("SET enable_external_file_cache = true")
        with whole.cursor() as connection:
            connection.execute("ATTACH ':memory:' AS own")
            connection.execute("USE own")
            yield connection
        whole.execute(
            "DETACH own"
        )  # with all its tables and views; temporary ones went with their connection
        whole.execute("SET enable_external_file_cache = false")  # which lets go of what it held of files
    except BaseException:
        whole.close()
        raise
    try:
        whole.execute("SET temp_directory = ''")
    except duckdb.NotImplementedException:  # it has spilled and would go on doing so in the same place
        whole.close()
    else:
        _keep(whole)


def _keep(one: duckdb.DuckDBPyConnection) -> None:
    if os.getpid() not in _idle:
        _idle[os.getpid()] = []
        atexit.register(_close_idle)  # later than that, DuckDB's binding would write of leaks to stderr
    _idle[os.getpid()].append(one)


def _close_idle() -> None:
    for one in _idle.pop(os.getpid(), []):
        one.close()


def _idle_or_new() -> duckdb.DuckDBPyConnection:
    try:
        return _idle.get(os.getpid(), []).pop()
    except IndexError:
        return duckdb.connect()
