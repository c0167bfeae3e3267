"""The keys of the summary are those of the classes, and those that pages name are there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from squall.analysis.summary.keys import markdown, names_of, records
from squall.analysis.summary.summary_file import Summary

DOCS = Path(__file__).parents[4] / "docs"
NAMED = {
    "diagnosis.md": r"`summary.json` has `(\w+)` and `(\w+)`",
    "metrics.md": r"`summary.json` has them under `(\w+)`",
    "profiling.md": r"`(\w+)` of `summary.json`",
    "run.md": r"`summary.json` \(`(\w+)`\)",
}
"""How a page names keys of the summary."""


def test_the_page_has_every_class() -> None:
    headings = [line.removeprefix("## ") for line in markdown().splitlines() if line.startswith("## ")]
    assert headings == [record.__name__ for record in records(Summary)]


@pytest.mark.parametrize("page", NAMED)
def test_the_keys_that_a_page_names_are_there(page: str) -> None:
    keys = {name for record in records(Summary) for name in names_of(record)}
    text = " ".join((DOCS / page).read_text(encoding="utf-8").split())
    named = [name for found in re.finditer(NAMED[page], text) for name in found.groups()]
    assert named
    assert set(named) <= keys


class Leaf(NamedTuple):
    a_ns: int


def test_records_are_found_behind_optional_and_nested_types() -> None:
    assert list(records(dict[str, tuple[Leaf | None, ...]])) == [Leaf]
