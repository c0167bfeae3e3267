"""Table `steps`: what each request passed, by id and by time, in runs whose truth is planted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.join import join
from squall.analysis.join.children import ChildModel, find_children
from squall.analysis.join.join import write_joined
from squall.analysis.storage.query import connect
from squall.analysis.storage.store import RunStore
from tests.many_examples import examples
from tests.plain_runs import plain_run

Row = dict[str, Any]
Span = tuple[int, int]
KEY = ("server", "instance", "instance_device", "batch_id")
OF_BATCH = ("model", "version", "start_ns", "end_ns", "rows", "n_requests", "phase")
MS = 1_000_000


class Batches:
    """Rows of `batches`, counted by instance."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._n: Counter[str] = Counter()

    def add(self, model: str, span: Span, *ids: int, n_foreign: int = 0, instance: int = 0) -> Row:
        name = f"{model}_0_{instance}"
        row = {
            "model": model, "version": "1", "recorded_by": "library", "instance": name, "phase": "burst",
            "batch_id": self._n[name], "start_ns": span[0], "end_ns": span[1], "request_ids": list(ids),
            "rows": len(ids) + n_foreign, "n_requests": len(ids) + n_foreign, "n_foreign": n_foreign,
        }  # fmt: skip
        self._n[name] += 1
        self.rows.append(row)
        return row


@dataclass
class Case:
    """Batches of a server, and when its requests were sent, by their ids; `more`: of the columns of the requests."""

    batches: Batches
    sent: dict[int, int]
    more: Row = field(default_factory=dict)


IDS = 10_000
"""Request ids of a case: those of the next one begin behind."""


def run_of(parent: Path, cases: dict[str, Case]) -> RunStore:
    """A run of all `cases`, each on a server of its own, joined."""
    requests, batches = list[Row](), list[Row]()
    for number, (server, case) in enumerate(cases.items()):
        first = number * IDS
        requests += [
            {
                "request_id": first + i, "target": server, "sent_ns": at, "scheduled_ns": at, "done_ns": at + 10**9,
                "outcome": "ok", "rows": 1, "phase": "burst", **case.more,
            } for i, at in case.sent.items()
        ]  # fmt: skip
        for row in case.batches.rows:
            batches.append({**row, "server": server, "request_ids": [first + i for i in row["request_ids"]]})
    store = plain_run(parent, {"requests": requests, "batches": batches})
    write_joined(store)
    return store


def steps(store: RunStore) -> list[Row]:
    rows: list[Row] = store.read("steps").to_pylist() if store.has("steps") else []
    return rows


def told(store: RunStore) -> list[ChildModel]:
    with connect(store, ["batches"]) as connection:
        return [one.model for one in find_children(connection, store.manifest, is_placed=False)]


def wait_by_hand(row: Row, own: list[Row], path: list[Row], sent_ns: int | None) -> int | None:
    """Since another step ended, or that of the path began which it lies within, whichever is later; else the send."""
    since = [one["end_ns"] for one in own if one is not row and one["end_ns"] <= row["start_ns"]]
    if not row["is_on_path"]:
        since += [
            one["start_ns"] for one in path
            if one["start_ns"] <= row["start_ns"] and row["end_ns"] <= one["end_ns"]
        ]  # fmt: skip
    begun = max(since, default=sent_ns)
    return None if begun is None else row["start_ns"] - begun


