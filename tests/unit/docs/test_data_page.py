"""docs/data.md states keys, formats, orders and limits of the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from squall.cluster.driver.payloads.packing import MOST_KINDS
from squall.scenarios.config.clients.data import DataConfig, DataFormat, OrderConfig
from squall.scenarios.data.lines import LARGEST_LINE_BYTES
from tests.unit.test_docs import documented, fields, kind_of, load_snippet, members, section, wrong_defaults

PAGE = (Path(__file__).parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
KEYS = PAGE.partition("## Formats")[0]


def test_the_page_lists_just_the_keys_with_their_defaults() -> None:
    assert set(documented(KEYS)) == set(fields(DataConfig))
    assert wrong_defaults(KEYS, DataConfig) == []


def test_the_page_names_every_format_and_order() -> None:
    found = [
        re.findall(r"^\| ((?:`[a-z]+` ?)+)\|", section(PAGE, heading), re.M)
        for heading in ("## Formats", "## Order")
    ]
    formats, orders = (
        [name for cell in cells for name in re.findall(r"`([a-z]+)`", cell)] for cells in found
    )
    assert formats[1:] == list(get_args(DataFormat))
    assert orders[1:] == [kind_of(model) for model in members(get_args(OrderConfig)[0])]


def test_the_snippet_of_the_page_is_one() -> None:
    loaded = load_snippet(PAGE.partition("```yaml\n")[2].partition("```")[0])
    assert loaded.clients.data is not None
    assert loaded.clients.data.columns == {"input_ids": "tokens"}


def test_limits_on_the_page_are_those_of_the_code() -> None:
    assert f"At most {MOST_KINDS:,} different requests" in PAGE
    assert f"a line has at most {LARGEST_LINE_BYTES // 2**20} MiB" in PAGE
