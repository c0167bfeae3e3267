"""How many requests users issued, who have no schedule: as their workers say, or as many as have a row."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa


class Issued:
    """Counts rows by worker as they come: one that is lost cannot say what it had sent beside these."""

    def __init__(self, n_users: int | None, n_workers: int) -> None:
        """`n_users`: of a closed loop, whose ids are user + n_users · index, and user u is of worker u mod n_workers;
        None: the ids are worker + n_workers · index."""
        self._n_users = n_users
        self._n_rows = np.zeros(n_workers, np.int64)

    def note(self, requests: pa.Table) -> None:
        """Rows that are stored."""
        ids = requests.column("request_id").to_numpy()
        users = ids if self._n_users is None else ids % self._n_users
        n_workers = self._n_rows.size
        self._n_rows += np.bincount(users % n_workers, minlength=n_workers)

    def rows_of(self, worker: int) -> int:
        """Its rows so far."""
        return int(self._n_rows[worker])

    def total(self, told: Mapping[int, int]) -> int:
        """Of all workers; `told`: what those say that can, by number."""
        rows = self._n_rows.tolist()
        return sum(told.get(worker, n) for worker, n in enumerate(rows))
