"""`squall` without Ray on one machine: what a run does once Ray has started its processes. For tests.

    python -m tests.golden.alone run SCENARIO --out FOLDER

The node has no id of Ray's, so that its processes are started from here; all else is the command's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import squall.cluster.driver.run
from squall.cluster.cli import main
from squall.cluster.placement import Node


class _Alone:
    def nodes(self) -> list[Node]:
        return [Node("node-0", "", "127.0.0.1", 0, True)]


@contextmanager
def _session(*_: Any) -> Iterator[_Alone]:
    yield _Alone()


if __name__ == "__main__":
    squall.cluster.driver.run._session = _session  # type: ignore[assignment]
    main()
