"""What becomes of a collector that cannot run: by what the scenario asks for."""

from __future__ import annotations

from typing import Literal

import pytest

from squall.cluster.driver.observed_collectors import Collectors
from squall.cluster.progress import Screen
from squall.scenarios.errors import ClusterError


class Quiet(Screen):
    """Says nothing, and keeps what it was told is missing."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def missing(self, name: str, reason: str, mend: str) -> None:
        self.told.append(f"{name}: {reason}; {mend}")


def chosen(
    wanted: Literal["auto", "off", "required"], reason: str | None, is_quiet: bool = False
) -> tuple[str, str, list[str]]:
    """Status, its reason, and what the screen was told."""
    screen = Quiet()
    collectors = Collectors(screen)
    collectors.choose("triton trace", wanted, reason, "docs tell", is_quiet=is_quiet)
    state = collectors.states()["triton trace"]
    return state.status, state.reason, screen.told


def test_what_can_run_does_unless_it_is_off() -> None:
    assert chosen("auto", None) == chosen("required", None) == ("on", "", [])
    assert chosen("off", None) == ("off", "profile.triton_trace is off", [])


def test_what_cannot_run_is_told_unless_nobody_misses_it() -> None:
    assert chosen("auto", "too old") == ("missing", "too old", ["triton trace: too old; docs tell"])
    assert chosen("auto", "too old", is_quiet=True) == ("off", "too old", [])


@pytest.mark.parametrize("is_quiet", [False, True])
def test_what_is_required_and_cannot_run_is_an_error_that_names_its_key(is_quiet: bool) -> None:
    with pytest.raises(ClusterError, match=r"^profile\.triton_trace is required, but too old; docs tell$"):
        chosen("required", "too old", is_quiet)
