"""A Triton in explicit mode as its control calls show it: what is loaded, and with which configuration."""

from __future__ import annotations

import json
import urllib.parse
from copy import deepcopy
from typing import Any

from squall.actors.net.triton_control import ControlError

EXPLICIT_ONLY = "explicit model load / unload is not allowed if polling is enabled"


class ExplicitServer:
    """`configs`: of the models in its repository; an ensemble loads its steps; `broken`: models that
    do not load; `stuck`: models that stay on their way once they are unloaded. Like Triton 2.51 it keeps a
    configuration that a load brought until the model is unloaded."""

    def __init__(
        self, configs: dict[str, dict[str, Any]], ready: tuple[str, ...] = (), is_explicit: bool = True
    ) -> None:
        self.configs = configs
        self.loaded: dict[str, dict[str, Any]] = {name: deepcopy(configs[name]) for name in ready}
        self.broken: set[str] = set()
        self.stuck: set[str] = set()
        self.calls: list[str] = []
        self._is_explicit = is_explicit
        self._unloading: set[str] = set()

    def ask(self, path: str, method: str = "GET", body: bytes | None = None) -> bytes:
        _, _, _, _, name, verb = path.split("/")
        assert method == "POST"
        if not self._is_explicit:
            raise refusal(503, EXPLICIT_ONLY)
        return self._call(urllib.parse.unquote(name), verb, body or b"")

    def _call(self, name: str, verb: str, body: bytes) -> bytes:
        if verb == "unload":
            if name in self.loaded:
                self.calls.append(f"unload {name}")
                del self.loaded[name]
                self._unloading.add(name)
            return b""
        self.calls.append(f"load {name}")
        if name not in self.configs or name in self.broken:
            raise refusal(400, f"failed to load '{name}', no such\nluck")
        given = json.loads(body)["parameters"]["config"] if body else None
        self._load(name)
        if given is not None:
            self.loaded[name] = json.loads(given)
        return b""

    def _load(self, name: str) -> None:
        self.loaded.setdefault(name, deepcopy(self.configs[name]))
        for step in self.configs[name].get("ensemble_scheduling", {}).get("step", ()):
            self._load(step["model_name"])

    def ask_json(self, path: str, *_: str) -> Any:
        if path != "/v2/repository/index":
            return deepcopy(self.loaded[urllib.parse.unquote(path.split("/")[3])])
        found = [self._state(name) for name in self.configs]
        self._unloading &= self.stuck
        return found

    def _state(self, name: str) -> dict[str, Any]:
        if name in self._unloading:
            return {"name": name, "version": "1", "state": "UNLOADING"}
        return {"name": name, "version": "1", "state": "READY"} if name in self.loaded else {"name": name}

    def close(self) -> None:
        pass


def refusal(status: int, reason: str) -> ControlError:
    error = ControlError(f"status {status}")
    error.reason = " ".join(reason.split())
    return error
