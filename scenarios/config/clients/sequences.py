"""Sequences of requests to stateful models: configuration. `squall.scenarios.sequences` lays them out."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from squall.scenarios.config.clients.inputs import WholeLaw
from squall.scenarios.fields import Count, Section

LARGEST_CONCURRENT = 2**20


class SequencesConfig(Section):
    """Requests carry a correlation id, and marks of the first and the last of their sequence (`sequence_batching`).

    `length`: requests of a sequence. `concurrent`: sequences that go on at once, which a schedule's arrivals are dealt
    to in turn; of a closed loop each user has one. `order`: whether a request waits for the end of the one before it in
    its sequence. `on_failure`: whether what follows a request that failed is sent. `pinned`: to one connection.
    """

    length: WholeLaw
    concurrent: Annotated[Count, Field(le=LARGEST_CONCURRENT)] | None = None
    order: Literal["wait", "none"] = "wait"
    on_failure: Literal["stop", "continue"] = "stop"
    pinned: bool = False

    @model_validator(mode="after")
    def _one_at_a_time(self) -> SequencesConfig:
        if self.pinned and self.order == "none":
            raise ValueError(
                "pinned: a connection takes one request of its sequence at a time; use order: wait"
            )
        return self
