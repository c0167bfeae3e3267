"""Requests that are answered response by response: configuration."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from squall.scenarios.config.clients.check import SMALLEST_SHARE
from squall.scenarios.fields import Count, Number, Section, Text


class CancelConfig(Section):
    """Clients that hang up: of `share` of the requests, once `after` responses have come."""

    share: Annotated[Number, Field(ge=SMALLEST_SHARE, le=1)] = 1.0
    after: Count


class StreamConfig(Section):
    """Each response becomes a row of `responses`, whether the model sends one or many.

    A decoupled model is always asked so. `tokens`: the output whose elements are the tokens of a response.
    """

    tokens: Text | None = None
    cancel: CancelConfig | None = None
