"""What a command ends with for its promises."""

from __future__ import annotations

import pytest
import typer

from squall.cluster.commands.ending import end_by_promises


def exit_code(*verdicts: str) -> int:
    try:
        end_by_promises(verdicts)
    except typer.Exit as done:
        return int(done.exit_code)
    return 0


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (("kept", "kept"), 0),
        (("kept", "undecided"), 4),
        (("undecided", "broken", "kept"), 99),
        (("broken", "invalid"), 3),
    ],
)
def test_the_worst_verdict_says_the_exit_code(verdicts: tuple[str, ...], code: int) -> None:
    assert exit_code(*verdicts) == code
