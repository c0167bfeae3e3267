"""A Triton's control calls, answered from a script."""

from __future__ import annotations

from typing import Any

from squall.actors.net.triton_control import ControlError


class ScriptedControl:
    """Answers by path, or refuses with status 404; `asked` has what all of them were asked."""

    answers: dict[str, Any]
    asked: list[str]

    def __init__(self, url: str, *_: object) -> None:
        self._url = url

    def ask(self, path: str, *_: object) -> bytes:
        self.ask_json(path)
        return b""

    def ask_json(self, path: str, *_: object) -> Any:
        self.asked.append(f"{self._url}{path}")
        if path not in self.answers:
            error = ControlError("status 404")
            error.status = 404
            raise error
        return self.answers[path]

    def close(self) -> None:
        pass
