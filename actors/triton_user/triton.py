"""`self.triton` of a user: one inference at a time, told to Locust as a request and to squall as a row."""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, NamedTuple

import numpy as np
from numpy.typing import NDArray

from squall.actors.triton_user.answer import Answer
from squall.actors.triton_user.caller_inputs import Arrays
from squall.actors.triton_user.handed import SENT_KEY, Sent
from squall.actors.triton_user.payloads import AnyTemplate
from squall.actors.triton_user.shared import Shared
from squall.models.payload import encode_id
from squall.scenarios.units import NS_PER_MS

NO_REPLY = "no whole reply within the timeout"


class Exchange(NamedTuple):
    """A request and what came back; instants are monotonic. `outcome` empty: `reply` is to be judged. `n_bytes`: of
    the reply, as Locust counts them."""

    sent_ns: int
    done_ns: int
    outcome: str
    detail: str
    reply: Any
    n_bytes: int


class Triton(ABC, Generic[AnyTemplate]):
    """The servers as one user calls them. For the greenlets of that user.

    Each request is counted by Locust under `request_type` and the model's name, and fires its request event once, with
    the exact response time in ms; a failed one has an exception that says outcome and detail. The event's `response` is
    the `Answer`. A request that is cut off, since its user is stopped, is not told.
    """

    request_type: str
    """As Locust shows it: POST over HTTP, grpc over gRPC."""

    def __init__(self, user: Any, shared: Shared[AnyTemplate], target: int, failure: type[Exception]) -> None:
        """`target`: number of the server that is this user's; `failure`: what Locust is told of a failed request."""
        self._user = user
        self._fire = user.environment.events.request.fire
        self._shared = shared
        self._servers = shared.servers
        self._made = shared.payloads.made
        self._own = target
        self._failure = failure
        self._places: dict[str | None, tuple[int, int, int]] = {}

    def infer(
        self,
        model: str | None = None,
        rows: int = 1,
        variant: int | None = None,
        name: str | None = None,
        inputs: Mapping[str, NDArray[np.generic]] | None = None,
    ) -> Answer:
        """Asks for one inference and waits for its answer, which may be a failure: nothing is raised for that.

        `model`: None stands for the only one. `rows`, where the model has batches. `variant`: which of the inputs that
        squall makes for it, the same on any machine; None: one drawn by Python's `random`. `name`: what Locust counts
        the request under, else the model's. `inputs`: the caller's arrays by name instead, whose rows count; they are
        encoded anew each time.

        Raises ValueError for a model, rows or inputs that do not suit, TargetError where a server that is asked for its
        models does not say, and ScenarioError where inputs cannot be made.
        """
        place = self._places.get(model)
        if place is None:
            number = self._servers.number_of(model)
            target = self._servers.target_for(number, self._own)
            largest_bytes = self._servers.largest_reply_of(target, self.request_type == "grpc")
            place = self._places[model] = (target, number, largest_bytes)
        target, number, largest_bytes = place
        if inputs is None:
            if variant is None:
                variant = random.randrange(self._servers.models[number].n_variants)
            template = self._made.get((target, number, rows, variant))
            if template is None:
                template = self._shared.payloads.make(target, number, rows, variant)
        elif variant is not None:
            raise ValueError("infer: variant is of inputs that squall makes, leave it out beside inputs")
        else:
            template = self._shared.payloads.own(target, number, inputs, rows)
        request_id = self._shared.next_id()
        wire_id = encode_id(request_id)
        start = time.time()
        sent_ns, done_ns, outcome, detail, reply, n_bytes = self._exchange(
            target, template, wire_id, largest_bytes
        )
        if not outcome:
            outcome, detail = template.judge(reply, wire_id)
        answer = Answer(request_id, outcome, detail, done_ns - sent_ns, self._read, reply)
        exception = None if outcome == "ok" else self._failure(f"{outcome}: {detail}")
        sent = Sent(request_id, target, number, template.rows, template.n_bytes, outcome, detail, done_ns)
        self._fire(
            request_type=self.request_type,
            name=name or self._servers.models[number].name,
            response_time=(done_ns - sent_ns) / NS_PER_MS,
            response_length=n_bytes,
            response=answer,
            context={**self._user.context(), SENT_KEY: sent},
            exception=exception,
            start_time=start,
            url=self._servers.targets[target].url,
        )
        return answer

    @abstractmethod
    def _exchange(self, target: int, template: AnyTemplate, wire_id: bytes, largest_bytes: int) -> Exchange:
        """Sends the request and waits for the whole reply; one that is larger is a `bad_reply`, and not read on."""

    @staticmethod
    @abstractmethod
    def _read(reply: Any) -> Arrays:
        """The outputs of a reply that was judged ok."""
