"""Slices of derived tables that are made where their records lie, on the nodes that keep these: two at once on each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Semaphore

from squall.analysis.storage.part import NewParts
from squall.analysis.tables.sealed import SealedFile
from squall.scenarios.errors import AnalysisError, SquallError

AT_ONCE = 2
"""Slices of a node that are worked on together, as many as where all is in one place."""
_PREPARED_AT_ONCE = 2
"""Errands that are made up together: what goes with them is in memory meanwhile."""


@dataclass(frozen=True)
class Desk:
    """Where an errand works."""

    records: Path
    """The run's folder on the node: `node-1/tables/requests/part-00000.parquet` lies under it."""
    scratch: Path
    """Empty, and gone at the end."""
    new: NewParts
    """Takes the one part that the errand makes."""


Errand = Callable[[Desk], None]
"""Makes one part of a derived table of records of its node. It pickles, with all that it needs of elsewhere."""


@dataclass(frozen=True)
class Order:
    """A slice for a node: its number in the table, and what makes its errand up, once the node is free for it."""

    node: str
    number: int
    prepare: Callable[[], Errand]


Workplace = Callable[[str, str, int, Errand], Sequence[SealedFile]]
"""Has a node do an errand: table, `NewParts.made`, number and errand; the part that it made, as the run names it.

Raises SquallError where the node cannot or is gone. The part is there whole then, or not at all.
"""


def work_there(
    workplaces: Mapping[str, Workplace], table: str, made: str, orders: Sequence[Order]
) -> list[SealedFile]:
    """The parts of `orders`, each made at its node, in the order of the orders.

    The first failure raises AnalysisError, which names the node, once nothing runs any more: what waited is not begun.
    """
    of_node: dict[str, list[int]] = {}
    for place, order in enumerate(orders):
        of_node.setdefault(order.node, []).append(place)
    working = _Working(workplaces, table, made, orders)
    with ExitStack() as stack:
        running = []
        for own in of_node.values():
            pool = stack.enter_context(ThreadPoolExecutor(min(AT_ONCE, len(own))))
            running += [pool.submit(working.do, place) for place in own]
        try:
            for one in running:
                one.result()
        except BaseException:
            working.failed.set()
            raise
    return [file for place in range(len(orders)) for file in working.found[place]]


class _Working:
    """What the threads of `work_there` share."""

    def __init__(
        self, workplaces: Mapping[str, Workplace], table: str, made: str, orders: Sequence[Order]
    ) -> None:
        self.failed = Event()
        self.found: dict[int, Sequence[SealedFile]] = {}
        self._workplaces = workplaces
        self._table, self._made, self._orders = table, made, orders
        self._preparing = Semaphore(_PREPARED_AT_ONCE)

    def do(self, place: int) -> None:
        if self.failed.is_set():
            return
        order = self._orders[place]
        try:
            with self._preparing:
                errand = order.prepare()
            self.found[place] = self._workplaces[order.node](self._table, self._made, order.number, errand)
        except SquallError as error:
            self.failed.set()
            told = f"{self._table} of {order.node} cannot be made there: {error}"
            raise AnalysisError(told) from error
        except BaseException:
            self.failed.set()
            raise
