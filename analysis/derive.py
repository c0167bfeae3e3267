"""Makes everything again that is derived from the raw tables of a run: join, windows, summary and report."""

from __future__ import annotations

import json
from typing import Any

from analysis.join import write_joined
from analysis.report import write_report
from analysis.store import RunStore
from analysis.summary import summarise
from analysis.windows import write_windows


def derive(store: RunStore) -> dict[str, Any]:
    """Writes tables `joined` and `windows`, `summary.json` and `report.html` into a sealed run; returns the summary.

    Raises MissingTable for a run without requests, StoreError where the run directory cannot be written.
    """
    write_joined(store)
    write_windows(store)
    summary = summarise(store)
    store.write_text("summary.json", json.dumps(summary, indent=2) + "\n")
    write_report(store, summary)
    return summary
