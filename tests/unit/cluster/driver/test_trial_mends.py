"""What is advised where a server refuses the first request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from squall.actors.load.trial import Trial
from squall.cluster.driver.trials import _mend
from squall.cluster.node.endpoint import HEADERS_MEND

INPUTS = "clients.inputs, clients.data and model.shapes say what a request holds (docs/scenario.md)"
LOG = "see the server's log"


@pytest.mark.parametrize(
    ("detail", "mend"),
    [
        ("401 Unauthorized", HEADERS_MEND),
        ("403 who are you", HEADERS_MEND),
        ("7 denied", HEADERS_MEND),
        ("16 no token", HEADERS_MEND),
        ("the reply has HTTP status 401", HEADERS_MEND),
        ("400 unexpected shape for input 'x', expected [-1,1403], got [1,4]", INPUTS),
        ("3 unexpected shape for input 'x', expected [-1,401], got [1,4]", INPUTS),
        ("4 Deadline Exceeded", LOG),
        ("500 out of memory: 401 of 403 MiB", LOG),
    ],
)
def test_the_mend_is_of_the_status(detail: str, mend: str) -> None:
    trial = cast(Trial, SimpleNamespace(outcome="server_error", detail=detail))
    assert _mend(trial, cast(Any, None)) == mend
