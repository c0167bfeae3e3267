"""What is waited for between two runs, on a clock that does not run by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from squall.cluster.commands.decisions.cooldown import Cooldown
from squall.cluster.progress import Screen
from squall.scenarios.experiment import CooldownConfig


@dataclass
class Room:
    """A GPU that cools by one degree in two seconds, from `hot_c` on; `ends_s`: when the sweep is to end."""

    hot_c: float | None = 80.0
    ends_s: float = 1e9
    now_s: float = 0.0
    waits: list[float] = field(default_factory=list)

    def temperatures(self) -> list[float]:
        return [] if self.hot_c is None else [30.0, self.hot_c - self.now_s / 2]

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def wait(self, **config: object) -> float:
        made = CooldownConfig.model_validate(config)
        self.cooldown(made).wait()
        return self.now_s

    def cooldown(self, config: CooldownConfig | None) -> Cooldown:
        now: Callable[[], float] = lambda: self.now_s  # noqa: E731
        return Cooldown(
            config, Screen(), self.temperatures, now, self.sleep, lambda: self.now_s >= self.ends_s
        )


def test_a_pause_is_waited_for() -> None:
    assert Room().wait(pause="5s") == 5.0


def test_gpus_are_waited_for_until_they_are_cool() -> None:
    assert Room().wait(gpu_below=70.0) == pytest.approx(20.5)  # 70 C at 20 s is not below 70 C
    assert Room().wait(gpu_below=70.0, pause="30s") == 30.0


def test_gpus_that_stay_hot_are_waited_for_at_most_so_long(capsys: pytest.CaptureFixture[str]) -> None:
    assert Room().wait(gpu_below=20.0, at_most="10s") == 10.0
    assert "the hottest GPU has 75 C after 10 s: going on all the same" in capsys.readouterr().err


def test_without_a_gpu_only_the_pause_is_waited_for_and_it_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    room = Room(hot_c=None)
    assert room.wait(gpu_below=20.0, pause="2s") == 2.0
    room.cooldown(CooldownConfig.model_validate({"gpu_below": 20.0})).tell()
    assert "cooldown.gpu_below: no GPU here tells its temperature" in capsys.readouterr().err


def test_nothing_is_waited_for_where_nothing_is_said_or_the_sweep_is_to_end() -> None:
    room = Room()
    room.cooldown(None).wait()
    assert room.now_s == 0.0
    assert Room(ends_s=3.0).wait(pause="60s") == 3.0
