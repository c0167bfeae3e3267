"""Sequences of requests to stateful models: configuration. `squall.scenarios.sequences` lays them out."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from squall.scenarios.config.clients.inputs import WholeLaw
from squall.scenarios.config.fields import Count, Section

LARGEST_CONCURRENT = 2**20


class SequencesConfig(Section):
    """Requests carry a correlation id, and marks of the first and the last of their sequence (`sequence_batching`).

    `length`: requests of a sequence. `concurrent`: sequences that go on at once, which a schedule's arrivals are dealt
    to in turn; of a closed loop each user has one.
    """

    length: WholeLaw
    concurrent: Annotated[Count, Field(le=LARGEST_CONCURRENT)] | None = None
