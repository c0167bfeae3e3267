"""What a Locust master says and writes of a run: its statistics as the manifest has them, its CSV files, its page.

Under gevent, in the process of the master.
"""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import gevent
from locust import stats
from locust.html import get_html_report

from squall.actors.locust.settings import ACCOUNT

_REPORTED = (0.5, 0.66, 0.75, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999, 0.9999, 1.0)
"""Those of Locust's own table."""
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
        return {
            "entries": [_entry(one) for one in (*stats.sort_stats(own.entries), own.total)],
            "failures": [
                {
                    "method": one.method or "",
                    "name": one.name or "",
                    "error": stats.StatsError.parse_error(one.error),
                    "n": one.occurrences,
                }
                for one in stats.sort_stats(own.errors)
            ],
            "exceptions": [
                {"message": one["msg"], "traceback": one["traceback"], "n": one["count"]}
                for one in self._environment.runner.exceptions.values()
            ],
        }

    def keep_account(self) -> None:
        """Writes it, so that it is there should this process die."""
        new = self._folder / f"{ACCOUNT}.new"
        new.write_text(json.dumps(self.account()))
        os.replace(new, self._folder / ACCOUNT)

    def finish(self) -> None:
        """All files as they stand at the end; raises OSError."""
        self.keep_account()
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


def _entry(one: Any) -> dict[str, Any]:
    n_timed = one.num_requests - one.num_none_requests
    return {
        "method": one.method or "",
        "name": one.name or "",
        "n_requests": one.num_requests,
        "n_failures": one.num_failures,
        "total_ms": float(one.total_response_time),
        "min_ms": None if one.min_response_time is None else float(one.min_response_time),
        "max_ms": float(one.max_response_time) if n_timed else None,
        "quantiles_ms": {f"{q:g}": float(one.get_response_time_percentile(q)) for q in _REPORTED}
        if n_timed
        else {},
        "response_bytes": int(one.total_content_length),
    }
