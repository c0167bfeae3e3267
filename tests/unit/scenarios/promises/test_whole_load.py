"""A scenario of which nothing ends the load before its time."""

from __future__ import annotations

import copy
from typing import Any

from squall.scenarios.promises.grammar import format_promises, parse_promises
from squall.scenarios.promises.whole_load import without_early_end

_MAPPING: dict[str, Any] = {
    "name": "burst",
    "stop_when": "decided",
    "promises": {
        "response": [
            {"threshold": "p(95)<50ms", "abortOnFail": True, "delayAbortEval": "2s"},
            {"threshold": "p(99)<90ms", "at": "300/s", "abortOnFail": True},
        ],
        "service": {"threshold": "p(99)<80ms", "abortOnFail": True},
        "failures": "rate<0.1%",
    },
}


def test_promises_stay_and_nothing_ends_the_load() -> None:
    before = copy.deepcopy(_MAPPING)
    found = without_early_end(_MAPPING)
    assert found == {
        "name": "burst",
        "promises": {
            "response": ["p(95)<50ms", {"threshold": "p(99)<90ms", "at": "300/s"}],
            "service": "p(99)<80ms",
            "failures": "rate<0.1%",
        },
    }
    assert before == _MAPPING
    promises = parse_promises(found["promises"]) or ()
    assert [one.condition for one in promises] == [
        one.condition for one in parse_promises(before["promises"]) or ()
    ]
    assert not any(one.aborts_on_fail or one.delay_ns for one in promises)


def test_what_ends_nothing_early_is_as_it_was() -> None:
    formatted = format_promises(
        parse_promises({"response": ["p(95)<50ms", "max<1s"], "failures": "rate<0.1%"})
    )
    for mapping in ({"name": "burst"}, {"promises": None}, {"promises": formatted}):
        assert without_early_end(mapping) == mapping
