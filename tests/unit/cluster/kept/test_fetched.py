"""What came of a node's files comes once, and is what the file has, whatever is asked for by whom."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from squall.cluster.kept.fetched import Fetched


class Far:
    """A file of a node: counts the bytes that leave it."""

    def __init__(self, seed: int, n_bytes: int = 4_000) -> None:
        self.content = Random(seed).randbytes(n_bytes)
        self.asked: list[tuple[int, int]] = []

    def fetch(self, start: int, n_bytes: int) -> bytes:
        self.asked.append((start, n_bytes))
        return self.content[start : start + n_bytes]

    @property
    def n_left(self) -> int:
        return sum(n for _, n in self.asked)


def test_only_what_is_not_here_comes(tmp_path: Path) -> None:
    far, fetched = Far(1), Fetched(tmp_path)
    for start, n_bytes, comes in (
        (100, 50, [(100, 50)]), (100, 50, []), (110, 10, []), (90, 30, [(90, 10)]), (140, 40, [(150, 30)]),
        (300, 10, [(300, 10)]), (80, 300, [(80, 10), (180, 120), (310, 70)]), (80, 300, []), (0, 0, []),
    ):  # fmt: skip
        far.asked.clear()
        assert fetched.read("a", start, n_bytes, far.fetch) == far.content[start : start + n_bytes]
        assert far.asked == comes
    assert fetched.read("b", 100, 5, far.fetch) == far.content[100:105]
    assert far.asked == [(100, 5)]
    assert list(tmp_path.iterdir()) == []
    fetched.close()


def test_any_reads_by_many_threads_are_right(tmp_path: Path) -> None:
    fars, fetched = [Far(seed) for seed in range(3)], Fetched(tmp_path)

    def read(seed: int) -> bool:
        draw = Random(seed)
        for _ in range(200):
            number, start = draw.randrange(3), draw.randrange(4_000)
            n_bytes = draw.randrange(4_000 - start + 1)
            wanted = fars[number].content[start : start + n_bytes]
            if fetched.read(str(number), start, n_bytes, fars[number].fetch) != wanted:
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(8)))
    for number, far in enumerate(fars):
        far.asked.clear()
        assert fetched.read(str(number), 0, 4_000, far.fetch) == far.content
        assert far.n_left < 400  # the ends that no read had
    fetched.close()


def test_without_room_all_comes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far, fetched = Far(2), Fetched(tmp_path, most_bytes=100)
    for _ in range(2):
        assert fetched.read("a", 0, 100, far.fetch) == far.content[:100]
        assert fetched.read("a", 200, 100, far.fetch) == far.content[200:300]
    assert far.asked == [(0, 100), (200, 100), (200, 100)]
    fetched.close()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    far, fetched = Far(3), Fetched(tmp_path)
    monkeypatch.setattr(os, "pwrite", full)
    for _ in range(2):
        assert fetched.read("a", 0, 10, far.fetch) == far.content[:10]
    assert far.asked == [(0, 10), (0, 10)]
    fetched.close()


def test_a_fetch_that_fails_leaves_nothing(tmp_path: Path) -> None:
    far, fetched = Far(4), Fetched(tmp_path)

    def broken(start: int, n_bytes: int) -> bytes:
        raise OSError(errno.EIO, f"{start} {n_bytes}")

    with pytest.raises(OSError, match="0 10"):
        fetched.read("a", 0, 10, broken)
    assert fetched.read("a", 0, 10, far.fetch) == far.content[:10]
    fetched.close()
