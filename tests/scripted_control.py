"""A Triton's control calls, answered from a script."""

from __future__ import annotations

from typing import Any

from squall.actors.net.triton_control import ControlError


class ScriptedControl:
    """Answers by path, with a status alone where that is a number and with 404 where there is none; `asked` has what
    all of them were asked."""

    answers: dict[str, Any]
    asked: list[str]

    def __init__(self, url: str, *_: object) -> None:
        self._url = url

    def ask(self, path: str, *_: object) -> bytes:
        self.ask_json(path)
        return b""

    def ask_json(self, path: str, *_: object) -> Any:
        self.asked.append(f"{self._url}{path}")
        answer = self.answers.get(path, 404)
        if isinstance(answer, int):
            error = ControlError(f"status {answer}")
            error.status = answer
            raise error
        return answer

    def close(self) -> None:
        pass
