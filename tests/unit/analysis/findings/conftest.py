"""The real exports of tests/fixtures/h200."""

from __future__ import annotations

from tests.unit.analysis.nsys.conftest import h200, h200_report

__all__ = ["h200", "h200_report"]
