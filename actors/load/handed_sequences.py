"""What the C lane is told of sequences before a run: their bytes, whose they are, and how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from squall.actors.messages.sequence_wire import Places
from squall.scenarios.sequences import SequenceRule, Sequences

_IS_START, _IS_END = 1, 2
_LENGTHS_AT_ONCE = 64


class Columns(NamedTuple):
    """Of the sequences of a plan: ids (sequences,) int64; of its arrivals: which sequence (n,) int32, and marks (n,)
    uint8."""

    ids: NDArray[np.int64]
    sequence_of: NDArray[np.int32]
    marks: NDArray[np.uint8]


@dataclass(frozen=True)
class HandedSequences:
    """The sequences of a worker, for its lane."""

    sequences: Sequences
    rule: SequenceRule
    places: Places

    def columns(self, request_ids: NDArray[np.int64]) -> Columns:
        """Of arrivals in the order in which they are due."""
        number, step, length = self.sequences.spread(request_ids)
        numbers, sequence_of = np.unique(number, return_inverse=True)
        marks = (step == 0) * _IS_START + (step == length - 1) * _IS_END
        ids = numbers + self.sequences.first_id
        return Columns(ids, sequence_of.astype(np.int32), marks.astype(np.uint8))

    def lengths(self, user: int, first: int) -> bytes:
        """Of the sequences of a user from number `first` on, 64 of them, int32."""
        return self.sequences.lengths(user, first, _LENGTHS_AT_ONCE).astype(np.int32).tobytes()
