"""Where a signal breaks in, where it waits, and what becomes of one whose exception Python drops."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator

import pytest

from squall.cluster.interrupts import Interrupts


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    with Interrupts() as made:
        yield made


def ctrl_c(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


class Dies:
    """An object in whose finalizer a signal comes: Python drops what is raised there."""

    def __del__(self) -> None:
        ctrl_c()
        [None for _ in range(10)]  # the handler runs between two instructions of Python


@pytest.fixture
def dropped(monkeypatch: pytest.MonkeyPatch) -> list[type[BaseException]]:
    found: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: found.append(what.exc_type))
    return found


def within(interrupts: Interrupts, done: list[str], *steps: Callable[[], object]) -> None:
    """Takes `steps` where a signal may break in, and says which it has taken."""
    with interrupts.allowed():
        for step in steps:
            step()
            done.append(getattr(step, "__name__", ""))


def test_it_breaks_in_at_once_where_that_is_allowed_and_once_only(interrupts: Interrupts) -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        within(interrupts, done, os.getpid, ctrl_c, os.getpid)
    assert (done, interrupts.name) == (["getpid"], "SIGINT")
    ctrl_c(signal.SIGTERM)  # while all is being ended
    within(interrupts, done, interrupts.check)
    assert done == ["getpid", "check"]


def test_elsewhere_it_waits_for_the_next_place(interrupts: Interrupts) -> None:
    ctrl_c(signal.SIGHUP)
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        within(interrupts, done, os.getpid)
    assert (done, interrupts.name) == ([], "SIGHUP")
    interrupts.check()


def test_what_a_finalizer_drops_is_raised_at_the_next_check(
    interrupts: Interrupts, dropped: list[type[BaseException]]
) -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        within(interrupts, done, Dies, interrupts.check)
    assert (done, dropped) == (["Dies"], [KeyboardInterrupt])
    interrupts.check()


def test_what_a_finalizer_drops_is_raised_at_the_end_at_the_latest(
    interrupts: Interrupts, dropped: list[type[BaseException]]
) -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        within(interrupts, done, Dies, os.getpid)
    assert (done, dropped) == (["Dies", "getpid"], [KeyboardInterrupt])
    interrupts.check()


def _made_another_of() -> None:
    """As a library does whose call into Python was broken into."""
    try:
        ctrl_c()
        [None for _ in range(10)]
    except KeyboardInterrupt as error:
        raise ValueError("reading the schema failed: KeyboardInterrupt") from error


def test_what_a_library_makes_another_error_of_is_raised_all_the_same(interrupts: Interrupts) -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        within(interrupts, done, os.getpid, _made_another_of)
    assert done == ["getpid"]
    with pytest.raises(ZeroDivisionError):  # while all is being ended an error is an error
        within(interrupts, done, lambda: 1 // 0)


def test_the_first_asks_for_the_end_of_what_goes_on_and_the_second_breaks_it_off(
    interrupts: Interrupts,
) -> None:
    done: list[str] = []
    with interrupts.finishing():
        within(interrupts, done, ctrl_c)
        assert (done, interrupts.is_asked_to_end, interrupts.name) == (["ctrl_c"], True, "")
        with pytest.raises(KeyboardInterrupt):
            within(interrupts, done, ctrl_c)
        interrupts.end_if_asked()  # raised already
    assert done == ["ctrl_c"]


def test_what_was_asked_to_end_ends_where_it_looks(interrupts: Interrupts) -> None:
    with interrupts.finishing():
        ctrl_c()
        with pytest.raises(KeyboardInterrupt):
            interrupts.end_if_asked()
    assert interrupts.name == "SIGINT"
    interrupts.end_if_asked()
