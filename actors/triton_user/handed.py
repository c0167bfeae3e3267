"""What a Locust worker of squall hands to its users, as `environment.squall`; alone, under `locust -f`, there is none.

And what a `TritonUser` says of each request beside Locust's own event: the value of `SENT_KEY` in the event's context.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from squall.models.made import Made
from squall.models.payload import PLAIN, RequestOptions
from squall.models.spec import ModelSpec
from squall.scenarios.units import NS_PER_S

SENT_KEY = "squall"


@dataclass(frozen=True)
class UserTarget:
    """A server: `name` as the rows call it; `url` of its HTTP port, without a path; `grpc` as host:port; `specs` of
    each model under load, None of one that it does not serve."""

    name: str
    url: str
    grpc: str
    specs: tuple[ModelSpec | None, ...]


@dataclass(frozen=True)
class UserModel:
    """How requests to a model are made, and what they say beside their inputs."""

    name: str
    shapes: Mapping[str, tuple[int, ...]]
    made: Made | None = None
    options: RequestOptions = PLAIN
    n_variants: int = 4


@dataclass(frozen=True)
class Handed:
    """All that a `TritonUser` needs: servers, models (in the order of `UserTarget.specs`), the seed of the payloads,
    headers of every request, and `next_id`, which gives ids unique in the run. `first_target`: server of the first user
    of the process, modulo their number; each user takes the next one. `largest_reply_bytes`: that a user reads; None:
    what the models can answer, with room."""

    targets: tuple[UserTarget, ...]
    models: tuple[UserModel, ...]
    seed: int
    next_id: Callable[[], int]
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_ns: int = 5 * NS_PER_S
    first_target: int = 0
    largest_reply_bytes: int | None = None


class Sent(NamedTuple):
    """What the row of a request has beside Locust's event. `target`, `model`: numbers in `Handed`; `outcome`: one of
    `OUTCOMES`; `done_ns`: monotonic, when the whole reply was there: what is done with it then is not its time."""

    request_id: int
    target: int
    model: int
    rows: int
    request_bytes: int
    outcome: str
    detail: str
    done_ns: int
