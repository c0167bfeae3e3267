"""The command, called in the process of a test, which has its modules: one of its own takes half a second to begin."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Command = Callable[..., tuple[int, str, str]]
"""Its words in; exit code, stdout and stderr out."""


def command_in_process(patch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[str]) -> Command:
    def run(*words: object) -> tuple[int, str, str]:
        from squall.cluster.cli import main

        patch.setattr("sys.argv", ["squall", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return ended.value.code, *captured.readouterr()

    return run
