"""What a Locust master says and writes of a run: its statistics as the manifest has them, its CSV files, its page.

Under gevent, in the process of the master.
"""

from __future__ import annotations

import csv
import json
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gevent
from locust import stats
from locust.html import get_html_report

from squall.actors.locust.settings import ACCOUNT

_REPORTED = (0.5, 0.66, 0.75, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999, 0.9999, 1.0)
"""Those of Locust's own table."""
_MOST_ROWS, _MOST_BYTES = 10_000, 8 * 1024**2
"""Of statistics, failures and exceptions each, as the manifest has them: ids in the names of requests have no end."""
_MOST_CHARACTERS = 10_000
"""Of a text there: names of requests are URLs."""
PREFIX = "locust"
REPORT = "report.html"


class Outputs:
    """Files below `folder`, which grow while the test runs."""

    def __init__(self, environment: Any, folder: Path, has_page: bool) -> None:
        """Raises OSError where they cannot be made."""
        self._environment = environment
        self._folder = folder
        self._has_page = has_page
        self.csv = stats.StatsCSVFileWriter(
            environment, stats.PERCENTILES_TO_REPORT, str(folder / PREFIX), full_history=False
        )
        self._writing: gevent.Greenlet | None = None

    def begin(self) -> None:
        """A row of history a second, from now on."""
        gevent.spawn(stats.stats_history, self._environment.runner)
        self._writing = gevent.spawn(self.csv.stats_writer)

    def account(self) -> dict[str, Any]:
        """Statistics, failures and exceptions, as fields of `MasterAccount`."""
        own = self._environment.stats
        exceptions = list(self._environment.runner.exceptions.values())
        return {
            "entries": [*_first(_entry, stats.sort_stats(own.entries)), _entry(own.total)],
            "failures": _first(_failure, stats.sort_stats(own.errors)),
            "exceptions": _first(_exception, exceptions),
        }

    def keep_account(self) -> dict[str, Any]:
        """Writes it, so that it is there should this process die; returns it."""
        account = self.account()
        new = self._folder / f"{ACCOUNT}.new"
        new.write_text(json.dumps(account))
        os.replace(new, self._folder / ACCOUNT)
        return account

    def finish(self) -> None:
        """All files as they stand at the end; raises OSError."""
        own, n_kept = self._environment.stats, sum(map(len, self.keep_account().values()))
        n_in_all = len(own.entries) + 1 + len(own.errors) + len(self._environment.runner.exceptions)
        if n_in_all > n_kept:
            logging.warning(
                "the manifest has only %d of %d names, failures and exceptions: give requests with ids in their URLs "
                "one name (name=...)", n_kept, n_in_all,
            )  # fmt: skip
        stats.update_stats_history(self._environment.runner)
        if self._writing is not None:
            self._writing.kill()
        self.csv.close_files()
        for name, rows in (
            ("stats", self.csv.requests_csv),
            ("failures", self.csv.failures_csv),
            ("exceptions", self.csv.exceptions_csv),
        ):
            with (self._folder / f"{PREFIX}_{name}.csv").open("w", newline="") as file:
                rows(csv.writer(file))
        if self._has_page:
            page = get_html_report(self._environment, show_download_link=False)
            (self._folder / REPORT).write_text(page, encoding="utf-8")


def _first(row: Callable[[Any], dict[str, Any]], ones: Sequence[Any]) -> list[dict[str, Any]]:
    """The row of each of them, as many as there is room for."""
    rows, n_left = list[dict[str, Any]](), _MOST_BYTES
    for one in ones[:_MOST_ROWS]:
        rows.append(row(one))
        n_left -= len(json.dumps(rows[-1]))
        if n_left < 0:
            return rows[:-1]
    return rows


def _text(value: Any) -> str:
    return str(value or "")[:_MOST_CHARACTERS]


def _whole(value: Any) -> int:
    """Of a sum: the manifest has 64 bits for it, and a stranger's reports may have made it any."""
    most = 2**63 - 1
    return max(-most, min(int(value), most))


def _failure(one: Any) -> dict[str, Any]:
    error = _text(stats.StatsError.parse_error(one.error))
    return {
        "method": _text(one.method),
        "name": _text(one.name),
        "error": error,
        "n": _whole(one.occurrences),
    }


def _exception(one: Any) -> dict[str, Any]:
    text, n = one["traceback"][-_MOST_CHARACTERS:], one["count"]
    return {"message": _text(one["msg"]), "traceback": text, "n": n}


def _entry(one: Any) -> dict[str, Any]:
    n_timed = one.num_requests - one.num_none_requests
    return {
        "method": _text(one.method),
        "name": _text(one.name),
        "n_requests": _whole(one.num_requests),
        "n_failures": _whole(one.num_failures),
        "total_ms": float(one.total_response_time),
        "min_ms": None if one.min_response_time is None else float(one.min_response_time),
        "max_ms": float(one.max_response_time) if n_timed else None,
        "quantiles_ms": {f"{q:g}": float(one.get_response_time_percentile(q)) for q in _REPORTED}
        if n_timed
        else {},
        "response_bytes": _whole(one.total_content_length),
    }
