"""What the nodes have spilled so far, fetched while the load runs; and all of it afterwards: one stream a node."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from squall.analysis.storage.collected import FetchFacts
from squall.cluster.driver.copies import LARGE_PIECE_BYTES
from squall.cluster.driver.node_files import FilesThere, NodeFiles
from squall.cluster.driver.pace import PIECE_BYTES, Pace, Span
from squall.cluster.node.spills import NodeFile
from squall.cluster.remote.patience import PATIENCE
from squall.scenarios.config.records import RecordsConfig
from squall.scenarios.errors import ClusterError, LostActor, SquallError, StoreError
from squall.scenarios.units import NS_PER_S

_ROUND_S = 1.0
_STOP_S = 5.0
"""A piece that is under way has this long; who brings the rest waits for it."""
_LOOK_S = 0.1
_PAUSES_S = (0.0, 2.0, 5.0, 10.0)
"""Before a file is asked for again; each try has the patience of `Handle.wait` of its own."""


class Fetching:
    """`start` with the load, `stop` at its end; `facts` when all has come. Files that lie here need none of it."""

    def __init__(
        self,
        config: RecordsConfig,
        files: Mapping[str, NodeFiles],
        measured: Sequence[Span],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`files`: by site; those of one node come one after another. `measured`: the measured phases."""
        self.notes: list[str] = []
        self._sleep = sleep
        self._during = Pace(config, measured)
        self._after = Pace(config, ())
        self._is_during = config.fetch == "during"
        self._sites = {site: seen for site, seen in files.items() if isinstance(seen, FilesThere)}
        self._n_during: dict[str, int] = {}
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Fetches in the background from now on, if that is wanted."""
        by_node: dict[str, list[FilesThere]] = {}
        for site, seen in self._sites.items():
            by_node.setdefault(site.partition("/")[0], []).append(seen)
        if self._is_during:
            self._threads = [
                threading.Thread(target=partial(self._follow, of_node), name="squall-fetch", daemon=True)
                for of_node in by_node.values()
            ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """No further piece is asked for in the background; what was brought so far counts as before the load's end."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        until = time.monotonic() + _STOP_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._n_during = {site: seen.copies.tally.n_bytes for site, seen in self._sites.items()}

    def _follow(self, of_node: Sequence[FilesThere]) -> None:
        try:
            while not self._stopped.wait(_ROUND_S):
                for seen in of_node:
                    self._bring_so_far(seen)
        except StoreError as error:
            self.notes.append(f"nothing more was fetched while the load ran: {error}")

    def _bring_so_far(self, seen: FilesThere) -> None:
        """What a node has now. One that does not answer is asked again in the next round."""
        if not self._piece_during():  # listing is a call too
            return
        try:
            for file in sorted(seen.list(), key=in_order):
                if file.table:  # a report is written anew, not on
                    seen.copies.bring(file, self._piece_during)
        except StoreError:
            raise
        except SquallError:
            return

    def _piece_during(self) -> int:
        """See `PieceBytes`: waits until a piece may come; 0 when the load is over."""
        while not self._stopped.is_set():
            now_ns = time.monotonic_ns()
            n_bytes = self._during.piece_bytes(now_ns, PIECE_BYTES)
            wait_ns = self._during.wait_ns(now_ns, n_bytes)
            if not wait_ns:
                return n_bytes
            self._stopped.wait(wait_ns / NS_PER_S)
        return 0

    def piece_after(self) -> int:
        """See `PieceBytes`: after the load; at once where the user wants to go."""
        while not PATIENCE.is_short:
            now_ns = time.monotonic_ns()
            n_bytes = self._after.piece_bytes(now_ns, LARGE_PIECE_BYTES)
            wait_ns = self._after.wait_ns(now_ns, n_bytes)
            if not wait_ns:
                return n_bytes
            time.sleep(min(wait_ns / NS_PER_S, _LOOK_S))
        return LARGE_PIECE_BYTES

    def bring(self, site: str, file: NodeFile, put_again: Callable[[str, LostActor], None]) -> None:
        """All of a file, after the load; where that breaks off it goes on, with all its tries after each piece.

        `put_again` puts an agent in the place of one that is lost. Raises as `NodeFiles.bring`.
        """
        if site not in self._sites:
            return
        seen = self._sites[site]
        pauses_s, n_bytes = list(_PAUSES_S), seen.copies.tally.n_bytes
        while True:
            try:
                seen.bring(file, self.piece_after)
                return
            except ClusterError as error:
                if seen.copies.tally.n_bytes > n_bytes:
                    pauses_s, n_bytes = list(_PAUSES_S), seen.copies.tally.n_bytes
                if not pauses_s or PATIENCE.is_short:
                    raise
                self._sleep(pauses_s.pop(0))
                if isinstance(error, LostActor):
                    put_again(site, error)

    def note_whole(self, site: str, files: list[NodeFile]) -> None:
        """See `Copies.note_whole`; nothing where the site is read where it lies. Raises StoreError."""
        if site in self._sites:
            self._sites[site].copies.note_whole(files)

    def told(self) -> list[str]:
        """What did not go as it should, by site."""
        return self.notes + [
            f"{site}: {note}" for site, seen in self._sites.items() for note in seen.copies.notes
        ]

    def facts(self) -> dict[str, FetchFacts]:
        """For the manifest, by site."""
        found = {}
        for site, seen in self._sites.items():
            tally, n_during = seen.copies.tally, self._n_during.get(site, 0)
            found[site] = FetchFacts(
                n_bytes_during=n_during,
                n_bytes_after=tally.n_bytes - n_during,
                busy_ns=tally.busy_ns,
                n_asked_again=tally.n_asked_again,
                n_begun_anew=tally.n_begun_anew,
            )
        return found


def in_order(file: NodeFile) -> tuple[bool, bool, str]:
    """For sorting: requests first, then the other tables, reports last."""
    return not file.table, file.table != "requests", file.path