def check_steps(store: RunStore) -> None:
    """What holds in every run: the batch of each row names the request or lies within one that does, and `joined` has
    exactly those that are said to be joined."""
    batches = {tuple(row[name] for name in KEY): row for row in store.read("batches").to_pylist()}
    named = {key: row["request_ids"] for key, row in batches.items()}
    sent_ns = {row["request_id"]: row["sent_ns"] for row in store.read("requests").to_pylist()}
    found = steps(store)
    by_request: dict[int, list[Row]] = {}
    for row in found:
        by_request.setdefault(row["request_id"], []).append(row)
    for request_id, own in by_request.items():
        assert len(own) > 1
        assert own == sorted(own, key=lambda row: row["start_ns"])
        for row in own:
            batch = batches[tuple(row[name] for name in KEY)]
            assert {name: row[name] for name in OF_BATCH} == {name: batch[name] for name in OF_BATCH}
            if row["tie"] == "id":
                assert request_id in named[tuple(row[name] for name in KEY)]
            else:
                assert named[tuple(row[name] for name in KEY)] == []
                assert not row["is_on_path"]
                assert any(
                    one["start_ns"] <= row["start_ns"] and row["end_ns"] <= one["end_ns"]
                    for one in own if one["tie"] == "id" and one["model"] != row["model"]
                )  # fmt: skip
        path = sorted(
            (row for row in own if row["is_on_path"]), key=lambda row: (row["start_ns"], row["end_ns"])
        )
        assert all(one["end_ns"] <= other["start_ns"] for one, other in pairwise(path))
        waits = [wait_by_hand(row, own, path, sent_ns[request_id]) for row in own]
        assert [row["wait_ns"] for row in own] == waits
        assert [row["tie"] for row in own if row["is_joined"]] == ["id"]
        assert all(row["is_on_path"] for row in own if row["is_joined"])
    joined = {
        (row["request_id"], *(row[name] for name in KEY))
        for row in store.read("joined", ["request_id", *KEY]).to_pylist() if row["request_id"] in by_request
    }  # fmt: skip
    assert joined == {(row["request_id"], *(row[name] for name in KEY)) for row in found if row["is_joined"]}


N, EVERY = 200, 100 * MS
PERIODS = {i: i * EVERY - MS for i in range(N)}
"""When each request of `nested` was sent."""


def nested(
    n: int = N, child: Callable[[int], Sequence[Span]] = lambda at: [(at + 5 * MS, at + 30 * MS)],
    length: int = 60 * MS,
) -> Batches:  # fmt: skip
    """A parent of one request each, `child` within each that names nobody."""
    batches = Batches()
    for number in range(n):
        at = number * EVERY
        batches.add("parent", (at, at + length), number)
        for span in child(at):
            batches.add("child", span, n_foreign=1)
    return batches


def nested_with(*spans: Span, n_foreign: int = 1) -> Batches:
    """`nested` and more of the child."""
    batches = nested()
    for span in spans:
        batches.add("child", span, n_foreign=n_foreign)
    return batches


def nested_beside(model: str, begin: int, end: int, *, is_named: bool = True) -> Batches:
    """`nested` and a batch of another model in each period, of its request or of nobody's."""
    batches = nested()
    for number in range(N):
        at = number * EVERY
        ids = (number,) if is_named else ()
        batches.add(model, (at + begin, at + end), *ids, n_foreign=int(not is_named))
    return batches


def forked() -> Batches:
    batches = Batches()
    for number in range(3):
        at = 1_000 * number
        ids = (2 * number, 2 * number + 1)
        batches.add("tokenize", (at + 10, at + 20), *ids)
        batches.add("embed", (at + 25, at + 90), *ids)
        batches.add("filter", (at + 22, at + 30), *ids)
        batches.add("rank", (at + 95, at + 100), *ids)
    return batches


def named_child() -> Batches:
    batches = Batches()
    batches.add("child", (20, 80), 1)
    batches.add("child", (82, 89), 1)
    batches.add("parent", (10, 90), 1)
    return batches


def never_sent() -> Batches:
    batches = Batches()
    for model, span in {"a": (10, 20), "b": (30, 35)}.items():
        batches.add(model, span, 1, 77)
    return batches


def of_two_requests() -> Batches:
    batches = Batches()
    for number in range(N):
        at = number * EVERY
        batches.add("parent", (at, at + 60 * MS), 2 * number, 2 * number + 1)
        batches.add("child", (at + MS, at + 40 * MS), n_foreign=2)
    return batches


def two_instances() -> Batches:
    batches = nested()
    for number in range(20):  # a second instance, at the same time
        at = number * EVERY
        batches.add("parent", (at + MS, at + 55 * MS), N + number, instance=1)
    return batches


