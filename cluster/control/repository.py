"""A server's model repository over its control calls: what is ready, loading and unloading (Triton's extension
`model_repository`, in explicit mode).
"""

from __future__ import annotations

import json
import time
import urllib.parse
from collections.abc import Callable, Collection
from typing import Any

from squall.actors.net.triton_control import Control, ControlError
from squall.actors.net.triton_models import MOST_STEPS, index_of, object_of, path_of, step_names
from squall.scenarios.errors import TargetError

_POLL_S = 0.05
_LOOKS_S = 5.0
"""What all looks of one wait may take beside it."""
_ON_THE_WAY = ("LOADING", "UNLOADING")
_NOBODY = "squall-asks-for-the-mode"
_OTHER_MODE = "explicit model load"
Config = dict[str, Any]
"""A model's configuration as the server has it: Triton's ModelConfig as JSON."""


class Repository:
    """That of the server behind `control`; `where` names it in errors. Every wait ends after `timeout_s`."""

    def __init__(
        self, control: Control, where: str, timeout_s: float, pause: Callable[[float], None] = time.sleep
    ) -> None:
        """`pause`: between two looks, for so many seconds."""
        self.where = where
        self._control = control
        self._timeout_s = timeout_s
        self._pause = pause

    def refuse_other_mode(self) -> None:
        """Raises TargetError where models cannot be loaded and unloaded: asked of a model that is not there, of which
        an explicit server says nothing."""
        self._call(_NOBODY, "unload")

    def index(self) -> list[dict[str, Any]]:
        """Each version of each model with its state, as `index_of`. Raises TargetError."""
        try:
            return index_of(self._control)
        except (ControlError, ValueError) as error:
            raise TargetError(f"{self.where} does not list its models: {error}") from error

    def ready(self) -> dict[str, tuple[str, ...]]:
        """Versions that are ready, by model."""
        found: dict[str, tuple[str, ...]] = {}
        for one in self.index():
            if one["state"] == "READY":
                found[one["name"]] = (*found.get(one["name"], ()), one["version"])
        return found

    def config(self, name: str) -> Config:
        """Of a model that is ready. Raises TargetError."""
        try:
            return object_of(self._control, f"{path_of(name)}/config")
        except (ControlError, ValueError) as error:
            raise TargetError(f"{self.where} does not tell the configuration of {name}: {error}") from error

    def steps(self, name: str) -> tuple[str, ...]:
        """Models that the server loads with an ensemble, each once; empty of another model. Raises TargetError."""
        found = dict[str, None]()
        waiting = [name]
        while waiting:
            try:
                steps = dict.fromkeys(step_names(self.config(waiting.pop())))
            except ValueError as error:
                raise TargetError(f"{self.where}: {error}") from error
            waiting += [one for one in steps if one not in found]
            found |= steps
            if len(found) > MOST_STEPS:
                raise TargetError(f"{self.where}: ensemble {name} has more than {MOST_STEPS:,} steps")
        return tuple(found)

    def load(self, name: str, config: Config | None = None) -> int:
        """Loads it, with `config` in place of its repository's; ns until that had happened. Raises TargetError with
        Triton's reason."""
        body = b""
        if config is not None:
            body = json.dumps({"parameters": {"config": json.dumps(config)}}).encode()
        begin_ns = time.monotonic_ns()
        self._call(name, "load", body)
        self.settle([name])
        return time.monotonic_ns() - begin_ns

    def unload(self, name: str) -> None:
        """Asks for it; `settle` waits. Raises TargetError."""
        self._call(name, "unload")

    def settle(self, names: Collection[str]) -> None:
        """Waits until none of them is on its way. Raises TargetError where one is for too long."""
        n_looks, until_s = int(self._timeout_s / _POLL_S) + 2, time.monotonic() + self._timeout_s + _LOOKS_S
        for left in reversed(range(n_looks)):
            moving = [
                f"{one['name']} is still {one['state']}"
                for one in self.index()
                if one["name"] in names and one["state"] in _ON_THE_WAY
            ]
            if not moving:
                return
            if not left or time.monotonic() > until_s:
                raise TargetError(f"{self.where}: {moving[0]} after {self._timeout_s:g} s")
            self._pause(_POLL_S)

    def _call(self, name: str, verb: str, body: bytes = b"") -> None:
        try:
            self._control.ask(f"/v2/repository/models/{urllib.parse.quote(name)}/{verb}", "POST", body)
        except ControlError as error:
            if _OTHER_MODE in error.reason:
                raise TargetError(
                    f"server.control: {self.where} does not let models be loaded and unloaded: start it with"
                    " --model-control-mode=explicit"
                ) from error
            raise TargetError(
                f"server.control: {self.where} does not {verb} {name!r}: {error.reason or error}"
            ) from error
