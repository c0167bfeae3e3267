"""Requests encoded into a file are those that a worker would encode itself, whoever sends them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from squall.actors.clock import SystemClock
from squall.actors.load.choice import RULES, Chooser
from squall.actors.load.lane import IS_BUILT, Lane, lane_pacing
from squall.actors.load.pacing import plain_pacing
from squall.actors.load.streams import StreamRule
from squall.actors.load.targets import Inputs, TargetSettings, Wire, encoded, pack, packed
from squall.actors.messages.packed import PackFile, PackWriter
from squall.actors.messages.packed_templates import ByKey, PackedTemplates
from squall.actors.messages.sequence_wire import n_bytes_of
from squall.actors.messages.template import Layout, Template, TemplateKey
from squall.actors.messages.value_check import Tally, ValueCheck, ValueRule
from squall.actors.net.loop import Loop
from squall.models.payload import RequestOptions
from squall.models.spec import ModelSpec, TensorSpec
from squall.scenarios.errors import ClusterError
from squall.scenarios.plan.plan import PhaseSpan, Plan

S = 1_000_000_000
SPEC = ModelSpec(
    "m",
    "1",
    (TensorSpec("A", "INT32", (-1,)), TensorSpec("B", "FP32", (2,))),
    (TensorSpec("O", "FP32", (2,)),),
    8,
)
TARGETS = tuple(TargetSettings(f"server-{n}", "127.0.0.1", 8_000 + n, (SPEC,)) for n in range(3))
KINDS = [(1, 0), (1, 3), (2, 1), (1, 70_000), (4, 2)]
PROTOCOLS = ("http", "grpc")
HEADERS = {"x": "y"}
OPTIONS = RequestOptions({"top_k": 3})
WIRES = {
    **{one: Wire(one, HEADERS) for one in PROTOCOLS},
    **{f"{one} options": Wire(one, HEADERS, OPTIONS) for one in PROTOCOLS},
    **{
        f"{one} sequences": Wire(one, HEADERS, OPTIONS, None, n_bytes_of(one, {"top_k": 3}))
        for one in PROTOCOLS
    },
    "http json": Wire("http", HEADERS, RequestOptions(is_binary=False)),
    "http stream": Wire("http", HEADERS, streams=StreamRule("O")),
    "grpc stream of sequences": Wire("grpc", HEADERS, OPTIONS, StreamRule("O"), n_bytes_of("grpc", {})),
}


def inputs(most_rows: int = 4) -> Inputs:
    """Of sizes that vary with the entry."""
    return {
        (rows, entry): {
            "A": np.full((rows, entry % 5), entry, np.int32),
            "B": np.full((rows, 2), entry + 0.5, np.float32),
        }
        for rows, entry in KINDS
        if rows <= most_rows
    }


def packed_file(folder: Path, wire: Wire, most_rows: int = 4) -> Path:
    path = folder / "requests.packed"
    writer = PackWriter(path)
    for kind, arrays in inputs(most_rows).items():
        pack(writer, SPEC, wire, kind, arrays)
    assert writer.close() == path.stat().st_size
    return path


def templates(folder: Path, protocol: str, check: Any = None) -> PackedTemplates:
    wire = WIRES[protocol]
    return PackedTemplates([packed(packed_file(folder, wire), TARGETS, wire, check)])


@pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
def test_a_packed_request_is_the_one_that_would_be_encoded(tmp_path: Path, wire: Wire) -> None:
    most = 1 if wire.protocol == "http" and wire.streams is not None else 4
    found = PackedTemplates([packed(packed_file(tmp_path, wire, most), TARGETS, wire, None)])
    expected = {
        key: one
        for number, target in enumerate(TARGETS)
        for key, one in encoded(target, SPEC, number, wire, inputs(most), None, {}).items()
    }
    assert dict(ByKey(found)) == expected
    assert {type(one) for one in found} == {type(one) for one in expected.values()}
    assert len(found) == len(ByKey(found)) == len(expected)
    one = next(iter(found))
    assert found.for_target(one, 2) == expected[2, *KINDS[0]]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_requests_of_one_layout_share_what_is_known_of_replies(tmp_path: Path, protocol: str) -> None:
    found = templates(tmp_path, protocol)
    # equal layouts share what is known of their replies, at one server
    alike = [ByKey(found)[key].known for key in ((0, 1, 0), (0, 1, 70_000), (1, 1, 0), (0, 1, 3))]
    alike[0].append(Layout(b"", b"", 1))
    assert [len(known) for known in alike] == [1, 1, 0, 0]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_lane_has_the_heads_and_tails_of_the_templates(tmp_path: Path, protocol: str) -> None:
    found = templates(tmp_path, protocol)
    assert [block.target for block in found.blocks] == list(range(len(TARGETS)))
    for target, block in enumerate(found.blocks):
        file, (heads, table) = block.model.file, block.places()
        assert len(heads) == len(set(heads)) < len(KINDS) + 1
        for place, (head, begin, n_tail, rows, layout) in enumerate(table.tolist()):
            one = found[target * len(KINDS) + place]
            assert one.head == heads[head]
            assert one.tail == bytes(file.view[begin : begin + n_tail])
            assert one.rows == rows
            assert one.known is found.known[target * file.n_layouts + layout]


def test_what_was_not_encoded_is_not_found(tmp_path: Path) -> None:
    found = templates(tmp_path, "http")
    with pytest.raises(KeyError):
        ByKey(found)[0, 3, 0]
    with pytest.raises(IndexError):
        found[len(found)]
    assert [one.rows for one in found[:2]] == [1, 1]


def test_a_file_that_is_not_whole_is_told(tmp_path: Path) -> None:
    path = packed_file(tmp_path, Wire("http"))
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ClusterError, match=r"the encoded requests cannot be read: .* not all of it"):
        packed(path, TARGETS, Wire("http"), None)
    path.write_bytes(b"x" * 100)
    with pytest.raises(ClusterError, match="is no file of encoded requests"):
        packed(path, TARGETS, Wire("http"), None)
    path.unlink()
    with pytest.raises(ClusterError, match="cannot be read"):
        packed(path, TARGETS, Wire("http"), None)


def test_a_writer_that_gives_up_leaves_nothing(tmp_path: Path) -> None:
    writer = PackWriter(tmp_path / "a")
    writer.add(1, 0, b"tail", 0, "layout")
    writer.abandon()
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_there_only_when_it_is_whole(tmp_path: Path) -> None:
    writer = PackWriter(tmp_path / "a")
    writer.add(2, 1, b"two", 5, "x")
    writer.add(1, 9, b"one", 4, "y")
    assert not (tmp_path / "a").exists()
    writer.close()
    file = PackFile(tmp_path / "a")
    assert [
        (file.tail(number).n_json, bytes(file.view[file.tail(number).start :][:3])) for number in (0, 1)
    ] == [
        (4, b"one"),
        (5, b"two"),
    ]
    assert file.places(np.array([2, 1]), np.array([1, 9])).tolist() == [1, 0]


def test_replies_are_compared_with_the_answers_of_their_own_entry(tmp_path: Path) -> None:
    tally = Tally()

    def check(key: TemplateKey) -> ValueCheck:
        return ValueCheck({"O": np.full((key[1], 2), key[2])}, ValueRule(7, 0, 0), tally)

    one = ByKey(templates(tmp_path, "http", check))[1, 2, 1]
    assert one.check_every == 7
    assert isinstance(one.check, ValueCheck)
    assert one.check.fault_of({"O": np.full((2, 2), 1.0)}) == ""
    assert one.check.fault_of({"O": np.full((2, 2), 2.0)}) != ""


def plan() -> Plan:
    n = 40
    rows, variants = np.array([KINDS[i % len(KINDS)] for i in range(n)]).T
    return Plan(
        np.arange(n, dtype=np.int64), np.arange(n, dtype=np.int64) * 1_000, np.zeros(n, np.uint8),
        rows.astype(np.int32), variants.astype(np.uint32), (PhaseSpan("m", "measure", 0, S),),
        target=(np.arange(n) % 3).astype(np.uint8),
    )  # fmt: skip


class NoRecords:
    """Takes no record."""

    def take_filled(self, buffer: bytearray, n_rows: int) -> bytearray:
        raise AssertionError((buffer, n_rows))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "has_lane", [False, pytest.param(True, marks=pytest.mark.skipif(not IS_BUILT, reason="no lane"))]
)
def test_arrivals_get_the_request_that_the_plan_says(tmp_path: Path, protocol: str, has_lane: bool) -> None:
    found, loop = templates(tmp_path, protocol), Loop(SystemClock())
    whole = plan()
    lane = Lane(loop, cast(Any, NoRecords()), found, len(TARGETS)) if has_lane else None
    pacing = lane_pacing(whole, lane) if lane is not None else plain_pacing(whole, found)
    pacing.begin(1)
    by_key = ByKey(found)
    for number in range(len(whole)):
        if lane is not None:
            lane.core.turn(0)
        due = pacing.take()
        key = (number % 3, *KINDS[number % len(KINDS)])
        assert due.template == by_key[key]
        assert lane is None or lane.templates[lane.number_of(due.template)] == due.template
    if lane is not None:
        lane.core.close()
    loop.close()


def test_python_chooses_among_the_servers_of_a_packed_request(tmp_path: Path) -> None:
    found = templates(tmp_path, "http")
    chooser = Chooser(RULES[1], len(TARGETS), found)
    assert [chooser.sent(token, found[2]) for token in range(3)] == [
        found[n * len(KINDS) + 2] for n in range(3)
    ]


OTHER = ModelSpec("o", "2", (TensorSpec("T", "BYTES", (1,)),), (TensorSpec("O", "FP32", (2,)),), 8)
OTHER_KINDS = [(1, 0), (2, 0), (1, 5)]


def of_two_models(
    folder: Path, protocol: str, *, is_apart: bool = False
) -> tuple[PackedTemplates, dict[TemplateKey, Any]]:
    """Requests to two models of three servers, the second model's variants from 100,000 on, and what they must be;
    `is_apart`: the second server does not serve the second model."""
    served = [(SPEC, None if is_apart and n == 1 else OTHER) for n in range(3)]
    targets = [TargetSettings(f"server-{n}", "127.0.0.1", 8_000 + n, specs) for n, specs in enumerate(served)]
    wires = Wire(protocol, HEADERS), Wire(protocol, HEADERS, OPTIONS)
    texts = {(rows, entry): {"T": np.array([[b"x" * entry]] * rows, object)} for rows, entry in OTHER_KINDS}
    files, expected = [], dict[TemplateKey, Template]()
    for model, (spec, wire, given) in enumerate(zip((SPEC, OTHER), wires, (inputs(), texts), strict=True)):
        path, first = folder / f"requests-{model}.packed", model * 100_000
        writer = PackWriter(path)
        for kind, arrays in given.items():
            pack(writer, spec, wire, kind, arrays)
        writer.close()
        files.append(packed(path, targets, wire, None, model, first, model + 4))
        for number, target in enumerate(targets):
            if target.specs[model] is None:
                continue
            for (_, rows, entry), one in encoded(target, spec, number, wire, given, None, {}).items():
                expected[number, rows, entry + first] = one.of_kind(model + 4)
    return PackedTemplates(files), expected


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("is_apart", [False, True])
def test_requests_to_several_models_lie_in_a_file_each(tmp_path: Path, protocol: str, is_apart: bool) -> None:
    found, expected = of_two_models(tmp_path, protocol, is_apart=is_apart)
    assert dict(ByKey(found)) == expected
    assert len(found) == len(expected) == 3 * 8 - 3 * is_apart
    keys = list(ByKey(found))
    columns = [np.array(column) for column in zip(*keys, strict=True)]
    assert found.numbers(*columns).tolist() == list(range(len(found)))
    assert [found[number].number for number in range(len(found))] == list(range(len(found)))
    assert [(one.target, one.spec.name) for one in found.samples()] == [
        (target, name) for target in range(3) for name in "mo" if (target, name) != (1, "o") or not is_apart
    ]
    known = [{id(one.known) for one in found if (one.target, one.spec.name) == (0, name)} for name in "mo"]
    assert [len(one) for one in known] == [4, 2]
    assert not known[0] & known[1], "replies of different models are never taken for alike"
    if not is_apart:
        assert found.for_target(ByKey(found)[0, 2, 100_000], 2) == expected[2, 2, 100_000]
        return
    with pytest.raises(KeyError, match="does not serve its model"):
        ByKey(found)[1, 1, 100_000]


def test_a_model_without_requests_takes_no_number(tmp_path: Path) -> None:
    writer = PackWriter(tmp_path / "empty")
    writer.close()
    wire = Wire("http")
    files = [
        packed(tmp_path / "empty", TARGETS, wire, None),
        packed(packed_file(tmp_path, wire), TARGETS, wire, None, 0, 9),
    ]
    found = PackedTemplates(files)
    assert (len(found), len(found.samples())) == (3 * len(KINDS), 3)
    assert ByKey(found)[0, 2, 10].rows == 2
    with pytest.raises(KeyError):
        ByKey(found)[0, 2, 1]


@pytest.mark.skipif(not IS_BUILT, reason="no lane")
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_lane_numbers_the_requests_of_several_models_as_python_does(tmp_path: Path, protocol: str) -> None:
    found, expected = of_two_models(tmp_path, protocol, is_apart=True)
    keys, n = list(expected), len(expected)
    target, rows, variants = (np.array(column) for column in zip(*keys, strict=True))
    whole = Plan(
        np.arange(n, dtype=np.int64), np.arange(n, dtype=np.int64), np.zeros(n, np.uint8), rows.astype(np.int32),
        variants.astype(np.uint32), (PhaseSpan("m", "measure", 0, S),), target=target.astype(np.uint8),
    )  # fmt: skip
    loop = Loop(SystemClock())
    lane = Lane(loop, cast(Any, NoRecords()), found, len(TARGETS))
    pacing = lane_pacing(whole, lane)
    pacing.begin(1)
    for key in keys:
        lane.core.turn(0)
        assert pacing.take().template == expected[key]
    lane.core.close()
    loop.close()
