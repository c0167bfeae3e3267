"""What every host answers to a checkup: this one, and the one that is whatever a test says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from squall.actors.doctor.checkup import Answer, Host, ThisHost
from tests.checkup_hosts import FILES, FakeProbes


def fake(write_error: str = "") -> FakeProbes:
    return FakeProbes(
        answers={"echo a word": Answer(0, "a word")}, variables={"PATH": "/bin"}, packages={"numpy": "2.0.0"},
        write_error=write_error,
    )  # fmt: skip


@pytest.fixture(params=[ThisHost, fake], ids=["this", "fake"])
def host(request: pytest.FixtureRequest) -> Host:
    made: Host = request.param()
    return made


def test_a_file_is_its_text_without_blanks_around_and_none_where_there_is_none(host: Host) -> None:
    assert (host.read("/proc/meminfo") or "").startswith("MemTotal:")
    assert host.read("/proc/no/such/file") is None
    for path in FILES:
        text = host.read(path)
        assert text is None or text == text.strip()


def test_a_command_has_its_code_and_words_and_none_where_there_is_none(host: Host) -> None:
    assert host.ask("echo", "a", "word") == (0, "a word")
    assert host.ask("no-such-command-of-any-host") is None


def test_variables_and_packages_are_texts_or_none(host: Host) -> None:
    assert host.environ("PATH")
    assert host.environ("SQUALL_NO_SUCH_VARIABLE") is None
    assert (host.package("numpy") or "")[0].isdigit()
    assert host.package("no-such-package-of-any-host") is None


def test_limits_are_in_order(host: Host) -> None:
    n_cores, n_usable = host.n_cores()
    assert 1 <= n_usable <= n_cores
    soft, hard = host.open_files()
    assert soft > 0
    assert hard == -1 or soft <= hard  # -1: no limit


def test_the_temporary_folder_has_space_and_a_folder_that_is_none_has_not(host: Host) -> None:
    space = host.space(host.temporary_folder())
    assert space is not None
    assert 0 <= space.free_bytes <= space.total_bytes > 0
    assert host.space("/no/such/folder") is None
    assert host.write(host.temporary_folder(), 1_000) == ""


@pytest.mark.parametrize("make", [ThisHost, lambda: fake("No such file or directory")], ids=["this", "fake"])
def test_a_write_that_fails_says_why_and_leaves_nothing(make: Callable[[], Host], tmp_path: Path) -> None:
    assert make().write(str(tmp_path / "none"), 10) == "No such file or directory"
    assert list(tmp_path.iterdir()) == []
