"""What `Requests` is made of."""

from __future__ import annotations

COLUMNS = [
    "request_id", "worker", "node", "target", "request_kind", "phase", "scheduled_ns", "sent_ns", "done_ns", "rows",
    "outcome", "detail",
]  # fmt: skip
"""Columns of `requests` that `Requests` is made of."""
