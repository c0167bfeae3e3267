"""What a sweep is of: its experiment, and the content of the traces that its loads are read from."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from squall.scenarios.errors import ScenarioError
from squall.scenarios.experiment import Experiment

_TRACES = "traces"


def described(experiment: Experiment) -> dict[str, Any]:
    """As `Experiment.described`, with the SHA-256 of each trace that is there, by the path that the scenarios have."""
    return {**experiment.described(), _TRACES: _digests(experiment)}


def refuse_changed(experiment: Experiment, begun: object, where: Path, path: Path) -> None:
    """Raises ScenarioError, which names the keys and traces, where the experiment is not the one that was begun.

    A trace that is gone since has not changed: what is still to be run with it is refused when it is planned.
    """
    own, before = experiment.described(), dict(begun) if isinstance(begun, dict) else {}
    then = before.pop(_TRACES, None)
    then = then if isinstance(then, dict) else {}
    changed = [key for key in {**before, **own} if own.get(key) != before.get(key)]
    changed += [
        f"trace {trace}" for trace, sha in _digests(experiment).items() if then.get(trace, sha) != sha
    ]
    if changed:
        raise ScenarioError(
            f"{path}: is not the experiment that {where} was begun with: {', '.join(changed)} changed; begin"
            " a new sweep"
        )


def _digests(experiment: Experiment) -> dict[str, str]:
    found = {}
    for path in sorted({path for cell in experiment.cells for path in _files(cell.scenario.to_mapping())}):
        with contextlib.suppress(OSError), Path(path).open("rb") as file:
            found[path] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def _files(value: object) -> Iterator[str]:
    """Every `file` of a scenario: of arrivals, and of the rows of requests."""
    if isinstance(value, dict):
        for key, one in value.items():
            if key == "file" and isinstance(one, str):
                yield one
            else:
                yield from _files(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _files(one)
