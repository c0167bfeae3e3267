from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from analysis.requests import COLUMNS, Labels, Requests
from analysis.store import RunStore


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
