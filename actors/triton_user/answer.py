"""What a request of a `TritonUser` came to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.errors import TargetError
from squall.scenarios.units import NS_PER_MS


class Answer:
    """How one request ended; a failed one is an answer too, nothing is raised for it.

    `outcome`: ok, rejected, timeout, server_error, transport_error or bad_reply, as in the table `requests`; `detail`:
    why it is not ok, in words. `response_time_ns`: from just before the send to the whole reply. `request_id`: as it
    went to the server, whose record of the batch names it.
    """

    def __init__(
        self,
        request_id: int,
        outcome: str,
        detail: str,
        response_time_ns: int,
        read: Callable[[Any], Mapping[str, NDArray[np.generic]]],
        reply: object,
    ) -> None:
        """`read`: the outputs that `reply` carries."""
        self.request_id = request_id
        self.outcome = outcome
        self.detail = detail
        self.response_time_ns = response_time_ns
        self._read = read
        self._reply = reply

    @property
    def is_ok(self) -> bool:
        """The server answered with the outputs that the model's spec promises."""
        return self.outcome == "ok"

    @cached_property
    def outputs(self) -> Mapping[str, NDArray[np.generic]]:
        """Arrays by name, not to be written to; decoded when first asked for. BF16 is FP32, BYTES are bytes objects.

        Raises TargetError where the request was not answered.
        """
        if not self.is_ok:
            why = f": {self.detail}" if self.detail else ""
            raise TargetError(f"request {self.request_id} has no outputs, it ended as {self.outcome}{why}")
        return self._read(self._reply)

    def __repr__(self) -> str:
        why = f", {self.detail!r}" if self.detail else ""
        return f"<answer {self.request_id}: {self.outcome}{why}, {self.response_time_ns / NS_PER_MS:.3f} ms>"
