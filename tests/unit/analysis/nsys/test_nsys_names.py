"""What texts of nsys mean, as `names.yaml` has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.nsys.allowed import OUR_TEXT
from squall.analysis.nsys.names import api_name, call_class, copy_kind, range_columns

CASES: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("names.yaml").read_text())
CLASSES = {name: kind for kind, names in CASES["classes"].items() for name in names.split()}
pieces = st.sampled_from(
    ["squall", "squall-clock", "|", "7", "12", "a_0", "cpu", "gpu", "gpu1", "-", " ", "", "\n", "é", "1" * 19]
)
texts = st.lists(pieces, max_size=8).map("".join)


def meant(texts: list[str]) -> list[tuple[Any, ...]]:
    """Instance, its device, batch and clock reading of each text."""
    columns = range_columns(pa.array(texts, pa.string()))
    names = ("instance", "instance_device", "batch_id", "clock_ns")
    return list(zip(*(columns[name].to_pylist() for name in names), strict=True))


def test_texts_mean_what_their_case_says() -> None:
    ranges = CASES["ranges"]
    assert dict(zip(ranges, map(list, meant(list(ranges))), strict=True)) == ranges
    assert {name: api_name(name) for name in CASES["calls"]} == CASES["calls"]
    assert {name: call_class(name) for name in CLASSES} == CLASSES
    assert [[*texts, copy_kind(*texts)] for *texts, _ in CASES["copies"]] == CASES["copies"]


@given(texts)
def test_a_text_that_scrubbing_keeps_is_ours(text: str) -> None:
    if OUR_TEXT.fullmatch(text):
        assert meant([text]) != meant([""])


@given(
    st.sampled_from(list(CLASSES)),
    st.sampled_from(["_v2", "_v3020", "_v13000", "_ptsz", "_ptds", "_v2_ptsz", "_ptds_v7000"]),
)
def test_neither_version_nor_stream_of_a_call_changes_its_class(name: str, tail: str) -> None:
    assert call_class(name + tail) == CLASSES[name] == call_class(api_name(name + tail))
