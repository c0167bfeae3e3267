"""Requests as arrays, held to their rows one by one."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.requests.requests import Labels, Requests, in_order, is_open_load, together
from squall.analysis.storage.store import RunStore
from tests.request_columns import COLUMNS
from tests.synthetic_runs import synthesise, synthesise_closed


def columns_of(requests: Requests) -> dict[str, list[object]]:
    """Its columns as plain lists, labels as their words."""
    found = {}
    for field in fields(requests):
        values = getattr(requests, field.name)
        if isinstance(values, Labels):
            found[field.name] = [values.words[code] for code in values.codes]
        elif field.name not in ("is_open", "scheduled_phase"):
            found[field.name] = values.tolist()
    return found


@given(words=st.lists(st.sampled_from(["ok", "timeout", "", "unsent"])), chunk=st.integers(1, 5))
def test_labels_tell_and_count_words_over_chunks(words: list[str], chunk: int) -> None:
    chunks = [pa.array(words[i : i + chunk], pa.string()) for i in range(0, len(words), chunk)]
    encoded = pa.dictionary(pa.int32(), pa.string())
    for column in (
        pa.chunked_array(chunks, pa.string()),
        pa.chunked_array([one.dictionary_encode() for one in chunks], encoded),
    ):
        labels = Labels.from_column(column)
        assert labels.is_any_of(["ok", ""]).tolist() == [word in ("ok", "") for word in words]
        assert labels.counts() == {word: words.count(word) for word in set(words)}


@pytest.mark.parametrize("n_words", [255, 300])
def test_codes_are_as_narrow_as_their_words_allow(n_words: int) -> None:
    words = [f"word {i % n_words}" for i in range(700)]
    labels = Labels.from_column(pa.chunked_array([words]))
    assert labels.codes.dtype == (np.uint8 if n_words < 256 else np.uint16)
    assert [labels.words[code] for code in labels.codes] == words


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("ids", ["whole", "with a hole", "with one twice"])
def test_the_columns_of_a_run_are_those_of_its_rows_whatever_their_order(
    is_open: bool, ids: str, tmp_path: Path
) -> None:
    run = synthesise(rate_hz=20.0) if is_open else synthesise_closed()
    own = run.tables["requests"]
    order = np.random.default_rng(0).permutation(len(own["phase"])).tolist()
    for name, values in own.items():
        own[name] = [values[i] for i in order]
    own["request_id"][7] = {"whole": own["request_id"][7], "with a hole": 10**6}.get(
        ids, own["request_id"][8]
    )
    own["sent_ns"][3] = own["done_ns"][3] = None
    run.derived = run.seal = False
    store = run.write(tmp_path)
    assert is_open_load(store.manifest) == is_open
    rows = sorted(store.read("requests", COLUMNS).to_pylist(), key=lambda row: row["request_id"])
    if not is_open:
        rows.sort(key=lambda row: row["sent_ns"] or 0)
    expected = {name: [row[name] for row in rows] for name in COLUMNS}
    expected |= {f"is_{name}": [row[f"{name}_ns"] is not None for row in rows] for name in ("sent", "done")}
    for name in ("scheduled_ns", "sent_ns", "done_ns"):
        expected[name] = [value or 0 for value in expected[name]]
    assert columns_of(Requests.read(store)) == expected
    assert columns_of(Requests.from_table(store.read("requests"), is_open)) == expected


def test_a_request_takes_less_than_50_bytes_and_a_phase_is_a_view_of_its_rows(whole_run: RunStore) -> None:
    requests = Requests.read(whole_run)
    columns = [getattr(requests, field.name) for field in fields(requests)]
    arrays = [one.codes if isinstance(one, Labels) else one for one in columns]
    assert sum(one.nbytes for one in arrays if isinstance(one, np.ndarray)) < 50 * len(requests)
    for names in (["warmup"], ["burst"], ["warmup", "burst"], ["none"]):
        own = requests.in_phases(names)
        kept = np.isin(np.array([requests.phase.words[code] for code in requests.phase.codes]), names)
        assert columns_of(own) == columns_of(requests.take(kept))
        assert len(own) == 0 or np.shares_memory(own.scheduled_ns, requests.scheduled_ns)
    apart = requests.take(np.r_[np.arange(100), np.arange(len(requests) - 100, len(requests)), np.arange(50)])
    assert apart.in_phases(["warmup"]).request_id.tolist() == [*range(100), *range(50)]


@given(is_kept=st.lists(st.booleans()), times=st.lists(st.integers(-5, 5)))
def test_rows_that_follow_one_another_are_a_slice_and_what_is_sorted_is_not_copied(
    is_kept: list[bool], times: list[int]
) -> None:
    mask = np.array(is_kept, dtype=np.bool_)
    rows, places = together(mask), np.flatnonzero(mask)
    assert np.arange(len(is_kept))[rows].tolist() == places.tolist()
    assert isinstance(rows, slice) == (len(places) == 0 or bool((np.diff(places) == 1).all()))
    at = np.array(times, dtype=np.int64)
    assert in_order(at).tolist() == sorted(times)
    assert (in_order(at) is at) == (times == sorted(times))
