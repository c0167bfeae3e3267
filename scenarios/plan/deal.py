"""Which worker sends which arrival: a pure function of the row, so that the parts' union is always the whole."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.arrays import Int64s
from squall.scenarios.exact.hashing import mix64
from squall.scenarios.traces.part import NO_SESSION

DealRule = Literal["sequence", "hash", "session"]
"""By the number of the arrival in turn, by a hash of that number, or by a hash of its session."""
PlanRule = DealRule | Literal["lane"]
"""Or, where requests are of sequences, by the number of the lane (`squall.scenarios.sequences`)."""

_SEQ_SALT, _SESSION_SALT = 1, 2


def workers_of(rule: PlanRule, seq: Int64s, affinity: NDArray[np.uint32] | None, n_workers: int) -> Int64s:
    """The worker, 0 to n_workers - 1, of each arrival, (n,) int64.

    `sequence`: seq mod n, so that neighbours go to different workers. `hash`: 32 bits of mix64(seq) mod n, without a
    pattern in time. `session`, `lane`: affinity mod n, so that a session, or all sequences of a lane, stay with one
    worker; only they need `affinity`.
    """
    if rule == "sequence":
        return seq % n_workers
    hashes = affinity_of(None, seq) if rule == "hash" else affinity
    if hashes is None:
        raise ValueError(f"a plan dealt by {rule} needs the affinity of its arrivals")
    return (hashes % n_workers).astype(np.int64)


def affinity_of(session: Int64s | None, seq: Int64s) -> NDArray[np.uint32]:
    """32 bits of a hash of each arrival's session, (n,) uint32; of its seq where it names none (-1) or there is none.

    Sessions may collide, as they do on a worker anyway; on N workers the shares are off by N/2³² at most.
    """
    hashes = mix64(seq, _SEQ_SALT)
    if session is not None:
        hashes = np.where(session == NO_SESSION, hashes, mix64(session, _SESSION_SALT))
    return hashes.astype(np.uint32)
