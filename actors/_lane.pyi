from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

class Lane:
    stuck_ns: int
    next_ns: int
    n_begun: int
    n_waiting: int
    n_in_flight: int

    def __init__(
        self,
        epoll_fd: int,
        spin_ns: int,
        swap: Callable[[bytearray, int], bytearray],
        buffer: bytearray,
        record_bytes: int,
        record_fields: tuple[tuple[str, str, int], ...],
        ok_code: int,
        n_targets: int,
    ) -> None: ...
    def turn(self, until_ns: int) -> tuple[list[tuple[int, int]], list[Any]]: ...
    def expire(self, sent_by_ns: int, by_phase: bytes) -> list[Any]: ...
    def reclaim(self, fd: int) -> list[Any]: ...
    def lend(
        self, fd: int, stream: int, token: int, at_ns: int, scheduled_ns: int, phase: int, template: int,
        user_index: int, sent_ns: int, first_ns: int, has_head: int,
    ) -> None: ...  # fmt: skip
    def park_http(self, fd: int, owner: object, target: int) -> None: ...
    def park_grpc(
        self, fd: int, owner: object, block: bytes, heads: list[bytes], trailers: list[bytes],
        state: tuple[int, int, int, int], stream_window: int, frame_bytes: int, n_most_streams: int, target: int,
        unsent: bytes = b"",
    ) -> None: ...  # fmt: skip
    def set_between(self, base: bytes, flips: bytes) -> None: ...
    def set_sequences(
        self,
        places: bytes,
        id_at: int,
        is_varint: bool,
        is_ordered: bool,
        is_cut_by_failure: bool,
        held_code: int,
    ) -> None: ...
    def turn_of(self, token: int) -> tuple[int, int]: ...
    def passed(self, token: int, is_ok: bool) -> list[tuple[int, int, int, int, int]]: ...
    def held_back(self) -> list[tuple[int, int, int, int, int]]: ...
    def left_out(self, user_index: int, at_ns: int) -> None: ...
    def add_template(
        self, head: bytes, tail: bytes, rows: int, n_bytes: int, check_every: int, target: int, layout: int,
        kind: int = 0,
    ) -> int: ...  # fmt: skip
    def add_templates(
        self,
        tails: memoryview,
        heads: list[bytes],
        table: NDArray[np.int64],
        check_every: int,
        target: int,
        n_layouts: int,
        kind: int = 0,
    ) -> int: ...
    def know_layout(
        self, layout: int, prefix: bytes, suffix: bytes, n_reply_bytes: int, n_json_bytes: int
    ) -> None: ...
    def know_head(self, head: bytes, n_json_bytes: int, n_body_bytes: int, target: int) -> None: ...
    def choose_by(self, rule: int, n_kinds: int) -> None: ...
    def landed(self, target: int) -> None: ...
    def begin_open(
        self,
        start_ns: int,
        offsets: NDArray[np.int64],
        tokens: NDArray[np.int64],
        phases: NDArray[np.uint8],
        templates: NDArray[np.int32],
        sequences: tuple[NDArray[Any], ...] | None = None,
    ) -> None: ...
    def begin_closed(
        self,
        start_ns: int,
        numbers: NDArray[np.int64],
        n_all_users: int,
        enter: Callable[[int, int, int], tuple[int, int, int] | None],
        refill: Callable[[int], tuple[bytes, bytes]],
        sequences: tuple[int, Callable[[int, int], bytes]] | None = None,
    ) -> None: ...
    def take(self) -> tuple[int, int, int, int, int]: ...
    def ended(self, user_index: int, at_ns: int) -> None: ...
    def n_due_by(self, at_ns: int) -> int: ...
    def halt(self) -> None: ...
    def flush(self) -> None: ...
    def counts(self) -> tuple[int, int, int, int, int]: ...
    def n_done_by(self, target: int) -> int: ...
    def recent(self) -> bytes: ...
    def set_waiting(self, n: int, target: int) -> None: ...
    def set_others(self, n: int, target: int) -> None: ...
    def use_in_turn(self, target: int) -> None: ...
    def close(self) -> None: ...
