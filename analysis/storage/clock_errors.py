"""Bound on the error of each node's clock at any instant, as the manifest states it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from squall.analysis.arrays import Int64s
from squall.analysis.storage.clock_track import ClockTrack
from squall.analysis.storage.deployed import NodeFacts
from squall.scenarios.records import Frozen

_EARLIEST_NS = -(2**63)


class ClockErrors(Frozen, eq=False):
    """Of a node: `error_ns`, (n,), from `from_ns`, (n,) sorted, each to the next one; null where nobody measured it."""

    from_ns: Int64s
    error_ns: pa.Array

    @classmethod
    def from_node(cls, facts: NodeFacts) -> ClockErrors:
        """From `nodes.<node>` of a manifest; without a track there is one error for ever."""
        if facts.clock_track is None:
            return cls(np.array([_EARLIEST_NS]), pa.array([facts.clock_error_ns], pa.int64()))
        from_ns, error_ns = ClockTrack.from_knots(facts.clock_track).errors_from()
        return cls(from_ns, pa.array(error_ns, pa.int64()))

    def at(self, instants: pa.Array) -> pa.Array:
        """The error at each of `instants`, (n,) int64 on the run clock; null before the first and at a null."""
        rows = np.searchsorted(self.from_ns, instants.fill_null(_EARLIEST_NS).to_numpy(), side="right") - 1
        is_unknown = instants.is_null().to_numpy(zero_copy_only=False) | (rows < 0)
        return self.error_ns.take(pa.array(rows, pa.int64(), mask=is_unknown))
