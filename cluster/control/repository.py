"""A server's model repository over its control calls: what is ready, loading and unloading (Triton's extension
`model_repository`, in explicit mode).
"""

from __future__ import annotations

import json
import time
import urllib.parse
from collections.abc import Callable, Collection, Mapping
from typing import Any

from squall.actors.net.triton_control import Control, ControlError
from squall.scenarios.errors import TargetError

_POLL_S = 0.05
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

    def index(self) -> list[Mapping[str, Any]]:
        """Each version of each model with its state. Raises TargetError."""
        try:
            found = self._control.ask_json("/v2/repository/index", "POST")
            return [one for one in found if one["name"]]
        except (ControlError, KeyError, TypeError) as error:
            raise TargetError(f"{self.where} does not list its models: {error}") from error

    def ready(self) -> dict[str, tuple[str, ...]]:
        """Versions that are ready, by model."""
        found: dict[str, tuple[str, ...]] = {}
        for one in self.index():
            if one.get("state") == "READY":
                found[one["name"]] = (*found.get(one["name"], ()), str(one.get("version", "")))
        return found

    def config(self, name: str) -> Config:
        """Of a model that is ready. Raises TargetError."""
        try:
            found = self._control.ask_json(f"/v2/models/{urllib.parse.quote(name)}/config")
        except ControlError as error:
            raise TargetError(f"{self.where} does not tell the configuration of {name}: {error}") from error
        if not isinstance(found, dict):
            raise TargetError(f"{self.where} does not tell the configuration of {name}")
        return found

    def steps(self, name: str) -> tuple[str, ...]:
        """Models that the server loads with an ensemble, each once; empty of another model. Raises TargetError."""
        found = dict[str, None]()
        waiting = [name]
        while waiting:
            scheduling = self.config(waiting.pop()).get("ensemble_scheduling") or {}
            steps = [str(one["model_name"]) for one in scheduling.get("step") or ()]
            waiting += [one for one in steps if one not in found]
            found |= dict.fromkeys(steps)
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
        n_looks = int(self._timeout_s / _POLL_S) + 2
        for left in reversed(range(n_looks)):
            moving = [
                f"{one['name']} is still {one['state']}"
                for one in self.index()
                if one["name"] in names and one.get("state") in _ON_THE_WAY
            ]
            if not moving:
                return
            if not left:
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
