from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

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


def in_plain_order(table: pa.Table, is_open: bool) -> list[dict[str, Any]]:
    """Rows by request_id, in a closed loop by `sent_ns` and then by request_id; equal ones as they came."""
    rows: list[dict[str, Any]] = sorted(table.to_pylist(), key=lambda row: row["request_id"])
    return rows if is_open else sorted(rows, key=lambda row: row["sent_ns"] or 0)


def test_requests_come_in_order_of_the_schedule_whatever_the_order_of_rows(whole_run: RunStore) -> None:
    table = whole_run.read("requests", COLUMNS)
    shuffled = table.take(np.random.default_rng(0).permutation(table.num_rows))
    requests = Requests.from_table(shuffled)
    assert requests.request_id.tolist() == list(range(table.num_rows))
    by_id = {row["request_id"]: row for row in table.to_pylist()}
    for i in range(0, len(requests), 97):
        assert requests.scheduled_ns[i] == by_id[i]["scheduled_ns"]
        assert requests.outcome.words[requests.outcome.codes[i]] == by_id[i]["outcome"]
        assert requests.detail.words[requests.detail.codes[i]] == by_id[i]["detail"]


def test_one_never_sent_is_neither_sent_nor_done(whole_run: RunStore) -> None:
    table = whole_run.read("requests", COLUMNS)
    for name in ("sent_ns", "done_ns"):
        position = table.schema.get_field_index(name)
        values = [None, *table[name].to_pylist()[1:]]
        table = table.set_column(position, name, pa.array(values, pa.int64()))
    requests = Requests.from_table(table)
    assert (requests.is_sent[0], requests.is_done[0]) == (False, False)
    assert requests.is_sent[1:].all()


@given(words=st.lists(st.sampled_from(["ok", "timeout", "", "unsent"])), chunk=st.integers(1, 5))
def test_labels_tell_and_count_words_over_chunks(words: list[str], chunk: int) -> None:
    chunks = [words[i : i + chunk] for i in range(0, len(words), chunk)]
    plain = pa.chunked_array([pa.array(own, pa.string()) for own in chunks], pa.string())
    encoded = pa.chunked_array(
        [pa.array(own, pa.string()).dictionary_encode() for own in chunks],
        pa.dictionary(pa.int32(), pa.string()),
    )
    for column in (plain, encoded):
        labels = Labels.from_column(column)
        assert labels.is_any_of(["ok", ""]).tolist() == [word in ("ok", "") for word in words]
        assert labels.counts() == {word: words.count(word) for word in set(words)}


@pytest.mark.parametrize(
    ("is_open", "ids"),
    [
        (True, "whole"),
        (True, "with a hole"),
        (True, "with one twice"),
        (False, "whole"),
        (False, "with one twice"),
    ],
)
def test_the_columns_of_a_run_are_those_of_its_rows_whatever_their_order(
    is_open: bool, ids: str, tmp_path: Path
) -> None:
    run = synthesise(rate_hz=20.0) if is_open else synthesise_closed()
    own = run.tables["requests"]
    order = np.random.default_rng(0).permutation(len(own["phase"])).tolist()
    for name, values in own.items():
        own[name] = [values[i] for i in order]
    own["request_id"][7] = {
        "whole": own["request_id"][7],
        "with a hole": 10**6,
        "with one twice": own["request_id"][8],
    }[ids]
    own["sent_ns"][3] = own["done_ns"][3] = None
    run.derived = run.seal = False
    store = run.write(tmp_path)
    assert is_open_load(store.manifest) == is_open
    rows = in_plain_order(store.read("requests", COLUMNS), is_open)
    expected = {name: [row[name] for row in rows] for name in COLUMNS}
    expected |= {f"is_{name}": [row[f"{name}_ns"] is not None for row in rows] for name in ("sent", "done")}
    for name in ("scheduled_ns", "sent_ns", "done_ns"):
        expected[name] = [value or 0 for value in expected[name]]
    assert columns_of(Requests.read(store)) == expected
    assert columns_of(Requests.from_table(store.read("requests"), is_open)) == expected


def test_a_request_takes_less_than_50_bytes(whole_run: RunStore) -> None:
    requests = Requests.read(whole_run)
    assert requests.scheduled_phase is None
    left_out = ("is_open", "scheduled_phase")
    columns = [getattr(requests, field.name) for field in fields(requests) if field.name not in left_out]
    arrays = [one.codes if isinstance(one, Labels) else one for one in columns]
    assert sum(one.nbytes for one in arrays) < 50 * len(requests)


def test_a_phase_is_a_view_of_the_rows_and_phases_apart_are_their_own(whole_run: RunStore) -> None:
    requests = Requests.read(whole_run)
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
    mask, values = np.array(is_kept, dtype=np.bool_), np.arange(len(is_kept))
    rows = together(mask)
    assert values[rows].tolist() == values[mask].tolist()
    places = np.flatnonzero(mask)
    assert isinstance(rows, slice) == (len(places) == 0 or bool((np.diff(places) == 1).all()))
    at = np.array(times, dtype=np.int64)
    assert in_order(at).tolist() == sorted(times)
    assert (in_order(at) is at) == (times == sorted(times))


def test_codes_are_as_narrow_as_their_words_allow() -> None:
    for n_words, width in ((3, np.uint8), (255, np.uint8), (300, np.uint16)):
        labels = Labels.from_column(pa.chunked_array([[f"word {i % n_words}" for i in range(700)]]))
        assert labels.codes.dtype == width
        assert [labels.words[code] for code in labels.codes] == [f"word {i % n_words}" for i in range(700)]
        assert labels.is_any_of(["word 2"]).sum() == len(range(2, 700, n_words))