def foreign(length: int, n: int = 400, burst: bool = False) -> list[Span]:
    """Somebody else's requests to the child, whenever they like."""
    rng = np.random.default_rng(5)
    starts = rng.uniform(0, (N // 4 if burst else N - 1) * EVERY, n).astype(int)
    return [(start, start + length) for start in starts.tolist()]


def alone_with_foreign(length: int, child_length: int, burst: bool) -> Batches:
    batches = nested(child=lambda _: [], length=length)
    for span in foreign(child_length, burst=burst):
        batches.add("child", span, n_foreign=1)
    return batches


N_BUSY = 2_000


def busy_parent() -> Batches:
    """Back to back: chance holds a short child nearly always, but not always."""
    begins = iter(np.random.default_rng(3).uniform(MS, 96 * MS, N_BUSY).astype(int).tolist())
    return nested(N_BUSY, child=lambda at: [(at + (begin := next(begins)), at + begin + MS)], length=99 * MS)


NOBODYS = {
    f"foreign {how}, {child_length} ns, {'burst' if burst else 'even'}": (length, child_length, burst)
    for how, length in {"idle at times": 60 * MS, "busy": 95 * MS, "always busy": 100 * MS}.items()
    for child_length in (MS // 10, 5 * MS)
    for burst in (False, True)
}


def cases() -> dict[str, Case]:
    """Each with the name of its server."""
    return {
        "fork": Case(forked(), {i: 1_000 * (i // 2) + i % 2 for i in range(6)}),
        "named child": Case(named_child(), {1: 0, 2: 0}),
        "never sent": Case(never_sent(), {1: 0}, {"sent_ns": None, "done_ns": None, "outcome": "lost"}),
        "two children": Case(
            nested(child=lambda at: [(at + 5 * MS, at + 30 * MS), (at + 31 * MS, at + 59 * MS)]), PERIODS
        ),
        "two requests": Case(of_two_requests(), {i: i // 2 * EVERY - MS for i in range(2 * N)}),
        "two instances": Case(two_instances(), {i: i % N * EVERY - MS for i in range(N + 20)}),
        "beside": Case(nested_with((70 * MS, 90 * MS)), PERIODS),
        "asked by others": Case(nested_with(*foreign(5 * MS, n=40)), PERIODS),
        "busy parent": Case(busy_parent(), {i: i * EVERY - MS for i in range(N_BUSY)}),
        "two holders": Case(nested_beside("other", 0, 58 * MS), PERIODS),
        "few": Case(nested(n=19), {i: i * EVERY - MS for i in range(19)}),
        "warm-ups": Case(
            nested_with(*((-(n + 2) * 10 * MS, -(n + 1) * 10 * MS) for n in range(50)), n_foreign=2), PERIODS
        ),
        "ensemble": Case(nested_beside("rank", 62 * MS, 92 * MS), PERIODS),
        "chain": Case(nested_beside("grandchild", 6 * MS, 29 * MS, is_named=False), PERIODS),
        **{name: Case(alone_with_foreign(*how), PERIODS) for name, how in NOBODYS.items()},
    }


@dataclass
class Seen:
    """Of a case: its rows of `steps`, in their order, with its own request ids, and its children."""

    steps: list[Row] = field(default_factory=list)
    told: list[ChildModel] = field(default_factory=list)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    """All cases in one run: what the one says is not told of another."""
    every = cases()
    store = run_of(tmp_path_factory.mktemp("cases"), every)
    check_steps(store)
    names = list(every)
    found = {name: Seen() for name in names}
    for row in steps(store):
        assert names[row["request_id"] // IDS] == row["server"]
        found[row["server"]].steps.append({**row, "request_id": row["request_id"] % IDS})
    for one in told(store):
        found[one.server].told.append(one)
    return found


# of a request its steps: model, on the path, joined, tie, wait
PATHS: dict[str, tuple[int, list[tuple[str, bool, bool, str, int | None]]]] = {
    "fork": (3, [
        ("tokenize", True, False, "id", 9), ("filter", False, False, "id", 2), ("embed", True, True, "id", 5),
        ("rank", True, False, "id", 5),
    ]),
    "named child": (1, [
        ("parent", True, True, "id", 10), ("child", False, False, "id", 10), ("child", False, False, "id", 2),
    ]),
    "never sent": (1, [("a", True, True, "id", None), ("b", True, False, "id", 10)]),
    "two children": (7, [
        ("parent", True, True, "id", MS), ("child", False, False, "time", 5 * MS), ("child", False, False, "time", MS),
    ]),
    "ensemble": (3, [
        ("parent", True, True, "id", MS), ("child", False, False, "time", 5 * MS), ("rank", True, False, "id", 2 * MS),
    ]),
}  # fmt: skip


@pytest.mark.parametrize("name", PATHS)
def test_the_steps_of_a_request(seen: dict[str, Seen], name: str) -> None:
    request_id, expected = PATHS[name]
    columns = ("model", "is_on_path", "is_joined", "tie", "wait_ns")
    own = [row for row in seen[name].steps if row["request_id"] == request_id]
    assert [tuple(row[column] for column in columns) for row in own] == expected


# of each child model: model, parent, batches, tied, ambiguous, unheld; and rows of `steps` by model
CHILDREN: dict[str, tuple[list[tuple[str, str | None, int, int, int, int]], dict[str, int]]] = {
    "fork": ([], dict.fromkeys(("tokenize", "embed", "filter", "rank"), 6)),
    "two children": ([("child", "parent", 2 * N, 2 * N, 0, 0)], {"parent": N, "child": 2 * N}),
    "two requests": ([("child", "parent", N, N, 0, 0)], {"parent": 2 * N, "child": 2 * N}),
    "two instances": ([("child", "parent", N, N - 20, 20, 0)], {"parent": N - 20, "child": N - 20}),
    "beside": ([("child", "parent", N + 1, N, 0, 1)], {"parent": N, "child": N}),
    "asked by others": ([("child", None, N + 40, 0, 0, 0)], {}),
    "busy parent": ([("child", "parent", N_BUSY, N_BUSY, 0, 0)], {"parent": N_BUSY, "child": N_BUSY}),
    "two holders": ([("child", None, N, 0, 0, 0)], {"parent": N, "other": N}),
    "few": ([("child", None, 19, 0, 0, 0)], {}),
    "warm-ups": ([("child", "parent", N, N, 0, 0)], {"parent": N, "child": N}),
    "ensemble": ([("child", "parent", N, N, 0, 0)], {"parent": N, "child": N, "rank": N}),
    "chain": (
        [("child", "parent", N, N, 0, 0), ("grandchild", "parent", N, N, 0, 0)],
        {"parent": N, "child": N, "grandchild": N},
    ),
}


@pytest.mark.parametrize("name", CHILDREN)
def test_what_is_told_of_batches_that_name_nobody(seen: dict[str, Seen], name: str) -> None:
    children, n_steps = CHILDREN[name]
    assert seen[name].told == [ChildModel(name, *one) for one in children]
    assert Counter(row["model"] for row in seen[name].steps) == n_steps


@pytest.mark.parametrize("name", NOBODYS)
def test_requests_of_somebody_else_without_an_id_are_nobodys_children(
    seen: dict[str, Seen], name: str
) -> None:
    """However busy the model beside them is, which then holds them as often by chance."""
    assert [(one.parent, one.n_tied) for one in seen[name].told] == [(None, 0)]
    assert not seen[name].steps


DRAWN = st.lists(
    st.tuples(
        st.sampled_from("abc"), st.integers(0, 60), st.integers(0, 25),
        st.lists(st.integers(0, 5), max_size=3),
    ), min_size=1, max_size=14,
)  # fmt: skip


@examples(25)
@given(DRAWN)
def test_whatever_the_batches_the_table_says_nothing_that_they_do_not(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[str, int, int, list[int]]]
) -> None:
    batches = Batches()
    for model, start, length, ids in drawn:
        batches.add(model, (start, start + length), *ids, n_foreign=int(not ids))
    store = run_of(tmp_path_factory.mktemp("steps"), {"server-0": Case(batches, dict.fromkeys(range(5), 0))})
    check_steps(store)
    n_models: dict[int, set[str]] = {}
    n_named: Counter[int] = Counter()
    for row in batches.rows:
        for one in {*row["request_ids"]}:
            n_models.setdefault(one, set()).add(row["model"])
            n_named[one] += 1
    several = len({row["model"] for row in batches.rows}) > 1
    expected = {one: n for one, n in n_named.items() if n > 1 and one < 5 and several}
    assert Counter(row["request_id"] for row in steps(store)) == expected


def test_slices_make_the_same_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n = 120
    case = {"server-0": Case(nested(n), {i: i * EVERY - MS for i in range(n)})}
    whole = steps(run_of(tmp_path / "whole", case))
    assert Counter(row["tie"] for row in whole) == {"id": n, "time": n}
    monkeypatch.setattr(join, "_LEAST_ROWS", 17)
    monkeypatch.setattr(join, "_MOST_ROWS", 17)
    monkeypatch.setattr("squall.analysis.join.executions._PAIRS_AT_A_TIME", 13)
    store = run_of(tmp_path / "parts", case)
    check_steps(store)
    assert len(store.parts("steps")) > 5
    assert steps(store) == [{**row, "run": store.run} for row in whole]
