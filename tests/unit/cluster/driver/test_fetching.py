"""Copies of a node's files: taken up, held to checksums, paced, brought after a broken connection too."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from squall.cluster.driver.copies import (
    Copies,
    at_once,
    copied_sites,
    folder_of,
    is_whole,
    remove_copies,
)
from squall.cluster.driver.fetching import Fetching, in_order
from squall.cluster.driver.node_files import FilesHere, FilesThere
from squall.cluster.driver.pace import MARGIN_NS, PIECE_BYTES, Pace, Span
from squall.cluster.node.spills import NodeFile, Piece, Spills
from squall.scenarios.config.records import RecordsConfig
from squall.scenarios.errors import ClusterError, LostActor, StoreError

S = 1_000_000_000
CONTENT = random.Random(1).randbytes(10_500)
PATH = "spill/requests-0.arrows"


class _Agent:
    """The agent's own answers over a link that tears, damages or breaks what is asked for from some offsets on."""

    def __init__(self, folder: Path) -> None:
        self._files = SimpleNamespace(spills=Spills(folder, "node-1"))
        self.n_asked_bytes = 0
        self.damaged: list[int] = []
        self.breaks_at: int | None = None

    def call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        if self.breaks_at is not None and arguments and arguments[1] >= self.breaks_at:
            raise LostActor("agent on node-1 is lost")
        answer = method(self, *arguments)
        if isinstance(answer, Piece):
            self.n_asked_bytes += len(answer.data)
            if arguments[1] in self.damaged:
                self.damaged.remove(arguments[1])
                return Piece(b"\0" + answer.data[1:], zlib.crc32(b"\1" + answer.data[1:]))
        return answer

    def begin(self, method: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
        return partial(method, self, *arguments)

    def wait(self, reference: Callable[[], Any], _: float) -> Any:
        return reference()


@pytest.fixture
def agent(tmp_path: Path) -> _Agent:
    node = tmp_path / "node"
    node.mkdir()
    made = _Agent(node)
    (node / PATH).write_bytes(CONTENT)
    return made


@pytest.fixture
def node_file(tmp_path: Path, agent: _Agent) -> Path:
    del agent
    return tmp_path / "node" / PATH


def _copies(agent: _Agent, tmp_path: Path) -> Copies:
    return Copies(cast(Any, agent), folder_of(tmp_path, "node-1"))


def _kilobytes(n: int) -> Callable[[], int]:
    """So many pieces of 1 kB, then none."""
    left = [1_000] * n
    return lambda: left.pop() if left else 0


FILE = NodeFile(PATH, len(CONTENT), "requests")


def test_a_copy_goes_on_where_another_process_left_it(agent: _Agent, tmp_path: Path) -> None:
    assert not _copies(agent, tmp_path).bring(FILE, _kilobytes(4))
    copies = _copies(agent, tmp_path)
    copies.finish(FILE, _kilobytes(100))
    assert copies.path_of(FILE).read_bytes() == CONTENT
    assert agent.n_asked_bytes == len(CONTENT), "nothing twice"
    assert copies.tally.n_bytes == len(CONTENT) - 4_000
    assert (copies.tally.n_begun_anew, copies.notes) == (0, [])
    copies.note_whole([FILE])
    assert copied_sites(tmp_path) == {"node-1": copies.folder}
    assert is_whole(copies.folder)
    copies.path_of(FILE).write_bytes(CONTENT[:-1] + b"?")
    assert not is_whole(copies.folder)
    remove_copies(tmp_path)
    assert copied_sites(tmp_path) == {}


@pytest.mark.parametrize("left", [b"another", CONTENT + b"more"], ids=["not a prefix", "longer"])
def test_what_is_not_how_the_file_begins_is_fetched_anew(agent: _Agent, tmp_path: Path, left: bytes) -> None:
    place = _copies(agent, tmp_path).path_of(FILE)
    place.parent.mkdir(parents=True)
    place.write_bytes(left)
    copies = _copies(agent, tmp_path)
    copies.finish(FILE, at_once)
    assert place.read_bytes() == CONTENT
    assert copies.tally.n_begun_anew == 1
    assert copies.notes == [f"the copy of {PATH} is not how the file of the node begins: it was fetched anew"]


def test_a_file_that_grows_is_fetched_on_and_one_that_was_cut_anew(
    agent: _Agent, tmp_path: Path, node_file: Path
) -> None:
    copies = _copies(agent, tmp_path)
    assert copies.bring(FILE, at_once)
    node_file.write_bytes(CONTENT + b"grown")
    copies.finish(NodeFile(PATH, len(CONTENT) + 5, "requests"), at_once)
    assert agent.n_asked_bytes == len(CONTENT) + 5
    node_file.write_bytes(CONTENT[:100])
    copies.finish(NodeFile(PATH, 100, "requests"), at_once)
    assert copies.path_of(FILE).read_bytes() == CONTENT[:100]
    assert copies.tally.n_begun_anew == 1


def test_a_file_that_was_written_anew_meanwhile_does_not_pass_for_the_old_one(
    agent: _Agent, tmp_path: Path, node_file: Path
) -> None:
    copies = _copies(agent, tmp_path)
    copies.bring(FILE, _kilobytes(5))
    node_file.write_bytes(CONTENT[::-1])
    copies.finish(FILE, at_once)
    assert copies.path_of(FILE).read_bytes() == CONTENT[::-1]
    assert copies.notes == [f"the copy of {PATH} is not the file of the node: it was fetched anew"]


def test_a_damaged_piece_is_asked_for_again_but_not_for_ever(agent: _Agent, tmp_path: Path) -> None:
    copies = _copies(agent, tmp_path)
    agent.damaged = [0, 2_000, 2_000]
    copies.finish(FILE, lambda: 1_000)
    assert copies.path_of(FILE).read_bytes() == CONTENT
    assert copies.tally.n_asked_again == len(copies.notes) == 3
    again = Copies(cast(Any, agent), tmp_path / "again")
    agent.damaged = [1_000] * 3
    with pytest.raises(ClusterError, match=r"torn or damaged 3 times"):
        again.finish(FILE, lambda: 1_000)
    assert again.path_of(FILE).read_bytes() == CONTENT[:1_000], "what came stays"


def test_a_disk_that_takes_no_more_is_an_error_of_the_run_directory(agent: _Agent, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match=r"cannot write .*Not a directory"):
        Copies(cast(Any, agent), tmp_path / "file").bring(FILE, at_once)


def test_a_broken_connection_is_followed_by_a_new_agent_and_no_piece_twice(
    agent: _Agent, tmp_path: Path
) -> None:
    seen = FilesThere(cast(Any, agent), folder_of(tmp_path, "node-1"))
    slept: list[float] = []
    fetching = Fetching(RecordsConfig(), {"node-1": seen}, (), slept.append)
    seen.copies.bring(FILE, _kilobytes(3))
    agent.breaks_at, asked = 3_000, []

    def put_again(site: str, error: LostActor) -> None:
        asked.append((site, str(error)))
        if len(asked) == 2:
            agent.breaks_at = None

    fetching.bring("node-1", FILE, put_again)
    assert asked == [("node-1", "agent on node-1 is lost")] * 2
    assert agent.n_asked_bytes == len(CONTENT)
    fetching.stop()
    facts = fetching.facts()["node-1"]
    assert facts.n_bytes_during + facts.n_bytes_after == len(CONTENT)

    agent.breaks_at = 0
    (tmp_path / "node" / "spill" / "requests-1.arrows").write_bytes(CONTENT)
    with pytest.raises(LostActor):
        fetching.bring("node-1", NodeFile("spill/requests-1.arrows", 10, "requests"), lambda *_: None)
    assert len(slept) == 2 + 4, "so many tries, no more"


def test_files_that_lie_here_are_not_fetched(tmp_path: Path) -> None:
    fetching = Fetching(RecordsConfig(), {"node-0": FilesHere(tmp_path, "node-0")}, ())
    fetching.start()
    fetching.bring("node-0", FILE, lambda *_: None)
    fetching.stop()
    assert (fetching.facts(), fetching.told()) == ({}, [])


def test_requests_come_first_and_reports_last() -> None:
    names = [("reports/a.parquet", ""), ("spill/a.arrows", "a"), ("spill/requests-1.arrows", "requests"),
             ("spill/z.arrows", "z"), ("spill/requests-0.arrows", "requests")]  # fmt: skip
    files = [NodeFile(path, 1, table) for path, table in names]
    assert [one.path for one in sorted(files, key=in_order)] == [
        "spill/requests-0.arrows", "spill/requests-1.arrows", "spill/a.arrows", "spill/z.arrows",
        "reports/a.parquet",
    ]  # fmt: skip


MEASURED = [Span(10 * S, 20 * S), Span(30 * S, 40 * S)]


def test_nothing_is_begun_in_a_measured_phase_nor_shortly_before_or_after_it() -> None:
    pace = Pace(RecordsConfig(), MEASURED)
    margin = MARGIN_NS
    for now_ns, wait_ns in (
        (0, 0), (10 * S - margin - 1, 0), (10 * S - margin, 10 * S + 2 * margin), (15 * S, 5 * S + margin),
        (20 * S + margin - 1, 1), (20 * S + margin, 0), (30 * S - margin, 10 * S + 2 * margin),
        (40 * S + margin, 0), (99 * S, 0),
    ):  # fmt: skip
        assert pace.wait_ns(now_ns, PIECE_BYTES) == wait_ns, now_ns


def _fetched(pace: Pace, start_ns: int, end_ns: int) -> int:
    """Bytes that a clock of nothing but waits sees between two instants."""
    now_ns, n_bytes = start_ns, 0
    while now_ns < end_ns:
        piece = pace.piece_bytes(now_ns)
        wait_ns = pace.wait_ns(now_ns, piece)
        assert wait_ns >= 0
        n_bytes += 0 if wait_ns else piece
        now_ns += wait_ns
        if not wait_ns:
            now_ns += 1  # a piece takes its time
    return n_bytes


def test_the_bandwidth_holds_for_all_nodes_together_and_another_one_in_measured_phases() -> None:
    pace = Pace(RecordsConfig(bandwidth="8MB/s", bandwidth_measured="1MB/s"), MEASURED)
    outside, inside = _fetched(pace, 0, 9 * S), _fetched(pace, 10 * S, 20 * S)
    assert 72e6 <= outside <= 72e6 + PIECE_BYTES, "9 s at 8 MB/s, and the piece that is begun last"
    assert 10e6 - 2 * 250_000 <= inside <= 10e6 + 2 * 250_000, (
        "10 s at 1 MB/s, pieces of a quarter of a second"
    )
    alone = Pace(RecordsConfig(bandwidth="8MB/s"), MEASURED)
    assert _fetched(alone, 10 * S, 20 * S) == 0


def test_a_slow_link_gets_small_pieces() -> None:
    assert Pace(RecordsConfig(), ()).piece_bytes(0) == PIECE_BYTES
    assert Pace(RecordsConfig(bandwidth="400KB/s"), ()).piece_bytes(0) == 100_000
    assert Pace(RecordsConfig(bandwidth="1KB/s"), ()).piece_bytes(0) == 4_096
