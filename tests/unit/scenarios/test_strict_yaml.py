"""What is written as YAML is read back as the same values."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from squall.scenarios.errors import ScenarioError
from squall.scenarios.strict_yaml import parse_yaml, yaml_text

TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=12)
TRAPS = st.sampled_from(
    ["1e3", "off", "true", "1:30", "~", "007", "-.inf", "2026-01-01", "<<", "", "a: b", "# c", "- d"]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS | TRAPS
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS | TRAPS, inner, max_size=3)
)


@given(mapping=st.dictionaries(TEXTS, VALUES, max_size=4))
@example(mapping={"a": "1e3", "b": "off", "c": 1e-7, "d": [1, "2"], "e": {"f": None}})
def test_a_mapping_comes_back(mapping: dict[str, Any]) -> None:
    read = parse_yaml(yaml_text(mapping), "text")
    assert read == mapping
    assert list(read) == list(mapping)


def test_each_use_of_an_alias_is_a_part_of_its_own_and_counts_as_one() -> None:
    read = parse_yaml("a: &a {b: [1]}\nc: *a\n", "text")
    read["a"]["b"].append(2)
    assert read == {"a": {"b": [1, 2]}, "c": {"b": [1]}}
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
    with pytest.raises(ScenarioError, match="more than 1,000,000 values, aliases"):
        parse_yaml(bomb, "text")


def test_equal_parts_are_written_out_and_keys_keep_their_order() -> None:
    part = {"kind": "closed", "users": 1}
    assert yaml_text({"b": part, "a": [part, part]}) == (
        "b: {kind: closed, users: 1}\na:\n- {kind: closed, users: 1}\n- {kind: closed, users: 1}\n"
    )


def test_other_readers_take_a_text_that_looks_like_a_number_for_a_text() -> None:
    assert yaml.safe_load(yaml_text({"a": "1e3", "b": "12"})) == {"a": "1e3", "b": "12"}
