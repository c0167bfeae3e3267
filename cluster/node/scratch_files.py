"""The scratch folder of a node and the files in it, as its agent holds them."""

from __future__ import annotations

from pathlib import Path

from squall.cluster.node.scratch import Owner, Scratch, claim, is_wanted, owner_of
from squall.cluster.node.spills import Spills
from squall.scenarios.errors import ClusterError

_WORKERS_END_WITHIN_S = 25.0


class ScratchFiles:
    """A folder of its own, or that of an agent that died (`adopted`)."""

    def __init__(
        self, run: str, node: str, site: str, adopted: str | None, run_dir: tuple[str, str] | None
    ) -> None:
        """`run_dir`, `site`: see `squall.cluster.node.agent.NodeAgent`. Raises ClusterError where it cannot be had."""
        self._node = node
        self._is_deleted = False
        try:
            self._scratch = Scratch(Path(adopted) if adopted is not None else None)
            self.spills = Spills(self._scratch.path, node)
            if adopted is None and run_dir is not None:
                claim(self._scratch.path, run, site, *run_dir)
        except OSError as error:
            raise ClusterError(f"{node}: no scratch folder: {error.strerror or error}") from error

    @property
    def path(self) -> Path:
        """The folder."""
        return self._scratch.path

    def owner(self) -> Owner | None:
        """Whose it is."""
        return owner_of(self.path)

    def put_back(self) -> list[str]:
        """The folder again, where somebody removed it who took it for garbage; what to tell of that, once."""
        if self._is_deleted:
            return []
        try:
            self._is_deleted = self._scratch.put_back()
        except OSError as error:
            self._is_deleted = True
            return [
                f"the scratch folder of {self._node} was deleted and cannot be made again: {error.strerror}"
            ]
        kept = "open spill files and batch records are saved, the server's log so far is not"
        return [f"the scratch folder of {self._node} was deleted: {kept}"] if self._is_deleted else []

    def must_stay(self) -> bool:
        """For an agent that nobody gives orders: whether somebody still writes here, after a while, or a run wants
        what lies here."""
        is_alone = self._scratch.wait_alone(_WORKERS_END_WITHIN_S)
        return is_wanted(self.path) or not is_alone

    def close(self, keeps_files: bool) -> None:
        """Lets go of the folder; removes it unless `keeps_files`."""
        if keeps_files:
            self._scratch.leave()
        else:
            self._scratch.remove()
