"""How large a plan may be: what its columns hold."""

from __future__ import annotations

LARGEST_ARRIVAL_COUNT = 100_000_000  # of a phase: 2.2 GB of plan; more is a mistyped rate
LARGEST_BATCH = 2**31 - 1  # rows: a plan keeps them in an int32
LARGEST_PHASE_COUNT = 255  # a plan keeps the phase in a uint8
LARGEST_VARIANT_COUNT = (
    65_536  # a plan keeps the payload variant in a uint8 up to 256 of them, else in a uint16
)
LARGEST_SERVER_COUNT = 64  # that one schedule loads; a plan keeps the server in a uint8
LARGEST_MODEL_COUNT = 16  # under one load
LARGEST_ENTRY_COUNT = 2**24  # of data: a plan keeps the entry in a uint32, and zipf has a weight for each
