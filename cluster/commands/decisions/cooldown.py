"""What is waited for between two runs: a pause, and GPUs that have cooled down."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from squall.cluster.progress import Screen
from squall.scenarios.experiment import CooldownConfig
from squall.scenarios.records import Frozen
from squall.scenarios.units import NS_PER_S

_LOOK_EVERY_S = 0.5


class Cooldown(Frozen):
    """Waits as `config` says. Clock, sleep and the temperatures of the GPUs here, degrees Celsius, are handed in."""

    config: CooldownConfig | None
    screen: Screen
    temperatures_c: Callable[[], Sequence[float]]
    monotonic_s: Callable[[], float]
    sleep_s: Callable[[float], None]
    is_ending: Callable[[], bool]

    def wait(self) -> None:
        """Returns when the pause is over and the GPUs are cool, at the latest after `at_most`; at once where the sweep
        is to end."""
        if self.config is None:
            return
        begun_s = self.monotonic_s()
        pause_s, at_most_s = self.config.pause_ns / NS_PER_S, self.config.at_most_ns / NS_PER_S
        while not self.is_ending():
            waited_s = self.monotonic_s() - begun_s
            is_hot = self._is_hot()
            if waited_s >= pause_s and not is_hot:
                return
            if waited_s >= max(pause_s, at_most_s):
                self.screen.step(
                    f"the hottest GPU has {self.hottest_c():g} C after {waited_s:.0f} s: going on all the same"
                )
                return
            self.sleep_s(_LOOK_EVERY_S)

    def hottest_c(self) -> float | None:
        """Of the GPUs here, None without any."""
        return max(self.temperatures_c(), default=None)

    def tell(self) -> None:
        """Says once where a temperature is to be waited for that is not known."""
        if self.config is not None and self.config.gpu_below is not None and self.hottest_c() is None:
            self.screen.step(
                "cooldown.gpu_below: no GPU here tells its temperature, only the pause is waited for",
                "yellow",
            )

    def _is_hot(self) -> bool:
        if self.config is None or self.config.gpu_below is None:
            return False
        hottest = self.hottest_c()
        return hottest is not None and hottest >= self.config.gpu_below
