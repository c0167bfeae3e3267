"""What puts the models of a server back where the driver was killed: `python -m squall.cluster.control.watch LOG`.

It reads from stdin, line by line: first where the server is, then how its models are put back, whenever more is known
of that. Where stdin ends without a line that says that all went well, it puts them back, and LOG has what came of it.
"""

from __future__ import annotations

import json
import sys
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from squall.actors.net.access import Access
from squall.actors.net.stream import TlsSettings
from squall.actors.net.triton_control import Control
from squall.actors.process.watch import WatchProcess
from squall.cluster.control.changes import Undo, restore
from squall.cluster.control.repository import Repository
from squall.scenarios.records import Frozen

_MODULE = "squall.cluster.control.watch"
_WELL = "well"
_ENDS_WITHIN_S = 5.0


class Where(Frozen):
    """A server, as it is asked: `timeout_s` for each step."""

    url: str
    access: Access
    timeout_s: float

    def control(self) -> Control:
        """Raises OSError for files of TLS that cannot be used."""
        return Control(self.url, self.access, self.timeout_s)

    def repository(self, control: Control) -> Repository:
        return Repository(control, self.url, self.timeout_s)


class ControlWatch:
    """The driver's side."""

    def __init__(self, where: Where, log: Path) -> None:
        """Raises OSError where it cannot start."""
        self._process = WatchProcess(_MODULE, str(log))
        self._process.tell(_line(asdict(where)))

    def tell(self, undo: Undo) -> None:
        """How the models are put back from now on. Raises OSError where it has ended."""
        self._process.tell(_line(undo.to_mapping()))

    def dismiss(self) -> None:
        """They have been put back, or stay; so the watch ends."""
        self._process.dismiss(_line(_WELL), _ENDS_WITHIN_S)


def _line(what: Any) -> bytes:
    return json.dumps(what).encode() + b"\n"


def put_back(lines: list[Any]) -> list[str] | None:
    """What is otherwise than before, after models were put back as `lines` say; None where nothing was to be done."""
    if len(lines) < 2 or lines[-1] == _WELL:
        return None
    place, undo = lines[0], Undo(**lines[-1])
    tls, headers = place["access"]["tls"], place["access"]["headers"]
    access = Access(TlsSettings(**tls) if tls else None, headers)
    where = Where(place["url"], access, place["timeout_s"])
    try:
        with closing(where.control()) as control:
            return restore(where.repository(control), undo)
    except OSError as error:
        return [f"{where.url}: {error}"]


def told(left: list[str]) -> str:
    """For people, in one line."""
    if not left:
        return "the driver was killed; the server's models were put back as they were before the run"
    return f"the driver was killed; the server's models could not all be put back: {'; '.join(left)}"


def main() -> int:
    """Waits until stdin ends."""
    lines = []
    for line in sys.stdin:
        with suppress(ValueError):  # of a driver that was killed half-way through a line
            lines.append(json.loads(line))
    left = put_back(lines)
    if left is not None:
        Path(sys.argv[1]).write_text(f"{told(left)}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
