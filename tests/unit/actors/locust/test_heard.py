"""What processes of Locust's say and leave, as far as it can be anybody's: lines and files within bounds."""

from __future__ import annotations

import threading
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from squall.actors.locust.child import LocustChild
from squall.actors.locust.locust_master import LocustMaster
from squall.actors.locust.settings import ACCOUNT


def test_a_line_that_is_nothing_is_passed_over() -> None:
    lines = [
        b"[" * 100_000,
        b'{"connected": 1e999}',
        b'{"connected": ' + b"9" * 5_000_000,
        b'{"connected": 1}',
    ]
    heard: list[Any] = []
    child = object.__new__(LocustChild)
    child._process = cast("Any", SimpleNamespace(stdout=BytesIO(b"\n".join(lines)), wait=lambda: 0))
    child._hear, child._ready = heard.append, threading.Event()
    child._read()
    assert heard == [{"connected": 1}]


def test_the_end_of_a_log_is_told(tmp_path: Path) -> None:
    child = object.__new__(LocustChild)
    child.log = tmp_path / "log"
    with child.log.open("wb") as log:
        log.truncate(1 << 33)
        log.seek(0, 2)
        log.write(b"\nthe last line\n")
    assert child._last_words().endswith(" / the last line")


def test_files_that_strangers_made_large_or_odd_are_left_out(tmp_path: Path) -> None:
    (tmp_path / ACCOUNT).write_text('{"entries": [{"total_ms": Infinity}]}')
    (tmp_path / "locust_stats.csv").write_bytes(b"Type,Name\n")
    with (tmp_path / "report.html").open("wb") as page:
        page.truncate(64 * 1024**2 + 1)
    master = LocustMaster(cast("Any", None))
    master._child = cast("Any", SimpleNamespace(folder=tmp_path))
    account = master.account()
    assert (account.entries, account.files) == ((), {"locust_stats.csv": b"Type,Name\n"})
