"""The server's log goes into the run directory without the names of the node's folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from squall.cluster.node.server_log import end_of_log, without_own_folders
from squall.cluster.node.triton_home import cache_dir


def test_a_log_names_no_folder_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home/alice"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("SQUALL_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    scratch = home / "tmp/squall-tmp-1"
    log = f"| {cache_dir()}/backends |\n{scratch}/server-0/models: ok\n{home}/models\n"
    assert without_own_folders(log.encode(), scratch).decode() == (
        "| <cache>/backends |\n<scratch>/server-0/models: ok\n~/models\n"
    )


def test_a_home_that_is_the_root_leaves_paths_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/")
    assert without_own_folders(b"a/b /opt/tritonserver\n", tmp_path) == b"a/b /opt/tritonserver\n"


def test_of_a_large_log_the_end_is_read_and_none_through_a_link(tmp_path: Path) -> None:
    log = tmp_path / "triton.log"
    log.write_bytes(b"first\nlast\n")
    assert end_of_log(log) == (b"first\nlast\n", 0)
    assert end_of_log(log, 5) == (b"last\n", 6)
    (tmp_path / "link").symlink_to(log)
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "."):
        with pytest.raises(OSError, match=r"symbolic links|no file|directory"):
            end_of_log(tmp_path / name)
