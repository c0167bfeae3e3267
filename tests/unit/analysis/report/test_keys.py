"""The records of a summary, found in its classes."""

from __future__ import annotations

from typing import NamedTuple

from squall.analysis.report.keys import records


class Leaf(NamedTuple):
    a_ns: int


def test_records_are_found_behind_optional_and_nested_types() -> None:
    assert list(records(dict[str, tuple[Leaf | None, ...]])) == [Leaf]
